"""User code that is cancelled from inside: a failure with an error of its own, and never an item that vanishes."""

import asyncio
import concurrent.futures
from typing import Any

import pytest

from holdfast import ItemsFailed, Retry, step
from holdfast.core.errors import StepFailed
from holdfast.core.model import Event, State, StepState
from tests.support.given import AT_ONCE_RETRY, entry_of, events, finished, in_state, until

EVERY_ENGINE = pytest.mark.parametrize("engine", ["memory", "sqlite", "postgres", "redis"], indirect=True)

ASYNCIO = "asyncio.exceptions.CancelledError"
FUTURES = "concurrent.futures._base.CancelledError"
INSIDE = "cancelled from inside"

BAD = 2
"""The item whose body is cancelled."""

TRIES: dict[int, int] = {}
GATE: list[asyncio.Event] = []


@pytest.fixture(autouse=True)
def _fresh():
    TRIES.clear()
    GATE.clear()


async def raises() -> None:
    raise asyncio.CancelledError("my own words")


async def subtask() -> None:
    task = asyncio.ensure_future(asyncio.sleep(30))
    asyncio.get_running_loop().call_soon(task.cancel)
    await task


async def shared_future() -> None:
    """Somebody else cancels what the body waits for."""
    future = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(future.cancel)
    await future


async def scope() -> None:
    """A cancel scope, as anyio has them: it cancels the task, takes that back, and lets CancelledError through."""
    task = asyncio.current_task()
    asyncio.get_running_loop().call_soon(task.cancel)
    try:
        await asyncio.sleep(30)
    except asyncio.CancelledError:
        task.uncancel()
        raise


async def after_a_swallowed_cancel() -> None:
    """The task counts a cancel that is long over; the one that ends the body is not its own."""
    asyncio.get_running_loop().call_soon(asyncio.current_task().cancel)
    try:
        await asyncio.sleep(30)
    except asyncio.CancelledError:
        pass
    await shared_future()


async def a_futures_error() -> None:
    raise concurrent.futures.CancelledError("of a pool")


async def itself() -> None:
    asyncio.current_task().cancel()
    await asyncio.sleep(30)


CANCELS = {
    "raises": (raises, ASYNCIO),
    "subtask": (subtask, ASYNCIO),
    "shared future": (shared_future, ASYNCIO),
    "scope": (scope, ASYNCIO),
    "pool": (a_futures_error, FUTURES),
}
"""What cancels a body, and the type of the failure that is recorded."""

HARD_CANCELS = CANCELS | {
    "itself": (itself, ASYNCIO),
    "after a swallowed cancel": (after_a_swallowed_cancel, ASYNCIO),
}
"""Those too that cancel the task itself: in a map it is known to be ours."""


@step
async def draw(n: int, how: str) -> int:
    TRIES[n] = TRIES.get(n, 0) + 1
    if n == BAD:
        await HARD_CANCELS[how][0]()
    await asyncio.sleep(0)
    return n * 10


@step
def def_draw(n: int, how: str) -> int:
    TRIES[n] = TRIES.get(n, 0) + 1
    if n == BAD:
        raise (concurrent.futures.CancelledError if how == "pool" else asyncio.CancelledError)("in a thread")
    return n * 10


def of(kind, how):
    """A step for one item: a step of one colour with the way in which it is cancelled."""

    @step(name="item")
    async def item(n: int) -> int:
        TRIES[n] = TRIES.get(n, 0) + 1
        if n == BAD:
            await HARD_CANCELS[how][0]()
        await asyncio.sleep(0)
        return n * 10

    @step(name="item")
    def def_item(n: int) -> int:
        return def_draw.spec.function(n, how)

    return {"async": item, "def": def_item}[kind]


async def plain(how, items, **options):
    return await of("async", how).map(items, **options)


async def aio(how, items, **options):
    return await of("def", how).aio.map(items, **options)


async def threads(how, items, **options):
    return await asyncio.to_thread(lambda: of("def", how).map(items, **options))


async def sync_view(how, items, **options):
    return await asyncio.to_thread(lambda: of("async", how).sync.map(items, **options))


MAPS = {"plain": plain, "aio": aio, "threads": threads, "sync view": sync_view}
PAIRS = [
    (way, how) for way in MAPS for how in HARD_CANCELS if way in ("plain", "sync view") or how in ("raises", "pool")
]
"""A body in a thread has no task that could be cancelled: it can only raise."""


