"""A step that is tried again: the calls inside it are counted from the start, so what is recorded answers."""

import asyncio
import contextvars
import threading
from typing import Any

import pytest

from holdfast import current, step
from holdfast.core.model import Event, Retry, State, StepState
from tests.support.given import AT_ONCE_RETRY, finished, paths, until

ENGINES = ("memory", "sqlite", "postgres", "redis")

RAN: list[Any] = []
TRIES: list[int] = []
GOOD_TRY = 3
"""Which try of the outer step does well."""


@pytest.fixture(autouse=True)
def fresh():
    RAN.clear()
    TRIES.clear()


def fail_before(good: int) -> None:
    if len(TRIES) < good:
        raise ConnectionError(f"try {len(TRIES)}")


@step
async def pay(n: int) -> int:
    RAN.append((n, current().idempotency_key))
    return n


@step
def charge(n: int) -> int:
    RAN.append((n, current().idempotency_key))
    return n


@step(retries=AT_ONCE_RETRY)
async def outer(n: int) -> list[int]:
    TRIES.append(n)
    one = [await pay(n), await pay(n), await charge.aio(n)]
    two = list(await asyncio.gather(pay(n + 1), charge.aio(n + 1)))
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(pay(n + 2)), group.create_task(charge.aio(n + 2))]
    three = [*one, *two, *(task.result() for task in tasks), *await pay.map([n, n, n + 3])]
    fail_before(GOOD_TRY)
    return three


@step(retries=AT_ONCE_RETRY)
def def_outer(n: int) -> list[int]:
    TRIES.append(n)
    found = [charge(n), charge(n), pay.sync(n), *charge.map([n, n + 1]), *pay.sync.map([n, n + 2])]
    fail_before(GOOD_TRY)
    return found


@pytest.mark.parametrize("colour", ["async", "def in async", "def", "async in def", "map"])
async def test_a_recorded_inner_step_answers_every_later_try(app, colour):
    if colour == "async":

        @app.job(retries=0)
        async def order() -> list[int]:
            return await outer(1)

    elif colour == "def in async":

        @app.job(retries=0)
        async def order() -> list[int]:
            return await def_outer.aio(1)

    elif colour == "map":

        @app.job(retries=0)
        async def order() -> list[int]:
            (found,) = await outer.map([1])
            return found

    elif colour == "def":

        @app.job(retries=0)
        def order() -> list[int]:
            return def_outer(1)

    else:

        @app.job(retries=0)
        def order() -> list[int]:
            return outer.sync(1)

    run = await order.submit()
    job = await finished(app, run)

    assert job.state is State.COMPLETED, job.error
    expected = [1, 1, 1, 1, 2, 1, 3] if "def" in colour and "async in" not in colour else [1, 1, 1, 2, 2, 3, 3, 1, 1, 4]
    assert await run.result() == expected
    assert TRIES == [1, 1, 1]
    assert len(RAN) == len(expected), "each inner call ran once"
    assert len(set(RAN)) == len(RAN), "under a key of its own"
    assert len(await paths(app, run)) == len(expected) + 1


async def test_a_child_is_submitted_once_by_all_tries(app):
    @app.job
    async def kid(n: int) -> int:
        RAN.append(n)
        return n

    @step(name="sends", retries=AT_ONCE_RETRY)
    async def sends() -> list[str]:
        TRIES.append(1)
        ids = [(await kid.submit(1)).id, (await kid.submit(1)).id]
        ids += [run.id for run in await kid.submit_many([(2,), (2,)])]
        fail_before(3)
        return ids

    @app.job(retries=0)
    async def order() -> int:
        await sends()
        return sum(await kid.map([5, 6]))

    run = await order.submit()
    job = await finished(app, run)
    assert job.state is State.COMPLETED, job.error
    async with app.worker():
        await until(lambda: len(RAN) >= 6)
    assert sorted(RAN) == [1, 1, 2, 2, 5, 6]


async def test_an_inner_step_that_failed_runs_again_under_the_same_key(app):
    @step(name="pay_flaky")
    async def pay_flaky(n: int) -> int:
        RAN.append(current().idempotency_key)
        if len(RAN) < 4:  # with the one of `pay`
            raise ConnectionError("429")
        return n

    @step(name="middle")
    async def middle(n: int) -> int:
        return await pay_flaky(n)

    @step(name="around", retries=AT_ONCE_RETRY)
    async def around(n: int) -> int:
        await pay(n)
        return await middle(n)

    @app.job(retries=0)
    async def order() -> int:
        return await around(1)

    run = await order.submit()
    job = await finished(app, run)

    assert job.state is State.COMPLETED, job.error
    keys = [key for key in RAN if isinstance(key, str)]
    assert len(keys) == 3
    assert len(set(keys)) == 1
    assert sum(isinstance(one, tuple) for one in RAN) == 1, "what was paid was paid once"
    steps = {one.name: one for one in await app.engine.steps(run.id) if not one.path.startswith("~")}
    assert {name: one.state for name, one in steps.items()} == dict.fromkeys(
        ["pay", "pay_flaky", "middle", "around"], StepState.DONE
    )


