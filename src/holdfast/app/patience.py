"""Callers that wait survive a store or a server that is away for a while. Must not know what is read."""

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import TypeVar

from holdfast.core.errors import StoreBusy, StoreError

T = TypeVar("T")

AWAY_SECONDS = 60.0
"""How long a caller that waits without a timeout bears with a store that is away."""

PAUSES = (0.1, 0.2, 0.5, 1.0, 2.0)
"""The pauses between two tries, in seconds; the last one is repeated."""


async def patiently(read: Callable[[], Awaitable[T]], *, is_bounded: bool = False) -> T:
    """Read the store. While it is away, try again: for AWAY_SECONDS, or until the caller's own timeout."""
    loop, tries = asyncio.get_running_loop(), 0
    until = math.inf if is_bounded else loop.time() + AWAY_SECONDS
    while True:
        try:
            return await read()
        except StoreError as error:
            if not _may_pass(error) or loop.time() >= until:
                raise
        await asyncio.sleep(PAUSES[min(tries, len(PAUSES) - 1)])
        tries += 1


def _may_pass(error: StoreError) -> bool:
    """Whether the store may answer again by itself: nothing is lost, damaged, closed or full."""
    return isinstance(error, StoreBusy) or type(error) is StoreError
