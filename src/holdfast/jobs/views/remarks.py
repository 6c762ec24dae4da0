"""What is shown about a job besides its sentence (`str(status)`): its owner, its life, a remark in a list.

Must not read a store.
"""

from collections.abc import Iterator, Sequence

from holdfast.core.model import Entry, Event, Job, State, Time
from holdfast.jobs.questions import ASK, Refusal
from holdfast.jobs.status import Status
from holdfast.jobs.views.text import ago, error_line, name_some, one_line, plural, span
from holdfast.jobs.views.waits import list_waits


def owner_words(one: Status | Job, lost: int | None = None) -> Iterator[str]:
    """Yield who runs it, and what went wrong before. `lost` is the total number of lost workers, if known."""
    if one.worker is not None:
        yield f"worker {one.worker}"
    if one.attempt > 1:
        # A running attempt has a number. If none runs, only the failed attempts can be counted.
        yield f"attempt {one.attempt}" if one.state is State.ACTIVE else plural(one.attempt - 1, "failed attempt")
    if lost:
        in_a_row = f", {one.recoveries} in a row" if 1 < one.recoveries < lost else ""
        yield f"{plural(lost, 'worker')} lost{in_a_row}"
    elif lost is None and one.recoveries:
        yield f"{plural(one.recoveries, 'worker')} lost in a row" if one.recoveries > 1 else "its worker was lost"


def count_lost_workers(history: Sequence[Entry]) -> int:
    """Return how many workers a job has lost in total."""
    return sum(entry.event in (Event.LAPSE, Event.ABANDON) and "lost" in entry.note for entry in history)


def life_words(one: Status, history: Sequence[Entry], now: Time) -> str:
    """Return its queue, its age, its worker, and how long it took."""
    words = [f"queue {one.queue}", f"submitted {ago(one.created_at, now)}"]
    words += owner_words(one, count_lost_workers(history))
    if one.finished_at is not None:
        words.append(f"ended {ago(one.finished_at, now)}")
        began_at = next((entry.at for entry in history if entry.event == Event.CLAIM), None)
        words += [] if began_at is None else [f"took {span(one.finished_at - began_at)}"]
    return ", ".join(words)


def when_words(job: Job, now: Time) -> str:
    """Return the time that matters most in the job's state."""
    match job.state:
        case State.SCHEDULED | State.RETRYABLE:
            return f"due {ago(job.run_at, now)}"
        case State.ACTIVE:
            return f"claimed {ago(job.claimed_at, now)}"
        case State.COMPLETED | State.DISCARDED | State.CANCELLED:
            return ago(job.finished_at, now)
        case _:
            return ago(job.created_at, now)


def remark(job: Job, now: Time, limited: str = "") -> str:
    """Return what a job in a list waits for, or what is unusual about it. For `limited`, see `list_waits`."""
    if job.state is State.PENDING:
        return name_some(list_waits(job.waits, limited, now))
    if limited:
        return limited
    if job.error is not None:
        return error_line(job.error, 60)
    if job.attempt > 1:
        return f"attempt {job.attempt}"
    return f"{plural(job.recoveries, 'worker')} lost in a row" if job.recoveries else ""


def refusal_words(refused: Refusal) -> str:
    """Describe a signal or an answer that the job itself refused."""
    what = "answer" if refused.name.startswith(ASK) else f"signal {one_line(refused.name, 60)}"
    return f"an earlier {what} was refused, from {one_line(refused.by, 60)}: {one_line(refused.why)}"
