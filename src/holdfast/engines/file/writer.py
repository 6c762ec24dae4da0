"""The text of a checkpoint file, written so that it is easy to read and diffs line by line. `schema` has the format.

Must not touch a disk, or write what can't be read again: each line is read back when it is made. The same store always
gives the same bytes.
"""

import json
from collections.abc import Iterable, Sequence
from functools import cache, lru_cache
from typing import Any

from msgspec import Struct, to_builtins
from msgspec.structs import fields, replace

from holdfast.core.errors import BadValue
from holdfast.core.lifecycle import STATE_ROWS
from holdfast.core.model import Entry, Error, Job, Options, State, Step, Time
from holdfast.engines.file.checkpoint import read_entry, read_head, read_step
from holdfast.engines.file.checksum import mark, seal
from holdfast.engines.file.schema import (
    VERSION,
    EntryPart,
    GroupPart,
    JobPart,
    KeyPart,
    Part,
    RecordPart,
    SignalPart,
    StepPart,
    WaitPart,
    fingerprint,
    is_time,
    plain,
    shared,
    shown,
    split_error,
)
from holdfast.engines.tables import Tables

KEY_LINES_KEPT = 20_000
"""How many lines of keys are cached as text: twice as many as a store can have jobs."""


class Rows(Tables):
    """Tables that can be filled from a file, and that know the order in which jobs were inserted."""

    def restore(self, job: Job, steps: Iterable[Step], entries: list[Entry]) -> None:
        """Restore a job as it was."""
        self._put(job)
        self.entries[job.id] = entries
        self.steps[job.id] = {step.path: step for step in steps}
        for step in self.steps[job.id].values():
            self._count(step, 1)
        if job.parent is not None:
            self.children[job.parent].add(job.id)

    def in_order(self) -> list[str]:
        """The ids of all jobs, in the order of insertion."""
        return sorted(self.jobs, key=self._order.__getitem__)

    def _put(self, job: Job | None, id: str = "") -> None:
        # The heaps keep entries that were undone: a value that doesn't sort would break them for all later jobs.
        for name in ("priority", "run_at") if job is not None else ():
            if type(value := getattr(job, name)) is not int and value is not None:
                raise BadValue(f"{name}: {value!r} is not a whole number")
        super()._put(job, id)


class RowText(Struct, frozen=True):
    """A step or entry as text. It keeps `source`, so that no other object gets the same id()."""

    source: Step | Entry
    text: str
    mark: str


class FileText:
    """The text of a store, kept block by block, so that an act writes only the blocks that it changed."""

    def __init__(self) -> None:
        self._blocks: dict[str, bytes] = {}
        self._lines: dict[str, dict[int, RowText]] = {}

    def refresh(self, rows: Rows, ids: Iterable[str]) -> None:
        """Update the blocks of these jobs; or Damage if one of them can't be read back."""
        for name in ids:
            job = rows.jobs.get(name)
            if job is None:
                self._blocks.pop(name, None)
                self._lines.pop(name, None)
            else:
                self._blocks[name] = self._block(job, rows.steps.get(name, {}).values(), rows.entries[name])

    def data(self, rows: Rows) -> bytes:
        """The whole file."""
        ids = rows.in_order()
        self.refresh(rows, [*(name for name in ids if name not in self._blocks), *(self._blocks.keys() - rows.jobs)])
        parts = [b'{\n  "version": %d,\n  "jobs": [' % VERSION, b",".join([self._blocks[name] for name in ids])]
        parts.append(b"\n  ]" if ids else b"]")
        for title, lines in (("keys", _keys(rows)), ("groups", _groups(rows)), ("records", _records(rows))):
            if lines:
                parts.append(_bytes(f',\n  "{title}": [' + ",".join(f"\n    {line}" for line in lines) + "\n  ]"))
        return b"".join([*parts, b"\n}\n"])

    def _block(self, job: Job, steps: Iterable[Step], entries: Sequence[Entry]) -> bytes:
        if (len(entries), entries[-1].version) != (job.version, job.version):
            raise ValueError(f"job {job.id} is at version {job.version} and its history is not")
        old, kept = self._lines.get(job.id, {}), dict[int, RowText]()
        for step in steps:
            kept[id(step)] = old.get(id(step)) or _step(step)
        count, last = len(kept), None
        for entry in entries:
            kept[id(entry)] = old.get(id(entry)) or _entry(entry, last)
            last = entry.after
        self._lines[job.id] = kept
        texts = [line.text for line in kept.values()]
        lists = {
            "waits": [_line(WaitPart, _shared_fields(WaitPart, wait)) for wait in job.waits],
            "inbox": [
                _line(SignalPart, _shared_fields(SignalPart, one) | _value("value", one.value)) for one in job.inbox
            ],
            "traceback": [_json(line) for line in _error(job.error).get("traceback", ())],
            "steps": texts[:count],
            "history": texts[count:],
        }
        values = _job(job)
        fields = {
            name: "[" + ",".join(f"\n        {text}" for text in lists[name]) + "\n      ]"
            if lists.get(name)
            else _json(values[name])
            for name in JobPart.__struct_fields__
            if lists.get(name) or name in values
        }
        fields["check"] = _json(_check(job, fields, kept.values()))
        return _bytes("\n    {" + ",".join(f'\n      "{name}": {text}' for name, text in fields.items()) + "\n    }")


