"""The reading half of the contract, and how to call the server. Must not write a job."""

import asyncio
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from holdfast.core.errors import StoreFull
from holdfast.core.model import PAGE_LIMIT, Entry, Job, Presence, Record, State, Step, StepState, Time, Usage, Where
from holdfast.core.moves import HeldKey
from holdfast.core.searches import SCAN_LIMIT, Page, matches
from holdfast.core.shared_limits import BUCKET, limit_of
from holdfast.core.summaries import StepHead, StepSummary, gone, head_of, page_of, summarize
from holdfast.engines.contract import Engine
from holdfast.engines.liveness import ALWAYS, worker_records
from holdfast.engines.records import WORKER
from holdfast.engines.redis import columns, rows
from holdfast.engines.redis.connection import Wire
from holdfast.engines.redis.liveness import Seen
from holdfast.engines.redis.scripts import script
from holdfast.engines.redis.store import Given, Store
from holdfast.engines.redis.url import StoreUrl

T = TypeVar("T")

PAGE = 20
"""How many jobs one call of a script takes, promotes, prunes or reads at most."""

UNCOUNTED, GONE = 0, 2
"""What scripts return if a job's steps aren't counted, and if there is no step to continue after."""

USAGE_PAGE = 10
"""How many keys of a limit one call looks at, each with up to a hundred permits."""

FIND_PAGE = 20
"""How many jobs one call looks at in a search, because it merges several indexes."""


