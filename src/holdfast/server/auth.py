"""Who asks: the token of a request, its scopes, and what a browser may do. Must not know a route's handler.

While the store has no token, a server on loopback is open. From the first token on, revoked and expired ones included,
every request needs one. Tokens are read from the store for each request (`Fresh`), so that a token that was made or
revoked elsewhere counts from the next request on.
"""

import asyncio
import hmac
from collections.abc import Awaitable, Callable, Mapping
from hashlib import sha256
from typing import Generic, TypeVar

from msgspec import Struct
from starlette.requests import cookie_parser

from holdfast.core.errors import HoldfastError
from holdfast.jobs.service import Jobs
from holdfast.jobs.tokens import SCOPES, Token, find_token, list_tokens, note_use
from holdfast.server.problems import Problem

T = TypeVar("T")

OPEN = "open"
"""The scope of a route that needs no token."""

ANY = "any"
"""The scope of a route that needs a valid token, whatever its scopes."""

COOKIE = "holdfast_token"
"""The cookie of the dashboard. It holds the token, so that it ends with the token."""

CSRF_HEADER = "x-csrf-token"
"""The header with `csrf_of(token)` that every request needs that changes something by cookie."""

SAFE_METHODS = ("GET", "HEAD", "OPTIONS")


class Principal(Struct, frozen=True):
    """Who asks: the name of the token, and what it may do. `name` is the `by` of every change."""

    name: str
    scopes: frozenset[str]
    token: str = ""
    """The id of the token; "" on an open server."""
    by_cookie: bool = False

    def may(self, scope: str) -> bool:
        """Return whether this scope, or ANY or OPEN, is enough."""
        return scope in (OPEN, ANY) or scope in self.scopes


ANYBODY = Principal("http", frozenset(SCOPES))
"""Everybody on an open server."""


class Auth:
    """Finds out who asks. `required`: a token is needed even while the store has none. `off`: never."""

    def __init__(self, *, required: bool = False, off: bool = False) -> None:
        self.required = required
        self.off = off
        self._fresh: Fresh[list[Token]] = Fresh()
        self.noting: set[asyncio.Task[None]] = set()

    async def identify(self, jobs: Jobs, headers: Mapping[str, str], method: str) -> Principal:
        """Return who asks, or raise Problem 401: no token, or one that isn't valid."""
        if self.off:
            return ANYBODY
        tokens = await self._fresh.read(lambda: list_tokens(jobs.engine))
        if not tokens and not self.required:
            return ANYBODY
        text, by_cookie = token_in(headers)
        if not text:
            raise _unauthorized("this server needs a token; send Authorization: Bearer TOKEN")
        token = find_token(tokens, text)
        if token is None:
            raise _unauthorized("the token isn't known here; make one with holdfast token create")
        now = await jobs.engine.now()
        state = token.state(now)
        if state != "valid":
            raise _unauthorized(f"the token {token.name} is {state}; make another one with holdfast token create")
        if by_cookie and method not in SAFE_METHODS:
            check_csrf(text, headers)
        self._note(jobs, token, now)
        return Principal(token.name, frozenset(token.scopes), token.id, by_cookie)

    def _note(self, jobs: Jobs, token: Token, now: int) -> None:
        """Write the last use of a token, off the path of the request."""

        async def note() -> None:
            try:
                await note_use(jobs.engine, token, now)
            except HoldfastError:  # only a hint for people
                return

        if token.needs_note(now) and not self.noting:
            task = asyncio.create_task(note())
            self.noting.add(task)
            task.add_done_callback(self.noting.discard)


class Fresh(Generic[T]):
    """Reads something for many callers at once: each gets a read that began after its call, shared with others."""

    def __init__(self) -> None:
        self._next: asyncio.Future[T] | None = None
        self._running = False

    async def read(self, load: Callable[[], Awaitable[T]]) -> T:
        """Return what `load` returns."""
        if self._next is None:
            self._next = asyncio.get_running_loop().create_future()
            self._next.add_done_callback(_seen)
        mine = self._next
        if not self._running:
            self._running = True
            task = asyncio.create_task(self._serve(load))
            self._task = task  # keep it alive
        return await asyncio.shield(mine)

    async def _serve(self, load: Callable[[], Awaitable[T]]) -> None:
        try:
            while (waiting := self._next) is not None:
                self._next = None
                try:
                    waiting.set_result(await load())
                except BaseException as error:
                    waiting.set_exception(error if isinstance(error, Exception) else RuntimeError("the read ended"))
                    if not isinstance(error, Exception):
                        raise
        finally:
            self._running = False


def _seen(future: "asyncio.Future[T]") -> None:
    """A read that failed after all its callers left isn't worth a warning."""
    if not future.cancelled():
        future.exception()


def token_in(headers: Mapping[str, str]) -> tuple[str, bool]:
    """Return the token of a request and whether it came as a cookie. The header counts first."""
    kind, _, text = headers.get("authorization", "").partition(" ")
    if kind:
        return (text.strip(), False) if kind.lower() == "bearer" else ("", False)
    return cookie_parser(headers.get("cookie", "")).get(COOKIE, ""), True


def csrf_of(token: str) -> str:
    """Return what a page must send in CSRF_HEADER with every change. Another site can't know it."""
    return hmac.new(token.encode(errors="surrogatepass"), b"holdfast csrf", sha256).hexdigest()


def check_csrf(token: str, headers: Mapping[str, str]) -> None:
    """Refuse a change by cookie that doesn't come from our own page."""
    given = headers.get(CSRF_HEADER, "").encode(errors="surrogatepass")
    if not hmac.compare_digest(csrf_of(token).encode(), given):
        raise Problem(403, "csrf", "a change by cookie needs the header X-CSRF-Token; reload the page")


def check_scope(principal: Principal, scope: str) -> None:
    """Refuse a principal whose token lacks the scope that a route needs."""
    if not principal.may(scope):
        has = ", ".join(one for one in SCOPES if one in principal.scopes)
        raise Problem(
            403, "forbidden", f"the token {principal.name} may not do this: it needs the scope {scope} and has {has}",
            scope=scope,
        )  # fmt: skip


def _unauthorized(detail: str) -> Problem:
    return Problem(401, "unauthorized", detail, headers={"WWW-Authenticate": 'Bearer realm="holdfast"'})
