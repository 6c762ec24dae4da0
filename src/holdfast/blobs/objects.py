"""Blobs in an object store: S3, Google Cloud Storage, Azure, or what speaks like them, through obstore.

Must not be imported without the extra `blobs` (`opening`). Credentials come from the environment, as for the store's
own tools.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from itertools import chain
from typing import Any

import obstore
from obstore.exceptions import BaseError, NotFoundError
from obstore.store import from_url

from holdfast.blobs.store import CHUNK_BYTES, BlobStore, NoObject, Stored, shown
from holdfast.core.errors import BlobsAway, Invalid

RETRY_SECONDS = 120.0
"""For how long a request is repeated while the object store fails."""

REQUEST_SECONDS = 30.0
"""How long one request may take until it is repeated."""

PART_BYTES = 8 << 20
"""The size of the parts of a large upload. Two are in memory at a time."""

DELETED_AT_ONCE = 1_000


class ObjectBlobs(BlobStore):
    """Objects under a URL such as `s3://bucket/folder`."""

    def __init__(self, url: str, retry_seconds: float = RETRY_SECONDS) -> None:
        self.address = url
        self.place = shown(url)
        options: dict[str, Any] = {
            "retry_config": {
                "max_retries": 1_000,
                "retry_timeout": timedelta(seconds=retry_seconds),
                "backoff": {"max_backoff": timedelta(seconds=5)},
            },
            "client_options": {"timeout": timedelta(seconds=REQUEST_SECONDS), "allow_http": True},
        }
        try:
            self._store: Any = from_url(url, **options)
        except (BaseError, ValueError) as error:
            raise Invalid(f"blobs {self.place}: {_line(error)}; give a URL such as s3://bucket/folder") from None

    def put(self, key: str, chunks: Iterable[bytes], marks: Sequence[str] = ()) -> None:
        """See BlobStore."""
        self.mark(marks)
        parts, first = iter(chunks), bytearray()
        while len(first) <= PART_BYTES and (chunk := next(parts, b"")):
            first += chunk
        with self._in_place(key):
            if len(first) <= PART_BYTES:  # one request
                obstore.put(self._store, key, bytes(first), use_multipart=False)
            else:
                whole = chain([bytes(first)], parts)
                obstore.put(self._store, key, whole, chunk_size=PART_BYTES, max_concurrency=2)

    def mark(self, keys: Sequence[str]) -> None:
        """See BlobStore."""
        for key in keys:
            with self._in_place(key):
                obstore.put(self._store, key, b"")

    def get(self, key: str) -> Iterator[bytes]:
        """See BlobStore."""
        with self._calling(key):
            for chunk in obstore.get(self._store, key).stream(min_chunk_size=CHUNK_BYTES):
                yield bytes(chunk)

    def size(self, key: str) -> int | None:
        """See BlobStore."""
        try:
            with self._calling(key):
                return int(obstore.head(self._store, key)["size"])
        except NoObject:
            return None

    def list(self, prefix: str = "") -> Iterator[Stored]:
        """See BlobStore. Object stores list whole path segments, in the order of the keys."""
        with self._in_place(prefix):
            for page in obstore.list(self._store, prefix=prefix.rpartition("/")[0] or None):
                for one in page:
                    if one["path"].startswith(prefix):
                        yield Stored(one["path"], one["size"], round(one["last_modified"].timestamp() * 1_000))

    def move(self, key: str, to: str) -> None:
        """See BlobStore."""
        try:
            with self._calling(key):
                obstore.copy(self._store, key, to)
        except NoObject:
            return
        self.delete([key])

    def delete(self, keys: Sequence[str]) -> None:
        """See BlobStore."""
        for start in range(0, len(keys), DELETED_AT_ONCE):
            try:
                with self._calling(keys[start]):
                    obstore.delete(self._store, keys[start : start + DELETED_AT_ONCE])
            except NoObject:
                continue

    @contextmanager
    def _in_place(self, key: str) -> Iterator[None]:
        """Like `_calling`, where only the bucket itself can be what is not found."""
        try:
            with self._calling(key):
                yield
        except NoObject:
            raise BlobsAway(
                f"blob store {self.place}: there is no such bucket or container; create it, or correct the name in "
                "App(blobs=…) or $HOLDFAST_BLOBS"
            ) from None

    @contextmanager
    def _calling(self, key: str) -> Iterator[None]:
        """Turn obstore's errors into ours."""
        try:
            yield
        except (NotFoundError, FileNotFoundError):
            raise NoObject(key) from None
        except (BaseError, OSError) as error:
            raise BlobsAway(f"blob store {self.place}: {_line(error)}") from error


def _line(error: BaseException) -> str:
    """The first line of an error: those of obstore fill a page."""
    return " ".join(str(error).strip().partition("\n")[0].split())[:300]
