"""What a step in a process of its own costs (`isolate="process"`): a no-op on a warm pool, and a fresh process.

    python benchmarks/isolation.py

The median of 200 calls counts. Exits 1 when a floor is missed.
"""

import asyncio
import statistics
import sys
import time

from holdfast.core.codec import Signature
from holdfast.worker.context import Current
from holdfast.worker.isolation.pool import IsolatedCall, Pool

CALLS = 200
FRESH_CALLS = 5
AT_ONCE = 4
FLOOR_MS = 5.0
"""An isolated no-op costs no more than this on a warm pool."""


def nothing(number: int) -> int:
    """The step that is measured."""
    return number


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


async def measured() -> float:
    """Print all figures; the median that counts."""
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
    return median


if __name__ == "__main__":
    median = asyncio.run(measured())
    if median > FLOOR_MS:
        print(f"MISSED: an isolated no-op takes {median:.2f} ms; the floor is {FLOOR_MS} ms")
        sys.exit(1)
    print(f"floor: {FLOOR_MS} ms, kept")
