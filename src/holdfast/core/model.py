"""The values that everything else passes around: frozen, and known to every layer.

Must not decide anything (that is `lifecycle`), read a clock or touch a store.

Times are whole milliseconds since 1970 on the store's clock, called `…_at`. Users' arguments and results are canonical
JSON text (`codec`): engines store them and never look inside.

Types with thousands of instances have `gc=False`: plain data can't form a cycle, so the collector can skip it.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from msgspec import Struct

Time = int
"""Milliseconds since 1970 on the store's clock."""

NEW_JOBS_LIMIT = 400
"""How many new jobs one Change may carry, so that one atomic act stays small on every store."""

PAGE_LIMIT = 1_000
"""The largest page that a read returns."""


UNREADABLE = "~unreadable"
"""Marks a placeholder for a damaged value, which keeps the raw text (`unreadable`). Callers can't use this name."""


class State(StrEnum):
    """The state of a job. `lifecycle.STATES` has the meanings, and the names in other systems."""

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
    """What can happen to a job. `lifecycle.EVENTS` has the states it leads from and to, and the lease rule."""

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
"""The one kind of history entry that isn't an event: a signal arrived, and the state didn't change."""

NEVER_ASKED = "never_asked_for"
"""The key in an entry's note for recorded steps that the code never asked for: a count for each step name."""


class Error(Struct, frozen=True, omit_defaults=True):
    """An error as plain data; it is never turned back into an exception."""

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
    LIMIT = "limit"


COPYING = "~copying"
"""The name of the wait of a new run whose records are still to be copied from another one."""


class Wait(Struct, frozen=True, omit_defaults=True):
    """One thing that a waiting job waits for. Any of them wakes it.

    `name` is the signal's name, the group of children, or the key of a limit; `until` is when the wait times out.
    """

    kind: WaitKind
    name: str = ""
    until: Time | None = None

    @property
    def is_unreadable(self) -> bool:
        """Whether this stands for a wait that can't be read."""
        return self.kind is WaitKind.ACTIVATION and self.name.startswith(UNREADABLE)

    @property
    def is_for_copy(self) -> bool:
        """Whether this ends with the act that writes the records of a copied run."""
        return self.kind is WaitKind.ACTIVATION and self.name == COPYING


class Signal(Struct, frozen=True):
    """A signal in a job's inbox. It is identified by `version`, the version of the job that it created."""

    version: int
    name: str
    value: str
    by: str
    at: Time


class Lease(Struct, frozen=True, gc=False):
    """The right to write for a job. The store refuses a write with an older epoch."""

    job: str
    epoch: int


class Use(Struct, frozen=True, omit_defaults=True, gc=False):
    """What a job or step needs of a shared limit: a permit under this key, and units of its rate, in millionths."""

    key: str
    units: int = 1_000_000


class UniqueName(Struct, frozen=True, omit_defaults=True, gc=False):
    """The name of a unique job, and in which states and how long another job with this name counts (`unique`).

    `then` is what to do about such a job: return it, refuse or replace it.
    """

    key: str
    states: tuple[State, ...] = (
        State.SCHEDULED,
        State.AVAILABLE,
        State.PENDING,
        State.ACTIVE,
        State.RETRYABLE,
        State.REVIEW,
    )
    within_ms: int | None = None
    then: str = "return"


class Options(Struct, frozen=True, omit_defaults=True, gc=False):
    """Settings from the caller that only the worker and the upkeep read.

    Engines know three of them: a claim takes the permits that `limits` asks for (`shared_limits`), jobs of one queue
    and priority whose `fair` differs take turns (`fairness`), and an insert looks whether there is a job with the same
    `unique` name (`unique`). `budget` is what the job and its children may spend, in millionths of each currency
    (`budgets`). A child draws on the budget of `budget_root`. `envelope` is JSON text that only the HTTP API reads:
    what was submitted over the Open Job Spec and has no field of its own. It is empty for every other job.
    """

    retry: Retry = Retry()
    timeout_ms: int | None = None
    keep_ms: int | None = None
    keep_result_ms: int | None = None
    """How long the result is kept after the job ended, if that is shorter than the job itself."""
    stages: tuple[str, ...] = ()
    cleanup: bool = False
    tags: tuple[str, ...] = ()
    meta: Mapping[str, str] = {}
    limits: tuple[Use, ...] = ()
    unique: UniqueName | None = None
    fair: str = ""
    budget: Mapping[str, int] = {}
    budget_root: str = ""
    envelope: str = ""
    submitted_by: str = ""
    """The name of the token that submitted the job over HTTP, if it came with one. The history shows it."""


