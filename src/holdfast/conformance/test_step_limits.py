"""Shared limits of steps: all or none, one act with the records, and a permit kept for a job that gave up its slot."""

import asyncio

import pytest
from msgspec.structs import replace

from holdfast.conformance.given import (
    MINUTE,
    StoreClock,
    change,
    claimed,
    commit,
    current,
    done,
    job,
    step,
    taken_over,
)
from holdfast.conformance.limited import (
    BREAKS,
    ENDS,
    SOON,
    admit,
    ask,
    give_back,
    ids,
    is_admitted,
    limited,
    set_limit,
    suspended,
    take,
    uses,
)
from holdfast.core.errors import BadValue, Invalid
from holdfast.core.model import (
    Admission,
    Conflict,
    Event,
    Job,
    Recorded,
    State,
    Wait,
    WaitKind,
    Where,
)
from holdfast.core.shared_limits import (
    MOST_UNITS,
    RESERVED_MS,
    UNIT,
)
from holdfast.engines.contract import Engine
from holdfast.engines.topics import queue_topic


async def taken(engine: Engine, clock: StoreClock, *keys: str) -> Job:
    """A claimed job that holds permits of these keys."""
    await limited(engine, clock, *keys)
    [held] = await take(engine)
    return held


# Steps.


async def test_a_step_gets_a_permit_while_there_is_room(engine: Engine, clock: StoreClock) -> None:
    await set_limit(engine, at_once=2)
    held = await claimed(engine, clock)

    answers = await admit(engine, ask(held, "a"), ask(held, "b"), ask(held, "c"))

    assert answers == [Admission(True), Admission(True), Admission(False, "api", None)]
    await admit(engine, give_back(held, "a"))
    assert await is_admitted(engine, ask(held, "c"))
    assert not await is_admitted(engine, ask(held, "a"))


async def test_steps_and_jobs_share_a_limit(engine: Engine, clock: StoreClock) -> None:
    await set_limit(engine, at_once=1)
    held = await claimed(engine, clock)
    waiting = await limited(engine, clock)
    assert await is_admitted(engine, ask(held))

    assert await take(engine) == []
    await admit(engine, give_back(held))

    assert ids(await take(engine)) == [waiting.id]
    assert not await is_admitted(engine, ask(held))


async def test_a_step_asks_for_all_or_none(engine: Engine, clock: StoreClock) -> None:
    await set_limit(engine, "a", at_once=1)
    await set_limit(engine, "b", at_once=1)
    held = await claimed(engine, clock)
    await admit(engine, ask(held, "x", "b"))

    assert await admit(engine, ask(held, "y", "a", "b")) == [Admission(False, "b", None)]
    assert await is_admitted(engine, ask(held, "z", "a"))


@pytest.mark.parametrize("event", [*ENDS, *BREAKS])
async def test_the_permits_of_steps_end_with_the_lease(engine: Engine, clock: StoreClock, event: Event) -> None:
    await set_limit(engine, at_once=2)
    held, other = await claimed(engine, clock), await claimed(engine, clock)
    await admit(engine, ask(held, "a"), ask(held, "b"))
    assert not await is_admitted(engine, ask(other))

    told = change(clock, held, event)
    await commit(engine, replace(told, frees=True) if event in ENDS else told)

    assert await is_admitted(engine, ask(other, "a"))
    assert await is_admitted(engine, ask(other, "b"))


async def test_a_permit_whose_lease_is_over_counts_for_nothing(engine: Engine, clock: StoreClock) -> None:
    """Even if its owner forgot to say that it had some: a program of the version before would."""
    await set_limit(engine, at_once=1)
    held, other = await claimed(engine, clock), await claimed(engine, clock)
    await admit(engine, ask(held))

    await done(engine, clock, held, Event.COMPLETE)

    assert await is_admitted(engine, ask(other))


async def test_a_permit_of_an_earlier_lease_counts_for_nothing(engine: Engine, clock: StoreClock) -> None:
    """The same, where the job runs again: its permit names another epoch."""
    await set_limit(engine, at_once=1)
    held, other = await claimed(engine, clock), await claimed(engine, clock)
    await admit(engine, ask(held))

    told = change(clock, held, Event.RELEASE)
    await commit(engine, replace(told, job=replace(told.job, run_at=held.claimed_at)))
    assert ids(await engine.claim("w-2", [held.queue], 1)) == [held.id]

    assert await is_admitted(engine, ask(other))


async def test_a_stale_lease_gets_no_permit(engine: Engine, clock: StoreClock) -> None:
    await set_limit(engine, at_once=1)
    stale = await claimed(engine, clock)
    held = await taken_over(engine, clock, stale)

    [refused, unknown] = await admit(engine, ask(stale), replace(ask(stale), job="nobody"))

    assert isinstance(refused, Conflict)
    assert isinstance(unknown, Conflict)
    assert await is_admitted(engine, ask(held))


