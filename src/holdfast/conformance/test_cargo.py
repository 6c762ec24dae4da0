"""A change and its cargo are one act: steps, drops, edits, signals, new jobs, and the arrival at the parent."""

import pytest
from msgspec.structs import replace

from holdfast.conformance.dump import dump
from holdfast.conformance.given import (
    HOUR,
    StoreClock,
    applied_to,
    change,
    children,
    claimed,
    commit,
    current,
    done,
    in_state,
    inserted,
    job,
    signal,
    step,
)
from holdfast.core.lifecycle import entry_of, submit_entry, undo_job
from holdfast.core.model import (
    CHILDREN_ARE_IN,
    NEW_JOBS_LIMIT,
    SIGNAL,
    Applied,
    Conflict,
    Event,
    Job,
    Signal,
    State,
    StepState,
    Wait,
    WaitKind,
)
from holdfast.engines.contract import Engine


async def test_all_that_a_change_can_bring_is_one_act(engine: Engine, clock: StoreClock) -> None:
    parent = await claimed(engine, clock)
    [held] = await children(engine, clock, parent, 1)
    await engine.record([step(held, "keep#1"), step(held, "drop#1")])
    held = await applied_to(engine, signal(clock, held, value="1"))
    new = job(clock, parent=held.id, group="undo")
    decided = change(
        clock,
        held,
        Event.COMPLETE,
        steps=(step(held, "last#1"),),
        drops=("drop#1",),
        takes=(held.inbox[0].version,),
        signal=("echo", "2"),
        inserts=(new,),
    )

    answer = await commit(engine, decided)

    after = await current(engine, held)
    assert answer == Applied(held.version + 1, missing=0)
    assert after == replace(
        decided.job,
        version=held.version + 1,
        inbox=(Signal(held.version + 1, "echo", "2", decided.by, decided.at),),
        arrived=True,
    )
    assert [kept.path for kept in await engine.steps(held.id)] == ["keep#1", "last#1"]
    assert await engine.get([new.id]) == [new]
    assert await engine.missing(held.id, "undo") == 1
    assert await engine.missing(parent.id, "g") == 0


# Steps.


async def test_a_new_attempt_drops_what_failed_and_keeps_the_rest(engine: Engine, clock: StoreClock) -> None:
    for event in (Event.FAIL, Event.OVERRUN):
        held = await claimed(engine, clock)
        failed, ok, begun = step(held, "a", StepState.FAILED), step(held, "b"), step(held, "c", StepState.STARTED)
        await engine.record([failed, ok, begun])

        await done(engine, clock, held, event)

        assert await engine.steps(held.id) == [ok, begun]


async def test_a_replay_drops_what_failed(engine: Engine, clock: StoreClock) -> None:
    held = await claimed(engine, clock)
    failed, ok = step(held, "a", StepState.FAILED), step(held, "b")
    await engine.record([failed, ok])
    review = await done(engine, clock, held, Event.EXHAUST)
    assert await engine.steps(held.id) == [failed, ok]

    await done(engine, clock, review, Event.REPLAY)

    assert await engine.steps(held.id) == [ok]


@pytest.mark.parametrize("event", [Event.RELEASE, Event.LAPSE, Event.SUSPEND, Event.REST, Event.COMPLETE])
async def test_other_ends_keep_all_records(engine: Engine, clock: StoreClock, event: Event) -> None:
    held = await claimed(engine, clock)
    records = [step(held, "a", StepState.FAILED), step(held, "b"), step(held, "c", StepState.STARTED)]
    await engine.record(records)

    await done(engine, clock, held, event)

    assert await engine.steps(held.id) == records


async def test_a_person_may_drop_one_record(engine: Engine, clock: StoreClock) -> None:
    held = await claimed(engine, clock)
    await engine.record([step(held, "a"), step(held, "b", StepState.STARTED)])
    review = await done(engine, clock, held, Event.ABANDON)

    await done(engine, clock, review, Event.REPLAY, drops=("b", "never-was"))

    assert [kept.path for kept in await engine.steps(held.id)] == ["a"]


async def test_a_record_in_a_change_replaces_no_record_that_stands(engine: Engine, clock: StoreClock) -> None:
    held = await claimed(engine, clock)
    first = step(held, "a", result="1")
    await engine.record([first, step(held, "b", StepState.STARTED)])
    now_done = step(held, "b", result="2")

    await done(engine, clock, held, Event.COMPLETE, steps=(step(held, "a", result="9"), now_done))

    assert await engine.steps(held.id) == [first, now_done]


