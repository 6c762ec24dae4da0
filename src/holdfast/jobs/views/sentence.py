"""A job in one sentence, and the parts of it: stage, progress, retries, waits, owner. Must not ask a store.

Every caller shows these words: "draw, stage 3 of 7, 11 of 30, about 21 min left".
"""

from collections.abc import Iterator, Sequence

from holdfast.core.model import Entry, Event, Job, State, Time, Wait, WaitKind
from holdfast.jobs.questions import ASK, Refusal
from holdfast.jobs.status import Status
from holdfast.jobs.views.text import ago, error_line, one_line, plural, short_id, span, time_left, utc_clock
from holdfast.jobs.waiters import awaited_job
from holdfast.safe_text import clean

TEXT_SHOWN = 60
"""How much of what a job says of its progress is shown."""

RETRY_SHOWN = 300
"""How long the line about a step that is tried again may be."""

STANDS_STILL = "stands still: nothing can be written"


def sentence(one: Status, now: Time) -> str:
    """Where a job stands, in one line: "draw, stage 3 of 7, 11 of 30, about 21 min left"."""
    match one.state:
        case State.ACTIVE:
            parts = [stage_words(one) or "running", *progress_words(one)]
            parts += [retry_line(one)] if one.retrying is not None else []
        case State.REVIEW:
            parts = ["needs a person", error_line(one.error)]
        case State.PENDING:
            parts = [wait_words(wait, now) for wait in one.waits] or ["pending"]
        case State.SCHEDULED | State.RETRYABLE:
            due = [] if one.waits else [f"due {ago(one.run_at, now)}"]
            parts = [str(one.state), *(wait_words(wait, now) for wait in one.waits), *due, error_line(one.error)]
        case State.AVAILABLE:
            parts = ["waits for a worker", *progress_words(one)]
        case _:
            parts = [f"{one.state} {ago(one.finished_at, now)}", error_line(one.error)]
    return ", ".join(part for part in parts if part)


def stage_words(one: Status) -> str:
    """What an active job does: "draw, stage 3 of 7". Nothing before its first step."""
    place = f", stage {one.stage_number} of {len(one.stages)}" if one.stage_number else ""
    return f"{clean(one.stage)}{place}" if one.stage else ""


def progress_words(one: Status) -> list[str]:
    """How far it is: "11 of 30", what the job says, "about 21 min left", and whether it stands still."""
    parts = [count_of_done(one), one_line(one.text, TEXT_SHOWN), remaining_words(one)]
    return [part for part in (*parts, STANDS_STILL if one.trouble else "") if part]


def count_of_done(one: Status) -> str:
    """How much is done: "11 of 30", or "3 steps recorded" where nobody said how much there is."""
    if one.done is not None and one.total:
        return f"{one.done:,} of {one.total:,}"
    return f"{plural(one.steps, 'step')} recorded" if one.steps else ""


def remaining_words(one: Status) -> str:
    """About how long it will take: "about 21 min left"."""
    return f"about {span(one.remaining_ms)} left" if one.remaining_ms else ""


def retry_line(one: Status) -> str:
    """What is tried again, after which error, and when."""
    return one_line(one.retry_words, RETRY_SHOWN)


def owner_words(one: Status | Job, lost: int | None = None) -> Iterator[str]:
    """Who runs it, and what has gone wrong before. `lost` is how many workers were lost in all, where that is known."""
    if one.worker is not None:
        yield f"worker {one.worker}"
    if one.attempt > 1:
        # The attempt that runs has a number; where none runs, only the failed ones can be told.
        yield f"attempt {one.attempt}" if one.state is State.ACTIVE else plural(one.attempt - 1, "failed attempt")
    if lost:
        in_a_row = f", {one.recoveries} in a row" if 1 < one.recoveries < lost else ""
        yield f"{plural(lost, 'worker')} lost{in_a_row}"
    elif lost is None and one.recoveries:
        yield f"{plural(one.recoveries, 'worker')} lost in a row" if one.recoveries > 1 else "its worker was lost"


def count_lost_workers(history: Sequence[Entry]) -> int:
    """How many workers were lost over a job in all."""
    return sum(entry.event in (Event.LAPSE, Event.ABANDON) and "lost" in entry.note for entry in history)


def life_words(one: Status, history: Sequence[Entry], now: Time) -> str:
    """Its queue, since when it is there, who runs it, and how long it took."""
    words = [f"queue {one.queue}", f"submitted {ago(one.created_at, now)}"]
    words += owner_words(one, count_lost_workers(history))
    if one.finished_at is not None:
        words.append(f"ended {ago(one.finished_at, now)}")
        began_at = next((entry.at for entry in history if entry.event == Event.CLAIM), None)
        words += [] if began_at is None else [f"took {span(one.finished_at - began_at)}"]
    return ", ".join(words)


def wait_words(wait: Wait, now: Time) -> str:
    """What a job waits for: "waits for signal approved, 1 d left", "asleep until 2026-03-01 12:00:00 UTC, 2 h left"."""
    words = {
        WaitKind.TIME: "asleep" if wait.until is None else f"asleep until {utc_clock(wait.until)}",
        WaitKind.SIGNAL: f"waits for signal {one_line(wait.name, 60)}",
        WaitKind.CHILDREN: "waits for children",
        WaitKind.ACTIVATION: "what it waits for can't be read"
        if wait.is_unreadable
        else "waits for somebody to activate it",
        WaitKind.STOPPED: f"waits for the owner of job {short_id(wait.name)} to stop",
    }[wait.kind]
    if wait.kind is WaitKind.SIGNAL and wait.name.startswith(ASK):
        words = "waits for a person's answer"
    elif (other := awaited_job(wait)) is not None:
        words = f"waits for job {short_id(other)}"
    return words if wait.until is None else f"{words}, {time_left(wait.until, now)}"


def when_words(job: Job, now: Time) -> str:
    """The moment that matters most in a job's state."""
    match job.state:
        case State.SCHEDULED | State.RETRYABLE:
            return f"due {ago(job.run_at, now)}"
        case State.ACTIVE:
            return f"claimed {ago(job.claimed_at, now)}"
        case State.COMPLETED | State.DISCARDED | State.CANCELLED:
            return ago(job.finished_at, now)
        case _:
            return ago(job.created_at, now)


def remark(job: Job) -> str:
    """What is out of the ordinary about a job in a list."""
    if job.error is not None:
        return error_line(job.error, 60)
    if job.attempt > 1:
        return f"attempt {job.attempt}"
    return f"{plural(job.recoveries, 'worker')} lost in a row" if job.recoveries else ""


def refusal_words(refused: Refusal) -> str:
    """What to say of a signal or an answer that the job itself refused."""
    what = "answer" if refused.name.startswith(ASK) else f"signal {one_line(refused.name, 60)}"
    return f"an earlier {what} was refused, from {one_line(refused.by, 60)}: {one_line(refused.why)}"
