"""Draining a store: its workers finish their jobs and claim no more. Must not stop a worker or touch a job."""

import asyncio
import time
from collections.abc import Callable, Sequence

from holdfast.core.durations import in_words
from holdfast.core.errors import Refused
from holdfast.core.model import PAGE_LIMIT, Job, Presence, State, Where
from holdfast.engines.contract import Engine
from holdfast.engines.records import QUIET, WORKER, worker_in
from holdfast.jobs.views.text import name_some, plural

LOOK_SECONDS = 0.2
"""How often a drain checks whether the workers still hold jobs."""

OURS = '{"by":"drain"}'
"""The value of a record with which a drain stops a worker from claiming. The drain finds its own records by it."""

Tell = Callable[[str, int, int], None]
"""Receives progress: what is being done, how much of it is done, and the total."""


async def running_workers(engine: Engine) -> list[Presence]:
    """Return the workers of a store that aren't known to be dead: not seen to die, and not silent for a whole lease."""
    now = await engine.now()
    found = [worker_in(record) for record in await engine.records(WORKER)]
    return [one for one in found if not one.gone and now - one.beat_at <= one.lease_ms]


async def held_jobs(engine: Engine, workers: Sequence[Presence]) -> list[Job]:
    """Return the jobs that these workers hold."""
    names, jobs, after = {worker.worker for worker in workers}, list[Job](), ""
    while names and (page := await engine.find(Where(states=(State.ACTIVE,)), after)):
        jobs += [job for job in page if job.worker in names]
        after = page[-1].id
        if len(page) < PAGE_LIMIT:
            break
    return jobs


async def drain(engine: Engine, name: str, seconds: float | None, tell: Tell) -> None:
    """Wait until the workers of a store hold no jobs, for a limited time. Without a limit, refuse if there are workers.

    Afterwards the workers claim nothing until `lift`. If the time runs out, they continue as before.
    """
    workers = await running_workers(engine)
    if workers and seconds is None:
        named = name_some([one.worker for one in workers])
        raise Refused(
            f"{plural(len(workers), 'worker is', 'workers are')} running on {name} ({named}); nothing was moved: "
            "stop them, or let them finish their jobs first with --drain. A worker that was just killed still "
            "counts for a few seconds"
        )
    try:
        await _wait_for(engine, name, seconds or 0.0, tell)
    except BaseException:
        await lift(engine)
        raise


async def _wait_for(engine: Engine, name: str, seconds: float, tell: Tell) -> None:
    end, most, quieted_at = time.monotonic() + seconds, 0, dict[str, int]()
    while workers := await running_workers(engine):
        for worker in workers:  # including one that has just started
            if worker.worker not in quieted_at:
                quieted_at[worker.worker] = await engine.now()
                await engine.put_record(QUIET + worker.worker, OURS, 0)  # refused if a person has quieted it already
        jobs = await held_jobs(engine, workers)
        most = max(most, len(jobs))
        tell(f"draining {name}", most - len(jobs), most)
        # A claim may still be under way. The next heartbeat after the record shows that the worker has read it.
        if not jobs and all(worker.beat_at > quieted_at[worker.worker] for worker in workers):
            return
        if time.monotonic() > end:
            what = f"{plural(len(jobs), 'job is', 'jobs are')} still running ({name_some([job.id for job in jobs])})"
            raise Refused(
                f"{name}: {what} after {in_words(round(seconds * 1_000))}; nothing was moved, and workers claim again: "
                "wait longer (--drain 2h), or stop the workers, which releases their jobs"
            )
        await asyncio.sleep(LOOK_SECONDS)


async def lift(engine: Engine) -> int:
    """Let the workers that a drain has quieted claim again, and no others; return how many there were."""
    ours = [record for record in await engine.records(QUIET) if record.value == OURS]
    for record in ours:
        await engine.put_record(record.name, None, record.version)
    return len(ours)
