"""Time is the store's time: it stamps what the store does, and a clock that jumps loses nothing."""

import asyncio

from holdfast.conformance.given import DAY, HOUR, SECOND, StoreClock, change, claimed, commit, done, inserted, step
from holdfast.core.model import Applied, Event, Job, Options, Presence, Record, Recorded, State
from holdfast.engines.contract import Engine

REAL_WAIT_SECONDS = 0.02


async def ids_claimed(engine: Engine, *queues: str) -> set[str]:
    """Claim everything that can be claimed."""
    return {held.id for held in await engine.claim("w-1", queues or ["default"], 100)}


async def test_now_is_the_stores_time_and_moves(engine: Engine, clock: StoreClock) -> None:
    before = await engine.now()
    assert clock.is_now(before)

    if clock.settable:
        clock.advance(SECOND)
    else:
        await asyncio.sleep(REAL_WAIT_SECONDS)

    assert await engine.now() > before
    assert clock.is_now(await engine.now())


async def test_the_store_stamps_what_it_does_itself(engine: Engine, clock: StoreClock) -> None:
    # Times that a caller passes are the caller's; times that the store sets are from its own clock.
    strange = clock.now - 400 * DAY
    held = await claimed(engine, clock, created_at=strange, run_at=strange)
    record = await engine.put_record("r", "1")

    assert clock.is_now(held.claimed_at)
    assert isinstance(record, Record)
    assert clock.is_now(record.at)
    submit, claim = await engine.history(held.id)
    assert submit.at == strange
    assert clock.is_now(claim.at)


async def test_a_change_keeps_the_time_at_which_it_was_decided(engine: Engine, clock: StoreClock) -> None:
    held = await claimed(engine, clock)
    earlier = clock.now - 5 * SECOND

    after = await done(engine, clock, held, Event.COMPLETE, at=earlier)

    assert after.finished_at == earlier
    assert (await engine.history(held.id))[-1].at == earlier


async def cast(engine: Engine, clock: StoreClock) -> dict[str, Job]:
    """Insert jobs that depend on time, each in a different way."""
    return {
        "held": await claimed(engine, clock, queue="held"),
        "ready": await inserted(engine, clock),
        "soon": await inserted(engine, clock, state=State.SCHEDULED, run_at=clock.now + HOUR),
        "wait": await inserted(engine, clock, state=State.PENDING, run_at=clock.now + 2 * HOUR),
        "brief": await inserted(engine, clock, run_at=clock.now, expires_at=clock.now + HOUR, queue="brief"),
    }


async def test_a_clock_that_jumps_ahead_loses_nothing(engine: Engine, clock: StoreClock) -> None:
    jobs = await cast(engine, clock)

    clock.advance(DAY)

    # A lease is an epoch, not a time: its owner can still write, and nobody else has got the job.
    assert await ids_claimed(engine, "held") == set()
    assert isinstance((await engine.record([step(jobs["held"], "a")]))[0], Recorded)
    assert isinstance(await commit(engine, change(clock, jobs["held"], Event.COMPLETE)), Applied)
    assert await ids_claimed(engine) == {jobs["ready"].id, jobs["soon"].id, jobs["wait"].id}
    assert await ids_claimed(engine, "brief") == set()
    assert [found is not None for found in await engine.get([jobs["brief"].id])] == [True]


async def test_a_clock_that_jumps_back_loses_nothing(engine: Engine, clock: StoreClock) -> None:
    jobs = await cast(engine, clock)
    first = await engine.put_record("r", "1")
    await engine.beat(Presence(worker="w-1"))

    clock.advance(-DAY)

    assert isinstance((await engine.record([step(jobs["held"], "a")]))[0], Recorded)
    assert isinstance(await commit(engine, change(clock, jobs["held"], Event.COMPLETE)), Applied)
    second = await engine.put_record("r", "2", first.version)
    assert isinstance(second, Record)
    assert second.version > first.version
    new = await inserted(engine, clock)
    assert await ids_claimed(engine) == {new.id}  # the others are due in a day again

    clock.advance(DAY + 2 * HOUR)
    assert await ids_claimed(engine) == {jobs["ready"].id, jobs["soon"].id, jobs["wait"].id}


async def test_a_clock_that_jumps_to_and_fro_claims_nothing_twice(engine: Engine, clock: StoreClock) -> None:
    jobs = await cast(engine, clock)
    seen: list[str] = []
    for jump in (3 * HOUR, -DAY, DAY, -2 * HOUR, 9 * DAY):
        clock.advance(jump)
        seen += sorted(await ids_claimed(engine))

    assert sorted(seen) == sorted(jobs[name].id for name in ("ready", "soon", "wait"))


async def test_a_clock_that_jumped_ahead_and_back_prunes_only_what_is_due_now(
    engine: Engine, clock: StoreClock
) -> None:
    held = await claimed(engine, clock, options=Options(keep_ms=HOUR))
    clock.advance(DAY)
    await done(engine, clock, held, Event.COMPLETE)

    clock.advance(-DAY)
    assert await engine.prune() == 0
    clock.advance(DAY + HOUR)
    assert await engine.prune() == 1
