"""Claims by type: a worker takes only jobs of its types, in the common order, and leaves the others unchanged."""

import asyncio
from collections import Counter

import pytest

from holdfast.conformance.given import HOUR, SECOND, Another, StoreClock, claimed, current, done, inserted, job
from holdfast.conformance.race import RACERS, Lap, run_race, until_raced
from holdfast.core.keys import new_id
from holdfast.core.lifecycle import decide
from holdfast.core.model import Applied, Event, Job, State
from holdfast.engines.contract import PROMOTE_LIMIT, Engine
from holdfast.engines.records import PAUSE
from holdfast.engines.topics import queue_topic

OURS, THEIRS = "ours.job", "theirs.job"
MANY = 25
"""More types than most apps have."""

LONG_SECONDS, PATIENCE_SECONDS, SETTLE_SECONDS = 30.0, 5.0, 0.02
CROWD = 24


async def ids_of(engine: Engine, limit: int, *types: str, queues: tuple[str, ...] = ("default",)) -> list[str]:
    """Claim jobs of these types, and return their ids in the order of the answer."""
    return [held.id for held in await engine.claim("w-1", queues, limit, types)]


async def test_a_claim_takes_only_jobs_of_the_types_it_names(engine: Engine, clock: StoreClock) -> None:
    theirs = [await inserted(engine, clock, type=THEIRS, priority=n) for n in (9, 0)]
    ours = await inserted(engine, clock, type=OURS)

    held = await engine.claim("w-1", ["default"], 5, [OURS])

    assert [one.id for one in held] == [ours.id]
    for other in theirs:
        assert await current(engine, other) == other
        assert len(await engine.history(other.id)) == 1
    assert await ids_of(engine, 5, THEIRS) == [other.id for other in theirs]


async def test_without_types_a_claim_takes_any(engine: Engine, clock: StoreClock) -> None:
    jobs = [await inserted(engine, clock, type=type) for type in (THEIRS, OURS, THEIRS)]

    held = await engine.claim("w-1", ["default"], 5)

    assert [one.id for one in held] == [one.id for one in jobs]


@pytest.mark.parametrize("types", [[], ["nobody.heard.of"], ["ours", "ours.job.more"]])
async def test_types_that_no_job_has_bring_nothing(engine: Engine, clock: StoreClock, types: list[str]) -> None:
    new = await inserted(engine, clock, type=OURS)

    assert await engine.claim("w-1", ["default"], 5, types) == []
    assert await current(engine, new) == new


async def test_a_type_may_be_named_twice(engine: Engine, clock: StoreClock) -> None:
    jobs = [await inserted(engine, clock, type=type) for type in (OURS, THEIRS)]

    assert await ids_of(engine, 9, OURS, OURS, THEIRS, OURS) == [one.id for one in jobs]


# Order.


def mixed(clock: StoreClock, types: list[str]) -> list[Job]:
    """Return jobs of several types in the order of claims: by priority, `run_at`, then insertion."""
    places = [(priority, age) for priority in (5, 0, -2) for age in (HOUR, SECOND, SECOND)]
    return [
        job(
            clock,
            id=new_id(clock.now, ((1 << 20) - n) << 40),  # never in the order of their ids
            type=types[n % len(types)],
            priority=priority,
            run_at=clock.now - age,
        )
        for n, (priority, age) in enumerate(place for place in places for _ in types)
    ]


@pytest.mark.parametrize("limit", [1, 7, 500])
@pytest.mark.parametrize("number", [2, 5, MANY])
async def test_the_order_holds_across_types(engine: Engine, clock: StoreClock, number: int, limit: int) -> None:
    types = [f"known.job-{n}" for n in range(number)]
    jobs = mixed(clock, types)
    apart = sorted(range(len(jobs)), key=lambda n: (n % 4, n))  # otherwise equal jobs keep their order
    ties = {(one.priority, one.run_at) for one in jobs}
    wanted = [jobs[n] for tie in sorted(ties, key=lambda tie: (-tie[0], tie[1])) for n in apart if _of(jobs[n], tie)]
    await engine.insert([job(clock, type=THEIRS, priority=7) for _ in range(3)])
    await engine.insert([jobs[n] for n in apart])

    seen: list[str] = []
    while came := await ids_of(engine, limit, *reversed(types)):
        assert len(came) <= limit
        seen += came

    assert seen == [one.id for one in wanted]


