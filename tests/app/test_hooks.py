"""Hooks are told what happens to jobs: each event, what it says, and in whose process."""

import asyncio
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast import App, Invalid, JobEvent, NotAllowed, Retry, step
from holdfast.core.errors import StoreError
from holdfast.core.lifecycle import RECOVERY_LIMIT, decide
from holdfast.core.model import Event, Presence, State
from holdfast.engines.sqlite import SqliteEngine
from holdfast.jobs.consequences import UNDO_TYPE
from holdfast.jobs.job_events import HOOK_NAMES, event_of_cancel
from holdfast.testing import crash_everywhere, in_memory
from holdfast.upkeep.rescue import OVERRUN_MARGIN_MS, Rescue
from tests.support.given import AT_ONCE_RETRY, QUICK, Interrupted, finished, in_state, until

ONE_RETRY = Retry(retries=1, strategy="constant", initial_ms=0, jitter=False)


class Told:
    """What a hook was told."""

    def __init__(self, app: App) -> None:
        self.events: list[JobEvent] = []
        self.app = app
        app.hook(*HOOK_NAMES)(self.hear)

    def hear(self, event: JobEvent) -> None:
        self.events.append(event)

    async def names(self, run: Any) -> list[str]:
        """What happened to a job, once all hooks have been told."""
        await self.app.hooks.drain()
        return [event.what for event in self.events if event.job_id == run.id]

    async def of(self, run: Any, what: str) -> JobEvent:
        """The last event of this kind."""
        await self.app.hooks.drain()
        return next(one for one in reversed(self.events) if (one.job_id, one.what) == (run.id, what))


@pytest.fixture
def told(app: App) -> Told:
    return Told(app)


# The events.


async def test_a_job_is_submitted_started_and_completed(app, told):
    async def film(title: str) -> str:
        return title

    job = app.job(queue="video")(film)
    run = await job.submit("The Pier", key="order-42", tags=["trial"], meta={"customer": "7"})
    before = datetime.now(UTC)
    async with app.worker() as worker:
        await run.result(timeout=10)

    assert await told.names(run) == ["submitted", "started", "completed"]
    submitted, started, completed = told.events
    for event in told.events:
        assert (event.type, event.queue, event.attempt, event.recoveries) == ("film", "video", 1, 0)
        assert (event.key, event.tags, event.meta) == ("order-42", ("trial",), {"customer": "7"})
        assert (event.error, event.next_at, event.step) == (None, None, "")
        assert abs(event.at - before) < timedelta(minutes=2)
    assert [event.worker for event in told.events] == [None, worker.id, worker.id]
    assert (submitted.duration_seconds, started.duration_seconds) == (None, None)
    assert completed.duration_seconds is not None
    assert completed.duration_seconds >= 0


async def test_a_known_key_is_not_submitted_again(app, told):
    async def film(n: int) -> int:
        return n

    job = app.job(film)
    first, again = await job.submit(1, key="one"), await job.submit(1, key="one")

    assert first.id == again.id
    assert await told.names(first) == ["submitted"]


async def test_each_of_many_jobs_is_submitted(app, told):
    async def film(n: int) -> int:
        return n

    runs = await app.job(film).submit_many(range(5))

    assert [await told.names(run) for run in runs] == [["submitted"]] * 5


async def test_a_child_is_submitted_once_however_often_its_parent_runs(app, told):
    async def part(n: int) -> int:
        return n

    child, interrupted = app.job(part), Interrupted(app)

    async def whole() -> int:
        run = await child.submit(1)
        await interrupted.point()
        return await run.result()

    run = await app.job(whole).submit()
    await interrupted.between(run)

    assert (await told.names(run)).count("started") >= 2
    assert [one.what for one in told.events if one.type == "part"].count("submitted") == 1


