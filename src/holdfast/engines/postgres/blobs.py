"""Blobs in a table: the blob store of a Postgres store when no other one is configured.

Must not contain SQL (`queries.sql`). Calls come from the threads of `blobs.threads` and run on the engine's own thread.
An object is written in one transaction, a part at a time, so that it is never whole in memory.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

from holdfast.blobs.store import BlobStore, NoObject, Stored
from holdfast.core.errors import BlobsAway, StoreError
from holdfast.engines.postgres.store import Connection

LISTED_AT_ONCE = 1_000
"""How many objects one statement lists."""

Act = Callable[[Callable[[Connection], Awaitable[Any]]], Awaitable[Any]]


class TableBlobs(BlobStore):
    """Objects in the tables of a store's schema. `act` does something on a connection, on the engine's own `loop`."""

    def __init__(
        self, place: str, sql: SimpleNamespace, act: Act, loop: Callable[[], asyncio.AbstractEventLoop]
    ) -> None:
        self.place = f"{place} (table blob)"
        self._sql = sql
        self._act = act
        self._loop = loop

    def put(self, key: str, chunks: Iterable[bytes], marks: Sequence[str] = ()) -> None:
        """See BlobStore."""
        if marks:
            self.mark(marks)
        parts = iter(chunks)

        async def write(db: Connection) -> None:
            async with db.transaction():
                content, size, nth = await db.fetchval(self._sql.blob_begin), 0, 0
                while part := await asyncio.to_thread(next, parts, b""):
                    await db.execute(self._sql.blob_part, content, nth, part)
                    size, nth = size + len(part), nth + 1
                before = await db.fetchval(self._sql.blob_put, key, content, size)
                if before:
                    await db.execute(self._sql.blob_drop_content, before)

        self._run(write)

    def mark(self, keys: Sequence[str]) -> None:
        """See BlobStore."""
        self._run(lambda db: db.execute(self._sql.blob_mark, list(keys)))

    def get(self, key: str) -> Iterator[bytes]:
        """See BlobStore."""
        row = self._run(lambda db: db.fetchrow(self._sql.blob_get, key))
        if row is None:
            raise NoObject(key)
        left, nth = int(row[1]), 0
        while left > 0:
            part = self._run(partial(_fetchval, self._sql.blob_read, row[0], nth))
            if part is None:  # removed meanwhile
                raise NoObject(key)
            yield part
            left, nth = left - len(part), nth + 1

    def size(self, key: str) -> int | None:
        """See BlobStore."""
        row = self._run(lambda db: db.fetchrow(self._sql.blob_get, key))
        return None if row is None else int(row[1])

    def list(self, prefix: str = "") -> Iterator[Stored]:
        """See BlobStore."""
        after = ""
        while True:
            rows = self._run(partial(_fetch, self._sql.blob_list, after, prefix, LISTED_AT_ONCE))
            yield from (Stored(*row) for row in rows)
            if len(rows) < LISTED_AT_ONCE:
                return
            after = rows[-1][0]

    def move(self, key: str, to: str) -> None:
        """See BlobStore."""
        self._run(lambda db: db.execute(self._sql.blob_move, key, to))

    def delete(self, keys: Sequence[str]) -> None:
        """See BlobStore."""
        self._run(lambda db: db.execute(self._sql.blob_delete, list(keys)))

    def _run(self, work: Callable[[Connection], Awaitable[Any]]) -> Any:
        """Do something on the engine's thread, and wait for it in this one."""

        async def act() -> Any:
            return await self._act(work)

        try:
            return asyncio.run_coroutine_threadsafe(act(), self._loop()).result()
        except StoreError as error:
            raise BlobsAway(f"blob store {self.place}: {error}") from error


async def _fetchval(statement: str, *args: Any) -> Any:
    return await args[-1].fetchval(statement, *args[:-1])


async def _fetch(statement: str, *args: Any) -> Any:
    return await args[-1].fetch(statement, *args[:-1])
