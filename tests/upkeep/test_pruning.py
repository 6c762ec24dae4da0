"""Pruning keeps up: batch by batch while there is more, in a part of the time, and beside the keeper's other rounds."""

import asyncio
from typing import Any

import pytest

import holdfast.upkeep.keeper
from holdfast.conformance.given import HOUR, Another, StoreClock, change, job
from holdfast.conformance.kinds import THIS_MACHINE, Kind, kind_of
from holdfast.core.errors import StoreError
from holdfast.core.model import Applied, Event, Job, Options
from holdfast.engines.contract import Engine
from holdfast.engines.memory import MemoryEngine
from holdfast.upkeep.keeper import PRUNE_BATCH, PRUNE_PART, Keeper
from tests.support.given import until

BATCHES = 12
BUSY_SECONDS = 0.003
TEST_SECONDS = 60.0


class Full:
    """A store with more to prune than one batch. Each prune takes a moment, and says when it began and ended."""

    def __init__(self, batches: int = BATCHES) -> None:
        self.engine = MemoryEngine(StoreClock(settable=True))
        self.left = batches * PRUNE_BATCH
        self.prunes: list[tuple[float, float]] = []
        self.snapshots: list[float] = []
        self.trouble = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    async def records(self, prefix: str) -> Any:
        if prefix == "worker/":
            self.snapshots.append(asyncio.get_running_loop().time())
        return await self.engine.records(prefix)

    async def prune(self, limit: int = 1_000) -> int:
        loop = asyncio.get_running_loop()
        began = loop.time()
        await asyncio.sleep(BUSY_SECONDS)
        if self.trouble:
            self.trouble -= 1
            raise StoreError("the store is away")
        gone = min(limit, self.left)
        self.left -= gone
        self.prunes.append((began, loop.time()))
        return gone


def keeper(store: Full, upkeep_seconds: float = 60.0) -> Keeper:
    return Keeper(store, "w-1", lease_seconds=15, look_seconds=0.01, upkeep_seconds=upkeep_seconds)  # type: ignore[arg-type]


def test_what_is_more_than_one_batch_is_pruned_without_waiting_for_the_next_round():
    async def play() -> Full:
        store = Full()
        one = keeper(store)
        one.start()
        await until(lambda: not store.left)
        await one.stop()
        return store

    assert asyncio.run(play()).left == 0


def test_pruning_leaves_the_larger_part_of_the_time_to_others_and_the_keeper_looks_meanwhile():
    async def play() -> Full:
        store = Full()
        one = keeper(store)
        one.start()
        await until(lambda: not store.left)
        await one.stop()
        return store

    store = asyncio.run(play())
    rest = store.prunes[1:]  # the first one belongs to the round
    busy = sum(end - began for began, end in rest[:-1])
    assert busy <= PRUNE_PART * (rest[-1][0] - rest[0][0]) * 1.01
    assert sum(rest[0][0] < at < rest[-1][1] for at in store.snapshots) >= 3


def test_a_keeper_that_stops_prunes_nothing_more():
    async def play() -> tuple[int, int]:
        store = Full(batches=10_000)
        one = keeper(store)
        one.start()
        await until(lambda: len(store.prunes) >= 3)
        await one.stop()
        there = len(store.prunes)
        await asyncio.sleep(0.1)
        return there, len(store.prunes)

    there, later = asyncio.run(play())
    assert there == later


def test_trouble_while_pruning_costs_no_more_than_the_time_until_the_next_round():
    async def play() -> Full:
        store = Full()
        one = keeper(store, upkeep_seconds=0.05)
        one.start()
        await until(lambda: len(store.prunes) >= 3)
        store.trouble = 2
        await until(lambda: not store.left)
        await one.stop()
        return store

    assert asyncio.run(play()).left == 0


@pytest.mark.parametrize("batches", [0, 1])
def test_where_there_is_little_to_prune_nothing_goes_on_beside_the_rounds(batches):
    async def play() -> int:
        store = Full(batches)
        store.left = max(0, store.left - 1)
        one = keeper(store)
        await one.tidy()
        assert not one._beside
        return store.left

    assert asyncio.run(play()) == 0


