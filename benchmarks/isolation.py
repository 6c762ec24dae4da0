"""What a step or job in a process of its own costs (`isolate="process"`): no-ops on a warm pool, and a fresh process.

    python benchmarks/isolation.py

The medians of 200 calls count. Exits 1 when a floor is missed.
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
"""An isolated no-op costs no more than this on a warm pool: a step, or what a job costs more than in its worker."""


def nothing(number: int) -> int:
    """The step that is measured."""
    return number


app = App("memory:")


@app.job(retries=0)
async def idle(number: int) -> int:
    """A no-op in its worker, to compare."""
    return number


@app.job(retries=0, isolate="process")
async def apart(number: int) -> int:
    """The same in a process of its own."""
    return number


@step
async def counted(number: int) -> int:
    """A no-op that is recorded."""
    return number


@app.job(retries=0)
async def steps(number: int) -> float:
    """Milliseconds for each of so many recorded steps."""
    began = time.perf_counter()
    for place in range(CALLS):
        await counted(place)
    return (time.perf_counter() - began) * 1_000 / CALLS


@app.job(retries=0, isolate="process")
async def steps_apart(number: int) -> float:
    """The same in a process of its own: each record goes over the line."""
    began = time.perf_counter()
    for place in range(CALLS):
        await counted(place)
    return (time.perf_counter() - began) * 1_000 / CALLS


CURRENT = Current(job_id="benchmark", attempt=1, epoch=1, deadline=None, step="nothing:1")


def call_of(number: int) -> IsolatedCall:
    """One no-op, with the border for values on."""
    args = Signature(nothing).encode((number,), {})
    return IsolatedCall(step="nothing", function=nothing, args=args, current=CURRENT)


async def one_by_one(pool: Pool) -> list[float]:
    """Milliseconds for each of so many calls, one after another."""
    taken = []
    for number in range(CALLS):
        call = call_of(number)
        began = time.perf_counter()
        answer = await pool.run(call)
        taken.append((time.perf_counter() - began) * 1_000)
        assert answer == str(number)
    return taken


async def all_at_once(pool: Pool) -> float:
    """Calls a second, when many wait for their turn."""
    began = time.perf_counter()
    await asyncio.gather(*[pool.run(call_of(number)) for number in range(CALLS)])
    return CALLS / (time.perf_counter() - began)


async def fresh() -> list[float]:
    """Milliseconds for a call that has to wait for its process: the cost that spare ones hide."""
    taken = []
    for number in range(FRESH_CALLS):
        pool = Pool(AT_ONCE, spare=0)
        began = time.perf_counter()
        await pool.run(call_of(number))
        taken.append((time.perf_counter() - began) * 1_000)
        await pool.close()
    return taken


async def replaced(pool: Pool) -> list[float]:
    """Milliseconds until a call whose process is used up is answered, and another one by the spare after a rest."""
    taken = []
    for number in range(FRESH_CALLS):
        await asyncio.sleep(1.0)  # so that the spare is there
        began = time.perf_counter()
        await pool.run(call_of(number))
        taken.append((time.perf_counter() - began) * 1_000)
    return taken


async def whole_jobs(job: Any) -> list[float]:
    """Milliseconds from submit to result for each of so many jobs, one after another."""
    taken = []
    for number in range(CALLS + 1):
        began = time.perf_counter()
        run = await job.submit(number)
        assert await run.result() == number
        taken.append((time.perf_counter() - began) * 1_000)
    return sorted(taken[1:])  # The first one waits for its process.


async def jobs() -> float:
    """Print what jobs cost; how much more the median of an isolated one is."""
    async with app.worker(at_once=AT_ONCE):
        here, there = await whole_jobs(idle), await whole_jobs(apart)
        one, other = await (await steps.submit(0)).result(), await (await steps_apart.submit(0)).result()
    for name, taken in (("a job in its worker", here), ("an isolated job", there)):
        median, p95 = statistics.median(taken), taken[int(CALLS * 0.95)]
        print(f"{name:<24} median {median:.2f} ms   p95 {p95:.2f} ms   (submit to result, memory engine)")
    print(f"a recorded step of it    {other:.2f} ms; in its worker {one:.2f} ms   (memory engine)")
    return statistics.median(there) - statistics.median(here)


async def measured() -> float:
    """Print all figures; the larger of those that count."""
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
        print(f"MISSED: an isolated no-op takes {median:.2f} ms; the floor is {FLOOR_MS} ms")
        sys.exit(1)
    print(f"floor: {FLOOR_MS} ms, kept")
