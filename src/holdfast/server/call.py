"""What a handler gets: the request, who asks, the jobs, and a body within bounds. Must not decide who may ask."""

from collections.abc import AsyncGenerator
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.types import Receive, Scope

from holdfast.core.errors import Invalid
from holdfast.jobs.service import Jobs
from holdfast.server.auth import ANY, ANYBODY, Principal
from holdfast.server.bodies import check_media_type, convert, parse_body, read_body, stream_body
from holdfast.server.site import Site

T = TypeVar("T")

_NONE = object()


class Call(Request):
    """One request. `path_params` has the path's parameters."""

    jobs: Jobs
    """The store's jobs; not on a route that needs no token."""

    def __init__(self, scope: Scope, receive: Receive, server: Site) -> None:
        super().__init__(scope, receive)
        self.server = server
        self.request_id = ""
        self.heads = {name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(scope["headers"])}
        """The first value of each header, by its name in lower case: read more quickly than `headers`."""
        self.principal: Principal = ANYBODY
        self.route = ""
        """The path of the route, with the names of its parameters."""
        self.needs = ANY
        """The scope that the route needs."""
        self.body_bytes = 0

    @property
    def root(self) -> str:
        """The path under which the server is mounted, for addresses in answers; "" at the top."""
        return str(self.scope.get("root_path", "")).rstrip("/")

    @property
    def path(self) -> str:
        """The path below `root`. A proxy may have cut off the part that it was given for the whole application."""
        path, root = self.scope["path"], self.root
        for mount in (root, root.removeprefix(self.scope.get("app_root_path", ""))):
            if mount and (path == mount or path.startswith(f"{mount}/")):
                return path[len(mount) :] or "/"
        return path or "/"

    @property
    def by(self) -> str:
        """Who asks, for the `by` of a change."""
        return self.principal.name

    async def body(self) -> bytes:
        """Read the whole body, up to the route's `body_bytes`."""
        if not hasattr(self, "_body"):
            self._body = await read_body(self.receive, self.heads, self.body_bytes)
        return self._body

    async def stream(self) -> AsyncGenerator[bytes, None]:
        """Read the body piece by piece, up to the route's `body_bytes`."""
        async for chunk in stream_body(self.receive, self.headers, self.body_bytes):
            yield chunk

    async def json(self, default: Any = _NONE) -> Any:
        """Read the body as strict JSON. An empty body is `default`, or refused if there is none."""
        body = await self.body()
        if not body and default is not _NONE:
            return default
        check_media_type(self.heads.get("content-type", ""))
        return parse_body(body, self.body_bytes)

    async def read(self, type: type[T], default: Any = _NONE) -> T:
        """Read the body as a value of this type, usually a msgspec struct. A misfit names the field."""
        return convert(await self.json(default), type)

    def number(self, name: str, default: int, *, least: int = 1, most: int) -> int:
        """Return a whole number from the query, within its bounds."""
        text = self.query_params.get(name)
        if text is None:
            return default
        if not (text.isascii() and text.isdigit() and len(text) < 10 and least <= int(text) <= most):
            raise Invalid(f"{name}={text[:40]}: give a whole number from {least} to {most}")
        return int(text)
