"""What a test begins with: a clock, jobs in any state, and small words for what most tests do.

Must not use anything of an engine but its contract, so that every store can be brought into every situation.
"""

import asyncio
import itertools
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.conformance.kinds import Kind
from holdfast.core.keys import digest, new_id
from holdfast.core.lifecycle import EVENTS, LeaseRule, decide, deliver
from holdfast.core.model import (
    Applied,
    Change,
    Conflict,
    Error,
    Event,
    Job,
    State,
    Step,
    StepState,
    Time,
    Wait,
    WaitKind,
)
from holdfast.engines.contract import Engine, system_clock

START: Time = 1_760_000_000_000
SECOND, MINUTE, HOUR, DAY = 1_000, 60_000, 3_600_000, 86_400_000
NEAR = MINUTE
"""How far a time that a server stamped may be from our own."""

OOPS = Error("ValueError", "it didn't work", "Traceback …")
WAITS_FOR_GO = (Wait(WaitKind.SIGNAL, "go"),)

EDGES = [
    pytest.param(row.event, source, id=f"{row.event}-{source}")
    for row in EVENTS
    for source in row.sources
    if row.event is not Event.CLAIM
]
"""Every edge of the lifecycle that is a commit."""

OWNER_EVENTS = [row.event for row in EVENTS if row.lease is LeaseRule.NEEDS]

_numbers = itertools.count(1)


class StoreClock:
    """The store's time. It stands still and is moved by hand, unless the store goes by a server's clock.

    That one runs on, and an engine may offer to shift it.
    """

    def __init__(self, *, settable: bool) -> None:
        self.settable = settable
        self.grain = 1 if settable else 10 * SECOND
        """How near to a moment a test can come: time may run on meanwhile."""
        self.shift: Callable[[int], bool] = lambda milliseconds: False
        """Moves a server's clock, if it can be moved."""
        self._now = START
        self._ahead = 0

    def __call__(self) -> Time:
        """What the engine is given as its clock."""
        return self.now

    @property
    def now(self) -> Time:
        """The time right now; with a server's clock, the machine's, which is near it."""
        return self._now if self.settable else system_clock() + self._ahead

    def advance(self, milliseconds: int) -> None:
        """Move time, in either direction. Where nobody can, the test is skipped."""
        if self.settable:
            self._now += milliseconds
        elif self.shift(milliseconds):
            self._ahead += milliseconds
        else:
            pytest.skip("this store goes by its server's clock, which a test can't move")

    def is_now(self, at: Time | None) -> bool:
        """Whether the store may have stamped this time just now."""
        return at is not None and abs(at - self.now) <= (0 if self.settable else NEAR)


class Another:
    """Opens engine objects on one store, and remembers them to close them."""

    def __init__(self, kind: Kind, url: str, clock: StoreClock) -> None:
        self._kind, self._url, self._clock = kind, url, clock
        self._opened: list[Engine] = []
        clock.shift = self._shift

    async def __call__(self) -> Engine:
        """One more engine on the same store, opened."""
        engine = self._kind.at(self._url, self._clock)
        await engine.open()
        self._opened.append(engine)
        return engine

    def _shift(self, milliseconds: int) -> bool:
        """Move the store's clock once, and let every engine know. Blocks, so that time moves between two lines."""

        async def shift() -> bool:
            moved = [await engine.shift_clock(0 if nth else milliseconds) for nth, engine in enumerate(self._opened)]
            return bool(moved) and all(moved)

        with ThreadPoolExecutor(1) as beside:  # the test's own loop stands still meanwhile
            return beside.submit(asyncio.run, shift()).result()

    async def close_all(self) -> None:
        """Close what was opened. Closing twice is allowed, so a test may have done it before."""
        for engine in reversed(self._opened):
            await engine.close()


def job(clock: StoreClock, **fields: Any) -> Job:
    """A new job, not yet inserted: available at once unless the fields say otherwise."""
    now = clock.now
    number = next(_numbers)
    plain: dict[str, Any] = {
        "id": new_id(now, number << 40),
        "type": "test.job",
        "args": f"[{number}]",
        "created_at": now,
        "state": State.AVAILABLE,
        "run_at": now,
    }
    plain |= fields
    return Job(**{"digest": digest(plain["type"], plain["args"])} | plain)


async def inserted(engine: Engine, clock: StoreClock, **fields: Any) -> Job:
    """A job that the store holds."""
    new = job(clock, **fields)
    [answer] = await engine.insert([new])
    assert answer.new
    return new


async def claimed(engine: Engine, clock: StoreClock, worker: str = "w-1", **fields: Any) -> Job:
    """A job that a worker holds: in a queue of its own unless told, so that the claim can't take another one."""
    new = await inserted(engine, clock, **{"queue": f"own-{next(_numbers)}"} | fields)
    [held] = await engine.claim(worker, [new.queue], 1)
    assert held.id == new.id
    return held


