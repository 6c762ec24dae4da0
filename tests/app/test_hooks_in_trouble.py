"""A hook that raises, hangs or can't keep up harms no job and no other hook, and the log says so, but not often."""

import asyncio
import concurrent.futures
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from holdfast import App, JobEvent
from holdfast.app import lanes
from holdfast.app.lanes import Beside, BlockingLane
from holdfast.background import REPEAT_SECONDS
from tests.support.given import at_pace, until, wait_until

LIMIT_SECONDS = 1.0
"""How long a call of a hook may take in these tests."""


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """What the log says of hooks."""
    caplog.set_level("WARNING", logger="holdfast.hooks")
    return lambda: [record.getMessage() for record in caplog.records if record.name == "holdfast.hooks"]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "CALL_SECONDS", LIMIT_SECONDS)
    monkeypatch.setattr(lanes, "CANCEL_SECONDS", LIMIT_SECONDS)


@pytest.fixture
def release() -> Iterator[threading.Event]:
    """Ends what hangs, at the latest when the test is over."""
    event = threading.Event()
    yield event
    event.set()


async def run_some(app: App, jobs: int = 5) -> list[str]:
    """Run some jobs to their ends; the hooks that hear `completed` are told of each."""

    async def film(n: int) -> int:
        return n

    job = app.job(film)
    async with app.worker():
        runs = await job.submit_many(range(jobs))
        assert [await run.result(timeout=30) for run in runs] == list(range(jobs))
    return [run.id for run in runs]


# A hook that raises.


async def test_a_hook_that_raises_harms_no_job_and_is_logged_once_for_each_kind_of_error(app, told):
    heard: list[str] = []

    @app.hook("completed")
    def report(event: JobEvent) -> None:
        heard.append(event.job_id)
        raise (KeyError if len(heard) % 2 else ValueError)("no such channel")

    @app.hook("completed")
    async def report_async(event: JobEvent) -> None:
        raise OSError("no network")

    ids = await run_some(app, 6)

    assert sorted(heard) == sorted(ids)
    first, second, third = sorted(told())
    assert first.startswith(f"hook {__name__}.test_a_hook_that_raises_harms")
    assert "<locals>.report failed: KeyError: 'no such channel' (tests/app/test_hooks_in_trouble.py:" in first
    assert "<locals>.report failed: ValueError: no such channel (" in second
    assert "<locals>.report_async failed: OSError: no network (tests/app/test_hooks_in_trouble.py:" in third
    assert third.endswith(" in report_async)")


class Unspeakable(Exception):
    """An error without a text."""

    def __str__(self) -> str:
        raise ValueError("no text")


@pytest.mark.parametrize(
    "kind", [SystemExit, KeyboardInterrupt, asyncio.CancelledError, GeneratorExit, StopIteration, Unspeakable]
)
async def test_no_kind_of_error_ends_the_hooks(app, told, kind):
    heard: list[str] = []

    @app.hook("started")
    def raise_it(event: JobEvent) -> None:
        raise kind()

    @app.hook("started")
    async def raise_it_async(event: JobEvent) -> None:
        raise RuntimeError("odd") from None if kind is StopIteration else kind()

    @app.hook("completed")
    def report(event: JobEvent) -> None:
        heard.append(event.job_id)

    ids = await run_some(app)

    assert sorted(heard) == sorted(ids)
    assert len(told()) == 2


async def test_a_hook_that_exits_the_interpreter_does_not(app, told):
    @app.hook("completed")
    async def leave(event: JobEvent) -> None:
        sys.exit(3)

    await run_some(app)
    await run_some(app)

    (line,) = told()
    assert "leave failed: SystemExit: 3" in line


async def test_a_def_hook_that_returns_a_coroutine_is_told_to_be_async(app, told):
    async def send(event: JobEvent) -> None: ...

    @app.hook("completed")
    def report(event: JobEvent) -> Any:
        return send(event)

    await run_some(app)

    (line,) = told()
    assert "failed: TypeError: it returned a coroutine, which nobody awaits; decorate an async def function" in line


async def test_a_hook_that_works_again_says_so(app, told):
    heard: list[str] = []

    @app.hook("completed")
    def report(event: JobEvent) -> None:
        heard.append(event.job_id)
        if len(heard) == 1:
            raise OSError("no network")

    await run_some(app)

    first, second = told()
    assert "failed: OSError" in first
    assert "report works again, after " in second


# A hook that hangs.


async def test_an_async_hook_that_hangs_is_cancelled_and_called_again(app, told, impatient):
    heard: list[str] = []
    ended: list[str] = []

    @app.hook("completed")
    async def hang(event: JobEvent) -> None:
        heard.append(event.job_id)
        try:
            await asyncio.sleep(600)
        finally:
            ended.append(event.job_id)

    ids = await run_some(app, 2)
    await until(lambda: len(ended) == 2)

    assert sorted(heard) == sorted(ids)
    (line,) = [one for one in told() if "still busy" not in one]
    assert "hang failed: TimeoutError: cancelled after 1 s" in line


