"""The worker: slots, queues, stopping, jobs nobody knows, and jobs that are taken away."""

import asyncio
import ctypes
import logging
import subprocess
import sys
import threading
from contextlib import suppress

import pytest

from holdfast import current, step
from holdfast.core.lifecycle import decide
from holdfast.core.model import Event, State
from holdfast.engines.checks import check_worker
from holdfast.worker.worker import worker_id
from tests.support.given import finished, until


@step
async def item(n: int) -> int:
    await asyncio.sleep(0)
    return n


async def test_no_more_jobs_run_at_once_than_there_are_slots(app):
    now = most = 0

    async def job() -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.01)
        now -= 1

    runs = await app.job(job).submit_many([()] * 20)
    async with app.worker(at_once=3):
        await asyncio.gather(*[run.result(5) for run in runs])
    assert most == 3


async def test_queues_go_in_their_order_then_priority(app):
    order = []

    async def job(name: str) -> None:
        order.append(name)

    made = app.job(job)
    await made.submit("slow", queue="slow", priority=100)
    await made.submit("low", queue="fast", priority=-5)
    await made.submit("high", queue="fast", priority=5)
    last = await made.submit("none", queue="other")
    async with app.worker(at_once=1, queues=["fast", "slow"]):
        await until(lambda: len(order) == 3)
    assert order == ["high", "low", "slow"]
    assert (await last.status()).state is State.AVAILABLE


async def test_a_thousand_async_jobs_wait_in_one_process_and_claims_are_batched(app, engine):
    waiting = 0
    all_here = asyncio.Event()

    async def job() -> None:
        nonlocal waiting
        waiting += 1
        if waiting == 1_000:
            all_here.set()
        await all_here.wait()

    runs = await app.job(job).submit_many([()] * 1_000)
    threads = threading.active_count()
    async with app.worker(at_once=1_000):
        await all_here.wait()
        assert engine.calls["claim"] <= 15
        assert threading.active_count() <= threads + 3
        await asyncio.gather(*[run.result(10) for run in runs])


async def test_def_jobs_run_in_threads_beside_the_loop(app):
    barrier = threading.Barrier(4)

    def job() -> str:
        barrier.wait(5)
        return threading.current_thread().name

    runs = await app.job(job).submit_many([()] * 4)
    async with app.worker(at_once=4):
        names = [await run.result(5) for run in runs]
    assert set(names) == {"holdfast-job"}


async def test_a_job_that_comes_back_to_the_same_worker_is_not_confused_with_its_old_attempt(app):
    """Its lease was broken, and the same worker claims it again before it hears of it."""
    epochs, ended = [], []

    async def job() -> str:
        epochs.append(current().epoch)
        try:
            if current().epoch == 1:
                await asyncio.sleep(30)
            await item(1)
            await asyncio.sleep(0.3)
            return f"epoch {current().epoch}"
        finally:
            ended.append(current().epoch)

    run = await app.job(job).submit()
    async with app.worker():
        await until(lambda: epochs)
        held = await app.jobs.get(run.id)
        await app.engine.commit([decide(held, Event.LAPSE, await app.engine.now(), by="test")])
        assert await run.result(5) == "epoch 2"
        await until(lambda: len(ended) == 2)
    assert ended == [1, 2]


async def test_a_paused_queue_is_left_alone_without_a_busy_loop(app, engine):
    async def job() -> str:
        return "ran"

    run = await app.job(job).submit()
    await app.jobs.pause("default")
    async with app.worker():
        await asyncio.sleep(0.3)
        assert engine.calls["claim"] <= 3
        await app.jobs.resume("default")
        assert await run.result(5) == "ran"


@pytest.mark.parametrize("host", ["büro-2", "a b", "x" * 200, "under_score", "", "-dash"])
def test_a_workers_name_is_fit_for_a_file_whatever_the_machine_is_called(host):
    check_worker(worker_id(host))


async def test_log_lines_of_a_job_are_kept_with_it_and_bounded(app):
    logger = logging.getLogger("users.own")

    async def chatty() -> None:
        logger.warning("about to draw %s", 1)
        await asyncio.to_thread(logger.error, "from a \0 thread")
        logging.getLogger("holdfast.worker").warning("not the job's own")

    def many() -> None:
        for n in range(2_000):
            logger.warning("%d %s", n, "x" * 5_000)

    one, two = await app.job(chatty).submit(), await app.job(many).submit()
    handlers = list(logging.getLogger().handlers)
    async with app.worker():
        await one.result(5)
        await two.result(20)
    logger.warning("after the job")

    lines = await app.jobs.log(one.id)
    assert [line.split(" ", 1)[1] for line in lines] == [
        "WARNING users.own: about to draw 1",
        "ERROR users.own: from a \\0 thread",
    ]
    lines = await app.jobs.log(two.id)
    assert 1 <= len(lines) <= 500
    assert sum(map(len, lines)) <= 100_000
    assert "1999 " in lines[-1]
    assert logging.getLogger().handlers == handlers


async def test_a_quiet_worker_claims_nothing_more(app):
    async def job() -> str:
        return "ran"

    made = app.job(job)
    async with app.worker() as worker:
        await (await made.submit()).result(5)
        await app.engine.put_record(f"quiet/{worker.id}", "1")
        await until(lambda: worker._claiming.is_quiet)
        run = await made.submit()
        await asyncio.sleep(0.1)
        # It was waiting for news when it was told; what the wait brought is the last thing that it takes.
        later = await made.submit()
        await asyncio.sleep(0.2)
        assert (await later.status()).state is State.AVAILABLE
        await app.engine.put_record(f"quiet/{worker.id}", None)
        assert await later.result(5) == "ran"
        assert await run.result(5) == "ran"


