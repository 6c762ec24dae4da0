"""The writer of a SQLite store: its only writing connection, and group commit. Runs on its own thread.

Must not contain SQL (`queries.sql`) or what an act does (`writes`). All waiting acts are one transaction. If somebody
removed the files of a process while it used them, its writes are refused: nobody else would see them.
"""

import sqlite3
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from holdfast.core.errors import Moved, StoreBusy, StoreDamaged, StoreError, StoreLost
from holdfast.core.moves import mark_of
from holdfast.engines.batch_thread import Ticket
from holdfast.engines.sqlite.files import ALL, BESIDE, DATABASE, Files, Loss, abandon, read_loss, write_loss
from holdfast.engines.sqlite.reads import SQL
from holdfast.engines.sqlite.store import connect, prepare, reads_raw, translate_error, translated_errors
from holdfast.engines.sqlite.store_clock import StoreClock
from holdfast.engines.sqlite.transactions import Transactions
from holdfast.engines.sqlite.writes import Writes

CLAIM, PERMITS = "claim", "permits"
LAZY = frozenset({CLAIM, PERMITS})
"""Acts that don't wait for the disk: claims, and permits without records. If a power cut undoes one, its worker is
gone, too, and with it every lease. The worker's next write also makes them durable.
"""

OPENING = {"open"}

PUT_BACK_SECONDS = 5.0
"""How long a starting process waits for the others to restore a removed log: longer than between two heartbeats."""

GUARDED = "holdfast: moved"
"""What the guard says of a store whose jobs are being moved (`guard_insert` and its kin)."""

HOLD = "hold"
"""The kind of act in which the writer holds a transaction for a step's body."""


class Act(msgspec.Struct, frozen=True):
    """One call that writes."""

    kind: str
    args: tuple[Any, ...]


