"""The ASGI application: each request passes Host and Origin, token, route, limits and handler, in that order.

Must not know a concrete route (`families`), an App or a store. It opens the store at the first request or at startup,
whichever comes first, so that it also works mounted in somebody else's application.
"""

import asyncio
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Collection, Iterable

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from holdfast.core.codec import Signature
from holdfast.core.errors import HoldfastError
from holdfast.jobs.service import Jobs
from holdfast.jobs.typed import TypedJobs
from holdfast.safe_text import logger
from holdfast.server.access import log_access
from holdfast.server.auth import OPEN, Auth, check_scope
from holdfast.server.bodies import check_head
from holdfast.server.call import Call
from holdfast.server.families import FAMILIES
from holdfast.server.origins import Origins
from holdfast.server.problems import Problem, internal, problem_details, problem_of
from holdfast.server.routes import Family, Route, Table
from holdfast.server.site import Site

log = logger("holdfast.server")

REQUEST_SECONDS = 60.0
"""How long a handler may take, unless its route is a stream."""

_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")

HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
}
"""On every answer, unless a handler set another value (`pages` has the policy of HTML pages)."""

_RAW_HEADERS = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]


class Server(Site):
    """Jobs over HTTP, as an ASGI application.

    `opening` opens the store and returns its jobs; it may be called often. `closing` closes it at the end of the
    server's life. `signatures` finds the signature of a job type whose code is loaded here.
    `typed` are the jobs of that code.
    """

    def __init__(
        self,
        opening: Callable[[], Awaitable[Jobs]],
        closing: Callable[[], Awaitable[None]] | None = None,
        *,
        host: str = "127.0.0.1",
        names: Collection[str] = (),
        auth: Auth | None = None,
        test_hooks: bool = False,
        requires_lease_token: bool = False,
        signatures: Callable[[str], Signature | None] = lambda type: None,
        typed: TypedJobs | None = None,
        families: Iterable[Family] = FAMILIES,
    ) -> None:
        super().__init__(opening, auth or Auth(), signatures, typed)
        self.requires_lease_token = requires_lease_token
        self.table = Table(families, hooks=test_hooks)
        self._closing = closing
        self._origins = Origins(host, names, any_host=self.auth.required)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection of the ASGI protocol."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            await self._serve(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1008})

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        try:
            jobs = await self.open()
        except HoldfastError as error:
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            return
        for family in self.table.families:
            if family.begin is not None:
                family.begin(self, jobs)
        await send({"type": "lifespan.startup.complete"})
        await receive()
        self.stopping.set()
        if self._closing is not None:
            await self._closing()
        await send({"type": "lifespan.shutdown.complete"})

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        call, began = Call(scope, receive, self), time.perf_counter()
        given = call.heads.get("x-request-id", "")
        call.request_id = given if given and _REQUEST_ID.fullmatch(given) else secrets.token_hex(8)
        answer = _Answer(send, call.request_id)
        try:
            response = await self._respond(call, scope["method"], call.path)
            await response(scope, receive, answer)
        except ClientDisconnect:
            answer.status = answer.status or 499
        except Exception as error:
            _log_failure(error, call)
            if not answer.status:
                await self._show(internal(), call)(scope, receive, answer)
        finally:
            log_access(call, answer.status, time.perf_counter() - began)

    async def _respond(self, call: Call, method: str, path: str) -> Response:
        """Return the answer to a request. Errors become answers here."""
        try:
            check_head(call.scope)
            self._origins.check(method, call.heads)
            found = self.table.find(path)
            route = None if found is None else found.methods.get("GET" if method == "HEAD" else method)
            if route is not None:
                call.route, call.needs, call.body_bytes = route.path, route.scope, route.body_bytes
            if call.needs != OPEN:
                call.jobs = await self.open()
                call.principal = await self.auth.identify(call.jobs, call.heads, method)
                check_scope(call.principal, call.needs)
            if found is None or route is None:
                raise _not_found(path, None if found is None else found.methods)
            call.scope["path_params"] = found.params
            if route.is_stream:
                return await route.handler(call)
            async with asyncio.timeout(REQUEST_SECONDS):
                return await route.handler(call)
        except HoldfastError as error:
            problem = problem_of(error)
            if problem.status == 500:
                _log_failure(error, call)
            return self._show(problem, call)
        except TimeoutError:
            text = f"the request took longer than {REQUEST_SECONDS:g} s; it may or may not have had an effect"
            return self._show(Problem(503, "timeout", text, retry_after=REQUEST_SECONDS / 10), call)

    def _show(self, problem: Problem, call: Call) -> Response:
        family = self.table.family_of(call.path)
        if family is None or family.show is None:
            return problem_details(problem, call.request_id)
        return family.show(problem, call)


class _Answer:
    """Sends an answer with our headers, and remembers its status."""

    def __init__(self, send: Send, request_id: str) -> None:
        self._send, self._request_id = send, request_id
        self.status = 0

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = message["headers"]
            given = {name for name, _ in headers}
            headers += [header for header in _RAW_HEADERS if header[0] not in given]
            headers.append((b"x-request-id", self._request_id.encode()))
        await self._send(message)


def _not_found(path: str, methods: dict[str, Route] | None) -> Problem:
    if methods is None:
        return Problem(404, "not_found", f"there is nothing at {path[:200]}")
    allowed = sorted({*methods, "HEAD"} if "GET" in methods else methods)
    return Problem(
        405, "method_not_allowed", f"use {' or '.join(allowed)} at {path[:200]}", headers={"Allow": ", ".join(allowed)}
    )


def _log_failure(error: BaseException, call: Call) -> None:
    log.error("request %s: %s %s failed", call.request_id, call.method, call.route, exc_info=error)
