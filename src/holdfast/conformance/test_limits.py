"""Shared limits: permits belong to leases, nobody exceeds a limit, and whoever waits for room gets it."""

import asyncio
import random

import pytest
from msgspec import json
from msgspec.structs import replace

from holdfast.conformance.given import (
    DAY,
    HOUR,
    MINUTE,
    SECOND,
    Another,
    StoreClock,
    change,
    claimed,
    commit,
    current,
    done,
    in_state,
    inserted,
    job,
    step,
    taken_over,
)
from holdfast.core.errors import BadValue, Invalid
from holdfast.core.lifecycle import decide
from holdfast.core.model import (
    Admission,
    Applied,
    Ask,
    Conflict,
    Event,
    Job,
    Options,
    Recorded,
    State,
    Usage,
    Use,
    Wait,
    WaitKind,
)
from holdfast.core.shared_limits import (
    BUCKET,
    LIMIT,
    MOST_UNITS,
    RESERVED_MS,
    UNIT,
    Bucket,
    Settings,
    closed,
    settings_from,
)
from holdfast.engines.contract import Engine
from holdfast.engines.records import PAUSE
from holdfast.engines.topics import limit_topic, queue_topic

ENDS = [Event.COMPLETE, Event.FAIL, Event.EXHAUST, Event.RELEASE, Event.SUSPEND, Event.REST]
BREAKS = [Event.LAPSE, Event.OVERRUN, Event.ABANDON, Event.CANCEL]
SOON = 2.0
"""How long a wake-up may take, in seconds."""


async def set_limit(engine: Engine, name: str = "api", settings: Settings | None = None, **given: object) -> None:
    """Write a limit's settings, as a worker does that starts."""
    settings = settings or settings_from(name, **given)
    await engine.put_record(LIMIT + name, json.encode(settings).decode())


def uses(*keys: str, units: int = UNIT) -> Options:
    """The options of a job that needs a permit of each of these keys."""
    return Options(limits=tuple(Use(key, units) for key in keys))


async def limited(engine: Engine, clock: StoreClock, *keys: str, **fields: object) -> Job:
    """A job in the store that needs permits."""
    return await inserted(engine, clock, **{"options": uses(*(keys or ("api",)))} | fields)


async def take(
    engine: Engine, limit: int = 10, queues: tuple[str, ...] = ("default",), worker: str = "w-1"
) -> list[Job]:
    """Claim jobs of some queues."""
    return await engine.claim(worker, list(queues), limit)


def ids(jobs: list[Job]) -> list[str]:
    """The ids of jobs."""
    return [job.id for job in jobs]


def ask(held: Job, path: str = "draw#1", *keys: str, units: int = UNIT, try_number: int = 1) -> Ask:
    """What a step of a claimed job asks for."""
    asked = tuple(Use(key, units) for key in (keys or ("api",)))
    return Ask(job=held.id, epoch=held.epoch, path=path, uses=asked, try_number=try_number)


def give_back(held: Job, path: str = "draw#1", *settles: Use) -> Ask:
    """A step of a claimed job gives its permits back."""
    return Ask(job=held.id, epoch=held.epoch, path=path, settles=settles)


async def admit(engine: Engine, *asks: Ask) -> list[Admission | Conflict]:
    """Ask, with no records before it."""
    answers, recorded = await engine.admit(list(asks))
    assert recorded == []
    return answers


async def is_admitted(engine: Engine, one: Ask) -> bool:
    """Whether a step gets its permits."""
    [answer] = await admit(engine, one)
    assert isinstance(answer, Admission), answer
    return answer.admitted


async def suspended(engine: Engine, clock: StoreClock, held: Job, key: str = "api") -> Job:
    """A job that gives up its slot, because a step of it waits for a permit."""
    return await done(engine, clock, held, Event.SUSPEND, waits=(Wait(WaitKind.LIMIT, key),))


# Jobs.


async def test_no_more_jobs_start_than_a_limit_allows(engine: Engine, clock: StoreClock) -> None:
    await set_limit(engine, at_once=2)
    jobs = [await limited(engine, clock) for _ in range(5)]

    assert ids(await take(engine)) == ids(jobs[:2])
    assert await take(engine) == []
    assert (await current(engine, jobs[2])).state is State.AVAILABLE


