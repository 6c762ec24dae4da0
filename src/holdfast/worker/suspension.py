"""How a waiting job gives up its slot: its pending waits, when it may suspend, and the commit that suspends it.

A wait is a future inside the running job. Once nothing else runs, one commit writes all pending waits, and any of them
wakes the job. Its code then runs from the top: recorded waits return at once, the others are pending again. Must not
know apps, or what a wait is for.
"""

import asyncio
import contextvars
from typing import Any, TypeVar

from msgspec.structs import replace

from holdfast.core.budgets import least_needs
from holdfast.core.changes import Cargo, rest, suspend
from holdfast.core.durations import in_words
from holdfast.core.errors import HoldfastError, Invalid
from holdfast.core.limits import WAITS
from holdfast.core.model import (
    LEASE_LOST,
    Applied,
    Change,
    Conflict,
    Signal,
    State,
    Time,
    Wait,
    WaitKind,
)
from holdfast.engines.topics import job_topic
from holdfast.jobs.consequences import wake_now
from holdfast.jobs.waiters import awaited_job, break_circle, waiters_of
from holdfast.safe_text import logger
from holdfast.worker.attempt import Attempt
from holdfast.worker.booking import book
from holdfast.worker.context import ATTEMPT, PATH
from holdfast.worker.held_job import DOUBTED, LOST, STORE_RETRY_SECONDS, SUSPENDED
from holdfast.worker.outcomes import vanished_note
from holdfast.worker.own_loop import await_on_loop, is_away
from holdfast.worker.pending_wait import PendingWait, describe_wait, is_for_jobs, wake
from holdfast.worker.wait_records import WaitRecords

T = TypeVar("T")

log = logger("holdfast.worker")

CHILD_TASKS_SECONDS = 1.0
"""How long the job waits before it suspends while only tasks that it started wait, and not the job itself."""

SHORT_SECONDS = 1.0
"""A shorter wait keeps the slot."""

QUIET_TURNS = 10
"""For how many turns of the loop nothing may start before a job suspends: tasks that were just created may first start
a step or set a timer, and what a timer has just triggered may pass through several tasks.
"""

INSTEAD = "give the wait within= or timeout=, or use holdfast.sleep"
"""What to use instead of a timer, which doesn't survive a suspend."""

SEVERAL_LIMITS_MS = 60_000
"""A job that waits for several limits runs again after this time: the store wakes it for the first one only."""

LISTEN_SECONDS = 5.0
"""How often a waiting job that still has steps running polls for signals."""


