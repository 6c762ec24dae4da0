"""The store behind faulty wires: each process reaches the real engine by a wire of its own.

A call travels there, is one act of the real engine, and its answer travels back; either way may take long or lose it,
and what was sent may arrive twice, or after the sender has given up. Every act that writes is written down, in the
order of the store. Must not know what the acts mean.
"""

import asyncio
import hashlib
import os
from collections.abc import Callable, Collection, Coroutine
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

import msgspec

from holdfast.core.errors import HoldfastError, StoreError
from holdfast.core.model import Presence, Record
from holdfast.engines.contract import Engine
from holdfast.engines.memory import MemoryEngine
from holdfast.engines.observers import Observed
from holdfast.engines.records import WORKER
from holdfast.engines.wakeups import Wakeups
from tests.simulation.story import line_of
from tests.simulation.strands import Process, Strand, TheEnd, World, world_of

START_AT = 1_800_000_000_000
"""The store's time when a run begins."""

WRITES = frozenset({"insert", "claim", "beat", "commit", "record", "admit", "prune", "put_record"})
SAME = {"admit": "record"}
"""The records of a job with limits go with its asks: who waits for the one waits for the other."""

_encode = msgspec.json.Encoder(enc_hook=repr).encode


class StoreClock:
    """The store's time: the world's, and what somebody has set the clock forward or back."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.shift_ms = 0
        self.set_back_ms = 0

    def __call__(self) -> int:
        return START_AT + round(self._world.now * 1_000) + self.shift_ms

    def jump(self, milliseconds: int) -> None:
        self.shift_ms += milliseconds
        self.set_back_ms += max(0, -milliseconds)


@dataclass(frozen=True)
class Act:
    """One act of the store: when it was by the world's time and by the store's, who asked, and what came of it."""

    number: int
    at: float
    store_at: int
    who: str
    name: str
    args: tuple[Any, ...]
    answer: Any
    ok: bool


@dataclass
class Trace:
    """What happened, as a hash, and as lines when somebody wants to read it."""

    lines: list[str] | None = None
    _hash: Any = field(default_factory=lambda: hashlib.blake2b(digest_size=12))

    def add(self, *parts: Any) -> None:
        self._hash.update(_encode(parts))
        if self.lines is not None:
            self.lines.append(line_of(parts))

    def digest(self) -> str:
        text: str = self._hash.hexdigest()
        return text


class Store:
    """The real engine. One act at a time, and each is written down."""

    def __init__(self, world: World, engine: Engine, clock: StoreClock, trace: Trace, *, sees_deaths: bool) -> None:
        self.world = world
        self.engine = engine
        self.clock = clock
        self.trace = trace
        self.acts: list[Act] = []
        self.looks: list[tuple[str, str, int]] = []
        """Who looked at the steps of which job, and before which act."""
        self._sees_deaths = sees_deaths
        self._dead: set[str] = set()
        in_one_order(engine._wakeups)  # type: ignore[attr-defined]

    def do(self, who: str, name: str, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[bool, Any]:
        """One act, from its begin to its end; whether it went well, and the answer or the error."""
        if name == "beat":
            args = (msgspec.structs.replace(args[0], host="here", pid=1),)
        ok, answer = True, None
        try:
            answer = at_once(getattr(self.engine, name)(*args, **named))
        except HoldfastError as error:
            ok, answer = False, error
        if name in WRITES:
            args = (*args, *named.values())
            self.acts.append(Act(len(self.acts), self.world.now, self.clock(), who, name, args, answer, ok))
            self.trace.add(round(self.world.now * 1e6), who, name, args, answer)
        else:
            self.trace.add(round(self.world.now * 1e6), who, name)
            if name == "steps":
                self.looks.append((who, args[0], len(self.acts)))
        if name == "records" and self._dead:
            answer = [self._seen(record) for record in answer]
        return ok, [*answer] if isinstance(answer, list) else answer  # its own list: what was written down stays

    def saw_die(self, worker: str) -> None:
        """A worker was killed. Engines that hold a lock for each worker see it at once, others by its silence."""
        if not self._sees_deaths:
            return
        if isinstance(self.engine, MemoryEngine):
            self._dead.add(WORKER + worker)
        else:
            descriptor = self.engine._liveness._beats.pop(worker, None)  # type: ignore[attr-defined]
            if descriptor is not None:
                os.close(descriptor)

    def _seen(self, record: Record) -> Record:
        if record.name not in self._dead:
            return record
        presence = msgspec.json.decode(record.value, type=Presence)
        gone = msgspec.structs.replace(presence, gone=True)
        return msgspec.structs.replace(record, value=msgspec.json.encode(gone).decode())


def at_once(work: Coroutine[Any, Any, Any]) -> Any:
    """The answer of a coroutine that never waits."""
    try:
        work.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError(f"{work!r} waits: an act must come to its end at once")


def in_one_order(bell: Wakeups) -> None:
    """Let a bell ring its topics in one order. They come as a set of texts, which each Python orders anew."""
    ring = bell.ring
    bell.ring = lambda topics: ring(sorted(topics))  # type: ignore[method-assign]


@dataclass(frozen=True)
class Odds:
    """How often each thing goes wrong with a call, and how long calls take, in seconds."""

    lost: float = 0.0
    unanswered: float = 0.0
    late: float = 0.0
    twice: float = 0.0
    slow: float = 0.0
    deaf: float = 0.0
    quick_seconds: float = 0.005
    slow_seconds: float = 1.0


@dataclass(frozen=True)
class Fate:
    """What becomes of one call, as seconds: until it arrives, comes again, is answered, or is given up."""

    there: float | None
    back: float | None = None
    again: float | None = None
    given_up: float | None = None


class Faults:
    """What goes wrong on the wires. `cut` are the processes that can't reach the store, `away` if nobody can."""

    def __init__(self, random: Random, odds: Odds) -> None:
        self.random = random
        self.odds = odds
        self.cut: set[str] = set()
        self.away = False
        self.on = True
        self.ambushes: list[tuple[str, Callable[[Strand], bool]]] = []
        """What strikes a thread in the moment when it makes a call of a kind; it answers whether it did."""

    def heal(self) -> None:
        """Nothing goes wrong any more. What is under way still arrives."""
        self.on = self.away = False
        self.cut.clear()

    def come_back(self) -> None:
        """The store is back."""
        self.away = False

    def reaches(self, process: Process) -> bool:
        return not self.away and process.name not in self.cut

    def fate(self, process: Process, *, may_repeat: bool) -> Fate:
        """What becomes of this call. One that doesn't say what it expects may not come late or twice."""
        draw, odds = self.random.random, self.odds
        there, back = draw() * odds.quick_seconds, draw() * odds.quick_seconds
        if not self.on:
            return Fate(there, back)
        if not self.reaches(process):
            arrives = draw() < 0.2
            return Fate(there if arrives else None, given_up=draw() * odds.slow_seconds)
        if draw() < odds.slow:
            there, back = draw() * odds.slow_seconds, draw() * odds.slow_seconds
        if draw() < odds.lost:
            return Fate(None, given_up=there + back)
        if draw() < odds.unanswered:
            return Fate(there, given_up=there + back)
        if draw() < odds.late and may_repeat:
            return Fate(there + back + draw() * 3 * odds.slow_seconds, given_up=there + back)
        again = there + draw() * odds.slow_seconds if draw() < odds.twice and may_repeat else None
        return Fate(there, back, again)

    def spring(self, strand: Strand, name: str) -> None:
        """A thread makes a call: whoever waited for that strikes, while the call is under way."""
        for ambush in [one for one in self.ambushes if one[0] == SAME.get(name, name)]:
            if self.on and ambush[1](strand):
                self.ambushes.remove(ambush)

    def is_deaf(self) -> bool:
        """Whether a wait hears nothing of what it waits for."""
        return self.on and self.random.random() < self.odds.deaf


