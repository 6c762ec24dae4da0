"""Undo jobs of other apps: every worker claims undo jobs, and leaves those to others whose code it doesn't have.

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
"""An undo job of another app rests for as long as it has waited already, within these bounds."""

HEAD_START_SECONDS = 2.0
"""How much longer its worker claims no undo jobs: a worker that has the code claims it first."""

ELSEWHERE_MS = 3_600_000
"""How long an undo job is left to workers that know more."""


class ForeignUndo:
    """Leaves undo jobs of other apps to the workers of those apps, for one worker."""

    def __init__(self, engine: Engine, registry: Registry, worker: str, giving_up: GivingUp) -> None:
        self._engine = engine
        self._registry = registry
        self._worker = worker
        self._giving_up = giving_up
        self._until = 0.0
        """By the clock of the loop: until then undo jobs are left to other workers."""
        self._logged: set[str] = set()
        """The types of job whose undo was left to other workers, and the log says so."""

    def is_left_to_others(self) -> bool:
        """Whether this worker claims no undo jobs just now."""
        return bool(self._until) and asyncio.get_running_loop().time() < self._until

    async def leave_to_others(self, job: Job) -> bool:
        """Put an undo job of another app to rest, longer each time; whether it is to be left alone.

        Not for ever: if no worker comes that has the code, it runs here, fails, and says what is missing.
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
            await self._giving_up.release(job.lease, "the store was away when it began")
        return True

    async def _put_to_rest(self, job: Job, type: str, now: Time) -> None:
        self._log_foreign(job, type)
        low, high = REST_MS
        rest_ms = max(low, min(high, now - job.created_at))
        note = {"why": f"worker {self._worker} doesn't have the code that undoes job {job.parent}"}
        change = rest(job, now, by=self._worker, run_at=now + rest_ms, note=note)
        self._until = asyncio.get_running_loop().time() + rest_ms / 1_000 + HEAD_START_SECONDS
        (answer,) = await self._engine.commit([change])
        if not isinstance(answer, Applied):
            await self._giving_up.release(job.lease, "it changed while it was put to rest")

    def _log_foreign(self, job: Job, type: str) -> None:
        """Say it once for each type: apps that share a queue meet each other's undo jobs all the time."""
        if type not in self._logged:
            self._logged.add(type)
            line = (
                "%s: job %s undoes a job of type %s, which this worker doesn't know: it leaves such undo jobs to "
                "workers that do, for up to %s each"
            )
            log.warning(line, self._worker, job.id, type, in_words(ELSEWHERE_MS))
