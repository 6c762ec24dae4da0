"""A search_path that leads to somebody else's functions first: no statement of ours takes them for the server's."""

import asyncio
import re
from collections.abc import Iterator

import asyncpg
import pytest

from holdfast import App
from holdfast.conformance.given import StoreClock, applied_to, change, children, claimed, commit, job, signal, step
from holdfast.core.model import Event, Presence, Where
from holdfast.engines.postgres import PostgresEngine
from holdfast.engines.records import WORKER
from holdfast.engines.sql import queries
from holdfast.engines.topics import queue_topic
from tests.support.postgres_server import Server, server

CLOCK = StoreClock(settable=False)
CALLED = re.compile(r"\b([a-z_]+)\(")

# One for each of the server's functions that a statement names, with the same arguments; where those are of any type,
# with a type that fits better. Each raises as soon as it is called. What the driver itself calls is
# spared: `current_setting`, `set_config`, and the table `pg_class`.
HOSTILE = """
create schema hostile;
create function hostile.raised(bigint) returns bigint language plpgsql as $$ begin raise 'hostile'; end $$;
create function hostile.raised(numeric, integer) returns numeric language plpgsql as $$ begin raise 'hostile'; end $$;
create function hostile.differs(numeric, integer) returns boolean language plpgsql as $$ begin raise 'hostile'; end $$;
create function hostile.equals(numeric, bigint) returns boolean language plpgsql as $$ begin raise 'hostile'; end $$;
create aggregate hostile.count(*) (sfunc = hostile.raised, stype = bigint, initcond = '0');
create function hostile.sum(bigint) returns numeric language plpgsql as $$ begin raise 'hostile'; end $$;
create function hostile.min(bigint) returns bigint language plpgsql as $$ begin raise 'hostile'; end $$;
create function hostile.unnest(text[]) returns setof text language plpgsql as $$ begin raise 'hostile'; end $$;
create function hostile.now_ms() returns bigint language plpgsql as $$ begin raise 'hostile'; end $$;
create operator hostile.* (leftarg = numeric, rightarg = integer, function = hostile.raised);
create operator hostile.<> (leftarg = numeric, rightarg = integer, function = hostile.differs);
create operator hostile.= (leftarg = numeric, rightarg = bigint, function = hostile.equals);
create table hostile.pg_locks (pid integer);
create table hostile.pg_database (oid oid);
do $do$
declare
  one record;
begin
  for one in
    select proname, pg_get_function_identity_arguments(oid) as arguments, prorettype::regtype as answer from pg_proc
    where pronamespace = 'pg_catalog'::regnamespace and prokind = 'f' and proname = any({names})
      and proname not in ('current_setting', 'set_config')
      and not exists (select 1 from pg_type where pg_type.oid = any(proargtypes || prorettype) and typtype = 'p')
  loop
    execute format('create function hostile.%I(%s) returns %s language plpgsql as $$ begin raise ''hostile''; end $$',
      one.proname, one.arguments, one.answer);
  end loop;
end $do$;
alter database postgres set search_path = hostile, pg_catalog;
"""


@pytest.fixture(scope="module")
def hostile() -> Iterator[Server]:
    """A server on which all sessions find somebody else's functions first."""
    names = sorted(
        {name for text in vars(queries("holdfast.engines.postgres")).values() for name in CALLED.findall(text)}
    )
    given = (
        "array[" + ", ".join(f"'{name}'" for name in [*names, "to_regclass", "quote_ident", "hashtextextended"]) + "]"
    )

    async def make(url: str) -> None:
        db = await asyncpg.connect(url)
        await db.execute(HOSTILE.replace("{names}", given))
        await db.close()
        db = await asyncpg.connect(url)
        for call in ("length('a')", "count(*)", "clock_timestamp()", "unnest(array['a'])"):
            with pytest.raises(asyncpg.RaiseError, match="hostile"):
                await db.fetch(f"select {call}")
        await db.close()

    with server() as running:
        asyncio.run(make(running.url))
        yield running


@pytest.mark.parametrize("options", ["schema=plain", "schema=pooled&pooler=transaction"])
def test_every_act_goes_by_the_server_s_own_functions(hostile: Server, run, options: str):
    url = f"{hostile.url}?{options}"
    app = App(url)

    @app.job
    async def double(n: int) -> int:
        return 2 * n

    async def live() -> None:
        engine = PostgresEngine(url)
        assert not await engine.is_there()
        await engine.open()
        assert await engine.is_there()
        await engine.insert([job(CLOCK, args='["' + "x" * 2_000 + '"]')])
        mine = await claimed(engine, CLOCK)
        await engine.record([step(mine)])

        async def body(db) -> list:
            assert await db.fetchval("select 1") == 1
            return [step(mine, "pay#1")]

        await engine.transact(step(mine, "pay#1"), body)
        await engine.beat(Presence(worker="w-1"))
        assert [record.name for record in await engine.records(WORKER)] == [f"{WORKER}w-1"]
        await commit(engine, change(CLOCK, mine, Event.COMPLETE))
        assert [entry.event for entry in await engine.history(mine.id)] == ["submit", "claim", "complete"]
        assert len(await engine.steps(mine.id)) == 2
        assert len(await engine.find(Where())) == 2
        assert sorted((await engine.count()).values()) == [1, 1]
        family = await claimed(engine, CLOCK)
        [child] = await children(engine, CLOCK, family, 1)
        await applied_to(engine, signal(CLOCK, family))
        await engine.commit([change(CLOCK, child, Event.COMPLETE), change(CLOCK, family, Event.FAIL)])
        assert await engine.missing(family.id, "g") == 0
        await engine.turn([change(CLOCK, await claimed(engine, CLOCK), Event.RELEASE)], "w-1", ["default"], 1)
        await engine.put_record("a/b", "1", None)
        assert [record.name for record in await engine.records("a/")] == ["a/b"]
        await engine.prune()
        await engine.wait([queue_topic("default")], 0.1)
        await engine.close()

    async def submit() -> None:
        await app.open()
        db = await asyncpg.connect(hostile.url)
        async with db.transaction():
            run = await double.submit(21, connection=db)
        async with app.worker():
            assert await run.result(timeout=20) == 42
        await db.close()
        await app.close()

    run(live())
    run(submit())
