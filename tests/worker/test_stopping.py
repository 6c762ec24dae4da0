"""Stopping: releases, aborts, cancels, and jobs that will not hear of it."""

import asyncio
import gc
import logging
import threading
import time

import pytest

from holdfast import App, JobCancelled, current, step, wait_for
from holdfast.core.model import Event, State
from holdfast.worker import worker as loop
from tests.support.given import QUICK, at_pace, entry_of, events, finished, in_state, paths, until


async def test_work_that_ends_within_the_grace_is_not_handed_over(app):
    entered = asyncio.Event()

    async def job() -> str:
        entered.set()
        await asyncio.sleep(0.05)
        return "done"

    run = await app.job(job).submit()
    async with app.worker():
        await entered.wait()
    assert await run.result(0.1) == "done"


@step
async def item(n: int) -> int:
    await asyncio.sleep(0)
    return n


async def test_a_stop_hands_over_without_losing_an_attempt_or_an_item(app):
    here = asyncio.Event()
    ran = []

    @step(name="kept")
    async def kept(n: int) -> int:
        ran.append(n)
        return n

    async def job() -> int:
        total = sum(await kept.map(range(5)))
        if not here.is_set():
            here.set()
            await asyncio.sleep(30)
        return total

    run = await app.job(job).submit()
    async with app.worker():
        await here.wait()
    stopped = await app.jobs.get(run.id)
    assert (stopped.state, stopped.attempt, stopped.recoveries) == (State.AVAILABLE, 1, 0)
    assert (await entry_of(run, Event.RELEASE)).note == {"steps": 5, "why": "released"}

    await finished(app, run)
    assert await run.result() == 10
    assert ran == list(range(5))


async def test_a_stop_while_an_end_is_committed_does_not_wait_for_a_claim(engine):
    app, writing = App("memory:", settings=type(QUICK)(poll_seconds=30), engine=engine), asyncio.Event()

    async def slowly(name, args):
        if name == "commit":
            writing.set()
            await asyncio.sleep(0.3)

    @app.job(name="film")
    async def film() -> str:
        return "done"

    engine.before = slowly
    async with app.worker():
        await asyncio.sleep(0.05)  # it has found nothing, and waits for news
        run = await film.submit()
        await writing.wait()
        began = time.monotonic()
    assert time.monotonic() - began < loop.HALT_SECONDS / 2
    assert await run.result(0.1) == "done"


async def test_what_fails_within_the_grace_has_failed(app):
    begun, go_on = asyncio.Event(), asyncio.Event()

    @app.job(retries=0)
    async def film() -> None:
        begun.set()
        await go_on.wait()
        raise ValueError("no film")

    run = await film.submit()
    worker = app.worker()
    await worker.__aenter__()
    await begun.wait()
    stopping = asyncio.create_task(worker.__aexit__(None, None, None))
    await asyncio.sleep(0.05)
    go_on.set()
    await stopping
    assert (await app.jobs.get(run.id)).state is State.REVIEW
    assert await events(run) == ["submit", "claim", "exhaust"]


async def test_an_abort_waits_for_no_grace():
    app = App("memory:", settings=type(QUICK)(grace_seconds=60))
    entered = asyncio.Event()

    async def job() -> None:
        entered.set()
        await asyncio.sleep(30)

    run = await app.job(job).submit()
    began = time.monotonic()
    async with app.worker() as worker:
        await entered.wait()
        asyncio.get_running_loop().call_later(0.1, worker.abort)
    assert time.monotonic() - began < at_pace(2)
    assert (await app.jobs.get(run.id)).state is State.AVAILABLE


async def test_what_a_handler_returns_after_it_was_told_to_stop_is_not_its_result(app):
    entered = asyncio.Event()

    async def job() -> str:
        done = []
        entered.set()
        for n in range(3):
            try:
                await asyncio.sleep(30 if current().epoch == 1 and n == 1 else 0)
                done.append(str(n))
            except BaseException:
                pass
        return ",".join(done)

    run = await app.job(job).submit()
    async with app.worker() as worker:
        await entered.wait()
        await asyncio.sleep(0.05)
        worker.abort()
        await in_state(app, run, State.AVAILABLE)
    assert await finished(app, run)
    assert await run.result() == "0,1,2"


