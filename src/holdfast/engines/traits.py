"""What only some engines can do: steps inside a transaction (`Transactional`), moving to another store (`Movable`), and
starting over (`Emptyable`).

Must not know any store. As in `contract`, these methods check the arguments and then call the engine's own method.
"""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from holdfast.core.model import PAGE_LIMIT, Conflict, Entry, Job, Record, Recorded, Step
from holdfast.core.moves import HeldKey, Whole
from holdfast.engines.checks import at_most, check_load, check_steps
from holdfast.engines.contract import Engine

Body = Callable[[Any], Awaitable[Sequence[Step]]]
"""The code inside a transaction: it gets a connection and returns the records to write, the step's first. If
`transactions` is "all steps", the connection is for async code, and its `sync` for blocking code.
"""


class Transactional(ABC):
    """The trait of SQL engines, whose database can also hold the user's own tables (`transactions`)."""

    async def transact(self, step: Step, body: Body) -> Recorded | Conflict:
        """Run the body and write the step's record in one transaction; `step` has the job, epoch and path.

        Laws: with an old epoch, or if the job isn't active, the body doesn't run and the answer is a Conflict. If the
        lease ends while the body runs, everything is rolled back. If the step is already done or failed, the body
        doesn't run and the answer is that record, so the call is safe to repeat. An error or a cancellation of the
        body rolls everything back and is raised here. The connection works only until the body ends, and can neither
        end the transaction nor access the engine's own tables. An engine may limit how long a body takes: it then
        raises TimeoutError, and nothing is written.
        """
        check_steps([step])
        return await self._transact(step, body)

    @abstractmethod
    def _transact(self, step: Step, body: Body) -> Awaitable[Recorded | Conflict]: ...


class Remote(Engine):
    """The trait of an engine that reads a store through a server. Changes go through the server's own calls."""

    @abstractmethod
    async def ask(self, method: str, path: str, body: Any = None) -> bytes:
        """Make one call of the server's API, `/jobs/ID/cancel` for example, and return the answer's body."""

    @abstractmethod
    def use_token(self, token: str) -> None:
        """Send this token with every request."""


class Emptyable(Engine):
    """The trait of engines whose jobs can all be removed, whatever their states: for tests against a real server."""

    @abstractmethod
    async def empty(self) -> None:
        """Remove all jobs with their keys and everything else that belongs to them.

        Laws: what is read afterwards is as in a new store, but for the records, which stay, and the clock. Owners of
        removed jobs find their leases lost.
        """


class Movable(Engine):
    """The trait of engines whose jobs can be moved to another store, and from another one, all of them at once.

    Law of the record `moved`: while it exists, every act but `load` that would write a job, a step or another record is
    refused (Moved). A read after the record was written sees every write that was acknowledged before.
    """

    room: int | None = None
    """How many jobs a store can hold."""

    async def in_order(self, after: str = "", limit: int = PAGE_LIMIT) -> list[Job]:
        """A page of all jobs, in the order of their insertion; `after` is the last id of the previous page.

        Law: a claim takes jobs that are otherwise equal in this order. NotFound if `after` no longer exists.
        """
        return await self._in_order(after, at_most(limit, PAGE_LIMIT))

    async def wholes(self, jobs: Sequence[Job]) -> list[Whole]:
        """These jobs with everything that belongs to them."""
        return await self._wholes(jobs) if jobs else []

    async def keys(self, after: tuple[str, str] = ("", ""), limit: int = PAGE_LIMIT) -> list[HeldKey]:
        """A page of all keys, in the store's own order; `after` is the last type and key of the previous page.

        NotFound if `after` no longer exists and the store can't tell where it was.
        """
        return await self._keys(after, at_most(limit, PAGE_LIMIT))

    @abstractmethod
    async def all_records(self) -> list[Record]:
        """All records by name, with the removed ones, whose value is empty: their versions must not be used again."""

    async def load(self, wholes: Sequence[Whole], keys: Sequence[HeldKey] = (), records: Sequence[Record] = ()) -> int:
        """Store whole jobs, keys and records unchanged; return how many of the jobs are new.

        Laws: refused unless the store is marked as `moved`. It is one act and safe to repeat: a job or key that exists
        is left unchanged. States, versions, epochs, inboxes and times are kept; the order of insertion is the order of
        loading; counters include the new jobs; a child that has not arrived is missing at its parent. A record gets
        the given value, and a version at least as high as both the given and the stored one. An engine whose acts must
        be short may split the load into several acts, in the given order: if it is interrupted, the first part is
        stored, and each job in it is complete.
        """
        check_load(wholes, keys, records)
        return await self._load(wholes, keys, records)

    # What each engine implements, as in `Engine`.

    @abstractmethod
    def _in_order(self, after: str, limit: int) -> Awaitable[list[Job]]: ...

    async def _wholes(self, jobs: Sequence[Job]) -> list[Whole]:
        """Read one job after the other. An engine that can read many at once overrides this."""
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
