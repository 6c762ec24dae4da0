"""One attempt: a job that runs here under a lease, with its journal, its progress and its timers.

Must not decide what the end of the attempt means for the job (`core`). Its lease, its fence and how it is stopped are
in `held_job`.
"""

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from holdfast.core.model import Step
from holdfast.worker.held_job import FENCE_SECONDS, HeldJob
from holdfast.worker.journal import Journal
from holdfast.worker.progress import Progress
from holdfast.worker.timers import Timers


class Attempt(HeldJob):
    """One attempt. Its parts are made when they are first used: most jobs are short, and need none of them."""

    progress_kind: type[Progress] = Progress
    suspension: object = None
    """The Suspension, once there is a wait."""
    kept_slot = ""
    """Why it stayed in its slot while it waited, for the history."""
    _journal: Journal | None = None
    _progress: Progress | None = None
    _timers: Timers | None = None
    _activities = 0

    @property
    def journal(self) -> Journal:
        """What is recorded of the job, and what this attempt records."""
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
        """Take over what earlier leases recorded, before the handler runs. If an effect is in doubt, stop."""
        self.journal.load(steps)
        self.journal.effects.stop_if_in_doubt()

    def let_go(self) -> None:
        """Free the tasks, and what was recorded, which may be large. They know us: else they would stay until
        the garbage collector comes.
        """
        self.root = self._tasks = None
        if self._journal is not None:
            self._journal.records.clear()

    def is_plain(self) -> bool:
        """Whether its code has used nothing of Holdfast, so that only its result is to be written."""
        is_silent = self._progress is None or self._progress.is_untouched()  # a heartbeat may have asked for it
        return self._journal is None and is_silent and not self.kept_slot

    def is_busy(self) -> bool:
        """Whether a step runs, or something is under way that must not be cut off by a suspend."""
        return self._activities > 0 or self.progress.steps_running() > 0

    @contextmanager
    def activity(self) -> Iterator[None]:
        """Something is under way that is no step, on the loop: the job doesn't suspend meanwhile."""
        self._activities += 1
        try:
            yield
        finally:
            self._activities -= 1
            if self.on_activity_end is not None:
                self.on_activity_end()

    async def wait_until_still(self) -> None:
        """Wait until no step and no thread of this job runs any more."""
        while self.threads or (self._progress is not None and self._progress.steps_running()):  # noqa: ASYNC110
            await asyncio.sleep(FENCE_SECONDS)  # a thread ends when it ends
