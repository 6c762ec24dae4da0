"""What a worker and the process of an isolated step or job say to one another: length-prefixed JSON on a socket.

Must not touch the socket. Arguments and results lie in it as the canonical text they are, neither parsed nor escaped.
"""

import struct
from typing import Any

import msgspec
from msgspec import Raw, Struct

from holdfast.core.codec import PAYLOAD_LIMIT
from holdfast.core.model import Error, Job, Running, Step
from holdfast.worker.context import Current
from holdfast.worker.isolation.import_target import Target

HEAD = struct.Struct("!I")
"""In front of each frame: how many bytes follow."""

FRAME_LIMIT = 2 * PAYLOAD_LIMIT
"""A frame holds one payload and little else. What claims to be longer is no frame.

A longer word, such as all records of a job, goes on in the next frame as long as frames are exactly this long.
"""


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


class Attend(Struct, tag=True, frozen=True):
    """Run this job's function as one attempt. What the attempt asks of the store, it asks its worker (`Ask`)."""

    target: Target
    job: Job
    steps: list[Step]
    """What earlier leases of the job recorded."""
    claimed: float
    """When the claim was sent, by the machine's monotonic clock, which is the same in all its processes."""
    until: float
    """No step starts after this, by the same clock, unless a later `Fence` says so."""
    memory_mb: int | None


class Fence(Struct, tag=True, frozen=True):
    """The worker's heartbeat was answered: steps may start until then."""

    until: float


class Stop(Struct, tag=True, frozen=True):
    """The attempt is to stop, and why (see `worker.attempt`)."""

    why: str


class Answer(Struct, tag=True, frozen=True):
    """What came of an `Ask`."""

    number: int
    value: Raw


class Refusal(Struct, tag=True, frozen=True):
    """An `Ask` raised this."""

    number: int
    error: Error


# From the process.


class Ask(Struct, tag=True, frozen=True):
    """An act that the attempt wants done by its worker: one of the engine's, or a step in yet another process."""

    number: int
    act: str
    args: Raw


class Leave(Struct, tag=True, frozen=True):
    """Nobody waits any more for what came of an `Ask`."""

    number: int


class Doing(Struct, tag=True, frozen=True):
    """What the attempt is doing, for the worker's heartbeat."""

    running: Running


class Line(Struct, tag=True, frozen=True):
    """A line to keep with the job's log."""

    text: str


class Ended(Struct, tag=True, frozen=True, kw_only=True):
    """The attempt has come to its end: all that its worker needs to decide what that means for the job."""

    result: Raw = Raw(b"null")
    error: Error | None = None
    is_final: bool = False
    """Whether the error says never to retry."""
    is_cut: bool = False
    """Whether the handler was cut off instead of failing."""
    stop: str | None = None
    doubts: list[str] = []
    drops: list[str] = []
    drift: list[str] = []
    kept_slot: str = ""
    vanished: dict[str, int] = {}
    worn: bool = False


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


News = Progress | Logged | Ask | Leave | Doing | Line
"""What a process may say while its code runs."""

Heard = Ready | Began | News | Done | Failed | Ended
"""What a process may say."""

Told = Warm | Call | Attend | Fence | Stop | Answer | Refusal | Progress
"""What a process may be told; Progress is that of a step which its job runs in yet another process."""

_encode = msgspec.json.Encoder().encode
_heard: msgspec.json.Decoder[Heard] = msgspec.json.Decoder(Heard)
_told: msgspec.json.Decoder[Told] = msgspec.json.Decoder(Told)


def make_frame(word: Told | Heard) -> bytes:
    """Make a word ready to be sent."""
    body = _encode(word)
    if len(body) < FRAME_LIMIT:
        return HEAD.pack(len(body)) + body
    parts = [body[start : start + FRAME_LIMIT] for start in range(0, len(body) + 1, FRAME_LIMIT)]
    return b"".join(HEAD.pack(len(part)) + part for part in parts)


def read_heard(body: bytes) -> Heard:
    """Read a frame that a process has sent."""
    return _heard.decode(body)


def read_told(body: bytes) -> Told:
    """Read a frame that a process was sent."""
    return _told.decode(body)
