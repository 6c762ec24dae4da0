"""Watches one run of a job: notes the boundaries it reaches, and kills the worker at one of them.

Must not judge what it sees (`verdict`). A kill stops the worker's event loop between two of its steps: none of its code
runs after that, not even a `finally` block, until the run is over.
"""

import asyncio
from collections import Counter

from holdfast.core.model import Change, Event, Job, Lease, Step
from holdfast.testing.memory import Impatient
from holdfast.testing.moments import BEFORE_EFFECT, BEFORE_RECORD, Boundary, Moment
from holdfast.testing.store import Store
from holdfast.worker.attempt import Attempt
from holdfast.worker.registry import JobSpec, Registry


class Watch:
    """Counts the boundaries of one run; kills the worker at `target`, once."""

    def __init__(self, store: Store, target: Boundary | None) -> None:
        self.target = target
        self.boundaries: list[Boundary] = []
        self.killed_at = ""
        """The path of the step at which the worker was killed, to show to a person."""
        self.is_killed = False
        self.attempts: dict[Lease, Attempt] = {}
        self.worker = ""
        self.happened: dict[str, Step] = {}
        """Effects that happened but weren't recorded because of the kill, by path."""
        self.ran_again: list[str] = []
        self.unasked: list[str] = []
        """Recorded steps that the finished run hadn't asked for."""
        self.drift: list[str] = []
        self._store = store
        self._counts: Counter[tuple[str, str, str]] = Counter()
        store.watch = self._passed

    async def starting(self, attempt: Attempt, path: str) -> None:
        """A step is about to start."""
        await self._store.answers()
        if self._store.is_recorded(attempt.job.id, path):
            self.ran_again.append(path)
        name = path.rpartition("/")[2].partition("#")[0]
        await self._passed(Moment(attempt.job.id, name, path), BEFORE_EFFECT)

    async def _passed(self, moment: Moment, when: str) -> None:
        if isinstance(moment.act, Change) and when == moment.before and moment.act.event == Event.COMPLETE:
            self._completes(moment.act)
        counted = (self._store.type_of(moment.job), moment.step, when)
        self._counts[counted] += 1
        boundary = Boundary(*counted, self._counts[counted])
        self.boundaries.append(boundary)
        if boundary == self.target and not self.is_killed:
            if when == BEFORE_RECORD and isinstance(moment.act, Step):
                self.happened[moment.path] = moment.act
            self.killed_at = moment.path
            await self._kill()

    async def _kill(self) -> None:
        """Kill the worker here: this call never returns, and nothing else on its loop does."""
        self.is_killed = True
        loop = asyncio.get_running_loop()
        self._store.kill(self.worker, loop)
        loop.stop()
        await loop.create_future()

    def _completes(self, change: Change) -> None:
        attempt = self.attempts.get(Lease(change.job.id, change.job.epoch))
        if attempt is not None:
            self.unasked += attempt.journal.calls.unasked_paths()
            self.drift += change.note.get("drift", [])


class Mortal(Impatient):
    """A worker that can be killed before a step starts."""

    def __init__(self, store: Store, registry: Registry, watch: Watch, *, queues: tuple[str, ...]) -> None:
        super().__init__(store, registry, queues=queues, chance=lambda: 0.0)
        self._watch = watch
        watch.worker = self.id

    def log_cut(self) -> None:
        """See Worker.log_cut."""
        if not self._watch.is_killed:  # otherwise we have ended the loop, and the log would blame the job
            super().log_cut()

    def make_attempt(self, job: Job, spec: JobSpec, claimed: float) -> Attempt:
        """See Worker.make_attempt."""
        attempt = super().make_attempt(job, spec, claimed)
        attempt.starting = lambda path: self._watch.starting(attempt, path)
        self._watch.attempts[job.lease] = attempt
        return attempt
