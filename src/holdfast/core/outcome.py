"""What the end of an attempt comes to: retry policies, and the event that follows a failure.

Must not draw random numbers: jitter takes one as an argument.
"""

import shlex
from collections.abc import Iterable, Sequence
from math import inf
from typing import Any

from holdfast.core.errors import Invalid
from holdfast.core.model import Error, Event, Job, Retry, Step, StepState, Time

STRATEGIES = ("none", "constant", "linear", "exponential")
JITTER_LOW, JITTER_HIGH = 0.5, 1.5


def check_retry(retry: Retry) -> Retry:
    """Return a retry policy that makes sense, or raise Invalid."""
    if type(retry.retries) is not int or retry.retries < 0:
        raise Invalid(f"retries={retry.retries}: give 0 for no retry, or how often to try again")
    if retry.strategy not in STRATEGIES:
        raise Invalid(f"strategy {retry.strategy!r} is unknown; choose one of {', '.join(STRATEGIES)}")
    for name in ("initial_ms", "cap_ms"):
        if type(getattr(retry, name)) is not int:
            raise Invalid(f"{name}={getattr(retry, name)!r}: give a whole number of milliseconds")
    if retry.initial_ms < 0 or retry.cap_ms < 0:
        raise Invalid("a backoff can't be negative")
    if type(retry.factor) not in (int, float) or not 1.0 <= retry.factor < inf:
        raise Invalid(f"backoff factor {retry.factor!r}: must be 1 or more, and finite")
    if type(retry.jitter) is not bool:
        raise Invalid(f"jitter={retry.jitter!r}: give True or False")
    rules: Any = retry.never
    if not isinstance(rules, tuple | list | set | frozenset) or not all(isinstance(rule, str) for rule in rules):
        raise Invalid(f"never={retry.never!r}: give a list of types of errors")
    return retry


def next_delay(retry: Retry, failures: int, chance: float = 0.5) -> int:
    """Milliseconds to wait after so many failures. `chance` in [0, 1) spreads them when jitter is on.

    The cap holds before the jitter and again after it.
    """
    match retry.strategy:
        case "constant":
            delay = float(retry.initial_ms)
        case "linear":
            delay = float(retry.initial_ms) * failures
        case "exponential":
            try:
                delay = retry.initial_ms * retry.factor ** (failures - 1)
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
    """What a failed attempt comes to: another try while tries are left, else a person."""
    retry = job.options.retry
    if not retryable or retry.strategy == "none" or job.attempt > retry.retries:
        return Event.EXHAUST
    return Event.EXHAUST if never_retried(retry, error_type) else Event.FAIL


def retry_at(job: Job, now: Time, chance: float) -> Time:
    """When a job that fails now tries again."""
    return now + next_delay(job.options.retry, job.attempt, chance)


ONCE = '{"effect":"once"}'
"""What is written at the start of a step with `effect="once"`."""


TRANSACTION = "transaction"
"""The effect of a step that writes to the store itself, in the transaction of its record."""


FAILED_ONCE_PATH = "~failed/"
"""Beside an effect in doubt that raised: its error, which is raised again as long as the same attempt goes on. Also the
error of a step inside one that may be tried again: a failed record would stand for good, and the next try could not run
it.
"""


def in_doubt(steps: Iterable[Step]) -> list[str]:
    """The paths of effects that were begun and not recorded: they may have happened, and must not happen again."""
    return [step.path for step in steps if step.state is StepState.STARTED and step.result == ONCE]


def failures_of(steps: Iterable[Step]) -> dict[str, Error]:
    """What effects in doubt have raised, by their paths, as far as they lived to tell."""
    failed = [step for step in steps if step.path.startswith(FAILED_ONCE_PATH)]
    return {step.path.removeprefix(FAILED_ONCE_PATH): step.error for step in failed if step.error is not None}


def doubt_text(job: str, paths: Sequence[str], cause: str = "") -> str:
    """What a person is told of a job's effects in doubt: what went wrong, if that is known, and what to type."""
    is_one = len(paths) == 1
    were, they = ("was", "it") if is_one else ("were", "they")
    which = ", ".join(paths)
    told = f"{which}: {cause}; {they} {were} begun" if cause else f"{which} {were} begun"
    step = shlex.quote(paths[0]) if is_one else "STEP, for each of them,"
    return (
        f"{told} and not recorded: {they} may have happened; look, then holdfast resolve {job} --step {step} "
        "with --result VALUE if it did, or --again if it did not"
    )


def failed_with(error: Error) -> str:
    """An error as the cause of a doubt."""
    return f"it failed with {error.type}: {error.message}"
