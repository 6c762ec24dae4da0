"""The laws of ticks, in random lives of leaders that die, lag behind and lose answers; and planted bugs.

A life is repeated by its number. Workers start and die, two of them may lead at once, the store loses answers, and
at the end the jobs in the store are compared with who lived when.
"""

import asyncio
import random
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.conformance.given import SECOND, START, StoreClock
from holdfast.core.errors import StoreError
from holdfast.core.lifecycle import SETTLED, decide
from holdfast.core.model import Conflict, Event, Job, Presence, Record, Time, Where
from holdfast.core.schedules import SCHEDULE, Definition, Schedule, Template, iso
from holdfast.engines.memory import MemoryEngine
from holdfast.jobs.schedules import declare_schedules, find_schedule, pause_schedule, resume_schedule
from holdfast.upkeep.scheduling import Scheduling

LIVES = 25
MOMENTS = 60
EVERY = 10 * SECOND
NAME = "quarter"


class Wire:
    """A leader's way to the store: answers get lost."""

    def __init__(self, engine: MemoryEngine, chance: random.Random) -> None:
        self._engine, self._chance = engine, chance

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def put_record(self, *args: Any) -> Record | Conflict:
        fate = self._chance.random()
        if fate < 0.1:
            raise StoreError("it never arrived")
        await asyncio.sleep(0)
        answer = await self._engine.put_record(*args)
        if fate < 0.2:
            raise StoreError("the answer was lost")
        return answer


class Life:
    """One life of a schedule: what happened, and what the store holds in the end."""

    def __init__(self, number: int, kind: type[Scheduling], missed: str, overlap: str, *, pauses: bool) -> None:
        self.random = random.Random(number)
        self.clock = StoreClock(settable=True)
        self.engine = MemoryEngine(self.clock)
        self.kind, self.missed, self.overlap, self.pauses = kind, missed, overlap, pauses
        self.definition = Definition(job=Template(type="report"), every_ms=EVERY, missed=missed, overlap=overlap)
        self.living: dict[str, Presence] = {}
        self.leaders: dict[str, Scheduling] = {}
        self.lives: list[tuple[Time, Time]] = []
        self.paused: list[tuple[Time, Time]] = []
        """When the schedule was paused, and when it was resumed."""
        self.paused_at: Time | None = None
        self.number = 0

    async def start(self) -> None:
        self.number += 1
        worker = f"w-{self.number}"
        self.living[worker] = Presence(worker, started_at=self.clock.now, types=("report",), schedules=(NAME,))
        await declare_schedules(self.engine, {NAME: self.definition}, by=worker)
        wire: Any = Wire(self.engine, self.random)
        self.leaders[worker] = self.kind(wire, worker, lambda type, args: None, lambda: self.clock.now / 1_000)

    def kill(self) -> None:
        worker = self.random.choice(sorted(self.living))
        self.lives.append((self.living.pop(worker).started_at, self.clock.now))
        del self.leaders[worker]

    async def look(self) -> None:
        """One or two leaders look, at the same time."""
        leading = self.random.sample(sorted(self.leaders), min(len(self.leaders), self.random.choice((1, 1, 2))))
        looks = (self.leaders[worker].look(dict(self.living)) for worker in leading)
        await asyncio.gather(*looks, return_exceptions=True)
        if self.overlap != "allow":
            live = [job for job in await self.reports() if job.state not in SETTLED]
            assert len(live) <= 1, f"a tick overlaps: {len(live)} jobs have not ended"

    async def reports(self) -> list[Job]:
        return await self.engine.find(Where(type="report"))

    async def end_jobs(self) -> None:
        for job in await self.engine.claim("w-any", ["default"], 1):
            await self.engine.commit([decide(job, Event.COMPLETE, self.clock.now, by="w-any", result="1")])

    async def pause_or_resume(self) -> None:
        if self.paused_at is None:
            await pause_schedule(self.engine, NAME, by="ann")
            self.paused_at = self.clock.now
        else:
            await resume_schedule(self.engine, NAME, by="ann")
            self.paused.append((self.paused_at, self.clock.now))
            self.paused_at = None

    async def run(self) -> None:
        await self.start()
        for _ in range(MOMENTS):
            self.clock.advance(self.random.choice((300, 2 * SECOND, EVERY, 3 * EVERY)))
            if self.random.random() < 0.25:
                await self.start()
            if self.living and self.random.random() < 0.25:
                self.kill()
            if self.overlap != "allow" and self.random.random() < 0.4:
                await self.end_jobs()
            if self.pauses and self.random.random() < 0.15:
                await self.pause_or_resume()
            if self.random.random() < 0.8:
                await self.look()
        if self.paused_at is not None:
            await self.pause_or_resume()
        self.clock.advance(1)
        if not self.living:
            await self.start()
        for _ in range(200):  # answers get lost, but not for ever
            await self.look()
        self.lives += [(one.started_at, self.clock.now) for one in self.living.values()]

    async def judge(self) -> None:
        fired = [job.options.meta["tick"] for job in await self.reports()]
        assert len(set(fired)) == len(fired), "a tick fired twice"
        ticks = range(START + EVERY, self.clock.now + 1, EVERY)
        assert set(fired) <= {iso(tick) for tick in ticks}, "a job came from no tick, or before its time"
        rested = {iso(tick) for tick in ticks if any(start < tick <= end for start, end in self.paused)}
        assert not rested & set(fired), "a tick fired that fell into a pause"
        since = max(min(one.started_at for one in self.living.values()), *(end + 1 for _, end in self.paused), 0)
        through = {iso(tick) for tick in ticks if tick >= since}
        one = (await find_schedule(self.engine, NAME))[1]
        if self.overlap == "allow":
            assert through <= set(fired), "a worker lived through a tick that never fired"
        elif self.missed == "all" and not self.pauses:
            waits = one.waiting is not None
            assert len(fired) + one.skipped + waits == len(ticks), "a tick neither fired, nor waits, nor was skipped"
        if self.missed == "skip":
            lived = {iso(tick) for tick in ticks if any(start <= tick <= end for start, end in self.lives)}
            assert set(fired) <= lived, "a tick fired that nobody lived through"


