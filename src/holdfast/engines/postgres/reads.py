"""The half of the contract that only looks things up. Must not write."""

import asyncio
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from heapq import merge
from itertools import islice
from types import SimpleNamespace
from typing import Any, TypeVar

from msgspec import Struct

from holdfast.core.errors import NotFound
from holdfast.core.lifecycle import TERMINAL
from holdfast.core.model import PAGE_LIMIT, Entry, Job, Presence, Record, State, Step, Where
from holdfast.core.moves import HeldKey, Whole, put_together
from holdfast.engines.checks import at_most
from holdfast.engines.contract import Movable
from holdfast.engines.liveness import worker_records
from holdfast.engines.postgres import rows
from holdfast.engines.postgres.liveness import Liveness
from holdfast.engines.postgres.store import Connection
from holdfast.engines.records import WORKER
from holdfast.engines.rows import entry_of, job_of, step_of

T = TypeVar("T")

PAST_ALL_IDS = "\U0010ffff"
"""Sorts behind every id: where a walk from the newest begins."""


class Health(Struct, frozen=True):
    """How a server is: how safe a commit is, how many connections are taken, and how old the oldest transaction is."""

    fsync: str
    synchronous_commit: str
    connections: int
    limit: int
    oldest_seconds: float | None
    sees_all: bool


class Reads(Movable):
    """Looking things up, with the connection that `_look` gives."""

    _sql: SimpleNamespace
    _live: Liveness

    @abstractmethod
    async def _look(self, look: Callable[[Connection], Awaitable[T]]) -> T:
        """Do this with a connection; again with another one, if it breaks."""

    async def _fetch(self, statement: str, *params: Any) -> list[Any]:
        return await self._look(lambda db: db.fetch(statement, *params))

    async def health(self) -> Health:
        """How the server is, for who looks after it."""
        [row] = await self._fetch(self._sql.health)
        return Health(*row)

    async def get(self, ids: Sequence[str]) -> list[Job | None]:
        """See Engine.get."""
        found = {row[1]: job_of(row) for row in await self._fetch(self._sql.get, rows.storable(ids))}
        return [found.get(id) for id in ids]

    async def find(self, where: Where, after: str = "", limit: int = PAGE_LIMIT) -> list[Job]:
        """See Engine.find: along the expiring, the children, each of the states, or all ids."""
        newest = where.newest_first
        start = after or (PAST_ALL_IDS if newest else "")
        most = at_most(limit, PAGE_LIMIT)
        texts = [text for text in (start, where.queue, where.type, where.parent) if text is not None]
        if len(rows.storable(texts)) < len(texts):
            return []
        states = [state.value for state in where.states] or None

        async def pick(statement: str, *more: Any) -> list[Job]:
            sql = getattr(self._sql, statement + "_newest" if newest else statement)
            found = await self._fetch(sql, start, most, where.queue, where.type, *more)
            return [job_of(row) for row in found]

        if where.expires_before is not None:
            return await pick("find_expired", where.expires_before, states, where.parent)
        if where.parent is not None:
            return await pick("find_children", where.parent, states)
        if not where.states:
            return await pick("find")
        walks = []
        for state in dict.fromkeys(where.states):
            if state is State.ACTIVE:
                walks.append(await pick("find_active"))
            else:
                walks.append(await pick("find_ended" if state in TERMINAL else "find_live", state.value))
        return list(islice(merge(*walks, key=lambda job: job.id, reverse=newest), most))

    async def count(self) -> Mapping[tuple[str, State], int]:
        """See Engine.count."""
        return {(queue, State(state)): jobs for queue, state, jobs in await self._fetch(self._sql.count)}

    async def ready_types(self, queue: str) -> list[str]:
        """See Engine.ready_types."""
        if not rows.storable([queue]):
            return []
        return sorted(row[0] for row in await self._fetch(self._sql.ready_types, queue, PAGE_LIMIT))

    async def steps(self, job: str) -> list[Step]:
        """See Engine.steps."""
        return [step_of(row) for row in await self._fetch(self._sql.steps, job)]

    async def steps_under(self, job: str, prefix: str) -> list[Step]:
        """See Engine.steps_under."""
        return [step_of(row) for row in await self._fetch(self._sql.steps_under, job, prefix)]

    async def history(self, job: str, after: int = 0, limit: int = PAGE_LIMIT) -> list[Entry]:
        """See Engine.history."""
        found = await self._fetch(self._sql.history, job, after, at_most(limit, PAGE_LIMIT))
        return [entry_of(row) for row in found]

    async def missing(self, parent: str, group: str) -> int:
        """See Engine.missing."""
        [row] = await self._fetch(self._sql.missing, parent, group)
        return int(row[0])

    async def records(self, prefix: str) -> list[Record]:
        """See Engine.records."""
        found: list[Record] = []
        if not prefix.startswith(WORKER):
            found = [Record(*row) for row in await self._fetch(self._sql.records, prefix)]
        if prefix.startswith(WORKER) or WORKER.startswith(prefix):
            found += worker_records(await self._look(self._presences), prefix)
        return sorted(found, key=lambda record: record.name)

    async def _presences(self, db: Connection) -> list[Presence]:
        return self._live.presences(await db.fetch(self._sql.workers))

    # Moving.

    async def in_order(self, after: str = "", limit: int = PAGE_LIMIT) -> list[Job]:
        """See Movable.in_order."""
        found = await self._fetch(self._sql.number, after) if after else [(0,)]
        if not found:
            raise NotFound(f"there is no job {after} to go on after")
        page = await self._fetch(self._sql.in_order, found[0][0], at_most(limit, PAGE_LIMIT))
        return [job_of(row) for row in page]

    async def wholes(self, jobs: Sequence[Job]) -> list[Whole]:
        """See Movable.wholes."""
        ids = [job.id for job in jobs]
        entries, steps = await asyncio.gather(
            self._fetch(self._sql.histories, ids), self._fetch(self._sql.all_steps, ids)
        )
        return put_together(jobs, map(entry_of, entries), map(step_of, steps))

    async def keys(self, after: tuple[str, str] = ("", ""), limit: int = PAGE_LIMIT) -> list[HeldKey]:
        """See Movable.keys."""
        return [HeldKey(*row) for row in await self._fetch(self._sql.keys, *after, at_most(limit, PAGE_LIMIT))]

    async def all_records(self) -> list[Record]:
        """See Movable.all_records."""
        return [Record(*row) for row in await self._fetch(self._sql.all_records)]
