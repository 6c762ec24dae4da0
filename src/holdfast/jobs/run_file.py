"""One run as a readable JSON file: export, parse, import into a store. Must not run a job.

The file keeps the job with its arguments, options, signals, result and error; its history; its steps; its log; and how
its budget stands. It leaves out the key and the parent, which mean nothing in another store; the worker and the lease;
and `expires`.

An import follows the lifecycle, like every other job: it submits the job as pending with its records, claims it once in
the importer's name, and then commits its state. A run that has ended keeps its end. Every other run goes to review, so
nothing runs, and nothing is spent, until a person replays it.
"""

import json
from collections.abc import Mapping, Sequence

import msgspec
from msgspec.structs import replace

from holdfast.core.changes import abandon, activate, cancel, claim, complete, discard
from holdfast.core.codec import canonical
from holdfast.core.errors import BlobGone, HoldfastError, Invalid, Refused
from holdfast.core.keys import check_id, check_queue, check_type, digest
from holdfast.core.lifecycle import applied, deliver
from holdfast.core.model import (
    Change,
    Conflict,
    Entry,
    Error,
    Job,
    Options,
    Signal,
    State,
    Step,
    StepState,
    Time,
    Use,
    Wait,
    WaitKind,
)
from holdfast.core.outcome import check_retry
from holdfast.core.references import Reference, is_kept_outside
from holdfast.core.shared_limits import KEY_CHARACTERS, MOST_UNITS, UNIT, Bucket, check_name, limit_of
from holdfast.engines.contract import Engine
from holdfast.jobs.budgets import open_budget, standing_of
from holdfast.jobs.large_values import references_of
from holdfast.jobs.service import LOG_PATH, Jobs
from holdfast.jobs.views.shapes import Shape, entry_shape, job_shape, parse_time, step_shape, time_text
from holdfast.jobs.views.text import plural
from holdfast.safe_text import escaped

KIND = "holdfast run"
FORMAT = 1
"""Increases whenever an older version could misread the file."""

FILE_LIMIT = 256 * 1024 * 1024
"""A larger file can't be a run."""

IMPORTER = "import"
"""The worker name under which an import claims the job."""

BEFORE_PATH = "~before"
"""The record that keeps an imported run's history from its original store."""


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A run, as its file holds it."""

    job: Job
    history: tuple[Entry, ...]
    steps: tuple[Step, ...]
    log: tuple[str, ...]
    budget: Mapping[str, Bucket] = {}
    """What was granted, and is left, of each currency; empty if nothing of its budget was used yet."""


# From a store to text.


async def collect_run(jobs: Jobs, id: str) -> Run:
    """Read everything that a store keeps about a run. The history from before an import comes first."""
    records, job, engine = await jobs.engine.steps(id), await jobs.get(id), jobs.engine
    records = [replace(step, result=await _whole(engine, step.result)) for step in records]
    job = replace(job, args=await engine.blobs.fetch(job.args), result=await _whole(engine, job.result))
    return Run(
        job=job,
        history=(*history_before_import(records), *await jobs.history(id)),
        steps=tuple(step for step in records if not step.path.startswith("~")),
        log=tuple(await jobs.log(id)),
        budget=await standing_of(jobs.engine, job),
    )


async def _whole(engine: Engine, text: str | None) -> str | None:
    """Return a recorded value's own text. One that was dropped stays a reference."""
    try:
        return None if text is None else await engine.blobs.fetch(text)
    except BlobGone:
        return text


def files_of(run: Run) -> list[Reference]:
    """Return the files that a run names. They aren't part of its text."""
    return [one for one in references_of(run.job, run.steps) if not one.is_value]


def history_before_import(records: Sequence[Step]) -> list[Entry]:
    """Return the history that an imported run had in its original store."""
    for step in records:
        if step.path == BEFORE_PATH and step.result is not None:
            return msgspec.json.decode(step.result, type=list[Entry])
    return []


def dump_run(run: Run, now: Time, version: str) -> str:
    """Return the text of a run's file."""
    shape: Shape = {
        "kind": KIND,
        "format": FORMAT,
        "exported_at": time_text(now),
        "holdfast": version,
        "job": _job_shape(run.job),
        "history": [entry_shape(entry) for entry in run.history],
        "steps": [step_shape(step) for step in run.steps],
        "log": list(run.log),
        "budget": {name: {"granted": one.granted, "left": one.tokens} for name, one in run.budget.items()},
    }
    return escaped(json.dumps(shape, indent=2, ensure_ascii=False)) + "\n"


