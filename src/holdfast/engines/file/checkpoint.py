"""How a checkpoint file is read: bytes → plain values with their positions → the format's Structs → rows.

Must not touch a disk, decide anything or accept a contradiction: invalid content is refused with its position. `writer`
reads back each line that it writes, so that nothing is acknowledged that would be refused here.
"""

import re
from collections.abc import Iterator
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET, Struct, UnsetType, convert

from holdfast.core.model import Entry, Error, Job, Options, Record, Signal, State, Step, Wait
from holdfast.engines.file.checksum import edited, mark
from holdfast.engines.file.scan import Damage, Found, Path, Spot, scan, scan_value
from holdfast.engines.file.schema import (
    VERSION,
    EntryPart,
    GroupPart,
    JobPart,
    KeyPart,
    Part,
    RecordPart,
    StepPart,
    canonical,
    fingerprint,
    is_time,
    shared,
    shown,
    split_error,
    time_of,
)
from holdfast.engines.indexed_rows import Key

P = TypeVar("P", bound=Part)


class Foreign(Exception):
    """The file is JSON, but not a checkpoint that we can write. The message says what it is."""


class Row(Struct, kw_only=True):
    """One job as read from the file. `status`, `edits` and `given` show what a person edited."""

    spot: Spot
    status: str
    sealed: bool
    """Whether the block has a check, so that all edits are known."""
    edits: tuple[str, ...]
    """The names of the fields that differ from what was written."""
    given: str | None
    """The result in the block, whatever the job's state."""
    job: Job
    steps: list[Step]
    entries: list[Entry]


class Checkpoint(Struct):
    """The content of a file. `outliving` are the keys whose jobs were pruned."""

    rows: dict[str, Row]
    keys: dict[tuple[str, str], Key]
    outliving: set[tuple[str, str]]
    groups: dict[tuple[str, str], tuple[int, int]]
    records: dict[str, Record]


def read(data: bytes) -> Checkpoint:
    """Read a file, or raise Damage or Foreign. This doesn't check whether a person's edits are allowed."""
    if not data.strip():
        raise Damage("the file is empty; expected {", 1, 1)
    found = scan(data) or {}
    version, jobs = (found[name][1] if name in found else None for name in ("version", "jobs"))
    if type(version) is not int or not isinstance(jobs, list):
        raise Foreign('it is JSON, but not a checkpoint, which is an object with "version" and "jobs"')
    if version != VERSION:
        raise Foreign(f"it is a checkpoint of version {version}, and this program supports version {VERSION}")
    for name in found.keys() - {"version", "jobs", "keys", "groups", "records"}:
        raise found[name][0].damage(f"{name!r} is not a part of a checkpoint")
    said = Checkpoint({}, {}, set(), {}, {})
    for spot, plain in jobs:
        row = _row(spot, _shaped(spot, "job", plain, JobPart))
        if row.job.id in said.rows:
            first = said.rows[row.job.id].spot.line
            raise spot.damage(f"job {row.job.id} appears twice, first in line {first}", "id")
        said.rows[row.job.id] = row
    for spot, key in _parts(found, "keys", KeyPart):
        said.keys[key.type, key.key] = Key(**_taken(spot, (), key, Key))
        if key.outlives:
            said.outliving.add((key.type, key.key))
    for _, group in _parts(found, "groups", GroupPart):
        said.groups[group.parent, group.name] = (group.total, group.arrived)
    for spot, record in _parts(found, "records", RecordPart):
        said.records[record.name] = Record(**_taken(spot, (), record, Record), value=_text(record, "value") or "")
    return said


# Reading back what `writer` wrote.


def read_head(text: str) -> Job:
    """A job, from its block without arguments, result, steps and history; or Damage."""
    spot = Spot(text)
    return _job(spot, _shaped(spot, "job", scan_value(text), JobPart), 0)


def read_step(text: str, job: str) -> Step:
    """A step, from its line; or Damage."""
    spot = Spot(text)
    return _step(spot, (), job, _shaped(spot, "step", scan_value(text), StepPart))


def read_entry(text: str, job: str, last: State | None) -> Entry:
    """An entry, from its line; or Damage."""
    spot = Spot(text)
    return _entry(spot, (), job, _shaped(spot, "entry", scan_value(text), EntryPart), last)


# From parts to rows.


def _parts(found: Found, name: str, kind: type[P]) -> list[tuple[Spot, P]]:
    if name not in found:
        return []
    spot, parts = found[name]
    if not isinstance(parts, list):
        raise spot.damage(f"{name!r} must be a list")
    return [(at, _shaped(at, name, plain, kind)) for at, plain in parts]


def _shaped(spot: Spot, what: str, plain: Any, kind: type[P]) -> P:
    try:
        return convert(plain, kind)
    except msgspec.ValidationError as error:
        name = plain.get("id") if isinstance(plain, dict) else None
        raise spot.damage(f"{what} {name}: {error}" if name else f"{what}: {error}", *_path(error)) from None
    except UnicodeEncodeError:
        raise spot.damage(f"{what}: {_NO_UNICODE}", *(_surrogate(plain) or ())) from None


_NO_UNICODE = "a text with a lone surrogate, which is not valid Unicode; correct the text"


