"""Submitting one by one: `python benchmarks/submit.py URL [--peers PYTHON] [--rounds 5] [--count 2000]`.

Each measurement runs in its own process, and the rounds are interleaved: what slows one down slows all of them. The CPU
is that of the whole submitting process, including its threads. The raw store writes one row, or one list element, for
each submit, as durably as the engine does. Peers: huey on SQLite, pgqueuer on Postgres, dramatiq on Redis.

A map over quick jobs is measured with `at_once=8` and without it, from outside a job and from inside one.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from measuring import check_floor, peer, print_figure, ratios

from holdfast import App
from holdfast.engines import engine_class

CPU_MICROSECONDS = 200.0
"""How much CPU one submit may cost the caller."""

PEERS = {"sqlite": ("huey", 0.8), "postgresql": ("pgqueuer", 1.0), "redis": ("dramatiq", 0.9)}
"""The peer on each store, and the part of its rate that we want to reach."""

WARM_UP = 200
MAP_ITEMS = 1_000
MAP_FLOORS = {"0 ms": 1.0, "10 ms": 1.0}
"""The part of an unbounded map's rate that a map with `at_once=8` must reach, for jobs of this length, on a worker with
eight slots. Then at most eight jobs are in progress, from submit to result: for quick jobs, the store's round trips
count.
"""


# One measurement, in its own process.


def measure_sync(store: str, count: int) -> dict[str, float]:
    """`app.sync.submit`, one call after another."""
    app, noop = app_on(store)
    for n in range(WARM_UP):
        app.sync.submit(noop, n)
    cpu, began = time.process_time(), time.perf_counter()
    for n in range(count):
        app.sync.submit(noop, n)
    return figures(count, began, cpu)


def measure_async(store: str, count: int) -> dict[str, float]:
    """`await job.submit(…)`, one call after another."""
    app, noop = app_on(store)
    return asyncio.run(each(count, noop.submit, app.close))


def app_on(store: str) -> tuple[App, Any]:
    """Return an App with one no-op job."""
    app = App(store)

    @app.job
    async def noop(n: int) -> None: ...

    return app, noop


async def each(
    count: int, submit: Callable[[int], Awaitable[Any]], close: Callable[[], Awaitable[Any]]
) -> dict[str, float]:
    """Submit this many jobs, one after another."""
    for n in range(WARM_UP):
        await submit(n)
    cpu, began = time.process_time(), time.perf_counter()
    for n in range(count):
        await submit(n)
    found = figures(count, began, cpu)
    await close()
    return found


def figures(count: int, began: float, cpu: float) -> dict[str, float]:
    """Return submits per second, and the CPU microseconds of each."""
    cpu_seconds, seconds = time.process_time() - cpu, time.perf_counter() - began
    return {"rate": count / seconds, "cpu": cpu_seconds / count * 1_000_000}


def measure_raw(store: str, count: int) -> dict[str, float]:
    """The store itself: one row, or one element of a list, and its commit."""
    if store.startswith("sqlite"):
        return raw_sqlite(store, count)
    return asyncio.run(raw_postgres(store, count) if store.startswith("postgres") else raw_redis(store, count))


def raw_sqlite(store: str, count: int) -> dict[str, float]:
    """One insert and one commit per submit, synced as the engine syncs."""
    import sqlite3

    db = sqlite3.connect(store.removeprefix("sqlite:///"), isolation_level=None)
    for statement in ("pragma journal_mode = wal", "pragma synchronous = full", "create table raw (n integer, text)"):
        db.execute(statement)

    def insert(n: int) -> None:
        db.execute("begin immediate")
        db.execute("insert into raw values (?, ?)", (n, "[1]"))
        db.execute("commit")

    for n in range(WARM_UP):
        insert(n)
    cpu, began = time.process_time(), time.perf_counter()
    for n in range(count):
        insert(n)
    return figures(count, began, cpu)


async def raw_postgres(store: str, count: int) -> dict[str, float]:
    """One insert per submit, with asyncpg."""
    from postgres_stores import asking

    async with asking(store) as db:
        await db.execute("create schema if not exists raw_submits")
        await db.execute("create table if not exists raw_submits.raw (n bigint, text text)")
        return await each(
            count,
            lambda n: db.execute("insert into raw_submits.raw values ($1, $2)", n, "[1]"),
            lambda: db.execute("drop schema raw_submits cascade"),
        )


async def raw_redis(store: str, count: int) -> dict[str, float]:
    """One list element per submit, with redis-py."""
    import redis.asyncio

    client: Any = redis.asyncio.Redis.from_url(store.partition("?")[0])
    return await each(count, lambda n: client.rpush("raw-submits", n), lambda: client.delete("raw-submits"))


def measure_map(store: str, count: int) -> dict[str, float]:
    """Return the seconds for maps over quick jobs, with a worker here: bounded and not, outside and inside a job."""
    return asyncio.run(maps(store, count))


async def maps(store: str, count: int) -> dict[str, float]:
    """Run each kind once, after a warm-up."""
    app = App(store)

    @app.job(name="quick")
    async def quick(n: int) -> int:
        return n

    @app.job(name="short")
    async def short(n: int) -> int:
        await asyncio.sleep(0.01)
        return n

    @app.job
    async def parent(n: int, at_once: int | None, is_short: bool) -> int:
        return len(await (short if is_short else quick).map(range(n), at_once=at_once))

    async def outside(at_once: int | None, is_short: bool) -> None:
        await (short if is_short else quick).map(range(count), at_once=at_once)

    async def inside(at_once: int | None, is_short: bool) -> None:
        await (await parent.submit(count, at_once, is_short)).result(timeout=300)

    found = {}
    async with app.worker(at_once=8):
        await quick.map(range(WARM_UP))
        for name, run in (("outside", outside), ("inside", inside)):
            for is_short in (False, True):
                for at_once in (None, 8):
                    began = time.perf_counter()
                    await run(at_once, is_short)
                    kind = f"{name} {'10 ms' if is_short else '0 ms'} {at_once or 'unbounded'}"
                    found[kind] = time.perf_counter() - began
    await app.close()
    return found


# All measurements, interleaved.


def one_round(
    url: str, folder: Path, count: int, python: str | None, seen: dict[str, list[float]], cpu: dict[str, list[float]]
) -> None:
    """Run every measurement once, each on its own store."""
    engine = engine_class(url)
    for kind in ("async", "sync", "raw"):
        store = engine.scratch(url, folder)
        found = peer(sys.executable, "submit.py", "--one", kind, store, count)
        asyncio.run(engine.scrap(store))
        seen.setdefault(kind, []).append(found["rate"])
        cpu.setdefault(kind, []).append(found["cpu"])
        for file in folder.glob("*"):
            if file.is_file():
                file.unlink()
    if python is not None:
        name, _ = PEERS[url.partition(":")[0]]
        found = peer(python, "submit_peers.py", name, url, count, str(folder))
        if found:
            seen.setdefault(name, []).append(found["rate"])
            cpu.setdefault(name, []).append(found["cpu"])
    store = engine.scratch(url, folder)
    for kind, seconds in peer(sys.executable, "submit.py", "--one", "map", store, MAP_ITEMS).items():
        seen.setdefault(kind, []).append(MAP_ITEMS / seconds)
    asyncio.run(engine.scrap(store))


def report(scheme: str, seen: dict[str, list[float]], cpu: dict[str, list[float]]) -> bool:
    """Print all lines; return whether every floor is reached."""
    fine = True
    name, floor = PEERS[scheme]
    for kind in ("async", "sync"):
        print_figure(f"{scheme}: submits one by one, {kind}", seen[kind], "/s")
        fine &= check_floor(f"{scheme}: CPU of one submit, {kind}", cpu[kind], CPU_MICROSECONDS, "µs", at_most=True)
        print_figure(f"{scheme}: {kind} to the raw store", ratios(seen[kind], seen["raw"]), "")
    print_figure(f"{scheme}: CPU of one write to the raw store", cpu["raw"], "µs")
    if len(seen.get(name, ())) == len(seen["async"]):
        print_figure(f"{scheme}: CPU of one submit, {name}", cpu[name], "µs")
        best = [max(pair) for pair in zip(seen["async"], seen["sync"], strict=True)]
        print_figure(f"{scheme}: the faster of our two to {name}", ratios(best, seen[name]), "")
        fine &= check_floor(f"{scheme}: async to {name}", ratios(seen["async"], seen[name]), floor, "")
    for where in ("outside", "inside"):
        for length, least in MAP_FLOORS.items():
            bounded, unbounded = seen[f"{where} {length} 8"], seen[f"{where} {length} unbounded"]
            print_figure(f"{scheme}: a map over jobs of {length} from {where} a job, items", unbounded, "/s")
            fine &= check_floor(f"{scheme}: the same with at_once=8", ratios(bounded, unbounded), least, "")
    return fine


def main() -> None:
    """Run what was asked for."""
    if sys.argv[1:2] == ["--one"]:
        kind, store, count = sys.argv[2:]
        one = {"async": measure_async, "sync": measure_sync, "raw": measure_raw, "map": measure_map}[kind]
        print(json.dumps(one(store, int(count))))
        return
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("url")
    words.add_argument("--peers", metavar="PYTHON", help="an interpreter that has the peers")
    words.add_argument("--rounds", type=int, default=5)
    words.add_argument("--count", type=int, default=2_000)
    given = words.parse_args()
    seen: dict[str, list[float]] = {}
    cpu: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(given.rounds):
            one_round(given.url, Path(folder), given.count, given.peers, seen, cpu)
    sys.exit(not report(given.url.partition(":")[0], seen, cpu))


if __name__ == "__main__":
    main()
