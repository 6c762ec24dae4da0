"""What no store could keep: the checks of everything that is written, with the same words for all engines.

Must not know any store, nor what is in it.
"""

import re
from collections.abc import Iterable, Mapping, Sequence

from msgspec import DecodeError, Struct, json
from msgspec.structs import astuple

from holdfast.core.errors import BadValue, Invalid
from holdfast.core.limits import (
    ACTOR_CHARACTERS,
    OPTIONS_BYTES,
    RECORD_BYTES,
    RECORD_NAME_CHARACTERS,
    STORED_PATH_CHARACTERS,
)
from holdfast.core.model import (
    NEW_JOBS_LIMIT,
    PAGE_LIMIT,
    UNREADABLE,
    Change,
    Event,
    Job,
    Options,
    Record,
    State,
    Step,
    StepState,
)
from holdfast.core.moves import MOVED, HeldKey, Whole, check_whole
from holdfast.engines.records import WORKER

NO_OPTIONS = Options()
_WORKER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


def check_row(row: Struct, since: int = 0) -> None:
    """Refuse what not every store could keep as it is: the same words on all of them, before anything is written.

    `since` leaves out the fields before that one.
    """
    for place, value in enumerate(astuple(row)[since:], since):
        if value is None:
            continue
        kind = type(value)
        if kind is str:
            if value.isascii() and "\0" not in value:
                continue
        elif kind is int:
            if -(1 << 63) <= value < 1 << 63:
                continue
        elif kind in _PLAIN or value == ():
            continue
        _check_field(row.__struct_fields__[place], value)


_PLAIN = frozenset({bool, Options, State, StepState, Event})


def _check_field(name: str, value: object) -> None:
    if isinstance(value, str):
        if "\0" in value or not _is_unicode(value):
            raise BadValue(f"{name}: text with a NUL character or a lone surrogate can't be stored; clean it")
    elif type(value) is int:
        raise BadValue(f"{name}: {value} is beyond 64 bits")
    elif isinstance(value, Struct | tuple | Mapping):
        _check_nested(name, value)
    else:
        raise BadValue(f"{name}: a value of type {type(value).__name__} can't be stored there")


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _check_nested(name: str, value: object) -> None:
    """What goes into a store as JSON: errors, waits, signals, notes."""
    try:
        text = json.encode(value)
        json.decode(text)
    except (UnicodeEncodeError, TypeError, ValueError, OverflowError, DecodeError) as error:
        raise BadValue(f"{name}: can't be stored as JSON: {error}") from error
    if b"\\u0000" in text and "\0" in _all_texts(json.decode(text)):
        raise BadValue(f"{name}: text with a NUL character can't be stored; clean it")


def _all_texts(value: object) -> str:
    if isinstance(value, dict):
        return "".join(map(_all_texts, (*value, *value.values())))
    return "".join(map(_all_texts, value)) if isinstance(value, list) else value if isinstance(value, str) else ""


def check_jobs(jobs: Sequence[Job]) -> None:
    """Refuse new jobs that not every store could keep."""
    checked = NO_OPTIONS
    for job in jobs:
        if type(job.priority) is not int:
            raise BadValue(f"priority: {job.priority!r} is not a whole number")
        check_row(job)
        if job.options is not checked:
            checked = job.options
            _check_nested("options", job.options)
            text = json.encode(job.options)
            try:
                json.decode(text, type=Options)
            except DecodeError as error:  # acknowledged, it would send its job to review
                raise BadValue(f"options: {error}") from error
            if len(text) > OPTIONS_BYTES and UNREADABLE not in job.options.meta:
                raise BadValue(
                    f"options: {len(text):,} bytes as JSON, at most {OPTIONS_BYTES:,}; put it into arguments"
                )


def check_steps(steps: Sequence[Step]) -> None:
    """Refuse step records that not every store could keep."""
    for step in steps:
        check_row(step)
        if len(step.path) > STORED_PATH_CHARACTERS:
            raise BadValue(f"step {step.path[:40]}…: its path has {len(step.path):,} characters; give shorter names")


