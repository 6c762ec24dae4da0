"""Rescue: jobs whose worker is gone, whose stage went stale, or whose timeout passed unheeded.

Every worker's process looks for the dead, not only the leader, who may be the dead one. Must not rest correctness on
what it sees: each rescue is a change that expects the version it looked at, so of many rescuers one wins. Nor must it
take a job on an old snapshot: the judge is asked again, by a fresh one, right before the change is written.
"""

import random
from collections.abc import Callable, Sequence
from typing import Any

from holdfast.core.changes import abandon, activate, overrun
from holdfast.core.durations import in_words
from holdfast.core.model import (
    Applied,
    Change,
    Error,
    Event,
    Job,
    Presence,
    Running,
    State,
    StepState,
    Time,
    Where,
)
from holdfast.core.outcome import doubt_text, failure_event, in_doubt, retry_at
from holdfast.engines.contract import Engine
from holdfast.jobs.consequences import UNDO_TYPE, notify_others, presence_of, running_of
from holdfast.jobs.lost_workers import Past, decide_loss, read_past
from holdfast.jobs.service import Jobs, history_of
from holdfast.jobs.status import progress_record
from holdfast.safe_text import logger
from holdfast.upkeep.snapshot import Snapshot, Snapshots, describe_death

log = logger("holdfast.upkeep")

OVERRUN_MARGIN_MS = 5_000
"""How long after its timeout a job is left to its owner, who should have stopped it."""

UNDOS_AT_ONCE = 100
"""How many undo jobs that wait for their owner are checked at once. The next time those behind them are."""

Found = tuple[str, Presence | None]
"""Why a job is to be taken from its worker, and what was seen of that worker."""

Judge = Callable[[Job, Snapshot], Found | None]
"""Says by a snapshot whether a job is to be taken from its worker. It is asked again right before that is done."""


