"""Poison: jobs that end the worker which runs them, by whatever way, and jobs that are released again and again."""

import asyncio
import gc
import logging
import os
import signal
import sys
import threading
import time
from contextlib import contextmanager

import pytest

from holdfast import App, current, step, wait_for
from holdfast.core.lifecycle import RECOVERY_LIMIT, RELEASE_LIMIT
from holdfast.core.model import State
from holdfast.jobs.lost_workers import CUT_OFF
from tests.support.given import AT_ONCE_RETRY, QUICK, events, until

ENGINES = ["memory", "sqlite", "postgres", "redis"]

HOUR = 3_600.0


def exit_in_a_task():
    async def leave():
        sys.exit(7)

    return asyncio.create_task(leave())


def exit_in_a_callback():
    asyncio.get_running_loop().call_soon(sys.exit, 7)


def interrupt_in_a_callback():
    def interrupt():
        raise KeyboardInterrupt

    asyncio.get_running_loop().call_soon(interrupt)


def stop_the_loop():
    asyncio.get_running_loop().stop()


def cancel_everybody():
    for task in asyncio.all_tasks():
        task.cancel()


@step
async def draw(n: int) -> int:
    return n


WAYS = {
    exit_in_a_task: SystemExit,
    exit_in_a_callback: SystemExit,
    interrupt_in_a_callback: KeyboardInterrupt,
    stop_the_loop: RuntimeError,
    cancel_everybody: asyncio.CancelledError,
}
"""How a job may end the loop that it runs on, and what the worker's program hears of it."""


async def work(app: App, seconds: float = 10.0) -> None:
    """A worker in a program of its own, which never says that it shall stop."""
    async with app.worker():
        await asyncio.sleep(seconds)
        pytest.fail(f"the job did not end its worker within {seconds:g} s")


def killed_by(app: App, error: type[BaseException]) -> None:
    """Run a worker until a job ends its loop. What that leaves behind is freed here, and not in a later import."""
    with pytest.raises(error):
        asyncio.run(work(app))
    gc.collect()


@pytest.mark.parametrize("way", WAYS)
def test_a_job_that_ends_its_workers_loop_counts_as_a_lost_worker_and_the_fourth_time_needs_a_person(app, clock, way):
    @app.job
    async def poison() -> None:
        kept = way()
        await asyncio.sleep(5)
        del kept

    run = asyncio.run(poison.submit())
    for lost in range(1, RECOVERY_LIMIT + 1):
        killed_by(app, WAYS[way])
        job = asyncio.run(app.jobs.get(run.id))
        assert (job.state, job.recoveries, job.attempt) == (State.AVAILABLE, lost, 1)
        clock.advance(HOUR)
    killed_by(app, WAYS[way])

    job = asyncio.run(app.jobs.get(run.id))
    assert (job.state, job.error.type) == (State.REVIEW, "WorkersLost")
    assert job.error.message == f"4 workers in a row were lost while they ran this job: {CUT_OFF}"
    history = asyncio.run(app.jobs.history(run.id))
    ends = [entry for entry in history if entry.before == "active"]
    assert [entry.event for entry in ends] == ["lapse", "lapse", "lapse", "abandon"]
    assert {entry.note["why"] for entry in ends} == {CUT_OFF}


def test_all_that_ran_beside_such_a_job_is_lost_with_it_and_what_was_recorded_starts_its_row_anew(app, clock, caplog):
    @app.job
    async def poison() -> None:
        await asyncio.sleep(0.3)
        exit_in_a_callback()
        await asyncio.sleep(5)

    @app.job
    async def innocent() -> int:
        for n in range(current().epoch):
            await draw(n)
        await asyncio.sleep(0 if current().epoch > RECOVERY_LIMIT + 1 else 5)
        return current().epoch

    runs = [asyncio.run(job.submit()) for job in (poison, innocent)]
    for _ in range(RECOVERY_LIMIT + 1):
        killed_by(app, SystemExit)
        assert asyncio.run(app.jobs.get(runs[1].id)).recoveries == 1
        clock.advance(HOUR)

    async def ends():
        async with app.worker():
            return await runs[1].result(10)

    assert asyncio.run(ends()) == RECOVERY_LIMIT + 2
    assert asyncio.run(app.jobs.get(runs[0].id)).state is State.REVIEW
    assert "running jobs counted as lost: 2" in caplog.text


