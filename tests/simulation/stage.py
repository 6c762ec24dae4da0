"""What everybody who takes part in a run shares: the plan, the world, the store, its faults, and new processes.

Must not know what they do there.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import ContextVar
from dataclasses import dataclass, field
from random import Random
from typing import Any

from holdfast import App
from holdfast.core.errors import StoreError
from holdfast.core.keys import new_id
from holdfast.jobs.service import Jobs
from tests.simulation.plan import Plan
from tests.simulation.scene import Program, Scene, program
from tests.simulation.shapes import TEMPLATE
from tests.simulation.strands import World
from tests.simulation.wire import Faults, Store, Wire

AGAIN_SECONDS = 0.3
"""How long somebody who insists waits for a store that doesn't answer."""

DRAWN: ContextVar[set[str] | None] = ContextVar("drawn", default=None)
"""Where the ids go that are drawn for what a caller submits just now."""


@dataclass
class Stage:
    """One run, while it goes on. `healed_at` is when the faults ended."""

    plan: Plan
    world: World
    store: Store
    faults: Faults
    scene: Scene
    drawn: set[str] = field(default_factory=set)
    healed_at: float | None = None

    def __post_init__(self) -> None:
        self.random = Random(f"stage/{self.plan.seed}")

    def process(self, name: str) -> Program:
        """A new process, with a clock and an app of its own."""
        draw, drift = self.random.uniform, self.plan.drift
        process = Program(self.world, name, offset=draw(0, 1e6), rate=1 + draw(-drift, drift), scene=self.scene)
        wire: Any = Wire(process, self.store, self.faults)
        process.wire = wire
        process.app = App("memory:", engine=wire)
        process.app.registry = TEMPLATE.registry
        process.app._jobs = Jobs(wire, self._draw_id)
        return process

    def tell(self, *parts: Any) -> None:
        """Write down that something happened."""
        self.store.trace.add(round(self.world.now * 1e6), *parts)

    def _draw_id(self, now: int) -> str:
        id = new_id(now, self.random.getrandbits(74))
        self.drawn.add(id)
        drawn = DRAWN.get()
        if drawn is not None:
            drawn.add(id)
        return id


async def insistently(call: Callable[[], Awaitable[Any]]) -> Any:
    """Ask until the store answers."""
    while True:
        try:
            return await call()
        except StoreError:
            await asyncio.sleep(AGAIN_SECONDS)


def spawn(name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[float], Awaitable[None]]:
    """What a thread of its own is in a simulation: another strand of the same process."""
    task = program().begin(work(), name)

    async def join(seconds: float) -> None:
        loop = asyncio.get_running_loop()
        ended = loop.create_future()
        timer = loop.call_later(seconds, _end, ended)
        task.add_done_callback(lambda _: loop.call_soon_threadsafe(_end, ended))
        await ended
        timer.cancel()

    return join


def _end(ended: Any) -> None:
    if not ended.done():
        ended.set_result(None)