def storable(texts: Iterable[str]) -> list[str]:
    """Leave out the texts that no store holds: nothing can be found under them."""
    return [text for text in texts if "\0" not in text and (text.isascii() or _is_unicode(text))]


def are_storable(*texts: str) -> bool:
    """Whether a store may hold something under each of these texts."""
    return len(storable(texts)) == len(texts)


def at_most(limit: int, most: int) -> int:
    """A limit as a caller gave it: never less than none, never more than a page."""
    return max(0, min(limit, most))


def check_changes(changes: Sequence[Change]) -> None:
    """Refuse changes that no engine could carry out whole."""
    for change in changes:
        check_row(change.job, 0 if change.edits else _STANDS)
        if not isinstance(change.by, str):
            raise BadValue(f"by: {change.by!r} is no text")
        if len(change.by) > ACTOR_CHARACTERS:
            raise BadValue(f"by: {change.by[:40]!r}… has {len(change.by):,} characters, at most {ACTOR_CHARACTERS}")
        if change.note:
            _check_nested("note", change.note)
        if change.steps:
            check_steps(change.steps)
        if change.signal is not None:
            _check_nested("signal", change.signal)
            if change.version is None and change.epoch is None:  # racing senders would pass an inbox's bounds together
                raise Invalid(f"a signal for job {change.job.id} must expect the version that was looked at")
        if change.inserts:
            _check_inserts(change)


_STANDS = Job.__struct_fields__.index("state")
"""Where the part of a job begins that changes: what is before it was checked when it was submitted."""


def _check_inserts(change: Change) -> None:
    check_jobs(change.inserts)
    if len(change.inserts) > NEW_JOBS_LIMIT:
        raise Invalid(f"{len(change.inserts)} new jobs in one change of job {change.job.id}; up to {NEW_JOBS_LIMIT}")
    if any(job.key is not None for job in change.inserts):
        raise Invalid(f"a change of job {change.job.id} brings a job with a key; insert that one by itself")


def check_load(wholes: Sequence[Whole], keys: Sequence[HeldKey], records: Sequence[Record]) -> None:
    """Refuse to load what not every store could keep, or what is not whole."""
    for whole in wholes:
        check_whole(whole)
        for entry in whole.entries:
            check_row(entry)
        check_steps(whole.steps)
    check_jobs([whole.job for whole in wholes])
    for key in keys:
        check_row(key)
    for record in records:
        check_row(record)
        if record.name == MOVED or record.name.startswith(WORKER):
            raise Invalid(f"record {record.name} belongs to its own store; nothing was loaded")


def check_worker(worker: str) -> None:
    """Refuse a worker's name that could not be part of a file's or a key's name."""
    if not _WORKER_NAME.fullmatch(worker):
        raise Invalid(f"{worker!r} can't be a worker's name: letters, digits, '-', '_' and '.', up to 100 characters")


def check_record(name: str, value: str | None) -> None:
    """Refuse records that a beat writes, and empty ones, which would look like none."""
    check_row(Record(name, value or "-", 0, 0))
    if len(name) > RECORD_NAME_CHARACTERS or len((value or "").encode()) > RECORD_BYTES:
        raise BadValue(
            f"record {name[:40]}: a name has at most {RECORD_NAME_CHARACTERS} characters, a text {RECORD_BYTES:,} bytes"
        )
    if name.startswith(WORKER):
        raise Invalid(f"record {name}: a worker's presence is written by its beat")
    if value == "":
        raise Invalid(f"record {name}: an empty text means nothing; give None to remove it")


def check_page(ids: Sequence[str]) -> None:
    """Refuse to read for more jobs than a page has."""
    if len(ids) > PAGE_LIMIT:
        raise Invalid(f"{len(ids):,} jobs are more than a page; ask for at most {PAGE_LIMIT:,} at once")
