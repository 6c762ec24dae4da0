"""The Postgres engine when the server takes things back, has no room for more, or is restarted again and again."""

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from typing import Any

import asyncpg
import pytest

from holdfast.conformance.given import HOUR, StoreClock, change, children, claimed, current, inserted, job, step
from holdfast.core.errors import StoreBusy, StoreError
from holdfast.core.lifecycle import RECOVERY_LIMIT
from holdfast.core.model import Applied, Event, Options, Presence, Recorded, Running, State, Where
from holdfast.engines.postgres import PostgresEngine, pool
from holdfast.engines.postgres.url import parse_url
from holdfast.upkeep.rescue import Rescue
from tests.engines.postgres.given import opened
from tests.support.postgres_server import Server, server

CLOCK = StoreClock(settable=False)
CALLERS = 200
FULL_AT_12 = ("max_connections=12", "superuser_reserved_connections=0", "reserved_connections=0")

Act = Callable[[], Awaitable[Any]]


@pytest.fixture
def own_server() -> Iterator[Server]:
    """A server that this test may restart, with few connections to give away. What it acknowledged outlives a crash."""
    with server(*FULL_AT_12, "synchronous_commit=on") as running:
        yield running


async def raw(url: str) -> Any:
    return await asyncpg.connect(parse_url(url).dsn)


# Taken back: deadlocks and serialization failures.

# The database itself fails so many writes of a table, as if others had come at the same time. A sequence counts on
# when all else is taken back.
TAKEN_BACK = """
create sequence {s}.failed;
create table {s}.failing as select $1::bigint as times;
create function {s}.fail() returns trigger language plpgsql as $$
begin
  if nextval('{s}.failed') <= (select times from {s}.failing) then
    raise exception 'could not serialize access' using errcode = '40001';
  end if;
  return null;
end $$;
"""


async def fails(url: str, table: str, times: int) -> Any:
    """Let the next so many writes of a row of this table fail; a connection that can count them."""
    db = await raw(url)
    schema = parse_url(url).schema
    for statement in TAKEN_BACK.replace("$1", str(times)).replace("{s}", schema).split(";\n\n"):
        await db.execute(statement)
    await db.execute(
        f"create trigger failing after insert or update or delete on {schema}.{table} "
        f"for each row execute function {schema}.fail()"
    )
    return db


async def failed(db: Any, url: str) -> int:
    return int(await db.fetchval(f"select last_value from {parse_url(url).schema}.failed"))


async def _insert(engine: PostgresEngine) -> Act:
    new = job(CLOCK)
    return lambda: engine.insert([new])


async def _insert_children(engine: PostgresEngine) -> Act:
    parent = await claimed(engine, CLOCK)
    new = job(CLOCK, parent=parent.id, group="g")
    return lambda: engine.insert([new], parent.lease)


async def _claim(engine: PostgresEngine) -> Act:
    await inserted(engine, CLOCK)
    return lambda: engine.claim("w-1", ["default"], 1)


async def _commit(engine: PostgresEngine) -> Act:
    made = change(CLOCK, await claimed(engine, CLOCK), Event.COMPLETE)
    return lambda: engine.commit([made])


async def _turn(engine: PostgresEngine) -> Act:
    made = change(CLOCK, await claimed(engine, CLOCK), Event.COMPLETE)
    new = await inserted(engine, CLOCK)

    async def turn() -> Any:
        answers, held = await engine.turn([made], "w-1", ["default"], 1)
        assert [one.id for one in held] == [new.id]
        return answers

    return turn


async def _commit_cargo(engine: PostgresEngine) -> Act:
    held = await claimed(engine, CLOCK)
    made = change(CLOCK, held, Event.COMPLETE, steps=(step(held, "a"),))
    return lambda: engine.commit([made])


async def _record(engine: PostgresEngine) -> Act:
    one = step(await claimed(engine, CLOCK), "a")
    return lambda: engine.record([one])


async def _put_record(engine: PostgresEngine) -> Act:
    return lambda: engine.put_record("r", "1", 0)


