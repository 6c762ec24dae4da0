"""The SQLite engine: one thread writes with group commit, others read, and wake-ups cross processes.

Must not contain SQL (`queries.sql`) nor what an act does (`acts`). Durable to a power cut: every commit is synced
(`synchronous=FULL`) before its callers are answered, and what waits meanwhile shares the next one.
"""

import asyncio
import os
import sqlite3
import threading
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from holdfast import forking
from holdfast.core.errors import Invalid, Moved, StoreBusy, StoreDamaged, StoreError, StoreLost
from holdfast.core.model import (
    PAGE_LIMIT,
    Applied,
    Beat,
    Change,
    Conflict,
    Entry,
    Inserted,
    Job,
    Lease,
    Presence,
    Record,
    Recorded,
    State,
    Step,
    Time,
    Where,
)
from holdfast.core.moves import HeldKey, Whole, mark_of
from holdfast.engines.batch_thread import BatchThread, Ticket
from holdfast.engines.clock import SharedClock
from holdfast.engines.contract import Clock, Guarantees, system_clock
from holdfast.engines.held_transaction import HeldTransaction
from holdfast.engines.liveness import worker_records
from holdfast.engines.records import WORKER
from holdfast.engines.refusals import not_open
from holdfast.engines.rows import entry_of, job_of, step_of
from holdfast.engines.sqlite import reads
from holdfast.engines.sqlite.files import ALL, BESIDE, DATABASE, Files, Loss, abandon, read_loss, write_loss
from holdfast.engines.sqlite.liveness import Liveness
from holdfast.engines.sqlite.reads import SQL
from holdfast.engines.sqlite.store import connect, prepare, reads_raw, translate_error, translated_errors
from holdfast.engines.sqlite.transactions import Transactions
from holdfast.engines.sqlite.writes import Writes
from holdfast.engines.topics import queues_of, until_due
from holdfast.engines.traits import Body, Movable, Transactional
from holdfast.engines.urls import path_of
from holdfast.engines.wakeups import Wakeups

T = TypeVar("T")
Look = Callable[[sqlite3.Connection], Any]

DEAF_POLL_SECONDS = 0.5
"""How often a waiter looks by itself where the folder can't hold a socket."""

LAZY = frozenset({"claim"})
"""Acts that wait for no disk. A power cut that takes back a claim takes its worker too: the job is there to be claimed.
What the worker writes next takes the claim to the disk with it.
"""

OPENING = {"open"}

PUT_BACK_SECONDS = 5.0
"""How long a process that comes waits for the others to put a removed log back: longer than between two heartbeats."""

GUARDED = "holdfast: moved"
"""What the guard of a store says whose jobs are moved (`guard_insert` and its kin)."""

HOLD = "hold"
"""The kind of act in which the writer holds a transaction for somebody who fills it."""


class Act(msgspec.Struct, frozen=True):
    """One call that writes."""

    kind: str
    args: tuple[Any, ...]


