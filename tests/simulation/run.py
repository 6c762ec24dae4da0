"""One run of a seed: set the stage, let it happen, heal, wait until all has settled, and hand it to the checker."""

import logging
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import holdfast.jobs.schedules
import holdfast.worker.worker
import tests.simulation.laws
import tests.simulation.laws_code
import tests.simulation.laws_ends
import tests.simulation.laws_limits
import tests.simulation.laws_order
import tests.simulation.laws_outside
import tests.simulation.limited
import tests.simulation.orderly  # noqa: F401 (all of these are entered into their lists by being imported)
from holdfast.conformance.dump import Dump, dump
from holdfast.core.keys import new_id
from holdfast.core.lifecycle import SETTLED
from holdfast.engines.contract import Engine
from holdfast.engines.memory import MemoryEngine
from holdfast.engines.sqlite import SqliteEngine
from holdfast.worker import context
from holdfast.worker.leases import Leases
from tests.simulation.callers import Callers
from tests.simulation.cast import Cast
from tests.simulation.check import Run, broken_laws
from tests.simulation.plan import Plan, draw_plan
from tests.simulation.scene import Scene
from tests.simulation.shapes import SHAPES
from tests.simulation.stage import Stage, spawn
from tests.simulation.strands import Storm, World
from tests.simulation.wire import Faults, Store, StoreClock, Trace, at_once

SETTLE_SECONDS = 240.0
"""How long after the faults every job has to settle."""

LOOK_SECONDS = 2.5
"""How often the whole store is looked at while it runs."""

STOP_SECONDS = 40.0
"""How long all workers together may take to stop at the end."""

ASK_SECONDS = 0.5
"""How often the store is asked whether all has settled, after the faults."""

ROOT = Path(__file__).parents[2]
FAST_DISK = Path("/dev/shm")
"""Where the simulated SQLite files lie, if there is such a place: a sync costs nothing there."""


@dataclass
class Verdict:
    """What a run came to: the laws that it broke, a hash of all that happened, and how much that was."""

    plan: Plan
    broken: list[str]
    digest: str
    lines: list[str] = field(default_factory=list)
    simulated: float = 0.0
    callbacks: int = 0
    acts: int = 0
    happened: Counter[str] = field(default_factory=Counter)
    """How often each event, each fault and each answer happened: what this run has tried."""


def play(seed: int, engine: str = "memory", *, plan: Plan | None = None, story: bool = False) -> Verdict:
    """Run a seed."""
    plan = plan or draw_plan(seed, engine, SHAPES)
    trace = Trace([] if story else None)
    world = World(Random(f"order/{seed}"), plan.lateness)
    clock = StoreClock(world)
    with ExitStack() as stack:
        stack.enter_context(simulated(world))
        ids = Random(f"schedules/{seed}")
        stack.enter_context(patched(holdfast.jobs.schedules, "_ids", lambda now: new_id(now, ids.getrandbits(74))))
        store = Store(world, stack.enter_context(opened(engine, clock)), clock, trace, sees_deaths=plan.sees_deaths)
        faults = Faults(Random(f"faults/{seed}"), plan.odds)
        scene = Scene(world, Random(f"scene/{seed}"), trace)
        stage = Stage(plan, world, store, faults, scene)
        callers = Callers(stage)
        cast = Cast(stage, callers)
        run = Run(plan, stage, callers, cast)
        try:
            _unfold(run, world)
            broken = [*world.troubles, *broken_laws(run)]
        except Storm as storm:
            broken = [f"storm: {storm}"]
        lines, happened = trace.lines or [], run.happened() if run.dumps else Counter()
        verdict = Verdict(plan, broken, trace.digest(), lines, world.now, world.done, len(store.acts), happened)
        world.end()
    return verdict


def _unfold(run: Run, world: World) -> None:
    plan, cast = run.plan, run.cast
    cast.open()
    run.callers.open()
    world.later(LOOK_SECONDS, partial(_look, run, world))
    world.run(partial(_is_over, run), plan.span)
    cast.heal()
    run.callers.close()
    world.later(ASK_SECONDS, partial(_ask, run, world))
    world.run(partial(_is_over, run), plan.span + SETTLE_SECONDS)
    run.see(_dump(run))
    cast.close()
    world.run(lambda: all(leave.until is not None for leave in cast.leaves), world.now + STOP_SECONDS)
    run.see(_dump(run))


