"""What a worker reports to hooks besides the changes that it stores, which its engine announces: starts and retries.

Must not call hooks (`app.hooks`) or wait for them. What must be read from the store is read beside the worker.
"""

from functools import partial

from holdfast.core.model import Change, Job
from holdfast.engines.contract import Engine
from holdfast.jobs.job_events import (
    LOOK_BACK,
    Hooks,
    JobEvent,
    StepRetry,
    event_of_cancel,
    event_of_recovery,
    event_of_start,
    event_of_step_retry,
)
from holdfast.worker.held_job import HeldJob


class HookReports:
    """The reports of one worker."""

    def __init__(self, engine: Engine, hooks: Hooks) -> None:
        self._engine = engine
        self._hooks = hooks

    def started(self, held: HeldJob) -> None:
        """The worker starts to run a job. If its earlier worker was lost, it is also recovered."""
        job = held.job
        if self._hooks.hears("started"):
            self._hooks.tell(event_of_start(job))
        if job.epoch > 1 and self._hooks.hears("recovered"):
            self._hooks.tell_found(partial(self._find_recovery, job))
        if self._hooks.hears("retried"):
            held.on_retry = partial(self._retried, job)

    def stopped(self, job: Job) -> None:
        """A job was stopped here because it isn't ours any more. It may have been cancelled."""
        if self._hooks.hears("cancelled"):
            self._hooks.tell_found(partial(self._find_cancel, job))

    def stored(self, change: Change) -> None:
        """A change is in the store, but the answer to its commit was lost, so the engine has not announced it."""
        self._engine.announce([change])

    def _retried(self, job: Job, retry: StepRetry) -> None:
        self._hooks.tell(event_of_step_retry(job, retry))

    async def _find_recovery(self, job: Job) -> JobEvent | None:
        before = await self._engine.history(job.id, max(0, job.version - LOOK_BACK), LOOK_BACK)
        return event_of_recovery(job, before)

    async def _find_cancel(self, job: Job) -> JobEvent | None:
        return event_of_cancel(job, await self._engine.history(job.id, job.version))
