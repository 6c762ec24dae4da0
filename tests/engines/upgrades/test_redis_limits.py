"""A Redis program of format 3, which knows nothing of shared limits, beside one that does: it harms no other job.

It is played by what its scripts write, and by what they leave where it is.
"""

import asyncio
from collections.abc import Iterator

import msgspec
import pytest
import redis

from holdfast.conformance.given import StoreClock, done, job
from holdfast.core.model import Event, Job, Options, Usage, Use
from holdfast.core.shared_limits import LIMIT
from holdfast.engines.contract import Engine
from holdfast.engines.redis import RedisEngine
from tests.engines.upgrades.test_old_programs import tag

CLOCK = StoreClock(settable=False)


@pytest.fixture
def raw(redis_store: str) -> Iterator["redis.Redis[bytes]"]:  # type: ignore[type-arg]
    with redis.Redis.from_url(redis_store.partition("?")[0]) as db:
        yield db


def as_in_format_3(raw: "redis.Redis[bytes]", url: str, queue: str, type: str, key: str) -> None:  # type: ignore[type-arg]
    """Put what waits behind a limit's key where format 3 makes jobs available."""
    for name in raw.scan_iter(f"{tag(url)}lw:*:{key}:{type}"):
        raw.zadd(f"{tag(url)}q:{len(queue)}:{queue}:{type}", dict(raw.zrange(name, 0, -1, withscores=True)))  # type: ignore[arg-type,type-var]
    raw.sadd(f"{tag(url)}y:{queue}", type)
    for name in [*raw.scan_iter(f"{tag(url)}l?:*"), f"{tag(url)}lb"]:
        raw.delete(name)


async def limited_jobs(engine: Engine, number: int) -> list[Job]:
    """Jobs of one key, of which two may run at once."""
    await engine.put_record(f"{LIMIT}api", '{"at_once":2}')
    jobs = [job(CLOCK, type="x", options=Options(limits=(Use("api"),))) for _ in range(number)]
    await engine.insert(jobs)
    return jobs


def test_redis_a_limited_job_that_an_old_program_makes_available_still_needs_a_permit(
    redis_store: str,
    raw: "redis.Redis[bytes]",  # type: ignore[type-arg]
) -> None:
    async def live() -> None:
        engine = RedisEngine(redis_store)
        await engine.open()
        jobs = await limited_jobs(engine, 30)
        as_in_format_3(raw, redis_store, "default", "x", "api")
        new = job(CLOCK, type="x")
        await engine.insert([new])

        held = await engine.claim("w-1", ["default"], 40)

        assert [one.id for one in held] == [new.id, *(one.id for one in jobs[:2])]
        assert await engine.usage("api") == [Usage("api", 2, 28)]
        await done(engine, CLOCK, held[1], Event.COMPLETE)
        assert [one.id for one in await engine.claim("w-1", ["default"], 40)] == [jobs[2].id]
        await engine.close()

    asyncio.run(live())


def test_redis_a_limited_job_that_an_old_program_takes_away_is_passed_over(
    redis_store: str,
    raw: "redis.Redis[bytes]",  # type: ignore[type-arg]
) -> None:
    """It cancels a job that waits, and looks for it where format 3 has it, where it is not."""

    async def live() -> None:
        engine = RedisEngine(redis_store)
        await engine.open()
        jobs = await limited_jobs(engine, 3)
        waiting = {name: raw.zrange(name, 0, -1, withscores=True) for name in raw.scan_iter(f"{tag(redis_store)}lw:*")}
        counts = {name: raw.hgetall(name) for name in raw.scan_iter(f"{tag(redis_store)}l[qc]:*")}
        await done(engine, CLOCK, jobs[0], Event.CANCEL)
        for name, members in waiting.items():
            raw.zadd(name, dict(members))  # type: ignore[arg-type,type-var]
        for name, fields in counts.items():
            raw.hset(name, mapping=fields)  # type: ignore[arg-type]

        held = await engine.claim("w-1", ["default"], 9)

        assert [one.id for one in held] == [one.id for one in jobs[1:]]
        assert await engine.usage("api") == [Usage("api", 2, 0)]
        assert await engine.ready_types("default") == []
        await engine.close()

    asyncio.run(live())


def test_redis_a_permit_ends_with_the_lease_that_an_old_program_ends(
    redis_store: str,
    raw: "redis.Redis[bytes]",  # type: ignore[type-arg]
) -> None:
    async def live() -> None:
        engine = RedisEngine(redis_store)
        await engine.open()
        jobs = await limited_jobs(engine, 3)
        held = await engine.claim("w-1", ["default"], 9)
        permits = {name: raw.hgetall(name) for name in raw.scan_iter(f"{tag(redis_store)}l[pj]:*")}
        await done(engine, CLOCK, held[0], Event.COMPLETE)
        for name, fields in permits.items():  # what it doesn't know, it leaves
            raw.hset(name, mapping=fields)  # type: ignore[arg-type]

        assert [one.id for one in await engine.claim("w-1", ["default"], 9)] == [jobs[2].id]
        assert await engine.usage("api") == [Usage("api", 2, 0)]
        await engine.close()

    asyncio.run(live())


def test_redis_a_limited_job_reads_in_an_old_program_as_any_other(redis_store: str, raw: "redis.Redis[bytes]") -> None:  # type: ignore[type-arg]
    """Its head has as many fields as format 3 reads."""

    async def live() -> None:
        engine = RedisEngine(redis_store)
        await engine.open()
        [limited] = await limited_jobs(engine, 1)
        plain = job(CLOCK, type="x")
        await engine.insert([plain])

        heads = [raw.hget(f"{tag(redis_store)}j:{one.id}", "h") for one in (limited, plain)]
        lengths = [len(msgspec.msgpack.decode(head)) for head in heads]  # type: ignore[arg-type]

        assert lengths == [23, 23]
        await engine.close()

    asyncio.run(live())
