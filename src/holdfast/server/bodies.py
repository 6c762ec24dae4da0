"""Reads requests within limits of size, depth and time, and writes JSON answers. Must not know a route."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any, TypeVar

import msgspec
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope

from holdfast.core.canonical import parse_document
from holdfast.core.errors import BadValue
from holdfast.server.problems import Problem

T = TypeVar("T")

HEAD_BYTES = 32 << 10
"""How large the head of a request may be: its first line and its headers."""

BODY_SECONDS = 30.0
"""How long the body of a request may take to arrive, and at most how long a streamed body may pause."""

MEDIA_TYPES = ("application/json", "application/openjobspec+json")
"""The media types of a JSON body."""


def check_head(scope: Scope) -> None:
    """Refuse a request whose head is too large. A server checks only heads that arrive in pieces."""
    size = len(scope["method"]) + len(scope.get("raw_path") or scope["path"]) + len(scope["query_string"])
    size += sum(len(name) + len(value) + 4 for name, value in scope["headers"])
    if size > HEAD_BYTES:
        raise Problem(
            431, "head_too_large", f"the head of the request is larger than {HEAD_BYTES:,} bytes; send shorter headers",
            headers={"Connection": "close"}, limit=HEAD_BYTES,
        )  # fmt: skip


def json_reply(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a value as a JSON answer. It may be a msgspec struct."""
    return Response(msgspec.json.encode(value), status, headers, media_type="application/json")


def check_media_type(content_type: str) -> None:
    """Refuse a body that isn't said to be JSON."""
    if content_type.partition(";")[0].strip().lower() not in MEDIA_TYPES:
        shown = f"{content_type[:60]!r}" if content_type else "no media type"
        raise Problem(
            415, "unsupported_media_type", f"the body has {shown}; send JSON with Content-Type: application/json"
        )


async def read_body(receive: Receive, headers: Mapping[str, str], most: int) -> bytes:
    """Read a whole body, or refuse it: too large (413), too slow (408)."""
    chunks = [chunk async for chunk in stream_body(receive, headers, most, whole_seconds=BODY_SECONDS)]
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


async def stream_body(
    receive: Receive, headers: Mapping[str, str], most: int, *, whole_seconds: float | None = None
) -> AsyncIterator[bytes]:
    """Read a body piece by piece. Without `whole_seconds`, only a pause is bounded, not the whole."""
    if headers.get("content-encoding", "identity").lower() != "identity":
        raise Problem(415, "unsupported_encoding", "a compressed body isn't accepted; send it without Content-Encoding")
    announced = headers.get("content-length", "")
    if announced.isdigit() and int(announced) > most:
        raise _too_large(most)
    loop, size = asyncio.get_running_loop(), 0
    until = None if whole_seconds is None else loop.time() + whole_seconds
    while True:
        try:
            async with asyncio.timeout_at(until if until is not None else loop.time() + BODY_SECONDS):
                message = await receive()
        except TimeoutError:
            raise Problem(
                408, "too_slow", f"the body didn't arrive within {BODY_SECONDS:g} s; send it again",
                headers={"Connection": "close"},
            ) from None  # fmt: skip
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > most:
            raise _too_large(most)
        if chunk:
            yield chunk
        if not message.get("more_body", False):
            return


def parse_body(raw: bytes, most: int) -> Any:
    """Return the value of a JSON body. Raise BadValue for what isn't strict JSON."""
    if not raw.strip():
        raise BadValue("the body is empty; send a JSON object")
    return parse_document(raw, most)


def convert(value: Any, type: type[T]) -> T:
    """Return a parsed value as this type, or raise BadValue that names the field."""
    try:
        return msgspec.convert(value, type)
    except msgspec.ValidationError as error:
        raise BadValue(f"the body: {error}; correct it and send it again") from None


def _too_large(most: int) -> Problem:
    return Problem(
        413, "too_large", f"the body is larger than {most:,} bytes; send less at once",
        headers={"Connection": "close"}, limit=most,
    )  # fmt: skip
