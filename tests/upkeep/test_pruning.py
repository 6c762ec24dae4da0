"""Pruning keeps up: batch by batch while there is more, in a part of the time, and beside the keeper's other rounds."""

import asyncio
from typing import Any

import pytest

from holdfast.conformance.given import StoreClock
from holdfast.core.errors import StoreError
from holdfast.engines.memory import MemoryEngine
from holdfast.upkeep.keeper import PRUNE_BATCH, PRUNE_PART, Keeper
from tests.worker.given import until

BATCHES = 12
BUSY_SECONDS = 0.003


class Full:
    """A store with more to prune than one batch. Each prune takes a moment, and says when it began and ended."""

    def __init__(self, batches: int = BATCHES) -> None:
        self.engine = MemoryEngine(StoreClock(settable=True))
        self.left = batches * PRUNE_BATCH
        self.prunes: list[tuple[float, float]] = []
        self.looks: list[float] = []
        self.trouble = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    async def records(self, prefix: str) -> Any:
        if prefix == "worker/":
            self.looks.append(asyncio.get_running_loop().time())
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
    assert sum(rest[0][0] < at < rest[-1][1] for at in store.looks) >= 3


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
