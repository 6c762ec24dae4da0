"""Summaries and pages of steps: they equal a count and a list of all steps, without the results."""

import random
from typing import Any

import pytest

from holdfast.conformance.given import (
    Another,
    StoreClock,
    change,
    claimed,
    commit,
    current,
    done,
    in_state,
    job,
    step,
    taken_over,
)
from holdfast.core.errors import Invalid, NotFound
from holdfast.core.limits import STEP_NAMES
from holdfast.core.model import PAGE_LIMIT, Event, Job, Options, State, Step, StepState
from holdfast.core.moves import MOVED, Mark
from holdfast.core.summaries import StepCounts, StepHead, StepSummary, head_of, is_step, summarize
from holdfast.engines.contract import Engine
from holdfast.engines.traits import Movable

INTO = Mark(move="m-1", away=False, store="file:/srv/old.json").text()
PATHS = ("draw#1", "draw#2", "send#1", "a/draw#1", "~wait/go", "~progress", "é", "\U0010ffff#2")
LIVES, ACTS = 6, 40
LONG = "x" * 20_000


async def pages_of(engine: Engine, job: str, limit: int) -> list[StepHead]:
    """Return all steps of a job without their results, read page by page."""
    heads: list[StepHead] = []
    while found := await engine.steps_page(job, heads[-1].path if heads else "", limit):
        assert len(found) <= limit
        assert not heads or found[-1].path != heads[-1].path, "the same page was returned again"
        heads += found
    return heads


async def checked(engine: Engine, job: Job) -> StepSummary:
    """Return the summary of a job. Assert that it equals a count of all steps, and the pages a list of them."""
    steps = await engine.steps(job.id)
    [summary] = await engine.summaries([job.id])
    assert summary == summarize(job.id, steps)
    assert await pages_of(engine, job.id, 3) == [head_of(one) for one in steps if is_step(one.path)]
    return summary


async def test_steps_are_counted_by_name_and_state(engine: Engine, clock: StoreClock) -> None:
    held = await claimed(engine, clock)
    await engine.record([step(held, "draw#1"), step(held, "draw#2"), step(held, "draw#3", StepState.FAILED)])
    await engine.record([step(held, "send#1", StepState.STARTED)])

    summary = await checked(engine, held)

    assert summary == StepSummary(
        held.id, {"draw": StepCounts(done=2, failed=1), "send": StepCounts(started=1)}, StepCounts(), "send#1"
    )
    assert summary.total == StepCounts(1, 2, 1)


async def test_nothing_recorded_is_an_empty_summary(engine: Engine, clock: StoreClock) -> None:
    held, unknown = await claimed(engine, clock), job(clock)
    await engine.record([step(held, "a")])

    assert await engine.summaries([]) == []
    assert await engine.summaries([unknown.id, held.id]) == [
        StepSummary(unknown.id),
        StepSummary(held.id, {"a": StepCounts(done=1)}, StepCounts(), "a"),
    ]
    assert await engine.steps_page(unknown.id) == []


async def test_many_jobs_are_summed_up_in_the_order_that_was_asked_for(engine: Engine, clock: StoreClock) -> None:
    held = [await claimed(engine, clock) for _ in range(5)]
    for nth, one in enumerate(held):
        await engine.record([step(one, f"draw#{n}") for n in range(nth)])

    found = await engine.summaries([one.id for one in reversed(held)])

    assert [one.total.done for one in found] == [4, 3, 2, 1, 0]


async def test_a_page_of_jobs_is_the_most(engine: Engine) -> None:
    for ask in (engine.summaries, lambda ids: engine.steps_under_each(ids, "~")):
        with pytest.raises(Invalid, match="at most 1,000"):
            await ask([f"{n}" for n in range(PAGE_LIMIT + 1)])


async def test_what_is_recorded_again_counts_once(engine: Engine, clock: StoreClock) -> None:
    held = await claimed(engine, clock)
    first = [step(held, "draw#1"), step(held, "draw#2", StepState.FAILED)]
    await engine.record(first)

    await engine.record(first)
    await engine.record([step(held, "draw#1", StepState.FAILED), step(held, "draw#2"), step(held, "draw#1")])

    assert (await checked(engine, held)).names == {"draw": StepCounts(done=1, failed=1)}


async def test_what_was_started_counts_as_what_took_its_place(engine: Engine, clock: StoreClock) -> None:
    held = await claimed(engine, clock)
    await engine.record([step(held, "draw#1", StepState.STARTED), step(held, "draw#2", StepState.STARTED)])
    await engine.record([step(held, "draw#1", StepState.STARTED), step(held, "send#1")])

    await engine.record([step(held, "draw#1"), step(held, "draw#2", StepState.FAILED), step(held, "draw#1")])

    summary = await checked(engine, held)
    assert summary.names == {"draw": StepCounts(done=1, failed=1), "send": StepCounts(done=1)}
    assert summary.last == "send#1"


