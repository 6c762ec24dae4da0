"""A store that is away for a while ends no wait; one that stays away, or has lost something, does."""

import asyncio

import pytest

from holdfast import App
from holdfast.app import patience
from holdfast.core.errors import StoreBusy, StoreError, StoreLost
from holdfast.core.model import Entry

READS = ("get", "history", "wait", "summaries")


@pytest.fixture
def job(monkeypatch):
    monkeypatch.setattr(patience, "PAUSES", (0.0,))
    app = App("memory:")

    @app.job
    async def double(number: int) -> int:
        return 2 * number

    return app, double


def away(monkeypatch, app: App, error: StoreError, times: int) -> list[str]:
    """Let each read of the store fail so often, and return which reads failed."""
    failed: list[str] = []

    def failing(name: str):
        real, left = getattr(app.engine, name), times

        async def read(*args, **more):
            nonlocal left
            if left:
                left -= 1
                failed.append(name)
                raise type(error)(str(error))
            return await real(*args, **more)

        return read

    for name in READS:
        monkeypatch.setattr(app.engine, name, failing(name))
    return failed


@pytest.mark.parametrize("error", [StoreBusy("refused"), StoreError("can't be reached")])
async def test_a_store_that_comes_back_ends_neither_result_nor_follow_nor_map(job, monkeypatch, error):
    app, double = job
    async with app.worker():
        run = await double.submit(21, delay=0.2)
        following = asyncio.create_task(_followed(run))
        await asyncio.sleep(0)
        failed = away(monkeypatch, app, error, 3)

        assert await run.result(timeout=20) == 42
        assert await asyncio.wait_for(following, 20) == ["submit", "promote", "claim", "complete"]
        assert {"get", "history", "wait"} <= set(failed)
        away(monkeypatch, app, error, 3)
        assert await double.map([1, 2]) == [2, 4]


async def _followed(run) -> list[str]:
    return [entry.event for entry in [one async for one in run.follow()] if isinstance(entry, Entry)]


async def test_a_store_that_stays_away_is_named_and_a_timeout_counts(job, monkeypatch):
    app, double = job
    monkeypatch.setattr(patience, "AWAY_SECONDS", 0.05)
    run = await double.submit(1)
    away(monkeypatch, app, StoreBusy("nobody there"), 1_000_000)

    with pytest.raises(StoreBusy, match="nobody there"):
        await run.result()
    with pytest.raises(TimeoutError):
        await run.result(timeout=0.2)


async def test_a_store_that_lost_something_ends_the_wait_at_once(job, monkeypatch):
    app, double = job
    run = await double.submit(1)
    failed = away(monkeypatch, app, StoreLost("older copy"), 1)

    with pytest.raises(StoreLost):
        await run.result(timeout=20)
    assert failed == ["get"]