async def test_blocking_code_submits_with_a_hook_too(tmp_path):
    app = App(f"sqlite:///{tmp_path / 'jobs.db'}", settings=QUICK)
    told = Told(app)

    def film() -> int:
        return 1

    job = app.job(film)
    runs = await asyncio.to_thread(lambda: [app.sync.submit(job), app.sync.submit(job)])

    assert [await told.names(run) for run in runs] == [["submitted"]] * 2
    await app.close()


async def test_a_failed_attempt_is_retried_and_the_last_one_needs_review(app, told):
    async def film() -> None:
        raise ValueError("no ink")

    run = await app.job(retries=Retry(retries=1, strategy="constant", initial_ms=200, jitter=False))(film).submit()
    await finished(app, run)

    names = await told.names(run)
    assert names == ["submitted", "started", "failed", "retried", "started", "failed", "review"]
    failed, retried, _, last, review = told.events[2:]
    assert [one.attempt for one in (failed, retried, last, review)] == [1, 1, 2, 2]
    assert failed.next_at == retried.next_at == failed.at + timedelta(milliseconds=200)
    assert (last.next_at, review.next_at) == (None, None)
    for event in (failed, retried, last, review):
        assert event.error is not None
        assert (event.error.type, event.error.message, event.step) == ("ValueError", "no ink", "")
        assert 'raise ValueError("no ink")' in event.error.traceback
        assert "src/holdfast" not in event.error.traceback
        assert event.duration_seconds is not None
        assert event.worker is not None


async def test_each_retry_of_a_step_names_the_step_and_its_item(app, told):
    tries: list[int] = []

    @step(name="draw_it", key=lambda n: f"scene-{n}", retries=Retry(retries=2, strategy="constant", initial_ms=20))
    async def draw(n: int) -> int:
        tries.append(n)
        if len(tries) < 3:
            raise ConnectionError("429")
        return n

    async def film() -> list[int]:
        return await draw.map([7])

    run = await app.job(film).submit()
    await finished(app, run)

    assert await told.names(run) == ["submitted", "started", "retried", "retried", "completed"]
    first, second = told.events[2:4]
    assert [(one.step, one.path, one.tries) for one in (first, second)] == [
        ("draw_it", "draw_it#scene-7", 1),
        ("draw_it", "draw_it#scene-7", 2),
    ]
    assert first.error is not None
    assert (first.error.type, first.attempt) == ("ConnectionError", 1)
    assert "in draw" in first.error.traceback
    assert first.next_at is not None
    assert timedelta(0) < first.next_at - first.at < timedelta(seconds=1)


async def test_a_step_of_a_def_job_is_retried_with_a_hook_too(app, told):
    tries: list[int] = []

    @step(name="narrate", retries=AT_ONCE_RETRY)
    def narrate(text: str) -> str:
        tries.append(1)
        if len(tries) == 1:
            raise ConnectionError("429")
        return text

    def film() -> str:
        return narrate("a")

    run = await app.job(film).submit()
    await finished(app, run)

    assert await told.names(run) == ["submitted", "started", "retried", "completed"]


async def test_a_job_whose_worker_was_lost_is_recovered(app, told):
    interrupted = Interrupted(app)

    async def film() -> int:
        await interrupted.point()
        return 1

    run = await app.job(film).submit()
    await interrupted.between(run)

    await until(lambda: any(one.what == "recovered" for one in told.events))
    assert sorted(await told.names(run)) == ["completed", "recovered", "started", "started", "submitted"]
    recovered = await told.of(run, "recovered")
    assert (recovered.recoveries, recovered.attempt) == (1, 1)
    assert recovered.worker is not None


async def test_a_recovered_job_that_starts_again_for_another_reason_is_not_recovered_again(app, told):
    interrupted = Interrupted(app)

    async def film() -> None:
        await interrupted.point()
        raise ValueError("after the recovery")

    run = await app.job(retries=ONE_RETRY)(film).submit()
    await interrupted.between(run)

    names = await told.names(run)
    assert (names.count("started"), names.count("recovered"), names.count("review")) == (3, 1, 1)


