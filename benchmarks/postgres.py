"""How fast jobs run on Postgres, each figure with its floor, on a server that syncs (`--safe`).

    python -m tests.support.postgres_server --safe python benchmarks/postgres.py {url} --million --long --peers PYTHON

`--million` also drains next to a million ended jobs; `--long` drains 100,000 jobs: alone, under a transaction that
stays open, and with four processes. The peers, pgqueuer, procrastinate and DBOS, run in an interpreter that has them,
on the same server in the same round.

Workers and submitters are separate processes (`postgres_work.py`). A drain's rate is measured the same way for all:
from the first start of a job to the moment when the store says that the last one has ended. Our worker has 600 slots;
pgqueuer takes 100 at a time, with no limit on how many run. Rounds are interleaved and medians count, because machines
are noisy; a ratio compares two figures of one round. Exits with 1 if a floor is missed.
"""

import argparse
import asyncio
import os
import platform
import statistics
import sys
import time
from collections.abc import Iterable
from contextlib import AsyncExitStack
from pathlib import Path

from killing import recovery
from measuring import check_floor, peer, print_figure
from postgres_stores import (
    asking,
    completed,
    completed_now,
    raw_inserts,
    store_on,
    transaction_open,
    transactions,
)
from postgres_work import Elsewhere, elsewhere, work

from holdfast.engines.postgres import PostgresEngine
from holdfast.engines.topics import queue_topic

MILLION, LONG_JOBS = 1_000_000, 100_000
SLOTS = 600
SUBMITTERS, SUBMITTING = 32, 4
"""How many submit at the same time, and in how many processes."""
SETTLE_SECONDS = 5.0
WAIT_SECONDS = 600.0
Figures = dict[str, float]

DRAIN = "drain, one worker process"
BULK = "bulk submit"
RAW = "raw unnest inserts of the same rows"
BESIDE, EMPTY = "drain beside a million ended jobs", "drain of an empty store"
LONG = "long drain, one worker process"
HELD, FOUR = "long drain under an open transaction", "long drain, four worker processes"
LOUD, SILENT = "32 submitters", "32 submitters without NOTIFY"
STEPS = "steps, 100 jobs at once"
MAP = "steps, a map with 100 at once"
STATEMENTS = "statements for a step"
START = "submit to start in another process, p50"

RATIOS = (
    (DRAIN, "pgqueuer jobs", 1.5),
    (DRAIN, "procrastinate jobs", 10.0),
    (BULK, RAW, 0.2),
    (BULK, "pgqueuer inserts", 1.0),
    (BESIDE, EMPTY, 0.9),
    (HELD, LONG, 0.5),
    (LOUD, SILENT, 0.8),
    (STEPS, "dbos steps", 10.0),
    (FOUR, LONG, 1.2),
)
PEERS = ("pgqueuer", "procrastinate", "dbos")
AT_MOST = (
    (STATEMENTS, 1.0, ""),
    (START, 5.0, "ms"),
)


async def submitted(store: str, job: str, arguments: Iterable[int]) -> float:
    """Submit in bulk, a thousand in one act, as the peers do; return jobs per second."""
    app, jobs = work(store)
    await app.open()
    await app.engine.count()  # open a connection before we start, as the peers do
    every = list(arguments)
    began = time.perf_counter()
    await jobs[job].submit_many(every)
    taken = time.perf_counter() - began
    await app.close()
    return len(every) / taken


async def drained(store: str, count: int, *, processes: int = 1, at_once: int = SLOTS) -> float:
    """Return the seconds in which worker processes drain the existing jobs: from the first start to the last end."""
    since = await completed_now(store)
    async with elsewhere(store, "worker", at_once, processes=processes) as workers:
        for worker in workers:
            worker.say("go")
        ended = await completed(store, count, since)
        said = await asyncio.gather(*(worker.end() for worker in workers))
    return ended - min(one["began"] for one in said if "began" in one)


async def bulk_and_drain(url: str, count: int) -> Figures:
    """Submit in bulk, insert the same rows raw, drain with one process."""
    async with store_on(url) as store:
        bulk = await submitted(store, "noop", range(count))
        figures = {BULK: bulk, RAW: await raw_inserts(store)}
        figures[DRAIN] = count / await drained(store, count)
    return figures