def test_a_def_job_and_one_that_swallows_its_cancel_are_lost_with_their_worker_too(app, clock, monkeypatch):
    monkeypatch.setattr("holdfast.worker.worker.HALT_SECONDS", 0.2)
    go_on = threading.Event()

    @app.job
    def blocked() -> None:
        go_on.wait(10)

    @app.job
    async def stubborn() -> None:
        end = time.monotonic() + 2
        while time.monotonic() < end:
            try:
                await asyncio.sleep(0.05)
            except asyncio.CancelledError:
                pass

    @app.job
    async def poison() -> None:
        await asyncio.sleep(0.2)
        stop_the_loop()
        await asyncio.sleep(5)

    runs = [asyncio.run(job.submit()) for job in (blocked, stubborn, poison)]
    try:
        killed_by(app, RuntimeError)
    finally:
        go_on.set()
    jobs = [asyncio.run(app.jobs.get(run.id)) for run in runs]
    assert [(job.state, job.recoveries) for job in jobs] == [(State.AVAILABLE, 1)] * 3


def test_the_log_of_a_job_that_ends_its_worker_is_kept(app, clock):
    @app.job
    async def poison() -> None:
        logging.getLogger("tale").warning("I leave")
        exit_in_a_callback()
        await asyncio.sleep(5)

    run = asyncio.run(poison.submit())
    killed_by(app, SystemExit)
    assert [line.partition(" tale: ")[2] or line for line in asyncio.run(app.jobs.log(run.id))][-1].endswith("I leave")


@contextmanager
def without_farewell():
    """A loop that is left where it stands: nobody cancels what runs on it, and the process lives on."""
    loop = asyncio.new_event_loop()
    try:
        yield loop
    finally:
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0.5))
        loop.close()


def test_a_worker_whose_loop_stands_still_does_not_seem_to_live(app):
    @app.job
    async def film() -> int:
        if current().epoch == 1:
            exit_in_a_callback()
            await asyncio.sleep(20)
        return current().epoch

    run = asyncio.run(film.submit())
    with without_farewell() as loop:
        with pytest.raises(SystemExit):
            loop.run_until_complete(work(app))

        async def another():
            async with app.worker():
                return await run.result(10)

        result: list[int] = []
        beside = threading.Thread(target=lambda: result.append(asyncio.run(another())))
        beside.start()
        beside.join(15)
        assert result == [2]


# Stops in order cost nothing.


@pytest.mark.parametrize("engine", ["memory"], indirect=True)
def test_ctrl_c_in_a_program_with_a_worker_hands_over_and_a_second_one_does_too(app):
    began = threading.Event()

    @app.job
    async def film() -> None:
        began.set()
        try:
            await asyncio.sleep(20)
        finally:
            await asyncio.sleep(0.3)

    run = asyncio.run(film.submit())

    def interrupt():
        began.wait(10)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    killed_by(app, KeyboardInterrupt)
    job = asyncio.run(app.jobs.get(run.id))
    assert (job.state, job.recoveries) == (State.AVAILABLE, 0)
    assert asyncio.run(app.jobs.history(run.id))[-1].event == "release"


# Released again and again.


async def released(app: App, run, begun: asyncio.Event, times: int) -> None:
    """Let so many workers begin the job, and be told to stop."""
    for _ in range(times):
        begun.clear()
        async with app.worker():
            await asyncio.wait_for(begun.wait(), 10)


