"""Steps: what goes in and out, what is recorded of a failure, what it costs, and threads."""

import asyncio
import contextvars
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from decimal import Decimal

import pytest

from holdfast import JobFailed, Retry, current, step
from holdfast.core.model import Event, State
from tests.support.given import AT_ONCE_RETRY, finished, in_state, paths, until

CALLS: list[object] = []


@pytest.fixture(autouse=True)
def _no_calls():
    CALLS.clear()


@step
async def draw(n: int, style: str = "oil") -> str:
    CALLS.append(n)
    return f"{n}.png"


@step
def narrate(text: str) -> str:
    CALLS.append(text)
    return text.upper()


# The recorded form.


@dataclass
class Scene:
    title: str
    tags: list[str]


async def test_what_goes_in_and_out_is_the_recorded_form_on_the_first_run_too(app):
    @step(name="spoil")
    async def spoil(scene: Scene, pair: list[int]) -> list[int | list[int]]:
        assert isinstance(pair, list)
        scene.tags.append("spoilt")
        return (1, (2, 3))  # type: ignore[return-value]

    async def job() -> list[object]:
        scene = Scene("a", ["x"])
        answer = await spoil(scene, (1, 2))  # type: ignore[arg-type]
        return [answer, scene.tags]

    run = await app.job(job).submit()
    await finished(app, run)
    assert await run.result() == [[1, [2, 3]], ["x"]]


@pytest.mark.parametrize("hint", ["none", "object"])
async def test_a_result_that_would_come_back_as_another_type_is_refused_once_and_not_paid_for_again(app, hint):
    ran = []

    async def price(n: int):
        ran.append(n)
        return Decimal("1.5")

    if hint == "object":
        price.__annotations__["return"] = object
    paid = step(name="price", retries=3)(price)

    async def job() -> str:
        return str(await paid(1))

    run = await app.job(retries=3)(job).submit()
    with pytest.raises(JobFailed, match=r"result of price: a Decimal would come back as a str; .*, such as Decimal"):
        async with app.worker():
            await run.result(10)
    assert ran == [1]


async def test_each_caller_gets_its_own_copy_of_a_record(app):
    @step(name="listed", key="one")
    async def listed() -> list[int]:
        return [1]

    async def job() -> list[int]:
        first = await listed()
        first.append(2)
        return await listed()

    run = await app.job(job).submit()
    await finished(app, run)
    assert await run.result() == [1]


# Failures of steps.


async def test_a_step_tries_again_as_its_policy_says(app):
    tries = []

    @step(name="flaky", retries=AT_ONCE_RETRY)
    async def flaky() -> int:
        tries.append(current().idempotency_key)
        if len(tries) < 3:
            raise ConnectionError
        return len(tries)

    @step(name="def_flaky", retries=AT_ONCE_RETRY)
    def def_flaky() -> int:
        tries.append(current().idempotency_key)
        if len(tries) < 6:
            raise ConnectionError
        return len(tries)

    async def job() -> list[int]:
        return [await flaky(), await def_flaky.aio()]

    run = await app.job(job).submit()
    await finished(app, run)
    assert await run.result() == [3, 6]
    assert len(set(tries)) == 2, "the same key over the tries of one step"


async def test_a_step_does_not_retry_what_it_should_never_retry(app):
    @step(name="strict", retries=Retry(retries=9, initial_ms=0, never=("ValueError",)))
    async def strict() -> None:
        CALLS.append(1)
        raise ValueError

    async def job() -> None:
        await strict()

    await finished(app, await app.job(retries=0)(job).submit())
    assert CALLS == [1]


async def test_a_steps_timeout_is_a_failure_of_that_step(app):
    @step(name="slow", timeout=0.02)
    async def slow() -> None:
        await asyncio.sleep(30)

    @step(name="def_slow", timeout=0.02)
    def def_slow() -> None:
        time.sleep(0.05)

    async def job() -> list[str]:
        said = []
        for call in (slow(), def_slow.aio()):
            try:
                await call
            except TimeoutError as error:
                said.append(str(error))
        return said

    def def_job() -> str:
        try:
            def_slow()
        except TimeoutError as error:
            return str(error)
        return ""

    one, two = await app.job(job).submit(), await app.job(def_job).submit()
    async with app.worker():
        assert await one.result(5) == [
            "step slow took longer than its timeout of 20 ms",
            "step def_slow took longer than its timeout of 20 ms",
        ]
        assert await two.result(5) == "step def_slow took longer than its timeout of 20 ms"


