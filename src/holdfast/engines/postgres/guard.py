"""What the body of a transactional step may do with its connection, from async and from blocking code.

Must not begin or end the transaction (`transactions`). Each statement goes to the server separately and prepared: its
first words say what it is, and the server accepts no second statement after it. The connection lives on the engine's
own loop. What a body gets reaches it from every loop and thread, until the step is over.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from typing import Any, TypeVar

import asyncpg

from holdfast import forking
from holdfast.core.errors import Invalid
from holdfast.engines.held_transaction import ignored, step_is_over
from holdfast.engines.postgres.store import Connection as Driver

T = TypeVar("T")
Work = Callable[[Driver], Awaitable[T]]
Why = Callable[[], Exception]

STOP_SECONDS = 3.0
"""How long the server may take to cancel a statement. After that the connection is closed."""

# Savepoints of the same name can be nested: Postgres means the innermost.
_SAVEPOINT = "savepoint holdfast_part"
_KEEP = "release savepoint holdfast_part"
_TAKE_BACK = "rollback to savepoint holdfast_part; release savepoint holdfast_part"

_SPACE = re.compile(r"[\s;\ufeff]+|--[^\r\n]*")
_COMMENT = re.compile(r"/\*|\*/")
_WORD = re.compile(r"[A-Za-z_]+")

_ENDS = frozenset({"begin", "start", "commit", "end", "rollback", "abort"})
_REFUSED = {
    "copy": "COPY isn't supported here; use executemany",
    "discard": "DISCARD would also drop what doesn't belong to this step",
    "deallocate": "DEALLOCATE would also drop what doesn't belong to this step",
    "listen": "LISTEN receives nothing inside a transaction; use your own connection",
}
_TROUBLE = (
    asyncpg.DiskFullError,
    asyncpg.OutOfMemoryError,
    asyncpg.InvalidCachedStatementError,  # a table was altered: the next try prepares the statement again
    asyncpg.OutdatedSchemaCacheError,
)


def ended_early() -> Exception:
    """The error of a connection whose transaction has already ended."""
    return Invalid("tx(): a statement ended the transaction; nothing this step wrote is kept")


def _is_parents() -> Exception:
    return Invalid("tx(): this process was forked inside the step; the transaction belongs to its parent")


def refusal(statement: str) -> str | None:
    """Why the body of a step may not send this statement, judged by its first words; None if it may."""
    words = _words(statement)
    first = next(words, "")
    if first in _ENDS:
        rest = next(words, "")
        if first == "rollback" and (rest if rest not in ("work", "transaction") else next(words, "")) == "to":
            return None
        return f"{first.upper()}: the step begins and ends the transaction; for a savepoint use tx().transaction()"
    if first == "prepare" and next(words, "") == "transaction":
        return "PREPARE TRANSACTION: the transaction ends with the step"
    return _REFUSED.get(first)


def _words(statement: str) -> Iterator[str]:
    """The words that a statement starts with, in lower case, without comments."""
    place = 0
    while place < len(statement):
        if found := _SPACE.match(statement, place):
            place = found.end()
        elif statement.startswith("/*", place):
            place = _behind_comment(statement, place)
        elif found := _WORD.match(statement, place):
            place = found.end()
            yield found[0].lower()
        else:
            return


def _behind_comment(statement: str, place: int) -> int:
    """Where the comment that starts here ends. Postgres allows nested comments."""
    depth = 0
    for mark in _COMMENT.finditer(statement, place):
        depth += 1 if mark[0] == "/*" else -1
        if not depth:
            return mark.end()
    return len(statement)


class Session(forking.Forkable):
    """The life of one guarded connection, on the engine's own loop. What it hands out stops working with it."""

    def __init__(self, db: Driver, loop: asyncio.AbstractEventLoop) -> None:
        self._db = db
        self._loop = loop
        self._turn = asyncio.Lock()
        self._running: asyncio.Task[Any] | None = None
        self._over: Why | None = None
        self.failed: BaseException | None = None
        """The last statement's error. After it, Postgres accepts statements only after a rollback to a savepoint."""
        self.trouble: BaseException | None = None
        """What went wrong with the store itself, which is not the body's fault."""
        forking.watch(self)

    async def end(self, why: Why = step_is_over) -> None:
        """Start no further statement, and cancel the running one. `why` makes the error that the body gets."""
        self._over = self._over or why
        if self._running is not None:
            self._running.cancel()
        try:
            async with asyncio.timeout(STOP_SECONDS), self._turn:
                pass
        except TimeoutError:
            self._db.terminate()

    def leave_behind(self) -> None:
        """Refuse everything from now on: this session belongs to the parent."""
        self._over = _is_parents

    async def run(self, work: Work[T]) -> T:
        """Run this on the connection, one call at a time, unless the session has ended. On the engine's own loop."""
        task = asyncio.current_task()
        assert task is not None
        task.add_done_callback(ignored)  # the caller may have been cancelled meanwhile
        async with self._turn:
            self._check()
            self._running = task
            try:
                return await work(self._db)
            except asyncio.CancelledError:
                self._check()
                raise
            except Exception as error:
                self._check()
                if self._db.is_closed() or isinstance(error, _TROUBLE):
                    self.trouble = self.trouble or error
                self.failed = error
                raise
            finally:
                self._running = None
                # Without a transaction, each further statement would be committed at once, and not with the record.
                if not self._db.is_closed() and not self._db.is_in_transaction():
                    self._over = self._over or ended_early

    def _check(self) -> None:
        if self._over is not None:
            raise self._over()

    async def ask(self, work: Work[T]) -> T:
        """The same for async code, on any loop."""
        return await asyncio.wrap_future(self._sent(work))

    def wait(self, work: Work[T]) -> T:
        """The same for blocking code. The owner of the transaction ends it in time, so this always returns."""
        try:
            return self._sent(work).result()
        except CancelledError:
            raise step_is_over() from None

    def _sent(self, work: Work[T]) -> "Future[T]":
        self._check()
        asked = self.run(work)
        try:
            return asyncio.run_coroutine_threadsafe(asked, self._loop)
        except RuntimeError:  # the loop thread has ended
            asked.close()
            raise step_is_over() from None


