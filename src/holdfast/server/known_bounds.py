"""The bounds of a store's queues, as far as a server knows them: for submits of callers whose code declares none.

Must not decide who comes in (`jobs.room`).
"""

import asyncio
from collections.abc import Mapping

from holdfast.core.queue_bounds import QueueBound
from holdfast.jobs.full_queues import stored_bounds
from holdfast.jobs.service import Jobs
from holdfast.server.site import Site

BOUNDS_SECONDS = 1.0
"""How long a bound that another process set may be unknown here."""


class KnownBounds:
    """What a server has read of the bounds, and when."""

    def __init__(self, site: Site) -> None:
        self._bounds: Mapping[str, QueueBound] = {}
        self._read_at = -BOUNDS_SECONDS

    async def within(self, jobs: Jobs) -> Jobs:
        """Return these jobs, for submits that respect all bounds of the store. What its own code declares counts."""
        now = asyncio.get_running_loop().time()
        if now - self._read_at >= BOUNDS_SECONDS:
            self._bounds, self._read_at = await stored_bounds(jobs.engine), now
        return jobs.within({**self._bounds, **jobs.bounds})