def _of(job: Job, tie: tuple[int, int | None]) -> bool:
    return (job.priority, job.run_at) == tie


async def test_queues_come_in_the_order_given_whatever_the_types(engine: Engine, clock: StoreClock) -> None:
    jobs = {
        (queue, type): await inserted(engine, clock, queue=queue, type=type) for queue in "ab" for type in ("x", "y")
    }

    came = await ids_of(engine, 3, "y", "x", queues=("b", "a"))

    assert came == [jobs["b", "x"].id, jobs["b", "y"].id, jobs["a", "x"].id]


async def test_a_job_that_comes_back_keeps_its_place_among_other_types(engine: Engine, clock: StoreClock) -> None:
    jobs = [job(clock, type=type) for type in ("x", "y", "x", "y")]
    await engine.insert(jobs)
    held = await engine.claim("w-1", ["default"], 2, ["x", "y"])
    for one in held:
        await done(engine, clock, one, Event.RELEASE)

    assert await ids_of(engine, 9, "x", "y") == [one.id for one in jobs]


async def test_what_goes_away_meanwhile_is_not_claimed(engine: Engine, clock: StoreClock) -> None:
    jobs = [await inserted(engine, clock, type=type) for type in ("x", "y", "x", "y")]
    await done(engine, clock, jobs[0], Event.CANCEL)
    await done(engine, clock, jobs[3], Event.CANCEL)

    assert await ids_of(engine, 9, "x", "y") == [jobs[1].id, jobs[2].id]
    assert await ids_of(engine, 9, "x", "y") == []


async def test_in_a_long_drain_the_jobs_of_another_type_are_not_passed_over(engine: Engine, clock: StoreClock) -> None:
    """Whatever an engine remembers about earlier claims applies only to their types."""
    old = [job(clock, type=THEIRS, run_at=clock.now - HOUR) for _ in range(12)]
    await engine.insert([*old, *(job(clock, type=OURS) for _ in range(80))])
    for _ in range(10):
        assert len(await ids_of(engine, 5, OURS)) == 5

    assert await ids_of(engine, 5, THEIRS) == [one.id for one in old[:5]]
    assert await ids_of(engine, 5, OURS, THEIRS) == [one.id for one in old[5:10]]
    newer = await inserted(engine, clock, type="third.job", priority=1)
    assert (await ids_of(engine, 5, OURS, THEIRS, "third.job"))[0] == newer.id


# What is due.


async def test_what_is_due_is_promoted_whatever_its_type_and_told(engine: Engine, clock: StoreClock) -> None:
    topics = [queue_topic("default")]
    due = await inserted(engine, clock, type=THEIRS, state=State.SCHEDULED, run_at=clock.now - SECOND)
    mark = 0
    for _ in range(3):  # the first waits may end early because of earlier events
        mark = await engine.wait(topics, 0, mark)
    waiting = asyncio.create_task(_wait_and_claim(engine, mark))
    await asyncio.sleep(SETTLE_SECONDS)

    assert await ids_of(engine, 5, OURS) == []

    assert [entry.event for entry in await engine.history(due.id)][:2] == [Event.SUBMIT, Event.PROMOTE]
    async with asyncio.timeout(PATIENCE_SECONDS):
        assert await waiting == [due.id]


async def _wait_and_claim(engine: Engine, mark: int) -> list[str]:
    """Wait for a wake-up and claim, as a worker that knows this type."""
    while True:
        mark = await engine.wait([queue_topic("default")], LONG_SECONDS, mark)
        if came := await ids_of(engine, 5, THEIRS):
            return came


