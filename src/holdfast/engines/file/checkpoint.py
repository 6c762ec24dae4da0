"""The checkpoint file: the format, as Structs in the file's own order, and how it is read. `sheet` writes it.

Must not touch a disk, decide anything or let a contradiction pass: what can't be right is refused with its line.

    {
      "version": 1,
      "jobs": [
        { "id": …, "type": …, "status": …, "error": …, "args": …, "result": …, "state": …, …, "history": […] }
      ],
      "keys": […], "groups": […], "records": […]
    }
"""

import json
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET, Struct, UnsetType, convert

from holdfast.core.keys import digest
from holdfast.core.model import (
    Entry,
    Error,
    Job,
    Options,
    Record,
    Signal,
    State,
    Step,
    StepState,
    Time,
    Wait,
    WaitKind,
)
from holdfast.engines.file.scan import Damage, Found, no_constant, scan, unique
from holdfast.engines.tables import Key

VERSION = 1
"""The version of the format. A file of a higher one is never written."""

EDIT = "edit"
"""A kind of history entry that is no event: a person edited the job in the file, and its state stayed as it was."""

Moment = str | int
"""A time in the file: ISO 8601 in UTC to the millisecond, and a whole number where no date can say it."""


class Foreign(Exception):
    """The file is JSON and no checkpoint that we may write. Says what it is instead."""


# The format. Defaults are left out of the file; UNSET is what isn't there at all. A value that is not canonical JSON
# goes under `…_text`, so that whatever an engine was given comes back.


class Part(Struct, kw_only=True, forbid_unknown_fields=True):
    """Something that the file tells."""


class WaitPart(Part, kw_only=True):
    """What a job waits for."""

    kind: WaitKind
    name: str = ""
    until: Moment | None = None


class SignalPart(Part, kw_only=True):
    """A message in a job's inbox."""

    version: int
    name: str
    value: Any = UNSET
    value_text: str | UnsetType = UNSET
    by: str = ""
    at: Moment


class StepPart(Part, kw_only=True):
    """One step, on one line."""

    path: str
    name: str
    state: StepState
    result: Any = UNSET
    result_text: str | UnsetType = UNSET
    error: str | None = None
    error_type: str | UnsetType = UNSET
    epoch: int
    started_at: Moment
    finished_at: Moment | None = None
    traceback: list[str] = []


class EntryPart(Part, kw_only=True):
    """One entry of the history, on one line. `before` is told only where it isn't what the last entry led to."""

    version: int
    at: Moment
    event: str
    before: State | UnsetType | None = UNSET
    after: State
    by: str = ""
    epoch: int = 0
    note: dict[str, Any] = {}


class JobPart(Part, kw_only=True):
    """One job, a block of lines. What a person wants to know comes first."""

    id: str
    type: str
    status: str
    error: str | None
    error_type: str | UnsetType = UNSET
    args: Any = UNSET
    args_text: str | UnsetType = UNSET
    result: Any = UNSET
    result_text: str | UnsetType = UNSET
    state: State
    queue: str = "default"
    priority: int = 0
    key: str | None = None
    key_until: Moment | None = None
    parent: str | None = None
    group: str | None = None
    arrived: bool = False
    worker: str | None = None
    attempt: int = 1
    recoveries: int = 0
    epoch: int = 0
    created_at: Moment
    run_at: Moment | None = None
    claimed_at: Moment | None = None
    expires_at: Moment | None = None
    finished_at: Moment | None = None
    prune_at: Moment | None = None
    options: dict[str, Any] = {}
    digest: str = ""
    args_digest: str | UnsetType = UNSET
    waits: list[WaitPart] = []
    inbox: list[SignalPart] = []
    traceback: list[str] = []
    steps: list[StepPart] = []
    history: list[EntryPart]


class KeyPart(Part, kw_only=True):
    """What an idempotency key stands for."""

    type: str
    key: str
    job: str
    digest: str = ""
    until: Moment | None = None
    outlives: bool = False
    """The job was pruned and its key still holds. Without this, a missing job was removed by hand, and its key too."""


class GroupPart(Part, kw_only=True):
    """How many children a job has, and how many have arrived."""

    parent: str
    name: str = ""
    total: int
    arrived: int = 0


