"""A few connections, shared by everything that an engine does: opened when needed, dropped after an error.

Must not run its own statements: a connection is passed on as it is, so nothing here costs a round trip.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from holdfast.engines.postgres.store import (
    SETTINGS,
    Connection,
    close,
    connect,
    is_broken,
    is_passing,
    socket_of,
    translate_error,
)
from holdfast.engines.postgres.url import StoreUrl

T = TypeVar("T")

TRIES = 8
"""How often to retry an act that the database rolled back because of concurrent transactions."""

BACKOFF_SECONDS = 0.005

IDLE_SECONDS = 60.0
"""A connection that nobody used for this long is closed."""


class Pool:
    """Connections of one event loop. Bounded: callers wait for a free one."""

    def __init__(self, url: StoreUrl, settings: Mapping[str, str] = SETTINGS) -> None:
        self._url = url
        self._settings = settings
        self._free = asyncio.Semaphore(url.connections)
        self._idle: list[tuple[float, Connection]] = []
        self._all: set[Connection] = set()
        self._tidying: asyncio.TimerHandle | asyncio.Task[None] | None = None

    async def act(self, work: Callable[[Connection], Awaitable[T]], *, again: bool = False) -> T:
        """Do something on a connection. Retry after a deadlock; with `again`, also after a lost connection."""
        for left in reversed(range(TRIES)):
            try:
                async with self.connection() as db:
                    return await work(db)
            except Exception as error:
                if not left or not (is_passing(error) or (again and is_broken(error) and left > TRIES - 2)):
                    raise translate_error(error, self._url) from error
                await asyncio.sleep(random.random() * BACKOFF_SECONDS * (TRIES - left))  # noqa: S311 (a pause)
        raise AssertionError("not reached")

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """Lend a connection for as long as the caller needs it. After an error it is dropped."""
        async with self._free:
            db = await self._take()
            try:
                yield db
            except BaseException as error:
                if is_broken(error):
                    db.terminate()
                raise
            finally:
                if db.is_closed():
                    self._all.discard(db)
                else:
                    self._idle.append((asyncio.get_running_loop().time(), db))
                    self._tidy_later()

    async def _take(self) -> Connection:
        while self._idle:
            _, db = self._idle.pop()
            if not db.is_closed():
                return db
            self._all.discard(db)
        db = await connect(self._url, self._settings)
        self._all.add(db)
        return db

    def _tidy_later(self) -> None:
        """Make sure that unused connections are closed. Each process must do this itself."""
        if self._tidying is None:
            loop = asyncio.get_running_loop()
            self._tidying = loop.call_later(IDLE_SECONDS / 4, self._tidy_now)

    def _tidy_now(self) -> None:
        async def work() -> None:
            await self.tidy()
            self._tidying = None
            if self._idle:
                self._tidy_later()

        self._tidying = asyncio.get_running_loop().create_task(work())

    async def tidy(self) -> None:
        """Close connections that nobody used for a while."""
        since = asyncio.get_running_loop().time() - IDLE_SECONDS
        old = [db for used, db in self._idle if used < since]
        self._idle = [(used, db) for used, db in self._idle if used >= since]
        for db in old:
            self._all.discard(db)
            await close(db)

    async def close(self) -> None:
        """Close everything."""
        if self._tidying is not None:
            self._tidying.cancel()
        every, self._all, self._idle = list(self._all), set(), []
        await asyncio.gather(*(close(db) for db in every))

    def sockets(self) -> list[Any]:
        """The sockets that a forked child must close."""
        return [socket for db in list(self._all) if (socket := socket_of(db)) is not None]
