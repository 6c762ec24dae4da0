"""Blobs stay readable where they are when another place is configured for new ones."""

import asyncio
import shutil
import time
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from typing import Any

import pytest

from holdfast import App, Blob, BlobGone
from holdfast.blobs.blobs import Blobs
from holdfast.blobs.collecting import DAY_MS, collect
from holdfast.blobs.folder import FolderBlobs
from holdfast.core.references import reference_in
from holdfast.upkeep.collecting import collect_blobs
from tests.blobs.parts import LARGE, write_film
from tests.support.given import QUICK

NOW = time.time_ns() // 1_000_000


def app_with_jobs(url: str, blobs: Path | None = None) -> tuple[App, Any, Any]:
    """Return an app and two jobs that return what they are given."""
    app = App(url, blobs=None if blobs is None else str(blobs), settings=QUICK)

    @app.job(retries=0)
    async def echo(text: str) -> str:
        return text

    @app.job(retries=0)
    async def pass_on(film: Blob) -> Blob:
        return film

    return app, echo, pass_on


def in_folder(folder: Path, prefix: str = "") -> Blobs:
    async def find(create: bool) -> tuple[FolderBlobs, str]:
        return FolderBlobs(folder), prefix

    return Blobs(find)


def read_blocking(blob: Blob) -> bytes:
    with blob.open() as file:
        return file.read()


def only(*ids: str) -> Callable[[Collection[str]], Awaitable[set[str]]]:
    """Say that only these jobs are left."""

    async def left(asked: Collection[str]) -> set[str]:
        return set(asked) & set(ids)

    return left


@pytest.mark.parametrize("url", ["file", "sqlite", "postgres"], indirect=True)
async def test_what_was_kept_before_another_place_was_configured_is_still_read(url, tmp_path):
    places = (None, tmp_path / "second", tmp_path / "third")
    done, waiting = [], []
    for place in places:
        app, echo, _ = app_with_jobs(url, place)
        async with app.worker():
            done.append(await echo.submit(f"{place}" * LARGE))
            await done[-1].result(timeout=60)
        waiting.append(await echo.submit(f"waits {place}" * LARGE))
        await app.close()

    app, _, _ = app_with_jobs(url, tmp_path / "second")
    async with app.worker():
        for place, early, late in zip(places, done, waiting, strict=True):
            assert await (await app.run(early.id)).result(timeout=60) == f"{place}" * LARGE
            assert await (await app.run(late.id)).result(timeout=60) == f"waits {place}" * LARGE
    await app.close()


async def test_a_file_in_a_former_place_is_passed_on_and_collected_there_once_nothing_needs_it(tmp_path):
    url, content = f"sqlite:///{tmp_path}/jobs.db", write_film(tmp_path / "film.mp4")
    app, _, pass_on = app_with_jobs(url)
    async with app.worker():
        first = await pass_on.submit(await Blob.from_path(tmp_path / "film.mp4"))
        await first.result(timeout=60)
    await app.close()
    (tmp_path / "film.mp4").unlink()
    former = FolderBlobs(tmp_path / "jobs.db.blobs")

    app, _, pass_on = app_with_jobs(url, tmp_path / "second")
    async with app.worker():
        film = await (await app.run(first.id)).result(timeout=60)
        second = await pass_on.submit(film)
        again = await second.result(timeout=60)
        await collect_blobs(app.engine, NOW + 2 * DAY_MS)
        assert any(one.size for one in former.list()), "the first job needs it"
        for day in (3, 4):
            await collect(app.engine.blobs, only(second.id), NOW + day * DAY_MS)
        assert list(former.list()) == []
        await again.save_to(tmp_path / "copy.mp4")
    await app.close()
    assert (tmp_path / "copy.mp4").read_bytes() == content


async def test_a_process_finds_what_another_one_keeps_in_a_place_that_was_configured_later(tmp_path):
    url = f"sqlite:///{tmp_path}/jobs.db"
    old, echo, _ = app_with_jobs(url)
    async with old.worker():
        await (await echo.submit("x" * LARGE)).result(timeout=60)
        new, echo, pass_on = app_with_jobs(url, tmp_path / "second")
        run = await echo.submit("y" * LARGE)
        write_film(tmp_path / "film.mp4")
        content = (tmp_path / "film.mp4").read_bytes()
        film = await pass_on.submit(await Blob.from_path(tmp_path / "film.mp4"))
        assert await run.result(timeout=60) == "y" * LARGE
        assert (await film.result(timeout=60)).size == 2_000_000
        (tmp_path / "film.mp4").unlink()
        found = await (await old.run(film.id)).result(timeout=60)
        async with found.open() as stream:
            assert await stream.read() == content
        await found.save_to(tmp_path / "copy.mp4")
        assert (tmp_path / "copy.mp4").read_bytes() == content
        assert await asyncio.to_thread(read_blocking, found) == content
        await new.close()
    await old.close()


async def test_a_store_whose_folder_is_inside_that_of_another_one_loses_nothing_to_it(tmp_path):
    inner = in_folder(tmp_path, "holdfast-0123456789ab/")
    text = await inner.keep("x" * LARGE, "job-1")

    for day in range(1, 6):
        await collect(in_folder(tmp_path), only(), NOW + day * 2 * DAY_MS)

    assert await inner.fetch(text) == "x" * LARGE
    assert inner.has(reference_in(text))


async def test_a_file_that_is_in_neither_place_is_one_error_that_names_both(tmp_path):
    url = f"sqlite:///{tmp_path}/jobs.db"
    app, _, pass_on = app_with_jobs(url, tmp_path / "first")
    write_film(tmp_path / "film.mp4")
    async with app.worker():
        run = await pass_on.submit(await Blob.from_path(tmp_path / "film.mp4"))
        await run.result(timeout=60)
    await app.close()
    (tmp_path / "film.mp4").unlink()
    shutil.rmtree(tmp_path / "first")

    app, _, _ = app_with_jobs(url, tmp_path / "second")
    film = await (await app.run(run.id)).result(timeout=60)
    with pytest.raises(BlobGone) as opened:
        async with film.open() as stream:
            await stream.read()
    with pytest.raises(BlobGone) as saved:
        await film.save_to(tmp_path / "copy.mp4")
    with pytest.raises(BlobGone) as blocking:
        await asyncio.to_thread(read_blocking, film)
    await app.close()

    said, former = str(opened.value), f"{tmp_path / 'jobs.db.blobs'} or {tmp_path / 'first'}"
    assert said == str(saved.value) == str(blocking.value)
    assert f"isn't in the blob store {tmp_path / 'second'} any more" in said
    assert f"nor where blobs were kept before, in {former}; restore it from a backup, or run the job again" in said
