"""The Redis engine: the contract, on a server that many machines share.

Must not contain what an act does (`lua/`), how writes are batched (`write_batches`), or reads (`reads`). Everything
runs on the engine's own thread (`loop_thread`), so that it can be used from every loop and thread. Only a single insert
uses a shortcut (`direct`).
"""

import asyncio
import os
import secrets
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from redis.exceptions import RedisError

from holdfast import forking
from holdfast.core.errors import StoreError
from holdfast.core.fairness import types_name
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
from holdfast.core.moves import HeldKey, Whole
from holdfast.core.shared_limits import LIMIT
from holdfast.engines.batch_thread import Ticket
from holdfast.engines.contract import PROMOTE_LIMIT, Clock, Guarantees
from holdfast.engines.liveness import TIDY_SECONDS, is_past
from holdfast.engines.loop_thread import BatchQueue, LoopThread
from holdfast.engines.redis import moves, rows
from holdfast.engines.redis.connection import Way, Wire
from holdfast.engines.redis.direct import Direct
from holdfast.engines.redis.liveness import News, beat_of, beat_words
from holdfast.engines.redis.reads import PAGE, Reads
from holdfast.engines.redis.store import Health, Store, check_server, health_of, translate_error
from holdfast.engines.redis.url import StoreUrl, parse_url, with_app
from holdfast.engines.redis.write_batches import WriteBatches
from holdfast.engines.refusals import not_open
from holdfast.engines.server import DEAF_POLL_SECONDS, ServerClock
from holdfast.engines.topics import queues_of, until_due
from holdfast.engines.traits import Emptyable, Movable
from holdfast.engines.wakeups import Wakeups

T = TypeVar("T")

DUE_SECONDS = 0.05
"""How long the next due time that a claim returned can be used by the wait after it."""

PRUNE_PAGE = 100
"""How many jobs one call of the prune script removes: it blocks the server for a millisecond or two."""

ROUNDS = 200
"""How many calls one act may take; a bound that is never reached."""

DEALING_ROUNDS = 100_000
"""How many calls of one claim may sort the ready jobs of an old store: enough for twenty million jobs."""

RECHECKED_AT_ONCE = 200
"""How many keys of a changed limit one call lets claims look at."""

SCRATCH = "holdfast-scratch-"
"""The prefix of the apps of tests."""

SCRAP_PAGE = 500

KEPT_KEYS = ("store", "d", "dv", "dn", "w")
"""The keys of an emptied store: what it is, its records, its workers (see `lua/store.lua`)."""


