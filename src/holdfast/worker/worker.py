"""The worker: starts and stops the parts that claim, run and settle jobs, and sends heartbeats for all of them.

A job passes through these parts in this order: `claiming` gets it from the store, `execution` begins its attempt, loads
its records and runs its handler, `settling` decides, commits and notifies others. Must not rescue other workers' jobs
(`upkeep`), and must not know decorators (`app`).
"""

import asyncio
import os
import random
import re
import secrets
import socket
from collections.abc import Callable, Collection, Sequence

from holdfast import forking
from holdfast.background import LogOnce
from holdfast.core.errors import HoldfastError, Invalid, Moved, StoreLost
from holdfast.core.model import SCHEDULES_LISTED, TYPES_LISTED, Beat, Job, Lease, Presence, Time
from holdfast.core.moves import MOVED, mark_of
from holdfast.engines.contract import Engine
from holdfast.engines.topics import worker_topic
from holdfast.jobs.built_in import BUILT_IN_TYPES
from holdfast.jobs.consequences import UNDO_TYPE
from holdfast.jobs.full_queues import declare_bounds
from holdfast.jobs.job_events import Hooks
from holdfast.jobs.limits import declare_limits
from holdfast.jobs.lost_workers import CUT_OFF
from holdfast.jobs.schedules import declare_schedules
from holdfast.jobs.subscriptions import declare_subscriptions
from holdfast.safe_text import logger
from holdfast.worker.admissions import Admissions
from holdfast.worker.attempt import Attempt
from holdfast.worker.claiming import Claiming
from holdfast.worker.context import CAPTURING, register_host, timers_here
from holdfast.worker.execution import Execution
from holdfast.worker.foreign_undo import ForeignUndo
from holdfast.worker.held_job import CANCELLED, CUT, LIMIT_SECONDS, LOST, RELEASED, STORE_RETRY_SECONDS
from holdfast.worker.hook_reports import HookReports
from holdfast.worker.isolation.isolated_attempt import IsolatedAttempt
from holdfast.worker.isolation.pool import Pool
from holdfast.worker.leases import Leases
from holdfast.worker.progress import LOG_SECONDS
from holdfast.worker.registry import JobSpec, Registry
from holdfast.worker.release import GivingUp
from holdfast.worker.settling import Settling
from holdfast.worker.slots import Slots
from holdfast.worker.timers import watch_timers

log = logger("holdfast.worker")

