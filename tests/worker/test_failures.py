"""What becomes of a job when its code goes wrong, in every way that Python allows."""

import asyncio
import concurrent.futures
import sys
import threading

import pytest

from holdfast import JobFailed, Retry, step
from holdfast.core.model import Event, State
from holdfast.core.summaries import is_step
from holdfast.worker.cancellation import Watch
from tests.support.given import AT_ONCE_RETRY, entry_of, events, finished, in_state


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Own(BaseException):
    """A user's own error that no `except Exception` catches."""


class Unspeakable(BaseException):
    def __str__(self) -> str:
        sys.exit("no words")


def deep(n: int = 0) -> int:
    return deep(n + 1)


def raiser(kind: str) -> None:
    match kind:
        case "value":
            raise ValueError("wrong")
        case "mute":
            raise Mute()
        case "deep":
            deep()
        case "exit":
            sys.exit(3)
        case "interrupt":
            raise KeyboardInterrupt
        case "stop":
            raise StopIteration(1)
        case "surrogate":
            raise ValueError("a \udcff and a \0")
        case "group":
            raise ExceptionGroup("two", [ValueError("a"), TypeError("b")])
        case "generator":
            raise GeneratorExit("closed")
        case "own":
            raise Own("neither error nor exit")
        case "base group":
            raise BaseExceptionGroup("two", [KeyboardInterrupt(), Own("b")])
        case "cancelled":
            raise asyncio.CancelledError
        case "pool":
            raise concurrent.futures.CancelledError
        case "unspeakable":
            raise Unspeakable


KINDS = {
    "value": "ValueError",
    "mute": "Mute",
    "deep": "RecursionError",
    "exit": "SystemExit",
    "interrupt": "KeyboardInterrupt",
    "stop": "StopIteration",
    "surrogate": "ValueError",
    "group": "ExceptionGroup",
    "generator": "GeneratorExit",
    "own": "Own",
    "base group": "BaseExceptionGroup",
    "cancelled": "CancelledError",
    "pool": "CancelledError",
    "unspeakable": "Unspeakable",
}


@step
async def async_body(kind: str) -> None:
    raiser(kind)


@step
def def_body(kind: str) -> None:
    raiser(kind)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", ["async job", "def job", "async step", "def step", "aio step", "map", "def map"])
async def test_whatever_is_raised_fails_the_job_and_leaves_the_worker_alive(app, kind, place):
    async def async_job(kind: str) -> None:
        raiser(kind)

    def def_job(kind: str) -> None:
        raiser(kind)

    async def in_async_step(kind: str) -> None:
        await async_body(kind)

    def in_def_step(kind: str) -> None:
        def_body(kind)

    async def in_aio_step(kind: str) -> None:
        await def_body.aio(kind)

    async def in_map(kind: str) -> None:
        await async_body.map([kind])

    def in_def_map(kind: str) -> None:
        def_body.map([kind])

    handlers = {
        "async job": async_job,
        "def job": def_job,
        "async step": in_async_step,
        "def step": in_def_step,
        "aio step": in_aio_step,
        "map": in_map,
        "def map": in_def_map,
    }

    async def fine() -> str:
        return "fine"

    bad = app.job(name="bad", retries=0)(handlers[place])
    good = app.job(name="good")(fine)

    async with app.worker():
        run = await bad.submit(kind)
        job = await in_state(app, run, State.REVIEW)
        assert await (await good.submit()).result(timeout=5) == "fine"

    assert job.error is not None
    expected = KINDS[kind]
    if kind == "stop" and place in ("async job", "async step", "map"):
        expected = "RuntimeError"  # Python's own way with a StopIteration in a coroutine
    said = job.error.message if "map" in place else job.error.type
    assert expected in said


@step(isolate="process")
async def isolated_body(kind: str) -> None:
    raiser(kind)


@step(isolate="process")
def isolated_def_body(kind: str) -> None:
    raiser(kind)


