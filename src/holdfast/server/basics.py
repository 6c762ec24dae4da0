"""`/health`, `/ready` and `/metrics`. The first two need no token, so they say nothing about the store."""

import asyncio

from starlette.responses import Response

from holdfast.core.errors import HoldfastError
from holdfast.server.bodies import json_reply
from holdfast.server.call import Call
from holdfast.server.metrics import METRICS
from holdfast.server.problems import RETRY_AFTER_SECONDS
from holdfast.server.routes import OPEN, Family, Route

READY_SECONDS = 2.0
"""How long the store may take to answer while the server counts as ready."""


async def health(call: Call) -> Response:
    """Answer that this process runs."""
    return json_reply({"status": "ok"})


async def ready(call: Call) -> Response:
    """Answer whether requests can be served: the store answers, and the server isn't stopping."""
    try:
        if not call.server.stopping.is_set():
            async with asyncio.timeout(READY_SECONDS):
                await call.server.ask_store()
            return json_reply({"status": "ready"})
    except (HoldfastError, TimeoutError):
        pass
    return json_reply({"status": "not ready"}, 503, {"Retry-After": str(RETRY_AFTER_SECONDS)})


BASICS = Family("/", (Route("GET", "/health", health, OPEN), Route("GET", "/ready", ready, OPEN), METRICS))
