"""Step records: fenced by the lease; the first write wins; in the order of first writes; without a new version."""

import pytest

from holdfast.conformance.dump import dump
from holdfast.conformance.given import StoreClock, claimed, current, done, in_state, job, step, taken_over
from holdfast.core.model import LEASE_LOST, NO_SUCH_JOB, Conflict, Event, Recorded, State, StepState
from holdfast.engines.contract import Engine

MANY = 500


async def test_a_step_is_kept_as_it_was_written(engine: Engine, clock: StoreClock) -> None:
    held = await claimed(engine, clock)
    steps = [step(held, "a"), step(held, "b", StepState.FAILED), step(held, "c", StepState.STARTED)]

    answers = await engine.record(steps)

    assert answers == [Recorded(each, True) for each in steps]
    assert await engine.steps(held.id) == steps


async def test_nothing_recorded_is_nothing_answered(engine: Engine, clock: StoreClock) -> None:
    held = await claimed(engine, clock)

    assert await engine.record([]) == []
    assert await engine.steps(held.id) == []
    assert await engine.steps(job(clock).id) == []


async def test_steps_are_found_by_what_their_paths_begin_with(engine: Engine, clock: StoreClock) -> None:
    held = await claimed(engine, clock)
    paths = [
        "~wait/z",
        "a",
        "~wait",
        "~wait/a",
        "~wait0",
        "~Wait/b",
        "~wait/a#2",
        "é",
        "\U0010ffff",
        "~",
        "%wait/",
        "~wait/%",
    ]
    await engine.record([step(held, path) for path in paths])

    for prefix in ("~wait/", "~wait", "~wait/a", "~", "é", "\U0010ffff", "%", "_", ""):
        found = await engine.steps_under(held.id, prefix)
        assert found == [step(held, path) for path in paths if path.startswith(prefix)], prefix
    assert await engine.steps_under(job(clock).id, "") == []


async def test_a_step_makes_no_version_and_no_entry(engine: Engine, clock: StoreClock) -> None:
    held = await claimed(engine, clock)

    await engine.record([step(held, "a")])

    assert await current(engine, held) == held
    assert len(await engine.history(held.id)) == held.version


@pytest.mark.parametrize("stands", [StepState.DONE, StepState.FAILED])
@pytest.mark.parametrize("comes", list(StepState))
async def test_what_has_ended_stays_whoever_writes_again(
    engine: Engine, clock: StoreClock, stands: StepState, comes: StepState
) -> None:
    held = await claimed(engine, clock)
    first = step(held, "a", stands)
    await engine.record([first])

    answers = await engine.record([step(held, "a", comes, started_at=held.created_at + 99)])

    assert answers == [Recorded(first, False)]
    assert await engine.steps(held.id) == [first]


@pytest.mark.parametrize("state", list(StepState))
async def test_a_write_that_is_repeated_is_answered_as_the_first_time(
    engine: Engine, clock: StoreClock, state: StepState
) -> None:
    held = await claimed(engine, clock)
    same = step(held, "a", state)

    # The answer was lost, and the owner writes the same record again: it still counts as the first.
    assert await engine.record([same]) == [Recorded(same, True)]
    assert await engine.record([same]) == [Recorded(same, True)]
    assert await engine.steps(held.id) == [same]


async def test_a_later_owner_finds_what_an_earlier_one_wrote(engine: Engine, clock: StoreClock) -> None:
    held = await claimed(engine, clock)
    first = step(held, "a", result="1")
    await engine.record([first])
    second_owner = await taken_over(engine, clock, held)

    answers = await engine.record([step(second_owner, "a", result="2")])

    assert answers == [Recorded(first, False)]
    assert await engine.steps(held.id) == [first]


@pytest.mark.parametrize("comes", list(StepState))
async def test_what_was_only_begun_is_replaced(engine: Engine, clock: StoreClock, comes: StepState) -> None:
    held = await claimed(engine, clock)
    await engine.record([step(held, "a", StepState.STARTED)])
    held = await taken_over(engine, clock, held)
    new = step(held, "a", comes, started_at=held.created_at + 99)

    answers = await engine.record([new])

    assert answers == [Recorded(new, True)]
    assert await engine.steps(held.id) == [new]


