"""How fast jobs go on Postgres: bulk submits, steps, draining, a drain under an open transaction, idle questions.

    python -m tests.postgres_server --safe python benchmarks/postgres.py {url}
    python -m tests.postgres_server --safe python benchmarks/postgres.py {url} --peers PYTHON

The peers, pgqueuer, procrastinate and DBOS, run in an interpreter that has them, on the same server in the same round.
Rounds are interleaved and medians count, because machines are noisy; a ratio is one of each round.
"""

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import asyncpg

from holdfast import App, step
from holdfast.conformance.given import StoreClock, job
from holdfast.core.lifecycle import decide
from holdfast.core.model import Event
from holdfast.engines.postgres import PostgresEngine

HERE = Path(__file__).parent
CLOCK = StoreClock(settable=False)
Figures = dict[str, float]


@step(name="one")
async def one(n: int) -> int:
    """A step that does nothing."""
    return n


def app_on(url: str) -> tuple[App, Any, Any, list[float]]:
    """An App with the jobs that are measured, and when each no-op ran."""
    app, times = App(url), list[float]()

    @app.job
    async def noop(n: int) -> None:
        times.append(time.perf_counter())

    @app.job
    async def spread(count: int) -> int:
        return len(await one.map(range(count), at_once=100))

    return app, noop, spread, times


async def raw_inserts(url: str, count: int) -> float:
    """Rows a second that asyncpg itself writes, into one table of the same columns."""
    db = await asyncpg.connect(url)
    await db.execute("drop table if exists raw_job")
    await db.execute(
        "create table raw_job (n bigserial primary key, id text unique, type text, queue text, args text, digest text,"
        " created_at bigint, run_at bigint, state text)"
    )
    jobs = [job(CLOCK) for _ in range(count)]
    began = time.perf_counter()
    for start in range(0, count, 1_000):
        part = jobs[start : start + 1_000]
        columns: list[list[Any]] = [
            [getattr(one, name) for one in part]
            for name in ("id", "type", "queue", "args", "digest", "created_at", "run_at")
        ]
        await db.execute(
            "insert into raw_job (id, type, queue, args, digest, created_at, run_at, state) select *, 'available' from"
            " unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::bigint[], $7::bigint[])",
            *columns,
        )
    taken = time.perf_counter() - began
    await db.execute("drop table raw_job")
    await db.close()
    return count / taken


async def ours(url: str, count: int) -> Figures:
    """Submit in bulk, drain with one worker, run steps."""
    app, noop, spread, times = app_on(url)
    await app.open()
    began = time.perf_counter()
    for _ in range(0, count, 1_000):
        await noop.submit_many(range(1_000))
    inserted = time.perf_counter() - began
    began = time.perf_counter()
    async with app.worker(at_once=100):
        while len(times) < count:
            await asyncio.sleep(0.01)
    drained = times[-1] - began
    began = time.perf_counter()
    async with app.worker():
        run = await spread.submit(3_000)
        await run.result(120)
        steps = time.perf_counter() - began
    await app.close()
    return {"inserts": count / inserted, "drain": count / drained, "steps": 3_000 / steps}


async def engine_drain(url: str, count: int, *, held: bool) -> float:
    """Claim and complete a hundred at a time on the engine alone; with a transaction held open elsewhere, or not."""
    engine = PostgresEngine(url)
    await engine.open()
    other = await asyncpg.connect(url.partition("?")[0])
    transaction = other.transaction(isolation="repeatable_read")
    if held:
        await transaction.start()
        await other.fetch("select 1 from pg_class limit 1")
    for _ in range(0, count, 1_000):
        await engine.insert([job(CLOCK) for _ in range(1_000)])
    began = time.perf_counter()
    done = 0
    while claimed := await engine.claim("w", ["default"], 100):
        now = await engine.now()
        await engine.commit([decide(one, Event.COMPLETE, now, by="w", result="1") for one in claimed])
        done += len(claimed)
    taken = time.perf_counter() - began
    assert done == count, (done, count)
    if held:
        await transaction.rollback()
    await other.close()
    await engine.close()
    return count / taken


def peer(python: str, kind: str, count: int, url: str) -> Figures:
    """What a peer does in its own interpreter."""
    done = subprocess.run(
        [python, HERE / "postgres_peers.py", kind, str(count), url], capture_output=True, text=True, check=False
    )
    if done.returncode:
        print(f"{kind} failed: {done.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
        return {}
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


async def one_round(url: str, python: str | None, count: int) -> Figures:
    """Everything once."""
    figures: Figures = {"raw unnest inserts/s": await raw_inserts(url, count)}
    store = PostgresEngine.scratch(url, Path())
    for name, figure in (await ours(store, count)).items():
        figures[f"holdfast {name}/s"] = figure
    await PostgresEngine.scrap(store)
    for held in (False, True):
        store = PostgresEngine.scratch(url, Path())
        figures[f"engine drain/s{', a transaction held open' * held}"] = await engine_drain(store, 4 * count, held=held)
        await PostgresEngine.scrap(store)
    if python is not None:
        for kind, part in (("pgqueuer", 1), ("procrastinate", 10), ("dbos", 10)):
            for name, figure in (await asyncio.to_thread(peer, python, kind, count // part, url)).items():
                figures[f"{kind} {name.removesuffix('_per_second')}/s"] = figure
    return figures


RATIOS = (
    ("holdfast inserts/s", "raw unnest inserts/s", 0.2),
    ("holdfast inserts/s", "pgqueuer inserts/s", 1.0),
    ("holdfast drain/s", "pgqueuer jobs/s", 1.5),
    ("holdfast drain/s", "procrastinate jobs/s", 10.0),
    ("holdfast steps/s", "dbos steps/s", 10.0),
    ("engine drain/s, a transaction held open", "engine drain/s", 0.5),
)


async def main() -> None:
    """Run the rounds and print the medians."""
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--peers", metavar="PYTHON")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=5_000)
    given = parser.parse_args()
    figures: defaultdict[str, list[float]] = defaultdict(list)
    for _ in range(given.rounds):
        for name, figure in (await one_round(given.url, given.peers, given.jobs)).items():
            figures[name].append(figure)
    for name, some in figures.items():
        print(f"{name:45} {statistics.median(some):10,.0f}   ({min(some):,.0f} to {max(some):,.0f})")
    for ours_, theirs, wanted in RATIOS:
        pairs = list(zip(figures.get(ours_, []), figures.get(theirs, []), strict=False))
        if pairs:
            ratio = statistics.median(a / b for a, b in pairs)
            print(f"{ours_} : {theirs} = {ratio:.2f}, wanted {wanted:g}{'' if ratio >= wanted else '  MISSED'}")


if __name__ == "__main__":
    asyncio.run(main())
