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
"""How many workers in a row may vanish over a job before it needs a person."""

RECOVERY_BACKOFF_MS = 10_000
"""The second lost worker in a row makes a job wait this long, the third twice as long."""

RELEASE_LIMIT = 10
"""How often in a row a job may be begun and released without progress: the tenth time it needs a person. A job that
sends its own worker a signal to stop looks like a deploy, and would else never end.
"""

UNDO_GRACE_MS = 60_000
"""How long an undo waits for an owner that never says it stopped."""


S, E, L = State, Event, LeaseRule

STATES: tuple[StateRow, ...] = (
    StateRow(S.SCHEDULED, "waits for a time: a delay or a durable sleep", "scheduled", "PENDING", "PENDING"),
    StateRow(S.AVAILABLE, "in its queue; any worker may claim it", "available", "PENDING", "PENDING"),
    StateRow(
        S.PENDING,
        "waits for something other than time: activation, approval, a signal, children, a budget",
        "pending",
        "PENDING",
        "PENDING",
    ),
    StateRow(S.ACTIVE, "a worker runs it under a lease", "active", "STARTED", "RUNNING", owned=True),
    StateRow(S.RETRYABLE, "failed; tries again after its backoff", "retryable", "RETRY", "PENDING"),
    StateRow(
        S.REVIEW,
        "needs a person: tries are spent, an effect is in doubt, or too many workers died on it",
        "discarded",
        "FAILURE",
        "NEEDS_REVIEW",
    ),
    StateRow(S.COMPLETED, "done", "completed", "SUCCESS", "DONE", terminal=True),
    StateRow(S.DISCARDED, "given up for good", "discarded", "FAILURE", "NEEDS_REVIEW", terminal=True),
    StateRow(S.CANCELLED, "stopped on request", "cancelled", "REVOKED", "NEEDS_REVIEW", terminal=True),
)

TERMINAL: frozenset[State] = frozenset(row.state for row in STATES if row.terminal)
SETTLED: frozenset[State] = TERMINAL | {S.REVIEW}
"""Terminal, or in review: nothing more happens by itself, and a waiting parent counts it."""

_LIVE = tuple(row.state for row in STATES if not row.terminal)
_UNOWNED = (S.SCHEDULED, S.AVAILABLE, S.PENDING, S.RETRYABLE)
_ACTIVE = (S.ACTIVE,)
_REVIEW = (S.REVIEW,)

EVENTS: tuple[EventRow, ...] = (
    EventRow(E.SUBMIT, (), (S.AVAILABLE, S.SCHEDULED, S.PENDING), L.NONE, "caller", "a new job"),
    EventRow(E.PROMOTE, (S.SCHEDULED, S.RETRYABLE), (S.AVAILABLE,), L.NONE, "time", "its moment has come"),
    EventRow(
        E.ACTIVATE,
        (S.PENDING,),
        (S.AVAILABLE,),
        L.NONE,
        "caller, children, signal, time",
        "what it waited for is here, or its `within` is over",
    ),
    EventRow(E.CLAIM, (S.AVAILABLE,), _ACTIVE, L.TAKES, "worker", "takes the lease; epoch + 1"),
    EventRow(E.COMPLETE, _ACTIVE, (S.COMPLETED,), L.NEEDS, "owner", "done, with its result"),
    EventRow(E.FAIL, _ACTIVE, (S.RETRYABLE,), L.NEEDS, "owner", "tries are left; the error is kept"),
    EventRow(
        E.EXHAUST,
        _ACTIVE,
        _REVIEW,
        L.NEEDS,
        "owner",
        "no tries left, the error says never to retry, or released ten times in a row without progress",
    ),
    EventRow(
        E.RELEASE,
        _ACTIVE,
        (S.AVAILABLE,),
        L.NEEDS,
        "owner",
        "shutdown or deploy: handed over, costs no attempt",
    ),
    EventRow(E.SUSPEND, _ACTIVE, (S.PENDING,), L.NEEDS, "owner", "waits for children, a signal, a person, a budget"),
    EventRow(
        E.REST,
        _ACTIVE,
        (S.SCHEDULED,),
        L.NEEDS,
        "owner",
        "durable sleep, or told to come back later; costs no attempt",
    ),
    EventRow(
        E.LAPSE,
        _ACTIVE,
        (S.AVAILABLE,),
        L.BREAKS,
        "upkeep, owner",
        "its worker vanished, something ended its worker's event loop, or its stage went stale; recoveries + 1",
    ),
    EventRow(
        E.OVERRUN,
        _ACTIVE,
        (S.RETRYABLE,),
        L.BREAKS,
        "upkeep",
        "its timeout has passed and its owner did nothing; counts as a failure",
    ),
    EventRow(
        E.ABANDON,
        _ACTIVE,
        _REVIEW,
        L.BREAKS,
        "upkeep, owner",
        "recoveries or tries are spent, or an effect is in doubt",
    ),
    EventRow(E.CANCEL, _LIVE, (S.CANCELLED,), L.BREAKS, "caller", "stopped on request"),
    EventRow(E.EXPIRE, _UNOWNED, (S.DISCARDED,), L.NONE, "time", "`expires` has passed"),
    EventRow(
        E.REPLAY,
        _REVIEW,
        (S.AVAILABLE,),
        L.NONE,
        "person",
        "again, with what was recorded, as it is or edited; attempt and recoveries start anew",
    ),
    EventRow(E.RESOLVE, _REVIEW, (S.COMPLETED,), L.NONE, "person", "supplies the result"),
    EventRow(E.DISCARD, _REVIEW, (S.DISCARDED,), L.NONE, "person", "given up"),
)

