"""How fast jobs run: steps, items, latency, draining, recovery, and the cost of a worker, on SQLite.

    python benchmarks/running.py                        against the raw store
    python benchmarks/running.py --peers PYTHON         also against DBOS and huey, which that interpreter must have

Rounds are interleaved and medians count, because machines are noisy; the lowest and the highest values are printed next
to them, to show the noise. A ratio compares two figures of one round. Exits with 1 if a floor is missed.
"""

import argparse
import asyncio
import os
import platform
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from killing import recovery
from measuring import check_floor, cpu_seconds, peer, print_figure, ratios, resident_mb

from holdfast import App, step
from holdfast.core.model import State
from holdfast.engines.sqlite.store import connect, file_system


def work(folder: Path) -> tuple[App, dict[str, Any]]:
    """Return an App with the jobs to measure."""
    app = App(f"sqlite:///{folder}/jobs.db")

    @step(name="one")
    async def one(n: int) -> int:
        return n

    @app.job
    async def walk(count: int) -> int:
        for n in range(count):
            await one(n)
        return count

    @app.job
    async def spread(count: int) -> int:
        return len(await one.map(range(count), at_once=100))

    @app.job
    async def weigh(count: int) -> float:
        before = resident_mb(os.getpid(), "RssAnon")
        results = await one.map(range(count), at_once=100)
        size = sys.getsizeof(results) + sum(map(sys.getsizeof, results))
        return resident_mb(os.getpid(), "RssAnon") - before - size / 2**20

    @app.job
    async def noop(n: int) -> float:
        return time.time()

    @app.job
    async def doze(seconds: float) -> None:
        await asyncio.sleep(seconds)

    return app, {"walk": walk, "spread": spread, "weigh": weigh, "noop": noop, "doze": doze}


async def timed(folder: Path, at_once: int, submit: Callable[[dict[str, Any]], Any]) -> float:
    """Return the seconds from the start of a worker, with everything submitted, to the last result."""
    app, jobs = work(folder)
    await (await jobs["walk"].submit(1)).status()
    runs = await submit(jobs)
    async with app.worker(at_once=at_once):
        started = time.perf_counter()
        await asyncio.gather(*(run.result() for run in runs))
        taken = time.perf_counter() - started
    await app.close()
    return taken


async def drained(folder: Path, count: int) -> float:
    """Return the seconds in which a worker drains this many no-op jobs, until the store says that all are completed."""
    app, jobs = work(folder)
    await jobs["noop"].submit_many(range(count))
    async with app.worker(at_once=100):
        started = time.perf_counter()
        while (await app.engine.count()).get(("default", State.COMPLETED), 0) < count:
            await asyncio.sleep(0.02)
        taken = time.perf_counter() - started
    await app.close()
    return taken


def raw_commits(path: Path, count: int) -> float:
    """Return the seconds for this many durable commits of one small row each."""
    sqlite3.connect(path).close()
    db = connect(path)
    db.execute("pragma journal_mode = wal")
    db.execute("create table step (n integer primary key, job integer, path text, result text, unique (job, path))")
    started = time.perf_counter()
    for n in range(count):
        db.execute("insert into step (job, path, result) values (1, ?, '1')", (f"one#{n:016x}",))
    taken = time.perf_counter() - started
    db.close()
    return taken


def steps(rounds: int, peers: str | None) -> bool:
    """Measure sequential steps, many jobs at once, and a map."""
    above: list[float] = []
    seen: dict[str, list[float]] = {"sequential": [], "concurrent": [], "map": [], "dbos": [], "dbos at once": []}
    for _ in range(rounds):
        with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as name:
            folder = Path(name)
            # Once before and once after the compared part: a disk that others use is slow at times.
            raw = raw_commits(folder / "before.db", 1_000)
            walk = asyncio.run(timed(folder, 8, lambda jobs: jobs["walk"].submit_many([1_000])))
            raw = (raw + raw_commits(folder / "after.db", 1_000)) / 2
            many = asyncio.run(timed(folder, 100, lambda jobs: jobs["walk"].submit_many([10] * 100)))
            spread = asyncio.run(timed(folder, 8, lambda jobs: jobs["spread"].submit_many([10_000])))
            above.append((walk - raw) / 1_000 * 1_000)
            seen["sequential"].append(1_000 / walk)
            seen["concurrent"].append(1_000 / many)
            seen["map"].append(10_000 / spread)
            if peers is not None:
                seen["dbos"].append(peer_in_folder(peers, "dbos-steps", 1, 1_000)["steps_per_second"])
                seen["dbos at once"].append(peer_in_folder(peers, "dbos-steps", 100, 10)["steps_per_second"])
    sequential = seen["sequential"]
    fine = check_floor("a step above a raw durable commit", above, 0.5, "ms", at_most=True)
    fine &= check_floor("100 jobs x 10 steps : sequential", ratios(seen["concurrent"], sequential), 3, "times")
    fine &= check_floor("map of 10,000, 100 at once : sequential", ratios(seen["map"], sequential), 10, "times")
    for name in ("sequential", "concurrent", "map"):
        print_figure(f"steps, {name}", seen[name], "/s")
    if peers is not None:
        fine &= check_floor("1,000 steps : DBOS", ratios(sequential, seen["dbos"]), 4, "times")
        fine &= check_floor("100 jobs x 10 steps : DBOS", ratios(seen["concurrent"], seen["dbos at once"]), 4, "times")
    return fine


