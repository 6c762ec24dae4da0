"""Schedules as people see them: when they fire next, what became of the last job, and what is wrong.

Must not change a schedule (`schedules`).
"""

from collections.abc import Sequence

from msgspec import Struct

from holdfast.core.durations import in_words
from holdfast.core.errors import Invalid
from holdfast.core.model import PAGE_LIMIT, Job, Presence, Record, State, Time
from holdfast.core.schedules import SCHEDULE, Change, Pause, Schedule, next_tick, schedule_in
from holdfast.engines.contract import Engine
from holdfast.engines.records import WORKER, worker_in
from holdfast.jobs.schedules import AHEAD_MS, find_schedule, zone_of

NEXT_LISTED = 5
"""How many of the next ticks a view lists."""


class ScheduleView(Struct, frozen=True, kw_only=True):
    """A schedule, with its next ticks, its last job, and what is wrong with it."""

    name: str
    when: str
    """When it fires, in words."""
    type: str
    args: str
    queue: str
    tz: str
    missed: str
    overlap: str
    jitter_ms: int
    is_code: bool
    """Whether code declares it; else a caller put it there."""
    is_declared: bool
    """Whether a running worker declares it, or, if a caller put it there, knows its job."""
    next: tuple[Time, ...]
    """The next ticks; empty if it is paused or never fires again."""
    tick: Time | None
    """The last tick that fired."""
    job: str
    """The last job, of a tick or of a person's `run`; empty if there is none."""
    job_state: State | None
    """The state of that job; None if it was pruned or there is none."""
    waiting: Time | None
    skipped: int
    paused: Pause | None
    trouble: str
    """What is wrong, and what to do about it; empty if nothing is."""
    changes: tuple[Change, ...]


async def list_schedules(engine: Engine) -> list[ScheduleView]:
    """List all schedules of a store, by name."""
    return await _views(engine, await engine.records(SCHEDULE))


async def view_schedule(engine: Engine, name: str) -> ScheduleView:
    """Return one schedule, or raise NotFound."""
    [view] = await _views(engine, [(await find_schedule(engine, name))[0]])
    return view


async def _views(engine: Engine, records: Sequence[Record]) -> list[ScheduleView]:
    now = await engine.now()
    workers = [worker_in(record) for record in await engine.records(WORKER)] if records else []
    alive = [one for one in workers if not one.gone and now - one.beat_at <= one.lease_ms]
    found = [(record.name.removeprefix(SCHEDULE), schedule_in(record)) for record in records]
    ids = [one.job for _, one in found if one is not None and one.job]
    jobs: dict[str, Job] = {}
    for start in range(0, len(ids), PAGE_LIMIT):
        jobs |= {job.id: job for job in await engine.get(ids[start : start + PAGE_LIMIT]) if job is not None}
    return [_view(name, one, alive, jobs.get(one.job), now) for name, one in found if one is not None]


def _view(name: str, one: Schedule, alive: Sequence[Presence], job: Job | None, now: Time) -> ScheduleView:
    definition = one.definition
    declared = is_declared(name, one, alive)
    upcoming, wrong = next_ticks(one, now)
    return ScheduleView(
        name=name,
        when=definition.words(),
        type=definition.job.type,
        args=definition.job.args,
        queue=definition.job.queue,
        tz=definition.tz,
        missed=definition.missed,
        overlap=definition.overlap,
        jitter_ms=definition.jitter_ms,
        is_code=one.is_code,
        is_declared=declared,
        next=upcoming,
        tick=one.tick,
        job=one.job,
        job_state=None if job is None else job.state,
        waiting=one.waiting,
        skipped=one.skipped,
        paused=one.paused,
        trouble=wrong or _trouble(one, declared or not upcoming, alive, now),
        changes=one.changes,
    )


def next_ticks(one: Schedule, now: Time, most: int = NEXT_LISTED) -> tuple[tuple[Time, ...], str]:
    """Return the next ticks of a schedule, and why they can't be told."""
    found: list[Time] = []
    after = max(now, one.after)
    try:
        zone = zone_of(one.definition.tz)
        while len(found) < most and one.paused is None and (tick := next_tick(one, zone, after)) is not None:
            found.append(tick)
            after = tick
    except Invalid as error:
        return (), f"{error}; change the schedule"
    return tuple(found), ""


def is_declared(name: str, one: Schedule, alive: Sequence[Presence]) -> bool:
    """Whether one of these workers stands for a schedule: its code declares it, or it knows its job."""
    if one.is_code:
        return any(worker.schedules is None or name in worker.schedules for worker in alive)
    return any(worker.types is None or one.definition.job.type in worker.types for worker in alive)


def _trouble(one: Schedule, fine: bool, alive: Sequence[Presence], now: Time) -> str:
    """What is wrong with a schedule. `fine` says that a worker stands for it, or that it never fires again."""
    if one.error:
        return one.error
    if one.after - now > AHEAD_MS:
        return (
            f"its last tick is {in_words(one.after - now)} ahead of the store's clock, so the clock was wrong "
            "then or is wrong now; it fires again once the clock has caught up, or after holdfast schedules resume"
        )
    if fine or one.paused is not None:
        return ""
    if not alive:
        return "no worker is running, so it doesn't fire; start one: holdfast worker MODULE:APP"
    if one.is_code:
        return "no running worker declares it, so it doesn't fire; start a worker with its code, or remove it"
    return f"no running worker knows its job {one.definition.job.type}, so it doesn't fire; start one, or remove it"
