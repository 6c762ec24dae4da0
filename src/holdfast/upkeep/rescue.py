"""Rescue: jobs whose worker is gone, whose stage went stale, or whose timeout passed unheeded.

Every worker's process looks for the dead, not only the leader, who may be the dead one. Must not rest correctness on
what it sees: each rescue is a change that expects the version it looked at, so of many rescuers one wins.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.core.durations import in_words
from holdfast.core.lifecycle import decide
from holdfast.core.model import (
    Applied,
    Change,
    Error,
    Event,
    Job,
    Presence,
    Running,
    State,
    Time,
    Where,
)
from holdfast.core.outcome import doubt_text, failure_event, in_doubt, retry_at
from holdfast.engines.contract import WORKER, Engine
from holdfast.jobs import Jobs
from holdfast.jobs.family import UNDO_TYPE, tell_others
from holdfast.jobs.lost import lost, past_of
from holdfast.safe import logger

log = logger("holdfast.upkeep")

OVERRUN_MARGIN_MS = 5_000
"""How long after its timeout a job is left to its owner, who should have stopped it."""

AWAKE_PART = 0.5
"""For which part of a lease one must have looked before silence counts: every worker beats three times in a lease."""


class Rescue:
    """Looks for jobs to rescue. `lease_seconds` is how long a silent worker is believed in."""

    def __init__(self, engine: Engine, *, lease_seconds: float, chance: Callable[[], float] = random.random) -> None:
        self._engine = engine
        self._jobs = Jobs(engine)
        self._lease_ms = round(lease_seconds * 1_000)
        self._chance = chance
        self._looked_at: Time | None = None
        self._awake_since: Time = 0

    async def dead(self, by: str, present: Mapping[str, Presence]) -> list[Job]:
        """Rescue the jobs of workers that are gone, or silent for longer than a lease; answer with those."""
        now = await self._engine.now()
        if self._looked_at is None or now - self._looked_at >= self._lease_ms:
            self._awake_since = now
        self._looked_at = now
        gone = {one.worker: _how(one, now) for one in present.values() if self.is_dead(one, now)}
        rescued: list[Job] = []
        if gone:
            async for job in self._jobs.walk(Where(states=(State.ACTIVE,))):
                why = gone.get(job.worker or "")
                if why and await self._rescue(job, now, by, why, present.get(job.worker or "")):
                    rescued.append(job)
            await self._let_undo(gone, now, by)
        return rescued

    async def _let_undo(self, gone: Mapping[str, str], now: Time, by: str) -> None:
        """Let the undo of a cancelled job begin whose owner is gone: nobody will say that it has stopped."""
        async for undo in self._jobs.walk(Where(states=(State.PENDING,), type=UNDO_TYPE)):
            owners = [one.by for one in await self._jobs.history(undo.parent or "") if one.event == Event.CLAIM]
            why = gone.get(owners[-1]) if owners else None
            if why:
                await self._commit(decide(undo, Event.ACTIVATE, now, by=by, note={"lost": owners[-1], "why": why}))

    def is_dead(self, presence: Presence, now: Time) -> bool:
        """Whether a worker was seen to die, or has been silent for longer than a lease.

        Who was asleep, or cut off from the store, can't tell silence from death until the living had time to beat.
        """
        awake = now - self._awake_since >= self._lease_ms * AWAKE_PART
        return presence.gone or (awake and now - presence.beat_at > self._lease_ms)

    async def held(self) -> list[Job]:
        """All jobs that somebody runs."""
        return [job async for job in self._jobs.walk(Where(states=(State.ACTIVE,)))]

    async def orphans(
        self, by: str, seen: Mapping[str, Presence] | None = None, held: Sequence[Job] | None = None
    ) -> list[Job]:
        """Rescue jobs that are held by a worker of whom no trace is left. `seen` are the workers, `held` the jobs that
        somebody runs, if just looked up.
        """
        now, present = await self._engine.now(), seen or await self.presences()
        rescued: list[Job] = []
        for job in await self.held() if held is None else held:
            if job.worker in present or job.claimed_at is None or now - job.claimed_at <= self._lease_ms:
                continue
            if await self._rescue(job, now, by, "its worker left no trace", None):
                rescued.append(job)
        return rescued

    async def stale(self, by: str, seen: Mapping[str, Presence] | None = None) -> list[Job]:
        """Rescue jobs whose worker lives but whose stage has shown no progress for too long."""
        now = await self._engine.now()
        rescued: list[Job] = []
        for presence in (seen or await self.presences()).values():
            if presence.store_away:  # what it did meanwhile is not known
                continue
            for running in presence.running:
                silent = running.silent_ms + now - presence.beat_at
                if running.stale_after_ms is None or silent <= running.stale_after_ms:
                    continue
                (job,) = await self._engine.get([running.job])
                if job is None or job.state is not State.ACTIVE or job.epoch != running.epoch:
                    continue
                why = (
                    f"stage {running.stage} showed no progress for {in_words(silent)}, "
                    f"longer than {in_words(running.stale_after_ms)}; its worker lives"
                )
                if await self._rescue(job, now, by, why, presence):
                    rescued.append(job)
        return rescued

    async def overrun(self, by: str, held: Sequence[Job] | None = None) -> list[Job]:
        """Fail jobs whose timeout has passed and whose owner did nothing. `held` as in `orphans`."""
        now = await self._engine.now()
        failed: list[Job] = []
        for job in await self.held() if held is None else held:
            limit = job.options.timeout_ms
            if limit is None or job.claimed_at is None or now <= job.claimed_at + limit + OVERRUN_MARGIN_MS:
                continue
            error = Error("TimeoutError", f"the job took longer than its timeout of {in_words(limit)}")
            note: dict[str, Any] = {"worker": job.worker, "error": f"TimeoutError: {error.message}"}
            doubts = in_doubt(await self._engine.steps(job.id))
            if doubts:
                error = Error("EffectInDoubt", f"{doubt_text(doubts)}; {error.message}")
                note["in_doubt"] = doubts
            run_at = None
            if doubts or failure_event(job, error.type) is not Event.FAIL:
                change = decide(job, Event.ABANDON, now, by=by, error=error, note=note)
            else:
                run_at = retry_at(job, now, self._chance())
                change = decide(job, Event.OVERRUN, now, by=by, error=error, run_at=run_at, note=note)
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

    async def presences(self) -> dict[str, Presence]:
        """All workers that have shown themselves and not left."""
        return {
            record.name.removeprefix(WORKER): msgspec.json.decode(record.value, type=Presence)
            for record in await self._engine.records(WORKER)
        }

    async def _rescue(self, job: Job, now: Time, by: str, why: str, presence: Presence | None) -> bool:
        """Take a job from its worker: back to the queue, or to a person. The history tells what survived."""
        past = await past_of(self._engine, job.id)
        running = _running(presence, job)
        change = lost(
            job,
            past,
            now,
            by=by,
            why=why,
            stage=running.stage if running is not None else "",
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
            await tell_others(self._engine, change, answer, by=change.by)
        return isinstance(answer, Applied)


def _running(presence: Presence | None, job: Job) -> Running | None:
    if presence is None:
        return None
    return next((one for one in presence.running if (one.job, one.epoch) == (job.id, job.epoch)), None)


def _how(presence: Presence, now: Time) -> str:
    silent = in_words(max(0, now - presence.beat_at))
    if presence.gone:
        where = f"process {presence.pid} on {presence.host or 'this machine'}"
        return f"{where} ended without a word; last heard of {silent} ago"
    return f"not heard of for {silent}"
