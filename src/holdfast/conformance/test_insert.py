"""Insert: idempotent by id, one job for one key, children under their parent's lease, all or none."""

import pytest
from msgspec.structs import replace

from holdfast.conformance.dump import dump
from holdfast.conformance.given import (
    HOUR,
    WAITS_FOR_GO,
    StoreClock,
    claimed,
    current,
    done,
    in_state,
    inserted,
    job,
    taken_over,
)
from holdfast.core.errors import KeyConflict, LeaseLost
from holdfast.core.keys import new_id
from holdfast.core.lifecycle import submit_entry
from holdfast.core.model import Event, Inserted, Job, Lease, Options, State
from holdfast.engines.contract import Engine

MANY = 1_200
"""More jobs in one call than stores usually allow parameters in one statement."""


async def test_a_new_job_is_kept_as_it_was_given_with_its_first_entry(engine: Engine, clock: StoreClock) -> None:
    new = job(clock)

    answers = await engine.insert([new])

    assert answers == [Inserted(new.id, True)]
    assert await engine.get([new.id]) == [new]
    assert await engine.history(new.id) == [submit_entry(new)]


@pytest.mark.parametrize("state", [State.AVAILABLE, State.SCHEDULED, State.PENDING])
async def test_a_job_may_begin_in_each_of_three_states(engine: Engine, clock: StoreClock, state: State) -> None:
    waits = WAITS_FOR_GO if state is State.PENDING else ()
    new = await inserted(engine, clock, state=state, run_at=clock.now + HOUR, waits=waits)

    assert await current(engine, new) == new
    assert await engine.count() == {("default", state): 1}


async def test_nothing_inserted_is_nothing_answered(engine: Engine) -> None:
    assert await engine.insert([]) == []


async def test_many_jobs_go_in_at_once(engine: Engine, clock: StoreClock) -> None:
    jobs = [job(clock) for _ in range(MANY)]

    answers = await engine.insert(jobs)

    assert answers == [Inserted(new.id, True) for new in jobs]
    assert await engine.get([new.id for new in jobs]) == jobs


# Ids.


async def test_an_id_is_inserted_once(engine: Engine, clock: StoreClock) -> None:
    old = await claimed(engine, clock)
    before = await dump(engine)

    answers = await engine.insert([replace(job(clock, args="[2]", queue="other"), id=old.id)])

    assert answers == [Inserted(old.id, False)]
    assert await dump(engine) == before


async def test_an_id_that_comes_twice_in_one_call_is_inserted_once(engine: Engine, clock: StoreClock) -> None:
    first = job(clock)

    answers = await engine.insert([first, replace(first, args="[2]")])

    assert answers == [Inserted(first.id, True), Inserted(first.id, False)]
    assert await current(engine, first) == first
    assert len(await engine.history(first.id)) == 1


async def test_known_and_new_ids_mix(engine: Engine, clock: StoreClock) -> None:
    old, new = await inserted(engine, clock), job(clock)

    assert await engine.insert([old, new, old]) == [
        Inserted(old.id, False),
        Inserted(new.id, True),
        Inserted(old.id, False),
    ]


# Keys.


def keyed(clock: StoreClock, **fields: object) -> Job:
    """Make a job with the key that all these tests use."""
    return job(clock, **{"key": "order-42", "digest": "d1"} | fields)


async def test_a_key_gives_the_job_that_has_it(engine: Engine, clock: StoreClock) -> None:
    first, second = keyed(clock), keyed(clock)
    await engine.insert([first])
    before = await dump(engine)

    answers = await engine.insert([second])

    assert answers == [Inserted(first.id, False)]
    assert await dump(engine) == before


async def test_a_key_holds_while_its_job_is_kept_even_when_it_has_ended(engine: Engine, clock: StoreClock) -> None:
    ended = await in_state(engine, clock, State.COMPLETED, key="order-42", digest="d1")

    assert await engine.insert([keyed(clock)]) == [Inserted(ended.id, False)]


async def test_a_key_belongs_to_the_type_of_its_job(engine: Engine, clock: StoreClock) -> None:
    first, other = keyed(clock), keyed(clock, type="test.other", digest="d2")

    answers = await engine.insert([first, other])

    assert [answer.new for answer in answers] == [True, True]


async def test_a_key_with_another_digest_is_a_conflict_and_inserts_nothing(engine: Engine, clock: StoreClock) -> None:
    await engine.insert([keyed(clock)])
    before = await dump(engine)

    with pytest.raises(KeyConflict):
        await engine.insert([job(clock), keyed(clock, digest="d2"), job(clock)])

    assert await dump(engine) == before


async def test_a_key_that_comes_twice_in_one_call_is_one_job(engine: Engine, clock: StoreClock) -> None:
    first, second = keyed(clock), keyed(clock)

    answers = await engine.insert([first, second])

    assert answers == [Inserted(first.id, True), Inserted(first.id, False)]
    assert await engine.get([second.id]) == [None]


async def test_a_key_that_contradicts_itself_in_one_call_inserts_nothing(engine: Engine, clock: StoreClock) -> None:
    before = await dump(engine)

    with pytest.raises(KeyConflict):
        await engine.insert([keyed(clock), keyed(clock, digest="d2")])

    assert await dump(engine) == before
    assert (await engine.insert([keyed(clock, digest="d2")]))[0].new


