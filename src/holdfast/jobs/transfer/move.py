"""Moving all jobs of a store to another one: the order of it, so that it can be killed anywhere and repeated.

    both      no worker is at work, or each has finished what it ran (`draining`)
    source    is marked: from now on it takes nothing, and says where its jobs go
    target    is marked: it takes nothing but what is loaded
              whole jobs, in the order of their insertion, page by page; then keys, then records; then all is compared
    source    its mark says "done": from now on only the target counts
    target    its mark goes: workers may begin

At no moment do both take work. Must not decide anything about a job: it is moved as it is, an active one too, whose
worker is dead; the target's upkeep takes care of it as it would have here.
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
from holdfast.engines.records import QUIET
from holdfast.engines.traits import Movable
from holdfast.jobs.transfer.drain import OURS, Tell, drain, held_jobs, lift, living_workers

PAGE_JOBS = 100
"""How many jobs are read, and loaded in one act, at most."""

LOAD_CHARS = 8 << 20
"""Beyond so many characters of arguments, results and steps a page is loaded as it is: memory stays small."""

READS_AT_ONCE = 16
"""Of how many jobs the history and the steps are read at once."""

DRAIN_TRIES = 5
"""How often a store is drained again in which a worker claimed something just before it was marked."""


class Side(Struct, frozen=True):
    """A store and how it is called: a name that may be shown, and kept in the other store."""

    engine: Engine
    name: str


class Report(Struct, frozen=True, kw_only=True):
    """What was moved. `digest` is of all jobs with their histories and steps, and the same on both sides."""

    jobs: int = 0
    entries: int = 0
    steps: int = 0
    keys: int = 0
    records: int = 0
    digest: str = ""
    resumed: bool = False
    already: bool = False
    """All had been moved before this call."""


async def mark_in(engine: Engine) -> tuple[Mark, int] | None:
    """The mark that a store bears, and the version of its record."""
    for record in await engine.records(MOVED):
        if record.name == MOVED:
            return mark_of(record.value), record.version
    return None


async def check_here(engine: Engine) -> None:
    """Refuse a store whose jobs are elsewhere, or on their way."""
    if marked := await mark_in(engine):
        raise Moved(marked[0].words())


async def move(
    source: Side, target: Side, *, by: str = "", drain_seconds: float | None = None, tell: Tell = lambda *_: None
) -> Report:
    """Move all jobs, or go on with a move that was cut off. Refused with nothing changed, or done and compared."""
    for side in (source, target):
        if not isinstance(side.engine, Movable):
            raise Invalid(f"{side.name}: jobs kept in {side.engine.guarantees.name} can't be moved yet")
    return await _Move(source, target, by, drain_seconds, tell).run()


async def give_up(source: Side, *, sure: bool = False) -> Mark:
    """Open a store again whose move was cut off; with `sure`, also one whose jobs were moved to the end.

    Answers with the mark that it bore, which names no store where it was cut off before anything was moved.
    """
    marked = await mark_in(source.engine)
    if marked is None and await lift(source.engine):
        return Mark(move="", away=True, store="")  # cut off in its drain: nothing was moved
    if marked is None:
        raise NotFound(f"{source.name} is not being moved; there is nothing to give up")
    mark, version = marked
    if not mark.away:
        raise Refused(
            f"{source.name}: jobs are being moved into it, from {mark.store}; give up over there, then remove this one"
        )
    if mark.done and not sure:
        raise Refused(
            f"{source.name}: all its jobs were moved to {mark.store}, and may have run there; if that store is lost, "
            "and they shall run here again from where they were, say so with --yes"
        )
    if isinstance(await source.engine.put_record(MOVED, None, version), Conflict):
        raise Refused(f"{source.name}: its move goes on just now, in another process; stop that one first")
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
        """Mark the source, once no living worker holds anything there."""
        if marked := await mark_in(self._target):
            raise Refused(self._strange(marked[0]))
        await self._check_empty()
        jobs = sum((await self._source.count()).values())
        if self._target.room is not None and jobs > self._target.room:
            limit = self._target.guarantees.limit
            raise Refused(f"{self._to}: no room for {jobs:,} jobs ({limit}); nothing was moved: name another store")
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
                    raise Invalid(f"{self._from} and {self._to} are one store; name another one with --to")
                if not await held_jobs(self._source, await living_workers(self._source)):
                    return mark, put.version
                await self._source.put_record(MOVED, None, put.version)
        except BaseException:
            if not await mark_in(self._source):
                await lift(self._target)
                await lift(self._source)
            raise
        raise Refused(f"{self._from}: workers go on claiming there; nothing was moved: stop them")

    async def _enter(self, away: Mark) -> tuple[Mark, int] | None:
        """Mark the target, or find it marked by this very move. None if all was moved before, and it is open."""
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
            what = f"{jobs:,} {'job' if jobs == 1 else 'jobs'}" if jobs else "keys of jobs that are gone"
            raise Refused(f"{self._to} is not empty: it has {what}; nothing was moved: name a new store with --to")

    def _strange(self, mark: Mark) -> str:
        if mark.away:
            goes = "were moved" if mark.done else "are being moved"
            return (
                f"{self._to} is closed: its own jobs {goes} to {mark.store}; nothing was moved: name a new store with "
                "--to, such as another schema= or app= there"
            )
        return (
            f"{self._to} is half filled by another move, from {mark.store}; nothing was moved: remove it, "
            "or name a new store with --to"
        )

    def _contended(self) -> Refused:
        return Refused(f"another process moves the jobs of {self._from}, or gave it up; look there")

    # Copying.

    async def _copy(self, into: tuple[Mark, int]) -> tuple[Mark, int]:
        total = sum((await self._source.count()).values())
        done = sum((await self._target.count()).values())
        self._tell("moving", done, total)
        # Read ahead: while one page is on its way into the target, the next one comes out of the source.
        pages = self._pages(self._source, into[0].after)
        reading = asyncio.ensure_future(anext(pages, None))
        try:
            while (page := await reading) is not None:
                reading = asyncio.ensure_future(anext(pages, None))
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
        """All jobs, whole, in the order of insertion, in pages of a bearable size."""
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
        """Read both stores from end to end, and compare all that was moved. The digest is of what the target holds."""
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
                raise self._differs("one has jobs that the other has not")
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
        """Stores sort their keys each in its own way: compared by number, and by the sum of all digests."""
        found = []
        for engine in (self._source, self._target):
            number = total = 0
            async for keys in _key_pages(engine):
                number += len(keys)
                total += sum(int.from_bytes(sha256(_encode(key)).digest()) for key in keys)
            found.append((number, total))
        if found[0] != found[1]:
            raise self._differs(f"{found[0][0]:,} keys here, {found[1][0]:,} there, or what they stand for")
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
            f"{self._from} and {self._to} differ after the move ({what}), and neither is open for work; go back with "
            "holdfast move --from … --give-up, remove the half, and report it"
        )


async def _key_pages(engine: Movable) -> AsyncIterator[list[HeldKey]]:
    after = ("", "")
    while page := await engine.keys(after):
        yield page
        after = (page[-1].type, page[-1].key)


def _travelling(records: Sequence[Record]) -> list[Record]:
    """The records that go along: not the mark, nor what made workers quiet that stay here."""
    return [one for one in records if one.name != MOVED and not (one.name.startswith(QUIET) and one.value == OURS)]


def _size(whole: Whole) -> int:
    job = whole.job
    return len(job.args) + len(job.result or "") + sum(len(step.result or "") for step in whole.steps)


_encode = msgspec.json.Encoder(order="deterministic").encode
