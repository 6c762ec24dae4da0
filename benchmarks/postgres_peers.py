"""The same work with other libraries that keep jobs in Postgres, run by their own interpreter.

`python postgres_peers.py pgqueuer 10000 URL` prints one JSON line. All use the same server with the same fsync; a drain
is measured like ours.
"""

import asyncio
import json
import sys
import time
from typing import Any

BATCH = 100
POLL_SECONDS = 0.005


async def ended(url: str, times: list[float], count: int, nothing_left: str) -> float:
    """Return the seconds from the first start until the store says that all jobs have ended. Polls after the last
    start.
    """
    import asyncpg

    db = await asyncpg.connect(url)
    while len(times) < count:
        await asyncio.sleep(POLL_SECONDS)
    while not await db.fetchval(nothing_left):
        await asyncio.sleep(POLL_SECONDS)
    taken = time.perf_counter() - times[0]
    await db.close()
    return taken


def pgqueuer(count: int, url: str) -> dict[str, float]:
    """Enqueue in bulk, a thousand at a time, then drain with one process, a hundred at a time."""
    return asyncio.run(_pgqueuer(count, url))


async def _pgqueuer(count: int, url: str) -> dict[str, float]:
    import asyncpg
    from pgqueuer import PgQueuer
    from pgqueuer.db import AsyncpgDriver
    from pgqueuer.queries import Queries

    connection = await asyncpg.connect(url)
    driver = AsyncpgDriver(connection)
    queries = Queries(driver)
    await queries.uninstall()
    await queries.install()
    manager = PgQueuer(driver)
    times: list[float] = []

    @manager.entrypoint("noop")
    async def noop(job: Any) -> None:
        times.append(time.perf_counter())

    began = time.perf_counter()
    for start in range(0, count, 1_000):
        part = min(1_000, count - start)
        await queries.enqueue(["noop"] * part, [b"[1]"] * part, [0] * part)
    inserted = time.perf_counter() - began
    running = asyncio.create_task(manager.run(batch_size=BATCH))
    drained = await ended(url, times, count, "select not exists (select 1 from pgqueuer)")
    manager.shutdown.set()
    await running
    await queries.uninstall()
    await connection.close()
    return {"inserts_per_second": count / inserted, "jobs_per_second": count / drained}


def procrastinate(count: int, url: str) -> dict[str, float]:
    """Drain with one process, a hundred at once."""
    return asyncio.run(_procrastinate(count, url))


async def _procrastinate(count: int, url: str) -> dict[str, float]:
    import asyncpg
    import procrastinate

    app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=url))
    times: list[float] = []

    @app.task(name="noop")
    async def noop(n: int) -> None:
        times.append(time.perf_counter())

    db = await asyncpg.connect(url)
    async with app.open_async():
        if await db.fetchval("select to_regclass('procrastinate_jobs') is null"):
            await app.schema_manager.apply_schema_async()
        await db.execute("truncate procrastinate_jobs cascade")
        began = time.perf_counter()
        await noop.batch_defer_async(*({"n": n} for n in range(count)))
        inserted = time.perf_counter() - began
        working = app.run_worker_async(
            wait=False, concurrency=BATCH, install_signal_handlers=False, listen_notify=False
        )
        running = asyncio.create_task(working)
        left = "select not exists (select 1 from procrastinate_jobs where status in ('todo', 'doing'))"
        drained = await ended(url, times, count, left)
        await running
    await db.close()
    return {"inserts_per_second": count / inserted, "jobs_per_second": count / drained}


def dbos(count: int, url: str) -> dict[str, float]:
    """Run workflows of ten steps each, all started at once, with this many steps in total; return steps per second."""
    from dbos import DBOS

    DBOS(
        config={
            "name": "bench",
            "system_database_url": url.replace("postgresql:", "postgresql+psycopg:"),
            "log_level": "ERROR",
        }
    )

    @DBOS.step()
    def one(n: int) -> int:
        return n

    times: list[float] = []

    @DBOS.workflow()
    def walk(steps: int) -> int:
        times.append(time.perf_counter())
        for n in range(steps):
            one(n)
        return steps

    DBOS.launch()
    DBOS.start_workflow(walk, 5).get_result()
    times.clear()
    for handle in [DBOS.start_workflow(walk, 10) for _ in range(count // 10)]:
        handle.get_result()
    taken = time.perf_counter() - times[0]
    DBOS.destroy()
    return {"steps_per_second": count / taken}


def main() -> None:
    """Run what was asked for."""
    kind, count, url = sys.argv[1:]
    print(json.dumps({"pgqueuer": pgqueuer, "procrastinate": procrastinate, "dbos": dbos}[kind](int(count), url)))


if __name__ == "__main__":
    main()
