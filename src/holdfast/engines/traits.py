"""What only some engines can do: steps inside a transaction (`Transactional`), and moving to another store (`Movable`).

Must not know any store. As in `contract`: checked here, then done by the engine's own method.
"""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from holdfast.core.model import PAGE_LIMIT, Conflict, Entry, Job, Record, Recorded, Step
from holdfast.core.moves import HeldKey, Whole
from holdfast.engines.checks import at_most, check_load, check_steps
from holdfast.engines.contract import Engine

Body = Callable[[Any], Awaitable[Sequence[Step]]]
"""What a transaction is filled with: it is given a connection, and answers with what to record, the step first. Where
`transactions` is "all steps", the connection is for async code, and its `sync` for blocking code.
"""


class Transactional(ABC):
    """The trait of engines that are SQL databases, in which users keep tables of their own (`transactions`)."""

    async def transact(self, step: Step, body: Body) -> Recorded | Conflict:
        """Write what a step does and the step's record in one transaction; `step` tells job, epoch and path.

        Laws: a stale epoch, or a job that isn't active, is a Conflict: known before, the body doesn't run, and a lease
        that ends while it runs takes back all of it. Nor does it run where a record is done or failed: that one is the
        answer, so the act is safe to repeat. What the body raises takes back all of it and is raised here, as is a
        cancellation.
        The connection is of no use once the body has ended, and can neither end the transaction nor reach the engine's
        own tables. An engine may bound how long a body takes: then TimeoutError, and nothing was written.
        """
        check_steps([step])
        return await self._transact(step, body)

    @abstractmethod
    def _transact(self, step: Step, body: Body) -> Awaitable[Recorded | Conflict]: ...


class Movable(Engine):
    """The trait of engines whose jobs can be moved to another store, and from another one, all of them at once.

    Law of the record `moved`: while it is there, every act that would write a job, a step or another record is refused
    (Moved), `load` excepted; what was acknowledged before it was written is seen by every read after that.
    """

    room: int | None = None
    """How many jobs a store holds at most."""

    async def in_order(self, after: str = "", limit: int = PAGE_LIMIT) -> list[Job]:
        """A page of all jobs, in the order of their insertion; `after` is the last id of the page before.

        Law: it is the order in which a claim takes jobs that are equal in all else. NotFound if `after` is gone.
        """
        return await self._in_order(after, at_most(limit, PAGE_LIMIT))

    async def wholes(self, jobs: Sequence[Job]) -> list[Whole]:
        """These jobs with all that belongs to them."""
        return await self._wholes(jobs) if jobs else []

    async def keys(self, after: tuple[str, str] = ("", ""), limit: int = PAGE_LIMIT) -> list[HeldKey]:
        """A page of all idempotency keys, in an order of the store's own; `after` is the last type and key before.

        NotFound if `after` is gone, and the store can't tell where it was.
        """
        return await self._keys(after, at_most(limit, PAGE_LIMIT))

    @abstractmethod
    async def all_records(self) -> list[Record]:
        """All records by name, the removed ones too, whose value is empty: their versions must not come back."""

    async def load(self, wholes: Sequence[Whole], keys: Sequence[HeldKey] = (), records: Sequence[Record] = ()) -> int:
        """Put whole jobs, keys and records into a store as they are; answer how many of the jobs are new.

        Laws: refused unless the store is marked as `moved`. One act, safe to repeat: a job or key that is there
        already stays as it is. States, versions, epochs, inboxes and times are those that were given; the order of
        insertion is that of loading; counters count what is new; a child that has not arrived is missing at its
        parent. A record takes its value, and a version that is at least as high as both the given one and its own.
        An engine whose acts must be short may make several of it, in the given order: what is there when it is cut off
        is the beginning, and each job of it whole.
        """
        check_load(wholes, keys, records)
        return await self._load(wholes, keys, records)

    # What each engine writes for its store, as in `Engine`.

    @abstractmethod
    def _in_order(self, after: str, limit: int) -> Awaitable[list[Job]]: ...

    async def _wholes(self, jobs: Sequence[Job]) -> list[Whole]:
        """Read one job after the other. An engine that can read for many at once does so."""
        return [await self._whole(job) for job in jobs]

    async def _whole(self, job: Job) -> Whole:
        entries: list[Entry] = []
        while len(entries) < job.version and (page := await self.history(job.id, len(entries))):
            entries += page
        return Whole(job, tuple(entries), tuple(await self.steps(job.id)))

    @abstractmethod
    def _keys(self, after: tuple[str, str], limit: int) -> Awaitable[list[HeldKey]]: ...

    @abstractmethod
    def _load(self, wholes: Sequence[Whole], keys: Sequence[HeldKey], records: Sequence[Record]) -> Awaitable[int]: ...
