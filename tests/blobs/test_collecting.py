"""Only the collector deletes, and only what nothing has referred to for a day; a new reference never loses its blob."""

import asyncio
import threading
import time
from typing import Any

import pytest

from holdfast import App, BlobGone, batch, chain, chord, group
from holdfast.app.signatures import JobSignature
from holdfast.blobs.blobs import Blobs
from holdfast.blobs.collecting import DAY_MS, collect
from holdfast.blobs.memory import MemoryBlobs
from holdfast.core.model import State, Where
from holdfast.core.references import reference_in
from holdfast.upkeep.collecting import collect_blobs
from tests.blobs.parts import LARGE
from tests.support.given import QUICK, until

NOW = time.time_ns() // 1_000_000


def blobs_in(store: MemoryBlobs, prefix: str = "") -> Blobs:
    async def find(create: bool) -> tuple[MemoryBlobs, str]:
        return store, prefix

    return Blobs(find)


def nobody(ids):
    return left_of(())(ids)


def left_of(kept):
    async def left(ids):
        return set(ids) & set(kept)

    return left


async def test_a_blob_is_kept_while_a_job_refers_to_it_and_for_a_day_after():
    store = MemoryBlobs()
    blobs = blobs_in(store)
    text = await blobs.keep("x" * LARGE, "job-1")

    assert (await collect(blobs, left_of(["job-1"]), NOW + 10 * DAY_MS)).kept == 1
    assert (await collect(blobs, nobody, NOW)).kept == 1, "the job may be on its way"
    assert (await collect(blobs, nobody, NOW + 2 * DAY_MS)).trashed == 1
    assert await blobs.fetch(text) == "x" * LARGE, "for another day it can be read"
    assert (await collect(blobs, nobody, NOW + 2 * DAY_MS)).deleted == 1
    with pytest.raises(BlobGone):
        await blobs.fetch(text)
    assert list(store.list()) == []


async def test_a_reference_that_comes_while_its_blob_is_collected_brings_it_back():
    store = MemoryBlobs()
    blobs = blobs_in(store)
    text = await blobs.keep("x" * LARGE, "job-1")
    moving, moved = threading.Event(), threading.Event()
    plain_move = store.move

    def slow_move(key: str, to: str) -> None:
        moving.set()  # the marks were judged; the new reference comes now
        assert moved.wait(20)
        plain_move(key, to)

    store.move = slow_move  # type: ignore[method-assign]
    collected = []

    def run_collector() -> None:
        import asyncio

        collected.append(asyncio.run(collect(blobs_in(store), nobody, NOW + 2 * DAY_MS)))

    collector = threading.Thread(target=run_collector)
    collector.start()
    assert moving.wait(20)
    other = blobs_in(store)
    assert await other.keep("x" * LARGE, "job-2") == text  # it is there: only the mark is set
    moved.set()
    collector.join(20)
    store.move = plain_move  # type: ignore[method-assign]

    assert collected[0].trashed == 1, "the race took place"
    assert await other.fetch(text) == "x" * LARGE
    done = await collect(blobs, left_of(["job-2"]), NOW + 4 * DAY_MS)
    assert (done.restored, done.deleted) == (1, 0)
    assert await other.fetch(text) == "x" * LARGE


async def test_a_file_that_is_passed_on_while_it_is_in_the_trash_comes_back():
    store = MemoryBlobs()
    blobs = blobs_in(store)
    text = await blobs.keep("x" * LARGE, "job-1")
    await collect(blobs, nobody, NOW + 2 * DAY_MS)

    await blobs_in(store).refer([reference_in(text)], "job-2")

    assert store.has(blobs.key_of(reference_in(text)))
    assert (await collect(blobs, left_of(["job-2"]), NOW + 4 * DAY_MS)).deleted == 0


async def test_nothing_outside_the_own_prefix_is_touched():
    store = MemoryBlobs()
    store.put("theirs/ab/abc", [b"theirs"])
    store.put("ours-too", [b"theirs"])
    ours = blobs_in(store, "ours/")
    await ours.keep("x" * LARGE, "job-1")

    for day in range(1, 6):
        await collect(ours, nobody, NOW + day * 2 * DAY_MS)

    assert [one.key for one in store.list()] == ["ours-too", "theirs/ab/abc"]


async def test_a_result_is_dropped_before_its_record(tmp_path, clock):
    from holdfast.engines.memory import MemoryEngine

    app = App(engine=MemoryEngine(clock))

    @app.job(keep_result="2h", keep="9d")
    async def small() -> str:
        return "small"

    async with app.worker():
        run = await small.submit()
        assert await run.result(timeout=60) == "small"
        jobs = await app.open()
        assert (await collect_blobs(jobs.engine, NOW + 3 * DAY_MS)).trashed == 0
        clock.advance(2 * 3_600)

        with pytest.raises(BlobGone, match=r"was kept for 2 h.*, as keep_result says, and was dropped"):
            await run.result(timeout=60)
        assert (await collect_blobs(jobs.engine, NOW + 3 * DAY_MS)).trashed == 1
        assert (await jobs.get(run.id)).state == "completed"
    await app.close()


async def test_a_result_is_kept_until_the_flow_that_passes_it_on_has_ended(clock):
    from holdfast.engines.memory import MemoryEngine

    app = App(engine=MemoryEngine(clock), settings=QUICK)
    may_end = asyncio.Event()

    @app.job(keep_result="1h")
    async def quick(n: int) -> str:
        return "q" * n

    @app.job
    async def slow() -> list[str]:
        await may_end.wait()
        return ["s"]

    @app.job
    async def join(texts: list[list[str]]) -> str:
        return "".join(text for part in texts for text in part)

    async with app.worker():
        run = await chord([group([quick.s(LARGE)]), slow.s()], join.s()).submit()
        jobs = await app.open()
        done = await until(lambda: jobs.engine.find(Where(type="quick", states=(State.COMPLETED,))))
        clock.advance(2 * 3_600)
        assert (await collect_blobs(jobs.engine, NOW + 3 * DAY_MS)).trashed == 0
        may_end.set()
        assert await run.result(timeout=60) == "q" * LARGE + "s"
        clock.advance(1_800)
        assert await (await app.run(done[0].id)).result(timeout=60) == "q" * LARGE
        clock.advance(2 * 3_600)
        with pytest.raises(BlobGone, match="as keep_result says"):
            await (await app.run(done[0].id)).result(timeout=60)
    await app.close()


async def test_the_result_of_a_flow_is_dropped_with_those_of_its_jobs(clock):
    from holdfast.engines.memory import MemoryEngine

    app = App(engine=MemoryEngine(clock), settings=QUICK)

    @app.job
    async def start() -> str:
        return "started"

    @app.job(keep_result="1h")
    async def brief(text: str) -> str:
        return text

    async with app.worker():
        flows: dict[JobSignature[Any], Any] = {
            chain(start.s(), brief.s()): "started",
            group(brief.s("a"), brief.s("b")): ["a", "b"],
            batch([brief.s("c")], on_success=start.s()): ["c"],
            group(brief.s("e"), start.s()): ["e", "started"],
        }
        runs = [await flow.submit() for flow in flows]
        for run, value in zip(runs, flows.values(), strict=True):
            assert await run.result(timeout=60) == value
        clock.advance(2 * 3_600)
        *brief_ones, mixed = runs
        for run in brief_ones:
            with pytest.raises(BlobGone, match="as keep_result says"):
                await run.result(timeout=60)
        assert await mixed.result(timeout=60) == ["e", "started"], "one of its jobs keeps its result as long as itself"
    await app.close()