def _surrogate(plain: Any) -> Path | None:
    """The path to the first text that can't be encoded as UTF-8."""
    if isinstance(plain, str):
        return () if not plain.isascii() and any("\ud800" <= letter <= "\udfff" for letter in plain) else None
    members = plain.items() if isinstance(plain, dict) else enumerate(plain) if isinstance(plain, list) else ()
    for key, value in members:
        if isinstance(key, str) and _surrogate(key) is not None:
            return (key,)
        if (way := _surrogate(value)) is not None:
            return (key, *way)
    return None


def _path(error: msgspec.ValidationError) -> Path:
    """The path in a msgspec error: "… unknown field `b` - at `$.history[0]`"."""
    field, way = re.search("unknown field `(.*?)`", str(error)), re.search(r" - at `\$(.*)`$", str(error))
    steps = re.findall(r"\.(\w+)|\[(\d+)\]", way[1] if way else "")
    path = [int(number) if number else name for name, number in steps]
    return (*path, field[1]) if field else tuple(path)


def _row(spot: Spot, part: JobPart) -> Row:
    """One block as rows, or Damage if it contradicts itself."""
    entries = _entries(spot, part)
    job, given = _job(spot, part, len(entries)), _text(part, "result")
    if part.args is UNSET and part.args_text is UNSET:
        raise spot.damage(f'job {part.id} has no "args"')
    steps = [_step(spot, ("steps", n), part.id, step) for n, step in enumerate(part.steps)]
    edits: tuple[str, ...] = ()
    if part.check is not UNSET:
        edits = edited(part.check, job, [*map(mark, steps), *map(mark, entries)])
        if given not in (None, "null", job.result):
            edits += ("result",)
    elif part.digest:
        written = part.digest if part.args_digest is UNSET else part.args_digest
        edits = ("args",) if written != fingerprint(job.type, job.args) else ()
    return Row(
        spot=spot,
        status=part.status,
        sealed=part.check is not UNSET,
        edits=edits,
        given=given,
        job=job,
        steps=steps,
        entries=entries,
    )


def _job(spot: Spot, part: JobPart, version: int) -> Job:
    if part.state in (State.AVAILABLE, State.ACTIVE) and part.run_at is None:
        raise spot.damage(f'job {part.id} is {part.state} and has no "run_at"', "run_at")
    if part.state is State.ACTIVE and part.worker is None:
        raise spot.damage(f'job {part.id} is active and has no "worker"', "worker")
    has_result = part.state is State.COMPLETED or part.result_text is not UNSET
    return Job(
        **_taken(spot, (), part, Job),
        version=version,
        args=_text(part, "args") or "",
        result=_text(part, "result") if has_result else None,
        error=_error(part),
        options=_options(spot, part),
        waits=tuple(Wait(**_taken(spot, ("waits", n), wait, Wait)) for n, wait in enumerate(part.waits)),
        inbox=tuple(
            Signal(**_taken(spot, ("inbox", n), one, Signal), value=_text(one, "value") or "")
            for n, one in enumerate(part.inbox)
        ),
    )


def _step(spot: Spot, path: Path, job: str, part: StepPart) -> Step:
    return Step(**_taken(spot, path, part, Step), job=job, result=_text(part, "result"), error=_error(part))


def _entry(spot: Spot, path: Path, job: str, part: EntryPart, last: State | None) -> Entry:
    before = last if part.before is UNSET else part.before
    return Entry(**_taken(spot, path, part, Entry), job=job, before=before, note=part.note)


def _entries(spot: Spot, part: JobPart) -> list[Entry]:
    entries: list[Entry] = []
    last: State | None = None
    for n, entry in enumerate(part.history):
        if entry.version != n + 1:
            what = f"job {part.id}: its history has version {entry.version} where version {n + 1} is expected"
            raise spot.damage(what, "history", n, "version")
        entries.append(_entry(spot, ("history", n), part.id, entry, last))
        last = entry.after
    if last is not part.state:
        what = f'job {part.id}: its "state" is {part.state}, but its history ends with {last or "nothing"}'
        raise spot.damage(f'{what}; to replay or resolve a job, edit its "status"', "state")
    return entries


def _options(spot: Spot, part: JobPart) -> Options:
    for name in part.options.keys() - set(Options.__struct_fields__):
        raise spot.damage(f"job {part.id}: there is no option {name!r}", "options", name)
    try:
        options = convert(part.options, Options)
    except msgspec.ValidationError as error:
        raise spot.damage(f"job {part.id}: options: {error}", "options", *_path(error)) from None
    except UnicodeEncodeError:
        where = ("options", *(_surrogate(part.options) or ()))
        raise spot.damage(f"job {part.id}: options: {_NO_UNICODE}", *where) from None
    for path, number in _numbers(part.options):
        if not -(2**63) <= number < 2**63:
            raise spot.damage(f"job {part.id}: options: {path[-1]} doesn't fit into 64 bits", "options", *path)
    return options


def _numbers(options: dict[str, Any], *path: str) -> Iterator[tuple[Path, int]]:
    for name, value in options.items():
        if isinstance(value, dict):
            yield from _numbers(value, *path, name)
        elif isinstance(value, int):
            yield (*path, name), value


def _taken(spot: Spot, path: Path, part: Part, kind: type[Struct]) -> dict[str, Any]:
    """The fields of a part under the model's names, with its times parsed."""
    taken = {name: getattr(part, name) for name in shared(type(part), kind)}
    for name, value in taken.items():
        if isinstance(value, str) and is_time(name):
            try:
                taken[name] = time_of(value)
            except ValueError:
                what = f"{name}: {value!r} is not a time; write it like {shown(0)}"
                raise spot.damage(what, *path, name) from None
    return taken


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