def _statement(sql: str, args: Sequence[Any]) -> Work[tuple[list[Any], str]]:
    """One statement: its rows, and the server's status, such as "INSERT 0 1"."""
    _check_statement(sql)

    async def work(db: Any) -> tuple[list[Any], str]:
        # As the driver's own `execute` with arguments: always prepared, so it can be only one statement.
        rows, status, _ = await db._execute(sql, args, 0, None, return_status=True)
        return rows, status.decode()

    return work


def _for_each(sql: str, args: Iterable[Sequence[Any]]) -> Work[None]:
    _check_statement(sql)
    given = [tuple(each) for each in args]

    async def work(db: Driver) -> None:
        await db.executemany(sql, given)

    return work


def _check_statement(sql: str) -> None:
    why = refusal(sql)
    if why is not None:
        raise Invalid(f"tx(): {why}")


def _plain(sql: str) -> Work[None]:
    async def work(db: Driver) -> None:
        await db.execute(sql)

    return work


class Connection:
    """The store's connection in an async transactional step: `execute`, `executemany`, `fetch`, `fetchrow`, `fetchval`
    and `transaction()`, as in asyncpg.

    It can't commit or roll back, and stops working when the step has ended. `transaction()` makes a savepoint.
    """

    __slots__ = ("__session", "sync")

    def __init__(self, session: Session) -> None:
        self.__session = session
        self.sync = Blocking(session)
        """The same for blocking code."""

    async def execute(self, sql: str, *args: Any) -> str:
        """Run one statement; return the server's status, such as "INSERT 0 1"."""
        return (await self.__session.ask(_statement(sql, args)))[1]

    async def executemany(self, sql: str, args: Iterable[Sequence[Any]]) -> None:
        """Run one statement for each set of arguments."""
        await self.__session.ask(_for_each(sql, args))

    async def fetch(self, sql: str, *args: Any) -> list[Any]:
        """All rows of one statement."""
        return (await self.__session.ask(_statement(sql, args)))[0]

    async def fetchrow(self, sql: str, *args: Any) -> Any:
        """The first row, or None."""
        rows = await self.fetch(sql, *args)
        return rows[0] if rows else None

    async def fetchval(self, sql: str, *args: Any, column: int = 0) -> Any:
        """A value of the first row, or None."""
        row = await self.fetchrow(sql, *args)
        return None if row is None else row[column]

    def transaction(self) -> AbstractAsyncContextManager[None]:
        """A savepoint: an error inside rolls back only this part."""
        return self.__part()

    @asynccontextmanager
    async def __part(self) -> Any:
        await self.__session.ask(_plain(_SAVEPOINT))
        try:
            yield
        except BaseException:
            with suppress(Exception):  # then the whole transaction is rolled back
                await asyncio.shield(self.__session.ask(_plain(_TAKE_BACK)))
            raise
        await self.__session.ask(_plain(_KEEP))

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            "tx() has execute, executemany, fetch, fetchrow, fetchval and transaction in async code, "
            f"not {name!r}; the transaction ends with the step"
        )