async def failed_steps(app, run):
    steps = await app.engine.steps(run.id)
    return [one for one in steps if one.state is StepState.FAILED]


# Maps.


@pytest.mark.parametrize("at_once", [1, 2, 6])
@pytest.mark.parametrize(("way", "how"), PAIRS)
async def test_an_item_that_is_cancelled_from_inside_has_failed_and_all_others_are_there(app, way, how, at_once):
    heard = []

    async def film() -> None:
        try:
            await MAPS[way](how, range(6), at_once=at_once)
        except ItemsFailed as error:
            heard.append(error)

    run = await app.job(retries=0)(film).submit()
    job = await finished(app, run)

    assert job.state is State.COMPLETED, job.error
    (error,) = heard
    assert error.results == [0, 10, None, 30, 40, 50]
    (failure,) = error.failures
    assert (failure.index, failure.item) == (2, 2)
    assert isinstance(failure.error, Exception), "it can be caught like any other"
    expected = FUTURES if how == "pool" else ASYNCIO
    assert expected in str(error)
    (record,) = await failed_steps(app, run)
    assert record.error.type == expected
    assert (INSIDE in record.error.message) is (expected == ASYNCIO)


@EVERY_ENGINE
async def test_no_store_lets_an_item_vanish(app):
    async def film() -> list:
        return await plain("shared future", range(6), at_once=3)

    run = await app.job(retries=0)(film).submit()
    job = await finished(app, run)

    assert job.state is State.REVIEW
    assert "1 of 6 items failed; first failure: item" in job.error.message
    assert [record.error.type for record in await failed_steps(app, run)] == [ASYNCIO]


@pytest.mark.parametrize(("way", "how"), PAIRS)
async def test_outside_a_job_no_item_vanishes_either(way, how):
    with pytest.raises(ItemsFailed) as caught:
        await MAPS[way](how, range(6), at_once=2)
    assert caught.value.results == [0, 10, None, 30, 40, 50]
    assert [failure.index for failure in caught.value.failures] == [2]


async def test_items_that_share_a_token_which_one_of_them_cancels_all_come_in(app):
    """One gives up early and thereby cancels what all wait for. The others fail, and are tried again."""
    token = None

    async def refresh() -> str:
        await asyncio.sleep(0.2)
        return "token"

    async def get_token() -> str:
        nonlocal token
        if token is None or token.cancelled():
            token = asyncio.ensure_future(refresh())
        return await token

    @step(name="shot", retries=AT_ONCE_RETRY)
    async def shot(scene: int) -> str:
        async with asyncio.timeout(0.05 if scene == 0 and token is None else 10):
            await get_token()
        return f"{scene}.png"

    async def film() -> list:
        return await shot.map(range(8), at_once=8)

    run = await app.job(retries=0)(film).submit()
    await finished(app, run)
    assert await run.result() == [f"{n}.png" for n in range(8)]


async def test_a_token_that_another_job_cancels_costs_a_try_and_no_item(app):
    """Two jobs share a task. The first is cancelled by a person, and with it what the second waits for."""
    shared: list[Any] = []

    async def slow() -> str:
        await asyncio.sleep(30)
        return "never"

    @step(name="needs", retries=AT_ONCE_RETRY)
    async def needs(n: int) -> int:
        if not shared:
            shared.append(asyncio.ensure_future(slow()))
        if not shared[0].cancelled():
            await shared[0]
        return n

    async def first() -> int:
        return await needs(1)

    async def second() -> list:
        return await needs.map([5, 6, 7])

    one = await app.job(name="first")(first).submit()
    async with app.worker():
        await until(lambda: shared)
        two = await app.job(name="second")(second).submit()
        await until(lambda: len(shared[0]._callbacks or ()) == 4)
        await one.cancel()
        assert await two.result(timeout=10) == [5, 6, 7]
        await in_state(app, one, State.CANCELLED)
    assert not await failed_steps(app, one)


