"""Queues, workers, schedules, limits, budgets and the lifecycle, as pages."""

from typing import Any

from msgspec import Struct

from holdfast.jobs.views.pages.overview import QueueBar
from holdfast.jobs.views.pages.parts import Act, JobLine, Moment, StateCount


class QueueLine(Struct, frozen=True, kw_only=True):
    """A queue: its bar, its bound, and what can be done."""

    bar: QueueBar
    most_waiting: int | None
    when_full: str | None
    depth: int
    total: int
    ended: int
    acts: tuple[Act, ...]


class QueuesPage(Struct, frozen=True, kw_only=True):
    """All queues."""

    now: Moment
    sentence: str
    queues: tuple[QueueLine, ...]


class RunningLine(Struct, frozen=True, kw_only=True):
    """What a worker does for one job right now."""

    job: str
    short: str
    name: str
    epoch: int
    words: str
    since: Moment | None


class WorkerLine(Struct, frozen=True, kw_only=True):
    """A worker: how it is, what it runs and what it can run."""

    id: str
    state: str
    sentence: str
    host: str
    pid: int
    queues: tuple[str, ...]
    types: tuple[str, ...] | None
    has: tuple[str, ...]
    slots: int
    busy: int
    running: tuple[RunningLine, ...]
    started_at: Moment | None
    beat_at: Moment | None
    is_quiet: bool
    trouble: str
    acts: tuple[Act, ...]


class WorkersPage(Struct, frozen=True, kw_only=True):
    """All workers."""

    now: Moment
    sentence: str
    workers: tuple[WorkerLine, ...]


class WorkerPage(Struct, frozen=True, kw_only=True):
    """One worker, with the jobs that it runs, and those of the newest jobs that it ran."""

    now: Moment
    worker: WorkerLine
    jobs: tuple[JobLine, ...]
    ran: tuple[JobLine, ...]


class ChangeLine(Struct, frozen=True, kw_only=True):
    """Who changed what, and when."""

    at: Moment
    by: str
    what: str


class ScheduleLine(Struct, frozen=True, kw_only=True):
    """A schedule: when it fires, its last job, and what is wrong."""

    name: str
    when: str
    sentence: str
    type: str
    queue: str
    args: Any
    tz: str
    missed: str
    overlap: str
    is_code: bool
    next: tuple[Moment, ...]
    last_at: Moment | None
    last_job: str | None
    last_state: str | None
    skipped: int
    is_paused: bool
    pause_words: str
    trouble: str
    changes: tuple[ChangeLine, ...]
    acts: tuple[Act, ...]


class SchedulesPage(Struct, frozen=True, kw_only=True):
    """All schedules."""

    now: Moment
    sentence: str
    schedules: tuple[ScheduleLine, ...]


class LimitKey(Struct, frozen=True, kw_only=True):
    """How much of one key of a limit is used."""

    key: str
    in_use: int
    waiting: int
    units_left: float | None
    closed_until: Moment | None
    words: str


class LimitLine(Struct, frozen=True, kw_only=True):
    """A shared limit: its settings, who set them, and how much is used."""

    name: str
    sentence: str
    at_once: int | None
    rate: str | None
    burst: float | None
    per: str
    set_by: str
    keys: tuple[LimitKey, ...]
    changes: tuple[ChangeLine, ...]
    acts: tuple[Act, ...]


class LimitsPage(Struct, frozen=True, kw_only=True):
    """All shared limits."""

    now: Moment
    sentence: str
    limits: tuple[LimitLine, ...]


class Amount(Struct, frozen=True, kw_only=True):
    """One currency of a budget."""

    currency: str
    granted: float
    spent: float
    left: float


class BudgetLine(Struct, frozen=True, kw_only=True):
    """A job's budget."""

    job: str
    short: str
    name: str
    type: str
    state: str
    words: str
    amounts: tuple[Amount, ...]
    added: tuple[ChangeLine, ...]
    acts: tuple[Act, ...]


class BudgetsPage(Struct, frozen=True, kw_only=True):
    """The budgets of all jobs that have begun to use them and have not ended."""

    now: Moment
    sentence: str
    budgets: tuple[BudgetLine, ...]


class StateShown(Struct, frozen=True, kw_only=True):
    """A state of the lifecycle."""

    state: str
    meaning: str
    is_terminal: bool
    jobs: int


class EventShown(Struct, frozen=True, kw_only=True):
    """An event of the lifecycle: one edge for each state that it starts from."""

    event: str
    sources: tuple[str, ...]
    targets: tuple[str, ...]
    who: str
    meaning: str


class LifecyclePage(Struct, frozen=True, kw_only=True):
    """The lifecycle, from the table that every change is decided by, with how many jobs are in each state."""

    now: Moment
    states: tuple[StateShown, ...]
    events: tuple[EventShown, ...]


class Navigation(Struct, frozen=True, kw_only=True):
    """What the dashboard's frame shows: the store, the pages' counts, the queues with their sizes."""

    now: Moment
    store: str
    version: str
    needs: int
    """Jobs in review, and questions of the newest jobs that wait."""
    jobs: int
    """All stored jobs."""
    running: int
    workers: int
    queues: tuple[StateCount, ...]
    """The queues by name, each with how many jobs wait in it."""
    paused: tuple[str, ...]
    """The queues that hand out nothing."""
    app: bool
    """Whether an app is loaded, so that arguments are checked against its types."""