class Writer:
    """Runs batches of acts, each batch in one transaction. `tell` is called with the topics of each batch."""

    def __init__(self, path: Path, folder: Path, clock: StoreClock, tell: Callable[[set[str]], None]) -> None:
        self._path = path
        self._folder = folder
        self.clock = clock
        self._tell = tell
        self.connection: sqlite3.Connection | None = None
        self._transactions = Transactions(path)
        self._files = Files(path)
        self._lost: StoreLost | None = None
        """Why this process can't use the store any more: its files were removed."""
        self._is_lazy = False

    def run(self, tickets: Sequence[Ticket[Act]]) -> None:
        """Run the waiting acts."""
        if is_hold(tickets[0].work):
            self._hold(tickets[0])
            return
        try:
            news = self._attempt(self._connected(), tickets)
        except StoreError as error:
            if self.connection is not None:
                self._roll_back()
            for ticket in tickets:
                ticket.error = error
        except Exception as error:
            if reads_raw(error, self.connection):
                self._roll_back()
                self.run(tickets)
                return
            told = self._take_back(error)
            # One of many may be the cause, so each is retried alone. Trouble with the store itself concerns everybody.
            if len(tickets) > 1 and not isinstance(told, StoreError):
                for ticket in tickets:
                    self.run([ticket])
                return
            for ticket in tickets:
                ticket.error = told
        else:
            if news:
                self._tell(news)

    def _hold(self, ticket: Ticket[Act]) -> None:
        """Run a transactional step in its own transaction, so that it can't undo what others have written."""
        try:
            self._connected()
            if self._files.missing():
                self._attempt(self._connected(), [])
            ticket.answer = self._transactions.run(*ticket.work.args)
        except Exception as error:
            ticket.error = error

    def _attempt(self, db: sqlite3.Connection, tickets: Sequence[Ticket[Act]]) -> set[str]:
        """Run all acts in one transaction, grouped by kind: they arrived concurrently, so any order is correct."""
        kinds: dict[str, list[Ticket[Act]]] = {}
        for ticket in tickets:
            ticket.answer = ticket.error = None
            kinds.setdefault(ticket.work.kind, []).append(ticket)
        self._choose_sync(db, lazy=kinds.keys() <= LAZY)
        db.execute(SQL.begin)
        if missing := self._files.missing(BESIDE):  # Checked while nobody else can write.
            raise self._lose(missing, self._files.put_back())
        acts = Writes(db, SQL)
        if kinds.keys() != OPENING:
            self.clock.share(create=True)
        now = self.clock()
        for kind, group in kinds.items():
            match kind:
                case "insert":
                    answers = acts.insert([ticket.work.args for ticket in group])
                    for ticket, answer in zip(group, answers, strict=True):
                        if isinstance(answer, Exception):
                            ticket.error = answer
                        else:
                            ticket.answer = answer
                case "commit" | "record":
                    together: list[Any] = [item for ticket in group for item in ticket.work.args[0]]
                    answered = iter(getattr(acts, kind)(together))
                    for ticket in group:
                        ticket.answer = list(islice(answered, len(ticket.work.args[0])))
                case "admit" | "permits":
                    admitted = acts.admit([ticket.work.args for ticket in group], now)
                    for ticket, admission in zip(group, admitted, strict=True):
                        ticket.answer = admission
                case "open":
                    pass
                case _:
                    for ticket in group:
                        ticket.answer = getattr(acts, kind)(*ticket.work.args, now)
        acts.finish()
        db.execute(SQL.commit)
        return acts.news

    def _choose_sync(self, db: sqlite3.Connection, *, lazy: bool) -> None:
        if lazy is not self._is_lazy:
            db.execute(SQL.lazily if lazy else SQL.durably)
            self._is_lazy = lazy

    def _connected(self) -> sqlite3.Connection:
        """The writer's connection, new after an error. A file that was replaced while in use is never written."""
        self.check_lost()
        # Without a connection, check all files: we would create new ones next to those that this process has open.
        if missing := self._files.missing(DATABASE if self.connection is not None else ALL):
            if self._files.is_moved_away():
                raise StoreDamaged(f"{self._path} was moved away while in use; nothing was written: move it back")
            raise self._lose(missing)
        with translated_errors(self._path):
            if self.connection is None:
                if not self.clock.was_alone:
                    self._files.await_log(PUT_BACK_SECONDS)
                self.connection = prepare(self._path)
                self._is_lazy = False
                self._files.note()
        return self.connection

    def check_lost(self) -> None:
        """Raise StoreLost if the files were removed while in use and have not been restored."""
        if self._lost is not None:
            if self._files.missing():
                raise StoreLost(str(self._lost))
            self._lost = None  # The file that was moved away is back, and nobody has written meanwhile.

    def _lose(self, missing: list[str], put_back: int = 0) -> StoreLost:
        """Stop using the store: nobody else would see what this process writes to removed files."""
        if self._lost is None:
            before = read_loss(self._folder)
            kept = put_back != 0 or self._files.is_same_log() or (before is not None and self._files.is_log(before.log))
            self._lost = self._files.loss(missing, kept)
            number = put_back or (before.log if before is not None else 0)
            write_loss(self._folder, Loss(self.clock(), str(self._lost), number))
        return self._lost

    def _take_back(self, error: Exception) -> Exception:
        """Roll back the current transaction, and return the error for its callers."""
        if isinstance(error, sqlite3.IntegrityError) and str(error) == GUARDED:
            error = self._moved()
        told = translate_error(error, self._path) if isinstance(error, sqlite3.OperationalError | OSError) else error
        if isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError):
            told = (
                error
                if isinstance(error, sqlite3.IntegrityError | sqlite3.DataError)
                else translate_error(error, self._path)
            )
        assert self.connection is not None
        self._roll_back()
        # After a failed sync the kernel may have dropped the pages: only reading the file again shows what is stored.
        if isinstance(told, StoreError) and not isinstance(told, StoreBusy):
            is_whole = not self._files.missing()
            self.put_away(self.connection)
            self.connection = None
            if is_whole:  # Otherwise the next call reports the removed files, and doesn't create new ones.
                self._files.forget()
        return told

    def _roll_back(self) -> None:
        assert self.connection is not None
        try:
            if self.connection.in_transaction:
                self.connection.execute(SQL.rollback)
        except sqlite3.Error:
            pass

    def _moved(self) -> Exception:
        """The error for a store whose jobs were moved or are being moved."""
        assert self.connection is not None
        mark = Writes(self.connection, SQL).mark()
        return Moved(mark_of(mark or "").words())

    def is_lost(self) -> bool:
        """Whether files were removed or replaced while in use. A database that was moved away may come back."""
        return bool(self._files.missing()) and not self._files.is_moved_away()

    def read_only(self) -> sqlite3.Connection:
        """A connection that can only read."""
        return connect(self._path, read_only=True)

    def give_way(self) -> None:
        """Cancel the transaction of a step's body."""
        self._transactions.give_way()

    def close(self) -> None:
        """Close all connections that write."""
        connection, self.connection = self.connection, None
        if connection is not None:
            self.put_away(connection)
        self._transactions.close()
        self._files.forget()

    def put_away(self, connection: sqlite3.Connection) -> None:
        """Close a connection. A connection to removed files is leaked instead (`abandon`)."""
        if self._lost is None:
            connection.close()
        else:
            abandon(connection)


def is_hold(act: Act) -> bool:
    """Whether the writer holds a transaction for a step's body."""
    return act.kind == HOLD
