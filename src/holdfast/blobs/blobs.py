"""The blobs of one store for jobs: keeps large values and files, and reads them back, checked by their hash.

Must not decide what is still needed (`collecting`). A blob's name is the hash of its content, so equal ones are kept
once. Beside it lies a mark, an empty object, for each job that refers to it; the mark is there before the blob and
before the job's own record. See docs/decisions/0043.

    ab/ab12…             a blob
    ab/ab12….<job id>    the mark of a job that refers to it
    ab/ab12….damaged     what was found in place of a blob, and isn't what was stored; deleted a day later
    trash/ab12…          a blob that nothing refers to; deleted a day later
"""

import hashlib
import os
import time
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TypeVar

from holdfast.blobs import threads
from holdfast.blobs.local import LocalFile, find_file
from holdfast.blobs.store import BlobStore, NoObject
from holdfast.core.canonical import sized
from holdfast.core.errors import BlobGone, BlobsAway, Invalid
from holdfast.core.references import (
    Reference,
    check_inline,
    check_own,
    is_kept_outside,
    is_large,
    may_need_blobs,
    reference_in,
    references_in,
)

T = TypeVar("T")

TRASH = "trash/"

DAMAGED = ".damaged"
"""What follows a blob's key where its damaged content lies. The collector takes it for the mark of an unknown job."""

MARKED_SECONDS = 600.0
"""For how long a mark counts as fresh, so that the same job doesn't set it again."""

MARKED_KEPT = 10_000
"""How many fresh marks are remembered."""


