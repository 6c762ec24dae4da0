"""What a job waits for, in words. Must not read a store or know a status: a status uses these words."""

from holdfast.core.budgets import wait_name
from holdfast.core.model import Time, Wait, WaitKind
from holdfast.jobs.questions import is_question
from holdfast.jobs.views.text import one_line, short_id, time_left, utc_clock
from holdfast.jobs.waiters import awaited_job


def wait_words(wait: Wait, now: Time) -> str:
    """Return what a job waits for: "waiting for signal approved, 1 d left", "sleeping until 2026-03-01 …, 2 h left"."""
    words = {
        WaitKind.TIME: "sleeping" if wait.until is None else f"sleeping until {utc_clock(wait.until)}",
        WaitKind.SIGNAL: f"waiting for signal {one_line(wait.name, 60)}",
        WaitKind.CHILDREN: "waiting for children",
        WaitKind.ACTIVATION: "waiting for somebody to activate it",
        WaitKind.LIMIT: f"waiting for {one_line(wait_name(wait.name), 70)}",
        WaitKind.STOPPED: f"waiting for the owner of job {short_id(wait.name)} to stop",
    }[wait.kind]
    if wait.is_unreadable:
        words = "waiting for something that can't be read"
    elif wait.is_for_copy:
        words = "waiting for its records, which are copied from another run"
    elif is_question(wait):
        words = "waiting for a person's answer"
    elif (other := awaited_job(wait)) is not None:
        words = f"waiting for job {short_id(other)}"
    return words if wait.until is None else f"{words}, {time_left(wait.until, now)}"