async def test_an_answer_that_was_lost_costs_nothing(engine: Engine, clock: StoreClock) -> None:
    await set_limit(engine, rate="10/h", burst=2)
    held = await claimed(engine, clock)

    assert [await is_admitted(engine, ask(held, "a")) for _ in range(5)] == [True] * 5
    assert [await is_admitted(engine, ask(held, "b")) for _ in range(5)] == [True] * 5
    assert not await is_admitted(engine, ask(held, "c"))


async def test_a_later_try_keeps_its_permit_and_pays_the_rate_again(engine: Engine, clock: StoreClock) -> None:
    await set_limit(engine, at_once=1, rate="10/h", burst=2)
    held = await claimed(engine, clock)

    assert await is_admitted(engine, ask(held, try_number=1))
    assert await is_admitted(engine, ask(held, try_number=2))
    assert not await is_admitted(engine, ask(held, try_number=3))


async def test_records_and_permits_are_one_act(engine: Engine, clock: StoreClock) -> None:
    await set_limit(engine, at_once=1)
    held = await claimed(engine, clock)
    await admit(engine, ask(held, "a"))
    a = step(held, "a")

    answers, recorded = await engine.admit([give_back(held, "a"), ask(held, "b")], [a])

    assert answers == [Admission(True), Admission(True)]
    assert recorded == [Recorded(a, True)]
    assert await engine.steps(held.id) == [a]
    assert await engine.admit([], [a]) == ([], [Recorded(a, True)])
    assert await engine.admit([]) == ([], [])


async def test_asking_twice_for_one_limit_is_refused(engine: Engine, clock: StoreClock) -> None:
    held = await claimed(engine, clock)

    with pytest.raises(Invalid, match="the same limit twice"):
        await engine.admit([ask(held, "a", "api", "api")])
    with pytest.raises(BadValue, match="more than"):
        await engine.admit([ask(held, "a", units=(MOST_UNITS + 1) * UNIT)])


# Jobs that gave up their slot.


async def test_a_job_that_waits_for_a_permit_is_woken_for_it(engine: Engine, clock: StoreClock) -> None:
    await set_limit(engine, at_once=1)
    holder = await claimed(engine, clock)
    await admit(engine, ask(holder))
    waiting = await suspended(engine, clock, await claimed(engine, clock, queue="default"))
    assert await take(engine) == []
    assert (await current(engine, waiting)).state is State.PENDING

    await admit(engine, give_back(holder))
    [woken] = await take(engine)

    assert (woken.id, woken.waits) == (waiting.id, ())
    assert await is_admitted(engine, ask(woken))
    entries = await engine.history(woken.id)
    assert [one.event for one in entries[-2:]] == [Event.ACTIVATE, Event.CLAIM]


async def test_a_job_that_gives_up_its_slot_too_late_is_woken_at_once(engine: Engine, clock: StoreClock) -> None:
    """There was room by the time it was suspended: nothing will end that could wake it."""
    await set_limit(engine, at_once=1)
    waiting = await suspended(engine, clock, await claimed(engine, clock, queue="default"))

    assert ids(await take(engine)) == [waiting.id]


async def test_a_permit_is_kept_for_the_job_that_was_woken(engine: Engine, clock: StoreClock) -> None:
    await set_limit(engine, at_once=1)
    waiting = await suspended(engine, clock, await claimed(engine, clock, queue="default"))
    [woken] = await take(engine)
    other = await claimed(engine, clock)
    new = await limited(engine, clock)

    assert not await is_admitted(engine, ask(other))
    assert await take(engine) == []

    assert woken.id == waiting.id
    assert await is_admitted(engine, ask(woken))
    assert await take(engine) == []
    await commit(engine, replace(change(clock, woken, Event.COMPLETE), frees=True))
    assert ids(await take(engine)) == [new.id]


async def test_a_permit_that_nobody_comes_for_is_passed_on(engine: Engine, clock: StoreClock) -> None:
    await set_limit(engine, at_once=1)
    await suspended(engine, clock, await claimed(engine, clock, queue="default"))
    [woken] = await take(engine)
    other = await limited(engine, clock)
    assert await take(engine) == []

    clock.advance(RESERVED_MS + clock.grain)

    assert ids(await take(engine)) == [other.id]
    assert not await is_admitted(engine, ask(woken))


async def test_no_permit_is_kept_for_a_job_whose_own_limit_is_full(engine: Engine, clock: StoreClock) -> None:
    """Whoever holds that one may need this permit to end."""
    await set_limit(engine, at_once=1)
    await set_limit(engine, "own", at_once=1)
    other, holder = await claimed(engine, clock), await claimed(engine, clock)
    await admit(engine, ask(holder, "a"))
    waiting = await suspended(engine, clock, await taken(engine, clock, "own"))
    await taken(engine, clock, "own")
    second = await suspended(engine, clock, await claimed(engine, clock, queue="default"))
    assert await take(engine) == []

    await admit(engine, give_back(holder, "a"))

    assert ids(await take(engine)) == [second.id]
    assert (await current(engine, waiting)).state is State.AVAILABLE
    assert not await is_admitted(engine, ask(other))
    await commit(engine, replace(change(clock, await current(engine, second), Event.COMPLETE), frees=True))
    assert await is_admitted(engine, ask(other))


