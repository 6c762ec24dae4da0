"""The tiny store and the breadth-first search that the small-scope models share.

The store has no rule of its own but those of the contract that `core` can't know, named in `Rules`; all else is the
shipped `refusal` and `applied`. Jobs are kept once each and known by number, so that a world is a small tuple and
every decision is made once. Time is relative, so now is always 0: a run_at above 0 is still to come, and when time
passes everything is due.
"""

from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from holdfast.core import lifecycle
from holdfast.core.model import Change, Error, Event, Job, Options, Retry, State, Wait, WaitKind
from tests.core.second_copy import EDGES

JOB_ID = "0192f3a4-5b6c-7d8e-9f01-23456789abcd"
LATER = 1
WORLDS_LIMIT = 300_000
ENDED = frozenset({State.COMPLETED, State.DISCARDED, State.CANCELLED})
SETTLED = ENDED | {State.REVIEW}
GIVING_UP = ("cancel", "expire")


class Broken(AssertionError):
    """A law was broken; the message has the shortest way to it."""


def as_field(name: str, value: int) -> dict[str, Any]:
    """One field of a world, by its name."""
    return {name: value}


def law(holds: bool, text: str) -> None:
    if not holds:
        raise Broken(text)


# The search itself.

Moves = Iterator[tuple[str, Any]]
"""What can happen next: what it is called, and the world after it."""


def explore(
    starts: list[Any], moves: Callable[[Any], Moves], check: Callable[[Any], None], is_over: Callable[[Any], bool]
) -> int:
    """Visit and check every world that can be reached, and demand a way to an end from each. How many there are."""
    worlds = list(starts)
    number = {world: n for n, world in enumerate(worlds)}
    came = [(-1, "start")] * len(worlds)
    ways, ends, good = array("L"), array("L", [0]), bytearray()
    at = 0
    while at < len(worlds):
        world = worlds[at]
        try:
            check(world)
            for label, after in moves(world):
                n = number.get(after)
                if n is None:
                    n = number[after] = len(worlds)
                    worlds.append(after)
                    came.append((at, label))
                if not label.endswith(GIVING_UP):
                    ways.append(n)
        except Broken as broken:
            raise Broken(f"{broken}; after: {way_to(came, at)}") from None
        ends.append(len(ways))
        good.append(is_over(world))
        at += 1
        assert at < WORLDS_LIMIT, "the scope is too wide"
    spread(good, ways, ends)
    law(all(good), f"dead end: no way leads on; after: {way_to(came, good.find(0))}")
    return len(worlds)


def way_to(came: list[tuple[int, str]], at: int) -> str:
    labels = []
    while at >= 0:
        at, label = came[at]
        labels.append(label)
    return ", ".join(reversed(labels))


def spread(good: bytearray, ways: "array[int]", ends: "array[int]") -> None:
    """Mark every world that has a way to a good one. Most ways lead to higher numbers, so a few passes do."""
    changed = True
    while changed:
        changed = False
        for n in range(len(good) - 1, -1, -1):
            if not good[n] and any(good[m] for m in ways[ends[n] : ends[n + 1]]):
                good[n] = changed = True


# The tiny store: jobs by number, and one act, `commit`, made of `refusal` and `applied`.


@dataclass(frozen=True)
class Rules:
    """What the search runs on. A mutant replaces one of these."""

    decide: Callable[..., Change] = lifecycle.decide
    deliver: Callable[..., Change] = lifecycle.deliver
    refusal: Callable[..., Any] = lifecycle.refusal
    applied: Callable[..., Job] = lifecycle.applied
    undo_job: Callable[..., Job] = lifecycle.undo_job
    steps_are_fenced: bool = True
    first_write_wins: bool = True
    awaited_groups_are_checked: bool = True
    arrivals_count_once: bool = True


class Act(NamedTuple):
    """A change that somebody wants, and the epoch of the copy it was made from when an owner wants it."""

    name: str
    change: Change
    owner_epoch: int | None = None