@pytest.mark.parametrize("event", [*ENDS, *BREAKS])
async def test_a_permit_ends_with_its_lease(engine: Engine, clock: StoreClock, event: Event) -> None:
    await set_limit(engine, at_once=1)
    first, second = await limited(engine, clock), await limited(engine, clock, run_at=clock.now)
    [held] = await take(engine)
    assert held.id == first.id

    await done(engine, clock, held, event)

    [next_one] = await take(engine, 1)
    assert next_one.id == (first.id if event in (Event.RELEASE, Event.LAPSE) else second.id)
    assert await take(engine) == []


async def test_each_key_of_a_limit_is_counted_by_itself(engine: Engine, clock: StoreClock) -> None:
    await set_limit(engine, at_once=1)
    jobs = [await limited(engine, clock, key) for key in ("api/a", "api/a", "api/b", "api/c", "api/b")]

    assert ids(await take(engine)) == ids([jobs[0], jobs[2], jobs[3]])


async def test_the_order_of_claims_holds_among_jobs_with_and_without_limits(engine: Engine, clock: StoreClock) -> None:
    await set_limit(engine, at_once=2)
    await set_limit(engine, "other", at_once=1)
    low = await inserted(engine, clock, priority=-1)
    jobs = [
        await limited(engine, clock),
        await inserted(engine, clock),
        await limited(engine, clock, "other"),
        await limited(engine, clock),
        await limited(engine, clock),
        await inserted(engine, clock),
    ]
    high = await limited(engine, clock, priority=1)

    taken = await take(engine)

    assert ids(taken) == ids([high, jobs[0], jobs[1], jobs[2], jobs[5], low])


async def test_a_claim_of_few_takes_the_first_of_all(engine: Engine, clock: StoreClock) -> None:
    await set_limit(engine, at_once=5)
    jobs = [await limited(engine, clock, queue="default") if n % 2 else await inserted(engine, clock) for n in range(6)]

    taken = [one for _ in range(6) for one in await take(engine, 1)]

    assert ids(taken) == ids(jobs)


async def test_a_job_needs_all_its_permits(engine: Engine, clock: StoreClock) -> None:
    await set_limit(engine, "a", at_once=2)
    await set_limit(engine, "b", at_once=1)
    jobs = [await limited(engine, clock, "a", "b") for _ in range(2)]
    only_a = [await limited(engine, clock, "a") for _ in range(2)]

    assert ids(await take(engine)) == [jobs[0].id, only_a[0].id]
    assert [one.held for one in [*await engine.usage("a"), *await engine.usage("b")]] == [2, 1]


async def test_a_job_that_was_passed_over_is_taken_when_any_of_its_limits_has_room(
    engine: Engine, clock: StoreClock
) -> None:
    """It waits behind the one that was full, then behind the other: from neither is it lost."""
    await set_limit(engine, "a", at_once=1)
    await set_limit(engine, "b", at_once=1)
    [first, both] = [await limited(engine, clock, "b"), await limited(engine, clock, "a", "b")]
    [holds_b] = await take(engine)
    assert holds_b.id == first.id
    only_a = await limited(engine, clock, "a")
    [holds_a] = await take(engine)
    assert holds_a.id == only_a.id

    await done(engine, clock, holds_b, Event.COMPLETE)
    assert await take(engine) == []
    await done(engine, clock, holds_a, Event.COMPLETE)

    assert ids(await take(engine)) == [both.id]


async def test_a_limit_that_nobody_has_set_limits_nobody(engine: Engine, clock: StoreClock) -> None:
    jobs = [await limited(engine, clock, "unknown/x") for _ in range(3)]

    assert ids(await take(engine)) == ids(jobs)


async def test_jobs_of_other_types_keep_nobody_from_a_permit(engine: Engine, clock: StoreClock) -> None:
    await set_limit(engine, at_once=1)
    foreign = await limited(engine, clock, type="test.other")
    mine = await limited(engine, clock)

    assert ids(await engine.claim("w-1", ["default"], 5, ["test.job"])) == [mine.id]
    assert await engine.claim("w-2", ["default"], 5, ["test.other"]) == []
    await done(engine, clock, await current(engine, mine), Event.COMPLETE)
    assert ids(await engine.claim("w-2", ["default"], 5, ["test.other"])) == [foreign.id]


