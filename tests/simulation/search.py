"""A bounded search over every order of steps, a cancel, kills, forks and the undo, on the real worker in virtual time.

A small job with two steps that can be undone and a cleanup runs again and again, with user code of many kinds. What its
workers do passes points: a call is sent, done by the store, or answered; an effect or an undo begins or ends. In each
run a cancel and a kill, or a fork, strike at one pair of points, until every pair has been tried. Time and order are
fixed: a schedule can be repeated.
"""

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from random import Random

import msgspec

from holdfast.core import lifecycle
from holdfast.core.lifecycle import SETTLED
from holdfast.jobs.requests import JobRequest
from holdfast.jobs.service import Jobs
from tests.simulation.cast import Cast
from tests.simulation.lodge import KINDS, TIMEOUT_SECONDS, TYPE
from tests.simulation.plan import Hand, Plan, Tuning
from tests.simulation.plot import CANCEL, FORK, KILL, Plot, Schedule, Stand
from tests.simulation.run import opened, patched, simulated
from tests.simulation.search_laws import GRACE_SECONDS, LIMIT_SECONDS, broken
from tests.simulation.shapes import TEMPLATE
from tests.simulation.strands import World
from tests.simulation.wire import Faults, Odds, Store, StoreClock, Trace, at_once

# One schedule.

TUNING = Tuning(lease=15.0, beat=5.0, look=4.0, poll=15.0, upkeep=30.0, grace=1.0)
HAND = Hand(("default",), 2)
PLAN = Plan(
    seed=0,
    engine="memory",
    tuning=TUNING,
    odds=Odds(quick_seconds=0.004),
    lateness=0.0,
    drift=0.0,
    sees_deaths=True,
    span=0.0,
    callers=0,
    hands=(HAND, HAND),
    errands=(),
    asks=(),
    blows=(),
)


class Even(Random):
    """No chance at all."""

    def random(self) -> float:
        return 0.25

    def uniform(self, a: float, b: float) -> float:
        return (a + b) / 2


@dataclass
class Outcome:
    """What became of one schedule."""

    kind: str
    schedule: Schedule
    engine: str
    points: list[tuple[str, str]]
    broken: list[str] = field(default_factory=list)
    forks: int = 0


def unfold(kind: str, schedule: Schedule, engine: str = "memory") -> Outcome:
    """Run a schedule to its end, and check the laws."""
    world = World(Even())
    clock = StoreClock(world)
    with ExitStack() as stack:
        stack.enter_context(simulated(world))
        stack.enter_context(patched(lifecycle, "UNDO_GRACE_MS", round(GRACE_SECONDS * 1_000)))
        store = Store(world, stack.enter_context(opened(engine, clock)), clock, Trace(), sees_deaths=True)
        here = Plot(world, Even(), store.trace)
        here.begin_at(schedule)
        stage = Stand(PLAN, world, store, Faults(Even(), PLAN.odds), here)
        stage.random = Even()
        here.cast = Cast(stage, None)  # type: ignore[arg-type]
        (accepted,) = at_once(Jobs(store.engine, stage._draw_id).submit([_order(kind)]))
        here.job = accepted.id
        for hand in PLAN.hands:
            here.cast.hire(hand)
        stage.healed_at = 0.0
        settled = world.run(Settled(store), LIMIT_SECONDS)
        found = [*world.troubles, *broken(kind, here, store, settled)]
        world.end()
    return Outcome(kind, schedule, engine, here.points, found, len(here.forks))


def _order(kind: str) -> JobRequest:
    spec = TEMPLATE.registry.get(TYPE)
    assert spec is not None
    limit = round(TIMEOUT_SECONDS * 1_000) if kind == "late" else None
    options = msgspec.structs.replace(spec.options, timeout_ms=limit)
    return JobRequest(type=TYPE, args=msgspec.json.encode([kind]).decode(), options=options)


class Settled:
    """Whether all jobs have settled. Looks again when the store did something."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._acts = -1

    def __call__(self) -> bool:
        if len(self._store.acts) == self._acts:
            return False
        self._acts = len(self._store.acts)
        return all(state in SETTLED for _, state in at_once(self._store.engine.count()))


# All schedules.


def search(
    kind: str,
    strikes: tuple[str, ...] = (CANCEL, KILL),
    *,
    engine: str = "memory",
    stride: int = 1,
    part: tuple[int, int] = (0, 1),
) -> Iterator[Outcome]:
    """Every schedule of this kind of job: all these strikes, in every order, at every point that is reached.

    With a `stride`, what strikes last strikes at every so-manieth point only. `part` (1, 4) is the second of four.
    """
    yield from _further(unfold(kind, (), engine), strikes, stride, part)


def _further(outcome: Outcome, left: tuple[str, ...], stride: int, part: tuple[int, int]) -> Iterator[Outcome]:
    yield outcome
    schedule = outcome.schedule
    first = schedule[-1][0] if schedule else 0
    for what in dict.fromkeys(left):
        rest = list(left)
        rest.remove(what)
        for point in range(first, len(outcome.points), 1 if rest else stride):
            if point % part[1] == part[0]:
                further = unfold(outcome.kind, (*schedule, (point, what)), outcome.engine)
                yield from _further(further, tuple(rest), stride, (0, 1))


def command(outcome: Outcome) -> str:
    """The one command that repeats a schedule, from the root of the repository."""
    strikes = " ".join(f"{point}:{what}" for point, what in outcome.schedule)
    return f"python -m tests.simulation.search {outcome.engine} {outcome.kind} {strikes}"


def main() -> int:
    """Repeat one schedule and tell its points, or search them all and tell how many there were."""
    if len(sys.argv) > 1:
        engine, kind, *strikes = sys.argv[1:]
        schedule = tuple((int(point), what) for point, _, what in (strike.partition(":") for strike in strikes))
        outcome = unfold(kind, schedule, engine)
        for number, (who, what) in enumerate(outcome.points):
            told = "".join(f"  <- {what}" for point, what in schedule if point == number)
            print(f"{number:4} {who} {what}{told}")
        print(*(outcome.broken or ["every law holds"]), sep="\n")
        return int(bool(outcome.broken))
    failed = 0
    for kind in KINDS:
        for struck in ((CANCEL, KILL), (FORK,)):
            searched = 0
            for outcome in search(kind, struck):
                searched += 1
                if outcome.broken:
                    failed += 1
                    print(*outcome.broken, command(outcome), sep="\n")
            print(f"{kind}, {' and '.join(struck)}: {searched} schedules")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
