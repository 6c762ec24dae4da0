"""How fast second chances are, on SQLite: a replay of a job with many recorded steps, and plans of replays.

    python -m benchmarks.replays

Prints a line for each measurement. It makes its stores in a temporary folder.
"""

import asyncio
import os
import sys
import tempfile
import time
from pathlib import Path

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


async def measure_replay(folder: Path) -> None:
    app = make_app(f"sqlite:///{folder}/replay.db")
    async with app.worker():
        run = await app.film.submit(STEPS)  # type: ignore[attr-defined]
        await settled(app, run.id, State.REVIEW)
        jobs = await app.open()
        began = time.perf_counter()
        plan = await preview_replay(jobs, run.id)
        told(f"plan for one job with {len(plan.recorded):,} recorded steps", time.perf_counter() - began, 0.05)
        await run.replay()
        await settled(app, run.id, State.COMPLETED)
    (claim,) = [entry for entry in (await run.history())[-3:] if entry.event == "claim"]
    passed = reached[-1] - time.monotonic() + time.time() - claim.at / 1_000
    told(f"from the claim to the next new step after {STEPS:,} recorded ones", passed, 0.3)
    await app.close()


async def measure_plans(folder: Path) -> None:
    app = App(f"sqlite:///{folder}/plans.db")
    jobs = await app.open()
    for _ in range(JOBS // PART):
        await jobs.submit([JobRequest(type="film")] * PART)
        claimed = await app.engine.claim("w-1", ["default"], PART)
        now = await app.engine.now()
        error = Error("ProviderError", "quota exceeded")
        await app.engine.commit([decide(job, Event.EXHAUST, now, by="w-1", error=error) for job in claimed])
    began = time.perf_counter()
    plan = await preview_replays(jobs, Selection(states=(State.REVIEW,)))
    told(f"plan for {plan.total:,} jobs", time.perf_counter() - began, 2.0)
    began = time.perf_counter()
    groups = await view_groups(jobs)
    told(f"groups of {sum(group.count for group in groups):,} jobs in review", time.perf_counter() - began, None)
    await app.close()


def told(what: str, seconds: float, most: float | None) -> None:
    bound = "" if most is None else f" (at most {most * 1_000:,.0f} ms)"
    print(f"{what}: {seconds * 1_000:,.0f} ms{bound}")


async def main() -> None:
    print(f"python {sys.version.split()[0]}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory() as folder:
        await measure_replay(Path(folder))
        await measure_plans(Path(folder))


if __name__ == "__main__":
    asyncio.run(main())
