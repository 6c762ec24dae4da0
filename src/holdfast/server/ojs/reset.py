"""Empties the store, for conformance tests. The route exists only with --test-hooks. Must not touch tokens."""

from starlette.responses import Response

from holdfast.jobs.reset import empty_store
from holdfast.server.call import Call
from holdfast.server.ojs.service import forget, ojs_of, reply


async def reset(call: Call) -> Response:
    """Remove all jobs, and all records but the tokens, the leadership and our own workers."""
    await empty_store(ojs_of(call).engine)
    forget(call)
    return reply({"reset": True})