async def test_a_caught_failure_of_an_inner_step_is_raised_again_after_a_crash_in_the_same_try(app, interrupted):
    @step(name="fast")
    async def fast() -> str:
        RAN.append("fast")
        raise ConnectionError("down")

    @step(name="around", retries=AT_ONCE_RETRY)
    async def around() -> str:
        try:
            return await fast()
        except ConnectionError as error:
            await pay(1)
            await interrupted.point()
            return str(error)

    async def job() -> str:
        return await around()

    run = await app.job(job).submit()
    await interrupted.between(run)

    assert await run.result() == "down"
    assert [one for one in RAN if one == "fast"] == ["fast"]
    assert len(RAN) == 2


async def test_after_a_crash_the_next_try_runs_what_failed_before_it(app, interrupted):
    @step(name="flaky")
    async def flaky() -> str:
        RAN.append("flaky")
        if len(RAN) == 1:
            raise ConnectionError("down")
        return "up"

    @step(name="around", retries=AT_ONCE_RETRY)
    async def around() -> str:
        TRIES.append(1)
        try:
            return await flaky()
        except ConnectionError:
            await interrupted.point()
            raise

    async def job() -> str:
        return await around()

    run = await app.job(job).submit()
    await interrupted.between(run)

    assert await run.result() == "up"
    assert RAN == ["flaky", "flaky"]
    assert len(TRIES) == 3, "before the crash, after it, and again"


@pytest.mark.parametrize("again", ["attempt", "replay"])
async def test_a_new_attempt_and_a_replay_run_what_failed_inside(app, again):
    fails = [True]

    @step(name="flaky")
    async def flaky() -> str:
        RAN.append(1)
        if fails[0]:
            raise ConnectionError("down")
        return "up"

    @step(name="around", retries=Retry(retries=1, strategy="constant", initial_ms=0, jitter=False))
    async def around() -> str:
        return await flaky()

    async def order() -> str:
        if current().attempt == 2:
            fails[0] = False
        return await around()

    at_once = Retry(retries=1, strategy="constant", initial_ms=0, jitter=False)
    run = await app.job(retries=at_once if again == "attempt" else 0)(order).submit()
    job = await finished(app, run)
    if again == "replay":
        assert job.state is State.REVIEW
        fails[0] = False
        await run.replay()
        job = await finished(app, run)

    assert job.state is State.COMPLETED, job.error
    assert len(RAN) == 3, "two tries that failed, and the first one after them"


async def test_an_effect_that_happens_once_is_never_run_again_by_a_later_try(app):
    @step(name="send", effect="once", key="mail")
    async def send() -> None:
        RAN.append("sent")
        raise ConnectionError("the line broke")

    @step(name="around", retries=AT_ONCE_RETRY)
    async def around() -> None:
        TRIES.append(1)
        await send()

    @app.job(retries=0)
    async def order() -> None:
        await around()

    run = await order.submit()
    job = await finished(app, run)
    assert job.state is State.REVIEW
    assert RAN == ["sent"]
    assert len(TRIES) == 4


async def test_the_calls_of_other_tasks_keep_their_numbers_while_a_step_is_tried_again(app):
    @app.job(retries=0)
    async def order() -> list[int]:
        async def beside() -> list[int]:
            found = [await pay(1)]
            await until(lambda: len(TRIES) == GOOD_TRY)
            return [*found, await pay(1), await pay(1)]

        await asyncio.gather(beside(), outer(1))
        return []

    run = await order.submit()
    job = await finished(app, run)
    assert job.state is State.COMPLETED, job.error
    top = [path for path in await paths(app, run) if path.startswith("pay")]
    assert top == [top[0], f"{top[0]}#2", f"{top[0]}#3"]
    assert len(set(RAN)) == len(RAN) == 10 + 3


