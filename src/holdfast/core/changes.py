"""One thin constructor of a Change for each event of the lifecycle.

Must not decide anything (`lifecycle.decide`). Each constructor takes the arguments that its event needs, so a caller
writes `complete(job, now, by=…, result=…)` and can't forget one. Cargo is what any change can carry.
"""

from collections.abc import Mapping
from typing import Any, TypedDict, Unpack

from holdfast.core.lifecycle import decide
from holdfast.core.model import Change, Error, Event, Job, Step, Time, Wait


class Cargo(TypedDict, total=False):
    """What any change can carry: a history note, step records, dropped steps, signals taken, new jobs."""

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
    """The worker gives the job back, and others can claim it."""
    return decide(job, Event.RELEASE, now, by=by, **cargo)


def suspend(job: Job, now: Time, *, by: str, waits: tuple[Wait, ...], **cargo: Unpack[Cargo]) -> Change:
    """The job waits for a person, a signal or child jobs."""
    return decide(job, Event.SUSPEND, now, by=by, waits=waits, **cargo)


def rest(job: Job, now: Time, *, by: str, run_at: Time, waits: tuple[Wait, ...] = (), **cargo: Unpack[Cargo]) -> Change:
    """The job comes back at `run_at`."""
    return decide(job, Event.REST, now, by=by, run_at=run_at, waits=waits, **cargo)


# By others, whether or not a worker holds the lease.


def lapse(
    job: Job, now: Time, *, by: str, progressed: bool = False, recovery: bool = True, **cargo: Unpack[Cargo]
) -> Change:
    """The job's worker is lost, and others can claim the job. `decide` describes the arguments."""
    return decide(job, Event.LAPSE, now, by=by, progressed=progressed, recovery=recovery, **cargo)


def overrun(job: Job, now: Time, *, by: str, error: Error, run_at: Time, **cargo: Unpack[Cargo]) -> Change:
    """The job's timeout has passed and its owner didn't stop it: the job tries again at `run_at`."""
    return decide(job, Event.OVERRUN, now, by=by, error=error, run_at=run_at, **cargo)


def abandon(job: Job, now: Time, *, by: str, error: Error, **cargo: Unpack[Cargo]) -> Change:
    """The job's worker is lost or didn't stop in time, and the job needs a person."""
    return decide(job, Event.ABANDON, now, by=by, error=error, **cargo)


def cancel(job: Job, now: Time, *, by: str, **cargo: Unpack[Cargo]) -> Change:
    """The job is stopped on request."""
    return decide(job, Event.CANCEL, now, by=by, **cargo)


# While nobody holds a lease.


def claim(job: Job, now: Time, *, by: str, **cargo: Unpack[Cargo]) -> Change:
    """A worker takes the lease."""
    return decide(job, Event.CLAIM, now, by=by, **cargo)


def promote(job: Job, now: Time, *, by: str, **cargo: Unpack[Cargo]) -> Change:
    """The job's delay or backoff is over."""
    return decide(job, Event.PROMOTE, now, by=by, **cargo)


def activate(job: Job, now: Time, *, by: str, **cargo: Unpack[Cargo]) -> Change:
    """What the job waited for has arrived."""
    return decide(job, Event.ACTIVATE, now, by=by, **cargo)


def expire(job: Job, now: Time, *, by: str, **cargo: Unpack[Cargo]) -> Change:
    """Nobody ran the job in time."""
    return decide(job, Event.EXPIRE, now, by=by, **cargo)


def replay(job: Job, now: Time, *, by: str, args: tuple[str, str] | None = None, **cargo: Unpack[Cargo]) -> Change:
    """A person makes the job run again, perhaps with edited arguments: `args` and their digest."""
    return decide(job, Event.REPLAY, now, by=by, args=args, **cargo)


def resolve(job: Job, now: Time, *, by: str, result: str, **cargo: Unpack[Cargo]) -> Change:
    """A person supplies the job's result."""
    return decide(job, Event.RESOLVE, now, by=by, result=result, **cargo)


def discard(job: Job, now: Time, *, by: str, **cargo: Unpack[Cargo]) -> Change:
    """A person gives the job up."""
    return decide(job, Event.DISCARD, now, by=by, **cargo)
