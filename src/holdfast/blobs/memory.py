"""Blobs in the memory of this process: for tests, and for stores that end with their process."""

import threading
import time
from collections.abc import Iterable, Iterator, Sequence

from holdfast import forking
from holdfast.blobs.store import BlobStore, NoObject, Stored


class MemoryBlobs(BlobStore, forking.Forkable):
    """Objects in a dict."""

    place = "memory"

    def __init__(self) -> None:
        self._objects: dict[str, tuple[bytes, int]] = {}
        self.leave_behind()
        forking.watch(self)

    def leave_behind(self) -> None:
        """See Forkable."""
        self._lock = threading.Lock()

    def put(self, key: str, chunks: Iterable[bytes], marks: Sequence[str] = ()) -> None:
        """See BlobStore."""
        self.mark(marks)
        content = b"".join(chunks)
        with self._lock:
            self._objects[key] = (content, _now())

    def mark(self, keys: Sequence[str]) -> None:
        """See BlobStore."""
        with self._lock:
            self._objects.update(dict.fromkeys(keys, (b"", _now())))

    def get(self, key: str) -> Iterator[bytes]:
        """See BlobStore."""
        with self._lock:
            if key not in self._objects:
                raise NoObject(key)
            return iter([self._objects[key][0]])

    def size(self, key: str) -> int | None:
        """See BlobStore."""
        with self._lock:
            return len(self._objects[key][0]) if key in self._objects else None

    def list(self, prefix: str = "") -> Iterator[Stored]:
        """See BlobStore."""
        with self._lock:
            found = sorted(key for key in self._objects if key.startswith(prefix))
            return iter([Stored(key, len(self._objects[key][0]), self._objects[key][1]) for key in found])

    def move(self, key: str, to: str) -> None:
        """See BlobStore."""
        with self._lock:
            if key in self._objects:
                self._objects[to] = (self._objects.pop(key)[0], _now())

    def delete(self, keys: Sequence[str]) -> None:
        """See BlobStore."""
        with self._lock:
            for key in keys:
                self._objects.pop(key, None)


def _now() -> int:
    return time.time_ns() // 1_000_000
