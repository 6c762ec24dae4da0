"""Distinguishes errors of user code from stops: a cancel from outside, our own Stopped, a coroutine being closed.

Must not record anything. Python uses the same exceptions for both. A body ends with CancelledError if its task is
cancelled, but also if a future that it shares with others is cancelled: the first is a stop, the second a failure.
"""

import asyncio
from typing import Any

from holdfast.worker.attempt import Attempt
from holdfast.worker.recorded_errors import contain
from holdfast.worker.tries import Stopped


class Watch:
    """A context around user code: the code's own errors leave it as an Exception, and a stop leaves it unchanged.

    It is created in the task that runs the code, just before, or with `cancels`, the value of the task's `cancelling()`
    at that time. `caller` is the watch of the task that waits for the code, if that is another one: the tasks of a map
    are ours, so only a cancel of the map itself is a stop. Threads have no task and can't be cancelled.
    """

    __slots__ = ("_attempt", "_caller", "_cancels", "_task")

    def __init__(
        self,
        attempt: Attempt | None,
        task: "asyncio.Task[Any] | None" = None,
        caller: "Watch | None" = None,
        cancels: int | None = None,
    ) -> None:
        self._attempt = attempt
        self._task = task
        self._caller = caller
        self._cancels = cancels_of(task) if cancels is None else cancels

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, raised: BaseException | None, trace: object) -> None:
        if raised is not None and not self.is_stop(raised) and (error := self.error(raised)) is not raised:
            raise error from raised

    def error(self, raised: BaseException) -> Exception:
        """Return what the code raised, as an error of its own. If it is a stop, raise it again."""
        if self.is_stop(raised):
            raise raised
        if self._caller is not None and self._task is not None:
            # The code cancelled our task. The code that runs in it next must not mistake that for its own cancel.
            while self._task.cancelling() > self._cancels:
                self._task.uncancel()
        return contain(raised)

    def is_stopped(self) -> bool:
        """Whether somebody has stopped the code since it started."""
        if self._attempt is not None and self._attempt.stop is not None:
            return True
        if self._caller is not None:
            return self._caller.is_stopped()
        return self._task is not None and self._task.cancelling() > self._cancels

    def is_stop(self, raised: BaseException) -> bool:
        """Whether the code was stopped and ended because of that."""
        match raised:
            case Exception():
                return False
            case Stopped():
                return True
            case GeneratorExit():
                return self._task is not None and self._task is not _task_here()
            case asyncio.CancelledError():
                return self.is_stopped()
            case BaseExceptionGroup():
                return self.is_stopped() or raised.subgroup(Stopped) is not None
        return False


def cancels_of(task: "asyncio.Task[Any] | None") -> int:
    """Return how often a task has been cancelled so far. A cancel that the code swallowed still counts."""
    return 0 if task is None else task.cancelling()


def _task_here() -> "asyncio.Task[Any] | None":
    """Return the task that runs now. A coroutine is always closed from outside its task."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None