async def steps(url: str, count: int) -> Figures:
    """Run jobs of ten steps each, a hundred at once; a map; and count the statements of one step."""
    async with store_on(url) as store:
        await submitted(store, "walk", [10] * (count // 10))
        figures = {STEPS: count // 10 * 10 / await drained(store, count // 10, at_once=100)}
        await submitted(store, "spread", [count])
        figures[MAP] = count / await drained(store, 1)
        app, jobs = work(store)
        async with elsewhere(store, "worker", 8, "--counted") as [worker]:
            worker.say("go")
            run = await jobs["statements"].submit(min(1_000, count))
            figures[STATEMENTS] = await run.result(WAIT_SECONDS)
            await worker.end()
        await app.close()
    return figures


async def start(url: str, count: int) -> Figures:
    """Return the milliseconds from a submit to the start in an idle worker of another process, one job every 20 ms."""
    async with store_on(url) as store, elsewhere(store, "worker", 8) as [worker]:
        worker.say("go")
        app, jobs = work(store)
        await (await jobs["moment"].submit(0)).result(WAIT_SECONDS)
        asked, runs = [], []
        for n in range(count):
            await asyncio.sleep(0.02)
            asked.append(time.time())
            runs.append(await jobs["moment"].submit(n))
        waits = [(await run.result(WAIT_SECONDS) - at) * 1_000 for run, at in zip(runs, asked, strict=True)]
        await worker.end()
        await app.close()
    return {START: statistics.median(waits)}


async def submitters(url: str, count: int) -> Figures:
    """Submit single jobs from 32 callers in four processes, with and without NOTIFY, while somebody listens."""

    async def rate(*more: str) -> float:
        each = count // SUBMITTING
        words: list[str | int] = ["submitters", each, SUBMITTERS // SUBMITTING, *more]
        async with store_on(url) as store:
            app, _ = work(store)
            await app.open()
            listening = asyncio.create_task(app.engine.wait([queue_topic("another")], WAIT_SECONDS))
            async with elsewhere(store, *words, processes=SUBMITTING) as processes:
                for process in processes:
                    process.say("go")
                times = [(await process.hear("began"), await process.hear("ended")) for process in processes]
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)
            async with asking(store) as db:
                made = await db.fetchval("select count(*) from job") - SUBMITTERS  # each submitted one to warm up
            await app.close()
        return float(made) / (max(end for _, end in times) - min(began for began, _ in times))

    return {LOUD: await rate(), SILENT: await rate("--silent")}


async def beside(url: str, million: str, count: int) -> Figures:
    """Drain in an empty store, and in one with many ended jobs, which is kept over the rounds."""
    async with store_on(url) as empty:
        seconds = {}
        for name, store in ((EMPTY, empty), (BESIDE, million)):
            await submitted(store, "noop", range(count))
            seconds[name] = await drained(store, count)
    return {name: count / taken for name, taken in seconds.items()}


async def long_drains(url: str, count: int) -> Figures:
    """Drain many jobs; as many while a transaction stays open elsewhere; and as many with four processes.

    There are so many that the start of four processes doesn't matter. One process drains before and after the four,
    because the machine's speed changes within a round.
    """
    seconds: dict[str, list[float]] = {LONG: [], HELD: [], FOUR: []}
    for name in (HELD, LONG, FOUR, LONG):
        async with store_on(url) as store, AsyncExitStack() as stack:
            if name == HELD:
                await stack.enter_async_context(transaction_open(store))
            await submitted(store, "noop", range(count))
            seconds[name].append(await drained(store, count, processes=4 if name == FOUR else 1))
    return {name: count / statistics.mean(taken) for name, taken in seconds.items()}


async def peers(url: str, python: str, count: int) -> Figures:
    """Measure the peers; the slower ones get a tenth of the jobs."""
    figures: Figures = {}
    for kind, part in zip(PEERS, (1, 10, 10), strict=True):
        found = await asyncio.to_thread(peer, python, "postgres_peers.py", kind, max(10, count // part), url)
        figures |= {f"{kind} {name.removesuffix('_per_second')}": figure for name, figure in found.items()}
    return figures


async def rounds(given: argparse.Namespace) -> list[Figures]:
    """Run everything that has rounds, in each of them."""
    seen: list[Figures] = []
    url, count = given.url, given.jobs
    async with AsyncExitStack() as stack:
        if given.million:
            million = await stack.enter_async_context(store_on(url, ended=given.million))
        for number in range(given.rounds):
            figures = await bulk_and_drain(url, count)
            if given.peers is not None:
                figures |= await peers(url, given.peers, count)
            figures |= await steps(url, count)
            figures |= await start(url, min(300, count))
            figures |= await submitters(url, count // 2)
            if given.million:
                figures |= await beside(url, million, count)
            if given.long:
                figures |= await long_drains(url, given.long)
            seen.append(figures)
            print(f"round {number + 1} of {given.rounds}", file=sys.stderr, flush=True)
    return seen


def tell_rounds(seen: list[Figures], *, with_peers: bool) -> bool:
    """Print the medians of the rounds and their floors. A peer that was requested and failed misses its floor."""
    fine = True
    at_most = {name for name, _, _ in AT_MOST}
    for name in dict.fromkeys(name for figures in seen for name in figures):
        if name not in at_most:
            print_figure(name, [figures[name] for figures in seen if name in figures], "/s")
    print()
    for ours, theirs, floor in RATIOS:
        both = [figures[ours] / figures[theirs] for figures in seen if ours in figures and theirs in figures]
        if len(both) < len(seen):
            print(f"{'-':7}{ours} : {theirs}: measured in {len(both)} of {len(seen)} rounds")
            fine &= not with_peers or not theirs.startswith(PEERS)
        if not both:
            continue
        fine &= check_floor(f"{ours} : {theirs}", both, floor, "times")
        if ours == FOUR:
            fine &= check_floor("four worker processes : one, the lowest round", [min(both)], 1.0, "times")
    for name, floor, unit in AT_MOST:
        fine &= check_floor(name, [figures[name] for figures in seen], floor, unit, at_most=True)
    return fine


async def idle(url: str, seconds: float) -> bool:
    """Return the statements per second of one idle worker process, which also does the upkeep."""

    async def sent(worker: Elsewhere) -> float:
        worker.say("how many")
        return await worker.hear("sent")

    async with store_on(url) as store, elsewhere(store, "worker", 8, "--counted") as [worker]:
        worker.say("go")
        await asyncio.sleep(SETTLE_SECONDS)
        before, server = await sent(worker), await transactions(url)
        await asyncio.sleep(seconds)
        statements, server = await sent(worker) - before, await transactions(url) - server
        await worker.end()
    fine = check_floor("idle worker process, statements it sends", [statements / seconds], 2, "/s", at_most=True)
    print_figure("transactions of the whole server meanwhile, with autovacuum", [server / seconds], "/s")
    return fine


def kills(url: str, count: int) -> bool:
    """Kill workers with -9, each on its own store."""
    stores: list[str] = []

    def url_in(folder: Path) -> str:
        stores.append(PostgresEngine.scratch(url, folder))
        return stores[-1]

    async def scrap() -> None:
        for store in stores:
            await PostgresEngine.scrap(store)

    try:
        return recovery(count, url_in, 4)
    finally:
        asyncio.run(scrap())


async def head(given: argparse.Namespace) -> str:
    """Return where and on what this is measured."""
    async with asking(given.url) as db:
        version, sync, commit, buffers = [
            await db.fetchval("select current_setting($1)", name)
            for name in ("server_version", "fsync", "synchronous_commit", "shared_buffers")
        ]
    if (sync, commit) != ("on", "on"):
        sys.exit(f"fsync={sync}, synchronous_commit={commit}: measure on a server that syncs, as with `--safe`")
    return (
        f"Python {platform.python_version()}, Postgres {version}, fsync={sync}, synchronous_commit={commit}, "
        f"shared_buffers={buffers}, {os.cpu_count()} cores\n"
        f"rounds: {given.rounds} with {given.jobs:,} jobs; medians, and the lowest–highest\n"
    )


def main() -> int:
    """Run all benchmarks; return 1 if a floor was missed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--peers", metavar="PYTHON", help="an interpreter that has pgqueuer, procrastinate and dbos")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=30_000)
    parser.add_argument("--million", type=int, nargs="?", const=MILLION, default=0, metavar="JOBS")
    parser.add_argument("--long", type=int, nargs="?", const=LONG_JOBS, default=0, metavar="JOBS")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--idle", type=float, default=30.0, metavar="SECONDS")
    given = parser.parse_args()
    print(asyncio.run(head(given)), flush=True)
    fine = tell_rounds(asyncio.run(rounds(given)), with_peers=given.peers is not None)
    fine &= asyncio.run(idle(given.url, given.idle))
    if given.kills:
        fine &= kills(given.url, given.kills)
    print("\nall floors reached" if fine else "\na floor was missed")
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
