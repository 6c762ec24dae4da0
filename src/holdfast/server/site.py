"""What all requests of a server share: the store, who may ask, the open streams. Must not know HTTP or a route."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from holdfast.core.codec import Signature
from holdfast.core.model import Record
from holdfast.engines.contract import Engine
from holdfast.jobs.service import Jobs
from holdfast.jobs.typed import TypedJobs
from holdfast.server.auth import Auth, Fresh
from holdfast.telemetry.counters import Counters

T = TypeVar("T")

GRACE_SECONDS = 10
"""How long open requests may take when the server stops."""

NO_RECORD = "health/"
"""What no record's name begins with: asking for it costs a store next to nothing."""


class Site:
    """The shared state of one server."""

    def __init__(
        self,
        opening: Callable[[], Awaitable[Jobs]],
        auth: Auth,
        signatures: Callable[[str], Signature | None],
        typed: TypedJobs | None = None,
    ) -> None:
        self._opening = opening
        self.counters = Counters()
        """What this server has counted, for /metrics."""
        self.auth = auth
        self.signatures = signatures
        """Return the signature of a job type whose code is loaded here, or None."""
        self.typed = typed
        """The jobs of the app that is loaded here, or None."""
        self._parts: dict[Any, Any] = {}
        self._asking: Fresh[list[Record]] = Fresh()
        self.requires_lease_token = False
        """Whether workers over HTTP must show their lease token with every write."""
        self.stopping = asyncio.Event()
        """Set when the server stops: streams end, /ready says so."""
        self.streams = 0
        """How many streams are open."""

    async def open(self) -> Jobs:
        """Open the store, if it isn't open, and return its jobs."""
        jobs = await self._opening()
        jobs.engine.observe(self.counters)
        return jobs

    async def ask_store(self) -> Engine:
        """Return the store's engine after the store itself has answered; many callers share one question."""
        engine = (await self.open()).engine
        await self._asking.read(lambda: engine.records(NO_RECORD))  # the time would not do: it may be known here
        return engine

    def part(self, kind: Callable[["Site"], T]) -> T:
        """Return what a family of routes keeps for the life of the server. It is made at first use."""
        if kind not in self._parts:
            self._parts[kind] = kind(self)
        found: T = self._parts[kind]
        return found
