"""The memory engine: the reference that every other engine is compared with, and the store of simulations.

Must not use threads of its own, and must not sleep.
"""

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from holdfast import forking
from holdfast.core.errors import Invalid, StoreClosed
from holdfast.core.model import (
    PAGE_LIMIT,
    Applied,
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
    Time,
    Where,
)
from holdfast.core.moves import MOVED, HeldKey, Whole, check_marked, check_unmarked
from holdfast.engines.checks import (
    at_most,
    check_changes,
    check_jobs,
    check_load,
    check_record,
    check_steps,
    check_worker,
)
from holdfast.engines.clock import MachineClock
from holdfast.engines.contract import PRUNE_LIMIT, Clock, Guarantees, Movable, system_clock
from holdfast.engines.tables import Tables
from holdfast.engines.topics import queues_of, until_due
from holdfast.engines.wakeups import Wakeups

T = TypeVar("T")


class MemoryEngine(Movable, forking.Forkable):
    """Jobs in this process's memory: gone with it. The reference for all others."""

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
        self._bell = Wakeups()
        self._is_used = self._is_copy = False
        forking.watch(self)

    @classmethod
    def from_url(cls, url: str, clock: Clock) -> "MemoryEngine":
        """See Engine.from_url."""
        if url != "memory:":
            raise Invalid(f"{url!r}: a memory store has no name; write memory:")
        return cls(clock)

    @classmethod
    def scratch(cls, url: str, folder: Path) -> str:
        """Every memory store is new."""
        return url

    async def open(self) -> None:
        """See Engine.open. A forked child has no more than a copy: what it wrote there, nobody would see."""
        if self._is_copy:
            raise StoreClosed(
                "memory: this store is in the memory of the process that forked this one; "
                "use it there, or keep the jobs in sqlite:///…"
            )
        self._is_used = True

    async def close(self) -> None:
        """Nothing to close."""

    def leave_behind(self) -> None:
        """See Forkable. A store that nobody has opened yet may be opened here."""
        self._lock, self._bell, self._is_copy = threading.Lock(), Wakeups(), self._is_used

    async def now(self) -> Time:
        """See Engine.now."""
        return self._clock()

    async def _act(self, act: Callable[[Tables], T]) -> T:
        """Do one act alone, then wake who waits for what it changed."""
        with self._lock:
            answer = act(self._tables)
            news, self._tables.news = self._tables.news, set()
        if news:
            self._bell.ring(news)
        return answer

    async def _change(self, act: Callable[[Tables], T]) -> T:
        """Do one act, unless the jobs were moved away, or are being moved."""

        def here(tables: Tables) -> T:
            check_unmarked(tables.mark())
            return act(tables)

        return await self._act(here)

    async def _look(self, look: Callable[[Tables], T]) -> T:
        with self._lock:
            return look(self._tables)

    async def insert(self, jobs: Sequence[Job], parent: Lease | None = None) -> list[Inserted]:
        """See Engine.insert."""
        check_jobs(jobs)
        return await self._change(lambda tables: tables.insert(jobs, parent))

    async def claim(
        self, worker: str, queues: Sequence[str], limit: int, types: Collection[str] | None = None
    ) -> list[Job]:
        """See Engine.claim."""
        check_worker(worker)
        return await self._change(lambda tables: tables.claim(worker, queues, max(0, limit), types, self._clock()))

    async def beat(self, presence: Presence) -> Beat:
        """See Engine.beat."""
        check_worker(presence.worker)
        return await self._look(lambda tables: tables.beat(presence, self._clock()))

    async def commit(self, changes: Sequence[Change]) -> list[Applied | Conflict]:
        """See Engine.commit."""
        check_changes(changes)
        return await self._change(lambda tables: [tables.commit(change) for change in changes])

    async def record(self, steps: Sequence[Step]) -> list[Recorded | Conflict]:
        """See Engine.record."""
        check_steps(steps)
        return await self._change(lambda tables: [tables.record(step) for step in steps])

    async def prune(self, limit: int = PRUNE_LIMIT) -> int:
        """See Engine.prune."""
        return await self._change(lambda tables: tables.prune(at_most(limit, PAGE_LIMIT), self._clock()))

    async def get(self, ids: Sequence[str]) -> list[Job | None]:
        """See Engine.get."""
        return await self._look(lambda tables: [tables.jobs.get(id) for id in ids])

    async def find(self, where: Where, after: str = "", limit: int = PAGE_LIMIT) -> list[Job]:
        """See Engine.find."""
        return await self._look(lambda tables: tables.find(where, after, at_most(limit, PAGE_LIMIT)))

    async def count(self) -> Mapping[tuple[str, State], int]:
        """See Engine.count."""
        return await self._look(lambda tables: {name: n for name, n in sorted(tables.tally.items()) if n})

    async def ready_types(self, queue: str) -> list[str]:
        """See Engine.ready_types."""
        return await self._look(lambda tables: tables.ready_types(queue))

    async def steps(self, job: str) -> list[Step]:
        """See Engine.steps."""
        return await self._look(lambda tables: list(tables.steps.get(job, {}).values()))

    async def history(self, job: str, after: int = 0, limit: int = PAGE_LIMIT) -> list[Entry]:
        """See Engine.history."""
        return await self._look(lambda tables: tables.entries.get(job, [])[after : after + at_most(limit, PAGE_LIMIT)])

    async def missing(self, parent: str, group: str) -> int:
        """See Engine.missing."""
        return await self._look(lambda tables: tables.missing(parent, group))

    async def records(self, prefix: str) -> list[Record]:
        """See Engine.records."""
        return await self._look(lambda tables: tables.list_records(prefix))

    async def put_record(self, name: str, value: str | None, expected: int | None = None) -> Record | Conflict:
        """See Engine.put_record."""
        check_record(name, value)
        write = self._act if name == MOVED else self._change
        return await write(lambda tables: tables.put_record(name, value, expected, self._clock()))

    # Moving.

    async def in_order(self, after: str = "", limit: int = PAGE_LIMIT) -> list[Job]:
        """See Movable.in_order."""
        return await self._look(lambda tables: tables.page_in_order(after, at_most(limit, PAGE_LIMIT)))

    async def keys(self, after: tuple[str, str] = ("", ""), limit: int = PAGE_LIMIT) -> list[HeldKey]:
        """See Movable.keys."""
        return await self._look(lambda tables: tables.list_keys(after, at_most(limit, PAGE_LIMIT)))

    async def all_records(self) -> list[Record]:
        """See Movable.all_records."""
        return await self._look(lambda tables: [record for _, record in sorted(tables.records.items())])

    async def load(self, wholes: Sequence[Whole], keys: Sequence[HeldKey] = (), records: Sequence[Record] = ()) -> int:
        """See Movable.load."""
        check_load(wholes, keys, records)

        def fill(tables: Tables) -> int:
            check_marked(tables.mark())
            return tables.load(wholes, keys, records)

        return await self._act(fill)

    async def wait(self, topics: Collection[str], timeout: float, after: int = 0) -> int:
        """See Engine.wait."""
        now = self._clock()
        due = await self._look(lambda tables: tables.next_due(queues_of(topics), now))
        return await self._bell.wait(topics, until_due(due, now, timeout), after)
