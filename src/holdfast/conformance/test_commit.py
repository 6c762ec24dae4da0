"""Commit: what a change expects, how it changes the job, and that a refusal changes nothing at all."""

import pytest
from msgspec.structs import replace

from holdfast.conformance.dump import dump
from holdfast.conformance.given import (
    EDGES,
    OWNER_EVENTS,
    StoreClock,
    applied_to,
    change,
    claimed,
    commit,
    current,
    done,
    in_state,
    inserted,
    job,
    signal,
    step,
    taken_over,
    with_version,
)
from holdfast.core.errors import Invalid
from holdfast.core.lifecycle import applied, entry_of, refusal
from holdfast.core.model import (
    LEASE_LOST,
    NEW_JOBS_LIMIT,
    NO_SUCH_JOB,
    OUTRUN,
    Applied,
    Change,
    Conflict,
    Event,
    Job,
    State,
)
from holdfast.engines.contract import Engine

UNHURRIED = [event for event in OWNER_EVENTS if event not in (Event.SUSPEND, Event.REST)]
"""What an owner may do without knowing the newest signal."""


def with_cargo(clock: StoreClock, held: Job, event: Event) -> Change:
    """Return a change with every kind of cargo that its event allows."""
    return change(
        clock,
        held,
        event,
        steps=(step(held, "new#1"),),
        drops=("old#1",),
        takes=tuple(signal.version for signal in held.inbox),
        signal=("echo", "2"),
        inserts=(job(clock, parent=held.id, group="g"),),
        note={"why": "a test"},
    )


async def test_nothing_committed_is_nothing_answered(engine: Engine) -> None:
    assert await engine.commit([]) == []


# How a change changes a job.


@pytest.mark.parametrize(("event", "source"), EDGES)
async def test_every_event_makes_of_the_job_what_was_decided(
    engine: Engine, clock: StoreClock, event: Event, source: State
) -> None:
    head = await in_state(engine, clock, source)
    decided = change(clock, head, event, note={"of": ["edge", 1]})

    answer = await commit(engine, decided)

    assert answer == Applied(head.version + 1)
    assert await current(engine, head) == applied(head, decided)
    assert (await engine.history(head.id))[-1] == entry_of(decided, head.version + 1)
    assert await engine.count() == {(head.queue, decided.job.state): 1}


@pytest.mark.parametrize("event", [Event.RELEASE, Event.LAPSE, Event.REPLAY, Event.ACTIVATE, Event.PROMOTE])
async def test_what_was_made_available_can_be_claimed(engine: Engine, clock: StoreClock, event: Event) -> None:
    source = {Event.REPLAY: State.REVIEW, Event.ACTIVATE: State.PENDING, Event.PROMOTE: State.SCHEDULED}
    due = {"run_at": clock.now} if event is Event.PROMOTE else {}
    head = await in_state(engine, clock, source.get(event, State.ACTIVE), **due)
    back = await done(engine, clock, head, event)

    [held] = await engine.claim("w-9", [head.queue], 1)

    assert (held.id, held.epoch, held.version) == (back.id, back.epoch + 1, back.version + 1)


# What an owner's change expects.


@pytest.mark.parametrize("event", OWNER_EVENTS)
async def test_an_owner_whose_lease_was_taken_over_changes_nothing(
    engine: Engine, clock: StoreClock, event: Event
) -> None:
    stale = await claimed(engine, clock)
    await engine.record([step(stale, "old#1")])
    stale = await applied_to(engine, signal(clock, stale))
    held = await taken_over(engine, clock, stale)
    before = await dump(engine)
    # Even with the right version, the old epoch alone must be refused.
    decided = replace(with_cargo(clock, stale, event), version=None)

    answer = await commit(engine, decided)

    assert answer == Conflict(held.id, LEASE_LOST, State.ACTIVE, held.version, held.epoch)
    assert await dump(engine) == before


@pytest.mark.parametrize("after", [Event.CANCEL, Event.COMPLETE, Event.RELEASE, Event.SUSPEND, Event.LAPSE])
@pytest.mark.parametrize("event", OWNER_EVENTS)
async def test_an_owner_whose_job_is_not_active_changes_nothing(
    engine: Engine, clock: StoreClock, event: Event, after: Event
) -> None:
    held = await claimed(engine, clock)
    decided = with_version(with_cargo(clock, held, event), None)
    now = await done(engine, clock, held, after)
    before = await dump(engine)

    answer = await commit(engine, decided)

    assert answer == Conflict(held.id, LEASE_LOST, now.state, now.version, now.epoch)
    assert await dump(engine) == before


@pytest.mark.parametrize("event", UNHURRIED)
async def test_an_owner_need_not_know_of_the_newest_signal(engine: Engine, clock: StoreClock, event: Event) -> None:
    held = await claimed(engine, clock)
    signalled = await applied_to(engine, signal(clock, held))

    after = await applied_to(engine, change(clock, held, event))

    assert after.version == signalled.version + 1
    assert after.inbox == signalled.inbox


@pytest.mark.parametrize("event", [Event.SUSPEND, Event.REST])
async def test_a_signal_between_looking_and_waiting_is_a_conflict(
    engine: Engine, clock: StoreClock, event: Event
) -> None:
    held = await claimed(engine, clock)
    signalled = await applied_to(engine, signal(clock, held))
    before = await dump(engine)

    answer = await commit(engine, with_cargo(clock, held, event))

    assert answer == Conflict(held.id, OUTRUN, State.ACTIVE, signalled.version, held.epoch)
    assert await dump(engine) == before
    assert isinstance(await commit(engine, change(clock, signalled, event)), Applied)


