"""The two long-lived connections: one for heartbeats, which is also the workers' liveness; one for notifications.

A worker is alive while its heartbeat's connection exists, known by the number that the server gave it. The scripts
publish notifications, each topic on its own channel, so that nobody receives topics it doesn't wait for. Must not write
a job.
"""

import asyncio
from collections.abc import Callable, Collection
from typing import Any

import msgspec
from redis.asyncio.connection import Connection
from redis.exceptions import MovedError

from holdfast.core.model import Beat, Presence, Time
from holdfast.core.unreadable import presence_of, raw_text
from holdfast.engines.checks import storable
from holdfast.engines.liveness import beat_answer, beat_records, is_excused, is_suspect
from holdfast.engines.loop_thread import LoopThread, endless
from holdfast.engines.redis.connection import Way, Wire, connect, hang_up, sockets_of
from holdfast.engines.redis.store import Store
from holdfast.engines.redis.url import StoreUrl
from holdfast.engines.server import come_back
from holdfast.engines.wakeups import EVERYTHING
from holdfast.safe_text import logger

log = logger("holdfast.redis")

TOPICS_LIMIT = 4_096
"""How many topics to listen to at once; the least recently used are dropped first."""

LISTEN_SECONDS = 10.0
"""How long the server may take to confirm a subscription."""

_beat = msgspec.msgpack.Decoder(tuple[Time, int, int, str], strict=False).decode


class News:
    """The connection that receives notifications. Lives on the engine's own loop."""

    def __init__(
        self, loop_thread: LoopThread, url: StoreUrl, way: Way, store: Store, heard: Callable[[Collection[str]], None]
    ) -> None:
        self._loop_thread, self._url, self._way, self._store = loop_thread, url, way, store
        self._heard = heard
        self._prefix = f"{url.tag}:n:"
        self._connection: Connection | None = None
        self._connecting = asyncio.Lock()
        self._topics: dict[str, asyncio.Future[None]] = {}
        self._closed = False
        self.hears: frozenset[str] | set[str] = frozenset()
        """The topics that we receive. Read from every thread, so it is replaced and never changed."""

    async def listen(self, topics: Collection[str]) -> None:
        """Receive notifications for these topics from now on."""
        async with self._connecting:
            if self._connection is None:
                await self._connect()
        noted = []
        for topic in dict.fromkeys(topics):
            one = self._topics.pop(topic, None)
            if one is None:
                one = asyncio.get_running_loop().create_future()
                noted.append(topic)
            self._topics[topic] = one
        if noted:
            await self._say("SUBSCRIBE", noted)
        await self._drop()
        async with asyncio.timeout(LISTEN_SECONDS):
            await asyncio.gather(*(asyncio.shield(self._topics[topic]) for topic in topics if topic in self._topics))

    async def _drop(self) -> None:
        over = list(self._topics)[: max(0, len(self._topics) - TOPICS_LIMIT)]
        over = [topic for topic in over if topic != EVERYTHING]
        if over:
            for topic in over:
                self._topics.pop(topic)
            self._show()
            await self._say("UNSUBSCRIBE", over)

    def _show(self) -> None:
        self.hears = {topic for topic, noted in self._topics.items() if noted.done()}

    async def _say(self, word: str, topics: Collection[str]) -> None:
        connection = self._connection
        if connection is None:
            raise ConnectionError("the connection was lost")
        sharded = "S" if self._store.sharded else ""
        channels = [self._prefix + topic for topic in topics]
        await connection.send_packed_command(connection.pack_command(sharded + word, *channels), check_health=False)

    async def _connect(self) -> None:
        self._connection = connection = await connect(self._url, self._way)
        self._topics = {EVERYTHING: asyncio.get_running_loop().create_future()}
        self._loop_thread.spawn(endless(self._read(connection)))
        await self._say("SUBSCRIBE", [EVERYTHING])

    async def _read(self, connection: Connection) -> None:
        try:
            while True:
                what, channel, *_ = await connection.read_response(disconnect_on_error=False)
                topic = channel.decode().removeprefix(self._prefix) if channel else ""
                match what:
                    case b"message" | b"smessage":
                        self._heard([topic])
                    case b"subscribe" | b"ssubscribe":
                        noted = self._topics.get(topic)
                        if noted is not None and not noted.done():
                            noted.set_result(None)
                            self._show()
                    case b"sunsubscribe" if topic in self._topics:  # the store moved to another node
                        raise ConnectionError("the store moved")
        except Exception as error:
            if isinstance(error, MovedError):
                self._way.follow(error)
            if connection is self._connection:
                self._lost(error)
        finally:
            await hang_up(connection)

    def _lost(self, error: Exception) -> None:
        """The connection is gone: subscribe again as soon as possible, so that nobody misses a notification."""
        self._connection = None
        self.hears = frozenset()
        topics, self._topics = self._topics, {}
        for noted in topics.values():
            if not noted.done():
                noted.set_exception(error)
                noted.exception()
        if not self._closed:
            self._heard([EVERYTHING])
            self._loop_thread.spawn(endless(self._come_back([topic for topic in topics if topic != EVERYTHING])))

    async def _come_back(self, topics: Collection[str]) -> None:
        def say(error: Exception) -> None:
            log.warning("%s: not receiving notifications, jobs are found by polling: %s", self._url.shown, error)

        if await come_back(lambda: self.listen(topics), lambda: self._closed or self._connection is not None, say):
            self._heard([EVERYTHING])

    async def close(self) -> None:
        """Close the connection."""
        self._closed = True
        connection, self._connection = self._connection, None
        if connection is not None:
            await hang_up(connection)

    def sockets(self) -> list[Any]:
        """The sockets that a forked child must close."""
        return sockets_of(self._connection)


