"""What an attempt that has ended comes to: the change that its result, its error or its stop makes of the job.

Must not commit it (`loop`).
"""

from collections.abc import Callable
from typing import Any

from holdfast.core.durations import in_words
from holdfast.core.lifecycle import RELEASE_LIMIT, decide
from holdfast.core.model import NEVER_ASKED, Change, Error, Event, Job, Time
from holdfast.core.outcome import doubt_text, failed_with, failure_event, failures_of, retry_at
from holdfast.jobs.lost_workers import HANDED_OVER
from holdfast.safe_text import logger
from holdfast.worker.attempt import Attempt
from holdfast.worker.drift import vanished_text
from holdfast.worker.recorded_errors import error_of, is_final

log = logger("holdfast.worker")


def outcome(
    attempt: Attempt,
    result: str | None,
    error: BaseException | None,
    *,
    now: Time,
    by: str,
    chance: Callable[[], float],
    stop: str | None = None,
    row: int = 0,
) -> Change:
    """The change that an ended attempt comes to. `stop` tells why it was stopped before its end, and `row` how often
    in a row it was released, should this be a release.

    What a handler returns after it was told to stop is not taken for its result: it may have left things out.
    """
    job, drift = attempt.job, attempt.drift()
    steps = (*attempt.log_record(), *attempt.progress_record(now, completes=error is None and stop is None))
    note: dict[str, Any] = {"drift": drift} if drift else {}
    if attempt.kept_slot:
        note["kept_slot"] = attempt.kept_slot
    if error is None and stop is None:
        note |= vanished_note(attempt)
        drops = () if attempt.is_bare else tuple(attempt.drops)
        return decide(job, Event.COMPLETE, now, by=by, result=result, note=note, steps=steps, drops=drops)
    drops = tuple(attempt.drops)
    if attempt.doubts:
        return _doubted(attempt, error, now, by, note, steps=steps, drops=drops)
    if stop is not None:
        note |= {HANDED_OVER: len(attempt.records), "why": stop}
        return released(job, row, now, by=by, note=note, steps=steps, drops=drops)
    assert error is not None
    told = error_of(error)
    note |= {"error": f"{told.type}: {told.message}", "attempt": job.attempt}
    event = failure_event(job, told.type, retryable=not is_final(error))
    if event is Event.FAIL:
        run_at = retry_at(job, now, chance())
        note["next_try"] = f"in {in_words(run_at - now)}"
        which = f"attempt {job.attempt} of {job.options.retry.retries + 1}"
        line = "job %s (%s) failed (%s): %s: %s; next attempt in %s"
        log.warning(line, job.id, job.type, which, *_in_short(told), in_words(run_at - now))
        return decide(job, event, now, by=by, error=told, run_at=run_at, note=note, steps=steps, drops=drops)
    log.error("job %s (%s): %s: %s; it needs a person: holdfast review", job.id, job.type, *_in_short(told))
    return decide(job, event, now, by=by, error=told, note=note, steps=steps, drops=drops)


def released(job: Job, row: int, now: Time, *, by: str, note: dict[str, Any], **cargo: Any) -> Change:
    """Hand a job over, for the how-manieth time in a row; or give it to a person, if that was too often."""
    if row < RELEASE_LIMIT:
        return decide(job, Event.RELEASE, now, by=by, note=note, **cargo)
    told = Error(
        "ReleasedTooOften",
        f"{row} workers in a row were told to stop while they ran this job, and it recorded nothing new; "
        "does it send its own worker a signal? If the stops were yours, replay it",
    )
    log.error("job %s (%s): %s: %s; it needs a person: holdfast review", job.id, job.type, *_in_short(told))
    return decide(job, Event.EXHAUST, now, by=by, error=told, note=note | {"released": row}, **cargo)


def vanished_note(attempt: Attempt) -> dict[str, Any]:
    """What the history is told of recorded steps that the code never asked for. The log says it, too."""
    counts = attempt.vanished()
    if not counts:
        return {}
    log.warning("job %s (%s): %s", attempt.job.id, attempt.job.type, vanished_text(counts))
    return {NEVER_ASKED: counts}


def _doubted(
    attempt: Attempt, error: BaseException | None, now: Time, by: str, note: dict[str, Any], **cargo: Any
) -> Change:
    """An effect may have happened: nothing is tried again before a person has said so."""
    job, failures = attempt.job, failures_of(attempt.waits.values())
    causes = [error_of(error)] if isinstance(error, Exception) else []
    causes += [failures[path] for path in attempt.doubts if path in failures]
    cause = failed_with(causes[0]) if causes else ""
    told = Error("EffectInDoubt", doubt_text(job.id, attempt.doubts, cause))
    note |= {"in_doubt": attempt.doubts, "error": told.message}
    log.error("job %s (%s): %s: %s; it needs a person: holdfast review", job.id, job.type, *_in_short(told))
    return decide(job, Event.EXHAUST, now, by=by, error=told, note=note, **cargo)


def _in_short(error: Error) -> tuple[str, str]:
    return error.type, error.message.partition("\n")[0]