class Rescue:
    """Rescues jobs. `lease_seconds` is how long a silent worker is believed in."""

    def __init__(self, engine: Engine, *, lease_seconds: float, chance: Callable[[], float] = random.random) -> None:
        self._engine = engine
        self._jobs = Jobs(engine)
        self._chance = chance
        self.snapshots = Snapshots(engine, lease_seconds)
        self._missed: dict[str, Time] = {}
        """Workers that hold jobs and left no trace, and since when each was missed."""
        self._undo_after = ""
        """The last undo job that was looked at, while there are more behind it."""

    async def rescue_dead(self, by: str, snapshot: Snapshot | None = None) -> list[Job]:
        """Rescue the jobs of workers that are gone, or silent for longer than a lease; answer with those."""
        snapshot = snapshot or await self.snapshots.take()
        if not any(self.snapshots.is_dead(one, snapshot) for one in snapshot.present.values()):
            return []
        rescued = await self._rescue_all(await self.held_jobs(), snapshot, by, self._is_lost)
        await self._begin_undos(snapshot, by)
        return rescued

    def _is_lost(self, job: Job, snapshot: Snapshot) -> Found | None:
        presence = snapshot.present.get(job.worker or "")
        if presence is None or not self.snapshots.is_dead(presence, snapshot):
            return None
        return describe_death(presence, snapshot), presence

    async def _begin_undos(self, snapshot: Snapshot, by: str) -> None:
        """Let the undo of a cancelled job begin whose owner is gone: nobody will say that it has stopped."""
        where = Where(states=(State.PENDING,), type=UNDO_TYPE)
        page = await self._engine.find(where, self._undo_after, UNDOS_AT_ONCE)
        self._undo_after = page[-1].id if len(page) == UNDOS_AT_ONCE else ""
        for undo in page:
            owners = [one.by for one in await history_of(self._engine, undo.parent or "") if one.event == Event.CLAIM]
            if not owners or (fresh := await self.snapshots.refresh(snapshot)) is None:
                continue
            snapshot = fresh
            presence = snapshot.present.get(owners[-1])
            if presence is not None and self.snapshots.is_dead(presence, snapshot):
                note = {"lost": owners[-1], "why": describe_death(presence, snapshot)}
                await self._commit(activate(undo, snapshot.now, by=by, note=note))

    async def held_jobs(self) -> list[Job]:
        """All jobs that somebody runs."""
        return [job async for job in self._jobs.walk(Where(states=(State.ACTIVE,)))]

    async def rescue_orphans(
        self, by: str, snapshot: Snapshot | None = None, held: Sequence[Job] | None = None
    ) -> list[Job]:
        """Rescue jobs that are held by a worker of whom there was no trace for longer than a lease. The trace of one
        that lives may have been removed: it comes back with the next heartbeat. `snapshot` and `held`, the jobs that
        somebody runs, may be old: what counts is what is so when a job is taken.
        """
        snapshot = snapshot or await self.snapshots.take()
        held = await self.held_jobs() if held is None else held
        missed = {job.worker for job in held if job.worker is not None} - snapshot.present.keys()
        self._missed = {worker: self._missed.get(worker, snapshot.now) for worker in missed}
        return await self._rescue_all(held, snapshot, by, self._is_orphan)

    def _is_orphan(self, job: Job, snapshot: Snapshot) -> Found | None:
        if job.worker in snapshot.present or not self.snapshots.is_awake(snapshot):
            return None
        since = self._missed.get(job.worker or "", snapshot.now)
        return ("its worker left no trace", None) if snapshot.now - since > self.snapshots.lease_ms else None

    async def rescue_stale(self, by: str, snapshot: Snapshot | None = None) -> list[Job]:
        """Rescue jobs whose worker lives but whose stage has shown no progress for too long."""
        snapshot = snapshot or await self.snapshots.take()
        running = [one for presence in snapshot.present.values() for one in self._stale_of(presence, snapshot)]
        jobs = await self._engine.get([one.job for one in running]) if running else []
        held = [job for job in jobs if job is not None and job.state is State.ACTIVE]
        return await self._rescue_all(held, snapshot, by, self._is_stale)

    def _is_stale(self, job: Job, snapshot: Snapshot) -> Found | None:
        presence = snapshot.present.get(job.worker or "")
        if presence is None:
            return None
        for running in self._stale_of(presence, snapshot):
            if (running.job, running.epoch) == (job.id, job.epoch):
                silent = in_words(_silent_ms(running, presence, snapshot))
                why = (
                    f"stage {running.stage} showed no progress for {silent}, "
                    f"longer than {in_words(running.stale_after_ms or 0)}; its worker lives"
                )
                return why, presence
        return None

    def _stale_of(self, presence: Presence, snapshot: Snapshot) -> list[Running]:
        """What a worker runs that shows no progress. Of a silent one, or while the store was away, nobody knows."""
        if presence.store_away or self.snapshots.is_silent(presence, snapshot):
            return []
        limited = [one for one in presence.running if one.stale_after_ms is not None]
        return [one for one in limited if _silent_ms(one, presence, snapshot) > (one.stale_after_ms or 0)]

    async def fail_overrun(self, by: str, held: Sequence[Job] | None = None) -> list[Job]:
        """Fail jobs whose timeout has passed and whose owner did nothing. `held` as in `rescue_orphans`."""
        now = await self._engine.now()
        failed: list[Job] = []
        for job in await self.held_jobs() if held is None else held:
            limit = job.options.timeout_ms
            if limit is None or job.claimed_at is None or now <= job.claimed_at + limit + OVERRUN_MARGIN_MS:
                continue
            now = await self._engine.now()  # what came before took its time, and the backoff counts from here
            error = Error("TimeoutError", f"the job took longer than its timeout of {in_words(limit)}")
            note: dict[str, Any] = {"worker": job.worker, "error": f"TimeoutError: {error.message}"}
            doubts = in_doubt(await self._engine.steps_under_each([job.id], "", StepState.STARTED))
            if doubts:
                error = Error("EffectInDoubt", doubt_text(job.id, doubts, error.message))
                note["in_doubt"] = doubts
            steps = progress_record(job, running_of(await presence_of(self._engine, job), job), now)
            run_at = None
            if doubts or failure_event(job, error.type) is not Event.FAIL:
                change = abandon(job, now, by=by, error=error, note=note, steps=steps)
            else:
                run_at = retry_at(job, now, self._chance())
                change = overrun(job, now, by=by, error=error, run_at=run_at, note=note, steps=steps)
            if await self._commit(change):
                failed.append(job)
                which = f"attempt {job.attempt} of {job.options.retry.retries + 1}"
                then = "it needs a person: holdfast review"
                if run_at is not None:
                    then = f"next attempt in {in_words(run_at - now)}"
                log.warning(
                    "job %s (%s) failed (%s): %s: %s; %s", job.id, job.type, which, error.type, error.message, then
                )
        return failed

    async def _rescue_all(self, jobs: Sequence[Job], snapshot: Snapshot, by: str, judge: Judge) -> list[Job]:
        """Take those jobs from their workers of which the judge says so; answer with them."""
        rescued: list[Job] = []
        for job in jobs:
            if judge(job, snapshot) is None:
                continue
            past = await read_past(self._engine, job.id)
            if (fresh := await self.snapshots.refresh(snapshot)) is None:
                log.info("job %s: its worker may be lost; the store is too slow to be sure just now", job.id)
                continue
            snapshot = fresh
            if (found := judge(job, snapshot)) is not None and await self._rescue(job, past, snapshot.now, by, *found):
                rescued.append(job)
        return rescued

    async def _rescue(self, job: Job, past: Past, now: Time, by: str, why: str, presence: Presence | None) -> bool:
        """Take a job from its worker: back to the queue, or to a person. The history tells what survived."""
        change = decide_loss(
            job,
            past,
            now,
            by=by,
            why=why,
            running=running_of(presence, job),
            recovery=presence is None or not presence.store_away,
            silent=presence is not None and not presence.gone,
        )
        is_rescued = await self._commit(change)
        error = change.job.error if change.event is Event.ABANDON else None
        if is_rescued and error is not None:
            log.error(
                "job %s: worker %s is lost: %s; it needs a person: holdfast review", job.id, job.worker, error.message
            )
        elif is_rescued:
            log.warning("job %s: worker %s is lost; it goes on elsewhere", job.id, job.worker)
        return is_rescued

    async def _commit(self, change: Change) -> bool:
        (answer,) = await self._engine.commit([change])
        if isinstance(answer, Applied):
            await notify_others(self._engine, change, answer, by=change.by)
        return isinstance(answer, Applied)


def _silent_ms(running: Running, presence: Presence, snapshot: Snapshot) -> int:
    """For how long a job has shown no progress: as its worker said, and since then."""
    return running.silent_ms + snapshot.now - presence.beat_at
