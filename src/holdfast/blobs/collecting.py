"""Deletes blobs that nothing refers to; nothing else does. Must not know jobs: the caller says which ones are left.

A blob is needed while one of its marks is: while the mark is young, as its job may be on its way, or its job is kept.
A blob that nobody needs moves to the trash, and a day later it is deleted there.

The race with a new reference, whose mark is set before the blob is looked up: whoever finds the blob at its place is
safe, even if it moves to the trash at that moment. Readers look there, too, and before anything is deleted a day later,
this looks at the marks again, sees the new one, and puts the blob back. Whoever finds it gone stores it anew. Only what
was in the trash for a day is ever deleted, so no pause of less than a day between two acts of anybody loses a blob.
"""

import re
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import suppress
from itertools import groupby, islice

from msgspec import Struct
from msgspec.structs import astuple

from holdfast.blobs import threads
from holdfast.blobs.blobs import TRASH, Blobs
from holdfast.blobs.folder import FolderBlobs
from holdfast.blobs.store import BlobStore, Stored
from holdfast.core.errors import BlobsAway

DAY_MS = 24 * 3_600_000
"""How long a mark without a job counts, and how long a blob stays in the trash."""

_NAME = re.compile(r"[0-9a-f]{2}/[0-9a-f]{64}")

GROUPS_AT_ONCE = 200
"""How many blobs are judged together."""

IdsLeft = Callable[[Collection[str]], Awaitable[Collection[str]]]
"""Which of these jobs still need their blobs."""


class Collected(Struct):
    """What one round has done."""

    kept: int = 0
    trashed: int = 0
    restored: int = 0
    deleted: int = 0


class Found(Struct):
    """A blob with its marks: the job of each, and since when it has been there."""

    key: str
    marks: dict[str, int]
    blob: Stored | None = None


async def collect(blobs: Blobs, left: IdsLeft, now: int) -> Collected:
    """Do one round. `now` is the time of this machine, in milliseconds since 1970."""
    done = Collected()
    await blobs.ready()
    store, prefix = blobs.store, blobs.prefix
    if store is None or prefix is None:
        return done
    if isinstance(store, FolderBlobs):
        await threads.run(store.tidy, now / 1_000)
    trash = store.list(f"{prefix}{TRASH}")  # first: what this round puts there stays for a day
    while old := await threads.run(lambda: list(islice(trash, GROUPS_AT_ONCE))):
        await _empty(store, prefix, [one for one in old if one.at < now - DAY_MS], left, now, done)
    everything = _found(store.list(prefix), prefix)
    while some := await threads.run(lambda: list(islice(everything, GROUPS_AT_ONCE))):
        needed = set(await left({job for one in some for job in one.marks}))
        await threads.run(_sort_out, store, prefix, some, needed, now, done)
    for former in blobs.former:
        with suppress(BlobsAway):  # it may have been given up
            there = await collect(former, left, now)
            done = Collected(*(one + other for one, other in zip(astuple(done), astuple(there), strict=True)))
    return done


def _found(listed: Iterator[Stored], prefix: str) -> Iterator[Found]:
    """The blobs with their marks. They follow one another in a list, because of their names.

    What has no name of ours belongs to somebody else: another store may have its folder inside this one.
    """
    for key, ones in groupby(listed, key=lambda one: one.key.partition(".")[0]):
        if not _NAME.fullmatch(key, len(prefix)):
            continue
        found = Found(key, {})
        for one in ones:
            job = one.key[len(key) + 1 :]
            if job:
                found.marks[job] = one.at
            else:
                found.blob = one
        yield found


def _sort_out(store: BlobStore, prefix: str, some: list[Found], needed: set[str], now: int, done: Collected) -> None:
    for one in some:
        is_young = one.blob is not None and one.blob.at > now - DAY_MS
        dead = [job for job, at in one.marks.items() if job not in needed and at <= now - DAY_MS]
        if one.blob is not None and len(dead) == len(one.marks) and not is_young:
            store.move(one.key, f"{prefix}{TRASH}{one.key.rpartition('/')[2]}")
            done.trashed += 1
        elif one.blob is not None:
            done.kept += 1
        store.delete([f"{one.key}.{job}" for job in dead])


async def _empty(store: BlobStore, prefix: str, old: list[Stored], left: IdsLeft, now: int, done: Collected) -> None:
    """Delete what has been in the trash for a day, unless somebody needs it again."""
    for one in old:
        name = one.key.rpartition("/")[2]
        key = f"{prefix}{name[:2]}/{name}"
        (found,) = await threads.run(lambda key=key: list(_found(store.list(key), prefix))) or [Found(key, {})]
        needed = set(await left(found.marks))
        if any(job in needed or at > now - DAY_MS for job, at in found.marks.items()):
            await threads.run(store.move, one.key, key)
            done.restored += 1
        else:
            await threads.run(store.delete, [one.key])
            done.deleted += 1
