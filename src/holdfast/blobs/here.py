"""Whose code runs here, as far as blobs are concerned: the blobs of its store, and its job. Must not know jobs.

The worker says so for the code of jobs (`find`); a caller that reads a result says so while it reads (`read_value`).
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from typing import Any, NamedTuple, TypeVar

from holdfast.blobs.blobs import Blobs
from holdfast.core.errors import WrongColour
from holdfast.core.references import is_kept_outside

T = TypeVar("T")


class Place(NamedTuple):
    """Where blobs are read from and written to, and for which job."""

    blobs: Blobs
    job: str


find: Callable[[], Place | None] = lambda: None  # noqa: E731 (replaced by whoever runs jobs)

PLACE: ContextVar[Place | None] = ContextVar("holdfast_place", default=None)
"""The same for code that belongs to no attempt: the process of an isolated step."""

_READING: ContextVar[Blobs | None] = ContextVar("holdfast_reading", default=None)


def blobs_here() -> Blobs | None:
    """The blobs that a decoded `Blob` reads from."""
    reading = _READING.get()
    if reading is not None:
        return reading
    place = place_here()
    return None if place is None else place.blobs


def place_here() -> Place | None:
    """Where blobs are read and written here; None outside jobs."""
    return find() or PLACE.get()


async def read_value(blobs: Blobs, text: str, decode: Callable[[str], T]) -> T:
    """Decode a recorded value, outside jobs. It is fetched first if it is a blob."""
    whole = await blobs.fetch(text) if is_kept_outside(text) else text
    token = _READING.set(blobs)
    try:
        return decode(whole)
    finally:
        _READING.reset(token)


def is_in_loop() -> bool:
    """Whether an event loop runs in this thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def run_blocking(work: Coroutine[Any, Any, T], what: str) -> T:
    """Run a coroutine of this package to its end, in a thread without an event loop."""
    if not is_in_loop():
        return asyncio.run(work)
    work.close()
    raise WrongColour(f"{what}.sync(…) would block the event loop; in async code, call await {what}(…)")
