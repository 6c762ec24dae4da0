"""Values to rows: an array for each column, as `unnest` takes them; back: `engines.rows`. Must not run a statement."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any

import msgspec
from msgspec.structs import astuple, replace

from holdfast.core.lifecycle import entry_of, submit_entry
from holdfast.core.limits import STEP_NAMES
from holdfast.core.model import Change, Entry, Event, Job, Options, State, Step
from holdfast.core.moves import Whole
from holdfast.engines.rows import text

Columns = list[list[Any]]

_encode = msgspec.json.Encoder().encode
_last_options = (Options(), "{}")


def columns(rows: Sequence[tuple[Any, ...]], width: int) -> Columns:
    """Rows as columns. One in which nothing is set is left empty: `unnest` makes nulls of what is missing."""
    if not rows:
        return [[] for _ in range(width)]
    return [[] if column.count(None) == len(column) else list(column) for column in zip(*rows, strict=True)]


def shared_columns(rows: Sequence[tuple[Any, ...]], width: int) -> Columns:
    """As `columns`, but one in which all are equal has it once: for statements that fill it in (`once`).

    The driver takes longer over an element of an array than we do over a whole row.
    """
    return [
        column[:1] if column and column.count(column[0]) == len(column) else column for column in columns(rows, width)
    ]


def alike(jobs: Sequence[Job]) -> tuple[Any, ...] | None:
    """What `add_alike` takes of new jobs that have one order in common; nothing if they are not so much alike."""
    job = jobs[0]
    own: list[list[Any]] = [[job.id], [job.args], [job.digest]]
    if len(jobs) > 1:
        fields = dict(zip(Job.__struct_fields__, zip(*map(astuple, jobs), strict=True), strict=True))
        own = [list(fields.pop(name)) for name in ("id", "args", "digest")]
        if any(values.count(values[0]) < len(jobs) for values in fields.values()):
            return None
    plain = Job(
        id=job.id,
        type=job.type,
        queue=job.queue,
        args=job.args,
        digest=job.digest,
        state=job.state,
        priority=job.priority,
        parent=job.parent,
        group=job.group,
        created_at=job.created_at,
        run_at=job.run_at,
        expires_at=job.expires_at,
        options=job.options,
    )
    if job != plain or job.state not in (State.SCHEDULED, State.AVAILABLE):
        return None
    times = (job.created_at, job.run_at, job.expires_at)
    shared = (job.type, job.queue, job.state.value, job.priority, *times, options_text(job.options))
    return *own, *shared, job.parent, job.group


JOB_COLUMNS = (
    *("id", "type", "queue", "priority", "parent", "group", "expires_at"),
    *(
        "state",
        "version",
        "run_at",
        "epoch",
        "attempt",
        "recoveries",
        "worker",
        "claimed_at",
        "finished_at",
        "prune_at",
    ),
    *("arrived", "waits", "inbox", "error", "result"),
    *("args", "digest", "key", "key_until", "created_at", "options"),
)
"""The fields of a job in the order in which `add_jobs` and `load_jobs` take them."""

CHANGED_COLUMNS = (
    *("state", "run_at", "epoch", "attempt", "recoveries", "worker", "claimed_at", "finished_at", "prune_at"),
    *("waits", "inbox", "error", "result"),
)
"""The fields of a job that a change writes, in the order in which `change_jobs` takes them."""

JOB_WIDTH = len(JOB_COLUMNS)
CHANGE_WIDTH = len(CHANGED_COLUMNS) + 10
"""Those, and what is compared, which of them are set, and the entry."""


def job_row(job: Job) -> tuple[Any, ...]:
    """What `add_jobs` takes of a job."""
    return _stored_job(job)


def _storing(names: tuple[str, ...]) -> Callable[[Job], tuple[Any, ...]]:
    """A function that gives these fields of a job as the database takes them."""
    get = attrgetter(*names)
    convert = [(names.index(name), stored) for name, stored in _STORED.items() if name in names]

    def store(job: Job) -> tuple[Any, ...]:
        values = list(get(job))
        for place, stored in convert:
            values[place] = stored(values[place])
        return tuple(values)

    return store


def options_text(options: Options) -> str:
    """Options as JSON text. Jobs that are submitted together share theirs."""
    global _last_options
    if options is not _last_options[0]:
        _last_options = (options, _encode(options).decode())
    return _last_options[1]


_STORED: dict[str, Callable[[Any], Any]] = {
    "state": lambda state: state.value,
    "waits": text,
    "inbox": text,
    "error": lambda error: None if error is None else text(error),
    "options": options_text,
}
"""The fields that the database takes in another form, and how that is made."""

_stored_job = _storing(JOB_COLUMNS)
_stored_change = _storing(CHANGED_COLUMNS)

LOAD_WIDTH = JOB_WIDTH + 2


def load_row(whole: Whole) -> tuple[Any, ...]:
    """What `load_jobs` takes of a job: itself, and where it began."""
    first = whole.entries[0]
    return (*job_row(whole.job), first.after.value if _is_derived(first, whole.job) else None, first.epoch)


ENTRY_WIDTH = 9


def entry_columns(wholes: Iterable[tuple[Whole, int]]) -> Columns:
    """What `load_entries` takes. A first entry that says no more than "submitted" is derived, and has no row."""
    return columns(
        [
            (
                n,
                entry.version,
                entry.at,
                str.__str__(entry.event),
                None if entry.before is None else entry.before.value,
                entry.after.value,
                entry.by,
                entry.epoch,
                text(entry.note),
            )
            for whole, n in wholes
            for entry in whole.entries
            if entry.version > 1 or not _is_derived(entry, whole.job)
        ],
        ENTRY_WIDTH,
    )


def _is_derived(entry: Entry, job: Job) -> bool:
    plain = submit_entry(replace(job, state=entry.after, epoch=entry.epoch))
    return entry == plain


def change_row(change: Change, job: Job, *, sets_inbox: bool) -> tuple[Any, ...]:
    """What `change_jobs` takes of a change. `job` is the job after it."""
    entry = entry_of(change, job.version)
    *fields, waits, inbox, error, result = _stored_change(job)
    return (
        *(job.id, change.epoch, change.version),
        *fields,
        change.arrives,
        waits,
        sets_inbox,
        inbox if sets_inbox else None,
        error,
        result,
        entry.at,
        str.__str__(entry.event),
        None if entry.before is None else entry.before.value,
        entry.by,
        text(entry.note),
    )


def completions(changes: Sequence[Change], numbers: Mapping[str, int]) -> tuple[Any, ...] | None:
    """What `complete_jobs` takes, if these are plain completions of jobs with known numbers, and differ in nothing but
    their results.
    """
    first = changes[0]
    by, epoch, finished_at, prune_at = first.by, first.epoch, first.job.finished_at, first.job.prune_at
    if epoch is None:
        return None
    given: list[str] = []
    for change in changes:
        job = change.job
        n = numbers.get(job.id)
        if (
            n is None
            or change.event != Event.COMPLETE
            or change.by != by
            or change.epoch != epoch
            or change.version is not None
            or change.note
            or change.at != finished_at
            or job.finished_at != finished_at
            or job.prune_at != prune_at
        ):
            return None
        given.append(str(n))
    ids, results = [change.job.id for change in changes], [change.job.result for change in changes]
    return f"{{{','.join(given)}}}", ids, results, epoch, finished_at, prune_at, by


STEP_WIDTH = 10


def step_row(step: Step, job: str | int) -> tuple[Any, ...]:
    """What `add_steps` (with the job's id) and `set_steps` (with its number) take of a step."""
    return (
        job,
        step.epoch,
        step.path,
        step.name,
        step.state.value,
        step.started_at,
        step.finished_at,
        None if step.error is None else text(step.error),
        step.result,
        step.tries,
    )


def steps_given(steps: Sequence[Step]) -> tuple[Any, ...]:
    """What `add_steps` takes: the steps, and how many counters a job may have for their names to have room."""
    most = STEP_NAMES - len({step.name for step in steps})
    return (*columns([step_row(step, step.job) for step in steps], STEP_WIDTH), most)
