"""The blobs of a store behind a server: read and uploaded by their hash, through its API.

Must not know jobs. The server itself marks what a job refers to, when it gets the job.
"""

from collections.abc import Iterable, Iterator, Sequence

from holdfast.blobs.store import CHUNK_BYTES, BlobStore, NoObject, Stored
from holdfast.core.errors import BlobGone
from holdfast.engines.http.wire import Wire


class HttpBlobs(BlobStore):
    """Blobs by their keys, whose last part is the hash. The server looks into the trash itself."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self.place = wire.place

    def put(self, key: str, chunks: Iterable[bytes], marks: Sequence[str] = ()) -> None:
        """See BlobStore."""
        with self._wire.call("PUT", _path(key), chunks) as answer:
            answer.read()

    def mark(self, keys: Sequence[str]) -> None:
        """See BlobStore. The server does this."""

    def get(self, key: str) -> Iterator[bytes]:
        """See BlobStore."""
        try:
            with self._wire.call("GET", _path(key)) as answer:
                while chunk := answer.read(CHUNK_BYTES):
                    yield chunk
        except BlobGone:
            raise NoObject(key) from None

    def size(self, key: str) -> int | None:
        """See BlobStore. Who may only submit isn't told, and uploads it again."""
        with self._wire.call("HEAD", _path(key)) as answer:
            return int(answer.headers["Content-Length"]) if answer.status == 200 else None

    def list(self, prefix: str = "") -> Iterator[Stored]:
        """See BlobStore. A server lists none."""
        return iter(())

    def move(self, key: str, to: str) -> None:
        """See BlobStore. The server does this."""

    def delete(self, keys: Sequence[str]) -> None:
        """See BlobStore. The server does this."""


def _path(key: str) -> str:
    return f"/api/v1/blobs/{key.rpartition('/')[2]}"
