"""How long flows take: a fan-out of no-op children with its join, and a chain. On SQLite beside DBOS, on Redis beside
Celery.

    python benchmarks/flows.py sqlite:///jobs.db --peers .venv-peers/bin/python
    python benchmarks/flows.py redis://… --peers .venv-peers/bin/python
    python benchmarks/flows.py postgresql://…

Default settings: one worker of eight slots in the submitting process. The fan-out is timed from `submit` to `result`,
as a chord and as a job's `map`. Exits 1 if a bound is missed.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from measuring import check_floor, peer, print_figure, ratios

from holdfast import App, chain, chord, group
from holdfast.engines import engine_class

CHILDREN, MANY, LINKS = 1_000, 10_000, 100
BOUNDS = {"sqlite": 0.5, "redis": 0.5, "postgresql": 0.7}
"""The longest fan-out of 1,000, in seconds."""

TIMES = 12
"""How many times as long 10,000 children may take."""

AHEAD = {"sqlite": ("dbos", 5, 5), "redis": ("celery", 3, 3)}
"""The peer on each kind of store, and how many times faster ours must be: the fan-out, and the chain."""


async def ours(url: str) -> dict[str, float]:
    """One round: seconds for each kind."""
    app = App(url)

    @app.job
    async def leaf(number: int) -> int:
        return number

    @app.job
    async def count(found: list[int]) -> int:
        return len(found)

    @app.job
    async def parent(number: int) -> int:
        return len(await leaf.map(range(number)))

    @app.job
    async def link(number: int) -> int:
        return number + 1

    async def fan(number: int) -> None:
        run = await chord(group(leaf.s(one) for one in range(number)), count.s()).submit()
        assert await run.result(timeout=600) == number

    async def mapped() -> None:
        assert await (await parent.submit(CHILDREN)).result(timeout=600) == CHILDREN

    async def linked() -> None:
        run = await chain(link.s(0), *[link.s() for _ in range(LINKS - 1)]).submit()
        assert await run.result(timeout=600) == LINKS

    async with app.worker():
        await fan(10)
        return {
            "fan": await seconds(lambda: fan(CHILDREN)),
            "map": await seconds(mapped),
            "chain": await seconds(linked),
            "many": await seconds(lambda: fan(MANY)),
        }


async def seconds(work: Callable[[], Awaitable[None]]) -> float:
    """Return how long this takes."""
    started = time.perf_counter()
    await work()
    return time.perf_counter() - started


def one_round(url: str) -> dict[str, float]:
    """Measure on a store of its own."""
    engine = engine_class(url)
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        store = engine.scratch(url, Path(folder))
        try:
            return asyncio.run(ours(store))
        finally:
            asyncio.run(engine.scrap(store))


def beside(python: str, name: str, url: str) -> dict[str, float]:
    """Measure a peer: on the same Redis, or in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        return peer(python, "flow_peers.py", name, CHILDREN, LINKS, url if name == "celery" else folder)


def main() -> int:
    """Measure; 1 if a bound was missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("url")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peers", metavar="PYTHON", help="an interpreter with the other libraries")
    given = parser.parse_args()
    kind = given.url.partition(":")[0]
    rounds = [one_round(given.url) for _ in range(given.rounds)]
    fans, chains = [one["fan"] for one in rounds], [one["chain"] for one in rounds]
    bound = BOUNDS.get(kind, BOUNDS["sqlite"])
    fine = check_floor(f"chord of {CHILDREN:,} no-op children", fans, bound, "s", at_most=True)
    fine &= check_floor(f"map of {CHILDREN:,} no-op children", [one["map"] for one in rounds], bound, "s", at_most=True)
    grows = [one["many"] / one["fan"] for one in rounds]
    fine &= check_floor(f"chord of {MANY:,} children, against {CHILDREN:,}", grows, TIMES, "times", at_most=True)
    print_figure(f"chain of {LINKS}", chains, "s")
    if given.peers and kind in AHEAD:
        name, fan_ahead, chain_ahead = AHEAD[kind]
        theirs = [beside(given.peers, name, given.url) for _ in range(given.rounds)]
        if all(theirs):
            fan, chained = ([one[what] for one in theirs] for what in ("fan", "chain"))
            fine &= check_floor(f"{name}: fan-out, ours is faster", ratios(fan, fans), fan_ahead, "times")
            fine &= check_floor(f"{name}: chain, ours is faster", ratios(chained, chains), chain_ahead, "times")
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
