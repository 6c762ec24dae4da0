"""Opening a checkpoint: apply a person's edits, and recover the jobs that a crash left running.

Must not touch a disk, and must not change a state itself: `decide` does, so that each of these changes has its entry
in the history. An edit is a `status` that disagrees with the `state`, or a field that disagrees with the `check`:

    status was     set to    what happens
    NEEDS_REVIEW   PENDING   replay, with the arguments in the file; a job that had ended starts over
    NEEDS_REVIEW   DONE      resolve, with the result in the file; refused if the job had ended
    RUNNING        PENDING   lapse: its worker is lost
    DONE           PENDING   starts over: the job is pruned, and submitted again with its id

A person can also edit `args`, `queue`, `priority` and `tags`, unless the job has ended and stays so, and `run_at` while
it stays available, scheduled or retryable; the history names the edited fields. A job whose block was removed no longer
exists. Every other edit is refused. A block without a `check`, from an older program or a person, is accepted if it is
consistent.
"""

from collections import Counter

from msgspec import Struct
from msgspec.structs import replace

from holdfast.core.canonical import canonical, parse
from holdfast.core.errors import BadValue, Invalid
from holdfast.core.keys import check_queue, check_type, digest
from holdfast.core.lifecycle import STATE_ROWS, STATES, TERMINAL, WORKERS_LOST, decide, lost_event, submit_entry
from holdfast.core.limits import PRIORITIES
from holdfast.core.model import Applied, Change, Error, Event, Job, State, StepState, Time, WaitKind
from holdfast.engines.file.checkpoint import Checkpoint, Row
from holdfast.engines.file.checksum import FREE, OTHERS
from holdfast.engines.file.schema import EDIT, shown
from holdfast.engines.file.writer import Rows
from holdfast.engines.indexed_rows import Key

HAND = "hand"
"""The name in the history for changes that a person made in the file."""

FILE = "file"
"""The name in the history for the recovery of jobs that were running when the process died."""

TIMED = (State.AVAILABLE, State.SCHEDULED, State.RETRYABLE)
"""The states in which only `run_at` says when a job is due."""

PENDING, DONE = (STATE_ROWS[state].checkpoint for state in (State.AVAILABLE, State.COMPLETED))
STATUSES = tuple(dict.fromkeys(row.checkpoint for row in STATES))


class Reopened(Struct):
    """A store that is ready to use, and how many running jobs were recovered."""

    rows: Rows
    recovered: int
    changed: bool
    """Whether opening it changed it, so that the file has to be written."""


def reopen(said: Checkpoint, now: Time, *, recover: bool = True) -> Reopened:
    """Make a store from a file's content, or raise Damage if an edit is not allowed.

    Without `recover`, running jobs stay running: their process may be alive.
    """
    rows = Rows()
    again = {row.job.id for row in said.rows.values() if row.job.state in TERMINAL and row.status == PENDING}
    for row in said.rows.values():
        _check(row)
        if "args" in row.edits:
            args = _fit(row, "args", row.job.args)
            row.job = replace(row.job, args=args, digest=digest(row.job.type, args) if row.job.digest else "")
        if row.job.id in again:
            _start_again(row, now)
        rows.restore(row.job, row.steps, row.entries)
    rows.records = said.records
    _restore_keys(rows, said, again, now)
    rows.journal = []
    _restore_groups(rows, said, now)
    for row in said.rows.values():
        if row.job.id not in again:
            _honour(rows, row, now)
    left = [job for job in rows.jobs.values() if job.state is State.ACTIVE and recover]
    for job in left:
        _lose(rows, job, now, FILE, "recovered from a crash")
    changed, rows.journal, rows.news = bool(rows.journal or again), None, set()
    by_hand = sum(row.job.state is State.ACTIVE and row.status == PENDING for row in said.rows.values())
    return Reopened(rows, len(left) + by_hand, changed)


