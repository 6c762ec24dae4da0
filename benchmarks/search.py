"""The cost of a search among many jobs, and of the page of a job with 10,000 steps.

    python benchmarks/search.py sqlite:///jobs.db [--jobs 1000000]
    python -m tests.support.postgres_server --safe python benchmarks/search.py {url}

Exits with 1 if a search takes longer than its bound. The stores are made for this and removed.
"""

import argparse
import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from measuring import check_floor
from msgspec.structs import replace

from holdfast.core.changes import exhaust
from holdfast.core.keys import digest, new_id
from holdfast.core.model import Error, Job, State, Step, StepState, Time, Where
from holdfast.engines import engine_class, engine_for
from holdfast.engines.contract import Engine
from holdfast.jobs.service import Jobs
from holdfast.jobs.views.pages.job_page import view_job_page
from holdfast.jobs.views.pages.search import Search, place_of, view_jobs_page

INSERTED_AT_ONCE, CLAIMED_AT_ONCE = 1_000, 100
PAGE = 50
LOOKS = 15
STEPS = 10_000
SEARCH_MS, JOB_MS = 50.0, 10.0
IN_REVIEW = 100
"""One of so many jobs needs a person."""

STATES = (State.PENDING,) * 96 + (State.AVAILABLE,) * 4

ERROR = Error(type="ProviderError", message="quota exceeded", traceback='  File "video.py", line 7, in draw\n' * 20)


def job_of(now: int, number: int) -> Job:
    args = f"[{number}]"
    kind = f"kind{number % 7}" if number % 100_000 else "rare"
    return Job(
        id=new_id(now + number // 10, number << 20),
        type=kind,
        queue=f"queue{number % 5}",
        state=STATES[number % len(STATES)],
        args=args,
        digest=digest(kind, args),
        key=f"order-{number}",
        created_at=now,
        run_at=now,
    )


async def fill(engine: Engine, jobs: int) -> Time:
    """Insert the jobs, and return the time of the first one."""
    now = await engine.now()
    for start in range(0, jobs, INSERTED_AT_ONCE):
        await engine.insert([job_of(now, number) for number in range(start, min(start + INSERTED_AT_ONCE, jobs))])
    left = jobs // IN_REVIEW
    while left > 0:
        held = await engine.claim("w-1", [f"queue{number}" for number in range(5)], min(left, CLAIMED_AT_ONCE))
        assert held, "too few jobs are available"
        await engine.commit([exhaust(job, now, by="w-1", error=ERROR) for job in held])
        left -= len(held)
    return now


async def millis(look: Callable[[], Awaitable[object]]) -> list[float]:
    """The time of each look."""
    took = []
    for _ in range(LOOKS):
        began = time.perf_counter()
        await look()
        took.append((time.perf_counter() - began) * 1_000)
    return took


async def measure(url: str, jobs: int) -> bool:
    engine = engine_for(url)
    await engine.open()
    began = await fill(engine, jobs)
    store, half = Jobs(engine), began + jobs // 20
    searches = {
        "newest": Search(where=Where(newest_first=True)),
        "oldest": Search(),
        "behind half of them": Search(after=place_of(half, newest_first=False)),
        "a time": Search(where=Where(newest_first=True), at=half),
        "a state": Search(where=Where(states=(State.AVAILABLE,), newest_first=True)),
        "a queue": Search(where=Where(queue="queue3", newest_first=True)),
        "a type": Search(where=Where(type="kind3", newest_first=True)),
        "a rare type": Search(where=Where(type="rare", newest_first=True)),
        "an absent queue": Search(where=Where(queue="nobody", newest_first=True)),
        "a state, a queue and a type": Search(where=Where((State.AVAILABLE,), "queue4", "kind2", newest_first=True)),
        "a key": Search(where=Where(key=f"order-{jobs // 2}")),
        "the beginning of an id": Search(id=job_of(began, jobs // 2).id[:-4]),
        "an error": Search(where=Where(states=(State.REVIEW,)), error="quota"),
        "an absent error": Search(where=Where(states=(State.REVIEW,)), error="no such"),
    }
    fine = True
    for name, search in searches.items():
        took = await millis(lambda search=search: view_jobs_page(store, replace(search, limit=PAGE)))  # type: ignore[misc]
        page = await view_jobs_page(store, replace(search, limit=PAGE))
        stopped = f", stopped after {page.scanned:,}" if page.has_scanned_out else ""
        fine &= check_floor(f"{name}: {len(page.jobs)} found{stopped}", took, SEARCH_MS, "ms", at_most=True)
    took = await large_job(engine)
    fine &= check_floor(f"the page of a job with {STEPS:,} steps", took, JOB_MS, "ms", at_most=True)
    await engine.close()
    return fine


async def large_job(engine: Engine) -> list[float]:
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
