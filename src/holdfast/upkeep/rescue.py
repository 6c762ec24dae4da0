"""Rescues jobs whose worker is gone, whose stage is stale, or whose timeout has passed.

Every worker's process looks for dead workers, not only the leader, which may be the dead one. Must not rely on what it
sees: each rescue is a change that expects the version it has seen, so of many rescuers one wins. Must not act on an old
snapshot: the judge is asked again, with a fresh one, right before the change is written.
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
    Step,
    StepState,
    Time,
    Where,
)
from holdfast.core.outcome import doubt_text, failure_event, in_doubt, retry_at
from holdfast.core.reservations import (
    REMOTE_PATH,
    REMOTE_WORKER,
    is_remote,
    may_ask_for_less,
    promises_heartbeats,
    reserved_until,
)
from holdfast.core.spending import closed, reconciled
from holdfast.engines.contract import Engine
from holdfast.jobs.consequences import UNDO_TYPE, notify_others, presence_of, running_of
from holdfast.jobs.lost_workers import ALIVE, Past, decide_loss, read_past
from holdfast.jobs.record_reads import by_job, pages_of
from holdfast.jobs.service import Jobs, history_of
from holdfast.jobs.status import progress_records
from holdfast.safe_text import logger
from holdfast.upkeep.snapshot import Snapshot, Snapshots, describe_death

log = logger("holdfast.upkeep")

OVERRUN_MARGIN_MS = 5_000
"""How long after its timeout a job is left to its owner, which should have stopped it."""

RESCUED_AT_ONCE = 500
"""How many jobs one call takes from their workers, or fails for their timeout. The next call continues."""

UNDOS_AT_ONCE = 100
"""How many undo jobs that wait for their owner are checked at once. The next call continues after them."""

Found = tuple[str, Presence | None]
"""Why a job is taken from its worker, and the worker's last status."""

Judge = Callable[[Job, Snapshot], Found | None]
"""Decides by a snapshot whether to take a job from its worker. Asked again right before the job is taken."""