def _check(row: Row) -> None:
    """Refuse an invalid edit."""
    job, was = row.job, STATE_ROWS[row.job.state].checkpoint
    if row.status not in STATUSES:
        what = f"job {job.id}: status {row.status!r} is unknown; use one of {', '.join(STATUSES)}"
        raise row.spot.damage(what, "status")
    possible = {State.REVIEW: (PENDING, DONE), State.ACTIVE: (PENDING,)}.get(job.state, ())
    if job.state in TERMINAL:
        possible = (PENDING,)
    if row.status not in (was, *possible):
        what = f"job {job.id} is {job.state}, so its status can't be changed from {was} to {row.status}"
        raise row.spot.damage(f"{what}; allowed here: {', '.join((was, *possible))}", "status")
    _check_edits(row, stays=row.status == was)
    _check_ranges(row)


def _check_edits(row: Row, *, stays: bool) -> None:
    """Refuse an edit of a field that a person can't edit. `stays` means that the status was not edited."""
    job = row.job
    row.edits = tuple(name for name in row.edits if not _goes_anyway(row, name, stays=stays))
    free = tuple(name for name in FREE if name != "run_at" or (stays and job.state in TIMED))
    for name in row.edits:
        path = _path(name)
        if name in free and job.state in TERMINAL and stays:
            what = f"job {job.id}: its {name} {_were(name)} edited after the job had ended ({job.state})"
            raise row.spot.damage(f"{what}; set its status to {PENDING} to run it again with {_them(name)}", *path)
        if name in free:
            continue
        what = f"job {job.id} is {job.state}, so its {name} can't be edited"
        if name == OTHERS:
            what = f"job {job.id} is {job.state}, and a field was edited that only the program can write"
        may = "status only" if job.state in TERMINAL and stays else f"status, {', '.join(free)}"
        if name == "result" and job.state is State.REVIEW:
            may = f"a result with the status {DONE}"
        raise row.spot.damage(f"{what}; undo the edit; allowed here: {may}", *path)


def _goes_anyway(row: Row, name: str, *, stays: bool) -> bool:
    """Whether any value is allowed in a field, because the new status replaces it or needs it."""
    if stays:
        return False
    if name == "result":
        return row.status == DONE or row.given in (None, "null")
    return name == "error" and row.job.error is None


def _check_ranges(row: Row) -> None:
    """Refuse values that no caller could have passed. Values that match the check were written by this program."""
    job = row.job
    asked = row.edits if row.sealed else ("type", "queue", "priority", "run_at", "attempt", "epoch")
    for name, check in (("type", check_type), ("queue", check_queue)):
        try:
            if name in asked:
                check(getattr(job, name))
        except Invalid as error:
            raise row.spot.damage(f"job {job.id}: {name}: {error}", name) from None
    if "priority" in asked and not -PRIORITIES <= job.priority <= PRIORITIES:
        what = f"job {job.id}: priority {job.priority} is out of range; use a number from {-PRIORITIES} to {PRIORITIES}"
        raise row.spot.damage(what, "priority")
    if "run_at" in asked and job.run_at is None and job.state in TIMED:
        raise row.spot.damage(f'job {job.id} is {job.state} and has no "run_at"', "run_at")
    if "attempt" in asked and job.attempt < 1:
        raise row.spot.damage(f"job {job.id}: attempt {job.attempt} is invalid; the first attempt is 1", "attempt")
    highest = max(entry.epoch for entry in row.entries)
    if "epoch" in asked and job.epoch < highest:
        what = f"job {job.id}: epoch {job.epoch} is too low; its history has reached epoch {highest}"
        raise row.spot.damage(what, "epoch")


def _path(name: str) -> tuple[str, ...]:
    return {"tags": ("options", "tags"), OTHERS: ()}.get(name, (name,))


def _were(name: str) -> str:
    return "were" if name in ("args", "tags") else "was"


def _them(name: str) -> str:
    return "them" if name in ("args", "tags") else "it"


def _start_again(row: Row, now: Time) -> None:
    """Submit a job that has ended again with the same id, since a job never leaves a terminal state.

    Its parent has counted the old job and doesn't wait for the new one. The job keeps its children and their groups.
    """
    old = row.job
    row.job = Job(
        id=old.id,
        type=old.type,
        queue=old.queue,
        args=old.args,
        digest=old.digest,
        priority=old.priority,
        key=old.key,
        key_until=old.key_until,
        created_at=now,
        expires_at=None if old.expires_at is None else now + old.expires_at - old.created_at,
        options=old.options,
        state=State.AVAILABLE,
        run_at=now,
        epoch=old.epoch,
    )
    note: dict[str, object] = {"again": old.state.value}
    if old.finished_at is not None:
        note["finished_at"] = shown(old.finished_at)
    row.entries = [replace(submit_entry(row.job), by=HAND, note=note | _edits(row))]
    row.steps = []


