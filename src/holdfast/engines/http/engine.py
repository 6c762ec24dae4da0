"""A store behind a Holdfast server, as an engine that reads. What changes a job goes through `jobs/remote`.

Must not run jobs: a worker needs the store itself.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast.blobs.blobs import Blobs
from holdfast.blobs.store import BlobStore
from holdfast.core.errors import Invalid, NotAllowed
from holdfast.core.model import (
    Admission,
    Applied,
    Ask,
    Beat,
    Change,
    Conflict,
    Entry,
    Inserted,
    Job,
    Lease,
    Presence,
    Record,
    Recorded,
    State,
    Step,
    StepState,
    Time,
    Usage,
    Where,
)
from holdfast.core.moves import HeldKey
from holdfast.core.searches import Page
from holdfast.core.summaries import StepHead, StepSummary
from holdfast.engines.contract import Clock, Guarantees
from holdfast.engines.http.blobs import HttpBlobs
from holdfast.engines.http.wire import Wire
from holdfast.engines.store_calls import CALLS, WAIT_SECONDS
from holdfast.engines.traits import Remote

GUARANTEES = Guarantees(
    name="http",
    url="http://host:8700",
    use="apps and commands that have no access to the store",
    durable="what the server's store guarantees",
    processes="many machines",
    wakes="many machines",
    atomic_children=False,
    clock="the server's",
    limit="the server's",
)


class HttpEngine(Remote):
    """A store behind a server."""

    guarantees = GUARANTEES

    def __init__(self, url: str, token: str = "") -> None:
        self.url = url
        self._wire = Wire(url, token or os.environ.get("HOLDFAST_TOKEN", ""))

    @classmethod
    def from_url(cls, url: str, clock: Clock) -> "HttpEngine":
        """See Engine."""
        return cls(url)

    @classmethod
    def scratch(cls, url: str, folder: Path) -> str:
        """See Engine: a server's store is never for tests."""
        raise Invalid("a store behind a server can't be made for a test")

    def use_token(self, token: str) -> None:
        """Send this token with every request."""
        self._wire = Wire(self.url, token)

    async def open(self) -> None:
        """Ask the server for its store's time: it answers, and the token counts."""
        await self.now()

    async def close(self) -> None:
        """See Engine."""
        self._wire.close()

    async def _find_blobs(self, create: bool) -> tuple[BlobStore | None, str | None]:
        """See KeepsBlobs. The server knows where its blobs are, whatever is configured here."""
        return HttpBlobs(self._wire), ""

    async def _find_former_blobs(self) -> list[Blobs]:
        """See KeepsBlobs. The server looks there itself."""
        return []

    async def ask(self, method: str, path: str, body: Any = None) -> bytes:
        """See Remote."""
        return await self._wire.ask(method, f"/api/v1{path}", body)

    async def _read(self, name: str, *args: Any) -> Any:
        raw = await self._wire.ask("POST", f"/api/v1/store/{name}", args, repeats=True)
        return msgspec.json.decode(raw, type=CALLS[name].answer)

    # Reading.

    async def now(self) -> Time:
        """See Engine."""
        found: Time = await self._read("now")
        return found

    async def _get(self, ids: list[str]) -> Mapping[str, Job]:
        found: list[Job | None] = await self._read("get", ids)
        return {job.id: job for job in found if job is not None}

    async def _find(self, where: Where, after: str, limit: int) -> list[Job]:
        found: list[Job] = await self._read("find", where, after, limit)
        return found

    async def _search(self, where: Where, after: str, limit: int) -> Page:
        found: Page = await self._read("search", where, after, limit)
        return found

    async def count(self) -> Mapping[tuple[str, State], int]:
        """See Engine."""
        return {(queue, state): jobs for queue, state, jobs in await self._read("count")}

    async def _ready_types(self, queue: str) -> list[str]:
        found: list[str] = await self._read("ready_types", queue)
        return found

    async def _steps(self, job: str) -> list[Step]:
        found: list[Step] = await self._read("steps", job)
        return found

    async def _steps_under(self, jobs: list[str], prefix: str, state: StepState | None) -> list[Step]:
        found: list[Step] = await self._read("steps_under_each", jobs, prefix, state)
        return found

    async def _steps_page(self, job: str, after: str, limit: int) -> list[StepHead]:
        found: list[StepHead] = await self._read("steps_page", job, after, limit)
        return found

    async def _summaries(self, jobs: list[str]) -> Mapping[str, StepSummary]:
        return {one.job: one for one in await self._read("summaries", jobs)}

    async def _history(self, job: str, after: int, limit: int) -> list[Entry]:
        found: list[Entry] = await self._read("history", job, after, limit)
        return found

    async def _missing(self, parent: str, group: str) -> int:
        found: int = await self._read("missing", parent, group)
        return found

    async def _holders(self, names: list[tuple[str, str]]) -> Mapping[tuple[str, str], HeldKey]:
        raise NotAllowed("a remote app can't look up the holder of a key; its server does so when a job is submitted")

    async def _usage(self, limit: str) -> list[Usage]:
        found: list[Usage] = await self._read("usage", limit)
        return found

    async def _records(self, prefix: str) -> list[Record]:
        found: list[Record] = await self._read("records", prefix)
        return found

    async def _wait(self, topics: list[str], timeout: float, after: int) -> int:
        found: int = await self._read("wait", topics, min(timeout, WAIT_SECONDS), after)
        return found

    # Writing.

    async def _put_record(
        self, name: str, value: str | None, expected: int | None, jobs: Sequence[Job]
    ) -> Record | Conflict:
        raise NotAllowed(f"record {name[:60]!r} can't be written through a server; connect to the store with its URL")

    async def _insert(self, jobs: Sequence[Job], parent: Lease | None) -> list[Inserted]:
        if parent is not None:
            raise _no_worker()
        raw = await self._wire.ask("POST", "/api/v1/store/insert", [_plain(job) for job in jobs], repeats=True)
        return msgspec.json.decode(raw, type=list[Inserted])

    async def _claim(self, worker: str, queues: list[str], limit: int, types: list[str] | None) -> list[Job]:
        raise _no_worker()

    async def _beat(self, presence: Presence) -> Beat:
        raise _no_worker()

    async def _commit(self, changes: Sequence[Change]) -> list[Applied | Conflict]:
        raise NotAllowed("a remote app can't change jobs this way; connect to the store itself, with its URL")

    async def _record(self, steps: Sequence[Step]) -> list[Recorded | Conflict]:
        raise _no_worker()

    async def _admit(
        self, asks: Sequence[Ask], steps: Sequence[Step]
    ) -> tuple[list[Admission | Conflict], list[Recorded | Conflict]]:
        raise _no_worker()

    async def _prune(self, limit: int) -> int:
        raise _no_worker()


def _plain(job: Job) -> Job:
    """A new job without what the server decides."""
    return replace(job, digest="")


def _no_worker() -> Invalid:
    return Invalid("a worker needs the store itself, not a server in front of it; give it the store's URL")
