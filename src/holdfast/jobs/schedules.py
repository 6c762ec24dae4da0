"""Schedules, for any caller: declare, put, list, pause, resume, run and remove them, and fire their ticks.

Must not decide which ticks are due (`core.schedules`), or when to look (`upkeep.scheduling`). A schedule is the record
`schedule/NAME`. The record `schedules` counts the changes and names the last changed ones, so that the leader, which
keeps all schedules in memory, rereads only those.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from datetime import tzinfo
from functools import lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

import msgspec
from msgspec import DecodeError
from msgspec.structs import replace

from holdfast.core.errors import Invalid, NotFound, Outrun, QueueFull
from holdfast.core.limits import REASON_CHARACTERS
from holdfast.core.model import Conflict, Inserted, Job, Record, Time
from holdfast.core.schedules import (
    SCHEDULE,
    Definition,
    Pause,
    Plan,
    Schedule,
    check_definition,
    iso,
    jitter_of,
    schedule_in,
    tick_id,
)
from holdfast.core.suggestions import suggest
from holdfast.engines.contract import Engine
from holdfast.jobs.full_queues import stored_bounds
from holdfast.jobs.large_values import keep_arguments
from holdfast.jobs.requests import JobRequest, new_job, random_ids
from holdfast.jobs.room import find_room, shed

CHANGED = "schedules"
"""The record that counts the changes of schedules. Its text lists the names that were changed last."""

CHANGED_LISTED = 100
"""How many changed names that record lists. Who missed more rereads all schedules."""

CHANGE_TRIES = 50
"""How often a record that others keep changing is read and written again."""

DECLARED_AT_ONCE = 50
"""How many declarations a starting worker writes at the same time."""

NAME_CHARACTERS = 100
"""How long the name of a schedule may be."""

META_SCHEDULE, META_TICK = "schedule", "tick"
"""The entries of `meta` that say which schedule and which tick a job comes from. A job that a person started has no
tick.
"""

AHEAD_MS = 60_000
"""If the last tick is further ahead of the clock than this, the clock was wrong then."""

Fits = Callable[[str, str], str | None]
"""Says why arguments don't fit a job type as this process knows it; None if they do, or if it doesn't know the type."""

_ids = random_ids()


@lru_cache(1_000)
def zone_of(name: str) -> tzinfo:
    """Return the rules of a time zone, or raise Invalid."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        known = available_timezones()
        if not known:
            raise Invalid(f"tz={name!r}: this machine has no time zones; run pip install tzdata") from None
        by_lower = {zone.lower(): zone for zone in known} | {zone.rpartition("/")[2].lower(): zone for zone in known}
        meant = by_lower.get(name.lower().replace(" ", "_"))
        hint = f"; did you mean {meant}?" if meant else suggest(name, sorted(known))
        raise Invalid(f"there is no time zone {name!r}{hint or '; give a name like Europe/Berlin'}") from None


def check_schedule(name: str, definition: Definition) -> Definition:
    """Refuse a schedule that can't be kept or can never fire."""
    if not (isinstance(name, str) and 0 < len(name) <= NAME_CHARACTERS and name.isprintable() and "/" not in name):
        raise Invalid(
            f"{name!r} can't be a schedule's name; give 1 to {NAME_CHARACTERS} characters without '/', like 'morning'"
        )
    check_definition(name, definition)
    try:
        zone_of(definition.tz)
        _tick_job(name, _new(definition, 0, "", is_code=True), "", 0, 0)
    except Invalid as error:
        raise Invalid(f"schedule {name}: {error}") from None
    return definition


# Firing.


def fired(name: str, one: Schedule, plan: Plan, after: Time, now: Time) -> tuple[Schedule, list[Job]]:
    """Return the schedule after its ticks up to `after` were settled as planned, and their jobs."""
    jobs = [_tick_job(name, one, f"{tick}", tick, now, tick=tick) for tick in plan.fires]
    new = replace(
        one, after=max(one.after, after), waiting=plan.waiting, skipped=one.skipped + plan.skipped, error="", error_at=0
    )
    return (replace(new, tick=plan.fires[-1], job=jobs[-1].id, runs=one.runs + len(jobs)) if jobs else new), jobs


