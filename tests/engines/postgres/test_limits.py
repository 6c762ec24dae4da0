"""Shared limits on Postgres, where many connections ask at the same time and some of them are cut."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import asyncpg
import pytest
from msgspec import json

from holdfast.conformance.given import SECOND, StoreClock, change, claimed, current, done, inserted, job, step
from holdfast.core.errors import StoreError
from holdfast.core.lifecycle import decide
from holdfast.core.model import Admission, Applied, Ask, Event, Job, Options, State, Use, Where
from holdfast.core.shared_limits import LIMIT, settings_from
from holdfast.engines.postgres import PostgresEngine, pool, store
from holdfast.engines.postgres.url import parse_url
from holdfast.engines.topics import queue_topic
from tests.engines.postgres.given import opened

CLOCK = StoreClock(settable=False)
WORKERS = 4
PATIENCE_SECONDS = 90.0
SOON = 5.0
"""How long something may take that waits for nobody."""

HELD = """
select count(*) from permit join job using (n)
where permit.epoch = job.epoch and job.state = 'active' and permit.key = $1
"""
UNREADABLE = ["nonsense", "[]", "7", '{"at_once":"1"}', '{"at_once":1.5}', '{"refill":null}', "\\u"]


@asynccontextmanager
async def looking(url: str) -> AsyncIterator[asyncpg.Connection]:
    """A connection of one's own, in the store's schema."""
    place = parse_url(url)
    db = await asyncpg.connect(place.dsn, server_settings={"search_path": place.schema})
    try:
        yield db
    finally:
        db.terminate()


async def set_limit(engine: PostgresEngine, name: str, **given: Any) -> None:
    await engine.put_record(LIMIT + name, json.encode(settings_from(name, **given)).decode())


def uses(*keys: str) -> Options:
    return Options(limits=tuple(Use(key) for key in keys))


async def held_by(engine: PostgresEngine, worker: str) -> list[Job]:
    active = await engine.find(Where(states=(State.ACTIVE,)))
    return [one for one in active if one.worker == worker]


async def end(engine: PostgresEngine, jobs: list[Job]) -> None:
    """Complete jobs, unless an earlier call has done so whose answer was lost."""
    changes = [decide(one, Event.COMPLETE, await engine.now(), result="1", by=one.worker or "") for one in jobs]
    await engine.commit(changes)


async def work(engine: PostgresEngine, worker: str, count: int, luck: random.Random) -> None:
    """Claim and complete until all jobs have ended. After trouble, go on with what the store says is ours."""
    while (await tried(engine.count)).get(("default", State.COMPLETED), 0) < count:
        try:
            held = await engine.claim(worker, ["default"], luck.choice((1, 2, 5)), ["test.job"])
            if not held:
                await engine.wait([queue_topic("default")], 0.05)
        except StoreError:
            held = await tried(lambda: held_by(engine, worker))
        while held:
            try:
                await end(engine, held[:1])
                held = held[1:]
            except StoreError:
                held = await tried(lambda: held_by(engine, worker))


async def tried(act: Callable[[], Awaitable[Any]]) -> Any:
    """Do something until no connection is cut meanwhile. Bounded by the test's own patience."""
    while True:
        try:
            return await act()
        except StoreError:
            await asyncio.sleep(0)


async def cut(engines: list[PostgresEngine], db: asyncpg.Connection, luck: random.Random, cuts: list[int]) -> None:
    """Cut connections of these engines, in the middle of whatever they do, as long as this is let run."""
    while True:
        await asyncio.sleep(luck.random() * 0.05)
        every = [one for engine in engines for one in list(engine._pool._all) if not one.is_closed()]
        if every and await db.fetchval("select pg_terminate_backend($1)", pid := luck.choice(every).get_server_pid()):
            cuts.append(pid)


async def watch(db: asyncpg.Connection, keys: dict[str, int], stop: asyncio.Event) -> int:
    """Look how many permits are valid, all the time; the most that were seen of any key."""
    seen = 0
    while not stop.is_set():
        for key, most in keys.items():
            held = await db.fetchval(HELD, key)
            assert held <= most, f"{held} permits of {key}"
            seen = max(seen, held)
    return seen


