"""A program of the version before that still runs while its store is upgraded: it goes on, or is refused.

It is played by what it sends: its statements on SQL stores, and what its scripts write on Redis.
"""

import asyncio
import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import parse_qs, urlsplit

import asyncpg
import msgspec
import pytest
import redis

from holdfast.conformance.given import StoreClock, change, claimed, done, job, step, taken_over
from holdfast.core.errors import StoreError, StoreForeign
from holdfast.core.model import Event, Job, Options, State, StepState, Use
from holdfast.core.shared_limits import LIMIT
from holdfast.core.summaries import head_of, is_step, summarize
from holdfast.engines.contract import Engine
from holdfast.engines.postgres import PostgresEngine
from holdfast.engines.postgres.url import parse_url
from holdfast.engines.redis import RedisEngine
from holdfast.engines.redis import store as redis_store_module
from holdfast.engines.sql import migrations
from holdfast.engines.sqlite import SqliteEngine
from holdfast.engines.sqlite import store as sqlite_store_module

CLOCK = StoreClock(settable=False)
TYPES = ("x", "y", "x", "z")


async def some_jobs(engine: Engine) -> list[Job]:
    jobs = [job(CLOCK, type=type) for type in TYPES]
    await engine.insert(jobs)
    return jobs


# SQLite: the statement by which version 1 claims.

READY_OF_VERSION_1 = """
select id from whole
where state = 'available' and queue = :queue and run_at <= :now and (expires_at is null or expires_at > :now)
order by priority desc, run_at, n limit :limit;
"""