def _restore_keys(rows: Rows, said: Checkpoint, again: set[str], now: Time) -> None:
    for name, key in said.keys.items():
        over = key.until is not None and key.until <= now
        if key.job in rows.jobs or (name in said.outliving and not over):
            rows.keys[name] = key
    for job in (rows.jobs[id] for id in again):
        if job.key is not None:
            holder = rows.keys.get((job.type, job.key))
            if holder is None or holder.job == job.id:
                rows.keys[job.type, job.key] = Key(job.id, job.digest, job.key_until)


def _restore_groups(rows: Rows, said: Checkpoint, now: Time) -> None:
    """Count the children that have not arrived, so that nobody waits for a child whose block was removed."""
    out = Counter((job.parent, job.group or "") for job in rows.jobs.values() if job.parent and not job.arrived)
    for pair, (total, arrived) in said.groups.items():
        rows.groups[pair] = (arrived + out[pair], arrived)
        removed = total - arrived - out[pair]
        parent = rows.jobs.get(pair[0])
        if removed > 0 and not out[pair] and parent is not None and _waits_for(parent, pair[1]):
            note = {"group": pair[1], "removed": removed}
            _commit(rows, decide(parent, Event.ACTIVATE, now, by=HAND, note=note))
    for (parent_id, group), count in out.items():
        assert parent_id is not None
        rows.groups.setdefault((parent_id, group), (count, 0))


def _waits_for(parent: Job, group: str) -> bool:
    waits = any(wait.kind is WaitKind.CHILDREN and wait.name == group for wait in parent.waits)
    return waits and parent.state is State.PENDING


def _honour(rows: Rows, row: Row, now: Time) -> None:
    """Apply a person's edits of one job."""
    job, note = rows.jobs[row.job.id], _edits(row)
    if row.status == STATE_ROWS[row.job.state].checkpoint:
        if row.edits:
            change = Change(event=EDIT, before=job.state, job=job, at=now, by=HAND, version=job.version, note=note)
            _commit(rows, change)
    elif job.state is State.ACTIVE:
        _lose(rows, job, now, HAND, f"set to {PENDING} by hand", note)
    elif row.status == PENDING:
        args = (job.args, job.digest) if "args" in row.edits else None
        _commit(rows, decide(job, Event.REPLAY, now, by=HAND, args=args, note=note))
    else:
        result = _fit(row, "result", row.given or "null")
        _commit(rows, decide(job, Event.RESOLVE, now, by=HAND, result=result, note=note))


def _lose(rows: Rows, job: Job, now: Time, by: str, why: str, note: dict[str, object] | None = None) -> None:
    """Take a job from a worker that died with its process."""
    steps = rows.steps.get(job.id, {}).values()
    progressed = any(step.epoch == job.epoch and step.state is not StepState.STARTED for step in steps)
    event = lost_event(job, progressed=progressed)
    error = None
    if event is Event.ABANDON:
        error = Error(
            WORKERS_LOST, f"{job.recoveries + 1} workers in a row were lost while running this job, last {job.worker}"
        )
    details = {"lost": job.worker, "why": why, "steps": sum(step.state is StepState.DONE for step in steps)}
    _commit(rows, decide(job, event, now, by=by, error=error, progressed=progressed, note=details | (note or {})))


def _fit(row: Row, name: str, text: str) -> str:
    """A value that a person wrote, as canonical text."""
    try:
        return canonical(parse(text))
    except BadValue as error:
        raise row.spot.damage(f"job {row.job.id}: {name}: {error}", name) from None


def _edits(row: Row) -> dict[str, object]:
    return {"edited": list(row.edits)} if row.edits else {}


def _commit(rows: Rows, change: Change) -> None:
    answer = rows.commit(change)
    assert isinstance(answer, Applied), answer
