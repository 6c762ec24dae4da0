"""The stages and items of a job: what is done, what runs, what is still to come. Must not read a store."""

import re
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from holdfast.core.model import Job, Running, RunningItem, State, Step, StepState, Time
from holdfast.core.places import in_order
from holdfast.core.summaries import StepCounts, StepHead, StepSummary
from holdfast.jobs.status import Status
from holdfast.jobs.views.job import stages_of
from holdfast.jobs.views.pages.job import CELLS_SHOWN, SQUARES, ItemCell, ItemsTab, Squares, StageBar
from holdfast.jobs.views.pages.parts import moment
from holdfast.jobs.views.shapes import time_text
from holdfast.jobs.views.step_names import name_steps
from holdfast.jobs.views.text import one_line, span
from holdfast.safe_text import clean

DONE, RUNNING, RETRYING, FAILED, DOUBT, TODO = "done", "running", "retrying", "failed", "doubt", "todo"
LETTERS = {FAILED: "f", DOUBT: "?", RETRYING: "t", RUNNING: "r", TODO: ".", DONE: "d"}
"""The letter of each state of an item, the worst first."""

WORST = "f?tr.d"


class Usual(Struct, frozen=True):
    """How long something usually takes: the whole stage, and one of its items."""

    stage_ms: int
    item_ms: int


class Progressing(Struct, frozen=True, kw_only=True):
    """What is known about the progress of a job. Without `heads`, it has too many steps to list them."""

    job: Job
    status: Status
    summary: StepSummary
    running: Running | None
    heads: tuple[StepHead, ...] | None
    now: Time
    usual: Mapping[str, Usual] = {}
    doubts: frozenset[str] = frozenset()
    begun: Mapping[str, Time] = {}
    """When the steps that losses cut had begun, by path: made again, they keep their places."""
    places: Mapping[str, int] = {}
    """The order of calls, where it is recorded (`core.places`)."""

    def counts(self, name: str) -> StepCounts:
        """Return how many steps of a name are in which state."""
        return self.summary.names.get(name, StepCounts())

    def going(self, name: str) -> list[RunningItem]:
        """Return what of a stage runs now, by its worker's last heartbeat."""
        recorded = {head.path for head in self.heads or () if head.finished_at is not None}
        items = () if self.running is None or self.job.state is not State.ACTIVE else self.running.items
        return [one for one in items if _is_of(one.path, name) and one.path not in recorded]

    def in_order(self, steps: Sequence[Step], names: Mapping[str, str] = {}) -> list[Step]:
        """Return steps of one name in the order of their calls: as recorded, else as they first began.

        So an item keeps its place when it ends, when it fails and when another worker makes it again. `names` tell
        those apart that began in the same millisecond.
        """

        def first(step: Step) -> tuple[Time, list[str | int], str]:
            began = min(step.started_at, self.begun.get(step.path, step.started_at))
            return began, _numbered(names.get(step.path, "")), step.path

        by_path = {step.path: step for step in sorted(steps, key=first)}
        return [by_path[path] for path in in_order(list(by_path), self.places)]

    def total(self, name: str) -> int | None:
        """Return how many items a stage has, if that is known."""
        counts = self.counts(name)
        recorded = counts.done + counts.failed
        if name == self.status.stage and self.status.total is not None:
            return max(self.status.total, recorded)
        return recorded or None


