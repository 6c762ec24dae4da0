"""Timers of asyncio around durable waits, on every kind of event loop: none is forgotten, and no job waits for ever.

A job whose code has set a timer keeps its slot, and says so. One that only waits gives its slot up.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from holdfast import ask, sleep, step, wait_for
from holdfast.core.errors import Invalid
from holdfast.core.model import Event, State
from holdfast.worker import suspension as parking
from holdfast.worker import timers
from holdfast.worker.timers import PRUNE_AT, Timers, watch_timers
from tests.support.fixtures import run_bounded
from tests.support.given import entry_of, events, in_state, until

pytestmark = pytest.mark.usefixtures("new_loop")

SOON = 0.3
"""When the timers strike. Every wait is for much longer than that."""

TIMED_OUT = "timed out"

Wait = Callable[[], Awaitable[Any]]


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    """Nothing is saved by the patience with jobs that wait in tasks of theirs."""
    monkeypatch.setattr(parking, "CHILD_TASKS_SECONDS", 0.05)


@step(name="note")
async def note(n: int) -> int:
    return n


# What people write to wait for something, but not for ever. Each answers TIMED_OUT, or with what came.


async def by_wait(wait: Wait) -> Any:
    done, pending = await asyncio.wait({asyncio.ensure_future(wait())}, timeout=SOON)
    for task in pending:
        task.cancel()
    return done.pop().result() if done else TIMED_OUT


async def by_wait_for(wait: Wait) -> Any:
    try:
        return await asyncio.wait_for(wait(), SOON)
    except TimeoutError:
        return TIMED_OUT


async def by_timeout(wait: Wait) -> Any:
    try:
        async with asyncio.timeout(SOON):
            return await wait()
    except TimeoutError:
        return TIMED_OUT


async def by_timeout_at(wait: Wait) -> Any:
    try:
        async with asyncio.timeout_at(asyncio.get_running_loop().time() + SOON):
            return await wait()
    except TimeoutError:
        return TIMED_OUT


async def by_a_rescheduled_timeout(wait: Wait) -> Any:
    try:
        async with asyncio.timeout(None) as clock:
            clock.reschedule(asyncio.get_running_loop().time() + SOON)
            return await wait()
    except TimeoutError:
        return TIMED_OUT


async def by_a_task_group(wait: Wait) -> Any:
    try:
        async with asyncio.timeout(SOON), asyncio.TaskGroup() as group:
            task = group.create_task(_awaited(wait))
    except TimeoutError:
        return TIMED_OUT
    return task.result()


async def by_as_completed(wait: Wait) -> Any:
    try:
        for first in asyncio.as_completed([wait()], timeout=SOON):
            return await first
    except TimeoutError:
        return TIMED_OUT


async def by_a_race_with_sleep(wait: Wait) -> Any:
    nap, task = asyncio.ensure_future(asyncio.sleep(SOON)), asyncio.ensure_future(wait())
    await asyncio.wait({nap, task}, return_when=asyncio.FIRST_COMPLETED)
    nap.cancel()
    if not task.done():
        task.cancel()
        return TIMED_OUT
    return task.result()


async def by_call_later(wait: Wait) -> Any:
    task = asyncio.ensure_future(wait())
    timer = asyncio.get_running_loop().call_later(SOON, task.cancel)
    try:
        return await task
    except asyncio.CancelledError:
        if asyncio.current_task().cancelling():
            raise
        return TIMED_OUT
    finally:
        timer.cancel()


async def by_a_cancel_scope(wait: Wait) -> Any:
    async with move_on_after(SOON):
        return await wait()
    return TIMED_OUT


@asynccontextmanager
async def move_on_after(seconds: float) -> AsyncIterator[None]:
    """As the cancel scopes of anyio work: a timer cancels the task, and the scope swallows that."""
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    struck: list[bool] = []
    timer = loop.call_at(loop.time() + seconds, lambda: struck.append(task.cancel()))
    try:
        yield
    except asyncio.CancelledError:
        if not struck or task.uncancel():
            raise
    finally:
        timer.cancel()


async def by_a_watchdog(wait: Wait) -> Any:
    """Another task looks at the time, and cancels the one that waits."""
    task = asyncio.current_task()

    async def bark() -> None:
        await asyncio.sleep(SOON)
        task.cancel()

    dog = asyncio.ensure_future(bark())
    try:
        return await wait()
    except asyncio.CancelledError:
        if not dog.done() or task.uncancel():
            raise
        return TIMED_OUT
    finally:
        dog.cancel()


async def _awaited(wait: Wait) -> Any:
    return await wait()


WAYS = [
    by_wait,
    by_wait_for,
    by_timeout,
    by_timeout_at,
    by_a_rescheduled_timeout,
    by_a_task_group,
    by_as_completed,
    by_a_race_with_sleep,
    by_call_later,
    by_a_cancel_scope,
    by_a_watchdog,
]
"""Ways to wait for something, but not for ever."""

KINDS = ["sleep", "signal", "question", "child", "children"]
"""What can be waited for."""


def waits(app):
    """A function that waits for something of a kind; signals for a child are sent to `childless`."""

    @app.job(retries=0)
    async def endless(n: int) -> str:
        return await wait_for("go", as_=str)

    async def child() -> str:
        return await (await endless.submit(1)).result()

    async def children() -> list[str]:
        return await endless.map([1, 2])

    return {
        "sleep": lambda: sleep("2h"),
        "signal": lambda: wait_for("go", as_=str),
        "question": lambda: ask("well?", form=str),
        "child": child,
        "children": children,
    }


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("timeout", [None, "1h"], ids=["", "job-with-timeout"])
async def test_a_timer_around_any_durable_wait_strikes(app, way, timeout):
    kinds = waits(app)

    @app.job(retries=0, timeout=timeout)
    async def film(kind: str) -> str:
        outcome = await way(kinds[kind])
        return f"{outcome} {await note(1)}"

    runs = {kind: await film.submit(kind) for kind in KINDS}
    async with app.worker(at_once=20):
        outcomes = {kind: await run.result(10) for kind, run in runs.items()}
        assert outcomes == dict.fromkeys(KINDS, f"{TIMED_OUT} 1")
        for run in runs.values():
            assert await events(run) == ["submit", "claim", "complete"]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
async def test_what_comes_before_the_timer_strikes_is_the_answer(app, way, monkeypatch):
    monkeypatch.setitem(globals(), "SOON", 20.0)

    @app.job(retries=0)
    async def film() -> str:
        return await way(lambda: wait_for("go", as_=str))

    run = await film.submit()
    async with app.worker():
        await in_state(app, run, State.ACTIVE)
        await run.signal("go", "on")
        assert await run.result(10) == "on"


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
async def test_who_keeps_its_slot_is_told_in_the_log_and_in_the_history(app, way, monkeypatch, caplog):
    monkeypatch.setitem(globals(), "SOON", 20.0)
    caplog.set_level(logging.WARNING)

    @app.job(retries=0)
    async def film() -> str:
        return await way(lambda: wait_for("go", as_=str))

    run = await film.submit()
    async with app.worker():
        await until(lambda: f"job {run.id}: keeps its slot while it waits: its code set a timer" in caplog.text)
        await run.signal("go", "on")
        assert await run.result(10) == "on"
    told = (await entry_of(run, Event.COMPLETE)).note["kept_slot"]
    assert told.startswith("its code set a timer on the event loop that still has ")
    assert told.endswith(" left; give the wait within= or timeout=, or use holdfast.sleep")
    assert any(told in line for line in await app.jobs.log(run.id))
    assert caplog.text.count("keeps its slot") == 1


async def test_a_job_stays_in_its_slot_for_as_long_as_its_timer_runs(app, monkeypatch):
    """Whatever is set when it comes to rest is waited for, however long it is."""
    monkeypatch.setattr(timers, "REPEAT_SECONDS", 0.0)

    @app.job(retries=0)
    async def film() -> str:
        async with asyncio.timeout(3_600):
            return await wait_for("go", as_=str)

    run = await film.submit()
    async with app.worker():
        await in_state(app, run, State.ACTIVE)
        await asyncio.sleep(0.5)
        await run.signal("go", "on")
        assert await run.result(10) == "on"
    assert "suspend" not in await events(run)


async def test_a_job_that_asks_again_and_again_runs_to_its_end(app, monkeypatch):
    """Each round is a wait of its own: none is taken for the same one over and over."""
    monkeypatch.setattr(timers, "REPEAT_SECONDS", 0.0)

    @app.job(retries=0)
    async def film() -> str:
        for _ in range(6):
            try:
                async with asyncio.timeout(0.1):
                    return await wait_for("go", as_=str)
            except TimeoutError:
                await asyncio.sleep(0.1)
        return "gave up"

    run = await film.submit()
    async with app.worker():
        assert await run.result(10) == "gave up"


async def test_a_job_that_looks_at_its_waiting_task_again_and_again_runs_to_its_end(app, monkeypatch):
    monkeypatch.setattr(timers, "REPEAT_SECONDS", 0.0)

    @app.job(retries=0)
    async def film() -> str:
        task = asyncio.ensure_future(wait_for("go", as_=str))
        for _ in range(20):
            await asyncio.wait({task}, timeout=0.1)
        task.cancel()
        return "gave up"

    run = await film.submit()
    async with app.worker():
        assert await run.result(10) == "gave up"


async def test_a_heartbeat_beside_a_wait_does_not_hold_the_slot_for_ever(app, monkeypatch, caplog):
    monkeypatch.setattr(timers, "REPEAT_SECONDS", 0.4)
    beats: list[int] = []

    @app.job(retries=0)
    async def film() -> str:
        async def beat() -> None:
            while True:
                await asyncio.sleep(0.01)
                beats.append(1)

        heart = asyncio.ensure_future(beat())
        try:
            return await wait_for("go", as_=str)
        finally:
            heart.cancel()

    run = await film.submit()
    async with app.worker():
        await in_state(app, run, State.PENDING)
        assert len(beats) > 1
        assert "timers that its code keeps setting" in (await entry_of(run, Event.SUSPEND)).note["forgets"]
        assert f"job {run.id}: suspends and forgets" in caplog.text
        await run.signal("go", "on")
        assert await run.result(10) == "on"


@pytest.mark.parametrize("form", ["timeout", "wait"])
async def test_one_slot_is_enough_for_a_job_that_looks_at_its_child_again_and_again(app, monkeypatch, form):
    monkeypatch.setattr(timers, "REPEAT_SECONDS", 0.3)

    @app.job(retries=0)
    async def child() -> str:
        return "child"

    @app.job(retries=0)
    async def film() -> str:
        run = await child.submit()
        task = asyncio.ensure_future(run.result())
        while True:
            if form == "wait":
                await asyncio.wait({task}, timeout=0.1)
                if task.done():
                    return task.result()
                continue
            task.cancel()
            try:
                async with asyncio.timeout(0.1):
                    return await run.result()
            except TimeoutError:
                pass

    run = await film.submit()
    async with app.worker(at_once=1):
        assert await run.result(10) == "child"


async def test_a_timer_that_was_cancelled_or_that_a_step_left_behind_holds_nothing(app):
    @step(name="leave")
    async def leave() -> None:
        asyncio.get_running_loop().call_later(3_600, print)

    @app.job(retries=0)
    async def film() -> str:
        await leave()
        async with asyncio.timeout(3_600):
            await note(1)
        asyncio.get_running_loop().call_later(3_600, print).cancel()
        return await wait_for("go", as_=str)

    run = await film.submit()
    async with app.worker():
        await in_state(app, run, State.PENDING, seconds=3)
        assert set((await entry_of(run, Event.SUSPEND)).note) == {"waits"}
        await run.signal("go", "on")
        assert await run.result(10) == "on"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", ["plain", "gather", "group"])
async def test_a_job_that_only_waits_gives_up_its_slot(app, kind, form):
    wait = waits(app)[kind]

    @app.job(retries=0, timeout="1h")
    async def film() -> None:
        if form == "plain":
            await wait()
        elif form == "gather":
            await asyncio.gather(wait(), sleep("3h"))
        else:
            async with asyncio.TaskGroup() as group:
                group.create_task(_awaited(wait))
                group.create_task(sleep("3h"))

    run = await film.submit()
    async with app.worker():
        job = await in_state(app, run, State.PENDING, State.SCHEDULED, seconds=5)
        assert job.worker is None
        entry = await entry_of(run, Event.REST if kind == "sleep" else Event.SUSPEND)
        assert set(entry.note) == {"waits"}


async def test_what_a_timer_sets_off_far_away_still_comes_before_a_suspend(app):
    """It passes through several tasks, and the job itself is parked meanwhile."""

    @app.job(retries=0)
    async def film() -> str:
        async def nested(depth: int) -> None:
            if depth:
                await asyncio.ensure_future(nested(depth - 1))
            else:
                await asyncio.sleep(0.1)

        async def side() -> int:
            await asyncio.ensure_future(nested(5))
            return await note(7)

        aside = asyncio.ensure_future(side())
        await wait_for("go")
        return f"{await aside}"

    run = await film.submit()
    async with app.worker():
        await in_state(app, run, State.PENDING)
        assert [one.name for one in await app.engine.steps(run.id) if one.path[0] != "~"] == ["note"]


def test_a_loop_that_hides_its_timers_is_refused(app):
    class Hiding(asyncio.SelectorEventLoop):
        def __setattr__(self, name: str, value: object) -> None:
            if name.startswith("call_"):
                raise AttributeError(name)
            super().__setattr__(name, value)

    async def work() -> None:
        with pytest.raises(
            Invalid, match=r"can't run on the event loop .*Hiding, because that loop hides the timers that jobs set"
        ):
            async with app.worker():
                pass

    run_bounded(work(), Hiding)


async def test_thousands_of_timers_are_not_kept(app):
    loop, kept = asyncio.get_running_loop(), Timers()
    watch_timers(loop, lambda context: kept)
    for _ in range(5_000):
        loop.call_later(3_600, print).cancel()
    assert len(kept._set) <= PRUNE_AT
    assert kept.left(loop.time()) == []


async def test_a_timer_is_kept_until_it_has_struck_and_not_until_its_time_is_over(app):
    loop, kept, struck = asyncio.get_running_loop(), Timers(), []  # type: ignore[var-annotated]
    watch_timers(loop, lambda context: kept)
    timers = [loop.call_later(0.01 + 0.0001 * n, struck.append, n) for n in range(500)]
    timers += [loop.call_at(loop.time() + 3_600, struck.append, -1)]
    time.sleep(0.1)  # noqa: ASYNC251 (the loop is late)
    assert len(kept.left(loop.time())) == 501
    await until(lambda: len(struck) == 500)
    assert len(kept.left(loop.time())) == 1
    timers[-1].cancel()
    assert kept.left(loop.time()) == []
    assert struck == list(range(500))
