"""Moving all jobs of a store to another store, in an order that makes it safe to kill and repeat at any point.

    both      no worker runs, or each has finished its jobs (`drain`)
    source    is marked: it accepts no more work and says where its jobs go
    target    is marked: it accepts only what the move loads
              whole jobs in the order of insertion, page by page; then keys, then records; then everything is compared
    source    its mark says "done": from now on only the target counts
    target    its mark is removed: workers can start

The two stores never accept work at the same time. Must not decide anything about a job: it is moved unchanged, even an
active job of a dead worker, which the target's upkeep then rescues as the source's would have.
"""

import asyncio
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from hashlib import sha256

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from holdfast.core.errors import Invalid, Moved, NotFound, Refused
from holdfast.core.model import PAGE_LIMIT, Conflict, Record
from holdfast.core.moves import MOVED, HeldKey, Mark, Whole, mark_of
from holdfast.engines.contract import Engine
from holdfast.engines.records import BLOBS, QUIET
from holdfast.engines.traits import Movable
from holdfast.jobs.large_values import references_of
from holdfast.jobs.transfer.drain import OURS, Tell, drain, held_jobs, lift, running_workers

PAGE_JOBS = 100
"""How many jobs are read, and loaded in one act, at most."""

LOAD_CHARS = 8 << 20
"""A page with more characters of arguments, results and steps than this is loaded early, to bound memory."""

READS_AT_ONCE = 16
"""For how many jobs the history and the steps are read at once."""

DRAIN_TRIES = 5
"""How often a store is drained again because a worker claimed something just before the store was marked."""


class Side(Struct, frozen=True):
    """A store and its display name, which is shown to people and kept in the other store."""

    engine: Engine
    name: str


class Report(Struct, frozen=True, kw_only=True):
    """What was moved. `digest` covers all jobs with their histories and steps, and is the same on both sides."""

    jobs: int = 0
    entries: int = 0
    steps: int = 0
    keys: int = 0
    records: int = 0
    digest: str = ""
    resumed: bool = False
    already: bool = False
    """Everything had already been moved before this call."""


async def mark_in(engine: Engine) -> tuple[Mark, int] | None:
    """Return a store's mark and the version of its record."""
    for record in await engine.records(MOVED):
        if record.name == MOVED:
            return mark_of(record.value), record.version
    return None


async def check_here(engine: Engine) -> None:
    """Raise Moved if the store's jobs were moved, or are being moved."""
    if marked := await mark_in(engine):
        raise Moved(marked[0].words())


async def move(
    source: Side, target: Side, *, by: str = "", drain_seconds: float | None = None, tell: Tell = lambda *_: None
) -> Report:
    """Move all jobs, or continue an interrupted move. Either refuses and changes nothing, or moves and compares all."""
    for side in (source, target):
        if not isinstance(side.engine, Movable):
            raise Invalid(f"{side.name}: Holdfast can't move jobs to or from {side.engine.guarantees.name} yet")
    return await _Move(source, target, by, drain_seconds, tell).run()


async def give_up(source: Side, *, sure: bool = False) -> Mark:
    """Open a store again whose move was interrupted; with `sure`, even one whose jobs were all moved.

    Returns the mark that it had. The mark names no store if the move stopped before anything was moved.
    """
    marked = await mark_in(source.engine)
    if marked is None and await lift(source.engine):
        return Mark(move="", away=True, store="")  # interrupted while draining: nothing was moved
    if marked is None:
        raise NotFound(f"{source.name} isn't being moved, so there is nothing to give up")
    mark, version = marked
    if not mark.away:
        raise Refused(
            f"{source.name} is the target of a move from {mark.store}; give up the move there, then remove this store"
        )
    if mark.done and not sure:
        raise Refused(
            f"{source.name}: all its jobs were moved to {mark.store} and may have run there; if that store is lost and "
            "the jobs should run here again from the state they had, confirm with --yes"
        )
    if isinstance(await source.engine.put_record(MOVED, None, version), Conflict):
        raise Refused(f"{source.name}: another process is moving it right now; stop that process first")
    await lift(source.engine)
    return mark


