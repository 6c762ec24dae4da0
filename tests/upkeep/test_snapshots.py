"""Decisions about other workers' jobs never rest on an old look: a leader may sleep between any two of its reads."""

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.conformance.given import SECOND, StoreClock, job
from holdfast.core.keys import derived_id
from holdfast.core.model import Options, Presence, Running, State
from holdfast.engines.memory import MemoryEngine
from holdfast.jobs.service import Jobs
from holdfast.upkeep import snapshot as looking
from holdfast.upkeep.keeper import LEADER, Keeper
from holdfast.upkeep.rescue import Rescue
from holdfast.upkeep.snapshot import FRESH_PART, REFRESH_TRIES

LEASE = 15 * SECOND
READS = frozenset({"now", "records", "find", "get", "steps", "history", "missing"})
MOST_READS = 60
"""No decision here takes more reads: else this test would never end."""


class Drowsy:
    """An engine whose user falls asleep before one of its reads; the world goes on meanwhile."""

    def __init__(self, engine: MemoryEngine) -> None:
        self.engine = engine
        self.at = -1
        self.reads = 0
        self.meanwhile: Callable[[], Any] | None = None

    def __getattr__(self, name: str) -> Any:
        inner = getattr(self.engine, name)
        if name not in READS:
            return inner

        async def read(*args: Any, **named: Any) -> Any:
            self.reads += 1
            if self.reads == self.at + 1 and self.meanwhile is not None:
                done = self.meanwhile()
                if inspect.isawaitable(done):
                    await done
            return await inner(*args, **named)

        return read