@pytest.mark.parametrize("are_cut", [False, True], ids=["whole", "cut"])
def test_racing_workers_never_exceed_a_limit_and_nobody_is_stuck(postgres_store: str, run, are_cut: bool) -> None:
    async def live() -> None:
        luck, stop, cuts = random.Random(7), asyncio.Event(), list[int]()
        async with AsyncExitStack() as stack:
            engines = [await opened(postgres_store) for _ in range(WORKERS)]
            for one in engines:
                stack.push_async_callback(one.close)
            db, killer = [await stack.enter_async_context(looking(postgres_store)) for _ in range(2)]
            await set_limit(engines[0], "api", at_once=3)
            jobs = [job(CLOCK, options=uses("api")) for _ in range(120)]
            await engines[0].insert(jobs)
            async with asyncio.timeout(PATIENCE_SECONDS):
                watching = asyncio.create_task(watch(db, {"api": 3}, stop))
                cutting = asyncio.create_task(cut(engines, killer, luck, cuts) if are_cut else asyncio.sleep(0))
                await asyncio.gather(*(work(one, f"w-{n}", len(jobs), luck) for n, one in enumerate(engines)))
                stop.set()
                cutting.cancel()
                assert await watching > 1, "nobody raced"
            assert len(cuts) > 3 or not are_cut
            assert await tried(lambda: engines[0].usage("api")) == []

    run(live())


def test_limits_in_opposite_orders_lock_nobody_out(postgres_store: str, run, monkeypatch) -> None:
    deadlocks: list[BaseException] = []

    def noting(error: BaseException) -> bool:
        if isinstance(error, asyncpg.DeadlockDetectedError):
            deadlocks.append(error)
        return store.is_passing(error)

    monkeypatch.setattr(pool, "is_passing", noting)

    async def live() -> None:
        luck, stop = random.Random(1), asyncio.Event()
        async with AsyncExitStack() as stack:
            engines = [await opened(postgres_store) for _ in range(WORKERS)]
            for one in engines:
                stack.push_async_callback(one.close)
            db = await stack.enter_async_context(looking(postgres_store))
            await set_limit(engines[0], "a", at_once=2)
            await set_limit(engines[0], "b", at_once=3)
            orders = (("a", "b"), ("b", "a"), ("b",), ("a",))
            jobs = [job(CLOCK, options=uses(*orders[n % 4])) for n in range(80)]
            await engines[0].insert(jobs)
            async with asyncio.timeout(PATIENCE_SECONDS):
                watching = asyncio.create_task(watch(db, {"a": 2, "b": 3}, stop))
                await asyncio.gather(*(work(one, f"w-{n}", len(jobs), luck) for n, one in enumerate(engines)))
                stop.set()
                assert await watching > 1, "nobody raced"
        assert deadlocks == []

    run(live())


def test_steps_of_many_connections_never_exceed_a_rate(postgres_store: str, run) -> None:
    async def live() -> None:
        engines = [await opened(postgres_store) for _ in range(WORKERS)]
        await set_limit(engines[0], "api", rate="100/s", burst=10)  # 91 a second come in
        holders = [await claimed(engines[0], CLOCK) for _ in engines]
        began = await engines[0]._ask_clock()

        async def asking(engine: PostgresEngine, holder: Job) -> int:
            admitted = 0
            for n in range(60):
                ask = Ask(job=holder.id, epoch=holder.epoch, path=f"s{n}", uses=(Use("api"),))
                [answer], _ = await engine.admit([ask])
                assert isinstance(answer, Admission)
                admitted += answer.admitted
            return admitted

        async with asyncio.timeout(PATIENCE_SECONDS):
            admitted = sum(await asyncio.gather(*map(asking, engines, holders)))
        ended = await engines[0]._ask_clock()
        assert 10 <= admitted <= 10 + 91 * (ended - began) / SECOND
        for one in engines:
            await one.close()

    run(live())


def test_neither_an_insert_nor_an_end_waits_for_a_claim(postgres_store: str, run) -> None:
    async def live() -> None:
        engine = await opened(postgres_store)
        await set_limit(engine, "api", at_once=1)
        held = await claimed(engine, CLOCK, options=uses("api"))
        async with looking(postgres_store) as db:
            async with db.transaction():
                assert await db.fetchval("select name from record where name = 'bucket/api' for update") is not None
                async with asyncio.timeout(SOON):
                    waiting = await inserted(engine, CLOCK, options=uses("api"))
                    [answer] = await engine.commit([change(CLOCK, held, Event.COMPLETE)])
            assert isinstance(answer, Applied)
        assert [one.id for one in await engine.claim("w-1", ["default"], 5)] == [waiting.id]
        await engine.close()

    run(live())


CLAIM = "select id from claim($1, $2, $3, 1000, null::text[], null, null, null) where id is not null"