def refused(one: Schedule, plan: Plan, error: str, after: Time, now: Time) -> Schedule:
    """Return the schedule after its ticks up to `after` were settled, but could have no job, for this reason."""
    new = replace(one, after=max(one.after, after), waiting=plan.waiting, skipped=one.skipped + plan.cut(0).skipped)
    return replace(new, error=error[:REASON_CHARACTERS], error_at=now)


def full_words(full: QueueFull) -> str:
    """Why a tick has no job: its queue is full."""
    return (
        f"queue {full.queue} is full: {full.depth:,} jobs wait, and at most {full.most_waiting:,} may; a tick "
        "submitted no job; start more workers, raise most_waiting, or fire less often"
    )


def missed(one: Schedule, moment: Time, by: str, now: Time) -> Schedule:
    """Return a schedule for one moment after it was missed: it never fires again."""
    return replace(one, after=moment, changes=one.with_change(by, now, missed_words(moment)))


def missed_words(moment: Time) -> str:
    """What became of a schedule for one moment that nobody lived through."""
    return f"missed at {iso(moment)}: no worker that could fire it was running, so no job was submitted (missed='skip')"


def _tick_job(name: str, one: Schedule, what: str, at: Time, now: Time, *, tick: Time | None = None) -> Job:
    template = one.definition.job
    meta = dict(template.options.meta) | {META_SCHEDULE: name} | ({} if tick is None else {META_TICK: iso(tick)})
    delay = 0 if tick is None else jitter_of(one, tick)
    request = JobRequest(
        type=template.type,
        args=template.args,
        encoded=True,
        queue=template.queue,
        priority=template.priority,
        run_at=now + delay if delay else None,
        expires_at=None if template.expires_ms is None else now + delay + template.expires_ms,
        options=replace(template.options, meta=meta),
    )
    return new_job(request, tick_id(one.born, what, at), now)


# By a worker.


async def declare_schedules(engine: Engine, declared: Mapping[str, Definition], *, by: str) -> list[str]:
    """Write what code declares, where it differs from the store. Return the lines for the log."""
    if not declared:
        return []
    known = {record.name: schedule_in(record) for record in await engine.records(SCHEDULE)}
    differ = [name for name, one in declared.items() if not _is_declared(known.get(SCHEDULE + name), one)]
    told: list[str] = []

    async def declare(name: str) -> None:
        told.extend(await _declare(engine, name, declared[name], by))

    for start in range(0, len(differ), DECLARED_AT_ONCE):
        await asyncio.gather(*map(declare, differ[start : start + DECLARED_AT_ONCE]))
    if differ:
        await note_changed(engine, differ)
    return sorted(told)


def _is_declared(there: Schedule | None, definition: Definition) -> bool:
    return there is not None and there.is_code and there.definition.fingerprint() == definition.fingerprint()


async def _declare(engine: Engine, name: str, definition: Definition, by: str) -> list[str]:
    told: list[str] = []

    def change(old: Schedule | None, now: Time) -> Schedule:
        told.clear()
        if old is not None and _is_declared(old, definition):
            return old
        if old is not None and not old.is_code:
            told.append(
                f"schedule {name}: code declares it now; it was put by a caller before ({old.definition.words()})"
            )
        elif old is not None:
            told.append(
                f"schedule {name}: now {definition.words()}; other code declared {old.definition.words()} before"
            )
        is_new = old is None or old.definition.timing() != definition.timing()
        if is_new and definition.at is not None and definition.at <= now:
            told.append(f"schedule {name}: {iso(definition.at)} is in the past, so it never fires; give a later time")
        return _defined(old, definition, now, by, f"code: {definition.words()}", is_code=True)

    await _update(engine, name, change)
    return told