async def test_a_record_is_dropped_before_one_is_written(engine: Engine, clock: StoreClock) -> None:
    held = await claimed(engine, clock)
    await engine.record([step(held, "a", StepState.STARTED), step(held, "b")])
    review = await done(engine, clock, held, Event.ABANDON)
    resolved = step(review, "a", result='"it happened"')

    await done(engine, clock, review, Event.REPLAY, drops=("a",), steps=(resolved,))

    assert [kept.path for kept in await engine.steps(held.id)] == ["b", "a"]
    assert (await engine.steps(held.id))[1] == resolved


# Edits.


async def test_a_replay_may_edit_the_arguments(engine: Engine, clock: StoreClock) -> None:
    review = await in_state(engine, clock, State.REVIEW)

    after = await done(engine, clock, review, Event.REPLAY, args=("[99]", "d99"))

    assert (after.args, after.digest) == ("[99]", "d99")
    [held] = await engine.claim("w-2", [review.queue], 1)
    assert held.args == "[99]"


async def test_a_replay_without_an_edit_keeps_the_arguments(engine: Engine, clock: StoreClock) -> None:
    review = await in_state(engine, clock, State.REVIEW)

    after = await done(engine, clock, review, Event.REPLAY, args=None)

    assert (after.args, after.digest) == (review.args, review.digest)


# Signals.


async def test_a_signal_waits_in_the_inbox_of_a_job_that_does_not_wait_for_it(
    engine: Engine, clock: StoreClock
) -> None:
    for state in (State.SCHEDULED, State.AVAILABLE, State.ACTIVE, State.RETRYABLE, State.REVIEW):
        head = await in_state(engine, clock, state)
        decided = signal(clock, head, "go", '{"n":1}')

        after = await applied_to(engine, decided)

        version = head.version + 1
        received = Signal(version, "go", '{"n":1}', "caller", decided.at)
        assert after == replace(head, version=version, inbox=(received,))
        entry = (await engine.history(head.id))[-1]
        assert entry == entry_of(decided, version)
        assert (entry.event, entry.before, entry.after) == (SIGNAL, state, state)


async def test_a_signal_wakes_who_waits_for_it(engine: Engine, clock: StoreClock) -> None:
    waiting = await in_state(engine, clock, State.PENDING)

    after = await applied_to(engine, signal(clock, waiting, "go", "1"))

    assert (after.state, after.waits) == (State.AVAILABLE, ())
    assert [(got.name, got.version) for got in after.inbox] == [("go", 2)]
    [held] = await engine.claim("w-1", [waiting.queue], 1)
    assert held.inbox == after.inbox


async def test_a_signalled_job_is_claimed_once_and_in_its_place(engine: Engine, clock: StoreClock) -> None:
    first, second = await inserted(engine, clock), await inserted(engine, clock)
    await applied_to(engine, signal(clock, first))

    assert [held.id for held in await engine.claim("w-1", ["default"], 9)] == [first.id, second.id]


async def test_only_the_signals_that_were_taken_leave_the_inbox(engine: Engine, clock: StoreClock) -> None:
    held = await claimed(engine, clock)
    for value in ("1", "2"):
        held = await applied_to(engine, signal(clock, held, value=value))
    seen = held
    later = await applied_to(engine, signal(clock, held, value="3"))

    after = await done(engine, clock, seen, Event.RELEASE, takes=(seen.inbox[0].version, 999))

    assert after.inbox == later.inbox[1:]


# New jobs.


async def test_new_jobs_come_with_their_entries_and_are_counted(engine: Engine, clock: StoreClock) -> None:
    held = await claimed(engine, clock)
    here_before = await inserted(engine, clock)
    crowd = tuple(job(clock, parent=held.id, group="g") for _ in range(NEW_JOBS_LIMIT - 1))
    again = replace(here_before, args="[0]", parent=held.id, group="g")

    await done(engine, clock, held, Event.SUSPEND, inserts=(*crowd, again))

    assert await engine.missing(held.id, "g") == len(crowd)
    assert await engine.get([new.id for new in crowd]) == list(crowd)
    assert await engine.history(crowd[0].id) == [submit_entry(crowd[0])]
    assert await current(engine, here_before) == here_before


async def test_a_new_job_that_comes_twice_in_one_change_is_inserted_once(engine: Engine, clock: StoreClock) -> None:
    held = await claimed(engine, clock)
    first = job(clock, parent=held.id, group="g", args="[1]")

    await done(engine, clock, held, Event.SUSPEND, inserts=(first, replace(first, args="[2]", queue="other")))

    assert await current(engine, first) == first
    assert await engine.missing(held.id, "g") == 1


async def test_an_undo_goes_in_with_the_cancel(engine: Engine, clock: StoreClock) -> None:
    held = await claimed(engine, clock)
    undo = undo_job(held, "test.undo", clock.now)

    await done(engine, clock, held, Event.CANCEL, inserts=(undo,))

    assert await current(engine, undo) == undo