class Rescue:
    """Rescues jobs. A worker that is silent for `lease_seconds` counts as dead."""

    def __init__(self, engine: Engine, *, lease_seconds: float, chance: Callable[[], float] = random.random) -> None:
        self._engine = engine
        self._jobs = Jobs(engine)
        self._chance = chance
        self.snapshots = Snapshots(engine, lease_seconds)
        self._missed: dict[str, Time] = {}
        """Workers that hold jobs but have no status, and since when each is missing."""
        self.has_remote_workers = False
        """Whether a worker over HTTP was known at the last look."""
        self.ends_in_ms: int | None = None
        """In how many milliseconds after the last look the next reservation or timeout over HTTP may be over."""
        self._undo_after = ""
        """The last undo job that was checked, while there are more after it."""

    async def rescue_dead(self, by: str, snapshot: Snapshot | None = None) -> list[Job]:
        """Rescue the jobs of workers that are gone, or silent for longer than a lease; return them."""
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
        """Start the undo of a cancelled job whose owner is gone: nobody else will report that the job has stopped."""
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
        """All jobs that a worker holds."""
        return [job async for job in self._jobs.walk(Where(states=(State.ACTIVE,)))]

    async def rescue_orphans(
        self, by: str, snapshot: Snapshot | None = None, held: Sequence[Job] | None = None
    ) -> list[Job]:
        """Rescue jobs whose worker has had no status for longer than a lease.

        If a live worker's status was removed, its next heartbeat brings it back. `snapshot` and `held` (the jobs that
        workers hold) may be old: each job is checked again when it is taken.
        """
        snapshot = snapshot or await self.snapshots.take()
        held = await self.held_jobs() if held is None else held
        held = [job for job in held if not is_remote(job)]
        missed = {job.worker for job in held if job.worker is not None} - snapshot.present.keys()
        self._missed = {worker: self._missed.get(worker, snapshot.now) for worker in missed}
        return await self._rescue_all(held, snapshot, by, self._is_orphan)

    def _is_orphan(self, job: Job, snapshot: Snapshot) -> Found | None:
        if job.worker in snapshot.present or not self.snapshots.is_awake(snapshot):
            return None
        since = self._missed.get(job.worker or "", snapshot.now)
        return (
            ("its worker has no status in the store", None) if snapshot.now - since > self.snapshots.lease_ms else None
        )

    async def end_reservations(self, by: str, snapshot: Snapshot) -> list[Job]:
        """Rescue the jobs of workers over HTTP whose reservation is over, and fail those whose timeout has passed."""
        workers = await self._engine.records(REMOTE_WORKER)
        self.has_remote_workers = bool(workers)
        self.ends_in_ms = None
        if not self.has_remote_workers:
            return []
        held = [job for job in await self.held_jobs() if is_remote(job)]
        await self.fail_overrun(by, held)
        now = await self._engine.now()
        beating = {one.name.removeprefix(REMOTE_WORKER) for one in workers if promises_heartbeats(one.value)}
        late = [job for job in held if may_ask_for_less(job, beating) or self._is_unreserved(job, (), now, snapshot)]
        ends = {job.id: self._ends_at(job, (), snapshot) for job in held}
        rescued: list[Job] = []
        for page in pages_of(late):
            reports = by_job(page, await self._engine.steps_under_each([job.id for job in page], REMOTE_PATH))
            ends |= {job.id: self._ends_at(job, reports[job.id], snapshot) for job in page}
            silent = [job for job in page if self._is_unreserved(job, reports[job.id], now, snapshot)]
            rescued += [job for job in silent if await self._end_reservation(job, snapshot, by)]
        timeouts = [(job.claimed_at or now) + job.options.timeout_ms for job in held if job.options.timeout_ms]
        coming = [end for end in (*ends.values(), *timeouts) if end is not None and end >= now]
        self.ends_in_ms = min(coming) - now if coming else None
        return rescued

    def _is_unreserved(self, job: Job, reports: Sequence[Step], now: Time, snapshot: Snapshot) -> bool:
        until = self._ends_at(job, reports, snapshot)
        return until is not None and until < now

    def _ends_at(self, job: Job, reports: Sequence[Step], snapshot: Snapshot) -> Time | None:
        """When a job's reservation is over; None if no worker over HTTP holds it."""
        until = reserved_until(job, reports)
        if until is not None and (job.claimed_at or 0) < snapshot.awake_since:
            # While nobody looked, perhaps no server answered its worker.
            return max(until, snapshot.awake_since + self.snapshots.lease_ms)
        return until

    async def _end_reservation(self, job: Job, snapshot: Snapshot, by: str) -> bool:
        past = await read_past(self._engine, job.id)
        now = await self._engine.now()
        heard = [step for step in past.records if step.path.startswith(REMOTE_PATH)]
        if not self._is_unreserved(job, heard, now, snapshot):
            return False
        last = max([job.claimed_at or 0, *(one.started_at for one in heard if one.epoch == job.epoch)])
        why = f"its reservation is over: its worker reported nothing for {in_words(now - last)}"
        return await self._rescue(job, past, now, by, why, None)

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
                    f"longer than {in_words(running.stale_after_ms or 0)}; {ALIVE}"
                )
                return why, presence
        return None

    def _stale_of(self, presence: Presence, snapshot: Snapshot) -> list[Running]:
        """The jobs of a worker that show no progress. Unknown for a silent worker, or while the store was away."""
        if presence.store_away or self.snapshots.is_silent(presence, snapshot):
            return []
        limited = [one for one in presence.running if one.stale_after_ms is not None]
        return [one for one in limited if _silent_ms(one, presence, snapshot) > (one.stale_after_ms or 0)]

    async def fail_overrun(self, by: str, held: Sequence[Job] | None = None) -> list[Job]:
        """Fail jobs whose timeout has passed and whose owner hasn't reacted. `held` is as in `rescue_orphans`."""
        now = await self._engine.now()
        failed: list[Job] = []
        for job in await self.held_jobs() if held is None else held:
            limit = job.options.timeout_ms
            margin = 0 if is_remote(job) else OVERRUN_MARGIN_MS  # nobody else stops a job that runs elsewhere
            if limit is None or job.claimed_at is None or now <= job.claimed_at + limit + margin:
                continue
            running = running_of(await presence_of(self._engine, job), job)
            if running is not None and now <= job.claimed_at + limit + running.waited_ms + margin:
                continue  # it has only waited for limits for a part of that time
            if len(failed) == RESCUED_AT_ONCE:
                break
            now = await self._engine.now()  # the calls before took time, and the backoff counts from now
            error = Error("TimeoutError", f"the job took longer than its timeout of {in_words(limit)}")
            note: dict[str, Any] = {"worker": job.worker, "error": f"TimeoutError: {error.message}"}
            doubts = in_doubt(await self._engine.steps_under_each([job.id], "", StepState.STARTED))
            if doubts:
                error = Error("EffectInDoubt", doubt_text(job.id, doubts, error.message))
                note["in_doubt"] = doubts
            steps = progress_records(job, running, now)
            run_at = None
            if doubts or failure_event(job, error.type) is not Event.FAIL:
                change = abandon(job, now, by=by, error=error, note=note, steps=steps)
            else:
                run_at = retry_at(job, now, self._chance())
                change = overrun(job, now, by=by, error=error, run_at=run_at, note=note, steps=steps)
            if await self._commit(change):
                self._tell_spending(job, running)
                failed.append(job)
                which = f"attempt {job.attempt} of {job.options.retry.retries + 1}"
                then = "needs a person, see `holdfast review`"
                if run_at is not None:
                    then = f"next attempt in {in_words(run_at - now)}"
                log.warning(
                    "job %s (%s) failed (%s): %s: %s; %s", job.id, job.type, which, error.type, error.message, then
                )
        return failed

    async def _rescue_all(self, jobs: Sequence[Job], snapshot: Snapshot, by: str, judge: Judge) -> list[Job]:
        """Take the jobs that the judge picks from their workers; return these jobs."""
        rescued: list[Job] = []
        for job in jobs:
            if judge(job, snapshot) is None:
                continue
            if len(rescued) == RESCUED_AT_ONCE:
                break
            past = await read_past(self._engine, job.id)
            if (fresh := await self.snapshots.refresh(snapshot)) is None:
                log.info(
                    "job %s: its worker may be lost, but the store is too slow to be sure; will check again", job.id
                )
                continue
            snapshot = fresh
            if (found := judge(job, snapshot)) is not None and await self._rescue(job, past, snapshot.now, by, *found):
                rescued.append(job)
        return rescued

    async def _rescue(self, job: Job, past: Past, now: Time, by: str, why: str, presence: Presence | None) -> bool:
        """Take a job from its worker, and return it to the queue or to a person. The history says what survived."""
        running = running_of(presence, job)
        change = decide_loss(
            job,
            past,
            now,
            by=by,
            why=why,
            running=running,
            recovery=presence is None or not presence.store_away,
            silent=presence is not None and not presence.gone,
            silent_ms=None if presence is None else max(0, now - presence.beat_at),
        )
        is_rescued = await self._commit(change)
        if is_rescued:
            self._tell_spending(job, running, past.records)
        error = change.job.error if change.event is Event.ABANDON else None
        if is_rescued and error is not None:
            then = "needs a person, see `holdfast review`"
            log.error("job %s: lost its worker %s: %s; %s", job.id, job.worker, error.message, then)
        elif is_rescued:
            log.warning("job %s: lost its worker %s; another worker continues it", job.id, job.worker)
        return is_rescued

    def _tell_spending(self, job: Job, running: Running | None, records: Sequence[Step] = ()) -> None:
        """Tell the engine's observers what became of money since the last heartbeat of the job's worker."""
        if running is not None and running.spending is not None:
            after = closed(reconciled(running.spending, records), running.items, lost=True)
            self._engine.announce_spending(job, running.spending, after)

    async def _commit(self, change: Change) -> bool:
        (answer,) = await self._engine.commit([change])
        if isinstance(answer, Applied):
            await notify_others(self._engine, change, answer, by=change.by)
        return isinstance(answer, Applied)


def _silent_ms(running: Running, presence: Presence, snapshot: Snapshot) -> int:
    """For how long a job has shown no progress: by its worker's last status, plus the time since."""
    return running.silent_ms + snapshot.now - presence.beat_at
