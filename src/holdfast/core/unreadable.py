"""Values that a store holds and nobody can read: how they are read all the same, and what a replay makes of them.

Must not touch a store. A damaged value is read as a value of the right type that keeps the raw text, so that one row
stops neither a queue nor a listing, nothing of it is lost when the row is written again, and a move takes it along.
The worker that claims such a job sets it aside for a person; only a person's replay leaves the damaged part out.
"""

from collections.abc import Mapping
from typing import Any

from msgspec import DecodeError, json
from msgspec.structs import replace

from holdfast.core.changes import exhaust
from holdfast.core.model import (
    UNREADABLE,
    Change,
    Error,
    Job,
    Options,
    Presence,
    Signal,
    Step,
    Time,
    Wait,
    WaitKind,
)

UNREADABLE_ARGS = f'"{UNREADABLE}"'
"""Stands for arguments that are lost with the text around them. It is no list: no function is called with it."""

UNREADABLE_ERROR = "Unreadable"
"""The type of the error that says so."""

RAW_SHOWN = 2_000
"""How many characters of a raw text a history entry repeats. All of it stays where it is until a person decides."""


# Reading.


def raw_text(raw: str | bytes) -> str:
    """A raw value as text that any store can hold."""
    whole = raw if isinstance(raw, bytes) else raw.encode("utf-8", "backslashreplace")
    return whole.decode("utf-8", "backslashreplace").replace("\0", "\\0")


def unreadable_options(raw: str | bytes) -> Options:
    """What stands for options that can't be read."""
    return Options(meta={UNREADABLE: raw_text(raw)})


def unreadable_waits(raw: str | bytes) -> tuple[Wait, ...]:
    """What stands for waits that can't be read."""
    return (Wait(WaitKind.ACTIVATION, f"{UNREADABLE} {raw_text(raw)}"),)


def unreadable_signal(raw: str | bytes, version: int = 0) -> Signal:
    """What stands for a signal, or a whole inbox, that can't be read."""
    return Signal(version, UNREADABLE, json.encode(raw_text(raw)).decode(), "", 0)


def unreadable_error(raw: str | bytes) -> Error:
    """What stands for an error, or a whole step record, that can't be read."""
    return Error(UNREADABLE_ERROR, _LOST_WORDS, raw_text(raw))


_LOST_WORDS = "what was kept here can't be read"


def is_unreadable(error: Error | None) -> bool:
    """Whether this stands for what can't be read, and is no error of somebody's code."""
    return error is not None and error.type == UNREADABLE_ERROR and error.message == _LOST_WORDS


def unreadable_note(raw: str | bytes) -> dict[str, Any]:
    """What stands for the note of a history entry that can't be read."""
    return {UNREADABLE: raw_text(raw)}


def presence_of(text: str | bytes, worker: str, beat_at: Time = 0) -> Presence:
    """What a worker's beat says; if it can't be read, a presence of that name which says so, heard of at `beat_at`."""
    try:
        return replace(_presence(text), worker=worker)
    except ValueError:  # also text that is no Unicode
        return Presence(worker, beat_at=beat_at, unreadable=True)


_presence = json.Decoder(Presence).decode


def told(text: str | None) -> dict[str, Any]:
    """What one of our own records says; nothing if it can't be read."""
    try:
        found = json.decode(text or "{}")
    except DecodeError:
        return {}
    return found if isinstance(found, dict) else {}


def log_lines(step: Step) -> list[str]:
    """The log lines that a record keeps."""
    try:
        return json.decode(step.result or "[]", type=list[str])
    except DecodeError:
        return ["(the lines before this one can't be read)"]


# Telling.


def unreadable_parts(job: Job) -> dict[str, str]:
    """The parts of a job that can't be read and decide how it runs, each with its raw text; mostly none."""
    parts: dict[str, str] = {}
    if UNREADABLE in job.options.meta:
        parts["options"] = job.options.meta[UNREADABLE]
    if job.waits and job.waits[0].is_unreadable:
        parts["waits"] = job.waits[0].name.removeprefix(f"{UNREADABLE} ")
    if job.inbox and (raws := [json.decode(one.value, type=str) for one in job.inbox if one.name == UNREADABLE]):
        parts["inbox"] = "\n".join(raws)
    return parts


# Deciding.


def set_aside(job: Job, parts: Mapping[str, str], now: Time, *, by: str) -> Change:
    """What the owner of a job makes of it that can't be run as it was asked for: a person must see it."""
    names = " and ".join(parts)
    message = (
        f"its {names} can't be read: the stored text is damaged; holdfast replay goes on without, with default options "
        "if those are damaged; or resolve or discard it"
    )
    error = Error(UNREADABLE_ERROR, message, "\n".join(f"{name}: {raw[:RAW_SHOWN]}" for name, raw in parts.items()))
    note = {"error": f"{UNREADABLE_ERROR}: its {names} can't be read"}
    return exhaust(job, now, by=by, error=error, note=note)


def without_unreadable(before: Job, change: Change) -> Change:
    """A replay that leaves out what of a job can't be read, and writes that down."""
    parts, job = unreadable_parts(before), change.job
    if not parts:
        return change
    meta = {name: value for name, value in job.options.meta.items() if name != UNREADABLE}
    return replace(
        change,
        job=replace(job, options=replace(job.options, meta=meta)),
        note={**change.note, "left_out": {name: raw[:RAW_SHOWN] for name, raw in parts.items()}},
        takes=(*change.takes, *(signal.version for signal in job.inbox if signal.name == UNREADABLE)),
        edits=change.edits or "options" in parts,
    )
