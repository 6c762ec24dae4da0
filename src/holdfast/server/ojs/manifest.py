"""What this server is and can do: the manifest and the health of its store. Both must tell the truth."""

import asyncio
import time
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

import holdfast
from holdfast.core.errors import HoldfastError
from holdfast.server.call import Call
from holdfast.server.ojs.service import reply
from holdfast.server.ojs.vocabulary import VERSION

HEALTH_SECONDS = 5.0
"""How long the store may take to answer."""

LEVEL = 4
"""The highest level of which every part is there."""

_STARTED = time.monotonic()

CAPABILITIES = {
    "batch_enqueue": True,
    "cron_jobs": True,
    "dead_letter": True,
    "delayed_jobs": True,
    "job_ttl": True,
    "priority_queues": True,
    "rate_limiting": True,
    "schema_validation": False,
    "unique_jobs": True,
    "workflows": True,
    "pause_resume": True,
}
OFFICIAL = (
    *("admin-api", "ai-agents", "backpressure", "dead-letter", "durable-execution", "encryption", "graceful-shutdown"),
    *("job-versioning", "middleware", "observability", "progress", "rate-limiting", "realtime"),
)
"""The extensions whose requests are understood here. Of some, such as encryption, a server only keeps the fields."""

EXPERIMENTAL = ("x_lease_tokens", "x_steps")


async def manifest(call: Call) -> Response:
    """Describe this server."""
    return reply({
        "specversion": VERSION,
        "ojs_version": VERSION,
        "implementation": {"name": "holdfast", "version": holdfast.__version__, "language": "python"},
        "conformance_level": LEVEL,
        "conformance_tier": "runtime",
        "protocols": ["http"],
        "capabilities": CAPABILITIES,
        "extensions": {"official": list(OFFICIAL), "experimental": list(EXPERIMENTAL)},
        "unique_job_strength": "strong",
        "endpoints": {
            "manifest": "/ojs/manifest",
            "health": "/ojs/v1/health",
            "jobs": "/ojs/v1/jobs",
            "workers": "/ojs/v1/workers",
            "queues": "/ojs/v1/queues",
            "cron": "/ojs/v1/cron",
            "dead_letter": "/ojs/v1/dead-letter",
            "workflows": "/ojs/v1/workflows",
            "admin": "/ojs/v1/admin",
        },
    })  # fmt: skip


async def health(call: Call) -> Response:
    """Ask the store whether it answers."""
    began = time.perf_counter()
    body: dict[str, Any] = {
        "version": VERSION,
        "uptime_seconds": round(time.monotonic() - _STARTED),
    }
    try:
        async with asyncio.timeout(HEALTH_SECONDS):
            engine = await call.server.ask_store()
    except (HoldfastError, TimeoutError):
        return reply({"status": "unhealthy", "backend": {"status": "unhealthy"}, **body}, 503, _RETRY)
    latency = round((time.perf_counter() - began) * 1_000, 2)
    backend = {"type": engine.guarantees.name, "status": "ok", "latency_ms": latency}
    return reply({"status": "ok", "backend": backend, **body})


_RETRY: Mapping[str, str] = {"Retry-After": "2"}