async def children(engine: Engine, clock: StoreClock, parent: Job, number: int, group: str = "g") -> list[Job]:
    """New children of a job that its owner holds, each claimed by a worker of its own."""
    held = []
    for n in range(number):
        child = job(clock, parent=parent.id, group=group, queue=f"own-{next(_numbers)}")
        await engine.insert([child], parent.lease)
        held += await engine.claim(f"w-child-{n}", [child.queue], 1)
    return held


async def in_state(engine: Engine, clock: StoreClock, state: State, **fields: Any) -> Job:
    """A job in this state, brought there through the contract."""
    later = clock.now + HOUR
    match state:
        case State.AVAILABLE:
            return await inserted(engine, clock, **fields)
        case State.SCHEDULED:
            return await inserted(engine, clock, state=state, **{"run_at": later} | fields)
        case State.PENDING:
            return await inserted(engine, clock, state=state, **{"run_at": None, "waits": WAITS_FOR_GO} | fields)
        case State.ACTIVE:
            return await claimed(engine, clock, **fields)
        case State.RETRYABLE:
            return await done(engine, clock, await claimed(engine, clock, **fields), Event.FAIL)
        case State.REVIEW:
            return await done(engine, clock, await claimed(engine, clock, **fields), Event.EXHAUST)
        case State.COMPLETED:
            return await done(engine, clock, await claimed(engine, clock, **fields), Event.COMPLETE)
        case State.DISCARDED:
            review = await in_state(engine, clock, State.REVIEW, **fields)
            return await done(engine, clock, review, Event.DISCARD)
        case State.CANCELLED:
            return await done(engine, clock, await inserted(engine, clock, **fields), Event.CANCEL)


def facts(event: Event, now: Time) -> dict[str, Any]:
    """What `decide` needs to know for an event, and would have from a worker or a person."""
    match event:
        case Event.COMPLETE | Event.RESOLVE:
            return {"result": '{"ok":true}'}
        case Event.FAIL | Event.OVERRUN:
            return {"error": OOPS, "run_at": now + HOUR}
        case Event.EXHAUST | Event.ABANDON:
            return {"error": OOPS}
        case Event.SUSPEND:
            return {"waits": (Wait(WaitKind.SIGNAL, "go", now + HOUR), Wait(WaitKind.TIME, "", now + MINUTE))}
        case Event.REST:
            return {"waits": (Wait(WaitKind.TIME, "", now + HOUR),), "run_at": now + HOUR}
        case Event.REPLAY:
            return {"args": ("[0]", digest("test.job", "[0]"))}
        case _:
            return {}


def change(clock: StoreClock, job: Job, event: Event, *, at: Time | None = None, **more: Any) -> Change:
    """What the lifecycle makes of this event, with the facts it needs and whatever else goes with it."""
    now = clock.now if at is None else at
    return decide(job, event, now, **{"by": f"by-{event}"} | facts(event, now) | more)


def signal(clock: StoreClock, job: Job, name: str = "go", value: str = "1") -> Change:
    """What the lifecycle makes of a signal."""
    return deliver(job, name, value, clock.now, by="caller")


async def commit(engine: Engine, change: Change) -> Applied | Conflict:
    """Commit one change."""
    [answer] = await engine.commit([change])
    return answer


async def applied_to(engine: Engine, change: Change) -> Job:
    """Commit a change that must hold, and answer with the job as the store has it then."""
    answer = await commit(engine, change)
    assert isinstance(answer, Applied), answer
    return await current(engine, change.job)


async def done(engine: Engine, clock: StoreClock, job: Job, event: Event, **more: Any) -> Job:
    """Bring an event about, and answer with the job as the store has it then."""
    return await applied_to(engine, change(clock, job, event, **more))


async def current(engine: Engine, job: Job) -> Job:
    """The job as the store has it now."""
    [found] = await engine.get([job.id])
    assert found is not None, f"job {job.id} is gone"
    return found


async def taken_over(engine: Engine, clock: StoreClock, job: Job, worker: str = "w-2") -> Job:
    """Let a job's worker be lost and another one take the job: from now on the first one's lease is stale."""
    await done(engine, clock, await current(engine, job), Event.LAPSE)
    [held] = await engine.claim(worker, [job.queue], 1)
    assert held.id == job.id
    return held


def step(job: Job, path: str = "draw#1", state: StepState = StepState.DONE, **fields: Any) -> Step:
    """A step record under the lease of this copy of a job."""
    at = job.claimed_at or job.created_at
    ends: Mapping[str, Any] = {} if state is StepState.STARTED else {"finished_at": at + 5}
    plain: dict[str, Any] = {"result": '"image"'} if state is StepState.DONE else {}
    if state is StepState.FAILED:
        plain = {"error": OOPS}
    plain |= {"job": job.id, "epoch": job.epoch, "path": path, "name": path.partition("#")[0], "state": state}
    return Step(**{"started_at": at} | plain | dict(ends) | fields)


def with_version(change: Change, version: int | None) -> Change:
    """The same change, expecting another version of the job."""
    return replace(change, version=version)