@pytest.mark.parametrize("what", [asyncio.CancelledError, KeyboardInterrupt, GeneratorExit, SystemExit])
@pytest.mark.parametrize("way", ["plain", "aio", "threads"])
async def test_items_and_keys_that_raise_what_is_no_exception_leave_no_hole(app, way, what):
    """The iterable and the key function are user code too."""

    def items():
        yield 0
        yield 1
        raise what("no more")

    def key(n):
        if n == 1:
            raise what("no key")
        return str(n)

    heard = []

    async def film() -> None:
        for options in ({"items": items()}, {"items": [0, 1, 3], "key": key}):
            try:
                heard.append(await MAPS[way]("raises", **options))
            except Exception as error:
                heard.append(error)

    run = await app.job(retries=0)(film).submit()
    job = await finished(app, run)
    assert job.state is State.COMPLETED, job.error
    broken, unnamed = heard
    assert isinstance(broken, StepFailed)
    assert what.__name__ in str(broken)
    assert isinstance(unnamed, ItemsFailed)
    assert unnamed.results == [0, None, 30]


# One step, alone and among others.


async def in_line(first, second):
    return [await first, await second]


async def gathered(first, second):
    return await asyncio.gather(first, second)


async def grouped(first, second):
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(first), group.create_task(second)]
    return [None if task.cancelled() else task.result() for task in tasks]


async def waited(first, second):
    done, _ = await asyncio.wait([asyncio.ensure_future(first), asyncio.ensure_future(second)])
    return [None if task.cancelled() else task.result() for task in done]


TOGETHER = {"in line": in_line, "gather": gathered, "TaskGroup": grouped, "wait": waited}


@pytest.mark.parametrize("together", TOGETHER)
@pytest.mark.parametrize(
    ("colour", "how"),
    [*(("async", how) for how in CANCELS), *(("sync", how) for how in CANCELS), ("def", "raises"), ("def", "pool")],
)
async def test_a_step_that_is_cancelled_from_inside_fails_the_job_with_its_own_error(app, together, colour, how):
    def called(n):
        if colour == "async":
            return draw(n, how)
        if colour == "def":
            return def_draw.aio(n, how)
        return asyncio.to_thread(lambda: draw.sync(n, how))

    async def film() -> list:
        return await TOGETHER[together](called(1), called(BAD))

    run = await app.job(retries=0)(film).submit()
    job = await finished(app, run)

    expected = FUTURES if how == "pool" else ASYNCIO
    assert job.state is State.REVIEW
    assert expected in (job.error.type if together != "TaskGroup" else job.error.traceback)
    assert [record.error.type for record in await failed_steps(app, run)] == [expected]


@pytest.mark.parametrize("how", ["raises", "pool"])
async def test_a_def_jobs_steps_that_are_cancelled_from_inside_fail_it(app, how):
    def film() -> int:
        return def_draw(BAD, how)

    run = await app.job(retries=0)(film).submit()
    job = await finished(app, run)

    expected = FUTURES if how == "pool" else ASYNCIO
    assert (job.state, job.error.type) == (State.REVIEW, expected)
    assert [record.error.type for record in await failed_steps(app, run)] == [expected]


@EVERY_ENGINE
async def test_it_follows_the_retry_policy_like_any_other_failure(app):
    @step(name="flaky", retries=AT_ONCE_RETRY)
    async def flaky() -> int:
        TRIES[0] = TRIES.get(0, 0) + 1
        if TRIES[0] < 3:
            await shared_future()
        return TRIES[0]

    @step(name="final", retries=Retry(retries=5, initial_ms=0, never=(ASYNCIO,)))
    async def final() -> None:
        TRIES[1] = TRIES.get(1, 0) + 1
        await shared_future()

    heard = []

    async def film() -> int:
        got = await flaky()
        try:
            await final()
        except StepFailed as error:
            heard.append(error)
        return got

    run = await app.job(retries=0)(film).submit()
    await finished(app, run)
    assert await run.result() == 3
    assert TRIES == {0: 3, 1: 1}
    (error,) = heard
    assert error.type == ASYNCIO
    assert INSIDE in error.message


async def test_a_recorded_one_raises_the_same_class_when_the_job_goes_on(app, interrupted):
    heard = []

    async def job() -> None:
        try:
            await draw(BAD, "raises")
        except StepFailed as error:
            heard.append((error.type, error.message))
        await interrupted.point()

    run = await app.job(name="job")(job).submit()
    done = await interrupted.between(run)
    assert done.state is State.COMPLETED, done.error
    assert TRIES == {BAD: 1}, "the record answered"
    assert len(heard) == 2
    assert heard[0] == heard[1]


