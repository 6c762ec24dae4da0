"""Lanes: functions that are called beside the work. Each has a bounded queue, and a bound on how long a call takes.

Must not let the caller wait or fail, whatever a function does, and must not keep the process alive. All lanes of an App
share one thread with an event loop; a blocking function has a thread of its own.
"""

import asyncio
import atexit
import concurrent.futures
import contextvars
import inspect
import queue
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Coroutine
from math import inf
from typing import Any, Generic, TypeVar

from holdfast.background import REPEAT_SECONDS, LogOnce
from holdfast.safe_text import logger
from holdfast.tracebacks import place_in
from holdfast.worker.recorded_errors import error_of

T = TypeVar("T")

log = logger("holdfast.hooks")

CALL_SECONDS = 10.0
"""How long one call may take."""

CANCEL_SECONDS = 1.0
"""How long an async function that was cancelled may take to end."""

LOOK_SECONDS = 0.01
"""How soon to look again at a call that returned at the last moment."""

QUEUE_LIMIT = 10_000
"""How many things may wait for one function. Further ones are dropped."""

DRAIN_SECONDS = 2.0
"""How long a worker that stops, or a process that ends, waits for what is queued."""


class Beside:
    """One thread with an event loop, which starts when it is first needed. Safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._context = contextvars.Context()  # an empty one: what runs here belongs to no job
        self._is_given_up = False
        """Whether the last wait timed out; the process then exits without waiting."""

    def start(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Start this on the loop, and return at once."""
        self._running_loop().call_soon_threadsafe(self._begin, work, context=self._context)

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = _start_loop()
                atexit.register(self.drain_at_exit)
            return self._loop

    def _begin(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        task = asyncio.get_running_loop().create_task(work())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def drain(self) -> None:
        """Wait until nothing runs here, but not for long. From any loop."""
        if (idle := self._await_idle()) is None:
            return
        await asyncio.wait([asyncio.wrap_future(idle)], timeout=DRAIN_SECONDS)
        self._is_given_up = idle.cancel()
        if self._is_given_up:
            log.warning("hooks are still busy after %g s; this process no longer waits for them", DRAIN_SECONDS)

    def drain_at_exit(self) -> None:
        """Wait for what is queued before the process ends, but not for long."""
        if not self._is_given_up and (idle := self._await_idle()) is not None:
            concurrent.futures.wait([idle], DRAIN_SECONDS)

    def _await_idle(self) -> "concurrent.futures.Future[None] | None":
        loop = self._loop
        return None if loop is None else asyncio.run_coroutine_threadsafe(self._until_idle(), loop)

    async def _until_idle(self) -> None:
        while self._tasks:
            await asyncio.wait(self._tasks)

    def forget(self) -> None:
        """In a forked child: the thread is the parent's."""
        self._lock, self._loop, self._tasks = threading.Lock(), None, set()


def _start_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    try:
        threading.Thread(target=loop.run_forever, name="holdfast-hooks", daemon=True).start()
    except BaseException:
        loop.close()
        raise
    return loop


def make_lane(name: str, function: Callable[[T], Any], beside: Beside) -> "Lane[T]":
    """Make the lane of a function, by its colour. `name` begins its log lines: "hook alerts.notify"."""
    kind = AsyncLane if inspect.iscoroutinefunction(function) else BlockingLane
    return kind(name, function, beside)


class Lane(ABC, Generic[T]):
    """Calls one function with one thing after another."""

    def __init__(
        self, name: str, function: Callable[[T], Any], beside: Beside, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.name = name
        self._function = function
        self._beside = beside
        self._clock = clock
        self._lock = threading.Lock()
        self._waiting: deque[T] = deque()
        self._is_awake = False
        self._is_stuck = False
        """Whether a call doesn't return. Meanwhile nothing is queued: a second call would hang beside it."""
        self._missed = 0
        """How many things were dropped since the log last had their number."""
        self._missed_at = -inf
        self._begun = 0.0
        """When the last call began."""
        self._trouble = LogOnce(log, f"{name} failed", f"{name} works again")

    def put(self, one: T) -> None:
        """Let the function be called with this soon. If too much waits for it, drop this. From any thread."""
        missed = 0
        with self._lock:
            is_full = len(self._waiting) >= QUEUE_LIMIT
            if is_full or self._is_stuck:
                self._missed += 1
                if is_full and self._clock() - self._missed_at >= REPEAT_SECONDS:
                    missed, self._missed, self._missed_at = self._missed, 0, self._clock()
            else:
                self._waiting.append(one)
            wakes = not (self._is_awake or is_full or self._is_stuck)
            self._is_awake = self._is_awake or wakes
        if missed:
            log.warning("%s can't keep up: %d events wait, and it missed %d", self.name, QUEUE_LIMIT, missed)
        if wakes:
            self._wake()

    def _wake(self) -> None:
        try:
            self._beside.start(self._run)
        except Exception as error:
            self._fall_asleep(error)

    async def _run(self) -> None:
        try:
            await self._work_off()
        except Exception as error:
            self._fall_asleep(error)

    def _fall_asleep(self, error: Exception) -> None:
        """No thread can start, or memory is short: the queued events wait for the next one, which tries again."""
        with self._lock:
            self._is_awake = False
        self._trouble.say(error)

    def forget(self) -> None:
        """In a forked child: what waits is the parent's."""
        self._lock = threading.Lock()
        self._waiting.clear()
        self._is_awake = self._is_stuck = False

    @abstractmethod
    async def _work_off(self) -> None:
        """Call the function with everything that waits, or give it up. On the loop."""

    def _next(self) -> T | None:
        """Take what waits longest; None if nothing does."""
        with self._lock:
            if self._waiting:
                return self._waiting.popleft()
            was_stuck, self._is_awake, self._is_stuck = self._is_stuck, False, False
            missed, self._missed = self._missed, 0
        if was_stuck:
            log.warning("%s has returned at last; it missed %d", self.name, missed)
        elif missed:
            log.warning("%s has caught up; it missed %d more", self.name, missed)
        return None

    def _report(self, error: BaseException | None) -> None:
        """Log how a call ended."""
        if error is None:
            self._trouble.recovered()
            return
        told = error_of(error)
        place = place_in(told.traceback)
        self._trouble.say(error, told.message if place is None else f"{told.message} ({place})")

    def _give_up(self, begun: float) -> bool:
        """Skip the function until the call that began then returns; False if it has just returned."""
        with self._lock:
            if not self._is_awake or self._begun != begun:
                return False
            self._is_stuck = True
            self._missed += len(self._waiting)
            self._waiting.clear()
        return True


class AsyncLane(Lane[T]):
    """Calls an async function, on the loop."""

    async def _work_off(self) -> None:
        while (one := self._next()) is not None:
            begun = self._begun = time.monotonic()
            call = asyncio.ensure_future(self._call(one))
            await asyncio.wait([call], timeout=CALL_SECONDS)
            if call.done():
                self._report(call.result())
                continue
            self._trouble.say(TimeoutError(f"cancelled after {CALL_SECONDS:g} s"))
            call.cancel()
            await asyncio.wait([call], timeout=CANCEL_SECONDS)
            if not call.done() and self._give_up(begun):
                call.add_done_callback(lambda _: self._next())
                return

    async def _call(self, one: T) -> BaseException | None:
        """Return what the function raised, so that no error reaches the loop."""
        try:
            await self._function(one)
        except BaseException as error:
            return error
        return None


class BlockingLane(Lane[T]):
    """Calls a blocking function in a thread of its own, while the loop watches how long each call takes."""

    _thread: "_Thread | None" = None

    async def _work_off(self) -> None:
        self._thread = self._thread or _Thread(f"holdfast-{self.name}")
        self._begun = time.monotonic()
        end = asyncio.wrap_future(self._thread.run(self._call_all))
        while not end.done():
            begun = self._begun
            left = begun + CALL_SECONDS - time.monotonic()
            if left <= 0 and self._give_up(begun):
                text = f"still running after {CALL_SECONDS:g} s; it is skipped until it returns"
                self._trouble.say(TimeoutError(text))
                return
            await asyncio.wait([end], timeout=max(left, LOOK_SECONDS))
        end.result()

    def _call_all(self) -> None:
        while (one := self._next()) is not None:
            self._begun = time.monotonic()
            self._report(self._call(one))

    def _call(self, one: T) -> BaseException | None:
        try:
            made = self._function(one)
            if inspect.iscoroutine(made):
                made.close()
                raise TypeError("it returned a coroutine, which nobody awaits; decorate an async def function")
        except BaseException as error:
            return error
        return None

    def forget(self) -> None:
        """See Lane."""
        super().forget()
        self._thread = None


class _Thread:
    """Runs one thing after another. Never keeps the process alive."""

    def __init__(self, name: str) -> None:
        self._calls: queue.SimpleQueue[tuple[Callable[[], None], concurrent.futures.Future[None]]]
        self._calls = queue.SimpleQueue()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def run(self, work: Callable[[], None]) -> "concurrent.futures.Future[None]":
        """Run this as soon as the thread is free."""
        end: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._calls.put((work, end))
        return end

    def _run(self) -> None:
        while True:
            work, end = self._calls.get()
            try:
                work()
            except BaseException as error:
                end.set_exception(error)
            else:
                end.set_result(None)
