"""The half of the contract that only looks things up. Must not write."""

import asyncio
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from heapq import merge
from itertools import islice
from types import SimpleNamespace
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from holdfast.core.lifecycle import TERMINAL
from holdfast.core.limits import STEP_NAMES
from holdfast.core.model import PAGE_LIMIT, Entry, Job, Presence, Record, State, Step, StepState, Usage, Where
from holdfast.core.moves import HeldKey, Whole, put_together
from holdfast.core.searches import SCAN_LIMIT, Page
from holdfast.core.summaries import StepHead, StepSummary, gone
from holdfast.engines.liveness import worker_records
from holdfast.engines.postgres.limits import usages
from holdfast.engines.postgres.liveness import Liveness
from holdfast.engines.postgres.store import Connection
from holdfast.engines.records import WORKER
from holdfast.engines.refusals import no_job_before
from holdfast.engines.rows import Row, entry_of, job_of, step_head_of, step_of, summary_of
from holdfast.engines.search_walks import SHORT_SCAN, Walk, is_dense, joined, page_of_key, whole_walk
from holdfast.engines.sql import beyond
from holdfast.engines.traits import Movable

T = TypeVar("T")

PAST_ALL_IDS = "\U0010ffff"
"""Sorts after every id: where a walk from the newest job starts."""


class Health(Struct, frozen=True):
    """A server's health: how safe a commit is, how many connections are used, and how old the oldest transaction is."""

    fsync: str
    synchronous_commit: str
    connections: int
    limit: int
    oldest_seconds: float | None
    sees_all: bool


