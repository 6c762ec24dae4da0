"""The SQLite engine. One thread writes with group commit, others read, and wake-ups reach other processes.

Must not contain SQL (`queries.sql`), how a batch is written (`writer`), or what an act does (`writes`). Acknowledged
work survives a power cut: every commit is synced (`synchronous=FULL`) before its callers get an answer, except claims
(decision 16), and acts that arrive meanwhile share the next commit.
"""

import asyncio
import os
import sqlite3
import threading
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from holdfast import forking
from holdfast.blobs.folder import FolderBlobs
from holdfast.blobs.store import BlobStore
from holdfast.core.errors import Invalid
from holdfast.core.model import (
    PAGE_LIMIT,
    Admission,
    Applied,
    Ask,
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
    StepState,
    Time,
    Usage,
    Where,
)
from holdfast.core.moves import HeldKey, Whole
from holdfast.core.searches import Page
from holdfast.core.summaries import StepHead, StepSummary
from holdfast.engines.batch_thread import BatchThread, Ticket
from holdfast.engines.contract import Clock, Guarantees, system_clock
from holdfast.engines.held_transaction import HeldTransaction
from holdfast.engines.liveness import worker_records
from holdfast.engines.records import WORKER
from holdfast.engines.refusals import not_open
from holdfast.engines.rows import entry_of, job_of, step_of
from holdfast.engines.sqlite import reads
from holdfast.engines.sqlite.files import Loss, read_loss
from holdfast.engines.sqlite.limit_rows import LimitRows
from holdfast.engines.sqlite.liveness import Liveness
from holdfast.engines.sqlite.reads import SQL
from holdfast.engines.sqlite.store import reads_raw, translated_errors
from holdfast.engines.sqlite.store_clock import StoreClock
from holdfast.engines.sqlite.writer import HOLD, PERMITS, Act, Writer, is_hold
from holdfast.engines.topics import queues_of, until_due
from holdfast.engines.traits import Body, Emptyable, Movable, Transactional
from holdfast.engines.urls import path_of
from holdfast.engines.wakeups import Wakeups

T = TypeVar("T")
Look = Callable[[sqlite3.Connection], Any]

DEAF_POLL_SECONDS = 0.5
"""How often a waiter polls if the folder can't hold a socket."""


