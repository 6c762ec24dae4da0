"""The same work on other libraries that keep jobs in Postgres, run by an interpreter of their own.

`python postgres_peers.py pgqueuer-drain 5000 URL` prints one JSON line. All on the same server, with the same fsync.
"""

import asyncio
import json
import sys
import time
from typing import Any

BATCH = 100


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
        if len(times) == count:
            manager.shutdown.set()

    began = time.perf_counter()
    for _ in range(0, count, 1_000):
        await queries.enqueue(["noop"] * 1_000, [b"[1]"] * 1_000, [0] * 1_000)
    inserted = time.perf_counter() - began
    began = time.perf_counter()
    await manager.run(batch_size=BATCH)
    drained = time.perf_counter() - began
    await queries.uninstall()
    await connection.close()
    return {"inserts_per_second": count / inserted, "jobs_per_second": count / drained}


def procrastinate(count: int, url: str) -> dict[str, float]:
    """Drain with one process, a hundred at once."""
    return asyncio.run(_procrastinate(count, url))


async def _procrastinate(count: int, url: str) -> dict[str, float]:
    import procrastinate

    app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=url))

    @app.task(name="noop")
    async def noop(n: int) -> None:
        pass

    async with app.open_async():
        try:
            await app.schema_manager.apply_schema_async()
        except Exception:  # it is there from the round before
            pass
        began = time.perf_counter()
        await noop.batch_defer_async(*({"n": n} for n in range(count)))
        inserted = time.perf_counter() - began
        began = time.perf_counter()
        await app.run_worker_async(wait=False, concurrency=BATCH, install_signal_handlers=False, listen_notify=False)
        drained = time.perf_counter() - began
    return {"inserts_per_second": count / inserted, "jobs_per_second": count / drained}


def dbos(count: int, url: str) -> dict[str, float]:
    """A hundred workflows at once with ten steps each, or so many steps in all; steps a second."""
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

    @DBOS.workflow()
    def walk(steps: int) -> int:
        for n in range(steps):
            one(n)
        return steps

    DBOS.launch()
    DBOS.start_workflow(walk, 5).get_result()
    began = time.perf_counter()
    for handle in [DBOS.start_workflow(walk, 10) for _ in range(count // 10)]:
        handle.get_result()
    taken = time.perf_counter() - began
    DBOS.destroy()
    return {"steps_per_second": count / taken}


def main() -> None:
    """Run what was asked for."""
    kind, count, url = sys.argv[1:]
    print(json.dumps({"pgqueuer": pgqueuer, "procrastinate": procrastinate, "dbos": dbos}[kind](int(count), url)))


if __name__ == "__main__":
    main()
