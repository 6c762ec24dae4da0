"""Parents whom nobody told that their children are in: some are looked at in each round, and all in the end."""

import asyncio
from typing import Any

import pytest

from holdfast.conformance.given import StoreClock, job
from holdfast.core.model import State, Wait, WaitKind
from holdfast.engines.memory import MemoryEngine
from holdfast.upkeep import wake
from holdfast.upkeep.wake import Wake

PARENTS = 25
A_ROUND = 10


@pytest.fixture
def few(monkeypatch):
    """Ten jobs a round, so that a test needs few."""
    monkeypatch.setattr(wake, "PARENTS_A_ROUND", A_ROUND)


class Counting:
    """An engine that counts how many jobs were looked at."""

    def __init__(self, engine: MemoryEngine) -> None:
        self.engine = engine
        self.looked: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    async def get(self, ids: Any) -> Any:
        self.looked += ids
        return await self.engine.get(ids)


async def waiting(engine: MemoryEngine, clock: StoreClock, number: int) -> list[str]:
    """So many parents that wait for children who are all in, or never were."""
    waits = (Wait(WaitKind.CHILDREN, "all"),)
    parents = [job(clock, state=State.PENDING, waits=waits, run_at=None) for _ in range(number)]
    await engine.insert(parents)
    return sorted(one.id for one in parents)


async def given(number: int = PARENTS) -> tuple[Counting, Wake, list[str]]:
    clock = StoreClock(settable=True)
    engine = Counting(MemoryEngine(clock))
    parents = await waiting(engine.engine, clock, number)
    return engine, Wake(engine), parents  # type: ignore[arg-type]


def test_a_round_looks_at_some_and_the_next_goes_on_behind_them(few):
    async def play() -> None:
        engine, one, parents = await given()
        woken = [await one.wake_waiting("w-1") for _ in range(5)]
        assert woken == [10, 10, 5, 0, 0], "and when all were looked at, it rests"
        assert engine.looked == parents

    asyncio.run(play())


def test_a_loss_while_a_walk_is_under_way_finishes_it_and_begins_another(few):
    async def play() -> None:
        engine, one, parents = await given()
        await one.wake_waiting("w-1")
        for _ in range(4):  # workers are lost again and again: the last parents still have their turn
            one.hurry()
            await one.wake_waiting("w-1")
        assert engine.looked[:PARENTS] == parents

        clock = engine.engine._clock
        late = await waiting(engine.engine, clock, 1)  # type: ignore[arg-type]
        one.hurry()
        for _ in range(5):
            await one.wake_waiting("w-1")
        (job,) = await engine.engine.get(late)
        assert job.state is State.AVAILABLE

    asyncio.run(play())


def test_without_a_reason_it_looks_rarely(few):
    async def play() -> None:
        engine, one, _ = await given(A_ROUND)
        for _ in range(3):
            await one.wake_waiting("w-1")
        await waiting(engine.engine, engine.engine._clock, 1)  # type: ignore[arg-type]
        assert await one.wake_waiting("w-1") == 0
        one.hurry()
        assert await one.wake_waiting("w-1") == 1

    asyncio.run(play())