class Wire(Observed):
    """An engine, as one process sees it. Nobody observes it."""

    guarantees = MemoryEngine.guarantees

    def __init__(self, process: Process, store: Store, faults: Faults) -> None:
        self.process = process
        self.answered: dict[str, float] = {}
        """When each kind of call was last answered."""
        self._store = store
        self._faults = faults

    async def open(self) -> None:
        """The store is open."""

    async def close(self) -> None:
        """It stays open for the others."""

    async def turn(self, changes: Any, worker: str, queues: Any, limit: int, types: Any = None) -> Any:
        """As two calls, each with its own fate."""
        answers = await self.commit(changes)
        try:
            return answers, await self.claim(worker, queues, limit, types) if limit else []
        except StoreError:
            return answers, []

    @property
    def blobs(self) -> Any:
        """What the engine knows of its large values: none of them is that large here, so nothing crosses the wire."""
        return self._store.engine.blobs

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return partial(self._call, name)

    async def _call(self, name: str, *args: Any, **named: Any) -> Any:
        strand = asyncio.get_running_loop()
        world = world_of(strand)
        if world.over:
            raise TheEnd
        reply = strand.create_future()
        arrive = partial(self._arrive, name, args, named, reply)
        fate = self._faults.fate(self.process, may_repeat=name != "put_record" or len(args) > 2)
        if fate.there is not None:
            world.later(fate.there, partial(arrive, fate.back))
        if fate.again is not None:
            world.later(fate.again, partial(arrive, None))
        if self._faults.ambushes:
            assert isinstance(strand, Strand)
            self._faults.spring(strand, name)
        if fate.given_up is not None:
            world.later(fate.given_up, partial(_answer, reply, (False, StoreError("the answer was lost"))))
        ok, answer = await reply
        if not ok:
            raise answer
        self.answered[name] = world.now
        return answer

    def _arrive(self, name: str, args: tuple[Any, ...], named: dict[str, Any], reply: Any, back: float | None) -> None:
        # What a killed process had sent may have left it or not; its beats go by its own lock, which is gone.
        if not self.process.alive and (name == "beat" or self._faults.random.random() < 0.5):
            return
        answer = self._store.do(self.process.name, name, args, named)
        if back is not None:
            self._store.world.later(back, partial(_answer, reply, answer))

    async def wait(self, topics: Collection[str], timeout: float, after: int = 0) -> int:
        """A hint: it may come to nothing, and then the time is waited for."""
        world = world_of(asyncio.get_running_loop())
        if world.over:
            raise TheEnd
        await asyncio.sleep(self._faults.random.random() * self._faults.odds.quick_seconds)
        if self._faults.on and not self._faults.reaches(self.process):
            raise StoreError("the store can't be reached")
        self.answered["wait"] = world.now
        if self._faults.is_deaf():
            await asyncio.sleep(timeout)
            return after
        mark: int = await self._store.engine.wait(topics, timeout, after)
        return mark


def _answer(reply: Any, answer: tuple[bool, Any]) -> None:
    if not reply.done():
        reply.set_result(answer)
