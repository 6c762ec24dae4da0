"""Least privilege, as docs/guides/postgres.md gives it: an owner who migrates, and a worker's role that may not."""

import asyncio
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest

from holdfast import App, Settings, sleep, step
from holdfast.conformance.given import DAY, StoreClock, change, claimed, job
from holdfast.conformance.given import step as record_of
from holdfast.core.errors import StoreError, StoreUnwritable
from holdfast.core.model import Event, Options, State, Where
from holdfast.engines.postgres import PostgresEngine
from holdfast.engines.postgres.url import parse_url

GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "postgres.md"
CLOCK = StoreClock(settable=False)


def grants() -> list[str]:
    """The statements that the guide gives, as they stand there."""
    (text,) = re.findall(r"```sql\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    return [statement.strip() for statement in text.split(";") if statement.strip()]


def as_role(url: str, role: str) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=f"{role}@{parts.netloc.rpartition('@')[2]}"))


@pytest.fixture
def roles(postgres_store: str, run: Any) -> Iterator[tuple[str, str]]:
    """A store's URL for its owner and for a worker, both of them nobody special."""
    schema = parse_url(postgres_store).schema
    owner, worker = f"{schema}_owner", f"{schema}_worker"
    admin = parse_url(postgres_store).dsn

    async def execute(dsn: str, *statements: str) -> None:
        db = await asyncpg.connect(dsn)
        for statement in statements:
            await db.execute(statement)
        await db.close()

    async def make() -> None:
        await execute(admin, f"create role {owner} login", f"grant create on database postgres to {owner}")
        engine = PostgresEngine(as_role(postgres_store, owner))
        await engine.open()
        await engine.close()
        create, *rest = [
            one.replace("holdfast_worker", worker).replace("schema holdfast", f"schema {schema}") for one in grants()
        ]
        await execute(admin, create)
        await execute(as_role(admin, owner), *rest)

    run(make())
    yield as_role(postgres_store, owner), as_role(postgres_store, worker)
    run(execute(admin, f"drop owned by {owner} cascade", f"drop owned by {worker}", f"drop role {owner}, {worker}"))


def test_all_of_a_jobs_life_needs_no_more_than_the_worker_role_has(roles: tuple[str, str], run: Any):
    _, url = roles
    app = App(url, settings=Settings(beat_seconds=0.2, lease_seconds=2, upkeep_seconds=0.2))

    @step(name="draw")
    async def draw(n: int) -> int:
        return n

    @app.job
    async def clip(n: int) -> int:
        return await draw(n)

    @app.job(keep=0)
    async def film(n: int) -> int:
        await draw(n)
        await sleep(0.1)
        return sum(await clip.map([n, n + 1]))

    @app.job
    async def long() -> None:
        await asyncio.sleep(60)

    async def live() -> None:
        async with app.worker():
            made = await film.submit(1, key="one")
            assert await made.result(20) == 3
            cancelled = await long.submit()
            while (await cancelled.status()).state is not State.ACTIVE:  # noqa: ASYNC110 (it happens in the store)
                await asyncio.sleep(0.01)
            await cancelled.cancel()
            async with asyncio.timeout(10):
                while (await app.engine.get([made.id])) != [None]:  # noqa: ASYNC110 (the worker's upkeep prunes it)
                    await asyncio.sleep(0.05)
        assert (await app.jobs.get(cancelled.id)).state is State.CANCELLED
        assert sorted(one.type for one in await app.engine.find(Where()) if one.parent != cancelled.id) == [
            "clip",
            "clip",
            "long",
        ]
        assert (await app.engine.count())["default", State.CANCELLED] == 1
        await app.jobs.pause("default", by="test", reason="why not")
        await app.jobs.resume("default")
        await app.close()

    run(live())


def test_what_falls_on_a_day_that_the_owner_has_not_prepared_is_kept_and_pruned_by_the_worker_role(
    roles: tuple[str, str], run: Any
):
    owner, worker = roles

    async def live() -> None:
        theirs, ours = PostgresEngine(owner), PostgresEngine(worker)
        await theirs.open()
        await ours.open()
        assert await theirs.shift_clock(9 * DAY)
        db = await asyncpg.connect(parse_url(owner).dsn)
        schema = parse_url(owner).schema
        await db.execute(f"grant select on {schema}.shift to {schema}_worker")
        days = (
            f"select count(*) from pg_class where relnamespace = '{schema}'::regnamespace and relname ~ '^done_[0-9]'"
        )

        async def one(rest: int) -> None:
            """A whole life under the worker's role; so many entries fall into the rest."""
            held = await claimed(ours, CLOCK, options=Options(keep_ms=0))
            await ours.record([record_of(held, "a")])
            await ours.commit([change(CLOCK, held, Event.COMPLETE)])
            assert len(await ours.history(held.id)) == 3
            assert await db.fetchval(f"select count(*) from {schema}.entry_rest") == rest
            assert await ours.prune() == 1
            assert await ours.find(Where()) == []
            assert await db.fetchval(f"select count(*) from {schema}.entry_rest") == 0

        before = await db.fetchval(days)
        await one(rest=2)
        await ours._keep_days_now()
        assert await db.fetchval(days) == before, "it may not make days, and lives without"
        await theirs._keep_days_now()
        await one(rest=0)
        await db.close()
        await theirs.close()
        await ours.close()

    run(live())


def test_the_worker_role_can_make_change_and_drop_nothing(roles: tuple[str, str], run: Any):
    _, url = roles
    schema = parse_url(url).schema

    async def try_all() -> None:
        db = await asyncpg.connect(parse_url(url).dsn)
        for statement in (
            f"create table {schema}.mine (n int)",
            f"drop table {schema}.job",
            f"alter table {schema}.job add column mine int",
            f"truncate {schema}.job",
            f"create or replace function {schema}.now_ms() returns bigint language sql as 'select 0::bigint'",
            f"drop schema {schema} cascade",
        ):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await db.execute(statement)
        await db.close()

    run(try_all())


def test_a_role_without_the_grants_is_told_so_in_one_line(roles: tuple[str, str], run: Any):
    owner, _ = roles
    schema = parse_url(owner).schema

    async def try_it() -> None:
        db = await asyncpg.connect(parse_url(owner).dsn)
        await db.execute(f"revoke all on all tables in schema {schema} from {schema}_worker")
        with pytest.raises(StoreUnwritable, match="see 'Grant rights to roles' in the Postgres guide") as told:
            await PostgresEngine(as_role(owner, f"{schema}_worker")).open()
        assert "\n" not in str(told.value)
        await db.execute(f"grant select on {schema}.store to {schema}_worker")
        engine = PostgresEngine(as_role(owner, f"{schema}_worker"))
        await engine.open()
        with pytest.raises(StoreError, match="see 'Grant rights to roles' in the Postgres guide"):
            await engine.insert([job(CLOCK)])
        await engine.close()
        await db.close()

    run(try_it())


def test_doctor_finds_nothing_wrong_under_the_worker_role(roles: tuple[str, str]):
    _, url = roles
    done = subprocess.run(
        [sys.executable, "-m", "holdfast.cli", "doctor", "--url", url, "--json"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert '"healthy": true' in done.stdout or '"healthy":true' in done.stdout
