"""Large values and files travel by reference, on every engine, and come back as they were."""

import os
import time
from pathlib import Path

import pytest
from pydantic import BaseModel

from holdfast import App, Blob, BlobGone, Invalid, JobFailed, batch, chain, group, step
from holdfast.blobs.collecting import DAY_MS
from holdfast.blobs.folder import FolderBlobs
from holdfast.core.references import is_kept_outside
from holdfast.jobs.large_values import references_of, stream
from holdfast.upkeep.collecting import collect_blobs
from tests.blobs.parts import LARGE, blob_in, cut, write_film


class Film(BaseModel):
    title: str
    file: Blob


@step
async def render(title: str, folder: str) -> Film:
    path = Path(folder) / "film.mp4"
    write_film(path)
    blob = await Blob.from_path(path, media="video/mp4")
    path.unlink()
    return Film(title=title, file=blob)


@step
def describe(words: int) -> list[str]:
    return ["word"] * words


async def test_large_values_and_files_come_back_as_they_were(app, tmp_path):
    @app.job
    async def make(script: str, source: Blob, folder: str) -> tuple[Film, list[str], str]:
        async with source.open() as stream:
            start = await stream.read(4)
        film = await render("The Sea", folder)
        return film, await describe.aio(50_000), script[:3] + start.decode()

    source = tmp_path / "source.txt"
    source.write_text("read" * 50_000)
    async with app.worker():
        run = await make.submit("act" * LARGE, await Blob.from_path(source), str(tmp_path))
        film, words, mixed = await run.result(timeout=60)
        jobs = await app.open()
        job = await jobs.get(run.id)
        steps = {one.name: one.result or "" for one in await jobs.engine.steps(run.id)}

        assert (words, mixed) == (["word"] * 50_000, "actread")
        assert (film.title, film.file.media, film.file.size) == ("The Sea", "video/mp4", 2_000_000)
        await film.file.save_to(tmp_path / "copy.mp4")
        assert (tmp_path / "copy.mp4").read_bytes() == write_film(tmp_path / "again.mp4")
        async with film.file.open() as opened:
            assert sum([len(chunk) async for chunk in opened]) == 2_000_000
        parts = [part async for part in stream(jobs.engine, references_of(job, [])[0])]
        assert b"".join(parts).startswith(b'["actact')
    assert is_kept_outside(job.args)
    assert is_kept_outside(job.result)
    assert is_kept_outside(steps["describe"])
    assert len(steps["render"]) < 300


async def test_files_and_large_values_in_the_results_of_flows_can_be_read(app, tmp_path):
    @app.job
    async def shoot(n: int) -> Blob:
        path = tmp_path / f"take{n}"
        path.write_bytes(b"take" * n)
        return await Blob.from_path(path)

    @app.job
    async def describe(n: int) -> str:
        return "word" * n

    @app.job
    async def outer() -> tuple[int, int]:
        takes = await (await group([shoot.s(1), shoot.s(2)]).submit()).result()
        async with takes[1].open() as stream:
            size = len(await stream.read())
        return size, len(await (await chain(describe.s(LARGE)).submit()).result())

    async with app.worker():
        for flow in (chain(shoot.s(5)), group([shoot.s(5)]), batch([shoot.s(5)]), chain(group(shoot.s(5)))):
            run = await flow.submit()
            for one in (run, await app.run(run.id)):
                result = await one.result(timeout=60)
                take = result[0] if isinstance(result, list) else result
                await take.save_to(tmp_path / "copy")
                assert (tmp_path / "copy").read_bytes() == b"take" * 5
        assert await (await chain(describe.s(LARGE)).submit()).result(timeout=60) == "word" * LARGE
        assert await (await outer.submit()).result(timeout=60) == (8, 4 * LARGE)


async def test_a_recorded_large_result_answers_a_later_attempt(app):
    ran, tries = [], []

    @step(name="large")
    async def large() -> str:
        ran.append(1)
        return "x" * LARGE

    @app.job(retries=1)
    async def twice() -> int:
        text = await large()
        tries.append(1)
        if len(tries) == 1:
            raise ValueError("once")
        return len(text)

    async with app.worker():
        run = await twice.with_options(meta={"a": "b"}).submit()
        assert await run.result(timeout=60) == LARGE

    assert (len(ran), len(tries)) == (1, 2)


async def test_isolated_steps_and_jobs_read_and_write_files(app, tmp_path):
    @app.job
    async def main(film: Blob) -> int:
        short = await cut.aio(film, "x" * LARGE)
        return short.size

    write_film(tmp_path / "film.mp4")
    async with app.worker():
        run = await main.submit(await Blob.from_path(tmp_path / "film.mp4"))
        assert await run.result(timeout=120) == 1_000


