"""The memory engine: the reference for all other engines, and the store of tests and simulations.

Must not start threads, and must not sleep.
"""

import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from holdfast import forking
from holdfast.blobs.memory import MemoryBlobs
from holdfast.blobs.store import BlobStore
from holdfast.core.errors import Invalid, StoreClosed
from holdfast.core.model import (
    Admission,
    Applied,
    Ask,
    Beat,
    Change,
    Conflict,
    Entry,
    Inserted,
    Job,
    Lease,
    Presence,
    Record,
    Recorded,
    State,
    Step,
    StepState,
    Time,
    Usage,
    Where,
)
from holdfast.core.moves import MOVED, HeldKey, Whole, check_marked, check_unmarked
from holdfast.core.summaries import StepSummary
from holdfast.engines.clock import MachineClock
from holdfast.engines.contract import Clock, Guarantees, system_clock
from holdfast.engines.tables import Tables
from holdfast.engines.topics import queues_of, until_due
from holdfast.engines.traits import Emptyable, Movable
from holdfast.engines.wakeups import Wakeups

T = TypeVar("T")


class MemoryEngine(Movable, Emptyable, forking.Forkable):
    """Jobs in this process's memory: they are gone when it ends. The reference for all other engines."""

    guarantees = Guarantees(
        name="memory",
        url="memory:",
        use="tests and simulation",
        durable="nothing",
        processes="one process",
        wakes="one process",
        atomic_children=True,
        clock="this machine's",
        limit="the process's memory",
    )

    def __init__(self, clock: Clock = system_clock) -> None:
        self._clock = MachineClock() if clock is system_clock else clock
        self._tables = Tables()
        self._lock = threading.Lock()
        self._wakeups = Wakeups()
        self._is_used = self._is_copy = False
        forking.watch(self)

    @classmethod
    def from_url(cls, url: str, clock: Clock) -> "MemoryEngine":
        """Make the engine of a store's URL."""
        if url != "memory:":
            raise Invalid(f"{url!r}: a memory store has no name; write just memory:")
        return cls(clock)

    @classmethod
    def scratch(cls, url: str, folder: Path) -> str:
        """Every memory store is new."""
        return url

    def own_blobs(self) -> BlobStore:
        """See KeepsBlobs."""
        return MemoryBlobs()

    async def open(self) -> None:
        """Make the store ready. A forked child has only a copy, and nobody would see what it writes there."""
        if self._is_copy:
            raise StoreClosed(
                "memory: this store belongs to the process that forked this one; "
                "use it in that process, or use sqlite:///jobs.db to share jobs between processes"
            )
        self._is_used = True

    async def close(self) -> None:
        """Nothing to close."""

    def leave_behind(self) -> None:
        """Mark this as a copy, unless nobody has opened the store yet."""
        self._lock, self._wakeups, self._is_copy = threading.Lock(), Wakeups(), self._is_used

    async def now(self) -> Time:
        """Read the store's clock."""
        return self._clock()

    async def _act(self, act: Callable[[Tables], T]) -> T:
        """Do one act under the lock, then wake those who wait for what it changed."""
        with self._lock:
            answer = act(self._tables)
            news, self._tables.news = self._tables.news, set()
        if news:
            self._wakeups.ring(news)
        return answer

    async def _change(self, act: Callable[[Tables], T]) -> T:
        """Do one act, unless the jobs were moved or are being moved."""

        def here(tables: Tables) -> T:
            check_unmarked(tables.mark())
            return act(tables)

        return await self._act(here)

    async def _look(self, look: Callable[[Tables], T]) -> T:
        with self._lock:
            return look(self._tables)

    def _insert(self, jobs: Sequence[Job], parent: Lease | None) -> Awaitable[list[Inserted]]:
        return self._change(lambda tables: tables.insert(jobs, parent))

    def _claim(self, worker: str, queues: list[str], limit: int, types: list[str] | None) -> Awaitable[list[Job]]:
        return self._change(lambda tables: tables.claim(worker, queues, limit, types, self._clock()))

    def _beat(self, presence: Presence) -> Awaitable[Beat]:
        return self._look(lambda tables: tables.beat(presence, self._clock()))

    def _commit(self, changes: Sequence[Change]) -> Awaitable[list[Applied | Conflict]]:
        return self._change(lambda tables: [tables.commit(change) for change in changes])

    def _record(self, steps: Sequence[Step]) -> Awaitable[list[Recorded | Conflict]]:
        return self._change(lambda tables: [tables.record(step) for step in steps])

    def _admit(
        self, asks: Sequence[Ask], steps: Sequence[Step]
    ) -> Awaitable[tuple[list[Admission | Conflict], list[Recorded | Conflict]]]:
        def act(tables: Tables) -> tuple[list[Admission | Conflict], list[Recorded | Conflict]]:
            recorded = [tables.record(step) for step in steps]
            return tables.admit(asks, self._clock()), recorded

        return self._change(act)

    def _prune(self, limit: int) -> Awaitable[int]:
        return self._change(lambda tables: tables.prune(limit, self._clock()))

    async def empty(self) -> None:
        """Remove all jobs."""
        await self._change(lambda tables: tables.empty())

    def _get(self, ids: list[str]) -> Awaitable[Mapping[str, Job]]:
        return self._look(lambda tables: {id: tables.jobs[id] for id in ids if id in tables.jobs})

    def _find(self, where: Where, after: str, limit: int) -> Awaitable[list[Job]]:
        return self._look(lambda tables: tables.find(where, after, limit))

    async def count(self) -> Mapping[tuple[str, State], int]:
        """Count by queue and state."""
        return await self._look(lambda tables: {name: n for name, n in sorted(tables.tally.items()) if n})

    def _ready_types(self, queue: str) -> Awaitable[list[str]]:
        return self._look(lambda tables: tables.ready_types(queue))

    def _steps(self, job: str) -> Awaitable[list[Step]]:
        return self._look(lambda tables: list(tables.steps.get(job, {}).values()))

    async def _steps_under(self, jobs: list[str], prefix: str, state: StepState | None) -> list[Step]:
        def look(tables: Tables) -> list[Step]:
            steps = (step for job in jobs for step in tables.steps.get(job, {}).values())
            return [step for step in steps if step.path.startswith(prefix) and state in (None, step.state)]

        return await self._look(look)

    async def _summaries(self, jobs: list[str]) -> Mapping[str, StepSummary]:
        return await self._look(lambda tables: {job: tables.summary(job) for job in jobs})

    def _history(self, job: str, after: int, limit: int) -> Awaitable[list[Entry]]:
        return self._look(lambda tables: tables.entries.get(job, [])[after : after + limit])

    def _missing(self, parent: str, group: str) -> Awaitable[int]:
        return self._look(lambda tables: tables.missing(parent, group))

    def _holders(self, names: list[tuple[str, str]]) -> Awaitable[Mapping[tuple[str, str], HeldKey]]:
        return self._look(lambda tables: tables.holders(names))

    def _usage(self, limit: str) -> Awaitable[list[Usage]]:
        return self._look(lambda tables: tables.usage(limit, self._clock()))

    def _records(self, prefix: str) -> Awaitable[list[Record]]:
        return self._look(lambda tables: tables.list_records(prefix))

    def _put_record(
        self, name: str, value: str | None, expected: int | None, jobs: Sequence[Job]
    ) -> Awaitable[Record | Conflict]:
        write = self._act if name == MOVED else self._change
        return write(lambda tables: tables.put_record(name, value, expected, jobs, self._clock()))

    # Moving.

    def _in_order(self, after: str, limit: int) -> Awaitable[list[Job]]:
        return self._look(lambda tables: tables.page_in_order(after, limit))

    def _keys(self, after: tuple[str, str], limit: int) -> Awaitable[list[HeldKey]]:
        return self._look(lambda tables: tables.list_keys(after, limit))

    async def all_records(self) -> list[Record]:
        """List all records, including removed ones."""
        return await self._look(lambda tables: [record for _, record in sorted(tables.records.items())])

    def _load(self, wholes: Sequence[Whole], keys: Sequence[HeldKey], records: Sequence[Record]) -> Awaitable[int]:
        def fill(tables: Tables) -> int:
            check_marked(tables.mark())
            return tables.load(wholes, keys, records)

        return self._act(fill)

    async def _wait(self, topics: list[str], timeout: float, after: int) -> int:
        now = self._clock()
        due = await self._look(lambda tables: tables.next_due(queues_of(topics), now))
        return await self._wakeups.wait(topics, until_due(due, now, timeout), after)
