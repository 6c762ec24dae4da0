"""What goes into one batch of a line."""

import asyncio
from collections.abc import Sequence
from typing import Any

from holdfast.engines.batch_thread import Ticket
from holdfast.engines.loop_thread import BatchQueue, LoopThread


async def nothing() -> None: ...


def test_a_batch_takes_what_waits_up_to_its_limit_and_one_piece_in_any_case(run):
    batches: list[list[int]] = []

    async def weighed() -> None:
        hub, may_go = LoopThread("a hub", thread="holdfast-test"), asyncio.Event()

        async def note(batch: Sequence[Ticket[Any]]) -> None:
            batches.append([ticket.work for ticket in batch])
            await may_go.wait()

        async def begun() -> None:
            while not batches:  # noqa: ASYNC110 (for a turn or two of its loop)
                await asyncio.sleep(0)

        async def go() -> None:
            may_go.set()

        line = BatchQueue(hub, note, limit=1_000, weigh=lambda work: work)
        first = asyncio.ensure_future(line.do(5))
        await hub.call(begun)
        rest = [asyncio.ensure_future(line.do(work)) for work in (600, 400, 0, 1, 2_500, 700, 300)]
        await hub.call(nothing)  # all are handed in
        await hub.call(go)
        await asyncio.gather(first, *rest)
        await asyncio.to_thread(hub.close, nothing)

    run(weighed())
    assert batches == [[5], [600, 400, 0], [1], [2_500], [700, 300]]
