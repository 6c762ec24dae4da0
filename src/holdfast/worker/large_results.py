"""Results of steps and jobs that are large or name files: kept in the blob store before their record is written.

Must not write the record itself. A result that can't be stored is never lost: it is held in a local file, and a person
settles the job with it.
"""

from msgspec.structs import replace

from holdfast.blobs import threads
from holdfast.blobs.local import hold_text
from holdfast.core.codec import canonical
from holdfast.core.errors import BlobsAway, Unstored
from holdfast.core.model import Step, StepState
from holdfast.core.outcome import FAILED_ONCE_PATH, ONCE, resolve_command
from holdfast.worker.attempt import Attempt
from holdfast.worker.recorded_errors import error_of


async def keep_job_result(attempt: Attempt, text: str) -> str:
    """Return what to record of a job's result. Raises Unstored if it can't be stored."""
    job = attempt.job
    try:
        return await attempt.engine.blobs.keep(
            text, job.id, f"result of {job.type}", always=job.options.keep_result_ms is not None
        )
    except BlobsAway as away:
        held = await threads.run(hold_text, job.id, text)
        command = resolve_command(job.id, "", f"@{held}")
        raise Unstored(
            f"the job is done, but its result couldn't be stored: {away}; {held} holds it: once the blob store works, "
            f"run {command}"
        ) from away


async def keep_step_result(attempt: Attempt, step: Step) -> Step:
    """Return a step's record with what to record of its result.

    If it can't be stored, the step is recorded as in doubt, so that it never runs again by itself; raises Unstored.
    """
    assert step.result is not None
    try:
        text = await attempt.engine.blobs.keep(step.result, step.job, f"result of {step.name}")
        return replace(step, result=text)
    except BlobsAway as away:
        held = await threads.run(hold_text, step.job, step.result)
        command = resolve_command(step.job, step.path, f"@{held}")
        error = Unstored(
            f"step {step.path} is done, but its result couldn't be stored: {away}; {held} holds it: once the blob "
            f"store works, run {command}"
        )
        await _leave_in_doubt(attempt, step, error)
        raise error from away


async def _leave_in_doubt(attempt: Attempt, step: Step, error: Unstored) -> None:
    begun = replace(step, state=StepState.STARTED, result=ONCE, finished_at=None)
    info = canonical({"attempt": attempt.job.attempt})
    failed = replace(begun, path=FAILED_ONCE_PATH + step.path, name=FAILED_ONCE_PATH[:-1], result=info)
    await attempt.journal.write_intents([begun, replace(failed, error=error_of(error))])
    attempt.journal.effects.note_begun(step.path)
