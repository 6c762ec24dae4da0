"""What the store has for one job, as its attempt knows it: the records of its steps, and those stored beside them.

Must not read or write a store. The path of a record that isn't one of the job's own steps starts with a tilde.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast.core.errors import BadValue
from holdfast.core.model import Step, StepState
from holdfast.core.outcome import FAILED_ONCE_PATH
from holdfast.core.references import is_kept_outside
from holdfast.core.reruns import (
    AGAIN_PATH,
    Again,
    Origin,
    Reruns,
    again_above,
    generation_of,
    read_again,
    read_reruns,
    variant_of,
)
from holdfast.jobs.consequences import UNDO_PATH
from holdfast.worker.drift import read_tags


class Records:
    """The records of one job. Safe from any thread of the job."""

    def __init__(self) -> None:
        self.steps: dict[str, Step] = {}
        """The records of the job's own steps, by path."""
        self.waits: dict[str, Step] = {}
        """The records of waits, intents to undo, and failures stored beside a step, by path."""
        self.arguments: dict[str, str] = {}
        """Hashes of the arguments of calls with a key, by the path of the call: see drift.tags."""
        self.again: dict[str, Again] = {}
        """The steps that a person wanted to run again, and those around and inside them, by path."""
        self.reruns = Reruns()
        """How often that happened, and which effects may happen again."""
        self.rerun_epoch = 0
        """The epoch before the last time. Records of later leases are newer than that."""
        self.places = ""
        """The places of calls, as recorded: see `core.places`."""
        self.origin: Origin | None = None
        """What the run was made from, if it is a rerun or a fork."""
        self._known_paths: set[str] | None = None

    def clear(self) -> None:
        """Remove all records."""
        self.steps.clear()
        self.waits.clear()
        self.arguments.clear()

    def is_begun(self, path: str) -> bool:
        """Whether an effect was started under this path that has no result."""
        step = self.steps.get(path)
        return step is not None and step.state is StepState.STARTED

    def is_inside_recorded(self, path: str) -> bool:
        """Whether a step around it has a record, which covers everything that happened inside."""
        outer = (self.steps.get(above) for above in paths_above(path))
        return any(step is not None and step.state is not StepState.STARTED for step in outer)

    def known_paths(self) -> set[str]:
        """The paths where earlier leases have left something: a record, a record of a step inside, or something to
        undo. Computed once.
        """
        if self._known_paths is None:
            left = [
                *self.steps,
                *self.again,
                *(path.removeprefix(UNDO_PATH) for path in self.waits if path.startswith(UNDO_PATH)),
            ]
            self._known_paths = {*left, *(above for path in left for above in paths_above(path))}
        return self._known_paths

    # Reruns.

    def load_again(self, step: Step) -> None:
        """Load the generation of a step, or the reruns of the job."""
        if step.path == AGAIN_PATH:
            self.reruns, self.rerun_epoch = read_reruns(step), step.epoch
        else:
            self.again[step.path.removeprefix(AGAIN_PATH)] = read_again(step)

    def generation(self, path: str) -> str:
        """Return the generation of a step: "" until a person rejects it or a step around or inside it."""
        return generation_of(path, self.again)

    def again_of(self, path: str) -> Again | None:
        """Return what a person said about a step, or about the innermost step around it."""
        said = [again for _, again in again_above(path, self.again) if again.whole]
        found = [again for again in said if again.feedback]
        return found[-1] if found else next(iter(said), None)

    def rejected_outside(self, path: str) -> list[tuple[str, Again]]:
        """Return what a person said about a step and the steps around it, where the rejected result is a blob."""
        said = again_above(path, self.again)
        return [(one, again) for one, again in said if again.whole and is_kept_outside(again.rejected)]

    def choose_variant(self, path: str, tags: Sequence[str]) -> str:
        """Return where a call with a key is recorded, given hashes of its arguments: under its own path, unless its
        arguments changed in a rerun.
        """
        newest = self.newest_variant(path)
        step, stored = self.steps.get(newest), self.arguments.get(newest)
        is_newer = step is None or step.epoch > self.rerun_epoch or step.state is StepState.STARTED
        if is_newer or stored is None or read_tags(stored) == list(tags):
            return newest
        return variant_of(path, self.reruns.number)

    def newest_variant(self, path: str) -> str:
        """Return where the newest record of a call with a key is: its own path, or one from a rerun."""
        variants = (variant_of(path, number) for number in range(self.reruns.number, 0, -1))
        return next((one for one in variants if one in self.steps), path)

    def failure_of(self, path: str, attempt: int) -> Step | None:
        """Return a failure that this attempt's code has already seen, so that it gets it again: of an effect in doubt,
        or of a step inside one that may be retried.
        """
        failed = self.waits.get(FAILED_ONCE_PATH + path)
        return failed if failed is not None and record_info(failed)["attempt"] == attempt else None

    def forget_failures(self, path: str) -> None:
        """Forget the failures inside a step that is being retried, so that the failed steps run again. Effects in doubt
        don't.
        """
        inside = f"{FAILED_ONCE_PATH}{path}/"
        for failed in [failed for failed in self.waits if failed.startswith(inside)]:
            if not self.is_begun(failed.removeprefix(FAILED_ONCE_PATH)):
                del self.waits[failed]


def paths_above(path: str) -> list[str]:
    """Return the paths of the steps around a step, outermost first."""
    parts = path.split("/")
    return ["/".join(parts[:end]) for end in range(1, len(parts))]


def beside(step: Step, path: str, state: StepState, result: str) -> Step:
    """Make a record that is stored with a step's and isn't one of the job's own steps."""
    name = path.partition("/")[0]
    return replace(step, path=path, name=name, state=state, result=result, error=None, tries=1)


def record_info(record: Step) -> dict[str, Any]:
    """Read the content of a wait's or an intent's record."""
    try:
        return msgspec.json.decode(record.result or "{}", type=dict[str, Any])
    except msgspec.DecodeError:
        raise unreadable_record(record) from None


def unreadable_record(step: Step) -> BadValue:
    """Make the error for a record that can't be read."""
    return BadValue(
        f"the record of {step.path} is damaged and can't be read; nothing ran: resolve or discard the "
        "job, or repair the record"
    )
