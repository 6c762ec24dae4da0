"""Draining a store: its workers finish what they run, and claim nothing more. Must not stop a worker or touch a job."""

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
"""How often a drain looks whether the workers still hold something."""

OURS = '{"by":"drain"}'
"""What a record says that makes a worker quiet for the time of a drain: by this it is found and taken back."""

Tell = Callable[[str, int, int], None]
"""Hears how far something is: what, how much of it is done, and of how much."""


async def living_workers(engine: Engine) -> list[Presence]:
    """The workers of a store that are not known to be dead: neither seen to die, nor silent for longer than a lease."""
    now = await engine.now()
    found = [worker_in(record) for record in await engine.records(WORKER)]
    return [one for one in found if not one.gone and now - one.beat_at <= one.lease_ms]


async def held_jobs(engine: Engine, workers: Sequence[Presence]) -> list[Job]:
    """The jobs that these workers hold."""
    names, jobs, after = {worker.worker for worker in workers}, list[Job](), ""
    while names and (page := await engine.find(Where(states=(State.ACTIVE,)), after)):
        jobs += [job for job in page if job.worker in names]
        after = page[-1].id
        if len(page) < PAGE_LIMIT:
            break
    return jobs


async def drain(engine: Engine, name: str, seconds: float | None, tell: Tell) -> None:
    """Let the workers of a store hold nothing, within a bound; without one, refuse if there are any.

    They stay quiet afterwards, until `lift`. When the bound is over they go on as if nothing had been.
    """
    workers = await living_workers(engine)
    if workers and seconds is None:
        named = name_some([one.worker for one in workers])
        raise Refused(
            f"{plural(len(workers), 'worker is', 'workers are')} at work on {name} ({named}); stop them, or let "
            "them finish what they run: --drain. Nothing was moved; one that was just killed counts for "
            "some seconds more"
        )
    try:
        await _wait_for(engine, name, seconds or 0.0, tell)
    except BaseException:
        await lift(engine)
        raise


async def _wait_for(engine: Engine, name: str, seconds: float, tell: Tell) -> None:
    end, most, told = time.monotonic() + seconds, 0, dict[str, int]()
    while workers := await living_workers(engine):
        for worker in workers:  # also one that has just started
            if worker.worker not in told:
                told[worker.worker] = await engine.now()
                await engine.put_record(QUIET + worker.worker, OURS, 0)  # refused where a person made it quiet
        jobs = await held_jobs(engine, workers)
        most = max(most, len(jobs))
        tell(f"draining {name}", most - len(jobs), most)
        # A claim under way when it was told may still bring something: the next beat is the answer that it has heard.
        if not jobs and all(worker.beat_at > told[worker.worker] for worker in workers):
            return
        if time.monotonic() > end:
            what = f"{plural(len(jobs), 'job is', 'jobs are')} still running ({name_some([job.id for job in jobs])})"
            raise Refused(
                f"{name}: {what} after {in_words(round(seconds * 1_000))}; nothing was moved, and its workers go on: "
                "wait longer (--drain 2h), or stop them, which hands over what they run"
            )
        await asyncio.sleep(LOOK_SECONDS)


async def lift(engine: Engine) -> int:
    """Let the workers claim again that a drain has made quiet, and no others; answer how many there were."""
    ours = [record for record in await engine.records(QUIET) if record.value == OURS]
    for record in ours:
        await engine.put_record(record.name, None, record.version)
    return len(ours)
