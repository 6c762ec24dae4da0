"""The order of a claim where jobs have fair keys: from one key to the next, a job of each, round after round.

Must not take a job, and must not know a store: it asks sources for jobs, and its caller takes them. `core.fairness`
says what the order is. The SQLite engine and the engines that keep their rows in Python use it.
"""

from collections import deque
from collections.abc import Callable, Container, Iterator, Sequence
from heapq import merge
from typing import Any, NamedTuple, Protocol

from holdfast.core.model import Time

Place = tuple[Time, int]
"""The order within a key: run_at, order of insertion."""


class Candidate(NamedTuple):
    """A job that may start. `key` is the limit's key behind which it waits, and `job` what its source makes of it."""

    place: Place
    key: str | None
    job: Any


class Source(Protocol):
    """Jobs that a claim can take: those of one type, without limits or behind one key."""

    key: str | None
    is_fair: bool
    """Whether its jobs have fair keys; otherwise all are under the empty one."""

    def level_below(self, below: int | None) -> int | None:
        """The highest priority below this one of which there is something to take."""

    def keys(self, level: int, after: str | None, until: str | None, most: int) -> list[str]:
        """The next fair keys after one, in order, up to and with another, that have something to take."""

    def walk(self, level: int, fair: str) -> Iterator[Candidate]:
        """The jobs of one fair key in order."""


class PlainSource:
    """Jobs without fair keys, in the order of claims, each with its priority. Reads no further than it has to."""

    is_fair = False

    def __init__(self, key: str | None, jobs: Iterator[tuple[int, Candidate]]) -> None:
        self.key = key
        self._jobs = jobs
        self._first = next(jobs, None)

    def level_below(self, below: int | None) -> int | None:
        """See Source. What was left of a priority can't start in this claim."""
        while self._first is not None and below is not None and self._first[0] >= below:
            self._first = next(self._jobs, None)
        return None if self._first is None else self._first[0]

    def keys(self, level: int, after: str | None, until: str | None, most: int) -> list[str]:
        """See Source."""
        return [""] if after is None and self._first is not None and self._first[0] == level else []

    def walk(self, level: int, fair: str) -> Iterator[Candidate]:
        """See Source."""
        while self._first is not None and self._first[0] == level:
            candidate = self._first[1]
            self._first = next(self._jobs, None)
            yield candidate


class Offer(NamedTuple):
    """A job whose turn it is. `is_fair` says whether its priority has jobs with fair keys at all."""

    level: int
    fair: str
    is_fair: bool
    candidate: Candidate


def in_turn(
    sources: Sequence[Source], blocks: Container[str | None], last: Callable[[int], str | None], most: int
) -> Iterator[Offer]:
    """All jobs in the order of their turns. The caller stops when it has enough.

    The caller adds a limit's key to `blocks` if nobody behind it can start, and is offered none of them from then on.
    `last` tells the key that started last at a priority. `most` is how many keys are asked for at once.
    """
    below: int | None = None
    while True:
        going = [source for source in sources if source.key not in blocks]
        levels = {id(source): source.level_below(below) for source in going}
        below = max((level for level in levels.values() if level is not None), default=None)
        if below is None:
            return
        here = [source for source in going if levels[id(source)] == below]
        is_fair = any(source.is_fair for source in here)
        for fair, candidate in _rounds(here, blocks, below, last(below) if is_fair else None, most):
            yield Offer(below, fair, is_fair, candidate)


def _rounds(
    sources: Sequence[Source], blocks: Container[str | None], level: int, last: str | None, most: int
) -> Iterator[tuple[str, Candidate]]:
    waiting: deque[tuple[str, Iterator[Candidate]]] = deque()
    for fair, owners in _ring(sources, level, last, most):
        waiting.append((fair, merge(*(source.walk(level, fair) for source in owners), key=_place)))
        yield from _turn(waiting, blocks, waiting.pop())
    while waiting:
        yield from _turn(waiting, blocks, waiting.popleft())


def _turn(
    waiting: deque[tuple[str, Iterator[Candidate]]],
    blocks: Container[str | None],
    one: tuple[str, Iterator[Candidate]],
) -> Iterator[tuple[str, Candidate]]:
    """One key's turn: its next job. It then waits for the next round."""
    fair, walk = one
    for candidate in walk:
        if candidate.key not in blocks:
            yield fair, candidate
            waiting.append(one)
            return


def _ring(sources: Sequence[Source], level: int, last: str | None, most: int) -> Iterator[tuple[str, list[Source]]]:
    """The keys of one round, each with its sources: first those after the last key, then those from the beginning."""
    parts: list[tuple[str | None, str | None]] = [(last, None)] if last is None else [(last, None), (None, last)]
    for first, until in parts:
        after: str | None = first
        while True:
            owners: dict[str, list[Source]] = {}
            for source in sources:
                for fair in source.keys(level, after, until, most):
                    owners.setdefault(fair, []).append(source)
            found = sorted(owners)[:most]
            for fair in found:
                yield fair, owners[fair]
            if len(found) < most:
                break
            after = found[-1]


def _place(candidate: Candidate) -> Place:
    return candidate.place
