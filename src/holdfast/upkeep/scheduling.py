"""Fires the ticks of schedules when they are due. The leader does this; every process could, and no tick fires twice.

Must not decide which ticks are due (`core.schedules`). All schedules are kept in memory, in a heap by their next ticks,
and only those that changed are read again: so ten thousand of them cost next to nothing between their ticks.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from heapq import heapify, heappop, heappush

from msgspec import Struct
from msgspec.structs import replace

from holdfast.background import LogOnce
from holdfast.core.durations import in_words
from holdfast.core.errors import HoldfastError, Invalid, NotAllowed, NotFound, QueueFull, StoreError
from holdfast.core.lifecycle import SETTLED
from holdfast.core.model import PAGE_LIMIT, Conflict, Inserted, Job, Presence, Record, Time
from holdfast.core.queue_bounds import WAITING, QueueBound
from holdfast.core.schedules import (
    SCHEDULE,
    TICKS_AT_ONCE,
    Plan,
    Schedule,
    due_ticks,
    missed_moment,
    next_tick,
    plan_ticks,
    schedule_in,
)
from holdfast.engines.contract import Engine
from holdfast.jobs.full_queues import stored_bounds
from holdfast.jobs.large_values import keep_arguments
from holdfast.jobs.room import find_room, shed
from holdfast.jobs.schedules import (
    CHANGED,
    Fits,
    changed_names,
    fired,
    full_words,
    missed,
    missed_words,
    refused,
    zone_of,
)
from holdfast.jobs.service import Jobs
from holdfast.safe_text import logger

log = logger("holdfast.schedules")

LOOK_SECONDS = 1.0
"""How often to look for changed schedules, and for the ends of jobs that a tick waits for."""

NONE_SECONDS = 10.0
"""How often to look for the first schedule of a store that has none."""

REREAD_SECONDS = 300.0
"""How often to read all schedules again, in case that a process died between a change and noting it."""

JUMP_MS = 10_000
"""If the store's clock moves this much more than our own between two looks, it has jumped."""

FIRED_AT_ONCE = 50
"""How many schedules fire at the same time."""


class Kept(Struct):
    """A schedule as we know it, and when to look at it next: then it is in the heap, once for that moment.

    `is_behind` says that it has more due ticks than fire at once.
    """

    one: Schedule
    version: int
    at: Time | None = None
    is_behind: bool = False


class Living(Struct, frozen=True):
    """Since when workers live that declare schedules, or know job types. `any_…` are those that list too many."""

    names: Mapping[str, Time]
    types: Mapping[str, Time]
    any_name: Time | None
    any_type: Time | None

    def since(self, name: str, one: Schedule) -> Time | None:
        """Since when a worker lives that stands for this schedule: its code declares it, or knows its job.

        None if there is no such worker now: then its ticks are missed.
        """
        listed = self.names.get(name) if one.is_code else self.types.get(one.definition.job.type)
        unlisted = self.any_name if one.is_code else self.any_type
        return min((at for at in (listed, unlisted) if at is not None), default=None)


def living(present: Mapping[str, Presence]) -> Living:
    """Return which workers stand for which schedules."""
    names: dict[str, Time] = {}
    types: dict[str, Time] = {}
    unlisted: list[list[Time]] = [[], []]
    for one in present.values():
        for since, listed, more in ((names, one.schedules, unlisted[0]), (types, one.types, unlisted[1])):
            if listed is None:
                more.append(one.started_at)
            for name in listed or ():
                since[name] = min(since.get(name, one.started_at), one.started_at)
    return Living(names, types, *(min(times, default=None) for times in unlisted))


