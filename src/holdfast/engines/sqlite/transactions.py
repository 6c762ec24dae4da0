"""Transactional steps: the writer begins a transaction, a body runs in it, and the writer records and commits.

Must not decide what a body can do (`guard`). The body never runs on the writer's thread: it may hang, and the writer
must be able to continue without it. Its statements run in its own thread, on a connection that nobody else writes with,
so that a step can't affect the acts of others.
"""

import asyncio
import sqlite3
import threading
import time
from pathlib import Path

from holdfast.core.errors import Invalid, StoreBusy
from holdfast.core.model import Conflict, Recorded, Step, StepState
from holdfast.core.moves import check_unmarked
from holdfast.engines.held_transaction import HELD, HeldTransaction, held_too_long, step_is_over
from holdfast.engines.sqlite.guard import Connection, Session, rolled_back
from holdfast.engines.sqlite.reads import SQL
from holdfast.engines.sqlite.store import connect, translate_error
from holdfast.engines.sqlite.writes import Writes

LIMIT_SECONDS = 5.0
"""How long a body can take: nobody else can write to the file meanwhile."""

HELD_SECONDS, GAP_SECONDS = 1.0, 0.12
"""After this much time in transactions, pause: SQLite checks every 0.1 s whether the file is free, so every other
process gets its turn. Without the pause, consecutive steps of half a second blocked others for over 10 s.
"""


class Transactions:
    """The connection on which bodies run. Only the writer's thread uses it, for one transaction at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._db: sqlite3.Connection | None = None
        self._held = 0.0
        self._hold: HeldTransaction[threading.Event] | None = None
        """The transaction whose body runs now."""

    def run(self, hold: HeldTransaction[threading.Event]) -> Recorded | Conflict | None:
        """Run one transaction; None if its body failed. After any error, the next one gets a new connection."""
        if hold.over.is_set():
            return None
        began = time.monotonic()
        try:
            return self._run(hold)
        except BaseException as error:
            self.close()  # This rolls back what was not committed.
            if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_ERROR:
                # Not an error of the store: it would happen again in every retry.
                raise Invalid(
                    f"step {hold.step.name}: its record can't be stored together with what it wrote ({error}); "
                    "does one of your tables refer to a table of Holdfast?"
                ) from error
            if isinstance(error, sqlite3.OperationalError) or type(error) is sqlite3.DatabaseError:
                raise translate_error(error, self._path) from error
            raise
        finally:
            self._held += time.monotonic() - began
            if self._held > HELD_SECONDS:
                self._held = 0.0
                time.sleep(GAP_SECONDS)

    def close(self) -> None:
        """Close the connection, if there is one. An open transaction is rolled back."""
        db, self._db = self._db, None
        if db is not None:
            db.close()

    def give_way(self) -> None:
        """Cancel the transaction if it can't end while this thread waits to fork: its body or its loop runs here."""
        hold = self._hold
        if hold is None or hold.over.is_set():
            return
        step = hold.step
        body: object = HELD.get()
        if body is hold:
            hold.break_off(lambda: _forked(step))
        elif _is_running(hold.loop):  # The step is not to blame, and is retried as after an error of the store.
            hold.break_off(
                lambda: StoreBusy(
                    f"{self._path}: async code forked while step {step.name} was in a transaction; it was rolled back"
                )
            )

    def _run(self, hold: HeldTransaction[threading.Event]) -> Recorded | Conflict | None:
        db = self._connected()
        db.execute(SQL.begin)
        acts = Writes(db, SQL)
        check_unmarked(acts.mark())
        answer = acts.standing(hold.step)
        if answer is None or (isinstance(answer, Recorded) and answer.step.state is StepState.STARTED):
            self._let_fill(db, hold)
            answer = acts.record(hold.steps)[0] if hold.steps else None
        if hold.steps:
            acts.finish()
            db.execute(SQL.commit)
        elif db.in_transaction:
            db.execute(SQL.rollback)
        return answer

    def _let_fill(self, db: sqlite3.Connection, hold: HeldTransaction[threading.Event]) -> None:
        session = Session(db)
        self._hold = hold
        hold.open(Connection(session))
        if not hold.over.wait(LIMIT_SECONDS):
            hold.break_off(lambda: held_too_long(hold.step, LIMIT_SECONDS))
        self._hold, broken = None, hold.broken
        session.end(broken or step_is_over)
        if session.trouble is not None:
            raise session.trouble
        if broken is not None:
            raise broken()
        if hold.steps and not db.in_transaction:  # Otherwise the record would be stored without the step's writes.
            raise rolled_back()

    def _connected(self) -> sqlite3.Connection:
        if self._db is None:
            self._db = connect(self._path)
            self._db.execute("pragma foreign_keys = on")  # For the users' tables: ours have none.
        return self._db


def _is_running(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False


def _forked(step: Step) -> Invalid:
    return Invalid(
        f"step {step.name} forked inside its transaction, which was rolled back: SQLite can't be open while a process "
        "forks; use multiprocessing, preexec_fn or os.fork in another step"
    )
