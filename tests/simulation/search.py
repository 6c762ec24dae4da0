"""A bounded search over every order of steps, a cancel, kills and the undo, on the real worker in virtual time.

A small job with two steps that can be undone and a cleanup runs again and again. What its workers do passes points: a
call is sent, done by the store, or answered; an effect or an undo begins or ends. In each run a cancel and a kill
strike at one pair of points, until every pair has been tried. Time and order are fixed: a schedule can be repeated.
"""

import asyncio
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from random import Random
from typing import Any

import msgspec

from holdfast import current, step
from holdfast.core import lifecycle
from holdfast.core.keys import derived_id
from holdfast.core.lifecycle import SETTLED
from holdfast.core.model import Beat, Retry, State, StepState
from holdfast.jobs import Jobs
from holdfast.jobs.orders import Order
from tests.simulation.cast import Cast
from tests.simulation.plan import Hand, Plan, Tuning
from tests.simulation.run import opened, patched, simulated
from tests.simulation.scene import Broken, Program, Scene, program
from tests.simulation.shapes import TEMPLATE
from tests.simulation.stage import Stage
from tests.simulation.strands import World
from tests.simulation.wire import Faults, Odds, Store, StoreClock, Trace, Wire, at_once

CANCEL, KILL = "cancel", "kill"
Schedule = tuple[tuple[int, str], ...]
"""What strikes, and at the how-manieth point of the run."""

WATCHED = frozenset({"record", "commit", "steps", "get"})
"""The calls whose begin, act and answer are points; of a claim when it brings a job, of a beat if it tells news."""

WORK_SECONDS, UNDO_SECONDS = 1.0, 0.1
GRACE_SECONDS = 30.0
"""How long the undo waits for the word of an owner: shorter than in the product, so that a search takes less time."""

SOON_SECONDS = 3.0
"""How long after a cancel no step begins any more, and the undo does, if the owner lives and heeds it."""

RESCUE_SECONDS = 8.0
"""How long it takes until another worker goes on with what a killed one did, or undoes it."""

LIMIT_SECONDS = 120.0
TRY_AGAIN = Retry(retries=1, strategy="constant", initial_ms=200, jitter=False)
KINDS = ("line", "fails", "slow", "together", "cut")
"""Two steps one after the other; of which the second fails; that go on though they are cancelled; both at once; and
both in a task group, where the second one is cancelled from inside.
"""


@dataclass
class Done:
    """Something that ran in the world outside: a step's body or an undo. `stopped` when it ran no longer."""

    path: str
    who: str
    began: float
    value: Any = None
    stopped: float | None = None
    ended: bool = False


class Plot(Scene):
    """The world outside, which counts the points, and lets strike what is due at each."""

    schedule: dict[int, list[str]]
    points: list[tuple[str, str]]
    cast: Cast
    job: str
    cancelled_at: float | None
    made: list[Done]
    undone: list[Done]

    def begin_at(self, schedule: Schedule) -> None:
        self.schedule = {}
        for point, what in schedule:
            self.schedule.setdefault(point, []).append(what)
        self.points, self.made, self.undone = [], [], []
        self.killed: list[tuple[str, float]] = []
        self.cancelled_at = None

    def point(self, process: Program, what: str) -> None:
        """Something of this process's has just happened."""
        self.points.append((process.name, what))
        for strike in self.schedule.get(len(self.points) - 1, ()):
            if strike == CANCEL:
                self._cancel()
            else:
                self._kill(process)

    def _cancel(self) -> None:
        """At once, as one who is not slowed down by a wire."""
        jobs = Jobs(_Direct(self.cast.stage.store))  # type: ignore[arg-type]
        (job,) = at_once(self.cast.stage.store.engine.get([self.job]))
        if job.state not in SETTLED or job.state is State.REVIEW:
            at_once(jobs.cancel(self.job))
            self.cancelled_at = self.world.now

    def _kill(self, process: Program) -> None:
        node = next((node for node in self.cast.nodes if node.process is process), None)
        if node is not None and node.died is None:
            self.killed.append((process.name, self.world.now))
            self.cast.kill(node)


