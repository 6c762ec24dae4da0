"""All calls of the API, their routes, and the OpenAPI document. Must not handle a call itself."""

from functools import cache

from msgspec import json
from starlette.responses import Response

from holdfast.jobs.service import Jobs
from holdfast.server.api.acts import ACTS
from holdfast.server.api.blobs import BLOBS
from holdfast.server.api.bulk import BULK
from holdfast.server.api.live import LIVE
from holdfast.server.api.looks import LOOKS
from holdfast.server.api.openapi import openapi_of
from holdfast.server.api.operation import PREFIX, Operation, route_of
from holdfast.server.api.place_acts import PLACE_ACTS
from holdfast.server.api.store import STORE
from holdfast.server.api.watch import Watch
from holdfast.server.call import Call
from holdfast.server.routes import ANY, Family, Route
from holdfast.server.site import Site

OPERATIONS: tuple[Operation, ...] = (*LOOKS, *LIVE, *ACTS, *PLACE_ACTS, *BULK, *BLOBS, *STORE)
"""Every call, in the order of the document."""


@cache
def document() -> bytes:
    """Return the OpenAPI document as JSON."""
    return json.format(json.encode(openapi_of(OPERATIONS)), indent=2)


async def _openapi(call: Call) -> Response:
    return Response(document(), media_type="application/json")


def _begin(site: Site, jobs: Jobs) -> None:
    """Begin to count what ends and what is spent."""
    site.part(Watch).start(jobs)


API = Family(
    "/api",
    (Route("GET", f"{PREFIX}/openapi.json", _openapi, ANY), *(route_of(one) for one in OPERATIONS)),
    begin=_begin,
)