class Done(NamedTuple):
    """The job's number after an accepted act, and what went with it."""

    job: int
    before: State
    inserts: tuple[int, ...]
    steps: tuple[tuple[str, int, str], ...]


@dataclass
class Store:
    """What is remembered while one search runs: it only grows, and no answer ever changes."""

    rules: Rules
    jobs: list[Any] = field(default_factory=lambda: [None])
    numbers: dict[bytes, int] = field(default_factory=dict)
    verdicts: dict[tuple[int, int], Done | str] = field(default_factory=dict)
    kept: dict[Any, Any] = field(default_factory=dict)
    happened: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)

    def keep(self, job: Job) -> int:
        """The job's number: equal jobs have the same one, and 0 is no job."""
        name = msgspec.msgpack.encode(job)
        if name not in self.numbers:
            self.numbers[name] = len(self.jobs)
            self.jobs.append(job)
        return self.numbers[name]

    def once(self, key: Any, make: Callable[[], Any]) -> Any:
        if key not in self.kept:
            self.kept[key] = make()
        return self.kept[key]

    def later(self, n: int) -> int:
        """The same job after a long time: what was to come is due."""
        return self.once(("later", n), lambda: self.keep(due(self.jobs[n])) if n else 0)

    def commit(self, n: int, act: Act) -> Done | str:
        """Carry out an act on the job with this number, or answer why it is refused."""
        key = (n, id(act))
        if key not in self.verdicts:
            self.verdicts[key] = self._commit(self.jobs[n], act)
        return self.verdicts[key]

    def _commit(self, head: Job, act: Act) -> Done | str:
        change = act.change
        conflict = self.rules.refusal(head, change)
        if conflict is not None:
            self.refused.add(f"{act.name}: {conflict.reason}")
            return str(conflict.reason)
        job = self.rules.applied(head, change)
        check_act(head, job, act)
        self.happened.add(str(change.event))
        return Done(
            self.keep(job),
            head.state,
            tuple(self.keep(new) for new in change.inserts),
            tuple((step.path, step.epoch, step.result or "") for step in change.steps),
        )


def due(job: Job) -> Job:
    waits = tuple(wait if wait.until is None else replace(wait, until=0) for wait in job.waits)
    return replace(job, run_at=None if job.run_at is None else 0, waits=waits)


def check_act(head: Job, job: Job, act: Act) -> None:
    """The laws of one accepted act."""
    change, name = act.change, act.name
    entry = lifecycle.entry_of(change, job.version)
    if act.owner_epoch is not None:
        mine = head.state is State.ACTIVE and head.epoch == act.owner_epoch and head.worker == change.by
        law(mine, f"S7: {name} was accepted at epoch {head.epoch}, {head.state}, from epoch {act.owner_epoch}")
    law(head.state not in ENDED, f"S4: {name} left the terminal state {head.state}")
    law(job.version == entry.version == head.version + 1, f"S3: {name} made version {job.version} of {head.version}")
    law(entry.before == head.state and entry.after == job.state, f"S3: the entry of {name} tells another story")
    if change.event == "signal":
        law(job.state == head.state, "S3: a signal changed the state")
    else:
        law(
            EDGES.get((change.event, head.state)) == job.state,
            f"S3: {change.event} led from {head.state} to {job.state}",
        )
    law(job.epoch == head.epoch + (change.event == "claim"), f"S5: {name} made epoch {job.epoch} of {head.epoch}")
    law((job.state is State.ACTIVE) == (job.worker is not None), f"S8: {job.worker} owns a job that is {job.state}")


def failing(job: Job, event: Event, rules: Rules, **facts: Any) -> Change:
    return rules.decide(job, event, 0, error=Error("E", "it broke"), run_at=LATER, **facts)


def job_in(state: State) -> Job:
    waits = (Wait(WaitKind.ACTIVATION),) if state is State.PENDING else ()
    run_at = {State.AVAILABLE: 0, State.SCHEDULED: LATER, State.PENDING: None}[state]
    options = Options(retry=Retry(retries=1))
    return Job(id=JOB_ID, type="video.make", created_at=0, state=state, run_at=run_at, waits=waits, options=options)
