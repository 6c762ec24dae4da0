"""The workers of a run: processes with a real worker and a real keeper in each, and what strikes them.

Must not judge how they fare.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

from msgspec.structs import replace

from holdfast.core.errors import StoreError
from holdfast.core.model import Recorded, StepState
from holdfast.core.schedules import Definition, Template
from holdfast.upkeep.keeper import Keeper
from holdfast.upkeep.scheduling import Scheduling
from holdfast.worker.registry import Registry
from holdfast.worker.worker import Worker
from tests.simulation.callers import SCHEDULED, Callers
from tests.simulation.plan import QUEUES, Blow, Hand
from tests.simulation.scene import Program
from tests.simulation.shapes import TEMPLATE
from tests.simulation.stage import Stage, spawn
from tests.simulation.strands import Strand

AMBUSHED = ("record", "record", "record", "commit", "commit", "claim", "beat", "insert", "steps", "put_record")
"""The calls at which a process may be ambushed."""

UPKEEP = "holdfast-upkeep"
NODDED = ("steps", "history", "steps", "history", "now", "now", "records", "find", "get")
"""The reads at which a keeper may fall asleep. Steps and history are read only when a job is about to be taken."""

STALLED = ("holdfast-beat", "holdfast-beat", "main", UPKEEP)
"""The threads that may stall while the others of their process go on."""


@dataclass
class Node:
    """A process with a worker in it."""

    process: Program
    worker: Worker
    keeper: Keeper
    hand: Hand
    born: float
    died: float | None = None
    leaving: bool = False
    unlooped: float | None = None
    """When a job ended its event loop, though nobody had told it to stop."""


@dataclass
class Leave:
    """A worker that was told to stop, and when it had. `disturbed` if something struck it meanwhile."""

    node: Node
    at: float
    until: float | None = None
    disturbed: bool = False


class Cast:
    """All workers of a run, the dead ones too."""

    def __init__(self, stage: Stage, callers: Callers) -> None:
        self.stage = stage
        self.world = stage.world
        self.callers = callers
        self.nodes: list[Node] = []
        self.leaves: list[Leave] = []
        self.struck: Counter[str] = Counter()
        """How often each kind of fault struck."""
        self._let_go: list[Callable[[], None]] = []

    # Coming and going.

    def open(self) -> None:
        """All begin, and the faults are on their way."""
        for hand in self.stage.plan.hands:
            self.hire(hand)
        for blow in self.stage.plan.blows:
            self.world.later(blow.at, partial(self.strike, blow))

    def living(self) -> list[Node]:
        return [node for node in self.nodes if node.process.alive and not node.leaving]

    def hire(self, hand: Hand) -> None:
        """Start a process with a worker, as `App.worker` does it."""
        number, tuning = len(self.nodes) + 1, self.stage.plan.tuning
        process = self.stage.process(f"p-{number}")
        wire: Any = process.wire
        registry = _knowing(hand, self.stage.plan.every)
        chance = Random(f"chance/{self.stage.plan.seed}/{number}").random
        worker = Worker(
            wire,
            registry,
            queues=hand.queues,
            at_once=hand.at_once,
            beat_seconds=tuning.beat,
            lease_seconds=tuning.lease,
            poll_seconds=tuning.poll,
            name=f"w-{number}",
            chance=chance,
        )
        keeper = Keeper(
            wire,
            worker.id,
            lease_seconds=tuning.lease,
            look_seconds=tuning.look,
            upkeep_seconds=tuning.upkeep,
            chance=chance,
            spawn=spawn,
            scheduling=Scheduling(wire, worker.id, registry.misfit) if registry.schedules else None,
        )
        node = Node(process, worker, keeper, hand, self.world.now)
        self.nodes.append(node)
        process.when_loop_ends = partial(self.unloop, node)
        process.begin(self._work(node))

    async def _work(self, node: Node) -> None:
        while not node.leaving:
            try:
                await node.worker.start()
                node.keeper.start()
                return
            except StoreError:
                await asyncio.sleep(0.5)

    def kill(self, node: Node) -> None:
        """As kill -9 does it; somebody starts another one in its place after a while."""
        node.process.kill()
        self._is_gone(node, self.stage.random.uniform(0.1, 4.0))
        self._disturb(node)

    def attend(self) -> None:
        """Some jobs kill the process that they run in, or tell it to stop."""
        scene = self.stage.scene
        for processes, strike in ((scene.poisoned, self.kill), (scene.resigned, self.resign)):
            while processes:
                process = processes.pop()
                node = next(node for node in self.nodes if node.process is process)
                if node.died is None:
                    strike(node)

    def unloop(self, node: Node) -> None:
        """As asyncio does it when something ends the loop: it cancels all tasks, and runs until they have ended."""
        if node.died is not None or node.unlooped is not None:
            return
        if not node.leaving:
            node.unlooped = self.world.now
        self._disturb(node)
        node.leaving = True
        for task in node.process.strand("main").tasks:
            if not task.done():
                task.cancel()
        node.process.begin(self._leave(node, disturbed=True))

    def resign(self, node: Node) -> None:
        """A signal to stop; a second one is left out."""
        if not node.leaving:
            self.dismiss(node)

    def dismiss(self, node: Node) -> None:
        """Tell a worker to stop, as a deploy does."""
        node.leaving = True
        node.process.begin(self._leave(node))

    async def _leave(self, node: Node, *, disturbed: bool = False) -> None:
        started = bool(node.worker._tasks)
        leave = Leave(node, self.world.now, disturbed=disturbed or not started)
        self.leaves.append(leave)
        if started:
            await node.worker.stop(self.stage.plan.tuning.grace)
            await node.keeper.stop()
        leave.until = self.world.now
        node.process.kill()
        self._is_gone(node, self.stage.random.uniform(0.0, 2.0))

    def _is_gone(self, node: Node, seconds: float) -> None:
        node.died = self.world.now
        self.stage.store.saw_die(node.worker.id)
        self.world.later(seconds, partial(self._replace, node))

    def _replace(self, node: Node) -> None:
        if self.stage.healed_at is None:
            self.hire(node.hand)
        elif not self._is_over:
            self._man()

    def _man(self) -> None:
        """After the faults there are always two workers: of one app, or one of each."""
        apps = self.stage.plan.apps
        for unsaid in apps:
            while sum(node.hand.unsaid == unsaid for node in self.living()) < 2 / len(apps):
                self.hire(Hand(QUEUES, 4, unsaid))

    def heal(self) -> None:
        """From now on nothing goes wrong."""
        self.stage.healed_at = self.world.now
        self.stage.faults.heal()
        while self._let_go:
            self._let_go.pop()()
        for node in self.living():
            if node.hand.unsaid not in self.stage.plan.apps:
                self.dismiss(node)
        self._man()

    _is_over = False

    def close(self) -> None:
        """All workers are told to stop."""
        self._is_over = True
        for node in self.living():
            self.dismiss(node)

    # Faults that strike at a moment.

    def strike(self, blow: Blow) -> None:
        """Let a fault happen, unless the faults are over or there is nobody whom it could strike."""
        living = self.living()
        if self.stage.healed_at is not None or not living:
            return
        victim, faults = living[int(blow.pick * len(living))], self.stage.faults
        self.struck[f"fault {blow.kind}"] += 1
        self.stage.tell("strikes", blow.kind, victim.process.name)
        match blow.kind:
            case "kill":
                self.kill(victim)
            case "massacre":
                for node in living:
                    self.kill(node)
            case "hold":
                self._hold(victim, (), blow.seconds)
            case "stall":
                self._hold(victim, (STALLED[int(blow.pick * 1_000) % len(STALLED)],), blow.seconds)
            case "stop":
                self.dismiss(victim)
            case "cut":
                self._disturb(victim)
                faults.cut.add(victim.process.name)
                self.world.later(blow.seconds, partial(faults.cut.discard, victim.process.name))
            case "away":
                for node in living:
                    self._disturb(node)
                faults.away = True
                self.world.later(blow.seconds, faults.come_back)
            case "ambush":
                call = AMBUSHED[int(blow.pick * len(AMBUSHED))]
                faults.ambushes.append((call, partial(self._ambush, blow)))
            case "nod":
                self.struck["fault nod"] -= 1  # counted when somebody does
                call = NODDED[int(blow.pick * len(NODDED))]
                faults.ambushes.append((call, partial(self._nod, blow)))
            case "echo":
                self._echo()
            case "jump":
                self.stage.store.clock.jump(round(blow.seconds * 1_000))
            case "pause":
                self.callers.pause(QUEUES[int(blow.pick * 1_000) % len(QUEUES)], blow.seconds)
            case "caller":
                callers = self.callers.processes
                callers[int(blow.pick * len(callers))].kill()

    def _hold(self, node: Node, strands: tuple[str, ...], seconds: float) -> None:
        self._disturb(node)
        let_go = node.process.hold(strands)
        self._let_go.append(let_go)

        def end() -> None:
            if let_go in self._let_go:
                self._let_go.remove(let_go)
                let_go()

        self.world.later(seconds, end)

    def _disturb(self, node: Node) -> None:
        for leave in self.leaves:
            if leave.node is node and leave.until is None:
                leave.disturbed = True

    def _ambush(self, blow: Blow, strand: Strand) -> bool:
        """A process makes the call that was waited for: it is killed or stopped before it hears the answer."""
        node = next((node for node in self.living() if node.process is strand.process), None)
        if node is not None:
            moment = self.stage.random.random() * self.stage.plan.odds.quick_seconds
            self.world.later(moment, partial(self._spring, blow, node))
        return node is not None

    def _spring(self, blow: Blow, node: Node) -> None:
        if self.stage.healed_at is not None or not node.process.alive:
            return
        self.struck["fault from ambush"] += 1
        self.stage.tell("strikes", "from ambush", node.process.name)
        if int(blow.pick * 1_000) % 2:
            self.kill(node)
        else:
            self._hold(node, (), blow.seconds)

    def _nod(self, blow: Blow, strand: Strand) -> bool:
        """A keeper reads something: it falls asleep before it hears the answer, alone or with its whole process."""
        node = next((node for node in self.living() if node.process is strand.process), None)
        if node is None or strand.name != UPKEEP:
            return False
        self.struck["fault nod"] += 1
        self.stage.tell("strikes", "nod", node.process.name)
        self._hold(node, (UPKEEP,) if int(blow.pick * 1_000) % 2 else (), blow.seconds)
        return True

    def _echo(self) -> None:
        """A forked copy of a process holds its leases too, and writes again what was written, in its own words."""
        for act in reversed(self.stage.store.acts):
            if act.name == "record" and isinstance(act.answer[0], Recorded) and act.args[0][0].state is StepState.DONE:
                step = replace(act.args[0][0], result='"an echo"')
                self.stage.store.do("an echo", "record", ([step],), {})
                return


def _knowing(hand: Hand, every: float) -> Registry:
    if not (hand.unsaid or every):
        return TEMPLATE.registry
    registry = Registry()
    if every:
        definition = Definition(job=Template(type="ticked", args="[1]"), every_ms=round(every * 1_000))
        registry.add_schedule(SCHEDULED, definition)
    for limit in TEMPLATE.registry.limits():
        registry.add_limit(limit)
    for type in TEMPLATE.registry.types():
        spec = TEMPLATE.registry.get(type)
        if spec is not None and type not in hand.unsaid:
            registry.add(spec)
    return registry