async def test_an_id_counts_before_its_key(engine: Engine, clock: StoreClock) -> None:
    first = keyed(clock)
    await engine.insert([first])

    # The answer to an insert was lost and the caller repeats it: that isn't a conflict with itself.
    assert await engine.insert([replace(first, digest="d2")]) == [Inserted(first.id, False)]


async def test_a_key_is_free_after_its_window(engine: Engine, clock: StoreClock) -> None:
    first = keyed(clock, key_until=clock.now - 1)
    second = keyed(clock, key_until=clock.now + HOUR, digest="d2")
    third = keyed(clock, digest="d2")
    await engine.insert([first])

    assert await engine.insert([second]) == [Inserted(second.id, True)]
    assert await engine.insert([third]) == [Inserted(second.id, False)]
    assert await current(engine, first) == first


async def test_a_key_is_held_to_the_end_of_its_window(engine: Engine, clock: StoreClock) -> None:
    first = keyed(clock, key_until=clock.now + HOUR)
    await engine.insert([first])

    clock.advance(HOUR - clock.grain)
    assert await engine.insert([keyed(clock)]) == [Inserted(first.id, False)]

    clock.advance(clock.grain)
    second = keyed(clock)
    assert await engine.insert([second]) == [Inserted(second.id, True)]


async def pruned(engine: Engine, clock: StoreClock, **fields: object) -> Job:
    """Return a job with the key that has ended and was pruned."""
    gone = await in_state(
        engine, clock, State.COMPLETED, key="order-42", digest="d1", options=Options(keep_ms=0), **fields
    )
    assert await engine.prune() == 1
    assert await engine.get([gone.id]) == [None]
    return gone


async def test_a_key_without_a_window_goes_with_its_job(engine: Engine, clock: StoreClock) -> None:
    await pruned(engine, clock)
    new = keyed(clock, digest="d2")

    assert await engine.insert([new]) == [Inserted(new.id, True)]


async def test_a_key_outlives_its_job_to_the_end_of_its_window(engine: Engine, clock: StoreClock) -> None:
    gone = await pruned(engine, clock, key_until=clock.now + HOUR)

    assert await engine.insert([keyed(clock)]) == [Inserted(gone.id, False)]
    with pytest.raises(KeyConflict):
        await engine.insert([keyed(clock, digest="d2")])

    clock.advance(HOUR)
    assert (await engine.insert([keyed(clock, digest="d2")]))[0].new


# Children.


async def test_children_are_counted_in_their_groups(engine: Engine, clock: StoreClock) -> None:
    parent = await claimed(engine, clock)
    two = [job(clock, parent=parent.id, group="images") for _ in range(2)]
    one = job(clock, parent=parent.id, group="sounds")
    nameless = job(clock, parent=parent.id)

    await engine.insert([*two, one, nameless], parent.lease)
    await engine.insert([*two, one, nameless], parent.lease)

    assert await engine.missing(parent.id, "images") == 2
    assert await engine.missing(parent.id, "sounds") == 1
    assert await engine.missing(parent.id, "") == 1
    assert await engine.missing(parent.id, "films") == 0
    assert await engine.history(one.id) == [submit_entry(one)]
    assert await current(engine, parent) == parent


async def test_a_child_that_a_key_stands_for_is_not_counted(engine: Engine, clock: StoreClock) -> None:
    await engine.insert([keyed(clock)])
    parent = await claimed(engine, clock)

    await engine.insert([keyed(clock, parent=parent.id, group="g")], parent.lease)

    assert await engine.missing(parent.id, "g") == 0


async def test_a_stale_parent_inserts_no_children(engine: Engine, clock: StoreClock) -> None:
    stale = await claimed(engine, clock)
    held = await taken_over(engine, clock, stale)
    before = await dump(engine)

    with pytest.raises(LeaseLost):
        await engine.insert([job(clock, parent=stale.id, group="g")], stale.lease)
    assert await dump(engine, groups=[(stale.id, "g")]) == replace(before, missing={f"{stale.id}/g": 0})

    assert (await engine.insert([job(clock, parent=stale.id, group="g")], held.lease))[0].new


@pytest.mark.parametrize("event", [Event.COMPLETE, Event.CANCEL, Event.SUSPEND, Event.RELEASE])
async def test_a_parent_that_is_not_active_inserts_no_children(engine: Engine, clock: StoreClock, event: Event) -> None:
    parent = await claimed(engine, clock)
    await done(engine, clock, parent, event)
    before = await dump(engine)

    with pytest.raises(LeaseLost):
        await engine.insert([job(clock, parent=parent.id)], parent.lease)

    assert await dump(engine) == before


async def test_a_parent_that_does_not_exist_inserts_no_children(engine: Engine, clock: StoreClock) -> None:
    nobody = new_id(clock.now, 7)

    with pytest.raises(LeaseLost):
        await engine.insert([job(clock, parent=nobody)], Lease(nobody, 1))

    assert await engine.count() == {}
