"""Stores to measure on: empty ones, and one with many ended jobs; and direct queries to their server.

No name is put into a statement: a connection uses the store's schema (`search_path`).
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg

from holdfast import App
from holdfast.engines.postgres import PostgresEngine
from holdfast.engines.postgres.url import parse_url

POLL_SECONDS = 0.01
FASTEST = 100_000
"""No worker here ends this many jobs per second, so a caller that waits for the end needn't poll earlier."""
DRAIN_SECONDS = 600.0
PART = 1_000

COMPLETED = "select coalesce(sum(jobs), 0) from tally where state = 'completed'"
TRANSACTIONS = "select xact_commit + xact_rollback from pg_stat_database where datname = current_database()"

# The same columns as a job, with a unique number and id, and no other index.
RAW_TABLE = "create table raw_job (like job, primary key (n), unique (id))"
RAW_INSERT = """
insert into raw_job select * from unnest(
  $1::bigint[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::bigint[], $8::text[], $9::bigint[],
  $10::text[], $11::text[], $12::bigint[], $13::bigint[], $14::text[], $15::text[], $16::bigint[], $17::bigint[],
  $18::bigint[], $19::bigint[], $20::bigint[], $21::text[], $22::bigint[], $23::text[], $24::text[], $25::text[],
  $26::bigint[], $27::bigint[], $28::text[], $29::boolean[], $30::text[], $31::bigint[], $32::bigint[])
"""

# Jobs as a worker leaves them, ended within the last day, with ids that sort by time like ours.
LOAD = """
with made as materialized (
  select (now_ms() / 86400000 << 40) + nextval('job_n') as n, made_at,
    substr(hex, 1, 8) || '-' || substr(hex, 9, 4) || '-7' || substr(rest, 1, 3) || '-8' || substr(rest, 4, 3) || '-'
      || substr(rest, 7, 12) as id
  from (
    select made_at, lpad(to_hex(made_at), 12, '0') as hex, md5(number::text) as rest
    from (
      select number, now_ms() - 86400000 + number * 86400000 / $1::bigint as made_at
      from generate_series(1, $1::bigint) as number
    ) as numbers
  ) as texts
), named as (
  insert into name (id, n) select id, n from made
), counted as (
  insert into tally (queue, state, jobs) values ('default', 'completed', $1::bigint)
)
insert into done (n, id, type, queue, args, digest, priority, created_at, options, state, version, run_at, epoch,
  attempt, recoveries, result, finished_at, prune_at, arrived, first_state, first_epoch, told_claim, told_at, told_by)
select n, id, 'noop', 'default', '[1]', md5('[1]'), 0, made_at, '{"retry":{},"keep_ms":2592000000}', 'completed', 3,
  made_at, 1, 1, 0, 'null', made_at + 20, made_at + 2592000020, false, 'available', 0, 2, made_at + 10, 'w-1'
from made
"""


@asynccontextmanager
async def store_on(url: str, *, ended: int = 0) -> AsyncIterator[str]:
    """Create a store with this many ended jobs, and remove it afterwards."""
    store = PostgresEngine.scratch(url, Path())
    app = App(store)
    await app.open()
    await app.engine.prune()  # creates the partitions of the coming days, which a first worker would do while it drains
    await app.close()
    if ended:
        async with asking(store) as db:
            await db.execute(LOAD, ended, timeout=DRAIN_SECONDS)
            # Do now what autovacuum and the next checkpoint would do in the middle of the measurement.
            await db.execute("vacuum (analyze) name, done", timeout=DRAIN_SECONDS)
            with contextlib.suppress(asyncpg.InsufficientPrivilegeError):
                await db.execute("checkpoint", timeout=DRAIN_SECONDS)
    try:
        yield store
    finally:
        await PostgresEngine.scrap(store)


@asynccontextmanager
async def asking(store: str) -> AsyncIterator[asyncpg.Connection]:
    """Open a plain connection that uses a store's schema."""
    place = parse_url(store)
    db = await asyncpg.connect(place.dsn, server_settings={"search_path": place.schema})
    try:
        yield db
    finally:
        await db.close()


@asynccontextmanager
async def transaction_open(store: str) -> AsyncIterator[None]:
    """Keep a transaction open elsewhere, with a snapshot: rows deleted meanwhile can't be vacuumed."""
    async with asking(store) as db:
        transaction = db.transaction(isolation="repeatable_read")
        await transaction.start()
        await db.fetchval("select count(*) from job")
        yield
        await transaction.rollback()


async def completed(store: str, more: int, since: int = 0) -> float:
    """Return when the store says that this many more jobs are completed. Polls rarely while many are left."""
    async with asyncio.timeout(DRAIN_SECONDS), asking(store) as db:
        while (left := since + more - await db.fetchval(COMPLETED)) > 0:
            await asyncio.sleep(max(POLL_SECONDS, float(left) / FASTEST))
    return time.time()


async def completed_now(store: str) -> int:
    """Return how many jobs are completed."""
    async with asking(store) as db:
        return int(await db.fetchval(COMPLETED))


async def transactions(url: str) -> int:
    """Return how many transactions the database has had."""
    async with asking(url) as db:
        return int(await db.fetchval(TRANSACTIONS))


async def raw_inserts(store: str) -> float:
    """Return the rows per second that plain asyncpg writes: the same rows as the store's jobs, a thousand at a time."""
    async with asking(store) as db:
        await db.execute(RAW_TABLE)
        rows = await db.fetch("select * from job order by n")
        parts = [list(zip(*rows[start : start + PART], strict=True)) for start in range(0, len(rows), PART)]
        began = time.perf_counter()
        for columns in parts:
            await db.execute(RAW_INSERT, *columns)
        taken = time.perf_counter() - began
        await db.execute("drop table raw_job")
    return len(rows) / taken
