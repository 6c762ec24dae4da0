"""Ticks that fall between the death of a leader and the next leader: each fires once, or is missed.

The workers are on different hosts: a death is seen by silence alone.
"""

import pytest

from holdfast.conformance.given import SECOND, START, StoreClock
from holdfast.core.model import Presence, Time, Where
from holdfast.core.schedules import Definition, Template, iso
from holdfast.engines.memory import MemoryEngine
from holdfast.jobs.schedules import declare_schedules
from holdfast.upkeep.keeper import LEADER, Keeper
from holdfast.upkeep.scheduling import Scheduling

LEASE, BEAT, EVERY = 15, 2, 4
"""In seconds."""
NAME = "regular"


class World:
    """A store, its clock, and workers that beat as long as they live. The keeper under test is that of w-3."""

    def __init__(self) -> None:
        self.clock = StoreClock(settable=True)
        self.engine = MemoryEngine(self.clock)
        self.started: dict[str, Time] = {}
        self.keeper = Keeper(self.engine, "w-3", lease_seconds=LEASE, look_seconds=1, upkeep_seconds=1)
        self.scheduling = Scheduling(self.engine, "w-3", lambda type, args: None, lambda: self.clock.now / 1_000)

    async def declare(self, missed: str) -> None:
        """w-1 leads, and declares the schedule."""
        await self.start("w-1")
        definition = Definition(job=Template(type="report"), every_ms=EVERY * SECOND, missed=missed)
        await declare_schedules(self.engine, {NAME: definition}, by="w-1")
        await self.engine.put_record(LEADER, '{"worker":"w-1"}', 0)

    async def start(self, worker: str) -> None:
        self.started[worker] = self.clock.now
        await self.beat(worker)

    async def beat(self, worker: str) -> None:
        await self.engine.beat(Presence(worker, started_at=self.started[worker], schedules=(NAME,)))

    async def live(self, seconds: int, *workers: str) -> None:
        """Let these workers beat for so long, and the keeper look each second if it is among them."""
        for _ in range(seconds):
            self.clock.advance(SECOND)
            for worker in workers:
                if (self.clock.now - self.started[worker]) % (BEAT * SECOND) == 0:
                    await self.beat(worker)
            if "w-3" in workers:
                await self.look()

    async def look(self) -> None:
        self.keeper._snapshot = snapshot = await self.keeper._rescue.snapshots.take()
        await self.keeper._rescue.rescue_dead("w-3", snapshot)
        await self.keeper._round(snapshot)
        if self.keeper._leads:
            await self.keeper.fire_due(self.scheduling)

    async def fired(self) -> list[int]:
        """The seconds at which the ticks were that fired."""
        ticks = {iso(START + second * SECOND): second for second in range(200)}
        return [ticks[job.options.meta["tick"]] for job in await self.engine.find(Where())]


MISSED = [("skip", []), ("once", [8]), ("all", [4, 8])]


@pytest.mark.parametrize(("missed", "made_up"), MISSED)
async def test_ticks_in_a_downtime_that_is_shorter_than_a_lease_are_missed(missed: str, made_up: list[int]) -> None:
    world = World()
    await world.declare(missed)
    await world.live(2, "w-1")
    await world.live(7)
    await world.start("w-3")  # 9 seconds after the start

    await world.live(21, "w-3")

    assert await world.fired() == [*made_up, 12, 16, 20, 24, 28]


@pytest.mark.parametrize(("missed", "made_up"), MISSED)
async def test_who_died_with_the_leader_did_not_live_on_until_its_silence_was_noticed(
    missed: str, made_up: list[int]
) -> None:
    world = World()
    await world.declare(missed)
    await world.live(1, "w-1")
    await world.start("w-2")
    await world.live(2, "w-1", "w-2")  # the last beat of w-1 is at 2 seconds, that of w-2 at 3
    await world.live(6)
    await world.start("w-3")

    await world.live(21, "w-3")

    assert await world.fired() == [*made_up, 12, 16, 20, 24, 28]


@pytest.mark.parametrize("missed", ["skip", "once", "all"])
async def test_what_a_worker_lived_through_fires_once_also_if_a_younger_one_takes_over(missed: str) -> None:
    world = World()
    await world.declare(missed)
    await world.live(1, "w-1")
    await world.start("w-2")
    await world.live(1, "w-1", "w-2")
    await world.live(7, "w-2")
    await world.start("w-3")

    await world.live(21, "w-2", "w-3")

    assert await world.fired() == [4, 8, 12, 16, 20, 24, 28]
