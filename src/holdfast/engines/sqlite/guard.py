"""The connection for the body of a transactional step: it can access the user's own tables, and nothing else.

Must not begin or end a transaction. While SQLite prepares a statement, with everything that it triggers (views,
triggers, cascades, shadow tables), it asks for permission for each access: `refusal` answers.
"""

import functools
import sqlite3
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import NoneType
from typing import Any, TypeVar

from holdfast.core.errors import Invalid
from holdfast.engines.held_transaction import step_is_over
from holdfast.engines.sqlite.store import own_names

T = TypeVar("T")
Params = Sequence[Any] | Mapping[str, Any]

RESERVED = "holdfast_"
"""Names with this prefix are reserved for future tables of ours."""

INTERRUPT_SECONDS = 0.02
"""How often a statement that still runs after the end is interrupted."""

_TROUBLE = frozenset(
    {
        *(sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB),
        *(sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_BUSY),
    }
)
"""Errors of the store itself, whatever the statement is."""

_SCHEMA = frozenset({"sqlite_master", "sqlite_schema", "sqlite_temp_master", "sqlite_temp_schema", "sqlite_sequence"})
"""Tables that SQLite itself writes when it creates, alters or drops; nobody else can."""

_FREE = frozenset({sqlite3.SQLITE_SELECT, sqlite3.SQLITE_RECURSIVE, sqlite3.SQLITE_SAVEPOINT})

_FIRST = frozenset(
    {
        *(sqlite3.SQLITE_READ, sqlite3.SQLITE_INSERT, sqlite3.SQLITE_UPDATE, sqlite3.SQLITE_DELETE),
        *(sqlite3.SQLITE_CREATE_TABLE, sqlite3.SQLITE_DROP_TABLE, sqlite3.SQLITE_CREATE_VIEW),
        *(sqlite3.SQLITE_DROP_VIEW, sqlite3.SQLITE_DROP_VTABLE),
    }
)
"""Actions whose first argument is the table."""

_SECOND = frozenset(
    {
        *(sqlite3.SQLITE_CREATE_INDEX, sqlite3.SQLITE_DROP_INDEX, sqlite3.SQLITE_CREATE_TRIGGER),
        *(sqlite3.SQLITE_DROP_TRIGGER, sqlite3.SQLITE_ALTER_TABLE),
    }
)
"""Actions whose second argument is the table."""

_REFUSED = {
    sqlite3.SQLITE_TRANSACTION: "the transaction ends with the step: return to commit, raise to roll back",
    sqlite3.SQLITE_ATTACH: "another file can't be attached: it would not be in the same transaction",
    sqlite3.SQLITE_DETACH: "no other file is attached, so nothing can be detached",
    sqlite3.SQLITE_ANALYZE: "ANALYZE isn't possible in a step; run it on your own connection",
    sqlite3.SQLITE_CREATE_TEMP_TABLE: "temporary tables would outlive the step; use your own table, or a WITH clause",
}
"""What this connection always refuses, and why."""

_TEMPORARY = frozenset(
    value for name, value in vars(sqlite3).items() if name.startswith(("SQLITE_CREATE_TEMP", "SQLITE_DROP_TEMP"))
)
_ASKING = frozenset(
    {"table_info", "table_xinfo", "table_list", "index_list", "index_info", "index_xinfo"}
    | {"foreign_key_list", "foreign_key_check", "defer_foreign_keys"}
)
_TELLING = frozenset({"data_version", "page_size", "user_version", "foreign_keys", "compile_options"})
_MODULES = frozenset({"fts3", "fts4", "fts5", "rtree", "rtree_i32", "geopoly"})
_FUNCTIONS = frozenset({"load_extension", "fts3_tokenizer", "readfile", "writefile", "edit"})


def rolled_back() -> Exception:
    """The error of a connection whose transaction was ended by a statement."""
    return Invalid(
        "tx(): nothing of this step was stored: a statement rolled back the whole transaction (OR ROLLBACK, "
        "RAISE(ROLLBACK)), or still ran in a thread at the end of the step; use OR ABORT or a savepoint, and wait for "
        "your threads"
    )