class SqliteEngine(Movable, Emptyable, Transactional, forking.Forkable):
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
        self._folder = path.with_name(path.name + "-live")
        """Where the processes of this store find one another."""
        self._clock = StoreClock(clock, self._folder)
        self._inline = inline
        self.may_block = not inline
        self._wakeups = Wakeups()
        self._liveness = Liveness(self._folder, self._wakeups.ring)
        self._pid: int | None = None
        self._opening = threading.Lock()
        self._writer = Writer(path, self._folder, self._clock, self._tell)
        self._taken: list[threading.Lock] = []
        """The locks that are held during a fork."""
        self._write: BatchThread[Act]
        self._reads: dict[str, BatchThread[Look]]

    @classmethod
    def from_url(cls, url: str, clock: Clock) -> "SqliteEngine":
        """Make the engine of a store's URL."""
        return cls(path_of(url), clock)

    def own_blobs(self) -> BlobStore:
        """Keep blobs in a folder beside the file."""
        return FolderBlobs(Path(f"{self.path}.blobs"))

    @classmethod
    def scratch(cls, url: str, folder: Path) -> str:
        """Name an empty store for a test."""
        return f"sqlite:///{folder.absolute() / path_of(url).name}"

    def _tell(self, news: set[str]) -> None:
        self._wakeups.ring(news)
        self._liveness.tell(news)

    # Opening and closing.

    async def is_there(self) -> bool:
        """Whether the store exists. An empty file is not a store yet: opening it would create one."""
        return self.path.exists() and self.path.stat().st_size > 0

    async def open(self) -> None:
        """Make the store ready."""
        with self._opening:
            if self._pid != os.getpid():
                self._write = BatchThread(
                    f"the writer of {self.path}", self._writer.run, inline=self._inline, alone=is_hold
                )
                # A long scan must not delay a short read, and neither may delay a worker's heartbeat.
                self._reads = {name: self._reader(name) for name in ("look", "walk", "beat")}
                self._pid = os.getpid()
                forking.watch(self)
                self._clock.share(create=False)
        try:  # Also if another call is opening it now: this one returns when the store is ready.
            await self._write.do(Act("open", ()))
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Close the store."""
        if self._pid != os.getpid():
            return
        self._pid = None
        await (asyncio.to_thread(self._close) if not self._inline else _at_once(self._close))

    def _close(self) -> None:
        for reader in self._reads.values():
            reader.close()
        self._write.close()
        self._writer.close()
        self._liveness.close()
        if self._pid is None:  # Otherwise somebody has opened it again.
            forking.forget(self)
        self._clock.close()

    def _reader(self, name: str) -> BatchThread[Look]:
        """Make a thread with its own read-only connection."""
        connection: list[sqlite3.Connection] = []

        def run(tickets: Sequence[Ticket[Look]]) -> None:
            for ticket in tickets:
                try:
                    with translated_errors(self.path):
                        self._writer.check_lost()
                        if not connection:
                            connection.append(self._writer.read_only())
                        try:
                            ticket.answer = ticket.work(connection[0])
                        except sqlite3.OperationalError as error:
                            if not reads_raw(error, connection[0]):
                                raise
                            ticket.answer = ticket.work(connection[0])
                except BaseException as error:
                    ticket.error = error

        def done() -> None:
            with suppress(IndexError):  # A fork can happen while the store is being closed.
                self._writer.put_away(connection.pop())

        return BatchThread(f"the {name} of {self.path}", run, inline=self._inline, done=done)

    async def check_files(self) -> None:
        """Raise StoreLost if somebody removed the files that this process has open. This runs on the writer's thread,
        which can restore a removed log. A database that was moved away may come back: until then, only writes are
        refused.
        """
        if self._writer.is_lost():
            await self._do("open")

    def last_loss(self) -> Loss | None:
        """The files that a process of this store last found missing, for those who check later."""
        return read_loss(self._folder)

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

    def _admit(
        self, asks: Sequence[Ask], steps: Sequence[Step]
    ) -> Awaitable[tuple[list[Admission | Conflict], list[Recorded | Conflict]]]:
        return self._do("admit" if steps else PERMITS, asks, steps)

    async def _transact(self, step: Step, body: Body) -> Recorded | Conflict:
        """Let the writer wait for the body, for `LIMIT_SECONDS` at most."""
        if self._inline:
            raise Invalid(f"step {step.name}: transactional steps need threads, which this store runs without")
        hold = HeldTransaction(step, threading.Event())
        return await hold.run_body(body, self._do(HOLD, hold))

    async def _prune(self, limit: int) -> int:
        """Prune jobs, and remove the files of dead workers."""
        answer: int = await self._do("prune", limit)
        await self._look("look", self._tidy)
        return answer

    async def empty(self) -> None:
        """Remove all jobs."""
        await self._do("empty")

    def _put_record(
        self, name: str, value: str | None, expected: int | None, jobs: Sequence[Job]
    ) -> Awaitable[Record | Conflict]:
        return self._do("put_record", name, value, expected, jobs)

    def _load(self, wholes: Sequence[Whole], keys: Sequence[HeldKey], records: Sequence[Record]) -> Awaitable[int]:
        return self._do("load", wholes, keys, records)

    # Reading.

    def _look(self, reader: str, look: Callable[[sqlite3.Connection], T]) -> Coroutine[Any, Any, T]:
        self._check_open()
        return self._reads[reader].do(look)

    async def now(self) -> Time:
        """Read the clock that all processes of this store share."""
        return self._clock()

    def _get(self, ids: list[str]) -> Awaitable[Mapping[str, Job]]:
        params = {"ids": msgspec.json.encode(ids).decode()}
        return self._look("look", lambda db: {row[1]: job_of(row) for row in db.execute(SQL.get, params)})

    def _find(self, where: Where, after: str, limit: int) -> Awaitable[list[Job]]:
        return self._look("walk", lambda db: reads.find(db, where, after, limit))

    async def _search(self, where: Where, after: str, limit: int) -> Page:
        return await self._look("walk", lambda db: reads.search(db, where, after, limit))

    def _in_order(self, after: str, limit: int) -> Awaitable[list[Job]]:
        return self._look("walk", lambda db: reads.in_order(db, after, limit))

    async def _wholes(self, jobs: Sequence[Job]) -> list[Whole]:
        return await self._look("walk", lambda db: reads.wholes(db, jobs))

    def _keys(self, after: tuple[str, str], limit: int) -> Awaitable[list[HeldKey]]:
        params = {"type": after[0], "key": after[1], "limit": limit}
        return self._look("walk", lambda db: [HeldKey(*row) for row in db.execute(SQL.keys, params)])

    async def all_records(self) -> list[Record]:
        """List all records, including removed ones."""
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

    async def _steps_under(self, jobs: list[str], prefix: str, state: StepState | None) -> list[Step]:
        return await self._look("look", lambda db: reads.steps_under(db, jobs, prefix, state))

    async def _steps_page(self, job: str, after: str, limit: int) -> list[StepHead]:
        return await self._look("walk", lambda db: reads.steps_page(db, job, after, limit))

    async def _summaries(self, jobs: list[str]) -> Mapping[str, StepSummary]:
        return await self._look("look", lambda db: reads.summaries(db, jobs))

    def _history(self, job: str, after: int, limit: int) -> Awaitable[list[Entry]]:
        params = {"job": job, "after": after, "limit": limit}
        return self._look("walk", lambda db: [entry_of(row) for row in db.execute(SQL.history, params)])

    def _missing(self, parent: str, group: str) -> Awaitable[int]:
        params = {"parent": parent, "name": group}
        return self._look("look", lambda db: int(db.execute(SQL.missing, params).fetchone()[0]))

    def _holders(self, names: list[tuple[str, str]]) -> Awaitable[Mapping[tuple[str, str], HeldKey]]:
        return self._look("look", lambda db: reads.holders(db, names))

    def _usage(self, limit: str) -> Awaitable[list[Usage]]:
        return self._look("look", lambda db: LimitRows(db, SQL, set()).usage(limit, self._clock()))

    def _records(self, prefix: str) -> Awaitable[list[Record]]:
        def look(db: sqlite3.Connection) -> list[Record]:
            found = [Record(*row) for row in db.execute(SQL.records, {"prefix": prefix})]
            if prefix.startswith(WORKER) or WORKER.startswith(prefix):
                found += worker_records(self._liveness.presences(), prefix)
            return sorted(found, key=lambda record: record.name)

        return self._look("look", look)

    async def _beat(self, presence: Presence) -> Beat:
        """Write the heartbeat to the worker's own file, not to the database."""
        await self.check_files()
        self._clock.share(create=True)
        now = self._clock()

        def look(db: sqlite3.Connection) -> Beat:
            if presence.leaving:
                self._liveness.leave(presence.worker)
            else:
                self._liveness.beat(msgspec.structs.replace(presence, beat_at=now))
            return reads.beat(db, presence, now)

        return await self._look("beat", look)

    def _tidy(self, db: sqlite3.Connection) -> None:
        """Remove the files of dead workers once all their jobs are rescued."""
        holders = {row[0] for row in db.execute(SQL.holders)}
        self._liveness.forget([p.worker for p in self._liveness.presences() if p.gone and p.worker not in holders])

    # Waking.

    async def _wait(self, topics: list[str], timeout: float, after: int) -> int:
        self._check_open()
        await self.check_files()
        try:
            if self._liveness.listen():
                return after  # Wake-ups from before we listened are lost: check once more.
        except OSError:
            timeout = min(timeout, DEAF_POLL_SECONDS)
        queues = queues_of(topics)
        if queues:
            now = self._clock()
            due = await self._look("look", lambda db: reads.next_due(db, queues, now))
            timeout = until_due(due, now, timeout)
        return await self._wakeups.wait(topics, timeout, after)

    # Forks. SQLite remembers in memory which locks its process holds, and a fork copies that memory: the child believes
    # that it holds its parent's locks, and writes without any. So no connection is open while the process forks.

    def give_way(self) -> None:
        """Cancel what a fork can't wait for."""
        self._writer.give_way()

    def hold_up(self) -> None:
        """Wait until every thread has finished its batch, and close all connections."""
        for lock in (self._write.gate, *(reader.gate for reader in self._reads.values()), self._liveness.lock):
            forking.take(lock)
            self._taken.append(lock)
        for reader in self._reads.values():
            reader.done()
        self._writer.close()

    def go_on(self) -> None:
        """Let everybody continue: a connection is opened when somebody needs it."""
        while self._taken:
            self._taken.pop().release()

    def leave_behind(self) -> None:
        """Leave the parent's sockets and files alone, and start over."""
        self._taken.clear()
        self._liveness.forked()
        self._wakeups = Wakeups()
        self._liveness = Liveness(self._folder, self._wakeups.ring)
        self._clock.leave_behind()
        self._opening = threading.Lock()

    def _check_open(self) -> None:
        if self._pid != os.getpid():
            raise not_open(self.path, is_forked=self._pid is not None)


async def _at_once(call: Callable[[], None]) -> None:
    call()