class Suspension:
    """The pending waits of one attempt. On the worker's loop."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._journal = attempt.journal
        self._pending: list[PendingWait[Any]] = []
        self._records = WaitRecords(attempt.journal)
        self._changed = asyncio.Event()
        self._watching: asyncio.Task[None] | None = None
        self.patience_seconds = CHILD_TASKS_SECONDS

    @classmethod
    def of(cls, attempt: Attempt) -> "Suspension":
        """Return the suspension of an attempt, created on first use."""
        if attempt.suspension is None:
            attempt.suspension = cls(attempt)
        assert isinstance(attempt.suspension, cls)
        return attempt.suspension

    # Waiting.

    async def wait(self, pending: PendingWait[T]) -> T:
        """Wait until it is answered."""
        attempt = self._attempt
        if is_away(attempt):
            return await await_on_loop(attempt, self.wait(pending))
        if PATH.get():
            step = PATH.get().rpartition("/")[2]
            raise Invalid(f"step {step}: a wait inside a step would keep the slot; wait in the job, between its steps")
        if len(self._pending) >= WAITS:
            raise Invalid(f"a job can wait for at most {WAITS:,} things at once; wait for some of them later")
        pending.is_root = asyncio.current_task() in (attempt.root, attempt.own_call)
        pending.since = attempt.loop.time()
        while True:
            attempt.check()  # for a task that the job left behind, the job's end is a cancel
            with attempt.activity():
                answer = await pending.poll()
            if answer is not None:
                return answer[0]
            attempt.check()
            try:
                await self._pause(pending)
            except asyncio.CancelledError:
                if attempt.stop is None and pending.path:
                    self._records.note_given_up(pending.path)
                    if self._records.open_given_up():
                        await asyncio.shield(attempt.loop.create_task(self._withdraw(), context=_outside()))
                raise

    async def _pause(self, pending: PendingWait[Any]) -> None:
        """Pause until there may be an answer."""
        attempt = self._attempt
        pending.future = attempt.loop.create_future()
        timer = None
        if pending.wait.until is not None:
            seconds = max(0.0, (pending.wait.until - attempt.now()) / 1_000)
            timer = attempt.loop.call_later(seconds, wake, pending.future, context=_outside())
        self._pending.append(pending)
        attempt.on_activity_end = self._reconsider
        self._reconsider()
        try:
            await pending.future
        finally:
            self._pending.remove(pending)
            attempt.on_activity_end = self._reconsider if self._pending else None
            if timer is not None:
                timer.cancel()

    def close(self) -> None:
        """End the waits of tasks that the job left behind, because the attempt is over."""
        for pending in self._pending:
            if pending.future is not None:
                pending.future.cancel()

    # Signals that its waits take, refuse or return.

    async def read_inbox(self) -> None:
        """Read the signals that arrived since the claim."""
        attempt = self._attempt
        (job,) = await attempt.persist(lambda: attempt.engine.get([attempt.job.id]))
        if job is None or job.state is not State.ACTIVE or job.epoch != attempt.job.epoch:
            attempt.halt(LOST)
        else:
            attempt.job = replace(attempt.job, version=job.version, inbox=job.inbox)

    def note_refusal(self, signal: Signal, error: Invalid) -> None:
        """Note a signal that doesn't match what the job waits for."""
        self._records.note_refusal(signal, error, self._attempt.job.inbox)

    def give_back(self, path: str, signal: Signal | None) -> None:
        """Cancel a wait before its code has the answer. A signal that it took goes to the next wait."""
        if self._attempt.stop is None:
            self._records.note_given_up(path)
        if signal is not None:
            self._journal.inbox.give_back(signal)
            for pending in self._pending:
                if pending.wait.name == signal.name:
                    pending.wake()

    async def _refresh(self) -> None:
        """Read what has arrived for this job meanwhile, and make every wait poll again."""
        await self.read_inbox()
        for pending in self._pending:
            pending.wake()

    # Whether the job may suspend.

    def _reconsider(self) -> None:
        """Check again whether the job must suspend now, because something started or ended."""
        if self._pending and self._watching is None:
            self._watching = self._attempt.loop.create_task(self._watch(), context=_outside())
            self._watching.add_done_callback(self._end_watching)
        self._changed.set()

    def _end_watching(self, task: "asyncio.Task[None]") -> None:
        self._watching = None
        error = None if task.cancelled() else task.exception()
        if error is not None:
            for pending in self._pending:
                if pending.future is not None and not pending.future.done():
                    pending.future.set_exception(error)
        elif self._pending and self._attempt.stop is None:
            self._reconsider()

    async def _watch(self) -> None:
        """Suspend the job as soon as it waits for nothing but its pending waits."""
        mark = 0
        while self._pending and self._attempt.stop is None:
            self._changed.clear()
            hold = LISTEN_SECONDS if self._attempt.is_busy() else self._slot_seconds()
            if hold is not None:
                hold = min(hold, await self._write_long_waits())
                mark = await self._listen(mark, hold)
                continue
            if not any(pending.is_root for pending in self._pending):
                if await self._wait_for_change(self.patience_seconds):
                    continue
            else:
                for _ in range(QUIET_TURNS):
                    await asyncio.sleep(0)
            if self._may_suspend():
                await self._suspend()

    def _may_suspend(self) -> bool:
        """Whether nothing has started since the watcher last checked."""
        is_quiet = self._pending and not self._changed.is_set() and not self._attempt.is_busy()
        return bool(is_quiet) and self._slot_seconds() is None

    def _slot_seconds(self) -> float | None:
        """Return how many seconds the job keeps its slot because something ends soon; None if it may give it up."""
        now = self._attempt.now()
        ends = [(pending.wait.until - now) / 1_000 for pending in self._pending if pending.wait.until is not None]
        soon = [seconds for seconds in ends if seconds <= SHORT_SECONDS]
        if timers := self._timer_seconds():
            soon.append(min(*timers, LISTEN_SECONDS))
        stays = max([pending.stays_until for pending in self._pending], default=0.0) - self._attempt.loop.time()
        if stays > 0:
            soon.append(stays)
        return max(0.01, min(soon)) if soon else None

    def _timer_seconds(self) -> list[float]:
        """Return the seconds until each timer of the job's own code fires, as long as they keep it in its slot.

        A timer that a task keeps setting while the job itself waits is no reason to keep the slot forever. Nor is a job
        that keeps waiting for other jobs: those may need this very slot.
        """
        attempt = self._attempt
        waits = frozenset((pending.path, pending.wait.kind, pending.wait.name) for pending in self._pending)
        repeats = any(pending.is_root or is_for_jobs(pending.wait) for pending in self._pending)
        rest = (len(self._journal.records.steps), waits)
        left = attempt.timers.holding(attempt.loop.time(), rest, repeats=repeats)
        if max(left, default=0.0) > SHORT_SECONDS and not attempt.kept_slot:
            longest = in_words(round(max(left) * 1_000))
            attempt.kept_slot = f"its code set a timer on the event loop that still has {longest} left; {INSTEAD}"
            attempt.progress.add_log_line(f"keeps its slot while it waits: {attempt.kept_slot}")
            log.warning("job %s: keeps its slot while it waits: %s", attempt.job.id, attempt.kept_slot)
        return left

    async def _wait_for_change(self, seconds: float) -> bool:
        """Return whether something started or ended within this time."""
        try:
            async with asyncio.timeout(seconds):
                return await self._changed.wait()
        except TimeoutError:
            return False

    async def _listen(self, mark: int, seconds: float) -> int:
        """Watch for signals and children while the job keeps its slot."""
        attempt = self._attempt
        if all(pending.wait.kind in (WaitKind.TIME, WaitKind.LIMIT) for pending in self._pending):
            await self._wait_for_change(seconds)
            return mark
        topics = [job_topic(attempt.job.id)]
        hearing = attempt.loop.create_task(attempt.engine.wait(topics, min(seconds, LISTEN_SECONDS), mark))
        changing = attempt.loop.create_task(self._changed.wait())
        try:
            await asyncio.wait([hearing, changing], return_when=asyncio.FIRST_COMPLETED)
        finally:
            changing.cancel()
            hearing.cancel()
        if not hearing.done() or hearing.cancelled():
            return mark
        if hearing.exception() is not None:  # the store is unreachable: don't ask it again without a pause
            await self._wait_for_change(STORE_RETRY_SECONDS[-1])
            return mark
        mark = hearing.result()
        await self._refresh()
        return mark

    # Suspending.

    async def _suspend(self) -> None:
        """Commit all pending waits, then end the attempt. If something arrived meanwhile, the job continues."""
        attempt, pending = self._attempt, list(self._pending)
        if self._journal.effects.has_unheard():  # ask a person now, not when the wait is over
            attempt.halt(DOUBTED)
            return
        waits = tuple(dict.fromkeys(wait for one in pending if not one.is_given_up for wait in one.all_waits()))
        waits = least_needs(waits)
        if sum(wait.kind is WaitKind.LIMIT for wait in waits) > 1:
            waits = _bounded(waits, attempt.now() + SEVERAL_LIMITS_MS)
        if not waits:
            await self._changed.wait()
            return
        if ready := [one for one in pending if not one.is_given_up and self._is_answered(one)]:
            for one in ready:  # its answer arrived with something else that was read
                one.wake()
            return
        note = self._make_note(pending, waits)
        attempt.is_closing = True
        try:
            await book(attempt)
            now = await attempt.persist(attempt.engine.now)
            if attempt.is_busy() or self._pending != pending or self._slot_seconds() is not None:
                return
            await self._commit(self._decide(pending, waits, now, note), pending)
        finally:
            attempt.finish_closing()
            if attempt.admissions is not None:
                attempt.admissions.continue_asking()
        if attempt.stop is None:
            await self._refresh()
        elif attempt.stop == SUSPENDED:
            await self._break_circles(waits)

    def _is_answered(self, pending: PendingWait[Any]) -> bool:
        """Whether a signal for this wait has arrived with something else that was read."""
        signals = [wait for wait in pending.all_waits() if wait.kind is not WaitKind.LIMIT]
        return any(self._journal.inbox.untaken(wait.name) for wait in signals)

    def _make_note(self, pending: list[PendingWait[Any]], waits: tuple[Wait, ...]) -> dict[str, Any]:
        """Return the history's note about a suspend."""
        attempt = self._attempt
        note: dict[str, Any] = {"waits": [describe_wait(wait, attempt.now()) for wait in waits]}
        if self._records.refused:
            note["refused"] = self._records.refused
        if attempt.kept_slot:
            note["kept_slot"] = attempt.kept_slot
        if attempt.timers.left(attempt.loop.time()):
            note["forgets"] = f"timers that its code keeps setting; they start over when the code runs again; {INSTEAD}"
            log.warning("job %s: suspends and forgets %s", attempt.job.id, note["forgets"])
        elif not attempt.spec.is_async and not any(one.is_root for one in pending):
            note["forgets"] = f"what its own thread does during the wait; a timeout there starts over; {INSTEAD}"
            log.warning("job %s: suspends and forgets %s", attempt.job.id, note["forgets"])
        if attempt.progress.has_recorded():  # a step that ran again may be recorded under another name
            note |= vanished_note(attempt)
        return note

    def _decide(
        self, pending: list[PendingWait[Any]], waits: tuple[Wait, ...], now: Time, note: dict[str, Any]
    ) -> Change:
        """Return the change that suspends the job, or schedules it if it only waits for a time."""
        job, journal, progress = self._attempt.job, self._journal, self._attempt.progress
        by = job.worker or ""
        last = (
            *self._journal.take_places_record(),
            *progress.take_log_record(),
            *progress.final_records(now, waits=True),
        )
        cargo = Cargo(
            takes=journal.inbox.spent_versions(),
            steps=(*self._records.make_all(pending), *last),
            drops=(*journal.effects.drops, *self._records.undelivered_paths()),
            note=note,
        )
        if all(wait.kind is WaitKind.TIME for wait in waits):
            ends = [wait.until for wait in waits if wait.until is not None]
            change = rest(job, now, by=by, run_at=min(ends), waits=waits, **cargo)
        else:
            change = suspend(job, now, by=by, waits=waits, **cargo)
        return replace(change, frees=self._attempt.has_asked)

    async def _commit(self, change: Change, pending: list[PendingWait[Any]]) -> None:
        """Commit a suspend. If that succeeds, this attempt ends."""
        attempt = self._attempt
        (answer,) = await attempt.persist(lambda: attempt.engine.commit([change]))
        is_lost = isinstance(answer, Conflict) and answer.reason == LEASE_LOST
        if isinstance(answer, Applied) or (is_lost and await attempt.is_in_history(change)):
            has_grown = any(one not in pending for one in self._pending)
            attempt.waits = change.job.waits
            attempt.halt(SUSPENDED)
            if has_grown:  # a wait was added while the others were written: run again, and wait for all of them
                by = attempt.job.worker or ""
                await wake_now(attempt.engine, attempt.job.id, by=by, why="it waits for more than was recorded")
        elif is_lost:
            attempt.halt(LOST)

    async def _break_circles(self, waits: tuple[Wait, ...]) -> None:
        """If jobs that we wait for also wait for us, wake one of us, whose wait is then refused."""
        job, engine = self._attempt.job, self._attempt.engine
        concerned = [job.id] if any(awaited_job(wait) for wait in waits) else []
        try:
            for id in (*concerned, *waiters_of(job)):
                await break_circle(engine, id, by=job.worker or "")
        except HoldfastError as error:
            log.debug("job %s: the check for jobs that wait for each other is postponed: %s", job.id, error)

    # Waits that keep the slot.

    async def _write_long_waits(self) -> float:
        """Write the waits that keep the slot, and when they end; return the seconds until there is more to write.

        Others can then see and answer them, and the time keeps counting after a crash. Short waits aren't written.
        """
        attempt, now = self._attempt, self._attempt.loop.time()
        soon = attempt.now() + round(SHORT_SECONDS * 1_000)
        until_kept = 0.0 if attempt.kept_slot else SHORT_SECONDS
        long, seconds = [], LISTEN_SECONDS
        for pending in self._pending:
            left = pending.since + until_kept - now
            if (pending.end is not None and pending.end > soon) or (pending.info and left <= 0):
                long.append(pending)
            elif pending.info:
                seconds = min(seconds, max(0.01, left))
        if asked := self._records.make_asked(long):
            await self._journal.write_intents(asked)
            await self._withdraw()  # those that were given up meanwhile
        return seconds

    async def _withdraw(self) -> None:
        """Let nobody answer waits that the job gave up while it keeps running."""
        with self._attempt.activity():
            if withdrawn := self._records.make_withdrawn():
                await self._journal.write_intents(withdrawn)


def _bounded(waits: tuple[Wait, ...], until: Time) -> tuple[Wait, ...]:
    """Return the same waits, and let those for limits end at this time."""
    return tuple(replace(wait, until=until) if wait.kind is WaitKind.LIMIT else wait for wait in waits)


def _outside() -> contextvars.Context:
    """Return a context that belongs to no job, so that the watcher's own timers don't count as the job's."""
    context = contextvars.copy_context()
    context.run(ATTEMPT.set, None)
    return context
