"""The cost of shared limits to an engine: a drain under a limit, and jobs without limits behind waiting ones.

    python benchmarks/shared_limits.py sqlite:///jobs.db
    python -m tests.support.postgres_server --safe python benchmarks/shared_limits.py {url}
    python -m tests.support.redis_server python benchmarks/shared_limits.py {url}

The first part drains jobs that all need a permit of one key, two at once, with a claim and a commit for each turn; and
then as many jobs without limits, with two slots. The second part drains jobs without limits, alone and behind waiting
jobs that need a permit that nobody gives back. The two sides take short turns, and each turn has a ratio, so that what
slows the machine down slows both. Medians count. Exits 1 when a floor is missed.

`--steps` measures steps instead: a job on a worker maps a step over items, a hundred at once, under a limit that is
never reached (by number, by rate), and without one.
"""

import argparse
import asyncio
import secrets
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from measuring import check_floor, print_figure, ratios

from holdfast import App, Limit, step
from holdfast.core.keys import digest, new_id
from holdfast.core.lifecycle import decide
from holdfast.core.model import Event, Job, Options, State, Use
from holdfast.core.shared_limits import LIMIT
from holdfast.engines import engine_class, engine_for
from holdfast.engines.contract import Engine

SLOTS = 2
TURN = 250
"""How many jobs one side drains before it is the other side's turn."""

INSERTED_AT_ONCE = 1_000
LIMITED = Options(limits=(Use("api"),))
CLOSED = Options(limits=(Use("closed"),))
LIMITED_TO_FREE, BEHIND_TO_ALONE = 0.6, 0.8
"""The floors. A delay of a quarter is four fifths of the rate."""

STEPS_AT_ONCE, STEPS_ROUNDS = 100, 5
STEPS_TO_FREE, RATES_TO_FREE = 0.6, 0.7
"""The floors of steps under a limit by number, and by rate alone."""


async def fill(engine: Engine, queue: str, number: int, options: Options) -> None:
    """Insert so many available jobs."""
    now = await engine.now()
    for start in range(0, number, INSERTED_AT_ONCE):
        jobs = [
            Job(
                id=new_id(now, secrets.randbits(74)),
                type="bench.noop",
                queue=queue,
                args="[1]",
                digest=digest("bench.noop", "[1]"),
                created_at=now,
                options=options,
                state=State.AVAILABLE,
                run_at=now,
            )
            for _ in range(min(INSERTED_AT_ONCE, number - start))
        ]
        await engine.insert(jobs)


async def drain(engine: Engine, queue: str, number: int, slots: int) -> float:
    """Claim and complete so many jobs, as many at once as there are slots; jobs per second."""
    done, started = 0, time.perf_counter()
    while done < number:
        claimed = await engine.claim("bench", [queue], min(slots, number - done), ["bench.noop"])
        assert claimed, f"nothing to claim in {queue} after {done} jobs"
        now = await engine.now()
        await engine.commit([decide(job, Event.COMPLETE, now, by="bench", result="1") for job in claimed])
        done += len(claimed)
    return number / (time.perf_counter() - started)


async def by_turns(engine: Engine, queues: Sequence[str], number: int, slots: int) -> list[list[float]]:
    """Drain so many jobs of each queue by turns; the rates of each."""
    seen: list[list[float]] = [[] for _ in queues]
    for nth in range(number // TURN):
        sides = list(zip(queues, seen, strict=True))
        for queue, rates in sides if nth % 2 else sides[::-1]:
            rates.append(await drain(engine, queue, TURN, slots))
    return seen


async def measure(url: str, jobs: int, waiting: int) -> bool:
    """Both parts."""
    engine = engine_for(url)
    await engine.open()
    await engine.put_record(LIMIT + "api", f'{{"at_once":{SLOTS}}}')
    await fill(engine, "limited", jobs, LIMITED)
    await fill(engine, "free", jobs, Options())
    limited, free = await by_turns(engine, ("limited", "free"), jobs, SLOTS)
    print_figure(f"{jobs:,} jobs under at_once={SLOTS}", limited, "/s")
    fine = check_floor(f"drain under at_once={SLOTS} : {SLOTS} slots", ratios(limited, free), LIMITED_TO_FREE, "times")

    await engine.put_record(LIMIT + "closed", '{"at_once":1}')
    await fill(engine, "behind", waiting, CLOSED)
    assert len(await engine.claim("bench", ["behind"], 9)) == 1, "one of them holds the permit, and doesn't end"
    await fill(engine, "behind", 1_000, Options())
    await fill(engine, "alone", 1_000, Options())
    behind, alone = await by_turns(engine, ("behind", "alone"), 1_000, 10)
    what = f"1,000 jobs behind {waiting:,} that wait : alone"
    fine &= check_floor(what, ratios(behind, alone), BEHIND_TO_ALONE, "times")
    await engine.close()
    return fine


def make_job(app: App, name: str, limit: Limit | None) -> Any:
    """A job that maps a step over so many items, under a limit or without."""

    @step(name=f"{name}_step", limit=limit)
    async def work(item: int) -> int:
        return item

    @app.job(name=f"bench.{name}", queue="steps")
    async def run(items: int) -> float:
        started = time.perf_counter()
        await work.map(range(items), at_once=STEPS_AT_ONCE)
        return items / (time.perf_counter() - started)

    return run


async def measure_steps(url: str, items: int) -> bool:
    """Steps under a limit that is never reached."""
    app = App(url)
    roomy, quick = app.limit("roomy", at_once=10 * STEPS_AT_ONCE), app.limit("quick", rate="1000000/s")
    limits = {"free": None, "at_once": roomy, "rate": quick}
    seen: dict[str, list[float]] = {name: [] for name in limits}
    jobs = {name: make_job(app, name, limit) for name, limit in limits.items()}
    async with app.worker(queues=["steps"], at_once=1):
        for nth in range(STEPS_ROUNDS):
            for name in seen if nth % 2 else reversed(seen):
                run = await jobs[name].submit(items)
                seen[name].append(await run.result(timeout=600))
    await app.close()
    print_figure(f"{items:,} steps, {STEPS_AT_ONCE} at once, without a limit", seen["free"], "/s")
    fine = check_floor("steps under at_once= : without", ratios(seen["at_once"], seen["free"]), STEPS_TO_FREE, "times")
    fine &= check_floor("steps under rate= : without", ratios(seen["rate"], seen["free"]), RATES_TO_FREE, "times")
    return fine


def main() -> int:
    """Measure; 1 if a floor was missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("url")
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--waiting", type=int, default=10_000)
    parser.add_argument("--steps", type=int, default=0, metavar="ITEMS", help="measure so many steps instead")
    given = parser.parse_args()
    engine = engine_class(given.url)
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        store = engine.scratch(given.url, Path(folder))
        try:
            work = measure_steps(store, given.steps) if given.steps else measure(store, given.jobs, given.waiting)
            return 0 if asyncio.run(work) else 1
        finally:
            asyncio.run(engine.scrap(store))


if __name__ == "__main__":
    sys.exit(main())
