"""Transactional steps: the writer begins, a body elsewhere fills the transaction, the writer records and commits.

Must not decide what a body may do (`guard`). The body never runs on the writer's thread: it may hang, and the writer
must be able to go on without it. Its statements do run in its own thread, on a connection that nobody else writes with,
so that nothing of a step is left behind where the acts of others are carried out.
"""

import asyncio
import sqlite3
import threading
import time
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

from holdfast.core.errors import Invalid
from holdfast.core.model import Conflict, Recorded, Step, StepState
from holdfast.core.moves import check_unmarked
from holdfast.engines.contract import Body, check_steps
from holdfast.engines.sqlite.acts import Acts
from holdfast.engines.sqlite.guard import Connection, Session, rolled_back
from holdfast.engines.sqlite.reads import SQL
from holdfast.engines.sqlite.store import connect, plainly

LIMIT_SECONDS = 5.0
"""How long a body may take: for that long nobody else can write to the file."""

HELD_SECONDS, GAP_SECONDS = 1.0, 0.12
"""After so much time in transactions, a gap: SQLite looks every 0.1 s whether the file is free, so that every other
process has its turn. Without it, steps of half a second one after the other kept others out for over 10 s.
"""


class Hold:
    """One transaction on its way between the writer's thread and the event loop of who fills it."""

    def __init__(self, step: Step) -> None:
        self.step = step
        self.steps: Sequence[Step] = ()
        """What to record at its end; nothing, to take all of it back."""
        self.over = threading.Event()
        """Set when the body has come to its end, or nobody waits for it any more."""
        self._loop = asyncio.get_running_loop()
        self._opened: asyncio.Future[Connection] = self._loop.create_future()

    def open(self, connection: Connection) -> None:
        """Let the body begin. From the writer's thread."""

        def opened() -> None:
            if not self._opened.done():
                self._opened.set_result(connection)

        try:
            self._loop.call_soon_threadsafe(opened)
        except RuntimeError:  # the loop has ended: nobody waits
            self.over.set()

    async def filled(self, body: Body, held: Coroutine[Any, Any, Any]) -> Recorded | Conflict:
        """Run the body inside the transaction that `held` holds; answer when that has ended."""
        ended: asyncio.Task[Any] = asyncio.ensure_future(held)
        filling: asyncio.Task[Sequence[Step]] | None = None
        try:
            await asyncio.wait((ended, self._opened), return_when=asyncio.FIRST_COMPLETED)
            if not ended.done():
                filling = asyncio.ensure_future(_fill(body, self._opened.result()))
                await asyncio.wait((ended, filling), return_when=asyncio.FIRST_COMPLETED)
                if filling.done() and not filling.cancelled() and filling.exception() is None:
                    self.steps = filling.result()
            self.over.set()
            answer: Recorded | Conflict | None = await ended  # the store's trouble, or its limit, comes before all else
            if answer is None:
                assert filling is not None
                filling.result()  # raises what the body raised
                raise AssertionError("a body gives what to record")
            return answer
        finally:
            self.over.set()
            for task in (ended, filling):
                if task is not None and not task.done():
                    task.cancel()
                    task.add_done_callback(_ignored)


async def _fill(body: Body, connection: Connection) -> Sequence[Step]:
    steps = await body(connection)
    check_steps(steps)
    return steps


def _ignored(task: "asyncio.Task[Any]") -> None:
    """Nobody waits for this any more: its error would be told as one that was never looked at."""
    if not task.cancelled():
        task.exception()


class Transactions:
    """The connection on which bodies run. Used by the writer's thread only, one hold after the other."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._db: sqlite3.Connection | None = None
        self._held = 0.0

    def run(self, hold: Hold) -> Recorded | Conflict | None:
        """Carry out one hold; None if its body failed. After any trouble the next one gets a fresh connection."""
        if hold.over.is_set():
            return None
        began = time.monotonic()
        try:
            return self._run(hold)
        except BaseException as error:
            self.close()  # which takes back what was not committed
            if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_ERROR:
                # No trouble of the store's: it would come again, however often this is tried.
                raise Invalid(
                    f"step {hold.step.name}: its record can't stand beside what it wrote ({error}); "
                    "does a table of yours refer to one of Holdfast's?"
                ) from error
            if isinstance(error, sqlite3.OperationalError) or type(error) is sqlite3.DatabaseError:
                raise plainly(error, self._path) from error
            raise
        finally:
            self._held += time.monotonic() - began
            if self._held > HELD_SECONDS:
                self._held = 0.0
                time.sleep(GAP_SECONDS)

    def close(self) -> None:
        """Close the connection, if there is one. A transaction that is open on it is taken back."""
        db, self._db = self._db, None
        if db is not None:
            db.close()

    def _run(self, hold: Hold) -> Recorded | Conflict | None:
        db = self._connected()
        db.execute(SQL.begin)
        acts = Acts(db, SQL)
        check_unmarked(acts.mark())
        answer = acts.standing(hold.step)
        if answer is None or (isinstance(answer, Recorded) and answer.step.state is StepState.STARTED):
            self._let_fill(db, hold)
            answer = acts.record(hold.steps)[0] if hold.steps else None
        if hold.steps:
            db.execute(SQL.commit)
        elif db.in_transaction:
            db.execute(SQL.rollback)
        return answer

    def _let_fill(self, db: sqlite3.Connection, hold: Hold) -> None:
        session = Session(db)
        hold.open(Connection(session))
        in_time = hold.over.wait(LIMIT_SECONDS)
        if in_time:
            session.end()
        else:
            session.end(lambda: _too_long(hold.step))
        if session.trouble is not None:
            raise session.trouble
        if not in_time:
            raise _too_long(hold.step)
        if hold.steps and not db.in_transaction:  # or the record would be written alone
            raise rolled_back()

    def _connected(self) -> sqlite3.Connection:
        if self._db is None:
            self._db = connect(self._path)
            self._db.execute("pragma foreign_keys = on")  # none of our tables has any; users who declare them mean it
        return self._db


def _too_long(step: Step) -> TimeoutError:
    return TimeoutError(
        f"step {step.name} held the store for longer than {LIMIT_SECONDS:g} s, and was rolled back: do what is slow in "
        "a step before it, and only write here"
    )
