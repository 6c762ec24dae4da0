"""What the demo measures, counted from the provider's calls and the store's records.

Pure: no screen, no process, no clock. Must not claim anything that it hasn't counted.
"""

from collections import Counter
from collections.abc import Sequence

from msgspec import Struct

from holdfast.core.durations import in_words
from holdfast.core.model import Step, StepState
from holdfast.demo.provider import BROKEN, BUSY, MADE, UNDER_WAY, Call

Item = tuple[str, str]
"""A stage and the name of one of its items."""


class Killed(Struct, frozen=True):
    """The kill: when it happened, which process it hit, and what the store had recorded."""

    at: float
    worker: int
    pid: int
    epoch: int
    image: int
    """How many images were recorded."""


class Figures(Struct, frozen=True):
    """The figures of the summary."""

    items: int
    made: int
    twice: int
    """Items that were made again although they were already recorded."""
    calls: int
    busy: int
    broken: int
    cut: int
    """Calls that were running at the kill, so their answers weren't recorded: these were repeated."""
    saved: int
    """Items that were recorded before the kill and not requested again."""
    lost_seconds: float | None
    """Seconds from the kill to the start of the next item."""

    @property
    def lost(self) -> str:
        """Return the lost time in words."""
        return "not seen" if self.lost_seconds is None else in_words(round(self.lost_seconds * 1_000))


def item_of(step: Step) -> Item:
    """Return the item of a record. A stage with only one item uses the name that its calls use."""
    return step.name, step.path.partition("#")[2]


def recorded(steps: Sequence[Step], stage: str) -> list[Step]:
    """Return the finished records of a stage."""
    return [step for step in steps if step.name == stage and step.state is StepState.DONE]


def measure(calls: Sequence[Call], steps: Sequence[Step], killed: Killed | None, many: frozenset[str]) -> Figures:
    """Count. `many` are the stages with many items; every other stage has one, whatever its name."""

    def of_call(call: Call) -> Item:
        return (call.stage, call.item) if call.stage in many else (call.stage, "")

    def of_step(step: Step) -> Item:
        return item_of(step) if step.name in many else (step.name, "")

    done = {of_step(step): step for step in steps if step.state is StepState.DONE and not step.path.startswith("~")}
    made = Counter(of_call(call) for call in calls if call.outcome == MADE)
    outcomes = Counter(call.outcome for call in calls)
    cut: set[Item] = set()
    survived: set[Item] = set()
    lost: float | None = None
    if killed is not None:
        survived = {item for item, step in done.items() if step.epoch == killed.epoch}
        asked = [call for call in calls if call.caller == killed.pid and call.outcome not in (BUSY, BROKEN)]
        cut = {of_call(call) for call in asked} - survived
        after = [call.began_at for call in calls if call.caller != killed.pid and call.began_at >= killed.at]
        lost = min(after) - killed.at if after else None
    return Figures(
        items=len(done),
        made=len(made),
        twice=sum(number > 1 for item, number in made.items() if item not in cut),
        calls=len(calls) - outcomes[UNDER_WAY],
        busy=outcomes[BUSY],
        broken=outcomes[BROKEN],
        cut=len(cut),
        saved=len(survived),
        lost_seconds=lost,
    )
