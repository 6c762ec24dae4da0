"""On Redis, one insert at a time takes a direct way. Whatever goes wrong there, the usual way takes over."""

import asyncio
import gc
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from holdfast import App
from holdfast.conformance.given import StoreClock, job
from holdfast.core.errors import KeyConflict, StoreLost
from holdfast.core.model import State, Where
from holdfast.engines.redis import RedisEngine
from holdfast.engines.redis.direct import CLIENT_NAME, WARM_UP_INSERTS
from tests.engines.redis.given import opened
from tests.support.given import until
from tests.support.redis_server import Server, server

CLOCK = StoreClock(settable=False)


@pytest.fixture
def own_server() -> Iterator[Server]:
    """A server that this test may restart; it keeps what it has."""
    with server() as running:
        yield running


def batched(engine: RedisEngine) -> int:
    """How many commands have gone the usual way for writes."""
    return engine._acts.calls


async def is_direct(engine: RedisEngine) -> bool:
    """Insert a job, and say whether it took the direct way."""
    before = batched(engine)
    ((inserted),) = await engine.insert([job(CLOCK)])
    assert inserted.new
    return batched(engine) == before


async def warmed(engine: RedisEngine) -> None:
    """Insert until the direct way is open."""
    await until(lambda: is_direct(engine))


def is_direct_blocking(engine: RedisEngine) -> bool:
    """As is_direct, in code without an event loop."""
    with pytest.raises(StopIteration) as end:
        is_direct(engine).send(None)
    return bool(end.value.value)


def warm_blocking(engine: RedisEngine) -> None:
    """Insert until the direct way of blocking code is open."""
    asyncio.run(until(lambda: asyncio.to_thread(is_direct_blocking, engine)))


def direct_connections(url: str) -> list[int]:
    """The connections of the direct way, by the server's numbers."""
    with redis.Redis.from_url(url.partition("?")[0]) as client:
        return [int(one["id"]) for one in client.client_list() if one["name"] == CLIENT_NAME]


def test_a_process_that_submits_a_few_jobs_opens_no_further_connection(redis_store: str, run):
    async def live() -> None:
        engine = await opened(redis_store)
        ways = [await is_direct(engine) for _ in range(WARM_UP_INSERTS - 1)]
        await engine.close()
        assert not any(ways)

    run(live())


@pytest.mark.parametrize("warm", [warmed, lambda engine: asyncio.to_thread(warm_blocking, engine)])
def test_inserts_one_by_one_take_the_direct_way_and_all_arrive(redis_store: str, run, warm: Callable[..., Any]):
    async def live() -> None:
        engine = await opened(redis_store)
        await warm(engine)
        before = len(await engine.find(Where()))
        blocking = warm is not warmed
        for _ in range(5):
            assert await (asyncio.to_thread(is_direct_blocking, engine) if blocking else is_direct(engine))
        assert len(await engine.find(Where())) == before + 5
        await engine.close()

    run(live())


def test_the_direct_way_refuses_what_the_usual_way_refuses(redis_store: str, run):
    async def live() -> None:
        engine = await opened(redis_store)
        await warmed(engine)
        first = job(CLOCK, key="k", digest="a")
        (stands,) = await engine.insert([first])
        (again,) = await engine.insert([job(CLOCK, key="k", digest="a")])
        assert (again.id, again.new) == (stands.id, False)
        with pytest.raises(KeyConflict):
            await engine.insert([job(CLOCK, key="k", digest="b")])
        assert await is_direct(engine)  # a refusal costs no connection
        await engine.close()

    run(live())


def test_a_connection_that_was_cut_costs_nobody_anything(redis_store: str, run):
    async def live() -> None:
        engine = await opened(redis_store)
        await warmed(engine)
        with redis.Redis.from_url(redis_store.partition("?")[0]) as client:
            for number in direct_connections(redis_store):
                client.client_kill_filter(_id=str(number))
        assert not await is_direct(engine)
        await warmed(engine)
        await engine.close()

    run(live())


