"""One wait of a job: what it waits for, until when, and its answer. Must not know how a job suspends."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

from holdfast.core.budgets import wait_name
from holdfast.core.durations import in_words
from holdfast.core.model import StepState, Time, Wait, WaitKind
from holdfast.jobs.questions import is_question
from holdfast.jobs.waiters import awaited_job
from holdfast.worker.attempt import Attempt
from holdfast.worker.records import record_info

T = TypeVar("T")


class PendingWait(Generic[T]):
    """One wait of a job. `poll` returns the answer in a list, or None while there is none."""

    def __init__(
        self, path: str, wait: Wait, poll: Callable[[], Awaitable[list[T] | None]], info: dict[str, Any] | None = None
    ) -> None:
        self.path = path
        self.wait = wait
        """What wakes the job. A poll may change it, but not its end."""
        self.end = wait.until
        self.poll = poll
        self.info = info or {}
        self.future: asyncio.Future[None] | None = None
        self.is_root = False
        """Whether the job itself waits, not a task or thread that it started."""
        self.since = 0.0
        """When it first became pending, by the loop's clock."""
        self.waits: list[Wait] = []
        """Everything that wakes the job, if that is more than `wait`."""
        self.stays_until = 0.0
        """Until when, by the loop's clock, the job keeps its slot for this wait."""
        self.is_given_up = False
        """Whether the job itself gave it up before: it takes nothing, and nothing wakes the job for it."""

    def all_waits(self) -> list[Wait]:
        """Return everything that wakes the job."""
        return self.waits or [self.wait]

    def wake(self) -> None:
        """Make it poll again."""
        wake(self.future)


def wake(future: "asyncio.Future[None] | None") -> None:
    """End a wait's pause, if it is in one."""
    if future is not None and not future.done():
        future.set_result(None)


def until_of(attempt: Attempt, path: str, milliseconds: int | None) -> Time | None:
    """Return when a wait times out: as recorded when the job suspended for it, otherwise counted from now."""
    record = attempt.journal.records.waits.get(path)
    if record is not None and record.state is StepState.STARTED:
        until: Time | None = record_info(record).get("until")
        return until
    return None if milliseconds is None else attempt.now() + milliseconds


def is_for_jobs(wait: Wait) -> bool:
    """Whether other jobs must end before this wait does."""
    return wait.kind is WaitKind.CHILDREN or awaited_job(wait) is not None


def describe_wait(wait: Wait, now: Time) -> str:
    """Describe what a job waits for, for the history."""
    other = awaited_job(wait)
    what = (
        f"job {other}"
        if other is not None
        else {
            WaitKind.TIME: "time",
            WaitKind.SIGNAL: "a person's answer" if is_question(wait) else f"signal {wait.name}",
            WaitKind.CHILDREN: f"children {wait.name}",
            WaitKind.LIMIT: wait_name(wait.name),
        }.get(wait.kind, str(wait.kind))
    )
    if wait.until is None:
        return what
    seconds = max(0, round((wait.until - now) / 1_000))  # rounded, so that it says "2 d" and not "1 d 23 h"
    return f"{what}, for {in_words(seconds * 1_000)} at most"