async def test_room_is_found_by_the_worker_that_serves_the_queue(engine: Engine, clock: StoreClock) -> None:
    await set_limit(engine, at_once=1)
    [first] = [await limited(engine, clock, queue="a")]
    second, third = await limited(engine, clock, queue="b"), await limited(engine, clock, queue="c")
    [held] = await take(engine, queues=("a", "b", "c"))
    assert held.id == first.id

    await done(engine, clock, held, Event.COMPLETE)

    assert await take(engine, queues=("a",)) == []
    assert ids(await take(engine, queues=("c",))) == [third.id]
    assert await take(engine, queues=("b",)) == []
    await done(engine, clock, await current(engine, third), Event.COMPLETE)
    assert ids(await take(engine, queues=("b",))) == [second.id]


async def test_a_paused_queue_holds_no_permit(engine: Engine, clock: StoreClock) -> None:
    await set_limit(engine, at_once=1)
    await limited(engine, clock, queue="a")
    other = await limited(engine, clock, queue="b")
    await engine.put_record(PAUSE + "a", "by a person")

    assert ids(await take(engine, queues=("a", "b"))) == [other.id]


async def test_a_job_waits_for_its_time_and_then_for_its_permit(engine: Engine, clock: StoreClock) -> None:
    await set_limit(engine, at_once=1)
    [held] = [await claimed(engine, clock, options=uses("api"))]
    later = await in_state(engine, clock, State.SCHEDULED, options=uses("api"), run_at=clock.now + MINUTE)

    clock.advance(MINUTE + clock.grain)
    assert await take(engine) == []
    assert (await current(engine, later)).state is State.AVAILABLE
    await done(engine, clock, held, Event.COMPLETE)

    assert ids(await take(engine)) == [later.id]


@pytest.mark.parametrize("event", [Event.CANCEL, Event.EXPIRE])
async def test_a_waiting_job_that_ends_keeps_nobody_waiting(engine: Engine, clock: StoreClock, event: Event) -> None:
    await set_limit(engine, at_once=1)
    [held] = [await claimed(engine, clock, options=uses("api"))]
    first, second = await limited(engine, clock), await limited(engine, clock)

    await done(engine, clock, first, event)
    await done(engine, clock, held, Event.COMPLETE)

    assert ids(await take(engine)) == [second.id]


async def test_a_retried_job_waits_for_a_permit_again(engine: Engine, clock: StoreClock) -> None:
    await set_limit(engine, at_once=1)
    first = await limited(engine, clock)
    [held] = await take(engine)
    failed = await done(engine, clock, held, Event.FAIL, run_at=clock.now)
    second = await limited(engine, clock, priority=1)

    assert ids(await take(engine)) == [second.id]
    assert (await current(engine, failed)).state is State.AVAILABLE
    await done(engine, clock, await current(engine, second), Event.COMPLETE)
    assert ids(await take(engine)) == [first.id]


async def test_a_person_may_lower_and_raise_a_limit(engine: Engine, clock: StoreClock) -> None:
    await set_limit(engine, at_once=3)
    jobs = [await limited(engine, clock) for _ in range(8)]
    held = await take(engine)
    assert len(held) == 3

    await set_limit(engine, at_once=1)
    for one in held[:2]:
        await done(engine, clock, one, Event.COMPLETE)
        assert await take(engine) == []
    await set_limit(engine, at_once=4)

    assert ids(await take(engine)) == ids(jobs[3:6])


async def test_a_turn_frees_permits_and_takes_them_again(engine: Engine, clock: StoreClock) -> None:
    await set_limit(engine, at_once=1)
    jobs = [await limited(engine, clock) for _ in range(4)]
    [held] = await take(engine)
    seen = [held.id]

    for _ in range(3):
        answers, got = await engine.turn([change(clock, held, Event.COMPLETE)], "w-1", ["default"], 5)
        assert isinstance(answers[0], Applied)
        [held] = got
        seen.append(held.id)

    assert seen == ids(jobs)


async def test_children_that_a_change_inserts_wait_for_permits(engine: Engine, clock: StoreClock) -> None:
    await set_limit(engine, at_once=1)
    parent = await claimed(engine, clock)
    kids = [job(clock, options=uses("api"), parent=parent.id, group="g") for _ in range(2)]

    await done(engine, clock, parent, Event.COMPLETE, inserts=tuple(kids))

    assert len(await take(engine)) == 1


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


# Rates.


