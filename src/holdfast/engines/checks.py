"""The checks of everything that is written to a store, with the same messages for all engines.

Must not know any store or its content.
"""

import re
from collections.abc import Iterable, Mapping, Sequence

from msgspec import DecodeError, Struct, json
from msgspec.structs import astuple, replace

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
    Ask,
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
from holdfast.core.shared_limits import MOST_UNITS, UNIT
from holdfast.engines.records import WORKER

NO_OPTIONS = Options()
_WORKER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


def check_row(row: Struct, since: int = 0) -> None:
    """Refuse a row that not every store can keep unchanged, before anything is written.

    `since` skips the fields before that index.
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
            raise BadValue(f"{name}: text with a NUL character or a lone surrogate can't be stored; remove it")
    elif type(value) is int:
        raise BadValue(f"{name}: {value} doesn't fit into 64 bits; use a smaller number")
    elif isinstance(value, Struct | tuple | Mapping):
        _check_nested(name, value)
    else:
        raise BadValue(f"{name}: a value of type {type(value).__name__} can't be stored here")


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _check_nested(name: str, value: object) -> None:
    """Check a value that is stored as JSON: errors, waits, signals, notes."""
    try:
        text = json.encode(value)
        json.decode(text)
    except (UnicodeEncodeError, TypeError, ValueError, OverflowError, DecodeError) as error:
        raise BadValue(f"{name}: can't be stored as JSON: {error}") from error
    if b"\\u0000" in text and "\0" in _all_texts(json.decode(text)):
        raise BadValue(f"{name}: text with a NUL character can't be stored; remove it")


def _all_texts(value: object) -> str:
    if isinstance(value, dict):
        return "".join(map(_all_texts, (*value, *value.values())))
    return "".join(map(_all_texts, value)) if isinstance(value, list) else value if isinstance(value, str) else ""


def check_jobs(jobs: Sequence[Job]) -> None:
    """Refuse new jobs that not every store can keep."""
    checked = NO_OPTIONS
    for job in jobs:
        if type(job.priority) is not int:
            raise BadValue(f"priority: {job.priority!r} is not a whole number; give one")
        check_row(job)
        if job.options is not checked:
            if job.options.unique is not None and _are_alike(job.options, checked):
                continue
            checked = job.options
            _check_nested("options", job.options)
            text = json.encode(job.options)
            try:
                json.decode(text, type=Options)
            except DecodeError as error:  # If it were accepted, a worker would put the job in review.
                raise BadValue(f"options: {error}") from error
            if len(text) > OPTIONS_BYTES and UNREADABLE not in job.options.meta:
                raise BadValue(
                    f"options: {len(text):,} bytes as JSON, and at most {OPTIONS_BYTES:,} are allowed; "
                    "pass large values as arguments"
                )


def _are_alike(one: Options, other: Options) -> bool:
    """Whether options that were checked differ from these only in their unique name, as those of a bulk insert do."""
    return other.unique is not None and replace(one, unique=other.unique) == other


def check_steps(steps: Sequence[Step]) -> None:
    """Refuse step records that not every store can keep."""
    for step in steps:
        check_row(step)
        if len(step.path) > STORED_PATH_CHARACTERS:
            raise BadValue(
                f"step {step.path[:40]}…: its path has {len(step.path):,} characters, and at most "
                f"{STORED_PATH_CHARACTERS:,} are allowed; use shorter names"
            )


def check_asks(asks: Sequence[Ask]) -> None:
    """Refuse asks for permits that not every store can keep."""
    most = MOST_UNITS * UNIT
    known: set[str] = set()
    """The keys and jobs that were checked already: most asks name the same ones."""
    for ask in asks:
        _check_field("ask", ask.path)
        if ask.job not in known:
            _check_field("ask", ask.job)
            known.add(ask.job)
        for use in (*ask.uses, *ask.settles):
            if use.key not in known:
                _check_field("ask", use.key)
                known.add(use.key)
            if not -most <= use.units <= most:
                raise BadValue(f"ask of step {ask.path}: more than {MOST_UNITS:,} units")
        if len(ask.uses) > 1 and len({use.key for use in ask.uses}) < len(ask.uses):
            raise Invalid(f"step {ask.path} asks for the same limit twice")


def storable(texts: Iterable[str]) -> list[str]:
    """Leave out texts that no store can hold: nothing can be found under them."""
    return [text for text in texts if "\0" not in text and (text.isascii() or _is_unicode(text))]


def are_storable(*texts: str) -> bool:
    """Whether a store can hold all of these texts."""
    return len(storable(texts)) == len(texts)


def at_most(limit: int, most: int) -> int:
    """A caller's limit, kept between 0 and `most`."""
    return max(0, min(limit, most))


