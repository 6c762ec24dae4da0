"""The first part of an attempt, from its claim to the end of its handler: begin, load, run, finish.

Must not decide or commit what the end means: `settling` continues with decide, commit, notify and forget.
"""

import asyncio
import contextvars
from collections.abc import Callable, Mapping
from functools import partial

from holdfast.core.errors import HoldfastError, StoreError
from holdfast.core.model import Job
from holdfast.core.unreadable import set_aside, unreadable_parts
from holdfast.engines.contract import Engine
from holdfast.jobs.consequences import UNDO_TYPE, notify_others
from holdfast.jobs.flows import makes_next, needs_flow, resolved_args
from holdfast.safe_text import logger
from holdfast.worker.attempt import Attempt
from holdfast.worker.built_in import built_in_spec
from holdfast.worker.foreign_undo import ForeignUndo
from holdfast.worker.handler import Work, run_guarded, run_handler, run_traced, run_within
from holdfast.worker.hook_reports import HookReports
from holdfast.worker.isolation.isolated_attempt import IsolatedAttempt
from holdfast.worker.job_log import log_start
from holdfast.worker.registry import JobSpec, Registry
from holdfast.worker.settling import Settling
from holdfast.worker.slots import Slots

log = logger("holdfast.worker")


class Execution:
    """Runs the jobs that a worker has claimed. `make_attempt` takes a job, its spec and the time of its claim.

    `why_cut` says why the event loop is ending, if it is.
    """

    def __init__(
        self,
        engine: Engine,
        registry: Registry,
        worker: str,
        slots: Slots,
        settling: Settling,
        foreign_undo: ForeignUndo,
        reports: HookReports | None = None,
        *,
        make_attempt: Callable[[Job, JobSpec, float], Attempt],
        why_cut: Callable[[], str | None],
    ) -> None:
        self._engine = engine
        self._registry = registry
        self._worker = worker
        self._slots = slots
        self._settling = settling
        self._foreign_undo = foreign_undo
        self._reports = reports
        self._make_attempt = make_attempt
        self._why_cut = why_cut
        self._finish_later, self._context = self._finish, contextvars.copy_context()  # made once, for all attempts

    def begin(self, job: Job, claimed: float) -> None:
        """Begin a job that was claimed at this time, by our clock. From now on it holds a slot."""
        if parts := unreadable_parts(job):
            self._slots.occupy(job.lease, self._set_aside(job, parts))
            return
        spec = self._registry.get(job.type) or built_in_spec(job, self._engine, self._registry)
        assert spec is not None, (
            f"job {job.id}: the store handed out type {job.type}, which this worker did not ask for"
        )
        if job.type == UNDO_TYPE:
            self._slots.occupy(job.lease, self._begin_undo(job, spec, claimed))
        else:
            self._start(job, spec, claimed)

    def _start(self, job: Job, spec: JobSpec, claimed: float) -> None:
        attempt = self._make_attempt(job, spec, claimed)
        log_start(job)
        if self._reports is not None:
            self._reports.started(attempt)
        if job.epoch > 1 or needs_flow(job):
            self._slots.occupy(job.lease, self._load(attempt))
        else:
            self._run(attempt)

    async def _begin_undo(self, job: Job, spec: JobSpec, claimed: float) -> None:
        """Begin an undo job, unless its code belongs to another app."""
        if not await self._foreign_undo.leave_to_others(job):
            self._start(job, spec, claimed)

    async def _load(self, attempt: Attempt) -> None:
        """Read what earlier leases recorded, and what a step of a flow gets from others. Then run the handler."""
        job = attempt.job
        try:
            if job.epoch > 1:
                attempt.load(await attempt.persist(lambda: self._engine.steps(job.id)))
            if needs_flow(job):
                attempt.args = await attempt.persist(lambda: resolved_args(self._engine, job))
                attempt.follows = await attempt.persist(lambda: makes_next(self._engine, job))
        except StoreError as error:
            self._settling.abandon(attempt, error)
        except Exception as error:  # a record can't be read, or a result that it needs is gone: that job has failed
            await self._settling.settle_alone(attempt, None, error)
        except BaseException:
            self._slots.forget(attempt)
            raise
        else:
            self._run(attempt)

    def _run(self, attempt: Attempt) -> None:
        """Run the handler in its own task."""
        if attempt.stop is not None:
            self._slots.occupy(attempt.lease, self._settling.settle_alone(attempt, None, None))
            return
        work: Work = IsolatedAttempt.run if isinstance(attempt, IsolatedAttempt) else run_handler
        limit, tracer = attempt.job.options.timeout_ms, self._engine.tracer
        work = work if limit is None else partial(run_within, limit, work)
        run = run_guarded(attempt, work) if tracer is None else run_traced(attempt, work, tracer)
        task = self._slots.loop.create_task(run, name=f"holdfast handler {attempt.job.id}")
        attempt.root = task
        self._slots.running[task] = attempt.lease
        task.add_done_callback(partial(self._finish_later, attempt), context=self._context)

    def _finish(self, attempt: Attempt, task: "asyncio.Task[tuple[str | None, BaseException | None]]") -> None:
        """Settle the attempt, because its handler has ended."""
        del self._slots.running[task]
        attempt.root = None
        result, error = (None, asyncio.CancelledError()) if task.cancelled() else task.result()
        if isinstance(error, asyncio.CancelledError) and attempt.stop is None:
            attempt.stop = self._why_cut()  # either the job cancelled itself, or the event loop is ending
        self._settling.settle(attempt, result, error)

    async def _set_aside(self, job: Job, parts: Mapping[str, str]) -> None:
        """Put a job with an unreadable part into review, because nobody knows how to run it."""
        names = " and ".join(parts)
        log.error(
            "job %s (%s): its stored %s can't be read; it needs a person: holdfast review", job.id, job.type, names
        )
        try:
            change = set_aside(job, parts, await self._engine.now(), by=self._worker)
            (answer,) = await self._engine.commit([change])
            await notify_others(self._engine, change, answer, by=self._worker)
        except HoldfastError as error:  # a later heartbeat says that the job is still ours, and then it is released
            log.warning("job %s: %s", job.id, error)
