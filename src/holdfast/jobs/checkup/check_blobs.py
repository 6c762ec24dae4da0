"""Checks the blob store: can it be reached, and do the newest jobs find their blobs? Must not repair anything."""

from holdfast.blobs import threads
from holdfast.core.errors import BlobsAway
from holdfast.core.model import Job, Where
from holdfast.core.references import Reference
from holdfast.jobs.checkup.finding import Finding, Level, Walk, name_jobs
from holdfast.jobs.large_values import references_of
from holdfast.jobs.service import Jobs

LOOKED_UP = 200
"""How many blobs are looked up."""


async def check_blobs(jobs: Jobs) -> list[Finding]:
    """Say where large values and files are kept, and which of the newest jobs don't find theirs."""
    blobs = await jobs.engine.blobs.ready()
    if blobs.store is None:
        return [
            Finding("blobs", Level.OK, "no blob store: values up to 1 MiB, no files (App(blobs=…), $HOLDFAST_BLOBS)")
        ]
    try:
        if await blobs.is_empty():
            return [Finding("blobs", Level.OK, f"{blobs.store.place}: empty")]
        missing, looked_up, walk = list[Job](), 0, Walk(jobs, Where())
        async for job in walk:
            needed = references_of(job, [])
            looked_up += len(needed)
            if needed and not await threads.run(_are_there, jobs, needed):
                missing.append(job)
            if looked_up >= LOOKED_UP:
                break
    except BlobsAway as away:
        return [Finding("blobs", Level.FAIL, f"{away}; until it works, large values can't be read or stored")]
    if missing:
        text = f"{blobs.store.place}: blobs of {name_jobs(missing)} are gone; restore them from a backup"
        return [Finding("blobs", Level.WARN, text)]
    return [Finding("blobs", Level.OK, f"{blobs.store.place}{walk.scope}")]


def _are_there(jobs: Jobs, references: list[Reference]) -> bool:
    return all(jobs.engine.blobs.has(one) for one in references)
