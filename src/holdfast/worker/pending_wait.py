"""One wait of a job: what it waits for, until when, and how it is answered. Must not know how a job suspends."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

from holdfast.core.durations import in_words
from holdfast.core.model import StepState, Time, Wait, WaitKind
from holdfast.jobs.waiters import awaited_job
from holdfast.worker.attempt import Attempt
from holdfast.worker.records import record_info

T = TypeVar("T")


class PendingWait(Generic[T]):
    """One wait of a job. `poll` answers with the value in a list, or None while there is none."""

    def __init__(
        self, path: str, wait: Wait, poll: Callable[[], Awaitable[list[T] | None]], info: dict[str, Any] | None = None
    ) -> None:
        self.path = path
        self.wait = wait
        """What wakes the job; a poll may change it, and not the end."""
        self.end = wait.until
        self.poll = poll
        self.info = info or {}
        self.future: asyncio.Future[None] | None = None
        self.is_root = False
        """Whether the job itself waits, and not a task or a thread that it started."""
        self.since = 0.0
        """When it first became pending, by the loop's clock."""
        self.waits: list[Wait] = []
        """All that wakes the job, where that is more than `wait`."""
        self.stays_until = 0.0
        """Until when, by the loop's clock, the job keeps its slot for this wait."""
        self.is_given_up = False
        """Whether the job itself gave it up before: it takes nothing, and nobody wakes the job for it."""

    def all_waits(self) -> list[Wait]:
        """All that wakes the job."""
        return self.waits or [self.wait]

    def wake(self) -> None:
        """Let it poll again."""
        wake(self.future)


def wake(future: "asyncio.Future[None] | None") -> None:
    """End the pause of a wait, if it is in one."""
    if future is not None and not future.done():
        future.set_result(None)


def until_of(attempt: Attempt, path: str, milliseconds: int | None) -> Time | None:
    """When a wait is over: as it was written when the job suspended over it, else counted from now."""
    record = attempt.journal.records.waits.get(path)
    if record is not None and record.state is StepState.STARTED:
        until: Time | None = record_info(record).get("until")
        return until
    return None if milliseconds is None else attempt.now() + milliseconds


def is_for_jobs(wait: Wait) -> bool:
    """Whether other jobs must end before this wait does."""
    return wait.kind is WaitKind.CHILDREN or awaited_job(wait) is not None


def describe_wait(wait: Wait, now: Time) -> str:
    """What a job waits for, in words for the history."""
    other = awaited_job(wait)
    what = (
        f"job {other}"
        if other is not None
        else {
            WaitKind.TIME: "time",
            WaitKind.SIGNAL: f"signal {wait.name}",
            WaitKind.CHILDREN: f"children {wait.name}",
        }.get(wait.kind, str(wait.kind))
    )
    if wait.until is None:
        return what
    seconds = max(0, round((wait.until - now) / 1_000))  # "2 d", and not "1 d 23 h", because a moment has passed
    return f"{what}, for {in_words(seconds * 1_000)} at most"