class Refused(Exception):
    def __init__(self, code: int, more: str) -> None:
        super().__init__(f"{code} {more}")
        self.code = code


@pytest.mark.parametrize(("event", "again"), [(Event.LAPSE, False), (Event.OVERRUN, True)])
async def test_a_failed_record_is_raised_again_in_the_same_attempt_and_run_again_in_a_new_one(
    app, interrupted, event, again
):
    @step(name="refuse")
    async def refuse() -> None:
        CALLS.append(1)
        raise Refused(402, "no money")

    async def job() -> str:
        said = ""
        try:
            await refuse()
        except Refused as error:
            said = str(error)
        await interrupted.point()
        return said

    run = await app.job(job).submit()
    await interrupted.between(run, event=event)
    assert await run.result() == "402 no money"
    assert len(CALLS) == (2 if again else 1)


# Cost.


async def test_a_new_step_costs_one_write_and_a_replayed_one_nothing(app, engine, interrupted):
    counts, counted = {}, asyncio.Event()

    async def job() -> None:
        before = engine.calls.copy()
        await draw.map(range(20), at_once=1)
        await narrate.aio("x")
        calls = engine.calls - before
        counts[current().epoch] = {name: calls[name] for name in ("record", "commit", "steps", "get", "insert")}
        if current().epoch == 2:
            counted.set()
        await interrupted.point()

    run = await app.job(job).submit()
    before = engine.calls["steps"]
    async with app.worker():
        await interrupted.here.wait()
    assert engine.calls["steps"] == before, "nothing to read at the first claim"
    assert counts[1] == {"record": 21, "commit": 0, "steps": 0, "get": 0, "insert": 0}

    async with app.worker():
        await counted.wait()  # Who looked at the job meanwhile would be counted too.
        await in_state(app, run, State.COMPLETED)
    assert counts[2] == {"record": 0, "commit": 0, "steps": 0, "get": 0, "insert": 0}
    assert engine.calls["steps"] == before + 1, "all records are read once"


# Threads.


async def test_to_thread_and_bind_carry_the_job_and_a_stray_thread_is_told(app):
    loose = contextvars.Context()

    def in_thread() -> str:
        return narrate("carried") + current().job_id

    async def job() -> list[str]:
        said = [await asyncio.to_thread(in_thread)]
        with ThreadPoolExecutor(1) as pool:
            loop = asyncio.get_running_loop()
            said.append(await loop.run_in_executor(pool, current().bind(narrate), "bound"))
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                said.append(await loop.run_in_executor(pool, loose.run, narrate, "stray"))
            said.append(str(told[0].message) if told else "")
        return said

    run = await app.job(job).submit()
    await finished(app, run)
    carried, bound, stray, told = await run.result()
    assert (carried, bound, stray) == (f"CARRIED{run.id}", "BOUND", "STRAY")
    assert "step narrate was called outside a job" in told
    assert "current().bind(fn)" in told
    assert len(await paths(app, run)) == 2


async def test_the_idempotency_key_is_the_same_over_attempts_and_recoveries(app, interrupted):
    keys = []

    @step(name="pay")
    async def pay(n: int) -> None:
        keys.append(current().idempotency_key)
        await interrupted.point()
        if len(keys) < 3:
            raise ConnectionError

    async def job() -> None:
        await pay(1)

    run = await app.job(retries=AT_ONCE_RETRY)(job).submit()
    await interrupted.between(run)
    assert len(keys) == 3
    assert len(set(keys)) == 1


async def test_an_async_step_of_a_def_job_is_cancelled_with_it(app):
    entered, ended = asyncio.Event(), asyncio.Event()
    after = []

    @step(name="long")
    async def long() -> None:
        entered.set()
        try:
            await asyncio.sleep(30)
        finally:
            ended.set()

    def job() -> None:
        try:
            long.sync()
        except Exception:
            after.append("swallowed")
        narrate("after")

    run = await app.job(job).submit()
    async with app.worker():
        await entered.wait()
        await run.cancel()
        await asyncio.wait_for(ended.wait(), 2)
        await until(lambda: not any(t.name == "holdfast-job" for t in threading.enumerate()))
    assert after == []
    assert CALLS == []
