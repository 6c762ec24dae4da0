"""The values that everything else passes around: frozen, and known to every layer.

Must not decide anything (that is `lifecycle`), read a clock or touch a store.

Times are whole milliseconds since 1970 on the store's clock, called `…_at`. Values that users gave or got are
canonical JSON text (`codec`): the engines store them and never look inside.

What comes by the thousand has `gc=False`: plain data can't be part of a cycle, and the collector needn't walk over it.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from msgspec import Struct

Time = int
"""Milliseconds since 1970 on the store's clock."""

NEW_JOBS_LIMIT = 400
"""How many new jobs may go with one Change: one atomic act stays small on every store."""

PAGE_LIMIT = 1_000
"""The longest page that a read answers with."""


UNREADABLE = "~unreadable"
"""Marks a value that stands for a damaged one and keeps its raw text (`unreadable`). No caller may use the name."""


class State(StrEnum):
    """Where a job is in its life. Meanings and names elsewhere: `lifecycle.STATES`."""

    SCHEDULED = "scheduled"
    AVAILABLE = "available"
    PENDING = "pending"
    ACTIVE = "active"
    RETRYABLE = "retryable"
    REVIEW = "review"
    COMPLETED = "completed"
    DISCARDED = "discarded"
    CANCELLED = "cancelled"


class Event(StrEnum):
    """What may happen to a job. From, to and lease rule: `lifecycle.EVENTS`."""

    SUBMIT = "submit"
    PROMOTE = "promote"
    ACTIVATE = "activate"
    CLAIM = "claim"
    COMPLETE = "complete"
    FAIL = "fail"
    EXHAUST = "exhaust"
    RELEASE = "release"
    SUSPEND = "suspend"
    REST = "rest"
    LAPSE = "lapse"
    OVERRUN = "overrun"
    ABANDON = "abandon"
    CANCEL = "cancel"
    EXPIRE = "expire"
    REPLAY = "replay"
    RESOLVE = "resolve"
    DISCARD = "discard"


SIGNAL = "signal"
"""The one kind of history entry that is no event: a signal arrived and the state stayed as it was."""

NEVER_ASKED = "never_asked_for"
"""Under this word an entry's note has the recorded steps that the code never asked for, by name with their number."""


class Error(Struct, frozen=True, omit_defaults=True):
    """What went wrong, as data: never an exception to rebuild."""

    type: str
    message: str
    traceback: str = ""


class Retry(Struct, frozen=True, omit_defaults=True):
    """When a failed job or step tries again. `outcome.next_delay` reads it."""

    retries: int = 3
    strategy: str = "exponential"
    initial_ms: int = 1_000
    factor: float = 2.0
    cap_ms: int = 300_000
    jitter: bool = True
    never: tuple[str, ...] = ()


class WaitKind(StrEnum):
    """What a waiting job can wait for."""

    TIME = "time"
    SIGNAL = "signal"
    CHILDREN = "children"
    ACTIVATION = "activation"
    STOPPED = "stopped"


class Wait(Struct, frozen=True, omit_defaults=True):
    """One thing that a waiting job waits for. Any of them wakes it.

    `name` is the signal's name, or the group of children; `until` is when the wait is over in any case.
    """

    kind: WaitKind
    name: str = ""
    until: Time | None = None

    @property
    def is_unreadable(self) -> bool:
        """Whether nobody can tell what this is a wait for."""
        return self.kind is WaitKind.ACTIVATION and self.name.startswith(UNREADABLE)


class Signal(Struct, frozen=True):
    """A message in a job's inbox. `version` is the job's version that it made, and names it."""

    version: int
    name: str
    value: str
    by: str
    at: Time


class Lease(Struct, frozen=True, gc=False):
    """The right to write for a job. An older epoch is refused whole."""

    job: str
    epoch: int


class Options(Struct, frozen=True, omit_defaults=True, gc=False):
    """What the caller asked for and only the worker and upkeep read."""

    retry: Retry = Retry()
    timeout_ms: int | None = None
    keep_ms: int | None = None
    stages: tuple[str, ...] = ()
    cleanup: bool = False
    tags: tuple[str, ...] = ()
    meta: Mapping[str, str] = {}


class Job(Struct, frozen=True, kw_only=True, gc=False):
    """One job: what was asked, and where it stands."""

    # What was asked: written once.
    id: str
    type: str
    queue: str = "default"
    args: str = "[]"
    digest: str = ""
    priority: int = 0
    key: str | None = None
    key_until: Time | None = None
    parent: str | None = None
    group: str | None = None
    created_at: Time
    expires_at: Time | None = None
    options: Options = Options()
    # Where it stands: changes with every version.
    state: State
    version: int = 1
    run_at: Time | None = None
    epoch: int = 0
    attempt: int = 1
    recoveries: int = 0
    worker: str | None = None
    claimed_at: Time | None = None
    waits: tuple[Wait, ...] = ()
    result: str | None = None
    error: Error | None = None
    finished_at: Time | None = None
    prune_at: Time | None = None
    # What others add to: signals that came, and whether its parent has counted it.
    inbox: tuple[Signal, ...] = ()
    arrived: bool = False

    @property
    def lease(self) -> Lease:
        """What every write by the owner of this job names."""
        return Lease(self.id, self.epoch)


class Head(Struct, frozen=True):
    """The part of a stored job that decides whether a Change still holds. `n` is the engine's own number for it."""

    id: str
    state: State
    version: int
    epoch: int
    inbox: tuple[Signal, ...] = ()
    arrived: bool = False
    worker: str | None = None
    n: int = 0


