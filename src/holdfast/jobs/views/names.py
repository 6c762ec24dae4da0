"""Names that a store knows, of queues and job types, for "did you mean". Must not change anything."""

from holdfast.core.model import PAGE_LIMIT, Where
from holdfast.core.suggestions import suggest
from holdfast.jobs.service import Jobs


async def known_queues(jobs: Jobs) -> set[str]:
    """Return the queues that have jobs, are paused, or are served by a worker."""
    counts, pauses = await jobs.engine.count(), await jobs.pauses()
    return {queue for queue, _ in counts} | set(pauses) | {q for worker in await jobs.workers() for q in worker.queues}


async def known_types(jobs: Jobs) -> set[str]:
    """Return the job types that workers know, and those of the newest jobs."""
    newest = await jobs.engine.find(Where(newest_first=True), limit=PAGE_LIMIT)
    return {job.type for job in newest} | {type for worker in await jobs.workers() for type in worker.types or ()}


async def suggest_names(jobs: Jobs, queue: str | None, type: str | None) -> str:
    """Return what was probably meant by a queue or a type that the store doesn't know: "; did you mean video?"."""
    if queue is not None and queue not in (queues := await known_queues(jobs)):
        return suggest(queue, sorted(queues))
    if type is not None and type not in (types := await known_types(jobs)):
        return suggest(type, sorted(types))
    return ""
