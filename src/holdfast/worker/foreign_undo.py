"""Undo jobs of other apps: every worker claims undo jobs, and leaves those without code here to other workers.

Must not undo anything (`undo`).
"""

import asyncio

from holdfast.core.changes import rest
from holdfast.core.durations import in_words
from holdfast.core.errors import StoreError
from holdfast.core.model import Applied, Job, Time
from holdfast.engines.contract import Engine
from holdfast.safe_text import logger
from holdfast.worker.registry import Registry
from holdfast.worker.release import GivingUp
from holdfast.worker.undo import foreign_type

log = logger("holdfast.worker")

REST_MS = (2_000, 60_000)
"""An undo job of another app is put back for as long as it has already waited, within these bounds."""

HEAD_START_SECONDS = 2.0
"""How much longer this worker then claims no undo jobs, so that a worker with the code gets the job first."""

ELSEWHERE_MS = 3_600_000
"""How long an undo job is left to workers that have its code."""


class ForeignUndo:
    """Leaves undo jobs of other apps to the workers of those apps. One per worker."""

    def __init__(self, engine: Engine, registry: Registry, worker: str, giving_up: GivingUp) -> None:
        self._engine = engine
        self._registry = registry
        self._worker = worker
        self._giving_up = giving_up
        self._until = 0.0
        """The time, by the loop's clock, until which undo jobs are left to other workers."""
        self._logged: set[str] = set()
        """The job types for which the log already says that their undo is left to other workers."""

    def is_left_to_others(self) -> bool:
        """Whether this worker currently claims no undo jobs."""
        return bool(self._until) and asyncio.get_running_loop().time() < self._until

    async def leave_to_others(self, job: Job) -> bool:
        """Put an undo job of another app back, for longer each time. Returns whether to leave it alone.

        This has an end: if no worker with the code appears, the job runs here, fails, and says what is missing.
        """
        try:
            now = await self._engine.now()
            if now - job.created_at > ELSEWHERE_MS:
                return False
            type = await foreign_type(job, self._engine, self._registry)
            if type is None:
                return False
            await self._put_to_rest(job, type, now)
        except StoreError as error:
            log.warning("job %s: %s", job.id, error)
            await self._giving_up.release(job.lease, "the store was unreachable when the job started")
        return True

    async def _put_to_rest(self, job: Job, type: str, now: Time) -> None:
        self._log_foreign(job, type)
        low, high = REST_MS
        rest_ms = max(low, min(high, now - job.created_at))
        note = {"why": f"worker {self._worker} doesn't have the code to undo job {job.parent}"}
        change = rest(job, now, by=self._worker, run_at=now + rest_ms, note=note)
        self._until = asyncio.get_running_loop().time() + rest_ms / 1_000 + HEAD_START_SECONDS
        (answer,) = await self._engine.commit([change])
        if not isinstance(answer, Applied):
            await self._giving_up.release(job.lease, "the job changed while it was put back")

    def _log_foreign(self, job: Job, type: str) -> None:
        """Log this once for each type: apps that share a queue see each other's undo jobs all the time."""
        if type not in self._logged:
            self._logged.add(type)
            line = (
                "%s: job %s undoes a job of type %s, which this worker doesn't know; it leaves such undo jobs to "
                "workers that do, each for up to %s"
            )
            log.warning(line, self._worker, job.id, type, in_words(ELSEWHERE_MS))