# Arrivals.


@pytest.mark.parametrize("event", [Event.COMPLETE, Event.EXHAUST, Event.ABANDON, Event.CANCEL])
async def test_a_child_that_settles_arrives_at_its_parent(engine: Engine, clock: StoreClock, event: Event) -> None:
    parent = await claimed(engine, clock)
    first, second, third = await children(engine, clock, parent, 3)

    assert await commit(engine, change(clock, second, event)) == Applied(second.version + 1, missing=2)
    assert await engine.missing(parent.id, "g") == 2
    both = await engine.commit([change(clock, each, event) for each in (third, first)])

    assert both == [Applied(third.version + 1, missing=1), Applied(first.version + 1, missing=0)]
    assert await engine.missing(parent.id, "g") == 0
    assert (await current(engine, first)).arrived
    # The parent's own row isn't touched, so that a thousand children don't compete for it.
    assert await current(engine, parent) == parent


async def test_a_child_arrives_in_its_own_group(engine: Engine, clock: StoreClock) -> None:
    parent, other = await claimed(engine, clock), await claimed(engine, clock)
    [child] = await children(engine, clock, parent, 1, group="in")
    for elsewhere, group in ((parent, "out"), (other, "in")):
        await children(engine, clock, elsewhere, 2, group=group)

    assert await commit(engine, change(clock, child, Event.COMPLETE)) == Applied(child.version + 1, missing=0)

    assert await engine.missing(parent.id, "out") == 2
    assert await engine.missing(other.id, "in") == 2


@pytest.mark.parametrize("event", [Event.FAIL, Event.RELEASE, Event.SUSPEND, Event.REST, Event.LAPSE])
async def test_a_child_that_is_not_settled_does_not_arrive(engine: Engine, clock: StoreClock, event: Event) -> None:
    parent = await claimed(engine, clock)
    [child] = await children(engine, clock, parent, 1)

    assert await commit(engine, change(clock, child, event)) == Applied(child.version + 1)
    assert await engine.missing(parent.id, "g") == 1


async def test_a_child_arrives_once_even_when_it_settles_twice(engine: Engine, clock: StoreClock) -> None:
    parent = await claimed(engine, clock)
    child, _ = await children(engine, clock, parent, 2)
    review = await done(engine, clock, child, Event.EXHAUST)
    assert await engine.missing(parent.id, "g") == 1

    await done(engine, clock, review, Event.REPLAY)
    [again] = await engine.claim("w-2", [child.queue], 1)
    answer = await commit(engine, change(clock, again, Event.COMPLETE))

    assert answer == Applied(again.version + 1, missing=None)
    assert await engine.missing(parent.id, "g") == 1
    assert (await current(engine, child)).arrived


async def test_an_arrival_expects_nothing_of_the_parent(engine: Engine, clock: StoreClock) -> None:
    parent = await claimed(engine, clock)
    first, second = await children(engine, clock, parent, 2)
    await done(engine, clock, parent, Event.SUSPEND, waits=(Wait(WaitKind.CHILDREN, "g"),))
    assert await commit(engine, change(clock, first, Event.COMPLETE)) == Applied(first.version + 1, missing=1)
    await done(engine, clock, await current(engine, parent), Event.CANCEL)

    assert await commit(engine, change(clock, second, Event.COMPLETE)) == Applied(second.version + 1, missing=0)


async def waits_for(engine: Engine, clock: StoreClock, parent: Job, *groups: str) -> Applied | Conflict:
    """Suspend a job until the children of any of these groups have arrived."""
    waits = tuple(Wait(WaitKind.CHILDREN, group, clock.now + HOUR) for group in groups)
    return await commit(engine, change(clock, parent, Event.SUSPEND, waits=waits))


async def test_who_waits_for_children_that_are_out_is_suspended(engine: Engine, clock: StoreClock) -> None:
    parent = await claimed(engine, clock)
    await children(engine, clock, parent, 1)

    assert await waits_for(engine, clock, parent, "g") == Applied(parent.version + 1)


async def test_who_waits_for_children_that_are_in_goes_on(engine: Engine, clock: StoreClock) -> None:
    parent = await claimed(engine, clock)
    await children(engine, clock, parent, 1, group="out")
    [child] = await children(engine, clock, parent, 1, group="in")
    await done(engine, clock, child, Event.COMPLETE)
    before = await dump(engine)

    answers = [
        await waits_for(engine, clock, parent, "in"),
        await waits_for(engine, clock, parent, "never-was"),
        await waits_for(engine, clock, parent, "out", "in"),
    ]

    assert answers == [Conflict(parent.id, CHILDREN_ARE_IN, State.ACTIVE, parent.version, parent.epoch)] * 3
    assert await dump(engine) == before
