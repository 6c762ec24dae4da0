"""What callers may change of workers, queues, limits and schedules. `Jobs` has these methods, and `remote` its own.

Must not decide what a change is: each method hands over to the module that does.
"""

from holdfast.core.model import Time
from holdfast.core.schedules import Definition
from holdfast.engines.contract import Engine
from holdfast.jobs.full_queues import BoundRecord, reset_bound, set_bound
from holdfast.jobs.limits import LimitView, close_limit, open_limit, reset_limit, set_limit
from holdfast.jobs.quiet import let_claim, quiet_worker
from holdfast.jobs.schedules import pause_schedule, put_schedule, remove_schedule, resume_schedule, run_schedule


class Places:
    """The places of one store where jobs wait and run. `by` says who changes one, `reason` why."""

    engine: Engine

    async def quiet_worker(self, worker: str, *, by: str = "caller", reason: str = "") -> None:
        """Tell a worker to claim nothing more."""
        await quiet_worker(self.engine, worker, by=by, reason=reason)

    async def let_claim(self, worker: str) -> None:
        """Let a quiet worker claim jobs again."""
        await let_claim(self.engine, worker)

    async def set_bound(self, queue: str, most_waiting: int, *, by: str = "caller", reason: str = "") -> BoundRecord:
        """Set how many jobs may wait in a queue, whatever code says."""
        return await set_bound(self.engine, queue, most_waiting, by=by, reason=reason)

    async def reset_bound(self, queue: str) -> BoundRecord:
        """Let the code's bound of a queue count again."""
        return await reset_bound(self.engine, queue)

    async def set_limit(
        self,
        name: str,
        *,
        at_once: int | None = None,
        rate: str | None = None,
        burst: float | None = None,
        by: str = "caller",
        reason: str = "",
    ) -> LimitView:
        """Set a limit, whatever code says. What isn't given stays as it is."""
        return await set_limit(self.engine, name, at_once=at_once, rate=rate, burst=burst, by=by, reason=reason)

    async def reset_limit(self, name: str, *, by: str = "caller", reason: str = "") -> LimitView:
        """Let the code's settings of a limit count again."""
        return await reset_limit(self.engine, name, by=by, reason=reason)

    async def close_limit(self, key: str, for_ms: int, *, by: str = "caller", reason: str = "") -> Time:
        """Close a limit, or one of its keys, for this long. Return until when."""
        return await close_limit(self.engine, key, for_ms, by=by, reason=reason)

    async def open_limit(self, key: str, *, by: str = "caller", reason: str = "") -> None:
        """Open a limit that is closed, or one of its keys."""
        await open_limit(self.engine, key, by=by, reason=reason)

    async def put_schedule(self, name: str, definition: Definition, *, by: str = "caller") -> None:
        """Make a schedule, or change one that was put before."""
        await put_schedule(self.engine, name, definition, by=by)

    async def pause_schedule(self, name: str, *, by: str = "caller", reason: str = "") -> None:
        """Let no tick of a schedule fire until it is resumed."""
        await pause_schedule(self.engine, name, by=by, reason=reason)

    async def resume_schedule(self, name: str, *, by: str = "caller", reason: str = "") -> None:
        """Let the ticks of a schedule fire again, from now on."""
        await resume_schedule(self.engine, name, by=by, reason=reason)

    async def run_schedule(self, name: str, *, by: str = "caller", reason: str = "") -> str:
        """Submit a schedule's job now. Return its id."""
        return await run_schedule(self.engine, name, by=by, reason=reason)

    async def remove_schedule(self, name: str) -> bool:
        """Remove a schedule. Return whether code declares it: then the next worker makes it again."""
        return await remove_schedule(self.engine, name)
