"""Budgets: a key with a bucket that never refills. A step starts while enough is left, and what it spent is settled."""

import asyncio

from msgspec.structs import replace

from holdfast.conformance.given import (
    DAY,
    Another,
    StoreClock,
    claimed,
    done,
    inserted,
    step,
    taken_over,
)
from holdfast.conformance.limited import admit, ids, is_admitted, take
from holdfast.core.budgets import SETTINGS, budget_key, budget_records, waiting_key
from holdfast.core.model import Admission, Ask, Conflict, Event, Job, Options, Recorded, State, Use, Wait, WaitKind
from holdfast.core.shared_limits import BUCKET, BUDGET, LIMIT, Bucket, bucket_of
from holdfast.engines.contract import Engine
from holdfast.engines.topics import limit_topic

KEY = budget_key("01890000-0000-7000-8000-000000000001", "usd")


async def set_budget(engine: Engine, left: int, key: str = KEY) -> None:
    """Write a budget, as a worker does before the first step asks."""
    await engine.put_record(LIMIT + BUDGET, SETTINGS)
    await engine.put_record(BUCKET + key, Bucket(tokens=left, granted=left).text())


async def add(engine: Engine, more: int, key: str = KEY) -> None:
    """Add to a budget, as a person does."""
    while True:
        record, bucket = await stored(engine, key)
        new = replace(bucket, tokens=bucket.tokens + more, granted=bucket.granted + more)
        if not isinstance(await engine.put_record(BUCKET + key, new.text(), record), Conflict):
            return


async def stored(engine: Engine, key: str = KEY) -> tuple[int, Bucket]:
    """The version of a budget's bucket, and the bucket."""
    [record] = await engine.records(BUCKET + key)
    bucket = bucket_of(record.value)
    assert bucket is not None
    return record.version, bucket


async def left(engine: Engine, key: str = KEY) -> int:
    """What is left of a budget."""
    return (await stored(engine, key))[1].tokens


def ask(held: Job, cost: int = 0, path: str = "draw#1", key: str = KEY, try_number: int = 1) -> Ask:
    """A step of a claimed job asks for what it costs."""
    return Ask(job=held.id, epoch=held.epoch, path=path, uses=(Use(key, cost),), try_number=try_number)


def settle(held: Job, more: int, path: str = "draw#1", key: str = KEY) -> Ask:
    """A step of a claimed job ends and has spent so much more than it said."""
    return Ask(job=held.id, epoch=held.epoch, path=path, settles=(Use(key, more),))


async def waiting(engine: Engine, clock: StoreClock, need: int = 1, key: str = KEY) -> Job:
    """A job that gave up its slot, because a step of it needs so much of the budget."""
    wait = Wait(WaitKind.LIMIT, waiting_key(key, need))
    return await done(engine, clock, await claimed(engine, clock, queue="default"), Event.SUSPEND, waits=(wait,))


# Starting.


async def test_a_step_starts_only_if_what_it_costs_is_left(engine: Engine, clock: StoreClock) -> None:
    await set_budget(engine, 5_000_000)
    held = await claimed(engine, clock)

    assert await is_admitted(engine, ask(held, 2_000_000, "a"))
    assert await is_admitted(engine, ask(held, 2_000_000, "b"))
    assert await admit(engine, ask(held, 2_000_000, "c")) == [Admission(False, KEY)]
    assert await is_admitted(engine, ask(held, 1_000_000, "d"))
    assert await left(engine) == 0


async def test_a_step_that_names_no_cost_starts_while_anything_is_left(engine: Engine, clock: StoreClock) -> None:
    await set_budget(engine, 1)
    held = await claimed(engine, clock)

    assert await is_admitted(engine, ask(held, 0, "a"))
    await admit(engine, settle(held, 1, "a"))

    assert await admit(engine, ask(held, 0, "b")) == [Admission(False, KEY)]