class Job(Struct, frozen=True, kw_only=True, gc=False):
    """One job: what was submitted, and its current state."""

    # What was submitted: written once.
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
    # The current state: changes with every version.
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
    # What others add: signals that arrived, and whether the parent has counted this job.
    inbox: tuple[Signal, ...] = ()
    arrived: bool = False

    @property
    def lease(self) -> Lease:
        """The lease that every write by the owner of this job must name."""
        return Lease(self.id, self.epoch)


class Head(Struct, frozen=True):
    """The part of a stored job that decides whether a Change can be applied. `n` is the engine's own row number."""

    id: str
    state: State
    version: int
    epoch: int
    inbox: tuple[Signal, ...] = ()
    arrived: bool = False
    worker: str | None = None
    n: int = 0


class StepState(StrEnum):
    """The state of a step. `started` is written only for a step that needs an intent."""

    STARTED = "started"
    DONE = "done"
    FAILED = "failed"


class Step(Struct, frozen=True, kw_only=True, gc=False):
    """The record of one step or item of a job, identified by its path (`keys.step_path`)."""

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
    """One entry of a job's history: what created this version."""

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

    `job` is the job after the change, except that the engine itself counts `version`, merges `inbox` and sets
    `arrived`, because others may change those at the same time. `epoch` and `version` must match the store: an owner
    expects its epoch on an active job, others expect the version, and None expects nothing. `held_by` and `held_since`
    are the worker that held the job until now, and the time of its claim; engines don't look at them.
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
    held_by: str | None = None
    held_since: Time | None = None
    frees: bool = False
    """Whether permits of this job end with its lease. An owner that held some says so; for others the engine looks."""


class Applied(Struct, frozen=True, gc=False):
    """The change is durable. After a child arrived, `missing` is how many of its group have not arrived yet."""

    version: int
    missing: int | None = None


# Why a change is refused; every engine uses these words.

NO_SUCH_JOB = "there is no such job"
LEASE_LOST = "the lease was lost"
OUTRUN = "somebody was faster"
CHILDREN_ARE_IN = "its children have arrived"


class Conflict(Struct, frozen=True):
    """The change was refused, and why. It has the job's current state, so that the caller can decide again."""

    job: str
    reason: str
    state: State | None = None
    version: int = 0
    epoch: int = 0


class Inserted(Struct, frozen=True, gc=False):
    """The answer to an insert: the new job, or the job that existed before with the same id or key."""

    id: str
    new: bool


class Recorded(Struct, frozen=True, gc=False):
    """The step record in the store. `first` is False if an earlier write had already finished this step."""

    step: Step
    first: bool


class Ask(Struct, frozen=True, kw_only=True, gc=False):
    """What a step asks for before it starts: all these permits or none. Without `uses`, it gives back what it has.

    A further try of the same step keeps its permits and pays the rates again. `settles` corrects what the permits cost:
    so many units more, or less.
    """

    job: str
    epoch: int
    path: str
    uses: tuple[Use, ...] = ()
    try_number: int = 1
    settles: tuple[Use, ...] = ()


class Admission(Struct, frozen=True, gc=False):
    """The answer to an Ask. If it is refused, `key` has no room; `at` is when to ask again, None when a permit ends."""

    admitted: bool
    key: str = ""
    at: Time | None = None


class Usage(Struct, frozen=True):
    """How much of a key is used: permits of current leases, jobs that wait, and the bucket as it is now."""

    key: str
    held: int
    waiting: int
    tokens: int | None = None
    closed_until: Time = 0


class Retrying(Struct, frozen=True, omit_defaults=True):
    """A step that failed and is retried. `try_number` is the try that starts, or has started, at `next_at`; `of` is how
    many tries it has. `others` counts the other steps of the job that are being retried.
    """

    step: str
    try_number: int
    of: int
    error: str
    next_at: Time
    others: int = 0


