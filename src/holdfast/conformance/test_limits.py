"""Shared limits of jobs: permits belong to leases, nobody exceeds a limit, and whoever waits for room gets it."""

import pytest

from holdfast.conformance.given import (
    MINUTE,
    StoreClock,
    change,
    claimed,
    current,
    done,
    in_state,
    inserted,
    job,
)
from holdfast.conformance.limited import BREAKS, ENDS, ids, limited, set_limit, take, uses
from holdfast.core.model import (
    Applied,
    Event,
    State,
)
from holdfast.engines.contract import Engine
from holdfast.engines.records import PAUSE


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


async def test_room_that_a_job_cannot_use_is_passed_on_between_two_keys(engine: Engine, clock: StoreClock) -> None:
    """A job that needs two keys, and never finds room under both, holds up nobody behind either of them."""
    await set_limit(engine, "a", at_once=1)
    await set_limit(engine, "b", at_once=1)
    [holds_a, holds_b] = [await claimed(engine, clock, options=uses(key)) for key in ("a", "b")]
    both = await limited(engine, clock, "a", "b", priority=1)
    behind_a, behind_b = [[await limited(engine, clock, key) for _ in range(2)] for key in ("a", "b")]
    assert await take(engine) == []

    for next_a, next_b in zip(behind_a, behind_b, strict=True):
        await done(engine, clock, holds_b, Event.COMPLETE)
        [holds_b] = await take(engine)
        await done(engine, clock, holds_a, Event.COMPLETE)
        [holds_a] = await take(engine)
        assert (holds_a.id, holds_b.id) == (next_a.id, next_b.id)
    await done(engine, clock, holds_a, Event.COMPLETE)
    assert await take(engine) == []
    await done(engine, clock, holds_b, Event.COMPLETE)

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
