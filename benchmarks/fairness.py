"""The cost of fair keys to a claim: with 10,000 keys against one, and a queue without keys beside both.

    python benchmarks/fairness.py sqlite:///jobs.db
    python -m tests.support.postgres_server --safe python benchmarks/fairness.py {url}
    python -m tests.support.redis_server python benchmarks/fairness.py {url}

Whole claims through the engine's contract, of many jobs and of one. The sides take short turns, and each turn has a
ratio, so that what slows the machine down slows all. Medians count. Exits 1 when a claim with
many keys takes more than 1.3 times as long as one with a single key.
"""

import argparse
import asyncio
import secrets
import sys
import tempfile
import time
from pathlib import Path

from measuring import check_floor, print_figure, ratios

from holdfast.core.keys import digest, new_id
from holdfast.core.model import Job, Options, State
from holdfast.engines import engine_class, engine_for
from holdfast.engines.contract import Engine

MANY_TO_ONE = 1.3
"""How many times as long as a claim with one key a claim with many may take."""

QUEUES = ("many", "one", "plain")


async def fill(engine: Engine, queue: str, number: int, keys: int) -> None:
    """Insert so many available jobs with so many fair keys; without any if it is 0."""
    now = await engine.now()
    for start in range(0, number, engine.insert_at_once):
        jobs = [
            Job(
                id=new_id(now, secrets.randbits(74)),
                type="bench.noop",
                queue=queue,
                args="[1]",
                digest=digest("bench.noop", "[1]"),
                created_at=now,
                options=Options(fair=f"customer-{nth % keys:06}") if keys else Options(),
                state=State.AVAILABLE,
                run_at=now,
            )
            for nth in range(start, min(number, start + engine.insert_at_once))
        ]
        await engine.insert(jobs)


async def claim_rates(engine: Engine, size: int, claims: int) -> dict[str, list[float]]:
    """Claim of each queue by turns; how many claims a second."""
    rates: dict[str, list[float]] = {queue: [] for queue in QUEUES}
    for nth in range(claims):
        for queue in QUEUES if nth % 2 else QUEUES[::-1]:
            began = time.perf_counter()
            claimed = await engine.claim("bench", [queue], size, ["bench.noop"])
            rates[queue].append(1 / (time.perf_counter() - began))
            assert len(claimed) == size, f"{queue}: {len(claimed)} jobs"
    return rates


async def measure(url: str, keys: int, claims: int) -> bool:
    """Print the ratios; whether the floor holds."""
    engine = engine_for(url)
    await engine.open()
    sound = True
    try:
        for size in (100, 1):
            number = max(claims * size, keys)
            for queue, distinct in (("many", keys), ("one", 1), ("plain", 0)):
                await fill(engine, queue, number, distinct)
            rates = await claim_rates(engine, size, claims)
            times = {queue: [1_000 / rate for rate in rates[queue]] for queue in QUEUES}
            print_figure(f"claims of {size}: {keys:,} fair keys", times["many"], "ms")
            print_figure(f"claims of {size}: one fair key : none", ratios(times["one"], times["plain"]), "times")
            what = f"claims of {size}: {keys:,} fair keys : one"
            sound &= check_floor(what, ratios(times["many"], times["one"]), MANY_TO_ONE, "times", at_most=True)
    finally:
        await engine.close()
    return sound


def main() -> int:
    """Measure one engine."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--keys", type=int, default=10_000)
    parser.add_argument("--claims", type=int, default=100)
    given = parser.parse_args()
    engine = engine_class(given.url)
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        store = engine.scratch(given.url, Path(folder))
        try:
            return 0 if asyncio.run(measure(store, given.keys, given.claims)) else 1
        finally:
            asyncio.run(engine.scrap(store))


if __name__ == "__main__":
    sys.exit(main())