class Reads(Engine):
    """Reads, on the connection `_looks`."""

    _url: StoreUrl
    _store: Store
    _looks: Wire

    @abstractmethod
    async def _call(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run this on the engine's own loop; errors of the server are translated."""

    async def _script(self, wire: Wire, name: str, *words: Any) -> Any:
        """Run a script; note the store's seq, and return the rest of the answer."""
        given: Given

        def all_words() -> Sequence[Any]:
            nonlocal given
            given = self._store.given()
            return (*given, *words)

        answer = await wire.run(script(name), self._url.tag, all_words)
        return self._store.note_answer(answer, wire, given)[1:]

    async def _look(self, name: str, *words: Any) -> Any:
        return await self._call(lambda: self._script(self._looks, name, *words))

    async def _read(self, *words: Any) -> Any:
        """A plain read, after the check of the store."""

        async def read() -> Any:
            _, answer = await asyncio.gather(self._script(self._looks, "door"), self._looks.call(*words))
            return answer

        return await self._call(read)

    def _key(self, name: str) -> str:
        return f"{self._url.tag}:{name}"

    async def _get(self, ids: list[str]) -> Mapping[str, Job]:
        found: dict[str, Job] = {}
        for start in range(0, len(ids), PAGE):
            for row in await self._look("get", *ids[start : start + PAGE]):
                if row is not None:
                    job = rows.job_of(row)
                    found[job.id] = job
        return found

    async def _find(self, where: Where, after: str, limit: int) -> list[Job]:
        """Walk along the states, the children, or the expiring jobs, one page of ids at a time."""
        if where.expires_before is not None:
            try:
                return await self._find_expired(where, after, limit)
            except StoreFull:
                return await self._list_expired(where, after, limit)
        return list((await self._walk(where, after, limit)).jobs)

    async def _search(self, where: Where, after: str, limit: int) -> Page:
        """Walk as `_find` does, but only over SCAN_LIMIT jobs."""
        if where.expires_before is not None:
            return await super()._search(where, after, limit)
        return await self._walk(where, after, limit, SCAN_LIMIT)

    async def _walk(self, where: Where, after: str, limit: int, most: int | None = None) -> Page:
        letters = "".join(columns.LETTERS[state] for state in dict.fromkeys(where.states))
        indexes = [f"i:{letter}" for letter in letters or columns.STATES]
        if where.parent is not None:
            indexes = [f"c:{where.parent}"]
        fixed = (letters, *_maybe(where.queue), *_maybe(where.type), *indexes)
        jobs: list[Job] = []
        scanned = 0
        start: str | bytes | None = after
        while start is not None and len(jobs) < limit and (most is None or scanned < most):
            start, *found = await self._look(
                "find", start, int(where.newest_first), limit - len(jobs), FIND_PAGE, *fixed
            )
            jobs += (job for job in map(rows.job_of, found) if matches(job, where))
            scanned += FIND_PAGE
        behind = start.decode() if isinstance(start, bytes) else start
        return Page(jobs=tuple(jobs), next=behind, scanned=scanned, is_cut=behind is not None and len(jobs) < limit)

    async def _find_expired(self, where: Where, after: str, most: int) -> list[Job]:
        """Walk along the expired jobs, one page of ids at a time. Newly expired jobs are sorted in first, each once."""
        letters = "".join(columns.LETTERS[state] for state in dict.fromkeys(where.states))
        fixed = (letters, *_maybe(where.queue), *_maybe(where.type), *_maybe(where.parent))
        jobs: list[Job] = []
        start: str | bytes | None = after
        while start is not None and len(jobs) < most:
            start, *found = await self._look(
                "expired", str(where.expires_before), start, int(where.newest_first), most - len(jobs), PAGE, *fixed
            )
            # The server compares times as floats, and times in the far future may be equal as floats.
            jobs += (job for job in map(rows.job_of, found) if matches(job, where))
        return jobs

    async def _list_expired(self, where: Where, after: str, most: int) -> list[Job]:
        """The same on a full server, which can't write and so can't sort: list everything instead."""
        over = await self._read("ZRANGEBYSCORE", self._key("x"), "-inf", str(where.expires_before))
        ids = {id.decode() for id in (*over, *await self._read("ZRANGEBYLEX", self._key("xi"), "-", "+"))}
        newest = where.newest_first
        behind = sorted((id for id in ids if not after or (id < after if newest else id > after)), reverse=newest)
        jobs: list[Job] = []
        for start in range(0, len(behind), PAGE):
            found = await self.get(behind[start : start + PAGE])
            jobs += (job for job in found if job is not None and matches(job, where))
            if len(jobs) >= most:
                break
        return jobs[:most]

    async def count(self) -> Mapping[tuple[str, State], int]:
        """Read the counters."""
        found = [word.decode() for word in await self._read("HGETALL", self._key("c"))]
        return {(name[1:], columns.STATES[name[0]]): int(n) for name, n in zip(found[::2], found[1::2], strict=True)}

    async def _ready_types(self, queue: str) -> list[str]:
        return sorted({type.decode() for type in await self._look("ready_types", queue)})[:PAGE_LIMIT]

    async def _steps(self, job: str) -> list[Step]:
        return rows.steps_of(job, await self._read("HGETALL", self._key(f"s:{job}")))

    async def _steps_under(self, jobs: list[str], prefix: str, state: StepState | None) -> list[Step]:
        letter = "" if state is None else rows.STEP_LETTERS[state]
        found: list[Step] = []
        for start in range(0, len(jobs), PAGE):
            asked = jobs[start : start + PAGE]
            answer = await self._look("steps_under", prefix, letter, *asked)
            found += (step for job, row in zip(asked, answer, strict=True) for step in rows.steps_of(job, row))
        return found

    async def _steps_page(self, job: str, after: str, limit: int) -> list[StepHead]:
        """Read a few steps at a time, because each may be large."""
        heads: list[StepHead] = []
        while len(heads) < limit:
            most = min(PAGE, limit - len(heads))
            kind, *found = await self._look("steps_page", job, heads[-1].path if heads else after, most)
            if kind == GONE:
                raise gone(after)
            if kind == UNCOUNTED:
                return page_of(await self._steps(job), after, limit)
            pairs = zip(found[::2], found[1::2], strict=True)
            heads += (head_of(rows.step_of(job, path.decode(), text)) for path, text in pairs)
            if len(found) < 2 * most:
                break
        return heads

    async def _summaries(self, jobs: list[str]) -> Mapping[str, StepSummary]:
        found: dict[str, StepSummary] = {}
        for start in range(0, len(jobs), PAGE):
            asked = jobs[start : start + PAGE]
            for job, row in zip(asked, await self._look("summaries", *asked), strict=True):
                is_counted = row != UNCOUNTED
                found[job] = rows.summary_of(job, row) if is_counted else summarize(job, await self._steps(job))
        return found

    async def _history(self, job: str, after: int, limit: int) -> list[Entry]:
        return rows.entries_of(job, after, limit, await self._look("history", job, after, limit))

    async def _missing(self, parent: str, group: str) -> int:
        return int(await self._read("HGET", self._key(f"g:{parent}"), f"g{group}") or 0)

    async def _holders(self, names: list[tuple[str, str]]) -> Mapping[tuple[str, str], HeldKey]:
        texts = await self._read("MGET", *(self._key(f"k:{rows.key_name(*name)}") for name in names))
        return {name: rows.held_key(*name, text) for name, text in zip(names, texts, strict=True) if text is not None}

    async def _usage(self, limit: str) -> list[Usage]:
        """Look at the keys of a limit that have permits or waiting jobs, and at those that have a bucket."""
        buckets = await self._names("dn", f"{BUCKET}{limit}", f"{BUCKET}{limit}/\U0010ffff")
        keys = {*await self._names(f"lk:{limit}"), *(name.removeprefix(BUCKET) for name in buckets)}
        asked = sorted(key for key in keys if limit_of(key) == limit)
        found: list[Usage] = []
        for start in range(0, len(asked), USAGE_PAGE):
            page = asked[start : start + USAGE_PAGE]
            rows_of_page = zip(page, await self._look("usage", *page), strict=True)
            found += (used for key, row in rows_of_page if (used := rows.usage_of(key, row)) is not None)
            if len(found) >= PAGE_LIMIT:
                break
        return found[:PAGE_LIMIT]

    async def _names(self, index: str, first: str = "", last: str = "") -> list[str]:
        """The names in an index between two of them, page by page."""
        names: list[str] = []
        start, end = f"[{first}" if first else "-", f"[{last}" if last else "+"
        while True:
            page = await self._read("ZRANGEBYLEX", self._key(index), start, end, "LIMIT", 0, PAGE_LIMIT)
            names += (name.decode() for name in page)
            if len(page) < PAGE_LIMIT:
                return names
            start = f"({names[-1]}"

    async def _records(self, prefix: str) -> list[Record]:
        found: list[Record] = []
        if not prefix.startswith(WORKER):
            after = ""
            while page := await self._look("records", prefix, after, PAGE):
                found += (rows.record_of(*one) for one in zip(page[::3], page[1::3], page[2::3], strict=True))
                after = found[-1].name
        if prefix.startswith(WORKER) or WORKER.startswith(prefix):
            _, present = await self._presences()
            found += worker_records(present, prefix)
        return sorted(found, key=lambda record: record.name)

    async def _presences(self) -> tuple[Time, list[Presence]]:
        return await self._call(self._look_for_workers)

    async def _look_for_workers(self) -> tuple[Time, list[Presence]]:
        """The workers, and whether those that missed a heartbeat are still connected."""
        wire = self._looks
        now, generation, *found = await self._script(wire, "workers")
        steady_ms = (asyncio.get_running_loop().time() - wire.since) * 1_000 if wire.remade else ALWAYS
        seen = [Seen(*pair) for pair in zip(found[::2], found[1::2], strict=True)]
        suspects = {one.client for one in seen if one.is_suspect(now, int(generation), steady_ms)}
        if suspects:
            listed = await wire.call("CLIENT", "LIST", "ID", *suspects)
            suspects -= {int(line.split(b" ", 1)[0].removeprefix(b"id=")) for line in listed.splitlines() if line}
        return now, [
            one.presence(gone=one.client in suspects, away=one.is_excused(now, int(generation), steady_ms))
            for one in seen
        ]


def _maybe(text: str | None) -> tuple[int, str]:
    return (0, "") if text is None else (1, text)