def draining(rounds: int, peers: str | None) -> bool:
    """Drain 10,000 no-op jobs with one worker process."""
    ours: list[float] = []
    huey: list[float] = []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as name:
            ours.append(10_000 / asyncio.run(drained(Path(name), 10_000)))
        if peers is not None:
            huey.append(peer_in_folder(peers, "huey-drain", 10_000, 8)["jobs_per_second"])
    print_figure("no-op jobs drained by one worker process", ours, "/s")
    return peers is None or check_floor("draining no-op jobs : huey", ratios(ours, huey), 3, "times")


async def latency(folder: Path) -> tuple[float, float]:
    """Return the milliseconds from submit to start on an idle worker: in one process, and across two."""
    app, jobs = work(folder)
    near: list[float] = []
    async with app.worker():
        for _ in range(100):
            await asyncio.sleep(0.01)
            asked = time.time()
            near.append((await (await jobs["noop"].submit(1)).result() - asked) * 1_000)
    await app.close()
    far: list[float] = []
    worker = subprocess.Popen([sys.executable, __file__, "--serve", str(folder)], stdout=subprocess.PIPE)
    assert worker.stdout is not None
    worker.stdout.readline()
    app, jobs = work(folder)
    for _ in range(100):
        await asyncio.sleep(0.01)
        asked = time.time()
        far.append((await (await jobs["noop"].submit(1)).result() - asked) * 1_000)
    worker.send_signal(signal.SIGTERM)
    worker.wait()
    worker.stdout.close()
    await app.close()
    return statistics.median(near), statistics.median(far)


def latencies(rounds: int) -> bool:
    """Print the medians of the medians."""
    seen = []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as name:
            seen.append(asyncio.run(latency(Path(name))))
    fine = check_floor("submit to start, one process, p50", [near for near, _ in seen], 3, "ms", at_most=True)
    fine &= check_floor("submit to start, two processes, p50", [far for _, far in seen], 10, "ms", at_most=True)
    return fine


def idle() -> bool:
    """Measure the cost of an idle worker process, and what 1,000 sleeping jobs add."""
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as name:
        worker = subprocess.Popen([sys.executable, __file__, "--serve", name], stdout=subprocess.PIPE)
        assert worker.stdout is not None
        worker.stdout.readline()
        time.sleep(2)
        before, memory = cpu_seconds(worker.pid), resident_mb(worker.pid)
        time.sleep(10)
        share = (cpu_seconds(worker.pid) - before) / 10 * 100

        async def lull() -> None:
            app, jobs = work(Path(name))
            await jobs["doze"].submit_many([60.0] * 1_000)
            await app.close()

        asyncio.run(lull())
        time.sleep(5)
        more = resident_mb(worker.pid) - memory
        worker.send_signal(signal.SIGKILL)
        worker.wait()
        worker.stdout.close()
    fine = check_floor("idle worker, share of a core", [share], 1, "%", at_most=True)
    fine &= check_floor("idle worker, memory", [memory], 60, "MB", at_most=True)
    fine &= check_floor("1,000 sleeping jobs add", [more], 15, "MB", at_most=True)
    return fine


def weighing(rounds: int) -> None:
    """Measure how much a worker process grows in a map of 10,000 items, without the list of results."""
    seen: list[float] = []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as name:
            worker = subprocess.Popen([sys.executable, __file__, "--serve", name], stdout=subprocess.PIPE)
            assert worker.stdout is not None
            worker.stdout.readline()
            app, jobs = work(Path(name))
            app.sync.submit(jobs["weigh"], 500).result(60)  # create everything that is created once
            seen.append(app.sync.submit(jobs["weigh"], 10_000).result(60))
            app.sync.call(app.close())
            worker.send_signal(signal.SIGKILL)
            worker.wait()
            worker.stdout.close()
    print_figure("memory of a map of 10,000 beyond its results", seen, "MB")


def peer_in_folder(python: str, kind: str, *numbers: int) -> dict[str, float]:
    """Run a peer's part, with its store in its own folder."""
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        return peer(python, "peers.py", kind, *numbers, folder)


def head(rounds: int) -> str:
    """Return where and on what this is measured."""
    place = tempfile.gettempdir()
    return (
        f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}, synchronous=FULL, "
        f"{os.cpu_count()} cores, {file_system(Path(place)) or 'an unknown file system'} at {place}\n"
        f"rounds: {rounds}; medians, and the lowest–highest\n"
    )


async def serve(folder: Path) -> None:
    """Run a worker in its own process, until it must stop."""
    app, _ = work(folder)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with app.worker(at_once=2_000):
        print("ready", flush=True)
        await stop.wait()


def main() -> int:
    """Run all benchmarks; return 1 if a floor was missed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--peers", help="an interpreter that has dbos and huey")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve is not None:
        asyncio.run(serve(options.serve))
        return 0
    print(head(options.rounds))
    fine = steps(options.rounds, options.peers)
    fine &= draining(options.rounds, options.peers)
    fine &= latencies(options.rounds)
    fine &= idle()
    weighing(options.rounds)
    fine &= recovery(options.kills, lambda folder: f"sqlite:///{folder}/jobs.db", 1)
    print("\nall floors reached" if fine else "\na floor was missed")
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