async def test_an_effect_that_is_cancelled_from_inside_is_in_doubt_and_says_why(app):
    @step(name="pay", effect="once", key=lambda: "k")
    async def pay() -> None:
        await shared_future()

    async def shop() -> None:
        await asyncio.gather(pay(), pay(), return_exceptions=True)
        await pay()

    run = await app.job(retries=3)(shop).submit()
    job = await finished(app, run)
    assert (job.state, job.error.type) == (State.REVIEW, "EffectInDoubt")
    assert INSIDE in job.error.message


@pytest.mark.parametrize("engine", ["sqlite", "postgres"], indirect=True)
async def test_a_transaction_that_is_cancelled_from_inside_is_taken_back_and_has_failed(app):
    @step(name="book", effect="transaction")
    def book(n: int) -> int:
        if n == BAD:
            raise asyncio.CancelledError
        return n

    async def shop() -> list:
        return await book.aio.map([1, BAD, 3], need=2)

    run = await app.job(retries=0)(shop).submit()
    await finished(app, run)
    assert await run.result() == [1, None, 3]
    assert [record.error.type for record in await failed_steps(app, run)] == [ASYNCIO]


@pytest.mark.parametrize("engine", ["postgres"], indirect=True)
@pytest.mark.parametrize("how", CANCELS)
async def test_an_async_transaction_that_is_cancelled_from_inside_has_failed(app, how):
    @step(name="book", effect="transaction")
    async def book(n: int) -> int:
        if n == BAD:
            await CANCELS[how][0]()
        return n

    async def shop() -> list:
        return await book.map([1, BAD, 3], need=2)

    run = await app.job(retries=0)(shop).submit()
    await finished(app, run)
    assert await run.result() == [1, None, 3]
    assert [record.error.type for record in await failed_steps(app, run)] == [CANCELS[how][1]]


# Jobs and children.


@EVERY_ENGINE
@pytest.mark.parametrize("colour", ["async", "def"])
async def test_a_job_that_is_cancelled_from_inside_is_a_failed_attempt_that_says_so(app, colour):
    async def odd() -> None:
        await shared_future()

    def def_odd() -> None:
        raise asyncio.CancelledError

    run = await app.job(retries=Retry(retries=1, initial_ms=0))(odd if colour == "async" else def_odd).submit()
    job = await finished(app, run)
    assert (job.state, job.error.type) == (State.REVIEW, ASYNCIO)
    assert INSIDE in job.error.message
    assert (await events(run)).count("fail") == 1


@pytest.mark.parametrize("at_once", [None, 2])
async def test_a_child_that_is_cancelled_from_inside_leaves_no_hole(app, at_once):
    @app.job(retries=0, name="child")
    async def child(n: int) -> int:
        if n == BAD:
            await subtask()
        return n * 10

    async def single() -> int:
        return await (await child.submit(BAD)).result()

    async def parent() -> list:
        return await child.map(range(4), at_once=at_once, need=3)

    one = await app.job(retries=0, name="parent")(parent).submit()
    two = await app.job(retries=0, name="single")(single).submit()
    async with app.worker():
        assert await one.result(timeout=10) == [0, 10, None, 30]
        job = await in_state(app, two, State.REVIEW)
    assert job.error.type.endswith("JobFailed")
    assert ASYNCIO in job.error.message


@step(isolate="process")
async def isolated(n: int) -> int:
    if n == BAD:
        await subtask()
    return n * 10


@step(isolate="process")
def def_isolated(n: int) -> int:
    if n == BAD:
        raise asyncio.CancelledError
    return n * 10


@pytest.mark.parametrize("which", ["async", "def"])
async def test_an_isolated_step_that_is_cancelled_from_inside_has_failed(app, which):
    async def film() -> list:
        if which == "async":
            return await isolated.map([1, BAD, 3], need=2)
        return await def_isolated.aio.map([1, BAD, 3], need=2)

    run = await app.job(retries=0)(film).submit()
    await finished(app, run)
    assert await run.result() == [10, None, 30]
    (record,) = await failed_steps(app, run)
    assert record.error.type == ASYNCIO
    assert INSIDE in record.error.message


# What is cancelled for real is no failure.


