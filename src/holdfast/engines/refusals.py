"""Why a store refuses a call: the rules and messages that all engines share.

Must not know any store: an engine reads what is stored, and this module decides what that means.
"""

from holdfast.core.errors import KeyConflict, LeaseLost, NotFound, StoreClosed
from holdfast.core.model import (
    CHILDREN_ARE_IN,
    LEASE_LOST,
    NO_SUCH_JOB,
    Ask,
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
    why = "was opened before this process was forked" if is_forked else "is not open"
    return StoreClosed(f"{store} {why}; open it in this process first")


def lease_over(parent: Lease) -> LeaseLost:
    """Refuse children of a parent whose lease has ended."""
    return LeaseLost(f"job {parent.job}: its lease (epoch {parent.epoch}) has ended; no child job was inserted")


def key_taken(job: Job, holder: str) -> KeyConflict:
    """Refuse a job whose key was already used with other arguments."""
    return KeyConflict(
        f"job type {job.type}: key {job.key!r} already belongs to job {holder}, which has other arguments; "
        "use the same arguments, or another key"
    )


def no_job_before(page: str) -> NotFound:
    """Refuse a page that starts after a job that no longer exists."""
    return NotFound(f"job {page} no longer exists, so no page can start after it; start again with the first page")


def holds(head: Head | Job | None, epoch: int) -> bool:
    """Whether the lease with this epoch is current."""
    return head is not None and head.epoch == epoch and head.state is State.ACTIVE


def lease_lost(head: Head | Job) -> Conflict:
    """Refuse a write under a lease that is no longer current."""
    return Conflict(head.id, LEASE_LOST, head.state, head.version, head.epoch)


def step_refusal(head: Head | Job | None, step: Step) -> Conflict | None:
    """Compare the lease of a step with the job as stored now; None if the step may be recorded."""
    if head is None:
        return Conflict(step.job, NO_SUCH_JOB)
    return None if holds(head, step.epoch) else lease_lost(head)


def ask_refusal(head: Head | Job | None, ask: Ask) -> Conflict | None:
    """Compare the lease of a step that asks for permits with the job as stored now; None if it may ask."""
    if head is None:
        return Conflict(ask.job, NO_SUCH_JOB)
    return None if holds(head, ask.epoch) else lease_lost(head)


def awaited_groups(change: Change) -> list[str]:
    """The groups of children that a change waits for, sorted, so that everybody locks them in the same order.

    If all children of such a group have arrived, there is nothing to wait for: see `children_are_in`.
    """
    if change.event != Event.SUSPEND:
        return []
    return sorted(wait.name for wait in change.job.waits if wait.kind is WaitKind.CHILDREN)


def children_are_in(head: Head | Job) -> Conflict:
    """Refuse to suspend a job on children that have all arrived."""
    return Conflict(head.id, CHILDREN_ARE_IN, head.state, head.version, head.epoch)
