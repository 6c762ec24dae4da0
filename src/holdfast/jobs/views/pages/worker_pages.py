"""Reads workers as pages: what each runs, what it ran, and those that were lost. Must not change anything."""

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from holdfast.core.errors import NotFound
from holdfast.core.model import PAGE_LIMIT, Job, Presence, State, Time, Where
from holdfast.core.suggestions import suggest
from holdfast.engines.records import QUIET
from holdfast.jobs.service import Jobs
from holdfast.jobs.views.overview import ALIVE, GONE, WORKER_MEANINGS, is_alive, worker_state
from holdfast.jobs.views.pages.acts import place_act
from holdfast.jobs.views.pages.job_page import running_words
from holdfast.jobs.views.pages.lines import as_sentence, job_lines, name_of
from holdfast.jobs.views.pages.losses import LostWorker
from holdfast.jobs.views.pages.overview import by_need, lost_words, shown_workers
from holdfast.jobs.views.pages.parts import JobLine, moment
from holdfast.jobs.views.pages.places import RunningLine, WorkerLine, WorkerPage, WorkersPage
from holdfast.jobs.views.shapes import time_text
from holdfast.jobs.views.text import ago, one_line, plural, short_id
from holdfast.safe_text import clean

RAN_SHOWN = 20
"""How many jobs that a worker ran its page shows."""

RAN_LOOKED_AT = 100
"""Among how many of the newest jobs that have left a worker they are looked for."""

LEFT = Where(states=(State.COMPLETED, State.REVIEW, State.RETRYABLE), newest_first=True)


async def view_workers_page(jobs: Jobs, lost: Sequence[LostWorker] = ()) -> WorkersPage:
    """Read all workers, those in trouble first, and those that were `lost` in the last hour."""
    now, workers = await jobs.engine.now(), shown_workers(await jobs.workers(), lost)
    quiet = await _quiet(jobs)
    alive = [one for one in workers if is_alive(one, now)]
    slots, busy = sum(one.slots for one in alive), sum(len(one.running) for one in alive)
    gone = len(workers) - len(alive)
    names = await _names(
        jobs, [job.job for one in workers for job in one.running] + [id for one in lost for id in one.jobs]
    )
    words = f"{plural(len(alive), 'worker')}, {busy} of {slots} slots in use" if alive else "no worker is running"
    return WorkersPage(
        now=moment(now),
        sentence=as_sentence(
            words + (f"; {gone:,} silent" if gone else "") + (f"; {len(lost):,} lost in the last hour" if lost else "")
        ),
        workers=(
            *(_worker_line(one, now, quiet, names) for one in by_need(workers, now)),
            *(_lost_line(one, now, names) for one in lost),
        ),
    )


async def view_worker(jobs: Jobs, id: str, lost: Sequence[LostWorker] = ()) -> WorkerPage:
    """Read one worker with the jobs that it runs and ran, or raise NotFound.

    One that was `lost` has those taken from it.
    """
    now, workers = await jobs.engine.now(), await jobs.workers()
    gone = next((worker for worker in lost if worker.presence.worker == id), None)
    if gone is not None:
        taken = [job for job in await jobs.engine.get(gone.jobs) if job is not None]
        line = _lost_line(gone, now, {job.id: name_of(job) for job in taken})
        return WorkerPage(now=moment(now), worker=line, jobs=await job_lines(jobs, taken), ran=await _ran_by(jobs, id))
    one = next((worker for worker in workers if worker.worker == id), None)
    if one is None:
        hint = suggest(id, [worker.worker for worker in workers]) or "; it may have stopped"
        raise NotFound(f"there is no worker {id[:80]!r} in this store{hint}")
    held = [job for job in await jobs.engine.get([running.job for running in one.running]) if job is not None]
    line = _worker_line(one, now, await _quiet(jobs), {job.id: name_of(job) for job in held})
    return WorkerPage(now=moment(now), worker=line, jobs=await job_lines(jobs, held), ran=await _ran_by(jobs, id))


async def _ran_by(jobs: Jobs, worker: str) -> tuple[JobLine, ...]:
    """Return which of the newest jobs this worker ran last, by the last entries of their histories."""
    found: list[Job] = []
    for job in await jobs.engine.find(LEFT, limit=RAN_LOOKED_AT):
        if len(found) < RAN_SHOWN and worker in [
            one.by for one in await jobs.engine.history(job.id, after=job.version - 1, limit=1)
        ]:
            found.append(job)
    return await job_lines(jobs, found)


async def _names(jobs: Jobs, ids: Sequence[str]) -> dict[str, str]:
    """Return the names of jobs, by their ids."""
    shown = list(dict.fromkeys(ids))[:PAGE_LIMIT]
    return {job.id: name_of(job) for job in await jobs.engine.get(shown) if job is not None} if shown else {}


async def _quiet(jobs: Jobs) -> frozenset[str]:
    return frozenset(record.name.removeprefix(QUIET) for record in await jobs.engine.records(QUIET))


def _lost_line(one: LostWorker, now: Time, names: Mapping[str, str]) -> WorkerLine:
    """Return a lost worker: what it last reported, and the jobs that were taken from it."""
    line = _worker_line(replace(one.presence, running=(), trouble="", gone=True), now, frozenset(), names)
    taken = tuple(
        RunningLine(job=id, short=short_id(id), name=names.get(id, ""), epoch=0, words="taken from it", since=None)
        for id in one.jobs
    )
    return replace(line, state=GONE, sentence=as_sentence(lost_words(one)), running=taken)


def _worker_line(one: Presence, now: Time, quiet: frozenset[str], names: Mapping[str, str]) -> WorkerLine:
    state = worker_state(one, now)
    is_quiet = one.worker in quiet
    words = [
        f"{len(one.running)} of {one.slots} slots in use" if state == ALIVE else WORKER_MEANINGS[state],
        f"last heartbeat {ago(one.beat_at, now)}" if one.beat_at else "last heartbeat unknown",
        f"started {ago(one.started_at, now)}" if one.started_at else "",
        "claims nothing new" if is_quiet else "",
    ]
    act = (
        place_act("workers", one.worker, "resume", "Let it claim again", f"workers resume {one.worker}")
        if is_quiet
        else place_act("workers", one.worker, "quiet", "Quiet", f"workers quiet {one.worker}")
    )
    return WorkerLine(
        id=one.worker,
        state=state,
        sentence=as_sentence(", ".join(word for word in words if word)),
        host=clean(one.host),
        pid=one.pid,
        queues=one.queues,
        types=one.types,
        has=one.has,
        slots=one.slots,
        busy=len(one.running),
        running=tuple(
            RunningLine(
                job=job.job,
                short=short_id(job.job),
                name=names.get(job.job, ""),
                epoch=job.epoch,
                words=running_words(job, now),
                since=time_text(job.since),
            )
            for job in one.running
        ),
        started_at=time_text(one.started_at or None),
        beat_at=time_text(one.beat_at or None),
        is_quiet=is_quiet,
        trouble="its status can't be read; see holdfast doctor" if one.unreadable else one_line(one.trouble),
        acts=(act,) if state == ALIVE else (),
    )
