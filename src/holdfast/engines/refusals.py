"""Why a store refuses: the rules and words that are the same for every engine.

Must not know any store: an engine finds out what is there, and is told here what that means.
"""

from holdfast.core.errors import KeyConflict, LeaseLost, NotFound, StoreClosed
from holdfast.core.model import (
    CHILDREN_ARE_IN,
    LEASE_LOST,
    NO_SUCH_JOB,
    Change,
    Conflict,
    Event,
    Head,
    Job,
    Lease,
    State,
    Step,
    WaitKind,
)


def not_open(store: object, *, is_forked: bool) -> StoreClosed:
    """Refuse to use a store that is not open in this process."""
    why = "was opened before this process was forked" if is_forked else "not open"
    return StoreClosed(f"{store}: {why}; open it here first")


def lease_over(parent: Lease) -> LeaseLost:
    """Refuse children of a parent whose lease is over."""
    return LeaseLost(f"job {parent.job}: its lease (epoch {parent.epoch}) is over; nothing was inserted")


def key_taken(job: Job, holder: str) -> KeyConflict:
    """Refuse a job whose key stands for other arguments."""
    return KeyConflict(
        f"key {job.key!r} of {job.type} stands for job {holder} with other arguments; "
        "give the same arguments, or another key"
    )


def no_job_before(page: str) -> NotFound:
    """Refuse a page that begins after a job which is gone."""
    return NotFound(f"there is no job {page} to go on after")


def holds(head: Head | Job | None, epoch: int) -> bool:
    """Whether the lease with this epoch is current."""
    return head is not None and head.epoch == epoch and head.state is State.ACTIVE


def lease_lost(head: Head | Job) -> Conflict:
    """Refuse what was done under a lease that is not current any more."""
    return Conflict(head.id, LEASE_LOST, head.state, head.version, head.epoch)


def step_refusal(head: Head | Job | None, step: Step) -> Conflict | None:
    """Compare the lease of a step with the job as it is now; None if it may be recorded."""
    if head is None:
        return Conflict(step.job, NO_SUCH_JOB)
    return None if holds(head, step.epoch) else lease_lost(head)


def awaited_groups(change: Change) -> list[str]:
    """The groups of children that a change waits for, in one order, so that nobody locks them in another one.

    If one of them has nobody missing, the wait would be for nobody: `children_are_in`.
    """
    if change.event != Event.SUSPEND:
        return []
    return sorted(wait.name for wait in change.job.waits if wait.kind is WaitKind.CHILDREN)


def children_are_in(head: Head | Job) -> Conflict:
    """Refuse to suspend a job on children who have all arrived."""
    return Conflict(head.id, CHILDREN_ARE_IN, head.state, head.version, head.epoch)
