"""The setup of tests: a clock, jobs in any state, and short functions for what most tests do.

Must use only the contract of an engine, so that every store can be brought into every situation.
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
"""How far a server's timestamp may be from our own clock."""

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
    """The store's time. It stands still and is moved by the test, unless the store uses a server's clock.

    A server's clock keeps running; an engine may be able to shift it.
    """

    def __init__(self, *, settable: bool) -> None:
        self.settable = settable
        self.grain = 1 if settable else 10 * SECOND
        """How close to a moment a test can get, because time may pass meanwhile."""
        self.shift: Callable[[int], bool] = lambda milliseconds: False
        """Moves a server's clock, if that is possible."""
        self._now = START
        self._ahead = 0

    def __call__(self) -> Time:
        """Return the time; the engine uses this as its clock."""
        return self.now

    @property
    def now(self) -> Time:
        """The current time; with a server's clock, the machine's time, which is close to it."""
        return self._now if self.settable else system_clock() + self._ahead

    def advance(self, milliseconds: int) -> None:
        """Move time, in either direction. If that isn't possible, skip the test."""
        if self.settable:
            self._now += milliseconds
        elif self.shift(milliseconds):
            self._ahead += milliseconds
        else:
            pytest.skip("this store uses its server's clock, which a test can't move")

    def is_now(self, at: Time | None) -> bool:
        """Return whether the store may have set this timestamp just now."""
        return at is not None and abs(at - self.now) <= (0 if self.settable else NEAR)


class Another:
    """Opens engine objects on one store, and closes them at the end."""

    def __init__(self, kind: Kind, url: str, clock: StoreClock) -> None:
        self._kind, self._url, self._clock = kind, url, clock
        self._opened: list[Engine] = []
        clock.shift = self._shift

    async def __call__(self) -> Engine:
        """Open one more engine on the same store."""
        engine = self._kind.at(self._url, self._clock)
        await engine.open()
        self._opened.append(engine)
        return engine

    def _shift(self, milliseconds: int) -> bool:
        """Move the store's clock once, and tell every engine. Blocks, so that time moves between two lines."""

        async def shift() -> bool:
            moved = [await engine.shift_clock(0 if nth else milliseconds) for nth, engine in enumerate(self._opened)]
            return bool(moved) and all(moved)

        with ThreadPoolExecutor(1) as beside:  # meanwhile the test's own loop stands still
            return beside.submit(asyncio.run, shift()).result()

    async def close_all(self) -> None:
        """Close all engines. A test may have closed some already: closing twice is allowed."""
        for engine in reversed(self._opened):
            await engine.close()


def job(clock: StoreClock, **fields: Any) -> Job:
    """Make a new job, not yet inserted: available at once unless the fields say otherwise."""
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
    """Insert a job, and return it."""
    new = job(clock, **fields)
    [answer] = await engine.insert([new])
    assert answer.new
    return new


async def claimed(engine: Engine, clock: StoreClock, worker: str = "w-1", **fields: Any) -> Job:
    """Return a job that a worker holds. By default it has its own queue, so that the claim takes no other job."""
    new = await inserted(engine, clock, **{"queue": f"own-{next(_numbers)}"} | fields)
    [held] = await engine.claim(worker, [new.queue], 1)
    assert held.id == new.id
    return held


async def children(engine: Engine, clock: StoreClock, parent: Job, number: int, group: str = "g") -> list[Job]:
    """Insert children of a job that its owner holds; each is claimed by its own worker."""
    held = []
    for n in range(number):
        child = job(clock, parent=parent.id, group=group, queue=f"own-{next(_numbers)}")
        await engine.insert([child], parent.lease)
        held += await engine.claim(f"w-child-{n}", [child.queue], 1)
    return held


async def in_state(engine: Engine, clock: StoreClock, state: State, **fields: Any) -> Job:
    """Return a job that was brought into this state through the contract."""
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
    """Return the arguments of `decide` for an event, as a worker or a person would supply them."""
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
    """Decide this event, with the arguments it needs and any further ones."""
    now = clock.now if at is None else at
    return decide(job, event, now, **{"by": f"by-{event}"} | facts(event, now) | more)


def signal(clock: StoreClock, job: Job, name: str = "go", value: str = "1") -> Change:
    """Decide a signal."""
    return deliver(job, name, value, clock.now, by="caller")


async def commit(engine: Engine, change: Change) -> Applied | Conflict:
    """Commit one change."""
    [answer] = await engine.commit([change])
    return answer


async def applied_to(engine: Engine, change: Change) -> Job:
    """Commit a change that must succeed, and return the job as stored."""
    answer = await commit(engine, change)
    assert isinstance(answer, Applied), answer
    return await current(engine, change.job)


async def done(engine: Engine, clock: StoreClock, job: Job, event: Event, **more: Any) -> Job:
    """Decide and commit an event, and return the job as stored."""
    return await applied_to(engine, change(clock, job, event, **more))


async def current(engine: Engine, job: Job) -> Job:
    """Return the job as stored now."""
    [found] = await engine.get([job.id])
    assert found is not None, f"job {job.id} doesn't exist any more"
    return found


async def taken_over(engine: Engine, clock: StoreClock, job: Job, worker: str = "w-2") -> Job:
    """Let a job lose its worker and another one claim it: after that, the first lease is stale."""
    await done(engine, clock, await current(engine, job), Event.LAPSE)
    [held] = await engine.claim(worker, [job.queue], 1)
    assert held.id == job.id
    return held


def step(job: Job, path: str = "draw#1", state: StepState = StepState.DONE, **fields: Any) -> Step:
    """Make a step record under the lease of this copy of a job."""
    at = job.claimed_at or job.created_at
    ends: Mapping[str, Any] = {} if state is StepState.STARTED else {"finished_at": at + 5}
    plain: dict[str, Any] = {"result": '"image"'} if state is StepState.DONE else {}
    if state is StepState.FAILED:
        plain = {"error": OOPS}
    plain |= {"job": job.id, "epoch": job.epoch, "path": path, "name": path.partition("#")[0], "state": state}
    return Step(**{"started_at": at} | plain | dict(ends) | fields)


def with_version(change: Change, version: int | None) -> Change:
    """Return the same change, expecting another version of the job."""
    return replace(change, version=version)
