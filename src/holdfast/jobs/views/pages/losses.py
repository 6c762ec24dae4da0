"""Finds workers that were lost since the last look, by the histories of the jobs that they ran.

Must not change anything. A rescued worker's status is removed: afterwards only what it held tells that it was lost and
did not sign off.
"""

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from holdfast.core.model import Job, Presence, State, Time, Where
from holdfast.engines.contract import Engine
from holdfast.jobs.views.overview import ALIVE, GONE, worker_state
from holdfast.jobs.views.pages.story import losses_in, lost_at

ENTRIES_READ = 20
"""How many of the newest entries of a job's history are looked at."""

JOBS_READ = 50
"""How many jobs of a lost worker are looked at."""

GUESSED = 20
"""How many of the newest jobs are looked at for a worker that had reported none."""

RECOVERED_READ = 100
"""How many of the newest jobs of each kind are looked at for workers that were lost before anybody saw them."""

KINDS = ((State.ACTIVE,), (State.AVAILABLE, State.PENDING, State.RETRYABLE), (State.REVIEW,), (State.COMPLETED,))


class LostWorker(Struct, frozen=True, kw_only=True):
    """A lost worker: what it last reported, when it was heard of last, and the jobs that were taken from it."""

    presence: Presence
    at: Time
    jobs: tuple[str, ...] = ()


async def find_losses(
    engine: Engine, known: Mapping[str, Presence], workers: Sequence[Presence], now: Time
) -> list[LostWorker]:
    """Return the workers that were lost since they were `known`. `workers` are those that the store lists now."""
    present = {one.worker: one for one in workers}
    missing = {name: known[name] for name in known.keys() - present.keys()}
    in_trouble = {name: one for name, one in present.items() if worker_state(one, now) != ALIVE}
    suspects = {**in_trouble, **missing}
    lost = await _taken_from(engine, suspects)
    return [
        LostWorker(
            presence=one, at=lost[name][0] if name in lost else one.beat_at, jobs=tuple(lost.get(name, (0, []))[1])
        )
        for name, one in suspects.items()
        if name in lost or worker_state(one, now) == GONE
    ]


async def recorded_losses(
    engine: Engine, looked_at: Mapping[str, int], workers: Iterable[Presence], since: Time
) -> tuple[list[LostWorker], dict[str, int]]:
    """Return the workers that were lost since a time, as the newest jobs tell, though nobody saw these workers alive.

    A job that was `looked_at` at the version that it still has is left out; the second answer has those looked at now.
    """
    present = {one.worker for one in workers}
    changed: dict[str, Job] = {}
    for states in KINDS:
        for job in await engine.find(Where(states=states, newest_first=True), limit=RECOVERED_READ):
            is_recent = job.finished_at is None or job.finished_at > since
            if is_recent and (job.recoveries or job.state is State.REVIEW) and looked_at.get(job.id) != job.version:
                changed[job.id] = job
    found: dict[str, tuple[Time, list[str]]] = {}
    for job in changed.values():
        for name, at in await _losses_of(engine, job):
            if name not in present and at > since:
                before = found.get(name, (0, []))
                found[name] = max(before[0], at), [*before[1], job.id]
    lost = [
        LostWorker(presence=Presence(name, beat_at=at, gone=True), at=at, jobs=tuple(dict.fromkeys(ids)))
        for name, (at, ids) in found.items()
    ]
    return lost, {id: job.version for id, job in changed.items()}


async def _taken_from(engine: Engine, suspects: Mapping[str, Presence]) -> dict[str, tuple[Time, list[str]]]:
    """Return, for each of these workers from which jobs were taken, when it was heard of last, and the jobs."""
    if not suspects:
        return {}
    ids = [running.job for one in suspects.values() for running in one.running[:JOBS_READ]]
    held = [job for job in await engine.get(list(dict.fromkeys(ids))) if job is not None] if ids else []
    if any(not one.running for one in suspects.values()):  # perhaps it had begun a job since it was seen
        for states in ((State.ACTIVE, State.AVAILABLE), (State.REVIEW,)):
            held += await engine.find(Where(states=states, newest_first=True), limit=GUESSED)
    found: dict[str, tuple[Time, list[str]]] = {}
    for job in {job.id: job for job in held if job.epoch}.values():
        for name, at in await _losses_of(engine, job):
            if name in suspects:
                before = found.get(name, (0, []))
                found[name] = max(before[0], at), [*before[1], job.id]
    return found


async def _losses_of(engine: Engine, job: Job) -> list[tuple[str, Time]]:
    history = await engine.history(job.id, after=max(0, job.version - ENTRIES_READ), limit=ENTRIES_READ)
    return [(str(one.note["lost"]), lost_at(one)) for one in losses_in(history)]