async def test_a_rate_lets_a_burst_start_and_then_refills(engine: Engine, clock: StoreClock) -> None:
    await set_limit(engine, rate="60/h", burst=3)  # 58 an hour come in
    jobs = [await limited(engine, clock) for _ in range(6)]

    assert ids(await take(engine)) == ids(jobs[:3])
    assert await take(engine) == []
    clock.advance(-(-HOUR // 58) + clock.grain)
    assert ids(await take(engine)) == [jobs[3].id]
    clock.advance(HOUR)
    assert ids(await take(engine)) == ids(jobs[4:])


async def test_a_refused_step_is_told_when_to_ask_again(engine: Engine, clock: StoreClock) -> None:
    await set_limit(engine, rate="60/h", burst=1)
    held = await claimed(engine, clock)
    assert await is_admitted(engine, ask(held, "a"))

    [answer] = await admit(engine, ask(held, "b"))

    assert isinstance(answer, Admission)
    assert answer.at is not None
    assert clock.is_now(answer.at - MINUTE)
    clock.advance(MINUTE + clock.grain)
    assert await is_admitted(engine, ask(held, "b"))


async def test_units_are_what_a_rate_counts(engine: Engine, clock: StoreClock) -> None:
    hardly_refilled = Settings(burst=100 * UNIT, refill=1, period_ms=DAY)  # a server's clock runs on meanwhile
    await set_limit(engine, settings=hardly_refilled)
    held = await claimed(engine, clock)

    assert await is_admitted(engine, ask(held, "a", units=60 * UNIT))
    assert not await is_admitted(engine, ask(held, "b", units=60 * UNIT))
    assert await is_admitted(engine, ask(held, "c", units=40 * UNIT))
    if clock.settable:  # a server's clock keeps running, and a millionth of a unit comes in at once
        assert not await is_admitted(engine, ask(held, "d", units=0))


async def test_an_estimate_is_corrected_once(engine: Engine, clock: StoreClock) -> None:
    await set_limit(engine, rate="1000/d", burst=100)
    held = await claimed(engine, clock)
    await admit(engine, ask(held, "a", units=60 * UNIT))

    for _ in range(3):
        await admit(engine, give_back(held, "a", Use("api", -30 * UNIT)))

    [used] = await engine.usage("api")
    assert used.tokens is not None
    assert used.tokens // UNIT == 70
    assert await is_admitted(engine, ask(held, "b", units=70 * UNIT))
    await admit(engine, give_back(held, "b", Use("api", 500 * UNIT)))
    [used] = await engine.usage("api")
    assert used.tokens is not None
    assert used.tokens // UNIT == -500, "debt carries over"


async def test_no_window_ever_sees_more_than_the_rate(engine: Engine, clock: StoreClock) -> None:
    if not clock.settable:
        pytest.skip("a server's clock can't be moved in small steps")
    luck, period = random.Random(7), MINUTE  # noqa: S311
    for number, burst in ((1, 1), (3, 1), (10, 4), (10, 10)):
        key = f"r{number}.{burst}"
        await set_limit(engine, key, rate=f"{number}/m", burst=burst)
        held = await claimed(engine, clock)
        starts: list[int] = []
        for nth in range(200):
            clock.advance(luck.choice((0, 1, 50, period // number, period // 3)))
            if await is_admitted(engine, ask(held, f"s{nth}", key)):
                starts.append(clock.now)
        assert len(starts) > number
        for start in starts:
            assert len([at for at in starts if start <= at < start + period]) <= number


async def test_a_limit_of_calls_and_rate_keeps_both(engine: Engine, clock: StoreClock) -> None:
    await set_limit(engine, at_once=2, rate="10/h", burst=3)
    jobs = [await limited(engine, clock) for _ in range(5)]
    held = await take(engine)
    assert ids(held) == ids(jobs[:2])

    await done(engine, clock, held[0], Event.COMPLETE)
    assert ids(await take(engine)) == [jobs[2].id]
    await done(engine, clock, held[1], Event.COMPLETE)

    assert await take(engine) == []


# Closing.


async def close_until(engine: Engine, until: int, key: str = "api") -> None:
    """What a provider's "slow down" does."""
    await engine.put_record(BUCKET + key, closed(Bucket(), until).text())


async def test_a_closed_limit_lets_nobody_start_and_reopens_gently(engine: Engine, clock: StoreClock) -> None:
    await set_limit(engine, at_once=100)
    held = await claimed(engine, clock)
    jobs = [await limited(engine, clock) for _ in range(20)]
    until = clock.now + MINUTE
    await close_until(engine, until)

    assert await take(engine, 50) == []
    [answer] = await admit(engine, ask(held))
    assert answer == Admission(False, "api", until)
    clock.advance(MINUTE)
    if not clock.settable:
        clock.advance(clock.grain)
        assert await take(engine, 50) != []
        return

    assert ids(await take(engine, 50)) == ids(jobs[:2])
    assert await take(engine, 50) == []
    clock.advance(SECOND)
    assert ids(await take(engine, 50)) == ids(jobs[2:4])
    clock.advance(SECOND)
    assert ids(await take(engine, 50)) == ids(jobs[4:8])
    clock.advance(10 * SECOND)
    assert ids(await take(engine, 50)) == ids(jobs[8:])


async def test_a_limit_that_a_person_opens_is_open_at_once(engine: Engine, clock: StoreClock) -> None:
    await set_limit(engine, at_once=2)
    waiting = await limited(engine, clock)
    await close_until(engine, clock.now + HOUR)
    assert await take(engine) == []

    await engine.put_record(BUCKET + "api", None)

    assert ids(await take(engine)) == [waiting.id]


# Waking, and looking.


async def test_whoever_waits_for_a_key_hears_of_room(engine: Engine, clock: StoreClock, another: Another) -> None:
    await set_limit(engine, at_once=1)
    held = await claimed(engine, clock)
    await admit(engine, ask(held))
    topics = [limit_topic("api")]
    mark = await engine.wait(topics, 0)
    waiter = asyncio.create_task(engine.wait(topics, 30, mark))
    await asyncio.sleep(0)

    await admit(engine, give_back(held))

    async with asyncio.timeout(SOON):
        await waiter


async def test_a_queue_hears_of_room_for_its_jobs(engine: Engine, clock: StoreClock) -> None:
    await set_limit(engine, at_once=1)
    held = await claimed(engine, clock, options=uses("api"))
    waiting = await limited(engine, clock)
    assert await take(engine) == []
    topics = [queue_topic("default")]
    mark = await engine.wait(topics, 0)
    waiter = asyncio.create_task(engine.wait(topics, 30, mark))
    await asyncio.sleep(0)

    await done(engine, clock, held, Event.COMPLETE)

    async with asyncio.timeout(SOON):
        await waiter
    assert ids(await take(engine)) == [waiting.id]


async def test_a_wait_for_a_queue_ends_when_a_rate_has_room(engine: Engine, clock: StoreClock) -> None:
    await set_limit(engine, rate="3600000/h", burst=1)  # about one a millisecond
    first, second = await limited(engine, clock), await limited(engine, clock)
    taken = ids(await take(engine))
    assert taken[:1] == [first.id]
    mark = await engine.wait([queue_topic("default")], 0)

    async with asyncio.timeout(SOON):
        await engine.wait([queue_topic("default")], 30, mark)

    if clock.settable:
        clock.advance(2)
    assert [*taken, *ids(await take(engine))] == [first.id, second.id]


async def test_usage_tells_what_is_held_and_who_waits(engine: Engine, clock: StoreClock) -> None:
    await set_limit(engine, at_once=2)
    held = await claimed(engine, clock)
    await admit(engine, ask(held, "x", "api/b"))
    for _ in range(3):
        await limited(engine, clock, "api/a")
    assert len(await take(engine)) == 2
    await suspended(engine, clock, await claimed(engine, clock), "api/a")

    assert await engine.usage("api") == [Usage("api/a", 2, 2), Usage("api/b", 1, 0)]
    assert await engine.usage("nothing") == []


async def test_available_types_are_told_whether_they_are_limited_or_not(engine: Engine, clock: StoreClock) -> None:
    await set_limit(engine, at_once=1)
    await limited(engine, clock, type="test.limited")
    await inserted(engine, clock, type="test.free")

    assert await engine.ready_types("default") == ["test.free", "test.limited"]


async def test_a_refused_change_frees_nothing(engine: Engine, clock: StoreClock) -> None:
    await set_limit(engine, at_once=1)
    stale = await claimed(engine, clock)
    held = await taken_over(engine, clock, stale)
    await admit(engine, ask(held))

    answer = await commit(engine, replace(decide(stale, Event.COMPLETE, clock.now, result="1", by="w-1"), frees=True))

    assert isinstance(answer, Conflict)
    other = await claimed(engine, clock)
    assert not await is_admitted(engine, ask(other))
