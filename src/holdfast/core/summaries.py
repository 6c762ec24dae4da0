"""A job's steps without their results: counts by name and state, the last path, and heads.

Must not touch a store. A record whose path starts with a tilde is one of Holdfast's own (a wait, the progress, the log
lines). It is not a step, and is neither counted nor listed.
"""

from collections.abc import Iterable, Mapping

from msgspec import Struct

from holdfast.core.errors import NotFound
from holdfast.core.limits import STEP_NAMES
from holdfast.core.model import Error, Step, StepState, Time

OWN = "~"
"""The paths of Holdfast's own records start with this."""

OTHERS = ""
"""The name under which stores count all steps beyond the first STEP_NAMES names."""


def is_step(path: str) -> bool:
    """Whether the record under this path is a step's, and not one of Holdfast's own."""
    return not path.startswith(OWN)


class StepCounts(Struct, frozen=True, gc=False):
    """How many steps are in each state."""

    started: int = 0
    done: int = 0
    failed: int = 0

    def __add__(self, other: "StepCounts") -> "StepCounts":
        """Add two counts."""
        return StepCounts(self.started + other.started, self.done + other.done, self.failed + other.failed)

    def __sub__(self, other: "StepCounts") -> "StepCounts":
        """Subtract another count."""
        return StepCounts(self.started - other.started, self.done - other.done, self.failed - other.failed)


ONE = {
    StepState.STARTED: StepCounts(started=1),
    StepState.DONE: StepCounts(done=1),
    StepState.FAILED: StepCounts(failed=1),
}
"""One step in each state."""

_NONE = StepCounts()


class StepSummary(Struct, frozen=True, gc=False):
    """The steps of one job, counted. Names without a step are left out.

    The first STEP_NAMES names that a job records are counted separately, all other steps under `others`. `last` is the
    path of the last recorded step, in the order of their first writes; empty if there is none.
    """

    job: str
    names: Mapping[str, StepCounts] = {}
    others: StepCounts = _NONE
    last: str = ""

    @property
    def total(self) -> StepCounts:
        """The counts of all names together."""
        return sum(self.names.values(), self.others)


class StepHead(Struct, frozen=True, kw_only=True, gc=False):
    """The record of one step without its result."""

    path: str
    name: str
    state: StepState
    epoch: int
    error: Error | None = None
    started_at: Time
    finished_at: Time | None = None
    tries: int = 1


def head_of(step: Step) -> StepHead:
    """A step without its result."""
    return StepHead(
        path=step.path,
        name=step.name,
        state=step.state,
        epoch=step.epoch,
        error=step.error,
        started_at=step.started_at,
        finished_at=step.finished_at,
        tries=step.tries,
    )


def summary_from(job: str, counts: Mapping[str, StepCounts], last: str) -> StepSummary:
    """Make a summary from a store's counters. A store keeps counters of zero, so that a name keeps its counter."""
    names = {name: counts[name] for name in sorted(counts) if name != OTHERS and counts[name] != _NONE}
    return StepSummary(job, names, counts.get(OTHERS, _NONE), last)


def counter_for(name: str, counters: Mapping[str, object]) -> str:
    """The counter for a step of this name, given the counters that exist."""
    has_room = len(counters) - (OTHERS in counters) < STEP_NAMES
    return name if name in counters or has_room else OTHERS


def summarize(job: str, records: Iterable[Step]) -> StepSummary:
    """Count all records of a job, given in the order of their first writes."""
    counts: dict[str, StepCounts] = {}
    last = ""
    for record in records:
        if is_step(record.path):
            name = counter_for(record.name, counts)
            counts[name] = counts.get(name, _NONE) + ONE[record.state]
            last = record.path
    return summary_from(job, counts, last)


def page_of(records: Iterable[Step], after: str, limit: int) -> list[StepHead]:
    """A page of a job's steps without results, from all its records, given in the order of their first writes."""
    steps = [record for record in records if is_step(record.path)]
    paths = [step.path for step in steps]
    if after and after not in paths:
        raise gone(after)
    start = paths.index(after) + 1 if after else 0
    return [head_of(step) for step in steps[start : start + limit]]


def gone(path: str) -> NotFound:
    """The error for a page after a step that doesn't exist."""
    return NotFound(f"step {path!r} no longer exists, so no page can start after it; start again with the first page")