async def test_a_signal_between_the_loss_and_the_claim_hides_no_recovery(app, told):
    async def film() -> int:
        return 1

    run = await app.job(film).submit()
    (job,) = await app.engine.claim("w-dead", ["default"], 1)
    now = await app.engine.now()
    await app.engine.commit([decide(job, Event.LAPSE, now, by="test", note={"lost": "w-dead", "why": "no heartbeat"})])
    for _ in range(3):
        await run.signal("hello", 1)
    await finished(app, run)

    assert (await told.of(run, "recovered")).reason == "w-dead: no heartbeat"


async def test_a_waiting_job_is_cancelled_where_the_cancel_is_asked_for(app, told):
    async def film() -> int:
        return 1

    run = await app.job(film).submit(delay="1h")
    await run.cancel("wrong brief")

    assert await told.names(run) == ["submitted", "cancelled"]
    cancelled = await told.of(run, "cancelled")
    assert (cancelled.reason, cancelled.worker, cancelled.duration_seconds) == ("wrong brief", None, None)
    with pytest.raises(NotAllowed):
        await run.cancel()
    assert await told.names(run) == ["submitted", "cancelled"]


async def test_a_running_job_is_cancelled_by_the_worker_that_ran_it(app, told):
    async def film() -> None:
        await asyncio.sleep(60)

    run = await app.job(film).submit()
    async with app.worker() as worker:
        await in_state(app, run, State.ACTIVE)
        await run.cancel("wrong brief")
        await until(lambda: any(one.what == "cancelled" for one in told.events))

    assert await told.names(run) == ["submitted", "started", "cancelled"]
    cancelled = await told.of(run, "cancelled")
    assert (cancelled.reason, cancelled.worker) == ("wrong brief", worker.id)
    assert cancelled.duration_seconds is not None
    assert [one.what for one in told.events if one.type == UNDO_TYPE][:1] in ([], ["started"])  # nobody submitted it


async def test_a_job_whose_end_was_refused_because_of_a_cancel_is_cancelled(app, told):
    """The cancel may reach the store just before the worker hears of it."""

    async def film() -> int:
        job = await app.jobs.get(run.id)
        now = await app.engine.now()
        await app.engine.commit([decide(job, Event.CANCEL, now, by="test", note={"reason": "late"})])
        return 1

    run = await app.job(film).submit()
    async with app.worker():
        await until(lambda: any(one.what == "cancelled" for one in told.events))

    assert await told.names(run) == ["submitted", "started", "cancelled"]


async def test_a_job_that_another_worker_ran_when_it_was_cancelled_is_not_cancelled_here(app):
    run = await app.job(name="film")(nothing).submit()
    (ours,) = await app.engine.claim("w-1", ["default"], 1)
    now = await app.engine.now()
    await app.engine.commit([decide(ours, Event.LAPSE, now, by="test")])
    (theirs,) = await app.engine.claim("w-2", ["default"], 1)
    await app.engine.commit([decide(theirs, Event.CANCEL, now, by="test")])

    history = await app.engine.history(run.id)
    assert event_of_cancel(ours, history) is None
    assert event_of_cancel(theirs, history) is not None


async def nothing() -> None: ...


# Upkeep.


async def test_a_job_that_lost_too_many_workers_needs_review_where_upkeep_gave_it_up(app, told, clock):
    async def film() -> int:
        return 1

    run = await app.job(film).submit()
    rescue = Rescue(app.engine, lease_seconds=15)
    for n in range(RECOVERY_LIMIT + 1):
        clock.advance(60)
        assert await app.engine.claim(f"w-{n}", ["default"], 1)
        await app.engine.beat(Presence(f"w-{n}"))
        for _ in range(4):  # silence counts only for who has looked all along
            assert await rescue.rescue_dead("w-upkeep") == []
            clock.advance(4)
        assert len(await rescue.rescue_dead("w-upkeep")) == 1

    assert await told.names(run) == ["submitted", "review"]
    review = await told.of(run, "review")
    assert review.error is not None
    assert (review.error.type, review.worker, review.recoveries) == ("WorkersLost", f"w-{RECOVERY_LIMIT}", 3)


