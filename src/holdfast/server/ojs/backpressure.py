"""Full queues over HTTP: who may wait for room, what a submitter is told, and who was refused last.

Must not decide who comes in (`jobs.room`).
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from math import isfinite
from typing import TypeVar

import msgspec

from holdfast.core.errors import QueueFull
from holdfast.core.queue_bounds import depth_of
from holdfast.server.call import Call
from holdfast.server.ojs.envelope import Submit
from holdfast.server.ojs.event_kinds import Refusal
from holdfast.server.ojs.problems import bad
from holdfast.server.ojs.queue_settings import BLOCK, QueueSettings
from holdfast.server.ojs.service import Ojs

REFUSED = "ojs/refused/"
"""A record `ojs/refused/NAME` has the last submit that a queue had no room for; for the list of events."""

BLOCK_HEADER = "ojs-block-timeout"
"""The header that says for how many seconds a submit waits for room, if its queue lets it."""

BLOCK_SECONDS = 30.0
"""How long a submit waits for room at most."""

LOOK_SECONDS = 0.1
"""How often a submit that waits looks for room."""

NOTE_SECONDS = 1.0
"""How often at most a server writes down that a queue refused somebody."""

T = TypeVar("T")


async def when_room(call: Call, ojs: Ojs, orders: Sequence[Submit], insert: Callable[[], Awaitable[T]]) -> T:
    """Insert jobs. If their queue is full and lets submits wait, wait for room as long as the caller says."""
    loop = asyncio.get_running_loop()
    until = loop.time() + _patience(call)
    while True:
        try:
            return await insert()
        except QueueFull as full:
            left = until - loop.time()
            may_wait = ojs.settings.get(full.queue, QueueSettings()).strategy == BLOCK and left > 0
            if not may_wait or call.server.stopping.is_set() or await call.is_disconnected():
                await _note_refusal(ojs, full, orders)
                raise
            await asyncio.sleep(min(left, LOOK_SECONDS))


def _patience(call: Call) -> float:
    """For how many seconds the caller waits for room."""
    text = call.heads.get(BLOCK_HEADER, "0").strip()
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not (isfinite(seconds) and 0 <= seconds <= 86_400):
        raise bad("OJS-Block-Timeout", "give a number of seconds from 0, up to a day")
    return min(seconds, BLOCK_SECONDS)


async def _note_refusal(ojs: Ojs, full: QueueFull, orders: Sequence[Submit]) -> None:
    """Write down that a queue refused somebody, unless that was written just now: refusing must stay cheap."""
    now = asyncio.get_running_loop().time()
    if now - ojs.refused.get(full.queue, -NOTE_SECONDS) < NOTE_SECONDS:
        return
    if len(ojs.refused) >= 10_000:
        ojs.refused.clear()
    ojs.refused[full.queue] = now
    type = next(order.request.type for order in orders if order.request.queue == full.queue)
    refusal = Refusal(at=await ojs.engine.now(), depth=full.depth, bound=full.most_waiting, type=type)
    await ojs.engine.put_record(REFUSED + full.queue, msgspec.json.encode(refusal).decode())


async def pressure_headers(ojs: Ojs, orders: Sequence[Submit]) -> Mapping[str, str]:
    """What warns submitters whose queue is nearly full."""
    await ojs.read_bounds()
    queue = orders[-1].request.queue
    bound = ojs.bounds.get(queue)
    if bound is None:
        return {}
    depth = depth_of(await ojs.engine.count(), queue) + len(orders)
    share = depth / bound.most_waiting
    if share < ojs.settings.get(queue, QueueSettings()).warning_threshold:
        return {}
    return {
        "X-OJS-Queue-Depth": str(depth),
        "X-OJS-Queue-Bound": str(bound.most_waiting),
        "X-OJS-Queue-Pressure": f"{min(share, 1.0):.2f}",
    }
