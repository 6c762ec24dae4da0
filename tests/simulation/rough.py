"""More jobs of a simulation: code that is cut off by a timeout, and code that forks. They are known by being imported.

Must not check anything, and must not know who runs them or what goes wrong.
"""

import asyncio

from holdfast import step
from tests.simulation.scene import scene
from tests.simulation.shapes import STEP_TRIES, TIMEOUT_SECONDS, make, shape

TIMELY_SECONDS = 3.0
"""The timeout of a step that may take a little less."""

LATE_SECONDS = 20.0
"""How long something takes that a timeout cuts off."""


@step(timeout=TIMELY_SECONDS, retries=STEP_TRIES)
async def timely(n: int) -> str:
    """Takes longer than its timeout, the first time."""
    here = scene()
    effect = here.begin((n,))
    before = [one for one in here.effects if (one.job, one.path) == (effect.job, effect.path)]
    try:
        return await here.finish(effect, None if len(before) > 1 else LATE_SECONDS)
    except BaseException:
        effect.failed = True
        raise


@step
async def endless(n: int) -> str:
    return await scene().effect(n, seconds=LATE_SECONDS)


@step
async def forked(n: int) -> str:
    """Forks while others run beside it; the child returns into the job."""
    effect = scene().begin((n,))
    await asyncio.sleep(scene().random.random())
    scene().fork()
    return await scene().finish(effect)


@shape(0.8)
async def rushed(n: int, m: int) -> list[str]:
    """Steps that are cut off by their own timeout, or by one that the job's code has set around them."""
    if m == 1:
        return [await timely(n)]
    try:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            return list(await asyncio.gather(endless(n), timely(n)) if m == 2 else [await endless(n)])
    except TimeoutError:
        return [await make(n, "late")]


@shape(0.5)
async def split(n: int, m: int) -> list[str]:
    """Forks, and its children return into it."""
    return list(await asyncio.gather(*(forked(place) for place in range(min(n, 2))), make(m)))
