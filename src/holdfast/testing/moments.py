"""The moments at which a worker can be killed, and their names. Pure: must not touch a store.

Each write to the store has a moment before it and one after it. Writes that leave nothing for a kill to fall before or
after, such as log lines, have none.
"""

from collections.abc import Sequence

from msgspec import Struct

from holdfast.core.model import Change, Event, Job, Lease, Step, StepState
from holdfast.core.outcome import ARGS_PATH
from holdfast.jobs.consequences import CHILD_PATH, UNDO_PATH
from holdfast.jobs.questions import ASK, WAIT_PATH
from holdfast.jobs.service import LOG_PATH

CLAIMED = "after the claim"
BEFORE_EFFECT = "before the effect"
AFTER_INTENT = "after the intent and before the effect"
BEFORE_RECORD = "after the effect and before the record"
AFTER_RECORD = "after the record"
BEFORE_ANSWER, AFTER_ANSWER = "before the answer is recorded", "after the answer is recorded"
BEFORE_WAIT, AFTER_WAIT = "before the wait is written", "after the wait is written"
BEFORE_CHILDREN, AFTER_CHILDREN = "before the children are submitted", "after the children are submitted"
BEFORE_FAILURE, AFTER_FAILURE = "before the failure is written", "after the failure is written"
BEFORE_END, AFTER_END = "before the end is written", "after the end is written"

_EVENTS = {
    Event.COMPLETE: (BEFORE_END, AFTER_END),
    Event.FAIL: (BEFORE_FAILURE, AFTER_FAILURE),
    Event.EXHAUST: (BEFORE_FAILURE, AFTER_FAILURE),
    Event.SUSPEND: (BEFORE_WAIT, AFTER_WAIT),
    Event.REST: (BEFORE_WAIT, AFTER_WAIT),
}


class Moment(Struct, frozen=True):
    """What a write to the store is about, and the names of the moments before and after it; None is no boundary."""

    job: str
    step: str
    """The step's or wait's name; "" for the job itself."""
    path: str = ""
    before: str | None = None
    after: str | None = None
    act: object = None


class Boundary(Struct, frozen=True):
    """One place to kill a worker: which job and step, when, and on which pass."""

    job: str
    step: str
    when: str
    nth: int = 1

    def __str__(self) -> str:
        what = f"{self.job}: {self.step}" if self.step else self.job
        return f"{what}, {self.when}" + (f" (number {self.nth})" if self.nth > 1 else "")


def claimed(job: Job) -> Moment:
    """A worker has claimed a job."""
    return Moment(job.id, "", after=CLAIMED)


def apart(steps: Sequence[Step]) -> list[list[Step]]:
    """Split records that were written together into one list per step."""
    parts: list[list[Step]] = []
    for step in steps:
        if parts and (
            step.path == LOG_PATH or step.path in {UNDO_PATH + parts[-1][0].path, ARGS_PATH + parts[-1][0].path}
        ):
            parts[-1].append(step)
        else:
            parts.append([step])
    return parts


def recorded(steps: Sequence[Step]) -> Moment | None:
    """The records of one step or one wait. The first one says which."""
    step = steps[0]
    kind, _, rest = step.path.partition("/")
    name = rest.rpartition("/")[2].partition("#")[0]
    if not kind.startswith("~"):
        if step.state is StepState.STARTED:
            return Moment(step.job, step.name, step.path, after=AFTER_INTENT, act=step)
        return Moment(step.job, step.name, step.path, BEFORE_RECORD, AFTER_RECORD, step)
    if kind == WAIT_PATH[:-1]:  # a question's own name is derived from its value
        return Moment(step.job, "ask" if name.startswith(ASK) else name, rest, BEFORE_ANSWER, AFTER_ANSWER)
    if kind == CHILD_PATH[:-1]:
        return Moment(step.job, "children", rest, BEFORE_ANSWER, AFTER_ANSWER)
    if kind == UNDO_PATH[:-1]:
        return Moment(step.job, name, rest, after=AFTER_INTENT)
    return None


def committed(changes: Sequence[Change]) -> Moment | None:
    """A change that a job's owner makes: the job ends, fails or waits."""
    if len(changes) != 1 or changes[0].event not in _EVENTS:
        return None
    change = changes[0]
    before, after = _EVENTS[Event(change.event)]
    return Moment(change.job.id, "", before=before, after=after, act=change)


def inserted(jobs: Sequence[Job], parent: Lease | None) -> Moment | None:
    """A job submits children."""
    if parent is None or not jobs:
        return None
    return Moment(parent.job, jobs[0].type, before=BEFORE_CHILDREN, after=AFTER_CHILDREN)