async def test_a_refused_record_is_not_counted(engine: Engine, clock: StoreClock) -> None:
    stale = await claimed(engine, clock)
    await engine.record([step(stale, "draw#1")])
    held = await taken_over(engine, clock, stale)

    await engine.record([step(stale, "draw#2"), step(held, "draw#3")])

    assert (await checked(engine, held)).names == {"draw": StepCounts(done=2)}


async def test_records_of_our_own_are_no_steps(engine: Engine, clock: StoreClock) -> None:
    held = await claimed(engine, clock)
    await engine.record([step(held, "draw#1"), step(held, "~wait/go", StepState.STARTED), step(held, "~log")])

    waiting = await done(engine, clock, held, Event.SUSPEND, steps=(step(held, "~progress", StepState.STARTED),))

    summary = await checked(engine, waiting)
    assert (summary.names, summary.last) == ({"draw": StepCounts(done=1)}, "draw#1")


async def test_dropped_steps_are_counted_off(engine: Engine, clock: StoreClock) -> None:
    held = await claimed(engine, clock)
    await engine.record([step(held, "draw#1"), step(held, "send#1"), step(held, "draw#2", StepState.FAILED)])

    waiting = await done(engine, clock, held, Event.FAIL, steps=(step(held, "note#1"),), drops=("send#1", "gone#1"))

    summary = await checked(engine, waiting)
    assert (summary.names, summary.last) == ({"draw": StepCounts(done=1), "note": StepCounts(done=1)}, "note#1")


async def test_the_last_step_is_the_one_before_when_it_is_dropped(engine: Engine, clock: StoreClock) -> None:
    held = await claimed(engine, clock)
    await engine.record([step(held, "draw#1"), step(held, "send#1", StepState.FAILED)])
    waiting = await done(engine, clock, held, Event.FAIL)
    assert (await checked(engine, waiting)).last == "draw#1"

    clock.advance(3_600_000)
    [again] = await engine.claim("w-1", [held.queue], 1)
    await engine.record([step(again, "send#1")])

    assert (await checked(engine, again)).last == "send#1"


async def test_steps_that_go_with_a_change_are_counted(engine: Engine, clock: StoreClock) -> None:
    held = await claimed(engine, clock)
    await engine.record([step(held, "draw#1", StepState.STARTED)])

    steps = (step(held, "draw#1"), step(held, "draw#2"), step(held, "~log"), step(held, "draw#2", StepState.FAILED))
    await commit(engine, change(clock, held, Event.COMPLETE, steps=steps))

    assert (await checked(engine, held)).names == {"draw": StepCounts(done=2)}


async def test_a_refused_change_counts_nothing(engine: Engine, clock: StoreClock) -> None:
    stale = await claimed(engine, clock)
    await engine.record([step(stale, "draw#1", StepState.FAILED)])
    held = await taken_over(engine, clock, stale)

    await engine.commit([change(clock, stale, Event.FAIL, steps=(step(stale, "draw#2"),), drops=("draw#1",))])

    assert (await checked(engine, held)).names == {"draw": StepCounts(failed=1)}


@pytest.mark.parametrize("state", list(State))
async def test_a_summary_follows_its_job_through_every_state(engine: Engine, clock: StoreClock, state: State) -> None:
    found = await in_state(engine, clock, state)

    await checked(engine, found)


async def test_an_ended_job_keeps_its_summary_until_it_is_pruned(engine: Engine, clock: StoreClock) -> None:
    held = await claimed(engine, clock, options=Options(keep_ms=0))
    await engine.record([step(held, "draw#1")])
    ended = await done(engine, clock, held, Event.COMPLETE)
    assert (await checked(engine, ended)).total.done == 1

    assert await engine.prune() == 1

    assert await engine.summaries([held.id]) == [StepSummary(held.id)]
    assert await engine.steps_page(held.id) == []


async def test_names_beyond_the_most_are_counted_together(engine: Engine, clock: StoreClock) -> None:
    held = await claimed(engine, clock)
    await engine.record([step(held, f"n{n:03}#1") for n in range(STEP_NAMES - 1)])
    await engine.record([step(held, f"n{n:03}#1", StepState.FAILED) for n in range(STEP_NAMES - 1, STEP_NAMES + 3)])
    await engine.record([step(held, "n000#2"), step(held, f"n{STEP_NAMES}#2"), step(held, "x", name="")])

    summary = await checked(engine, held)

    assert len(summary.names) == STEP_NAMES
    assert (summary.names["n000"], summary.others) == (StepCounts(done=2), StepCounts(done=2, failed=3))
    assert summary.last == "x"


async def test_a_name_that_is_counted_apart_stays_so(engine: Engine, clock: StoreClock) -> None:
    held = await claimed(engine, clock)
    await engine.record([step(held, "n000#1", StepState.FAILED)])
    await engine.record([step(held, f"n{n:03}#1") for n in range(1, STEP_NAMES + 2)])
    last = f"n{STEP_NAMES + 1}#1"
    waiting = await done(engine, clock, held, Event.FAIL, drops=(last,))

    [summary] = await engine.summaries([held.id])

    assert "n000" not in summary.names
    assert all(counts == StepCounts(done=1) for counts in summary.names.values())
    assert summary.total == StepCounts(done=STEP_NAMES) == summarize(held.id, await engine.steps(held.id)).total
    assert summary.last == f"n{STEP_NAMES}#1"
    assert waiting.state is State.RETRYABLE


