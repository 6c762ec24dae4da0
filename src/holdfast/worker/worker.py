"""The worker: claims jobs into its slots, runs each as an attempt, and commits what came of it.

Must not rescue other workers' jobs (`upkeep`), and must not know decorators (`app`).
"""

import asyncio
import contextvars
import os
import random
import re
import secrets
import socket
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, cast

from holdfast import forking
from holdfast.background import LogOnce
from holdfast.core.durations import in_words
from holdfast.core.errors import BadValue, HoldfastError, Invalid, Moved, StoreError, StoreLost
from holdfast.core.lifecycle import decide
from holdfast.core.model import TYPES_TOLD, Applied, Beat, Change, Conflict, Event, Job, Lease, Presence, Time
from holdfast.core.moves import MOVED, mark_of
from holdfast.core.unreadable import set_aside, unreadable_parts
from holdfast.engines.contract import Engine
from holdfast.engines.topics import queue_topic, worker_topic
from holdfast.jobs.consequences import UNDO_TYPE, concerns_others, say_stopped, tell_others, wake_now
from holdfast.safe_text import logger
from holdfast.worker.attempt import (
    CANCELLED,
    CUT,
    DOUBTED,
    ENDED,
    LOG_SECONDS,
    LOST,
    RELEASED,
    STORE_RETRY_SECONDS,
    SUSPENDED,
    Attempt,
)
from holdfast.worker.context import CAPTURING, register_host, timers_here
from holdfast.worker.handler import Work, guarded, handled, within
from holdfast.worker.isolation.isolated_attempt import IsolatedAttempt
from holdfast.worker.isolation.pool import Pool
from holdfast.worker.leases import Leases
from holdfast.worker.outcomes import outcome
from holdfast.worker.registry import JobSpec, Registry
from holdfast.worker.release import GivingUp
from holdfast.worker.suspension import Suspension
from holdfast.worker.timers import watch_timers
from holdfast.worker.undo import foreign_type, undo_spec

log = logger("holdfast.worker")

CLAIM_LIMIT = 200
"""How many jobs one claim takes at most, however many slots are free."""

UNDO_REST_MS = (2_000, 60_000)
"""An undo job of another app rests for as long as it has waited already, within these bounds."""

UNDO_HEAD_START_SECONDS = 2.0
"""How much longer its worker claims no undo jobs: a worker that has the code claims it first."""

UNDO_ELSEWHERE_MS = 3_600_000
"""How long an undo job is left to workers that know more."""

ROOM_SECONDS = 1.0
"""How often a worker that may not claim looks whether it may again."""

PARTS = 3
"""One claim takes at most this part of the slots: while the store works on one part of them, the others run."""

SETTLERS = 2
"""How many acts that commit ends may be under way at once: while the store works on one, the next is made ready."""

HALT_SECONDS = 5.0
"""How long an attempt that was told to stop may take for it, before it is handed over in mid-air."""


CUT_OFF = "something that ran in its worker ended the event loop (sys.exit or loop.stop() in a task or a callback?)"
"""What the history tells of a job whose worker's event loop ended, though nobody had told the worker to stop."""


