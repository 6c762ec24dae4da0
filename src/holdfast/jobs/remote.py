"""The jobs of a store behind a server: reads through the engine, changes through the server's API.

Must not know HTTP: the engine does. Every change is made, checked and noted by the server.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any
from urllib.parse import quote

import msgspec

from holdfast.blobs.local import find_file
from holdfast.core.codec import canonical, parse
from holdfast.core.errors import Invalid, NotAllowed
from holdfast.core.model import Inserted, Job, Lease, Step
from holdfast.core.queue_bounds import QueueBound
from holdfast.core.references import references_in
from holdfast.engines.contract import Engine
from holdfast.engines.traits import Remote
from holdfast.jobs.budgets import Budget, get_budget
from holdfast.jobs.questions import signal_text
from holdfast.jobs.remote_places import RemotePlaces
from holdfast.jobs.selections import Selection
from holdfast.jobs.service import Jobs


def jobs_of(engine: Engine, bounds: Mapping[str, QueueBound] | None = None) -> Jobs:
    """Return the jobs of a store, whether it is here or behind a server."""
    if isinstance(engine, Remote):
        return RemoteJobs(engine)
    return Jobs(engine) if bounds is None else Jobs(engine, bounds=bounds)


class RemoteJobs(RemotePlaces, Jobs):
    """The jobs of a store behind a server. `by` is the token's name, whatever a caller says."""

    def __init__(self, engine: Remote) -> None:
        super().__init__(engine)
        self._server = engine

    async def insert(self, jobs: Sequence[Job], parent: Lease | None = None) -> list[Inserted]:
        """See Jobs. The server checks the jobs, and looks whether their queues have room."""
        for job in jobs:
            await self._send_files(job.args)
        return await self.engine.insert(jobs, parent)

    async def cancel(self, id: str, *, by: str = "caller", reason: str = "", act: str = "") -> Job:
        """See Jobs."""
        return await self._act(id, "cancel", {"reason": reason})

    async def activate(self, id: str, *, by: str = "caller", reason: str = "") -> Job:
        """See Jobs."""
        return await self._act(id, "activate", {"reason": reason})

    async def signal(
        self,
        id: str,
        name: str,
        value: object = None,
        *,
        by: str = "caller",
        check: Callable[[Job, Sequence[Step], int], None] | None = None,
    ) -> Job:
        """See Jobs. A caller's own check needs the store."""
        if check is not None:
            raise NotAllowed(f"signal {name}: it can't be sent through a server's API; connect to the store itself")
        return await self._act(id, "signal", {"name": name, "value": await self._sent(signal_text(name, value))})

    async def replay(
        self, id: str, *, args: str | None = None, by: str = "person", reason: str = "", act: str = ""
    ) -> Job:
        """See Jobs."""
        edited = {} if args is None else {"args": await self._sent(args)}
        return await self._act(id, "replay", {"reason": reason, **edited})

    async def resolve(
        self, id: str, result: object = None, *, by: str = "person", reason: str = "", act: str = ""
    ) -> Job:
        """See Jobs."""
        return await self._act(id, "resolve", {"result": await self._sent(canonical(result)), "reason": reason})

    async def resolve_step(
        self, id: str, path: str, result: object = None, *, again: bool = False, by: str = "person", reason: str = ""
    ) -> Job:
        """See Jobs."""
        given = {"path": path, "again": again, "reason": reason}
        if not again:
            given["result"] = await self._sent(canonical(result))
        return await self._act(id, "resolve-step", given)

    async def discard(self, id: str, *, by: str = "person", reason: str = "", act: str = "") -> Job:
        """See Jobs."""
        return await self._act(id, "discard", {"reason": reason})

    async def rerun(
        self,
        id: str,
        steps: Sequence[str],
        *,
        args: str | None = None,
        feedback: str = "",
        allow: Collection[str] = (),
        reason: str = "",
    ) -> Job:
        """See `reruns.rerun`."""
        given = {"steps": list(steps), "feedback": feedback, "allow": list(allow), "reason": reason}
        return await self._made(id, "rerun", given, args)

    async def fork(
        self, id: str, until: str | None, *, args: str | None = None, allow: Collection[str] = (), reason: str = ""
    ) -> Job:
        """See `reruns.fork`."""
        return await self._made(id, "fork", {"until": until, "allow": list(allow), "reason": reason}, args)

    async def start_bulk(self, verb: str, chosen: Selection, result: Any, reason: str) -> Job:
        """See `bulk_acts.submit_act`."""
        where = {**msgspec.to_builtins(chosen), "state": list(chosen.states)}
        where.pop("states", None)
        given = {"act": verb, "where": where, "reason": reason, **({"result": result} if verb == "resolve" else {})}
        raw = await self._server.ask("POST", "/bulk", given)
        return await self.get(msgspec.json.decode(raw)["id"])

    async def add_budget(self, id: str, given: Mapping[str, Any], *, by: str = "person", reason: str = "") -> Budget:
        """See Jobs."""
        await self._server.ask("POST", f"/jobs/{quote(id)}/budget", {"add": dict(given), "reason": reason})
        return (await get_budget(self.engine, id))[1]

    async def pause(self, queue: str, *, by: str = "caller", reason: str = "") -> None:
        """See Jobs."""
        await self._server.ask("POST", f"/queues/{quote(queue)}/pause", {"reason": reason})

    async def resume(self, queue: str) -> None:
        """See Jobs."""
        await self._server.ask("POST", f"/queues/{quote(queue)}/resume", {})

    async def _sent(self, text: str) -> Any:
        """Return a value for a request, once the files that it names are uploaded."""
        await self._send_files(text)
        return parse(text)

    async def _send_files(self, text: str) -> None:
        for reference in references_in(text):
            if (file := find_file(reference)) is not None:
                await self.engine.blobs.take_in(file)

    async def _made(self, id: str, act: str, body: dict[str, Any], args: str | None) -> Job:
        """Do an act that may make another run, and return the run."""
        edited = {} if args is None else {"args": await self._sent(args)}
        raw = await self._server.ask("POST", f"/jobs/{_plain(id)}/{act}", {**body, **edited})
        return await self.get(msgspec.json.decode(raw)["job"]["id"])

    async def _act(self, id: str, act: str, body: dict[str, Any]) -> Job:
        await self._server.ask("POST", f"/jobs/{_plain(id)}/{act}", body)
        return await self.get(id)


def _plain(id: str) -> str:
    """Return an id as a part of a path."""
    if "/" in id or not id:
        raise Invalid(f"{id[:60]!r} is not a job id")
    return quote(id)