class RecordPart(Part, kw_only=True):
    """A small document. A removed one has no value, and keeps its version."""

    name: str
    value: Any = UNSET
    value_text: str | UnsetType = UNSET
    version: int
    at: Moment


P = TypeVar("P", bound=Part)

# Reading: bytes → plain values with their lines → the format → rows.


class Row(Struct, kw_only=True):
    """One job as the file has it. `status`, `edited` and `given` tell what a person did to it."""

    line: int
    status: str
    edited: bool
    """Whether the arguments are others than those that were written."""
    given: str | None
    """The result that stands in the block, whatever the job's state."""
    job: Job
    steps: list[Step]
    entries: list[Entry]


class Checkpoint(Struct):
    """All that a file says. `outliving` are the keys whose jobs were pruned."""

    rows: dict[str, Row]
    keys: dict[tuple[str, str], Key]
    outliving: set[tuple[str, str]]
    groups: dict[tuple[str, str], tuple[int, int]]
    records: dict[str, Record]


def read(data: bytes) -> Checkpoint:
    """What a file says, or Damage or Foreign. Whether a person's edits make sense is not asked here."""
    if not data.strip():
        raise Damage("the file is empty; expected {", 1, 1)
    found = scan(data) or {}
    version, jobs = (found.get(name, (0, None))[1] for name in ("version", "jobs"))
    if type(version) is not int or not isinstance(jobs, list):
        raise Foreign('it is JSON, but no checkpoint: that is an object with "version" and "jobs"')
    if version != VERSION:
        raise Foreign(f"it is a checkpoint of version {version}, and this program knows version {VERSION}")
    for name in found.keys() - {"version", "jobs", "keys", "groups", "records"}:
        raise Damage(f"{name!r} is no part of a checkpoint", found[name][0])
    said = Checkpoint({}, {}, set(), {}, {})
    for line, plain in jobs:
        row = _row(line, _shaped(line, "job", plain, JobPart))
        if row.job.id in said.rows:
            raise Damage(f"job {row.job.id} is there twice, first in line {said.rows[row.job.id].line}", line)
        said.rows[row.job.id] = row
    for line, key in _parts(found, "keys", KeyPart):
        said.keys[key.type, key.key] = Key(**_taken(line, key, Key))
        if key.outlives:
            said.outliving.add((key.type, key.key))
    for _, group in _parts(found, "groups", GroupPart):
        said.groups[group.parent, group.name] = (group.total, group.arrived)
    for line, record in _parts(found, "records", RecordPart):
        said.records[record.name] = Record(**_taken(line, record, Record), value=_text(record, "value") or "")
    return said


def _parts(found: Found, name: str, kind: type[P]) -> list[tuple[int, P]]:
    line, parts = found.get(name, (1, []))
    if not isinstance(parts, list):
        raise Damage(f"{name!r} must be a list", line)
    return [(at, _shaped(at, name, plain, kind)) for at, plain in parts]


def _shaped(line: int, what: str, plain: Any, kind: type[P]) -> P:
    try:
        return convert(plain, kind)
    except msgspec.ValidationError as error:
        name = plain.get("id") if isinstance(plain, dict) else None
        raise Damage(f"{what} {name}: {error}" if name else f"{what}: {error}", line) from None


def _row(line: int, part: JobPart) -> Row:
    """One block as rows, or Damage where it contradicts itself."""
    entries = _entries(line, part)
    if part.state in (State.AVAILABLE, State.ACTIVE) and part.run_at is None:
        raise Damage(f'job {part.id} is {part.state} and has no "run_at"', line)
    if part.state is State.ACTIVE and part.worker is None:
        raise Damage(f'job {part.id} is active and has no "worker"', line)
    args, given = _text(part, "args"), _text(part, "result")
    if args is None:
        raise Damage(f'job {part.id} has no "args"', line)
    has_result = part.state is State.COMPLETED or part.result_text is not UNSET
    job = Job(
        **_taken(line, part, Job),
        version=len(entries),
        args=args,
        result=given if has_result else None,
        error=_error(part),
        options=_options(line, part),
        waits=tuple(Wait(**_taken(line, wait, Wait)) for wait in part.waits),
        inbox=tuple(Signal(**_taken(line, one, Signal), value=_text(one, "value") or "") for one in part.inbox),
    )
    steps = [
        Step(**_taken(line, step, Step), job=job.id, result=_text(step, "result"), error=_error(step))
        for step in part.steps
    ]
    written = part.digest if part.args_digest is UNSET else part.args_digest
    edited = part.digest != "" and written != fingerprint(job.type, args)
    return Row(line=line, status=part.status, edited=edited, given=given, job=job, steps=steps, entries=entries)