async def live(
    number: int, kind: type[Scheduling], missed: str, overlap: str = "allow", *, pauses: bool = False
) -> None:
    life = Life(number, kind, missed, overlap, pauses=pauses)
    await life.run()
    await life.judge()


@pytest.mark.parametrize("missed", ["skip", "once", "all"])
def test_the_laws_hold_in_every_life(missed: str) -> None:
    for number in range(LIVES):
        asyncio.run(live(number, Scheduling, missed))


@pytest.mark.parametrize("missed", ["skip", "all"])
@pytest.mark.parametrize("overlap", ["skip", "wait", "cancel_previous"])
def test_jobs_never_overlap_and_every_tick_is_accounted_for(overlap: str, missed: str) -> None:
    for number in range(LIVES):
        asyncio.run(live(number, Scheduling, missed, overlap))


@pytest.mark.parametrize("overlap", ["allow", "wait"])
@pytest.mark.parametrize("missed", ["skip", "all"])
def test_no_tick_of_a_pause_ever_fires(missed: str, overlap: str) -> None:
    for number in range(LIVES):
        asyncio.run(live(number, Scheduling, missed, overlap, pauses=True))


# Planted bugs.


class WithoutACompare(Scheduling):
    """A tick is written whatever is there."""

    async def _fire(self, name: str, kept: Any, now: Time, busy: Mapping[str, Job]) -> None:
        engine = self._engine

        class Bold:
            async def put_record(self, name: str, value: str, expected: int, jobs: Any) -> Any:
                # Derived ids would hide the bug while the first job is kept.
                new = [replace(job, id=f"{job.id[:-8]}{random.getrandbits(32):08x}") for job in jobs]
                return await engine.put_record(name, value, None, new)

            def __getattr__(self, name: str) -> Any:
                return getattr(engine, name)

        self._engine = Bold()  # type: ignore[assignment]
        try:
            await super()._fire(name, kept, now, busy)
        finally:
            self._engine = engine


class ByItsOwnClock(Scheduling):
    """The window is that of the worker's machine, which is ahead."""

    async def _fire(self, name: str, kept: Any, now: Time, busy: Mapping[str, Job]) -> None:
        await super()._fire(name, kept, now + EVERY, busy)


class OnlyTheNewest(Scheduling):
    """Of several ticks that were on time, only the newest fires."""

    async def _fire(self, name: str, kept: Any, now: Time, busy: Mapping[str, Job]) -> None:
        last = kept.one.start + (now - kept.one.start) // EVERY * EVERY
        self._jumped_at = max(self._jumped_at or 0, last)
        await super()._fire(name, kept, now, busy)


class WhoeverLived(Scheduling):
    """What nobody lived through fires, too."""

    async def _fire(self, name: str, kept: Any, now: Time, busy: Mapping[str, Job]) -> None:
        self._living = type(self._living)({NAME: 0}, {}, None, None)
        await super()._fire(name, kept, now, busy)


class NeverAgain(Scheduling):
    """After trouble with the store, a tick is forgotten."""

    async def _settle(self, name: str, now: Time, busy: Mapping[str, Job]) -> None:
        kept = self._kept[name]
        try:
            await super()._settle(name, now, busy)
        except StoreError:
            [record] = await self._engine.records(SCHEDULE + name)
            await self._engine.put_record(record.name, replace(kept.one, after=now).text(), record.version)
            self._mark = None
            raise


class NeverBusy(Scheduling):
    """It doesn't see that the last job has not ended."""

    async def _fire(self, name: str, kept: Any, now: Time, busy: Mapping[str, Job]) -> None:
        await super()._fire(name, kept, now, {})


class ForgetsWhatItSkips(Scheduling):
    """Ticks that were skipped are counted nowhere."""

    async def _write(self, name: str, kept: Any, new: Schedule, jobs: Sequence[Job], now: Time) -> bool:
        return await super()._write(name, kept, replace(new, skipped=kept.one.skipped), jobs, now)


class DeafToPauses(Scheduling):
    """A pause is not seen."""

    def _plan_look(self, name: str, after: Time) -> None:
        kept = self._kept[name]
        kept.one = replace(kept.one, paused=None)
        super()._plan_look(name, after)

    async def _write(self, name: str, kept: Any, new: Schedule, jobs: Sequence[Job], now: Time) -> bool:
        _, there = await find_schedule(self._engine, name)
        return await super()._write(name, kept, replace(new, paused=there.paused), jobs, now)


@pytest.mark.parametrize("bug", [NeverBusy, ForgetsWhatItSkips])
def test_every_planted_bug_of_overlaps_is_caught(bug: type[Scheduling]) -> None:
    with pytest.raises(AssertionError, match="tick"):
        for number in range(LIVES):
            asyncio.run(live(number, bug, "all", "wait"))


def test_a_pause_that_is_not_seen_is_caught() -> None:
    with pytest.raises(AssertionError, match="a tick fired that fell into a pause"):
        for number in range(LIVES):
            asyncio.run(live(number, DeafToPauses, "skip", pauses=True))


@pytest.mark.parametrize("bug", [WithoutACompare, ByItsOwnClock, OnlyTheNewest, WhoeverLived, NeverAgain])
def test_every_planted_bug_is_caught(bug: type[Scheduling]) -> None:
    with pytest.raises(AssertionError, match="tick"):
        for number in range(LIVES):
            asyncio.run(live(number, bug, "skip"))
