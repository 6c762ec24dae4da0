"""Unique names: one job that counts for each name and window, exact under concurrency, and tombstones after a prune."""

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from holdfast.conformance.dump import dump
from holdfast.conformance.given import (
    DAY,
    HOUR,
    MINUTE,
    StoreClock,
    applied_to,
    change,
    claimed,
    current,
    done,
    in_state,
    inserted,
    job,
    taken_over,
)
from holdfast.conformance.race import RACERS, Lap, run_race, until_raced
from holdfast.core.errors import Duplicate, LeaseLost
from holdfast.core.lifecycle import TERMINAL
from holdfast.core.model import Applied, Conflict, Event, Inserted, Options, State, UniqueName
from holdfast.core.unique import LIVE, REFUSE, REPLACE, UNIQUE, counts
from holdfast.engines.contract import Engine

NAME = "f" * 64
SUBMITTERS = 32
"""How many callers submit a job at the same moment."""

ALL = tuple(State)


def unique(name: str = NAME, *, keep_ms: int | None = 0, **fields: Any) -> Options:
    """Return the options of a unique job that needn't be kept after its end."""
    return Options(keep_ms=keep_ms, unique=UniqueName(key=name, **fields))


async def submit(engine: Engine, clock: StoreClock, **fields: Any) -> Inserted:
    """Insert one unique job, and return the answer."""
    [answer] = await engine.insert([job(clock, options=unique(**fields))])
    return answer


# Who counts.


@pytest.mark.parametrize("state", State)
async def test_a_job_with_the_same_name_counts_until_it_has_ended(
    engine: Engine, clock: StoreClock, state: State
) -> None:
    first = await in_state(engine, clock, state, options=unique(keep_ms=None))
    before = await dump(engine)

    answer = await submit(engine, clock)

    if state in TERMINAL:
        assert answer.new
    else:
        assert answer == Inserted(first.id, False)
        assert await dump(engine) == before


@pytest.mark.parametrize("state", State)
async def test_only_the_states_that_the_new_job_names_count(engine: Engine, clock: StoreClock, state: State) -> None:
    first = await in_state(engine, clock, state, options=unique(keep_ms=None))
    others = tuple(one for one in State if one is not state)

    assert await submit(engine, clock, states=(state,)) == Inserted(first.id, False)
    assert (await submit(engine, clock, states=others)).new


async def test_jobs_with_other_names_or_none_do_not_count(engine: Engine, clock: StoreClock) -> None:
    await submit(engine, clock)

    assert (await submit(engine, clock, name="e" * 64)).new
    assert [one.new for one in await engine.insert([job(clock), job(clock)])] == [True, True]


async def test_the_last_job_that_took_a_name_has_it(engine: Engine, clock: StoreClock) -> None:
    running = await claimed(engine, clock, options=unique())
    waiting = await submit(engine, clock, states=(State.AVAILABLE,))
    assert waiting.new

    assert await submit(engine, clock) == Inserted(waiting.id, False)
    await done(engine, clock, running, Event.COMPLETE)
    assert await submit(engine, clock) == Inserted(waiting.id, False)


async def test_a_name_is_unique_within_one_call(engine: Engine, clock: StoreClock) -> None:
    first, second, other = (job(clock, options=unique(name=name)) for name in (NAME, NAME, "e" * 64))

    answers = await engine.insert([first, second, other])

    assert answers == [Inserted(first.id, True), Inserted(first.id, False), Inserted(other.id, True)]


async def test_a_unique_job_that_is_inserted_again_is_the_same(engine: Engine, clock: StoreClock) -> None:
    first = await inserted(engine, clock, options=unique(then=REFUSE))

    assert await engine.insert([first]) == [Inserted(first.id, False)]


async def test_a_refusal_names_the_existing_job_and_inserts_nothing(engine: Engine, clock: StoreClock) -> None:
    first = await submit(engine, clock)
    before = await dump(engine)

    with pytest.raises(Duplicate) as refused:
        await engine.insert([job(clock), job(clock, options=unique(then=REFUSE))])

    assert refused.value.id == first.id
    assert await dump(engine) == before


async def test_a_refusal_concerns_nobody_who_submits_at_the_same_moment(engine: Engine, clock: StoreClock) -> None:
    first = await submit(engine, clock)
    alike = [job(clock, options=unique(then=REFUSE)) for _ in range(8)]
    others = [job(clock, options=unique(name=f"{n:064x}", then=REFUSE)) for n in range(8)]

    both = [one for pair in zip(alike, others, strict=True) for one in pair]
    answers = await asyncio.gather(*(engine.insert([one]) for one in both), return_exceptions=True)

    assert [getattr(answer, "id", None) for answer in answers[::2]] == [first.id] * 8
    assert answers[1::2] == [[Inserted(one.id, True)] for one in others]
    assert await engine.get([one.id for one in alike]) == [None] * 8


