"""Reads the few records that a page of job statuses needs, with a fixed number of reads. Must not write or decide."""

from collections.abc import Iterable, Iterator, Sequence

from holdfast.core.model import PAGE_LIMIT, Job, State, Step, StepState
from holdfast.core.summaries import StepHead
from holdfast.engines.contract import Engine
from holdfast.jobs.questions import WAIT_PATH
from holdfast.jobs.status import PROGRESS_PATH


def pages_of(jobs: Sequence[Job]) -> Iterator[Sequence[Job]]:
    """Split the jobs into pages that one read can take."""
    for start in range(0, len(jobs), PAGE_LIMIT):
        yield jobs[start : start + PAGE_LIMIT]


def by_job(jobs: Iterable[Job], records: Iterable[Step]) -> dict[str, list[Step]]:
    """Group records by the id of their job. Every job gets a list, even an empty one."""
    found: dict[str, list[Step]] = {job.id: [] for job in jobs}
    for record in records:
        found[record.job].append(record)
    return found


async def status_records(engine: Engine, jobs: Sequence[Job]) -> dict[str, list[Step]]:
    """Read the records that each job's status needs: open waits if the job is active, its progress if it isn't.

    An active job with signals in its inbox may have taken some of them. Only the records of answered waits show which.
    """
    active = [job for job in jobs if job.state is State.ACTIVE]
    reads = (
        ([job.id for job in jobs if job.state is not State.ACTIVE and job.epoch], PROGRESS_PATH, None),
        ([job.id for job in active if not job.inbox], WAIT_PATH, StepState.STARTED),
        ([job.id for job in active if job.inbox], WAIT_PATH, None),
    )
    found = [step for ids, prefix, state in reads for step in await engine.steps_under_each(ids, prefix, state)]
    return by_job(jobs, found)


async def step_heads(engine: Engine, job: str) -> list[StepHead]:
    """Read all steps of a job without their results, page by page."""
    heads: list[StepHead] = []
    while page := await engine.steps_page(job, heads[-1].path if heads else ""):
        heads += page
        if len(page) < PAGE_LIMIT:
            break
    return heads