async def _prune(engine: PostgresEngine) -> Act:
    held = await claimed(engine, CLOCK, options=Options(keep_ms=0))
    await engine.commit([change(CLOCK, held, Event.COMPLETE)])
    await asyncio.sleep(0.005)
    return engine.prune


ACTS: dict[str, tuple[str, Callable[[PostgresEngine], Awaitable[Act]]]] = {
    "insert": ("job", _insert),
    "insert of children": ("job", _insert_children),
    "claim": ("job", _claim),
    "commit": ("entry", _commit),
    "turn": ("done", _turn),
    "commit with cargo": ("entry", _commit_cargo),
    "record": ("step", _record),
    "put_record": ("record", _put_record),
    "prune": ("done", _prune),
}


@pytest.mark.parametrize("name", ACTS)
def test_what_the_server_takes_back_is_tried_again_within_bounds(postgres_store: str, run: Any, name: str):
    table, prepare = ACTS[name]

    async def live() -> None:
        engine = await opened(postgres_store)
        act = await prepare(engine)
        db = await fails(postgres_store, table, 3)
        answer = await act()
        assert await failed(db, postgres_store) > 3, "it failed three times, and came through"
        match answer:
            case [Applied()] | [Recorded(first=True)] | 1:
                pass
            case [one] if name.startswith("insert"):
                assert one.new
            case [one] if name == "claim":
                assert (one.epoch, len(await engine.history(one.id))) == (1, 2)
            case _:
                assert (name, answer.version) == ("put_record", 1)
        await db.close()
        await engine.close()

    run(live())


@pytest.mark.parametrize("name", ACTS)
def test_beyond_the_bounds_it_is_one_clear_error_and_nothing_was_done(postgres_store: str, run: Any, name: str):
    table, prepare = ACTS[name]

    async def live() -> None:
        engine = await opened(postgres_store)
        act = await prepare(engine)
        before = await whole(engine)
        db = await fails(postgres_store, table, 10**6)
        with pytest.raises(StoreBusy, match="nothing was written; try again") as told:
            await act()
        assert "\n" not in str(told.value)
        assert pool.TRIES <= await failed(db, postgres_store) <= 2 * pool.TRIES
        assert await whole(engine) == before
        await db.execute(f"update {parse_url(postgres_store).schema}.failing set times = 0")
        await act()
        assert await whole(engine) != before
        await db.close()
        await engine.close()

    run(live())


async def whole(engine: PostgresEngine) -> Any:
    """All that the store holds."""
    jobs = await engine.find(Where())
    return (
        jobs,
        await engine.count(),
        [await engine.history(one.id) for one in jobs],
        [await engine.steps(one.id) for one in jobs],
        await engine.records("r"),
        [await engine.missing(one.id, "g") for one in jobs],
    )


def test_what_was_done_before_the_server_took_the_rest_back_is_told_as_done(postgres_store: str, run: Any):
    """Changes that don't go into one transaction are written one group after another. Taken back is only the last."""

    async def live() -> None:
        engine = await opened(postgres_store)
        parent = await claimed(engine, CLOCK)
        light, *kids = [await claimed(engine, CLOCK), *await children(engine, CLOCK, parent, 2)]
        changes = [change(CLOCK, one, Event.COMPLETE) for one in (light, *kids)]
        db = await fails(postgres_store, "family", 3)
        answers = await engine.commit(changes)
        assert await failed(db, postgres_store) > 3
        assert [type(answer) for answer in answers] == [Applied] * 3, answers
        assert sorted(answer.missing for answer in answers[1:]) == [0, 1]  # type: ignore[type-var]
        await db.close()
        await engine.close()

    run(live())


def test_new_jobs_are_told_as_new_though_others_in_the_same_batch_were_taken_back(postgres_store: str, run: Any):
    async def live() -> None:
        engine = await opened(postgres_store)
        parent = await claimed(engine, CLOCK)
        db = await fails(postgres_store, "family", 3)
        orders = [engine.insert([job(CLOCK)]) for _ in range(5)]
        family = engine.insert([job(CLOCK, parent=parent.id, group="g")], parent.lease)
        answers = await asyncio.gather(*orders, family)
        assert [answer[0].new for answer in answers] == [True] * 6
        await db.close()
        await engine.close()

    run(live())