def check_changes(changes: Sequence[Change]) -> None:
    """Refuse changes that no engine can apply."""
    for change in changes:
        check_row(change.job, 0 if change.edits else _STANDS)
        if not isinstance(change.by, str):
            raise BadValue(f"by: {change.by!r} is not a string; give a name")
        if len(change.by) > ACTOR_CHARACTERS:
            raise BadValue(
                f"by: {change.by[:40]!r}… has {len(change.by):,} characters, and at most {ACTOR_CHARACTERS} are allowed"
            )
        if change.note:
            _check_nested("note", change.note)
        if change.steps:
            check_steps(change.steps)
        if change.signal is not None:
            _check_nested("signal", change.signal)
            if change.version is None and change.epoch is None:  # Senders that race could overfill the inbox together.
                raise Invalid(f"a signal for job {change.job.id} must expect the version of the job that was read")
        if change.inserts:
            _check_inserts(change)


_STANDS = Job.__struct_fields__.index("state")
"""The index of the first field that changes: the fields before it were checked at the submit."""


def _check_inserts(change: Change) -> None:
    check_jobs(change.inserts)
    if len(change.inserts) > NEW_JOBS_LIMIT:
        raise Invalid(
            f"a change of job {change.job.id} inserts {len(change.inserts)} jobs; at most {NEW_JOBS_LIMIT} are allowed"
        )
    if any(job.key is not None for job in change.inserts):
        raise Invalid(f"a change of job {change.job.id} inserts a job with a key; insert that job separately")


def check_load(wholes: Sequence[Whole], keys: Sequence[HeldKey], records: Sequence[Record]) -> None:
    """Refuse to load rows that not every store can keep, or incomplete jobs."""
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
            raise Invalid(f"nothing was loaded: record {record.name} belongs to one store and can't be moved")


def check_worker(worker: str) -> None:
    """Refuse a worker's name that can't be part of a file name or a key."""
    if not _WORKER_NAME.fullmatch(worker):
        raise Invalid(f"{worker!r} can't be a worker's name; use up to 100 letters, digits, '-', '_' and '.'")


def check_record(name: str, value: str | None) -> None:
    """Refuse records that only heartbeats write, and empty ones, which would look removed."""
    check_row(Record(name, value or "-", 0, 0))
    if len(name) > RECORD_NAME_CHARACTERS or len((value or "").encode()) > RECORD_BYTES:
        raise BadValue(
            f"record {name[:40]}: too large; a name may have {RECORD_NAME_CHARACTERS} characters, "
            f"and a text {RECORD_BYTES:,} bytes"
        )
    if name.startswith(WORKER):
        raise Invalid(f"record {name}: only a worker's heartbeat writes this record")
    if value == "":
        raise Invalid(f"record {name}: a record can't be empty; pass None to remove it")


def check_record_jobs(name: str, jobs: Sequence[Job]) -> None:
    """Refuse jobs that can't be inserted together with a record."""
    check_jobs(jobs)
    if len(jobs) > NEW_JOBS_LIMIT:
        raise Invalid(f"record {name} comes with {len(jobs)} jobs; at most {NEW_JOBS_LIMIT} are allowed")
    if any(job.key is not None or job.options.unique is not None or job.parent is not None for job in jobs):
        raise Invalid(
            f"record {name} comes with a job that has a key, a unique name or a parent; insert that job separately"
        )


def check_page(ids: Sequence[str]) -> None:
    """Refuse to read more jobs at once than a page holds."""
    if len(ids) > PAGE_LIMIT:
        raise Invalid(f"{len(ids):,} jobs are too many for one call; ask for at most {PAGE_LIMIT:,}")
