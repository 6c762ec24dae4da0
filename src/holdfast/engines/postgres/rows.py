"""Values to rows, as one array per column for `unnest`; the way back is `engines.rows`. Must not run a statement."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any

import msgspec
from msgspec.structs import astuple, replace

from holdfast.core.lifecycle import entry_of, submit_entry
from holdfast.core.limits import STEP_NAMES
from holdfast.core.model import Change, Entry, Event, Job, Options, State, Step
from holdfast.core.moves import Whole
from holdfast.core.shared_limits import awaited_key, awaits_permit, frees_permits
from holdfast.core.unique import stamp, until
from holdfast.engines.rows import text

Columns = list[list[Any]]

_encode = msgspec.json.Encoder().encode
_last_options = (Options(), "{}")


def columns(rows: Sequence[tuple[Any, ...]], width: int) -> Columns:
    """Rows as columns. A column without values stays empty: `unnest` fills it with nulls."""
    if not rows:
        return [[] for _ in range(width)]
    return [[] if column.count(None) == len(column) else list(column) for column in zip(*rows, strict=True)]


def shared_columns(rows: Sequence[tuple[Any, ...]], width: int) -> Columns:
    """Like `columns`, but a column whose values are all equal holds the value once, for statements that use `once`.

    The driver takes longer over one element of an array than we take over a whole row.
    """
    return [
        column[:1] if column and column.count(column[0]) == len(column) else column for column in columns(rows, width)
    ]


def alike(jobs: Sequence[Job]) -> tuple[Any, ...] | None:
    """The arguments of `add_alike` for new jobs of one insert; None if the jobs differ in too much."""
    job = jobs[0]
    if job.options.unique is not None:
        return None
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
    return *own, *shared, job.parent, job.group, limit_key(job)


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
"""The fields of a job, in the order of `add_jobs` and `load_jobs`."""

CHANGED_COLUMNS = (
    *("state", "run_at", "epoch", "attempt", "recoveries", "worker", "claimed_at", "finished_at", "prune_at"),
    *("waits", "inbox", "error", "result"),
)
"""The fields of a job that a change writes, in the order of `change_jobs`."""

JOB_WIDTH = len(JOB_COLUMNS) + 1
"""Those fields, plus the key behind which a job waits."""

CHANGE_WIDTH = len(CHANGED_COLUMNS) + 11
"""Those fields, plus what is compared, which of them are set, the entry, and the key behind which a job waits."""


def job_row(job: Job) -> tuple[Any, ...]:
    """A job as `add_jobs` and `load_jobs` take it."""
    return (*_stored_job(job), limit_key(job))


ADD_WIDTH = JOB_WIDTH + 3


def add_row(job: Job, *, takes_name: bool = False) -> tuple[Any, ...]:
    """A new job as `add_jobs` takes it: with its unique name, if it has one.

    With `takes_name` it takes the name from anybody: no state counts.
    """
    unique = job.options.unique
    if unique is None:
        return (*job_row(job), None, None, None)
    text = stamp(job)
    return (*job_row(job), unique.key, f"{text.rpartition(' ')[0]} -" if takes_name else text, until(job))


def limit_key(job: Job) -> str | None:
    """The key behind which a job waits, or will once it is available. A pending one only if a step of it waits so."""
    if not (job.options.limits or job.waits):
        return None
    return awaited_key(job) if job.state is not State.PENDING or awaits_permit(job) else None


def freeing(changes: Sequence[Change]) -> list[str]:
    """The jobs whose permits end with these changes."""
    return [change.job.id for change in changes if frees_permits(change)]


def _storing(names: tuple[str, ...]) -> Callable[[Job], tuple[Any, ...]]:
    """A function that returns these fields of a job as the database takes them."""
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
"""How to convert the fields that the database stores in another form."""

_stored_job = _storing(JOB_COLUMNS)
_stored_change = _storing(CHANGED_COLUMNS)

LOAD_WIDTH = JOB_WIDTH + 2


def load_row(whole: Whole) -> tuple[Any, ...]:
    """A job as `load_jobs` takes it: the job, and its first state and epoch."""
    first = whole.entries[0]
    return (*job_row(whole.job), first.after.value if _is_derived(first, whole.job) else None, first.epoch)


ENTRY_WIDTH = 9


def entry_columns(wholes: Iterable[tuple[Whole, int]]) -> Columns:
    """The arguments of `load_entries`. A first entry that says only "submitted" is derived, and has no row."""
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
    """A change as `change_jobs` takes it. `job` is the job after the change."""
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
        limit_key(job),
    )


def completions(changes: Sequence[Change], numbers: Mapping[str, int]) -> tuple[Any, ...] | None:
    """The arguments of `complete_jobs`, if these are plain completions of jobs with known numbers that differ only in
    their results; else None.
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
    """A step as `add_steps` (with the job's id) and `set_steps` (with its number) take it."""
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
    """The arguments of `add_steps`: the steps, and how many counters a job may have."""
    most = STEP_NAMES - len({step.name for step in steps})
    return (*columns([step_row(step, step.job) for step in steps], STEP_WIDTH), most)