class Limited(Struct, frozen=True, omit_defaults=True):
    """What steps of a job wait for: a limit's key, and when it may have room, if that is known. `steps` is how many."""

    key: str
    at: Time | None = None
    steps: int = 1


class Spending(Struct, frozen=True, omit_defaults=True):
    """What a job has spent so far, in millionths of each currency, by what became of it.

    `kept` went into recorded results, `in_flight` into steps that run now, `loose` into the job's own code between
    steps, `wasted` into tries that failed or were cut off. `wasted_by` is that by stage, as far as it is known. `saved`
    was not paid again, because a record answered. `is_least` means that a lost worker may have spent more. `waited` is
    the lease that ended with a wait or a release. `unbooked` is the part of it that the job's budget doesn't know yet.
    """

    kept: Mapping[str, int] = {}
    in_flight: Mapping[str, int] = {}
    loose: Mapping[str, int] = {}
    wasted: Mapping[str, int] = {}
    wasted_by: Mapping[str, Mapping[str, int]] = {}
    saved: Mapping[str, int] = {}
    is_least: bool = False
    waited: int = 0
    unbooked: Mapping[str, int] = {}


ITEMS_LISTED = 64
"""How many running steps of a job a heartbeat lists at most."""


class RunningItem(Struct, frozen=True, omit_defaults=True):
    """A step that runs right now: since when, which try it is, and what that has spent."""

    path: str
    since: Time
    try_number: int = 1
    spent: Mapping[str, int] = {}


class Running(Struct, frozen=True, omit_defaults=True):
    """What a worker is doing for one job right now. `silent_ms` is the time since its last progress.

    `made` is how many of `done` were finished since `since`; the others came from records. `waited_ms` is how long the
    job did nothing but wait for limits, which its timeout doesn't count. `items` are the steps that run, the oldest
    first, up to ITEMS_LISTED. `earlier` is how many steps of the stage earlier leases recorded, and `earlier_ms` how
    long they worked on it.
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
    limited: Limited | None = None
    waited_ms: int = 0
    spending: Spending | None = None
    items: tuple[RunningItem, ...] = ()
    earlier: int = 0
    earlier_ms: int = 0


TYPES_LISTED = 500
"""How many job types a heartbeat lists at most."""


SCHEDULES_LISTED = 500
"""How many schedules a heartbeat lists at most."""


class Presence(Struct, frozen=True, omit_defaults=True):
    """A worker's status, as its last heartbeat reported it.

    `leaving` marks its last heartbeat. The engine sets `gone` when it saw the worker die, and `store_away` when the
    store was unreachable at some time since the last heartbeat, so that silence says little about the worker.
    `beat_ms` is the time between two heartbeats, and `lease_ms` how long a lease lasts without one. `types` are the
    job types that it claims; None if it runs an older version or has more than TYPES_LISTED. `has` is what jobs may
    need of it, and `lacks` what it lacks for types that it knows and doesn't claim. `schedules` are the names of the
    schedules that its code declares; None if there are more than SCHEDULES_LISTED, and then it counts as declaring any.
    `trouble` is why it can't write its results, such as a full disk. `unreadable` means that the heartbeat can't be
    read: only the worker's name is known then, and the time of its last heartbeat, unless `beat_at` is 0.
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
    has: tuple[str, ...] = ()
    lacks: Mapping[str, tuple[str, ...]] = {}
    schedules: tuple[str, ...] | None = ()


class Beat(Struct, frozen=True):
    """The answer to a worker's heartbeat.

    `cancelled` and `lost` are jobs that the worker named but no longer holds; `stray` are leases that it holds but
    didn't name (the reply to a claim was lost); `paused` are the paused ones of its queues; `quiet` tells it to claim
    nothing more.
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
    """Which jobs to find. A field that is left out matches any job, as does an empty `states`."""

    states: tuple[State, ...] = ()
    queue: str | None = None
    type: str | None = None
    parent: str | None = None
    key: str | None = None
    expires_before: Time | None = None
    newest_first: bool = False