def _check(job: Job, fields: dict[str, str], lines: Iterable[RowText]) -> str:
    """The check of a job as a reader will see it. Its values and lines were already read back."""
    head = {name: text for name, text in fields.items() if name not in _READ_BEFORE} | {"history": "[]"}
    again = read_head("{" + ",".join(f'"{name}":{text}' for name, text in head.items()) + "}")
    again = replace(again, version=job.version, args=job.args, result=job.result)
    return seal(again, (line.mark for line in lines))


def _job(job: Job) -> dict[str, Any]:
    values = _shared_fields(JobPart, job) | {"error": None} | _error(job.error) | _value("args", job.args)
    values["status"] = STATE_ROWS[job.state].checkpoint
    # A job that can't have a result shows null. A completed job without one omits it, because null is a result, too.
    if job.state is State.COMPLETED:
        values |= {} if job.result is None else _value("result", job.result)
    else:
        values |= {"result": None} if job.result is None else {"result_text": job.result}
    if job.digest and job.digest != (written := fingerprint(job.type, job.args)):
        values["args_digest"] = written
    if job.options != _USUAL:
        options = {name: getattr(job.options, name) for name in Options.__struct_fields__}
        values["options"] = {name: to_builtins(it) for name, it in options.items() if it != getattr(_USUAL, name)}
    return values


def _step(step: Step) -> RowText:
    values = _shared_fields(StepPart, step) | _error(step.error)
    text = _line(StepPart, values if step.result is None else values | _value("result", step.result))
    return RowText(step, text, mark(read_step(text, step.job)))


def _entry(entry: Entry, last: State | None) -> RowText:
    values = _shared_fields(EntryPart, entry)
    if entry.before is not last:
        values["before"] = entry.before
    text = _line(EntryPart, values | {"note": entry.note} if entry.note else values)
    return RowText(entry, text, mark(read_entry(text, entry.job, last)))


def _keys(rows: Rows) -> list[str]:
    return [
        _key(type, name, key.job, key.digest, key.until, key.job not in rows.jobs)
        for (type, name), key in sorted(rows.keys.items())
    ]


@lru_cache(KEY_LINES_KEPT)
def _key(type: str, name: str, job: str, digest: str, until: Time | None, outlives: bool) -> str:
    values: dict[str, Any] = {"type": type, "key": name, "job": job}
    values |= {"digest": digest} if digest else {}
    values |= {"until": shown(until)} if until is not None else {}
    return _line(KeyPart, values | ({"outlives": True} if outlives else {}))


def _groups(rows: Rows) -> list[str]:
    return [
        _line(GroupPart, {"parent": parent, "name": name, "total": total, "arrived": arrived})
        for (parent, name), (total, arrived) in sorted(rows.groups.items())
    ]


def _records(rows: Rows) -> list[str]:
    return [
        _line(RecordPart, _shared_fields(RecordPart, record) | (_value("value", record.value) if record.value else {}))
        for _, record in sorted(rows.records.items())
    ]


def _shared_fields(part: type[Part], source: Struct) -> dict[str, Any]:
    """The fields that the format and the model share, without defaults, and with times as text."""
    values = {}
    for name in shared(part, type(source)):
        value = getattr(source, name)
        if value != _defaults(part)[name]:
            values[name] = shown(value) if value is not None and is_time(name) else value
    return values


@cache
def _defaults(part: type[Part]) -> dict[str, Any]:
    return {field.name: field.default for field in fields(part)}


def _value(name: str, text: str) -> dict[str, Any]:
    try:
        return {name: plain(text)}
    except ValueError:
        return {f"{name}_text": text}


def _error(error: Error | None) -> dict[str, Any]:
    if error is None:
        return {}
    text = f"{error.type}: {error.message}" if error.message else error.type
    values: dict[str, Any] = {"error": text}
    if split_error(text) != (error.type, error.message):
        values = {"error": f"{error.type}: {error.message}", "error_type": error.type}
    return values | ({"traceback": error.traceback.split("\n")} if error.traceback else {})


def _line(part: type[Part], values: dict[str, Any]) -> str:
    return _json({name: values[name] for name in part.__struct_fields__ if name in values})


def _bytes(text: str) -> bytes:
    # A lone surrogate can't be encoded as UTF-8; this writes it as \ud800, which is valid JSON.
    return text.encode(errors="backslashreplace")


_READ_BEFORE = frozenset({"args", "args_text", "result", "result_text", "steps", "history"})
_USUAL = Options()
_json = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode
