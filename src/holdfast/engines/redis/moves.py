"""Reads jobs for a move and loads them, in portions that don't block the server. Must not do anything else.

A job exists once its last part is loaded (`lua/load.lua`). An interrupted load is repeated and skips the jobs it finds.
"""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

from msgspec.structs import replace

from holdfast.core.errors import NotFound
from holdfast.core.lifecycle import submit_entry
from holdfast.core.model import Entry, Job, Record
from holdfast.core.moves import HeldKey, Whole, check_marked
from holdfast.engines.redis import columns, rows
from holdfast.engines.refusals import no_job_before

PAGE = 25
"""How many jobs or keys one call reads at most."""

READ_WEIGHT = 250
"""How many entries and steps one call reads at most."""

LOAD_WEIGHT = 25
"""How many jobs and steps one call loads, counted in plain changes: the server does nothing else during the call."""

ENTRIES_WEIGHT = 10
"""How many entries cost as much as one step: entries are fields of the job."""

LOAD_SIZE = 4 << 20
"""How many bytes one call sends. The last entry or step may exceed it."""

RECORDS_PAGE = 200

Look = Callable[..., Awaitable[Any]]
"""Runs a script by name with these arguments; returns its answer without the store's seq."""

_FIRST = 21
"""Where a job's head holds the first entry's state and epoch."""


# Reading.


async def in_order(look: Look, after: str, limit: int) -> list[Job]:
    """A page of all jobs, in the order of their insertion."""
    jobs: list[Job] = []
    while len(jobs) < limit:
        most = min(PAGE, limit - len(jobs))
        last = jobs[-1].id if jobs else after
        there, *found = await look("in_order", last, most)
        if not there:
            raise no_job_before(last)
        jobs += map(rows.job_of, found)
        if len(found) < most:
            break
    return jobs


async def wholes(look: Look, jobs: Sequence[Job]) -> list[Whole | None]:
    """Everything that belongs to these jobs; None for a job that is so large that it must be read alone."""
    found: list[Whole | None] = []
    while len(found) < len(jobs):
        asked = jobs[len(found) : len(found) + PAGE]
        answer = await look("wholes", READ_WEIGHT, *(job.id for job in asked))
        found += (_whole(job, row) for job, row in zip(asked, answer, strict=False))
    return found


def _whole(job: Job, row: Any) -> Whole | None:
    if row == 0:
        return None
    if not row:
        return Whole(job, ())
    entries = rows.entries_of(job.id, 0, len(row[0]), row[0])
    return Whole(job, tuple(entries), tuple(rows.steps_of(job.id, row[1])))


async def keys(look: Look, after: tuple[str, str], limit: int) -> list[HeldKey]:
    """A page of all keys, sorted by expiry and then by name."""
    held: list[HeldKey] = []
    while len(held) < limit:
        most = min(PAGE, limit - len(held))
        last = (held[-1].type, held[-1].key) if held else after
        there, *found = await look("keys", rows.key_name(*last) if any(last) else "", most)
        if not there:
            raise NotFound(f"there is no key {last[1]!r} of type {last[0]} to continue after")
        held += (_key_of(name, text) for name, text in zip(found[::2], found[1::2], strict=True))
        if len(found) < 2 * most:
            break
    return held


def _key_of(name: bytes, text: bytes) -> HeldKey:
    length, _, rest = name.partition(b":")
    type, key = rest[: int(length)], rest[int(length) + 1 :]
    return rows.held_key(type.decode(), key.decode(), text)


async def all_records(look: Look) -> list[Record]:
    """All records by name, including the removed ones."""
    found: dict[str, Record] = {}
    cursor: Any = 0
    while True:
        cursor, *page = await look("all_records", cursor, RECORDS_PAGE)
        for name, ever, text in zip(page[::3], page[1::3], page[2::3], strict=True):
            record = rows.record_of(name, ever, text)
            found[record.name] = record
        if int(cursor) == 0:
            return [found[name] for name in sorted(found)]


# Loading.


async def load(look: Look, wholes: Sequence[Whole], keys: Sequence[HeldKey], records: Sequence[Record]) -> int:
    """Load in as many calls as needed, one after the other, so that the store always holds the first part of it."""
    new = 0
    for words in _calls(_parts(wholes, keys, records)):
        [more] = await look("load", *words)
        if more < 0:
            check_marked(None)
        new += more
    return new


def _calls(parts: Iterator[tuple[int, bytes]]) -> Iterator[list[bytes]]:
    """At least one call, because the script checks whether the store is marked."""
    words: list[bytes] = []
    weight = size = 0
    for more, word in parts:
        if words and (weight + more > LOAD_WEIGHT or size + len(word) > LOAD_SIZE):
            yield words
            words, weight, size = [], 0, 0
        words.append(word)
        weight += more
        size += len(word)
    yield words


def _parts(wholes: Sequence[Whole], keys: Sequence[HeldKey], records: Sequence[Record]) -> Iterator[tuple[int, bytes]]:
    """What to load, in the form that the script expects, each part with its weight."""
    for whole in wholes:
        yield from _parts_of(whole)
    for key in keys:
        name = rows.key_name(key.type, key.key)
        yield 1, rows.pack(("k", name, key.job, key.digest, columns.number(key.until)))
    for record in records:
        yield 1, rows.pack(("r", record.name, record.version, record.at, record.value or False))


def _parts_of(whole: Whole) -> Iterator[tuple[int, bytes]]:
    """A job's history and steps; the last part also carries the job itself."""
    job = whole.job
    entries: list[str] = []
    steps: list[tuple[str, str, str]] = []
    weight, size = 0.0, 0

    def part(row: Any = False) -> tuple[int, bytes]:
        return 1 + int(weight), rows.pack(("j", job.id, entries, steps, row))

    for entry in whole.entries:
        if entry.version == 1 and _is_derivable(job, entry):
            continue
        entries += (f"e{entry.version}", rows.entry_text(entry))
        weight, size = weight + 1 / ENTRIES_WEIGHT, size + len(entries[-1])
        if weight >= LOAD_WEIGHT - 1 or size > LOAD_SIZE:
            yield part()
            entries, weight, size = [], 0.0, 0
    for step in whole.steps:
        steps.append((step.path, rows.STEP_LETTERS[step.state], rows.step_row(step)))
        weight, size = weight + 1, size + len(steps[-1][2])
        if weight >= LOAD_WEIGHT - 1 or size > LOAD_SIZE:
            yield part()
            entries, steps, weight, size = [], [], 0.0, 0
    row = rows.job_row(job)
    row[1][_FIRST] = f"{columns.LETTERS[whole.entries[0].after]}{whole.entries[0].epoch}"
    yield part(row)


def _is_derivable(job: Job, first: Entry) -> bool:
    """Whether the first entry can be derived from the job and needn't be stored."""
    return first == submit_entry(replace(job, state=first.after, epoch=first.epoch))