def test_a_server_that_forgot_the_scripts_is_taught_them_again(redis_store: str, run):
    async def live() -> None:
        engine = await opened(redis_store)
        await warmed(engine)
        with redis.Redis.from_url(redis_store.partition("?")[0]) as client:
            client.script_flush()
        assert not await is_direct(engine)
        await warmed(engine)
        await engine.close()

    run(live())


def test_a_server_that_restarts_is_found_again(own_server: Server, run):
    async def live() -> None:
        engine = await opened(own_server.url)
        await warmed(engine)
        known = len(await engine.find(Where()))
        await asyncio.to_thread(own_server.restart)
        assert not await is_direct(engine)
        await warmed(engine)
        assert len(await engine.find(Where())) > known
        await engine.close()

    run(live())


def test_a_store_that_was_emptied_is_noticed_on_the_direct_way(redis_store: str, run):
    async def live() -> None:
        engine = await opened(redis_store)
        await warmed(engine)
        await RedisEngine.scrap(redis_store)
        with pytest.raises(StoreLost):
            await engine.insert([job(CLOCK)])
        with pytest.raises(StoreLost):
            await engine.insert([job(CLOCK)])
        await engine.close()

    run(live())


def test_a_cancelled_insert_leaves_no_answer_for_the_next_one(redis_store: str, run):
    async def live() -> None:
        engine = await opened(redis_store)
        await warmed(engine)
        for _ in range(20):
            given_up = asyncio.ensure_future(engine.insert([job(CLOCK)]))
            await asyncio.sleep(0)
            given_up.cancel()
            await asyncio.gather(given_up, return_exceptions=True)
            new = job(CLOCK)
            assert [one.id for one in await engine.insert([new])] == [new.id]
        await engine.close()

    run(live())


def test_a_bulk_submit_keeps_its_order_though_its_last_job_takes_the_direct_way(redis_store: str, run):
    async def live() -> None:
        engine = RedisEngine(redis_store)
        app = App("memory:", engine=engine)

        @app.job(name="count")
        async def count(n: int) -> None: ...

        await count.submit(-1)
        await warmed(engine)
        await engine.claim("w-1", ["default"], 1_000)
        size = 2 * engine.insert_at_once + 1
        for _ in range(5):
            runs = await count.submit_many(range(size))
            await until(lambda: is_due(engine, size))
            claimed = await engine.claim("w-1", ["default"], size)
            assert [one.id for one in claimed] == [one.id for one in runs]
        await app.close()

    run(live())


async def is_due(engine: RedisEngine, size: int) -> bool:
    """Whether so many jobs are there, all of them due: the parts of a bulk are due a millisecond apart."""
    now = await engine.now()
    jobs = await engine.find(Where(states=(State.AVAILABLE, State.SCHEDULED)))
    return len(jobs) == size and all(one.run_at is not None and one.run_at <= now for one in jobs)


def test_a_closed_store_keeps_no_connection(redis_store: str, run):
    async def live() -> None:
        engine = await opened(redis_store)
        await warmed(engine)
        assert await is_direct(engine)
        mine = set(direct_connections(redis_store))
        assert mine
        await engine.close()
        await until(lambda: not mine & set(direct_connections(redis_store)))

    run(live())


@pytest.mark.filterwarnings("error")
def test_a_loop_that_ends_without_a_close_takes_its_connection_along(redis_store: str, run):
    engine = run(opened(redis_store))
    before = set(direct_connections(redis_store))

    async def submit() -> set[int]:
        await warmed(engine)
        return set(direct_connections(redis_store))

    opened_there = asyncio.run(submit()) - before
    gc.collect()

    assert opened_there
    run(until(lambda: not opened_there & set(direct_connections(redis_store))))
    run(engine.close())


def fork_and_wait() -> None:
    """Fork a child that ends at once."""
    child = os.fork()
    if not child:
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


def test_a_forked_child_leaves_its_parents_connection_alone(redis_store: str, run):
    async def live() -> None:
        engine = await opened(redis_store)
        await warmed(engine)
        await asyncio.to_thread(fork_and_wait)
        assert await is_direct(engine)
        await engine.close()

    run(live())
