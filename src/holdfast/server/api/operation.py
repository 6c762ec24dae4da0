"""What one call of the API is: its path, scope, types and handler, as data; and the route that it becomes."""

from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec import Struct, inspect
from msgspec.structs import replace
from starlette.responses import Response

from holdfast.core.errors import Invalid
from holdfast.core.suggestions import suggest
from holdfast.jobs.service import Jobs
from holdfast.redaction import redact
from holdfast.server.bodies import json_reply
from holdfast.server.call import Call
from holdfast.server.routes import BODY_BYTES, Route

PREFIX = "/api/v1"

T = TypeVar("T", bound=Struct)


class Ask(NamedTuple):
    """One call: who asks, the path's parameters, and the query and body as values."""

    call: Call
    query: Any
    body: Any

    @property
    def jobs(self) -> Jobs:
        """The jobs of the store."""
        return self.call.jobs

    @property
    def by(self) -> str:
        """Who asks."""
        return self.call.by

    def param(self, name: str) -> str:
        """Return a parameter of the path."""
        text: str = self.call.path_params[name]
        return text


class Operation(NamedTuple):
    """One call of the API. The router and the OpenAPI document are both made from it."""

    method: str
    path: str
    name: str
    summary: str
    scope: str
    answer: Any
    handle: Callable[[Ask], Awaitable[Any]]
    query: type[Struct] | None = None
    body: type[Struct] | None = None
    status: int = 200
    media: str = "application/json"
    is_stream: bool = False
    body_bytes: int = BODY_BYTES
    headers: Mapping[str, str] = MappingProxyType({})
    """The headers that the call reads, each with what it means."""
    takes: str = ""
    """The media type of a body that the handler reads itself."""


def route_of(one: Operation) -> Route:
    """Return the route of a call."""

    async def handle(call: Call) -> Response:
        query = None if one.query is None else read_query(call.query_params.multi_items(), one.query)
        body = None if one.body is None else _redacted(await call.read(one.body, {}))
        answer = await one.handle(Ask(call, query, body))
        return answer if isinstance(answer, Response) else json_reply(answer, one.status)

    most = 0 if one.method == "GET" else one.body_bytes
    return Route(one.method, PREFIX + one.path, handle, one.scope, most, one.is_stream)


def _redacted(body: Any) -> Any:
    """A body whose reason, which is kept for people to read, holds no registered secret."""
    reason = getattr(body, "reason", None)
    return replace(body, reason=redact(reason)) if isinstance(reason, str) else body


def read_query(items: list[tuple[str, str]], type: type[T]) -> T:
    """Read a query as a struct, or raise Invalid that names the parameter."""
    shape = inspect.type_info(type)
    assert isinstance(shape, inspect.StructType)
    fields = {field.encode_name: _plain(field.type) for field in shape.fields}
    given: dict[str, Any] = {}
    for name, text in items:
        if name not in fields:
            hint = suggest(name, sorted(fields)) or f"; there are {', '.join(fields)}"
            raise Invalid(f"{name[:40]!r} is no parameter of this call{hint}")
        if isinstance(fields[name], inspect.VarTupleType):
            given.setdefault(name, []).extend(part for part in text.split(",") if part)
        else:
            given[name] = text
    try:
        return msgspec.convert(given, type, strict=False)
    except msgspec.ValidationError as error:
        raise Invalid(f"the query: {error}; correct it and send it again") from None


def _plain(type: inspect.Type) -> inspect.Type:
    """Return a type without what its annotation says about it."""
    return _plain(type.type) if isinstance(type, inspect.Metadata) else type
