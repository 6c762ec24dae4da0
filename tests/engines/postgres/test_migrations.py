"""Migrations of the Postgres schema: forward only, each whole or not at all, and older workers go on meanwhile."""

import asyncio
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from holdfast.conformance.given import StoreClock, change, claimed, step
from holdfast.core.errors import StoreBusy, StoreError
from holdfast.core.model import Event, State, Where
from holdfast.engines.postgres import PostgresEngine, store
from holdfast.engines.postgres.url import parse_url
from holdfast.engines.sql import migrations
from tests.engines.postgres.given import opened

CLOCK = StoreClock(settable=False)
ROUNDS = 20
PATIENCE_SECONDS = 12.0
"""Less than the 15 s for which a worker's statement waits for a lock: who is held up by a migration is seen."""

NEXT = """
alter table {schema}.job add column colour text;
create index job_colour on {schema}.job (colour) where colour is not null;
create function {schema}.painted(n bigint) returns bigint language sql as $$ select n $$;
"""
LAST = migrations("holdfast.engines.postgres")[-1][0]
"""The last migration that there is."""

MIGRATIONS = dict(migrations("holdfast.engines.postgres"))
NO_LIMITS = """
drop table permit, recheck;
drop type kept_key cascade;
alter table job drop column limit_key;
alter table job drop column fair;
drop index if exists job_kind;
create index job_kind on job (queue, type, priority desc, run_at, n) where state = 'available';
"""

BROKEN = "create table {schema}.later (n bigint);\nselect nonsense;\n"


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Adds migrations to those that there are."""

    def add(*texts: str) -> None:
        more = list(enumerate(texts, start=LAST + 1))
        monkeypatch.setattr(store, "migrations", lambda package: [*migrations(package), *more])

    return add


@asynccontextmanager
async def looking(url: str) -> AsyncIterator[asyncpg.Connection]:
    """A connection of one's own, in the store's schema."""
    place = parse_url(url)
    db = await asyncpg.connect(place.dsn, server_settings={"search_path": place.schema})
    try:
        yield db
    finally:
        await db.close()


async def live(engine: PostgresEngine) -> None:
    """A job's whole life, and the reads of it."""
    mine = await claimed(engine, CLOCK)
    await engine.record([step(mine)])
    await engine.commit([change(CLOCK, mine, Event.COMPLETE)])
    [ended] = await engine.get([mine.id])
    assert ended.state is State.COMPLETED
    assert [entry.event for entry in await engine.history(mine.id)][-1] == Event.COMPLETE
    await engine.find(Where(), limit=5)


async def version_of(url: str) -> int:
    async with looking(url) as db:
        return await db.fetchval("select version from store")


def test_the_migrations_are_numbered_in_order():
    numbers = [number for number, _ in migrations("holdfast.engines.postgres")]

    assert numbers == sorted(set(numbers))


def test_a_worker_of_the_version_before_goes_on_while_its_store_is_migrated(postgres_store: str, run, later):
    async def work() -> None:
        old = await opened(postgres_store)
        for _ in range(3):
            await live(old)  # its plans are cached now
        later(NEXT)
        stop = asyncio.Event()

        async def go_on() -> int:
            rounds = 0
            while not stop.is_set():
                await live(old)
                rounds += 1
            return rounds

        working = asyncio.create_task(go_on())
        async with asyncio.timeout(PATIENCE_SECONDS):
            new = await opened(postgres_store)
            for _ in range(ROUNDS):
                await live(new)
        stop.set()
        done = await working
        for _ in range(3):
            await live(old)
        counted = await old.count()
        assert counted == await new.count()
        assert set(counted) == {(queue, State.COMPLETED) for queue, _ in counted}
        assert sum(counted.values()) == done + ROUNDS + 6
        async with looking(postgres_store) as db:
            assert await db.fetchval("select version from store") == LAST + 1
            assert await db.fetchval("select count(*) from job where colour is not null") == 0
            assert await db.fetchval("select painted(7)") == 7
            assert await db.fetchval("select to_regclass('job_colour') is not null")
        await old.close()
        await new.close()

    run(work())


