"""Wake-ups inside one process: nobody sleeps through a topic, and who waits for another one sleeps on."""

import asyncio

import pytest

from holdfast.engines import wakeups as module
from holdfast.engines.wakeups import EVERYTHING, Wakeups

LONG = 60.0


async def is_woken(bell: Wakeups, topic: str, after: int) -> bool:
    """Whether who waits for this topic, having heard all up to a mark, is woken at once."""
    try:
        async with asyncio.timeout(0.05):
            await bell.wait([topic], LONG, after)
    except TimeoutError:
        return False
    return True


def test_who_waits_hears_its_own_topics_and_everything(run):
    async def ringing() -> None:
        bell = Wakeups()
        mine = asyncio.create_task(bell.wait(["a", "b"], LONG, 1))
        other = asyncio.create_task(bell.wait(["c"], LONG, 1))
        await asyncio.sleep(0)
        bell.ring(["b", "z"])
        mark = await mine
        assert not other.done()
        bell.ring([EVERYTHING])
        assert await other > mark

    run(ringing())


def test_what_rang_before_is_heard_once(run):
    async def ringing() -> None:
        bell = Wakeups()
        bell.ring(["a"])
        assert await is_woken(bell, "a", 1)
        mark = await bell.wait(["a"], LONG, 1)
        assert not await is_woken(bell, "a", mark)
        assert not await is_woken(bell, "b", 1)

    run(ringing())


@pytest.mark.parametrize("more", [1, 7, 8, 9, 40])
def test_however_much_rings_meanwhile_nothing_is_slept_through(run, monkeypatch: pytest.MonkeyPatch, more: int):
    monkeypatch.setattr(module, "MEMORY_LIMIT", 8)

    async def ringing() -> None:
        bell = Wakeups()
        bell.ring(["a"])
        for n in range(more):
            bell.ring([f"more-{n}"])
        assert await is_woken(bell, "a", 1)
        assert await is_woken(bell, "never rung", 1) == (more >= 16), "early, and only once something was forgotten"
        mark = await bell.wait([f"more-{more - 1}"], LONG, 1)
        assert not await is_woken(bell, "a", mark)
        assert len(bell._rung) <= 9

    run(ringing())