def _numbered(name: str) -> list[str | int]:
    """Return a name so that it is sorted by its numbers: "draw 9" before "draw 10"."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)]


def _is_of(path: str, name: str) -> bool:
    return "/" not in path and path.partition("#")[0] == name


def stage_bars(one: Progressing) -> tuple[StageBar, ...]:
    """Return the strip of declared stages."""
    return tuple(_bar(one, stage.name, stage.place) for stage in stages_of(one.status))


def _bar(one: Progressing, name: str, place: str) -> StageBar:
    counts, usual, going = one.counts(name), one.usual.get(name), one.going(name)
    own = [head for head in one.heads or () if _is_of(head.path, name)]
    began = min([*(head.started_at for head in own), *(item.since for item in going)], default=None)
    ended = max((head.finished_at or 0 for head in own), default=0)
    took = ended - began if place == "passed" and began is not None and ended else None
    total = one.total(name) if place != "ahead" else None
    if place == "passed":
        words = span(took) if took is not None else "done"
    elif place == "current":
        words = f"{counts.done:,} of {total:,}" if total and total > 1 else "running"
    else:
        words = f"usually {span(usual.stage_ms)}" if usual is not None else ""
    return StageBar(
        name=name,
        place=place,
        done=counts.done,
        failed=counts.failed,
        running=len(going),
        total=total,
        started_at=time_text(began),
        took_ms=took,
        usual_ms=None if usual is None else usual.stage_ms,
        words=words,
        path=own[0].path if len(own) == 1 and (total or 1) == 1 else "",
    )


def item_tabs(one: Progressing) -> tuple[ItemsTab, ...]:
    """Return a tab for each stage that has several items, in the order of the stages."""
    names = dict.fromkeys([*one.status.stages, *one.summary.names, one.status.stage])
    tabs = [_tab(one, name) for name in names if name and (one.total(name) or 0) > 1]
    return tuple(tabs)


def _tab(one: Progressing, name: str) -> ItemsTab:
    counts, total, going = one.counts(name), one.total(name) or 0, one.going(name)
    usual = one.usual.get(name)
    own = None if one.heads is None else [head for head in one.heads if _is_of(head.path, name)]
    left = max(0, total - counts.done - counts.failed)
    cells: tuple[ItemCell, ...] = ()
    squares: Squares | None = None
    if own is not None and len(own) + len(going) <= total <= CELLS_SHOWN:
        cells = _cells(one, own, going, left)
    else:
        squares = _squares(_letters(one, counts, own, going, left))
    failed = f", {counts.failed:,} failed" if counts.failed else ""
    return ItemsTab(
        stage=name,
        words=f"{counts.done:,} of {total:,}{failed}",
        done=counts.done,
        failed=counts.failed,
        running=len(going),
        total=total,
        usual_ms=None if usual is None else usual.item_ms,
        cells=cells,
        squares=squares,
    )


def _cells(one: Progressing, own: Sequence[StepHead], going: Sequence[RunningItem], left: int) -> tuple[ItemCell, ...]:
    live = {item.path: item for item in going}
    recorded = {head.path: head for head in own if head.path not in live}
    steps = one.in_order([*map(_as_step, recorded.values()), *(_begun(one.job, item) for item in going)])
    names = name_steps(one.job, steps, one.places)
    steps = one.in_order(steps, names)
    cells = [
        _running_cell(live[step.path], names[step.path], one.now)
        if step.path in live
        else _recorded_cell(one, recorded[step.path], names[step.path])
        for step in steps
    ]
    doubts = sum(cell.state == DOUBT for cell in cells)
    return (*cells, *([ItemCell(state=TODO)] * max(0, left - len(live) - doubts)))


def _recorded_cell(one: Progressing, head: StepHead, name: str) -> ItemCell:
    state = DONE if head.state is StepState.DONE else FAILED
    if head.state is StepState.STARTED:
        state = DOUBT if head.path in one.doubts else RUNNING if one.job.state is State.ACTIVE else TODO
    took = None if head.finished_at is None else head.finished_at - head.started_at
    return ItemCell(
        state=state,
        path=head.path,
        name=clean(name),
        tries=head.tries,
        started_at=moment(head.started_at),
        took_ms=took,
        is_kept=head.epoch < one.job.epoch and state == DONE,
        words=one_line(f"{head.error.type}: {head.error.message}", 80) if head.error is not None else "",
    )


def _running_cell(item: RunningItem, name: str, now: Time) -> ItemCell:
    is_retry = item.try_number > 1
    return ItemCell(
        state=RETRYING if is_retry else RUNNING,
        path=item.path,
        name=clean(name),
        tries=item.try_number,
        started_at=moment(item.since),
        words=f"try {item.try_number}" if is_retry else f"for {span(max(0, now - item.since))}",
    )


def _letters(
    one: Progressing,
    counts: StepCounts,
    own: Sequence[StepHead] | None,
    going: Sequence[RunningItem],
    left: int,
) -> str:
    """Return one letter for each item, in the order of the calls; then one for each that is still to come."""
    letters = {item.path: LETTERS[RETRYING if item.try_number > 1 else RUNNING] for item in going}
    if own is None:
        recorded = LETTERS[DONE] * counts.done + LETTERS[FAILED] * counts.failed
        begun = recorded + "".join(letters.values())
    else:
        states = {StepState.DONE: DONE, StepState.FAILED: FAILED}
        kept = [head for head in own if head.path not in letters]
        steps = one.in_order([*map(_as_step, kept), *(_begun(one.job, item) for item in going)])
        for head in kept:
            letters[head.path] = LETTERS[states.get(head.state, DOUBT if head.path in one.doubts else RUNNING)]
        begun = "".join(letters[step.path] for step in steps)
    return begun + LETTERS[TODO] * max(0, left - len(going))


def _squares(letters: str) -> Squares:
    """Return at most SQUARES squares. Each shows the worst of its items."""
    each = max(1, -(-len(letters) // SQUARES))
    parts = (letters[start : start + each] for start in range(0, len(letters), each))
    return Squares(each=each, letters="".join(min(part, key=WORST.index) for part in parts))


def as_steps(heads: Iterable[StepHead]) -> list[Step]:
    """Return heads as steps without results, for their names."""
    return [_as_step(head) for head in heads]


def _as_step(head: StepHead) -> Step:
    return Step(job="", epoch=head.epoch, path=head.path, name=head.name, state=head.state, started_at=head.started_at)


def _begun(job: Job, item: RunningItem) -> Step:
    name = item.path.partition("#")[0]
    return Step(job=job.id, epoch=job.epoch, path=item.path, name=name, state=StepState.STARTED, started_at=item.since)