async def test_a_budget_never_refills(engine: Engine, clock: StoreClock) -> None:
    await set_budget(engine, 1_000_000)
    held = await claimed(engine, clock)
    assert await is_admitted(engine, ask(held, 1_000_000))

    if clock.settable:
        clock.advance(30 * DAY)

    assert not await is_admitted(engine, ask(held, 1, "b"))
    assert (await stored(engine))[1].granted == 1_000_000


async def test_what_was_spent_beyond_a_budget_is_missing_later(engine: Engine, clock: StoreClock) -> None:
    await set_budget(engine, 1_000_000)
    held = await claimed(engine, clock)
    assert await is_admitted(engine, ask(held))
    assert await is_admitted(engine, ask(held, 0, "b"))  # it starts before the first one says what it spent
    await admit(engine, settle(held, 3_000_000), settle(held, 1_000_000, "b"))

    await add(engine, 3_000_000)
    assert not await is_admitted(engine, ask(held, 0, "c"))
    await add(engine, 1)
    assert await is_admitted(engine, ask(held, 0, "c"))


async def test_spending_is_settled_in_one_act_with_the_record_and_once(engine: Engine, clock: StoreClock) -> None:
    await set_budget(engine, 9_000_000)
    held = await claimed(engine, clock)
    assert await is_admitted(engine, ask(held, 4_000_000))

    for _ in range(3):
        _, [recorded] = await engine.admit([settle(held, -3_000_000)], [step(held, path="draw#1")])
        assert isinstance(recorded, Recorded)

    assert await left(engine) == 8_000_000


async def test_the_same_try_is_charged_once_and_the_next_one_again(engine: Engine, clock: StoreClock) -> None:
    await set_budget(engine, 9_000_000)
    held = await claimed(engine, clock)

    for _ in range(3):
        assert await is_admitted(engine, ask(held, 2_000_000))
    assert await left(engine) == 7_000_000

    assert await is_admitted(engine, ask(held, 2_000_000, try_number=2))
    assert await left(engine) == 5_000_000


async def test_what_a_lost_worker_reserved_stays_spent(engine: Engine, clock: StoreClock) -> None:
    await set_budget(engine, 3_000_000)
    lost = await claimed(engine, clock)
    assert await is_admitted(engine, ask(lost, 2_000_000))

    held = await taken_over(engine, clock, lost)
    [answer] = await admit(engine, settle(lost, -2_000_000))

    assert isinstance(answer, Conflict)
    assert not await is_admitted(engine, ask(held, 2_000_000))
    assert await left(engine) == 1_000_000


async def test_budgets_of_two_jobs_and_two_currencies_are_counted_apart(engine: Engine, clock: StoreClock) -> None:
    other, tokens = budget_key("01890000-0000-7000-8000-000000000002", "usd"), KEY.replace("usd", "tokens")
    for key in (KEY, other, tokens):
        await set_budget(engine, 1_000_000, key)
    held = await claimed(engine, clock)

    assert await is_admitted(engine, ask(held, 1_000_000, "a"))

    assert await is_admitted(engine, ask(held, 1_000_000, "b", other))
    both = Ask(job=held.id, epoch=held.epoch, path="c", uses=(Use(tokens, 5), Use(KEY, 5)))
    assert await admit(engine, both) == [Admission(False, KEY)]
    assert await left(engine, tokens) == 1_000_000


# Waiting.


async def test_a_job_that_waits_for_its_budget_is_not_woken_before_enough_is_left(
    engine: Engine, clock: StoreClock
) -> None:
    await set_budget(engine, 2_000_000)
    parked = await waiting(engine, clock, 3_000_000)

    for _ in range(3):
        assert await take(engine) == []
    await add(engine, 999_999)
    assert await take(engine) == []
    await add(engine, 1)

    assert ids(await take(engine)) == [parked.id]