def _entries(line: int, part: JobPart) -> list[Entry]:
    entries: list[Entry] = []
    last: State | None = None
    for version, entry in enumerate(part.history, start=1):
        if entry.version != version:
            raise Damage(f"job {part.id}: its history has version {entry.version} where {version} is due", line)
        before = last if entry.before is UNSET else entry.before
        entries.append(Entry(**_taken(line, entry, Entry), job=part.id, before=before, note=entry.note))
        last = entry.after
    if last is not part.state:
        what = f'job {part.id}: its "state" is {part.state} and its history ends with {last or "nothing"}'
        raise Damage(f'{what}; to change what becomes of a job, edit its "status"', line)
    return entries


def _options(line: int, part: JobPart) -> Options:
    for name in part.options.keys() - set(Options.__struct_fields__):
        raise Damage(f"job {part.id}: there is no option {name!r}", line)
    try:
        return convert(part.options, Options)
    except msgspec.ValidationError as error:
        raise Damage(f"job {part.id}: options: {error}", line) from None


def _taken(line: int, part: Part, kind: type[Struct]) -> dict[str, Any]:
    """What a part says in the model's own names, its times read."""
    taken = {name: getattr(part, name) for name in shared(type(part), kind)}
    return {name: _time(line, name, value) if is_time(name) else value for name, value in taken.items()}


def _text(part: Part, name: str) -> str | None:
    """The canonical text of a value."""
    text: str | UnsetType = getattr(part, f"{name}_text")
    if text is not UNSET:
        return text
    value = getattr(part, name)
    return None if value is UNSET else canonical(value)


def _error(part: JobPart | StepPart) -> Error | None:
    if part.error is None:
        return None
    traceback = "\n".join(part.traceback)
    if part.error_type is not UNSET:
        return Error(part.error_type, part.error[len(part.error_type) + 2 :], traceback)
    return Error(*split_error(part.error), traceback)


def _time(line: int, name: str, moment: Moment | None) -> Time | None:
    if not isinstance(moment, str):
        return moment
    try:
        at = datetime.fromisoformat(moment)
        return (at - _EPOCH) // _MILLISECOND
    except (ValueError, TypeError):
        example = shown(0)
        raise Damage(f"{name}: {moment!r} is no time; write it like {example}", line) from None


# What reading and writing share: values, errors and times as text.

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_SPECIAL = frozenset({"args", "result", "value", "error", "options", "waits", "inbox", "before", "note"})
"""What the format tells in another way than the model."""


@cache
def shared(part: type[Part], kind: type[Struct]) -> tuple[str, ...]:
    """The fields that a part of the format and a struct of the model have in common."""
    return tuple(name for name in part.__struct_fields__ if name in kind.__struct_fields__ and name not in _SPECIAL)


def is_time(name: str) -> bool:
    """Whether a field holds a time, as the model names them."""
    return name in ("at", "until") or name.endswith(("_at", "_until"))


def shown(time: Time) -> Moment:
    """A time as a person reads it."""
    try:
        return (_EPOCH + time * _MILLISECOND).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except OverflowError:
        return time


def canonical(value: Any) -> str:
    """The canonical text of a plain value: what `codec` writes, but for numbers that it would refuse or round."""
    return _CANONICAL(value)


def plain(text: str) -> Any:
    """The value of a text, if exactly this text would be made of it again; else ValueError."""
    try:
        value = json.loads(text, object_pairs_hook=unique, parse_constant=no_constant)
        if canonical(value) == text:
            return value
    except RecursionError:
        pass
    raise ValueError("not canonical JSON")


def fingerprint(type: str, args: str) -> str:
    """What tells whether arguments were edited: the project's own digest, where the text has one."""
    try:
        return digest(type, args)
    except UnicodeEncodeError:  # A lone surrogate.
        return ""


def split_error(text: str) -> tuple[str, str]:
    """The type and the message of an error that a person reads as one line."""
    kind, _, message = text.partition(": ")
    return kind, message


_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode
