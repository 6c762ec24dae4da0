"""Writing inside the caller's own transaction, by way of the caller's own connection; and hearing of its commit.

Knows asyncpg, psycopg and SQLAlchemy, sync and async, by what a connection is, and imports none of them that the
caller has not. Must not begin, commit or roll back anything.
"""

import asyncio
import re
import time
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from holdfast.core.errors import Invalid
from holdfast.engines.loop_thread import LoopThread, endless
from holdfast.engines.postgres.liveness import Liveness
from holdfast.engines.postgres.pool import Pool

PAUSE_SECONDS = (0.01, 1.0)
"""The pauses between looks whether a caller has committed: the first, and the longest."""

FOLLOW_SECONDS = 60.0
"""For how long to look. After that the workers find the job when they look by themselves."""

_DRIVERS = frozenset({"asyncpg", "psycopg", "sqlalchemy"})
_DOLLAR = re.compile(r"\$(\d+)")


class CallersConnection:
    """Runs statements on a connection of the caller's: what `Writes` needs of one."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        roots = (kind.__module__.partition(".")[0] for kind in type(connection).__mro__)
        self._driver = next((root for root in roots if root in _DRIVERS), "")
        if not self._driver:
            raise Invalid(
                f"connection={type(connection).__name__}: not known here; "
                "give one of asyncpg, psycopg or SQLAlchemy, with your transaction begun"
            )
        if self._driver == "sqlalchemy" and hasattr(connection, "registry"):
            raise Invalid(
                f"connection={type(connection).__name__}: it leads to another session in each thread; "
                "call it, and give the session that it answers with"
            )
        if not _is_in_transaction(connection, self._driver):
            raise _no_transaction(connection)

    async def fetch(self, statement: str, *params: Any) -> Sequence[Any]:
        """The rows of a statement."""
        connection = self._connection
        match self._driver:
            case "asyncpg":
                rows: Sequence[Any] = await connection.fetch(statement, *params)
                return rows
            case "psycopg":
                return await _psycopg(connection, statement, params)
        if hasattr(connection, "run_sync"):
            found: Sequence[Any] = await connection.run_sync(_sqlalchemy, statement, params)
            return found
        return _sqlalchemy(connection, statement, params)


def _is_in_transaction(connection: Any, driver: str) -> bool:
    """Whether what is written there can be rolled back. A pool is no connection: each statement goes its own way."""
    if driver == "asyncpg":
        is_in = getattr(connection, "is_in_transaction", None)
        return is_in is not None and bool(is_in())
    if driver == "psycopg":  # one that doesn't commit by itself begins with the first statement
        return hasattr(connection, "cursor") and (not connection.autocommit or bool(connection.info.transaction_status))
    return hasattr(connection, "in_transaction")  # one of SQLAlchemy's begins by itself, and an engine is none


def _no_transaction(connection: Any) -> Invalid:
    return Invalid(
        f"connection={type(connection).__name__}: no transaction is begun there, so nothing could be rolled "
        "back with it; begin yours, and give the connection that it is on"
    )


async def _psycopg(connection: Any, statement: str, params: Sequence[Any]) -> Sequence[Any]:
    import psycopg
    from psycopg.rows import tuple_row

    if isinstance(connection, psycopg.AsyncConnection):
        async with psycopg.AsyncRawCursor(connection, row_factory=tuple_row) as cursor:
            await cursor.execute(statement, params)
            return await cursor.fetchall()
    with psycopg.RawCursor(connection, row_factory=tuple_row) as cursor:
        cursor.execute(statement, params)
        return list(cursor.fetchall())


def _sqlalchemy(connection: Any, statement: str, params: Sequence[Any]) -> Sequence[Any]:
    """On a Connection, or on a Session's."""
    used = connection.connection() if hasattr(connection, "flush") else connection
    if getattr(used.connection.dbapi_connection, "autocommit", False) is True:
        raise _no_transaction(connection)
    text = statement if used.dialect.paramstyle == "numeric_dollar" else _percent(statement)
    return list(used.exec_driver_sql(text, tuple(params)).fetchall())


def _percent(statement: str) -> str:
    """The same statement for drivers that count their parameters by place."""
    numbers = [int(number) for number in _DOLLAR.findall(statement)]
    assert numbers == list(range(1, len(numbers) + 1)), "each parameter once, in order"
    return _DOLLAR.sub("%s", statement.replace("%", "%%"))


class Follower:
    """Looks whether callers have committed, and then tells who waits for their jobs. Lives on the engine's own loop.

    A notification inside the caller's transaction would make its commit wait for those of all others.
    """

    def __init__(self, loop_thread: LoopThread, pool: Pool, live: Liveness, sql: SimpleNamespace) -> None:
        self._loop_thread, self._pool, self._liveness, self._sql = loop_thread, pool, live, sql
        self._expected: dict[str, tuple[str, float]] = {}
        self._looking = False

    async def expect(self, topics: Mapping[str, str]) -> None:
        """Jobs that are there once their caller commits, and what to tell then."""
        until = time.monotonic() + FOLLOW_SECONDS
        self._expected |= {id: (topic, until) for id, topic in topics.items()}
        self._pause = PAUSE_SECONDS[0]
        if not self._looking:
            self._looking = True
            self._loop_thread.spawn(endless(self._look()))

    async def _look(self) -> None:
        try:
            while self._expected:
                await asyncio.sleep(self._pause)
                self._pause = min(self._pause * 1.5, PAUSE_SECONDS[1])
                ids = list(self._expected)
                try:
                    there = [row[0] for row in await self._pool.act(lambda db, ids=ids: db.fetch(self._sql.there, ids))]  # type: ignore[misc]
                except Exception:  # the store is away: look again
                    there = []
                if there:
                    self._liveness.tell({self._expected.pop(id)[0] for id in there})
                now = time.monotonic()
                self._expected = {id: known for id, known in self._expected.items() if known[1] > now}
        finally:
            self._looking = False
