"""Available jobs with fair keys, for the engines that keep their rows in Python: a heap for each key, and the keys in
order.

Must not use threads, files or a clock.
"""

from bisect import bisect_right, insort
from collections import defaultdict
from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from itertools import chain

from holdfast.core.model import Job, Time
from holdfast.core.shared_limits import awaited_key
from holdfast.engines.fair_turns import Candidate
from holdfast.engines.indexed_rows import Ready
from holdfast.engines.limited_rows import LimitedRows

Reads = Callable[[Ready], Job | None]
"""What an entry of a heap stands for; None if the job has changed since."""


class FairHeaps:
    """The available jobs of one type that have fair keys: for each priority the keys in order, and a heap for each."""

    def __init__(self) -> None:
        self.heaps: defaultdict[int, dict[str, list[Ready]]] = defaultdict(dict)
        self.keys: defaultdict[int, list[str]] = defaultdict(list)

    def push(self, fair: str, item: Ready) -> None:
        """Add an entry."""
        level = -item[0]
        if fair not in self.heaps[level]:
            insort(self.keys[level], fair)
        heappush(self.heaps[level].setdefault(fair, []), item)

    def forget(self, level: int, fair: str) -> None:
        """Forget a key that has no entry."""
        if not self.heaps.get(level, {}).get(fair, True):
            del self.heaps[level][fair]
            self.keys[level].remove(fair)
            if not self.keys[level]:
                del self.heaps[level], self.keys[level]

    def items(self) -> Iterator[Ready]:
        """All entries."""
        return chain.from_iterable(heap for heaps in self.heaps.values() for heap in heaps.values())


class FairRows(LimitedRows):
    """All rows of a store. Jobs with fair keys are ready apart from the others."""

    def __init__(self) -> None:
        super().__init__()
        self._fair: defaultdict[tuple[str, str | None], dict[str, FairHeaps]] = defaultdict(dict)
        """For each queue and limit's key (None: without limits) the heaps of each type."""

    def _make_ready(self, job: Job) -> None:
        if job.options.fair and awaited_key(job) is None:
            self._push_fair(job, None)
        else:
            super()._make_ready(job)

    def _wait_behind(self, job: Job, key: str) -> None:
        super()._wait_behind(job, key)
        if job.options.fair:
            self._push_fair(job, key)

    def _push_fair(self, job: Job, key: str | None) -> None:
        self._fair[job.queue, key].setdefault(job.type, FairHeaps()).push(job.options.fair, self._turn(job))


class FairSource:
    """The jobs of one `FairHeaps` in one claim. What it reads leaves the heaps, and `put_back` returns it."""

    is_fair = True

    def __init__(self, heaps: FairHeaps, key: str | None, read: Reads, now: Time) -> None:
        self.key = key
        self._heaps = heaps
        self._read = read
        self._now = now
        self._first: dict[tuple[int, str], Candidate | None] = {}
        self._popped: list[tuple[str, Ready]] = []

    def level_below(self, below: int | None) -> int | None:
        """See Source."""
        levels = sorted((level for level in self._heaps.keys if below is None or level < below), reverse=True)
        return next((level for level in levels if self.keys(level, None, None, 1)), None)

    def keys(self, level: int, after: str | None, until: str | None, most: int) -> list[str]:
        """See Source."""
        order, found = self._heaps.keys.get(level, []), list[str]()
        for place in range(0 if after is None else bisect_right(order, after), len(order)):
            fair = order[place]
            if len(found) == most or (until is not None and fair > until):
                break
            if self._peek(level, fair) is not None:
                found.append(fair)
        return found

    def walk(self, level: int, fair: str) -> Iterator[Candidate]:
        """See Source."""
        while (candidate := self._peek(level, fair)) is not None:
            self._first[level, fair] = self._next(level, fair)
            yield candidate

    def put_back(self, taken: dict[str, Job]) -> None:
        """Return what was read and not taken."""
        for fair, item in self._popped:
            if item[4] not in taken and self._read(item) is not None:
                self._heaps.push(fair, item)
        for level, fair in self._first:
            self._heaps.forget(level, fair)

    def _peek(self, level: int, fair: str) -> Candidate | None:
        if (level, fair) not in self._first:
            self._first[level, fair] = self._next(level, fair)
        return self._first[level, fair]

    def _next(self, level: int, fair: str) -> Candidate | None:
        heap = self._heaps.heaps.get(level, {}).get(fair, [])
        while heap and heap[0][1] <= self._now:
            item = heappop(heap)
            self._popped.append((fair, item))
            job = self._read(item)
            if job is not None and not is_expired(job, self._now):
                return Candidate((item[1], item[2]), self.key, job)
        return None


class HeapWalk:
    """The jobs of one heap that have no fair key, in one claim. What it reads leaves the heap until `put_back`."""

    def __init__(self, heap: list[Ready], key: str | None, read: Reads, now: Time) -> None:
        self._heap = heap
        self._key = key
        self._read = read
        self._now = now
        self._popped: list[Ready] = []

    def jobs(self) -> Iterator[tuple[int, Candidate]]:
        """The jobs in order, each with its priority."""
        while self._heap:
            item = heappop(self._heap)
            self._popped.append(item)
            job = self._read(item)
            if job is not None and not job.options.fair and item[1] <= self._now and not is_expired(job, self._now):
                yield job.priority, Candidate((item[1], item[2]), self._key, job)

    def put_back(self, taken: dict[str, Job]) -> None:
        """Return what was read and not taken."""
        for item in self._popped:
            if item[4] not in taken:
                heappush(self._heap, item)


def is_expired(job: Job, now: Time) -> bool:
    """Whether a job's `expires_at` has passed."""
    return job.expires_at is not None and job.expires_at <= now
