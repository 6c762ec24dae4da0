"""The one route for callback tokens: a provider POSTs its answer as JSON. The token itself is the permission.

Must not decide whether a token is valid (`jobs.callbacks`).
"""

from starlette.responses import Response

from holdfast.core.limits import SIGNAL_BYTES
from holdfast.jobs.callbacks import answer_callback
from holdfast.server.bodies import json_reply
from holdfast.server.call import Call
from holdfast.server.routes import OPEN, Family, Route


async def answer(call: Call) -> Response:
    """Answer the wait that the token in the path belongs to."""
    jobs = await call.server.open()
    await answer_callback(jobs, call.path_params["token"], await call.json(None))
    return json_reply({"status": "accepted"})


CALLBACKS = Family("/callback", (Route("POST", "/callback/{token}", answer, OPEN, body_bytes=SIGNAL_BYTES),))