async def test_loaded_jobs_are_counted(engine: Engine, clock: StoreClock) -> None:
    if not isinstance(engine, Movable):
        pytest.skip("this engine's jobs can't be moved")
    store: Any = engine
    held = await claimed(engine, clock, options=Options(keep_ms=0))
    await engine.record([step(held, "draw#1"), step(held, "draw#2", StepState.STARTED), step(held, "~log")])
    ended = await done(engine, clock, held, Event.COMPLETE)
    wholes = await store.wholes([ended])
    assert await engine.prune() == 1
    await engine.put_record(MOVED, INTO)

    await store.load(wholes)
    await store.load(wholes)
    await engine.put_record(MOVED, None)

    assert (await checked(engine, ended)).names == {"draw": StepCounts(started=1, done=1)}


@pytest.mark.parametrize("seed", range(LIVES))
async def test_after_any_acts_a_summary_equals_a_recount(
    engine: Engine, another: Another, clock: StoreClock, seed: int
) -> None:
    chance = random.Random(seed)  # noqa: S311 (a test)
    engines = [engine, await another()] if engine.guarantees.shared else [engine]
    held = await claimed(engine, clock, queue="q")

    def steps() -> tuple[Step, ...]:
        paths = chance.choices(PATHS, k=chance.randrange(4))
        return tuple(step(held, path, chance.choice(list(StepState))) for path in paths)

    for _ in range(ACTS):
        one = chance.choice(engines)
        if held.state is State.ACTIVE and chance.random() < 0.5:
            await one.record(steps())
        else:
            events = {
                State.ACTIVE: [Event.EXHAUST, Event.RELEASE, Event.ABANDON, Event.OVERRUN],
                State.REVIEW: [Event.REPLAY],
                State.RETRYABLE: [Event.CANCEL, Event.PROMOTE],
                State.AVAILABLE: [],
            }[held.state]
            drops = tuple(chance.sample(PATHS, chance.randrange(3)))
            if events:
                event = chance.choice(events)
                due = {"run_at": held.created_at} if event is Event.OVERRUN else {}
                held = await done(one, clock, held, event, steps=steps(), drops=drops, **due)
            else:
                [held] = await one.claim("w-1", ["q"], 1)
        await checked(chance.choice(engines), held)
        if held.state is State.CANCELLED:
            held = await claimed(engine, clock, queue="q")


async def test_a_page_goes_on_behind_its_last_path(engine: Engine, clock: StoreClock) -> None:
    held = await claimed(engine, clock)
    paths = ["b", "~wait/x", "c", "a", "~log", "é"]
    steps = [step(held, path, tries=2) for path in paths]
    await engine.record(steps)
    heads = [head_of(one) for one in steps if is_step(one.path)]

    assert await engine.steps_page(held.id, limit=2) == heads[:2]
    assert await engine.steps_page(held.id, "c", 1) == heads[2:3]
    assert await engine.steps_page(held.id, "é") == []
    assert await engine.steps_page(held.id, limit=0) == []
    with pytest.raises(NotFound, match="step 'gone' no longer exists"):
        await engine.steps_page(held.id, "gone")


async def test_a_page_tells_everything_but_the_result(engine: Engine, clock: StoreClock) -> None:
    held = await claimed(engine, clock)
    failed = step(held, "draw#2", StepState.FAILED, tries=4)
    await engine.record([step(held, "draw#1", result=f'"{LONG}"'), failed])

    found = await engine.steps_page(held.id)

    assert found[1] == head_of(failed)
    assert LONG not in str(found)


async def test_records_of_many_jobs_are_found_by_prefix_and_state(engine: Engine, clock: StoreClock) -> None:
    held = [await claimed(engine, clock) for _ in range(3)]
    for one in held:
        await engine.record([step(one, "~wait/a"), step(one, "~wait/b", StepState.STARTED), step(one, "draw#1")])
    ids = [one.id for one in held[:2]]

    found = await engine.steps_under_each([*ids, job(clock).id], "~wait/")
    started = await engine.steps_under_each(ids, "~wait/", StepState.STARTED)

    assert sorted((one.job, one.path) for one in found) == sorted((id, f"~wait/{n}") for id in ids for n in "ab")
    assert [(one.job, one.path) for one in started] == [(id, "~wait/b") for id in ids]
    assert await engine.steps_under_each([], "~wait/") == []


async def test_a_summary_outlives_the_engine(engine: Engine, another: Another, clock: StoreClock) -> None:
    if not engine.guarantees.shared:
        pytest.skip("a store of one process")
    held = await claimed(engine, clock)
    await engine.record([step(held, "draw#1"), step(held, "draw#2", StepState.STARTED)])

    again = await another()
    await again.record([step(held, "draw#2")])

    assert (await checked(engine, held)).names == {"draw": StepCounts(done=2)}
    assert await current(again, held) == held
