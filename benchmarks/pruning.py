"""Whether pruning keeps up with a worker that drains its queue, and how much it slows the drain.

    python benchmarks/pruning.py sqlite:////tmp/folder/jobs.db
    python benchmarks/pruning.py postgresql://… redis://…

Each URL names a server, or a SQLite file that doesn't exist yet; every round uses its own empty store. Rounds with and
without pruning take turns, in separate processes: jobs that are kept for a month are never pruned, jobs that are kept
for a second are pruned all the time.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from measuring import check_floor, print_figure, ratios

from holdfast import App
from holdfast.core.model import State
from holdfast.engines import engine_class

SUBMIT = 20_000
"""How many jobs are submitted at once."""

LEFT = (State.AVAILABLE, State.ACTIVE, State.SCHEDULED)
LOOK_SECONDS = 0.5

SHARE = 0.8
"""With pruning, a worker must still drain at this part of its rate."""

GROWTH = 1.5
"""The jobs kept in the last third of a round may exceed those kept in the second third by no more than this factor."""


async def drain(url: str, keep: str, jobs: int, seconds: float) -> dict[str, float]:
    """Drain this many jobs, or for this long. Return the rate, and how many ended jobs two thirds of it kept."""
    app = App(url)

    @app.job(name="quick", keep=keep)
    async def quick(n: int) -> int:
        return n

    for at in range(0, jobs, SUBMIT):
        await quick.submit_many(range(at, min(jobs, at + SUBMIT)))
    kept: list[tuple[float, int]] = []
    began, left = time.monotonic(), jobs
    async with app.worker(at_once=50):
        while left and time.monotonic() - began < seconds:
            await asyncio.sleep(LOOK_SECONDS)
            counts = await app.engine.count()
            left = sum(number for (_, state), number in counts.items() if state in LEFT)
            kept.append((time.monotonic() - began, sum(counts.values()) - left))
        took = time.monotonic() - began
    await app.close()
    second = [number for at, number in kept if took / 3 <= at < took * 2 / 3]
    last = [number for at, number in kept if at >= took * 2 / 3]
    return {
        "rate": (jobs - left) / took,
        "second": float(max(second, default=0)),
        "last": float(max(last, default=0)),
        "ended": float(jobs - left),
    }


def round_of(url: str, keep: str, jobs: int, seconds: float) -> dict[str, float]:
    """Run one round on an empty store, in its own process."""
    with tempfile.TemporaryDirectory() as folder:
        engine = engine_class(url)
        scratch = f"sqlite:///{folder}/jobs.db" if url.startswith("sqlite") else engine.scratch(url, Path(folder))
        words = [sys.executable, __file__, "--one", keep, "--jobs", str(jobs), "--seconds", str(seconds), scratch]
        try:
            done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=600)
        finally:
            if not url.startswith("sqlite"):
                asyncio.run(engine.scrap(scratch))
    found: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def measure(url: str, rounds: int, jobs: int, seconds: float) -> bool:
    """Run rounds without and with pruning, in turns. Return whether both floors are reached."""
    name = url.partition(":")[0]
    without, with_pruning = [], []
    for _ in range(rounds):
        without.append(round_of(url, "30d", jobs, seconds))
        with_pruning.append(round_of(url, "1s", jobs, seconds))
    print_figure(f"{name}: drained without pruning", [one["rate"] for one in without], "/s")
    print_figure(f"{name}: drained with pruning", [one["rate"] for one in with_pruning], "/s")
    print_figure(f"{name}: ended in a round with pruning", [one["ended"] for one in with_pruning], "jobs")
    print_figure(f"{name}: kept at most, in the last third of it", [one["last"] for one in with_pruning], "jobs")
    cost = ratios([one["rate"] for one in with_pruning], [one["rate"] for one in without])
    growth = [one["last"] / max(1.0, one["second"]) for one in with_pruning]
    fine = check_floor(f"{name}: the drain with pruning to the one without", cost, SHARE, "times")
    return check_floor(f"{name}: kept in the last third to the second", growth, GROWTH, "times", at_most=True) and fine


def main() -> int:
    """Measure every named store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("urls", nargs="+")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=120_000)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one is not None:
        print(json.dumps(asyncio.run(drain(asked.urls[0], asked.one, asked.jobs, asked.seconds))))
        return 0
    fine = [measure(url, asked.rounds, asked.jobs, asked.seconds) for url in asked.urls]
    return 0 if all(fine) else 1


if __name__ == "__main__":
    sys.exit(main())
