"""What a hook gets: a JobEvent, made from a job, from a change that was stored, or from its history. Pure.

Must not call hooks (`app.hooks`).
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, Protocol, get_args

from msgspec import Struct

from holdfast.core.durations import as_utc
from holdfast.core.model import SIGNAL, Change, Entry, Error, Event, Job, State, Time

HookName = Literal["submitted", "started", "retried", "recovered", "completed", "failed", "review", "cancelled"]
"""The events of jobs that a hook can be for."""

HOOK_NAMES: tuple[HookName, ...] = get_args(HookName)

ALERT_HOOK = "alert"
"""The one other event that a hook can be for: it gets an `AlertEvent`."""


class JobEvent(Struct, frozen=True, kw_only=True):
    """What happened to a job, for a hook. It has neither the job's arguments nor its result."""

    what: HookName
    """What happened: the name of the event."""
    job_id: str
    type: str
    queue: str
    at: datetime
    """When it happened, in UTC, by the store's clock."""
    attempt: int
    """The number of the attempt that this is about, from 1."""
    recoveries: int
    """How many workers in a row the job has lost."""
    worker: str | None = None
    """The worker that runs or ran the job; None if nobody did."""
    error: Error | None = None
    """What went wrong, with `type`, `message` and `traceback`, for `failed`, `retried` and `review`."""
    reason: str = ""
    """Why the job was cancelled, in the caller's words; or which worker was lost, and how, before a recovery."""
    duration_seconds: float | None = None
    """How long the worker had the job, when an attempt ends."""
    next_at: datetime | None = None
    """When the next try or attempt is due; None if there is none."""
    step: str = ""
    """The name of the step that is retried; "" if the event is about the whole job."""
    path: str = ""
    """The path of that step, as in its record: it names the item."""
    tries: int = 0
    """How many tries of that step have failed."""
    key: str | None = None
    """The idempotency key that the job was submitted with."""
    tags: tuple[str, ...] = ()
    meta: Mapping[str, str] = {}


class StepRetry(Struct, frozen=True, tag=True):
    """A step that failed and is retried. The process of an isolated job sends this to its worker."""

    step: str
    path: str
    tries: int
    error: Error
    at: Time
    next_at: Time


class Hooks(Protocol):
    """Where a worker reports what happens. Returns at once and never raises, whatever the hooks do. From any thread."""

    def hears(self, what: HookName) -> bool:
        """Whether there is a hook for this event."""

    def tell(self, event: JobEvent) -> None:
        """Let the hooks for this event be called soon."""

    def tell_found(self, find: Callable[[], Awaitable[JobEvent | None]]) -> None:
        """The same for an event that must be read from the store first. None if it didn't happen."""


MEANINGS: Mapping[str, tuple[HookName, ...]] = {
    Event.COMPLETE: ("completed",),
    Event.FAIL: ("failed", "retried"),
    Event.OVERRUN: ("failed", "retried"),
    Event.EXHAUST: ("failed", "review"),
    Event.ABANDON: ("review",),
    Event.CANCEL: ("cancelled",),
}
"""What a stored change means for hooks."""

_FAILED_ATTEMPTS = frozenset({Event.FAIL, Event.OVERRUN, Event.EXHAUST})
_TROUBLE = frozenset({"failed", "retried", "review"})

LOOK_BACK = 100
"""How many entries of a job's history are read to find out why it was claimed again. Between a lost worker and the next
claim there are only signals.
"""


def names_of(change: Change) -> tuple[HookName, ...]:
    """Return the events that a stored change means. The cancel of a running job is left to the worker that runs it."""
    if change.event == Event.CANCEL and change.before is State.ACTIVE:
        return ()
    return MEANINGS.get(change.event, ())


def event_of_change(what: HookName, change: Change) -> JobEvent:
    """Make the event that a stored change means."""
    job = change.job
    return _event(
        what,
        job,
        change.at,
        attempt=job.attempt - 1 if change.event in _FAILED_ATTEMPTS else job.attempt,
        worker=change.held_by,
        error=job.error if what in _TROUBLE else None,
        reason=str(change.note.get("reason", "")),
        duration_seconds=_seconds(change.held_since, change.at),
        next_at=as_utc(job.run_at) if job.state is State.RETRYABLE and job.run_at is not None else None,
    )


def event_of_submit(job: Job) -> JobEvent:
    """Make the event for a new job."""
    return _event("submitted", job, job.created_at)


def event_of_start(job: Job) -> JobEvent:
    """Make the event for a job that a worker has claimed and starts to run."""
    return _event("started", job, job.claimed_at or 0)


def event_of_recovery(job: Job, before: Sequence[Entry]) -> JobEvent | None:
    """Make the event for a claimed job whose earlier worker was lost. `before` is the history that ends with the claim;
    None if it was claimed again for another reason.
    """
    earlier = [entry for entry in before if entry.version < job.version and entry.event != SIGNAL]
    if not earlier or earlier[-1].event != Event.LAPSE:
        return None
    note = earlier[-1].note
    return _event("recovered", job, job.claimed_at or 0, reason=f"{note.get('lost', '')}: {note.get('why', '')}")


def event_of_cancel(job: Job, after: Sequence[Entry]) -> JobEvent | None:
    """Make the event for a job that was cancelled while it ran. `after` is its history since the claim; None if it was
    not cancelled, or if another worker ran it then.
    """
    found = next((one for one in after if one.event == Event.CANCEL and one.epoch == job.epoch), None)
    if found is None:
        return None
    duration = _seconds(job.claimed_at, found.at)
    return _event("cancelled", job, found.at, reason=str(found.note.get("reason", "")), duration_seconds=duration)


def event_of_step_retry(job: Job, retry: StepRetry) -> JobEvent:
    """Make the event for a step of a running job that is retried."""
    return _event(
        "retried",
        job,
        retry.at,
        error=retry.error,
        next_at=as_utc(retry.next_at),
        step=retry.step,
        path=retry.path,
        tries=retry.tries,
    )


def _event(what: HookName, job: Job, at: Time, **more: Any) -> JobEvent:
    options = job.options
    fields: dict[str, Any] = {"attempt": job.attempt, "worker": job.worker, **more}
    return JobEvent(
        what=what,
        job_id=job.id,
        type=job.type,
        queue=job.queue,
        at=as_utc(at),
        recoveries=job.recoveries,
        key=job.key,
        tags=tuple(options.tags),
        meta=dict(options.meta),
        **fields,
    )


def _seconds(since: Time | None, until: Time) -> float | None:
    return None if since is None else max(0, until - since) / 1_000