def test_a_job_that_is_moved_behind_a_key_while_its_permit_ends_is_found(postgres_store: str, run) -> None:
    """The end doesn't see that the job waits there, and the claim that moved it doesn't see the end."""

    async def live() -> None:
        engine = await opened(postgres_store)
        await set_limit(engine, "a", at_once=5)
        await set_limit(engine, "b", at_once=1)
        holder = await claimed(engine, CLOCK, options=uses("b"))
        both = await inserted(engine, CLOCK, options=uses("a", "b"))
        async with looking(postgres_store) as db:
            async with db.transaction():
                assert await db.fetch(CLAIM, "w-2", ["default"], 5) == []
                assert await db.fetchval("select limit_key from job where id = $1", both.id) == "b"
                await done(engine, CLOCK, holder, Event.COMPLETE)
                claiming = asyncio.create_task(engine.claim("w-1", ["default"], 5))
                async with asyncio.timeout(SOON):
                    while not await db.fetchval("select count(*) from pg_locks where not granted"):
                        pass  # until it waits for the bucket
            async with asyncio.timeout(SOON):
                assert [one.id for one in await claiming] == [both.id]
        await engine.close()

    run(live())


def test_a_job_that_somebody_holds_is_looked_at_again_soon(postgres_store: str, run) -> None:
    async def live() -> None:
        engine = await opened(postgres_store)
        await set_limit(engine, "api", at_once=1)
        waiting = await inserted(engine, CLOCK, options=uses("api"))
        topics = [queue_topic("default")]
        mark = await engine.wait(topics, 0)
        async with looking(postgres_store) as db, db.transaction():
            await db.execute("select 1 from job where id = $1 for update", waiting.id)
            assert await engine.claim("w-1", ["default"], 5) == []
            [ahead] = await db.fetch("select at from recheck where queue = 'default' and key = 'api'")
            assert ahead[0] > waiting.created_at, "a wait for the queue would not end with it"
        found: list[Job] = []
        async with asyncio.timeout(SOON):
            while not found:
                mark = await engine.wait(topics, SOON * 2, mark)
                found = await engine.claim("w-1", ["default"], 5)
        assert [one.id for one in found] == [waiting.id]
        await engine.close()

    run(live())


def test_a_long_drain_doesnt_pass_over_a_job_that_gets_a_permit(postgres_store: str, run) -> None:
    async def live() -> None:
        engine = await opened(postgres_store)
        await set_limit(engine, "api", at_once=1)
        [holder, waiting] = [await inserted(engine, CLOCK, options=uses("api")) for _ in range(2)]
        assert [one.id for one in await engine.claim("w-1", ["default"], 5)] == [holder.id]
        for _ in range(40):
            await inserted(engine, CLOCK)
        for _ in range(10):
            assert len(await engine.claim("w-1", ["default"], 2, ["test.job"])) == 2
        await done(engine, CLOCK, await current(engine, holder), Event.COMPLETE)

        [first, _] = await engine.claim("w-1", ["default"], 2, ["test.job"])

        assert first.id == waiting.id
        await engine.close()

    run(live())


@pytest.mark.parametrize("text", UNREADABLE)
def test_a_limit_that_cant_be_read_limits_nobody(postgres_store: str, run, text: str) -> None:
    async def live() -> None:
        engine = await opened(postgres_store)
        await engine.put_record(LIMIT + "api", text)
        jobs = [await inserted(engine, CLOCK, options=uses("api")) for _ in range(3)]

        assert [one.id for one in await engine.claim("w-1", ["default"], 5)] == [one.id for one in jobs]
        await engine.close()

    run(live())


def test_records_and_asks_of_different_jobs_lock_them_in_one_order(postgres_store: str, run, monkeypatch) -> None:
    monkeypatch.setattr(pool, "is_passing", lambda error: False)

    async def live() -> None:
        engines = [await opened(postgres_store) for _ in range(2)]
        await set_limit(engines[0], "api", at_once=100)
        [one, two] = [await claimed(engines[0], CLOCK) for _ in range(2)]

        async def asking(engine: PostgresEngine, first: Job, second: Job) -> None:
            for n in range(30):
                ask = Ask(job=second.id, epoch=second.epoch, path=f"{first.id}{n}", uses=(Use("api"),))
                [answer], _ = await engine.admit([ask], [step(first, f"{second.id}{n}")])
                assert answer == Admission(True)
                await engine.admit([Ask(job=ask.job, epoch=ask.epoch, path=ask.path)])

        async with asyncio.timeout(PATIENCE_SECONDS):
            await asyncio.gather(asking(engines[0], one, two), asking(engines[1], two, one))
        for engine in engines:
            await engine.close()

    run(live())
