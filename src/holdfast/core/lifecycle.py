"""The lifecycle: nine states and eighteen events as data, and `decide`, the one place where a change is decided.

Must not read a clock, draw a random number or know a store. The diagram, the docs page, the command line's legend
and the names that other systems use are all made from the two tables here. Callers that decide one event use its
constructor in `changes`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from holdfast.core.errors import NotAllowed
from holdfast.core.keys import derived_id
from holdfast.core.limits import INBOX_BYTES, INBOX_SIGNALS, NOTE_CHARACTERS, NOTE_ITEMS, size_of
from holdfast.core.model import (
    LEASE_LOST,
    NO_SUCH_JOB,
    OUTRUN,
    SIGNAL,
    Change,
    Conflict,
    Entry,
    Error,
    Event,
    Head,
    Job,
    Options,
    Signal,
    State,
    Step,
    Time,
    Wait,
    WaitKind,
)
from holdfast.core.table import EventRow as EventRow
from holdfast.core.table import LeaseRule as LeaseRule
from holdfast.core.table import StateRow as StateRow
from holdfast.core.table import check_table as check_table

RECOVERY_LIMIT = 3
"""How many workers in a row a job may lose before it needs a person."""

RECOVERY_BACKOFF_MS = 10_000
"""The second lost worker in a row makes a job wait this long, the third twice as long."""

RELEASE_LIMIT = 10
"""How often in a row a job may be started and released without progress: the tenth time, it needs a person. A job that
sends its own worker a stop signal looks like a deploy, and would otherwise restart forever.
"""

UNDO_GRACE_MS = 60_000
"""How long an undo waits for an owner that never reports that it stopped."""


S, E, L = State, Event, LeaseRule

STATES: tuple[StateRow, ...] = (
    StateRow(S.SCHEDULED, "waiting for a time: a delay or a durable sleep", "scheduled", "PENDING", "PENDING"),
    StateRow(S.AVAILABLE, "in its queue; any worker can claim it", "available", "PENDING", "PENDING"),
    StateRow(S.PENDING, "waiting for a person, a signal or child jobs", "pending", "PENDING", "PENDING"),
    StateRow(S.ACTIVE, "a worker holds its lease and runs it", "active", "STARTED", "RUNNING", owned=True),
    StateRow(S.RETRYABLE, "failed; runs again after its backoff", "retryable", "RETRY", "PENDING"),
    StateRow(
        S.REVIEW,
        "needs a person: no retries left, an effect in doubt, or too many lost workers",
        "discarded",
        "FAILURE",
        "NEEDS_REVIEW",
    ),
    StateRow(S.COMPLETED, "done", "completed", "SUCCESS", "DONE", terminal=True),
    StateRow(S.DISCARDED, "given up by a person, or expired", "discarded", "FAILURE", "NEEDS_REVIEW", terminal=True),
    StateRow(S.CANCELLED, "stopped on request", "cancelled", "REVOKED", "NEEDS_REVIEW", terminal=True),
)

TERMINAL: frozenset[State] = frozenset(row.state for row in STATES if row.terminal)
SETTLED: frozenset[State] = TERMINAL | {S.REVIEW}
"""Terminal, or in review: nothing more happens by itself, and a waiting parent counts the job as finished."""

_LIVE = tuple(row.state for row in STATES if not row.terminal)
_UNOWNED = (S.SCHEDULED, S.AVAILABLE, S.PENDING, S.RETRYABLE)
_ACTIVE = (S.ACTIVE,)
_REVIEW = (S.REVIEW,)

EVENTS: tuple[EventRow, ...] = (
    EventRow(E.SUBMIT, (), (S.AVAILABLE, S.SCHEDULED, S.PENDING), L.NONE, "caller", "a new job"),
    EventRow(E.PROMOTE, (S.SCHEDULED, S.RETRYABLE), (S.AVAILABLE,), L.NONE, "time", "its delay or backoff is over"),
    EventRow(
        E.ACTIVATE,
        (S.PENDING,),
        (S.AVAILABLE,),
        L.NONE,
        "caller, children, signal, time",
        "what it waited for has arrived, or its `within` has passed",
    ),
    EventRow(E.CLAIM, (S.AVAILABLE,), _ACTIVE, L.TAKES, "worker", "a worker takes the lease; epoch + 1"),
    EventRow(E.COMPLETE, _ACTIVE, (S.COMPLETED,), L.NEEDS, "owner", "done, with its result"),
    EventRow(E.FAIL, _ACTIVE, (S.RETRYABLE,), L.NEEDS, "owner", "failed, with retries left; the error is recorded"),
    EventRow(
        E.EXHAUST,
        _ACTIVE,
        _REVIEW,
        L.NEEDS,
        "owner",
        "no retries left, an error that is never retried, or ten releases in a row without progress",
    ),
    EventRow(
        E.RELEASE,
        _ACTIVE,
        (S.AVAILABLE,),
        L.NEEDS,
        "owner",
        "shutdown or deploy: back to the queue; uses no attempt",
    ),
    EventRow(E.SUSPEND, _ACTIVE, (S.PENDING,), L.NEEDS, "owner", "waits for a person, a signal or child jobs"),
    EventRow(
        E.REST,
        _ACTIVE,
        (S.SCHEDULED,),
        L.NEEDS,
        "owner",
        "a durable sleep, or put back to run later; uses no attempt",
    ),
    EventRow(
        E.LAPSE,
        _ACTIVE,
        (S.AVAILABLE,),
        L.BREAKS,
        "upkeep, owner",
        "its worker was lost, its worker's event loop ended, or its stage went stale; recoveries + 1",
    ),
    EventRow(
        E.OVERRUN,
        _ACTIVE,
        (S.RETRYABLE,),
        L.BREAKS,
        "upkeep",
        "its timeout has passed and its worker didn't stop it; counts as a failure",
    ),
    EventRow(
        E.ABANDON,
        _ACTIVE,
        _REVIEW,
        L.BREAKS,
        "upkeep, owner",
        "too many lost workers, no retries left, or an effect in doubt",
    ),
    EventRow(E.CANCEL, _LIVE, (S.CANCELLED,), L.BREAKS, "caller", "stopped on request"),
    EventRow(E.EXPIRE, _UNOWNED, (S.DISCARDED,), L.NONE, "time", "`expires` has passed"),
    EventRow(
        E.REPLAY,
        _REVIEW,
        (S.AVAILABLE,),
        L.NONE,
        "person",
        "runs again with its recorded steps, its arguments perhaps edited; attempt and recoveries are reset",
    ),
    EventRow(E.RESOLVE, _REVIEW, (S.COMPLETED,), L.NONE, "person", "a person supplies the result"),
    EventRow(E.DISCARD, _REVIEW, (S.DISCARDED,), L.NONE, "person", "a person gives it up"),
)

STATE_ROWS: Mapping[State, StateRow] = {row.state: row for row in STATES}
EVENT_ROWS: Mapping[Event, EventRow] = {row.event: row for row in EVENTS}


check_table(STATES, EVENTS)


def allowed(event: Event, state: State) -> bool:
    """Whether this event is possible in this state."""
    return state in EVENT_ROWS[event].sources


_OWNERS = frozenset(row.event for row in EVENTS if row.lease is LeaseRule.NEEDS)
_OWNER_AND_VERSION = frozenset({Event.SUSPEND, Event.REST})
_DROP_FAILED = frozenset({Event.FAIL, Event.OVERRUN, Event.REPLAY})


def decide(
    job: Job,
    event: Event,
    now: Time,
    *,
    by: str = "",
    result: str | None = None,
    error: Error | None = None,
    run_at: Time | None = None,
    waits: tuple[Wait, ...] = (),
    progressed: bool = False,
    recovery: bool = True,
    args: tuple[str, str] | None = None,
    signal: tuple[str, str] | None = None,
    takes: tuple[int, ...] = (),
    steps: tuple[Step, ...] = (),
    drops: tuple[str, ...] = (),
    inserts: tuple[Job, ...] = (),
    note: Mapping[str, Any] | None = None,
) -> Change:
    """Decide how `event` changes `job`, or raise NotAllowed.

    `by` names who did it. Some events need more: `result` (complete, resolve), `error` (fail, exhaust, overrun,
    abandon), `run_at` (fail, overrun: when to try again; rest: when to come back), `waits` (suspend, rest),
    `progressed` (lapse: a step was recorded since the last one, so the count of recoveries restarts), `recovery=False`
    (lapse after a restart of the store: not the worker's fault), `args` with their digest (an edited replay).
    The change carries the rest unchanged: a signal, signals taken, step records, dropped steps, new jobs.
    """
    row = EVENT_ROWS[event]
    before = job.state
    if before not in row.sources:
        raise NotAllowed(_refusal_of(event, job))
    after = row.targets[0]
    new = _fields_after(job, event, after, now, by, result, error, run_at, waits, progressed, recovery, args)
    owner = event in _OWNERS
    return Change(
        event=event,
        before=before,
        job=replace(job, **new),
        at=now,
        by=by,
        epoch=job.epoch if owner else None,
        version=None if owner and event not in _OWNER_AND_VERSION else job.version,
        note=_bound(note) if note else {},
        steps=steps,
        drops=drops,
        drops_failed=event in _DROP_FAILED,
        edits=args is not None and event is Event.REPLAY,
        signal=signal,
        takes=takes,
        arrives=job.parent is not None and after in SETTLED,
        inserts=inserts,
        held_by=job.worker,
        held_since=job.claimed_at,
    )


def _bound(value: Any) -> Any:
    """A note whose texts and lists are cut to what the history keeps."""
    if isinstance(value, str):
        rest = len(value) - NOTE_CHARACTERS
        return value if rest <= 0 else f"{value[:NOTE_CHARACTERS]} … and {rest:,} more characters"
    if isinstance(value, Mapping):
        return {name: _bound(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        more = [f"… and {len(value) - NOTE_ITEMS:,} more"] if len(value) > NOTE_ITEMS else []
        return [*map(_bound, value[:NOTE_ITEMS]), *more]
    return value


def _fields_after(
    job: Job,
    event: Event,
    after: State,
    now: Time,
    by: str,
    result: str | None,
    error: Error | None,
    run_at: Time | None,
    waits: tuple[Wait, ...],
    progressed: bool,
    recovery: bool,
    args: tuple[str, str] | None,
) -> dict[str, Any]:
    """The fields that an event changes."""
    new: dict[str, Any] = {"state": after}
    if job.state is State.ACTIVE:
        new["worker"] = new["claimed_at"] = None
    match event:
        case Event.COMPLETE | Event.RESOLVE:
            new["result"], new["error"] = result, None
        case Event.CLAIM:
            new |= {"epoch": job.epoch + 1, "worker": by, "claimed_at": now}
        case Event.FAIL | Event.OVERRUN:
            assert run_at is not None, "when to try again"
            new |= {"attempt": job.attempt + 1, "error": error, "run_at": run_at}
        case Event.EXHAUST:
            new |= {"attempt": job.attempt + 1, "error": error}
        case Event.ABANDON:
            new |= {"error": error}
        case Event.ACTIVATE:
            # Keep an unreadable wait: the worker that claims the job puts it in review.
            new |= {"run_at": now, "waits": tuple(wait for wait in job.waits if wait.is_unreadable)}
        case Event.PROMOTE:
            new |= {"waits": ()}
        case Event.SUSPEND:
            assert waits, "what to wait for"
            new |= {"waits": waits, "run_at": _first_end(waits)}
        case Event.REST:
            assert run_at is not None, "when to come back"
            assert all(wait.kind is WaitKind.TIME for wait in waits), "a rest ends with time alone"
            new |= {"waits": waits, "run_at": run_at}
        case Event.LAPSE if recovery:
            lost = 1 if progressed else job.recoveries + 1
            new |= {"recoveries": lost}
            if lost > 1:
                new |= {"run_at": now + RECOVERY_BACKOFF_MS * 2 ** (lost - 2)}
        case Event.REPLAY:
            new |= {"attempt": 1, "recoveries": 0, "run_at": now, "error": None, "waits": ()}
            if args is not None:
                new |= {"args": args[0], "digest": args[1]}
        case _:
            pass
    if after in TERMINAL:
        keep_ms = job.options.keep_ms
        new["finished_at"], new["waits"], new["prune_at"] = now, (), None if keep_ms is None else now + keep_ms
    return new


def first_state(now: Time, run_at: Time | None, waits: tuple[Wait, ...]) -> tuple[State, Time | None]:
    """The first state of a new job, and its `run_at`: it waits for something, for a time, or for a worker."""
    if waits:
        return State.PENDING, _first_end(waits)
    if run_at is not None and run_at > now:
        return State.SCHEDULED, run_at
    return State.AVAILABLE, now


def deliver(
    job: Job,
    name: str,
    value: str,
    now: Time,
    *,
    by: str = "",
    untaken: Sequence[Signal] | None = None,
    is_awaited: bool = False,
) -> Change:
    """Decide how a signal changes a job: it wakes a job that waits for it, and otherwise stays in the inbox.

    A job whose waits can't be read wakes too, since it may have waited for this signal. A full inbox refuses a signal
    unless the job waits for it. A pending job's own waits say so; for other jobs the caller does (`is_awaited`).
    `untaken` are the signals to count, if the inbox still holds some that the job has taken. The change expects the
    version that was read, so that senders that race can't exceed the bound together.
    """
    if job.state in TERMINAL:
        raise NotAllowed(f"job {job.id} {_state_phrase(job.state)}, so you can't send it a signal")
    if job.state is State.PENDING and any(
        (w.kind is WaitKind.SIGNAL and w.name == name) or w.is_unreadable for w in job.waits
    ):
        return decide(job, Event.ACTIVATE, now, by=by, signal=(name, value), note={"signal": name})
    if not name.startswith("~") and not is_awaited:
        _check_inbox(job, job.inbox if untaken is None else untaken, name, value)
    return Change(
        event=SIGNAL,
        before=job.state,
        job=job,
        at=now,
        by=by,
        version=job.version,
        note={"signal": name},
        signal=(name, value),
    )


def _check_inbox(job: Job, untaken: Sequence[Signal], name: str, value: str) -> None:
    waiting = [signal for signal in untaken if not signal.name.startswith("~")]
    size = sum(size_of(signal.name) + size_of(signal.value) for signal in waiting) + size_of(name) + size_of(value)
    if len(waiting) >= INBOX_SIGNALS or size > INBOX_BYTES:
        raise NotAllowed(
            f"job {job.id}: signal {name[:40]!r} was not sent, because the inbox is full: {len(waiting):,} signals "
            f"wait there, and it holds at most {INBOX_SIGNALS:,}, and {INBOX_BYTES >> 20} MiB in all; send it again "
            "when the job has taken some, or store the values elsewhere and send a path"
        )


WORKERS_LOST = "WorkersLost"
"""The error type of a job that was abandoned because it lost too many workers in a row."""


def lost_event(job: Job, *, progressed: bool, recovery: bool = True, in_doubt: bool = False) -> Event:
    """The event for a job whose worker is lost: back to the queue, or to a person. `decide` describes the arguments."""
    too_many = recovery and not progressed and job.recoveries >= RECOVERY_LIMIT
    return Event.ABANDON if in_doubt or too_many else Event.LAPSE


def standing(state: State) -> str:
    """A state as it reads after "it is": "active", "in review"."""
    return f"in {state}" if state is State.REVIEW else state.value


def _state_phrase(state: State) -> str:
    """A state as it reads after "the job": "is in review", "has already completed", "was already cancelled"."""
    if state not in TERMINAL:
        return f"is {standing(state)}"
    return "has already completed" if state is State.COMPLETED else f"was already {state}"


def undo_job(job: Job, type: str, now: Time) -> Job:
    """The job that undoes what this one made. The change that ends this one inserts it.

    It waits until the owner has reported that it stopped, or until UNDO_GRACE_MS have passed. Its id is derived from
    the job's, so there is only one.
    """
    running = job.state is State.ACTIVE
    return Job(
        id=derived_id(job.id, "undo"),
        type=type,
        queue=job.queue,
        args=f'["{job.id}"]',
        priority=job.priority,
        parent=job.id,
        group="undo",
        created_at=now,
        options=Options(keep_ms=job.options.keep_ms),
        state=State.PENDING if running else State.AVAILABLE,
        run_at=now + UNDO_GRACE_MS if running else now,
        waits=(Wait(WaitKind.STOPPED, job.id, now + UNDO_GRACE_MS),) if running else (),
    )


# How every engine must apply a Change. Engines that keep rows in Python call these; the others do the same in SQL or
# Lua.


def refusal(head: Job | Head | None, change: Change) -> Conflict | None:
    """Why the store must refuse this change, given the job as stored now; None to accept it."""
    if head is None:
        return Conflict(change.job.id, NO_SUCH_JOB)
    if change.epoch is not None and (head.epoch != change.epoch or head.state is not State.ACTIVE):
        return Conflict(head.id, LEASE_LOST, head.state, head.version, head.epoch)
    if change.version is not None and head.version != change.version:
        return Conflict(head.id, OUTRUN, head.state, head.version, head.epoch)
    return None


def applied(head: Job | Head, change: Change) -> Job:
    """The job after the change, with the new version, the merged inbox and the arrival mark."""
    version = head.version + 1
    inbox = head.inbox
    if change.takes:
        inbox = tuple(signal for signal in inbox if signal.version not in change.takes)
    if change.signal is not None:
        name, value = change.signal
        inbox = (*inbox, Signal(version, name, value, change.by, change.at))
    arrived = head.arrived or change.arrives
    return replace(change.job, version=version, inbox=inbox, arrived=arrived)


def entry_of(change: Change, version: int) -> Entry:
    """The history entry of a change that made this version."""
    job = change.job
    return Entry(
        job=job.id,
        version=version,
        at=change.at,
        event=change.event,
        before=change.before,
        after=job.state,
        by=change.by,
        epoch=job.epoch,
        note=change.note,
    )


def submit_entry(job: Job) -> Entry:
    """The first entry of a job's history."""
    return Entry(
        job=job.id,
        version=1,
        at=job.created_at,
        event=Event.SUBMIT,
        before=None,
        after=job.state,
        by=job.parent or "",
        epoch=job.epoch,
    )


def _first_end(waits: tuple[Wait, ...]) -> Time | None:
    return min((wait.until for wait in waits if wait.until is not None), default=None)


_PARTICIPLES = {
    Event.CANCEL: "cancelled",
    Event.REPLAY: "replayed",
    Event.RESOLVE: "resolved",
    Event.DISCARD: "discarded",
}
"""The events that a person asks for, as they read after "can't be"."""


def _refusal_of(event: Event, job: Job) -> str:
    """Why an event isn't possible, and what a person could do instead."""
    state = job.state
    asked = _PARTICIPLES.get(event)
    refused = f"it can't be {asked}" if asked else f"{event} isn't possible"
    what = f"job {job.id} {_state_phrase(state)}, so {refused}"
    if state in TERMINAL:
        return f"{what}; to run it again, submit a new job" if event is Event.REPLAY else what
    events = [row.event for row in EVENTS if state in row.sources and {"caller", "person"} & set(row.who.split(", "))]
    return f"{what}; possible now: {', '.join(events)}"
