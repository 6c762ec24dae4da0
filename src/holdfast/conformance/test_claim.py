"""Claim: the right jobs in the right order, none early, none late, none twice, each with its entries."""

import pytest
from msgspec.structs import replace

from holdfast.conformance.given import (
    DAY,
    HOUR,
    MINUTE,
    SECOND,
    WAITS_FOR_GO,
    StoreClock,
    claimed,
    current,
    done,
    in_state,
    inserted,
    job,
)
from holdfast.core.keys import new_id
from holdfast.core.model import Event, Job, State
from holdfast.engines.contract import PROMOTE_LIMIT, Engine
from holdfast.engines.records import PAUSE

OVER_THE_LIMIT = 5
"""How many more jobs are due than one claim may promote."""


async def ids_claimed(engine: Engine, queues: list[str], limit: int) -> list[str]:
    """Claim, and return the ids in the order of the answer."""
    return [held.id for held in await engine.claim("w-1", queues, limit)]


async def test_a_claim_takes_the_lease(engine: Engine, clock: StoreClock) -> None:
    new = await inserted(engine, clock)

    [held] = await engine.claim("w-1", ["default"], 5)

    assert clock.is_now(held.claimed_at)
    assert held == replace(new, state=State.ACTIVE, version=2, epoch=1, worker="w-1", claimed_at=held.claimed_at)
    assert await current(engine, new) == held


async def test_each_claim_has_its_entry(engine: Engine, clock: StoreClock) -> None:
    held = await claimed(engine, clock)

    [_, entry] = await engine.history(held.id)

    assert (entry.version, entry.event, entry.before, entry.after) == (2, Event.CLAIM, State.AVAILABLE, State.ACTIVE)
    assert (entry.by, entry.epoch, entry.at) == ("w-1", 1, held.claimed_at)


async def test_the_epoch_goes_up_with_every_claim_and_never_back(engine: Engine, clock: StoreClock) -> None:
    held = await claimed(engine, clock)
    for epoch in (2, 3):
        await done(engine, clock, held, Event.RELEASE)
        [held] = await engine.claim("w-2", [held.queue], 1)
        assert held.epoch == epoch
    await done(engine, clock, await done(engine, clock, held, Event.EXHAUST), Event.REPLAY)
    [held] = await engine.claim("w-3", [held.queue], 1)

    assert (held.epoch, held.attempt, held.worker) == (4, 1, "w-3")


async def test_a_claimed_job_is_not_handed_out_again(engine: Engine, clock: StoreClock) -> None:
    await claimed(engine, clock, queue="default")

    assert await engine.claim("w-1", ["default"], 5) == []
    assert await engine.claim("w-2", ["default"], 5) == []


async def test_a_queue_that_nobody_has_heard_of_is_empty(engine: Engine, clock: StoreClock) -> None:
    await inserted(engine, clock)

    assert await engine.claim("w-1", ["elsewhere"], 5) == []


# Order.


def in_order(clock: StoreClock) -> list[Job]:
    """Return jobs in the order of claims: by priority, then `run_at`, then insertion, never by id."""
    ages = [(9, 0), (5, HOUR), (5, MINUTE), (5, MINUTE), (5, 0), (0, DAY), (0, 0), (-3, DAY)]
    return [
        job(clock, id=new_id(clock.now, (100 - n) << 40), priority=priority, run_at=clock.now - age)
        for n, (priority, age) in enumerate(ages)
    ]


@pytest.mark.parametrize("limit", [1, 3, 50])
async def test_priority_then_time_then_insertion_decides(engine: Engine, clock: StoreClock, limit: int) -> None:
    jobs = in_order(clock)
    for n in (6, 2, 0, 7, 3, 5, 1, 4):  # the two that are otherwise equal keep their order
        await engine.insert([jobs[n]])

    seen: list[str] = []
    while came := await ids_claimed(engine, ["default"], limit):
        assert len(came) <= limit
        seen += came

    assert seen == [wanted.id for wanted in jobs]


