"""Transactions, on engines that have them: the lease is checked first, and body and record are one act.

What a body writes depends on the store's language, so here it writes nothing; each engine's own tests cover that.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest

from holdfast.conformance.dump import dump
from holdfast.conformance.given import StoreClock, claimed, done, job, step, taken_over
from holdfast.core.errors import BadValue
from holdfast.core.model import LEASE_LOST, NO_SUCH_JOB, Conflict, Event, Recorded, Step, StepState
from holdfast.engines.contract import Engine
from holdfast.engines.traits import Body, Transactional


@pytest.fixture
def store(engine: Engine) -> Transactional:
    """Return the engine, if it has transactions."""
    if engine.guarantees.transactions == "no":
        pytest.skip("this engine has no transactions for steps")
    return cast(Transactional, engine)


class Bodies:
    """Counts bodies, and keeps the connections they got."""

    def __init__(self) -> None:
        self.given: list[Any] = []

    def __call__(self, *steps: Step, first: Callable[[], Any] = lambda: None) -> Body:
        """Make a body that returns these records."""

        async def body(connection: Any) -> Sequence[Step]:
            self.given.append(connection)
            first()
            return steps

        return body


@pytest.fixture
def body() -> Bodies:
    """Makes bodies."""
    return Bodies()


async def test_what_a_body_gives_is_recorded_the_step_first(
    engine: Engine, store: Transactional, clock: StoreClock, body: Bodies
) -> None:
    held = await claimed(engine, clock)
    paid, beside = step(held, "pay#1"), step(held, "~args/pay#1")

    answer = await store.transact(step(held, "pay#1", StepState.STARTED), body(paid, beside))

    assert answer == Recorded(paid, True)
    assert await engine.steps(held.id) == [paid, beside]
    assert len(body.given) == 1
    assert body.given[0] is not None


async def test_what_was_only_begun_is_run_and_replaced(
    engine: Engine, store: Transactional, clock: StoreClock, body: Bodies
) -> None:
    held = await claimed(engine, clock)
    begun = step(held, "pay#1", StepState.STARTED)
    await engine.record([begun])

    assert await store.transact(begun, body(step(held, "pay#1"))) == Recorded(step(held, "pay#1"), True)


@pytest.mark.parametrize("state", [StepState.DONE, StepState.FAILED])
async def test_where_a_record_stands_no_body_runs(
    engine: Engine, store: Transactional, clock: StoreClock, body: Bodies, state: StepState
) -> None:
    held = await claimed(engine, clock)
    standing = step(held, "pay#1", state)
    await engine.record([standing])

    answer = await store.transact(step(held, "pay#1", StepState.STARTED), body(step(held, "pay#1", result="2")))

    assert isinstance(answer, Recorded)
    assert answer.step == standing
    assert (await engine.steps(held.id), body.given) == ([standing], [])


async def test_under_a_stale_lease_no_body_runs_and_nothing_is_written(
    engine: Engine, store: Transactional, clock: StoreClock, body: Bodies
) -> None:
    held = await claimed(engine, clock)
    await taken_over(engine, clock, held)
    before = await dump(engine)

    answer = await store.transact(step(held, "pay#1", StepState.STARTED), body(step(held, "pay#1")))

    assert isinstance(answer, Conflict)
    assert (answer.reason, body.given) == (LEASE_LOST, [])
    assert await dump(engine) == before


async def test_a_job_that_is_not_active_or_not_there_is_a_conflict(
    engine: Engine, store: Transactional, clock: StoreClock, body: Bodies
) -> None:
    held = await claimed(engine, clock)
    await done(engine, clock, held, Event.COMPLETE)

    over = await store.transact(step(held, "pay#1", StepState.STARTED), body(step(held, "pay#1")))
    gone = await store.transact(step(job(clock), "pay#1", StepState.STARTED), body(step(held, "pay#1")))

    assert isinstance(over, Conflict)
    assert isinstance(gone, Conflict)
    assert (over.reason, gone.reason, body.given) == (LEASE_LOST, NO_SUCH_JOB, [])


class Odd(Exception):
    """Raised by a body."""


async def test_what_a_body_raises_is_raised_and_nothing_is_written(
    engine: Engine, store: Transactional, clock: StoreClock, body: Bodies
) -> None:
    held = await claimed(engine, clock)
    error = Odd("no")

    def fail() -> None:
        raise error

    with pytest.raises(Odd) as caught:
        await store.transact(step(held, "pay#1", StepState.STARTED), body(step(held, "pay#1"), first=fail))

    assert caught.value is error
    assert await engine.steps(held.id) == []
    assert isinstance(await store.transact(step(held, "pay#1"), body(step(held, "pay#1"))), Recorded)


async def test_a_record_that_no_store_could_keep_takes_the_body_back(
    engine: Engine, store: Transactional, clock: StoreClock, body: Bodies
) -> None:
    held = await claimed(engine, clock)

    with pytest.raises(BadValue):
        await store.transact(step(held, "pay#1", StepState.STARTED), body(step(held, "pay#1", result="\0")))

    assert await engine.steps(held.id) == []


async def test_a_caller_who_is_cancelled_leaves_nothing_and_the_store_goes_on(
    engine: Engine, store: Transactional, clock: StoreClock
) -> None:
    held = await claimed(engine, clock)
    begun = asyncio.Event()

    async def endless(connection: Any) -> Sequence[Step]:
        begun.set()
        await asyncio.sleep(60)
        return [step(held, "pay#1")]

    task = asyncio.ensure_future(store.transact(step(held, "pay#1", StepState.STARTED), endless))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert await engine.record([step(held, "plain#1")]) == [Recorded(step(held, "plain#1"), True)]
    assert [one.path for one in await engine.steps(held.id)] == ["plain#1"]


async def test_a_lease_that_ends_while_the_body_runs_takes_back_all_of_it(
    engine: Engine, store: Transactional, clock: StoreClock
) -> None:
    if engine.guarantees.transactions != "all steps":
        pytest.skip("nobody else can write to this store while a body runs")
    held = await claimed(engine, clock)

    async def slow(connection: Any) -> Sequence[Step]:
        assert connection.sync is not None
        await asyncio.wait_for(taken_over(engine, clock, held), 10)
        return [step(held, "pay#1"), step(held, "~args/pay#1")]

    answer = await store.transact(step(held, "pay#1", StepState.STARTED), slow)

    assert isinstance(answer, Conflict)
    assert answer.reason == LEASE_LOST
    assert await engine.steps(held.id) == []


async def test_of_two_tries_at_once_one_is_kept_and_answers_both(
    engine: Engine, store: Transactional, clock: StoreClock
) -> None:
    if engine.guarantees.transactions != "all steps":
        pytest.skip("nobody else can write to this store while a body runs")
    held = await claimed(engine, clock)
    begun = [asyncio.Event(), asyncio.Event()]

    async def attempt(number: int) -> Any:
        async def body(connection: Any) -> Sequence[Step]:
            begun[number].set()
            await asyncio.wait_for(begun[1 - number].wait(), 10)  # both have found no record
            return [step(held, "pay#1", result=str(number))]

        return await store.transact(step(held, "pay#1", StepState.STARTED), body)

    answers = await asyncio.gather(attempt(0), attempt(1))

    assert sorted(answer.first for answer in answers) == [False, True]
    assert [answer.step for answer in answers] == await engine.steps(held.id) * 2


async def test_many_at_once_are_each_whole(
    engine: Engine, store: Transactional, clock: StoreClock, body: Bodies
) -> None:
    held = await claimed(engine, clock)

    def fail() -> None:
        raise Odd

    answers = await asyncio.gather(
        *(
            store.transact(
                step(held, f"pay#{n}", StepState.STARTED),
                body(step(held, f"pay#{n}"), first=fail if n % 3 == 0 else lambda: None),
            )
            for n in range(12)
        ),
        engine.record([step(held, "plain#1")]),
        return_exceptions=True,
    )

    assert [n for n, answer in enumerate(answers) if isinstance(answer, Odd)] == [0, 3, 6, 9]
    assert {one.path for one in await engine.steps(held.id)} == {
        "plain#1",
        *(f"pay#{n}" for n in range(12) if n % 3),
    }
