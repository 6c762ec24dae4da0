"""The cost of claims by type: with many types, behind a million jobs of other types, and against another version.

    python benchmarks/known_types.py sqlite:///jobs.db
    python -m tests.support.postgres_server --safe python benchmarks/known_types.py {url} --before PATH
    python -m tests.support.redis_server python benchmarks/known_types.py {url} --before PATH

Without --before, each round drains jobs of one type and of eight. PATH is a checkout of a version to compare with: then
each round runs both versions. The compared parts run one after the other, each in its own process and store; the next
round swaps their order. A ratio compares two parts of one round, and medians count. Exits with 1 if a floor is missed.
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

from measuring import HERE, check_floor, print_figure, ratios

from holdfast import App
from holdfast.core.keys import digest, new_id
from holdfast.core.model import Job, State
from holdfast.engines import engine_class, engine_for

ROUND_SECONDS = 1_800.0
MIX = 25
"""How many jobs of one type come in a row, if types are mixed."""

TYPES = 8
INSERTED_AT_ONCE = 2_000
CLAIMS, LIMITS = 60, (1, 100)
"""How many claims of each kind are measured, and how many jobs they ask for."""

FLOORS = {"drain, one type": 0.95, "drain, eight types": 0.88, "bulk insert": 0.88}
MIXED = 0.5
"""Eight types must drain at no less than this part of the rate of one type."""

SLOWER = 2.0


def app_at(url: str, types: int) -> tuple[App, list[Any]]:
    """Return an App with this many types of no-op jobs."""
    app = App(url)

    async def noop(n: int) -> None:
        return None

    return app, [app.job(name=f"bench.noop-{nth}")(noop) for nth in range(types)]


async def drain(url: str, types: int, count: int) -> dict[str, float]:
    """Submit this many no-op jobs in bulk, and drain them with one worker: jobs per second of both."""
    app, jobs = app_at(url, types)
    await app.open()
    started = time.perf_counter()
    if types == 1:
        await jobs[0].submit_many(range(count))
    else:
        for start in range(0, count, MIX * types):
            for job in jobs:
                await job.submit_many(range(start, start + MIX))
    bulk = count / (time.perf_counter() - started)
    async with app.worker(at_once=100):
        started = time.perf_counter()
        while (await app.engine.count()).get(("default", State.COMPLETED), 0) < count:
            await asyncio.sleep(0.02)
        drained = count / (time.perf_counter() - started)
    await app.close()
    return {"bulk": bulk, "drain": drained}


def crowd(queue: str, types: Sequence[str], number: int, start: int, now: int) -> list[Job]:
    """Make this many available jobs, of these types in turn, numbered from `start`."""
    return [
        Job(
            id=new_id(now, (start + n) << 20),
            type=types[n % len(types)],
            queue=queue,
            args="[1]",
            digest=digest(types[n % len(types)], "[1]"),
            created_at=now,
            state=State.AVAILABLE,
            run_at=now,
        )
        for n in range(number)
    ]


async def behind(url: str, foreign: int) -> dict[str, float]:
    """Return the milliseconds of a claim in an otherwise empty queue, and behind this many jobs of another type."""
    engine = engine_for(url)
    await engine.open()
    now, made = await engine.now(), 0
    known = [f"bench.known-{nth}" for nth in range(TYPES)]
    wanted = CLAIMS * sum(LIMITS)
    plan = (("crowded", ["bench.foreign"], foreign), ("crowded", known, wanted), ("alone", known, wanted))
    for queue, types, number in plan:
        for _ in range(0, number, INSERTED_AT_ONCE):
            await engine.insert(crowd(queue, types, min(number, INSERTED_AT_ONCE), made, now))
            made += INSERTED_AT_ONCE
    seen: dict[str, list[float]] = {f"{queue} {limit}": [] for limit in LIMITS for queue in ("alone", "crowded")}
    for _ in range(CLAIMS):
        for name, times in seen.items():
            queue, limit = name.split()
            started = time.perf_counter()
            came = await engine.claim("w-1", [queue], int(limit), known)
            times.append((time.perf_counter() - started) * 1_000)
            assert len(came) == int(limit), f"the claim returned {len(came)} jobs"
    await engine.close()
    return {name: statistics.median(times) for name, times in seen.items()}


def part(code: Path, url: str, *words: str | int) -> dict[str, float]:
    """Run one part in its own process, with the code of this checkout, on its own store."""
    engine = engine_class(url)
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        store = engine.scratch(url, Path(folder))
        try:
            command = [sys.executable, __file__, store, "--part", *map(str, words)]
            env = os.environ | {"PYTHONPATH": f"{code / 'src'}{os.pathsep}{HERE}"}
            done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=ROUND_SECONDS, check=False)
            if done.returncode:
                raise SystemExit(done.stderr)
            found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
            return found
        finally:
            asyncio.run(engine.scrap(store))


def compared(url: str, before: Path, rounds: int, count: int) -> bool:
    """Compare both versions, round by round."""
    after = HERE.parent
    seen: dict[str, dict[str, list[float]]] = {what: {"before": [], "after": []} for what in FLOORS}
    for nth in range(rounds):
        sides = {"before": before, "after": after}
        for side in sorted(sides, reverse=bool(nth % 2)):
            one = part(sides[side], url, "drain", 1, count)
            mixed = part(sides[side], url, "drain", TYPES, count)
            seen["drain, one type"][side].append(one["drain"])
            seen["drain, eight types"][side].append(mixed["drain"])
            seen["bulk insert"][side].append(one["bulk"])
    fine = True
    for what, sides_seen in seen.items():
        print_figure(f"{what}, now", sides_seen["after"], "/s")
        fine &= check_floor(
            f"{what} : before", ratios(sides_seen["after"], sides_seen["before"]), FLOORS[what], "times"
        )
    return fine


def mixed(url: str, rounds: int, count: int) -> bool:
    """Compare drains of one type and of eight, round by round."""
    seen: dict[int, list[float]] = {1: [], TYPES: []}
    for nth in range(rounds):
        for types in sorted(seen, reverse=bool(nth % 2)):
            seen[types].append(part(HERE.parent, url, "drain", types, count)["drain"])
    for types, rates in seen.items():
        print_figure(f"drain, {types} type{'s' if types > 1 else ''}", rates, "/s")
    return check_floor(f"drain, {TYPES} types : one type", ratios(seen[TYPES], seen[1]), MIXED, "times")


def crowded(url: str, foreign: int) -> bool:
    """Measure claims of one job and of many, behind jobs of other types."""
    fine, found = True, part(HERE.parent, url, "behind", foreign)
    for limit in LIMITS:
        alone, behind_them = found[f"alone {limit}"], found[f"crowded {limit}"]
        print_figure(f"a claim of {limit}, {TYPES} types, alone", [alone], "ms")
        what = f"a claim of {limit} behind {foreign:,} foreign jobs : alone"
        fine &= check_floor(what, [behind_them / alone], SLOWER, "times", at_most=True)
    return fine


def main(words: Sequence[str] | None = None) -> int:
    """Measure, or run one part."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("url")
    parser.add_argument("--before", type=Path, help="a checkout of the version to compare with")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=8_000)
    parser.add_argument("--foreign", type=int, default=1_000_000)
    parser.add_argument("--part", nargs="+")
    given = parser.parse_args(words)
    if given.part:
        name, *numbers = given.part
        measures: dict[str, Callable[..., Coroutine[Any, Any, dict[str, float]]]] = {"drain": drain, "behind": behind}
        print(json.dumps(asyncio.run(measures[name](given.url, *map(int, numbers)))))
        return 0
    if given.before is None:
        fine = mixed(given.url, given.rounds, given.jobs)
    else:
        fine = compared(given.url, given.before, given.rounds, given.jobs)
    if given.foreign:
        fine &= crowded(given.url, given.foreign)
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