def waits(kind):
    """A step that waits until it is stopped, and how it takes that."""

    @step(name="waits", retries=AT_ONCE_RETRY)
    async def waits(n: int) -> None:
        GATE[0].set()
        if kind == "plainly":
            await asyncio.sleep(30)
        elif kind == "in a group":
            async with asyncio.TaskGroup() as group:
                group.create_task(asyncio.sleep(30))
                group.create_task(asyncio.sleep(31))
        elif kind == "by a subtask":
            await asyncio.ensure_future(asyncio.sleep(30))
        elif kind == "with an error of its own":
            try:
                await asyncio.sleep(30)
            except asyncio.CancelledError:
                raise RuntimeError("interrupted") from None

    return waits


KINDS = ["plainly", "in a group", "by a subtask", "with an error of its own"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("as_map", [True, False])
@pytest.mark.parametrize("why", ["cancelled", "released"])
async def test_what_is_stopped_by_us_is_not_recorded_as_a_failure(app, why, as_map, kind):
    GATE.append(asyncio.Event())
    wait = waits(kind)

    async def film() -> None:
        await (wait.map(range(3), at_once=2) if as_map else wait(0))

    run = await app.job(retries=0)(film).submit()
    async with app.worker():
        await GATE[0].wait()
        if why == "cancelled":
            await run.cancel()
    job = await app.jobs.get(run.id)

    assert job.state is (State.CANCELLED if why == "cancelled" else State.AVAILABLE)
    assert not await failed_steps(app, run)
    assert job.attempt == 1


@pytest.mark.parametrize("as_map", [True, False])
async def test_a_timeout_around_a_step_or_a_map_still_stops_it(app, as_map):
    GATE.append(asyncio.Event())
    wait = waits("plainly")

    async def film() -> str:
        try:
            async with asyncio.timeout(0.05):
                await (wait.map(range(3), at_once=2) if as_map else wait(0))
        except TimeoutError:
            return "in time"
        return "never"

    run = await app.job(retries=0)(film).submit()
    await finished(app, run)
    assert await run.result() == "in time"
    assert not await failed_steps(app, run)


async def test_a_neighbour_that_fails_still_stops_the_others_of_a_task_group(app):
    GATE.append(asyncio.Event())
    wait = waits("plainly")

    @step(name="bad")
    async def bad() -> None:
        await GATE[0].wait()
        raise ValueError("wrong")

    async def film() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(wait(0))
            group.create_task(bad())

    run = await app.job(retries=0)(film).submit()
    job = await finished(app, run)
    assert job.state is State.REVIEW
    assert [record.error.type for record in await failed_steps(app, run)] == ["ValueError"]


async def test_a_steps_own_timeout_is_told_as_one(app):
    @step(name="slow", timeout=0.05)
    async def slow(n: int) -> None:
        await asyncio.sleep(30 if n == BAD else 0)

    async def film() -> list:
        return await slow.map(range(3), need=2)

    run = await app.job(retries=0)(film).submit()
    job = await finished(app, run)
    assert job.state is State.COMPLETED, job.error
    assert [record.error.type for record in await failed_steps(app, run)] == ["TimeoutError"]


async def test_a_map_that_lost_an_item_by_cancelling_itself_leaves_its_tasks_clean(app):
    """A task group inside the next item tells its error, and not a cancel that belonged to the item before."""

    @step(name="cleanly")
    async def cleanly(n: int) -> int:
        if n == 0:
            await itself()
        if n == 1:
            async with asyncio.TaskGroup() as group:
                group.create_task(asyncio.sleep(30))
                group.create_task(_fails())
        return n

    async def _fails() -> None:
        raise ValueError("wrong")

    async def film() -> list:
        return await cleanly.map(range(3), at_once=1, need=1)

    run = await app.job(retries=0)(film).submit()
    await finished(app, run)
    assert await run.result() == [None, None, 2]
    assert [record.error.type for record in await failed_steps(app, run)] == [ASYNCIO, "ExceptionGroup"]


async def test_a_def_jobs_call_whose_task_cancels_itself_fails_it_and_says_so(app):
    def film() -> int:
        return draw.sync(BAD, "itself")

    run = await app.job(retries=0)(film).submit()
    job = await finished(app, run)
    assert (job.state, job.error.type) == (State.REVIEW, ASYNCIO)
    assert INSIDE in job.error.message
    assert (await entry_of(run, Event.EXHAUST)).note["attempt"] == 1
