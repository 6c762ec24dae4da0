"""Topics: what a caller of `Engine.wait` waits for, and how long until the next job is due.

Must not know any store.
"""

from collections.abc import Collection

from holdfast.core.model import Change, Time


def queue_topic(queue: str) -> str:
    """Return the topic of jobs that become available in a queue."""
    return f"queue:{queue}"


def queues_of(topics: Collection[str]) -> list[str]:
    """Return the queues among some topics."""
    return [topic.removeprefix("queue:") for topic in topics if topic.startswith("queue:")]


DUE_WINDOW_MS = 1_000
"""A job that became due this recently may have been missed by the claim before the wait, so the waiter checks again."""


def until_due(due: Time | None, now: Time, timeout: float) -> float:
    """How long to wait if the next job is due at `due`: not past it, and at least 10 ms."""
    return timeout if due is None else min(timeout, max((due - now) / 1_000, 0.01))


def job_topic(job: str) -> str:
    """The topic of changes of a job. Recorded steps don't wake anybody: those who show progress poll."""
    return _JOB + job


_JOB = "job:"


def is_job_topic(topic: str) -> bool:
    """Whether a topic is a job's. There are as many as there are jobs, and mostly nobody waits for them."""
    return topic.startswith(_JOB)


def limit_topic(key: str) -> str:
    """What to wait for to hear that a permit under a limit's key may be free."""
    return f"limit:{key}"


def worker_topic(worker: str) -> str:
    """Return the topic of a worker: one of its jobs was taken from it, or its queues were paused."""
    return f"worker:{worker}"


def loser_of(owner: str | None, change: Change) -> str | None:
    """The worker that a change takes a job from, if somebody else made the change.

    An owner's own changes don't wake it: otherwise it would send a heartbeat for every job that it ends.
    """
    return owner if change.job.worker is None and change.epoch is None else None
