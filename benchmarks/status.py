"""What a status costs: of a job with many large steps, and of a page of jobs among a million; what counting costs.

    python benchmarks/status.py sqlite:///jobs.db
    python benchmarks/status.py sqlite:///jobs.db --before PATH
    python -m tests.support.postgres_server --safe python benchmarks/status.py {url} --before PATH
    python -m tests.support.redis_server python benchmarks/status.py {url} --before PATH

PATH is a checkout of a version to compare with: each round then records tiny steps with both versions, in processes
and stores of their own; the next round runs them in the other order. A ratio is one of each round, and medians count.
Exits 1 when a floor is missed.
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

from measuring import HERE, noted, ratios, told

from holdfast.core.keys import digest, new_id
from holdfast.core.model import Job, State, Step, StepState, Where
from holdfast.engines import engine_class, engine_for
from holdfast.engines.contract import Engine
from holdfast.jobs.service import Jobs

ROUND_SECONDS = 1_800.0
INSERTED_AT_ONCE = 2_000
RECORDED_AT_ONCE = 100
LARGE = 20_000
"""How many characters the result of a large step has."""

PAGE = 50
STEPS_EACH = 30
"""How many jobs a page has, and how many steps each of them."""

STAGES = ("analyse", "narrate", "draw", "animate", "assemble")
LOOKS = 60
AT_ONCE = 8
"""How many steps are recorded at the same time, where several are: as many as a map runs."""

STATUS_MS, PAGE_MS = 2.0, 20.0
COSTS = {"sqlite": 1.05, "postgres": 1.2}
"""What counting may cost: the time to record a tiny step, to that of the version before."""


def job_of(now: int, number: int, *, priority: int = 0) -> Job:
    """An available job; a higher number is a later id."""
    return Job(
        id=new_id(now, number << 20),
        type="bench.video",
        args="[1]",
        digest=digest("bench.video", "[1]"),
        created_at=now,
        state=State.AVAILABLE,
        run_at=now,
        priority=priority,
    )


def step_of(job: Job, nth: int, result: str) -> Step:
    """A step that is done, of the next stage in turn."""
    name = STAGES[nth % len(STAGES)]
    at = job.claimed_at or 0
    return Step(
        job=job.id,
        epoch=job.epoch,
        path=f"{name}#{nth}",
        name=name,
        state=StepState.DONE,
        result=result,
        started_at=at,
        finished_at=at,
    )


async def claimed(engine: Engine, number: int = 0) -> Job:
    """A job that runs."""
    await engine.insert([job_of(await engine.now(), number)])
    [job] = await engine.claim("w-1", ["default"], 1)
    return job


async def timed(look: Callable[[], Coroutine[Any, Any, Any]]) -> list[float]:
    """How many milliseconds each of some looks takes."""
    seen: list[float] = []
    for _ in range(LOOKS):
        started = time.perf_counter()
        await look()
        seen.append((time.perf_counter() - started) * 1_000)
    return seen


async def long_job(url: str, steps: int) -> dict[str, float]:
    """Milliseconds that the status of a job with so many large steps takes."""
    engine = engine_for(url)
    await engine.open()
    job, result = await claimed(engine), json.dumps("x" * LARGE)
    for start in range(0, steps, RECORDED_AT_ONCE):
        await engine.record([step_of(job, nth, result) for nth in range(start, start + RECORDED_AT_ONCE)])
    jobs = Jobs(engine)
    assert (await jobs.status(job.id)).steps == steps
    seen = await timed(lambda: jobs.status(job.id))
    await engine.close()
    return {"status": statistics.median(seen)}


async def page_of(url: str, count: int) -> dict[str, float]:
    """Milliseconds that the newest jobs among so many take, each with its sentence."""
    engine = engine_for(url)
    await engine.open()
    now = await engine.now()
    for start in range(0, count - PAGE, INSERTED_AT_ONCE):
        await engine.insert([job_of(now, start + n) for n in range(min(INSERTED_AT_ONCE, count - PAGE - start))])
    await engine.insert([job_of(now, count + n, priority=1) for n in range(PAGE)])
    for job in await engine.claim("w-1", ["default"], PAGE):
        await engine.record([step_of(job, nth, '"done"') for nth in range(STEPS_EACH)])
    jobs = Jobs(engine)

    async def look() -> list[str]:
        found = await engine.find(Where(newest_first=True), limit=PAGE)
        return [str(status) for status in await jobs.statuses(found)]

    sentences = await look()
    assert len(sentences) == PAGE
    assert all("assemble" in one for one in sentences), sentences[0]
    seen = await timed(look)
    await engine.close()
    return {"page": statistics.median(seen)}


async def record(url: str, steps: int) -> dict[str, float]:
    """Tiny steps a second that an engine records, one by one and several at once."""
    engine = engine_for(url)
    await engine.open()
    found: dict[str, float] = {}
    for number, at_once in enumerate((1, AT_ONCE)):
        job = await claimed(engine, number)

        async def run(lane: int, job: Job = job, at_once: int = at_once) -> None:
            for nth in range(lane, steps, at_once):
                await engine.record([step_of(job, nth, "1")])

        started = time.perf_counter()
        await asyncio.gather(*(run(lane) for lane in range(at_once)))
        found[f"{at_once} at once"] = steps / (time.perf_counter() - started)
    await engine.close()
    return found


def part(code: Path, url: str, *words: str | int) -> dict[str, float]:
    """Run one part in a process of its own, with the code of this checkout, on a store of its own."""
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


def compared(url: str, before: Path, rounds: int, steps: int) -> bool:
    """Recording with both versions, round by round."""
    sides = {"before": before, "after": HERE.parent}
    seen: dict[str, dict[str, list[float]]] = {}
    for nth in range(rounds):
        for side in sorted(sides, reverse=bool(nth % 2)):
            for what, rate in part(sides[side], url, "record", steps).items():
                seen.setdefault(what, {"before": [], "after": []})[side].append(rate)
    fine, most = True, COSTS.get(engine_class(url).guarantees.name)
    for what, rates in seen.items():
        noted(f"tiny steps, {what}", rates["after"], "/s")
        costs = ratios(rates["before"], rates["after"])
        if most is None:
            noted(f"the time of a tiny step, {what} : before", costs, "times")
        else:
            fine &= told(f"the time of a tiny step, {what} : before", costs, most, "times", at_most=True)
    return fine


def main(words: Sequence[str] | None = None) -> int:
    """Measure, or be one part of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("url")
    parser.add_argument("--before", type=Path, help="a checkout of the version to compare with")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tiny", type=int, default=2_000, help="how many tiny steps a round records")
    parser.add_argument("--steps", type=int, default=10_000, help="how many steps the long job has")
    parser.add_argument("--jobs", type=int, default=1_000_000, help="how many jobs the store of the page has")
    parser.add_argument("--part", nargs="+")
    given = parser.parse_args(words)
    if given.part:
        name, number = given.part
        parts = {"record": record, "long": long_job, "page": page_of}
        print(json.dumps(asyncio.run(parts[name](given.url, int(number)))))
        return 0
    fine = given.before is None or compared(given.url, given.before, given.rounds, given.tiny)
    if given.steps:
        what = f"status of a job with {given.steps:,} steps of {LARGE // 1_000} kB"
        fine &= told(what, [part(HERE.parent, given.url, "long", given.steps)["status"]], STATUS_MS, "ms", at_most=True)
    if given.jobs:
        what = f"a page of {PAGE} jobs with their sentences, of {given.jobs:,}"
        fine &= told(what, [part(HERE.parent, given.url, "page", given.jobs)["page"]], PAGE_MS, "ms", at_most=True)
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
