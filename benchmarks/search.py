"""The cost of a search among many jobs, and of the page of a job with 10,000 steps.

    python benchmarks/search.py sqlite:///jobs.db [--jobs 1000000]
    python -m tests.support.postgres_server --safe python benchmarks/search.py {url}

Exits with 1 if a search takes longer than its bound. The stores are made for this and removed.
"""

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from measuring import print_figure

from holdfast.core.keys import digest, new_id
from holdfast.core.model import Job, State, Step, StepState, Where
from holdfast.engines import engine_class, engine_for
from holdfast.engines.contract import Engine
from holdfast.jobs.service import Jobs
from holdfast.jobs.views.pages.job_page import view_job_page

INSERTED_AT_ONCE = 1_000
PAGE = 50
LOOKS = 15
STEPS = 10_000
SEARCH_MS, JOB_MS = 50.0, 10.0

STATES = (State.COMPLETED,) * 96 + (State.REVIEW, State.CANCELLED, State.SCHEDULED, State.AVAILABLE)


def job_of(now: int, number: int) -> Job:
    state = STATES[number % len(STATES)]
    args = f"[{number}]"
    kind = f"kind{number % 7}" if number % 100_000 else "rare"
    return Job(
        id=new_id(now + number // 10, number << 20),
        type=kind,
        queue=f"queue{number % 5}",
        state=State.AVAILABLE if state is State.AVAILABLE else State.PENDING,
        args=args,
        digest=digest(kind, args),
        key=f"order-{number}",
        created_at=now,
        run_at=now,
    )


async def fill(engine: Engine, jobs: int) -> None:
    now = await engine.now()
    for start in range(0, jobs, INSERTED_AT_ONCE):
        await engine.insert([job_of(now, number) for number in range(start, min(start + INSERTED_AT_ONCE, jobs))])


async def millis(look: Callable[[], Awaitable[object]]) -> float:
    """The median time of one look."""
    took = []
    for _ in range(LOOKS):
        began = time.perf_counter()
        await look()
        took.append((time.perf_counter() - began) * 1_000)
    return statistics.median(took)


async def measure(url: str, jobs: int) -> bool:
    engine = engine_for(url)
    await engine.open()
    await fill(engine, jobs)
    searches = {
        "newest": Where(newest_first=True),
        "oldest": Where(),
        "a state": Where(states=(State.AVAILABLE,), newest_first=True),
        "a queue": Where(queue="queue3", newest_first=True),
        "a type": Where(type="kind3", newest_first=True),
        "a rare type": Where(type="rare", newest_first=True),
        "an absent queue": Where(queue="nobody", newest_first=True),
        "a state, a queue and a type": Where((State.AVAILABLE,), "queue4", "kind2", newest_first=True),
        "a key": Where(key=f"order-{jobs // 2}"),
    }
    is_fast = True
    for name, where in searches.items():
        took = await millis(lambda where=where: engine.search(where, "", PAGE))  # type: ignore[misc]
        page = await engine.search(where, "", PAGE)
        stopped = f", stopped after {page.scanned:,}" if page.is_cut else ""
        print_figure(f"{name}: {len(page.jobs)} found{stopped}", [took], "ms")
        is_fast = is_fast and took <= SEARCH_MS
    took = await large_job(engine)
    print_figure(f"the page of a job with {STEPS:,} steps", [took], "ms")
    await engine.close()
    return is_fast and took <= JOB_MS


async def large_job(engine: Engine) -> float:
    jobs, now = Jobs(engine), await engine.now()
    job = Job(id=new_id(now, 1), type="film", queue="own", state=State.AVAILABLE, created_at=now, run_at=now)
    await engine.insert([job])
    [held] = await engine.claim("w-1", ["own"], 1)
    for start in range(0, STEPS, 100):
        await engine.record(
            [
                Step(
                    job=held.id,
                    epoch=held.epoch,
                    path=f"draw#{number}",
                    name="draw",
                    state=StepState.DONE,
                    result='"image"',
                    started_at=now,
                    finished_at=now + 5,
                )
                for number in range(start, start + 100)
            ]
        )
    return await millis(lambda: view_job_page(jobs, held.id, {}))


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--jobs", type=int, default=1_000_000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        url = engine_class(given.url).scratch(given.url, Path(folder))
        try:
            is_fast = await measure(url, given.jobs)
        finally:
            await engine_class(url).scrap(url)
    raise SystemExit(0 if is_fast else 1)


if __name__ == "__main__":
    asyncio.run(main())
