"""How exactly a rate limit is kept, and how much of it is used: ours beside DBOS queues and Celery's `rate_limit`.

    python benchmarks/rates.py sqlite:///jobs.db --peers .venv-peers/bin/python

Each library runs no-op jobs under N a second. Printed as parts of N: how many jobs started in the worst second (above 1
is a broken promise), and how many a second did in all. Exits 1 when ours started more than N, or used less than half.
"""

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from measuring import check_floor, peer, print_figure
from rate_peers import told

from holdfast import App
from holdfast.core.model import Event
from holdfast.engines import engine_class

RATE = 20
USED = 0.5
"""How much of the rate must be used: after a full bucket, only the rest of the rate refills."""

PEERS = ("dbos", "dbos-partitioned", "celery")


async def ours(url: str, count: int) -> dict[str, float]:
    """Jobs with a limit, by the store's clock."""
    app = App(url)

    @app.job(name="bench.call", queue="rates", limit=app.limit("calls", rate=f"{RATE}/s"))
    async def call(number: int) -> None: ...

    async with app.worker(queues=["rates"], at_once=RATE):
        runs = await call.submit_many([(number,) for number in range(count)])
        for run in runs:
            await run.result(timeout=600)
    entries = [entry for run in runs for entry in await app.engine.history(run.id)]
    await app.close()
    return told([entry.at / 1_000 for entry in entries if entry.event == Event.CLAIM])


def main() -> int:
    """Measure; 1 if a floor was missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("url")
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--peers", metavar="PYTHON", help="an interpreter with the other libraries")
    given = parser.parse_args()
    engine = engine_class(given.url)
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        store = engine.scratch(given.url, Path(folder))
        try:
            found = asyncio.run(ours(store, given.jobs))
        finally:
            asyncio.run(engine.scrap(store))
        fine = check_floor(f"holdfast, {RATE}/s: worst second", [found["worst"] / RATE], 1.0, "N", at_most=True)
        fine &= check_floor(f"holdfast, {RATE}/s: in all", [found["rate"] / RATE], USED, "N")
        for kind in PEERS if given.peers else ():
            if there := peer(given.peers, "rate_peers.py", kind, given.jobs, RATE, folder):
                print_figure(f"{kind}, {RATE}/s: worst second", [there["worst"] / RATE], "N")
                print_figure(f"{kind}, {RATE}/s: in all", [there["rate"] / RATE], "N")
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