class _Direct:
    """The store, for one who asks in no time."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        async def call(*args: Any, **named: Any) -> Any:
            ok, answer = self._store.do("caller", name, args, named)
            if not ok:
                raise answer
            return answer

        return call


class Spied(Wire):
    """A wire whose calls pass points."""

    def __init__(self, process: Program, store: Store, faults: Faults, plot: Plot) -> None:
        super().__init__(process, store, faults)
        self._plot = plot
        self._program = process

    async def _call(self, name: str, *args: Any, **named: Any) -> Any:
        watched = name in WATCHED
        if watched:
            self._plot.point(self._program, f"{name} sent")
        answer = await super()._call(name, *args, **named)
        if watched or (name == "claim" and answer) or (isinstance(answer, Beat) and answer.cancelled):
            self._plot.point(self._program, f"{name} heard")
            await asyncio.sleep(0)  # from which the dead don't come back
        return answer

    def _arrive(self, name: str, args: tuple[Any, ...], named: dict[str, Any], reply: Any, back: float | None) -> None:
        acts = len(self._store.acts)
        super()._arrive(name, args, named, reply, back)
        brought = name == "claim" and len(self._store.acts) > acts and self._store.acts[-1].answer
        if (name in WATCHED and self.process.alive) or brought:
            self._plot.point(self._program, f"{name} done")


class Stand(Stage):
    """A stage whose processes have such wires."""

    def process(self, name: str) -> Program:
        process = super().process(name)
        assert isinstance(self.scene, Plot)
        wire: Any = Spied(process, self.store, self.faults, self.scene)
        process.wire = wire
        process.app.engine = wire
        process.app._jobs = Jobs(wire, self._draw_id)
        return process


# The job.


def plot() -> Plot:
    found = program().scene
    assert isinstance(found, Plot)
    return found


async def ran(done: Done, seconds: float, *, stubborn: bool = False) -> None:
    """Let something take its time; `stubborn` things go on though they are cancelled."""
    here, who = plot(), program()
    here.point(who, f"{done.path} begins")
    end = here.world.now + seconds
    try:
        await asyncio.sleep(0)
        while here.world.now < end - 1e-6 and not here.world.over:
            try:
                await asyncio.sleep(end - here.world.now)
            except asyncio.CancelledError:
                if not stubborn:
                    raise
        here.point(who, f"{done.path} ends")
        await asyncio.sleep(0)
        done.ended = True
    finally:
        if who.alive and not here.world.over:
            done.stopped = here.world.now


async def give_back(value: str | None) -> None:
    done = Done(current().step, program().name, plot().world.now, value)
    plot().undone.append(done)
    await ran(done, UNDO_SECONDS)


async def sweep(kind: str) -> None:
    done = Done("", program().name, plot().world.now, kind)
    plot().undone.append(done)
    await ran(done, UNDO_SECONDS)


@step(undo=give_back)
async def let(n: int, kind: str) -> str:
    done = Done(current().step, program().name, plot().world.now)
    plot().made.append(done)
    await ran(done, WORK_SECONDS / (2 if kind in ("together", "cut") and n == 2 else 1), stubborn=kind == "slow")
    if n == 2 and kind in ("fails", "together"):
        raise Broken("the second one fails")
    if n == 2 and kind == "cut":
        subtask = asyncio.ensure_future(asyncio.sleep(WORK_SECONDS))
        subtask.cancel()
        await subtask
    return f"{current().step} at {current().epoch}"


@TEMPLATE.job(name="search.lodge", retries=TRY_AGAIN, cleanup=sweep, keep="30d")
async def lodge(kind: str) -> list[str]:
    if kind == "cut":
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(let(n, kind)) for n in (1, 2)]
        return [task.result() for task in tasks if not task.cancelled()]
    if kind == "together":
        return list(await asyncio.gather(let(1, kind), let(2, kind)))
    return [await let(1, kind), await let(2, kind)]


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
    points: list[tuple[str, str]]
    broken: list[str] = field(default_factory=list)


def unfold(kind: str, schedule: Schedule) -> Outcome:
    """Run a schedule to its end, and check the laws."""
    world = World(Even())
    clock = StoreClock(world)
    with ExitStack() as stack:
        stack.enter_context(simulated(world))
        stack.enter_context(patched(lifecycle, "UNDO_GRACE_MS", round(GRACE_SECONDS * 1_000)))
        engine = stack.enter_context(opened("memory", clock))
        store = Store(world, engine, clock, Trace(), sees_deaths=True)
        here = Plot(world, Even(), store.trace)
        here.begin_at(schedule)
        stage = Stand(PLAN, world, store, Faults(Even(), PLAN.odds), here)
        stage.random = Even()
        here.cast = Cast(stage, None)  # type: ignore[arg-type]
        order = Order(type="search.lodge", args=msgspec.json.encode([kind]).decode())
        spec = TEMPLATE.registry.get("search.lodge")
        assert spec is not None
        order = msgspec.structs.replace(order, options=spec.options)
        (accepted,) = at_once(Jobs(engine, stage._draw_id).submit([order]))
        here.job = accepted.id
        for hand in PLAN.hands:
            here.cast.hire(hand)
        stage.healed_at = 0.0
        settled = world.run(Settled(store), LIMIT_SECONDS)
        broken = [*world.troubles, *_broken(here, store, settled)]
        world.end()
    return Outcome(kind, schedule, here.points, broken)


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


def _broken(here: Plot, store: Store, settled: bool) -> Iterator[str]:
    job, undo = at_once(store.engine.get([here.job, derived_id(here.job, "undo")]))
    if not settled:
        yield f"forgotten: the job is {job.state}, its undo {undo and undo.state}, after {LIMIT_SECONDS} s"
        return
    if job.state is State.COMPLETED:
        steps = {one.path: one for one in at_once(store.engine.steps(here.job)) if one.state is StepState.DONE}
        for path in sorted({one.path for one in here.made} - steps.keys()):
            yield f"hole: the job has completed, and {path} was never done"
    if here.cancelled_at is None or job.epoch == 0:
        if here.undone or undo is not None:
            yield f"undone for nothing: {[one.path for one in here.undone]} of a job that is {job.state}"
        return
    steps = {one.path: one for one in at_once(store.engine.steps(here.job))}
    intents = [path.removeprefix("~undo/") for path in steps if path.startswith("~undo/")]
    ended = [one for one in here.undone if one.ended]
    if undo is None or undo.state is not State.COMPLETED:
        yield f"forgotten: the undo is {undo and undo.state}"
    forgotten = {one.path for one in here.made} - {one.path for one in ended}
    if forgotten:
        yield f"forgotten: {sorted(forgotten)} began, and was not undone"
    wanted = [*reversed(intents), ""]
    if [*dict.fromkeys(one.path for one in here.undone)] != wanted:
        yield f"order: undone were {[one.path for one in here.undone]}, to be undone {wanted}"
    for one in here.undone:
        record = steps.get(one.path)
        done = record is not None and record.state is StepState.DONE
        value = msgspec.json.decode(record.result or "null") if done and record is not None else None
        if one.path and one.value != value:
            yield f"value: the undo of {one.path} was given {one.value}, not {value}"
        if one.path and done and one.path not in {made.path for made in here.made}:
            yield f"value: {one.path} is recorded and never began"
    for path in wanted:
        times = sum(one.path == path for one in ended)
        if times > 1 + len(here.killed):
            yield f"twice: {path or 'the cleanup'} was undone {times} times, with {len(here.killed)} kills"
    yield from _too_soon_or_late(here)


def _too_soon_or_late(here: Plot) -> Iterator[str]:
    assert here.cancelled_at is not None
    died = dict(here.killed)
    grace = here.cancelled_at + GRACE_SECONDS
    for one in here.made:
        until = min((at for at in (one.stopped, died.get(one.who)) if at is not None), default=here.world.now)
        for undo in here.undone:
            if one.began <= undo.began < until and undo.began < grace:
                yield f"under a step: {undo.path or 'the cleanup'} was undone while {one.path} ran in {one.who}"
            if one.began > undo.began:
                yield f"under a step: {one.path} began after {undo.path or 'the cleanup'} was undone"
        if one.began > here.cancelled_at + SOON_SECONDS:
            yield f"after the cancel: {one.path} began {one.began - here.cancelled_at:.2f} s later"
    first = min(one.began for one in here.undone) if here.undone else here.world.now
    if first > here.cancelled_at + SOON_SECONDS + (RESCUE_SECONDS if here.killed else 0.0):
        yield f"late: the undo began {first - here.cancelled_at:.1f} s after the cancel"


# All schedules.


def search(kind: str, kills: int = 1, *, stride: int = 1, part: tuple[int, int] = (0, 1)) -> Iterator[Outcome]:
    """Every schedule of this kind of job: a cancel and so many kills, in every order, at every point that is reached.

    With a `stride`, what strikes last strikes at every so-manieth point only. `part` (1, 4) is the second of four.
    """
    yield from _further(kind, (), (CANCEL, *[KILL] * kills), stride, part)


def _further(
    kind: str, schedule: Schedule, left: tuple[str, ...], stride: int, part: tuple[int, int]
) -> Iterator[Outcome]:
    outcome = unfold(kind, schedule)
    yield outcome
    first = schedule[-1][0] if schedule else 0
    for what in dict.fromkeys(left):
        rest = list(left)
        rest.remove(what)
        for point in range(first, len(outcome.points), 1 if rest else stride):
            if point % part[1] == part[0]:
                yield from _further(kind, (*schedule, (point, what)), tuple(rest), stride, (0, 1))


def command(outcome: Outcome) -> str:
    """The one command that repeats a schedule, from the root of the repository."""
    strikes = " ".join(f"{point}:{what}" for point, what in outcome.schedule)
    return f"python -m tests.simulation.search {outcome.kind} {strikes}"


def main() -> int:
    """Repeat one schedule and tell its points, or search them all and tell how many there were."""
    if len(sys.argv) > 1:
        kind, *strikes = sys.argv[1:]
        schedule = tuple((int(point), what) for point, _, what in (strike.partition(":") for strike in strikes))
        outcome = unfold(kind, schedule)
        for number, (who, what) in enumerate(outcome.points):
            told = "".join(f"  <- {what}" for point, what in schedule if point == number)
            print(f"{number:4} {who} {what}{told}")
        print(*(outcome.broken or ["every law holds"]), sep="\n")
        return int(bool(outcome.broken))
    broken = 0
    for kind in KINDS:
        searched = 0
        for outcome in search(kind):
            searched += 1
            if outcome.broken:
                broken += 1
                print(*outcome.broken, command(outcome), sep="\n")
        print(f"{kind}: {searched} schedules")
    return int(broken > 0)


if __name__ == "__main__":
    sys.exit(main())