async def test_many_unique_jobs_go_in_at_once(engine: Engine, clock: StoreClock) -> None:
    jobs = [job(clock, options=unique(name=f"{n:064x}")) for n in range(300)]

    assert await engine.insert(jobs) == [Inserted(one.id, True) for one in jobs]
    assert await engine.get([one.id for one in jobs]) == jobs
    again = [job(clock, options=unique(name=f"{n:064x}")) for n in range(300)]
    assert await engine.insert(again) == [Inserted(one.id, False) for one in jobs]


async def test_a_child_with_a_lost_lease_takes_no_name(engine: Engine, clock: StoreClock) -> None:
    parent = await claimed(engine, clock)
    await taken_over(engine, clock, parent)
    child = job(clock, parent=parent.id, group="g", options=unique())

    with pytest.raises(LeaseLost):
        await engine.insert([child], parent.lease)

    assert (await submit(engine, clock)).new


async def test_a_child_that_is_not_new_is_not_waited_for(engine: Engine, clock: StoreClock) -> None:
    parent, first = await claimed(engine, clock), await submit(engine, clock)
    child = job(clock, parent=parent.id, group="g", options=unique())

    assert await engine.insert([child], parent.lease) == [Inserted(first.id, False)]
    assert await engine.missing(parent.id, "g") == 0


# Replacing.


async def test_a_job_that_replaces_another_takes_its_name_in_the_act_that_cancels_it(
    engine: Engine, clock: StoreClock
) -> None:
    old = await inserted(engine, clock, options=unique(then=REPLACE))
    new = job(clock, options=unique(then=REPLACE))

    await applied_to(engine, change(clock, old, Event.CANCEL, inserts=(new,)))

    assert (await current(engine, old)).state is State.CANCELLED
    assert await current(engine, new) == new
    assert await submit(engine, clock) == Inserted(new.id, False)


async def test_a_cancel_that_comes_too_late_inserts_nothing(engine: Engine, clock: StoreClock) -> None:
    old = await inserted(engine, clock, queue="own", options=unique(then=REPLACE))
    cancel = change(clock, old, Event.CANCEL, inserts=(job(clock, options=unique(then=REPLACE)),))
    await engine.claim("w-1", ["own"], 1)

    [answer] = await engine.commit([cancel])

    assert isinstance(answer, Conflict)
    assert await submit(engine, clock) == Inserted(old.id, False)


# Windows, by the store's clock.


@pytest.mark.parametrize("state", [State.AVAILABLE, State.COMPLETED])
async def test_a_job_counts_within_its_window_from_its_creation(
    engine: Engine, clock: StoreClock, state: State
) -> None:
    first = await in_state(engine, clock, state, options=unique(within_ms=HOUR, states=ALL, keep_ms=None))

    clock.advance(HOUR - clock.grain)
    assert await submit(engine, clock, within_ms=HOUR, states=ALL) == Inserted(first.id, False)

    clock.advance(clock.grain)
    assert (await submit(engine, clock, within_ms=HOUR, states=ALL)).new


async def test_the_new_job_may_have_a_shorter_window(engine: Engine, clock: StoreClock) -> None:
    first = await inserted(engine, clock, options=unique(within_ms=DAY))
    clock.advance(MINUTE)

    assert await submit(engine, clock, within_ms=HOUR) == Inserted(first.id, False)
    assert (await submit(engine, clock, within_ms=MINUTE)).new


@pytest.mark.parametrize("state", sorted(TERMINAL))
async def test_a_name_outlives_its_pruned_job_until_the_window_ends(
    engine: Engine, clock: StoreClock, state: State
) -> None:
    old = await in_state(engine, clock, state, options=unique(within_ms=HOUR, states=ALL))
    clock.advance(MINUTE)
    assert await engine.prune() == 1

    assert await submit(engine, clock, within_ms=HOUR, states=ALL) == Inserted(old.id, False)
    assert await submit(engine, clock, within_ms=HOUR, states=(state,)) == Inserted(old.id, False)
    await engine.prune()
    assert await submit(engine, clock, within_ms=HOUR, states=ALL) == Inserted(old.id, False)

    clock.advance(HOUR - MINUTE)
    await engine.prune()
    assert (await submit(engine, clock, within_ms=HOUR, states=ALL)).new


async def test_a_tombstone_has_the_last_state_of_its_job(engine: Engine, clock: StoreClock) -> None:
    await in_state(engine, clock, State.CANCELLED, options=unique(within_ms=HOUR, states=ALL))
    assert await engine.prune() == 1

    assert (await submit(engine, clock, within_ms=HOUR, states=(*LIVE, State.COMPLETED))).new


async def test_a_name_without_a_window_goes_with_its_job(engine: Engine, clock: StoreClock) -> None:
    await in_state(engine, clock, State.COMPLETED, options=unique(states=ALL))
    assert await engine.prune() == 1

    assert (await submit(engine, clock, states=ALL)).new


