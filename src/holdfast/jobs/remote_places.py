"""The workers, queues, limits and schedules of a store behind a server: changed through the server's API.

Must not know HTTP: the engine does. The server says who made a change: the name of the token.
"""

from typing import Any
from urllib.parse import quote

import msgspec

from holdfast.core.errors import NotFound
from holdfast.core.model import Time
from holdfast.core.schedules import SCHEDULE, Definition, schedule_in
from holdfast.engines.traits import Remote
from holdfast.jobs.full_queues import BoundRecord, read_bounds
from holdfast.jobs.limits import LimitView, get_limit
from holdfast.jobs.places import Places


class RemotePlaces(Places):
    """See Places. `by` is the token's name, whatever a caller says."""

    _server: Remote

    async def quiet_worker(self, worker: str, *, by: str = "caller", reason: str = "") -> None:
        """See Places."""
        await self._change("workers", worker, "quiet", {"reason": reason})

    async def let_claim(self, worker: str) -> None:
        """See Places."""
        await self._change("workers", worker, "resume", {})

    async def set_bound(self, queue: str, most_waiting: int, *, by: str = "caller", reason: str = "") -> BoundRecord:
        """See Places."""
        await self._change("queues", queue, "set", {"most_waiting": most_waiting, "reason": reason})
        return (await read_bounds(self.engine)).get(queue, BoundRecord())

    async def reset_bound(self, queue: str) -> BoundRecord:
        """See Places."""
        await self._change("queues", queue, "reset", {})
        return (await read_bounds(self.engine)).get(queue, BoundRecord())

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
        """See Places."""
        given = {"at_once": at_once, "rate": rate, "burst": burst, "reason": reason}
        await self._change("limits", name, "set", given)
        return await get_limit(self.engine, name)

    async def reset_limit(self, name: str, *, by: str = "caller", reason: str = "") -> LimitView:
        """See Places."""
        await self._change("limits", name, "reset", {"reason": reason})
        return await get_limit(self.engine, name)

    async def close_limit(self, key: str, for_ms: int, *, by: str = "caller", reason: str = "") -> Time:
        """See Places."""
        name = key.partition("/")[0]
        await self._change("limits", name, "close", {"duration": f"{for_ms}ms", "key": key, "reason": reason})
        closed = [one.closed_until for one in await self.engine.usage(name) if one.key == key]
        return max(closed, default=await self.engine.now() + for_ms)

    async def open_limit(self, key: str, *, by: str = "caller", reason: str = "") -> None:
        """See Places."""
        await self._change("limits", key.partition("/")[0], "open", {"key": key, "reason": reason})

    async def put_schedule(self, name: str, definition: Definition, *, by: str = "caller") -> None:
        """See Places."""
        await self._server.ask("POST", "/store/put_schedule", [name, definition])

    async def pause_schedule(self, name: str, *, by: str = "caller", reason: str = "") -> None:
        """See Places."""
        await self._change("schedules", name, "pause", {"reason": reason})

    async def resume_schedule(self, name: str, *, by: str = "caller", reason: str = "") -> None:
        """See Places."""
        await self._change("schedules", name, "resume", {"reason": reason})

    async def run_schedule(self, name: str, *, by: str = "caller", reason: str = "") -> str:
        """See Places."""
        answer = await self._change("schedules", name, "run", {"reason": reason})
        return str(answer["job"])

    async def remove_schedule(self, name: str) -> bool:
        """See Places."""
        there = [one for one in await self.engine.records(SCHEDULE + name) if one.name == SCHEDULE + name]
        await self._change("schedules", name, "remove", {})
        return any(one.is_code for one in map(schedule_in, there) if one is not None)

    async def _change(self, kind: str, name: str, act: str, body: dict[str, Any]) -> dict[str, Any]:
        if not name or "/" in name:
            raise NotFound(f"there is nothing called {name[:60]!r} among the {kind}")
        raw = await self._server.ask("POST", f"/{kind}/{quote(name, safe='')}/{act}", body)
        return msgspec.json.decode(raw, type=dict[str, Any])