async def test_jobs_of_one_call_come_in_the_order_of_the_call(engine: Engine, clock: StoreClock) -> None:
    jobs = [job(clock, id=new_id(clock.now, (50 - n) << 40)) for n in range(9)]
    await engine.insert(jobs)

    assert await ids_claimed(engine, ["default"], 4) == [new.id for new in jobs[:4]]
    assert await ids_claimed(engine, ["default"], 9) == [new.id for new in jobs[4:]]


async def test_a_job_that_comes_back_keeps_its_place(engine: Engine, clock: StoreClock) -> None:
    first, second = job(clock), job(clock)
    await engine.insert([first, second])
    [held] = await engine.claim("w-1", ["default"], 1)
    await done(engine, clock, held, Event.RELEASE)

    assert await ids_claimed(engine, ["default"], 2) == [first.id, second.id]


async def test_queues_come_in_the_order_given(engine: Engine, clock: StoreClock) -> None:
    jobs = {queue: await inserted(engine, clock, queue=queue, priority=n) for n, queue in enumerate("abc")}

    came = await ids_claimed(engine, ["b", "a", "c"], 2)

    assert came == [jobs["b"].id, jobs["a"].id]
    assert await ids_claimed(engine, ["a", "b"], 5) == []
    assert await ids_claimed(engine, ["c"], 5) == [jobs["c"].id]


async def test_the_limit_counts_over_all_queues(engine: Engine, clock: StoreClock) -> None:
    for queue in ("a", "a", "b", "b", "b"):
        await inserted(engine, clock, queue=queue)

    assert len(await engine.claim("w-1", ["a", "b"], 3)) == 3
    assert len(await engine.claim("w-1", ["a", "b"], 3)) == 2


# Time.


async def test_what_is_due_is_promoted_by_the_claim_itself(engine: Engine, clock: StoreClock) -> None:
    due = await inserted(engine, clock, state=State.SCHEDULED, run_at=clock.now - SECOND)

    [held] = await engine.claim("w-1", ["default"], 1)

    assert (held.id, held.version, held.run_at) == (due.id, 3, due.run_at)
    _, promote, claim = await engine.history(due.id)
    assert (promote.event, promote.before, promote.after) == (Event.PROMOTE, State.SCHEDULED, State.AVAILABLE)
    assert (promote.version, promote.by, promote.epoch, promote.at) == (2, "time", 0, claim.at)
    assert (claim.version, claim.event, claim.epoch) == (3, Event.CLAIM, 1)


async def test_a_failed_job_is_promoted_after_its_backoff(engine: Engine, clock: StoreClock) -> None:
    held = await claimed(engine, clock)
    await done(engine, clock, held, Event.FAIL, run_at=clock.now - 1)

    [again] = await engine.claim("w-2", [held.queue], 1)

    assert (again.attempt, again.epoch, again.version) == (2, 2, 5)
    assert [entry.event for entry in await engine.history(held.id)][2:] == [Event.FAIL, Event.PROMOTE, Event.CLAIM]


async def test_a_wait_whose_time_is_over_is_activated(engine: Engine, clock: StoreClock) -> None:
    waiting = await inserted(
        engine, clock, state=State.PENDING, waits=WAITS_FOR_GO, run_at=clock.now - HOUR, created_at=clock.now - DAY
    )

    [held] = await engine.claim("w-1", ["default"], 1)

    assert held.id == waiting.id
    assert held.waits == ()
    assert held.run_at == held.claimed_at
    events = [(entry.event, entry.by) for entry in await engine.history(waiting.id)]
    assert events == [(Event.SUBMIT, ""), (Event.ACTIVATE, "time"), (Event.CLAIM, "w-1")]


async def test_what_waits_without_an_end_stays(engine: Engine, clock: StoreClock) -> None:
    waiting = await in_state(engine, clock, State.PENDING)

    assert await engine.claim("w-1", ["default"], 1) == []
    assert await current(engine, waiting) == waiting


