"""What a worker's log says of a job: that an attempt started, which tries failed, and how it ended, with fields.

Must not decide anything. Nothing is formatted while the level is off: most jobs are short.

The fields go to `logging` as `extra=`, so every formatter has them: job, type, queue, attempt and worker; at the end
duration_ms and outcome; after a failure also error, error_type, place, retry_at and traceback; after a failed try of a
step also step, path and tries.
"""

import logging
import time
from typing import Any

from holdfast.core.durations import in_words
from holdfast.core.model import Error, Event, Job, Time, Wait
from holdfast.jobs.failures import SPEAKING, advice, cause_text
from holdfast.jobs.job_events import StepRetry
from holdfast.jobs.views.shapes import time_text
from holdfast.jobs.views.text import name_some
from holdfast.jobs.views.waits import wait_words
from holdfast.safe_text import clean, logger
from holdfast.tracebacks import place_in
from holdfast.worker.held_job import HeldJob

log = logger("holdfast.worker")

NAME = "job %s (%s)"

DURATION = "{duration}"
"""Stands in a line for how long the attempt took."""


def is_logged(level: int = logging.INFO) -> bool:
    """Whether lines of this level are written at all."""
    return log.isEnabledFor(level)


def log_start(job: Job) -> None:
    """An attempt starts, or continues what an earlier one recorded."""
    if is_logged():
        which = f", {_attempt_words(job)}" if job.attempt > 1 else ""
        verb = "started" if job.epoch == 1 else "resumed"
        log.info(f"{NAME} %s%s", job.id, job.type, verb, which, extra=_fields(job))


def log_committed(held: HeldJob, event: str) -> None:
    """The end of an attempt was stored. The log has told of a failure already, when it happened."""
    if event == Event.COMPLETE:
        _log_end(held, logging.INFO, "completed", f"completed after {DURATION}")
    elif event == Event.RELEASE:
        text = f"released after {DURATION}: its worker is stopping, and another worker continues it"
        _log_end(held, logging.INFO, "released", text)


def log_waiting(held: HeldJob, waits: tuple[Wait, ...]) -> None:
    """An attempt gave up its slot because its job waits."""
    if is_logged():
        now = held.now()
        words = name_some([wait_words(wait, now) for wait in waits]) or "waiting"
        _log_end(held, logging.INFO, "waiting", f"suspended after {DURATION}: {words}")


def log_stopped(held: HeldJob, level: int, outcome: str, text: str) -> None:
    """An attempt was stopped, and its job is not this worker's any more. `text` may hold DURATION."""
    _log_end(held, level, outcome, text)


def log_failure(held: HeldJob, error: Error, *, retry_at: Time, now: Time) -> None:
    """An attempt failed, and the job tries again."""
    if is_logged(logging.WARNING):
        then = f"; next attempt in {in_words(retry_at - now)}"
        _log_error(
            held.job, error, _duration_ms(held), logging.WARNING, "failed", then, retry_at=time_text(retry_at) or ""
        )


def log_try(job: Job, retry: StepRetry, of: int, line: str) -> None:
    """A try of a step failed, and the step is tried again. Names the step by its path: arguments are never logged."""
    if not is_logged(logging.WARNING):
        return
    error, place = retry.error, place_in(retry.error.traceback)
    where = "" if place is None else f" ({place})"
    fields = _fields(
        job,
        step=retry.step,
        path=retry.path,
        tries=retry.tries,
        error=error.message,
        error_type=error.type,
        place="" if place is None else str(place),
        retry_at=time_text(retry.next_at),
    )
    log.warning(
        f"{NAME}: step %s failed (try %d of %d): %s%s; next try in %.1f s",
        job.id, job.type, retry.path, retry.tries, of, line, where, (retry.next_at - retry.at) / 1_000, extra=fields,
    )  # fmt: skip


def log_review(job: Job, error: Error, held: HeldJob | None = None) -> None:
    """A job needs a person. Without an attempt here, there is no duration."""
    if is_logged(logging.ERROR):
        how = advice(job.id, error, "; it needs a person: holdfast show {id}")
        _log_error(job, error, None if held is None else _duration_ms(held), logging.ERROR, "review", how)


def _log_end(held: HeldJob, level: int, outcome: str, text: str) -> None:
    if is_logged(level):
        job, duration = held.job, _duration_ms(held)
        line = text.replace(DURATION, in_words(duration))
        log.log(level, f"{NAME} %s", job.id, job.type, line, extra=_fields(job, duration_ms=duration, outcome=outcome))


def _log_error(
    job: Job, error: Error, duration_ms: int | None, level: int, outcome: str, then: str, **more: str
) -> None:
    place = place_in(error.traceback, of_cause=error.type in SPEAKING)
    fields = _fields(
        job,
        **({} if duration_ms is None else {"duration_ms": duration_ms}),
        outcome=outcome,
        error=error.message,
        error_type=error.type,
        place="" if place is None else str(place),
        traceback=error.traceback,
        **more,
    )
    after = "" if duration_ms is None else f" after {in_words(duration_ms)}"
    where = "" if place is None else f" ({place})"
    why = cause_text(error).partition("\n")[0]
    text = f"{NAME} failed%s (%s): %s%s%s"
    log.log(level, text, job.id, job.type, after, _attempt_words(job), why, where, then, extra=fields)


def _attempt_words(job: Job) -> str:
    return f"attempt {job.attempt} of {job.options.retry.retries + 1}"


def _duration_ms(held: HeldJob) -> int:
    return round((time.monotonic() - held.claimed) * 1_000)


def _fields(job: Job, **more: Any) -> dict[str, Any]:
    """The fields of a line, safe to show: another formatter may print them as they are."""
    fields = {"job": job.id, "type": job.type, "queue": job.queue, "attempt": job.attempt, "worker": job.worker, **more}
    return {name: clean(value) if isinstance(value, str) else value for name, value in fields.items()}
