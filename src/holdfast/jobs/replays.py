"""What belongs to a replay by a person: decisions about steps in doubt, and which recorded failures to drop.

Must not touch a store. A person decides on each step in doubt separately. Until the last one, the decisions wait in the
job's inbox; then one replay applies them all.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from holdfast.core.errors import BadValue
from holdfast.core.lifecycle import deliver
from holdfast.core.model import Change, Entry, Event, Job, Step, StepState, Time
from holdfast.core.outcome import FAILED_ONCE_PATH, in_doubt
from holdfast.core.unreadable import record_content
from holdfast.jobs.consequences import CHILD_PATH
from holdfast.jobs.questions import WAIT_PATH

SAID = "~said"
"""The name of the signals that hold decisions about steps in doubt. No wait can ask for it."""


HAPPENED = "it happened"


class Said(Struct, frozen=True):
    """A person's decision about a step in doubt: run it again, or it happened, with this encoded result."""

    step: str
    again: bool
    result: str = "null"

    @property
    def words(self) -> str:
        """The decision in words, for the history."""
        return "do it again" if self.again else HAPPENED


def said_of(job: Job) -> dict[str, Said]:
    """Return the decisions that wait for the replay, by step path. The last one counts; damaged ones don't."""
    found: dict[str, Said] = {}
    for signal in job.inbox:
        if signal.name == SAID:
            with suppress(ValueError):
                said = msgspec.json.decode(signal.value, type=Said)
                found[said.step] = said
    return found


def words_spoken(history: Iterable[Entry]) -> dict[str, str]:
    """Return all decisions that replays have applied, in words, by step path. The last one counts."""
    said: dict[str, str] = {}
    for entry in history:
        if entry.event == Event.REPLAY:
            note = entry.note
            said |= note.get("steps") or ({note["step"]: note.get("said", "")} if "step" in note else {})
    return said


def misfits(job: Job, steps: Iterable[Step], history: Iterable[Entry]) -> list[Step]:
    """Return the steps whose result a person gave, if the job then failed because a value didn't match its type."""
    if job.error is None or job.error.type.rpartition(".")[2] != BadValue.__name__:
        return []
    said = words_spoken(history)
    return [step for step in steps if step.state is StepState.DONE and said.get(step.path) == HAPPENED]


def doubts_left(job: Job, steps: Iterable[Step]) -> list[str]:
    """Return the steps in doubt that nobody has decided on yet."""
    said = said_of(job)
    return [path for path in in_doubt(steps) if path not in said]


def keep_word(job: Job, said: Said, now: Time, *, by: str, note: Mapping[str, str]) -> Change:
    """Keep a decision in the inbox until all steps in doubt are decided."""
    return replace(deliver(job, SAID, msgspec.json.encode(said).decode(), now, by=by), note=note)


def with_words(change: Change, said: Mapping[str, Said], steps: Mapping[str, Step]) -> Change:
    """Add a person's decisions about steps in doubt to a replay."""
    known = [one for one in said.values() if one.step in steps]
    done = tuple(
        replace(steps[one.step], state=StepState.DONE, result=one.result, error=None, finished_at=change.at)
        for one in known
        if not one.again
    )
    drops = tuple(path for one in known for path in (one.step, FAILED_ONCE_PATH + one.step))
    takes = tuple(signal.version for signal in change.job.inbox if signal.name == SAID)
    return replace(change, steps=(*change.steps, *done), drops=(*change.drops, *drops), takes=takes)


class Failures(Struct, frozen=True):
    """Recorded failures that came from outside the job: their paths, and the children that failed."""

    paths: tuple[str, ...]
    children: tuple[str, ...]


def recorded_failures(steps: Iterable[Step]) -> Failures:
    """Return the failures of children, the waits that timed out, and the errors inside retried steps.

    A replay drops them, as it drops failed steps.
    """
    paths: list[str] = []
    children: list[str] = []
    steps = list(steps)
    doubts = {FAILED_ONCE_PATH + path for path in in_doubt(steps)}
    for step in steps:
        if step.path.startswith(FAILED_ONCE_PATH) and step.path not in doubts:
            paths.append(step.path)
        elif step.state is StepState.DONE and step.path.startswith((WAIT_PATH, CHILD_PATH)):
            record = record_content(step.result)
            if "failed" in record or record.get("late"):
                paths.append(step.path)
                children += record.get("failed", ())
    return Failures(tuple(paths), tuple(dict.fromkeys(children)))
