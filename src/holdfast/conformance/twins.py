"""Two stores that must never differ: every act is done on the memory engine and on the one under test.

Must not decide what is right: the memory engine defines that. Compares the answers of each call, and now and then
everything that the stores hold.
"""

import asyncio
from collections.abc import Awaitable, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast.conformance import acts
from holdfast.conformance.dump import Dump, all_jobs, dump
from holdfast.conformance.given import DAY, HOUR, NEAR, OOPS, START
from holdfast.conformance.kinds import NOTHING, THIS_MACHINE, Kind
from holdfast.core.errors import HoldfastError
from holdfast.core.keys import digest, new_id
from holdfast.core.lifecycle import EVENTS, TERMINAL, decide, deliver
from holdfast.core.model import (
    Ask,
    Beat,
    Change,
    Event,
    Job,
    Lease,
    Options,
    Presence,
    Running,
    State,
    Step,
    StepState,
    Time,
    UniqueName,
    Use,
    Wait,
    WaitKind,
    Where,
)
from holdfast.core.shared_limits import LIMIT, UNIT, Settings, awaits_permit
from holdfast.core.unique import LIVE, REFUSE, RETURN
from holdfast.engines.contract import Engine
from holdfast.engines.memory import MemoryEngine
from holdfast.engines.records import PAUSE, QUIET, WORKER

QUEUE_NAMES = ("a", "b", "c")
TYPE_NAMES = ("test.0", "test.1")
WORKER_NAMES = ("w-1", "w-2")
KEY_NAMES = ("k-1", "k-2")
UNIQUE_NAMES = ("a" * 64, "b" * 64)
COUNTED_STATES = (LIVE, tuple(State), (State.AVAILABLE, State.SCHEDULED, State.COMPLETED))
GROUP_NAMES = ("g", "h")
PATH_NAMES = ("draw#1", "draw#2", "send#1", "~wait/go")
RECORD_NAMES = (PAUSE + "a", QUIET + "w-1", "leader", LIMIT + "one")
LIMIT_KEYS = ("one", "two/a", "two/b")
FAIR_KEYS = ("x", "y", "y2")
LIMITS = {"one": Settings(at_once=1), "two": Settings(at_once=2, burst=4 * UNIT, refill=1, period_ms=DAY)}
"""A rate that refills so slowly that no clock matters."""
TICK_SECONDS = 0.001

ANY, HELD, BUSY = frozenset(State), frozenset({State.ACTIVE}), frozenset({State.ACTIVE, State.REVIEW})


class Hands:
    """A clock that both stores share and the acts move. If the store uses a server's clock, the memory engine follows
    it.
    """

    def __init__(self) -> None:
        self.now: Time = START

    def __call__(self) -> Time:
        """Return the time; the engines use this as their clock."""
        return self.now


