"""The changes that a job may go through: a thin constructor for each event of the lifecycle.

Must not decide anything (`lifecycle.decide`). Each names the facts that its event needs; what goes with any change is
its Cargo. So a caller says `complete(job, now, by=…, result=…)` and can't leave out what the event needs.
"""

from collections.abc import Mapping
from typing import Any, TypedDict, Unpack

from holdfast.core.lifecycle import decide
from holdfast.core.model import Change, Error, Event, Job, Step, Time, Wait


class Cargo(TypedDict, total=False):
    """What goes with any change as it is: a note for the history, records, dropped ones, signals taken, new jobs."""

    note: Mapping[str, Any]
    steps: tuple[Step, ...]
    drops: tuple[str, ...]
    takes: tuple[int, ...]
    inserts: tuple[Job, ...]


# By the owner, under its lease.


def complete(job: Job, now: Time, *, by: str, result: str | None, **cargo: Unpack[Cargo]) -> Change:
    """The job is done, with its result as text."""
    return decide(job, Event.COMPLETE, now, by=by, result=result, **cargo)


def fail(job: Job, now: Time, *, by: str, error: Error, run_at: Time, **cargo: Unpack[Cargo]) -> Change:
    """The attempt failed, and the job tries again at `run_at`."""
    return decide(job, Event.FAIL, now, by=by, error=error, run_at=run_at, **cargo)


def exhaust(job: Job, now: Time, *, by: str, error: Error, **cargo: Unpack[Cargo]) -> Change:
    """The attempt failed, and the job needs a person."""
    return decide(job, Event.EXHAUST, now, by=by, error=error, **cargo)


def release(job: Job, now: Time, *, by: str, **cargo: Unpack[Cargo]) -> Change:
    """The job is handed over to other workers."""
    return decide(job, Event.RELEASE, now, by=by, **cargo)


def suspend(job: Job, now: Time, *, by: str, waits: tuple[Wait, ...], **cargo: Unpack[Cargo]) -> Change:
    """The job waits for something other than time."""
    return decide(job, Event.SUSPEND, now, by=by, waits=waits, **cargo)


def rest(job: Job, now: Time, *, by: str, run_at: Time, waits: tuple[Wait, ...] = (), **cargo: Unpack[Cargo]) -> Change:
    """The job comes back at `run_at`."""
    return decide(job, Event.REST, now, by=by, run_at=run_at, waits=waits, **cargo)


# By others, whoever holds the lease.


def lapse(
    job: Job, now: Time, *, by: str, progressed: bool = False, recovery: bool = True, **cargo: Unpack[Cargo]
) -> Change:
    """The job's worker is lost, and others may claim the job. See `lost_event` for the facts."""
    return decide(job, Event.LAPSE, now, by=by, progressed=progressed, recovery=recovery, **cargo)


def overrun(job: Job, now: Time, *, by: str, error: Error, run_at: Time, **cargo: Unpack[Cargo]) -> Change:
    """The job's timeout has passed and its owner did nothing: it tries again at `run_at`."""
    return decide(job, Event.OVERRUN, now, by=by, error=error, run_at=run_at, **cargo)


def abandon(job: Job, now: Time, *, by: str, error: Error, **cargo: Unpack[Cargo]) -> Change:
    """The job's worker is lost or did nothing in time, and the job needs a person."""
    return decide(job, Event.ABANDON, now, by=by, error=error, **cargo)


def cancel(job: Job, now: Time, *, by: str, **cargo: Unpack[Cargo]) -> Change:
    """The job is stopped on request."""
    return decide(job, Event.CANCEL, now, by=by, **cargo)


# While nobody holds a lease.


def claim(job: Job, now: Time, *, by: str, **cargo: Unpack[Cargo]) -> Change:
    """A worker takes the lease."""
    return decide(job, Event.CLAIM, now, by=by, **cargo)


def promote(job: Job, now: Time, *, by: str, **cargo: Unpack[Cargo]) -> Change:
    """The time has come for which the job waited."""
    return decide(job, Event.PROMOTE, now, by=by, **cargo)


def activate(job: Job, now: Time, *, by: str, **cargo: Unpack[Cargo]) -> Change:
    """What the job waited for is here."""
    return decide(job, Event.ACTIVATE, now, by=by, **cargo)


def expire(job: Job, now: Time, *, by: str, **cargo: Unpack[Cargo]) -> Change:
    """Nobody ran the job in time."""
    return decide(job, Event.EXPIRE, now, by=by, **cargo)


def replay(job: Job, now: Time, *, by: str, args: tuple[str, str] | None = None, **cargo: Unpack[Cargo]) -> Change:
    """A person lets the job run again, perhaps with edited arguments: `args` and their digest."""
    return decide(job, Event.REPLAY, now, by=by, args=args, **cargo)


def resolve(job: Job, now: Time, *, by: str, result: str, **cargo: Unpack[Cargo]) -> Change:
    """A person supplies the job's result."""
    return decide(job, Event.RESOLVE, now, by=by, result=result, **cargo)


def discard(job: Job, now: Time, *, by: str, **cargo: Unpack[Cargo]) -> Change:
    """A person gives the job up."""
    return decide(job, Event.DISCARD, now, by=by, **cargo)
