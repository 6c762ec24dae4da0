"""The worker: claims jobs into its slots, runs each as an attempt, and commits what came of it.

Must not rescue other workers' jobs (`upkeep`), and must not know decorators (`app`).
"""

import asyncio
import logging
import os
import random
import re
import secrets
import socket
import time
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from msgspec.structs import replace

from holdfast.core.durations import in_words
from holdfast.core.errors import HoldfastError, Invalid, StoreError
from holdfast.core.lifecycle import decide
from holdfast.core.model import Applied, Beat, Change, Error, Event, Job, Lease, Presence, State, Time
from holdfast.core.outcome import doubt_text, failure_event, retry_at
from holdfast.engines.contract import Engine, queue_topic, worker_topic
from holdfast.jobs.family import go_on, say_stopped, wake_parent
from holdfast.worker.attempt import (
    CANCELLED,
    DOUBTED,
    LOG_SECONDS,
    LOST,
    RELEASED,
    STORE_RETRY_SECONDS,
    SUSPENDED,
    Attempt,
)
from holdfast.worker.context import CAPTURING, RUNNING
from holdfast.worker.faults import error_of, is_final
from holdfast.worker.handler import guarded, handled, within
from holdfast.worker.isolation.away import Away
from holdfast.worker.isolation.pool import Pool
from holdfast.worker.leases import Leases
from holdfast.worker.parking import Parking
from holdfast.worker.registry import JobSpec, Registry
from holdfast.worker.undo import undo_spec

log = logging.getLogger("holdfast.worker")

CLAIM_LIMIT = 100
"""How many jobs one claim takes at most, however many slots are free."""

UNKNOWN_MS = (2_000, 600_000)
"""A job that nobody here knows rests for as long as it has waited already, within these bounds."""

ROOM_SECONDS = 1.0
"""How often a worker that may not claim looks whether it may again."""

