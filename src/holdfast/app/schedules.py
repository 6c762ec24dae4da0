"""`app.schedule(…)` and `app.schedules`: what a user writes about schedules, and what it becomes as data.

Must not fire anything (`upkeep.scheduling`), and must not know the App, only how to open its store.
"""

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any, Literal

from holdfast.app.job import DecoratedJob
from holdfast.app.options import options_checked
from holdfast.app.run import Run
from holdfast.app.signatures import AnySignature
from holdfast.core.durations import Duration, milliseconds
from holdfast.core.errors import BadValue, Invalid
from holdfast.core.model import Time
from holdfast.core.schedules import Definition, Template
from holdfast.jobs.schedule_views import ScheduleView, list_schedules, view_schedule
from holdfast.jobs.schedules import check_schedule
from holdfast.jobs.service import Jobs
from holdfast.worker.registry import Registry

Missed = Literal["skip", "once", "all"]
Overlap = Literal["allow", "skip", "wait", "cancel_previous"]
Scheduled = DecoratedJob[..., Any] | AnySignature[Any]
"""What a schedule can submit: a job without arguments, or a signature."""

CALLER = "caller"
"""Who made a change through an App, unless it says so."""


class Schedules:
    """The schedules of an App's store. `app.schedules` is one."""

    def __init__(self, open: Callable[[], Awaitable[Jobs]], registry: Registry) -> None:
        self._open = open
        self._registry = registry

    @options_checked("app.schedules.put")
    async def put(
        self,
        cron: str | None = None,
        *,
        job: Scheduled,
        name: str,
        every: Duration | None = None,
        at: datetime | None = None,
        tz: str = "UTC",
        missed: Missed = "skip",
        overlap: Overlap = "allow",
        jitter: Duration | None = None,
        by: str = CALLER,
    ) -> ScheduleView:
        """Create a schedule in the store, or change one. For the options, see `App.schedule`.

        A schedule that code declares is refused. This one stays until you remove it. Any worker that knows its job
        fires it.
        """
        definition = define(name, cron, job, every, at, tz, missed, overlap, jitter)
        jobs = await self._open()
        await jobs.put_schedule(name, definition, by=by)
        return await view_schedule(jobs.engine, name)

    async def get(self, name: str) -> ScheduleView:
        """Return a schedule with its next ticks and its last job, or raise NotFound."""
        return await view_schedule((await self._open()).engine, name)

    async def list(self) -> list[ScheduleView]:
        """Return all schedules of the store, by name."""
        return await list_schedules((await self._open()).engine)

    async def pause(self, name: str, *, by: str = CALLER, reason: str = "") -> None:
        """Let no tick fire until it is resumed. Stands until then, also after a deploy."""
        await (await self._open()).pause_schedule(name, by=by, reason=reason)

    async def resume(self, name: str, *, by: str = CALLER, reason: str = "") -> None:
        """Let ticks fire again, from now on."""
        await (await self._open()).resume_schedule(name, by=by, reason=reason)

    async def run_now(self, name: str, *, by: str = CALLER, reason: str = "") -> Run[Any]:
        """Submit the schedule's job now, and return its run. The schedule's ticks stay as they are."""
        jobs = await self._open()
        id = await jobs.run_schedule(name, by=by, reason=reason)
        spec = self._registry.get((await view_schedule(jobs.engine, name)).type)
        return Run(self._open, id, None if spec is None else spec.signature)

    async def remove(self, name: str) -> None:
        """Remove a schedule. Its jobs stay. If code declares it, the next worker that starts makes it again."""
        await (await self._open()).remove_schedule(name)


def define(
    name: str,
    cron: str | None,
    job: Any,
    every: Duration | None,
    at: datetime | None,
    tz: str,
    missed: str,
    overlap: str,
    jitter: Duration | None,
) -> Definition:
    """Make a schedule's definition of what a user wrote, or raise Invalid."""
    return define_with(name, cron, template_of(name, job), every, at, tz, missed, overlap, jitter)


def define_with(
    name: str,
    cron: str | None,
    job: Template,
    every: Duration | None,
    at: datetime | None,
    tz: str,
    missed: str,
    overlap: str,
    jitter: Duration | None,
) -> Definition:
    """Like `define`, with the job as data."""
    if cron is not None and not isinstance(cron, str):
        raise Invalid(f"schedule {name}: {cron!r} isn't a cron expression; give text like '0 9 * * mon-fri'")
    if cron == "":
        raise Invalid(f"schedule {name}: the cron expression is empty; give one like '0 9 * * mon-fri'")
    definition = Definition(
        job=job,
        cron=" ".join((cron or "").split()),
        every_ms=0 if every is None else _duration(name, "every", every),
        at=None if at is None else _moment(name, at),
        tz=_zone_name(name, tz),
        missed=missed,
        overlap=overlap,
        jitter_ms=0 if jitter is None else _duration(name, "jitter", jitter),
    )
    if every is not None and not definition.every_ms:
        raise Invalid(f"schedule {name}: every={every!r}: give a time above 0")
    return check_schedule(name, definition)


def template_of(name: str, job: Any) -> Template:
    """Return the job of a schedule as data. A job without arguments may be given as it is."""
    if isinstance(job, DecoratedJob):
        try:
            job = job.s()
        except BadValue as error:
            raise Invalid(f"schedule {name}: {error}; give job={job.type}.s(…) with its arguments") from None
    if not isinstance(job, AnySignature):
        raise Invalid(f"schedule {name}: job={job!r}: give a job, or a signature like report.s('daily')")
    call = job.call
    if call.is_open:
        raise Invalid(
            f"schedule {name}: {call.type} needs its first argument; give job={call.type}.s(…) with all its arguments"
        )
    taken = {
        "unique": call.options.unique,
        "key": call.key,
        "key_for": call.key_for_ms,
        "delay": call.delay_ms,
        "at": call.run_at,
    }
    taken["expires (as a moment)"] = call.expires_at
    for option, value in taken.items():
        if value is not None:
            raise Invalid(
                f"schedule {name}: its job can't have {option}=, because each tick submits a new one; leave it out"
            )
    return Template(
        type=call.type,
        args=call.args,
        queue=call.queue,
        priority=call.priority,
        expires_ms=call.expires_ms,
        options=call.options,
    )


def _duration(name: str, option: str, given: Duration) -> int:
    try:
        return milliseconds(given)
    except Invalid as error:
        raise Invalid(f"schedule {name}: {option}={error}") from None


def _zone_name(name: str, tz: Any) -> str:
    if isinstance(tz, str):
        return tz
    key = getattr(tz, "key", None) or "Europe/Berlin"
    raise Invalid(f"schedule {name}: tz={tz!r}: give the name of a time zone, like tz={key!r}")


def _moment(name: str, at: Any) -> Time:
    if not isinstance(at, datetime) or at.tzinfo is None:
        raise Invalid(f"schedule {name}: at={at!r}: give a datetime with a time zone, like datetime(…, tzinfo=UTC)")
    return round(at.timestamp() * 1_000)