def refusal(action: int, first: str | None, second: str | None, database: str | None) -> str | None:
    """Why the body of a step may not do this; None if it may. The arguments are those of SQLite's authorizer."""
    if action in _FREE:
        return None
    if action in _FIRST or action in _SECOND:
        return _table_refusal(action, first or "", (first if action in _FIRST else second) or "", database)
    if action == sqlite3.SQLITE_REINDEX:  # also what fills a new index
        return f"{first} is Holdfast's own index; name yours" if (first or "").lower() in own_names() else None
    if action == sqlite3.SQLITE_FUNCTION:
        return f"{second}() isn't available in a step" if (second or "").lower() in _FUNCTIONS else None
    if action == sqlite3.SQLITE_PRAGMA:
        name = (first or "").lower()
        if name in _ASKING or (name in _TELLING and second is None):
            return None
        return f"PRAGMA {first} would change more than this step; use your own connection to set up the file"
    if action == sqlite3.SQLITE_CREATE_VTABLE:
        if (second or "").lower() not in _MODULES:
            return f"a step can create virtual tables only with {', '.join(sorted(_MODULES))}, not with {second}"
        return _table_refusal(action, first or "", first or "", database)
    if action in _TEMPORARY:
        action = sqlite3.SQLITE_CREATE_TEMP_TABLE
    return _REFUSED.get(action, f"SQLite's action {action} isn't allowed in a step")


def _table_refusal(action: int, name: str, table: str, database: str | None) -> str | None:
    table = table.lower()
    if table in own_names() or name.lower().startswith(RESERVED):
        if action == sqlite3.SQLITE_READ:
            return f"{name} is Holdfast's own table, and its columns may change; use current() or app.jobs"
        return f"{table} is Holdfast's own, like everything that starts with {RESERVED!r}; use your own tables"
    if action in (sqlite3.SQLITE_READ, sqlite3.SQLITE_DELETE) and table.startswith("sqlite_stat"):
        return None  # SQLite cleans up there when it drops a table
    if table.startswith("sqlite_") and table not in _SCHEMA:
        return f"{table} belongs to SQLite; use your own tables"
    if database == "temp" and action != sqlite3.SQLITE_READ and table not in _SCHEMA:
        return _REFUSED[sqlite3.SQLITE_CREATE_TEMP_TABLE]
    return None