HALT_SECONDS = 5.0
"""How long an attempt that was asked to stop may take, before its job is released while it still runs."""


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
        limit_seconds: float = LIMIT_SECONDS,
        name: str | None = None,
        chance: Callable[[], float] = random.random,
        hooks: Hooks | None = None,
        has: Collection[str] = (),
        for_any_type: bool = False,
    ) -> None:
        if type(at_once) is not int or at_once < 1:
            raise Invalid(f"at_once={at_once!r}: give the number of slots, at least one")
        self.id = name or worker_id(socket.gethostname())
        self.queues = tuple(queues)
        self.at_once = at_once
        self.has = frozenset(has)
        self._for_any_type = for_any_type
        """Whether it stands for workers of any job type: those over HTTP. Then its heartbeats name no types."""
        self._engine = engine
        self._registry = registry
        self._poll_seconds = poll_seconds
        self._chance = chance
        self._reports = None if hooks is None else HookReports(engine, hooks)
        self.is_cut = False
        """Whether the event loop is ending, although nobody asked this worker to stop."""
        self.lost: StoreLost | Moved | None = None
        """Why this worker stopped by itself: the store has lost its writes or was moved, so it must not write any more.
        """
        self._is_lost = asyncio.Event()
        self._captures = False
        self._tasks: list[asyncio.Task[None]] = []
        self._started_at: Time = 0
        self._beat_ms, self._lease_ms = round(beat_seconds * 1_000), round(lease_seconds * 1_000)
        self._loop: asyncio.AbstractEventLoop
        self._own_loop: forking.OwnLoop | None = None
        self._writing = LogOnce(log, f"{self.id}: can't write to the store", f"{self.id}: can write to the store again")
        self._pool = Pool(at_once)
        self._admissions = Admissions(engine)
        self._limit_seconds = limit_seconds
        self._giving_up = GivingUp(engine, self.id)
        self._foreign_undo = ForeignUndo(engine, registry, self.id, self._giving_up)
        self._slots = Slots(self.id, at_once)
        self._leases = Leases(
            engine,
            self._make_presence,
            self._on_heartbeat,
            self._on_store_lost,
            beat_seconds=beat_seconds,
            lease_seconds=lease_seconds,
            is_running=lambda: self._loop.is_running(),
        )
        self._wire()
        # Bound once, for all attempts.
        self._may_start, self._announce, self._isolate = self._leases.may_start, self._leases.announce, self._pool.run
        register_host(self)

    def _wire(self) -> None:
        """Connect claiming, execution and settling: claimed jobs begin, ended ones are settled, and their slots
        refilled.
        """
        self._claiming = Claiming(
            self._engine,
            self.id,
            self._slots,
            self._leases,
            self._giving_up,
            queues=self.queues,
            poll_seconds=self._poll_seconds,
            types=self._types_now,
            lose=self._lose,
        )
        self._settling = Settling(
            self._engine, self.id, self._slots, self._claiming, self._giving_up, self._chance, self._reports
        )
        execution = Execution(
            self._engine,
            self._registry,
            self.id,
            self._slots,
            self._settling,
            self._foreign_undo,
            self._reports,
            make_attempt=self.make_attempt,
            why_cut=self._why_cut,
        )
        self._claiming.begin = execution.begin

    def types(self) -> tuple[str, ...]:
        """The job types that this worker claims: those of its registry whose needs it meets, and the built-in ones."""
        return (*self._registry.servable(self.has), *BUILT_IN_TYPES)

    def _types_now(self) -> tuple[str, ...]:
        """The types to claim now: without undo jobs while those are left to other workers."""
        types = self.types()
        if len(types) > len(BUILT_IN_TYPES) and self._foreign_undo.is_left_to_others():
            return tuple(type for type in types if type != UNDO_TYPE)
        return types

    def make_attempt(self, job: Job, spec: JobSpec, claimed: float) -> Attempt:
        """Make the attempt of a job that was claimed at this time, by our clock."""
        kind = IsolatedAttempt if spec.isolated else Attempt
        attempt = kind(
            job,
            spec,
            self._engine,
            self._loop,
            claimed=claimed,
            may_start=self._may_start,
            changed=self._announce,
            chance=self._chance,
        )
        attempt.isolate, attempt.writing, attempt.admissions = self._isolate, self._writing, self._admissions
        attempt.limit_seconds = self._limit_seconds
        if isinstance(attempt, IsolatedAttempt):
            attempt.pool, attempt.fence = self._pool, self._leases.deadline
        attempts = self._slots.attempts
        if job.epoch > 1:
            for lease, older in attempts.items():
                if lease.job == job.id:  # it was taken from us, and we claimed it again before we noticed
                    older.lose(LOST)
        attempts[attempt.lease] = attempt
        if self._claiming.is_stopping:
            attempt.halt(self._why_stopped())
        return attempt

    # Starting and stopping.

    async def start(self) -> None:
        """Declare the limits, bounds, schedules and subscriptions, send the first heartbeat, then start claiming."""
        self._loop, self._own_loop = asyncio.get_running_loop(), forking.OwnLoop()
        self._slots.loop = self._loop
        watch_timers(self._loop, timers_here)
        self._started_at = await self._engine.now()
        told = await declare_limits(self._engine, self._registry.limits(), by=self.id)
        told += await declare_bounds(self._engine, list(self._registry.bounds.values()), by=self.id)
        for line in told:
            log.warning("%s: %s", self.id, line)
        for line in await declare_schedules(self._engine, self._registry.schedules, by=self.id):
            log.info("%s: %s", self.id, line)
        for line in await declare_subscriptions(self._engine, self._registry.types(), self._registry.subscriptions):
            log.info("%s: %s", self.id, line)
        await self._leases.start()
        CAPTURING.start()
        self._captures = True
        self._tasks = [
            self._loop.create_task(self._claiming.run(), name="holdfast claims"),
            self._loop.create_task(self._hear_news(), name="holdfast news"),
        ]
        self._logging = self._loop.create_task(self._write_logs(), name="holdfast logs")

    async def stop(self, grace_seconds: float = 10.0) -> None:
        """Claim no more jobs, let running ones finish within the grace period, release the rest, and sign off.

        Can be called twice, and on a worker that never started. If the event loop is ending, nothing is released: the
        running jobs count as lost with their worker.
        """
        if not self._tasks:
            return
        self._note_cut()
        try:
            await self._stop_claiming()
            await self._wait_for_ends(0 if self.is_cut or self.lost is not None else grace_seconds)
            self.abort()
            await self._wait_for_ends(HALT_SECONDS)
            for task, lease in list(self._slots.running.items()):
                await self._leave_running(lease)
                task.cancel()
        finally:
            if self._captures:  # it is shared with the other workers of this process
                self._captures = False
                CAPTURING.stop()
            # Notifications are read until the end, so that a cancel still stops a job during the grace period.
            for task in (*self._tasks, self._logging):
                task.cancel()
            self._admissions.close()
            await self._pool.close()
            await self._leases.stop(leaving=not self.is_cut)
            self._own_loop = None

    async def _stop_claiming(self) -> None:
        self._claiming.is_stopping = True
        claims = self._tasks[0]
        # Wait for a claim that is under way; otherwise nobody would hold the jobs it brings.
        if not self._claiming.is_claiming:
            claims.cancel()
        await asyncio.wait([claims], timeout=HALT_SECONDS)
        claims.cancel()

    async def _wait_for_ends(self, seconds: float) -> None:
        """Wait until nothing runs here and all ended attempts are committed, but no longer than this."""
        end = self._loop.time() + seconds
        while self._is_running() and (left := end - self._loop.time()) > 0:
            await asyncio.wait([*self._slots.running, *self._settling.settlers], timeout=left)

    def abort(self) -> None:
        """Stop at once: running jobs are released without a grace period."""
        self._claiming.is_stopping = True
        for attempt in list(self._slots.attempts.values()):
            attempt.halt(self._why_stopped())

    def _why_stopped(self) -> str:
        return CUT if self.is_cut else RELEASED

    async def _leave_running(self, lease: Lease) -> None:
        """Give up a job that didn't stop when it was asked to."""
        if self.is_cut:
            await self._giving_up.lapse(lease, CUT_OFF)
        elif self.lost is None:
            log.warning("job %s did not stop in time; it is released while it still runs here", lease.job)
            await self._giving_up.release(lease, "its worker stopped, but the job did not", begun=True)
        else:
            log.warning("job %s did not stop in time; it still runs here, but can't write anything", lease.job)

    def has_attempts(self) -> bool:
        """See AttemptHost. A worker whose event loop has ended runs nothing."""
        return bool(self._slots.attempts) and self._loop.is_running()

    def is_busy(self) -> bool:
        """Whether anything runs here: a job, or the work that follows a job's end."""
        return self._is_running() or bool(self._slots.background)

    def _is_running(self) -> bool:
        return bool(self._slots.running or self._settling.settlers)

    # An event loop that ends, and a store that is lost.

    def _why_cut(self) -> str | None:
        """Return why an attempt was cancelled that nobody stopped; None if the event loop isn't ending."""
        if not self._tasks[0].cancelling():
            return None
        self._note_cut()
        return self._why_stopped()

    def _note_cut(self) -> None:
        """Detect an ending event loop by a cancel that nobody here asked for: every task gets one then."""
        if not self._claiming.is_stopping and self._tasks[0].cancelling():
            self.is_cut = self._claiming.is_stopping = True
            self.log_cut()

    def log_cut(self) -> None:
        """Log that the event loop is ending."""
        log.error("%s: %s; running jobs counted as lost: %d", self.id, CUT_OFF, len(self._slots.attempts))

    async def until_lost(self) -> StoreLost | Moved:
        """Wait until this worker has stopped because its store is lost or was moved. Normally this never returns."""
        await self._is_lost.wait()
        assert self.lost is not None
        return self.lost

    def _lose(self, error: StoreLost | Moved) -> None:
        """Stop permanently: other workers may run our jobs under the same epochs, so no fence holds us back."""
        if self.lost is not None:
            return
        self.lost = error
        line = "%s: its store is lost; it claims no more jobs and stops its running jobs (%d), which can't be saved: %s"
        if isinstance(error, Moved):
            log.warning("%s: stopping: %s", self.id, error)
        else:
            log.critical(line, self.id, len(self._slots.attempts), error)
        self.abort()
        self._is_lost.set()

    async def _check_moved(self) -> None:
        """Stop if the store's jobs were moved, because there is nothing left to do here."""
        try:
            for record in await self._engine.records(MOVED):
                if record.name == MOVED and (mark := mark_of(record.value)).done:
                    self._lose(Moved(mark.words()))
        except HoldfastError as error:
            log.debug("can't find out whether the store was moved: %s", error)

    # Heartbeats, notifications and logs.

    def _make_presence(self, leaving: bool) -> Presence:
        return Presence(
            worker=self.id,
            host=socket.gethostname(),
            pid=os.getpid(),
            queues=self.queues,
            slots=self.at_once,
            started_at=self._started_at,
            running=tuple(attempt.report() for attempt in list(self._slots.attempts.values())),
            leaving=leaving,
            beat_ms=self._beat_ms,
            lease_ms=self._lease_ms,
            types=None if self._for_any_type or len(types := self.types()) > TYPES_LISTED else types,
            trouble=self._writing.standing(),
            has=tuple(sorted(self.has)),
            lacks=self._registry.lacking(self.has, TYPES_LISTED),
            schedules=names if len(names := tuple(self._registry.schedules)) <= SCHEDULES_LISTED else None,
        )

    def _on_heartbeat(self, presence: Presence, beat: Beat) -> None:
        """Stop the jobs that the heartbeat's answer says we no longer own. On the heartbeat's thread."""
        named = {running.job: running.epoch for running in presence.running}
        for id in (*beat.cancelled, *beat.lost):
            attempt = self._slots.attempts.get(Lease(id, named[id]))
            if attempt is not None:
                attempt.lose(CANCELLED if id in beat.cancelled else LOST)
        try:
            self._loop.call_soon_threadsafe(self._follow_heartbeat, beat)
        except RuntimeError:  # the loop has ended
            pass

    def _on_store_lost(self, error: StoreLost) -> None:
        """Stop because a heartbeat found that the store is lost. On the heartbeat's thread."""
        try:
            self._loop.call_soon_threadsafe(self._lose, error)
        except RuntimeError:  # the loop has ended
            pass

    def _follow_heartbeat(self, beat: Beat) -> None:
        """Act on the rest of the answer. During a claim, a stray lease may be one that the claim brings."""
        claiming, slots = self._claiming, self._slots
        if beat.quiet != claiming.is_quiet:
            line = (
                "%s: claims no more jobs, on request (for example, for a move)" if beat.quiet else "%s: may claim again"
            )
            log.warning(line, self.id)
        claiming.is_quiet = beat.quiet
        if beat.quiet:
            slots.spawn(self._check_moved())
        for attempt in slots.attempts.values():
            if isinstance(attempt, IsolatedAttempt):
                attempt.renew()
        if claiming.is_claiming or claiming.turns or claiming.is_stopping:
            return
        held = {*slots.running.values(), *slots.attempts}
        for lease in beat.stray:
            if lease not in held:
                slots.spawn(self._giving_up.release(lease, "its worker held it without knowing that"))

    async def _hear_news(self) -> None:
        """Learn at once when a job is taken from us. The heartbeat then says which."""
        mark = 0
        while True:
            try:
                mark = await self._engine.wait([worker_topic(self.id)], self._poll_seconds, mark)
                self._leases.beat_now()
            except StoreLost as error:
                self._lose(error)
                return
            except Exception as error:
                log.warning("%s: can't read notifications: %s: %s", self.id, type(error).__name__, error)
                await asyncio.sleep(STORE_RETRY_SECONDS[-1])

    async def _write_logs(self) -> None:
        """Write new log lines of all running jobs now and then, so that they survive a crash in a long step."""
        while True:
            await asyncio.sleep(LOG_SECONDS)
            attempts = [attempt for attempt in self._slots.attempts.values() if attempt.stop is None]
            steps = [step for attempt in attempts for step in attempt.progress.take_log_record()]
            try:
                if steps:
                    await self._engine.record(steps)
            except HoldfastError as error:
                log.debug("log lines will be written a little later: %s", error)


def worker_id(host: str) -> str:
    """Make a new worker name for each start: its machine, its process, and a random part."""
    machine = re.sub(r"[^A-Za-z0-9.-]", "-", host)[:40]
    return f"w-{machine}-{os.getpid()}-{secrets.token_hex(3)}"