def test_one_callers_refused_change_leaves_the_answers_of_the_others_true(postgres_store: str, run: Any):
    """A batch of which the database refuses one part for good: who was done before is not asked again."""

    async def live() -> None:
        engine = await opened(postgres_store)
        held = [await claimed(engine, CLOCK) for _ in range(3)]
        db = await raw(postgres_store)
        schema = parse_url(postgres_store).schema
        await db.execute(f"alter table {schema}.step add constraint no_bad check (path <> 'bad')")
        answers = await asyncio.gather(
            engine.commit([change(CLOCK, held[0], Event.COMPLETE)]),
            engine.commit([change(CLOCK, held[1], Event.COMPLETE, steps=(step(held[1], "bad"),))]),
            engine.commit([change(CLOCK, held[2], Event.COMPLETE)]),
            return_exceptions=True,
        )
        assert isinstance(answers[1], asyncpg.CheckViolationError)
        assert [type(answer[0]) for answer in (answers[0], answers[2])] == [Applied] * 2, answers  # type: ignore[index]
        await db.close()
        await engine.close()

    run(live())


def test_a_deadlock_is_broken_and_the_act_comes_through(postgres_store: str, run: Any):
    """A stranger's session takes our rows in the other order."""

    async def live() -> None:
        engine = await opened(postgres_store)
        held = [await claimed(engine, CLOCK) for _ in range(2)]
        schema = parse_url(postgres_store).schema
        db = await raw(postgres_store)
        await db.execute("set deadlock_timeout = '10s'")
        lock = f"select 1 from {schema}.job where id = $1 for update"
        before = await db.fetchval("select deadlocks from pg_stat_database where datname = current_database()")
        async with db.transaction():
            await db.execute(lock, held[1].id)
            changes = [change(CLOCK, one, Event.COMPLETE, steps=(step(one, "a"),)) for one in held]
            ours = asyncio.ensure_future(engine.commit(changes))
            await asyncio.sleep(0.3)  # it holds the first row now, and waits for the second
            await db.execute(lock, held[0].id)  # and we for the first: after a second, the server ends ours
        answers = await asyncio.wait_for(ours, 20)
        assert [type(answer) for answer in answers] == [Applied] * 2
        counted = "select deadlocks from pg_stat_database where datname = current_database()"
        end = time.monotonic() + 10
        while await db.fetchval(counted) == before and time.monotonic() < end:
            await db.execute("select pg_stat_clear_snapshot()")
            await asyncio.sleep(0.05)
        assert await db.fetchval(counted) > before, "there was one"
        await db.close()
        await engine.close()

    run(live())


# No room: a small pool, a full server.


@pytest.mark.parametrize("connections", [1, 2])
def test_many_callers_share_very_few_connections(postgres_store: str, run: Any, connections: int):
    async def live() -> None:
        engine = await opened(f"{postgres_store}&connections={connections}")
        db = await raw(postgres_store)
        parent = await claimed(engine, CLOCK, "w-parent")

        async def one(n: int) -> None:
            await engine.insert([job(CLOCK, queue=f"q{n}")])
            [held] = await engine.claim(f"w-{n}", [f"q{n}"], 1)
            await engine.beat(Presence(worker=f"w-{n}", running=(Running(held.id, held.epoch),)))
            [kept] = await engine.record([step(held, "a")])
            assert kept.first
            await engine.insert([job(CLOCK, parent=parent.id, group="g", queue="kids")], parent.lease)
            await engine.put_record(f"r{n}", "1", 0)
            [done] = await engine.commit([change(CLOCK, held, Event.COMPLETE)])
            assert isinstance(done, Applied)
            assert (await current(engine, held)).state is State.COMPLETED

        most = 0

        async def watch() -> None:
            nonlocal most
            ours = "select count(*) from pg_stat_activity where application_name = 'holdfast' and query ~ $1"
            while True:
                most = max(most, await db.fetchval(ours, parse_url(postgres_store).schema))
                await asyncio.sleep(0.02)

        watching = asyncio.ensure_future(watch())
        async with asyncio.timeout(30):
            await asyncio.gather(*(one(n) for n in range(CALLERS)))
        watching.cancel()
        assert await engine.missing(parent.id, "g") == CALLERS
        assert sum(n for (_, state), n in (await engine.count()).items() if state is State.COMPLETED) == CALLERS
        assert 0 < most <= connections + 1
        await db.close()
        await engine.close()

    run(live())


