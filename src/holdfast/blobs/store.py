"""Where blobs are kept: the few methods that a blob store has, and what it raises. Must not know jobs or hashes.

Keys are plain text such as `ab/ab12…`. Every method blocks, is called from threads of `blobs.threads`, and may be
called by many at the same time. An object never changes: it appears whole, or not at all.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

CHUNK_BYTES = 1 << 20
"""How much of a blob is in memory at a time."""


class Stored(Struct, frozen=True, gc=False):
    """One object of a blob store: its key, its size, and since when it has been there, in milliseconds since 1970."""

    key: str
    size: int
    at: int


class NoObject(Exception):
    """There is no object with this key."""


class BlobStore(ABC):
    """Keeps objects by key."""

    place: str
    """Where it is, for people, without secrets."""

    address: str | None = None
    """The URL under which another process of this machine can open the same objects; None if it can't."""

    @abstractmethod
    def put(self, key: str, chunks: Iterable[bytes], marks: Sequence[str] = ()) -> None:
        """Store an object, and before it these marks. All are durable when this returns.

        Law: if `chunks` raises, there is no object.
        """

    @abstractmethod
    def mark(self, keys: Sequence[str]) -> None:
        """Store empty objects, durably. One that exists gets a new time."""

    @abstractmethod
    def get(self, key: str) -> Iterator[bytes]:
        """Read an object in chunks of about CHUNK_BYTES. Raises NoObject, at the latest with the first chunk."""

    @abstractmethod
    def size(self, key: str) -> int | None:
        """How many bytes the object with this key has; None if there is none."""

    def has(self, key: str) -> bool:
        """Whether there is an object with this key."""
        return self.size(key) is not None

    @abstractmethod
    def list(self, prefix: str = "") -> Iterator[Stored]:
        """The objects whose keys start with `prefix`, sorted by key. Law: it doesn't hold all of them in memory."""

    @abstractmethod
    def move(self, key: str, to: str) -> None:
        """Rename an object, which gets a new time. Nothing happens if it isn't there."""

    @abstractmethod
    def delete(self, keys: Sequence[str]) -> None:
        """Remove objects. Nothing happens for keys that aren't there."""

    def close(self) -> None:
        """Release everything. It can be called twice."""
        return


def shown(url: str) -> str:
    """A URL without user, password and options, for people."""
    return re.sub(r"//[^/@]*@", "//***@", url.partition("?")[0])
