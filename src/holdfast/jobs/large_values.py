"""Arguments and results that are large, or name files: kept in the blob store of a store for jobs, and read from it.

Must not know a blob store. Lists and status never come here: a record has a reference, and only who needs the value
reads it.
"""

from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import contextmanager

from msgspec.structs import replace

from holdfast.blobs import threads
from holdfast.core.durations import in_words
from holdfast.core.errors import BadValue, BlobGone, BlobsAway
from holdfast.core.model import PAGE_LIMIT, Job, Step, Time
from holdfast.core.references import Reference, check_inline, is_kept_outside, may_need_blobs, references_in
from holdfast.engines.contract import Engine


class ArgumentsAway(BlobsAway):
    """A job's arguments are in a blob store that can't be reached now. Its code hasn't run."""


async def keep_arguments(engine: Engine, jobs: Sequence[Job]) -> Sequence[Job]:
    """Return new jobs with references in place of large arguments. Files that arguments name are uploaded."""
    if not any(may_need_blobs(job.args) for job in jobs):
        return jobs
    kept = []
    for job in jobs:
        text = await engine.blobs.keep(job.args, job.id, f"the arguments of {job.type}")
        kept.append(job if text is job.args else replace(job, args=text))
    return kept


async def keep_copy(engine: Engine, job: Job, steps: Sequence[Step]) -> Job:
    """Return a new job that begins with records of another one. What they refer to is kept for this one, too."""
    if not is_kept_outside(job.args):
        (job,) = await keep_arguments(engine, [job])
    if files := references_of(job, steps):
        await engine.blobs.refer(files, job.id)
    return job


def check_arguments_within(jobs: Sequence[Job]) -> None:
    """Refuse arguments that can't be part of a caller's own transaction, because the blob store isn't."""
    for job in jobs:
        check_inline(job.args, f"the arguments of {job.type}")
        if references_in(job.args):
            raise BadValue(
                f"{job.type}: a Blob can't be submitted with connection=, because a transaction can't take back a "
                "file; submit it without, after your commit"
            )


async def result_of(engine: Engine, job: Job) -> str:
    """Return the JSON text of a completed job's result. Raises BlobGone if the result was kept for less long."""
    text = job.result or "null"
    if not is_kept_outside(text):
        return text
    kept_ms = job.options.keep_result_ms
    if kept_ms is not None and not await needs_blobs(engine, job, await engine.now(), {}):
        raise BlobGone(
            f"the result of job {job.id} was kept for {in_words(kept_ms)}, as keep_result says, and was dropped then; "
            "run the job again, or give it a longer keep_result"
        )
    return await engine.blobs.fetch(text)


async def needs_blobs(engine: Engine, job: Job, now: Time, known: dict[str, Job | None]) -> bool:
    """Whether a job's large values and files are kept: as long as the job, unless `keep_result` says otherwise.

    That counts from the end of the last job above it, such as its flow, which may pass its result on. `known` are jobs
    above that were read already.
    """
    kept_ms = job.options.keep_result_ms
    if kept_ms is None or job.finished_at is None or now < job.finished_at + kept_ms:
        return True
    for _ in range(PAGE_LIMIT):
        if job.parent is None:
            return False
        if job.parent not in known:
            (known[job.parent],) = await engine.get([job.parent])
        above = known[job.parent]
        if above is None:
            return False
        if above.finished_at is None or now < above.finished_at + kept_ms:
            return True
        job = above
    return False


async def arguments_of(engine: Engine, job: Job) -> str:
    """Return the JSON text of a job's arguments."""
    with reading_arguments():
        return await engine.blobs.fetch(job.args)


@contextmanager
def reading_arguments() -> Iterator[None]:
    """Say that what is away are arguments: the job can run once they are back."""
    try:
        yield
    except BlobsAway as away:
        raise ArgumentsAway(f"the job's arguments can't be read now: {away}") from away


async def stream(engine: Engine, reference: Reference) -> AsyncGenerator[bytes, None]:
    """Open a blob by its reference, and yield its content in chunks. Raises BlobGone if it is gone or was altered."""
    chunks = await engine.blobs.stream(reference)
    try:
        while chunk := await threads.run(next, chunks, b""):
            yield chunk
    finally:
        chunks.close()


def references_of(job: Job, steps: Sequence[Step]) -> list[Reference]:
    """Return every blob that a job refers to: in its arguments, results, waits and signals."""
    texts = [job.args, job.result, *(step.result for step in steps), *(signal.value for signal in job.inbox)]
    return list(dict.fromkeys(one for text in texts for one in references_in(text)))