# On each engine.

BATCH = 20
"""The limit of a batch here, so that few jobs make many batches."""

FIRST, SECOND, KEPT = 3 * BATCH + 7, BATCH + 3, 5
"""How many jobs are due when the round begins, how many become due while it prunes, and how many are not due."""

STORES = {"memory": "memory:", "file": "file:checkpoint.json", "sqlite": "sqlite:///jobs.db"}


@pytest.fixture(params=[*STORES, "postgres", "redis"])
def kind(request: pytest.FixtureRequest) -> Kind:
    return kind_of(STORES.get(request.param) or request.getfixturevalue(f"{request.param}_url"))


class Counted:
    """A store that notes the limit and the answer of each prune. After the third one, more jobs become due."""

    def __init__(self, engine: Engine, more: Any) -> None:
        self.engine = engine
        self.batches: list[tuple[int, int]] = []
        self._more = more

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    async def prune(self, limit: int) -> int:
        pruned = await self.engine.prune(limit)
        self.batches.append((limit, pruned))
        if len(self.batches) == 3:
            await self._more()
        return pruned


async def cancelled(engine: Engine, clock: StoreClock, number: int, keep: int, ago: int = 0) -> list[Job]:
    """So many jobs that ended so long ago, and are kept for so long after that."""
    jobs = [job(clock, options=Options(keep_ms=keep)) for _ in range(number)]
    await engine.insert(jobs)
    answers = await engine.commit([change(clock, one, Event.CANCEL, at=clock.now - ago) for one in jobs])
    assert all(isinstance(answer, Applied) for answer in answers)
    return jobs


def test_one_round_prunes_all_that_is_due_and_becomes_due_meanwhile_in_batches_within_the_limit(
    kind, tmp_path, monkeypatch
):
    monkeypatch.setattr(holdfast.upkeep.keeper, "PRUNE_BATCH", BATCH)
    monkeypatch.setattr(holdfast.upkeep.keeper, "PRUNE_SECONDS", 0.001)
    clock, url = StoreClock(settable=kind.engine.guarantees.clock == THIS_MACHINE), kind.scratch(tmp_path)
    another = Another(kind, url, clock)
    # The clock of a Redis server can't be moved: there the jobs ended longer ago instead.
    moves = kind.engine.guarantees.name != "redis"

    async def play() -> tuple[Counted, list[Job | None], list[Job | None]]:
        engine = await another()
        staying = await cancelled(engine, clock, KEPT, 3 * HOUR)
        due = await cancelled(engine, clock, FIRST, HOUR, 0 if moves else HOUR)
        soon = await cancelled(engine, clock, SECOND, 2 * HOUR) if moves else []

        async def more() -> None:
            if moves:
                clock.advance(HOUR)
            else:
                soon.extend(await cancelled(engine, clock, SECOND, HOUR, HOUR))

        if moves:
            clock.advance(HOUR)
        store = Counted(engine, more)
        one = Keeper(store, "w-1", lease_seconds=15, look_seconds=60, upkeep_seconds=60)  # type: ignore[arg-type]
        await one.tidy()
        await one._beside["prune"]
        gone = await engine.get([each.id for each in (*due, *soon)])
        return store, gone, await engine.get([each.id for each in staying])

    async def bounded() -> tuple[Counted, list[Job | None], list[Job | None]]:
        try:
            async with asyncio.timeout(TEST_SECONDS):
                return await play()
        finally:
            await another.close_all()
            await kind.engine.scrap(url)

    store, gone, staying = asyncio.run(bounded())
    assert gone == [None] * (FIRST + SECOND)
    assert None not in staying
    assert len(staying) == KEPT
    assert {limit for limit, _ in store.batches} == {BATCH}
    assert [pruned for _, pruned in store.batches] == [BATCH, BATCH, BATCH, BATCH, (FIRST + SECOND) % BATCH, 0]
