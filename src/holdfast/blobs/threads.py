"""The threads that call blob stores: a few for the whole process, started when they are needed.

Must not know what a call does. They are daemons: a blob store that doesn't answer never keeps a process alive.
"""

import asyncio
import concurrent.futures
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from holdfast import forking

T = TypeVar("T")

THREADS = 8
"""How many calls to blob stores a process makes at the same time."""


class _Threads(forking.Forkable):
    def __init__(self) -> None:
        self.leave_behind()
        forking.watch(self)

    def leave_behind(self) -> None:
        """See Forkable."""
        self._lock = threading.Lock()
        self._waiting: queue.SimpleQueue[tuple[concurrent.futures.Future[Any], Callable[[], Any]]] = queue.SimpleQueue()
        self._started = self._busy = 0

    def submit(self, act: Callable[[], T]) -> "concurrent.futures.Future[T]":
        future: concurrent.futures.Future[T] = concurrent.futures.Future()
        with self._lock:
            self._busy += 1
            starts = self._busy > self._started and self._started < THREADS
            self._started += starts
        self._waiting.put((future, act))
        if starts:
            threading.Thread(target=self._serve, name="holdfast-blobs", daemon=True).start()
        return future

    def _serve(self) -> None:
        while True:
            future, act = self._waiting.get()
            try:
                if future.set_running_or_notify_cancel():
                    future.set_result(act())
            except BaseException as error:  # it belongs to the caller
                future.set_exception(error)
            finally:
                with self._lock:
                    self._busy -= 1
                del future, act  # a value may be large


_threads = _Threads()


async def run(act: Callable[..., T], *args: Any) -> T:
    """Make a blocking call in one of the threads; or in this one, if no event loop runs here."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return act(*args)
    return await asyncio.wrap_future(_threads.submit(lambda: act(*args)))