@pytest.mark.parametrize("colour", ["async", "def"])
async def test_what_a_failed_try_left_running_is_stopped_before_the_next_one_begins(app, caplog, colour):
    at_work: list[int] = []
    most: list[int] = []
    go_on = threading.Event()

    @step(name="slow_async")
    async def slow_async() -> int:
        at_work.append(1)
        most.append(len(at_work))
        try:
            if len(TRIES) == 1:
                await asyncio.sleep(30)
        finally:
            await asyncio.sleep(0.05)  # tidies up
            at_work.pop()
        return 1

    @step(name="slow_def")
    def slow_def() -> int:
        at_work.append(1)
        most.append(len(at_work))
        if len(TRIES) == 1:
            go_on.wait(10)
        at_work.pop()
        return 1

    slow = slow_async if colour == "async" else slow_def.aio

    @step(name="fails_early")
    async def fails_early() -> None:
        await until(lambda: len(most) == len(TRIES))
        fail_before(2)

    @step(name="around", retries=AT_ONCE_RETRY)
    async def around() -> int:
        TRIES.append(1)
        found, _ = await asyncio.gather(slow(), fails_early())
        return found

    @app.job(retries=0)
    async def order() -> int:
        return await around()

    run = await order.submit()
    async with app.worker():
        await until(lambda: "failed (try 1 of 4)" in caplog.text)
        if colour == "def":
            await asyncio.sleep(0.1)  # long enough for a next try that does not wait
            assert len(TRIES) == 1
            go_on.set()
        assert await run.result(10) == 1
    assert len(TRIES) == 2
    assert max(most) == 1, "never two at once"


async def test_a_task_of_a_failed_try_calls_nothing_more_and_takes_no_number(app, caplog):
    left: list[asyncio.Task[None]] = []
    go_on = asyncio.Event()

    @app.job
    async def kid() -> None:
        RAN.append("kid")

    async def stray() -> None:
        await go_on.wait()
        try:
            await pay(1)
        finally:
            await kid.submit()

    @step(name="around", retries=AT_ONCE_RETRY)
    async def around() -> int:
        TRIES.append(1)
        if len(TRIES) == 1:
            left.append(asyncio.create_task(stray()))
            raise ConnectionError("down")
        go_on.set()
        await asyncio.wait(left)
        return await pay(1)

    @app.job(retries=0)
    async def order() -> int:
        return await around()

    run = await order.submit()
    job = await finished(app, run)
    assert job.state is State.COMPLETED, job.error
    assert left[0].cancelled()
    assert len(RAN) == 1
    assert not any(path.endswith("#2") for path in await paths(app, run))
    assert "never retrieved" not in caplog.text


async def test_a_thread_of_a_failed_try_calls_nothing_more(app):
    go_on, through = threading.Event(), threading.Event()
    heard: list[str] = []

    def stray() -> None:
        go_on.wait(10)
        try:
            charge(1)
        except BaseException as error:
            heard.append(str(error))
        through.set()

    @step(name="around", retries=AT_ONCE_RETRY)
    def around() -> int:
        TRIES.append(1)
        if len(TRIES) == 1:
            threading.Thread(target=contextvars.copy_context().run, args=(stray,), daemon=True).start()
            raise ConnectionError("down")
        go_on.set()
        assert through.wait(10)
        return charge(1)

    @app.job(retries=0)
    def order() -> int:
        return around()

    run = await order.submit()
    job = await finished(app, run)
    assert job.state is State.COMPLETED, job.error
    assert len(RAN) == 1
    (line,) = heard
    assert "is being retried" in line


async def test_retried_steps_inside_retried_steps_keep_their_counts_apart(app):
    failed: set[object] = set()

    def fail_first(which: object) -> None:
        if which not in failed:
            failed.add(which)
            raise ConnectionError(str(which))

    @step(name="inner", retries=AT_ONCE_RETRY)
    async def inner(n: int) -> int:
        found = [await pay(n), await pay(n)]
        fail_first(("inner", n))
        return sum(found)

    @step(name="around", retries=AT_ONCE_RETRY)
    async def around() -> int:
        TRIES.append(1)
        found = await inner(1)
        fail_first("between")
        found += await inner(2) + await inner(1)
        fail_first("after")
        return found

    @app.job(retries=0)
    async def order() -> int:
        return await around()

    run = await order.submit()
    job = await finished(app, run)
    assert job.state is State.COMPLETED, job.error
    assert await run.result() == 8
    assert len(TRIES) == 3
    assert len(set(RAN)) == len(RAN) == 6
    assert len(await paths(app, run)) == 6 + 3 + 1


async def test_a_step_in_a_step_that_is_not_tried_again_records_its_failure_as_ever(app):
    @step(name="fails")
    async def fails() -> None:
        raise ConnectionError("down")

    @step(name="around")
    async def around() -> None:
        await fails()

    @app.job(retries=0)
    async def order() -> None:
        await around()

    run = await order.submit()
    await finished(app, run)
    states = {one.name: one.state for one in await app.engine.steps(run.id)}
    assert states == {"fails": StepState.FAILED, "around": StepState.FAILED}
    assert Event.EXHAUST in [entry.event for entry in await run.history()]