class Blobs:
    """Large values and files of the jobs of one store. Without a blob store, values stay small and there are no files.

    `find` names the blob store, and the prefix of all keys: other stores may use the same one. It may create the
    prefix, if its argument says so; otherwise there is none if nothing was ever kept. `find_former` names the places
    where blobs were kept before another one was configured. They are still read, and nothing new is stored there.
    """

    def __init__(
        self,
        find: Callable[[bool], Awaitable[tuple[BlobStore | None, str | None]]],
        find_former: "Callable[[], Awaitable[Sequence[Blobs]]] | None" = None,
    ) -> None:
        self._find = find
        self._find_former = find_former
        self.store: BlobStore | None = None
        self.prefix: str | None = None
        self.former: Sequence[Blobs] = ()
        self._marked: dict[tuple[str, str], float] = {}

    async def ready(self, *, create: bool = False) -> "Blobs":
        """Find the blob store, before the calls that block."""
        if self.prefix is None:
            store, prefix = await self._find(create)
            if self._find_former is not None:
                self.former = [await one.ready() for one in await self._find_former()]
            self.store, self.prefix = store, prefix
        return self

    # Values.

    async def keep(self, text: str, job: str, where: str = "the value", *, always: bool = False) -> str:
        """Return what to record of a value: its text, or a reference to it. With `always`, even if it is small.

        Without a blob store, a small value stays in its record. Raises BadValue if it is too large.
        The blob is stored, and every file that the value names is marked, before this returns.
        """
        if not always and not may_need_blobs(text):
            return text
        check_own(sized(text, where), where)
        files = [one for one in references_in(text) if not one.is_value]
        if not always and not files and not is_large(text):
            return text
        await self.ready(create=True)
        if self.store is None:
            if files:
                raise Invalid(f"{where}: {NO_STORE}")
            return check_inline(text, where)
        if files:
            await self.refer(files, job)
        if not always and not is_large(text):
            return text
        return (await threads.run(self._put_value, text, job)).text

    async def fetch(self, text: str) -> str:
        """Return the value's own text for a recorded one. Raises BlobGone or BlobsAway."""
        if not is_kept_outside(text):
            return text
        reference = reference_in(text)
        await self.ready()
        return (await self._wherever(lambda blobs: b"".join(blobs.chunks(reference)))).decode()

    async def stream(self, reference: Reference) -> Generator[bytes, None, None]:
        """Begin to read a blob, wherever it is kept by now: see `chunks`. Its beginning is read before this returns."""

        def begin(blobs: Blobs) -> Generator[bytes, None, None]:
            chunks = blobs.chunks(reference)
            return _resumed(next(chunks, b""), chunks)

        await self.ready()
        return await self._wherever(begin)

    # Files.

    async def refer(self, references: Iterable[Reference], job: str) -> None:
        """Mark blobs as needed by this job, and upload those that are only files here. Raises BlobGone."""
        await self.ready(create=True)
        asked = list(dict.fromkeys(references))
        await self._wherever(lambda blobs: blobs._refer_all(asked, job))

    async def put_file(self, file: LocalFile, job: str) -> None:
        """Upload a file for this job, unless it is there already. Raises BlobsAway, also if there is no blob store."""
        if (await self.ready(create=True)).store is None:
            raise BlobsAway(f"{file.path}: {NO_STORE}")
        await self.refer([file.reference], job)

    async def take_in(self, file: LocalFile) -> None:
        """Store a file that no job refers to yet, unless it is there. If none does within a day, it is deleted."""
        if (await self.ready(create=True)).store is None:
            raise Invalid(NO_STORE)
        await threads.run(self._take_in, file)

    async def save(self, reference: Reference, path: Path) -> None:
        """Write a blob to a file. An existing file is replaced once the whole blob is there."""
        await self.ready()
        await self._wherever(lambda blobs: blobs.save_now(reference, path))

    async def copy_from(self, other: "Blobs", references: Iterable[Reference], job: str) -> None:
        """Copy what a job refers to from the blobs of another store. What isn't there any more is left out."""
        await other.ready()
        await self.ready(create=True)
        await threads.run(self._copy_all, other, list(references), job)

    async def is_empty(self) -> bool:
        """Whether nothing was ever kept here."""
        await self.ready()
        places = [(one.store, one.prefix) for one in (self, *self.former)]
        known = [(store, prefix) for store, prefix in places if store is not None and prefix is not None]
        return not await threads.run(lambda: any(next(store.list(prefix), None) for store, prefix in known))

    async def _wherever(self, act: "Callable[[Blobs], T]") -> T:
        """Do this in a thread. If a blob is gone, another process may have been given another place since we looked."""
        try:
            return await threads.run(act, self)
        except BlobGone:
            now = await Blobs(self._find, self._find_former).ready()
            if now._places() == self._places():
                raise
            return await threads.run(act, now)

    def _places(self) -> list[tuple[str, str | None]]:
        found = [one for one in (self, *self.former) if one.store is not None]
        return [(one.store.place, one.prefix) for one in found if one.store is not None]

    # Calls that block. `ready` was called before.

    def chunks(self, reference: Reference) -> Generator[bytes, None, None]:
        """Read a blob. Raises BlobGone if it isn't there, or at its end if its content isn't what was stored.

        Such content is set aside, so that whoever stores the blob again really does.
        """
        if self.store is None:
            raise BlobGone(f"{_named(reference)} can't be read: {NO_STORE}")
        hashed = hashlib.sha256()
        with self._guarded():
            for chunk in self._found(self.store, reference):
                hashed.update(chunk)
                yield chunk
        if hashed.hexdigest() != reference.sha256:
            with suppress(OSError, BlobsAway):
                self._set_aside(self.store, reference)
            raise _altered(reference, self.store)

    def has(self, reference: Reference) -> bool:
        """Whether a blob is there, or in the trash."""
        return self.size(reference) is not None

    def size(self, reference: Reference) -> int | None:
        """How many bytes a blob has that is there, or in the trash; None if it is in neither."""
        if self.store is None:
            return None
        with self._guarded():
            keys = self._keys_of(reference)
            found = chain((self.store.size(key) for key in keys), (one.size(reference) for one in self.former))
            return next((size for size in found if size is not None), None)

    def save_now(self, reference: Reference, path: Path) -> None:
        """Like `save`, in this thread."""
        aside = path.with_name(f".{path.name}.{os.getpid()}-{time.monotonic_ns()}.part")
        try:
            with aside.open("xb") as file:
                for chunk in self.chunks(reference):
                    file.write(chunk)
            aside.replace(path)
        except BaseException as error:
            with suppress(OSError):
                aside.unlink()
            if isinstance(error, OSError):  # about the file that was asked for, not the one aside
                raise OSError(error.errno, error.strerror, str(path)) from None
            raise

    def key_of(self, reference: Reference) -> str:
        """The key of a blob."""
        return f"{self.prefix}{reference.sha256[:2]}/{reference.sha256}"

    def _keys_of(self, reference: Reference) -> tuple[str, str]:
        """Where a blob may be: at its place, or in the trash."""
        return self.key_of(reference), f"{self.prefix}{TRASH}{reference.sha256}"

    def _found(self, store: BlobStore, reference: Reference) -> Iterator[bytes]:
        if self.prefix is not None:
            for key in self._keys_of(reference):
                with suppress(NoObject):
                    yield from store.get(key)
                    return
        for one in self.former:
            assert one.store is not None, "a former place has a store"
            with suppress(BlobGone), one._guarded():
                yield from one._found(one.store, reference)
                return
        if self.prefix is not None and store.has(self.key_of(reference) + DAMAGED):
            raise _altered(reference, store)
        former = " or ".join(one.store.place for one in self.former if one.store is not None)
        nor = f", nor where blobs were kept before, in {former}" if former else ""
        raise BlobGone(
            f"{_named(reference)} isn't in the blob store {store.place} any more{nor}; restore it from a backup, or "
            "run the job again"
        )

    def _set_aside(self, store: BlobStore, reference: Reference) -> None:
        """Move away what isn't the content of this blob, if a second look finds the same."""
        whole = self.key_of(reference)
        for key in self._keys_of(reference):
            with suppress(NoObject):
                hashed = hashlib.sha256()
                for chunk in store.get(key):
                    hashed.update(chunk)
                if hashed.hexdigest() != reference.sha256:
                    store.move(key, whole + DAMAGED)
        for marked in [one for one in list(self._marked) if one[0] == whole]:
            self._marked.pop(marked, None)

    def _put_value(self, text: str, job: str) -> Reference:
        content = text.encode()
        reference = Reference(hashlib.sha256(content).hexdigest(), len(content), is_value=True)
        self._put(reference, job, lambda: [content])
        return reference

    def _refer_all(self, references: list[Reference], job: str) -> None:
        for reference in references:
            file = find_file(reference)
            self._put(reference, job, None if file is None else file.chunks)
            self._refer_all(self._files_in(reference), job)

    def _take_in(self, file: LocalFile) -> None:
        key = self.key_of(file.reference)
        assert self.store is not None
        with self._guarded():
            if not self.store.has(key):
                self.store.put(key, file.chunks())

    def _copy_all(self, other: "Blobs", references: list[Reference], job: str) -> None:
        for reference in references:
            with suppress(BlobGone):
                self._put(reference, job, partial(other.chunks, reference))
                self._copy_all(other, other._files_in(reference), job)

    def _put(self, reference: Reference, job: str, chunks: Callable[[], Iterable[bytes]] | None) -> None:
        """Mark a blob, and store it unless it is there whole. The mark comes first: see `collecting`."""
        store, key, now = self.store, self.key_of(reference), time.monotonic()
        if store is None:
            raise Invalid(NO_STORE)
        if self._marked.get((key, job), -MARKED_SECONDS) > now - MARKED_SECONDS:
            return
        mark = f"{key}.{job}"
        with self._guarded():
            if chunks is not None and store.size(key) != reference.size:
                store.put(key, chunks(), [mark])
            else:
                store.mark([mark])
                if chunks is not None:
                    if store.size(key) != reference.size:
                        store.put(key, chunks())
                elif not store.has(key):
                    store.move(f"{self.prefix}{TRASH}{reference.sha256}", key)
                    if not store.has(key) and self.former:
                        store.put(key, self.chunks(reference))
                    elif not store.has(key):
                        next(self._found(store, reference))  # raises
        while len(self._marked) >= MARKED_KEPT:
            self._marked.pop(next(iter(self._marked)), None)
        self._marked[key, job] = now

    def _files_in(self, reference: Reference) -> list[Reference]:
        """The files that a value names, if this is one."""
        if not reference.is_value:
            return []
        text = b"".join(self.chunks(reference)).decode()
        return [one for one in references_in(text) if not one.is_value]

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            place = "" if self.store is None else self.store.place
            raise BlobsAway(f"blob store {place}: {error.strerror or error}") from error


NO_STORE = (
    "there is no blob store for large values and files; name one with App(blobs=…) or $HOLDFAST_BLOBS: a "
    "folder, or a URL such as s3://bucket/folder"
)


def _resumed(first: bytes, rest: Generator[bytes, None, None]) -> Generator[bytes, None, None]:
    with closing(rest):
        yield first
        yield from rest


def _altered(reference: Reference, store: BlobStore) -> BlobGone:
    return BlobGone(
        f"{_named(reference)} was altered in the blob store {store.place}; restore it from a backup, or run the job "
        "again"
    )


def _named(reference: Reference) -> str:
    what = "value" if reference.is_value else "file"
    return f"the {what} {reference.sha256[:12]} ({reference.size:,} bytes)"