async def test_two_jobs_that_hold_what_the_other_one_needs_get_on(engine: Engine, clock: StoreClock) -> None:
    """If one permit were kept for each of them, neither could start."""
    await set_limit(engine, "a", at_once=1)
    await set_limit(engine, "z", at_once=1)
    held = [await taken(engine, clock, "a"), await taken(engine, clock, "z")]
    first = await suspended(engine, clock, held[0], "z")
    second = await suspended(engine, clock, held[1], "a")

    [woken] = await take(engine)

    step_needs = {first.id: "z", second.id: "a"}[woken.id]
    assert await is_admitted(engine, ask(woken, "draw#1", step_needs))
    await commit(engine, replace(change(clock, woken, Event.COMPLETE), frees=True))
    assert {woken.id, *ids(await take(engine))} == {first.id, second.id}


@pytest.mark.parametrize("event", [Event.CANCEL, Event.EXPIRE])
async def test_no_permit_is_kept_for_a_job_that_ends_before_it_is_claimed(
    engine: Engine, clock: StoreClock, event: Event
) -> None:
    await set_limit(engine, at_once=1)
    waiting = await suspended(engine, clock, await claimed(engine, clock, queue="default"))
    assert await engine.claim("w-1", ["default"], 10, ["other"]) == []
    woken, other = await current(engine, waiting), await limited(engine, clock)
    assert woken.state is State.AVAILABLE

    await done(engine, clock, woken, event)

    assert ids(await take(engine)) == [other.id]


async def test_those_who_gave_up_their_slots_come_first_and_in_order(engine: Engine, clock: StoreClock) -> None:
    await set_limit(engine, at_once=2)
    holder = await claimed(engine, clock)
    await admit(engine, ask(holder, "a"), ask(holder, "b"))
    parked = [await suspended(engine, clock, await claimed(engine, clock, queue="default")) for _ in range(3)]
    await limited(engine, clock, priority=5)

    await admit(engine, give_back(holder, "a"), give_back(holder, "b"))

    assert ids(await take(engine)) == ids(parked[:2])


async def test_as_many_are_woken_for_a_rate_as_it_has_units(engine: Engine, clock: StoreClock) -> None:
    """Else all of them would come back for one unit, and give up their slots again."""
    await set_limit(engine, rate="60/h", burst=2)  # 59 an hour come in
    holder = await claimed(engine, clock)
    await admit(engine, ask(holder, "a"), ask(holder, "b"))
    parked = [await suspended(engine, clock, await claimed(engine, clock, queue="default")) for _ in range(4)]

    clock.advance(MINUTE // 2)
    assert await take(engine) == [], "half a unit is no room"
    clock.advance(MINUTE)
    [first] = await take(engine)
    assert first.id == parked[0].id
    assert await take(engine) == [], "its unit is still there, and is its own"
    assert await is_admitted(engine, ask(first))
    clock.advance(MINUTE + clock.grain)
    assert ids(await take(engine)) == [parked[1].id]


async def test_a_queue_hears_when_a_rate_may_wake_a_job(engine: Engine, clock: StoreClock) -> None:
    await set_limit(engine, rate="36000/h", burst=1)  # ten a second
    holder = await claimed(engine, clock)
    await admit(engine, ask(holder))
    waiting = await suspended(engine, clock, await claimed(engine, clock, queue="default"))
    woken = ids(await take(engine))
    mark = await engine.wait([queue_topic("default")], 0)

    async with asyncio.timeout(SOON):
        while not woken:
            mark = await engine.wait([queue_topic("default")], 30, mark)
            if clock.settable:
                clock.advance(200)
            woken = ids(await take(engine))

    assert woken == [waiting.id]


async def test_a_wait_for_a_permit_may_time_out(engine: Engine, clock: StoreClock) -> None:
    await set_limit(engine, at_once=1)
    holder = await claimed(engine, clock)
    await admit(engine, ask(holder))
    held = await claimed(engine, clock, queue="default")
    waits = (Wait(WaitKind.LIMIT, "api", clock.now + MINUTE),)
    await done(engine, clock, held, Event.SUSPEND, waits=waits)

    clock.advance(MINUTE + clock.grain)

    assert ids(await take(engine)) == [held.id]
    assert not await is_admitted(engine, ask(await current(engine, held)))


async def test_a_job_may_wait_for_a_permit_and_submit_others_in_one_change(engine: Engine, clock: StoreClock) -> None:
    await set_limit(engine, at_once=1)
    holder = await claimed(engine, clock)
    await admit(engine, ask(holder))
    held = await claimed(engine, clock, queue="default")
    new = await limited(engine, clock, queue="elsewhere")

    waits = (Wait(WaitKind.LIMIT, "api"),)
    child = job(clock, queue="elsewhere", options=uses("api"))
    await done(engine, clock, held, Event.SUSPEND, waits=waits, inserts=(child,))

    assert [one.waiting for one in await engine.usage("api")] == [3]
    await admit(engine, give_back(holder))
    assert ids(await take(engine)) == [held.id]
    assert {one.id for one in await engine.find(Where(queue="elsewhere"))} == {new.id, child.id}
