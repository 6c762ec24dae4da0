"""Unique and keyed submits beside plain ones: `python benchmarks/unique.py URL [--rounds 5] [--count 500]`.

Rounds are interleaved in one process, each on a store of its own, so what slows one down slows all of them. Prints how
many times as long as a plain submit each takes, one by one and in bulk (the median of the rounds), and fails above the
ceiling.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from measuring import check_floor

from holdfast import App, Unique
from holdfast.engines import engine_class

CEILING = 1.3
SAME = Unique(by=("args",), within="1h")


async def one_by_one(job: Any, count: int, options: Callable[[int], dict[str, Any]]) -> None:
    """Submit jobs one after the other."""
    for n in range(count):
        await job.submit(n, **options(n))


async def in_bulk(job: Any, count: int, options: Callable[[int], dict[str, Any]]) -> None:
    """Submit twenty times as many jobs in one call."""
    await job.submit_many(range(20 * count), **options(0))


KINDS: dict[str, tuple[Callable[..., Awaitable[None]], Callable[[int], dict[str, Any]]]] = {
    "plain": (one_by_one, lambda n: {}),
    "keyed": (one_by_one, lambda n: {"key": f"k-{n}"}),
    "unique": (one_by_one, lambda n: {"unique": SAME}),
    "plain in bulk": (in_bulk, lambda n: {}),
    "unique in bulk": (in_bulk, lambda n: {"unique": SAME}),
}


async def measure(url: str, kind: str, count: int) -> float:
    """Return how many seconds the submits take on an empty store."""
    engine = engine_class(url)
    with tempfile.TemporaryDirectory() as folder:
        scratch = engine.scratch(url, Path(folder))
        app = App(scratch)

        @app.job
        async def report(n: int) -> None: ...

        await app.open()
        submit, options = KINDS[kind]
        began = time.perf_counter()
        await submit(report, count, options)
        took = time.perf_counter() - began
        await app.close()
        await engine.scrap(scratch)
        return took


async def main(url: str, rounds: int, count: int) -> int:
    """Measure all kinds in turn, and print the ratios."""
    times: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for _ in range(rounds + 1):
        for kind in KINDS:
            times[kind].append(await measure(url, kind, count))
    fine = True
    for kind in KINDS:
        plain = "plain in bulk" if kind.endswith("bulk") else "plain"
        if kind != plain:
            seen = [mine / its for mine, its in zip(times[kind][1:], times[plain][1:], strict=True)]
            fine &= check_floor(f"{kind} : {plain}", seen, CEILING, "times", at_most=True)
    return 0 if fine else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--count", type=int, default=500)
    given = parser.parse_args()
    sys.exit(asyncio.run(main(given.url, given.rounds, given.count)))
