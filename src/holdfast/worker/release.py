"""Giving up a job without an attempt: it is released, or counted as lost with this worker.

Must not decide what happens to it (`jobs.lost_workers`, `outcomes`). Each method checks first that the job is ours.
"""

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from holdfast.core.errors import HoldfastError
from holdfast.core.lifecycle import RELEASE_LIMIT
from holdfast.core.model import Applied, Change, Job, Lease, State
from holdfast.engines.contract import Engine
from holdfast.jobs.consequences import notify_others, presence_of, running_of
from holdfast.jobs.lost_workers import HANDED_OVER, decide_loss, read_past, releases_in_a_row
from holdfast.safe_text import logger
from holdfast.worker.outcomes import decide_release

log = logger("holdfast.worker")

TRIES = 5
"""How often a change is decided again while others send the job signals."""


class GivingUp:
    """Gives up jobs of one worker."""

    def __init__(self, engine: Engine, worker: str) -> None:
        self._engine = engine
        self._worker = worker

    async def release(self, lease: Lease, why: str, *, begun: bool = False) -> None:
        """Release a job that we don't run, or, if it has `begun`, that we can't stop."""
        try:
            if (job := await self._read_ours(lease)) is not None:
                now, note, releases = await self._engine.now(), dict[str, Any](why=why), 0
                if begun:
                    past = await read_past(self._engine, job.id)
                    note[HANDED_OVER], releases = len(past.steps), releases_in_a_row(past) + 1
                await self._commit(decide_release(job, releases, now, by=self._worker, note=note))
        except HoldfastError as error:
            log.warning("job %s could not be released: %s", lease.job, error)

    async def lapse(self, lease: Lease, why: str, drops: Sequence[str] = ()) -> None:
        """Count a job as lost with this worker. If that can't be written, others notice when this process is gone."""
        try:
            for _ in range(TRIES):
                if (job := await self._read_ours(lease)) is None:
                    return
                past, now = await read_past(self._engine, job.id), await self._engine.now()
                running = running_of(await presence_of(self._engine, job), job)
                change = decide_loss(job, past, now, by=self._worker, why=why, running=running, drops=drops)
                if await self._commit(change):
                    return
        except HoldfastError as error:
            log.warning("job %s could not be marked as lost; another worker will find it: %s", lease.job, error)

    async def count_releases(self, job: Job) -> int:
        """Return how often in a row a job was released, including now. A rarely claimed job needs no call."""
        return 1 if job.epoch < RELEASE_LIMIT else releases_in_a_row(await read_past(self._engine, job.id)) + 1

    async def _read_ours(self, lease: Lease) -> Job | None:
        """Read the job, if this is still its lease."""
        (job,) = await self._engine.get([lease.job])
        ours = job is not None and job.state is State.ACTIVE and job.lease == lease and job.worker == self._worker
        return job if ours else None

    async def _commit(self, change: Change) -> bool:
        (answer,) = await self._engine.commit([replace(change, frees=True)])  # its steps may have held permits
        if isinstance(answer, Applied):
            await notify_others(self._engine, change, answer, by=self._worker)
        return isinstance(answer, Applied)
