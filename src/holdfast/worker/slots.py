"""The slots of one worker: which attempts run here, which tasks hold a slot, and how many slots are free.

Must not claim, run or commit anything. Belongs to the worker's loop.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any

from holdfast.core.model import Lease
from holdfast.safe_text import logger
from holdfast.worker.attempt import Attempt
from holdfast.worker.suspension import Suspension

log = logger("holdfast.worker")


EndedAttempt = tuple[Attempt, str | None, BaseException | None]
"""An attempt whose handler has ended, with its result or its error."""


class Slots:
    """The slots of one worker."""

    loop: asyncio.AbstractEventLoop

    def __init__(self, worker: str, at_once: int) -> None:
        self._worker = worker
        self.at_once = at_once
        self.attempts: dict[Lease, Attempt] = {}
        """All attempts that aren't finished, by lease."""
        self.running: dict[asyncio.Task[Any], Lease] = {}
        """The tasks that hold a slot: handlers, and work for a job before or after its handler."""
        self.ended: list[EndedAttempt] = []
        """Ended attempts that wait to be committed. They hold their slots until then."""
        self.reserved = 0
        """Slots that claims under way may fill."""
        self.room = asyncio.Event()
        """Set when a slot may have become free."""
        self.background: set[asyncio.Task[None]] = set()
        """Work that follows the end of jobs and holds no slot."""

    def free(self) -> int:
        """Return how many slots are free: no job runs or has just ended in them, and no claim may fill them."""
        return self.at_once - len(self.running) - len(self.ended) - self.reserved

    def occupy(self, lease: Lease, work: Coroutine[Any, Any, None]) -> None:
        """Run something for a job, in its slot."""
        task = self.loop.create_task(work, name=f"holdfast {lease.job}")
        self.running[task] = lease
        task.add_done_callback(self._vacate)

    def _vacate(self, task: "asyncio.Task[None]") -> None:
        del self.running[task]
        self.room.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s: an attempt ended unexpectedly", self._worker, exc_info=error)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something in the background, without a slot."""
        task = self.loop.create_task(work)
        self.background.add(task)
        task.add_done_callback(self.background.discard)

    def forget(self, attempt: Attempt) -> None:
        """Remove an attempt that is finished."""
        if attempt.suspension is not None:
            Suspension.of(attempt).close()
        self.attempts.pop(attempt.lease, None)
        attempt.let_go()