class Twins:
    """The two stores, and what a caller could know: every copy of a job that it ever saw."""

    def __init__(self, kind: Kind, url: str) -> None:
        self._kind, self._url = kind, url
        self._settable = kind.engine.guarantees.clock == THIS_MACHINE
        self._clock = Hands()
        self._model = MemoryEngine(self._clock)
        self._engines: list[Engine] = []
        self._copies: dict[str, list[Job]] = {}
        self._born = [0] * acts.SLOTS
        self._workers: dict[str, Presence] = {}

    async def open(self) -> None:
        """Open the store under test, twice if it can be shared, so that no engine can rely on its memory."""
        for _ in range(2 if self._kind.engine.guarantees.shared else 1):
            engine = self._kind.at(self._url, self._clock)
            await engine.open()
            self._engines.append(engine)
        await self._follow()
        for name, settings in LIMITS.items():
            await self._both(0, "put_record", LIMIT + name, msgspec.json.encode(settings).decode())

    async def close(self) -> None:
        """Close the store under test."""
        for engine in self._engines:
            await engine.close()

    async def do(self, act: acts.Act) -> None:
        """Do one act on both stores, and compare the answers."""
        await self._follow()
        match act:
            case acts.Insert():
                await self._insert(act)
            case acts.Claim():
                queues = [QUEUE_NAMES[n] for n in act.queues]
                types = None if act.types is None else [TYPE_NAMES[n] for n in act.types]
                await self._both(act.seat, "claim", WORKER_NAMES[act.worker], queues, act.limit, types)
            case acts.Commit():
                changes = [change for move in act.moves if (change := self._change(move)) is not None]
                await self._both(act.seat, "commit", changes)
            case acts.RecordSteps():
                steps = [step for mark in act.marks if (step := self._step(mark)) is not None]
                await self._both(act.seat, "record", steps)
            case acts.Admit():
                asks = [ask for one in act.requests if (ask := self._ask(one)) is not None]
                steps = [step for mark in act.marks if (step := self._step(mark)) is not None]
                await self._both(act.seat, "admit", asks, steps)
            case acts.Put():
                await self._put(act)
            case acts.BeatOf():
                await self._beat(act)
            case acts.Prune():
                await self._both(act.seat, "prune", act.limit)
            case acts.Look():
                await self._look(act)
            case acts.Advance():
                await self._advance(act.by)
            case acts.Reopen():
                await self._reopen(act)
            case acts.Compare():
                await self.compare()
        await self._remember()

    async def _advance(self, by: Time) -> None:
        """Move the clock, if it can be set. It goes back only while no job waits for a permit: no law says how soon
        after that an engine looks at such a job again.
        """
        if by > 0 or not any(awaits_permit(job) for job in await all_jobs(self._model)):
            self._clock.now += by if self._settable else 0

    async def compare(self) -> None:
        """Compare everything that the two stores hold."""
        groups = [(id, group) for id in self._copies for group in ("", *GROUP_NAMES)]
        expected = await dump(self._model, groups)
        for seat, engine in enumerate(self._engines):
            self._assert_same("dump", expected, await dump(engine, groups))
            for limit in LIMITS:
                await self._both(seat, "usage", limit)

    # Each act as a call.

    async def _insert(self, act: acts.Insert) -> None:
        parent = None if act.parent is None else self._copy(act.parent, act.age, HELD)
        lease = None if parent is None else parent.lease
        jobs = [self._job(plan, lease, keyed=True) for plan in act.plans]
        await self._both(act.seat, "insert", jobs, lease)

    async def _put(self, act: acts.Put) -> None:
        name = RECORD_NAMES[act.name]
        held = [record.version for record in await self._model.records(name) if record.name == name]
        version = held[0] if held else 0
        expected = {"any": None, "held": version, "none": 0, "other": version + 1}[act.expects]
        value = None if act.value is None else str(act.value)
        if name.startswith(LIMIT) and act.value:  # otherwise it can't be read, and limits nothing
            value = f'{{"at_once":{act.value + 1}}}'
        jobs = [self._job(plan, None, keyed=False) for plan in act.plans]
        await self._both(act.seat, "put_record", name, value, expected, jobs)

    async def _beat(self, act: acts.BeatOf) -> None:
        worker = WORKER_NAMES[act.worker]
        presence = Presence(
            worker=worker,
            queues=tuple(QUEUE_NAMES[n] for n in act.queues),
            running=tuple(running for slot, age in act.named for running in self._running(worker, slot, age)),
            leaving=act.leaving,
        )
        self._workers.pop(worker, None)
        if not act.leaving:
            self._workers[worker] = presence
        await self._both(act.worker, "beat", presence)  # a worker sends heartbeats through its own engine

    def _running(self, worker: str, slot: int, age: int) -> list[Running]:
        """Return what a worker would report about a job that it holds or once held."""
        held = [copy for copy in self._copies.get(self._id(slot), []) if copy.worker == worker]
        return [Running(copy.id, copy.epoch, stage="draw") for copy in held[::-1][age : age + 1]]

    async def _look(self, act: acts.Look) -> None:
        where = Where(
            states=() if act.state is None else (act.state,),
            queue=None if act.queue is None else QUEUE_NAMES[act.queue],
            parent=None if act.parent is None else self._id(act.parent),
            expires_before=None if act.expires is None else self._at(act.expires),
            newest_first=act.newest_first,
        )
        expected = await all_jobs(self._model, where, act.page)
        self._assert_same(f"find {where}", expected, await all_jobs(self._seat(act.seat), where, act.page))
        await self._both(act.seat, "get", [self._id(slot) for slot in range(acts.SLOTS)])
        for id in self._copies:
            await self._both(act.seat, "history", id, act.page - 1, act.page)
            await self._both(act.seat, "steps", id)
            await self._both(act.seat, "steps_page", id, "", act.page)
            await self._both(act.seat, "steps_under_each", [id], "~", StepState.STARTED)
        await self._both(act.seat, "summaries", list(self._copies))

    async def _reopen(self, act: acts.Reopen) -> None:
        """Close and open. A single-process store may break leases and drop the permits kept for jobs at that moment, so
        none may exist then.
        """
        guarantees = self._kind.engine.guarantees
        leases = await self._model.find(Where(states=(State.ACTIVE,)))
        kept = [one.key for limit in LIMITS for one in await self._model.usage(limit) if one.held]
        if guarantees.durable == NOTHING or ((leases or kept) and not guarantees.shared):
            return
        seat = act.seat % len(self._engines)
        await self._engines[seat].close()
        self._engines[seat] = self._kind.at(self._url, self._clock)
        await self._engines[seat].open()
        for n, worker in enumerate(WORKER_NAMES):  # workers of this engine exist again after their next heartbeat
            if worker in self._workers and n % len(self._engines) == seat:
                await self._both(seat, "beat", self._workers[worker])

    # The meaning of an act's small numbers.

    def _id(self, slot: int) -> str:
        # In neither the order of the slots nor that of insertion.
        return new_id(START, ((slot * 5 % acts.SLOTS) << 60) + (self._born[slot] << 50))

    def _copy(self, slot: int, age: int, among: frozenset[State] = ANY) -> Job | None:
        """Return the newest copy of a job that was seen, or an older one. Slots count only jobs in these states."""
        found = [n for n in range(acts.SLOTS) if self._is(n, among)]
        if not found:
            return None
        copies = self._copies[self._id(found[slot % len(found)])]
        return copies[max(0, len(copies) - 1 - age)]

    def _is(self, slot: int, states: frozenset[State]) -> bool:
        copies = self._copies.get(self._id(slot))
        return copies is not None and copies[-1].state in states

    def _at(self, distance: int) -> Time:
        """Return a time at this distance from now. A server's clock runs on, so future times must be far ahead."""
        return self._clock.now + (distance if self._settable or distance <= 0 else distance + HOUR)

    def _job(self, plan: acts.Plan, lease: Lease | None, *, keyed: bool) -> Job:
        if plan.anew and self._is(plan.slot, TERMINAL):
            self._born[plan.slot] += 1
        type, args = TYPE_NAMES[plan.slot % acts.TYPES], f"[{plan.args}]"
        waits = (Wait(WaitKind.SIGNAL, "go"),) if plan.state is State.PENDING else ()
        return Job(
            id=self._id(plan.slot),
            type=type,
            queue=QUEUE_NAMES[plan.queue],
            args=args,
            digest=digest(type, args),
            priority=plan.priority,
            key=KEY_NAMES[plan.key] if plan.key is not None and plan.unique is None and keyed else None,
            key_until=None if plan.window is None else self._at(plan.window),
            parent=None if lease is None else lease.job,
            group=None if lease is None or plan.group is None else GROUP_NAMES[plan.group],
            created_at=self._clock.now,
            expires_at=None if plan.expires is None else self._at(plan.expires),
            options=Options(
                keep_ms=plan.keep,
                limits=tuple(Use(LIMIT_KEYS[n]) for n in plan.limits),
                unique=None if plan.unique is None else _unique_name(plan),
                fair="" if plan.fair is None else FAIR_KEYS[plan.fair],
            ),
            state=plan.state,
            run_at=self._at(plan.run),
            waits=waits,
        )

    def _step(self, mark: acts.Mark) -> Step | None:
        copy = self._copy(mark.slot, mark.age, HELD if mark.held else ANY)
        return None if copy is None else self._step_of(copy, mark)

    def _ask(self, one: acts.Request) -> Ask | None:
        copy = self._copy(one.slot, one.age, HELD if one.held else ANY)
        if copy is None:
            return None
        uses = tuple(Use(LIMIT_KEYS[n]) for n in one.limits)
        path = PATH_NAMES[one.path]
        return Ask(job=copy.id, epoch=copy.epoch, path=path, uses=uses, try_number=one.try_number)

    def _step_of(self, copy: Job, mark: acts.Mark) -> Step:
        ended = None if mark.state is StepState.STARTED else self._clock.now
        return Step(
            job=copy.id,
            epoch=copy.epoch,
            path=PATH_NAMES[mark.path],
            name=PATH_NAMES[mark.path].partition("#")[0],
            state=mark.state,
            result=str(mark.value) if mark.state is StepState.DONE else None,
            error=OOPS if mark.state is StepState.FAILED else None,
            started_at=self._clock.now,
            finished_at=ended,
            tries=1 + mark.value % 3,
        )

    def _change(self, move: acts.Move) -> Change | None:
        copy = self._copy(move.slot, move.age, BUSY if move.held else ANY)
        if copy is None or copy.state in TERMINAL:
            return None
        now = self._clock.now
        events = [row.event for row in EVENTS if copy.state in row.sources and row.event is not Event.CLAIM]
        if move.nth >= acts.EVENTS:
            return deliver(copy, ("go", "stop")[move.wait % 2], str(move.takes), now, by="caller")
        event = events[move.nth % len(events)]
        steps = [self._step_of(copy, mark) for mark in move.marks]
        return decide(
            copy,
            event,
            now,
            by=f"by-{event}",
            **self._facts(event, copy, move),
            takes=tuple(signal.version for signal in copy.inbox[: move.takes]),
            steps=tuple(steps),
            drops=() if move.drop is None else (PATH_NAMES[move.drop],),
            inserts=tuple(self._job(plan, copy.lease, keyed=False) for plan in move.plans),
            note={"run": move.run},
        )

    def _facts(self, event: Event, copy: Job, move: acts.Move) -> Mapping[str, Any]:
        run_at = self._at(move.run)
        waits = (
            Wait(WaitKind.SIGNAL, "go"),
            Wait(WaitKind.SIGNAL, "go", run_at),
            Wait(WaitKind.CHILDREN, GROUP_NAMES[0]),
            Wait(WaitKind.CHILDREN, GROUP_NAMES[1], run_at),
            Wait(WaitKind.LIMIT, LIMIT_KEYS[0]),
            Wait(WaitKind.TIME, "", run_at),
        )
        match event:
            case Event.COMPLETE | Event.RESOLVE:
                return {"result": str(move.run)}
            case Event.FAIL | Event.OVERRUN:
                return {"error": OOPS, "run_at": run_at}
            case Event.EXHAUST | Event.ABANDON:
                return {"error": OOPS}
            case Event.SUSPEND:
                return {"waits": (waits[move.wait],)}
            case Event.REST:
                return {"waits": (waits[-1],), "run_at": run_at}
            case Event.LAPSE:
                return {"progressed": bool(move.marks), "recovery": move.drop is None}
            case Event.REPLAY if move.edit is not None:
                args = f"[{move.edit}]"
                return {"args": (args, digest(copy.type, args))}
            case _:
                return {}

    # Doing and comparing.

    def _seat(self, seat: int) -> Engine:
        return self._engines[seat % len(self._engines)]

    async def _both(self, seat: int, name: str, *args: Any) -> None:
        expected = await _answer(getattr(self._model, name)(*args))
        got = await _answer(getattr(self._seat(seat), name)(*args))
        self._assert_same(f"{name}{args}", expected, got)

    def _assert_same(self, what: str, expected: object, got: object) -> None:
        slack = 0 if self._settable else NEAR // 2
        found = differences(_plain(expected), _plain(got), slack)
        assert not found, f"{what}: " + "; ".join(found)

    async def _follow(self) -> None:
        """With a server's clock, set ours to it, and check that it advances from act to act."""
        while not self._settable:
            now = await self._engines[0].now()
            if now > self._clock.now:
                self._clock.now = now
                return
            await asyncio.sleep(TICK_SECONDS)

    async def _remember(self) -> None:
        """Remember the newest copies. The id of a pruned job is never used again."""
        for slot in range(acts.SLOTS):
            id = self._id(slot)
            [job] = await self._model.get([id])
            if job is None:
                self._born[slot] += id in self._copies
            elif not self._copies.get(id) or self._copies[id][-1] != job:
                self._copies.setdefault(id, []).append(job)