def endless(app: App):
    """A job that is never done, and a flag that it has begun."""
    begun = asyncio.Event()

    @app.job
    async def film() -> None:
        begun.set()
        await asyncio.sleep(30)

    return film, begun


@pytest.fixture
def hasty(engine):
    """An app whose workers leave at once."""
    return App("memory:", settings=type(QUICK)(grace_seconds=0.01), engine=engine)


async def test_a_job_that_was_released_ten_times_in_a_row_without_a_new_record_needs_a_person(hasty):
    film, begun = endless(hasty)
    run = await film.submit()
    await released(hasty, run, begun, RELEASE_LIMIT - 1)
    job = await hasty.jobs.get(run.id)
    assert (job.state, job.attempt, job.recoveries) == (State.AVAILABLE, 1, 0)

    await released(hasty, run, begun, 1)
    job = await hasty.jobs.get(run.id)
    assert (job.state, job.error.type) == (State.REVIEW, "ReleasedTooOften")
    assert job.error.message.startswith("10 workers in a row were asked to stop while they ran this job")
    ends = [entry for entry in await run.history() if entry.before == "active"]
    assert [entry.event for entry in ends] == ["release"] * 9 + ["exhaust"]
    assert ends[-1].note["released"] == 10

    await run.replay()
    await released(hasty, run, begun, RELEASE_LIMIT - 1)
    assert (await hasty.jobs.get(run.id)).state is State.AVAILABLE, "a replay begins a new row"


@pytest.mark.parametrize("engine", ["memory"], indirect=True)
async def test_one_that_swallows_its_cancel_counts_its_releases_too(hasty, monkeypatch):
    monkeypatch.setattr("holdfast.worker.worker.HALT_SECONDS", 0.02)
    begun, over = asyncio.Event(), False

    @hasty.job
    async def stubborn() -> None:
        begun.set()
        while not over:
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                pass

    run = await stubborn.submit()
    try:
        await released(hasty, run, begun, RELEASE_LIMIT)
        job = await hasty.jobs.get(run.id)
        assert (job.state, job.error.type) == (State.REVIEW, "ReleasedTooOften")
    finally:
        over = True


@pytest.mark.parametrize("engine", ["memory"], indirect=True)
@pytest.mark.parametrize("progress", ["a step", "a wait"])
async def test_a_deploy_costs_nothing_however_often_while_the_job_gets_on(hasty, progress):
    begun = asyncio.Event()

    @hasty.job
    async def film() -> None:
        for n in range(current().epoch // 5):
            if progress == "a step":
                await draw(n)
            else:
                await wait_for(f"go-{n}")
        begun.set()
        await asyncio.sleep(30)

    run = await film.submit()
    for n in range(5):
        await run.signal(f"go-{n}", n)
    await released(hasty, run, begun, 2 * RELEASE_LIMIT)
    job = await hasty.jobs.get(run.id)
    assert (job.state, job.attempt, job.recoveries) == (State.AVAILABLE, 1, 0)


@pytest.mark.parametrize("engine", ["memory"], indirect=True)
async def test_a_failure_in_between_begins_a_new_row_of_releases(hasty):
    begun, epochs = asyncio.Event(), []

    @hasty.job(retries=AT_ONCE_RETRY)
    async def film() -> None:
        begun.set()
        epochs.append(current().epoch)
        if current().epoch == RELEASE_LIMIT:
            raise ValueError("no film")
        await asyncio.sleep(30)

    run = await film.submit()
    await released(hasty, run, begun, RELEASE_LIMIT - 1)
    async with hasty.worker():  # it fails, tries again at once, and is released
        await until(lambda: epochs[-1] == RELEASE_LIMIT + 1)
    job = await hasty.jobs.get(run.id)
    assert (job.state, job.attempt) == (State.AVAILABLE, 2)
    assert (await events(run)).count("release") == RELEASE_LIMIT
