"""Routes as data: each with the scope that a token needs and the largest body. Must not know what a handler does.

The table finds a route exactly: no trailing slash, no doubled slash, no other case. So nobody reaches a handler past
the check of its scope.
"""

from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple

from msgspec import Struct
from starlette.responses import Response

from holdfast.jobs.service import Jobs
from holdfast.jobs.tokens import SCOPES
from holdfast.server.auth import ANY, OPEN
from holdfast.server.call import Call
from holdfast.server.problems import Problem
from holdfast.server.site import Site

__all__ = ["ANY", "BODY_BYTES", "OPEN", "Family", "Handler", "Route", "Show", "Table"]

Handler = Callable[[Call], Awaitable[Response]]
Show = Callable[[Problem, Call], Response]
Begin = Callable[[Site, Jobs], None]

BODY_BYTES = 2 << 20
"""The largest body of a route that takes one job or one small thing. Arguments are at most half of this."""


class Route(Struct, frozen=True):
    """One method of one path. `{name}` matches one segment, `{name:path}` at the end matches the rest."""

    method: str
    path: str
    handler: Handler
    scope: str
    """A scope of `jobs.tokens.SCOPES`; or OPEN, or ANY."""
    body_bytes: int = 0
    """The largest body. With 0 the handler must not read one."""
    is_stream: bool = False
    """Whether the answer may take longer than REQUEST_SECONDS: events, downloads, uploads."""
    is_hook: bool = False
    """Whether the route exists only with --test-hooks."""

    def __post_init__(self) -> None:
        assert self.scope in (*SCOPES, OPEN, ANY), f"{self.method} {self.path}: unknown scope {self.scope}"
        assert self.method in ("GET", "POST", "PUT", "PATCH", "DELETE"), self.method


class Family(Struct, frozen=True):
    """The routes below one prefix, how an error looks there (None: problem details), what begins with the server."""

    prefix: str
    routes: tuple[Route, ...]
    show: Show | None = None
    begin: Begin | None = None


class Found(NamedTuple):
    """What a path leads to: the routes by method, and the path's parameters."""

    methods: dict[str, Route]
    params: dict[str, str]


class Table:
    """Finds the route of a request in time that doesn't grow with the number of routes."""

    def __init__(self, families: Iterable[Family], *, hooks: bool = False) -> None:
        self.families = tuple(families)
        self.routes = tuple(route for family in self.families for route in family.routes if hooks or not route.is_hook)
        self._plain: dict[str, Found] = {}
        self._root = _Node()
        for route in self.routes:
            self._add(route)

    def find(self, path: str) -> Found | None:
        """Return what a path leads to, or None."""
        if (found := self._plain.get(path)) is not None:
            return found
        if not path.startswith("/"):
            return None
        return self._root.walk(path[1:].split("/"), 0, [])

    def family_of(self, path: str) -> Family | None:
        """Return the family that answers for a path, also if the path leads nowhere."""
        fit = [one for one in self.families if path == one.prefix or path.startswith(one.prefix.rstrip("/") + "/")]
        return max(fit, key=lambda one: len(one.prefix), default=None)

    def _add(self, route: Route) -> None:
        if "{" not in route.path:
            methods = self._plain.setdefault(route.path, Found({}, {})).methods
        else:
            node, names = self._root, []
            for segment in route.path[1:].split("/"):
                node, name = node.child(segment)
                names += [name] if name else []
            methods = node.methods
            assert node.names in ([], names), f"{route.path}: another route calls its parameters {node.names}"
            node.names = names
        assert route.method not in methods, f"{route.method} {route.path} is declared twice"
        methods[route.method] = route


class _Node:
    """One segment of the paths with parameters."""

    def __init__(self) -> None:
        self.words: dict[str, _Node] = {}
        self.one: _Node | None = None
        self.rest: _Node | None = None
        self.methods: dict[str, Route] = {}
        self.names: list[str] = []

    def child(self, segment: str) -> tuple["_Node", str]:
        if not segment.startswith("{"):
            return self.words.setdefault(segment, _Node()), ""
        name, _, kind = segment.strip("{}").partition(":")
        if kind == "path":
            self.rest = self.rest or _Node()
            return self.rest, name
        self.one = self.one or _Node()
        return self.one, name

    def walk(self, segments: list[str], at: int, values: list[str]) -> Found | None:
        if at == len(segments):
            return Found(self.methods, dict(zip(self.names, values, strict=True))) if self.methods else None
        segment = segments[at]
        word = self.words.get(segment)
        if word is not None and (found := word.walk(segments, at + 1, values)) is not None:
            return found
        if self.one is not None and segment:
            found = self.one.walk(segments, at + 1, [*values, segment])
            if found is not None:
                return found
        if self.rest is not None:
            return self.rest.walk([], 0, [*values, "/".join(segments[at:])])
        return None
