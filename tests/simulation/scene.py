"""The world outside the store, in which the effects of jobs happen: the witness of what was really done.

Every run of a step's body is an effect with a number of its own, which is also its result: so a record tells which run
it stands for, and a job's result tells which records it was made of. Must not check anything.
"""

import asyncio
from dataclasses import dataclass, field
from random import Random
from typing import Any

from holdfast import App, current
from tests.simulation.strands import Process, Strand, World
from tests.simulation.wire import Trace, Wire


class Broken(Exception):
    """What fails in a simulated job."""


@dataclass
class Effect:
    """One run of a step's body, in some process. `given` is what it was called with."""

    number: int
    job: str
    path: str
    epoch: int
    who: str
    began: float
    given: tuple[Any, ...] = ()
    ended: float | None = None
    failed: bool = False

    @property
    def token(self) -> str:
        return f"e{self.number}"


@dataclass
class Handling:
    """One run of a job's handler. `ended` is None while it runs, and for ever if its process was killed."""

    job: str
    epoch: int
    who: str
    began: float
    ended: float | None = None


@dataclass
class Mapped:
    """What a job was told of a list of items: None in a place where one failed."""

    job: str
    items: list[int]
    results: list[str | None]


@dataclass
class Undo:
    """One run of what takes a step back, or of a job's cleanup, whose path is empty. `value` is what it was given."""

    job: str
    path: str
    value: Any
    who: str
    began: float
    ended: float | None = None


@dataclass
class Scene:
    """The world outside the store: what was really done, by whom and when."""

    world: World
    random: Random
    trace: Trace
    effects: list[Effect] = field(default_factory=list)
    handlings: list[Handling] = field(default_factory=list)
    undos: list[Undo] = field(default_factory=list)
    mapped: list[Mapped] = field(default_factory=list)
    shared: dict[str, "asyncio.Task[None]"] = field(default_factory=dict)
    """What all jobs of a process wait for together, such as a token that is being refreshed."""
    poisoned: list[Process] = field(default_factory=list)
    """Processes that a job has killed."""
    unlooped: set[str] = field(default_factory=set)
    """Processes whose event loop a job has ended on purpose."""
    forks: list[int] = field(default_factory=list)
    """How each child of a job that forked has ended: its exit code."""
    resigned: list[Process] = field(default_factory=list)
    """Processes that a job has told to stop, as a deploy does."""

    async def effect(self, *given: Any, seconds: float | None = None, fails: int = 0) -> str:
        """Do something in the world that takes a while. The first `fails` runs of it fail."""
        return await self.finish(self.begin(given), seconds, fails)

    async def finish(self, effect: Effect, seconds: float | None = None, fails: int = 0) -> str:
        """Bring to its end what has begun."""
        await asyncio.sleep(self.random.choice([0.05, 0.5, 2.5]) * self.random.random() if seconds is None else seconds)
        failed = sum(one.failed for one in self.effects if (one.job, one.path) == (effect.job, effect.path))
        if failed < fails:
            effect.failed = True
            self.trace.add(round(self.world.now * 1e6), "fails", effect.number)
            raise Broken(f"{effect.path} fails")
        effect.ended = self.world.now
        self.trace.add(round(self.world.now * 1e6), "ends", effect.number)
        return effect.token

    async def share(self) -> None:
        """Wait for what others wait for, too. Whoever is stopped meanwhile cancels it for all of them."""
        name = program().name
        if name not in self.shared or self.shared[name].done():
            self.shared[name] = asyncio.ensure_future(asyncio.sleep(0.3))
        await self.shared[name]

    def fork(self) -> None:
        """Fork, and let the child return into the job: what a person forgets who calls `os.fork()` in a step."""
        ended = self.world.fork()
        if ended is not None:
            self.forks.append(ended)
            self.trace.add(round(self.world.now * 1e6), "forks", ended)

    def begin(self, given: tuple[Any, ...]) -> Effect:
        here = current()
        effect = Effect(
            len(self.effects) + 1, here.job_id, here.step, here.epoch, program().name, self.world.now, given
        )
        self.effects.append(effect)
        self.trace.add(round(self.world.now * 1e6), "begins", effect.number, effect.job, effect.path, effect.epoch)
        return effect

    async def undo(self, value: Any) -> None:
        """Take something back. It fails now and then, and is tried again."""
        here = current()
        undo = Undo(here.job_id, here.step, value, program().name, self.world.now)
        self.undos.append(undo)
        self.trace.add(round(self.world.now * 1e6), "undoes", undo.job, undo.path)
        await asyncio.sleep(self.random.random() * 0.3)
        if self.random.random() < 0.1:
            raise Broken("can't be taken back yet")
        undo.ended = self.world.now


class Program(Process):
    """A simulated process with what it needs to take part: its wire to the store, its app, and the world outside."""

    def __init__(self, world: World, name: str, *, offset: float, rate: float, scene: Scene) -> None:
        super().__init__(world, name, offset=offset, rate=rate)
        self.scene = scene
        self.wire: Wire
        self.app: App


def program() -> Program:
    """The simulated process that this code runs in."""
    strand = asyncio.get_running_loop()
    assert isinstance(strand, Strand)
    assert isinstance(strand.process, Program)
    return strand.process


def scene() -> Scene:
    """The world outside, as the running process sees it."""
    return program().scene
