"""What goes with a person's replay: what was said of steps in doubt, and which failures are not told again.

Must not touch a store. Of several steps in doubt each is spoken of on its own; until the last of them the words wait in
the job's inbox, and one replay takes them all.
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
from holdfast.core.unreadable import told
from holdfast.jobs.consequences import CHILD_PATH
from holdfast.jobs.questions import WAIT_PATH

SAID = "~said"
"""The name of the signals that hold what a person said of steps in doubt. No wait can ask for it."""


HAPPENED = "it happened"


class Said(Struct, frozen=True):
    """What a person said of a step in doubt: it shall be done again, or it happened, with this result as text."""

    step: str
    again: bool
    result: str = "null"

    @property
    def words(self) -> str:
        """The same, for the history."""
        return "do it again" if self.again else HAPPENED


def said_of(job: Job) -> dict[str, Said]:
    """What was said and waits for the replay, by the step's path. The last word on a step counts, a damaged one not."""
    found: dict[str, Said] = {}
    for signal in job.inbox:
        if signal.name == SAID:
            with suppress(ValueError):
                said = msgspec.json.decode(signal.value, type=Said)
                found[said.step] = said
    return found


def words_spoken(history: Iterable[Entry]) -> dict[str, str]:
    """What was said of steps, in words, by the step's path: all that replays have carried out. The last word counts."""
    said: dict[str, str] = {}
    for entry in history:
        if entry.event == Event.REPLAY:
            note = entry.note
            said |= note.get("steps") or ({note["step"]: note.get("said", "")} if "step" in note else {})
    return said


def misfits(job: Job, steps: Iterable[Step], history: Iterable[Entry]) -> list[Step]:
    """The steps whose result a person gave, where the job has then failed because a value did not fit its type."""
    if job.error is None or job.error.type.rpartition(".")[2] != BadValue.__name__:
        return []
    said = words_spoken(history)
    return [step for step in steps if step.state is StepState.DONE and said.get(step.path) == HAPPENED]


def doubts_left(job: Job, steps: Iterable[Step]) -> list[str]:
    """The steps in doubt of which nobody has said anything yet."""
    said = said_of(job)
    return [path for path in in_doubt(steps) if path not in said]


def keep_word(job: Job, said: Said, now: Time, *, by: str, note: Mapping[str, str]) -> Change:
    """Keep what was said until something was said of all steps in doubt."""
    return replace(deliver(job, SAID, msgspec.json.encode(said).decode(), now, by=by), note=note)


def with_words(change: Change, said: Mapping[str, Said], steps: Mapping[str, Step]) -> Change:
    """A replay after which steps in doubt are what a person said."""
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
    """What a job was told that went wrong outside it: the records of it, and the children that failed."""

    paths: tuple[str, ...]
    children: tuple[str, ...]


def recorded_failures(steps: Iterable[Step]) -> Failures:
    """The failures of children, the waits that were late, and what failed inside steps that were tried again: as a
    failed step, a replay does not keep them.
    """
    paths: list[str] = []
    children: list[str] = []
    steps = list(steps)
    doubts = {FAILED_ONCE_PATH + path for path in in_doubt(steps)}
    for step in steps:
        if step.path.startswith(FAILED_ONCE_PATH) and step.path not in doubts:
            paths.append(step.path)
        elif step.state is StepState.DONE and step.path.startswith((WAIT_PATH, CHILD_PATH)):
            record = told(step.result)
            if "failed" in record or record.get("late"):
                paths.append(step.path)
                children += record.get("failed", ())
    return Failures(tuple(paths), tuple(dict.fromkeys(children)))
