"""One try of a step that may be retried: how the calls inside it are counted, and what it leaves running.

Must not know what a step is. A step that is never retried has no Try: the attempt counts its calls.
"""

import asyncio
import threading
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any


class Stopped(BaseException):
    """Raised inside an attempt that may not continue. Not an Exception, so that `except Exception` doesn't catch it."""


class LeftBehind(Stopped, asyncio.CancelledError):
    """Raised in code that outlived its job, or its try of a step. It ends a task quietly, as a cancel does."""


class Try:
    """One try. It counts equal calls from one, and knows which steps run inside it. Safe from any thread."""

    def __init__(self, path: str, outer: "Try | None") -> None:
        self.calls: dict[str, int] = {}
        self.callers: dict[str, int] = {}
        self._path = path
        self._outer = outer
        self._is_over = False
        self._lock: Any = outer._lock if outer is not None else threading.RLock()
        self._running: list[asyncio.Task[Any] | None] = []
        """The tasks that run steps inside it. None stands for something that can't be cancelled: a thread, or a record
        that is being written.
        """

    def check(self) -> None:
        """Raise unless this try is still running."""
        over = next((one for one in self._chain() if one._is_over), None)
        if over is not None:
            raise LeftBehind(
                f"step {over._path} is being retried, so code that its earlier try left running can't call steps"
            )

    def enter(self, task: "asyncio.Task[Any] | None") -> None:
        """Note that a step starts inside it, in this task; None for a step's thread."""
        with self._lock:
            self.check()
            self.hold(task)

    def hold(self, task: "asyncio.Task[Any] | None") -> None:
        """The same for a step that has already entered."""
        for one in self._chain():
            one._running.append(task)

    def leave(self, task: "asyncio.Task[Any] | None") -> None:
        """Note that it has ended."""
        with self._lock:
            for one in self._chain():
                one._running.remove(task)

    def is_busy(self) -> bool:
        """Whether anything runs inside it."""
        return bool(self._running)

    def end(self) -> None:
        """Note that it has failed: from now on nothing starts inside it."""
        with self._lock:
            self._is_over = True

    def cancel(self) -> None:
        """Cancel the steps that it left running. On the loop."""
        for task in {task for task in list(self._running) if task is not None} - {asyncio.current_task()}:
            task.cancel()

    def _chain(self) -> Iterator["Try"]:
        one: Try | None = self
        while one is not None:
            yield one
            one = one._outer


TRY: ContextVar[Try | None] = ContextVar("holdfast_try", default=None)
"""The innermost try in which this code runs."""
