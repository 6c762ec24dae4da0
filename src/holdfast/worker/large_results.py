"""Results of steps and jobs that are large or name files: kept in the blob store before their record is written.

Must not write the record itself. A result that can't be stored is never lost: it is held in a local file, and a person
settles the job with it.
"""

from msgspec.structs import replace

from holdfast.blobs import threads
from holdfast.blobs.local import hold_text
from holdfast.core.codec import PAYLOAD_LIMIT, canonical
from holdfast.core.errors import BlobError, Invalid, Unstored
from holdfast.core.limits import size_of
from holdfast.core.model import Step, StepState
from holdfast.core.outcome import FAILED_ONCE_PATH, ONCE, resolve_command
from holdfast.worker.attempt import Attempt
from holdfast.worker.recorded_errors import error_of


async def keep_job_result(attempt: Attempt, text: str) -> str:
    """Return what to record of a job's result. Raises Unstored if it can't be stored."""
    job = attempt.job
    always = job.options.keep_result_ms is not None
    try:
        return await _keep(attempt, text, f"result of {job.type}", always=always)
    except (BlobError, Invalid) as trouble:
        raise await _held("the job", job.id, "", text, trouble) from trouble


async def keep_step_result(attempt: Attempt, step: Step) -> Step:
    """Return a step's record with what to record of its result.

    If it can't be stored, the step is recorded as in doubt, so that it never runs again by itself; raises Unstored.
    """
    assert step.result is not None
    try:
        return replace(step, result=await _keep(attempt, step.result, f"result of {step.name}"))
    except (BlobError, Invalid) as trouble:
        error = await _held(f"step {step.path}", step.job, step.path, step.result, trouble)
        await _leave_in_doubt(attempt, step, error)
        raise error from trouble


async def _keep(attempt: Attempt, text: str, where: str, *, always: bool = False) -> str:
    return await attempt.persist(lambda: attempt.engine.blobs.keep(text, attempt.job.id, where, always=always))


async def _held(what: str, job: str, path: str, text: str, trouble: Exception) -> Unstored:
    """Hold a result in a local file. Return the error that says where it is, and what to do with it."""
    file = await threads.run(hold_text, job, text)
    if size_of(text) > PAYLOAD_LIMIT:
        now = f"{file} holds it: put it where it can stay, and run {resolve_command(job, path, 'VALUE')} with its place"
    else:
        now = f"{file} holds it: once that is put right, run {resolve_command(job, path, f'@{file}')}"
    return Unstored(f"{what} is done, but its result couldn't be stored: {trouble}; {now}")


async def _leave_in_doubt(attempt: Attempt, step: Step, error: Unstored) -> None:
    begun = replace(step, state=StepState.STARTED, result=ONCE, finished_at=None)
    info = canonical({"attempt": attempt.job.attempt})
    failed = replace(begun, path=FAILED_ONCE_PATH + step.path, name=FAILED_ONCE_PATH[:-1], result=info)
    await attempt.journal.write_intents([begun, replace(failed, error=error_of(error))])
    attempt.journal.effects.note_begun(step.path)
