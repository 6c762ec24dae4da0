"""Large values and files over HTTP: read, looked for and uploaded by their hash. Must not know what refers to one.

An upload waits in a temporary file until its hash is known, so what a slow client sends holds nothing else up. A blob
that no job refers to within a day is deleted.
"""

import asyncio
import hashlib
import re
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from msgspec import Struct
from starlette.responses import Response, StreamingResponse

from holdfast.blobs import threads
from holdfast.blobs.local import LocalFile
from holdfast.core.errors import BadValue, Invalid, NotFound
from holdfast.core.references import Reference
from holdfast.jobs.large_values import stream
from holdfast.server.api.operation import Ask, Operation
from holdfast.server.api.requests import BlobQuery
from holdfast.server.problems import Problem
from holdfast.server.site import Site

BLOB_BYTES = 8 << 30
"""The largest blob that can be uploaded."""

UPLOADS = 16
"""How many uploads one server process takes at the same time."""

BINARY = "application/octet-stream"

SHOWN = re.compile(r"image/(png|jpeg|gif|webp|avif)|(audio|video)/[a-z0-9.+-]{1,60}")
"""The media types that a browser may show: it runs no code of theirs. Anything else is only saved."""

_SHA256 = re.compile(r"[0-9a-f]{64}")


class BlobStored(Struct, frozen=True, kw_only=True):
    """The blob that was stored."""

    sha256: str
    bytes: int


class Uploads:
    """How many uploads are under way at a server."""

    def __init__(self, site: Site) -> None:
        self.number = 0


async def read_blob(ask: Ask) -> Response:
    """Stream a blob. With HEAD, only say whether it is there, and its size."""
    reference = Reference(_sha256(ask), 0)
    media = ask.query.media or ""
    is_shown = SHOWN.fullmatch(media) is not None
    headers = {"Content-Disposition": "inline" if is_shown else f'attachment; filename="{reference.sha256}"'}
    if ask.call.method == "HEAD":
        blobs = await ask.jobs.engine.blobs.ready()
        size = await threads.run(blobs.size, reference)
        if size is None:
            raise NotFound(f"there is no blob {reference.sha256}")
        headers["Content-Length"] = str(size)
        return Response(headers=headers, media_type=media if is_shown else BINARY)
    chunks = stream(ask.jobs.engine, reference)
    first = await anext(chunks, b"")
    return StreamingResponse(_with_first(first, chunks), headers=headers, media_type=media if is_shown else BINARY)


async def _with_first(first: bytes, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for chunk in chunks:
        yield chunk


async def put_blob(ask: Ask) -> BlobStored:
    """Store a blob, if its content has this hash."""
    sha256, uploads = _sha256(ask), ask.call.server.part(Uploads)
    if uploads.number >= UPLOADS:
        raise Problem(503, "too_many_uploads", "this server takes as many uploads as it can; try again", retry_after=5)
    uploads.number += 1
    try:
        with tempfile.NamedTemporaryFile(prefix="holdfast-blob-") as file:
            hashed, size = hashlib.sha256(), 0
            async for chunk in ask.call.stream():
                hashed.update(chunk)
                size += len(chunk)
                await asyncio.to_thread(file.write, chunk)
            if hashed.hexdigest() != sha256:
                raise BadValue(f"the content has the hash {hashed.hexdigest()}, not {sha256}; nothing was stored")
            file.flush()
            await ask.jobs.engine.blobs.take_in(LocalFile(Path(file.name), Reference(sha256, size)))
    finally:
        uploads.number -= 1
    return BlobStored(sha256=sha256, bytes=size)


def _sha256(ask: Ask) -> str:
    text = ask.param("sha256")
    if not _SHA256.fullmatch(text):
        raise Invalid(f"{text[:80]!r} is not a blob's hash; give 64 hexadecimal digits in lower case")
    return text


BLOBS = (
    Operation("GET", "/blobs/{sha256}", "get_blob", "Read a large value or a file by its hash", "read", bytes,
              read_blob, query=BlobQuery, media=BINARY, is_stream=True),
    Operation("PUT", "/blobs/{sha256}", "put_blob", "Upload a file by its hash, before the job that refers to it",
              "submit", BlobStored, put_blob, status=201, is_stream=True, body_bytes=BLOB_BYTES, takes=BINARY),
)  # fmt: skip
"""The calls for large values and files."""
