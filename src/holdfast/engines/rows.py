"""Values from the rows of SQL stores, whose statements name the columns in one order. Must not run a statement.

A column that can't be read raises no error: it is read as a value that keeps its raw text (`core.unreadable`).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, TypeVar

import msgspec

from holdfast.core.model import Entry, Error, Head, Job, Options, Signal, State, Step, StepState, Wait
from holdfast.core.summaries import StepCounts, StepHead, StepSummary, summary_from
from holdfast.core.unreadable import (
    unreadable_error,
    unreadable_note,
    unreadable_options,
    unreadable_signal,
    unreadable_waits,
)

T = TypeVar("T")

Row = Any
"""A row as its driver returns it."""

OPTIONS_KEPT = 256
"""How many texts of options are cached: jobs of one type mostly have the same options."""

GROUP_SIZE = 8 << 20
"""How many characters of results go into one statement, which databases limit."""

_encode = msgspec.json.Encoder().encode


def _or_raw(decode: Callable[[str], T], stand_in: Callable[[str], T]) -> Callable[[str], T]:
    """Make a reader that returns a placeholder for a text that it can't read."""

    def read(text: str) -> T:
        try:
            return decode(text)
        except (msgspec.DecodeError, UnicodeEncodeError):
            return stand_in(text)

    return read


_waits = _or_raw(msgspec.json.Decoder(tuple[Wait, ...]).decode, unreadable_waits)
_inbox = _or_raw(msgspec.json.Decoder(tuple[Signal, ...]).decode, lambda text: (unreadable_signal(text),))
_error = _or_raw(msgspec.json.Decoder(Error).decode, unreadable_error)
_decode_options = _or_raw(msgspec.json.Decoder(Options).decode, unreadable_options)
_known_options = lru_cache(OPTIONS_KEPT)(_decode_options)
_note = _or_raw(msgspec.json.Decoder(dict[str, Any]).decode, unreadable_note)

STATES = {state.value: state for state in State}
"""States by their names: faster than the enum's lookup."""

_STEP_STATES = {state.value: state for state in StepState}


def text(value: Any) -> str | None:
    """Return a part of a job as JSON text; None if it is empty."""
    return _encode(value).decode() if value else None


def _options(text: str) -> Options:
    """Read options from JSON text. Those with `meta` are never shared: they mostly differ, and could be changed."""
    return _decode_options(text) if '"meta"' in text else _known_options(text)


def job_of(row: Row) -> Job:
    """Read a job from a row of a whole job; further columns are ignored."""
    row = tuple(row)
    waits, error, inbox = row[22], row[24], row[27]
    return Job(
        id=row[1],
        type=row[2],
        queue=row[3],
        args=row[4],
        digest=row[5],
        priority=row[6],
        key=row[7],
        key_until=row[8],
        parent=row[9],
        group=row[10],
        created_at=row[11],
        expires_at=row[12],
        options=_options(row[13]),
        state=STATES[row[14]],
        version=row[15],
        run_at=row[16],
        epoch=row[17],
        attempt=row[18],
        recoveries=row[19],
        worker=row[20],
        claimed_at=row[21],
        waits=() if waits is None else _waits(waits),
        result=row[23],
        error=None if error is None else _error(error),
        finished_at=row[25],
        prune_at=row[26],
        inbox=() if inbox is None else _inbox(inbox),
        arrived=row[28] != 0,
    )


def head_of(row: Row) -> Head:
    """Read a head from a row of `heads`."""
    id, state, version, epoch, inbox, arrived, worker, n = row
    signals = () if inbox is None else _inbox(inbox)
    return Head(id, STATES[state], version, epoch, signals, arrived != 0, worker, n)


def entry_of(row: Row) -> Entry:
    """Read an entry from a row of `history`."""
    job, version, at, event, before, after, actor, epoch, note = row
    return Entry(
        job=job,
        version=version,
        at=at,
        event=event,
        before=None if before is None else STATES[before],
        after=STATES[after],
        by=actor,
        epoch=epoch,
        note={} if note is None else _note(note),
    )


def step_head_of(row: Row) -> StepHead:
    """Read a step without its result from a row of `steps_page`."""
    path, name, state, epoch, error, started_at, finished_at, tries = row
    return StepHead(
        path=path,
        name=name,
        state=_STEP_STATES[state],
        epoch=epoch,
        error=None if error is None else _error(error),
        started_at=started_at,
        finished_at=finished_at,
        tries=tries,
    )


def summary_of(job: str, rows: Iterable[Row]) -> StepSummary:
    """Read a summary from its counters: name, started, done, failed, the place and the path of the last step."""
    counts: dict[str, StepCounts] = {}
    last, place = "", 0
    for name, started, done, failed, at, path in rows:
        if name is not None:
            counts[name] = StepCounts(started, done, failed)
            last, place = (path, at) if at > place else (last, place)
    return summary_from(job, counts, last)


def step_of(row: Row) -> Step:
    """Read a step from a row of `steps`."""
    job, epoch, path, name, state, result, error, started_at, finished_at, tries = row
    return Step(
        job=job,
        epoch=epoch,
        path=path,
        name=name,
        state=_STEP_STATES[state],
        result=result,
        error=None if error is None else _error(error),
        started_at=started_at,
        finished_at=finished_at,
        tries=tries,
    )


def steps_apart(steps: Sequence[Step]) -> Iterator[Sequence[Step]]:
    """Split the steps into groups of limited size, with no path twice in a group: one statement for each group."""
    start, size, paths = 0, 0, set[tuple[str, str]]()
    for index, step in enumerate(steps):
        size += len(step.result or "")
        if (step.job, step.path) in paths or (size > GROUP_SIZE and index > start):
            yield steps[start:index]
            start, size = index, len(step.result or "")
            paths.clear()
        paths.add((step.job, step.path))
    if start < len(steps):
        yield steps[start:]