async def test_a_job_that_upkeep_stops_after_its_timeout_has_failed(app, told, clock):
    async def film() -> int:
        return 1

    run = await app.job(timeout="1m", retries=1)(film).submit()
    await app.engine.claim("w-1", ["default"], 1)
    clock.advance(60 + OVERRUN_MARGIN_MS / 1_000 + 1)
    await Rescue(app.engine, lease_seconds=15).fail_overrun("w-upkeep")

    assert await told.names(run) == ["submitted", "failed", "retried"]
    failed = await told.of(run, "failed")
    assert failed.error is not None
    assert (failed.error.type, failed.worker, failed.attempt) == ("TimeoutError", "w-1", 1)
    assert failed.duration_seconds is not None
    assert failed.duration_seconds > 60


# Answers that are lost.


async def test_an_end_whose_answer_was_lost_in_the_store_is_told_once(tmp_path, monkeypatch):
    app = App(f"sqlite:///{tmp_path / 'jobs.db'}", settings=QUICK)
    told = Told(app)
    lost: list[str] = []
    turn = SqliteEngine._turn

    async def lose_one(self: SqliteEngine, *args: Any) -> Any:
        answer = await turn(self, *args)
        if not lost:
            lost.append("turn")
            raise StoreError("the connection broke")
        return answer

    monkeypatch.setattr(SqliteEngine, "_turn", lose_one)

    run = await app.job(nothing).submit()
    async with app.worker():
        await run.result(timeout=20)
        await until(lambda: any(one.what == "completed" for one in told.events))

    assert lost == ["turn"]
    assert await told.names(run) == ["submitted", "started", "completed"]
    await app.close()


# Decorating.


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["fialed"], "@app.hook('fialed'): there is no such event; did you mean failed?"),
        (["failed", "finished"], "@app.hook('finished'): there is no such event; there are submitted, started, "),
        ([3], "@app.hook(3): there is no such event; there are submitted, "),
        ([], '@app.hook needs the names of events: @app.hook("failed"); there are submitted, '),
        ([lambda event: None], '@app.hook needs the names of events: @app.hook("failed"); there are submitted, '),
    ],
)
def test_a_name_that_is_no_event_is_refused(names, words):
    with pytest.raises(Invalid) as refused:
        App("memory:").hook(*names)

    assert str(refused.value).startswith(words)


def takes_none() -> None: ...


def takes_two(a: JobEvent, b: int) -> None: ...


def yields(event: JobEvent) -> Iterator[int]:
    yield 1


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (takes_none, "it must take one argument, the event"),
        (takes_two, "it must take one argument, the event"),
        (yields, "its body would never run"),
        (3, "decorate a plain function"),
    ],
)
def test_what_cannot_be_a_hook_is_refused(function, words):
    with pytest.raises(Invalid, match=words):
        App("memory:").hook("failed")(function)


async def test_a_hook_stays_the_function_that_it_was(app):
    @app.hook("failed")
    def report(event: JobEvent) -> str:
        return event.what

    event = JobEvent(
        what="failed", job_id="1", type="film", queue="default", at=datetime.now(UTC), attempt=1, recoveries=0
    )
    assert report(event) == "failed"


async def test_async_hooks_and_def_hooks_are_told_each_in_order(app):
    heard: dict[str, list[int]] = {"async": [], "def": []}

    @app.hook("completed")
    async def later(event: JobEvent) -> None:
        await asyncio.sleep(0)
        heard["async"].append(int(event.meta["n"]))

    @app.hook("completed", "completed")
    def at_once(event: JobEvent) -> None:
        heard["def"].append(int(event.meta["n"]))

    async def film() -> None: ...

    job = app.job(film)
    async with app.worker(at_once=1):
        for n in range(20):
            await (await job.submit(meta={"n": str(n)})).result(timeout=10)

    assert heard == {"async": list(range(20)), "def": list(range(20))}