STATE_ROWS: Mapping[State, StateRow] = {row.state: row for row in STATES}
EVENT_ROWS: Mapping[Event, EventRow] = {row.event: row for row in EVENTS}


check_table(STATES, EVENTS)


def allowed(event: Event, state: State) -> bool:
    """Whether the lifecycle has an edge for this event out of this state."""
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
    """Decide what `event` makes of `job`, or raise NotAllowed.

    `by` names who did it. Facts that an event needs: `result` (complete, resolve), `error` (fail, exhaust, overrun,
    abandon), `run_at` (fail, overrun: when to try again; rest: when to come back), `waits` (suspend, rest),
    `progressed` (lapse: a step was recorded since the last one, so the row of recoveries starts anew), `recovery=False`
    (lapse after a restart of the store: not the worker's fault), `args` with their digest (an edited replay).
    The rest goes with the change as it is: a signal, signals taken, step records, dropped steps, new jobs.
    """
    row = EVENT_ROWS[event]
    before = job.state
    if before not in row.sources:
        raise NotAllowed(f"job {job.id}: {event} is not possible while it is {standing(before)}; {_ways_out(before)}")
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
    )


def _bound(value: Any) -> Any:
    """A note without more than the history keeps of a text or a list."""
    if isinstance(value, str):
        rest = len(value) - NOTE_CHARACTERS
        return value if rest <= 0 else f"{value[:NOTE_CHARACTERS]} … and {rest:,} characters more"
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
    """What an event makes of a job."""
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
            # What nobody could read stays: the worker that claims it sets it aside.
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
    """Where a new job begins, and its `run_at`: it waits for something, for a time, or for a worker."""
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
    """Decide what a signal makes of a job: it wakes one that waits for it, and else waits in the inbox.

    A job whose waits can't be read may have waited for just this one: it wakes, too. An inbox that is full takes no
    more, except for what its job waits for: a pending one says so itself, of others the caller knows it (`is_awaited`).
    `untaken` are the signals that count, where those that the job has taken are still in the inbox. The change expects
    the version that was looked at, so that racing senders can't pass the bound together.
    """
    if job.state in TERMINAL:
        raise NotAllowed(f"job {job.id}: a signal is not possible while it is {job.state}; it has ended")
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
            f"job {job.id}: its inbox is full: it has not taken {len(waiting):,} signals, and holds at most "
            f"{INBOX_SIGNALS:,} of {INBOX_BYTES >> 20} MiB in all; signal {name[:40]!r} was not sent: "
            "send it when the job has taken some, or keep the values elsewhere and send a path"
        )


WORKERS_LOST = "WorkersLost"
"""The type of the error that says why a job was abandoned: too many workers in a row were lost over it."""


def lost_event(job: Job, *, progressed: bool, recovery: bool = True, in_doubt: bool = False) -> Event:
    """What becomes of a job whose worker is gone: back to the queue, or to a person. The facts are those of a lapse."""
    too_many = recovery and not progressed and job.recoveries >= RECOVERY_LIMIT
    return Event.ABANDON if in_doubt or too_many else Event.LAPSE


def standing(state: State) -> str:
    """A state behind "it is": "active", "in review"."""
    return f"in {state}" if state is State.REVIEW else state.value


def undo_job(job: Job, type: str, now: Time) -> Job:
    """The job that undoes what this one made, to be inserted with its end.

    It waits until the owner has said that it stopped, or the grace is over. Its id is derived: there is only one.
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


# What every engine must make of a Change. Engines with rows in Python use these; others say the same in SQL or Lua.


def refusal(head: Job | Head | None, change: Change) -> Conflict | None:
    """Why the store must refuse this change, given the job as it is there now; None to go ahead."""
    if head is None:
        return Conflict(change.job.id, NO_SUCH_JOB)
    if change.epoch is not None and (head.epoch != change.epoch or head.state is not State.ACTIVE):
        return Conflict(head.id, LEASE_LOST, head.state, head.version, head.epoch)
    if change.version is not None and head.version != change.version:
        return Conflict(head.id, OUTRUN, head.state, head.version, head.epoch)
    return None


def applied(head: Job | Head, change: Change) -> Job:
    """The job after the change: its version counted, its inbox merged, its arrival marked."""
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


def _ways_out(state: State) -> str:
    """The events a person could still use, for an error's "what now"."""
    if state in TERMINAL:
        return "it has ended, and nothing leads out of there"
    events = [row.event for row in EVENTS if state in row.sources and {"caller", "person"} & set(row.who.split(", "))]
    return f"possible now: {', '.join(events)}"