def test_a_server_without_a_free_connection_is_one_clear_error_and_waited_for(own_server: Server, run: Any):
    async def live() -> None:
        engine = await opened(own_server.url)
        await engine.beat(Presence(worker="w-1"))  # the lasting connection is made
        async with AsyncExitStack() as taken:
            while True:
                try:
                    db = await asyncpg.connect(own_server.url)
                except asyncpg.TooManyConnectionsError:
                    break
                taken.push_async_callback(db.close)
            new = [job(CLOCK) for _ in range(20)]
            answers = await asyncio.gather(*(engine.insert([one]) for one in new), return_exceptions=True)
            told = {str(answer) for answer in answers if isinstance(answer, StoreBusy)}
            assert len(told) <= 1
            assert all(text.endswith("lower ?connections=") for text in told), told
            assert told, "there was no room for a connection"
            await engine.beat(Presence(worker="w-1"))  # the beat has its own, and goes on
        for one in new:
            await engine.insert([one])
        assert sum((await engine.count()).values()) == 20
        await engine.close()

    run(live())


# Restarts are no deaths.


def test_a_lapse_after_a_restart_is_no_recovery_however_often_and_a_real_death_is(own_server: Server, run: Any):
    """Each time the owner doesn't come back in time; after more restarts than workers may be lost, nobody reviews."""
    lease = 1.0

    async def live() -> None:
        engine, owner = await opened(own_server.url), await opened(own_server.url)
        rescue = Rescue(engine, lease_seconds=lease)
        held = await claimed(owner, CLOCK, "w-1", queue="default")

        async def silent(*, then: signal.Signals | None) -> Any:
            """The owner beats, then never again; answer with the last entry once its job was taken from it."""
            now = await current(owner, held)
            await owner.beat(Presence("w-1", running=(Running(now.id, now.epoch),), beat_ms=200, lease_ms=1_000))
            await owner.close()
            if then is not None:
                await asyncio.to_thread(own_server.restart, then)
            end = time.monotonic() + 15
            while time.monotonic() < end:
                try:
                    await engine.beat(Presence("w-2", beat_ms=200, lease_ms=1_000))
                    if await rescue.rescue_dead("w-2", await rescue.snapshots.take()):
                        break
                except StoreError:
                    pass
                await asyncio.sleep(0.1)
            entry = (await engine.history(held.id))[-1]
            assert entry.event == Event.LAPSE
            await owner.open()
            return entry

        for nth in range(RECOVERY_LIMIT + 2):
            entry = await silent(then=signal.SIGQUIT if nth % 2 else signal.SIGINT)
            assert "doesn't count as a recovery" in entry.note["excused"]
            assert (await current(engine, held)).recoveries == 0
            [again] = await owner.claim("w-1", ["default"], 1)
            assert again.epoch == nth + 2
        entry = await silent(then=None)
        assert "excused" not in entry.note
        assert (await current(engine, held)).recoveries == 1
        await owner.close()
        await engine.close()

    run(live())


# The clock.


def test_only_a_tests_own_store_has_a_clock_that_can_be_moved(own_server: Server, run: Any):
    async def live() -> None:
        engine = await opened(own_server.url)
        assert not await engine.shift_clock(HOUR)
        assert abs(await engine.now() - CLOCK.now) < HOUR // 2
        scratch = await opened(PostgresEngine.scratch(own_server.url, None))  # type: ignore[arg-type]
        assert await scratch.shift_clock(HOUR)
        assert await scratch.shift_clock(HOUR)
        assert abs(await scratch.now() - CLOCK.now - 2 * HOUR) < HOUR // 2
        await scratch.close()
        await engine.close()

    run(live())
