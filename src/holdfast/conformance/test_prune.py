"""Prune: only jobs that ended long enough ago, never relatives of unfinished ones, and with everything they have."""

from typing import Any

import pytest

from holdfast.conformance.dump import dump
from holdfast.conformance.given import (
    DAY,
    HOUR,
    SECOND,
    StoreClock,
    applied_to,
    change,
    children,
    claimed,
    current,
    done,
    in_state,
    inserted,
    job,
    signal,
    step,
)
from holdfast.core.lifecycle import TERMINAL, submit_entry
from holdfast.core.model import Conflict, Event, Inserted, Job, Options, State, Where
from holdfast.engines.contract import Engine
from holdfast.engines.traits import Emptyable

AT_ONCE = Options(keep_ms=0)


async def ended(engine: Engine, clock: StoreClock, *, ago: int = 0, **fields: Any) -> Job:
    """Return a job that was completed this long ago, and was to be kept only until then."""
    held = await claimed(engine, clock, options=AT_ONCE, **fields)
    return await done(engine, clock, held, Event.COMPLETE, at=clock.now - ago)


async def kept(engine: Engine, *jobs: Job) -> list[bool]:
    """Return which of these jobs still exist."""
    return [found is not None for found in await engine.get([each.id for each in jobs])]


async def test_an_empty_store_has_nothing_to_prune(engine: Engine) -> None:
    assert await engine.prune() == 0


@pytest.mark.parametrize("state", sorted(TERMINAL))
async def test_what_has_ended_goes_when_its_time_has_come(engine: Engine, clock: StoreClock, state: State) -> None:
    old = await in_state(engine, clock, state, options=AT_ONCE)

    assert await engine.prune() == 1
    assert await kept(engine, old) == [False]
    assert await engine.prune() == 0


async def test_what_has_ended_stays_to_its_time(engine: Engine, clock: StoreClock) -> None:
    young = await in_state(engine, clock, State.COMPLETED, options=Options(keep_ms=HOUR))
    forever = await in_state(engine, clock, State.COMPLETED, options=Options(keep_ms=None))

    assert await engine.prune() == 0

    clock.advance(HOUR - clock.grain)
    assert await engine.prune() == 0
    clock.advance(clock.grain)
    assert await engine.prune() == 1
    assert await kept(engine, young, forever) == [False, True]


@pytest.mark.parametrize("state", sorted(set(State) - TERMINAL))
async def test_what_has_not_ended_stays_whatever_its_date_says(engine: Engine, clock: StoreClock, state: State) -> None:
    await in_state(engine, clock, state, prune_at=clock.now - DAY, options=AT_ONCE)
    before = await dump(engine)

    assert await engine.prune() == 0
    assert await dump(engine) == before


async def test_all_that_belongs_to_a_job_goes_with_it(engine: Engine, clock: StoreClock) -> None:
    empty = await dump(engine)
    held = await claimed(engine, clock, options=AT_ONCE, key="order-42", digest="d1")
    await engine.record([step(held, "a"), step(held, "b")])
    [child] = await children(engine, clock, held, 1)
    await applied_to(engine, signal(clock, held))
    await done(engine, clock, child, Event.COMPLETE)
    await done(engine, clock, await current(engine, held), Event.CANCEL)

    assert await engine.prune() == 1
    assert await kept(engine, held, child) == [False, True]
    assert await engine.history(held.id) == []
    assert await engine.steps(held.id) == []
    assert await engine.missing(held.id, "g") == 0
    assert await engine.count() == {(child.queue, State.COMPLETED): 1}
    assert len(await engine.history(child.id)) == 3

    other = await ended(engine, clock)
    assert await engine.prune() == 1
    assert await kept(engine, other) == [False]
    assert (await dump(engine)).records == empty.records


async def test_a_new_job_has_nothing_of_one_that_is_gone(engine: Engine, clock: StoreClock) -> None:
    old = await claimed(engine, clock, options=AT_ONCE)
    await engine.record([step(old, "a")])
    await done(engine, clock, old, Event.COMPLETE)
    assert await engine.prune() == 1

    # A store that numbers its jobs may assign the same number to the next one.
    new = await inserted(engine, clock)

    assert await engine.steps(new.id) == []
    assert await engine.history(new.id) == [submit_entry(new)]
    assert await engine.steps(old.id) == []


