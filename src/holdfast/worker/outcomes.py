"""What the end of an attempt means for its job: the change for a result, an error or a stop.

Must not commit it (`settling`).
"""

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from holdfast.core.changes import Cargo, complete, exhaust, fail, release, rest
from holdfast.core.durations import in_words
from holdfast.core.errors import Unstored
from holdfast.core.lifecycle import RELEASE_LIMIT
from holdfast.core.model import NEVER_ASKED, Change, Error, Event, Job, Time
from holdfast.core.outcome import doubt_text, failed_with, failure_event, failures_of, retry_at
from holdfast.jobs.large_values import ArgumentsAway
from holdfast.jobs.lost_workers import HANDED_OVER
from holdfast.safe_text import logger
from holdfast.worker.attempt import Attempt
from holdfast.worker.drift import vanished_text
from holdfast.worker.job_log import log_failure, log_review
from holdfast.worker.recorded_errors import error_of, is_final, text_of, type_name

log = logger("holdfast.worker")

AWAY_MS = 10_000
"""When a job comes back whose arguments couldn't be read, because the blob store was away."""


def decide_end(
    attempt: Attempt,
    result: str | None,
    error: BaseException | None,
    *,
    now: Time,
    by: str,
    chance: Callable[[], float],
    stop: str | None = None,
    releases: int = 0,
) -> Change:
    """Decide what the end of an attempt means, and what goes with it: the end of its steps' permits, and the next steps
    of its flow. See `_decide_end`.
    """
    change = _decide_end(attempt, result, error, now, by, chance, stop, releases)
    if attempt.follows is not None and change.event == Event.COMPLETE:
        change = replace(change, inserts=(*change.inserts, *attempt.follows(now)))
    return replace(change, frees=True) if attempt.has_asked else change


def _decide_end(
    attempt: Attempt,
    result: str | None,
    error: BaseException | None,
    now: Time,
    by: str,
    chance: Callable[[], float],
    stop: str | None,
    releases: int,
) -> Change:
    """Decide what the end of an attempt means. `stop` says why it was stopped early; `releases` is how often in a row
    the job was released, if this is a release.

    What a handler returns after it was asked to stop isn't its result: it may have skipped something.
    """
    job = attempt.job
    completes = error is None and stop is None
    if completes and attempt.is_plain():
        return complete(job, now, by=by, result=result)
    effects = attempt.journal.effects
    if error is not None and stop is None:
        attempt.progress.waste_loose()
    cargo = make_cargo(attempt, now, completes=completes, waits=stop is not None)
    if completes:
        return complete(job, now, by=by, result=result, **cargo)
    if effects.doubts:
        return _ask_a_person(attempt, error, now, by, cargo)
    if stop is not None:
        note = {**cargo["note"], HANDED_OVER: len(attempt.journal.records.steps), "why": stop}
        return decide_release(job, releases, now, by=by, **(cargo | Cargo(note=note)))
    assert error is not None
    if error_of(error).type == type_name(ArgumentsAway()):
        return _wait_for_arguments(attempt, error, now, by, cargo)
    return _decide_failure(attempt, error, now, by, chance, cargo)


def make_cargo(attempt: Attempt, now: Time, *, completes: bool, waits: bool) -> Cargo:
    """Collect what is committed with the end: the last records, intents to take back, and a note."""
    journal, progress = attempt.journal, attempt.progress
    note: dict[str, Any] = {}
    if drift := journal.calls.drift_lines():
        note["drift"] = drift
    if attempt.kept_slot:
        note["kept_slot"] = attempt.kept_slot
    if completes:
        note |= vanished_note(attempt)
    places = journal.take_places_record(completes=completes)
    used = journal.count_used() if completes else None
    steps = (
        *places,
        *progress.take_log_record(),
        *progress.final_records(now, completes=completes, waits=waits, used=used),
    )
    return Cargo(note=note, steps=steps, drops=tuple(journal.effects.drops))


def _decide_failure(
    attempt: Attempt, raised: BaseException, now: Time, by: str, chance: Callable[[], float], cargo: Cargo
) -> Change:
    """The attempt has failed: the job tries again, or needs a person."""
    job, error = attempt.job, error_of(raised)
    note = {**cargo["note"], "error": f"{error.type}: {error.message}", "attempt": job.attempt}
    if error.traceback:
        note["traceback"] = error.traceback
    if failure_event(job, error.type, retryable=not is_final(raised)) is Event.FAIL:
        run_at = retry_at(job, now, chance())
        note["next_try"] = f"in {in_words(run_at - now)}"
        log_failure(attempt, error, retry_at=run_at, now=now)
        return fail(job, now, by=by, error=error, run_at=run_at, **(cargo | Cargo(note=note)))
    log_review(job, error, attempt)
    return exhaust(job, now, by=by, error=error, **(cargo | Cargo(note=note)))


def _wait_for_arguments(attempt: Attempt, raised: BaseException, now: Time, by: str, cargo: Cargo) -> Change:
    """The job comes back later: its arguments can't be read now. Its code hasn't run, so this costs no attempt."""
    why = text_of(raised)
    log.warning("job %s (%s): %s; trying again in %s", attempt.job.id, attempt.job.type, why, in_words(AWAY_MS))
    return rest(attempt.job, now, by=by, run_at=now + AWAY_MS, **(cargo | Cargo(note={**cargo["note"], "why": why})))


def decide_release(job: Job, releases: int, now: Time, *, by: str, **cargo: Any) -> Change:
    """Release a job; or put it into review, if it was released too often in a row, including this time."""
    if releases < RELEASE_LIMIT:
        return release(job, now, by=by, **cargo)
    error = Error(
        "ReleasedTooOften",
        f"{releases} workers in a row were asked to stop while they ran this job, and it recorded nothing new; "
        "does the job send its own worker a signal? If you stopped the workers, replay it",
    )
    log_review(job, error)
    cargo["note"] = {**cargo["note"], "released": releases}
    return exhaust(job, now, by=by, error=error, **cargo)


def vanished_note(attempt: Attempt) -> dict[str, Any]:
    """Return the history's note about recorded steps that the code never called. Logs it, too."""
    counts = attempt.journal.calls.vanished_counts()
    if not counts:
        return {}
    log.warning("job %s (%s): %s", attempt.job.id, attempt.job.type, vanished_text(counts))
    return {NEVER_ASKED: counts}


def _ask_a_person(attempt: Attempt, raised: BaseException | None, now: Time, by: str, cargo: Cargo) -> Change:
    """Put the job into review, because an effect may have happened. Nothing is retried until a person decides."""
    job, doubts = attempt.job, attempt.journal.effects.doubts
    failures = failures_of(attempt.journal.records.waits.values())
    causes = [error_of(raised)] if isinstance(raised, Exception) else []
    causes += [failures[path] for path in doubts if path in failures]
    cause = failed_with(causes[0]) if causes else ""
    error = Error("EffectInDoubt", doubt_text(job.id, doubts, cause))
    if len(doubts) == 1 and causes and causes[0].type == type_name(Unstored("")):
        error = causes[0]  # this one is known to have happened
    note = {**cargo["note"], "in_doubt": doubts, "error": error.message}
    log_review(job, error, attempt)
    return exhaust(job, now, by=by, error=error, **(cargo | Cargo(note=note)))