async def test_a_hook_may_submit_a_job(app):
    async def report(what: str) -> str:
        return what

    job = app.job(report)

    async def film() -> None:
        raise ValueError("no ink")

    @app.hook("review")
    async def follow_up(event: JobEvent) -> None:
        await job.submit(event.type, key=event.job_id)

    run = await app.job(retries=0)(film).submit()
    await finished(app, run)
    follow = await job.submit("film", key=run.id)

    assert (await app.engine.history(follow.id))[0].by == ""  # no child: a hook belongs to no job


# Apps.


async def test_each_app_hears_of_its_own_jobs(tmp_path):
    async def film() -> int:
        return 1

    apps = [App("memory:", settings=QUICK), App("memory:", settings=QUICK)]
    told = [Told(app) for app in apps]
    runs = [await app.job(film).submit() for app in apps]
    for app, run in zip(apps, runs, strict=True):
        await finished(app, run)

    for mine, run in zip(told, runs, strict=True):
        assert await mine.names(run) == ["submitted", "started", "completed"]
        assert {event.job_id for event in mine.events} == {run.id}


async def test_an_app_that_is_told_to_use_another_store_keeps_its_hooks():
    app = App("memory:")
    told = Told(app)
    app.use("memory:")

    async def film() -> int:
        return 1

    run = await app.job(film).submit()

    assert await told.names(run) == ["submitted"]


# Tests of users.


def test_hooks_are_told_in_a_test_in_memory_before_it_is_idle():
    app = App("sqlite:////no/such/folder/jobs.db")
    told = Told(app)

    @app.job(retries=0)
    def film() -> None:
        raise ValueError("no ink")

    with in_memory(app) as test:
        app.sync.submit(film)
        test.idle()
        assert [event.what for event in told.events] == ["submitted", "started", "failed", "review"]


def test_a_test_that_crashes_a_job_everywhere_tells_no_hook():
    app = App("sqlite:////no/such/folder/jobs.db")
    told = Told(app)

    crash_everywhere(app.job(nothing))

    assert told.events == []


# Processes.


def run_program(folder: Path, program: str) -> str:
    (folder / "program.py").write_text(textwrap.dedent(program))
    command = [sys.executable, "-X", "dev", "-W", "error", "-W", "ignore::DeprecationWarning", "program.py"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_a_process_that_ends_waits_a_moment_for_its_hooks(tmp_path):
    told = run_program(
        tmp_path,
        """
        import time
        from holdfast import App, JobEvent
        app = App("sqlite:///jobs.db")

        @app.job
        def film() -> int:
            return 1

        @app.hook("submitted")
        def report(event: JobEvent) -> None:
            time.sleep(0.2)
            print(event.what, event.type, flush=True)

        app.sync.submit(film)
        """,
    )
    assert told == "submitted film\n"


def test_hooks_work_in_a_forked_child_and_on_in_its_parent(tmp_path):
    told = run_program(
        tmp_path,
        """
        import asyncio, os
        from holdfast import App, JobEvent
        app = App("sqlite:///jobs.db")

        @app.job
        def film(who: str) -> str:
            return who

        @app.hook("submitted")
        async def report(event: JobEvent) -> None:
            await asyncio.sleep(0.01)
            print(event.meta["who"] + "\\n", end="", flush=True)  # one write: the other hook has a thread of its own

        @app.hook("submitted")
        def write(event: JobEvent) -> None:
            print(event.meta["who"] + "\\n", end="", flush=True)  # one write: the other hook has a thread of its own

        def submit(who):
            app.sync.submit(film, who, meta={"who": who})
            asyncio.run(app.close())

        submit("before")
        if (child := os.fork()) == 0:
            submit("child")
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        submit("after")
        """,
    )
    assert told.split() == ["before", "before", "child", "child", "after", "after"]