async def test_pruning_one_job_leaves_the_others_as_they_are(engine: Engine, clock: StoreClock) -> None:
    for state in State:
        held = await in_state(engine, clock, state)
        assert held.prune_at is None
    before = await dump(engine)
    await ended(engine, clock)

    assert await engine.prune() == 1
    assert await dump(engine) == before


# The limit.


async def test_no_more_go_than_the_limit_and_the_oldest_first(engine: Engine, clock: StoreClock) -> None:
    middle = await ended(engine, clock, ago=2 * SECOND)
    youngest = await ended(engine, clock, ago=1 * SECOND)
    oldest = await ended(engine, clock, ago=3 * SECOND)

    assert await engine.prune(1) == 1
    assert await kept(engine, oldest, middle, youngest) == [False, True, True]
    assert await engine.prune(1) == 1
    assert await kept(engine, oldest, middle, youngest) == [False, False, True]
    assert await engine.prune(5) == 1


async def test_what_must_stay_does_not_use_up_the_limit(engine: Engine, clock: StoreClock) -> None:
    parent = await claimed(engine, clock)
    for child in await children(engine, clock, parent, 3):
        await applied_to(engine, change(clock, child, Event.CANCEL, at=clock.now - DAY))
    staying = await inserted(engine, clock, state=State.SCHEDULED, prune_at=clock.now - DAY)
    old = await ended(engine, clock)

    assert await engine.prune(1) == 1
    assert await kept(engine, parent, staying, old) == [True, True, False]


# Kin.


async def family(engine: Engine, clock: StoreClock) -> tuple[Job, Job]:
    """Return a parent and a child that may be pruned as soon as they end."""
    parent = await claimed(engine, clock, options=AT_ONCE)
    child = job(clock, parent=parent.id, group="g", queue="nursery", options=AT_ONCE)
    await engine.insert([child], parent.lease)
    [held] = await engine.claim("w-2", ["nursery"], 1)
    return parent, held


async def test_a_child_stays_while_its_parent_has_not_ended(engine: Engine, clock: StoreClock) -> None:
    parent, child = await family(engine, clock)
    await done(engine, clock, child, Event.COMPLETE)

    assert await engine.prune() == 0

    await done(engine, clock, parent, Event.COMPLETE)
    assert await engine.prune() == 2
    assert await kept(engine, parent, child) == [False, False]


@pytest.mark.parametrize("event", [Event.RELEASE, Event.SUSPEND, Event.REST, Event.FAIL, Event.EXHAUST])
async def test_a_parent_stays_while_a_child_has_not_ended(engine: Engine, clock: StoreClock, event: Event) -> None:
    parent, child = await family(engine, clock)
    await done(engine, clock, parent, Event.COMPLETE)
    child = await done(engine, clock, child, event)

    assert await engine.prune() == 0

    await done(engine, clock, child, Event.CANCEL)
    assert await engine.prune() == 2


async def test_a_parent_may_go_before_a_child_that_has_ended(engine: Engine, clock: StoreClock) -> None:
    parent = await claimed(engine, clock, options=AT_ONCE)
    [child] = await children(engine, clock, parent, 1)
    await done(engine, clock, child, Event.COMPLETE)
    await done(engine, clock, parent, Event.COMPLETE)

    assert await engine.prune() == 1
    assert await kept(engine, parent, child) == [False, True]
    assert (await current(engine, child)).parent == parent.id


async def test_an_emptied_store_is_as_new_but_for_its_records(engine: Engine, clock: StoreClock) -> None:
    """Given jobs in every state, with steps, children, signals and keys."""
    if not isinstance(engine, Emptyable):
        pytest.skip("this engine can't be emptied")
    for state in State:
        await in_state(engine, clock, state)
    held = await claimed(engine, clock, key="k", priority=9)
    await engine.record([step(held, "a")])
    await engine.put_record("kept", "yes")

    await engine.empty()

    assert await engine.find(Where()) == []
    assert await engine.count() == {}
    assert await engine.steps(held.id) == []
    assert await engine.history(held.id) == []
    assert await engine.claim("w", ["default"], 10) == []
    assert [record.value for record in await engine.records("kept")] == ["yes"]
    assert isinstance((await engine.record([step(held, "b")]))[0], Conflict)
    again = job(clock, key="k", id=held.id)
    assert await engine.insert([again]) == [Inserted(held.id, True)]
    assert [one.id for one in await engine.claim("w", ["default"], 10)] == [held.id]
