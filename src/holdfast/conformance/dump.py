"""Everything that a store holds, as one value: to compare two stores, or one store before and after.

Must use only the contract of an engine, and must not change the store.
"""

from collections.abc import Iterable, Sequence

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from holdfast.core.model import PAGE_LIMIT, Entry, Job, Presence, Record, Step, Where
from holdfast.core.shared_limits import BUCKET
from holdfast.core.summaries import StepSummary
from holdfast.engines.contract import Engine
from holdfast.engines.records import WORKER


class Dump(Struct, frozen=True):
    """Everything that can be read from a store. `missing` and `counts` have their names joined by a slash."""

    jobs: dict[str, Job]
    steps: dict[str, list[Step]]
    summaries: list[StepSummary]
    history: dict[str, list[Entry]]
    missing: dict[str, int]
    counts: dict[str, int]
    records: list[Record]
    workers: dict[str, Presence]


async def dump(engine: Engine, groups: Iterable[tuple[str, str]] = ()) -> Dump:
    """Read a whole store. `groups` are further (parent, group) pairs to read, besides those of existing jobs."""
    jobs = await all_jobs(engine)
    asked = {(job.parent, job.group or "") for job in jobs if job.parent is not None} | set(groups)
    records = await engine.records("")
    return Dump(
        jobs={job.id: job for job in jobs},
        steps={job.id: await engine.steps(job.id) for job in jobs},
        summaries=await all_summaries(engine, jobs),
        history={job.id: await all_entries(engine, job.id) for job in jobs},
        missing={f"{parent}/{group}": await engine.missing(parent, group) for parent, group in sorted(asked)},
        counts={f"{queue}/{state}": number for (queue, state), number in sorted((await engine.count()).items())},
        records=[record for record in records if not record.name.startswith((WORKER, BUCKET))],
        workers={record.name: presence_of(record) for record in records if record.name.startswith(WORKER)},
    )


async def all_jobs(engine: Engine, where: Where | None = None, page: int = PAGE_LIMIT) -> list[Job]:
    """Return all jobs of a kind, read page by page."""
    where = where or Where()
    jobs: list[Job] = []
    while found := await engine.find(where, jobs[-1].id if jobs else "", page):
        # Otherwise an engine that returns a page again would loop forever.
        assert not jobs or found[0].id != jobs[-1].id, f"job {found[0].id} appears again on the next page"
        jobs += found
    return jobs


async def all_summaries(engine: Engine, jobs: Sequence[Job]) -> list[StepSummary]:
    """Return the summaries of these jobs, read page by page."""
    pages = [jobs[start : start + PAGE_LIMIT] for start in range(0, len(jobs), PAGE_LIMIT)]
    return [one for page in pages for one in await engine.summaries([job.id for job in page])]


async def all_entries(engine: Engine, job: str, page: int = PAGE_LIMIT) -> list[Entry]:
    """Return a job's whole history, read page by page."""
    entries: list[Entry] = []
    while found := await engine.history(job, entries[-1].version if entries else 0, page):
        assert not entries or found[0].version > entries[-1].version, f"job {job}: its history's pages overlap"
        entries += found
    return entries


def presence_of(record: Record) -> Presence:
    """Return the worker of a record, without `gone`: whether its death was seen depends on the machine."""
    return replace(msgspec.json.decode(record.value, type=Presence), gone=False)
