"""Wake-ups inside one process, across its threads and event loops. Must not know jobs or stores."""

import asyncio
import threading
from collections.abc import Collection, Iterable
from typing import Any

EVERYTHING = "*"
"""A topic that wakes everybody, if too much happened to name every topic."""

MEMORY_LIMIT = 4_096
"""At least this many topics are remembered for later waiters. A waiter that asks for older ones wakes early."""


class Wakeups:
    """Wakes waiters on any loop by topic. Safe from every thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._mark = 1
        self._rung: dict[str, int] = {}
        self._rung_before: dict[str, int] = {}
        self._before = 0
        """The mark up to which topics are in `_rung_before`, which is dropped as a whole."""
        self._forgotten = 0
        self._waiting: dict[str, set[asyncio.Future[None]]] = {}

    def ring(self, topics: Iterable[str]) -> None:
        """Wake those who wait for any of these topics, and remember the topics for later waiters."""
        with self._lock:
            self._mark += 1
            rung = dict.fromkeys(topics, self._mark)
            self._rung |= rung
            heard = [topic for topic in rung if topic in self._waiting]
            if EVERYTHING in rung:
                self._forgotten = self._mark
                heard = list(self._waiting)
            woken = dict.fromkeys(future for topic in heard for future in self._waiting[topic])
            if len(self._rung) > MEMORY_LIMIT:
                self._forgotten = max(self._forgotten, self._before)
                self._rung_before, self._rung, self._before = self._rung, {}, self._mark
        for future in woken:
            try:
                future.get_loop().call_soon_threadsafe(_wake, future)
            except RuntimeError:  # its loop is closed: nobody waits there any more
                pass

    async def wait(self, topics: Collection[str], timeout: float, after: int) -> int:
        """Wait until a topic rings that had not rung at mark `after`; return the mark for the next call."""
        topics = set(topics)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        with self._lock:
            if self._forgotten > after or any(self._last(topic) > after for topic in topics):
                return self._mark
            for topic in topics:
                self._waiting.setdefault(topic, set()).add(future)
        timer = loop.call_later(timeout, _wake, future)
        try:
            await future
        finally:
            timer.cancel()
            with self._lock:
                for topic in topics:
                    self._waiting[topic].discard(future)
                    if not self._waiting[topic]:
                        del self._waiting[topic]
        return self._mark

    def _last(self, topic: str) -> int:
        return self._rung.get(topic) or self._rung_before.get(topic, 0)


def _wake(future: asyncio.Future[Any]) -> None:
    if not future.done():
        future.set_result(None)
