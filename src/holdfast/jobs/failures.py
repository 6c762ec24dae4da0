"""The error that a caller gets for a job that settled without a result. Pure."""

from holdfast.core.errors import JobCancelled, JobFailed
from holdfast.core.model import Job, State


def failure_of(job: Job, reason: str = "") -> Exception:
    """Return the error for a job without a result, with the reason that a person gave."""
    error = job.error
    details = {} if error is None else {"type": error.type, "message": error.message, "traceback": error.traceback}
    if job.state is State.CANCELLED:
        return JobCancelled(f"job {job.id} was cancelled{f': {reason}' if reason else ''}", **details)
    what = "needs a person" if job.state is State.REVIEW else "was given up"
    why = f": {error.type}: {error.message}" if error is not None else f": {reason}" if reason else ""
    now = "; see holdfast show, then replay, resolve or discard" if job.state is State.REVIEW else ""
    return JobFailed(f"job {job.id} {what}{why}{now}", **details)