@pytest.mark.parametrize("state", [State.SCHEDULED, State.PENDING, State.AVAILABLE])
async def test_nothing_comes_early(engine: Engine, clock: StoreClock, state: State) -> None:
    early = await inserted(engine, clock, state=state, run_at=clock.now + HOUR)

    assert await engine.claim("w-1", ["default"], 5) == []
    assert await current(engine, early) == early

    clock.advance(HOUR - clock.grain)
    assert await engine.claim("w-1", ["default"], 5) == []
    clock.advance(clock.grain)
    assert await ids_claimed(engine, ["default"], 5) == [early.id]


@pytest.mark.parametrize("state", [State.SCHEDULED, State.PENDING, State.AVAILABLE])
async def test_nothing_comes_after_it_has_expired(engine: Engine, clock: StoreClock, state: State) -> None:
    late = await inserted(engine, clock, state=state, run_at=clock.now - HOUR, expires_at=clock.now - SECOND)

    assert await engine.claim("w-1", ["default"], 5) == []
    # Discarding it is a separate change, which upkeep makes: a claim leaves it unchanged.
    assert await current(engine, late) == late


async def test_what_has_expired_stands_in_nobodys_way(engine: Engine, clock: StoreClock) -> None:
    for state in (State.AVAILABLE, State.SCHEDULED):
        for _ in range(3):
            await inserted(engine, clock, state=state, priority=9, run_at=clock.now - DAY, expires_at=clock.now - 1)
    good = await inserted(engine, clock, expires_at=clock.now + HOUR)

    assert await ids_claimed(engine, ["default"], 1) == [good.id]


async def test_what_is_promoted_takes_its_place_among_the_others(engine: Engine, clock: StoreClock) -> None:
    plain = await inserted(engine, clock, priority=1)
    urgent = await inserted(engine, clock, state=State.SCHEDULED, priority=7, run_at=clock.now - 1)

    assert await ids_claimed(engine, ["default"], 1) == [urgent.id]
    assert await ids_claimed(engine, ["default"], 1) == [plain.id]


async def test_more_may_be_due_than_one_claim_promotes(engine: Engine, clock: StoreClock) -> None:
    number = PROMOTE_LIMIT + OVER_THE_LIMIT
    due = [job(clock, state=State.SCHEDULED, run_at=clock.now - SECOND) for _ in range(number)]
    await engine.insert(due)

    first = await ids_claimed(engine, ["default"], 1)

    assert await engine.count() == {
        ("default", State.ACTIVE): 1,
        ("default", State.AVAILABLE): PROMOTE_LIMIT - 1,
        ("default", State.SCHEDULED): OVER_THE_LIMIT,
    }
    rest = await ids_claimed(engine, ["default"], number)
    assert sorted(first + rest) == sorted(new.id for new in due)


# Pauses.


async def test_a_paused_queue_hands_out_nothing_and_the_others_go_on(engine: Engine, clock: StoreClock) -> None:
    still = await inserted(engine, clock, queue="still", state=State.SCHEDULED, run_at=clock.now - 1)
    going = await inserted(engine, clock, queue="going")
    pause = await engine.put_record(PAUSE + "still", '{"by":"me"}')

    assert await ids_claimed(engine, ["still", "going"], 5) == [going.id]
    assert (await current(engine, still)).epoch == 0

    await engine.put_record(PAUSE + "still", None, pause.version)
    assert await ids_claimed(engine, ["still", "going"], 5) == [still.id]


async def test_a_pause_takes_nothing_from_those_who_work(engine: Engine, clock: StoreClock) -> None:
    held = await claimed(engine, clock, queue="still")
    await engine.put_record(PAUSE + "still", "1")

    assert (await done(engine, clock, held, Event.COMPLETE)).state is State.COMPLETED


async def test_a_pause_is_for_the_queue_of_that_very_name(engine: Engine, clock: StoreClock) -> None:
    await engine.put_record(PAUSE + "video", "1")
    other = await inserted(engine, clock, queue="video.hd")

    assert await ids_claimed(engine, ["video.hd"], 1) == [other.id]