class World:
    """A store, a clock that is the same for it and for us, a healthy worker w-1, and the leader w-2."""

    def __init__(self, monkeypatch) -> None:
        self.clock = StoreClock(settable=True)
        self.engine = MemoryEngine(self.clock)
        self.drowsy = Drowsy(self.engine)
        self.rescue = Rescue(self.drowsy, lease_seconds=LEASE / SECOND)  # type: ignore[arg-type]
        self.keeper = Keeper(self.drowsy, "w-2", lease_seconds=LEASE / SECOND, look_seconds=1, upkeep_seconds=1)  # type: ignore[arg-type]
        self.keeper._rescue = self.rescue
        monkeypatch.setattr(looking, "moment", lambda: (self.clock.now / 1_000, self.clock.now / 1_000))

    async def claimed(self, worker: str = "w-1") -> Any:
        await self.engine.insert([job(self.clock, options=Options())])
        (taken,) = await self.engine.claim(worker, ["default"], 1)
        return taken

    async def beat(self, *running: Running, worker: str = "w-1") -> None:
        await self.engine.beat(Presence(worker, running=running))

    async def awake(self) -> None:
        """The leader has looked for long enough to judge."""
        for _ in range(3):
            await self.rescue.snapshots.take()
            self.clock.advance(LEASE // 3)
        await self.rescue.snapshots.take()


class Silent:
    """w-1 is silent for longer than a lease, and beats again while the leader sleeps."""

    async def given(self, world: World) -> None:
        self.job = await world.claimed()
        await world.beat(Running(self.job.id, self.job.epoch))
        await world.awake()
        world.clock.advance(2)

    async def meanwhile(self, world: World) -> None:
        world.clock.advance(10 * LEASE)
        await world.beat(Running(self.job.id, self.job.epoch))

    async def act(self, world: World) -> None:
        await world.rescue.rescue_dead("w-2")

    async def is_well(self, world: World) -> bool:
        (job,) = await world.engine.get([self.job.id])
        return job.state is State.ACTIVE


class Stuck(Silent):
    """A stage of w-1 shows no progress, and shows some while the leader sleeps."""

    async def given(self, world: World) -> None:
        self.job = await world.claimed()
        await world.awake()
        await world.beat(Running(self.job.id, self.job.epoch, stage="draw", silent_ms=6_000, stale_after_ms=5_000))

    async def meanwhile(self, world: World) -> None:
        world.clock.advance(10 * LEASE)
        await world.beat(Running(self.job.id, self.job.epoch, stage="draw", silent_ms=10, stale_after_ms=5_000))

    async def act(self, world: World) -> None:
        await world.rescue.rescue_stale("w-2")


class Slow(Stuck):
    """A stage of w-1 shows progress all along, but the leader's round takes long."""

    async def given(self, world: World) -> None:
        self.job = await world.claimed()
        await world.awake()
        await self.meanwhile(world)

    async def act(self, world: World) -> None:
        await world.keeper.tidy()


class New(Silent):
    """While the leader sleeps, w-1 starts, claims a job, and holds it for longer than a lease."""

    async def given(self, world: World) -> None:
        self.job = job(world.clock)
        await world.engine.insert([self.job])
        await world.awake()

    async def meanwhile(self, world: World) -> None:
        await world.beat()
        await world.engine.claim("w-1", ["default"], 1)
        world.clock.advance(2 * LEASE)
        await world.beat(Running(self.job.id, 1))

    async def act(self, world: World) -> None:
        await world.rescue.rescue_orphans("w-2")

    async def is_well(self, world: World) -> bool:
        (job,) = await world.engine.get([self.job.id])
        return job.state in (State.ACTIVE, State.AVAILABLE) and job.recoveries == 0


class Cancelled(Silent):
    """w-1 still stops a cancelled job, and tells so while the leader sleeps: its undo must not begin."""

    async def given(self, world: World) -> None:
        await super().given(world)
        await Jobs(world.engine).cancel(self.job.id)

    async def meanwhile(self, world: World) -> None:
        world.clock.advance(LEASE)
        await world.beat()

    async def is_well(self, world: World) -> bool:
        (undo,) = await world.engine.get([derived_id(self.job.id, "undo")])
        return undo.state is State.PENDING


class Leading(Silent):
    """w-1 leads, is silent for longer than a lease, and beats again while w-2 is about to take over."""

    async def given(self, world: World) -> None:
        await super().given(world)
        await world.engine.put_record(LEADER, '{"worker":"w-1"}', 0)

    async def act(self, world: World) -> None:
        await world.keeper.lead(await world.rescue.snapshots.take())

    async def is_well(self, world: World) -> bool:
        (record,) = await world.engine.records(LEADER)
        return "w-1" in record.value


@pytest.mark.parametrize("scene", [Silent, Stuck, Slow, New, Cancelled, Leading])
def test_a_leader_that_sleeps_before_any_of_its_reads_takes_nothing_that_is_well_by_then(monkeypatch, scene):
    async def play(at: int) -> int:
        world, one = World(monkeypatch), scene()
        await one.given(world)
        world.drowsy.reads, world.drowsy.at = 0, at
        was_well = []

        async def sleep() -> None:
            was_well.append(await one.is_well(world))
            await one.meanwhile(world)

        world.drowsy.meanwhile = sleep
        await one.act(world)
        assert await one.is_well(world) or was_well != [True], f"it slept before read {at} of {world.drowsy.reads}"
        return len(was_well)

    slept = next((at for at in range(MOST_READS) if not asyncio.run(play(at))), MOST_READS)
    assert 2 <= slept < MOST_READS, "there were reads before which it could sleep, and they came to an end"


@pytest.mark.parametrize("scene", [Silent, Stuck, Cancelled, Leading])
def test_who_is_awake_takes_what_is_not_well(monkeypatch, scene):
    """The same scenes without a sleep: so the law above could fail."""

    async def play() -> bool:
        world, one = World(monkeypatch), scene()
        await one.given(world)
        await one.act(world)
        return await one.is_well(world)

    assert not asyncio.run(play())


def test_a_store_that_is_too_slow_for_a_look_is_asked_again_in_the_next_round(monkeypatch):
    async def play() -> None:
        world, one = World(monkeypatch), Silent()
        await one.given(world)
        records = world.engine.records
        slow = round(LEASE * FRESH_PART) + 1

        async def slowly(prefix: str) -> Any:
            found = await records(prefix)
            world.clock.advance(slow)
            return found

        world.engine.records = slowly  # type: ignore[method-assign]
        look = await world.rescue.snapshots.take()
        assert not world.rescue.snapshots.is_fresh(look)
        world.drowsy.reads = 0
        assert await world.rescue.rescue_dead("w-2", look) == []
        assert world.drowsy.reads <= 2 * REFRESH_TRIES + 4, "it does not look for ever"
        slow = 0
        assert [job.id for job in await world.rescue.rescue_dead("w-2")] == [one.job.id]

    asyncio.run(play())


@pytest.mark.parametrize("clock", [0, 1], ids=["monotonic", "wall"])
def test_a_sleep_shows_by_either_clock(monkeypatch, clock):
    """While a machine sleeps its monotonic clock may stand still, and a wall clock may be set."""
    now = [100.0, 5_000.0]
    monkeypatch.setattr(looking, "moment", lambda: tuple(now))
    since = looking.moment()
    now[clock] += 7.0
    assert looking.elapsed(since) == 7.0
    now[1 - clock] -= 3_600.0
    assert looking.elapsed(since) == 7.0


def test_a_stage_of_a_worker_that_slept_with_us_is_not_stale(monkeypatch):
    """A laptop wakes: the leader looks first, and the worker has not beaten yet."""

    async def play() -> None:
        world = World(monkeypatch)
        held = await world.claimed()
        await world.awake()
        await world.beat(Running(held.id, held.epoch, stage="draw", silent_ms=10, stale_after_ms=60_000))
        world.clock.advance(100 * LEASE)
        assert await world.rescue.rescue_stale("w-2") == []
        await world.beat(Running(held.id, held.epoch, stage="draw", silent_ms=20, stale_after_ms=60_000))
        assert await world.rescue.rescue_stale("w-2") == []

    asyncio.run(play())


def test_a_look_reads_the_time_before_the_workers(monkeypatch):
    """So that nobody seems more silent than it is, however long lies between the two."""

    async def play() -> None:
        world = World(monkeypatch)
        await world.beat()
        records = world.engine.records

        async def later(prefix: str) -> Any:
            world.clock.advance(LEASE)
            await world.beat()
            return await records(prefix)

        world.engine.records = later  # type: ignore[method-assign]
        look = await world.rescue.snapshots.take()
        assert look.now <= look.present["w-1"].beat_at

    asyncio.run(play())


def test_a_copy_of_a_look_is_as_old_as_the_look(monkeypatch):
    async def play() -> None:
        world = World(monkeypatch)
        look = await world.rescue.snapshots.take()
        world.clock.advance(LEASE)
        assert not world.rescue.snapshots.is_fresh(replace(look, present={}))

    asyncio.run(play())
