"""Work that goes on beside everything else, in a thread of its own. Must not know what the work is."""

import asyncio
import concurrent.futures
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

Join = Callable[[float], Awaitable[None]]
"""Waits for the end of what was begun, at most so many seconds."""

Spawn = Callable[[str, Callable[[], Coroutine[Any, Any, None]]], Join]
"""Begins, under a name, work that goes on beside everything else."""


def own_thread(name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> Join:
    """Run a coroutine in a thread and on an event loop of its own, which never keep the process from ending."""
    ended: concurrent.futures.Future[None] = concurrent.futures.Future()

    def run() -> None:
        try:
            asyncio.run(work())
        finally:
            ended.set_result(None)

    threading.Thread(target=run, name=name, daemon=True).start()

    async def join(seconds: float) -> None:
        # Not in a thread of the loop's pool: jobs may hold all of them.
        await asyncio.wait([asyncio.wrap_future(ended)], timeout=seconds)

    return join
