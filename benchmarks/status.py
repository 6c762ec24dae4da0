"""The cost of a status: of a job with many large steps, and of a page of jobs among a million; and of counting steps.

    python benchmarks/status.py sqlite:///jobs.db
    python benchmarks/status.py sqlite:///jobs.db --before PATH
    python -m tests.support.postgres_server --safe python benchmarks/status.py {url} --before PATH
    python -m tests.support.redis_server python benchmarks/status.py {url} --before PATH

PATH is a checkout of a version to compare with: two processes then record tiny steps, each with one version and its own
store, in short turns; the next turn swaps their order. The fastest quarter of each one's turns is compared, because
other programs have disturbed it least. Exits with 1 if a floor is missed.
"""

import argparse
import asyncio
import itertools
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
"""How many jobs a page has, and how many steps each of them has."""

OWN_CLOCK = "this machine's"
"""The clock of engines without a server."""

STAGES = ("analyse", "narrate", "draw", "animate", "assemble")
LOOKS = 60
AT_ONCE = 8
"""How many steps are recorded at the same time, if several are: as many as a map runs."""

STATUS_MS, PAGE_MS = 2.0, 20.0
"""How many milliseconds a status may take without a server, and a page of jobs with their sentences."""

COSTS = {"sqlite": 1.05, "postgres": 1.2}
"""What counting may cost: the time to record a tiny step, relative to the previous version."""


def job_of(now: int, number: int, *, priority: int = 0) -> Job:
    """Make an available job; a higher number gives a later id."""
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


def step_of(job: Job, nth: int, result: str, name: str = "") -> Step:
    """Make a step that is done; without a name, of the next stage in turn."""
    name = name or STAGES[nth % len(STAGES)]
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
    """Return a running job."""
    await engine.insert([job_of(await engine.now(), number)])
    [job] = await engine.claim("w-1", ["default"], 1)
    return job


async def timed(look: Callable[[], Coroutine[Any, Any, Any]]) -> list[float]:
    """Return the milliseconds of each of several calls."""
    seen: list[float] = []
    for _ in range(LOOKS):
        started = time.perf_counter()
        await look()
        seen.append((time.perf_counter() - started) * 1_000)
    return seen


async def long_job(url: str, steps: int) -> dict[str, float]:
    """Return the milliseconds that the status of a job with this many large steps takes."""
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
    """Return the milliseconds that the newest jobs among this many take, each with its sentence."""
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


async def record(url: str, steps: int) -> None:
    """Record this many tiny steps whenever a line says how many at once, and print the seconds it took."""
    engine = engine_for(url)
    await engine.open()
    for number in itertools.count():
        line = await asyncio.to_thread(sys.stdin.readline)
        if not line:
            break
        at_once, job = int(line), await claimed(engine, number)

        async def run(lane: int, job: Job = job, at_once: int = at_once) -> None:
            for nth in range(lane, steps, at_once):
                await engine.record([step_of(job, nth, "1", "draw")])

        started = time.perf_counter()
        await asyncio.gather(*(run(lane) for lane in range(at_once)))
        print(time.perf_counter() - started, flush=True)
    await engine.close()


class Side:
    """One version of the code that records, in its own process and store."""

    def __init__(self, code: Path, url: str, folder: Path, steps: int) -> None:
        self._engine = engine_class(url)
        folder.mkdir()
        self._store = self._engine.scratch(url, folder)
        self._process = subprocess.Popen(
            [sys.executable, __file__, self._store, "--part", "record", str(steps)],
            env=env_of(code), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def seconds(self, at_once: int) -> float:
        """Record one job's steps."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{at_once}\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())

    def close(self) -> None:
        """End the process, and remove the store."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(ROUND_SECONDS)
        asyncio.run(self._engine.scrap(self._store))


def env_of(code: Path) -> dict[str, str]:
    """Return the environment of a process that runs this checkout's code."""
    return os.environ | {"PYTHONPATH": f"{code / 'src'}{os.pathsep}{HERE}"}


def part(code: Path, url: str, *words: str | int) -> dict[str, float]:
    """Run one part in its own process, with the code of this checkout, on its own store."""
    engine = engine_class(url)
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        store = engine.scratch(url, Path(folder))
        try:
            command = [sys.executable, __file__, store, "--part", *map(str, words)]
            done = subprocess.run(
                command, env=env_of(code), capture_output=True, text=True, timeout=ROUND_SECONDS, check=False
            )
            if done.returncode:
                raise SystemExit(done.stderr)
            found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
            return found
        finally:
            asyncio.run(engine.scrap(store))


def compared(url: str, before: Path, rounds: int, steps: int) -> bool:
    """Record with both versions, in short turns: what slows one of them down for a while slows both."""
    fine, most = True, COSTS.get(engine_class(url).guarantees.name)
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        sides = {
            name: Side(code, url, Path(folder) / name, steps)
            for name, code in (("before", before), ("after", HERE.parent))
        }
        for at_once in (1, AT_ONCE):
            seen: dict[str, list[float]] = {"before": [], "after": []}
            for nth in range(-1, rounds):  # the first turn warms up
                for name in sorted(sides, reverse=bool(nth % 2)):
                    seen[name].append(sides[name].seconds(at_once))
            quick = {name: sorted(times[1:])[: max(1, rounds // 4)] for name, times in seen.items()}
            print_figure(f"tiny steps, {at_once} at once", [steps / one for one in quick["after"]], "/s")
            costs = ratios(quick["after"], quick["before"])
            what = f"the time of tiny steps, {at_once} at once : before"
            if most is None:
                print_figure(what, costs, "times")
            else:
                fine &= check_floor(what, costs, most, "times", at_most=True)
        for side in sides.values():
            side.close()
    return fine


def main(words: Sequence[str] | None = None) -> int:
    """Measure, or run one part."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("url")
    parser.add_argument("--before", type=Path, help="a checkout of the version to compare with")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--tiny", type=int, default=200, help="how many tiny steps one turn records")
    parser.add_argument("--steps", type=int, default=10_000, help="how many steps the long job has")
    parser.add_argument("--jobs", type=int, default=1_000_000, help="how many jobs the store of the page has")
    parser.add_argument("--part", nargs="+")
    given = parser.parse_args(words)
    if given.part:
        name, number = given.part
        if name == "record":
            asyncio.run(record(given.url, int(number)))
        else:
            measure = {"long": long_job, "page": page_of}[name]
            print(json.dumps(asyncio.run(measure(given.url, int(number)))))
        return 0
    fine = given.before is None or compared(given.url, given.before, given.rounds, given.tiny)
    if given.steps:
        what = f"status of a job with {given.steps:,} steps of {LARGE // 1_000} kB"
        seen = [part(HERE.parent, given.url, "long", given.steps)["status"]]
        if engine_class(given.url).guarantees.clock == OWN_CLOCK:
            fine &= check_floor(what, seen, STATUS_MS, "ms", at_most=True)
        else:  # each of its reads is a round trip to the server
            print_figure(what, seen, "ms")
    if given.jobs:
        what = f"a page of {PAGE} jobs with their sentences, of {given.jobs:,}"
        fine &= check_floor(
            what, [part(HERE.parent, given.url, "page", given.jobs)["page"]], PAGE_MS, "ms", at_most=True
        )
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