class Blocking:
    """The store's connection in a `def` transactional step: `execute`, `executemany`, `cursor` and `transaction()`, as
    in psycopg and sqlite3, but with Postgres's own `$1`, `$2` for parameters.
    """

    __slots__ = ("__session",)

    def __init__(self, session: Session) -> None:
        self.__session = session

    def execute(self, sql: str, parameters: Sequence[Any] = (), /) -> "Cursor":
        """Run one statement; return a cursor over its rows."""
        return self.cursor().execute(sql, parameters)

    def executemany(self, sql: str, parameters: Iterable[Sequence[Any]], /) -> "Cursor":
        """Run one statement for each set of parameters."""
        return self.cursor().executemany(sql, parameters)

    def cursor(self) -> "Cursor":
        """A cursor, for code that expects one."""
        return Cursor(self.__session)

    def transaction(self) -> AbstractContextManager[None]:
        """A savepoint: an error inside rolls back only this part."""
        return self.__part()

    @contextmanager
    def __part(self) -> Iterator[None]:
        self.__session.wait(_plain(_SAVEPOINT))
        try:
            yield
        except BaseException:
            with suppress(Exception):  # then the whole transaction is rolled back
                self.__session.wait(_plain(_TAKE_BACK))
            raise
        self.__session.wait(_plain(_KEEP))

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"tx() has execute, executemany, cursor and transaction, not {name!r}; the transaction ends with the step"
        )


class Cursor:
    """The rows of a statement. They have all been read already."""

    __slots__ = ("__rows", "__session", "__status")

    def __init__(self, session: Session) -> None:
        self.__session = session
        self.__rows: Iterator[Any] = iter(())
        self.__status = ""

    def execute(self, sql: str, parameters: Sequence[Any] = (), /) -> "Cursor":
        """Run one statement."""
        if isinstance(parameters, str | bytes):
            raise Invalid(f"tx(): {parameters!r} is not a list of parameters; pass a tuple or a list")
        rows, self.__status = self.__session.wait(_statement(sql, tuple(parameters)))
        self.__rows = iter(rows)
        return self

    def executemany(self, sql: str, parameters: Iterable[Sequence[Any]], /) -> "Cursor":
        """Run one statement for each set of parameters."""
        self.__session.wait(_for_each(sql, parameters))
        self.__rows, self.__status = iter(()), ""
        return self

    def fetchone(self) -> Any:
        """The next row, or None."""
        return next(self.__rows, None)

    def fetchmany(self, size: int = 1) -> list[Any]:
        """The next rows, at most `size`."""
        return [row for _, row in zip(range(size), self.__rows, strict=False)]

    def fetchall(self) -> list[Any]:
        """All remaining rows."""
        return list(self.__rows)

    def __iter__(self) -> Iterator[Any]:
        """All remaining rows, one by one."""
        return self.__rows

    @property
    def rowcount(self) -> int:
        """How many rows the statement read or wrote; -1 if the server doesn't say."""
        count = self.__status.rpartition(" ")[2]
        return int(count) if count.isdecimal() else -1
