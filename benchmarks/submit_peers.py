"""Submits one by one with other libraries, run by their own interpreter: `submit_peers.py huey URL 2000 FOLDER`.

Prints one JSON line: submits per second, and the CPU microseconds of each. Stores are as durable as ours.
"""

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

WARM_UP = 200


def figures(count: int, began: float, cpu: float) -> dict[str, float]:
    """Return submits per second, and the CPU microseconds of each."""
    cpu_seconds, seconds = time.process_time() - cpu, time.perf_counter() - began
    return {"rate": count / seconds, "cpu": cpu_seconds / count * 1_000_000}


def one_by_one(submit: Any, count: int) -> dict[str, float]:
    """Make this many calls, one after another."""
    for n in range(WARM_UP):
        submit(n)
    cpu, began = time.process_time(), time.perf_counter()
    for n in range(count):
        submit(n)
    return figures(count, began, cpu)


def huey(url: str, count: int, folder: Path) -> dict[str, float]:
    """A SQLite file in WAL mode, every commit synced."""
    from huey import SqliteHuey

    library = SqliteHuey("bench", filename=str(folder / "huey.db"), fsync=True)

    @library.task()
    def noop(n: int) -> None: ...

    found = one_by_one(noop, count)
    for file in folder.glob("huey.db*"):
        file.unlink()
    return found


def dramatiq(url: str, count: int, folder: Path) -> dict[str, float]:
    """Its own broker on the same server."""
    import dramatiq as library
    from dramatiq.brokers.redis import RedisBroker

    broker = RedisBroker(url=url, namespace="bench-submits")
    library.set_broker(broker)

    @library.actor
    def noop(n: int) -> None: ...

    found = one_by_one(noop.send, count)
    broker.flush_all()
    return found


def pgqueuer(url: str, count: int, folder: Path) -> dict[str, float]:
    """With asyncpg, on the same server."""
    return asyncio.run(_pgqueuer(url, count))


async def _pgqueuer(url: str, count: int) -> dict[str, float]:
    import asyncpg
    from pgqueuer.db import AsyncpgDriver
    from pgqueuer.queries import Queries

    connection = await asyncpg.connect(url)
    queries = Queries(AsyncpgDriver(connection))
    await queries.uninstall()
    await queries.install()
    for _ in range(WARM_UP):
        await queries.enqueue("noop", b"[1]")
    cpu, began = time.process_time(), time.perf_counter()
    for _ in range(count):
        await queries.enqueue("noop", b"[1]")
    found = figures(count, began, cpu)
    await queries.uninstall()
    await connection.close()
    return found


def main() -> None:
    """Run what was asked for."""
    kind, url, count, folder = sys.argv[1:]
    kinds = {"huey": huey, "dramatiq": dramatiq, "pgqueuer": pgqueuer}
    print(json.dumps(kinds[kind](url, int(count), Path(folder))))


if __name__ == "__main__":
    main()