async def test_a_blob_that_is_gone_or_altered_is_one_clear_error(tmp_path):
    app = App(f"sqlite:///{tmp_path}/jobs.db")

    @app.job
    async def large() -> str:
        return "x" * LARGE

    async with app.worker():
        run = await large.submit()
        await run.result(timeout=60)
        path = blob_in(tmp_path / "jobs.db.blobs")
        content = path.read_bytes()
        path.write_bytes(content[:-1] + b"!")
        for _ in range(2):
            with pytest.raises(BlobGone, match=r"the value [0-9a-f]{12} .* was altered in the blob store /"):
                await run.result(timeout=60)
        path.with_name(path.name + ".damaged").unlink()
        with pytest.raises(BlobGone, match=r"isn't in the blob store .* restore it from a backup"):
            await run.result(timeout=60)


async def test_a_blob_that_was_altered_or_truncated_is_stored_again_by_the_next_who_has_it(app):
    @app.job
    async def echo(text: str) -> int:
        return len(text)

    async with app.worker():
        await (await echo.submit("x" * LARGE)).result(timeout=60)
        blobs = (await app.open()).engine.blobs
        (one,) = [one for one in blobs.store.list(blobs.prefix) if one.size]
        whole = b"".join(blobs.store.get(one.key))

        blobs.store.put(one.key, [whole[:1_000]])
        assert await (await echo.submit("x" * LARGE)).result(timeout=60) == LARGE

        blobs.store.put(one.key, [whole[:-2] + b'!"'])
        run = await echo.submit("x" * LARGE)
        with pytest.raises(JobFailed, match="was altered in the blob store"):
            await run.result(timeout=60)
        assert await (await echo.submit("x" * LARGE)).result(timeout=60) == LARGE
        await run.replay()
        assert await run.result(timeout=60) == LARGE
        assert blobs.store.has(f"{one.key}.damaged")

        await collect_blobs((await app.open()).engine, time.time_ns() // 1_000_000 + 2 * DAY_MS)
        assert not blobs.store.has(f"{one.key}.damaged")
        assert b"".join(blobs.store.get(one.key)) == whole


async def test_a_store_without_a_blob_store_keeps_the_old_limit(redis_store):
    app = App(redis_store)

    @app.job(retries=0)
    async def echo(text: str) -> str:
        return text * 2

    async with app.worker():
        assert await (await echo.submit("x" * LARGE)).result(timeout=60) == "x" * 2 * LARGE
        with pytest.raises(ValueError, match=r"arguments of echo: larger than 1 MiB .* App\(blobs=…\)"):
            await echo.submit("x" * (1 << 20))
        run = await echo.submit("x" * (1 << 19))
        with pytest.raises(JobFailed, match="result of echo: larger than 1 MiB"):
            await run.result(timeout=60)


async def test_a_configured_blob_store_is_found_again_without_the_setting(redis_store, tmp_path):
    app = App(redis_store, blobs=str(tmp_path / "blobs"))

    @app.job
    async def echo(text: str) -> str:
        return text

    async with app.worker():
        run = await echo.submit("x" * (1 << 21))
        await run.result(timeout=60)
    await app.close()

    other = App(redis_store)
    found = await other.run(run.id)
    assert len(await found.result(timeout=60)) == 1 << 21
    store = (await other.open()).engine.blobs.store
    assert isinstance(store, FolderBlobs)
    assert store.root == tmp_path / "blobs"
    await other.close()


async def test_a_value_that_looks_like_a_reference_is_refused(app):
    @app.job
    async def echo(value: dict) -> dict:
        return value

    forged = {"$blob": {"encoding": "json", "sha256": "0" * 64, "size": 3}}
    async with app.worker():
        run = await echo.submit(forged)
        with pytest.raises(JobFailed, match="reserved for Holdfast"):
            await run.result(timeout=60)


async def test_a_plain_call_reads_the_file_itself(tmp_path):
    app = App("memory:")

    @app.job
    async def size(film: Blob) -> int:
        async with film.open() as stream:
            return len(await stream.read())

    write_film(tmp_path / "film.mp4")
    assert await size(await Blob.from_path(tmp_path / "film.mp4")) == 2_000_000


async def test_a_place_where_no_file_can_be_saved_is_one_clear_line(app, tmp_path):
    (tmp_path / "source").write_bytes(b"source")

    @app.job
    async def echo(blob: Blob) -> Blob:
        return blob

    async with app.worker():
        here = await Blob.from_path(tmp_path / "source")
        stored = await (await echo.submit(here)).result(timeout=60)
        (tmp_path / "source").unlink()
        for blob in (here, stored):
            with pytest.raises(Invalid, match=r"save_to\('.*'\): there is no folder '.*/none'; create it first"):
                await blob.save_to(tmp_path / "none" / "copy")
            with pytest.raises(Invalid, match=r"save_to\('.*'\): this is a folder; give the name of a file in it"):
                await blob.save_to(tmp_path)
        with pytest.raises(OSError, match="File name too long: '.*/x+'"):
            await stored.save_to(tmp_path / ("x" * 300))


async def test_a_file_that_changed_before_the_submit_is_refused(app, tmp_path):
    @app.job
    async def size(film: Blob) -> int:
        return film.size

    path = tmp_path / "film.mp4"
    write_film(path)
    blob = await Blob.from_path(path)
    path.write_bytes(os.urandom(10))
    with pytest.raises(ValueError, match="the file was changed after Blob.from_path"):
        await size.submit(blob)
    await app.close()
