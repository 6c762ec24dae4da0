"""The cost of sleeping jobs: 10,000 that sleep for a day, next to an idle worker, and all woken at once, on SQLite.

    python benchmarks/parked.py

A sleeping job uses no slot, no task and no memory in a worker. This compares a worker process on a store full of them
with one on an empty store, and waking them with draining as many no-op jobs in the same round. Exits with 1 if a floor
is missed.
"""

import argparse
import asyncio
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from measuring import check_floor, cpu_seconds, print_figure, ratios, resident_mb
from running import head

from holdfast import App, sleep
from holdfast.core.model import State
from holdfast.engines.contract import system_clock
from holdfast.engines.sqlite import SqliteEngine

DAY_MS = 86_400_000


class Clock:
    """The store's clock, which can be moved forward."""

    def __init__(self) -> None:
        self.ahead = 0

    def __call__(self) -> int:
        return system_clock() + self.ahead


def work(folder: Path, clock: Clock) -> tuple[App, dict[str, Any]]:
    """Return an App with a job that does nothing, and one that sleeps for a day first."""
    path = folder / "jobs.db"
    app = App(f"sqlite:///{path}", engine=SqliteEngine(path, clock))

    @app.job
    async def noop(n: int) -> int:
        return n

    @app.job
    async def nap(n: int) -> int:
        await sleep("1d")
        return n

    return app, {"noop": noop, "nap": nap}


async def until(app: App, state: State, count: int) -> float:
    """Return the seconds until this many jobs are in this state."""
    started = time.perf_counter()
    while (await app.engine.count()).get(("default", state), 0) < count:
        await asyncio.sleep(0.02)
    return time.perf_counter() - started


async def drained(folder: Path, kind: str, count: int) -> tuple[float, float, float]:
    """Measure a drain: the seconds to suspend this many jobs (if they sleep), the seconds from a worker's start until
    all are completed, and the processor seconds of that, which other programs on the machine disturb less.
    """
    clock, parking = Clock(), 0.0
    app, jobs = work(folder, clock)
    await jobs[kind].submit_many(range(count))
    if kind == "nap":
        async with app.worker(at_once=100):
            parking = await until(app, State.SCHEDULED, count)
        clock.ahead = DAY_MS + 60_000
    before = time.process_time()
    async with app.worker(at_once=100):
        waking = await until(app, State.COMPLETED, count)
        cpu = time.process_time() - before
    await app.close()
    return parking, waking, cpu


def all_at_once(rounds: int, count: int) -> bool:
    """Let all sleeping jobs become due at the same moment."""
    parked: list[float] = []
    woken: list[float] = []
    plain: list[float] = []
    cpu: list[float] = []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as name:
            for kind in ("noop", "nap"):
                (Path(name) / kind).mkdir()
            _, draining, plain_cpu = asyncio.run(drained(Path(name) / "noop", "noop", count))
            parking, waking, woken_cpu = asyncio.run(drained(Path(name) / "nap", "nap", count))
            parked.append(count / parking)
            woken.append(count / waking)
            plain.append(count / draining)
            cpu.append(plain_cpu / woken_cpu)
    fine = check_floor(f"{count:,} jobs woken at once : plain drain", ratios(woken, plain), 0.5, "times")
    print_figure("the same by processor time", cpu, "times")
    print_figure("jobs parked", parked, "/s")
    print_figure("jobs woken and completed", woken, "/s")
    print_figure("no-op jobs drained", plain, "/s")
    return fine


def cost(rounds: int, count: int, seconds: float) -> bool:
    """Compare a worker process on a store with this many sleeping jobs with one on an empty store."""
    shares: dict[str, list[float]] = {"idle": [], "parked": []}
    sizes: dict[str, list[float]] = {"idle": [], "parked": []}
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as name:
        for kind in shares:
            (Path(name) / kind).mkdir()
        asyncio.run(fill(Path(name) / "parked", count))
        for _ in range(rounds):
            for kind in shares:
                share, size = watched(Path(name) / kind, seconds)
                shares[kind].append(share)
                sizes[kind].append(size)
    more = [parked - idle for parked, idle in zip(shares["parked"], shares["idle"], strict=True)]
    grown = [parked - idle for parked, idle in zip(sizes["parked"], sizes["idle"], strict=True)]
    fine = check_floor(f"{count:,} parked jobs add, of a core", more, 0.5, "%", at_most=True)
    fine &= check_floor(f"{count:,} parked jobs add, memory", grown, 2, "MB", at_most=True)
    print_figure("idle worker, share of a core", shares["idle"], "%")
    print_figure("idle worker, memory", sizes["idle"], "MB")
    return fine


async def fill(folder: Path, count: int) -> None:
    app, jobs = work(folder, Clock())
    await jobs["nap"].submit_many(range(count))
    async with app.worker(at_once=100):
        await until(app, State.SCHEDULED, count)
    await app.close()


def watched(folder: Path, seconds: float) -> tuple[float, float]:
    """Return the share of a core, in percent, and the memory of an idle worker process."""
    worker = subprocess.Popen([sys.executable, __file__, "--serve", str(folder)], stdout=subprocess.PIPE)
    assert worker.stdout is not None
    worker.stdout.readline()
    time.sleep(2)
    before, began = cpu_seconds(worker.pid), time.perf_counter()
    time.sleep(seconds)
    share = (cpu_seconds(worker.pid) - before) / (time.perf_counter() - began) * 100
    size = resident_mb(worker.pid)
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    worker.stdout.close()
    return share, size


async def serve(folder: Path) -> None:
    """Run a worker in its own process, until it is killed."""
    app, _ = work(folder, Clock())
    async with app.worker(at_once=100):
        print("ready", flush=True)
        await asyncio.Event().wait()


def main() -> int:
    """Run all benchmarks; return 1 if a floor was missed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=10.0, help="for how long an idle worker is watched")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve is not None:
        asyncio.run(serve(options.serve))
        return 0
    print(head(options.rounds))
    fine = all_at_once(options.rounds, options.count)
    fine &= cost(options.rounds, options.count, options.seconds)
    print("\nall floors reached" if fine else "\na floor was missed")
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