@pytest.mark.parametrize("colour", ["async", "def"])
async def test_whatever_is_raised_in_a_process_of_its_own_fails_that_step_alone(app, colour):
    kinds = list(KINDS)

    async def film() -> list:
        step = isolated_body if colour == "async" else isolated_def_body.aio
        return await step.map(kinds, need=0)

    run = await app.job(retries=0)(film).submit()
    await finished(app, run)
    assert await run.result() == [None] * len(kinds)
    failed = {one.path: one.error.type for one in await app.engine.steps(run.id) if is_step(one.path)}
    assert len(failed) == len(kinds)
    expected = {*KINDS.values()} | ({"RuntimeError"} if colour == "async" else set())
    assert all(any(name in type for name in expected) for type in failed.values()), failed


async def test_an_awaited_task_that_raises_generator_exit_fails_the_job(app):
    """Python then closes the coroutines that await it, so that none of them may await anything more."""

    async def closes() -> None:
        raise GeneratorExit

    @step(name="waits")
    async def waits() -> None:
        await asyncio.ensure_future(closes())

    async def in_step() -> None:
        await waits()

    async def in_map() -> None:
        await waits_for.map([1, 2])

    @step(name="waits_for")
    async def waits_for(n: int) -> None:
        await asyncio.ensure_future(closes())

    async def in_job() -> None:
        await asyncio.ensure_future(closes())

    async with app.worker():
        for place in (in_step, in_map, in_job):
            run = await app.job(retries=0)(place).submit()
            job = await in_state(app, run, State.REVIEW)
            assert "GeneratorExit" in f"{job.error.type} {job.error.message}"


@pytest.mark.parametrize("by", ["Python", "the code itself"])
def test_a_coroutine_that_python_closes_is_told_from_one_that_raises_generator_exit(by):
    """Python closes what a loop leaves behind. After that nothing may be awaited, so it must not count as an error."""
    judged = []

    async def code() -> None:
        watch = Watch(None, asyncio.current_task())
        try:
            if by == "the code itself":
                raise GeneratorExit
            await asyncio.get_running_loop().create_future()
        except BaseException as raised:
            judged.append(watch.is_stop(raised))

    async def main() -> asyncio.Task[None]:
        task = asyncio.ensure_future(code())
        await asyncio.sleep(0)
        return task

    loop = asyncio.new_event_loop()
    task = loop.run_until_complete(main())
    task.get_coro().close()
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    assert judged == [by == "Python"]
    task._log_destroy_pending = False  # type: ignore[attr-defined]


async def test_retries_end_in_review_with_the_last_error_and_each_failure_in_the_history(app):
    tries = []

    async def bad() -> None:
        tries.append(1)
        raise ValueError(f"try {len(tries)}")

    run = await app.job(retries=AT_ONCE_RETRY)(bad).submit()
    job = await finished(app, run)

    assert len(tries) == 4
    assert job.state is State.REVIEW
    assert (job.error.type, job.error.message) == ("ValueError", "try 4")
    assert "in bad" in job.error.traceback
    assert (await events(run)).count("fail") == 3
    with pytest.raises(JobFailed, match="needs a person: ValueError: try 4"):
        await run.result()


async def test_a_backoff_is_waited_for_by_the_stores_clock(app):
    async def bad() -> None:
        raise ValueError

    policy = Retry(retries=1, strategy="constant", initial_ms=60_000, jitter=False)
    run = await app.job(retries=policy)(bad).submit()
    async with app.worker():
        job = await in_state(app, run, State.RETRYABLE)

    entry = await entry_of(run, Event.FAIL)
    assert job.run_at - entry.at == 60_000  # type: ignore[operator]
    assert entry.note["next_try"] == "in 1 min"


async def test_an_error_on_the_never_list_goes_straight_to_review(app):
    async def bad() -> None:
        raise KeyError("x")

    job = await finished(app, await app.job(retries=Retry(retries=5, never=("KeyError",)))(bad).submit())
    assert (job.state, job.error.type) == (State.REVIEW, "KeyError")


