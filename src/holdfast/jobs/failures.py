"""The error that a caller gets for a job that settled without a result. Pure."""

from holdfast.core.errors import AlreadyHappened, ItemsFailed, JobCancelled, JobFailed
from holdfast.core.model import Error, Job, State
from holdfast.jobs.views.text import OUR_ERRORS, short_id

SPEAKING = {f"{OUR_ERRORS}{kind.__name__}" for kind in (JobFailed, JobCancelled, ItemsFailed)}
"""Types of errors whose text says what they are: "job … failed", "2 of 5 items failed"."""

ADVISING = {"EffectInDoubt", "ReleasedTooOften", f"{OUR_ERRORS}{AlreadyHappened.__name__}"}
"""Types of errors whose text says what to do now."""

ADVICE = "; look at it with holdfast show {id}, then replay, resolve or discard it"


def failure_of(job: Job, reason: str = "", *, is_inside: bool = False) -> Exception:
    """Return the error for a job without a result, with the reason that a person gave.

    A job that waits for this one gets it without advice (`is_inside`): a person finds that at the job that failed.
    """
    error = job.error
    details = {} if error is None else {"type": error.type, "message": error.message, "traceback": error.traceback}
    name = f"job {job.id} ({job.type})"
    if job.state is State.CANCELLED:
        return JobCancelled(f"{name} was cancelled{f': {reason}' if reason else ''}", **details)
    why = f": {cause_text(error)}" if error is not None else f": {reason}" if reason else ""
    if job.state is not State.REVIEW:
        return JobFailed(f"{name} was given up{why}", **details)
    if is_inside:
        return JobFailed(f"{name} failed{why}", **details)
    return JobFailed(f"{name} needs a person{why}{advice(job.id, error, ADVICE)}", **details)


def advice(id: str, error: Error | None, text: str) -> str:
    """Return this text about a job in review, with its id; "" if its error already says what to do."""
    return "" if error is not None and error.type in ADVISING else text.format(id=short_id(id))


def cause_text(error: Error) -> str:
    """Return an error as the cause of another one, without repeating what the other one says."""
    return error.message if error.type in SPEAKING else f"{error.type.removeprefix(OUR_ERRORS)}: {error.message}"