async def test_a_gather_that_keeps_errors_cannot_complete_a_stopped_job_with_holes(app):
    entered = asyncio.Event()

    @step(name="slow")
    async def slow(n: int) -> int:
        entered.set()
        await asyncio.sleep(30 if current().epoch == 1 else 0)
        return n

    async def job() -> list[int]:
        results = await asyncio.gather(slow(1), slow(2), return_exceptions=True)
        return [r for r in results if isinstance(r, int)]

    run = await app.job(job).submit()
    async with app.worker():
        await entered.wait()
    await finished(app, run)
    assert await run.result() == [1, 2]


async def test_a_job_that_will_not_stop_is_handed_over_all_the_same(app, monkeypatch, caplog):
    monkeypatch.setattr(loop, "HALT_SECONDS", 0.1)
    entered, let_go = asyncio.Event(), False
    patience = time.monotonic() + 10  # if the test fails meanwhile, nobody lets go
    late = []

    async def stubborn() -> None:
        if current().epoch > 1:
            return
        entered.set()
        while not let_go and time.monotonic() < patience:
            try:
                await asyncio.sleep(0.01)
            except BaseException:
                pass
        try:
            await item(1)
        except BaseException as error:
            late.append(type(error).__name__)

    run = await app.job(stubborn).submit()
    async with app.worker():
        await entered.wait()
    assert (await app.jobs.get(run.id)).state is State.AVAILABLE
    assert "did not stop in time; it is released while it still runs here" in caplog.text
    await finished(app, run)
    let_go = True
    await until(lambda: late)
    assert late == ["Stopped"]
    assert await paths(app, run) == []


async def test_a_cancel_reaches_running_code_at_once_and_no_further_step_starts(app):
    # A beat every second only: it must be the wake-up that tells.
    app = App("memory:", settings=type(QUICK)(beat_seconds=1, lease_seconds=15, grace_seconds=1))
    reached = []
    entered = asyncio.Event()
    after = []

    @step(name="more")
    async def more() -> None:
        after.append(1)

    async def job() -> None:
        for _ in range(3):
            await item(1)  # news of progress are on their way when the cancel comes
        entered.set()
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            reached.append(time.monotonic())
        await more()

    run = await app.job(job).submit()
    async with app.worker():
        await entered.wait()
        began = time.monotonic()
        await run.cancel("enough")
        await until(lambda: reached)
        assert reached[0] - began < at_pace(0.1)
        with pytest.raises(JobCancelled):
            await run.result(1)
    assert after == []
    assert (await events(run))[-1] == "cancel"


async def test_a_cancel_reaches_a_worker_that_has_been_told_to_stop_at_once_too():
    # A beat every ten seconds only: it must be the wake-up that tells.
    app = App("memory:", settings=type(QUICK)(beat_seconds=10, lease_seconds=60, grace_seconds=5))
    entered, reached = asyncio.Event(), []

    async def job() -> None:
        entered.set()
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            reached.append(time.monotonic())
            raise

    leave = asyncio.Event()

    async def work() -> None:
        async with app.worker():
            await leave.wait()
            asyncio.get_running_loop().call_later(0.1, stopping.set)

    stopping = asyncio.Event()
    run = await app.job(job).submit()
    working = asyncio.create_task(work())
    await entered.wait()
    leave.set()
    await stopping.wait()
    began = time.monotonic()
    await run.cancel("enough")
    await until(lambda: reached, 3)
    assert reached[0] - began < at_pace(0.5)
    await asyncio.wait_for(working, 3)
    assert (await app.jobs.get(run.id)).state is State.CANCELLED


async def test_a_cancelled_job_may_tidy_up_in_peace(app):
    entered, tidied = asyncio.Event(), []

    async def job() -> None:
        try:
            entered.set()
            await asyncio.sleep(30)
        finally:
            for n in range(5):  # over many beats, each of which says that the job is cancelled
                await asyncio.sleep(0.1)
                tidied.append(n)

    run = await app.job(job).submit()
    async with app.worker():
        await entered.wait()
        await run.cancel()
        await until(lambda: len(tidied) == 5)


async def test_a_program_that_is_cancelled_hands_its_jobs_over(app):
    entered = asyncio.Event()

    async def job() -> None:
        entered.set()
        await asyncio.sleep(30)

    async def program() -> None:
        async with app.worker():
            await asyncio.sleep(30)

    run = await app.job(job).submit()
    working = asyncio.create_task(program())
    await entered.wait()
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working
    assert await events(run) == ["submit", "claim", "release"]
    assert (await app.jobs.get(run.id)).recoveries == 0