class Session:
    """One guarded connection. Its cursors stop working when it ends."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        # Statements run in the body's thread, and the writer ends them from its own thread: one at a time.
        self._lock = threading.Lock()
        self._cursors: weakref.WeakSet[sqlite3.Cursor] = weakref.WeakSet()
        self._over: Callable[[], Exception] | None = None
        self._denied = ""
        self.trouble: sqlite3.Error | None = None
        """An error of the store itself, which isn't the body's fault."""
        db.set_authorizer(self._authorize)

    def _authorize(self, action: int, first: str | None, second: str | None, db: str | None, _: str | None) -> int:
        why = refusal(action, first, second, db)
        if why is None:
            return sqlite3.SQLITE_OK
        self._denied = why
        return sqlite3.SQLITE_DENY

    def end(self, why: Callable[[], Exception] = step_is_over) -> None:
        """Refuse further statements, and stop the one that runs. `why` makes the error that the body gets."""
        self._over = self._over or why
        while not self._lock.acquire(timeout=INTERRUPT_SECONDS):
            self._db.interrupt()
        try:
            for cursor in list(self._cursors):
                cursor.close()  # A statement that was not read to its end would block the commit.
            self._db.set_authorizer(None)
        finally:
            self._lock.release()

    def cursor(self) -> sqlite3.Cursor:
        """A new cursor, which ends with this session."""
        with self._lock:
            self._check()
            cursor = self._db.cursor()
            self._cursors.add(cursor)
            return cursor

    def run(self, work: Callable[[], T]) -> T:
        """Run some work with SQLite, unless the session has ended."""
        with self._lock:
            self._check()
            self._denied = ""
            try:
                return work()
            except sqlite3.Error as error:
                raise self._translate(error) from error
            finally:
                # Outside a transaction, each further statement would be stored at once, without the step's record.
                if not self._db.in_transaction:
                    self._over = self._over or rolled_back

    def _check(self) -> None:
        if self._over is not None:
            raise self._over()

    def _translate(self, error: sqlite3.Error) -> Exception:
        if self._denied:
            return Invalid(f"tx(): {self._denied}")
        if self._over is not None:
            return self._over()
        code = getattr(error, "sqlite_errorcode", 0)
        if code & 0xFF in _TROUBLE and code != sqlite3.SQLITE_CORRUPT_VTAB:  # That is a search index of the user.
            self.trouble = error
        return error


class Connection:
    """The store's connection inside a transactional step: `execute`, `executemany`, `cursor`, as `sqlite3` has them.

    It can't commit, roll back, or access Holdfast's own tables, and stops working when the step ends. Savepoints work.
    """

    __slots__ = ("__session",)

    def __init__(self, session: Session) -> None:
        self.__session = session

    def execute(self, sql: str, parameters: Params = (), /) -> "Cursor":
        """Run one statement, and return a cursor to read its rows."""
        return self.cursor().execute(sql, parameters)

    def executemany(self, sql: str, parameters: Iterable[Params], /) -> "Cursor":
        """Run one statement for each set of parameters."""
        return self.cursor().executemany(sql, parameters)

    def cursor(self) -> "Cursor":
        """A cursor, for code that needs one."""
        return Cursor(self.__session)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"tx() has execute, executemany and cursor, but no {name!r}; the transaction ends with the step"
        )


class Cursor:
    """The rows of a statement's result."""

    __slots__ = ("__cursor", "__session")

    def __init__(self, session: Session) -> None:
        self.__session = session
        self.__cursor = session.cursor()

    def execute(self, sql: str, parameters: Params = (), /) -> "Cursor":
        """Run one statement."""
        given = _plain(parameters)
        self.__session.run(lambda: self.__cursor.execute(sql, given))
        return self

    def executemany(self, sql: str, parameters: Iterable[Params], /) -> "Cursor":
        """Run one statement for each set of parameters."""
        given = [_plain(each) for each in parameters]
        self.__session.run(lambda: self.__cursor.executemany(sql, given))
        return self

    def fetchone(self) -> Any:
        """The next row, or None."""
        return self.__session.run(self.__cursor.fetchone)

    def fetchmany(self, size: int = 1) -> list[Any]:
        """The next rows, up to `size`."""
        return self.__session.run(functools.partial(self.__cursor.fetchmany, size))

    def fetchall(self) -> list[Any]:
        """All remaining rows."""
        return self.__session.run(self.__cursor.fetchall)

    def __iter__(self) -> Iterator[Any]:
        """All remaining rows, one by one."""
        while (row := self.fetchone()) is not None:
            yield row

    def close(self) -> None:
        """Leave the rest unread."""
        self.__session.run(self.__cursor.close)

    @property
    def description(self) -> Any:
        """The columns: a tuple for each, with its name first."""
        return self.__cursor.description

    @property
    def rowcount(self) -> int:
        """How many rows the statement wrote."""
        return self.__cursor.rowcount

    @property
    def lastrowid(self) -> int | None:
        """The number of the row that was inserted last."""
        return self.__cursor.lastrowid


_VALUES = (NoneType, int, float, str, bytes, bool)


def _plain(parameters: Params) -> Params:
    """A copy as plain values, so that none of the user's code runs inside SQLite, where nobody could stop it."""
    if isinstance(parameters, Mapping):
        return {name: _value(value) for name, value in parameters.items()}
    if isinstance(parameters, str | bytes):
        raise Invalid(f"tx(): {parameters!r} is not a list of parameters; pass a tuple, a list or a dict")
    return tuple(_value(value) for value in parameters)


def _value(value: Any) -> Any:
    if type(value) in _VALUES:
        return value
    value = sqlite3.adapt(value, sqlite3.PrepareProtocol, value)
    if type(value) in _VALUES:
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if isinstance(value, str):  # A subclass of str: an Enum's own `str()` would be its name.
        return str.__str__(value)
    if isinstance(value, int | float):
        return int.__int__(value) if isinstance(value, int) else float.__float__(value)
    raise Invalid(
        f"tx(): SQLite can't store a value of type {type(value).__name__}; pass a number, a text, bytes or None"
    )
