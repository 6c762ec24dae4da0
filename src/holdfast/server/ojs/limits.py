"""Rate limits: list, read and set them by their keys. Must not give a permit (`Engine.claim`)."""

from typing import Any

from starlette.responses import Response

from holdfast.core.declared_limits import declare
from holdfast.core.errors import NotFound
from holdfast.jobs.limits import LimitView, declare_limits, get_limit, list_limits, set_limit
from holdfast.server.call import Call
from holdfast.server.ojs.policies import limit_name, read_rate_limits
from holdfast.server.ojs.problems import unprocessable
from holdfast.server.ojs.service import MOST_IN_PAGE, PAGE, offset_of, ojs_of, page_of, read_object, reply


async def list_rates(call: Call) -> Response:
    """List the rate limits."""
    limit, offset = call.number("limit", PAGE, most=MOST_IN_PAGE), offset_of(call)
    found = await list_limits(ojs_of(call).engine)
    shown = [_shown(one) for one in found[offset : offset + limit]]
    return reply({"rate_limits": shown, "pagination": page_of(shown, limit, offset, len(found))})


async def get_rate(call: Call) -> Response:
    """Return one rate limit, and how much of it is used."""
    key = call.path_params["key"]
    return reply({"rate_limit": {**_shown(await get_limit(ojs_of(call).engine, limit_name(key))), "key": key}})


async def put_rate(call: Call) -> Response:
    """Set a rate limit, whatever jobs or code say."""
    ojs, key, body = ojs_of(call), call.path_params["key"], await read_object(call)
    given, *others = read_rate_limits({**body, "key": key}, "")
    if others:
        raise unprocessable("rate_limit", "a key has one rate; give rate or throttle, not both", "unsupported")
    try:
        await get_limit(ojs.engine, given.name)
    except NotFound:
        declared = declare(given.name, given.at_once, given.rate, given.burst, "", None)
        await declare_limits(ojs.engine, [declared], by=call.by)
    view = await set_limit(
        ojs.engine, given.name, at_once=given.at_once, rate=given.rate, burst=given.burst, by=call.by
    )
    return reply({"rate_limit": {**_shown(view), "key": key}})


def _shown(view: LimitView) -> dict[str, Any]:
    shown = {
        "key": view.name,
        "concurrency": view.now.at_once,
        "rate": view.now.rate,
        "burst": view.now.burst,
        "per": view.now.per or None,
        "usage": [{"key": one.key, "held": one.held, "waiting": one.waiting} for one in view.usage],
    }
    return {field: value for field, value in shown.items() if value is not None}