def _job_shape(job: Job) -> Shape:
    """A job as its file has it: its budget in the parts that an import reads, and what it needs of limits."""
    shape = job_shape(job)
    if job.options.budget:
        shape["options"]["budget"] = dict(job.options.budget)
    if job.options.limits:
        shape["options"]["limits"] = [{"key": use.key, "units": use.units} for use in job.options.limits]
    return shape


# From text to a run.


def parse_run(text: str, name: str) -> Run:
    """Parse the text of a run's file. Raises Invalid, which says what is wrong."""
    try:
        shape = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Invalid(f"{name}: not valid JSON ({error}); give a file written by holdfast export") from None
    if not isinstance(shape, dict) or shape.get("kind") != KIND:
        raise Invalid(f"{name}: not an exported run; give a file written by holdfast export")
    if shape.get("format") != FORMAT:
        raise Invalid(
            f"{name}: has format {shape.get('format')!r}, but this version of Holdfast reads {FORMAT}; upgrade Holdfast"
        )
    try:
        return _run_of(shape)
    except HoldfastError as error:
        raise Invalid(f"{name}: {error}") from None
    except (KeyError, TypeError, ValueError, AttributeError, msgspec.ValidationError) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise Invalid(f"{name}: incomplete or damaged: {what}; export the run again") from None


def _run_of(shape: Shape) -> Run:
    job = _job_of(shape["job"])
    return Run(
        job=job,
        history=tuple(_entry_of(one, job.id) for one in shape["history"]),
        steps=tuple(_step_of(one, job.id) for one in shape["steps"]),
        log=tuple(str(line) for line in shape["log"]),
        budget={name: _bucket_of(one) for name, one in shape.get("budget", {}).items()},
    )


def _bucket_of(shape: Shape) -> Bucket:
    return Bucket(tokens=msgspec.convert(shape["left"], int), granted=msgspec.convert(shape["granted"], int))


def _job_of(shape: Shape) -> Job:
    if not isinstance(shape["args"], list):
        raise Invalid("the job's args must be a list")
    created_at = parse_time(shape["created_at"])
    if created_at is None:
        raise Invalid("the job's created_at is missing")
    # Where a child is imported alone, it has the budget for itself, and it stands for no other job.
    given = {**shape["options"], "fair": shape["options"].get("fair") or ""}
    options = replace(msgspec.convert(given, Options), budget_root="", unique=None)
    check_retry(options.retry)
    _check_limits(options.limits)
    args, type = canonical(shape["args"]), check_type(shape["type"])
    state = State(shape["state"])
    return Job(
        id=check_id(shape["id"]),
        type=type,
        queue=check_queue(shape["queue"]),
        args=args,
        digest=digest(type, args),
        priority=msgspec.convert(shape["priority"], int),
        created_at=created_at,
        options=options,
        state=state,
        attempt=msgspec.convert(shape["attempt"], int),
        recoveries=msgspec.convert(shape["recoveries"], int),
        epoch=msgspec.convert(shape["epoch"], int),
        result=canonical(shape["result"]) if state is State.COMPLETED else None,
        error=_error_of(shape["error"]),
        inbox=tuple(_signal_of(one) for one in shape["signals"]),
    )


def _check_limits(uses: Sequence[Use]) -> None:
    """Refuse what no job could have asked for."""
    for use in uses:
        check_name(limit_of(use.key))
        if not 0 <= use.units <= MOST_UNITS * UNIT or len(use.key) > KEY_CHARACTERS:
            raise Invalid(f"the job's limit {use.key[:80]} has {use.units} units, which no limit has")
    if len({use.key for use in uses}) < len(uses):
        raise Invalid("the job names one of its limits twice")


def _error_of(shape: Shape | None) -> Error | None:
    return None if shape is None else msgspec.convert(shape, Error)


def _signal_of(shape: Shape) -> Signal:
    fields = {"version": 0, "value": canonical(shape["value"]), "at": parse_time(shape["at"])}
    return msgspec.convert({"name": shape["name"], "by": shape["by"], **fields}, Signal)