class SqliteEngine(Movable, Transactional, forking.Forkable):
    """Jobs in one SQLite file, shared by all processes of one machine."""

    guarantees = Guarantees(
        name="sqlite",
        url="sqlite:///jobs.db",
        use="one machine, many processes; the default",
        durable="a power cut",
        processes="one machine",
        wakes="one machine",
        atomic_children=True,
        clock="this machine's",
        limit="millions of jobs; one writer at a time",
        transactions="def steps",
    )

    def __init__(self, path: Path, clock: Clock = system_clock, *, inline: bool = False) -> None:
        self.path = path
        self._shared = self._new_clock() if clock is system_clock else None
        self._clock: Clock = clock if self._shared is None else self._shared
        self._inline = inline
        self._bell = Wakeups()
        self._live = self._new_live()
        self._pid: int | None = None
        self._opening = threading.Lock()
        self._writer: sqlite3.Connection | None = None
        self._transactions = Transactions(path)
        self._files = Files(path)
        self._lost: StoreLost | None = None
        """Why this process may use the store no more: its files were removed under it."""
        self._is_lazy = False
        self._taken: list[threading.Lock] = []
        """What is held for a fork."""
        self._write: BatchThread[Act]
        self._reads: dict[str, BatchThread[Look]]

    @classmethod
    def from_url(cls, url: str, clock: Clock) -> "SqliteEngine":
        """Make the engine of a store's URL."""
        return cls(path_of(url), clock)

    @classmethod
    def scratch(cls, url: str, folder: Path) -> str:
        """Name an empty store for a test."""
        return f"sqlite:///{folder.absolute() / path_of(url).name}"

    @property
    def _folder(self) -> Path:
        """The folder of the living."""
        return self.path.with_name(self.path.name + "-live")

    def _new_live(self) -> Liveness:
        return Liveness(self._folder, self._bell.ring)

    def _new_clock(self) -> SharedClock:
        return SharedClock(self._folder / "clock")

    # Opening and closing.

    async def is_there(self) -> bool:
        """Tell whether there is a store to open. An empty file is none yet: to open it would make one."""
        return self.path.exists() and self.path.stat().st_size > 0

    async def open(self) -> None:
        """Make the store ready."""
        with self._opening:
            if self._pid != os.getpid():
                self._write = BatchThread(
                    f"the writer of {self.path}", self._run_batch, inline=self._inline, alone=_is_hold
                )
                # A long walk must not keep a short look waiting, nor either of them a worker's beat.
                self._reads = {name: self._reader(name) for name in ("look", "walk", "beat")}
                self._pid = os.getpid()
                forking.watch(self)
                self._share_clock(create=False)
        try:  # also when another call opens it just now: this one returns when the store is ready
            await self._write.do(Act("open", ()))
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Let go of everything."""
        if self._pid != os.getpid():
            return
        self._pid = None
        await (asyncio.to_thread(self._close) if not self._inline else _at_once(self._close))

    def _close(self) -> None:
        for reader in self._reads.values():
            reader.close()
        self._write.close()
        self._close_writer()
        self._live.close()
        if self._pid is None:  # else somebody has opened it again
            forking.forget(self)
        if self._shared is not None:
            self._shared.close()

    def _close_writer(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            self._put_away(writer)
        self._transactions.close()
        self._files.forget()

    def _put_away(self, connection: sqlite3.Connection) -> None:
        """Close a connection; but one to files that were removed can only be let go."""
        if self._lost is None:
            connection.close()
        else:
            abandon(connection)

    def _share_clock(self, *, create: bool) -> None:
        """Go by the same time as the other processes of this store. Who only looks makes no file for it."""
        if self._shared is not None and not self._shared.is_shared:
            self._shared.join(create=create)

    def _reader(self, name: str) -> BatchThread[Look]:
        """A lane with a connection of its own, which can only read."""
        connection: list[sqlite3.Connection] = []

        def run(tickets: Sequence[Ticket[Look]]) -> None:
            for ticket in tickets:
                try:
                    with translated_errors(self.path):
                        self._check_lost()
                        if not connection:
                            connection.append(connect(self.path, read_only=True))
                        try:
                            ticket.answer = ticket.work(connection[0])
                        except sqlite3.OperationalError as error:
                            if not reads_raw(error, connection[0]):
                                raise
                            ticket.answer = ticket.work(connection[0])
                except BaseException as error:
                    ticket.error = error

        def done() -> None:
            with suppress(IndexError):  # a fork may come while the store is closed
                self._put_away(connection.pop())

        return BatchThread(f"the {name} of {self.path}", run, inline=self._inline, done=done)

    # Writing: all that waits is one transaction.

    def _run_batch(self, tickets: Sequence[Ticket[Act]]) -> None:
        if _is_hold(tickets[0].work):
            self._hold(tickets[0])
            return
        try:
            news = self._attempt(self._connected(), tickets)
        except StoreError as error:
            if self._writer is not None:
                self._roll_back()
            for ticket in tickets:
                ticket.error = error
        except Exception as error:
            if reads_raw(error, self._writer):
                self._roll_back()
                self._run_batch(tickets)
                return
            told = self._take_back(error)
            # One of many may be to blame, so each tries alone; trouble with the store itself is everybody's.
            if len(tickets) > 1 and not isinstance(told, StoreError):
                for ticket in tickets:
                    self._run_batch([ticket])
                return
            for ticket in tickets:
                ticket.error = told
        else:
            if news:
                self._bell.ring(news)
                self._live.tell(news)

    def _hold(self, ticket: Ticket[Act]) -> None:
        """A transactional step, in a transaction of its own: it can't take back what others have written."""
        try:
            self._connected()
            if self._files.missing():
                self._attempt(self._connected(), [])
            ticket.answer = self._transactions.run(*ticket.work.args)
        except Exception as error:
            ticket.error = error

    def _attempt(self, db: sqlite3.Connection, tickets: Sequence[Ticket[Act]]) -> set[str]:
        """Run all acts in one transaction. Acts of one kind go together: they came at once, so any order is right."""
        kinds: dict[str, list[Ticket[Act]]] = {}
        for ticket in tickets:
            ticket.answer = ticket.error = None
            kinds.setdefault(ticket.work.kind, []).append(ticket)
        self._choose_sync(db, lazy=kinds.keys() <= LAZY)
        db.execute(SQL.begin)
        if missing := self._files.missing(BESIDE):  # asked while nobody else can write
            raise self._lose(missing, self._files.put_back())
        acts = Writes(db, SQL)
        if kinds.keys() != OPENING:
            self._share_clock(create=True)
        now = self._clock()
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
        """The writer's connection, made anew after trouble. A file that was swapped under us is never written."""
        self._check_lost()
        # Without a connection all of them: we would make new ones, beside those that others of this process have open.
        if missing := self._files.missing(DATABASE if self._writer is not None else ALL):
            if self._files.is_moved_away():
                raise StoreDamaged(f"{self.path}: was moved away while in use; nothing was written: put it back")
            raise self._lose(missing)
        with translated_errors(self.path):
            if self._writer is None:
                if self._shared is not None and not self._shared.was_alone:
                    self._files.await_log(PUT_BACK_SECONDS)
                self._writer = prepare(self.path)
                self._is_lazy = False
                self._files.note()
        return self._writer

    def _check_lost(self) -> None:
        if self._lost is not None:
            if self._files.missing():
                raise StoreLost(str(self._lost))
            self._lost = None  # what was moved away is back, and nobody has written meanwhile

    def _lose(self, missing: list[str], put_back: int = 0) -> StoreLost:
        """This process may use the store no more: what it would write, or has read, nobody else sees."""
        if self._lost is None:
            before = read_loss(self._folder)
            kept = put_back != 0 or self._files.is_same_log() or (before is not None and self._files.is_log(before.log))
            self._lost = self._files.loss(missing, kept)
            number = put_back or (before.log if before is not None else 0)
            write_loss(self._folder, Loss(self._clock(), str(self._lost), number))
        return self._lost

    async def check_files(self) -> None:
        """Raise StoreLost if somebody removed the files that this process has open. On the writer's thread, which can
        put a removed log back. A database that was moved away may come back: until then only writes are refused.
        """
        if self._files.missing() and not self._files.is_moved_away():
            await self._do("open")

    def last_loss(self) -> Loss | None:
        """What a process of this store last found missing, for who looks later."""
        return read_loss(self._folder)

    def _take_back(self, error: Exception) -> Exception:
        """Undo the transaction under way, and say what happened."""
        if isinstance(error, sqlite3.IntegrityError) and str(error) == GUARDED:
            error = self._moved()
        told = translate_error(error, self.path) if isinstance(error, sqlite3.OperationalError | OSError) else error
        if isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError):
            told = (
                error
                if isinstance(error, sqlite3.IntegrityError | sqlite3.DataError)
                else translate_error(error, self.path)
            )
        assert self._writer is not None
        self._roll_back()
        # After a failed sync the kernel may have dropped the pages: only a fresh look at the file tells the truth.
        if isinstance(told, StoreError) and not isinstance(told, StoreBusy):
            is_whole = not self._files.missing()
            self._put_away(self._writer)
            self._writer = None
            if is_whole:  # else the next call tells that they were removed, and makes none anew
                self._files.forget()
        return told

    def _roll_back(self) -> None:
        assert self._writer is not None
        try:
            if self._writer.in_transaction:
                self._writer.execute(SQL.rollback)
        except sqlite3.Error:
            pass

    def _moved(self) -> Exception:
        """Why the guard refuses: jobs are being moved, or were."""
        assert self._writer is not None
        mark = Writes(self._writer, SQL).mark()
        return Moved(mark_of(mark or "").words())

    def _do(self, kind: str, *args: Any) -> Coroutine[Any, Any, Any]:
        self._check_open()
        return self._write.do(Act(kind, args))

    def _insert(self, jobs: Sequence[Job], parent: Lease | None) -> Awaitable[list[Inserted]]:
        return self._do("insert", jobs, parent)

    def _claim(self, worker: str, queues: list[str], limit: int, types: list[str] | None) -> Awaitable[list[Job]]:
        return self._do("claim", worker, queues, limit, types)

    def _commit(self, changes: Sequence[Change]) -> Awaitable[list[Applied | Conflict]]:
        return self._do("commit", changes)

    def _record(self, steps: Sequence[Step]) -> Awaitable[list[Recorded | Conflict]]:
        return self._do("record", steps)

    async def _transact(self, step: Step, body: Body) -> Recorded | Conflict:
        """Let the writer wait for the body, for `LIMIT_SECONDS` at most."""
        if self._inline:
            raise Invalid(f"step {step.name}: without threads nobody can fill a transaction that the writer holds")
        hold = HeldTransaction(step, threading.Event())
        return await hold.filled(body, self._do(HOLD, hold))

    async def _prune(self, limit: int) -> int:
        """Tidy away the files of dead workers, too."""
        answer: int = await self._do("prune", limit)
        await self._look("look", self._tidy)
        return answer

    def _put_record(self, name: str, value: str | None, expected: int | None) -> Awaitable[Record | Conflict]:
        return self._do("put_record", name, value, expected)

    def _load(self, wholes: Sequence[Whole], keys: Sequence[HeldKey], records: Sequence[Record]) -> Awaitable[int]:
        return self._do("load", wholes, keys, records)

    # Reading.

    def _look(self, lane: str, look: Callable[[sqlite3.Connection], T]) -> Coroutine[Any, Any, T]:
        self._check_open()
        return self._reads[lane].do(look)

    async def now(self) -> Time:
        """Read the clock that all processes of this store share."""
        return self._clock()

    def _get(self, ids: list[str]) -> Awaitable[Mapping[str, Job]]:
        params = {"ids": msgspec.json.encode(ids).decode()}
        return self._look("look", lambda db: {row[1]: job_of(row) for row in db.execute(SQL.get, params)})

    def _find(self, where: Where, after: str, limit: int) -> Awaitable[list[Job]]:
        return self._look("walk", lambda db: reads.find(db, where, after, limit))

    def _in_order(self, after: str, limit: int) -> Awaitable[list[Job]]:
        return self._look("walk", lambda db: reads.in_order(db, after, limit))

    async def _wholes(self, jobs: Sequence[Job]) -> list[Whole]:
        return await self._look("walk", lambda db: reads.wholes(db, jobs))

    def _keys(self, after: tuple[str, str], limit: int) -> Awaitable[list[HeldKey]]:
        params = {"type": after[0], "key": after[1], "limit": limit}
        return self._look("walk", lambda db: [HeldKey(*row) for row in db.execute(SQL.keys, params)])

    async def all_records(self) -> list[Record]:
        """List all records, the removed ones too."""
        return await self._look("look", lambda db: [Record(*row) for row in db.execute(SQL.all_records)])

    async def count(self) -> Mapping[tuple[str, State], int]:
        """Read the counters."""
        return await self._look(
            "look", lambda db: {(queue, State(state)): jobs for queue, state, jobs in db.execute(SQL.count)}
        )

    def _ready_types(self, queue: str) -> Awaitable[list[str]]:
        params = {"queue": queue, "limit": PAGE_LIMIT}
        return self._look("look", lambda db: [type for (type,) in db.execute(SQL.ready_types, params)])

    def _steps(self, job: str) -> Awaitable[list[Step]]:
        return self._look("look", lambda db: [step_of(row) for row in db.execute(SQL.steps, {"job": job})])

    async def _steps_under(self, job: str, prefix: str) -> list[Step]:
        params = {"job": job, "prefix": prefix}
        return await self._look("look", lambda db: [step_of(row) for row in db.execute(SQL.steps_under, params)])

    def _history(self, job: str, after: int, limit: int) -> Awaitable[list[Entry]]:
        params = {"job": job, "after": after, "limit": limit}
        return self._look("walk", lambda db: [entry_of(row) for row in db.execute(SQL.history, params)])

    def _missing(self, parent: str, group: str) -> Awaitable[int]:
        params = {"parent": parent, "name": group}
        return self._look("look", lambda db: int(db.execute(SQL.missing, params).fetchone()[0]))

    def _records(self, prefix: str) -> Awaitable[list[Record]]:
        def look(db: sqlite3.Connection) -> list[Record]:
            found = [Record(*row) for row in db.execute(SQL.records, {"prefix": prefix})]
            if prefix.startswith(WORKER) or WORKER.startswith(prefix):
                found += worker_records(self._live.presences(), prefix)
            return sorted(found, key=lambda record: record.name)

        return self._look("look", look)

    async def _beat(self, presence: Presence) -> Beat:
        """Write the heartbeat to the worker's own file, not to the database."""
        await self.check_files()
        self._share_clock(create=True)
        now = self._clock()

        def look(db: sqlite3.Connection) -> Beat:
            if presence.leaving:
                self._live.leave(presence.worker)
            else:
                self._live.beat(msgspec.structs.replace(presence, beat_at=now))
            return reads.beat(db, presence, now)

        return await self._look("beat", look)

    def _tidy(self, db: sqlite3.Connection) -> None:
        """Remove the traces of dead workers once none of their jobs is left to be rescued."""
        holders = {row[0] for row in db.execute(SQL.holders)}
        self._live.forget([p.worker for p in self._live.presences() if p.gone and p.worker not in holders])

    # Waking.

    async def _wait(self, topics: list[str], timeout: float, after: int) -> int:
        self._check_open()
        await self.check_files()
        try:
            if self._live.listen():
                return after  # what came before we listened can't be known: look once more
        except OSError:
            timeout = min(timeout, DEAF_POLL_SECONDS)
        queues = queues_of(topics)
        if queues:
            now = self._clock()
            due = await self._look("look", lambda db: reads.next_due(db, queues, now))
            timeout = until_due(due, now, timeout)
        return await self._bell.wait(topics, timeout, after)

    # Forks. SQLite remembers in memory which locks its process holds, and a fork copies that memory: the child believes
    # that it holds its parent's locks, and writes without any. So no connection is open while the process forks.

    def give_way(self) -> None:
        """Break off what a fork can't wait for."""
        self._transactions.give_way()

    def hold_up(self) -> None:
        """Wait until every thread has finished its batch, and close all connections."""
        for lock in (self._write.gate, *(reader.gate for reader in self._reads.values()), self._live.lock):
            forking.take(lock)
            self._taken.append(lock)
        for reader in self._reads.values():
            reader.done()
        self._close_writer()

    def go_on(self) -> None:
        """Let everybody go on: whoever needs a connection opens it."""
        while self._taken:
            self._taken.pop().release()

    def leave_behind(self) -> None:
        """Leave the parent's sockets and files alone, and begin anew."""
        self._taken.clear()
        self._live.forked()
        self._bell = Wakeups()
        self._live = self._new_live()
        if self._shared is not None:
            self._shared.forked()
            self._clock = self._shared = self._new_clock()
        self._opening = threading.Lock()

    def _check_open(self) -> None:
        if self._pid != os.getpid():
            raise not_open(self.path, is_forked=self._pid is not None)


def _is_hold(act: Act) -> bool:
    return act.kind == HOLD


async def _at_once(call: Callable[[], None]) -> None:
    call()