async def test_log_lines_of_earlier_leases_are_kept(app):
    logger = logging.getLogger("users.own")
    here = asyncio.Event()

    async def job() -> None:
        logger.warning("lease %s", current().epoch)
        if not here.is_set():
            here.set()
            await asyncio.sleep(30)

    run = await app.job(job).submit()
    async with app.worker():
        await here.wait()
    await finished(app, run)
    assert [line[-7:] for line in await app.jobs.log(run.id)] == ["lease 1", "lease 2"]


async def test_a_log_line_names_the_step_that_it_is_from(app):
    logger = logging.getLogger("users.own")

    @step(name="draw", key=lambda number: number)
    def draw(number: int) -> None:
        logger.warning("a line of draw")

    @step(name="cut", key=lambda number: number)
    async def cut(number: int) -> None:
        logger.warning("a line of cut")
        await asyncio.gather(*map(draw.aio, (1, 2)))

    @step(name="deep", key=lambda depth: "x" * 70)
    async def deep(depth: int) -> None:
        if depth:
            await deep(depth - 1)
        else:
            logger.warning("too deep to be named")

    async def film() -> None:
        logger.warning("a line between steps")
        await cut(7)
        await deep(3)

    run = await app.job(film).submit()
    async with app.worker():
        await run.result(5)

    lines = [line.split(" ", 1)[1] for line in await app.jobs.log(run.id)]
    assert lines[:2] == ["WARNING users.own: a line between steps", "[cut#7] WARNING users.own: a line of cut"]
    assert sorted(lines[2:4]) == [f"[cut#7/draw#{n}] WARNING users.own: a line of draw" for n in (1, 2)]
    assert lines[4:] == ["WARNING users.own: too deep to be named"]


async def test_two_workers_in_one_process_share_the_work_and_log_each_line_once(app):
    both = asyncio.Barrier(2)

    async def job() -> None:
        await both.wait()
        logging.getLogger("users.own").warning("here")

    runs = await app.job(job).submit_many([(), ()])
    async with app.worker(at_once=1), app.worker(at_once=1):
        for run in runs:
            await run.result(5)
    for run in runs:
        assert len(await app.jobs.log(run.id)) == 1


async def test_log_lines_of_a_running_step_are_kept(app, monkeypatch):
    monkeypatch.setattr("holdfast.worker.worker.LOG_SECONDS", 0.05)
    gate = asyncio.Event()

    @step(name="slow")
    async def slow() -> None:
        logging.getLogger("mine").warning("half way")
        await gate.wait()

    @app.job
    async def film() -> None:
        await slow()

    run = await film.submit()
    async with app.worker():

        async def told():
            return [line for line in await app.jobs.log(run.id) if line.endswith("WARNING mine: half way")]

        (line,) = await until(told)
        gate.set()
        await run.result(5)
    assert line.partition(" ")[0].endswith("Z")


def test_a_program_that_has_not_set_up_logging_hears_warnings_while_a_worker_runs(tmp_path):
    (tmp_path / "film.py").write_text(
        "import asyncio, logging\n"
        "from holdfast import App\n"
        "app, log = App('memory:'), logging.getLogger('mine')\n"
        "@app.job(retries=0)\n"
        "async def film() -> None:\n"
        "    log.warning('inside a job'); log.info('too quiet'); raise ValueError('no film')\n"
        "async def main():\n"
        "    run = await film.submit()\n"
        "    async with app.worker():\n"
        "        log.warning('beside a worker')\n"
        "        try: await run.result(timeout=10)\n"
        "        except Exception: pass\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run([sys.executable, "film.py"], capture_output=True, text=True, cwd=tmp_path, timeout=30)
    lines = done.stderr.splitlines()
    assert lines[:2] == ["beside a worker", "inside a job"]
    assert "ValueError: no film (film.py:6 in film); it needs a person: holdfast show " in lines[2]
    assert len(lines) == 3


HELD_SECONDS = 1.5
"""Longer than the lease of these tests."""

HOLDS = 5
"""How often the lock is held, until the worker has noticed."""


def hold_the_lock() -> None:
    """A call into C that keeps the interpreter's lock, as a badly behaved extension does."""
    ctypes.PyDLL(None).usleep(int(HELD_SECONDS * 1_000_000))


@step(name="held", isolate="process")
def held_elsewhere() -> str:
    hold_the_lock()
    return "made"


@pytest.mark.parametrize("isolated", [False, True])
async def test_a_worker_silenced_by_the_interpreters_lock_says_so_and_names_the_cure(app, caplog, isolated):
    def is_said() -> bool:
        return any("did not run for" in line for line in caplog.messages)

    async def job() -> str:
        if isolated:
            return await held_elsewhere.aio()
        # A heartbeat that is being sent can't tell the lock from a slow store: then the next hold is noticed.
        for _ in range(HOLDS):
            hold_the_lock()
            with suppress(AssertionError):
                await until(is_said, seconds=1.0)
                break
        return "made"

    run = await app.job(job).submit()
    async with app.worker():
        assert await run.result(60) == "made"

    told = [line for line in caplog.messages if "did not run for" in line]
    assert len(told) == (0 if isolated else 1)
    assert all("a call held the GIL" in line and "isolate='process'" in line for line in told)