class _Move:
    def __init__(self, source: Side, target: Side, by: str, drain_seconds: float | None, tell: Tell) -> None:
        assert isinstance(source.engine, Movable)
        assert isinstance(target.engine, Movable)
        self._source, self._target = source.engine, target.engine
        self._from, self._to = source.name, target.name
        self._by, self._drain_seconds, self._tell = by, drain_seconds, tell

    async def run(self) -> Report:
        """See `move`."""
        away = await mark_in(self._source)
        resumed = away is not None
        if away is None:
            away = await self._begin()
        if not away[0].away:
            raise Refused(f"{self._from}: {away[0].words()}")
        into = await self._enter(away[0])
        if into is None:
            await lift(self._target)
            return Report(already=True)
        if not away[0].done:
            into = await self._copy(into)
            report = await self._verify()
            done = replace(away[0], done=True)
            await self._put(self._source, self._from, done, away[1])
        else:
            report = await self._verify()
        if isinstance(await self._target.put_record(MOVED, None, into[1]), Conflict):
            raise self._contended()
        await lift(self._target)
        return replace(report, resumed=resumed)

    # Beginning.

    async def _begin(self) -> tuple[Mark, int]:
        """Mark the source, once no running worker holds any of its jobs."""
        if marked := await mark_in(self._target):
            raise Refused(self._strange(marked[0]))
        await self._check_empty()
        jobs = sum((await self._source.count()).values())
        if self._target.room is not None and jobs > self._target.room:
            limit = self._target.guarantees.limit
            raise Refused(f"{self._to} has no room for {jobs:,} jobs ({limit}); nothing was moved: name another store")
        if (await self._target.blobs.ready(create=True)).store is None and not await self._source.blobs.is_empty():
            raise Refused(
                f"{self._to} has no blob store for the large values and files of {self._from}; nothing was moved: name "
                "one with $HOLDFAST_BLOBS"
            )
        mark = Mark(move=secrets.token_hex(8), away=True, store=self._to, by=self._by)
        try:
            await drain(self._target, self._to, self._drain_seconds, self._tell)
            for _ in range(DRAIN_TRIES):
                await drain(self._source, self._from, self._drain_seconds, self._tell)
                put = await self._source.put_record(MOVED, mark.text(), 0)
                if isinstance(put, Conflict):
                    raise self._contended()
                if await mark_in(self._target):
                    await self._source.put_record(MOVED, None, put.version)
                    raise Invalid(f"{self._from} and {self._to} are the same store; name another one with --to")
                if not await held_jobs(self._source, await running_workers(self._source)):
                    return mark, put.version
                await self._source.put_record(MOVED, None, put.version)
        except BaseException:
            if not await mark_in(self._source):
                await lift(self._target)
                await lift(self._source)
            raise
        raise Refused(f"{self._from}: its workers keep claiming jobs; nothing was moved: stop them first")

    async def _enter(self, away: Mark) -> tuple[Mark, int] | None:
        """Mark the target, or find the mark of this move there. None if everything was moved before and it is open."""
        marked = await mark_in(self._target)
        if marked is not None:
            if marked[0].move != away.move or marked[0].away:
                raise Refused(self._strange(marked[0]))
            return marked
        if away.store != self._to:
            goes = "were moved" if away.done else "are being moved"
            raise Refused(f"{self._from}: its jobs {goes} to {away.store}, not to {self._to}; name that one with --to")
        if away.done:
            return None
        await self._check_empty()
        into = Mark(move=away.move, away=False, store=self._from, by=self._by)
        put = await self._target.put_record(MOVED, into.text(), 0)
        if isinstance(put, Conflict):
            raise self._contended()
        return into, put.version

    async def _check_empty(self) -> None:
        jobs = sum((await self._target.count()).values())
        if jobs or await self._target.keys(limit=1):
            what = f"{jobs:,} {'job' if jobs == 1 else 'jobs'}" if jobs else "keys of deleted jobs"
            raise Refused(f"{self._to} isn't empty: it has {what}; nothing was moved: name a new store with --to")

    def _strange(self, mark: Mark) -> str:
        if mark.away:
            goes = "were moved" if mark.done else "are being moved"
            return (
                f"{self._to} is closed: its own jobs {goes} to {mark.store}; nothing was moved: name a new store with "
                "--to, such as another schema= or app= there"
            )
        return (
            f"{self._to} holds part of another move, from {mark.store}; nothing was moved: remove it, "
            "or name a new store with --to"
        )

    def _contended(self) -> Refused:
        return Refused(f"another process is moving the jobs of {self._from}, or gave its move up; check that process")

    # Copying.

    async def _copy(self, into: tuple[Mark, int]) -> tuple[Mark, int]:
        total = sum((await self._source.count()).values())
        done = sum((await self._target.count()).values())
        self._tell("moving", done, total)
        # Read ahead: while the target loads one page, the source reads the next.
        pages = self._pages(self._source, into[0].after)
        reading = asyncio.ensure_future(anext(pages, None))
        try:
            while (page := await reading) is not None:
                reading = asyncio.ensure_future(anext(pages, None))
                await copy_blobs(self._source, self._target, page)
                done += await self._target.load(page)
                mark = replace(into[0], after=page[-1].job.id)
                into = mark, await self._put(self._target, self._to, mark, into[1])
                self._tell("moving", done, total)
        finally:
            reading.cancel()
            await asyncio.wait([reading])
        async for keys in _key_pages(self._source):
            await self._target.load([], keys)
        records = _travelling(await self._source.all_records())
        for start in range(0, len(records), PAGE_LIMIT):
            await self._target.load([], [], records[start : start + PAGE_LIMIT])
        return into

    async def _pages(self, engine: Movable, after: str = "") -> AsyncIterator[list[Whole]]:
        """Read all jobs completely, in the order of insertion, in pages of bounded size."""
        while jobs := await engine.in_order(after, PAGE_JOBS):
            after = jobs[-1].id
            page, size = list[Whole](), 0
            for start in range(0, len(jobs), READS_AT_ONCE):
                some = jobs[start : start + READS_AT_ONCE]
                for whole in await engine.wholes(some):
                    page.append(whole)
                    size += _size(whole)
                if size > LOAD_CHARS:
                    yield page
                    page, size = [], 0
            if page:
                yield page

    async def _put(self, engine: Movable, name: str, mark: Mark, version: int) -> int:
        put = await engine.put_record(MOVED, mark.text(), version)
        if isinstance(put, Conflict):
            raise self._contended()
        return put.version

    # Comparing.

    async def _verify(self) -> Report:
        """Read both stores from start to end and compare everything moved. The digest is of the target's content."""
        counts = await self._source.count(), await self._target.count()
        if dict(counts[0]) != dict(counts[1]):
            raise self._differs(f"{sum(counts[0].values()):,} jobs here, {sum(counts[1].values()):,} there")
        total, sums, after, digest = sum(counts[0].values()), Counter[str](), ["", ""], sha256()
        while True:
            pages = await asyncio.gather(*(self._page(n, after[n]) for n in (0, 1)))
            for mine, its in zip(*pages, strict=False):
                if mine != its:
                    raise self._differs(f"job {mine.job.id}")
                digest.update(_encode(its))
                sums.update(jobs=1, entries=len(mine.entries), steps=len(mine.steps))
            if len(pages[0]) != len(pages[1]):
                raise self._differs("one has jobs that the other doesn't have")
            if not pages[0]:
                break
            after = [page[-1].job.id for page in pages]
            self._tell("verifying", sums["jobs"], total)
        keys, records = await self._verify_keys(), await self._verify_records()
        return Report(
            jobs=sums["jobs"],
            entries=sums["entries"],
            steps=sums["steps"],
            keys=keys,
            records=records,
            digest=digest.hexdigest(),
        )

    async def _page(self, side: int, after: str) -> list[Whole]:
        engine = (self._source, self._target)[side]
        return await engine.wholes(await engine.in_order(after, READS_AT_ONCE))

    async def _verify_keys(self) -> int:
        """Compare keys by number and by the sum of their digests, because each store sorts them differently."""
        found = []
        for engine in (self._source, self._target):
            number = total = 0
            async for keys in _key_pages(engine):
                number += len(keys)
                total += sum(int.from_bytes(sha256(_encode(key)).digest()) for key in keys)
            found.append((number, total))
        if found[0] != found[1]:
            raise self._differs(f"{found[0][0]:,} keys here, {found[1][0]:,} there, or different jobs behind them")
        return found[0][0]

    async def _verify_records(self) -> int:
        mine = _travelling(await self._source.all_records())
        its = {record.name: record for record in await self._target.all_records()}
        for record in mine:
            other = its.get(record.name)
            if other is None or other.value != record.value or other.version < record.version:
                raise self._differs(f"record {record.name}")
        return len(mine)

    def _differs(self, what: str) -> Refused:
        return Refused(
            f"{self._from} and {self._to} differ after the move ({what}); both are closed: reopen the source with "
            "holdfast move --from … --give-up, remove the incomplete target, and report this as a bug"
        )


async def _key_pages(engine: Movable) -> AsyncIterator[list[HeldKey]]:
    after = ("", "")
    while page := await engine.keys(after):
        yield page
        after = (page[-1].type, page[-1].key)


async def copy_blobs(source: Engine, target: Engine, wholes: Sequence[Whole]) -> None:
    """Copy the large values and files of these jobs. Before the jobs, so that none refers to what isn't there."""
    for whole in wholes:
        if needed := references_of(whole.job, whole.steps):
            await target.blobs.copy_from(source.blobs, needed, whole.job.id)


def _travelling(records: Sequence[Record]) -> list[Record]:
    """Return the records to move: not the mark, not the place of the blobs, and not those that a drain has written."""
    named = (MOVED, BLOBS)
    return [one for one in records if one.name not in named and not (one.name.startswith(QUIET) and one.value == OURS)]


def _size(whole: Whole) -> int:
    job = whole.job
    return len(job.args) + len(job.result or "") + sum(len(step.result or "") for step in whole.steps)


_encode = msgspec.json.Encoder(order="deterministic").encode