async def test_a_claim_that_is_under_way_when_the_worker_stops_brings_no_job_that_nobody_holds(app, engine):
    claiming, go_on = asyncio.Event(), asyncio.Event()
    claim = engine.engine.claim

    async def slow_claim(*args):
        jobs = await claim(*args)
        claiming.set()
        await go_on.wait()
        return jobs

    async def job() -> None: ...

    run = await app.job(job).submit()
    engine.engine.claim = slow_claim
    asyncio.get_running_loop().call_later(0.1, go_on.set)
    async with app.worker():
        await claiming.wait()
    stopped = await app.jobs.get(run.id)
    assert (stopped.state, stopped.attempt, stopped.recoveries) == (State.AVAILABLE, 1, 0)


async def test_a_worker_stops_although_jobs_hold_every_thread_of_the_loops_pool(app):
    entered, go_on = threading.Event(), threading.Event()

    def block() -> None:
        entered.set()
        go_on.wait(10)

    async def job() -> None:
        await asyncio.gather(*[asyncio.to_thread(block) for _ in range(50)])

    run = await app.job(job).submit()
    try:
        async with app.worker():
            await until(entered.is_set)
            began = time.monotonic()
        assert time.monotonic() - began < at_pace(4)
        assert (await app.jobs.get(run.id)).state is State.AVAILABLE
    finally:
        go_on.set()


async def test_a_worker_that_leaves_leaves_no_trace_however_short_it_was(app):
    async with app.worker():
        assert len(await app.engine.records("worker/")) == 1
    assert await app.engine.records("worker/") == []
    assert await app.engine.records("leader") == []


async def test_a_def_job_in_mid_step_is_handed_over_when_the_grace_is_over(app):
    entered, go_on = threading.Event(), threading.Event()
    ended = []

    @step(name="blocked")
    def blocked() -> int:
        entered.set()
        go_on.wait(10)
        return current().epoch

    def job() -> int:
        try:
            return blocked()
        finally:
            ended.append(current().epoch)

    run = await app.job(job).submit()
    async with app.worker():
        await until(entered.is_set)
    assert (await app.jobs.get(run.id)).state is State.AVAILABLE
    go_on.set()
    await finished(app, run)
    assert await run.result() == 2
    assert sorted(ended) == [1, 2]


async def test_a_worker_that_is_stopped_twice_leaves_the_log_of_other_workers_alone(app):
    other = App("memory:", settings=QUICK, engine=app.engine)

    async def job() -> None:
        logging.getLogger("tale").warning("heard")

    tale = app.job(job)
    async with app.worker():
        async with other.worker(queues=["other"]) as twice:
            await twice.stop()
            await asyncio.gather(twice.stop(), twice.stop())
        run = await tale.submit()
        await in_state(app, run, State.COMPLETED)
    assert [line.rpartition(" ")[2] for line in await app.jobs.log(run.id)] == ["heard"]


async def test_a_worker_that_never_started_stops_without_a_word(app):
    async def job() -> None:
        logging.getLogger("tale").warning("heard")

    await loop.Worker(app.engine, app.registry).stop()
    run = await app.job(job).submit()
    await finished(app, run)
    assert [line.rpartition(" ")[2] for line in await app.jobs.log(run.id)] == ["heard"]


@pytest.mark.parametrize("what", ["step", "map", "wait"])
async def test_a_task_that_outlives_its_job_is_cancelled_at_its_next_call_and_one_line_says_so(app, caplog, what):
    go_on = asyncio.Event()
    left: list[asyncio.Task[None]] = []
    came: list[object] = []

    async def stray() -> None:
        await go_on.wait()
        if what == "step":
            await item(1)
        elif what == "map":
            came.append(await item.map([1, 2, 3]))
        else:
            await wait_for("never")
        came.append("further")

    async def job() -> str:
        left.extend([asyncio.create_task(stray()), asyncio.create_task(stray())])
        return "done"

    run = await app.job(job).submit()
    async with app.worker():
        assert await run.result(10) == "done"
        go_on.set()
        await asyncio.wait(left, timeout=10)
    assert all(task.cancelled() for task in left)
    assert came == []
    assert await paths(app, run) == []
    left.clear()
    gc.collect()
    assert "never retrieved" not in caplog.text
    lines = [line for line in caplog.messages if "has ended, but code that it left running" in line]
    assert len(lines) == 1