async def test_an_empty_budget_wakes_nobody_and_the_least_addition_wakes_all(engine: Engine, clock: StoreClock) -> None:
    await set_budget(engine, 0)
    parked = [await waiting(engine, clock) for _ in range(3)]
    rich = await waiting(engine, clock, 5_000_000)
    assert await take(engine) == []

    await add(engine, 1)

    assert sorted(ids(await take(engine))) == sorted(one.id for one in parked)
    [still] = await engine.get([rich.id])
    assert still is not None
    assert still.state is State.PENDING


async def test_what_a_step_gives_back_wakes_those_who_wait_for_it(engine: Engine, clock: StoreClock) -> None:
    await set_budget(engine, 5_000_000)
    held = await claimed(engine, clock)
    assert await is_admitted(engine, ask(held, 4_000_000))
    parked = await waiting(engine, clock, 3_000_000)
    assert await take(engine) == []

    await admit(engine, settle(held, -2_000_000))

    assert ids(await take(engine)) == [parked.id]


async def test_a_budget_raised_before_the_job_is_parked_still_wakes_it(engine: Engine, clock: StoreClock) -> None:
    await set_budget(engine, 0)
    held = await claimed(engine, clock, queue="default")
    assert not await is_admitted(engine, ask(held, 1_000_000))
    await add(engine, 1_000_000)

    wait = Wait(WaitKind.LIMIT, waiting_key(KEY, 1_000_000))
    parked = await done(engine, clock, held, Event.SUSPEND, waits=(wait,))

    assert ids(await take(engine)) == [parked.id]


async def test_those_who_wait_in_their_slots_hear_of_an_addition(engine: Engine, clock: StoreClock) -> None:
    await set_budget(engine, 0)
    mark = await engine.wait([limit_topic(KEY)], 0)
    waiter = asyncio.create_task(engine.wait([limit_topic(KEY)], 30, mark))
    await asyncio.sleep(0)

    await add(engine, 1_000_000)

    async with asyncio.timeout(5):
        await waiter


# Adding.


async def test_all_additions_count_that_are_made_at_once(engine: Engine, another: Another, clock: StoreClock) -> None:
    await set_budget(engine, 1_000_000)
    held = await claimed(engine, clock)
    other = await another() if engine.guarantees.shared else engine

    steps = [admit(engine, ask(held, 10, f"draw#{n}")) for n in range(20)]
    await asyncio.gather(*(add(one, 1_000_000) for one in (engine, other) for _ in range(4)), *steps)

    _, bucket = await stored(engine)
    assert (bucket.granted, bucket.tokens) == (9_000_000, 9_000_000 - 200)


async def test_steps_of_two_processes_never_reserve_more_than_is_left(
    engine: Engine, another: Another, clock: StoreClock
) -> None:
    await set_budget(engine, 1_000)
    held = [await claimed(engine, clock) for _ in range(4)]
    other = await another() if engine.guarantees.shared else engine

    asks = [admit((engine, other)[n % 2], ask(held[n % 4], 100, f"draw#{n}")) for n in range(40)]
    answers = [one for [one] in await asyncio.gather(*asks)]

    assert sum(isinstance(one, Admission) and one.admitted for one in answers) == 10
    assert await left(engine) == 0


# The end.


async def test_a_budget_goes_with_its_job_and_not_before(engine: Engine, clock: StoreClock) -> None:
    job = await inserted(engine, clock, options=Options(budget={"usd": 5}, keep_ms=1))
    [held] = await take(engine)
    for name in budget_records(job.id):
        await engine.put_record(name, Bucket(tokens=5, granted=5).text())
    await set_budget(engine, 7, budget_key(job.id, "usd"))
    assert await is_admitted(engine, ask(held, 2, key=budget_key(job.id, "usd")))

    if clock.settable:
        clock.advance(2 * DAY)
    await engine.prune()
    assert await left(engine, budget_key(job.id, "usd")) == 5

    await done(engine, clock, held, Event.COMPLETE, result="1")
    if clock.settable:
        clock.advance(2 * DAY)
    else:
        await asyncio.sleep(0.05)
    assert await engine.prune() == 1
    assert [name for name in budget_records(job.id) if await engine.records(name)] == []
