"""What a worker and the process of an isolated step say to one another: length-prefixed JSON on a socket.

Must not touch the socket. Arguments and results lie in it as the canonical text they are, neither parsed nor escaped.
"""

import struct
from typing import Any

import msgspec
from msgspec import Raw, Struct

from holdfast.core.codec import PAYLOAD_LIMIT
from holdfast.core.model import Error
from holdfast.worker.context import Current
from holdfast.worker.isolation.place import Target

HEAD = struct.Struct("!I")
"""In front of each frame: how many bytes follow."""

FRAME_LIMIT = 2 * PAYLOAD_LIMIT
"""A frame holds one payload and little else. What claims to be longer is no frame."""


# To the process.


class Warm(Struct, tag=True, frozen=True):
    """The first word: modules to import ahead, and from which level on log lines are wanted."""

    known: list[Target]
    level: int


class Call(Struct, tag=True, frozen=True):
    """Run this function."""

    target: Target
    args: Raw
    current: Current
    memory_mb: int | None


# From the process.


class Ready(Struct, tag=True, frozen=True):
    """The process has started, and waits for calls."""


class Began(Struct, tag=True, frozen=True):
    """The module is imported and the arguments are read: from here on the step's own time runs."""


class Progress(Struct, tag=True, frozen=True):
    """What the step's code told with `progress()`."""

    done: Any
    total: Any
    text: str


class Logged(Struct, tag=True, frozen=True):
    """What the step's code wrote with `logging`."""

    logger: str
    level: int
    text: str
    at: float


class Done(Struct, tag=True, frozen=True):
    """The function's result."""

    result: Raw
    worn: bool = False
    """Whether the process is better not used again."""


class Failed(Struct, tag=True, frozen=True):
    """The function's error."""

    error: Error
    worn: bool = False


Heard = Ready | Began | Progress | Logged | Done | Failed
"""What a process may say."""

_encode = msgspec.json.Encoder().encode
_heard: msgspec.json.Decoder[Heard] = msgspec.json.Decoder(Heard)
_told: msgspec.json.Decoder[Warm | Call] = msgspec.json.Decoder(Warm | Call)


def frame(word: Warm | Call | Heard) -> bytes:
    """A word, ready to be sent."""
    body = _encode(word)
    return HEAD.pack(len(body)) + body


def heard(body: bytes) -> Heard:
    """What a process said."""
    return _heard.decode(body)


def told(body: bytes) -> Warm | Call:
    """What a process is told."""
    return _told.decode(body)