HALT_SECONDS = 5.0
"""How long an attempt that was told to stop may take for it, before it is handed over in mid-air."""


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
        if type(at_once) is not int or at_once < 1:
            raise Invalid(f"at_once={at_once!r}: give a number of slots, at least one")
        self.id = name or worker_id(socket.gethostname())
        self.queues = tuple(queues)
        self.at_once = at_once
        self._engine = engine
        self._registry = registry
        self._poll_seconds = poll_seconds
        self._chance = chance
        self._pool = Pool(at_once)
        self._attempts: dict[Lease, Attempt] = {}
        self._running: dict[asyncio.Task[None], Lease] = {}
        self._room = asyncio.Event()
        self._claiming = False
        self._stopping = False
        self._quiet = False
        self._tasks: list[asyncio.Task[None]] = []
        self._releases: set[asyncio.Task[None]] = set()
        self._started_at: Time = 0
        self._beat_ms, self._lease_ms = round(beat_seconds * 1_000), round(lease_seconds * 1_000)
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
        CAPTURING.start()
        self._tasks = [
            self._loop.create_task(self._claims(), name="holdfast claims"),
            self._loop.create_task(self._news(), name="holdfast news"),
        ]
        self._logging = self._loop.create_task(self._keep_logs(), name="holdfast logs")

    async def stop(self, grace_seconds: float = 10.0) -> None:
        """Claim nothing more, let what runs finish within the grace, hand over the rest, and take leave."""
        try:
            await self._stop_claiming()
            if self._running:
                await asyncio.wait(self._running, timeout=grace_seconds)
            self.abort()
            if self._running:
                await asyncio.wait(self._running, timeout=HALT_SECONDS)
            for task, lease in list(self._running.items()):
                log.warning("job %s does not stop: it is handed over while it still runs here", lease.job)
                await self._release(lease, "its worker stopped, and it did not")
                task.cancel()
        finally:
            CAPTURING.stop()
            # News are heard to the end: a cancel stops the spending in the grace too.
            for task in (*self._tasks, self._logging):
                task.cancel()
            await self._pool.close()
            await self._leases.stop()

    def abort(self) -> None:
        """Stop at once: what runs is handed over without a grace."""
        self._stopping = True
        for attempt in list(self._attempts.values()):
            attempt.halt(RELEASED)

    def is_busy(self) -> bool:
        """Whether anything runs here: a job, or what follows from the end of one."""
        return bool(self._running or self._releases)

    async def _stop_claiming(self) -> None:
        self._stopping = True
        claims = self._tasks[0]
        # A claim that is under way is waited for: what it brings would be held by nobody.
        if not self._claiming:
            claims.cancel()
        await asyncio.wait([claims], timeout=HALT_SECONDS)
        claims.cancel()

    # Claiming.

    async def _claims(self) -> None:
        topics = [queue_topic(queue) for queue in self.queues]
        mark, trouble = 0, 0
        while not self._stopping:
            self._room.clear()
            free = min(self.at_once - len(self._running), CLAIM_LIMIT)
            if free <= 0 or self._quiet or not self._leases.may_start():
                await self._wait_for_room()
                continue
            try:
                if await self._claim(free) < free and not self._stopping:
                    mark = await self._engine.wait(topics, self._poll_seconds, mark)
                trouble = 0
            except Exception as error:
                log.warning("%s: can't claim: %s: %s", self.id, type(error).__name__, error)
                await asyncio.sleep(STORE_RETRY_SECONDS[min(trouble, len(STORE_RETRY_SECONDS) - 1)])
                trouble += 1

    async def _claim(self, free: int) -> int:
        self._claiming = True
        sent = time.monotonic()
        try:
            jobs = await self._engine.claim(self.id, self.queues, free)
            for job in jobs:
                if self._leases.is_over(sent):  # no beat has named it, so nobody could tell us that it is lost
                    self._aside(self._release(job.lease, "the answer to its claim came too late"))
                else:
                    self._begin(job, sent)
        finally:
            self._claiming = False
        return len(jobs)

    async def _wait_for_room(self) -> None:
        try:
            # Not by `wait_for`, which swallows a cancel that comes in the same moment (Python 3.11).
            async with asyncio.timeout(ROOM_SECONDS):
                await self._room.wait()
        except TimeoutError:
            pass

    async def _news(self) -> None:
        """Hear at once when a job is taken from us; the beat then tells which."""
        mark = 0
        while True:
            try:
                mark = await self._engine.wait([worker_topic(self.id)], self._poll_seconds, mark)
                self._leases.hurry()
            except Exception as error:
                log.warning("%s: hears nothing: %s: %s", self.id, type(error).__name__, error)
                await asyncio.sleep(STORE_RETRY_SECONDS[-1])

    async def _keep_logs(self) -> None:
        """Write the new log lines of all running jobs now and then, so that a crash in a long step leaves its trace."""
        while True:
            await asyncio.sleep(LOG_SECONDS)
            attempts = [attempt for attempt in self._attempts.values() if attempt.stop is None]
            steps = [step for attempt in attempts for step in attempt.log_record()]
            try:
                if steps:
                    await self._engine.record(steps)
            except HoldfastError as error:
                log.debug("log lines are written a little later: %s", error)

    # Beating.

    def _presence(self, leaving: bool) -> Presence:
        return Presence(
            worker=self.id,
            host=socket.gethostname(),
            pid=os.getpid(),
            queues=self.queues,
            slots=self.at_once,
            started_at=self._started_at,
            running=tuple(attempt.running() for attempt in list(self._attempts.values())),
            leaving=leaving,
            beat_ms=self._beat_ms,
            lease_ms=self._lease_ms,
        )

    def _told_from_afar(self, presence: Presence, beat: Beat) -> None:
        """What the answer to a beat says about the jobs that it named. On the beat's thread."""
        named = {running.job: running.epoch for running in presence.running}
        for id in (*beat.cancelled, *beat.lost):
            attempt = self._attempts.get(Lease(id, named[id]))
            why = CANCELLED if id in beat.cancelled else LOST
            if attempt is not None and attempt.closing:  # what looks lost may be its own suspend
                attempt.told = why
            elif attempt is not None:
                attempt.halt(why)
        try:
            self._loop.call_soon_threadsafe(self._told, beat)
        except RuntimeError:  # the loop has ended
            pass

    def _told(self, beat: Beat) -> None:
        """The rest of what it says. While a claim is under way, what looks stray may be what it brings."""
        self._quiet = beat.quiet
        for attempt in self._attempts.values():
            if isinstance(attempt, Away):
                attempt.renewed()
        if self._claiming or self._stopping:
            return
        held = set(self._running.values())
        for lease in beat.stray:
            if lease not in held:
                self._aside(self._release(lease, "its worker held it and did not know of it"))

    def _aside(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._releases.add(task)
        task.add_done_callback(self._releases.discard)

    async def _release(self, lease: Lease, why: str) -> None:
        """Hand over a job that is ours and that we don't run. Refused if it isn't ours any more."""
        try:
            (job,) = await self._engine.get([lease.job])
            if job is not None and job.state is State.ACTIVE and job.lease == lease and job.worker == self.id:
                now = await self._engine.now()
                await self._engine.commit([decide(job, Event.RELEASE, now, by=self.id, note={"why": why})])
        except HoldfastError as error:
            log.warning("job %s: could not be handed over: %s", lease.job, error)

    # Running.

    def _begin(self, job: Job, claimed: float) -> None:
        spec = self._registry.get(job.type) or undo_spec(job, self._engine, self._registry)
        run = self._unknown(job) if spec is None else self._run(self._attempt(job, spec, claimed))
        task = self._loop.create_task(run, name=f"holdfast {job.type} {job.id}")
        self._running[task] = job.lease
        task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        del self._running[task]
        self._room.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s: an attempt ended unexpectedly", self.id, exc_info=error)

    def _attempt(self, job: Job, spec: JobSpec, claimed: float) -> Attempt:
        kind = Away if spec.isolated else Attempt
        attempt = kind(
            job,
            spec,
            self._engine,
            claimed=claimed,
            may_start=self._leases.may_start,
            changed=self._leases.news,
            chance=self._chance,
        )
        attempt.isolate = self._pool.run
        if isinstance(attempt, Away):
            attempt.pool, attempt.until = self._pool, self._leases.until
        if job.epoch > 1:
            for lease, older in self._attempts.items():
                if lease.job == job.id:  # it was taken from us, and came back before we heard of it
                    older.halt(LOST)
        self._attempts[job.lease] = attempt
        RUNNING.add(attempt)
        if self._stopping:
            attempt.halt(RELEASED)
        return attempt

    async def _run(self, attempt: Attempt) -> None:
        """One attempt from claim to commit: read the records, run the handler, decide, commit."""
        job = attempt.job
        try:
            if job.epoch > 1:
                attempt.load(await attempt.persist(lambda: self._engine.steps(job.id)))
            result, error = await self._handle(attempt)
            if attempt.closing and await attempt.is_suspended():  # it ended in the very moment of its suspend
                await go_on(self._engine, job.id, by=self.id, why="it ended while it was suspended")
            stop = attempt.stop
            attempt.end()
            await attempt.is_written()
            now = await attempt.persist(self._engine.now)
            change = self._outcome(attempt, stop, result, error, now)
            if change is not None:
                (answer,) = await attempt.persist(lambda: self._engine.commit([change]))
                if not isinstance(answer, Applied):
                    stop = LOST
                    log.warning("job %s: its end was refused, %s; another worker goes on", job.id, answer.reason)
                if job.parent is not None and change.arrives:
                    await attempt.persist(lambda: wake_parent(self._engine, job, answer, by=self.id))
            elif stop == LOST:
                log.warning("job %s: lost its lease (epoch %s) and was stopped here; others go on", job.id, job.epoch)
            if stop in (CANCELLED, LOST):
                self._aside(self._say_stopped(attempt))
        except StoreError as error:
            log.warning("job %s: stopped while the store is away; it goes on when it is back: %s", job.id, error)
        finally:
            Parking.of(attempt).close()
            self._attempts.pop(job.lease, None)
            RUNNING.discard(attempt)

    async def _say_stopped(self, attempt: Attempt) -> None:
        """Our job was cancelled, and nothing of it runs here any more: what it made may be undone."""
        try:
            await attempt.is_still()
            await say_stopped(self._engine, attempt.job, by=self.id)
        except HoldfastError as error:
            log.warning("job %s: its undo begins a little later: %s", attempt.job.id, error)

    async def _handle(self, attempt: Attempt) -> tuple[str | None, BaseException | None]:
        """Run the handler to its end, in a task of its own. Whatever it does, this has a result or an error."""
        if attempt.stop is not None:
            return None, None
        work = attempt.run if isinstance(attempt, Away) else partial(handled, attempt)
        run = guarded(attempt, lambda: within(attempt, work()))
        task = self._loop.create_task(run, name=f"holdfast handler {attempt.job.id}")
        attempt.tasks.add(task)
        attempt.root = task
        result, error = await task
        ours = asyncio.current_task()
        if error is not None and attempt.stop is None and ours is not None and ours.cancelling():
            attempt.stop = RELEASED  # the loop is ending around us
        return result, error

    def _outcome(
        self, attempt: Attempt, stop: str | None, result: str | None, error: BaseException | None, now: Time
    ) -> Change | None:
        """The change that an ended attempt comes to; None when the job is no longer ours.

        What a handler returns after it was told to stop is not taken for its result: it may have left things out.
        """
        job, steps = attempt.job, attempt.log_record()
        if stop in (LOST, CANCELLED, SUSPENDED):
            return None
        drift = attempt.drift()
        note: dict[str, Any] = {"drift": drift} if drift else {}
        if attempt.doubts and (stop == DOUBTED or error is not None):
            return self._doubted(attempt, error, now, note)
        drops = tuple(attempt.drops)
        if stop is not None:
            note |= {"steps": len(attempt.records), "why": stop}
            return decide(job, Event.RELEASE, now, by=self.id, note=note, steps=steps, drops=drops)
        if error is None:
            return decide(job, Event.COMPLETE, now, by=self.id, result=result, note=note, steps=steps)
        told = error_of(error)
        note |= {"error": f"{told.type}: {told.message}", "attempt": job.attempt}
        event = failure_event(job, told.type, retryable=not is_final(error))
        if event is Event.FAIL:
            run_at = retry_at(job, now, self._chance())
            note["next_try"] = f"in {in_words(run_at - now)}"
            log.warning("job %s (%s): %s: %s; tries again in %s", *_in_short(job, told), in_words(run_at - now))
            return decide(job, event, now, by=self.id, error=told, run_at=run_at, note=note, steps=steps, drops=drops)
        log.error("job %s (%s): %s: %s; it needs a person: holdfast review", *_in_short(job, told))
        return decide(job, event, now, by=self.id, error=told, note=note, steps=steps, drops=drops)

    def _doubted(self, attempt: Attempt, error: BaseException | None, now: Time, note: dict[str, Any]) -> Change:
        """An effect may have happened: nothing is tried again before a person has said so."""
        told = Error("EffectInDoubt", doubt_text(attempt.doubts))
        if isinstance(error, Exception):
            told = replace(told, message=f"{told.message}; it failed with {error_of(error).type}: {error}")
        note |= {"in_doubt": attempt.doubts, "error": told.message}
        log.error("job %s (%s): %s: %s; it needs a person: holdfast review", *_in_short(attempt.job, told))
        steps = attempt.log_record()
        return decide(attempt.job, Event.EXHAUST, now, by=self.id, error=told, note=note, steps=steps)

    async def _unknown(self, job: Job) -> None:
        """A job of a type that nobody here knows rests, longer each time, and says so."""
        known = ", ".join(self._registry.types()) or "none"
        log.warning("job %s: no job of type %r is known here (known: %s); it rests", job.id, job.type, known)
        note = {"why": f"no job of type {job.type} is known to worker {self.id}"}
        low, high = UNKNOWN_MS
        try:
            now = await self._engine.now()
            run_at = now + max(low, min(high, now - job.created_at))
            await self._engine.commit([decide(job, Event.REST, now, by=self.id, run_at=run_at, note=note)])
        except HoldfastError as error:
            log.warning("job %s: %s", job.id, error)


def _in_short(job: Job, error: Error) -> tuple[str, str, str, str]:
    return job.id, job.type, error.type, error.message.partition("\n")[0]


def worker_id(host: str) -> str:
    """A worker's name, drawn anew at each start: its machine, its process, and a random part."""
    machine = re.sub(r"[^A-Za-z0-9.-]", "-", host)[:40]
    return f"w-{machine}-{os.getpid()}-{secrets.token_hex(3)}"