# By a caller or a person.


async def put_schedule(engine: Engine, name: str, definition: Definition, *, by: str) -> None:
    """Make a schedule, or change one that isn't declared in code."""
    check_schedule(name, definition)

    def change(old: Schedule | None, now: Time) -> Schedule:
        if old is not None and old.is_code:
            raise Invalid(f"schedule {name} is declared in code; change it there, pause it, or choose another name")
        if definition.at is not None and definition.at <= now and (old is None or old.definition.at != definition.at):
            raise Invalid(f"schedule {name}: {iso(definition.at)} is in the past; give a time in the future")
        if old is not None and old.definition.fingerprint() == definition.fingerprint():
            return old
        return _defined(old, definition, now, by, f"put: {definition.words()}", is_code=False)

    await _change(engine, name, change)


async def pause_schedule(engine: Engine, name: str, *, by: str, reason: str = "") -> None:
    """Let no tick fire until it is resumed. Jobs that were submitted continue. Beats what code declares."""
    _check_reason(reason)

    def change(old: Schedule | None, now: Time) -> Schedule:
        assert old is not None
        if old.paused is not None:
            return old
        pause = Pause(by, now, reason)
        return replace(old, paused=pause, waiting=None, changes=old.with_change(by, now, _because("paused", reason)))

    await _change(engine, name, change, must_exist=True)


async def resume_schedule(engine: Engine, name: str, *, by: str, reason: str = "") -> None:
    """Let ticks fire again, from now on. Those during the pause don't count as missed."""
    _check_reason(reason)

    def change(old: Schedule | None, now: Time) -> Schedule:
        assert old is not None
        is_ahead = old.after - now > AHEAD_MS
        if old.paused is None and not is_ahead:
            raise NotFound(f"schedule {name} isn't paused, so there is nothing to resume")
        after = now if is_ahead else max(old.after, now)
        changes = old.with_change(by, now, _because("resumed", reason))
        return replace(old, paused=None, start=min(old.start, now), after=after, changes=changes)

    await _change(engine, name, change, must_exist=True)


async def run_schedule(engine: Engine, name: str, *, by: str, reason: str = "") -> str:
    """Submit the schedule's job now, paused or not; return its id. Its ticks stay as they are.

    Raises QueueFull if its queue is full and sheds nothing.
    """
    _check_reason(reason)
    for _ in range(CHANGE_TRIES):
        record, one = await find_schedule(engine, name)
        now = await engine.now()
        job = _tick_job(name, one, f"run {record.version}", now, now)
        sheds = await find_room(engine, await stored_bounds(engine), [job])
        jobs = await keep_arguments(engine, [job])
        new = replace(one, job=job.id, runs=one.runs + 1, changes=one.with_change(by, now, _because("run now", reason)))
        if not isinstance(await engine.put_record(record.name, new.text(), record.version, jobs), Conflict):
            await shed(engine, sheds, [Inserted(job.id, True)])
            await note_changed(engine, [name])
            return job.id
    raise Outrun(f"schedule {name}: others kept changing it, so nothing was submitted; try again")


async def remove_schedule(engine: Engine, name: str) -> bool:
    """Remove a schedule. Its jobs stay. Return whether code declares it: then the next worker makes it again."""
    for _ in range(CHANGE_TRIES):
        record = await _record(engine, name, must_exist=True)
        assert record is not None
        if not isinstance(await engine.put_record(record.name, None, record.version), Conflict):
            await note_changed(engine, [name])
            there = schedule_in(record)
            return there is not None and there.is_code
    raise Outrun(f"schedule {name}: others kept changing it, so it was not removed; try again")


# Reading and writing.


