"""One attempt: a job that runs here under a lease, with its journal, its progress and its timers.

Must not decide what the end of the attempt means for the job (`core`). Its lease, its fence and its stopping are in
`held_job`.
"""

import asyncio
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol, runtime_checkable

from holdfast.core.errors import Invalid
from holdfast.core.model import Running, Step, Wait
from holdfast.worker.held_job import FENCE_SECONDS, HeldJob
from holdfast.worker.journal import Journal
from holdfast.worker.progress import Progress
from holdfast.worker.record_batch import DONE_SECONDS
from holdfast.worker.timers import Timers


@runtime_checkable
class Settles(Protocol):
    """The permits of an attempt, as far as its own code can correct them."""

    def settle(self, path: str, limit: str, units: int) -> bool:
        """Note what a step, or one around it, has really used of a limit; return whether it uses that limit."""


class Attempt(HeldJob):
    """One attempt. Its parts are created on first use: most jobs are short and need none of them."""

    keeps_result = True
    """Whether its handler stores a large result. Otherwise its worker does."""
    progress_kind: type[Progress] = Progress
    suspension: object = None
    """The Suspension, once there is a wait."""
    kept_slot = ""
    """Why it stayed in its slot while it waited, for the history."""
    waits: tuple[Wait, ...] = ()
    """What its job waits for, once it is suspended."""
    _journal: Journal | None = None
    _progress: Progress | None = None
    _timers: Timers | None = None
    _activities = 0
    _asks = 0

    @property
    def journal(self) -> Journal:
        """The job's records, old and new."""
        return self._journal or self.make_once("_journal", lambda: Journal(self, self.progress))

    @property
    def progress(self) -> Progress:
        """What a person sees of it."""
        return self._progress or self.make_once("_progress", lambda: self.progress_kind(self))

    @property
    def timers(self) -> Timers:
        """The timers that its code has set on the loop outside its steps."""
        return self._timers or self.make_once("_timers", Timers)

    def load(self, steps: Iterable[Step]) -> None:
        """Load what earlier leases recorded, before the handler runs. If an effect is in doubt, stop."""
        self.journal.load(steps)
        self.progress.skip_spending()
        self.journal.effects.stop_if_in_doubt()

    def report(self) -> Running:
        """Describe what it is doing, for the worker's heartbeat. From the heartbeat's thread."""
        self.progress.tell_spending()
        return self.progress.describe()

    def let_go(self) -> None:
        """Drop the tasks and the records, which may be large. They refer back to this attempt, so otherwise they would
        stay until the next garbage collection.
        """
        if self._progress is not None:
            self._progress.tell_last_spending()
        self.root = self._tasks = None
        if self._journal is not None:
            self._journal.records.clear()

    def is_plain(self) -> bool:
        """Whether its code has used nothing of Holdfast, so that only its result must be written."""
        is_silent = self._progress is None or self._progress.is_untouched()  # a heartbeat may have created it
        return self._journal is None and is_silent and not self.kept_slot

    def running_paths(self) -> list[str]:
        """See HeldJob.running_paths."""
        return [] if self._progress is None else self._progress.running_paths()

    def is_busy(self) -> bool:
        """Whether a step runs, or something else that a suspend must not interrupt."""
        return self._activities > 0 or self.is_asking() or self.progress.steps_running() > 0

    def settle(self, path: str, limit: str, units: int) -> None:
        """Correct what the step at this path uses of a limit, in millionths of a unit. From any thread of the job."""
        if not isinstance(self.permits, Settles) or not self.permits.settle(path, limit, units):
            raise Invalid(f"limit {limit}: settle() must be called in a step that uses this limit")

    @contextmanager
    def activity(self) -> Iterator[None]:
        """Mark something other than a step as running on the loop: the job doesn't suspend meanwhile."""
        self._activities += 1
        try:
            yield
        finally:
            self._activities -= 1
            if self.on_activity_end is not None:
                self.on_activity_end()

    def begin_ask(self) -> None:
        """See Asker."""
        self._asks += 1

    def end_ask(self) -> None:
        """See Asker."""
        self._asks -= 1
        if self.on_activity_end is not None:
            self.on_activity_end()

    def is_asking(self) -> bool:
        """Whether an ask of its steps is on its way, or something that was granted too late."""
        return self._asks > 0

    async def wait_until_answered(self) -> None:
        """Wait until that is over; but not for long."""
        end = time.monotonic() + DONE_SECONDS
        while self.is_asking() and time.monotonic() < end:  # noqa: ASYNC110 (rarely, and as long as one call)
            await asyncio.sleep(FENCE_SECONDS / 10)

    async def wait_until_still(self) -> None:
        """Wait until no step and no thread of this job runs any more."""
        while self.threads or (self._progress is not None and self._progress.steps_running()):  # noqa: ASYNC110
            await asyncio.sleep(FENCE_SECONDS)  # threads can't be interrupted