Ended = tuple[Attempt, str | None, BaseException | None]
"""An attempt whose handler has come to its end, with its result or its error."""


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
        self._giving_up = GivingUp(engine, self.id)
        self._attempts: dict[Lease, Attempt] = {}
        self._running: dict[asyncio.Task[Any], Lease] = {}
        self._room = asyncio.Event()
        self._ended: list[Ended] = []
        self._settlers: set[asyncio.Task[None]] = set()
        self._held = 0
        """Slots that are spoken for: claims that are under way may fill them."""
        self._claiming = False
        self._turning = 0
        """How many turns are under way: they may bring jobs, as a claim does."""
        self._has_more = False
        """Whether the last claim found all that it asked for, so that there may be more."""
        self._stopping = False
        self.is_cut = False
        """Whether the event loop is ending around this worker, and nobody had told it to stop."""
        self.lost: StoreLost | Moved | None = None
        """Why this worker stopped by itself: what it wrote is gone from the store, and it may write nothing more."""
        self._is_lost = asyncio.Event()
        self._quiet = False
        self._no_undo_until = 0.0
        """By the clock of the loop: until then undo jobs are left to other workers."""
        self._foreign: set[str] = set()
        """The types of job whose undo was left to other workers, and the log says so."""
        self._captures = False
        self._tasks: list[asyncio.Task[None]] = []
        self._releases: set[asyncio.Task[None]] = set()
        self._started_at: Time = 0
        self._beat_ms, self._lease_ms = round(beat_seconds * 1_000), round(lease_seconds * 1_000)
        self._leases = Leases(
            engine,
            self._presence,
            self._told_from_afar,
            self._lost_from_afar,
            beat_seconds=beat_seconds,
            lease_seconds=lease_seconds,
            runs=lambda: self._loop.is_running(),
        )
        self._writing = LogOnce(log, f"{self.id}: can't write to its store", f"{self.id}: writes to its store again")
        self._loop: asyncio.AbstractEventLoop
        self._own_loop: forking.OwnLoop | None = None
        # What every attempt is given, bound once.
        self._may_start, self._tell, self._isolate = self._leases.may_start, self._leases.news, self._pool.run
        self._when_handled, self._context = self._handled, contextvars.copy_context()
        register_host(self)

    # Starting and stopping.

    async def start(self) -> None:
        """Show that we live, then begin to claim."""
        self._loop, self._own_loop = asyncio.get_running_loop(), forking.OwnLoop()
        watch_timers(self._loop, timers_here)
        self._started_at = await self._engine.now()
        await self._leases.start()
        CAPTURING.start()
        self._captures = True
        self._tasks = [
            self._loop.create_task(self._claims(), name="holdfast claims"),
            self._loop.create_task(self._news(), name="holdfast news"),
        ]
        self._logging = self._loop.create_task(self._keep_logs(), name="holdfast logs")

    async def stop(self, grace_seconds: float = 10.0) -> None:
        """Claim nothing more, let what runs finish within the grace, hand over the rest, and take leave.

        May be called twice, and on a worker that never started. Called because the event loop is ending, it hands
        nothing over: what runs counts as lost with its worker.
        """
        if not self._tasks:
            return
        self._note_cut()
        try:
            await self._stop_claiming()
            await self._all_ended(0 if self.is_cut or self.lost is not None else grace_seconds)
            self.abort()
            await self._all_ended(HALT_SECONDS)
            for task, lease in list(self._running.items()):
                await self._leave_running(lease)
                task.cancel()
        finally:
            if self._captures:  # it is shared with the other workers of this process
                self._captures = False
                CAPTURING.stop()
            # News are heard to the end: a cancel stops the spending in the grace too.
            for task in (*self._tasks, self._logging):
                task.cancel()
            await self._pool.close()
            await self._leases.stop(leaving=not self.is_cut)
            self._own_loop = None

    def _note_cut(self) -> None:
        """Know a loop that ends around us by a cancel that nobody here has asked for: every task gets one then."""
        if not self._stopping and self._tasks[0].cancelling():
            self.is_cut = self._stopping = True
            self._say_cut()

    def _say_cut(self) -> None:
        log.error("%s: %s; running jobs that count as lost: %d", self.id, CUT_OFF, len(self._attempts))

    async def _leave_running(self, lease: Lease) -> None:
        """A job did not stop when it was told to."""
        if self.is_cut:
            await self._giving_up.lapse(lease, CUT_OFF)
        elif self.lost is None:
            log.warning("job %s does not stop: it is handed over while it still runs here", lease.job)
            await self._giving_up.release(lease, "its worker stopped, and it did not", begun=True)
        else:
            log.warning("job %s does not stop: it still runs here, and can write nothing", lease.job)

    async def _all_ended(self, seconds: float) -> None:
        """Wait until nothing runs here any more, and all that ended is committed; but not for longer than this."""
        end = self._loop.time() + seconds
        while self._is_running() and (left := end - self._loop.time()) > 0:
            await asyncio.wait([*self._running, *self._settlers], timeout=left)

    def abort(self) -> None:
        """Stop at once: what runs is handed over without a grace."""
        self._stopping = True
        for attempt in list(self._attempts.values()):
            attempt.halt(self._why_stopped())

    def _why_stopped(self) -> str:
        return CUT if self.is_cut else RELEASED

    async def until_lost(self) -> StoreLost | Moved:
        """Wait until this worker has stopped by itself because its store is lost; in good times for ever."""
        await self._is_lost.wait()
        assert self.lost is not None
        return self.lost

    def _lose(self, error: StoreLost | Moved) -> None:
        """Stop for good, and say so once: others may run our jobs under the same epochs, and no fence holds us back."""
        if self.lost is not None:
            return
        self.lost = error
        told = (
            "%s: its store is lost: it claims nothing more, and stops its running jobs (%d), which can't be written: %s"
        )
        if isinstance(error, Moved):
            log.warning("%s: stops: %s", self.id, error)
        else:
            log.critical(told, self.id, len(self._attempts), error)
        self.abort()
        self._is_lost.set()

    def has_attempts(self) -> bool:
        """See AttemptHost. A worker whose event loop has ended runs nothing."""
        return bool(self._attempts) and self._loop.is_running()

    def is_busy(self) -> bool:
        """Whether anything runs here: a job, or what follows from the end of one."""
        return self._is_running() or bool(self._releases)

    def _is_running(self) -> bool:
        return bool(self._running or self._settlers)

    async def _stop_claiming(self) -> None:
        self._stopping = True
        claims = self._tasks[0]
        # A claim that is under way is waited for: what it brings would be held by nobody.
        if not self._claiming:
            claims.cancel()
        await asyncio.wait([claims], timeout=HALT_SECONDS)
        claims.cancel()

    # Claiming.

    def types(self) -> tuple[str, ...]:
        """The types of job that this worker claims: those of its registry, and the built-in ones."""
        return (*self._registry.types(), UNDO_TYPE)

    def _types_now(self) -> tuple[str, ...]:
        """The same, without undo jobs while those are left to other workers."""
        types = self.types()
        return types[:-1] if len(types) > 1 and self._loop.time() < self._no_undo_until else types

    def _may_claim(self) -> bool:
        return not self._stopping and not self._quiet and self._leases.may_start()

    def _free(self) -> int:
        """How many slots nothing runs in, nothing has just ended in, and nothing is on its way to."""
        return self.at_once - len(self._running) - len(self._ended) - self._held

    async def _claims(self) -> None:
        topics = [queue_topic(queue) for queue in self.queues]
        most = min(CLAIM_LIMIT, max(1, self.at_once // PARTS))
        mark, tries = 0, 0
        trouble = LogOnce(log, f"{self.id}: can't claim", f"{self.id}: claims again")
        while not self._stopping:
            self._room.clear()
            free = min(self._free(), most)
            if free <= 0 or not self._may_claim():
                await self._wait_for_room()
                continue
            try:
                if await self._claim(free) < free and not self._stopping:
                    mark = await self._engine.wait(topics, self._poll_seconds, mark)
                tries = 0
                trouble.recovered()
            except StoreLost as error:
                self._lose(error)
            except Exception as error:
                trouble.say(error)
                await asyncio.sleep(STORE_RETRY_SECONDS[min(tries, len(STORE_RETRY_SECONDS) - 1)])
                tries += 1

    async def _claim(self, free: int) -> int:
        self._claiming = True
        self._held += free
        sent = time.monotonic()
        try:
            jobs = await self._engine.claim(self.id, self.queues, free, self._types_now())
        finally:
            self._claiming = False
            self._held -= free
        self._has_more = len(jobs) == free
        self._take(jobs, sent)
        return len(jobs)

    def _take(self, jobs: Sequence[Job], sent: float) -> None:
        """Begin what a claim brought that was sent at this time."""
        if self._leases.is_over(sent):  # no beat has named them, so nobody could tell us that they are lost
            for job in jobs:
                self._aside(self._giving_up.release(job.lease, "the answer to its claim came too late"))
        else:
            for job in jobs:
                self._begin(job, sent)

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
            except StoreLost as error:
                self._lose(error)
                return
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
            types=types if len(types := self.types()) <= TYPES_TOLD else None,
            trouble=self._writing.standing(),
        )

    def _told_from_afar(self, presence: Presence, beat: Beat) -> None:
        """What the answer to a beat says about the jobs that it named. On the beat's thread."""
        named = {running.job: running.epoch for running in presence.running}
        for id in (*beat.cancelled, *beat.lost):
            attempt = self._attempts.get(Lease(id, named[id]))
            if attempt is not None:
                attempt.lose(CANCELLED if id in beat.cancelled else LOST)
        try:
            self._loop.call_soon_threadsafe(self._told, beat)
        except RuntimeError:  # the loop has ended
            pass

    def _lost_from_afar(self, error: StoreLost) -> None:
        """A beat found that the store is lost. On the beat's thread."""
        try:
            self._loop.call_soon_threadsafe(self._lose, error)
        except RuntimeError:  # the loop has ended
            pass

    def _told(self, beat: Beat) -> None:
        """The rest of what it says. While a claim is under way, what looks stray may be what it brings."""
        if beat.quiet != self._quiet:
            told = "%s: was told to claim nothing more, as for a move" if beat.quiet else "%s: may claim again"
            log.warning(told, self.id)
        self._quiet = beat.quiet
        if beat.quiet:
            self._aside(self._look_whether_moved())
        for attempt in self._attempts.values():
            if isinstance(attempt, IsolatedAttempt):
                attempt.renewed()
        if self._claiming or self._turning or self._stopping:
            return
        held = {*self._running.values(), *self._attempts}
        for lease in beat.stray:
            if lease not in held:
                self._aside(self._giving_up.release(lease, "its worker held it and did not know of it"))

    async def _look_whether_moved(self) -> None:
        """Where its jobs are elsewhere for good, a worker has nothing left to do."""
        try:
            for record in await self._engine.records(MOVED):
                if record.name == MOVED and (mark := mark_of(record.value)).done:
                    self._lose(Moved(mark.words()))
        except HoldfastError as error:
            log.debug("whether the store was moved is not known: %s", error)

    def _aside(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._releases.add(task)
        task.add_done_callback(self._releases.discard)

    # Running.

    def _begin(self, job: Job, claimed: float) -> None:
        if parts := unreadable_parts(job):
            self._go_on(job.lease, self._set_aside(job, parts))
            return
        spec = self._registry.get(job.type) or undo_spec(job, self._engine, self._registry)
        assert spec is not None, f"job {job.id}: type {job.type} was not asked for"
        if job.type == UNDO_TYPE:
            self._go_on(job.lease, self._undo_here_or_elsewhere(job, spec, claimed))
        else:
            self._start(job, spec, claimed)

    def _start(self, job: Job, spec: JobSpec, claimed: float) -> None:
        attempt = self._attempt(job, spec, claimed)
        if job.epoch > 1:
            self._go_on(job.lease, self._resume(attempt))
        else:
            self._handle(attempt)

    async def _undo_here_or_elsewhere(self, job: Job, spec: JobSpec, claimed: float) -> None:
        """Every worker claims undo jobs. One of another app's job rests, longer each time, and is left to that app.

        Not for ever: if no worker comes that has the code, it runs here, fails, and says what is missing.
        """
        try:
            now = await self._engine.now()
            waited = now - job.created_at
            foreign = None
            if waited <= UNDO_ELSEWHERE_MS:
                foreign = await foreign_type(job, self._engine, self._registry)
            if foreign is None:
                self._start(job, spec, claimed)
                return
            self._say_foreign(job, foreign)
            low, high = UNDO_REST_MS
            rest = max(low, min(high, waited))
            why = {"why": f"worker {self.id} doesn't have the code that undoes job {job.parent}"}
            change = decide(job, Event.REST, now, by=self.id, run_at=now + rest, note=why)
            self._no_undo_until = self._loop.time() + rest / 1_000 + UNDO_HEAD_START_SECONDS
            (answer,) = await self._engine.commit([change])
            if not isinstance(answer, Applied):
                await self._giving_up.release(job.lease, "it changed while it was put to rest")
        except StoreError as error:
            log.warning("job %s: %s", job.id, error)
            await self._giving_up.release(job.lease, "the store was away when it began")

    def _say_foreign(self, job: Job, type: str) -> None:
        """Once for each type: apps that share a queue meet each other's undo jobs all the time."""
        if type not in self._foreign:
            self._foreign.add(type)
            told = (
                "%s: job %s undoes a job of type %s, which this worker doesn't know: it leaves such undo jobs to "
                "workers that do, for up to %s each"
            )
            log.warning(told, self.id, job.id, type, in_words(UNDO_ELSEWHERE_MS))

    def _go_on(self, lease: Lease, work: Coroutine[Any, Any, None]) -> None:
        """Do something for a job that holds its slot meanwhile."""
        task = self._loop.create_task(work, name=f"holdfast {lease.job}")
        self._running[task] = lease
        task.add_done_callback(self._went_on)

    def _went_on(self, task: "asyncio.Task[None]") -> None:
        del self._running[task]
        self._room.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s: an attempt ended unexpectedly", self.id, exc_info=error)

    def _attempt(self, job: Job, spec: JobSpec, claimed: float) -> Attempt:
        kind = IsolatedAttempt if spec.isolated else Attempt
        attempt = kind(
            job,
            spec,
            self._engine,
            self._loop,
            claimed=claimed,
            may_start=self._may_start,
            changed=self._tell,
            chance=self._chance,
        )
        attempt.isolate, attempt.writing = self._isolate, self._writing
        if isinstance(attempt, IsolatedAttempt):
            attempt.pool, attempt.until = self._pool, self._leases.until
        if job.epoch > 1:
            for lease, older in self._attempts.items():
                if lease.job == job.id:  # it was taken from us, and came back before we heard of it
                    older.lose(LOST)
        self._attempts[attempt.lease] = attempt
        if self._stopping:
            attempt.halt(self._why_stopped())
        return attempt

    async def _resume(self, attempt: Attempt) -> None:
        """Read what earlier leases recorded, then run the handler."""
        try:
            attempt.load(await attempt.persist(lambda: self._engine.steps(attempt.job.id)))
            attempt.ask_a_person()
        except StoreError as error:
            self._over(attempt)
            _tell_away(attempt, error)
        except BadValue as error:  # one of its records can't be read
            await self._end(attempt, None, error)
        except BaseException:
            self._over(attempt)
            raise
        else:
            self._handle(attempt)

    def _handle(self, attempt: Attempt) -> None:
        """Run the handler to its end, in a task of its own."""
        if attempt.stop is not None:
            self._go_on(attempt.lease, self._end(attempt, None, None))
            return
        work: Work = IsolatedAttempt.run if isinstance(attempt, IsolatedAttempt) else handled
        limit = attempt.job.options.timeout_ms
        run = guarded(attempt, work if limit is None else partial(within, limit, work))
        task = self._loop.create_task(run, name=f"holdfast handler {attempt.job.id}")
        attempt.root = task
        self._running[task] = attempt.lease
        task.add_done_callback(partial(self._when_handled, attempt), context=self._context)

    def _handled(self, attempt: Attempt, task: "asyncio.Task[tuple[str | None, BaseException | None]]") -> None:
        """The handler has ended. Most ends need no more than a commit, and go together with others of this moment."""
        del self._running[task]
        attempt.root = None
        result, error = (None, asyncio.CancelledError()) if task.cancelled() else task.result()
        if isinstance(error, asyncio.CancelledError) and attempt.stop is None and self._tasks[0].cancelling():
            self._note_cut()
            attempt.stop = self._why_stopped()  # not by the job: the loop is ending around us
        is_plain = attempt.stop is None and not attempt.closing and not attempt.is_writing()
        if not is_plain or (error is None and attempt.is_unsettled()):
            self._go_on(attempt.lease, self._end(attempt, result, error))
            return
        attempt.end()
        self._ended.append((attempt, result, error))
        if len(self._settlers) < SETTLERS:
            settler = self._loop.create_task(self._settle(), name="holdfast ends")
            self._settlers.add(settler)
            settler.add_done_callback(self._settlers.discard)

    async def _settle(self) -> None:
        """Commit the ends that have come, and fill their slots in the same act; then those that came meanwhile."""
        try:
            await self._settle_on()
        finally:  # at once, and not when the loop comes to it: what ends meanwhile needs a settler
            self._settlers.discard(cast(asyncio.Task[None], asyncio.current_task()))

    async def _settle_on(self) -> None:
        while self._ended:
            ended, self._ended = self._ended[:CLAIM_LIMIT], self._ended[CLAIM_LIMIT:]
            free = min(self._free(), CLAIM_LIMIT) if self._has_more and self._may_claim() else 0
            held = max(free, len(ended))
            self._held += held
            self._turning += 1
            sent = time.monotonic()
            try:
                jobs = await self._settle_all(ended, free)
            finally:
                self._turning -= 1
                self._held -= held
                self._room.set()
            self._has_more = bool(free) and len(jobs) == free
            self._take(jobs, sent)

    async def _settle_all(self, ended: Sequence[Ended], free: int) -> Sequence[Job]:
        """Commit these ends and claim jobs for so many slots; what was claimed."""
        try:
            now = await self._engine.now()
            changes = [outcome(*one, now=now, by=self.id, chance=self._chance) for one in ended]
        except Exception:
            for one in ended:
                self._go_on(one[0].lease, self._end(*one))
            return []
        try:
            answers, jobs = await self._engine.turn(changes, self.id, self.queues, free, self._types_now())
        except Exception:
            # One of them may be to blame, or the store is away: each tries by itself, for as long as it takes.
            for (attempt, _, _), change in zip(ended, changes, strict=True):
                self._go_on(attempt.lease, self._commit(attempt, change))
            return []
        for (attempt, _, _), change, answer in zip(ended, changes, answers, strict=True):
            if not isinstance(answer, Applied) or concerns_others(change, answer):
                self._go_on(attempt.lease, self._committed(attempt, change, answer))
            else:
                self._over(attempt)
        return jobs

    async def _end(self, attempt: Attempt, result: str | None, error: BaseException | None) -> None:
        """The end of one attempt by itself: one that was stopped, or while the store is away."""
        try:
            if attempt.closing and await attempt.is_suspended():  # it ended in the very moment of its suspend
                await wake_now(self._engine, attempt.job.id, by=self.id, why="it ended while it was suspended")
            stop = attempt.stop if attempt.stop != ENDED else None
            attempt.end()
            await attempt.is_written()
            if stop is None and error is None and attempt.is_unsettled():
                stop = DOUBTED
            now = await attempt.persist(self._engine.now)
            if stop in (LOST, CANCELLED, SUSPENDED):
                if stop == LOST:
                    told = "job %s: lost its lease (epoch %s) and was stopped here; others go on"
                    log.warning(told, attempt.job.id, attempt.job.epoch)
                if stop == CANCELLED and attempt.doubts:
                    told = "job %s: cancelled; %s may have happened: begun and not recorded"
                    log.warning(told, attempt.job.id, ", ".join(attempt.doubts))
                if stop != SUSPENDED:
                    self._aside(self._say_stopped(attempt))
                return
            if stop == CUT:
                await self._cut(attempt)
                return
            row = await self._giving_up.row(attempt.job) if stop == RELEASED else 0
            change = outcome(attempt, result, error, stop=stop, now=now, by=self.id, chance=self._chance, row=row)
            await self._commit(attempt, change)
        except StoreError as away:
            _tell_away(attempt, away)
        finally:
            self._over(attempt)

    async def _cut(self, attempt: Attempt) -> None:
        """The end of an attempt with the event loop that it runs on. Its last log lines may tell why."""
        if lines := attempt.log_record():
            await self._engine.record(lines)
        await self._giving_up.lapse(attempt.lease, CUT_OFF, attempt.drops)

    async def _commit(self, attempt: Attempt, change: Change) -> None:
        try:
            (answer,) = await attempt.persist(lambda: self._engine.commit([change]))
            await self._committed(attempt, change, answer)
        except StoreError as away:
            _tell_away(attempt, away)
        finally:
            self._over(attempt)

    async def _committed(self, attempt: Attempt, change: Change, answer: Applied | Conflict) -> None:
        """What follows from the end of an attempt: a parent may go on; one that was refused has lost its job."""
        job = attempt.job
        try:
            if not isinstance(answer, Applied) and not await attempt.is_done(change):
                log.warning("job %s: its end was refused, %s; another worker goes on", job.id, answer.reason)
                self._aside(self._say_stopped(attempt))
            await attempt.persist(lambda: tell_others(self._engine, change, answer, by=self.id))
        except StoreError as away:
            _tell_away(attempt, away)
        finally:
            self._over(attempt)

    def _over(self, attempt: Attempt) -> None:
        """Nothing more is to be done about an attempt."""
        if attempt.parking is not None:
            Suspension.of(attempt).close()
        self._attempts.pop(attempt.lease, None)
        attempt.let_go()

    async def _say_stopped(self, attempt: Attempt) -> None:
        """Our job was cancelled, and nothing of it runs here any more: what it made may be undone. An effect that was
        cut off stays in doubt, and that is told.
        """
        doubts = () if attempt.is_bare else tuple(attempt.doubts)
        try:
            await attempt.is_still()
            await say_stopped(self._engine, attempt.job, by=self.id, doubts=doubts)
        except HoldfastError as error:
            log.warning("job %s: its undo begins a little later: %s", attempt.job.id, error)

    async def _set_aside(self, job: Job, parts: Mapping[str, str]) -> None:
        """A job of which a part can't be read goes to a person: nobody knows how it was to be run."""
        names = " and ".join(parts)
        log.error("job %s (%s): its %s can't be read; it needs a person: holdfast review", job.id, job.type, names)
        try:
            change = set_aside(job, parts, await self._engine.now(), by=self.id)
            (answer,) = await self._engine.commit([change])
            await tell_others(self._engine, change, answer, by=self.id)
        except HoldfastError as error:  # a heartbeat tells that it is ours still, and it is handed over
            log.warning("job %s: %s", job.id, error)


def _tell_away(attempt: Attempt, error: StoreError) -> None:
    if isinstance(error, StoreLost):
        log.warning("job %s: stopped; what it came to is not written, since its store is lost", attempt.job.id)
        return
    log.warning("job %s: stopped while the store is away; it goes on when it is back: %s", attempt.job.id, error)


def worker_id(host: str) -> str:
    """A worker's name, drawn anew at each start: its machine, its process, and a random part."""
    machine = re.sub(r"[^A-Za-z0-9.-]", "-", host)[:40]
    return f"w-{machine}-{os.getpid()}-{secrets.token_hex(3)}"