class Scheduling:
    """The schedules of a store, as its leader knows them. `fits` says why a job can't have its arguments."""

    def __init__(self, engine: Engine, worker: str, fits: Fits, steady: Callable[[], float] | None = None) -> None:
        self._engine = engine
        self._steady = steady or (lambda: asyncio.get_running_loop().time())
        """Our own clock, in seconds: it never jumps."""
        self._jobs = Jobs(engine)
        self._worker = worker
        self._fits = fits
        self._trouble = LogOnce(log, "a schedule could not fire", "schedules fire again")
        self._bounds: Mapping[str, QueueBound] = {}
        self._entering = asyncio.Lock()
        """Held while ticks enter a queue with a bound, so that they don't fill the same place twice."""
        self.forget()

    def forget(self) -> None:
        """Forget everything: somebody else leads now."""
        self._kept: dict[str, Kept] = {}
        self._heap: list[tuple[Time, str]] = []
        self._mark: int | None = None
        self._read_at = 0.0
        self._workers: tuple[object, ...] | None = None
        self._living = living({})
        self._clocks: tuple[Time, float] | None = None
        self._jumped_at: Time | None = None

    async def look(self, present: Mapping[str, Presence]) -> float:
        """Fire what is due, as of these workers being alive; return after how many seconds to look again."""
        now = await self._engine.now()
        self._check_clock(now)
        await self._reread(now)
        self._note_workers(present, now)
        due = self._pop_due(now)
        due += [name for name, kept in self._waiting().items() if name not in due]
        self._bounds = await stored_bounds(self._engine) if due else {}
        busy = await self._busy([self._kept[name].one for name in due])
        for start in range(0, len(due), FIRED_AT_ONCE):
            await asyncio.gather(*(self._settle(name, now, busy) for name in due[start : start + FIRED_AT_ONCE]))
        if not self._kept:
            return NONE_SECONDS
        after = await self._engine.now()
        upcoming = self.next_at()
        return LOOK_SECONDS if upcoming is None else min(LOOK_SECONDS, max(0.0, (upcoming - after) / 1_000))

    def next_at(self) -> Time | None:
        """Return when the next tick is due."""
        while self._heap:
            at, name = self._heap[0]
            kept = self._kept.get(name)
            if kept is not None and kept.at == at:
                return at
            heappop(self._heap)  # it was changed or removed meanwhile
        return None

    # Knowing the schedules.

    async def _reread(self, now: Time) -> None:
        """Read the schedules that have changed since the last look, or all of them."""
        marks = await self._engine.records(CHANGED)
        mark = next((one for one in marks if one.name == CHANGED), None)
        version = 0 if mark is None else mark.version
        if self._mark is None or self._steady() - self._read_at >= REREAD_SECONDS:
            await self._read_all(now)
        elif version != self._mark:
            names = changed_names(mark)[-max(0, version - self._mark) :] if version > self._mark else []
            if len(names) == version - self._mark:
                for name in dict.fromkeys(names):
                    await self._read_one(name, now)
            else:
                await self._read_all(now)
        self._mark = version

    async def _read_all(self, now: Time) -> None:
        records = await self._engine.records(SCHEDULE)
        self._read_at = self._steady()
        before, self._kept, self._heap = self._kept, {}, []
        for record in records:
            name = record.name.removeprefix(SCHEDULE)
            old = before.get(name)
            if old is not None and old.version == record.version:
                self._kept[name] = old
                if old.at is not None:
                    self._heap.append((old.at, name))
            else:
                self._keep(name, record, now)
        heapify(self._heap)

    async def _read_one(self, name: str, now: Time) -> None:
        records = await self._engine.records(SCHEDULE + name)
        record = next((one for one in records if one.name == SCHEDULE + name), None)
        self._kept.pop(name, None)
        if record is not None:
            self._keep(name, record, now)

    def _keep(self, name: str, record: Record, now: Time) -> None:
        """Keep a schedule that was read. It is looked at when its first unsettled tick is due, which may be now."""
        one = schedule_in(record)
        if one is None:
            log.warning("schedule %s: its record can't be read; remove it, and put or declare it again", name)
            return
        self._kept[name] = Kept(one, record.version)
        self._plan_look(name, one.after)

    def _plan_look(self, name: str, after: Time) -> None:
        """Look at a schedule again at its first tick after this moment."""
        kept = self._kept[name]
        before, kept.at = kept.at, None
        if kept.one.paused is not None:
            return
        try:
            kept.at = next_tick(kept.one, zone_of(kept.one.definition.tz), max(after, kept.one.after))
        except Invalid as error:  # this machine doesn't know its zone, or an older version its words
            log.warning("schedule %s: %s; it doesn't fire", name, error)
        if kept.at is not None and kept.at != before:
            heappush(self._heap, (kept.at, name))

    def _note_workers(self, present: Mapping[str, Presence], now: Time) -> None:
        """If workers came or went, ticks that nobody stood for may be due now: look at every schedule."""
        workers = tuple(
            sorted((one.worker, one.started_at, one.schedules or (), one.types or ()) for one in present.values())
        )
        if workers == self._workers:
            return
        self._workers, self._living, self._heap = workers, living(present), []
        for name, kept in self._kept.items():
            kept.at = None
            self._plan_look(name, kept.one.after)

    def _check_clock(self, now: Time) -> None:
        """Notice a clock that jumps. Ticks that a jump passed over are missed: nobody lived through them."""
        ours = self._steady()
        before, self._clocks = self._clocks, (now, ours)
        if before is None:
            return
        jump = now - before[0] - round((ours - before[1]) * 1_000)
        if jump > JUMP_MS:
            self._jumped_at = now
        if not self._kept:
            return
        if jump > JUMP_MS:
            log.warning(
                "the store's clock jumped ahead by %s: the ticks in between count as missed, and each schedule's "
                "missed= decides what to do about them",
                in_words(jump),
            )
        elif jump < -JUMP_MS:
            log.warning(
                "the store's clock went back by %s: no tick fires twice, so schedules pause until it has caught up; "
                "to let one fire again now: holdfast schedules resume NAME",
                in_words(-jump),
            )

    # Firing.

    def _pop_due(self, now: Time) -> list[str]:
        due = []
        while (at := self.next_at()) is not None and at <= now:
            _, name = heappop(self._heap)
            self._kept[name].at = None
            due.append(name)
        return due

    def _waiting(self) -> dict[str, Kept]:
        return {name: kept for name, kept in self._kept.items() if kept.one.waiting is not None}

    async def _busy(self, due: list[Schedule]) -> dict[str, Job]:
        """Return the last jobs of these schedules that have not ended, by id, if that matters."""
        ids = list({one.job for one in due if one.job and one.definition.overlap != "allow"})
        found = []
        for start in range(0, len(ids), PAGE_LIMIT):
            found += await self._engine.get(ids[start : start + PAGE_LIMIT])
        return {job.id: job for job in found if job is not None and job.state not in SETTLED}

    async def _settle(self, name: str, now: Time, busy: Mapping[str, Job]) -> None:
        """Settle the due ticks of one schedule. What is wrong with one doesn't stop the others."""
        kept = self._kept[name]
        try:
            await self._fire(name, kept, now, busy)
            self._trouble.recovered()
        except StoreError:
            self._plan_look(name, kept.one.after)  # try again
            raise
        except HoldfastError as error:
            self._trouble.say(error, f"schedule {name}: {error}")
        if self._kept.get(name) is kept:
            self._plan_look(name, kept.one.after if kept.is_behind else now)

    async def _fire(self, name: str, kept: Kept, now: Time, busy: Mapping[str, Job]) -> None:
        one = kept.one
        since = self._living.since(name, one)
        if since is not None and since > now:  # the clock went back since that worker started
            since = one.after
        if since is not None and self._jumped_at is not None:
            since = max(since, self._jumped_at)
        ticks = due_ticks(one, zone_of(one.definition.tz), now, since)
        kept.is_behind = len(ticks) == TICKS_AT_ONCE
        plan = plan_ticks(one, ticks, is_busy=one.job in busy)
        if not ticks and plan == Plan(waiting=one.waiting):
            if since is not None and (moment := missed_moment(one, now)) is not None:
                log.warning("schedule %s: %s", name, missed_words(moment))
                await self._write(name, kept, missed(one, moment, self._worker, now), [], now)
            return
        after = ticks[-1] if ticks else one.after
        why_not = self._fits(one.definition.job.type, one.definition.job.args) if plan.fires else None
        if why_not is None:
            await self._submit(name, kept, plan, after, now, busy.get(one.job))
        else:
            log.warning("schedule %s: no job was submitted: %s", name, why_not)
            await self._write(name, kept, refused(one, plan, why_not, after, now), [], now)

    async def _submit(self, name: str, kept: Kept, plan: Plan, after: Time, now: Time, last: Job | None) -> None:
        """Submit the jobs of these ticks. In a full queue, they shed others or are skipped, as its bound says."""
        one, queue = kept.one, kept.one.definition.job.queue
        async with self._entering if queue in self._bounds else nullcontext():
            new, jobs = fired(name, one, plan, after, now)
            is_freed = plan.cancels and last is not None and last.state in WAITING and last.queue == queue
            try:
                sheds = await find_room(self._engine, self._bounds, jobs, leaving=int(is_freed))
            except QueueFull as full:
                plan = plan.cut(max(0, full.most_waiting - full.depth + is_freed))
                new, jobs = fired(name, one, plan, after, now)
                new, sheds = replace(new, error=full_words(full), error_at=now), []
                log.warning("schedule %s: %s", name, new.error)
            if plan.cancels:
                await self._cancel(name, one.job)
            kept_jobs = await keep_arguments(self._engine, jobs)
            if not await self._write(name, kept, new, kept_jobs, now):
                return
            await shed(self._engine, sheds, [Inserted(job.id, True) for job in jobs])
        for tick, job in zip(plan.fires, jobs, strict=False):
            log.info("schedule %s fired: job %s, %s late", name, job.id, in_words(max(0, now - tick)))

    async def _write(self, name: str, kept: Kept, new: Schedule, jobs: Sequence[Job], now: Time) -> bool:
        """Write a schedule with its new jobs, unless somebody else changed it. Return whether it is written."""
        answer = await self._engine.put_record(SCHEDULE + name, new.text(), kept.version, jobs)
        if isinstance(answer, Conflict):
            await self._read_one(name, now)
            return False
        kept.one, kept.version = new, answer.version
        return True

    async def _cancel(self, name: str, job: str) -> None:
        try:
            await self._jobs.cancel(job, by=self._worker, reason=f"the next tick of schedule {name} replaces it")
        except (NotAllowed, NotFound):  # it has ended meanwhile
            pass
