"""`/metrics`: what the store holds and what this server has counted, as Prometheus reads it."""

from starlette.responses import Response

from holdfast.server.call import Call
from holdfast.server.routes import Route
from holdfast.telemetry.metrics import as_text
from holdfast.telemetry.store import store_lines


async def metrics(call: Call) -> Response:
    """Return the numbers as text."""
    lines = [*await store_lines(call.jobs), *call.server.counters.lines()]
    # Starlette adds a charset to a media type that begins with text, and the Open Job Spec wants none.
    return Response(as_text(lines), headers={"content-type": "text/plain"})


METRICS = Route("GET", "/metrics", metrics, "read")
