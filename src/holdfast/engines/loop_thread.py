"""One thread with its own event loop, where all connections of an engine live, for callers on any loop.

A driver's connections belong to one event loop, but an App belongs to none. Work that callers submit while this loop is
busy is passed to it, and answers are passed back, in one go. Must not know any store.
"""

import asyncio
import atexit
import sys
import threading
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from holdfast import forking
from holdfast.core.errors import StoreClosed
from holdfast.engines.batch_thread import BATCH_LIMIT, CLOSE_SECONDS, Ticket, hand_back

EXIT_SECONDS = 2.0
"""How long the end of a process waits for work that its engines have started."""

T = TypeVar("T")
Run = Callable[[Sequence[Ticket[Any]]], Awaitable[None]]


class LoopThread(forking.Forkable):
    """A thread and its loop. Owns its queues; `close` waits for submitted work."""

    def __init__(self, name: str, thread: str = "holdfast-postgres") -> None:
        self._name = name
        self._lock = threading.Lock()
        self._handed_in: deque[tuple[BatchQueue, Ticket[Any]]] = deque()
        self._is_woken = False
        self._closed = False
        self.is_left_behind = False
        """Whether this is a forked child, where the thread doesn't exist."""
        self._tasks: set[asyncio.Task[Any]] = set()
        self._calls = BatchQueue(self, _each, at_once=1_000, limit=1)
        self.sockets: Callable[[], list[Any]] = list
        """The sockets that a forked child must close."""
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=thread, daemon=True)
        self._thread.start()
        if not _loop_threads:
            _finish_in_pool()
        _loop_threads.add(self)
        forking.watch(self)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            self.loop.close()

    async def call(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine on the engine's own loop, and wait for it on the caller's."""
        answer: T = await self._calls.do(make)
        return answer

    def spawn(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        """Start something on the engine's own loop, from that loop."""
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def put(self, queue: "BatchQueue", ticket: Ticket[Any]) -> None:
        """Submit work, from any thread."""
        with self._lock:
            if self._closed:
                raise StoreClosed(f"{self._name}: was closed; open it first")
            self._handed_in.append((queue, ticket))
            is_woken, self._is_woken = self._is_woken, True
        if not is_woken:
            self.loop.call_soon_threadsafe(self._sort)

    def _sort(self) -> None:
        with self._lock:
            came, self._handed_in = self._handed_in, deque()
            self._is_woken = False
        queues: dict[BatchQueue, None] = {}
        for queue, ticket in came:
            queue.waiting.append(ticket)
            queues[queue] = None
        for queue in queues:
            queue.go()

    def close(self, last: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Finish submitted work, run `last`, and end the thread. Blocks; must not be called on that thread."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        _loop_threads.discard(self)
        asyncio.run_coroutine_threadsafe(self._end(last), self.loop)
        self._thread.join(CLOSE_SECONDS)
        forking.forget(self)

    async def _end(self, last: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._sort()
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_SECONDS / 2):
                    while left := [task for task in self._tasks if not _is_endless(task)]:
                        await asyncio.wait(left)
            given_up = list(self._tasks)
            for task in given_up:
                task.cancel()
            if given_up:  # a connection that is being opened has a socket to close
                await asyncio.wait(given_up, timeout=CLOSE_SECONDS / 4)
            await last()
            await asyncio.sleep(0)  # what was dropped is released in the loop's next turn
        finally:
            self.loop.stop()

    def give_up(self, batch: Sequence[Ticket[Any]]) -> None:
        """Answer the callers that we can't wait for any longer."""
        for ticket in batch:
            ticket.error = StoreClosed(f"{self._name}: was closed; writes in progress may or may not have been stored")
        hand_back(batch)

    async def _finish(self) -> None:
        while left := [task for task in self._tasks if not _is_endless(task)]:
            await asyncio.wait(left)

    def finish(self) -> None:
        """At the end of the process: let started work finish, such as notifying others of a new job."""
        if not self._closed:
            try:
                asyncio.run_coroutine_threadsafe(self._finish(), self.loop).result(EXIT_SECONDS)
            except (TimeoutError, RuntimeError):
                pass

    def leave_behind(self) -> None:
        """Close the parent's connections, which must not outlive it. The thread doesn't exist here."""
        self._lock = threading.Lock()
        self._closed = self.is_left_behind = True
        _loop_threads.discard(self)
        forking.forget(self)
        _left_behind.append(self)
        for socket in self.sockets():
            try:
                socket.close()
            except OSError:
                pass


class BatchQueue:
    """Work of one kind: whatever waits while a batch runs is the next batch. `run` fills in answers or errors.

    `limit` is the size of one batch, `weigh` returns how much of it a piece of work takes.
    """

    def __init__(
        self,
        loop_thread: LoopThread,
        run: Run,
        *,
        at_once: int = 1,
        limit: int = BATCH_LIMIT,
        weigh: Callable[[Any], int] = lambda _: 1,
    ) -> None:
        self._loop_thread = loop_thread
        self._run = run
        self._at_once = at_once
        self._limit = limit
        self._weigh = weigh
        self._running = 0
        self.waiting: deque[Ticket[Any]] = deque()

    async def do(self, work: Any) -> Any:
        """Submit work and wait for its answer. From any loop but the loop thread's. Where none runs, this blocks."""
        ticket = Ticket.make(work)
        self._loop_thread.put(self, ticket)
        return ticket.block() if ticket.future is None else await ticket.future

    def go(self) -> None:
        """Make sure that waiting work is being done. On the engine's own loop."""
        while self.waiting and self._running < self._at_once:
            self._running += 1
            self._loop_thread.spawn(self._work(self._next()))

    def _next(self) -> list[Ticket[Any]]:
        batch: list[Ticket[Any]] = []
        room = self._limit
        while self.waiting and (not batch or self._weigh(self.waiting[0].work) <= room):
            batch.append(self.waiting.popleft())
            room -= self._weigh(batch[-1].work)
        return batch

    async def _work(self, batch: list[Ticket[Any]]) -> None:
        try:
            while batch:
                try:
                    await self._run(batch)
                except asyncio.CancelledError:  # the loop thread is closing, and has waited long enough
                    batch += self.waiting
                    self.waiting.clear()
                    self._loop_thread.give_up(batch)
                    raise
                except BaseException as error:
                    for ticket in batch:
                        ticket.error = error
                hand_back(batch)
                batch = self._next()
        finally:
            self._running -= 1


async def _each(batch: Sequence[Ticket[Any]]) -> None:
    for ticket in batch:
        ticket.answer = await ticket.work()


def endless(work: Coroutine[Any, Any, None]) -> Coroutine[Any, Any, None]:
    """Mark work that runs until it is cancelled: a close doesn't wait for it."""
    _endless.add(work)
    return work


def _is_endless(task: "asyncio.Task[Any]") -> bool:
    return task.get_coro() in _endless


_endless: "weakref.WeakSet[Any]" = weakref.WeakSet()
_loop_threads: "weakref.WeakSet[LoopThread]" = weakref.WeakSet()
_left_behind: list[LoopThread] = []
"""Never freed: if a child collected such a loop, it would remove the parent's files from their shared epoll."""


def _at_exit() -> None:
    for loop_thread in list(_loop_threads):
        loop_thread.finish()


atexit.register(_at_exit)


def _finish_in_pool() -> None:
    """Finish at the end of a process that `multiprocessing` started, too: it skips what `atexit` knows."""
    processes, ends = sys.modules.get("multiprocessing.process"), sys.modules.get("multiprocessing.util")
    if processes is not None and ends is not None and processes.parent_process() is not None:
        ends.Finalize(None, _at_exit, exitpriority=-100)  # among the last
