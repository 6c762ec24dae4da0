"""The worker: claims jobs into its slots, runs each as an attempt, and commits what came of it.

Must not rescue other workers' jobs (`upkeep`), and must not know decorators (`app`).
"""

import asyncio
import logging
import os
import random
import secrets
import socket
from collections.abc import Callable, Sequence
from typing import Any

from holdfast.core.durations import in_words
from holdfast.core.errors import BadValue, HoldfastError, Invalid, StoreError
from holdfast.core.lifecycle import decide
from holdfast.core.model import Applied, Beat, Change, Event, Job, Presence, Time
from holdfast.core.outcome import failure_event, retry_at
from holdfast.engines.contract import Engine, queue_topic, worker_topic
from holdfast.worker.attempt import ATTEMPT, RUNNING, STORE_RETRY_SECONDS, Attempt
from holdfast.worker.leases import Leases
from holdfast.worker.registry import JobSpec, Registry
from holdfast.worker.steps import error_of, in_thread

log = logging.getLogger("holdfast.worker")

CLAIM_LIMIT = 100
"""How many jobs one claim takes at most, however many slots are free."""

UNKNOWN_MS = (2_000, 600_000)
"""A job that nobody here knows rests for as long as it has waited already, within these bounds."""

HANDED_OVER = frozenset({"released", "fenced"})
"""Why an attempt was stopped while the job may go on elsewhere: it is released, if the lease is still ours."""


