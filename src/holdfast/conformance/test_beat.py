"""Heartbeats: the answer lists lost and cancelled jobs, stray leases, and paused queues."""

import pytest
from msgspec.structs import replace

from holdfast.conformance.dump import dump, presence_of
from holdfast.conformance.given import StoreClock, claimed, current, done, inserted, job, taken_over
from holdfast.core.model import Beat, Event, Job, Lease, Presence, Running
from holdfast.engines.contract import Engine
from holdfast.engines.records import PAUSE, QUIET, WORKER


async def beat(engine: Engine, *jobs: Job, worker: str = "w-1", queues: tuple[str, ...] = ()) -> Beat:
    """Send a worker's heartbeat that names these copies of jobs as its own."""
    running = tuple(Running(job.id, job.epoch) for job in jobs)
    return await engine.beat(Presence(worker=worker, queues=queues, running=running))


async def test_a_worker_with_its_jobs_has_nothing_to_learn(engine: Engine, clock: StoreClock) -> None:
    one, two = await claimed(engine, clock), await claimed(engine, clock)
    await claimed(engine, clock, worker="w-2")

    answer = await beat(engine, one, two)

    assert clock.is_now(answer.now)
    assert answer == Beat(now=answer.now)


async def test_a_beat_changes_no_job(engine: Engine, clock: StoreClock) -> None:
    held = await claimed(engine, clock)
    before = await dump(engine)

    await beat(engine)
    await beat(engine, held, worker="w-9")

    assert replace(await dump(engine), workers={}) == before


async def test_a_lease_that_was_taken_over_is_lost(engine: Engine, clock: StoreClock) -> None:
    stale = await claimed(engine, clock)
    held = await taken_over(engine, clock, stale, worker="w-2")

    assert (await beat(engine, stale)).lost == (stale.id,)
    assert (await beat(engine, stale)).stray == ()
    assert (await beat(engine, held, worker="w-2")).lost == ()


async def test_an_old_epoch_of_ones_own_job_is_lost_and_the_new_one_stray(engine: Engine, clock: StoreClock) -> None:
    stale = await claimed(engine, clock)
    held = await taken_over(engine, clock, stale, worker="w-1")

    answer = await beat(engine, stale)

    assert answer.lost == (stale.id,)
    assert answer.stray == (held.lease,)


@pytest.mark.parametrize("event", [Event.COMPLETE, Event.RELEASE, Event.SUSPEND, Event.LAPSE, Event.ABANDON])
async def test_a_job_that_is_not_active_is_lost(engine: Engine, clock: StoreClock, event: Event) -> None:
    held = await claimed(engine, clock)
    await done(engine, clock, held, event)

    answer = await beat(engine, held)

    assert (answer.lost, answer.cancelled) == ((held.id,), ())


async def test_a_cancelled_job_is_told_as_cancelled(engine: Engine, clock: StoreClock) -> None:
    held, other = await claimed(engine, clock), await claimed(engine, clock)
    await done(engine, clock, held, Event.CANCEL)

    answer = await beat(engine, held, other)

    assert (answer.cancelled, answer.lost, answer.stray) == ((held.id,), (), ())


async def test_a_job_that_does_not_exist_is_lost(engine: Engine, clock: StoreClock) -> None:
    nobody = job(clock)

    assert (await beat(engine, nobody)).lost == (nobody.id,)


async def test_a_lease_that_the_worker_does_not_name_is_stray(engine: Engine, clock: StoreClock) -> None:
    named, unnamed = await claimed(engine, clock), await claimed(engine, clock)
    await claimed(engine, clock, worker="w-2")

    assert (await beat(engine, named)).stray == (Lease(unnamed.id, unnamed.epoch),)
    assert set((await beat(engine)).stray) == {named.lease, unnamed.lease}

    await done(engine, clock, unnamed, Event.RELEASE)
    assert (await beat(engine, named)).stray == ()


async def test_its_paused_queues_are_told_and_no_others(engine: Engine, clock: StoreClock) -> None:
    for queue in ("a", "c"):
        await engine.put_record(PAUSE + queue, "1")

    assert (await beat(engine, queues=("a", "b"))).paused == ("a",)

    await engine.put_record(PAUSE + "a", None)
    assert (await beat(engine, queues=("a", "b"))).paused == ()


async def test_a_quiet_worker_is_told(engine: Engine, clock: StoreClock) -> None:
    await engine.put_record(QUIET + "w-1", "1")

    assert (await beat(engine, worker="w-1")).quiet
    assert not (await beat(engine, worker="w-2")).quiet

    await engine.put_record(QUIET + "w-1", None)
    assert not (await beat(engine, worker="w-1")).quiet


# Presence.


async def test_a_presence_is_read_as_the_beat_told_it(engine: Engine, clock: StoreClock) -> None:
    held = await claimed(engine, clock)
    doing = Running(held.id, held.epoch, "draw", 3, 9, 2, "page 3 – „äöü“", clock.now - 5, clock.now - 1)
    told = Presence(
        worker="w-1", host="box", pid=2**31, queues=("a", "b"), slots=4, started_at=clock.now - 9, running=(doing,)
    )
    answer = await engine.beat(told)

    [record] = await engine.records(WORKER)

    assert record.name == WORKER + "w-1"
    assert clock.is_now(record.at)
    assert presence_of(record) == replace(told, beat_at=answer.now)


async def test_the_last_beat_counts(engine: Engine, clock: StoreClock) -> None:
    await engine.beat(Presence(worker="w-1", slots=1))
    await engine.beat(Presence(worker="w-2", slots=2))
    await engine.beat(Presence(worker="w-1", slots=3))

    workers = [presence_of(record) for record in await engine.records(WORKER)]

    assert [(worker.worker, worker.slots) for worker in workers] == [("w-1", 3), ("w-2", 2)]


async def test_a_beat_moves_with_time(engine: Engine, clock: StoreClock) -> None:
    first = await beat(engine)
    clock.advance(2_000)
    second = await beat(engine)

    assert first.now + 2_000 <= second.now < first.now + 2_000 + clock.grain
    assert presence_of((await engine.records(WORKER))[0]).beat_at == second.now


async def test_who_leaves_is_no_longer_present(engine: Engine, clock: StoreClock) -> None:
    held = await claimed(engine, clock)
    await beat(engine, held)
    await beat(engine, worker="w-2")

    answer = await engine.beat(Presence(worker="w-1", leaving=True))

    assert answer.stray == (held.lease,)
    assert [record.name for record in await engine.records(WORKER)] == [WORKER + "w-2"]
    # Leaving doesn't release a job: that is a separate change.
    assert await current(engine, held) == held


async def test_who_never_beat_may_leave(engine: Engine, clock: StoreClock) -> None:
    new = await inserted(engine, clock)

    await engine.beat(Presence(worker="w-1", leaving=True))

    assert await engine.records(WORKER) == []
    assert await current(engine, new) == new