def _step_of(shape: Shape, job: str) -> Step:
    state = StepState(shape["state"])
    started_at = parse_time(shape["started_at"])
    if started_at is None or str(shape["path"]).startswith("~"):
        raise Invalid(f"step {shape['path']!r} isn't a step that a job could record")
    return Step(
        job=job,
        epoch=msgspec.convert(shape["epoch"], int),
        path=msgspec.convert(shape["path"], str),
        name=msgspec.convert(shape["name"], str),
        state=state,
        result=canonical(shape["result"]) if state is StepState.DONE else None,
        error=_error_of(shape["error"]),
        started_at=started_at,
        finished_at=parse_time(shape["finished_at"]),
        tries=msgspec.convert(shape.get("tries", 1), int),
    )


def _entry_of(shape: Shape, job: str) -> Entry:
    return msgspec.convert({**shape, "job": job, "at": parse_time(shape["at"])}, Entry)


# From a run to a store.


async def insert_run(jobs: Jobs, run: Run, by: str, *, review: bool = False) -> Job:
    """Import a run into a store that doesn't have its id yet. With `review`, even an ended run can be replayed."""
    new = replace(run.job, state=State.PENDING, waits=(Wait(WaitKind.ACTIVATION),), result=None, error=None, inbox=())
    run = await _kept(jobs.engine, run)
    new = replace(new, args=run.job.args)
    (inserted,) = await jobs.engine.insert([new])
    if not inserted.new:
        raise Refused(f"job {new.id} is already in this store; import it into another one: --url sqlite:///look.db")
    if run.budget:
        await open_budget(jobs.engine, new, run.budget)
    changes = _changes(run, new, await jobs.engine.now(), by, review)
    answers = await jobs.engine.commit(changes)
    if refused := [answer for answer in answers if isinstance(answer, Conflict)]:
        raise Refused(
            f"job {new.id} was imported only in part: {refused[0].reason}; cancel it, and import it into another store"
        )
    return await jobs.get(new.id)


async def _kept(engine: Engine, run: Run) -> Run:
    """Return a run with references in place of its large values."""

    async def keep(text: str | None, *, always: bool = False) -> str | None:
        if text is None or is_kept_outside(text):
            return text
        return await engine.blobs.keep(text, run.job.id, "a value of the run", always=always)

    job = run.job
    steps = [replace(step, result=await keep(step.result)) for step in run.steps]
    result = await keep(job.result, always=job.options.keep_result_ms is not None)
    return replace(run, job=replace(job, args=await keep(job.args) or "[]", result=result), steps=tuple(steps))


def _changes(run: Run, new: Job, now: Time, by: str, review: bool) -> list[Change]:
    """Return the changes that bring a new job to the run's state. Each is decided on the job after the one before."""
    changes: list[Change] = []
    state, job = run.job.state, new

    def go(change: Change) -> None:
        nonlocal job
        changes.append(change)
        job = applied(job, change)

    for signal in run.job.inbox:
        go(deliver(job, signal.name, signal.value, now, by=signal.by))
    note = {"imported": f"was {state}, with {plural(len(run.steps), 'recorded step')}"}
    records = _records(run, now)
    if state is State.CANCELLED and not review:
        go(cancel(job, now, by=by, steps=records, note=note))
        return changes
    go(activate(job, now, by=by, steps=records, note=note))
    go(claim(job, now, by=IMPORTER))
    if state is State.COMPLETED and not review:
        go(complete(job, now, by=IMPORTER, result=run.job.result))
        return changes
    error = run.job.error if state in (State.REVIEW, State.DISCARDED) else None
    error = error or Error("Imported", f"the job was exported while {state}; replay it to continue, or discard it")
    go(abandon(job, now, by=IMPORTER, error=error))
    if state is State.DISCARDED and not review:
        go(discard(job, now, by=by))
    return changes


def _records(run: Run, now: Time) -> tuple[Step, ...]:
    """Return the run's steps, its log and its earlier history, which are stored with the first change."""
    kept = {LOG_PATH: canonical(list(run.log)) if run.log else None}
    kept[BEFORE_PATH] = msgspec.json.encode(run.history).decode() if run.history else None
    own = tuple(
        Step(
            job=run.job.id,
            epoch=run.job.epoch,
            path=path,
            name=path,
            state=StepState.STARTED,
            result=text,
            started_at=now,
        )
        for path, text in kept.items()
        if text is not None
    )
    return (*run.steps, *own)
