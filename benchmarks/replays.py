"""How fast second chances are, on SQLite: a replay of a job with many recorded steps, and plans of replays.

    python benchmarks/replays.py

Prints a line for each measurement, and exits with 1 if one misses its floor. It makes its stores in a temporary folder.
"""

import argparse
import asyncio
import tempfile
import time
from pathlib import Path

from measuring import check_floor, print_figure

from holdfast import App, step
from holdfast.core.lifecycle import decide
from holdfast.core.model import Error, Event, State
from holdfast.jobs.replay_plans import preview_replay, preview_replays
from holdfast.jobs.selections import Selection
from holdfast.jobs.service import JobRequest
from holdfast.jobs.views.review_groups import view_groups

STEPS = 10_000
JOBS = 10_000
PART = 1_000

REACHED_MS = 300.0
"""How soon a replayed job with so many recorded steps reaches its next new step."""

PLAN_MS = 50.0
PLANS_MS = 2_000.0
"""How long a plan takes: of one job, and of so many."""

reached: list[float] = []


@step
async def draw(number: int) -> int:
    return number


@step
async def assemble(count: int) -> int:
    reached.append(time.monotonic())
    if len(reached) == 1:
        raise ValueError("the first time, it fails")
    return count


def make_app(url: str) -> App:
    app = App(url)

    @app.job(retries=0)
    async def film(count: int) -> int:
        for number in range(count):
            await draw(number)
        return await assemble(count)

    app.film = film  # type: ignore[attr-defined]
    return app


async def settled(app: App, id: str, state: State) -> None:
    while True:
        (job,) = await app.engine.get([id])
        if job is not None and job.state is state:
            return
        await asyncio.sleep(0.01)


async def measure_replay(folder: Path, steps: int) -> tuple[float, float]:
    """Return how long a plan for one job takes, and how soon its replay reaches the next new step, in milliseconds."""
    app = make_app(f"sqlite:///{folder}/replay.db")
    reached.clear()
    async with app.worker():
        run = await app.film.submit(steps)  # type: ignore[attr-defined]
        await settled(app, run.id, State.REVIEW)
        jobs = await app.open()
        began = time.perf_counter()
        plan = await preview_replay(jobs, run.id)
        planned = time.perf_counter() - began
        assert len(plan.recorded) == steps
        await run.replay()
        await settled(app, run.id, State.COMPLETED)
    (claim,) = [entry for entry in (await run.history())[-3:] if entry.event == "claim"]
    passed = reached[-1] - time.monotonic() + time.time() - claim.at / 1_000
    await app.close()
    return planned * 1_000, passed * 1_000


async def measure_plans(folder: Path, jobs: int) -> tuple[float, float]:
    """Return how long a plan for many jobs takes, and their groups, in milliseconds."""
    app = App(f"sqlite:///{folder}/plans.db")
    store = await app.open()
    for start in range(0, jobs, PART):
        await store.submit([JobRequest(type="film")] * min(PART, jobs - start))
        claimed = await app.engine.claim("w-1", ["default"], PART)
        now = await app.engine.now()
        error = Error("ProviderError", "quota exceeded")
        await app.engine.commit([decide(job, Event.EXHAUST, now, by="w-1", error=error) for job in claimed])
    began = time.perf_counter()
    plan = await preview_replays(store, Selection(states=(State.REVIEW,)))
    planned = time.perf_counter() - began
    assert plan.total == jobs
    began = time.perf_counter()
    groups = await view_groups(store)
    grouped = time.perf_counter() - began
    assert sum(group.count for group in groups) == jobs
    await app.close()
    return planned * 1_000, grouped * 1_000


async def measure(rounds: int, steps: int, jobs: int) -> bool:
    """Measure all rounds. Return whether each floor holds."""
    one, next_step, many, grouped = list[float](), list[float](), list[float](), list[float]()
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            planned, passed = await measure_replay(Path(folder), steps)
            all_planned, all_grouped = await measure_plans(Path(folder), jobs)
        for seen, value in ((one, planned), (next_step, passed), (many, all_planned), (grouped, all_grouped)):
            seen.append(value)
    print_figure(f"groups of {jobs:,} jobs in review", grouped, "ms")
    return all(
        [
            check_floor(
                f"to the next new step after {steps:,} recorded ones", next_step, REACHED_MS, "ms", at_most=True
            ),
            check_floor(f"plan for one job with {steps:,} recorded steps", one, PLAN_MS, "ms", at_most=True),
            check_floor(f"plan for {jobs:,} jobs", many, PLANS_MS, "ms", at_most=True),
        ]
    )


def main() -> None:
    """Measure on SQLite."""
    words = argparse.ArgumentParser(description="How fast second chances are.")
    words.add_argument("--rounds", type=int, default=3)
    words.add_argument("--steps", type=int, default=STEPS)
    words.add_argument("--jobs", type=int, default=JOBS)
    given = words.parse_args()
    raise SystemExit(0 if asyncio.run(measure(given.rounds, given.steps, given.jobs)) else 1)


if __name__ == "__main__":
    main()
