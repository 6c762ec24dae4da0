"""The one long-lived connection: it sends heartbeats, proves that this process's workers live, and receives wake-ups.

A worker's proof of life is a shared advisory lock, which ends with the connection. Wake-ups are notifications, sent
separately after the commit; those that come up meanwhile share one. Without them (behind a pooler) everything works by
polling. Must not run anything that can block, nor write a job.
"""

import asyncio
import hashlib
import secrets
import time
import zlib
from collections.abc import Callable, Collection
from types import SimpleNamespace
from typing import Any

import msgspec

from holdfast.core.errors import StoreError
from holdfast.core.model import Beat, Presence, Time
from holdfast.core.unreadable import presence_of
from holdfast.engines.liveness import ALWAYS, beat_answer, beat_records, is_excused, is_suspect
from holdfast.engines.loop_thread import LoopThread, endless
from holdfast.engines.postgres.pool import Pool
from holdfast.engines.postgres.rows import columns
from holdfast.engines.postgres.store import Connection, close, connect, is_broken, socket_of, translate_error
from holdfast.engines.postgres.url import StoreUrl
from holdfast.engines.server import come_back
from holdfast.engines.topics import is_job_topic
from holdfast.engines.wakeups import EVERYTHING
from holdfast.safe_text import logger

log = logger("holdfast.postgres")

BEAT_SECONDS = 10.0
"""How long a heartbeat may take before its connection is closed."""

NOTIFY_SECONDS, BUSY_SECONDS = 0.02, 0.1
"""How long a process waits after it has notified a channel, because the server delivers notifications one after
another and wakes every listener for each. After many topics it waits longer: a process that ends thousands of jobs is
in no hurry.
"""

MUCH = 50
"""More topics than this count as many."""

PAYLOAD_TOPICS, PAYLOADS = 900, 10
"""How many topics fit into one notification, which the server limits to 8,000 bytes, and how many notifications are
sent at once. More topics than that are sent as "everything".
"""

_TOPIC_SIZE = 8


def short(topic: str) -> str:
    """The short form of a topic, which is sent and waited for. A collision only wakes somebody early."""
    if topic == EVERYTHING:
        return topic
    return f"{zlib.crc32(topic.encode(errors='replace')):08x}"


