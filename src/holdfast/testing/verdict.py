"""Compares a run with the first one, which had no kill, and tells a person what differs.

Must not run anything. Reports only one difference: the one that best explains the others.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from msgspec import Struct

from holdfast.core.model import Job, State
from holdfast.testing.moments import BEFORE_EFFECT, BEFORE_RECORD, Boundary

SAME = (
    "Decide only by the job's arguments, step results and signals; put everything random and every clock into a step."
)
AGAIN = (
    "A step runs again if its worker dies before the result is recorded. Pass current().idempotency_key to the "
    'provider, use effect="once", or put the effect into a step if it is outside of one; to allow it, pass repeats='
)


class Stuck(Exception):
    """A run that doesn't end, and why."""


class Outcome(Struct, kw_only=True):
    """What one run did."""

    job: Job
    made: Counter[str]
    """How many jobs and steps of each name there were."""
    effects: int
    boundaries: list[Boundary]
    is_killed: bool
    killed_at: str
    doubts: list[str]
    recorded: int
    ran_again: list[str]
    unasked: list[str]
    drift: list[str]
    stuck: str | None


def check_first(plan: Any, clean: Outcome) -> None:
    """Raise AssertionError unless the job ends when no worker is killed."""
    ends = (State.CANCELLED,) if plan.cancel_at is not None else (State.COMPLETED,)
    trouble = clean.stuck
    if trouble is None and clean.job.state not in ends:
        trouble = _ended(clean.job) + (f"\n{clean.job.error.traceback}" if clean.job.error is not None else "")
    if trouble is not None:
        raise AssertionError(f"crash_everywhere({plan.job.type}): even without killing a worker, {trouble}")


def check(plan: Any, at: Boundary, clean: Outcome, life: Outcome, *, repeats: int, same: Callable[[Any], Any]) -> None:
    """Raise AssertionError unless this run had the same outcome as the first."""
    for found in _findings(plan, at, clean, life, repeats, same):
        if found is not None:
            where = f"{at}" + (f", at {life.killed_at}" if life.killed_at else "")
            killed = (
                f"its worker was killed ({where}) and another worker continued"
                if life.is_killed
                else f"looking for: {at}"
            )
            raise AssertionError(f"crash_everywhere({plan.job.type}): {killed}.\n{found}")


def _findings(
    plan: Any, at: Boundary, clean: Outcome, life: Outcome, repeats: int, same: Callable[[Any], Any]
) -> Iterator[str | None]:
    """The possible differences, the most telling first; each is looked for only if none before it was found."""
    yield _not_reached(life)
    yield _unasked(life)
    yield life.stuck
    yield _other_end(clean, life)
    yield _ran_again(life)
    yield _other_steps(clean, life)
    yield _other_result(plan, clean, life, same)
    yield _other_effects(at, clean, life, repeats)


def _not_reached(life: Outcome) -> str | None:
    if life.is_killed or life.stuck is not None:
        return None
    return f"The first run reached this moment, but this run never did. {SAME}"


def _unasked(life: Outcome) -> str | None:
    if not life.unasked:
        return None
    path = life.unasked[0]
    line = next((line for line in life.drift if path in line), None)
    if line is not None:
        name = path.rpartition("/")[2].partition("#")[0]
        return f"Step {name} was called with arguments that differ from the recorded ones: {line}. {SAME}"
    return f"Step {path} is recorded, but the job's code didn't call it when it ran again. {SAME}"


def _other_end(clean: Outcome, life: Outcome) -> str | None:
    if life.job.state is clean.job.state:
        return None
    return f"The first run {_ended(clean.job)}; this run {_ended(life.job)}."


def _ran_again(life: Outcome) -> str | None:
    if not life.ran_again:
        return None
    return f"Step {life.ran_again[0]} was recorded, but ran again. This is a bug in Holdfast: please report it."


def _other_steps(clean: Outcome, life: Outcome) -> str | None:
    for name in sorted(clean.made | life.made):
        if clean.made[name] != life.made[name]:
            return f"This run made {life.made[name]} of {name}; the first run made {clean.made[name]}. {SAME}"
    return None


def _other_result(plan: Any, clean: Outcome, life: Outcome, same: Callable[[Any], Any]) -> str | None:
    if clean.job.state is not State.COMPLETED:
        return None
    decode = plan.job.spec.signature.result.decode
    first, now = (same(decode(outcome.job.result or "null")) for outcome in (clean, life))
    if first == now:
        return None
    return (
        f"The result is {now!r}; in the first run it was {first!r}. If they may differ, use same= to compare only "
        f"what must be equal. Otherwise: {SAME[0].lower()}{SAME[1:]}"
    )


def _other_effects(at: Boundary, clean: Outcome, life: Outcome, repeats: int) -> str | None:
    more = life.effects - clean.effects
    if 0 <= more <= repeats:
        return None
    text = f"There were {life.effects} effects; without a kill there were {clean.effects}"
    if more < 0:
        return f"{text}. A recorded step doesn't repeat its effect: does your code keep anything between two runs?"
    if at.when == BEFORE_EFFECT and repeats == 0 and more == 1:
        text += ", although the step hadn't started: look at steps that run at the same time, and at code between steps"
    elif at.when == BEFORE_RECORD:
        text += f": the effect of {at.step} happened again"
    return f"{text}. {AGAIN}{more}."


def _ended(job: Job) -> str:
    if job.state is State.COMPLETED:
        return "completed"
    why = "" if job.error is None else f" with {job.error.type}: {job.error.message}"
    return f"ended in {job.state}{why}"