async def note_changed(engine: Engine, names: Sequence[str]) -> None:
    """Tell the leader that schedules have changed."""
    for _ in range(CHANGE_TRIES):
        there = next((one for one in await engine.records(CHANGED) if one.name == CHANGED), None)
        listed = names if len(names) == 1 else ()  # one name for each version; otherwise all are reread
        text = msgspec.json.encode([*(changed_names(there) if listed else ()), *listed][-CHANGED_LISTED:]).decode()
        answer = await engine.put_record(CHANGED, text, 0 if there is None else there.version)
        if not isinstance(answer, Conflict):
            return
    # Others keep noting their changes, so the leader looks anyway; but it must not take their list for complete.
    await engine.put_record(CHANGED, "[]")


def changed_names(record: Record | None) -> list[str]:
    """Return the names that were changed last, one for each version of the record, newest last."""
    try:
        return [] if record is None else msgspec.json.decode(record.value, type=list[str])
    except DecodeError:
        return []


async def _change(
    engine: Engine, name: str, change: Callable[[Schedule | None, Time], Schedule], *, must_exist: bool = False
) -> None:
    if await _update(engine, name, change, must_exist=must_exist):
        await note_changed(engine, [name])


async def _update(
    engine: Engine, name: str, change: Callable[[Schedule | None, Time], Schedule], *, must_exist: bool = False
) -> bool:
    """Change a schedule, and start over if somebody else did in between. Return whether anything is different."""
    for _ in range(CHANGE_TRIES):
        record = await _record(engine, name, must_exist=must_exist)
        old = None if record is None else schedule_in(record)
        if old is None and must_exist:
            raise _unreadable(name)
        new = change(old, await engine.now())
        if new == old:
            return False
        answer = await engine.put_record(SCHEDULE + name, new.text(), 0 if record is None else record.version)
        if not isinstance(answer, Conflict):
            return True
    raise Outrun(f"schedule {name}: others kept changing it, so nothing was changed; try again")


async def find_schedule(engine: Engine, name: str) -> tuple[Record, Schedule]:
    """Return a schedule and its record, or raise NotFound."""
    record = await _record(engine, name, must_exist=True)
    assert record is not None
    one = schedule_in(record)
    if one is None:
        raise _unreadable(name)
    return record, one


async def _record(engine: Engine, name: str, *, must_exist: bool) -> Record | None:
    found = next((one for one in await engine.records(SCHEDULE + name) if one.name == SCHEDULE + name), None)
    if found is None and must_exist:
        names = [record.name.removeprefix(SCHEDULE) for record in await engine.records(SCHEDULE)]
        known = f"; there are {', '.join(names[:5])}" if names else "; there is none"
        raise NotFound(f"there is no schedule {name!r} in this store{suggest(name, names) or known}")
    return found


def _unreadable(name: str) -> Invalid:
    return Invalid(f"schedule {name}: its record can't be read; remove it, and put or declare it again")


def _defined(old: Schedule | None, definition: Definition, now: Time, by: str, what: str, *, is_code: bool) -> Schedule:
    """Return a schedule with a new definition. If its timing is another, it starts anew."""
    if old is None:
        new = _new(definition, now, _ids(now), is_code=is_code)
        return replace(new, changes=new.with_change(by, now, what))
    changes = old.with_change(by, now, what)
    new = replace(old, definition=definition, is_code=is_code, error="", error_at=0, changes=changes)
    if definition.timing() == old.definition.timing():
        return new
    return replace(new, start=now, after=max(old.after, now), waiting=None)


def _new(definition: Definition, now: Time, born: str, *, is_code: bool) -> Schedule:
    return Schedule(definition=definition, is_code=is_code, born=born, start=now, after=now)


def _because(what: str, reason: str) -> str:
    return f"{what}: {reason}" if reason else what


def _check_reason(reason: str) -> None:
    if len(reason) > REASON_CHARACTERS:
        raise Invalid(f"reason has {len(reason):,} characters, but the limit is {REASON_CHARACTERS:,}; shorten it")
