"""What happens after an attempt: retry policies, and the event that follows a failure.

Must not draw random numbers: jitter takes one as an argument.
"""

import shlex
from collections.abc import Iterable, Sequence
from math import inf
from typing import Any

from holdfast.core.durations import LONGEST_MS
from holdfast.core.errors import Invalid
from holdfast.core.model import Error, Event, Job, Retry, Step, StepState, Time

STRATEGIES = ("none", "constant", "linear", "polynomial", "exponential")
JITTER_LOW, JITTER_HIGH = 0.5, 1.5


def check_retry(retry: Retry) -> Retry:
    """Return the retry policy if it is valid, or raise Invalid."""
    if type(retry.retries) is not int or retry.retries < 0:
        raise Invalid(f"retries={retry.retries} is invalid; give the number of retries, or 0 for none")
    if retry.strategy not in STRATEGIES:
        raise Invalid(f"strategy {retry.strategy!r} is unknown; choose one of {', '.join(STRATEGIES)}")
    for name in ("initial_ms", "cap_ms"):
        if type(getattr(retry, name)) is not int:
            raise Invalid(f"{name}={getattr(retry, name)!r} is invalid; give a whole number of milliseconds")
        if getattr(retry, name) < 0:
            raise Invalid("a backoff can't be negative; give 0 or more milliseconds")
        if getattr(retry, name) > LONGEST_MS:
            raise Invalid(f"{name}={getattr(retry, name)} is longer than 100 years; give it in milliseconds")
    if type(retry.factor) not in (int, float) or not 1.0 <= retry.factor < inf:
        raise Invalid(f"backoff factor {retry.factor!r} is invalid; give a finite number of 1 or more")
    if type(retry.jitter) is not bool:
        raise Invalid(f"jitter={retry.jitter!r} is invalid; give True or False")
    rules: Any = retry.never
    if not isinstance(rules, tuple | list | set | frozenset) or not all(isinstance(rule, str) for rule in rules):
        raise Invalid(f"never={retry.never!r} is invalid; give a list of error type names")
    return retry


def next_delay(retry: Retry, failures: int, chance: float = 0.5) -> int:
    """Milliseconds to wait after this many failures. With jitter, `chance` in [0, 1) spreads the delays.

    The cap applies before the jitter and again after it.
    """
    match retry.strategy:
        case "constant":
            delay = float(retry.initial_ms)
        case "linear":
            delay = float(retry.initial_ms) * failures
        case "exponential" | "polynomial":
            try:
                growth = retry.factor ** (failures - 1) if retry.strategy == "exponential" else failures**retry.factor
                delay = retry.initial_ms * growth
            except OverflowError:
                delay = float(retry.cap_ms if retry.initial_ms else 0)
        case _:
            delay = 0.0
    delay = min(delay, retry.cap_ms)
    if retry.jitter:
        delay = min(delay * (JITTER_LOW + (JITTER_HIGH - JITTER_LOW) * chance), retry.cap_ms)
    return round(delay)


def never_retried(retry: Retry, error_type: str) -> bool:
    """Whether an error of this type is final: listed by its name, or by a prefix that ends in `.*`."""
    return any(error_type.startswith(rule[:-1]) if rule.endswith(".*") else error_type == rule for rule in retry.never)


def failure_event(job: Job, error_type: str, *, retryable: bool = True) -> Event:
    """The event after a failed attempt: another try while retries are left, otherwise review."""
    retry = job.options.retry
    if not retryable or retry.strategy == "none" or job.attempt > retry.retries:
        return Event.EXHAUST
    return Event.EXHAUST if never_retried(retry, error_type) else Event.FAIL


def retry_at(job: Job, now: Time, chance: float) -> Time:
    """When a job that fails now tries again."""
    return now + next_delay(job.options.retry, job.attempt, chance)


ONCE = '{"effect":"once"}'
"""The result that is recorded when a step with `effect="once"` starts: its intent."""


ARGS_PATH = "~args/"
"""The path, beside the record of a step with `key=`, of hashes of its arguments, to notice when they differ."""

ONCE_TAG = "once"
"""The last of the stored tags of a call with effect="once". No hash looks like it."""


def is_once(stored: str | None) -> bool:
    """Whether a recorded call was made as an effect, whatever its step is now. `stored` are its tags."""
    return stored is not None and stored.endswith(f'"{ONCE_TAG}"]')


TRANSACTION = "transaction"
"""The effect of a step that writes to the store's own database, in the transaction of its record."""


FAILED_ONCE_PATH = "~failed/"
"""The path prefix for the error of an effect in doubt. The same attempt raises that error again. Also for the error of
a step inside another step that may be retried: a failed record could not be replaced, so the next try could not run
the inner step.
"""


def in_doubt(steps: Iterable[Step]) -> list[str]:
    """The paths of effects that started and have no result: they may have happened, and must not happen twice."""
    return [step.path for step in steps if step.state is StepState.STARTED and step.result == ONCE]


def failures_of(steps: Iterable[Step]) -> dict[str, Error]:
    """The errors that effects in doubt raised, by path, as far as they were recorded."""
    failed = [step for step in steps if step.path.startswith(FAILED_ONCE_PATH)]
    return {step.path.removeprefix(FAILED_ONCE_PATH): step.error for step in failed if step.error is not None}


def doubt_text(job: str, paths: Sequence[str], cause: str = "") -> str:
    """The message about a job's effects in doubt: what went wrong, if known, and what to type."""
    is_one = len(paths) == 1
    they = "it" if is_one else "they"
    why = f" ({cause})" if cause else f": {they} started, and no result was recorded"
    step = shlex.quote(paths[0]) if is_one else "STEP, once for each step,"
    return (
        f"{', '.join(paths)} may have happened{why}{DOUBT_ADVICE}{they} did, then run holdfast resolve {job} --step "
        f"{step} with --result VALUE if it happened, or --again if it didn't"
    )


def already_happened_text(job: str, path: str) -> str:
    """The message about an effect whose arguments a rerun has changed: nobody has let it happen again."""
    step = shlex.quote(path)
    return (
        f"{path} has already happened, and a rerun has changed its arguments; if it may happen again with these, run "
        f"holdfast rerun {job} {step} --allow {step}; if not, holdfast resolve {job} with --result VALUE ends the job"
    )


def resolve_command(job: str, path: str, value: str) -> str:
    """The command that completes a job, or settles one of its steps, with this value."""
    step = f" --step {shlex.quote(path)}" if path else ""
    return f"holdfast resolve {job}{step} --result {shlex.quote(value)}"


DOUBT_ADVICE = "; check whether "
"""Separates what may have happened from what to do, in the message of an EffectInDoubt."""


def failed_with(error: Error) -> str:
    """An error as the cause of an effect in doubt."""
    return f"{error.type}: {error.message}"
