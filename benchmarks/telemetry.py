"""What metrics cost: the processor time of a drain with and without them, on SQLite.

    python benchmarks/telemetry.py

With metrics, counters observe the engine and a listener is scraped once a second, 15 times as often as usual. Rounds
are interleaved, each in a process of its own, and the median ratio counts. Exits with 1 if it is over the ceiling.
"""

import argparse
import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

from measuring import check_floor, print_figure, ratios

from holdfast import App
from holdfast.cli.metrics import metrics_of

CEILING = 3.0
SCRAPE_SECONDS = 1.0


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        found: int = one.getsockname()[1]
        return found


def scrape(port: int, ended: threading.Event, own: list[float]) -> None:
    """Read the metrics once a second. Note our own processor time, which Prometheus would spend elsewhere."""
    while not ended.wait(SCRAPE_SECONDS):
        with contextlib.suppress(OSError):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10).read()
        own[0] = time.thread_time()


async def drain(jobs: int, port: int | None) -> float:
    """Return the processor seconds of a drain, the scraper's left out."""
    with tempfile.TemporaryDirectory() as folder:
        app = App(f"sqlite:///{folder}/jobs.db")

        @app.job
        async def noop(n: int) -> int:
            return n

        runs = await asyncio.gather(*(noop.submit(n) for n in range(jobs)))
        ended, own = threading.Event(), [0.0]
        began = time.process_time()
        with contextlib.nullcontext() if port is None else metrics_of(app, "127.0.0.1", port):
            if port is not None:
                threading.Thread(target=scrape, args=(port, ended, own), daemon=True).start()
            async with app.worker(at_once=100):
                await asyncio.gather(*(run.result() for run in runs))
        taken = time.process_time() - began - own[0]
        ended.set()
        await app.close()
    return taken


def one_round(jobs: int, *, counted: bool) -> float:
    """Measure one drain in a process of its own."""
    words = ["--jobs", str(jobs), "--one", "with" if counted else "without"]
    done = subprocess.run(
        [sys.executable, __file__, *words],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
        cwd=Path(__file__).parent,
    )
    return float(done.stdout.split()[-1])


def main() -> None:
    """Measure interleaved rounds, and print the cost in percent."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--one", choices=["with", "without"])
    given = parser.parse_args()
    if given.one:
        print(asyncio.run(drain(given.jobs, free_port() if given.one == "with" else None)))
        return
    plain: list[float] = []
    counted: list[float] = []
    for number in range(given.rounds):
        for is_counted in (False, True) if number % 2 else (True, False):
            (counted if is_counted else plain).append(one_round(given.jobs, counted=is_counted))
    print(f"load {os.getloadavg()[0]:.1f}")
    print_figure(f"drain of {given.jobs:,} jobs, processor time", plain, "s")
    print_figure("the same with metrics", counted, "s")
    cost = [(one - 1) * 100 for one in ratios(counted, plain)]
    sys.exit(not check_floor("what metrics cost", cost, CEILING, "%", at_most=True))


if __name__ == "__main__":
    main()