class Liveness:
    """The long-lived connection and everything that depends on it. Lives on the engine's own loop."""

    def __init__(
        self,
        loop_thread: LoopThread,
        url: StoreUrl,
        sql: SimpleNamespace,
        pool: Pool,
        heard: Callable[[Collection[str]], None],
    ) -> None:
        self._loop_thread = loop_thread
        self._url = url
        self._sql = sql
        self._pool = pool
        self._heard = heard
        # Jobs have their own channel: otherwise every worker would be woken for every job that another one ends.
        self._channel = f"holdfast_{url.schema}"
        self._jobs = f"holdfast_{url.schema}:jobs"
        self._me = secrets.token_hex(4)
        self._db: Connection | None = None
        self._since = 0.0
        self._remade = False
        self._connecting = asyncio.Lock()
        self._busy = asyncio.Lock()
        self._workers: dict[str, int] = {}
        self._held: set[str] = set()
        self._seen: set[str] = set()
        self._unsaid: dict[str, set[str]] = {self._channel: set(), self._jobs: set()}
        self._telling: set[str] = set()
        self._wants: set[str] = set()
        self._closed = False
        self._hears: frozenset[str] = frozenset()
        """The channels on which we receive notifications of other processes. Read from every thread."""

    # The connection.

    async def _connected(self) -> Connection:
        async with self._connecting:
            if self._db is not None and not self._db.is_closed():
                return self._db
            self._hears = frozenset()
            db = await connect(self._url)
            try:
                self._held.clear()
                self._seen.clear()
                for worker in self._workers:
                    await self._sign(db, worker)
                if not self._url.pooled:
                    await self._subscribe(db)
            except BaseException as error:
                self._hears = frozenset()
                db.terminate()
                raise translate_error(error, self._url) from error
            self._remade = self._db is not None
            self._db = db
            self._since = time.monotonic()
            db.add_termination_listener(self._lost)
            return db

    async def _subscribe(self, db: Connection) -> None:
        for channel in self._wants - self._hears:
            await db.add_listener(channel, self._hear)
            self._hears |= {channel}

    def _lost(self, db: Any) -> None:
        """The connection is gone: listen again as soon as possible, so that nobody misses a wake-up."""
        if db is not self._db:
            return
        self._hears = frozenset()
        if not self._closed and (self._wants or self._workers):
            self._loop_thread.spawn(endless(self._come_back()))

    async def _come_back(self) -> None:
        if await come_back(self._connected, lambda: self._closed, lambda error: log.warning("%s", error)):
            self._heard([EVERYTHING])

    async def close(self) -> None:
        """Close the connection, and with it end all proofs of life."""
        self._closed = True
        db, self._db = self._db, None
        if db is not None:
            await close(db)

    def sockets(self) -> list[Any]:
        """The sockets that a forked child must close: while one is open anywhere, our workers look alive."""
        socket = None if self._db is None else socket_of(self._db)
        return [] if socket is None else [socket]

    # Notifications.

    def hears(self, topics: Collection[str]) -> bool:
        """Whether we receive notifications about these topics. From every thread."""
        return self._hears.issuperset(self._channels(topics))

    def _channels(self, topics: Collection[str]) -> set[str]:
        return {self._channel, self._jobs} if any(map(is_job_topic, topics)) else {self._channel}

    async def listen(self, topics: Collection[str]) -> None:
        """Start to receive other processes' notifications about these topics, while the connection is wanted."""
        self._wants |= self._channels(topics)
        db = await self._connected()
        if self._hears >= self._wants:
            return
        async with self._busy:
            try:
                async with asyncio.timeout(BEAT_SECONDS):  # heartbeats wait for us meanwhile
                    await self._subscribe(db)
            except BaseException as error:
                if is_broken(error):
                    db.terminate()
                raise translate_error(error, self._url) from error

    def _hear(self, db: object, pid: int, channel: str, payload: object) -> None:
        sender, _, topics = str(payload).partition(" ")
        if sender == self._me:
            return
        if topics == EVERYTHING:
            self._heard([EVERYTHING])
        else:
            self._heard([topics[at : at + _TOPIC_SIZE] for at in range(0, len(topics), _TOPIC_SIZE)])

    def ring(self, topics: Collection[str]) -> tuple[list[str], list[str]]:
        """Wake local waiters; return the short topics of jobs, and the others."""
        jobs = [short(topic) for topic in topics if is_job_topic(topic)]
        others = [short(topic) for topic in topics if not is_job_topic(topic)]
        self._heard([*jobs, *others])
        return jobs, others

    def tell(self, topics: Collection[str]) -> None:
        """Wake local waiters at once, and notify other processes soon. On the engine's own loop, after the commit."""
        jobs, others = self.ring(topics)
        if self._url.pooled or self._closed:
            return
        for channel, news in ((self._jobs, jobs), (self._channel, others)):
            self._unsaid[channel].update(news)
            if news and channel not in self._telling:
                self._telling.add(channel)
                self._loop_thread.spawn(self._tell(channel))

    async def _tell(self, channel: str) -> None:
        try:
            while news := self._unsaid[channel]:
                began = time.monotonic()
                self._unsaid[channel] = set()
                given = columns([(channel, payload) for payload in self._payloads(news)], 2)
                try:
                    await self._pool.act(lambda db, given=given: db.execute(self._sql.notify, *given))  # type: ignore[misc]
                except Exception as error:  # a lost one costs time, never correctness
                    log.debug("can't send notifications: %s", error)
                if not self._closed:
                    pause = BUSY_SECONDS if len(news) > MUCH else NOTIFY_SECONDS
                    await asyncio.sleep(max(0.0, began + pause - time.monotonic()))
        finally:
            self._telling.discard(channel)

    def _payloads(self, news: set[str]) -> list[str]:
        if EVERYTHING in news or len(news) > PAYLOAD_TOPICS * PAYLOADS:
            return [f"{self._me} {EVERYTHING}"]
        topics = list(news)
        parts = [topics[at : at + PAYLOAD_TOPICS] for at in range(0, len(topics), PAYLOAD_TOPICS)]
        return [f"{self._me} {''.join(part)}" for part in parts]

    # Workers.

    async def beat(self, presence: Presence) -> Beat:
        """Store a heartbeat and answer it: one statement for all jobs of a worker."""
        worker = presence.worker
        named = list({running.job: None for running in presence.running})
        asked = beat_records(presence)
        async with self._busy:
            try:
                async with asyncio.timeout(BEAT_SECONDS):
                    if presence.leaving:
                        db = await self._connected()
                        found = await db.fetch(self._sql.leave, worker, named, asked)
                        await self._unsign(db, worker)
                    else:
                        self._workers.setdefault(worker, _lock_of(self._url.schema, worker))
                        db = await self._connected()
                        await self._sign(db, worker)
                        lock = None if self._url.pooled else self._workers[worker]
                        text = msgspec.json.encode(presence).decode()
                        pace = (presence.beat_ms, presence.lease_ms)
                        found = await db.fetch(self._sql.beat, worker, text, *pace, lock, named, asked)
            except BaseException as error:
                if is_broken(error) and self._db is not None:
                    self._db.terminate()
                raise translate_error(error, self._url) from error
        return _answer(presence, found)

    async def _sign(self, db: Connection, worker: str) -> None:
        if not self._url.pooled and worker not in self._held:
            await db.fetchval(self._sql.lock, self._workers[worker])
            self._held.add(worker)

    async def _unsign(self, db: Connection, worker: str) -> None:
        lock = self._workers.pop(worker, None)
        if lock is not None and worker in self._held:
            self._held.discard(worker)
            await db.fetchval(self._sql.unlock, lock)

    def presences(self, found: Collection[Any]) -> list[Presence]:
        """The workers in these rows. A suspect worker whose proof of life is gone is marked as gone."""
        seen: list[Presence] = []
        connected = self._db is not None and not self._db.is_closed()
        watched_ms = (time.monotonic() - self._since) * 1_000 if connected else 0.0
        was_lost = self._remade or (self._db is not None and not connected)
        for worker, text, beat_at, beat_ms, lease_ms, signs, signed, now, up_ms in found:
            if signed and connected:
                self._seen.add(worker)
            steady_ms = min(up_ms, watched_ms if was_lost else ALWAYS)
            one = msgspec.structs.replace(presence_of(text, worker), beat_at=beat_at)
            if one.unreadable:
                one = msgspec.structs.replace(one, beat_ms=beat_ms, lease_ms=lease_ms)
            # A process that only reads has no long-lived connection, so it hasn't lost one.
            sees = connected or self._db is None
            missing = sees and signs and not signed and worker not in self._workers
            gone = missing and is_suspect(one, now, watched_ms, steady_ms, shown=worker in self._seen)
            away = is_excused(one, now, steady_ms)
            seen.append(msgspec.structs.replace(one, gone=gone, store_away=away))
        return seen


def _answer(presence: Presence, found: Collection[Any]) -> Beat:
    held: dict[str, int] = {}
    cancelled: set[str] = set()
    records: set[str] = set()
    now: Time = 0
    for what, name, number in found:
        match what:
            case "now":
                now = number
            case "held":
                held[name] = number
            case "cancelled":
                cancelled.add(name)
            case _:
                records.add(name)
    if not now:
        raise StoreError("the server did not answer a heartbeat")
    return beat_answer(presence, now, held, cancelled, records)


def _lock_of(schema: str, worker: str) -> int:
    digest = hashlib.blake2b(f"holdfast {schema} {worker}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, signed=True)