class StepState(StrEnum):
    """How far a step has come. `started` is written only where the intent matters."""

    STARTED = "started"
    DONE = "done"
    FAILED = "failed"


class Step(Struct, frozen=True, kw_only=True, gc=False):
    """The record of one step or item of a job, known by its path (`keys.step_path`)."""

    job: str
    epoch: int
    path: str
    name: str
    state: StepState
    result: str | None = None
    error: Error | None = None
    started_at: Time
    finished_at: Time | None = None
    tries: int = 1


class Entry(Struct, frozen=True, kw_only=True, gc=False):
    """One line of a job's history: what made this version."""

    job: str
    version: int
    at: Time
    event: str
    before: State | None
    after: State
    by: str
    epoch: int
    note: Mapping[str, Any] = {}


class Change(Struct, frozen=True, kw_only=True, gc=False):
    """One atomic act on one job, made by `lifecycle.decide` and carried out by an engine.

    `job` is the job as it will be. The engine itself counts `version`, merges `inbox` and marks `arrived`, because
    others may add to those meanwhile. `epoch` and `version` are what must still be true in the store: an owner
    expects its epoch on an active job, anybody else expects the version, None expects nothing.
    """

    event: str
    before: State
    job: Job
    at: Time
    by: str
    epoch: int | None = None
    version: int | None = None
    note: Mapping[str, Any] = {}
    steps: tuple[Step, ...] = ()
    drops: tuple[str, ...] = ()
    drops_failed: bool = False
    edits: bool = False
    signal: tuple[str, str] | None = None
    takes: tuple[int, ...] = ()
    arrives: bool = False
    inserts: tuple[Job, ...] = ()


class Applied(Struct, frozen=True, gc=False):
    """The change is durable. `missing` counts the group's children still out, when this one arrived at its parent."""

    version: int
    missing: int | None = None


# Why a change is refused, in the words that every engine uses.

NO_SUCH_JOB = "there is no such job"
LEASE_LOST = "the lease was lost"
OUTRUN = "somebody was faster"
CHILDREN_ARE_IN = "its children have arrived"


class Conflict(Struct, frozen=True):
    """The change was refused whole, and why. What the store holds now is told, so that the caller can decide anew."""

    job: str
    reason: str
    state: State | None = None
    version: int = 0
    epoch: int = 0


class Inserted(Struct, frozen=True, gc=False):
    """The job that stands for what was inserted: this one, or the one that was there before."""

    id: str
    new: bool


class Recorded(Struct, frozen=True, gc=False):
    """The step record that stands. `first` is False when another write had won before."""

    step: Step
    first: bool


class Retrying(Struct, frozen=True, omit_defaults=True):
    """A step that has failed and is tried again. `try_number` is the try that comes at `next_at`, or has begun then;
    `of` is how many there may be. `others` counts the other steps of the job that are being tried again.
    """

    step: str
    try_number: int
    of: int
    error: str
    next_at: Time
    others: int = 0


class Running(Struct, frozen=True, omit_defaults=True):
    """What a worker is doing for one job right now. `silent_ms` is how long ago it showed progress.

    `made` is how many of `done` were made since `since`: the others were there before, from records.
    """

    job: str
    epoch: int
    stage: str = ""
    done: int | None = None
    total: int | None = None
    made: int = 0
    text: str = ""
    since: Time | None = None
    silent_ms: int = 0
    stale_after_ms: int | None = None
    retrying: Retrying | None = None


TYPES_TOLD = 500
"""How many job types a beat names at most."""


class Presence(Struct, frozen=True, omit_defaults=True):
    """A worker, as its beat tells it. `leaving` is its last beat; `gone` is filled in by an engine that saw it die.

    `beat_ms` and `lease_ms` are how often it beats, and for how long it is believed in without. `store_away` is filled
    in, too: since its last beat the store, or the way to it, was away, so that its silence says little about it.
    `types` are the job types that it claims; None where they are not told, because it is of an older version or they
    are more than TYPES_TOLD.
    `trouble` is why it can't write what its jobs come to, such as a full disk.
    `unreadable` stands for a beat that can't be read: only the worker's name is known then, and when it was last heard
    of, unless `beat_at` is 0.
    """

    worker: str
    host: str = ""
    pid: int = 0
    queues: tuple[str, ...] = ()
    slots: int = 0
    started_at: Time = 0
    beat_at: Time = 0
    running: tuple[Running, ...] = ()
    leaving: bool = False
    gone: bool = False
    beat_ms: int = 2_000
    lease_ms: int = 15_000
    store_away: bool = False
    types: tuple[str, ...] | None = None
    trouble: str = ""
    unreadable: bool = False


class Beat(Struct, frozen=True):
    """What a worker must know: the answer to its beat.

    `cancelled` and `lost` are jobs it named and no longer holds; `stray` are leases in its name that it didn't name
    (the reply to a claim was lost); `paused` are queues of its own; `quiet` says to claim nothing more.
    """

    now: Time
    cancelled: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    stray: tuple[Lease, ...] = ()
    paused: tuple[str, ...] = ()
    quiet: bool = False


class Record(Struct, frozen=True):
    """A small named document with compare-and-set: leadership, pauses, schedules, limits."""

    name: str
    value: str
    version: int
    at: Time


class Where(Struct, frozen=True):
    """Which jobs to find. What is left out doesn't matter; `states` empty means any."""

    states: tuple[State, ...] = ()
    queue: str | None = None
    type: str | None = None
    parent: str | None = None
    expires_before: Time | None = None
    newest_first: bool = False