def _unique_name(plan: acts.Plan) -> UniqueName:
    return UniqueName(
        key=UNIQUE_NAMES[plan.unique or 0],
        states=COUNTED_STATES[plan.counted],
        within_ms=abs(plan.window) if plan.window else None,
        then=REFUSE if plan.refuses else RETURN,
    )


async def _answer(call: Awaitable[object]) -> object:
    """Return a call's answer, or the kind of its error."""
    try:
        return await call
    except HoldfastError as error:
        return type(error).__name__


def _plain(answer: object) -> Any:
    """Return an answer as plain values. What the contract doesn't order is sorted."""
    if isinstance(answer, Beat):
        answer = replace(
            answer,
            cancelled=tuple(sorted(answer.cancelled)),
            lost=tuple(sorted(answer.lost)),
            stray=tuple(sorted(answer.stray, key=lambda lease: lease.job)),
            paused=tuple(sorted(answer.paused)),
        )
    if isinstance(answer, Dump):
        answer = replace(answer, records=[record for record in answer.records if not record.name.startswith(WORKER)])
    if isinstance(answer, list):
        return [[type(one).__name__, msgspec.to_builtins(one)] for one in answer]
    return [type(answer).__name__, msgspec.to_builtins(answer)]


def differences(expected: Any, got: Any, slack: int = 0, where: str = "") -> list[str]:
    """Return where two plain values differ. Times may differ by `slack` milliseconds."""
    if isinstance(expected, dict) and isinstance(got, dict):
        names = sorted(expected.keys() | got.keys())
        return [
            line
            for name in names
            for line in differences(expected.get(name), got.get(name), slack, f"{where}.{name}" if where else name)
        ]
    if isinstance(expected, list | tuple) and isinstance(got, list | tuple) and len(expected) == len(got):
        pairs = zip(expected, got, strict=True)
        return [line for n, pair in enumerate(pairs) for line in differences(*pair, slack, f"{where}[{n}]")]
    is_time = where.endswith(("_at", ".at", "now", "until"))
    if is_time and isinstance(expected, int) and isinstance(got, int) and abs(expected - got) <= slack:
        return []
    return [] if expected == got else [f"{where} should be {expected!r} and is {got!r}"]