async def test_a_pruned_job_frees_no_name_that_another_has_taken(engine: Engine, clock: StoreClock) -> None:
    await in_state(engine, clock, State.COMPLETED, options=unique())
    second = await submit(engine, clock)
    assert await engine.prune() == 1

    assert await submit(engine, clock) == Inserted(second.id, False)


# The holders of names and keys.


async def test_holders_are_those_whom_an_insert_would_find(engine: Engine, clock: StoreClock) -> None:
    [keyed] = await engine.insert([job(clock, id="1", type="a", key="k", key_until=clock.now + HOUR)])
    first = await submit(engine, clock)
    await engine.insert([job(clock, id="2", type="a:k", key="k")])
    names = [("a", "k"), (UNIQUE, NAME), ("b", "k"), ("a", "other"), (UNIQUE, "e" * 64), ("a", "k")]

    found = await engine.holders(names)

    assert [None if one is None else (one.type, one.key, one.job) for one in found] == [
        ("a", "k", keyed.id),
        (UNIQUE, NAME, first.id),
        None,
        None,
        None,
        ("a", "k", keyed.id),
    ]
    there = await engine.get([keyed.id])
    assert found[0] is not None
    assert there[0] is not None
    assert found[1] is not None
    assert (found[0].digest, found[0].until) == (there[0].digest, there[0].key_until)
    assert counts(found[1].digest, found[1].until, State.AVAILABLE, job(clock, options=unique()))
    assert await engine.holders([]) == []
    assert await engine.holders([("\x00", "\ud800")]) == [None]


async def test_a_pruned_holder_is_told_as_insert_counts_it(engine: Engine, clock: StoreClock) -> None:
    gone = await in_state(engine, clock, State.COMPLETED, options=unique(within_ms=HOUR, states=ALL))
    assert await engine.prune() == 1

    [found] = await engine.holders([(UNIQUE, NAME)])

    new = job(clock, options=unique(within_ms=HOUR, states=ALL))
    assert found is not None
    assert found.job == gone.id
    assert counts(found.digest, found.until, None, new)
    assert await engine.insert([new]) == [Inserted(gone.id, False)]


# Races.


async def test_of_many_submitters_one_gets_in(engines: list[Engine], clock: StoreClock) -> None:
    async def one_round(number: int) -> list[Lap[list[Inserted]]]:
        name = f"{number:064x}"

        async def racer(seat: int, engine: Engine, lap: Lap[list[Inserted]]) -> None:
            mine = [job(clock, options=unique(name=name, within_ms=HOUR)) for _ in range(SUBMITTERS // RACERS)]
            await asyncio.gather(*(lap.call(engine.insert([one])) for one in mine))

        laps = run_race(engines, racer)

        answers = [answer for lap in laps for [answer] in lap.answers]
        assert len(answers) == SUBMITTERS
        assert [one.new for one in answers].count(True) == 1
        assert len({one.id for one in answers}) == 1
        return laps

    await until_raced(one_round)


async def test_of_many_refused_submitters_one_gets_in(engines: list[Engine], clock: StoreClock) -> None:
    async def one_round(number: int) -> list[Lap[list[Inserted]]]:
        async def racer(seat: int, engine: Engine, lap: Lap[list[Inserted]]) -> None:
            async def once() -> None:
                new = job(clock, options=unique(name=f"{number:064x}", then=REFUSE))
                with suppress(Duplicate):
                    await lap.call(engine.insert([new]))

            await asyncio.gather(*(once() for _ in range(SUBMITTERS // RACERS)))

        laps = run_race(engines, racer)

        assert sum(len(lap.answers) for lap in laps) == 1
        return laps

    for number in range(3):
        await one_round(number)


async def test_replacing_submitters_leave_one_job(engines: list[Engine], clock: StoreClock) -> None:
    async def one_round(number: int) -> list[Lap[Any]]:
        name = f"{number:064x}"

        async def racer(seat: int, engine: Engine, lap: Lap[Any]) -> None:
            for _ in range(2):
                new = job(clock, queue=f"q-{number}", options=unique(name=name, then=REPLACE, keep_ms=None))
                while True:
                    [answer] = await lap.call(engine.insert([new]))
                    if answer.id == new.id:
                        break
                    [held] = await engine.get([answer.id])
                    if held is not None and held.state in LIVE:
                        cancel = change(clock, held, Event.CANCEL, inserts=(new,))
                        [applied] = await lap.call(engine.commit([cancel]))
                        if isinstance(applied, Applied):
                            break

        laps = run_race(engines, racer)

        counts = await engines[0].count()
        assert counts[f"q-{number}", State.AVAILABLE] == 1
        assert counts[f"q-{number}", State.CANCELLED] == 2 * RACERS - 1
        return laps

    await until_raced(one_round)
