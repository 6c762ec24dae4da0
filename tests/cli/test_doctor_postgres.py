"""What the doctor says of a Postgres server: how safe a commit is, its connections, and transactions left open."""

import asyncio
import json
import os
import re
from collections.abc import Callable

import asyncpg
import pytest
from click.testing import CliRunner

from holdfast.cli import check_engine, main
from holdfast.engines import engine_for
from holdfast.engines.postgres.url import parse_url
from tests.support.postgres_server import server

Found = dict[str, tuple[str, str]]


def told(url: str) -> Found:
    result = CliRunner().invoke(main, ["doctor", "--url", url, "--json"], prog_name="holdfast", catch_exceptions=False)
    assert result.exit_code == 0, result.stdout
    return {one["name"]: (one["level"], one["text"]) for one in json.loads(result.stdout)["checks"]}


async def made(url: str) -> None:
    engine = engine_for(url)
    await engine.open()
    await engine.close()


@pytest.mark.parametrize(
    ("settings", "level", "says"),
    [
        (("fsync=on", "synchronous_commit=on"), "ok", "what was committed stays"),
        (("fsync=on", "synchronous_commit=off"), "warn", "a crash of the server loses the last moments of work"),
        (("fsync=off",), "warn", "a power cut can destroy the whole database; set fsync = on"),
    ],
)
def test_what_the_servers_settings_can_lose_is_told(settings: tuple[str, ...], level: str, says: str):
    with server(*settings) as running:
        asyncio.run(made(running.url))
        found = told(running.url)
    assert found["durability"][0] == level
    assert says in found["durability"][1]
    assert found["connections"][0] == "ok"


@pytest.mark.parametrize(
    ("name", "alters", "says"),
    [
        ("connections", "CROWDED", "are taken: raise max_connections, or put a pooler in front"),
        ("transactions", "OLD_SECONDS", "one has been open for"),
    ],
)
def test_a_crowd_and_an_old_transaction_are_told(
    postgres_store: str, monkeypatch: pytest.MonkeyPatch, name: str, alters: str, says: str
):
    def with_one_open(look: Callable[[], Found]) -> Found:
        async def live() -> Found:
            db = await asyncpg.connect(postgres_store.partition("?")[0])
            async with db.transaction():
                await db.fetchval("select 1")
                found = await asyncio.to_thread(look)
            await db.close()
            return found

        return asyncio.run(live())

    asyncio.run(made(postgres_store))
    before = told(postgres_store)[name]
    monkeypatch.setattr(check_engine, alters, 0.0)
    after = with_one_open(lambda: told(postgres_store))[name]
    assert before[0] == "ok"
    assert after[0] == "warn"
    assert says in after[1]


def test_a_role_of_few_rights_counts_the_same_and_says_what_it_can_not_see():
    async def live(owner: str) -> Found:
        place = parse_url(owner)
        db = await asyncpg.connect(place.dsn)
        role, schema = f"few_{os.getpid()}", place.schema
        await db.execute(f"create role {role} login")
        try:
            await db.execute(f"grant usage on schema {schema} to {role}")
            await db.execute(f"grant select, insert, update, delete on all tables in schema {schema} to {role}")
            async with db.transaction():
                await db.fetchval("select 1")
                found = await asyncio.to_thread(told, re.sub("//[^@]*@", f"//{role}@", owner))
                all_seen = await asyncio.to_thread(told, owner)
        finally:
            await db.execute(f"drop owned by {role}; drop role {role}")
            await db.close()
        assert found["connections"] == all_seen["connections"]
        return found

    with server() as running:  # of its own, where nobody else comes and goes
        asyncio.run(made(running.url))
        found = asyncio.run(live(running.url))
    assert "to see those of others, grant the role pg_read_all_stats" in found["transactions"][1]
