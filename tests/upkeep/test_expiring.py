"""A backlog of expired jobs drains by itself, batch by batch, and nobody waits for it: least of all the dead."""

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from holdfast.conformance.given import StoreClock, job
from holdfast.core.lifecycle import decide
from holdfast.core.model import Event, Presence, State, Where
from holdfast.engines import engine_for
from holdfast.engines.contract import Engine
from holdfast.engines.memory import MemoryEngine
from holdfast.jobs.consequences import UNDO_TYPE
from holdfast.jobs.service import JobRequest, Jobs
from holdfast.upkeep import keeper as keeping
from holdfast.upkeep import rescue
from holdfast.upkeep.keeper import Keeper
from tests.support.given import until

BATCH = 20
BACKLOG = 7 * BATCH + 3
TEST_SECONDS = 30.0


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small batches, so that a test needs few jobs."""
    monkeypatch.setattr(keeping, "EXPIRE_BATCH", BATCH)


@pytest.fixture(params=["memory:", "sqlite", "postgres", "redis", "file"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    match request.param:
        case "sqlite":
            return f"sqlite:///{tmp_path}/jobs.db"
        case "file":
            return f"file:{tmp_path}/jobs.json"
        case "memory:":
            return "memory:"
    found: str = request.getfixturevalue(f"{request.param}_store")
    return found


def play(work: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(TEST_SECONDS):
            await work

    asyncio.run(bounded())


def keeper(engine: Any, upkeep_seconds: float = 60.0) -> Keeper:
    return Keeper(engine, "w-1", lease_seconds=15, look_seconds=0.02, upkeep_seconds=upkeep_seconds)


async def expired(engine: Engine, number: int = BACKLOG) -> None:
    """So many jobs that have just expired."""
    now = await engine.now()
    soon = now + 1_000  # after they are submitted, also on a slow machine
    await Jobs(engine).submit([JobRequest(type="draw", expires_at=soon) for _ in range(number)])
    await until(lambda: _is_over(engine, soon))


async def _is_over(engine: Engine, at: int) -> bool:
    return await engine.now() > at


async def left(engine: Engine) -> int:
    return (await engine.count()).get(("default", State.AVAILABLE), 0)


def test_one_round_expires_a_batch_and_the_rest_drains_without_waiting_for_the_next_round(
    url: str, monkeypatch: pytest.MonkeyPatch
):
    async def drain() -> None:
        engine = engine_for(url)
        await engine.open()
        try:
            await expired(engine)
            commit, sizes = engine.commit, list[int]()

            async def counted(changes: Any) -> Any:
                sizes.append(len(changes))
                return await commit(changes)

            monkeypatch.setattr(engine, "commit", counted)
            await keeper(engine).tidy()
            await until(lambda: _none_left(engine))
            assert sizes == [BATCH] * (BACKLOG // BATCH) + [BACKLOG % BATCH]
            assert (await engine.count())[("default", State.DISCARDED)] == BACKLOG
        finally:
            await engine.close()

    play(drain())


async def _none_left(engine: Engine) -> bool:
    return not await left(engine)


def test_an_expired_job_that_has_run_takes_its_children_along_and_one_that_never_ran_costs_no_look_for_them():
    class Counting:
        def __init__(self) -> None:
            self.clock = StoreClock(settable=True)
            self.engine = MemoryEngine(self.clock)
            self.asked: list[str] = []

        def __getattr__(self, name: str) -> Any:
            return getattr(self.engine, name)

        async def find(self, where: Where, *args: Any, **named: Any) -> Any:
            if where.parent is not None:
                self.asked.append(where.parent)
            return await self.engine.find(where, *args, **named)

    async def tidied() -> None:
        store = Counting()
        engine, clock = store.engine, store.clock
        soon = clock.now + 1_000
        await engine.insert([job(clock, expires_at=soon)])
        [parent] = await engine.claim("w-1", ["default"], 1)
        child = job(clock)
        await engine.insert([replace(child, parent=parent.id, group="g")], parent.lease)
        await engine.commit([decide(parent, Event.RELEASE, clock.now, by="w-1", run_at=None)])
        fresh = job(clock, expires_at=soon)
        await engine.insert([fresh])
        clock.advance(1_001)
        await keeper(store).tidy()
        found = await engine.get([parent.id, child.id, fresh.id])
        assert [one.state for one in found] == [State.DISCARDED, State.CANCELLED, State.DISCARDED]
        assert parent.id in store.asked
        assert fresh.id not in store.asked

    play(tidied())


class Stuck:
    """A store in which a search for expired jobs takes as long as the test wants."""

    def __init__(self) -> None:
        self.clock = StoreClock(settable=True)
        self.engine = MemoryEngine(self.clock)
        self.began, self.go_on = asyncio.Event(), asyncio.Event()
        self.gone: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    async def find(self, where: Where, *args: Any, **named: Any) -> Any:
        if where.expires_before is not None:
            self.began.set()
            await until(self.go_on.is_set)  # by looking: it belongs to another loop
        return await self.engine.find(where, *args, **named)

    async def beat(self, presence: Presence) -> Any:
        return await self.engine.beat(presence)

    async def records(self, prefix: str) -> Any:
        found = await self.engine.records(prefix)
        for at, one in enumerate(found):
            if one.name.removeprefix("worker/") in self.gone:
                dead = replace(msgspec.json.decode(one.value, type=Presence), gone=True)
                found[at] = replace(one, value=msgspec.json.encode(dead).decode())
        return found


def test_the_keeper_looks_for_the_dead_between_the_batches_of_a_backlog(monkeypatch: pytest.MonkeyPatch):
    """A worker that dies while a backlog drains loses its job to others before the backlog ends."""
    monkeypatch.setattr(keeping, "PRUNE_PART", 0.001)  # long pauses: the backlog would take longer than the test

    async def rescued() -> None:
        store = Stuck()
        store.go_on.set()
        await store.beat(Presence("w-1"))
        await store.beat(Presence("w-2"))
        await store.engine.insert([job(store.clock)])
        [taken] = await store.engine.claim("w-2", ["default"], 1)
        await store.engine.insert([job(store.clock, queue="late", expires_at=store.clock.now) for _ in range(1_000)])
        one = keeper(store)
        one.start()
        await until(lambda: "expire" in one._beside)
        store.gone.add("w-2")

        async def is_free() -> bool:
            [found] = await store.engine.get([taken.id])
            return found.state is State.AVAILABLE

        await until(is_free)
        assert (await store.engine.count()).get(("late", State.AVAILABLE), 0) > 0
        await one.stop()

    play(rescued())


def test_a_keeper_that_stops_lets_the_round_under_way_end_and_resigns():
    async def stopped() -> None:
        store = Stuck()
        await store.beat(Presence("w-1"))
        await store.engine.insert([replace(job(store.clock), expires_at=1)])
        one = keeper(store)
        one.start()
        await until(store.began.is_set)
        stopping = asyncio.create_task(one.stop())
        await asyncio.sleep(0)
        store.go_on.set()
        await stopping
        assert (await store.engine.count()) == {("default", State.DISCARDED): 1}
        assert await store.engine.records("leader") == []

    play(stopped())


def test_of_many_undo_jobs_that_wait_for_dead_owners_some_are_looked_at_in_each_look(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(rescue, "UNDOS_AT_ONCE", 10)

    class Counting:
        def __init__(self) -> None:
            self.clock = StoreClock(settable=True)
            self.engine = MemoryEngine(self.clock)
            self.read = 0

        def __getattr__(self, name: str) -> Any:
            return getattr(self.engine, name)

        async def history(self, *args: Any, **named: Any) -> Any:
            self.read += 1
            return await self.engine.history(*args, **named)

    async def looked() -> None:
        store = Counting()
        jobs = Jobs(store.engine)
        await store.engine.insert([job(store.clock) for _ in range(25)])
        for one in await store.engine.claim("w-2", ["default"], 25):
            await jobs.cancel(one.id)
        await store.engine.beat(Presence("w-2"))
        rescuer = rescue.Rescue(store, lease_seconds=15)  # type: ignore[arg-type]
        look = await rescuer.snapshots.take()
        dead = replace(look, present={name: replace(seen, gone=True) for name, seen in look.present.items()})

        async def waiting() -> int:
            return len(await store.engine.find(Where(states=(State.PENDING,), type=UNDO_TYPE)))

        assert await waiting() == 25
        for still in (15, 5, 0):
            store.read = 0
            await rescuer.rescue_dead("w-1", dead)
            assert store.read <= 10
            assert await waiting() == still

    play(looked())
