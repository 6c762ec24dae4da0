"""Writes inside the caller's own transaction, on the caller's own connection, and notices its commit.

Recognises connections of asyncpg, psycopg and SQLAlchemy, sync and async, and imports none of them itself. Must not
begin, commit or roll back anything.
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
"""The first and the longest pause between checks whether a caller has committed."""

FOLLOW_SECONDS = 60.0
"""How long to check. After that, workers find the job at their next poll."""

_DRIVERS = frozenset({"asyncpg", "psycopg", "sqlalchemy"})
_DOLLAR = re.compile(r"\$(\d+)")


class CallersConnection:
    """Runs statements on a caller's connection, with the interface that `Writes` needs."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        roots = (kind.__module__.partition(".")[0] for kind in type(connection).__mro__)
        self._driver = next((root for root in roots if root in _DRIVERS), "")
        if not self._driver:
            raise Invalid(
                f"connection={type(connection).__name__}: this type isn't supported; "
                "pass a connection of asyncpg, psycopg or SQLAlchemy with an open transaction"
            )
        if self._driver == "sqlalchemy" and hasattr(connection, "registry"):
            raise Invalid(
                f"connection={type(connection).__name__}: it gives each thread another session; "
                "call it, and pass the session that it returns"
            )
        if not _is_in_transaction(connection, self._driver):
            raise _no_transaction(connection)

    async def fetch(self, statement: str, *params: Any) -> Sequence[Any]:
        """Run a statement and return its rows."""
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
    """Whether a write there can be rolled back. A pool doesn't count: each statement may use another connection."""
    if driver == "asyncpg":
        is_in = getattr(connection, "is_in_transaction", None)
        return is_in is not None and bool(is_in())
    if driver == "psycopg":  # without autocommit, the first statement begins a transaction
        return hasattr(connection, "cursor") and (not connection.autocommit or bool(connection.info.transaction_status))
    return hasattr(
        connection, "in_transaction"
    )  # SQLAlchemy's connections begin by themselves; an engine isn't a connection


def _no_transaction(connection: Any) -> Invalid:
    return Invalid(
        f"connection={type(connection).__name__}: it has no open transaction, so nothing could be rolled back; "
        "begin a transaction, and pass its connection"
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
    """On a Connection, or on a Session's connection."""
    used = connection.connection() if hasattr(connection, "flush") else connection
    if getattr(used.connection.dbapi_connection, "autocommit", False) is True:
        raise _no_transaction(connection)
    text = statement if used.dialect.paramstyle == "numeric_dollar" else _percent(statement)
    return list(used.exec_driver_sql(text, tuple(params)).fetchall())


def _percent(statement: str) -> str:
    """The same statement for drivers with positional parameters."""
    numbers = [int(number) for number in _DOLLAR.findall(statement)]
    assert numbers == list(range(1, len(numbers) + 1)), "each parameter occurs once, in order"
    return _DOLLAR.sub("%s", statement.replace("%", "%%"))


class Follower:
    """Checks whether callers have committed, and then notifies those who wait for their jobs. On the engine's own loop.

    A notification inside the caller's transaction would make its commit wait for the commits of all others.
    """

    def __init__(self, loop_thread: LoopThread, pool: Pool, live: Liveness, sql: SimpleNamespace) -> None:
        self._loop_thread, self._pool, self._liveness, self._sql = loop_thread, pool, live, sql
        self._expected: dict[str, tuple[str, float]] = {}
        self._looking = False

    async def expect(self, topics: Mapping[str, str]) -> None:
        """Expect jobs that exist once their caller commits, and the topics to notify then."""
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
                except Exception:  # the store is unreachable: check again
                    there = []
                if there:
                    self._liveness.tell({self._expected.pop(id)[0] for id in there})
                now = time.monotonic()
                self._expected = {id: known for id, known in self._expected.items() if known[1] > now}
        finally:
            self._looking = False