async def test_an_async_hook_that_ignores_its_cancel_is_skipped_until_it_returns(app, told, impatient):
    heard: list[str] = []
    may_return = threading.Event()

    @app.hook("completed")
    async def hang(event: JobEvent) -> None:
        heard.append(event.job_id)
        while not may_return.is_set():
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                pass

    await run_some(app, 1)
    await until(lambda: any("cancelled after" in one for one in told()))
    await until(lambda: app.hooks._lanes["completed"][0]._is_stuck)
    await run_some(app, 4)
    assert len(heard) == 1
    may_return.set()
    await until(lambda: any("has returned at last; it missed 4" in one for one in told()))
    await run_some(app, 1)
    await until(lambda: len(heard) == 2)


async def test_a_def_hook_that_hangs_is_skipped_until_it_returns_and_others_go_on(app, told, impatient, release):
    heard: list[str] = []
    others: list[str] = []

    @app.hook("completed")
    def hang(event: JobEvent) -> None:
        heard.append(event.job_id)
        release.wait(60)

    @app.hook("completed")
    def report(event: JobEvent) -> None:
        others.append(event.job_id)

    first = await run_some(app, 1)
    await until(lambda: any("hang failed: TimeoutError: still running after 1 s" in one for one in told()))
    missed = await run_some(app, 3)
    assert heard == first
    assert sorted(others) == sorted(first + missed)
    release.set()
    await until(lambda: any("hang has returned at last; it missed 3" in one for one in told()))
    again = await run_some(app, 1)
    await until(lambda: heard == first + again)


def test_a_call_that_returns_just_before_it_is_given_up_leaves_the_hook_in_use():
    """The loop judges a call while its thread ends it."""
    heard: list[int] = []
    lane: BlockingLane[int] = BlockingLane("hook report", heard.append, Beside())
    lane.put(1)
    wait_until(lambda: not lane._is_awake)

    assert not lane._give_up(lane._begun)

    lane.put(2)
    wait_until(lambda: heard == [1, 2])


async def test_jobs_go_on_and_a_worker_stops_while_a_hook_hangs(app, told, release, monkeypatch):
    monkeypatch.setattr(lanes, "DRAIN_SECONDS", 0.1)

    @app.hook("submitted", "started", "completed")
    def hang(event: JobEvent) -> None:
        release.wait(60)

    @app.hook("started")
    async def block(event: JobEvent) -> None:
        release.wait(60)

    began = time.monotonic()
    await run_some(app, 50)

    assert time.monotonic() - began < at_pace(10.0)
    assert not release.is_set()


# A hook that can't keep up.


async def test_a_flood_is_dropped_beyond_the_queue_and_the_log_has_the_number(app, told, release, monkeypatch):
    monkeypatch.setattr(lanes, "QUEUE_LIMIT", 10)
    heard: list[str] = []

    @app.hook("submitted")
    def report(event: JobEvent) -> None:
        heard.append(event.job_id)
        release.wait(60)

    async def film(n: int) -> int:
        return n

    job = app.job(film)
    first = await job.submit(0)
    await until(lambda: heard == [first.id])
    runs = await job.submit_many(range(50))
    assert [one.split(".")[-1] for one in told()] == ["report can't keep up: 10 events wait, and it missed 1"]
    release.set()
    await app.hooks.drain()

    assert heard == [first.id, *(run.id for run in runs[:10])]
    assert told()[-1].endswith("report has caught up; it missed 39 more")
    assert len(told()) == 2


def test_a_flood_that_goes_on_is_told_once_a_minute(told, release, monkeypatch):
    now = 1_000.0
    monkeypatch.setattr(lanes, "QUEUE_LIMIT", 1)
    lane: BlockingLane[int] = BlockingLane("hook report", lambda one: release.wait(60), Beside(), clock=lambda: now)
    lane.put(0)
    wait_until(lambda: not lane._waiting)
    lane.put(1)
    for now in (1_000.0, 1_001.0, 1_000.0 + REPEAT_SECONDS):  # noqa: B007 (the clock reads it)
        for _ in range(5):
            lane.put(2)

    assert told() == [
        "hook report can't keep up: 1 events wait, and it missed 1",
        "hook report can't keep up: 1 events wait, and it missed 10",
    ]


def test_no_thread_for_hooks_is_no_trouble_for_who_tells_them(told, monkeypatch):
    heard: concurrent.futures.Future[int] = concurrent.futures.Future()
    lane: BlockingLane[int] = BlockingLane("hook report", heard.set_result, Beside())

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        lane.put(1)
    assert told() == ["hook report failed: RuntimeError: can't start new thread"]
    lane.put(2)

    assert heard.result(10) == 1


# No hook.


async def test_without_hooks_nothing_is_started_or_observed(app):
    await run_some(app)

    assert app.engine.engine.observers == ()
    assert app.hooks._beside._loop is None
