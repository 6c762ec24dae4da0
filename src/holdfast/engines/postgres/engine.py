"""The Postgres engine: the contract, on a database that many machines share.

Must not contain SQL (`queries.sql`), what an act does (`writes`, in `write_batches`), or reads (`reads`). Everything
runs on the engine's own thread (`loop_thread`), so that it can be used from every loop and thread.
"""

import asyncio
import os
import secrets
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from holdfast import forking
from holdfast.blobs.store import BlobStore
from holdfast.core.errors import Invalid, Moved, StoreBusy, StoreError
from holdfast.core.fairness import TURN_KEPT_MS
from holdfast.core.model import (
    OUTRUN,
    Admission,
    Applied,
    Ask,
    Beat,
    Change,
    Conflict,
    Inserted,
    Job,
    Lease,
    Presence,
    Record,
    Recorded,
    Step,
    Time,
)
from holdfast.core.moves import MOVED, HeldKey, Whole, mark_of
from holdfast.core.shared_limits import BUCKET, LIMIT
from holdfast.engines.batch_thread import Ticket
from holdfast.engines.contract import Clock, Guarantees
from holdfast.engines.liveness import TIDY_SECONDS, is_past
from holdfast.engines.loop_thread import BatchQueue, LoopThread
from holdfast.engines.postgres import rows
from holdfast.engines.postgres.blobs import TableBlobs
from holdfast.engines.postgres.caller import CallersConnection, Follower
from holdfast.engines.postgres.grouping import is_turn
from holdfast.engines.postgres.limits import forget_buckets, recheck_limit
from holdfast.engines.postgres.liveness import Liveness, short
from holdfast.engines.postgres.pool import Pool
from holdfast.engines.postgres.reads import Reads
from holdfast.engines.postgres.store import (
    Connection,
    Texts,
    drop,
    is_elsewhere,
    is_there,
    mark_told,
    prepare,
    shift,
    translate_error,
)
from holdfast.engines.postgres.transactions import Transactions
from holdfast.engines.postgres.url import StoreUrl, parse_url, with_schema
from holdfast.engines.postgres.write_batches import INSERTS_AT_ONCE, WriteBatches
from holdfast.engines.postgres.writes import Writes
from holdfast.engines.refusals import not_open
from holdfast.engines.server import DEAF_POLL_SECONDS, ServerClock
from holdfast.engines.topics import DUE_WINDOW_MS, queue_topic, queues_of, until_due
from holdfast.engines.traits import Body, Emptyable, Transactional
from holdfast.engines.wakeups import EVERYTHING, Wakeups
from holdfast.safe_text import logger

log = logger("holdfast.postgres")

T = TypeVar("T")
Look = Callable[[Connection], Awaitable[Any]]

SCRATCH = "holdfast_scratch_"
"""The prefix of the schemas of tests."""

DAYS_AHEAD, DAYS_SECONDS = 3, 3_600.0
"""For how many days ahead there are partitions, and how often to check that."""

DAYS_TABLES = 400
"""How many tables one round creates or drops at most: a hundred days."""

FOLD_ROWS = 2_000
"""How many differences the counters may consist of before they are summed up."""


