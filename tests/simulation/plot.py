"""The world of the search: what a job's workers do passes points, and at each of them something may strike.

Must not know what a job does, and must not judge.
"""

import asyncio
from dataclasses import dataclass
from typing import Any

from holdfast.core.lifecycle import SETTLED
from holdfast.core.model import Beat, State
from holdfast.jobs.service import Jobs
from tests.simulation.cast import Cast, Node
from tests.simulation.scene import Program, Scene
from tests.simulation.stage import Stage
from tests.simulation.wire import Faults, Store, Wire, at_once

CANCEL, KILL, FORK = "cancel", "kill", "fork"
Schedule = tuple[tuple[int, str], ...]
"""What strikes, and at the how-manieth point of the run."""

WATCHED = frozenset({"record", "commit", "steps", "get"})
"""The calls whose begin, act and answer are points; of a claim when it brings a job, of a beat if it tells news."""


@dataclass
class Done:
    """Something that ran in the world outside: a step's body or an undo. `stopped` when it ran no longer."""

    path: str
    who: str
    epoch: int
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
    given_up: set[str]
    """Steps that the job's own code has cut off, and that it does without."""
    held: list[float]
    """For how long the job's own code blocked its worker."""

    def begin_at(self, schedule: Schedule) -> None:
        self.schedule = {}
        for point, what in schedule:
            self.schedule.setdefault(point, []).append(what)
        self.points, self.made, self.undone = [], [], []
        self.given_up, self.held = set(), []
        self.killed: list[tuple[str, float]] = []
        self.cancelled_at = None

    def point(self, process: Program, what: str) -> None:
        """Something of this process's has just happened."""
        self.points.append((process.name, what))
        for strike in self.schedule.get(len(self.points) - 1, ()):
            if strike == CANCEL:
                self._cancel()
            elif strike == KILL:
                self.kill(process)
            elif self.runs_jobs(process):
                self.fork()
                if self.world.is_copy:
                    return

    def _cancel(self) -> None:
        """At once, as one who is not slowed down by a wire."""
        jobs = Jobs(_Direct(self.cast.stage.store))  # type: ignore[arg-type]
        (job,) = at_once(self.cast.stage.store.engine.get([self.job]))
        if job.state not in SETTLED or job.state is State.REVIEW:
            at_once(jobs.cancel(self.job))
            self.cancelled_at = self.world.now

    def kill(self, process: Program) -> None:
        """As kill -9 does it, or code that calls `os._exit`."""
        node = next((node for node in self.cast.nodes if node.process is process), None)
        if node is not None and node.died is None:
            self.killed.append((process.name, self.world.now))
            self.cast.kill(node)

    def runs_jobs(self, process: Program) -> bool:
        """Whether just now that thread of this process runs in which jobs do, and could fork."""
        here = self.world.running
        return here is not None and here.process is process and process.alive and here.name == "main"

    def loopless(self) -> list[Node]:
        """The workers whose event loop was ended."""
        return [node for node in self.cast.nodes if node.unlooped is not None]


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
