"""The second part of an attempt, after its handler ended: decide what its end means, commit, notify others, forget it.

Must not run jobs (`execution`). Most ends need only a commit: those that arrive together are committed together, and
the same call claims jobs for their slots.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import cast

from holdfast.core.errors import HoldfastError, Invalid, StoreError, StoreLost
from holdfast.core.model import Applied, Change, Conflict, Event, Job
from holdfast.core.throttling import throttle_of_job
from holdfast.engines.contract import Engine
from holdfast.jobs.consequences import announce_stopped, may_concern_others, notify_others, wake_now
from holdfast.jobs.lost_workers import CUT_OFF
from holdfast.safe_text import logger
from holdfast.worker.attempt import Attempt
from holdfast.worker.booking import book, is_unbooked
from holdfast.worker.claiming import CLAIM_LIMIT, Claiming
from holdfast.worker.held_job import CANCELLED, CUT, DOUBTED, ENDED, LOST, RELEASED, SUSPENDED
from holdfast.worker.hook_reports import HookReports
from holdfast.worker.job_log import DURATION, is_logged, log_committed, log_stopped, log_waiting
from holdfast.worker.outcomes import decide_end
from holdfast.worker.release import GivingUp
from holdfast.worker.slots import EndedAttempt, Slots
from holdfast.worker.throttling import commit_rest, heed_job, rest_after

log = logger("holdfast.worker")

SETTLERS = 2
"""How many commits of ends may be under way at once: while the store works on one, the next is prepared."""


class Settling:
    """Settles the attempts of one worker."""

    def __init__(
        self,
        engine: Engine,
        worker: str,
        slots: Slots,
        claiming: Claiming,
        giving_up: GivingUp,
        chance: Callable[[], float],
        reports: HookReports | None = None,
    ) -> None:
        self._engine = engine
        self._worker = worker
        self._slots = slots
        self._claiming = claiming
        self._giving_up = giving_up
        self._chance = chance
        self._reports = reports
        self.settlers: set[asyncio.Task[None]] = set()

    def settle(self, attempt: Attempt, result: str | None, error: BaseException | None) -> None:
        """Settle an attempt whose handler has ended: together with others, if its end needs only a commit."""
        if _needs_care(attempt, error):
            self._slots.occupy(attempt.lease, self.settle_alone(attempt, result, error))
            return
        attempt.mark_ended()
        self._slots.ended.append((attempt, result, error))
        if len(self.settlers) < SETTLERS:
            settler = self._slots.loop.create_task(self._settle_together(), name="holdfast ends")
            self.settlers.add(settler)
            settler.add_done_callback(self.settlers.discard)

    # Together.

    async def _settle_together(self) -> None:
        """Commit the ends that have arrived and refill their slots in the same call; repeat for new ends."""
        try:
            await self._commit_batches()
        finally:  # right away, not in a callback: an attempt that ends meanwhile needs a settler
            self.settlers.discard(cast(asyncio.Task[None], asyncio.current_task()))

    async def _commit_batches(self) -> None:
        slots, claiming = self._slots, self._claiming
        while slots.ended:
            ended, slots.ended = slots.ended[:CLAIM_LIMIT], slots.ended[CLAIM_LIMIT:]
            free = claiming.refill_size()
            reserved = max(free, len(ended))
            slots.reserved += reserved
            claiming.turns += 1
            sent = time.monotonic()
            try:
                jobs = await self._commit_batch(ended, free)
            finally:
                claiming.turns -= 1
                slots.reserved -= reserved
                slots.room.set()
            claiming.receive(jobs, free, sent)

    async def _commit_batch(self, ended: Sequence[EndedAttempt], free: int) -> Sequence[Job]:
        """Commit these ends and claim jobs for this many slots; return the claimed jobs."""
        slots = self._slots
        try:
            now = await self._engine.now()
            changes = [decide_end(*one, now=now, by=self._worker, chance=self._chance) for one in ended]
        except Exception:
            for one in ended:
                slots.occupy(one[0].lease, self.settle_alone(*one))
            return []
        claiming = self._claiming
        try:
            answers, jobs = await self._engine.turn(changes, self._worker, claiming.queues, free, claiming.types())
        except Exception:
            # One of them may be the reason, or the store is unreachable: each retries alone, for as long as it takes.
            for (attempt, _, _), change in zip(ended, changes, strict=True):
                slots.occupy(attempt.lease, self._commit_alone(attempt, change))
            return []
        is_told = is_logged()
        for (attempt, _, _), change, answer in zip(ended, changes, answers, strict=True):
            if not isinstance(answer, Applied) or may_concern_others(change, answer):
                slots.occupy(attempt.lease, self._notify(attempt, change, answer))
            else:
                if is_told:
                    log_committed(attempt, change.event)
                slots.forget(attempt)
        return jobs

    # Alone.

    async def settle_alone(self, attempt: Attempt, result: str | None, error: BaseException | None) -> None:
        """Settle one attempt by itself: one that was stopped, or while the store is unreachable."""
        try:
            if attempt.is_closing and await attempt.wait_for_suspend():  # it ended just while it was suspended
                why = "the job ended while it was being suspended"
                await wake_now(self._engine, attempt.job.id, by=self._worker, why=why)
            stop = attempt.stop if attempt.stop != ENDED else None
            attempt.mark_ended()
            await attempt.wait_until_answered()
            await attempt.journal.wait_until_written()
            if stop is None and error is None and attempt.journal.effects.is_in_doubt():
                stop = DOUBTED
            if stop not in (LOST, CANCELLED, SUSPENDED):
                await book(attempt)
            now = await attempt.persist(self._engine.now)
            if stop in (LOST, CANCELLED, SUSPENDED):
                self._leave_to_others(attempt, stop)
            elif stop == CUT:
                await self._count_as_lost(attempt)
            else:
                releases = await self._giving_up.count_releases(attempt.job) if stop == RELEASED else 0
                try:
                    throttle = await heed_job(attempt, error, now) if stop is None else None
                except Invalid as wrong:
                    throttle, error = None, wrong
                change = (
                    decide_end(
                        attempt, result, error, stop=stop, now=now, by=self._worker, chance=self._chance,
                        releases=releases,
                    )
                    if throttle is None
                    else rest_after(attempt, error, throttle, now, by=self._worker)
                )  # fmt: skip
                await self._commit_alone(attempt, change)
        except StoreError as away:
            _log_away(attempt, away)
        finally:
            self._slots.forget(attempt)

    async def _commit_alone(self, attempt: Attempt, change: Change) -> None:
        try:
            if change.event == Event.REST:
                change, answer = await commit_rest(attempt, change)
            else:
                (answer,) = await attempt.persist(lambda: self._engine.commit([change]))
            await self._notify(attempt, change, answer)
        except StoreError as away:
            _log_away(attempt, away)
        finally:
            self._slots.forget(attempt)

    async def _notify(self, attempt: Attempt, change: Change, answer: Applied | Conflict) -> None:
        """Wake whoever waits for the end of an attempt. One whose end was refused has lost its job."""
        try:
            if not isinstance(answer, Applied) and not await attempt.is_in_history(change):
                text = f"lost its lease: its end was refused, {answer.reason}; another worker continues it"
                log_stopped(attempt, logging.WARNING, LOST, text)
                self._report_stop(attempt)
            else:
                log_committed(attempt, change.event)
                if self._reports is not None and not isinstance(answer, Applied):
                    self._reports.stored(change)
            await attempt.persist(lambda: notify_others(self._engine, change, answer, by=self._worker))
        except StoreError as away:
            _log_away(attempt, away)
        finally:
            self._slots.forget(attempt)

    def abandon(self, attempt: Attempt, error: StoreError) -> None:
        """Give up an attempt before its handler ran, because the store is unreachable."""
        self._slots.forget(attempt)
        _log_away(attempt, error)

    # Ends that need no commit.

    def _leave_to_others(self, attempt: Attempt, stop: str) -> None:
        """Log what happened to a job that isn't ours any more."""
        doubts = attempt.journal.effects.doubts
        if stop == SUSPENDED:
            log_waiting(attempt, attempt.waits)
        elif stop == LOST:
            text = f"lost its lease (epoch {attempt.job.epoch}) after {DURATION} and was stopped here"
            text += "; another worker continues it"
            log_stopped(attempt, logging.WARNING, LOST, text)
        elif doubts:
            text = f"was cancelled after {DURATION}; {', '.join(doubts)} may have happened: begun and not recorded"
            log_stopped(attempt, logging.WARNING, CANCELLED, text)
        else:
            log_stopped(attempt, logging.INFO, CANCELLED, f"was cancelled after {DURATION}")
        if stop != SUSPENDED:
            self._report_stop(attempt)

    def _report_stop(self, attempt: Attempt) -> None:
        """Tell others that a job which isn't ours any more was stopped here."""
        if self._reports is not None:
            self._reports.stopped(attempt.job)
        self._slots.spawn(self._announce_stop(attempt))

    async def _count_as_lost(self, attempt: Attempt) -> None:
        """End an attempt whose event loop is ending. Its last log lines may say why."""
        if lines := attempt.progress.take_log_record():
            await self._engine.record(lines)
        log_stopped(attempt, logging.WARNING, LOST, f"ended with its worker's event loop after {DURATION}")
        await self._giving_up.lapse(attempt.lease, CUT_OFF, attempt.journal.effects.drops)

    async def _announce_stop(self, attempt: Attempt) -> None:
        """Allow the undo of a cancelled job, because nothing of it runs here any more. An interrupted effect stays in
        doubt, and the undo's history names it.
        """
        doubts = tuple(attempt.journal.effects.doubts)
        try:
            await attempt.wait_until_still()
            await announce_stopped(self._engine, attempt.job, by=self._worker, doubts=doubts)
        except HoldfastError as error:
            log.warning("job %s: its undo starts a little later: %s", attempt.job.id, error)


def _needs_care(attempt: Attempt, error: BaseException | None) -> bool:
    """Whether the end of an attempt needs more than a commit: it was stopped, or something is still being written."""
    if attempt.stop is not None or attempt.is_closing or attempt.is_asking():
        return True
    if throttle_of_job(error, time.time(), is_limited=bool(attempt.job.options.limits)) is not None:
        return True
    if attempt.is_plain():
        return False
    if is_unbooked(attempt):
        return True
    journal = attempt.journal
    return journal.is_writing() or (error is None and journal.effects.is_in_doubt())


def _log_away(attempt: Attempt, error: StoreError) -> None:
    if isinstance(error, StoreLost):
        log.warning("job %s: stopped; its result can't be written, because its store is lost", attempt.job.id)
        return
    log.warning(
        "job %s: stopped because the store is unreachable; it resumes when the store is back: %s", attempt.job.id, error
    )
