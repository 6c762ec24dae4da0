"""Results of steps and jobs that are large or name files: kept in the blob store before their record is written.

Must not write the record itself. A result that can't be stored is never lost: it is held in a local file, and a person
settles the job with it. While there is no room for that file either, the attempt keeps the result and tries again.
"""

from msgspec.structs import replace

from holdfast.blobs import threads
from holdfast.blobs.local import hold_text
from holdfast.core.codec import PAYLOAD_LIMIT, canonical
from holdfast.core.errors import BlobError, BlobsAway, Invalid, StoreUnwritable, Unstored
from holdfast.core.limits import size_of
from holdfast.core.model import Step, StepState
from holdfast.core.outcome import FAILED_ONCE_PATH, ONCE, resolve_command
from holdfast.worker.attempt import Attempt
from holdfast.worker.recorded_errors import error_of


async def keep_job_result(attempt: Attempt, text: str) -> str:
    """Return what to record of a job's result. Raises Unstored if it can't be stored."""
    job = attempt.job
    always = job.options.keep_result_ms is not None
    kept = await _keep(attempt, text, "the job", f"result of {job.type}", always=always)
    if isinstance(kept, Unstored):
        raise kept
    return kept


async def keep_step_result(attempt: Attempt, step: Step) -> Step:
    """Return a step's record with what to record of its result.

    If it can't be stored, the step is recorded as in doubt, so that it never runs again by itself; raises Unstored.
    """
    assert step.result is not None
    kept = await _keep(attempt, step.result, f"step {step.path}", f"result of {step.name}", path=step.path)
    if isinstance(kept, Unstored):
        await _leave_in_doubt(attempt, step, kept)
        raise kept
    return replace(step, result=kept)


async def _keep(
    attempt: Attempt, text: str, what: str, where: str, *, path: str = "", always: bool = False
) -> str | Unstored:
    """Return what to record of a result; or, if it is held in a local file instead, the error that says so."""

    async def keep_or_hold() -> str | Unstored:
        try:
            return await attempt.engine.blobs.keep(text, attempt.job.id, where, always=always)
        except (BlobError, Invalid) as trouble:
            return await _held(what, attempt.job.id, path, text, trouble)

    return await attempt.persist(keep_or_hold)


async def _held(what: str, job: str, path: str, text: str, trouble: Exception) -> Unstored:
    """Hold a result in a local file. Return the error that says where it is, and what to do with it."""
    try:
        file = await threads.run(hold_text, job, text)
    except BlobsAway as full:
        raise StoreUnwritable(f"{what} is done, but {trouble}; {full}; trying again") from trouble
    if size_of(text) > PAYLOAD_LIMIT:
        now = f"{file} holds it: put it where it can stay, and run {resolve_command(job, path, 'VALUE')} with its place"
    else:
        now = f"{file} holds it: once that is put right, run {resolve_command(job, path, f'@{file}')}"
    error = Unstored(f"{what} is done, but its result couldn't be stored: {trouble}; {now}")
    error.__cause__ = trouble
    return error


async def _leave_in_doubt(attempt: Attempt, step: Step, error: Unstored) -> None:
    begun = replace(step, state=StepState.STARTED, result=ONCE, finished_at=None)
    info = canonical({"attempt": attempt.job.attempt})
    failed = replace(begun, path=FAILED_ONCE_PATH + step.path, name=FAILED_ONCE_PATH[:-1], result=info)
    await attempt.journal.write_intents([begun, replace(failed, error=error_of(error))])
    attempt.journal.effects.note_begun(step.path)
