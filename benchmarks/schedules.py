"""What 10,000 schedules cost the leader between their ticks: the processor time of an idle worker, with and without.

    python benchmarks/schedules.py sqlite:///jobs.db
    python -m tests.support.postgres_server --safe python benchmarks/schedules.py {url}
    python -m tests.support.redis_server python benchmarks/schedules.py {url}

Each round runs an idle worker on an empty store, and one on a store with the schedules, in this process. Their ticks
are spread over a day, so a few fire in each round. What counts is how much more of a core the second one uses. It also
prints how long the worker needs to read all schedules when it starts to lead. Exits with 1 if a floor is missed.
"""

import argparse
import asyncio
import tempfile
import time
from pathlib import Path

from measuring import check_floor, print_figure

from holdfast import App
from holdfast.core.schedules import Definition, Template
from holdfast.engines import engine_class
from holdfast.jobs.schedules import declare_schedules

SHARE = 1.0
"""How many percent of a core the schedules may cost."""

SETTLE_SECONDS = 5.0
"""How long a worker may take to start, to lead and to read the schedules, before we measure."""


async def idle_share(url: str, schedules: int, seconds: float) -> tuple[float, float]:
    """Return how many percent of a core an idle worker uses, and the processor time until it is idle."""
    app = App(url)

    @app.job(name="bench.noop")
    async def noop() -> None: ...

    jobs = await app.open()
    job = Template(type="bench.noop")
    declared = {
        f"bench-{n:05}": Definition(job=job, cron=f"{n % 60} {n // 60 % 24} * * *", tz="Europe/Berlin")
        for n in range(schedules)
    }
    await declare_schedules(jobs.engine, declared, by="bench")
    app.registry.schedules.update(declared)
    began = time.process_time()
    async with app.worker():
        await asyncio.sleep(SETTLE_SECONDS)
        settled = time.process_time()
        await asyncio.sleep(seconds)
        share = (time.process_time() - settled) / seconds * 100
    await app.close()
    return share, settled - began


async def measure(url: str, folder: Path, schedules: int, rounds: int, seconds: float) -> bool:
    """Measure all rounds. Return whether the floor holds."""
    more, alone, starts = [], [], []
    for _ in range(rounds):
        shares = []
        for number in (0, schedules):
            kind = engine_class(url)
            store = kind.scratch(url, folder)
            share, start = await idle_share(store, number, seconds)
            shares.append(share)
            await kind.scrap(store)
        alone.append(shares[0])
        more.append(shares[1] - shares[0])
        starts.append(start)
    print_figure("an idle worker without schedules", alone, "% core")
    print_figure(f"processor time to start with {schedules:,} schedules", starts, "s")
    return check_floor(f"{schedules:,} schedules cost the leader", more, SHARE, "% core", at_most=True)


def main() -> None:
    """Measure on one store."""
    words = argparse.ArgumentParser(description="What schedules cost the leader.")
    words.add_argument("url")
    words.add_argument("--schedules", type=int, default=10_000)
    words.add_argument("--rounds", type=int, default=3)
    words.add_argument("--seconds", type=float, default=20.0)
    given = words.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        fine = asyncio.run(measure(given.url, Path(folder), given.schedules, given.rounds, given.seconds))
    raise SystemExit(0 if fine else 1)


if __name__ == "__main__":
    main()