def test_a_migration_that_waits_for_a_long_transaction_keeps_nobody_waiting(postgres_store: str, run, later):
    waits = "select count(*) from pg_locks where not granted and mode = 'AccessExclusiveLock' and relation = $1"

    async def work() -> None:
        old = await opened(postgres_store)
        await live(old)
        later(NEXT)
        async with looking(postgres_store) as report, looking(postgres_store) as db:
            relation = await db.fetchval("select 'job'::regclass::oid")
            report_begun = report.transaction()
            await report_begun.start()
            await report.fetch("select * from job")
            migrating = asyncio.create_task(opened(postgres_store))
            async with asyncio.timeout(PATIENCE_SECONDS):
                while not await db.fetchval(waits, relation):  # noqa: ASYNC110 (it happens in the database)
                    await asyncio.sleep(0.01)
                for _ in range(ROUNDS):
                    await live(old)
                assert not migrating.done()
                await report_begun.rollback()
                new = await migrating
        assert await version_of(postgres_store) == LAST + 1
        await live(old)
        await new.close()
        await old.close()

    run(work())


def test_a_migration_that_never_gets_its_lock_says_so_and_leaves_the_store_as_it_was(
    postgres_store: str, run, later, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(store, "MIGRATION_TRIES", 3)

    async def work() -> None:
        await (await opened(postgres_store)).close()
        later(NEXT)
        async with looking(postgres_store) as report, report.transaction():
            await report.fetch("select * from job")
            with pytest.raises(
                StoreBusy, match=rf"migration {LAST + 1} couldn't get its locks in 3 tries.*still at version {LAST}"
            ):
                await opened(postgres_store)
        assert await version_of(postgres_store) == LAST
        await (await opened(postgres_store)).close()
        assert await version_of(postgres_store) == LAST + 1

    run(work())


def test_a_migration_may_take_longer_than_any_other_statement(
    postgres_store: str, run, later, monkeypatch: pytest.MonkeyPatch
):
    async def work() -> None:
        await (await opened(postgres_store)).close()
        later("select pg_catalog.pg_sleep(1.5);" + NEXT)
        monkeypatch.setattr(store, "STATEMENT_SECONDS", 1.0)
        monkeypatch.setitem(store.SETTINGS, "statement_timeout", "1s")
        engine = await opened(postgres_store)
        with pytest.raises(StoreBusy):
            await engine._look(lambda db: db.fetch("select pg_sleep(5)"))
        await engine.close()
        assert await version_of(postgres_store) == LAST + 1

    run(work())


def test_a_migration_that_fails_leaves_what_was_before_it_and_says_so(postgres_store: str, run, later):
    async def work() -> None:
        old = await opened(postgres_store)
        later(BROKEN)
        with pytest.raises(
            StoreError, match=rf"migration {LAST + 1} failed .*nonsense.*still at version {LAST}"
        ) as told:
            await opened(postgres_store)
        assert "\n" not in str(told.value)
        assert await version_of(postgres_store) == LAST
        later(NEXT, BROKEN)
        with pytest.raises(StoreError, match=rf"migration {LAST + 2} failed .*nonsense.*still at version {LAST + 1}"):
            await opened(postgres_store)
        async with looking(postgres_store) as db:
            assert await db.fetchval("select to_regclass('later')") is None
            assert await db.fetchval("select painted(7)") == 7, "each is committed by itself"
        await live(old)
        await old.close()

    run(work())


def test_a_migration_that_older_programs_can_not_live_with_shuts_them_out(postgres_store: str, run, later, monkeypatch):
    async def work() -> None:
        later(NEXT + "update {schema}.store set oldest = " + str(LAST + 1))
        await (await opened(postgres_store)).close()
        monkeypatch.undo()
        with pytest.raises(
            StoreError, match=f"version {LAST + 1}, but this Holdfast knows only up to {LAST}.*upgrade Holdfast"
        ):
            await opened(postgres_store)

    run(work())


OLD_STEP = """
insert into step (n, path, place, name, state, epoch, started_at, finished_at, error, result)
select n, 'draw#2', nextval('step_place'), 'draw', 'done', epoch, 1, 2, null, '"two"' from job
"""


def test_a_store_without_the_number_of_tries_is_opened_and_an_older_worker_goes_on(postgres_store: str, run):
    async def work() -> None:
        engine = await opened(postgres_store)
        held = await claimed(engine, CLOCK)
        await engine.record([step(held, "draw#1")])
        await engine.close()
        async with looking(postgres_store) as db:
            # As the version before has made it, which knew nothing of summaries and limits either.
            await db.execute(NO_LIMITS)
            newer = "".join(text for number, text in MIGRATIONS.items() if number >= 5)
            for kind, name in re.findall(r"^create (function|table|sequence) {schema}\.(\w+)", newer, re.MULTILINE):
                await db.execute(f"drop {kind} if exists {name}")
            await db.execute("alter table job drop column summed; alter table done drop column summed")
            await db.execute("drop table summary; alter table step drop column tries; update store set version = 2")
            again = await opened(postgres_store)
            await db.execute(OLD_STEP)  # a worker that has been running since before
        await again.record([step(held, "draw#3", tries=3)])
        assert [one.tries for one in await again.steps(held.id)] == [1, 1, 3]
        assert [one.total.done for one in await again.summaries([held.id])] == [3]
        await again.close()
        assert await version_of(postgres_store) == LAST

    run(work())


STARTER = """
import asyncio, sys
sys.path.insert(0, sys.argv[2])
from holdfast.conformance.given import StoreClock, job
from holdfast.engines.postgres import PostgresEngine, store
from holdfast.engines.sql import migrations

store.migrations = lambda package: [*migrations(package), (migrations(package)[-1][0] + 1, sys.argv[3])]

async def main():
    engine = PostgresEngine(sys.argv[1])
    print("ready", flush=True)
    sys.stdin.readline()
    await engine.open()
    await engine.insert([[job(StoreClock(settable=False)) for _ in range(int(sys.argv[4]))][-1]])
    await engine.close()

asyncio.run(main())
"""


@pytest.mark.parametrize("there", [False, True], ids=["a store that is not there", "an old store"])
def test_processes_that_migrate_at_once_do_it_once(postgres_store: str, run, there: bool):
    if there:

        async def make() -> None:
            await (await opened(postgres_store)).close()

        run(make())
    slow = NEXT + "select pg_catalog.pg_sleep(0.5);"
    given = [sys.executable, "-c", STARTER, postgres_store, str(Path(__file__).parents[3]), slow]
    starters = [
        subprocess.Popen([*given, str(n)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for n in (1, 2, 3)
    ]
    for starter in starters:
        assert starter.stdout.readline() == "ready\n"

    for starter in starters:
        starter.stdin.write("go\n")
        starter.stdin.flush()

    for starter in starters:
        starter.communicate(timeout=60)
    assert [starter.returncode for starter in starters] == [0] * 3
    assert run(version_of(postgres_store)) == LAST + 1

    async def jobs() -> int:
        async with looking(postgres_store) as db:
            return await db.fetchval("select count(*) from job")

    assert run(jobs()) == 3


def test_a_store_that_is_made_between_two_looks_is_not_somebody_elses(postgres_store: str, run):
    place = parse_url(postgres_store)

    class Meanwhile:
        """A connection whose first answer is old when it comes: somebody has just made the store."""

        def __init__(self, db: Any) -> None:
            self._db, self._looks = db, 0

        async def fetchval(self, statement: str, *given: Any) -> Any:
            answer = await self._db.fetchval(statement, *given)
            self._looks += 1
            if self._looks == 1:
                engine = PostgresEngine(postgres_store)
                await engine.open()
                await engine.close()
            return answer

        def __getattr__(self, name: str) -> Any:
            return getattr(self._db, name)

    async def live() -> None:
        db = await asyncpg.connect(place.dsn)
        texts = store.Texts(place.schema)
        assert await store._version(Meanwhile(db), place, texts) == texts.migrations()[-1][0]  # type: ignore[arg-type]
        await db.close()

    run(live())