async def test_a_result_that_cannot_be_stored_goes_to_review_and_says_which(app):
    async def bad() -> object:
        return threading.Lock()

    run = await app.job(retries=5)(bad).submit()
    job = await finished(app, run)
    assert job.state is State.REVIEW
    assert "result of bad" in job.error.message
    assert (await events(run)).count("claim") == 1


async def test_a_result_that_does_not_fit_its_hint_goes_to_review(app):
    async def bad() -> int:
        return "three"  # type: ignore[return-value]

    job = await finished(app, await app.job(bad).submit())
    assert job.state is State.REVIEW
    assert "result of bad" in job.error.message


async def test_arguments_that_do_not_fit_any_more_go_to_review_before_any_code_runs(app):
    ran = []

    async def grown(a: int) -> None:
        ran.append(a)

    run = await app.job(name="grown")(grown).submit(1)
    app.registry._jobs.clear()

    async def grown2(a: int, b: int) -> None:
        ran.append(a)

    app.job(name="grown")(grown2)
    job = await finished(app, run)
    assert not ran
    assert job.state is State.REVIEW
    assert "the job has no argument 'b', which grown2() requires; give the parameter a default" in job.error.message


async def test_a_wrong_colour_call_in_a_job_is_not_retried_and_names_the_view(app):
    async def wrong() -> None:
        def_body("value")

    def wrong_too() -> None:
        async_body("value")  # type: ignore[unused-coroutine]

    first = await finished(app, await app.job(wrong).submit())
    second = await finished(app, await app.job(wrong_too).submit())
    assert "await def_body.aio(…)" in first.error.message
    assert "async_body.sync(…)" in second.error.message
    assert (first.state, second.state) == (State.REVIEW, State.REVIEW)


async def test_a_jobs_timeout_counts_as_a_failure_in_both_colours(app):
    entered = threading.Event()
    go_on = threading.Event()
    more = []

    @step(name="later")
    def later() -> None:
        more.append(1)

    async def slow() -> None:
        await asyncio.sleep(30)

    def slow_too() -> None:
        entered.set()
        go_on.wait(10)
        later()

    one = await app.job(retries=0, timeout=0.05)(slow).submit()
    two = await app.job(retries=0, timeout=0.05)(slow_too).submit()
    async with app.worker():
        first = await in_state(app, one, State.REVIEW)
        second = await in_state(app, two, State.REVIEW)
        go_on.set()
        await asyncio.sleep(0.05)

    assert "longer than its timeout of 50 ms" in first.error.message
    assert "longer than its timeout of 50 ms" in second.error.message
    assert entered.is_set()
    assert not more, "the thread of an attempt that is over started another step"


async def test_a_job_that_raises_cancelled_by_itself_has_failed(app):
    async def odd() -> None:
        raise asyncio.CancelledError("my own")

    job = await finished(app, await app.job(retries=0)(odd).submit())
    assert (job.state, job.error.type) == (State.REVIEW, "asyncio.exceptions.CancelledError")


async def test_a_job_that_cancels_its_own_task_has_failed_and_is_not_handed_over_for_ever(app):
    async def odd() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(1)

    run = await app.job(retries=0)(odd).submit()
    job = await finished(app, run)
    assert job.state is State.REVIEW
    assert (await events(run)).count("claim") == 1


async def test_a_worker_s_log_tells_of_every_failed_try_and_of_every_job_that_needs_a_person(app, caplog):
    async def broken() -> None:
        raise ValueError("no ink")

    run = await app.job(retries=Retry(retries=1, initial_ms=1, jitter=False))(broken).submit()
    with caplog.at_level("WARNING", logger="holdfast.worker"):
        await finished(app, run)

    told = [record.getMessage() for record in caplog.records if run.id in record.getMessage()]
    assert any("(attempt 1 of 2): ValueError: no ink (tests/worker/test_failures.py:" in line for line in told)
    assert any(" in broken); next attempt in" in line for line in told)
    assert any(f" in broken); it needs a person: holdfast show {run.id[-8:]}" in line for line in told)