async def test_one_call_may_begin_and_end_a_step(engine: Engine, clock: StoreClock) -> None:
    held = await claimed(engine, clock)
    begun, ended, again = step(held, "a", StepState.STARTED), step(held, "a"), step(held, "a", result="2")

    answers = await engine.record([begun, ended, again])

    assert answers == [Recorded(begun, True), Recorded(ended, True), Recorded(ended, False)]


async def test_steps_come_in_the_order_of_their_first_writing(engine: Engine, clock: StoreClock) -> None:
    held = await claimed(engine, clock)
    await engine.record([step(held, "z", StepState.STARTED), step(held, "m")])
    await engine.record([step(held, "a"), step(held, "z"), step(held, "b")])

    assert [kept.path for kept in await engine.steps(held.id)] == ["z", "m", "a", "b"]


async def test_many_steps_keep_their_order(engine: Engine, clock: StoreClock) -> None:
    held = await claimed(engine, clock)
    paths = [f"item#{(n * 7919) % MANY}" for n in range(MANY)]

    await engine.record([step(held, path) for path in paths])

    assert [kept.path for kept in await engine.steps(held.id)] == paths


async def test_two_jobs_may_have_the_same_step(engine: Engine, clock: StoreClock) -> None:
    one, two = await claimed(engine, clock), await claimed(engine, clock)

    answers = await engine.record([step(one, "a", result="1"), step(two, "a", result="2")])

    assert [answer.first for answer in answers if isinstance(answer, Recorded)] == [True, True]
    assert [(await engine.steps(held.id))[0].result for held in (one, two)] == ["1", "2"]


# The fence.


async def test_a_stale_owner_records_nothing(engine: Engine, clock: StoreClock) -> None:
    stale = await claimed(engine, clock)
    held = await taken_over(engine, clock, stale)
    before = await dump(engine)

    answers = await engine.record([step(stale, "a")])

    assert answers == [Conflict(held.id, LEASE_LOST, State.ACTIVE, held.version, held.epoch)]
    assert await dump(engine) == before


async def test_an_epoch_that_is_yet_to_come_records_nothing(engine: Engine, clock: StoreClock) -> None:
    held = await claimed(engine, clock)

    [answer] = await engine.record([step(held, "a", epoch=held.epoch + 1)])

    assert answer == Conflict(held.id, LEASE_LOST, State.ACTIVE, held.version, held.epoch)
    assert await engine.steps(held.id) == []


@pytest.mark.parametrize("event", [Event.COMPLETE, Event.CANCEL, Event.SUSPEND, Event.LAPSE, Event.EXHAUST])
async def test_nothing_is_recorded_for_a_job_that_is_not_active(
    engine: Engine, clock: StoreClock, event: Event
) -> None:
    held = await claimed(engine, clock)
    now = await done(engine, clock, held, event)

    answers = await engine.record([step(held, "a")])

    assert answers == [Conflict(held.id, LEASE_LOST, now.state, now.version, now.epoch)]
    assert await engine.steps(held.id) == []


async def test_nothing_is_recorded_for_a_job_that_does_not_exist(engine: Engine, clock: StoreClock) -> None:
    nobody = job(clock)

    assert await engine.record([step(nobody, "a")]) == [Conflict(nobody.id, NO_SUCH_JOB)]
    assert await engine.steps(nobody.id) == []


async def test_a_refused_step_touches_no_neighbour(engine: Engine, clock: StoreClock) -> None:
    good, ended = await claimed(engine, clock), await in_state(engine, clock, State.COMPLETED)
    first, last = step(good, "a"), step(good, "b")

    answers = await engine.record([first, step(ended, "a"), last])

    assert [type(answer) for answer in answers] == [Recorded, Conflict, Recorded]
    assert await engine.steps(good.id) == [first, last]
    assert await engine.steps(ended.id) == []
