"""The one connection that lasts: it beats for this process's workers, holds their signs of life, and hears the news.

A worker's sign of life is a shared advisory lock, gone with the connection. Wake-ups are notifications, told after
the commit and by themselves, what comes meanwhile in one. Without them (a pooler in between) everything works by
looking now and then. Must not run anything that can block, nor write a job.
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
"""How long a beat may take before its connection is given up."""

NOTIFY_SECONDS, BUSY_SECONDS = 0.02, 0.1
"""How long a process waits after its notifications on a channel: the server sends them one after another, for all, and
wakes every listener for each. The longer, where there was much to tell: who ends jobs by the thousand is in no hurry.
"""

MUCH = 50
"""More topics than this are much to tell."""

PAYLOAD_TOPICS, PAYLOADS = 900, 10
"""How many topics go into one notification, which the server limits to 8,000 bytes, and how many of them are sent at
once; more are told as "everything".
"""

_TOPIC_SIZE = 8


def short(topic: str) -> str:
    """A topic as it is told and waited for. Two that look the same wake somebody early, and no more."""
    if topic == EVERYTHING:
        return topic
    return f"{zlib.crc32(topic.encode(errors='replace')):08x}"


class Liveness:
    """The lasting connection and all that hangs on it. Lives on the engine's own loop."""

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
        # News of jobs have a channel of their own: else all workers would hear of every job that one of them ends.
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
        """The channels from which news of other processes come in. Read from every thread."""

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
        """The connection is gone: hear again as soon as possible, so that nobody sleeps through the news."""
        if db is not self._db:
            return
        self._hears = frozenset()
        if not self._closed and (self._wants or self._workers):
            self._loop_thread.spawn(endless(self._come_back()))

    async def _come_back(self) -> None:
        if await come_back(self._connected, lambda: self._closed, lambda error: log.warning("%s", error)):
            self._heard([EVERYTHING])

    async def close(self) -> None:
        """Let go of the connection, and with it of all signs of life."""
        self._closed = True
        db, self._db = self._db, None
        if db is not None:
            await close(db)

    def sockets(self) -> list[Any]:
        """What a forked child must let go of: while it is open anywhere, our workers look alive."""
        socket = None if self._db is None else socket_of(self._db)
        return [] if socket is None else [socket]

    # News.

    def hears(self, topics: Collection[str]) -> bool:
        """Whether news of these topics come in. From every thread."""
        return self._hears.issuperset(self._channels(topics))

    def _channels(self, topics: Collection[str]) -> set[str]:
        return {self._channel, self._jobs} if any(map(is_job_topic, topics)) else {self._channel}

    async def listen(self, topics: Collection[str]) -> None:
        """Begin to hear of other processes' news about these topics. It goes on as long as the connection is wanted."""
        self._wants |= self._channels(topics)
        db = await self._connected()
        if self._hears >= self._wants:
            return
        async with self._busy:
            try:
                async with asyncio.timeout(BEAT_SECONDS):  # beats wait for us meanwhile
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
        """Wake who waits here; the topics of jobs and the others, as they are told."""
        jobs = [short(topic) for topic in topics if is_job_topic(topic)]
        others = [short(topic) for topic in topics if not is_job_topic(topic)]
        self._heard([*jobs, *others])
        return jobs, others

    def tell(self, topics: Collection[str]) -> None:
        """Wake who waits here at once, and tell the others soon. On the engine's own loop, after the commit."""
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
                    log.debug("news were not told: %s", error)
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
        """Note a heartbeat, and answer it: one statement for all jobs of a worker."""
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
        """The workers of these rows, those among them marked as gone who are suspect and whose sign of life is gone."""
        told: list[Presence] = []
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
            # Who only looks has no lasting connection, and none that was lost.
            sees = connected or self._db is None
            missing = sees and signs and not signed and worker not in self._workers
            gone = missing and is_suspect(one, now, watched_ms, steady_ms, shown=worker in self._seen)
            away = is_excused(one, now, steady_ms)
            told.append(msgspec.structs.replace(one, gone=gone, store_away=away))
        return told


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
        raise StoreError("a beat was not answered")
    return beat_answer(presence, now, held, cancelled, records)


def _lock_of(schema: str, worker: str) -> int:
    digest = hashlib.blake2b(f"holdfast {schema} {worker}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, signed=True)