def beat_words(presence: Presence, wire: Wire) -> list[Any]:
    """The arguments of the heartbeat's script."""
    named = [running.job for running in presence.running]
    head = [presence.worker, msgspec.json.encode(presence), wire.client, int(presence.leaving), len(named)]
    return [*head, *storable(named), *beat_records(presence)]


def beat_of(presence: Presence, answer: list[Any]) -> Beat:
    """The answer of the heartbeat's script."""
    now, held_words, cancelled_ids, there = answer
    held = {id.decode(): int(epoch) for id, epoch in zip(held_words[::2], held_words[1::2], strict=True)}
    cancelled = {id.decode() for id in cancelled_ids}
    records = {name.decode() for name in there}
    return beat_answer(presence, now, held, cancelled, records)


class Seen:
    """A worker by its last heartbeat. `client` is that heartbeat's connection on the server of `generation`.

    If the heartbeat can't be read at all, neither is known, nor its time: such a worker is never seen to die.
    """

    def __init__(self, worker: bytes, beat: bytes) -> None:
        name = raw_text(worker)
        try:
            at, self.client, self._generation, text = _beat(beat)
        except ValueError:
            at, self.client, self._generation, text = 0, 0, -1, ""
        self._presence = msgspec.structs.replace(presence_of(text, name), beat_at=at)

    def is_suspect(self, now: Time, generation: int, steady_ms: float) -> bool:
        """Whether a missing connection means that the worker is dead: only if its heartbeat was on this server."""
        return self._generation == generation and is_suspect(self._presence, now, steady_ms, steady_ms)

    def is_excused(self, now: Time, generation: int, steady_ms: float) -> bool:
        """Whether the store was away since its last heartbeat, which may have been on another server."""
        return self._generation != generation or is_excused(self._presence, now, steady_ms)

    def presence(self, *, gone: bool, away: bool) -> Presence:
        """The worker's status as others read it."""
        return msgspec.structs.replace(self._presence, gone=gone, store_away=away)