class Worker:
    """Runs jobs of some queues. Owns its slots, its attempts and its tasks."""

    def __init__(
        self,
        engine: Engine,
        registry: Registry,
        *,
        queues: Sequence[str] = ("default",),
        at_once: int = 8,
        beat_seconds: float = 2.0,
        lease_seconds: float = 15.0,
        poll_seconds: float = 15.0,
        name: str | None = None,
        chance: Callable[[], float] = random.random,
    ) -> None:
        if at_once < 1:
            raise Invalid(f"at_once={at_once}: a worker needs at least one slot")
        self.id = name or f"w-{socket.gethostname()[:40]}-{os.getpid()}-{secrets.token_hex(3)}".replace("_", "-")
        self.queues = tuple(queues)
        self.at_once = at_once
        self._engine = engine
        self._registry = registry
        self._poll_seconds = poll_seconds
        self._chance = chance
        self._attempts: dict[str, Attempt] = {}
        self._running: dict[asyncio.Task[None], str] = {}
        self._room = asyncio.Event()
        self._stopping = False
        self._quiet = False
        self._tasks: list[asyncio.Task[None]] = []
        self._started_at: Time = 0
        self._leases = Leases(
            engine, self._presence, self._told_from_afar, beat_seconds=beat_seconds, lease_seconds=lease_seconds
        )
        self._loop: asyncio.AbstractEventLoop

    # Starting and stopping.

    async def start(self) -> None:
        """Show that we live, then begin to claim."""
        self._loop = asyncio.get_running_loop()
        self._started_at = await self._engine.now()
        await self._leases.start()
        self._tasks = [
            self._loop.create_task(self._claims(), name="holdfast claims"),
            self._loop.create_task(self._news(), name="holdfast news"),
        ]

    async def stop(self, grace_seconds: float = 10.0) -> None:
        """Claim nothing more, let what runs finish within the grace, hand over the rest, and take leave."""
        self._stopping = True
        for task in self._tasks:
            task.cancel()
        if self._running:
            await asyncio.wait(self._running, timeout=grace_seconds)
        for attempt in list(self._attempts.values()):
            attempt.halt("released")
        while self._running:
            await asyncio.wait(self._running)
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._leases.stop()

    def abort(self) -> None:
        """Stop at once: what runs is handed over without a grace."""
        for attempt in list(self._attempts.values()):
            attempt.halt("released")

    # Claiming.

    async def _claims(self) -> None:
        topics = [queue_topic(queue) for queue in self.queues]
        mark, trouble = 0, 0
        while True:
            self._room.clear()
            free = min(self.at_once - len(self._running), CLAIM_LIMIT)
            if free <= 0 or self._quiet or not self._leases.may_start():
                await self._wait_for_room()
                continue
            try:
                jobs = await self._engine.claim(self.id, self.queues, free)
                for job in jobs:
                    self._begin(job)
                if len(jobs) < free:
                    mark = await self._engine.wait(topics, self._poll_seconds, mark)
                trouble = 0
            except StoreError as error:
                log.warning("%s: can't claim: %s", self.id, error)
                await asyncio.sleep(STORE_RETRY_SECONDS[min(trouble, len(STORE_RETRY_SECONDS) - 1)])
                trouble += 1

    async def _wait_for_room(self) -> None:
        try:
            await asyncio.wait_for(self._room.wait(), 1.0)
        except TimeoutError:
            pass

    async def _news(self) -> None:
        """Hear at once when a job is taken from us; the beat then tells which."""
        mark = 0
        while True:
            try:
                mark = await self._engine.wait([worker_topic(self.id)], self._poll_seconds, mark)
                self._leases.nudge(hurry=True)
            except StoreError:
                await asyncio.sleep(STORE_RETRY_SECONDS[-1])

    # Beating.

    def _presence(self) -> Presence:
        attempts = list(self._attempts.values())
        return Presence(
            worker=self.id,
            host=socket.gethostname(),
            pid=os.getpid(),
            queues=self.queues,
            slots=self.at_once,
            started_at=self._started_at,
            running=tuple(attempt.running() for attempt in attempts),
            leaving=self._stopping and not attempts,
        )

    def _told_from_afar(self, beat: Beat) -> None:
        try:
            self._loop.call_soon_threadsafe(self._told, beat)
        except RuntimeError:  # the loop has ended
            pass

    def _told(self, beat: Beat) -> None:
        """What the beat's answer says about our jobs. A job that began meanwhile is not in it."""
        self._quiet = beat.quiet
        for id in (*beat.cancelled, *beat.lost):
            attempt = self._attempts.get(id)
            if attempt is not None:
                attempt.halt("cancelled" if id in beat.cancelled else "lost")

    # Running.

    def _begin(self, job: Job) -> None:
        task = self._loop.create_task(self._run(job), name=f"holdfast {job.type} {job.id}")
        self._running[task] = job.id
        task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        del self._running[task]
        self._room.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s: an attempt ended unexpectedly", self.id, exc_info=error)

    async def _run(self, job: Job) -> None:
        """One attempt from claim to commit: read the records, run the handler, decide, commit."""
        spec = self._registry.get(job.type)
        if spec is None:
            await self._commit_alone(job, await self._unknown(job))
            return
        records = await self._engine.steps(job.id) if job.epoch > 1 else []
        attempt = Attempt(
            job,
            spec,
            self._engine,
            records,
            may_start=self._leases.may_start,
            changed=lambda: self._leases.nudge(hurry=False),
            chance=self._chance,
        )
        self._attempts[job.id] = attempt
        RUNNING.add(attempt)
        try:
            result, error = await self._handle(attempt)
            now = await self._engine.now()
            change = self._outcome(attempt, result, error, now)
            if change is not None:
                (answer,) = await attempt.persist(lambda: self._engine.commit([change]))
                if not isinstance(answer, Applied):
                    log.warning("job %s: its end was refused, %s; another worker goes on", job.id, answer.reason)
        finally:
            self._attempts.pop(job.id, None)
            RUNNING.discard(attempt)

    async def _handle(self, attempt: Attempt) -> tuple[str | None, BaseException | None]:
        """Run the handler to its end. Whatever it does, this answers with a result or an error."""
        token = ATTEMPT.set(attempt)
        attempt.task = asyncio.current_task()
        try:
            args, kwargs = attempt.spec.signature.decode(attempt.job.args)
            value = await _within(attempt, _call(attempt.spec, args, kwargs))
            return attempt.spec.signature.result.encode(value), None
        except BaseException as error:
            if isinstance(error, GeneratorExit):
                raise
            return None, error
        finally:
            attempt.task = None
            ATTEMPT.reset(token)
            current = asyncio.current_task()
            while current is not None and current.cancelling():
                current.uncancel()

    def _outcome(self, attempt: Attempt, result: str | None, error: BaseException | None, now: Time) -> Change | None:
        """The change that an ended attempt comes to; None when the job is no longer ours."""
        job, steps = attempt.job, attempt.log_record(now)
        if error is None and attempt.stop not in ("cancelled", "lost"):
            return decide(job, Event.COMPLETE, now, by=self.id, result=result, steps=steps)
        if attempt.stop is not None:
            if attempt.stop not in HANDED_OVER:
                return None
            note = {"steps": len(attempt.records), "why": attempt.stop}
            return decide(job, Event.RELEASE, now, by=self.id, note=note, steps=steps)
        assert error is not None
        told = error_of(error)
        note = {"error": f"{told.type}: {told.message}", "attempt": job.attempt}
        event = failure_event(job, told.type, retryable=not isinstance(error, BadValue))
        if event is Event.FAIL:
            run_at = retry_at(job, now, self._chance())
            note["next_try"] = f"in {in_words(run_at - now)}"
            return decide(job, event, now, by=self.id, error=told, run_at=run_at, note=note, steps=steps)
        return decide(job, event, now, by=self.id, error=told, note=note, steps=steps)

    async def _unknown(self, job: Job) -> Change:
        """A job of a type that nobody here knows rests, longer each time, and says so."""
        now = await self._engine.now()
        low, high = UNKNOWN_MS
        run_at = now + max(low, min(high, now - job.created_at))
        known = ", ".join(self._registry.types()) or "none"
        log.warning("job %s: no job of type %r is known here (known: %s); it rests", job.id, job.type, known)
        note = {"why": f"no job of type {job.type} is known to worker {self.id}"}
        return decide(job, Event.REST, now, by=self.id, run_at=run_at, note=note)

    async def _commit_alone(self, job: Job, change: Change) -> None:
        try:
            await self._engine.commit([change])
        except HoldfastError as error:
            log.warning("job %s: %s", job.id, error)


async def _call(spec: JobSpec, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if spec.is_async:
        return await spec.function(*args, **kwargs)
    import contextvars

    return await in_thread(contextvars.copy_context(), lambda: spec.function(*args, **kwargs))


async def _within(attempt: Attempt, work: Any) -> Any:
    """The job's own timeout, counted from its claim."""
    limit = attempt.job.options.timeout_ms
    if limit is None:
        return await work
    try:
        async with asyncio.timeout(limit / 1_000) as clock:
            return await work
    except TimeoutError:
        if clock.expired():
            raise TimeoutError(f"the job took longer than its timeout of {in_words(limit)}") from None
        raise