# What anybody else's change expects.


@pytest.mark.parametrize(("event", "source"), [edge for edge in EDGES if edge.values[0] not in OWNER_EVENTS])
async def test_who_was_outrun_changes_nothing(engine: Engine, clock: StoreClock, event: Event, source: State) -> None:
    head = await in_state(engine, clock, source)
    decided = with_cargo(clock, head, event)
    await applied_to(engine, signal(clock, head, name="other"))
    before = await dump(engine)

    answer = await commit(engine, decided)

    assert answer == Conflict(head.id, OUTRUN, head.state, head.version + 1, head.epoch)
    assert await dump(engine) == before


async def test_a_refusal_is_told_as_the_lifecycle_tells_it(engine: Engine, clock: StoreClock) -> None:
    held = await claimed(engine, clock)
    late = [change(clock, held, event) for event in (Event.COMPLETE, Event.SUSPEND, Event.CANCEL, Event.LAPSE)]
    now = await taken_over(engine, clock, held)

    assert await engine.commit(late) == [refusal(now, decided) for decided in late]


async def test_a_change_that_expects_nothing_always_holds(engine: Engine, clock: StoreClock) -> None:
    head = await inserted(engine, clock)
    late = with_version(change(clock, head, Event.CANCEL), None)
    await applied_to(engine, signal(clock, head, value="1"))

    after = await applied_to(engine, late)

    assert (after.state, after.version) == (State.CANCELLED, 3)


async def test_a_job_that_does_not_exist_is_a_conflict(engine: Engine, clock: StoreClock) -> None:
    nobody = job(clock)

    answer = await commit(engine, with_cargo(clock, nobody, Event.CANCEL))

    assert answer == Conflict(nobody.id, NO_SUCH_JOB)
    assert await engine.count() == {}
    assert await engine.steps(nobody.id) == []


@pytest.mark.parametrize(("event", "source"), EDGES)
async def test_a_change_that_is_repeated_counts_once(
    engine: Engine, clock: StoreClock, event: Event, source: State
) -> None:
    head = await in_state(engine, clock, source)
    decided = with_cargo(clock, head, event)
    assert isinstance(await commit(engine, decided), Applied)
    before = await dump(engine)

    # The answer was lost, and the caller repeats the call.
    assert isinstance(await commit(engine, decided), Conflict)

    assert await dump(engine) == before


# Batches.


async def test_a_conflict_touches_no_neighbour(engine: Engine, clock: StoreClock) -> None:
    first, stale, last = [await claimed(engine, clock) for _ in range(3)]
    held = await taken_over(engine, clock, stale)
    changes = [with_cargo(clock, each, Event.COMPLETE) for each in (first, stale, last)]

    answers = await engine.commit(changes)

    assert answers[0] == Applied(first.version + 1)
    assert answers[1] == Conflict(held.id, LEASE_LOST, State.ACTIVE, held.version, held.epoch)
    assert answers[2] == Applied(last.version + 1)
    for each, decided in ((first, changes[0]), (last, changes[2])):
        assert await current(engine, each) == applied(each, decided)
        assert await engine.steps(each.id) == list(decided.steps)
        assert await engine.missing(each.id, "g") == 1
    assert await current(engine, stale) == held
    assert await engine.steps(stale.id) == []
    assert await engine.get([changes[1].inserts[0].id]) == [None]


async def test_of_two_changes_of_one_job_in_a_batch_the_first_wins(engine: Engine, clock: StoreClock) -> None:
    held = await claimed(engine, clock)
    both = [change(clock, held, Event.COMPLETE), change(clock, held, Event.CANCEL)]

    answers = await engine.commit(both)

    assert answers == [
        Applied(held.version + 1),
        Conflict(held.id, OUTRUN, State.COMPLETED, held.version + 1, held.epoch),
    ]
    assert len(await engine.history(held.id)) == held.version + 1


async def test_changes_of_one_job_in_a_batch_build_on_one_another(engine: Engine, clock: StoreClock) -> None:
    head = await inserted(engine, clock)
    one = signal(clock, head, value="1")
    two = signal(clock, applied(head, one), value="2")

    assert await engine.commit([one, two]) == [Applied(2), Applied(3)]
    assert [got.value for got in (await current(engine, head)).inbox] == ["1", "2"]


# What no engine accepts.


async def test_too_many_new_jobs_are_refused_whole(engine: Engine, clock: StoreClock) -> None:
    held, other = await claimed(engine, clock), await claimed(engine, clock)
    crowd = tuple(job(clock, parent=held.id) for _ in range(NEW_JOBS_LIMIT + 1))
    before = await dump(engine)

    with pytest.raises(Invalid):
        await engine.commit([change(clock, other, Event.COMPLETE), change(clock, held, Event.COMPLETE, inserts=crowd)])

    assert await dump(engine) == before


async def test_a_new_job_with_a_key_is_refused_in_a_change(engine: Engine, clock: StoreClock) -> None:
    held = await claimed(engine, clock)
    before = await dump(engine)

    with pytest.raises(Invalid):
        await engine.commit([change(clock, held, Event.COMPLETE, inserts=(job(clock, key="k"),))])

    assert await dump(engine) == before