class PostgresEngine(Reads, Transactional, Emptyable, forking.Forkable):
    """Jobs in a schema of a Postgres database, shared by many machines."""

    guarantees = Guarantees(
        name="postgres",
        url="postgresql://host/database",
        use="many machines; the main shared store",
        durable="a power cut",
        processes="many machines",
        wakes="many machines",
        atomic_children=True,
        clock="the server's",
        limit="what the database holds",
        transactions="all steps",
    )
    look_seconds = 1.4
    may_block = True
    inserts_in_order = False  # two may be in progress

    def __init__(self, url: str) -> None:
        self._url: StoreUrl = parse_url(url)
        self._texts = Texts(self._url.schema)
        self._sql = self._texts.sql
        self._wakeups = Wakeups()
        self._opening = threading.Lock()
        self._pid: int | None = None
        self._loop_thread: LoopThread
        self._pool: Pool
        self._liveness: Liveness
        self._follower: Follower
        self._transactions: Transactions
        self._batches: WriteBatches
        self._looks: BatchQueue
        self._beats: BatchQueue
        self._reset()
        forking.watch(self)

    def _reset(self) -> None:
        self._clock = ServerClock()
        self._days_at = -DAYS_SECONDS
        self._tidied_at = -TIDY_SECONDS

    @classmethod
    def from_url(cls, url: str, clock: Clock) -> "PostgresEngine":
        """Make the engine of a store's URL. It uses the server's clock."""
        return cls(url)

    @classmethod
    def scratch(cls, url: str, folder: Path) -> str:
        """Name an empty store for a test: its own schema."""
        return with_schema(url, f"{SCRATCH}{secrets.token_hex(6)}")

    @classmethod
    async def scrap(cls, url: str) -> None:
        """Remove a test's store."""
        store = parse_url(url)
        if store.schema.startswith(SCRATCH):
            await drop(store, Texts(store.schema))

    async def shift_clock(self, milliseconds: int) -> bool:
        """Move the clock of a test's store."""
        if not self._url.schema.startswith(SCRATCH):
            return False
        await self._look(lambda db: shift(db, self._texts, milliseconds))
        self._clock.forget()
        return True

    def own_blobs(self) -> BlobStore:
        """Keep blobs in tables of the same schema."""

        async def act(work: Look) -> Any:
            async with self._pool.connection() as db:
                try:
                    return await work(db)
                except Exception as error:
                    raise translate_error(error, self._url) from error

        def loop() -> asyncio.AbstractEventLoop:
            self._check_open()
            return self._loop_thread.loop

        return TableBlobs(self._url.shown, self._sql, act, loop)

    # Opening and closing.

    async def is_there(self) -> bool:
        """Whether the store exists."""
        return await is_there(self._url, self._texts)

    async def open(self) -> None:
        """Make the store ready."""
        with self._opening:
            if self._pid != os.getpid():
                self._start()
        try:
            await self._loop_thread.call(lambda: prepare(self._url, self._texts))
        except BaseException:
            await self.close()
            raise

    def _start(self) -> None:
        self._wakeups = Wakeups()
        self._reset()
        self._loop_thread = loop_thread = LoopThread(self._url.shown)
        self._pool = pool = Pool(self._url)
        self._liveness = liveness = Liveness(loop_thread, self._url, self._sql, pool, self._wakeups.ring)
        self._follower = Follower(loop_thread, pool, liveness, self._sql)
        self._transactions = transactions = Transactions(loop_thread, self._url, self._sql)
        loop_thread.sockets = lambda: [*pool.sockets(), *liveness.sockets(), *transactions.sockets()]
        inserts_at_once = min(INSERTS_AT_ONCE, self._url.connections - 1) or 1
        self._batches = WriteBatches(
            loop_thread, pool, liveness, self._sql, self._clock, inserts_at_once=inserts_at_once
        )
        self._looks = BatchQueue(loop_thread, self._run_looks, at_once=2, limit=1)
        self._beats = BatchQueue(loop_thread, self._run_beats, at_once=100, limit=1)
        self._pid = os.getpid()

    async def close(self) -> None:
        """Close the store and release everything."""
        with self._opening:
            if self._pid != os.getpid():
                return
            self._pid = None
        await self._loop_thread.call(self._transactions.stop)

        async def last() -> None:
            await self._liveness.close()
            await self._transactions.close()
            await self._pool.close()

        await asyncio.to_thread(self._loop_thread.close, last)

    def leave_behind(self) -> None:
        """Drop the parent's lock; the loop's thread closes the connections."""
        self._opening = threading.Lock()

    def _check_open(self) -> None:
        if self._pid is None or self._loop_thread.is_left_behind:
            raise not_open(self._url.shown, is_forked=self._pid is not None)

    def _writing(self) -> WriteBatches:
        self._check_open()
        return self._batches

    # Writing.

    def _insert(self, jobs: Sequence[Job], parent: Lease | None) -> Awaitable[list[Inserted]]:
        return self._writing().insert(jobs, parent)

    async def _insert_within(self, connection: Any, jobs: Sequence[Job]) -> list[Inserted]:
        """Insert on the caller's loop and connection. Waiters are notified after the caller's commit."""
        self._check_open()
        try:
            answers = await Writes(CallersConnection(connection), self._sql).insert_within(jobs)
        except Exception as error:
            if (mark := mark_told(error)) is not None:
                raise Moved(mark_of(mark).words()) from error
            if is_elsewhere(error):
                raise Invalid(
                    f"connection=: its database doesn't have this store; pass a connection to {self._url.shown}"
                ) from error
            raise
        topics = {job.id: queue_topic(job.queue) for job, one in zip(jobs, answers, strict=True) if one.new}
        await self._loop_thread.call(lambda: self._follower.expect(topics))
        return answers

    async def _claim(self, worker: str, queues: list[str], limit: int, types: list[str] | None) -> list[Job]:
        _, jobs = await self._writing().turn((), worker, queues, limit, types)
        return jobs

    def _commit(self, changes: Sequence[Change]) -> Awaitable[list[Applied | Conflict]]:
        return self._writing().commit(changes)

    async def _turn(
        self, changes: Sequence[Change], worker: str, queues: list[str], limit: int, types: list[str] | None
    ) -> tuple[list[Applied | Conflict], list[Job]]:
        """Commit and claim in one statement, if the changes carry no cargo."""
        if not limit or not queues or not is_turn(changes):
            return await super()._turn(changes, worker, queues, limit, types)
        return await self._writing().turn(changes, worker, queues, limit, types)

    def _record(self, steps: Sequence[Step]) -> Awaitable[list[Recorded | Conflict]]:
        return self._writing().record(steps)

    def _admit(
        self, asks: Sequence[Ask], steps: Sequence[Step]
    ) -> Awaitable[tuple[list[Admission | Conflict], list[Recorded | Conflict]]]:
        return self._writing().admit(asks, steps)

    async def _transact(self, step: Step, body: Body) -> Recorded | Conflict:
        """Run the body on the caller's loop, and its statements on the engine's own."""
        self._check_open()
        return await self._transactions.run(step, body)

    async def _put_record(
        self, name: str, value: str | None, expected: int | None, jobs: Sequence[Job]
    ) -> Record | Conflict:
        news = {EVERYTHING}

        async def write(db: Connection) -> Record | Conflict:
            row = await db.fetchrow(self._sql.put_record, name, value, expected)
            if row is None:
                return Conflict(name, OUTRUN, version=await db.fetchval(self._sql.record_version, name) or 0)
            return Record(name, value or "", row[0], row[1])

        async def mark(db: Connection) -> Record | Conflict:
            async with db.transaction():
                if await db.fetchval(self._sql.mark) is not None and value is not None:
                    return await write(db)  # the guard exists already
                await db.execute(self._sql.lock_all)
                answer = await write(db)
                if isinstance(answer, Record) and value is None:
                    await db.execute(self._sql.drop_guard)
                elif isinstance(answer, Record):
                    await db.execute(self._sql.add_guard)
                    await db.execute(self._sql.set_guard)
            return answer

        async def limit(db: Connection) -> Record | Conflict:
            async with db.transaction():
                answer = await write(db)
                if isinstance(answer, Record):
                    await recheck_limit(db, self._sql, name)
            return answer

        async def with_jobs(db: Connection) -> Record | Conflict:
            async with db.transaction():
                answer = await act(db)
                if isinstance(answer, Record):
                    await Writes(db, self._sql, news).add_new(jobs)
            return answer

        act = mark if name == MOVED else limit if name.startswith((LIMIT, BUCKET)) else write

        async def work(db: Connection) -> Record | Conflict:
            answer = await (with_jobs if jobs else act)(db)
            if isinstance(answer, Record):
                self._liveness.tell(news)
            return answer

        # Not with `_look`, which repeats a call if its connection breaks: our own first try would look like somebody
        # else's.
        self._check_open()
        return await self._loop_thread.call(lambda: self._pool.act(work))

    async def _prune(self, limit: int) -> int:
        """Prune, and clean up: counters, keys, the status of dead workers, days with nothing left."""
        [row] = await self._fetch(self._sql.prune, limit, FOLD_ROWS)
        await self._look(lambda db: forget_buckets(db, self._sql))
        if int(row[0]):
            await self._look(lambda db: db.execute(self._sql.forget_budgets))
        now = time.monotonic()
        if now - self._tidied_at > TIDY_SECONDS:
            self._tidied_at = now
            await self._look(self._forget_workers)
            await self._look(lambda db: db.execute(self._sql.forget_turns, TURN_KEPT_MS))
        if now - self._days_at > DAYS_SECONDS:
            self._days_at = now
            await self._keep_days_now()
        return int(row[0])

    async def empty(self) -> None:
        """Remove all jobs."""
        await self._look(lambda db: db.execute(self._sql.empty))

    async def _forget_workers(self, db: Connection) -> None:
        found = await db.fetch(self._sql.workers)
        seen = zip(found, self._liveness.presences(found), strict=True)
        old = [(one.worker, one.beat_at) for row, one in seen if is_past(one, row[7])]
        if old:
            await db.execute(self._sql.forget_workers, *rows.columns(old, 2))

    async def _keep_days_now(self) -> None:
        await self._loop_thread.call(self._keep_days)

    async def _keep_days(self) -> None:
        """Create the partitions of the coming days, and drop days with nothing left: one table at a time."""
        try:
            for statement, given in ((self._sql.add_day, (DAYS_AHEAD,)), (self._sql.drop_day, ())):
                for _ in range(DAYS_TABLES):
                    if not await self._pool.act(lambda db, s=statement, g=given: db.fetchval(s, *g)):  # type: ignore[misc]
                        break
            await self._pool.tidy()
        except StoreBusy:  # somebody's transaction takes long: try again later
            self._days_at = time.monotonic() - DAYS_SECONDS + TIDY_SECONDS
        except Exception as error:  # a role without the right: rows go to the default partition
            log.info("%s: could not maintain partitions:  %s", self._url.shown, error)

    # Reading.

    async def _run_looks(self, tickets: Sequence[Ticket[Any]]) -> None:
        for ticket in tickets:
            try:
                ticket.answer = await self._pool.act(ticket.work, again=True)
            except Exception as error:
                ticket.error = error

    async def _look(self, look: Callable[[Connection], Awaitable[T]]) -> T:
        self._check_open()
        answer: T = await self._looks.do(look)
        return answer

    async def now(self) -> Time:
        """Read the store's clock."""
        self._check_open()
        return await self._clock.now(self._ask_clock)

    async def _ask_clock(self) -> Time:
        [row] = await self._fetch(self._sql.now)
        return int(row[0])

    async def _load(self, wholes: Sequence[Whole], keys: Sequence[HeldKey], records: Sequence[Record]) -> int:
        async def work(db: Connection) -> int:
            new = await Writes(db, self._sql).load(wholes, keys, records)
            self._batches.note_new_jobs(new)
            return new

        return await self._look(work)

    # Heartbeats and waking.

    async def _run_beats(self, tickets: Sequence[Ticket[Any]]) -> None:
        for ticket in tickets:
            ticket.answer = await self._liveness.beat(ticket.work)

    async def _beat(self, presence: Presence) -> Beat:
        """Send the heartbeat on the long-lived connection, which waits for nobody."""
        self._check_open()
        answer: Beat = await self._beats.do(presence)
        self._clock.note(answer.now)
        return answer

    async def _wait(self, topics: list[str], timeout: float, after: int) -> int:
        self._check_open()
        if self._url.pooled:
            timeout = min(timeout, DEAF_POLL_SECONDS)
        elif not self._liveness.hears(topics):
            try:
                await self._loop_thread.call(lambda: self._liveness.listen(topics))
                return after  # earlier notifications were missed: check once more
            except StoreError:
                timeout = min(timeout, DEAF_POLL_SECONDS)
        queues = queues_of(topics)
        if queues:
            now = await self.now()
            [row] = await self._fetch(self._sql.next_due, queues, now - DUE_WINDOW_MS)
            timeout = until_due(row[0], now, timeout)
        return await self._wakeups.wait([short(topic) for topic in topics], timeout, after)
