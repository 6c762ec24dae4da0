"""The laws of every blob store: folder, memory, S3."""

import asyncio
import os
import tracemalloc

import pytest

from holdfast import App, Blob
from holdfast.blobs.folder import FolderBlobs
from holdfast.blobs.memory import MemoryBlobs
from holdfast.blobs.opening import blob_store
from holdfast.blobs.store import NoObject
from holdfast.core.errors import BlobsAway, Invalid
from tests.support.object_store import BUCKET, environment, s3_server


@pytest.fixture(scope="module")
def s3():
    with s3_server() as endpoint:
        yield endpoint


@pytest.fixture(params=["memory", "folder", "s3"])
def store(request, tmp_path, monkeypatch):
    if request.param == "memory":
        return MemoryBlobs()
    if request.param == "folder":
        return FolderBlobs(tmp_path / "blobs")
    for name, value in environment(request.getfixturevalue("s3")).items():
        monkeypatch.setenv(name, value)
    return blob_store(f"s3://{BUCKET}/{tmp_path.name}")


def test_what_is_put_is_there_whole_with_its_marks(store):
    content = os.urandom(3 << 20)

    store.put("x/ab/abc", [content[: 1 << 20], content[1 << 20 :]], ["x/ab/abc.job-1"])
    store.mark(["x/ab/abc.job-2"])

    assert b"".join(store.get("x/ab/abc")) == content
    assert store.has("x/ab/abc")
    assert store.has("x/ab/abc.job-2")
    assert [(one.key, one.size) for one in store.list("x/")] == [
        ("x/ab/abc", len(content)),
        ("x/ab/abc.job-1", 0),
        ("x/ab/abc.job-2", 0),
    ]
    assert [one.key for one in store.list("x/ab/abc.")] == ["x/ab/abc.job-1", "x/ab/abc.job-2"]
    assert list(store.list("y/")) == []


def test_a_file_of_several_parts_is_there_whole(store):
    parts = [os.urandom(1 << 20) for _ in range(18)]

    store.put("ab/abc", iter(parts))

    assert store.size("ab/abc") == 18 << 20
    assert b"".join(store.get("ab/abc")) == b"".join(parts)


def test_a_file_is_never_whole_in_memory(tmp_path):
    size = 32 << 20
    with (tmp_path / "film.mp4").open("wb") as film:
        film.truncate(size)
    app = App(f"sqlite:///{tmp_path}/jobs.db")

    @app.job
    async def cut(film: Blob) -> Blob:
        await film.save_to(tmp_path / "copy.mp4")
        return await Blob.from_path(tmp_path / "copy.mp4")

    async def pass_through() -> int:
        async with app.worker():
            run = await cut.submit(await Blob.from_path(tmp_path / "film.mp4"))
            async with (await run.result(timeout=60)).open() as stream:
                return sum([len(chunk) async for chunk in stream])

    tracemalloc.start()
    try:
        assert asyncio.run(pass_through()) == size
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 12 << 20


@pytest.mark.parametrize("parts", [1, 18])
def test_an_object_whose_content_fails_is_not_there(store, parts):
    def broken():
        for _ in range(parts):
            yield bytes(1 << 20)
        raise ValueError("the other half is missing")

    with pytest.raises(ValueError, match="other half"):
        store.put("ab/abc", broken())

    assert not store.has("ab/abc")
    with pytest.raises(NoObject):
        list(store.get("ab/abc"))
    assert list(store.list("ab/")) == []


def test_a_move_and_a_delete_of_what_is_not_there_do_nothing(store):
    store.put("ab/abc", [b"content"])

    store.move("ab/abc", "trash/abc")
    store.move("ab/none", "trash/none")
    store.delete(["ab/none"])

    assert [one.key for one in store.list()] == ["trash/abc"]
    store.delete(["trash/abc"])
    assert not store.has("trash/abc")


@pytest.mark.parametrize("url", ["redis://127.0.0.1/0", "ftp://host/folder", "", "sqlite:///jobs.db"])
def test_a_url_that_is_no_blob_store_is_refused_in_one_line(url):
    with pytest.raises(Invalid, match=r"blob|bucket") as refused:
        blob_store(url)

    assert "\n" not in str(refused.value)


def test_an_object_store_that_cannot_be_reached_is_one_clear_line(monkeypatch):
    pytest.importorskip("obstore", reason="obstore is not installed, so S3 is not tested")
    from holdfast.blobs.objects import ObjectBlobs

    for name, value in environment("http://127.0.0.1:9").items():
        monkeypatch.setenv(name, value)
    store = ObjectBlobs(f"s3://{BUCKET}/x", retry_seconds=0.3)

    with pytest.raises(BlobsAway, match=r"^blob store s3://films/x: ") as away:
        store.put("ab/abc", [b"content"])

    assert "\n" not in str(away.value)