async def test_others_who_became_due_first_do_not_hold_ours_up(engine: Engine, clock: StoreClock) -> None:
    number = 2 * PROMOTE_LIMIT + 5
    await engine.insert(
        [job(clock, type=THEIRS, state=State.SCHEDULED, run_at=clock.now - HOUR) for _ in range(number)]
    )
    ours = await inserted(engine, clock, type=OURS, state=State.SCHEDULED, run_at=clock.now - SECOND)

    came = [await ids_of(engine, 5, OURS) for _ in range(3)]

    assert came == [[], [], [ours.id]]


async def test_a_paused_queue_hands_out_no_type(engine: Engine, clock: StoreClock) -> None:
    new = await inserted(engine, clock, type=OURS)
    await engine.put_record(PAUSE + "default", "1")

    assert await ids_of(engine, 5, OURS) == []

    await engine.put_record(PAUSE + "default", None)
    assert await ids_of(engine, 5, OURS) == [new.id]


async def test_what_has_expired_stands_in_nobodys_way_in_any_type(engine: Engine, clock: StoreClock) -> None:
    for type in (OURS, THEIRS):
        await inserted(engine, clock, type=type, priority=9, run_at=clock.now - HOUR, expires_at=clock.now - 1)
    good = [await inserted(engine, clock, type=type) for type in (THEIRS, OURS)]

    assert await ids_of(engine, 9, OURS, THEIRS) == [one.id for one in good]


# Turns, looks, races.


async def test_a_turn_claims_only_the_types_it_names(engine: Engine, clock: StoreClock) -> None:
    held = await claimed(engine, clock, type=OURS)
    theirs = await inserted(engine, clock, type=THEIRS, priority=5)
    ours = await inserted(engine, clock, type=OURS)
    end = decide(held, Event.COMPLETE, await engine.now(), by="w-1", result="1")

    answers, jobs = await engine.turn([end], "w-1", ["default"], 5, [OURS])

    assert isinstance(answers[0], Applied)
    assert [one.id for one in jobs] == [ours.id]
    assert await current(engine, theirs) == theirs


async def test_the_types_that_wait_in_a_queue_can_be_told(engine: Engine, clock: StoreClock) -> None:
    for type in ("b.job", "a.job", "b.job", "b.job.more", "b"):
        await inserted(engine, clock, type=type)
    await inserted(engine, clock, type="elsewhere.job", queue="other")
    await inserted(engine, clock, type="later.job", state=State.SCHEDULED, run_at=clock.now + HOUR)
    await claimed(engine, clock, type="held.job", queue="default", priority=9)

    assert await engine.ready_types("default") == ["a.job", "b", "b.job", "b.job.more"]

    await ids_of(engine, 9, "b.job", "b", "b.job.more")
    assert await engine.ready_types("default") == ["a.job"]
    await done(engine, clock, (await engine.claim("w-1", ["default"], 1))[0], Event.RELEASE)
    assert await engine.ready_types("default") == ["a.job"]
    assert await engine.ready_types("nobody") == []


async def test_who_knows_different_types_gets_different_jobs_and_none_is_lost(
    engine: Engine, another: Another, clock: StoreClock
) -> None:
    engines = [engine] * RACERS
    if engine.guarantees.shared:
        engines = [engine, *[await another() for _ in range(RACERS - 1)]]
    knows = [("x",), ("y",), ("x", "y"), ("z", "y", "x")]

    async def one_round(number: int) -> list[Lap[list[Job]]]:
        queue = f"q-{number}"
        jobs = [job(clock, queue=queue, type="xyz"[n % 2], priority=n % 3) for n in range(CROWD)]
        await engines[0].insert(jobs)

        async def racer(seat: int, engine: Engine, lap: Lap[list[Job]]) -> None:
            while await lap.call(engine.claim(f"w-{seat}", [queue], 3, knows[seat % len(knows)])):
                pass

        laps = run_race(engines, racer)

        held = [(seat, one) for seat, lap in enumerate(laps) for came in lap.answers for one in came]
        assert Counter(one.id for _, one in held) == Counter(one.id for one in jobs)
        assert all(one.type in knows[seat % len(knows)] for seat, one in held)
        return laps

    await until_raced(one_round)
