"""How many jobs may wait in a queue: what `app.queue` declares, and what a depth means. Must not read a store."""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from holdfast.core.errors import Invalid
from holdfast.core.keys import check_queue
from holdfast.core.model import State
from holdfast.core.suggestions import listed, suggest

REFUSE, SHED_OLDEST = "refuse", "shed_oldest"
WHEN_FULL = (REFUSE, SHED_OLDEST)

WAITING = (State.AVAILABLE, State.SCHEDULED)
"""The states of jobs that wait to start, now or later. What failed and is retried has started already."""


class QueueBound(Struct, frozen=True):
    """How many jobs may wait in a queue, and what a submit does when it is full."""

    queue: str
    most_waiting: int
    when_full: str = REFUSE

    def words(self) -> str:
        """The bound in words: "at most 10,000 waiting, refuse"."""
        return f"at most {self.most_waiting:,} waiting, {self.when_full}"


def check_most_waiting(queue: str, most_waiting: Any) -> int:
    """Return how many jobs may wait, or refuse what isn't a number of jobs."""
    if type(most_waiting) is not int or most_waiting < 1:
        raise Invalid(f"queue {queue}: most_waiting={most_waiting!r}: give a whole number from 1")
    return most_waiting


def declare_queue(queue: Any, most_waiting: Any, when_full: Any) -> QueueBound:
    """Check what code declares."""
    name = check_queue(queue)
    if when_full not in WHEN_FULL:
        hint = suggest(str(when_full), WHEN_FULL) or f"; use {listed(WHEN_FULL)}"
        raise Invalid(f"queue {name}: when_full={when_full!r} is unknown{hint}")
    return QueueBound(name, check_most_waiting(name, most_waiting), when_full)


def depth_of(counts: Mapping[tuple[str, State], int], queue: str) -> int:
    """How many jobs wait in a queue, from `Engine.count`."""
    return sum(counts.get((queue, state), 0) for state in WAITING)