def test_sqlite_an_open_old_program_goes_on_and_one_that_starts_is_refused(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "jobs.db"
    first = migrations("holdfast.engines.sqlite")[:1]
    with monkeypatch.context() as old:
        old.setattr(sqlite_store_module, "migrations", lambda package: first)
        connection = sqlite_store_module.prepare(path)  # open since before the upgrade

    async def upgrade() -> list[Job]:
        engine = SqliteEngine(path)
        await engine.open()
        jobs = await some_jobs(engine)
        await engine.close()
        return jobs

    jobs = asyncio.run(upgrade())

    asked = {"queue": "default", "now": CLOCK.now + 1_000, "limit": 9}
    assert [id for (id,) in connection.execute(READY_OF_VERSION_1, asked)] == [one.id for one in jobs]
    connection.close()
    monkeypatch.setattr(sqlite_store_module, "migrations", lambda package: first)
    with pytest.raises(StoreForeign, match="written by a newer Holdfast"):
        sqlite_store_module.prepare(path)


def test_sqlite_an_old_store_becomes_a_new_one_with_the_same_indexes(tmp_path: Path, monkeypatch) -> None:
    def schema(path: Path) -> list[tuple[str, str]]:
        with sqlite3.connect(path) as db:
            return sorted(db.execute("select name, sql from sqlite_schema where sql is not null"))

    with monkeypatch.context() as old:
        old.setattr(sqlite_store_module, "migrations", lambda package: migrations(package)[:1])
        sqlite_store_module.prepare(tmp_path / "old.db").close()
    sqlite_store_module.prepare(tmp_path / "old.db").close()
    sqlite_store_module.prepare(tmp_path / "new.db").close()

    assert schema(tmp_path / "old.db") == schema(tmp_path / "new.db")


# SQLite: what version 4, which knows no limits, does with the jobs of a newer one.

CLAIM_OF_VERSION_4 = """
update job set state = 'active', version = version + 1, epoch = epoch + 1, worker = 'w-old', claimed_at = 1 where n in (
  select n from whole
  where state = 'available' and queue = :queue and type = :type and run_at <= :now
    and (expires_at is null or expires_at > :now)
  order by priority desc, run_at, n limit 9)
returning id;
"""
RELEASE_OF_VERSION_4 = """
update job set state = 'available', version = version + 1, worker = null, claimed_at = null where worker = 'w-old';
"""


def test_sqlite_an_old_program_claims_in_order_and_what_it_puts_back_waits_for_permits_again(tmp_path: Path) -> None:
    async def live() -> None:
        engine = SqliteEngine(tmp_path / "jobs.db")
        await engine.open()
        await engine.put_record(LIMIT + "api", '{"at_once":1}')
        jobs = [job(CLOCK, options=Options(limits=(Use("api"),) * (n % 2))) for n in range(4)]
        await engine.insert(jobs)
        with closing(sqlite3.connect(engine.path)) as old, old:
            asked = {"queue": "default", "type": "test.job", "now": CLOCK.now + 1_000}
            assert {id for (id,) in old.execute(CLAIM_OF_VERSION_4, asked)} == {one.id for one in jobs}
        assert await engine.claim("w-1", ["default"], 9) == []
        with closing(sqlite3.connect(engine.path)) as old, old:
            old.execute(RELEASE_OF_VERSION_4)

        unlimited = await engine.claim("w-1", ["default"], 9)
        await engine.prune()  # the next upkeep finds what the old program has told nobody
        limited = await engine.claim("w-1", ["default"], 9)

        assert [one.id for one in unlimited] == [jobs[0].id, jobs[2].id]
        assert [one.id for one in limited] == [jobs[1].id]
        assert [(one.held, one.waiting) for one in await engine.usage("api")] == [(1, 1)]
        await engine.close()

    asyncio.run(live())


# Postgres: the function that version 1 calls is still there.


def test_postgres_an_old_program_claims_any_type_in_order(postgres_store: str) -> None:
    async def live() -> None:
        engine = PostgresEngine(postgres_store)
        await engine.open()
        late = job(CLOCK, type="w", run_at=CLOCK.now - 60_000, state=State.SCHEDULED)
        await engine.insert([late])
        jobs = await some_jobs(engine)
        place = parse_url(postgres_store)
        db = await asyncpg.connect(place.dsn)
        sql = f'select id from "{place.schema}".claim($1, $2, $3, $4, $5, $6, $7)'
        first = await db.fetch(sql, "w-old", ["default"], 2, 1_000, None, None, None)
        rest = await db.fetch(sql, "w-old", ["default"], 9, 1_000, 0, CLOCK.now - 30_000, 1)
        assert [row[0] for row in (*first, *rest)] == [late.id, *(one.id for one in jobs)]
        assert (await engine.get([late.id]))[0].worker == "w-old"
        await db.close()
        await engine.close()

    asyncio.run(live())


# Redis: what the scripts of format 1 write.


@pytest.fixture
def raw(redis_store: str) -> Iterator["redis.Redis[bytes]"]:  # type: ignore[type-arg]
    with redis.Redis.from_url(redis_store.partition("?")[0]) as db:
        yield db


def tag(url: str) -> str:
    return f"{{{parse_qs(urlsplit(url).query)['app'][0]}}}:"


def as_in_format_1(raw: "redis.Redis[bytes]", url: str) -> None:  # type: ignore[type-arg]
    """Put what can be claimed where format 1 has it: all types of a queue together."""
    for key in raw.scan_iter(f"{tag(url)}q:*"):
        length, _, rest = key.decode().removeprefix(f"{tag(url)}q:").partition(":")
        raw.zadd(f"{tag(url)}r:{rest[: int(length)]}", dict(raw.zrange(key, 0, -1, withscores=True)))  # type: ignore[arg-type,type-var]
        raw.delete(key)
    for key in raw.scan_iter(f"{tag(url)}y:*"):
        raw.delete(key)


@pytest.mark.parametrize("number", [4, 450], ids=["a few", "more than one call deals out"])
def test_redis_what_an_old_program_makes_ready_is_claimed_in_its_order(
    redis_store: str,
    raw: "redis.Redis[bytes]",  # type: ignore[type-arg]
    number: int,
) -> None:
    async def live() -> None:
        engine = RedisEngine(redis_store)
        await engine.open()
        old = [job(CLOCK, type=TYPES[n % 4]) for n in range(number)]
        await engine.insert(old)
        as_in_format_1(raw, redis_store)
        new = await some_jobs(engine)
        known = [one.id for one in (*old, *new) if one.type in "xy"]

        held = [held.id for held in await engine.claim("w-1", ["default"], 500, ["x", "y"])]

        assert held == known
        assert await engine.ready_types("default") == ["z"]
        assert not raw.exists(f"{tag(redis_store)}r:default")
        await engine.close()

    asyncio.run(live())


def test_redis_what_an_old_program_takes_away_is_not_claimed(redis_store: str, raw: "redis.Redis[bytes]") -> None:  # type: ignore[type-arg]
    """It cancels a job, and takes it out of the queue where format 1 has it, where it is not."""

    async def live() -> None:
        engine = RedisEngine(redis_store)
        await engine.open()
        jobs = await some_jobs(engine)
        key = f"{tag(redis_store)}q:7:default:x"
        kept = raw.zrange(key, 0, -1, withscores=True)
        await engine.commit([change(CLOCK, jobs[0], Event.CANCEL)])
        raw.zadd(key, dict(kept))  # type: ignore[arg-type,type-var]

        held = await engine.claim("w-1", ["default"], 9, ["x"])

        assert [one.id for one in held] == [jobs[2].id]
        await engine.close()

    asyncio.run(live())


def test_redis_what_an_old_program_gives_back_is_claimed_again_once(
    redis_store: str,
    raw: "redis.Redis[bytes]",  # type: ignore[type-arg]
) -> None:
    async def live() -> None:
        engine = RedisEngine(redis_store)
        await engine.open()
        held = await claimed(engine, CLOCK, type="x", queue="default")
        await engine.commit([change(CLOCK, held, Event.RELEASE)])
        as_in_format_1(raw, redis_store)

        again = [*await engine.claim("w-1", ["default"], 9, ["x"]), *await engine.claim("w-1", ["default"], 9)]

        assert [(one.id, one.epoch) for one in again] == [(held.id, 2)]
        await engine.close()

    asyncio.run(live())


def test_redis_an_old_store_is_raised_and_an_old_program_that_connects_is_refused(
    redis_store: str,
    raw: "redis.Redis[bytes]",  # type: ignore[type-arg]
    monkeypatch,
) -> None:
    async def opened() -> None:
        engine = RedisEngine(redis_store)
        await engine.open()
        await engine.close()

    store = f"{tag(redis_store)}store"
    with monkeypatch.context() as old:
        old.setattr(redis_store_module, "FORMAT", 1)
        asyncio.run(opened())
        assert raw.hmget(store, "format", "oldest") == [b"1", b"1"]
    asyncio.run(opened())
    assert raw.hmget(store, "format", "oldest") == [str(redis_store_module.FORMAT).encode()] * 2

    monkeypatch.setattr(redis_store_module, "FORMAT", 1)
    with pytest.raises(StoreError, match="written by a newer Holdfast"):
        asyncio.run(opened())


# Step summaries: what a program that doesn't count leaves behind.


async def check_summary(engine: Engine, id: str, *, done: int) -> None:
    """A job's summary and pages equal a recount."""
    steps = await engine.steps(id)
    [summary] = await engine.summaries([id])
    assert summary == summarize(id, steps)
    assert summary.total.done == done
    assert await engine.steps_page(id) == [head_of(one) for one in steps if is_step(one.path)]


class OldProgram(Protocol):
    """What a program that doesn't count steps writes; and whether a job's counters are right."""

    async def claim(self, id: str) -> int: ...

    async def record(self, id: str, epoch: int, path: str) -> None: ...

    async def is_counted(self, id: str) -> bool: ...


async def live_beside(engine: Engine, old: OldProgram) -> None:
    """A job that both programs have in turn: after each its summary is right, and at last it is counted again."""
    held = await claimed(engine, CLOCK, type="x", queue="default")
    await engine.record([step(held, "draw#1"), step(held, "draw#2", StepState.STARTED)])
    await done(engine, CLOCK, held, Event.RELEASE)
    assert await old.is_counted(held.id)

    epoch = await old.claim(held.id)
    for path in ("draw#2", "draw#3"):
        await old.record(held.id, epoch, path)

    await check_summary(engine, held.id, done=3)
    again = await taken_over(engine, CLOCK, held, "w-new")
    await check_summary(engine, held.id, done=3)
    assert not await old.is_counted(held.id)

    await engine.record([step(again, "send#1")])
    await check_summary(engine, held.id, done=4)
    assert await old.is_counted(held.id)
    ended = await done(engine, CLOCK, again, Event.COMPLETE, steps=(step(again, "send#2"),))
    await check_summary(engine, held.id, done=5)
    assert await old.is_counted(ended.id)


class OldSqlite:
    """By the statements of version 3."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def _do(self, sql: str, *params: object) -> Any:
        with closing(sqlite3.connect(self._path)) as db, db:
            return db.execute(sql, params).fetchone()

    async def claim(self, id: str) -> int:
        sql = "update job set state = 'active', version = version + 1, epoch = epoch + 1, worker = 'w-old' where id = ?"
        self._do(sql, id)
        return int(self._do("select epoch from job where id = ?", id)[0])

    async def record(self, id: str, epoch: int, path: str) -> None:
        self._do(
            "insert into step (job, path, name, state, epoch, started_at, finished_at, result) "
            "select n, ?, 'draw', 'done', ?, 1, 2, '3' from job where id = ? "
            "on conflict (job, path) do update set state = excluded.state, epoch = excluded.epoch, "
            "finished_at = excluded.finished_at, result = excluded.result where step.state = 'started'",
            path, epoch, id,
        )  # fmt: skip

    async def is_counted(self, id: str) -> bool:
        return bool(self._do("select summed is version from job where id = ?", id)[0])


class OldPostgres:
    """By the statements of version 3."""

    def __init__(self, url: str) -> None:
        self._place = parse_url(url)

    async def _do(self, sql: str, *params: object) -> Any:
        db = await asyncpg.connect(self._place.dsn, server_settings={"search_path": self._place.schema})
        try:
            return await db.fetchval(sql, *params)
        finally:
            await db.close()

    async def claim(self, id: str) -> int:
        return int(
            await self._do(
                "update job set state = 'active', version = version + 1, epoch = epoch + 1, worker = 'w-old', "
                "claimed_at = 1, untold = version + 1 where id = $1 returning epoch",
                id,
            )
        )

    async def record(self, id: str, epoch: int, path: str) -> None:
        await self._do(
            "insert into step (n, path, place, name, state, epoch, started_at, finished_at, result) "
            "select n, $1::text, nextval('step_place'), 'draw', 'done', $2::bigint, 1, 2, '3' from job where id = $3 "
            "on conflict (n, path) do update set state = excluded.state, epoch = excluded.epoch, "
            "finished_at = excluded.finished_at, result = excluded.result where step.state = 'started'",
            path, epoch, id,
        )  # fmt: skip

    async def is_counted(self, id: str) -> bool:
        sql = "select summed = version from (table_of) as held"
        rows = "select id, summed, version from job union all select id, summed, version from done"
        return bool(await self._do(sql.replace("table_of", rows) + " where id = $1", id))


class OldRedis:
    """By what the scripts of format 2 write."""

    VERSION, EPOCH, STATE, WORKER, MORE = 1, 2, 0, 9, 22

    def __init__(self, raw: "redis.Redis[bytes]", url: str) -> None:  # type: ignore[type-arg]
        self._raw, self._tag = raw, tag(url)

    def _head(self, id: str) -> list[Any]:
        return list(msgspec.msgpack.decode(self._raw.hget(f"{self._tag}j:{id}", "h")))  # type: ignore[arg-type]

    async def claim(self, id: str) -> int:
        head = self._head(id)
        head[self.STATE], head[self.WORKER] = "o", "w-old"
        head[self.VERSION] += 1
        head[self.EPOCH] += 1
        entry = json.dumps([1, "claim", "a", "o", "w-old", head[self.EPOCH]])
        words = {"h": msgspec.msgpack.encode(head), f"e{head[self.VERSION]}": entry}
        self._raw.hset(f"{self._tag}j:{id}", mapping=words)  # type: ignore[arg-type]
        self._raw.zrem(f"{self._tag}i:a", id)
        self._raw.zadd(f"{self._tag}i:o", {id: 0})
        self._raw.delete(f"{self._tag}q:7:default:x", f"{self._tag}y:default")
        self._raw.hset(f"{self._tag}h:w-old", id, head[self.EPOCH])
        return int(head[self.EPOCH])

    async def record(self, id: str, epoch: int, path: str) -> None:
        key = f"{self._tag}s:{id}"
        old = self._raw.hget(key, path)
        place = old[1:13].decode() if old else f"{self._raw.hincrby(f'{self._tag}store', 'place', 1):012x}"
        self._raw.hset(key, path, f'd{place}[{epoch},"draw",1,2,null,"3"]')

    async def is_counted(self, id: str) -> bool:
        head = self._head(id)
        return bool(head[self.MORE] // 4 == head[self.VERSION])


def test_sqlite_steps_that_an_old_program_records_are_counted_all_the_same(tmp_path: Path) -> None:
    async def live() -> None:
        engine = SqliteEngine(tmp_path / "jobs.db")
        await engine.open()
        await live_beside(engine, OldSqlite(engine.path))
        await engine.close()

    asyncio.run(live())


def test_postgres_steps_that_an_old_program_records_are_counted_all_the_same(postgres_store: str) -> None:
    async def live() -> None:
        engine = PostgresEngine(postgres_store)
        await engine.open()
        await live_beside(engine, OldPostgres(postgres_store))
        await engine.close()

    asyncio.run(live())


def test_redis_steps_that_an_old_program_records_are_counted_all_the_same(
    redis_store: str,
    raw: "redis.Redis[bytes]",  # type: ignore[type-arg]
) -> None:
    async def live() -> None:
        engine = RedisEngine(redis_store)
        await engine.open()
        await live_beside(engine, OldRedis(raw, redis_store))
        await engine.close()

    asyncio.run(live())
