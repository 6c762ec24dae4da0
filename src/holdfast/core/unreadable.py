"""Damaged values in a store: what is read in their place, and what a replay does with them.

Must not touch a store. A damaged value is read as a placeholder of the right type that keeps the raw text. So one bad
row stops neither a queue nor a listing, the raw text survives when the row is written again, and a move copies it. The
worker that claims such a job puts it in review; only a person's replay drops the damaged part.
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
"""The placeholder for damaged arguments. It isn't a list, so no function is ever called with it."""

UNREADABLE_ERROR = "Unreadable"
"""The error type of a job or step with a damaged value."""

RAW_SHOWN = 2_000
"""How many characters of a raw text a history entry shows. The store keeps all of it until a person decides."""


# Reading.


def raw_text(raw: str | bytes) -> str:
    """A raw value as text that any store can hold."""
    whole = raw if isinstance(raw, bytes) else raw.encode("utf-8", "backslashreplace")
    return whole.decode("utf-8", "backslashreplace").replace("\0", "\\0")


def unreadable_options(raw: str | bytes) -> Options:
    """The placeholder for options that can't be read."""
    return Options(meta={UNREADABLE: raw_text(raw)})


def unreadable_waits(raw: str | bytes) -> tuple[Wait, ...]:
    """The placeholder for waits that can't be read."""
    return (Wait(WaitKind.ACTIVATION, f"{UNREADABLE} {raw_text(raw)}"),)


def unreadable_signal(raw: str | bytes, version: int = 0) -> Signal:
    """The placeholder for a signal, or a whole inbox, that can't be read."""
    return Signal(version, UNREADABLE, json.encode(raw_text(raw)).decode(), "", 0)


def unreadable_error(raw: str | bytes) -> Error:
    """The placeholder for an error, or a whole step record, that can't be read."""
    return Error(UNREADABLE_ERROR, _LOST_WORDS, raw_text(raw))


_LOST_WORDS = "the stored value can't be read"


def is_unreadable(error: Error | None) -> bool:
    """Whether this is the placeholder for a damaged value, and not an error of somebody's code."""
    return error is not None and error.type == UNREADABLE_ERROR and error.message == _LOST_WORDS


def unreadable_note(raw: str | bytes) -> dict[str, Any]:
    """The placeholder for a history note that can't be read."""
    return {UNREADABLE: raw_text(raw)}


def presence_of(text: str | bytes, worker: str, beat_at: Time = 0) -> Presence:
    """A worker's status from its heartbeat; if that can't be read, one marked `unreadable`, last seen at `beat_at`."""
    try:
        return replace(_presence(text), worker=worker)
    except ValueError:  # also text that isn't valid Unicode
        return Presence(worker, beat_at=beat_at, unreadable=True)


_presence = json.Decoder(Presence).decode


def record_content(text: str | None) -> dict[str, Any]:
    """Return the content of one of our own records; empty if it can't be read."""
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


# Reporting.


def unreadable_parts(job: Job) -> dict[str, str]:
    """The damaged parts of a job that decide how it runs, each with its raw text; usually none."""
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
    """Put a job in review, because its damaged parts can't be run as they were submitted."""
    names = " and ".join(parts)
    message = (
        f"its {names} can't be read: the stored text is damaged; replay it to run it without them (damaged options "
        "become the defaults), or resolve or discard it"
    )
    error = Error(UNREADABLE_ERROR, message, "\n".join(f"{name}: {raw[:RAW_SHOWN]}" for name, raw in parts.items()))
    note = {"error": f"{UNREADABLE_ERROR}: its {names} can't be read"}
    return exhaust(job, now, by=by, error=error, note=note)


def without_unreadable(before: Job, change: Change) -> Change:
    """A replay that drops the damaged parts of a job, and notes them in the history."""
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