class RedisEngine(Reads, Movable, Emptyable, forking.Forkable):
    """Jobs on a Redis or Valkey server, shared by many machines."""

    guarantees = Guarantees(
        name="redis",
        url="redis://host:6379/0",
        use="many machines, short history",
        durable="a killed process",
        processes="many machines",
        wakes="many machines",
        atomic_children=True,
        clock="the server's",
        limit="the server's memory; a power cut loses what its appendonly file had not got, about a second",
    )
    insert_at_once = 40
    inserts_in_order = False  # a direct insert may overtake another one, or be overtaken
    look_seconds = 1.6
    may_block = True

    def __init__(self, url: str) -> None:
        self._url: StoreUrl = parse_url(url)
        self._wakeups = Wakeups()
        self._opening = threading.Lock()
        self._pid: int | None = None
        self._loop_thread: LoopThread
        self._store: Store
        self._acts: Wire
        self._looks: Wire
        self._beats: Wire
        self._news: News
        self._direct: Direct
        self._batches: WriteBatches
        self._queues: dict[str, BatchQueue]
        self._reset()
        forking.watch(self)

    def _reset(self) -> None:
        self._clock = ServerClock()
        self._due: tuple[tuple[str, ...], Time | None, float] = ((), None, -DUE_SECONDS)
        self._tidied_at = -TIDY_SECONDS

    @classmethod
    def from_url(cls, url: str, clock: Clock) -> "RedisEngine":
        """Make the engine of a store's URL. It uses the server's clock."""
        return cls(url)

    @classmethod
    def scratch(cls, url: str, folder: Path) -> str:
        """Name an empty store for a test: its own app."""
        return with_app(url, f"{SCRATCH}{secrets.token_hex(6)}")

    @classmethod
    async def scrap(cls, url: str) -> None:
        """Remove a test's store."""
        store = parse_url(url)
        if not store.app.startswith(SCRATCH):
            return

        async with _unopened(store) as wire:
            await wire.call("EXISTS", f"{store.tag}:store")  # a cluster redirects us to the node that has it
            cursor: Any = b"0"
            while True:
                cursor, keys = await wire.call("SCAN", cursor, "MATCH", f"{store.tag}:*", "COUNT", SCRAP_PAGE)
                if keys:
                    await wire.call("UNLINK", *keys)
                if cursor == b"0":
                    break

    async def shift_clock(self, milliseconds: int) -> bool:
        """Move the clock of a test's store, and never of another one; False if that isn't possible."""
        if not self._url.app.startswith(SCRATCH):
            return False
        await self._read("HINCRBY", self._key("store"), "shift", milliseconds)
        self._clock.forget()
        return True

    # Opening and closing.

    async def is_there(self) -> bool:
        """Whether the store exists."""
        async with _unopened(self._url) as wire:
            return bool(await wire.call("EXISTS", self._key("store")))

    async def open(self) -> None:
        """Make the store ready."""
        with self._opening:
            if self._pid != os.getpid():
                self._start()
        try:
            await self._call(lambda: check_server(self._looks, self._url))
        except BaseException:
            await self.close()
            raise

    def _start(self) -> None:
        self._wakeups = Wakeups()
        self._reset()
        url = self._url
        self._loop_thread = loop_thread = LoopThread(url.shown, "holdfast-redis")
        self._store = store = Store(url)
        way = Way(url)
        self._acts, self._looks, self._beats = wires = [Wire(url, way, store.greet) for _ in range(3)]
        self._news = news = News(loop_thread, url, way, store, self._wakeups.ring)
        loop_thread.sockets = lambda: [*news.sockets(), *(socket for wire in wires for socket in wire.sockets())]
        self._direct = direct = Direct(url, way, store)
        self._batches = WriteBatches(
            loop_thread, url, lambda name, *words: self._script(self._acts, name, *words), self._run_claim, direct
        )
        self._queues = {
            "claim": BatchQueue(loop_thread, self._run_each, limit=1),
            "look": BatchQueue(loop_thread, self._run_each, at_once=8, limit=1),
            "beat": BatchQueue(loop_thread, self._run_each, at_once=100, limit=1),
        }
        self._pid = os.getpid()

    async def close(self) -> None:
        """Close the store and release everything."""
        with self._opening:
            if self._pid != os.getpid():
                return
            self._pid = None
        self._direct.close()

        async def last() -> None:
            await self._news.close()
            for wire in (self._acts, self._looks, self._beats):
                await wire.close()

        await asyncio.to_thread(self._loop_thread.close, last)

    def leave_behind(self) -> None:
        """Drop the parent's lock; the loop's thread closes the connections."""
        self._opening = threading.Lock()

    def _check_open(self) -> None:
        if self._pid != os.getpid():
            raise not_open(self._url.shown, is_forked=self._pid is not None)
        if self._store.lost is not None:
            raise self._store.lost

    # Calls to the server.

    def _do(self, kind: str, work: Callable[[], Awaitable[Any]]) -> Awaitable[Any]:
        self._check_open()
        return self._queues[kind].do(work)

    def _writing(self) -> WriteBatches:
        self._check_open()
        return self._batches

    async def _call(self, work: Callable[[], Awaitable[T]]) -> T:
        answer: T = await self._do("look", work)
        return answer

    async def _run_each(self, tickets: Sequence[Ticket[Any]]) -> None:
        for ticket in tickets:
            try:
                ticket.answer = await ticket.work()
            except (RedisError, OSError, TimeoutError) as error:
                ticket.error = translate_error(error, self._url)
            except Exception as error:
                ticket.error = error

    # Writing.

    def _insert(self, jobs: Sequence[Job], parent: Lease | None) -> Awaitable[list[Inserted]]:
        return self._writing().insert(jobs, parent)

    def _claim(self, worker: str, queues: list[str], limit: int, types: list[str] | None) -> Awaitable[list[Job]]:
        return self._do("claim", lambda: self._run_claim(worker, queues, limit, types))

    async def _run_claim(self, worker: str, queues: list[str], limit: int, types: Sequence[str] | None) -> list[Job]:
        """Claim in one call, or in several if more is due or wanted than one call handles, or an old store is
        converted.
        """
        jobs: list[Job] = []
        asked, may = tuple(queues), [PROMOTE_LIMIT] * len(queues)
        known: tuple[Any, ...] = (types_name(types), *((-1,) if types is None else (len(types), *types)))
        rounds = dealing = 0
        while rounds < ROUNDS and dealing < DEALING_ROUNDS:
            words = [word for pair in zip(queues, may, strict=True) for word in pair]
            answer = await self._script(self._acts, "claim", worker, limit - len(jobs), PAGE, *known, *words)
            now, due, place, promoted, *found = answer
            self._clock.note(now)
            jobs += map(rows.job_of, found)
            if not place:
                if not jobs:
                    self._due = (asked, rows.score(due), time.monotonic())
                break
            queues, may = queues[place - 1 :], may[place - 1 :]
            may[0] -= promoted
            if promoted:
                rounds += 1
            else:
                dealing += 1
        return jobs

    def _commit(self, changes: Sequence[Change]) -> Awaitable[list[Applied | Conflict]]:
        return self._writing().commit(changes)

    async def _turn(
        self, changes: Sequence[Change], worker: str, queues: list[str], limit: int, types: list[str] | None
    ) -> tuple[list[Applied | Conflict], list[Job]]:
        """Commit and claim in one round trip."""
        return await self._writing().turn(changes, worker, queues, limit, types)

    def _record(self, steps: Sequence[Step]) -> Awaitable[list[Recorded | Conflict]]:
        return self._writing().record(steps)

    def _admit(
        self, asks: Sequence[Ask], steps: Sequence[Step]
    ) -> Awaitable[tuple[list[Admission | Conflict], list[Recorded | Conflict]]]:
        return self._writing().admit(asks, steps)

    async def _put_record(
        self, name: str, value: str | None, expected: int | None, jobs: Sequence[Job]
    ) -> Record | Conflict:
        words = [name, int(value is not None), value or "", "" if expected is None else expected, RECHECKED_AT_ONCE]
        new = [rows.pack(rows.job_row(job)) for job in jobs]
        done, version, *more = await self._look("put_with_jobs" if new else "put_record", *words, *new)
        if not done:
            return Conflict(name, OUTRUN, version=version)
        now, after = more
        while after is not None:
            [after] = await self._look("recheck", name.removeprefix(LIMIT), after, RECHECKED_AT_ONCE)
        return Record(name, value or "", version, now)

    async def _prune(self, limit: int) -> int:
        """Prune, and clean up: expired keys, the status of dead workers."""
        gone = 0
        parts = [min(PRUNE_PAGE, limit)]  # usually there is nothing to prune
        for _ in range(ROUNDS):
            # All parts at once, so that they wait for one sync together. Each is a separate act.
            answers = await asyncio.gather(*(self._look("prune", part, PRUNE_PAGE) for part in parts))
            gone += sum(pruned for pruned, _ in answers)
            if not answers[-1][1] or gone >= limit:
                break
            parts = [min(PRUNE_PAGE, limit - gone - at) for at in range(0, limit - gone, PRUNE_PAGE)]
        now = time.monotonic()
        if now - self._tidied_at > TIDY_SECONDS:
            self._tidied_at = now
            await self._forget_workers()
        return gone

    async def empty(self) -> None:
        """Remove all keys but those of the store itself, its records and its workers."""
        kept = {f"{self._url.tag}:{name}".encode() for name in KEPT_KEYS}
        cursor: Any = b"0"
        while True:
            cursor, keys = await self._read("SCAN", cursor, "MATCH", f"{self._url.tag}:*", "COUNT", SCRAP_PAGE)
            if gone := [key for key in keys if key not in kept]:
                await self._read("UNLINK", *gone)
            if cursor == b"0":
                return

    async def _forget_workers(self) -> None:
        now, present = await self._presences()
        old = [one for one in present if is_past(one, now)]
        if old:
            await self._look("forget", *(word for one in old for word in (one.worker, one.beat_at)))

    # Moving.

    def _in_order(self, after: str, limit: int) -> Awaitable[list[Job]]:
        return moves.in_order(self._look, after, limit)

    async def _wholes(self, jobs: Sequence[Job]) -> list[Whole]:
        found = await moves.wholes(self._look, jobs)
        return [await self._whole(job) if whole is None else whole for job, whole in zip(jobs, found, strict=True)]

    def _keys(self, after: tuple[str, str], limit: int) -> Awaitable[list[HeldKey]]:
        return moves.keys(self._look, after, limit)

    async def all_records(self) -> list[Record]:
        """List all records, including removed ones."""
        return await moves.all_records(self._look)

    def _load(self, wholes: Sequence[Whole], keys: Sequence[HeldKey], records: Sequence[Record]) -> Awaitable[int]:
        """Load each job completely in one act. If one call isn't enough, jobs are loaded one after the other."""
        return moves.load(self._look, wholes, keys, records)

    # The clock, heartbeats and waking.

    async def now(self) -> Time:
        """Read the store's clock."""
        self._check_open()
        return await self._clock.now(self._ask_clock)

    async def health(self) -> Health:
        """Return the server's health, for its operator."""
        return await self._call(lambda: health_of(self._looks))

    async def _ask_clock(self) -> Time:
        [now] = await self._look("door")
        return int(now)

    async def _beat(self, presence: Presence) -> Beat:
        """Send the heartbeat on its own connection, which is the worker's proof of life."""

        async def beat() -> Beat:
            wire = self._beats
            await wire.connected()
            return beat_of(presence, await self._script(wire, "beat", *beat_words(presence, wire)))

        answer: Beat = await self._do("beat", beat)
        self._clock.note(answer.now)
        return answer

    async def _wait(self, topics: list[str], timeout: float, after: int) -> int:
        self._check_open()
        if not self._news.hears.issuperset(topics):
            try:
                await self._call(lambda: self._news.listen(topics))
                return after  # earlier notifications were missed: check once more
            except StoreError:
                timeout = min(timeout, DEAF_POLL_SECONDS)
        queues = queues_of(topics)
        if queues and timeout > 0:
            now, due = await self._next_due(queues)
            timeout = until_due(due, now, timeout)
        return await self._wakeups.wait(topics, timeout, after)

    async def _next_due(self, queues: list[str]) -> tuple[Time, Time | None]:
        asked, due, at = self._due
        if asked == tuple(queues) and time.monotonic() - at < DUE_SECONDS:
            return await self.now(), due
        now, found = await self._look("due", *queues)
        return now, rows.score(found)


@asynccontextmanager
async def _unopened(url: StoreUrl) -> AsyncIterator[Wire]:
    """Return a connection without a greeting, so that it creates no store."""

    async def say_nothing(wire: Wire) -> None:
        return

    wire = Wire(url, Way(url), say_nothing)
    try:
        yield wire
    except (RedisError, OSError, TimeoutError) as error:
        raise translate_error(error, url) from error
    finally:
        await wire.close()
