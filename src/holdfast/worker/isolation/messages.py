"""The messages between a worker and the process of an isolated step or job: length-prefixed JSON on a socket.

Must not touch the socket. Arguments and results are embedded as canonical text, neither parsed nor escaped.
"""

import struct
from typing import Any

import msgspec
from msgspec import Raw, Struct

from holdfast.core.limits import CHILDREN, INLINE_BYTES
from holdfast.core.model import Error, Job, Running, Step
from holdfast.core.throttling import Throttle
from holdfast.jobs.job_events import StepRetry
from holdfast.worker.context import Current
from holdfast.worker.isolation.import_target import Target

HEAD = struct.Struct("!I")
"""The header of each frame: how many bytes follow."""

FRAME_LIMIT = 2 * INLINE_BYTES
"""A frame holds one inline payload and little else. Anything that claims to be longer isn't a frame.

A longer message, such as all records of a job, continues in the next frame as long as frames are exactly this long.
"""


# To the process.


class Warm(Struct, tag=True, frozen=True):
    """The first message: modules to import in advance, and the lowest level of log lines to send."""

    known: list[Target]
    level: int


class Call(Struct, tag=True, frozen=True):
    """Run this function."""

    target: Target
    args: Raw
    current: Current
    memory_mb: int | None
    folder: str = ""


class Attend(Struct, tag=True, frozen=True):
    """Run this job's function as one attempt. The attempt asks its worker for calls to the store (`Ask`)."""

    target: Target
    job: Job
    args: str | None
    """The arguments to call with, if those of the job refer to results of other jobs."""
    steps: list[Step]
    """What earlier leases of the job recorded."""
    claimed: float
    """When the claim was sent, by the machine's monotonic clock, which is the same in all its processes."""
    until: float
    """No step starts after this, by the same clock, unless a later `Fence` allows it."""
    memory_mb: int | None
    most_children: int = CHILDREN
    """How many children the job may submit."""
    tells_retries: bool = False
    """Whether to send a `StepRetry` for each retry of a step, for hooks."""


class Fence(Struct, tag=True, frozen=True):
    """The worker's heartbeat was answered: steps may start until this time."""

    until: float


class Stop(Struct, tag=True, frozen=True):
    """The attempt must stop, with the reason (see `worker.held_job`)."""

    why: str


class Answer(Struct, tag=True, frozen=True):
    """The answer to an `Ask`."""

    number: int
    value: Raw


class Refusal(Struct, tag=True, frozen=True):
    """The error that an `Ask` raised."""

    number: int
    error: Error
    existing: str = ""
    """The job that a Duplicate names."""


# From the process.


class Ask(Struct, tag=True, frozen=True):
    """A call that the attempt wants its worker to make: one of the engine's, or a step in yet another process."""

    number: int
    act: str
    args: Raw


class Leave(Struct, tag=True, frozen=True):
    """Nobody waits for the outcome of an `Ask` any more."""

    number: int


class Doing(Struct, tag=True, frozen=True):
    """What the attempt is doing, for the worker's heartbeat."""

    running: Running


class Line(Struct, tag=True, frozen=True):
    """A line to keep with the job's log."""

    text: str


class Ended(Struct, tag=True, frozen=True, kw_only=True):
    """The attempt has ended: everything that its worker needs to decide what that means for the job."""

    result: Raw = Raw(b"null")
    error: Error | None = None
    is_final: bool = False
    """Whether the error must never be retried."""
    is_cut: bool = False
    """Whether the handler was interrupted instead of failing."""
    stop: str | None = None
    doubts: list[str] = []
    drops: list[str] = []
    drift: list[str] = []
    kept_slot: str = ""
    vanished: dict[str, int] = {}
    places: str = ""
    worn: bool = False
    throttle: Throttle | None = None
    """What its error says about slowing down."""


class Ready(Struct, tag=True, frozen=True):
    """The process has started and waits for calls."""


class Began(Struct, tag=True, frozen=True):
    """The module is imported and the arguments are decoded: the step's own timeout starts now."""


class Progress(Struct, tag=True, frozen=True):
    """What the step's code reported with `progress()`."""

    done: Any
    total: Any
    text: str


class Spent(Struct, tag=True, frozen=True):
    """What the step's code reported with `spend()`."""

    usd: float
    tokens: float
    path: str = ""
    """The path of the step, where its attempt runs in a process, too."""


class Settled(Struct, tag=True, frozen=True):
    """What the step's code reported with a limit's `settle()`, in millionths of a unit."""

    limit: str
    units: int
    path: str = ""
    """As in Spent."""


class Logged(Struct, tag=True, frozen=True):
    """What the step's code wrote with `logging`; in a job's process, `path` is the step."""

    logger: str
    level: int
    text: str
    at: float
    path: str = ""


class Done(Struct, tag=True, frozen=True):
    """The function's result."""

    result: Raw
    worn: bool = False
    """Whether the process should not be used again."""


class Failed(Struct, tag=True, frozen=True):
    """The function's error."""

    error: Error
    worn: bool = False
    throttle: Throttle | None = None
    """What it says about slowing down."""


News = Progress | Spent | Settled | Logged | Ask | Leave | Doing | Line | StepRetry
"""What a process may send while its code runs."""

Heard = Ready | Began | News | Done | Failed | Ended
"""What a process may send."""

Told = Warm | Call | Attend | Fence | Stop | Answer | Refusal | Progress | Spent | Settled
"""What a process may be sent. Progress, Spent and Settled are those of a step that runs in yet another process."""

_encode = msgspec.json.Encoder().encode
_heard: msgspec.json.Decoder[Heard] = msgspec.json.Decoder(Heard)
_told: msgspec.json.Decoder[Told] = msgspec.json.Decoder(Told)


def make_frame(word: Told | Heard) -> bytes:
    """Encode a message for sending."""
    body = _encode(word)
    if len(body) < FRAME_LIMIT:
        return HEAD.pack(len(body)) + body
    parts = [body[start : start + FRAME_LIMIT] for start in range(0, len(body) + 1, FRAME_LIMIT)]
    return b"".join(HEAD.pack(len(part)) + part for part in parts)


def read_heard(body: bytes) -> Heard:
    """Decode a frame that a process has sent."""
    return _heard.decode(body)


def read_told(body: bytes) -> Told:
    """Decode a frame that a process was sent."""
    return _told.decode(body)
