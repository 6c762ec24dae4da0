"""Arguments and results that are large, or name files: kept in the blob store of a store for jobs, and read from it.

Must not know a blob store. Lists and status never come here: a record has a reference, and only who needs the value
reads it.
"""

from collections.abc import AsyncGenerator, Sequence

from msgspec.structs import replace

from holdfast.blobs import threads
from holdfast.core.durations import in_words
from holdfast.core.errors import BadValue, BlobGone
from holdfast.core.model import Job, Step
from holdfast.core.references import Reference, check_inline, is_kept_outside, may_need_blobs, references_in
from holdfast.engines.contract import Engine


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
    if kept_ms is not None and job.finished_at is not None and await engine.now() >= job.finished_at + kept_ms:
        raise BlobGone(
            f"the result of job {job.id} was kept for {in_words(kept_ms)}, as keep_result says, and was dropped then; "
            "run the job again, or give it a longer keep_result"
        )
    return await engine.blobs.fetch(text)


async def arguments_of(engine: Engine, job: Job) -> str:
    """Return the JSON text of a job's arguments."""
    return await engine.blobs.fetch(job.args)


async def stream(engine: Engine, reference: Reference) -> AsyncGenerator[bytes, None]:
    """Open a blob by its reference, and yield its content in chunks. Raises BlobGone if it is gone or was altered."""
    await engine.blobs.ready()
    chunks = engine.blobs.chunks(reference)
    try:
        while chunk := await threads.run(next, chunks, b""):
            yield chunk
    finally:
        chunks.close()


def references_of(job: Job, steps: Sequence[Step]) -> list[Reference]:
    """Return every blob that a job refers to: in its arguments, results, waits and signals."""
    texts = [job.args, job.result, *(step.result for step in steps), *(signal.value for signal in job.inbox)]
    return list(dict.fromkeys(one for text in texts for one in references_in(text)))
