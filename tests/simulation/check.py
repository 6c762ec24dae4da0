"""The checker: reads a run's dumps, acts, effects and what callers heard, and says which laws were broken.

The laws are those of the reliability plan: S for what must never happen, L for what must happen in the end. Each law
is a function that gives one line for each time it was broken. Must not run anything.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

from holdfast.conformance.dump import Dump
from holdfast.core.model import StepState
from tests.simulation.callers import Callers, Said
from tests.simulation.cast import Cast
from tests.simulation.ledger import Ledger
from tests.simulation.lives import Life, lives_of
from tests.simulation.plan import WIRE_FAULTS, Plan
from tests.simulation.scene import Effect, Handling
from tests.simulation.stage import Stage
from tests.simulation.wire import Act

TERMINAL = frozenset({"completed", "discarded", "cancelled"})
SETTLED = TERMINAL | {"review"}
UNDO = "holdfast.undo"

ROUGH = frozenset({"unloop", "resign", "block"})
"""Shapes of jobs that many laws of fair weather leave out."""

HARMLESS = frozenset({"pause", "echo", "caller"})
"""Faults that no worker feels."""

BROKEN_LIMIT = 20
"""How many broken laws are told of one run."""

Law = Callable[["Run"], Iterator[str]]
LAWS: list[Law] = []


def law(function: Law) -> Law:
    """Enter a law into the list."""
    LAWS.append(function)
    return function


@dataclass
class Run:
    """A run as the checker sees it."""

    plan: Plan
    stage: Stage
    callers: Callers
    cast: Cast
    settled_at: float | None = None
    dumps: list[tuple[float, Dump]] = field(default_factory=list)
    seen: list[str] = field(default_factory=list)
    ledger: Ledger | None = None

    def see(self, now: Dump) -> None:
        """Look at the whole store once more: what was there before must still be, and must not have changed."""
        if self.dumps:
            self.seen += compare(self.dumps[-1][1], now)
        self.seen += recount(now)
        self.dumps.append((self.stage.world.now, now))

    @property
    def now(self) -> float:
        return self.stage.world.now

    @property
    def healed_at(self) -> float:
        assert self.stage.healed_at is not None
        return self.stage.healed_at

    @property
    def effects(self) -> list[Effect]:
        return self.stage.scene.effects

    @property
    def handlings(self) -> list[Handling]:
        return self.stage.scene.handlings

    @property
    def said(self) -> list[Said]:
        return self.callers.said

    @property
    def acts(self) -> list[Act]:
        return self.stage.store.acts

    @property
    def last(self) -> Dump:
        return self.dumps[-1][1]

    @cached_property
    def lives(self) -> dict[str, Life]:
        return lives_of(self.last, self.stage.store.acts)

    def ended(self, handling: Handling) -> float:
        """When a handler came to its end, or to that of its process; now, if it still runs."""
        died = next((node.died for node in self.cast.nodes if node.process.name == handling.who), None)
        ends = [at for at in (handling.ended, died) if at is not None]
        return min(ends, default=self.stage.world.now)

    def happened(self) -> Counter[str]:
        """How often each event, each fault, each call that was refused, and each start by a stale worker happened."""
        events = Counter(f"event {entry.event}" for life in self.lives.values() for entry in life.entries)
        said = Counter(f"{said.kind} {said.outcome}" for said in self.callers.said)
        refused = Counter({"stale record": sum(len(life.refused) for life in self.lives.values())})
        return events + said + refused + self.cast.struck

    @property
    def is_answered(self) -> bool:
        """Whether every call is done once and answered, if perhaps late."""
        cut = any(blow.kind in ("cut", "away") for blow in self.plan.blows)
        return not cut and not any(getattr(self.plan.odds, name) for name in ("lost", "unanswered", "late", "twice"))

    @property
    def is_wired_well(self) -> bool:
        """Whether every call is answered, and soon."""
        return self.is_answered and not any(getattr(self.plan.odds, name) for name in WIRE_FAULTS)

    def only(self, *kinds: str) -> bool:
        """Whether no other kinds of faults strike the workers than these, nor jobs that end or block their loops."""
        rough = any(errand.shape in ROUGH for errand in self.plan.errands)
        return (
            self.is_wired_well
            and not rough
            and all(blow.kind in kinds or blow.kind in HARMLESS for blow in self.plan.blows)
        )


def broken_laws(run: Run) -> list[str]:
    """The laws that this run has broken, each once or more."""
    broken = list(dict.fromkeys(run.seen))
    for one in LAWS:
        broken += one(run)
        if len(broken) > BROKEN_LIMIT:
            break
    return broken[:BROKEN_LIMIT]


def compare(old: Dump, new: Dump) -> Iterator[str]:
    """The laws of any two looks at one store."""
    for id, was in old.jobs.items():
        now = new.jobs.get(id)
        if now is None:
            yield f"S1: job {was.type} {id[-6:]} has vanished"
            continue
        if new.history[id][: len(old.history[id])] != old.history[id]:
            yield f"S3: the history of {was.type} {id[-6:]} was changed"
        if was.state in TERMINAL and (now.state, now.result, now.version) != (was.state, was.result, was.version):
            yield f"S4: {was.type} {id[-6:]} was {was.state} and is {now.state}, version {was.version}, {now.version}"
        if now.epoch < was.epoch or now.version < was.version:
            yield f"S5: {was.type} {id[-6:]} went back from {was.version}, {was.epoch} to {now.version}, {now.epoch}"
        steps = {step.path: step for step in new.steps[id]}
        for step in old.steps[id]:
            if step.state is StepState.DONE and steps.get(step.path) != step:
                yield f"S9: the record {step.path} of {was.type} {id[-6:]} was changed or lost"


def recount(now: Dump) -> Iterator[str]:
    """Published counts are what a recount gives."""
    counts = Counter(f"{job.queue}/{job.state}" for job in now.jobs.values())
    if counts != now.counts:
        yield f"S35: the store counts {now.counts}, and there are {dict(counts)}"
    for id, entries in now.history.items():
        if [entry.version for entry in entries] != list(range(1, now.jobs[id].version + 1)):
            yield f"S3: the history of {now.jobs[id].type} {id[-6:]} has a gap"
