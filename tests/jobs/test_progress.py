"""Progress that a person can read: where a job stands, live, and its story until it settles."""

import asyncio
import time

import pytest

from holdfast import NotFound, Run, progress, step
from holdfast.core.model import Entry, State
from holdfast.jobs.service import Status
from tests.support.given import until


async def seen(run, condition, seconds=2.0) -> Status:
    """The first status for which the condition holds."""

    async def look():
        status = await run.status()
        return status if condition(status) else None

    return await until(look, seconds)


async def test_stage_and_count_and_text_are_told_within_a_second(app):
    gate = asyncio.Semaphore(0)

    @step(name="analyse")
    async def analyse() -> None:
        await gate.acquire()

    @step(name="draw")
    async def draw(n: int) -> None:
        await gate.acquire()

    @step(name="assemble")
    async def assemble() -> None:
        progress(text="muxing")
        await gate.acquire()
        progress(3, 4, "encoding")
        await gate.acquire()

    @app.job(stages=[analyse, draw, assemble])
    async def film() -> None:
        await analyse()
        await draw.map(range(5), at_once=1)
        await assemble()

    run = await film.submit()
    assert (await run.status()).stages == ("analyse", "draw", "assemble")
    async with app.worker():
        status = await seen(run, lambda s: s.stage == "analyse")
        assert status.stage_number == 1
        gate.release()
        status = await seen(run, lambda s: s.stage == "draw")
        for n in range(1, 4):
            gate.release()
            began = time.monotonic()
            status = await seen(run, lambda s, n=n: s.done == n)
            assert time.monotonic() - began < 1.0
            assert (status.stage, status.stage_number, status.total) == ("draw", 2, 5)
        assert status.remaining_ms is not None
        assert status.stage_ms >= 3 * status.remaining_ms / 2 - 5, "as long for each item as the items so far took"  # type: ignore[operator]
        assert "draw, stage 2 of 3, 3 of 5" in str(status)
        gate.release()
        gate.release()
        status = await seen(run, lambda s: s.text == "muxing")
        assert status.stage_number == 3
        gate.release()
        status = await seen(run, lambda s: s.done == 3)
        assert (status.total, status.text) == (4, "encoding")
        gate.release()
        await run.result(5)
    assert (await run.status()).state is State.COMPLETED


async def test_after_a_recovery_the_count_goes_on_from_what_is_recorded(app):
    stop_at = 6

    @step(name="draw")
    async def draw(n: int) -> None:
        if n == stop_at:
            await asyncio.sleep(30)

    @app.job
    async def film() -> None:
        await draw.map(range(10), at_once=1)

    run = await film.submit()
    async with app.worker():
        await seen(run, lambda s: s.done == 6)
    stop_at = 8
    async with app.worker():
        status = await seen(run, lambda s: s.total == 10 and s.done >= 6)
        assert status.steps >= 6
        status = await seen(run, lambda s: (s.done, s.total) == (8, 10))
        assert status.made == 2, "the other six were there before, and took no time of this attempt"
        assert status.remaining_ms == round(status.stage_ms / 2 * 2)  # type: ignore[operator]


async def test_after_a_recovery_the_time_goes_on_from_what_earlier_attempts_recorded(app):
    stop_at = 6

    @step(name="draw")
    async def draw(n: int) -> None:
        await asyncio.sleep(30 if n >= stop_at else 0.02)

    @app.job
    async def film() -> None:
        await draw.map(range(10), at_once=1)

    run = await film.submit()
    async with app.worker():
        await seen(run, lambda s: s.done == 6)
    async with app.worker():
        status = await seen(run, lambda s: (s.done, s.total, s.epoch) == (6, 10, 2))

    assert status.made == 0
    assert status.earlier == 6
    assert status.earlier_ms >= 6 * 20 - 5
    assert status.remaining_ms == round(status.earlier_ms / 6 * 4), (
        "nothing was made since, so the records tell the pace"
    )


async def test_follow_gives_history_and_progress_and_ends_when_settled(app):
    gate = asyncio.Semaphore(0)

    @step(name="draw")
    async def draw(n: int) -> None:
        await gate.acquire()

    @app.job
    async def film() -> None:
        await draw.map(range(3), at_once=1)

    run = await film.submit()
    told: list[Entry | Status] = []
    counts: list[int | None] = []

    async def follow() -> None:
        async for one in run.follow():
            told.append(one)
            # The worker's word comes a moment after the record: one look may show a new record and the old count.
            if isinstance(one, Status) and one.total == 3 and one.done not in counts:
                counts.append(one.done)
                gate.release()

    async with app.worker():
        await asyncio.wait_for(follow(), 10)
    assert [one.event for one in told if isinstance(one, Entry)] == ["submit", "claim", "complete"]
    assert counts == [0, 1, 2]


async def test_following_a_settled_run_gives_its_history_and_ends(app):
    @app.job
    async def job() -> None: ...

    run = await job.submit()
    await run.cancel()
    assert [one.event async for one in run.follow()] == ["submit", "cancel"]


async def test_a_thread_that_enters_and_leaves_steps_does_not_disturb_the_beat(app, caplog):
    @step(name="quick")
    def quick(n: int) -> int:
        return n

    @app.job
    def busy() -> int:
        return len(quick.map(range(500), at_once=8))

    run = await busy.submit()
    async with app.worker() as worker:
        while (await run.status()).state is not State.COMPLETED:
            worker._leases.beat_now()
            await asyncio.sleep(0.001)
    assert "a heartbeat was not answered" not in caplog.text


@pytest.mark.parametrize("need", [None, 2])
async def test_how_much_there_was_stays_known_after_the_end(app, need):
    @step(name="draw", retries=0)
    async def draw(n: int) -> int:
        if need is not None and n == 0:
            raise ValueError("no paper")
        return n

    @app.job
    async def film() -> int:
        return len(await draw.map(range(5), need=need))

    run = await film.submit()
    async with app.worker():
        await run.result(10)

    status = await run.status()

    assert (status.done, status.total) == (5 if need is None else 4, 5)


@pytest.mark.parametrize("id", ["nope", "", "0192f3a4-5b6c-7d8e-9f01-23456789abcd", "0192F3A4", "\x00", "é" * 40])
async def test_a_run_that_is_not_there_is_not_found(app, id):
    with pytest.raises(NotFound):
        await app.run(id)
    run = Run(app.open, id, None)  # type: ignore[var-annotated]
    for ask in (run.status, lambda: run.result(5), run.cancel, run.history, lambda: run.signal("go"), run.discard):
        with pytest.raises(NotFound):
            await ask()
    with pytest.raises(NotFound):
        await run.resolve_step("draw#1", 1)
    jobs = app.jobs
    for look in (
        jobs.get,
        jobs.status,
        jobs.history,
        jobs.log,
        jobs.questions,
        jobs.cancel,
        jobs.activate,
        jobs.replay,
    ):
        with pytest.raises(NotFound, match="there is no"):
            await look(id)
    with pytest.raises(NotFound):
        async for _ in run.follow():
            raise AssertionError("there is nothing to follow")