class Reads(Movable):
    """Reads, on the connection that `_look` provides."""

    _sql: SimpleNamespace
    _liveness: Liveness

    @abstractmethod
    async def _look(self, look: Callable[[Connection], Awaitable[T]]) -> T:
        """Run this with a connection; if the connection breaks, once more with another one."""

    async def _fetch(self, statement: str, *params: Any) -> list[Any]:
        return await self._look(lambda db: db.fetch(statement, *params))

    async def health(self) -> Health:
        """The server's health, for its operator."""
        [row] = await self._fetch(self._sql.health)
        return Health(*row)

    async def _get(self, ids: list[str]) -> Mapping[str, Job]:
        return {row[1]: job_of(row) for row in await self._fetch(self._sql.get, ids)}

    async def _find(self, where: Where, after: str, limit: int) -> list[Job]:
        """Walk along the expiring jobs, the children, each of the states, or all ids."""
        newest = where.newest_first
        start = after or (PAST_ALL_IDS if newest else "")
        states = [state.value for state in where.states] or None

        async def pick(statement: str, *more: Any) -> list[Job]:
            sql = getattr(self._sql, statement + "_newest" if newest else statement)
            found = await self._fetch(sql, start, limit, where.queue, where.type, *more)
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
        return list(islice(merge(*walks, key=lambda job: job.id, reverse=newest), limit))

    async def _search(self, where: Where, after: str, limit: int) -> Page:
        """Walk along the states or all ids, at most SCAN_LIMIT jobs."""
        newest = where.newest_first
        if where.key is not None:
            ids = [row[0] for row in await self._fetch(self._sql.with_key, where.key)]
            return page_of_key((await self._get(ids)).values() if ids else (), where, after, limit)
        if where.parent is not None or where.expires_before is not None:
            found = await self._find(where, after, limit)
            return joined([whole_walk(found, limit)], limit, newest_first=newest)
        states: list[State | None] = [*dict.fromkeys(where.states)] or [None]
        scan = SCAN_LIMIT // len(states)
        start = after or (PAST_ALL_IDS if newest else "")

        async def walk(state: State | None) -> Walk:
            if state is State.ACTIVE:
                return whole_walk(await self._find(replace(where, states=(state,)), after, limit), limit)
            kind = "search" if state is None else "search_ended" if state in TERMINAL else "search_live"
            name, more = kind + ("_newest" if newest else ""), () if state is None else (state.value,)
            # Most pages are full after a short walk.
            for most in [limit] if is_dense(where) else [min(SHORT_SCAN, scan), scan]:
                read = await self._fetch(getattr(self._sql, name), start, limit, where.queue, where.type, most, *more)
                found = [job_of(row) for row in read]
                if is_dense(where) or len(found) == limit:
                    return whole_walk(found, limit)
            [(count, last)] = await self._fetch(getattr(self._sql, f"{name}_end"), start, scan, *more)
            return Walk(found, count, last if count == scan else None)

        return joined([await walk(state) for state in states], limit, newest_first=newest)

    async def count(self) -> Mapping[tuple[str, State], int]:
        """Read the counters."""
        return {(queue, State(state)): jobs for queue, state, jobs in await self._fetch(self._sql.count)}

    async def _ready_types(self, queue: str) -> list[str]:
        return sorted(row[0] for row in await self._fetch(self._sql.ready_types, queue, PAGE_LIMIT))

    async def _steps(self, job: str) -> list[Step]:
        return [step_of(row) for row in await self._fetch(self._sql.steps, job)]

    async def _steps_under(self, jobs: list[str], prefix: str, state: StepState | None) -> list[Step]:
        asked = (jobs, prefix, beyond(prefix) or None, state)
        return [step_of(row) for row in await self._fetch(self._sql.steps_under, *asked)]

    async def _steps_page(self, job: str, after: str, limit: int) -> list[StepHead]:
        place = await self._fetch(self._sql.place_of, job, after) if after else [(0,)]
        if not place:
            raise gone(after)
        return [step_head_of(row) for row in await self._fetch(self._sql.steps_page, job, place[0][0], limit)]

    async def _summaries(self, jobs: list[str]) -> Mapping[str, StepSummary]:
        """Read the counters; where they aren't valid, count now."""
        found: dict[str, list[Row]] = {}
        uncounted: dict[int, str] = {}
        for id, n, is_counted, *counter in await self._fetch(self._sql.summaries, jobs):
            if is_counted:
                found.setdefault(id, []).append(counter)
            else:
                uncounted[n] = id
        if uncounted:
            for n, *counter in await self._fetch(self._sql.count_steps, list(uncounted), STEP_NAMES):
                found.setdefault(uncounted[n], []).append(counter)
        return {id: summary_of(id, counters) for id, counters in found.items()}

    async def _history(self, job: str, after: int, limit: int) -> list[Entry]:
        return [entry_of(row) for row in await self._fetch(self._sql.history, job, after, limit)]

    async def _missing(self, parent: str, group: str) -> int:
        [row] = await self._fetch(self._sql.missing, parent, group)
        return int(row[0])

    async def _holders(self, names: list[tuple[str, str]]) -> Mapping[tuple[str, str], HeldKey]:
        types, keys = [type for type, _ in names], [key for _, key in names]
        return {(row[0], row[1]): HeldKey(*row) for row in await self._fetch(self._sql.holders, types, keys)}

    async def _usage(self, limit: str) -> list[Usage]:
        return usages(await self._fetch(self._sql.usage, limit))

    async def _records(self, prefix: str) -> list[Record]:
        found: list[Record] = []
        if not prefix.startswith(WORKER):
            found = [Record(*row) for row in await self._fetch(self._sql.records, prefix)]
        if prefix.startswith(WORKER) or WORKER.startswith(prefix):
            found += worker_records(await self._look(self._presences), prefix)
        return sorted(found, key=lambda record: record.name)

    async def _presences(self, db: Connection) -> list[Presence]:
        return self._liveness.presences(await db.fetch(self._sql.workers))

    # Moving.

    async def _in_order(self, after: str, limit: int) -> list[Job]:
        found = await self._fetch(self._sql.number, after) if after else [(0,)]
        if not found:
            raise no_job_before(after)
        return [job_of(row) for row in await self._fetch(self._sql.in_order, found[0][0], limit)]

    async def _wholes(self, jobs: Sequence[Job]) -> list[Whole]:
        ids = [job.id for job in jobs]
        entries, steps = await asyncio.gather(
            self._fetch(self._sql.histories, ids), self._fetch(self._sql.all_steps, ids)
        )
        return put_together(jobs, map(entry_of, entries), map(step_of, steps))

    async def _keys(self, after: tuple[str, str], limit: int) -> list[HeldKey]:
        return [HeldKey(*row) for row in await self._fetch(self._sql.keys, *after, limit)]

    async def all_records(self) -> list[Record]:
        """List all records, including the removed ones."""
        return [Record(*row) for row in await self._fetch(self._sql.all_records)]
