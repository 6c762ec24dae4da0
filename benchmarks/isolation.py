"""The cost of a step or job in its own process (`isolate="process"`): no-ops on a warm pool, and a fresh process.

    python benchmarks/isolation.py

The medians of 200 calls count. Exits with 1 if a limit is exceeded.
"""

import asyncio
import statistics
import sys
import time
from typing import Any

from holdfast import App, step
from holdfast.core.codec import Signature
from holdfast.worker.context import Current
from holdfast.worker.isolation.pool import IsolatedCall, Pool

CALLS = 200
FRESH_CALLS = 5
AT_ONCE = 4
FLOOR_MS = 5.0
"""The most that an isolated no-op may cost on a warm pool: a step, or the extra cost of a job."""


def nothing(number: int) -> int:
    """The step that is measured."""
    return number


app = App("memory:")


@app.job(retries=0)
async def idle(number: int) -> int:
    """A no-op in its worker, for comparison."""
    return number


@app.job(retries=0, isolate="process")
async def apart(number: int) -> int:
    """The same in its own process."""
    return number


@step
async def counted(number: int) -> int:
    """A no-op that is recorded."""
    return number


@app.job(retries=0)
async def steps(number: int) -> float:
    """Return the milliseconds per step, over this many recorded steps."""
    began = time.perf_counter()
    for place in range(CALLS):
        await counted(place)
    return (time.perf_counter() - began) * 1_000 / CALLS


@app.job(retries=0, isolate="process")
async def steps_apart(number: int) -> float:
    """The same in its own process: each record goes through the connection to the worker."""
    began = time.perf_counter()
    for place in range(CALLS):
        await counted(place)
    return (time.perf_counter() - began) * 1_000 / CALLS


CURRENT = Current(job_id="benchmark", attempt=1, epoch=1, deadline=None, step="nothing:1")


def call_of(number: int) -> IsolatedCall:
    """Make one no-op call, with arguments encoded as usual."""
    args = Signature(nothing).encode((number,), {})
    return IsolatedCall(step="nothing", function=nothing, args=args, current=CURRENT)


async def one_by_one(pool: Pool) -> list[float]:
    """Return the milliseconds of each of this many calls, one after another."""
    taken = []
    for number in range(CALLS):
        call = call_of(number)
        began = time.perf_counter()
        answer = await pool.run(call)
        taken.append((time.perf_counter() - began) * 1_000)
        assert answer == str(number)
    return taken


async def all_at_once(pool: Pool) -> float:
    """Return calls per second, with many calls waiting."""
    began = time.perf_counter()
    await asyncio.gather(*[pool.run(call_of(number)) for number in range(CALLS)])
    return CALLS / (time.perf_counter() - began)


async def fresh() -> list[float]:
    """Return the milliseconds of a call that waits for its process to start: the cost that spare ones hide."""
    taken = []
    for number in range(FRESH_CALLS):
        pool = Pool(AT_ONCE, spare=0)
        began = time.perf_counter()
        await pool.run(call_of(number))
        taken.append((time.perf_counter() - began) * 1_000)
        await pool.close()
    return taken


async def replaced(pool: Pool) -> list[float]:
    """Return the milliseconds of a call by a spare process, after the pool had time to replace a worn one."""
    taken = []
    for number in range(FRESH_CALLS):
        await asyncio.sleep(1.0)  # so that the spare process is ready
        began = time.perf_counter()
        await pool.run(call_of(number))
        taken.append((time.perf_counter() - began) * 1_000)
    return taken


async def whole_jobs(job: Any) -> list[float]:
    """Return the milliseconds from submit to result, for each of this many jobs, one after another."""
    taken = []
    for number in range(CALLS + 1):
        began = time.perf_counter()
        run = await job.submit(number)
        assert await run.result() == number
        taken.append((time.perf_counter() - began) * 1_000)
    return sorted(taken[1:])  # The first job waits for its process to start.


async def jobs() -> float:
    """Print what jobs cost; return how much more the median of an isolated one takes."""
    async with app.worker(at_once=AT_ONCE):
        here, there = await whole_jobs(idle), await whole_jobs(apart)
        one, other = await (await steps.submit(0)).result(), await (await steps_apart.submit(0)).result()
    for name, taken in (("a job in its worker", here), ("an isolated job", there)):
        median, p95 = statistics.median(taken), taken[int(CALLS * 0.95)]
        print(f"{name:<24} median {median:.2f} ms   p95 {p95:.2f} ms   (submit to result, memory engine)")
    print(f"a recorded step of it    {other:.2f} ms; in its worker {one:.2f} ms   (memory engine)")
    return statistics.median(there) - statistics.median(here)


async def measured() -> float:
    """Print all figures; return the larger of those that have a limit."""
    pool = Pool(AT_ONCE)
    await pool.run(call_of(0))
    taken = sorted(await one_by_one(pool))
    median = statistics.median(taken)
    print(f"warm no-op, one by one   median {median:.2f} ms   p95 {taken[int(CALLS * 0.95)]:.2f} ms   ({CALLS} calls)")
    await all_at_once(pool)
    print(f"warm no-ops, {AT_ONCE} at once   {await all_at_once(pool):,.0f} calls/s")
    await pool.close()
    print(f"a fresh process          median {statistics.median(await fresh()):.0f} ms")
    pool = Pool(AT_ONCE, max_uses=1)
    await pool.run(call_of(0))
    print(f"a spare one, first use   median {statistics.median(await replaced(pool)):.1f} ms")
    await pool.close()
    return max(median, await jobs())


if __name__ == "__main__":
    median = asyncio.run(measured())
    if median > FLOOR_MS:
        print(f"MISSED: an isolated no-op takes {median:.2f} ms; the limit is {FLOOR_MS} ms")
        sys.exit(1)
    print(f"within the limit of {FLOOR_MS} ms")
