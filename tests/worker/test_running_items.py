"""A heartbeat names the steps that run right now: since when, and which try it is."""

import asyncio

from holdfast import App, step
from holdfast.core.model import ITEMS_LISTED, RunningItem

gate = asyncio.Event()


@step
async def hold(number: int) -> int:
    await gate.wait()
    return number


async def test_a_heartbeat_names_the_running_items_up_to_a_bound():
    gate.clear()
    app = App("memory:")

    @app.job
    async def many(count: int) -> int:
        return len(await hold.map(range(count), at_once=count))

    async with app.worker():
        run = await many.submit(ITEMS_LISTED + 6)
        jobs = await app.open()
        items: tuple[RunningItem, ...] = ()
        async with asyncio.timeout(30):
            while len(items) < ITEMS_LISTED:
                await asyncio.sleep(0.05)
                running = [one for worker in await jobs.workers() for one in worker.running]
                items = running[0].items if running else ()
        gate.set()
        await run.result(timeout=30)

    assert len(items) == ITEMS_LISTED
    assert len({item.path for item in items}) == ITEMS_LISTED
    assert all(item.path.startswith("hold#") and item.since and item.try_number == 1 for item in items)
    await app.close()
