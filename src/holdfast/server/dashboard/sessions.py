"""Logging in from a browser: a token becomes a cookie that no script can read. Must not keep anything on the server.

The cookie holds the token, so it ends with the token. Every change by cookie also needs the CSRF value, which the page
reads from its session; another site can do neither.
"""

from urllib.parse import quote

from msgspec import Struct
from starlette.responses import Response

from holdfast.jobs.tokens import SCOPES
from holdfast.server.auth import COOKIE, csrf_of, token_in
from holdfast.server.bodies import json_reply
from holdfast.server.call import Call

COOKIE_SECONDS = 30 * 86_400
"""How long a browser keeps the cookie. A token that ends earlier ends it too."""


class LogIn(Struct, frozen=True, forbid_unknown_fields=True):
    """What the login page sends."""

    token: str


class Session(Struct, frozen=True):
    """Who looks at the dashboard: the token's name, what it may do, and what every change must carry."""

    name: str
    scopes: tuple[str, ...]
    csrf: str
    has_token: bool


async def log_in(call: Call) -> Response:
    """Set the cookie for a token that is valid now."""
    given = await call.read(LogIn)
    text = given.token.strip()
    jobs = await call.server.open()
    await call.server.auth.identify(jobs, {"authorization": f"Bearer {text}"}, "GET")
    reply = json_reply({"ok": True})
    reply.set_cookie(
        COOKIE,
        text,
        max_age=COOKIE_SECONDS,
        path=call.root or "/",
        secure=call.url.scheme == "https",
        httponly=True,
        samesite="strict",
    )
    return reply


async def log_out(call: Call) -> Response:
    """Forget the cookie."""
    reply = json_reply({"ok": True})
    reply.delete_cookie(COOKIE, path=call.root or "/", httponly=True, samesite="strict")
    return reply


async def session(call: Call) -> Response:
    """Say who asks, and what they may do: the page shows no button that the token doesn't cover."""
    text, _ = token_in(call.headers)
    scopes = tuple(one for one in SCOPES if call.principal.may(one))
    return json_reply(Session(call.principal.name, scopes, csrf_of(text) if text else "", bool(call.principal.token)))


def login_address(call: Call) -> str:
    """Return the address of the login page, from which the browser comes back to the page that it asked for."""
    query = f"?{call.url.query}" if call.url.query else ""
    return f"{call.root}/login?next={quote(call.root + call.path + query, safe='')}"