def _is_over(run: Run) -> bool:
    """Asked whenever time moves on."""
    run.cast.attend()
    return run.settled_at is not None


def _look(run: Run, world: World) -> None:
    """Look at the whole store now and then."""
    run.see(_dump(run))
    if run.settled_at is None:
        world.later(LOOK_SECONDS, partial(_look, run, world))


def _ask(run: Run, world: World) -> None:
    """Once the faults are over: whether all jobs have settled."""
    counts = at_once(run.stage.store.engine.count())
    if all(state in SETTLED for _, state in counts) and run.callers.is_quiet():
        run.settled_at = world.now
    else:
        world.later(ASK_SECONDS, partial(_ask, run, world))


def _dump(run: Run) -> Dump:
    now: Dump = at_once(dump(run.stage.store.engine))
    return now


@contextmanager
def opened(kind: str, clock: StoreClock) -> Iterator[Engine]:
    """The real engine, empty, and on the simulation's time."""
    if kind == "memory":
        yield MemoryEngine(clock)
        return
    folder = tempfile.mkdtemp(prefix="holdfast-sim-", dir=FAST_DISK if FAST_DISK.is_dir() else None)
    engine = SqliteEngine(Path(folder) / "jobs.db", clock, inline=True)
    engine._liveness.listen = lambda: False  # type: ignore[method-assign]
    at_once(engine.open())
    try:
        yield engine
    finally:
        at_once(engine.close())
        shutil.rmtree(folder)


# What the product takes from its modules, and what it gets here instead.


class VirtualTime:
    """The `time` of the product's modules: that of the simulated process whose code asks."""

    def __init__(self, world: World) -> None:
        self._world = world

    def monotonic(self) -> float:
        strand = self._world.running
        return self._world.now if strand is None else strand.process.monotonic()

    def time(self) -> float:
        return self._world.now

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"time.{name} under simulation")


class Complaints(logging.Handler):
    """What the product logs with a traceback is trouble that it didn't expect."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.ERROR)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self._world.trouble(f"unexpected: {record.getMessage()}: {record.exc_info[1]!r}")


@contextmanager
def simulated(world: World) -> Iterator[None]:
    """Give the product the simulation's time and threads, and hear its complaints."""
    virtual, log = VirtualTime(world), logging.getLogger("holdfast")
    complaints, level, heard = Complaints(world), log.level, log.propagate
    leases = partial(Leases, clock=virtual.monotonic, spawn=spawn)
    with ExitStack() as stack:
        for name, module in list(sys.modules.items()):
            ours = name.startswith("holdfast.") and not name.startswith("holdfast.engines")
            if ours and getattr(module, "time", None) is time:
                stack.enter_context(patched(module, "time", virtual))
        stack.enter_context(patched(holdfast.worker.worker, "Leases", leases))
        stack.enter_context(patched(threading.Thread, "start", _no_thread))
        log.addHandler(complaints)
        log.setLevel(logging.ERROR)
        log.propagate = False
        try:
            yield
        finally:
            log.removeHandler(complaints)
            log.propagate = heard
            log.setLevel(level)  # not by its attribute: loggers remember which levels they let through
            context._attempt_hosts.clear()  # workers that were killed, and their attempts


@contextmanager
def patched(place: Any, name: str, value: Any) -> Iterator[None]:
    """Put something in another's place for a while."""
    there = getattr(place, name)
    setattr(place, name, value)
    try:
        yield
    finally:
        setattr(place, name, there)


def _no_thread(thread: threading.Thread) -> None:
    raise AssertionError(f"thread {thread.name} under simulation: there are none")


def command(seed: int, engine: str, bug: str | None = None) -> str:
    """The one command that replays a seed, from the root of the repository."""
    python = Path(sys.executable)
    place = python.relative_to(ROOT) if python.is_relative_to(ROOT) else python
    more = ("" if engine == "memory" else f" --engine {engine}") + ("" if bug is None else f" --bug {bug!r}")
    return f"replay: {place} -m tests.simulation {seed}{more} --story"
