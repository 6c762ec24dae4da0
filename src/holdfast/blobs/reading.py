"""Reading a blob as a stream, with or without an event loop. Must not know where its chunks come from."""

import io
from collections.abc import AsyncIterator, Iterator
from types import TracebackType
from typing import Any

from holdfast.blobs import threads
from holdfast.blobs.blobs import Blobs
from holdfast.blobs.here import is_in_loop, run_blocking
from holdfast.blobs.local import LocalFile
from holdfast.core.references import Reference


class BlobStream:
    """A blob that is being read. What was read is checked by its hash when the end is reached."""

    def __init__(self, reference: Reference, source: Blobs | LocalFile) -> None:
        self._reference = reference
        self._source = source
        self._chunks: Iterator[bytes] | None = None
        self._rest = b""

    async def read(self, size: int = -1) -> bytes:
        """Read up to this many bytes; all that are left without a size; nothing at the end."""
        parts = []
        while size:
            chunk = self._rest or await self._next()
            if not chunk:
                break
            taken = chunk if size < 0 else chunk[:size]
            self._rest = chunk[len(taken) :]
            parts.append(taken)
            if size > 0:
                break
        return b"".join(parts)

    async def _next(self) -> bytes:
        if self._chunks is None:
            source = self._source
            self._chunks = source.chunks() if isinstance(source, LocalFile) else await source.stream(self._reference)
        return await threads.run(next, self._chunks, b"")

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while chunk := self._rest or await self._next():
            self._rest = b""
            yield chunk

    async def __aenter__(self) -> "BlobStream":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def __enter__(self) -> io.BufferedReader:
        source = self._source
        if isinstance(source, LocalFile):
            self._chunks = source.chunks()
        elif source.prefix is None or not is_in_loop():
            self._chunks = run_blocking(source.stream(self._reference), "open")
        else:
            self._chunks = source.chunks(self._reference)
        return io.BufferedReader(_Raw(self._chunks))

    def __exit__(self, *trouble: object) -> None:
        self._close()

    def _close(self) -> None:
        chunks: Any = self._chunks
        if hasattr(chunks, "close"):
            chunks.close()


class _Raw(io.RawIOBase):
    """Chunks as a raw binary file."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._rest:
            self._rest = memoryview(next(self._chunks, b""))
        count = min(len(buffer), len(self._rest))
        buffer[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count
