"""The jobs of a simulation that share limits, with jobs, steps, steps inside steps, children and a provider's 429s.

Must not check anything, and must not know who runs them or what goes wrong.
"""

import asyncio

from holdfast import ItemsFailed, JobCancelled, JobFailed, Throttled, step
from tests.simulation.plan import LIMITED
from tests.simulation.scene import scene
from tests.simulation.shapes import STEP_TRIES, TEMPLATE, job, make, shape

AREA = TEMPLATE.limit("area", at_once=2)
PAIR = TEMPLATE.limit("pair", at_once=2)
SOLO = TEMPLATE.limit("solo", at_once=1, per="{m}")
TICK = TEMPLATE.limit("tick", rate="3/s")
UPPER = TEMPLATE.limit("upper", at_once=1)
LOWER = TEMPLATE.limit("lower", at_once=1)
WORDS = TEMPLATE.limit("words", rate="30/m", burst=8)

CLOSED_SECONDS = 1.5
"""For how long the pretend provider wants to be left alone."""


@step(limit=PAIR)
async def call(n: int, after: str = "") -> str:
    return await scene().effect(n, after)


@step(limit=[PAIR, TICK], retries=STEP_TRIES)
async def call_often(n: int) -> str:
    return await scene().effect(n, fails=n % 2)


@step(limit=WORDS.cost(lambda n: 2 * n))
async def write(n: int) -> str:
    return await scene().effect(n, seconds=0.05)


@step(limit=AREA)
async def around(n: int) -> list[str]:
    effect = scene().begin((n,))
    inside = await call(n, "inside")
    return [inside, await scene().finish(effect)]


@step(limit=PAIR)
async def busy(n: int) -> str:
    """Its provider asks to slow down, each time that it is called first in a lease."""
    here = scene()
    effect = here.begin((n,))
    if sum((one.job, one.path, one.epoch) == (effect.job, effect.path, effect.epoch) for one in here.effects) == 1:
        effect.failed = True
        await asyncio.sleep(0.05)
        raise Throttled(retry_after=CLOSED_SECONDS)
    return await here.finish(effect)


@step(limit=UPPER)
async def above(n: int) -> str:
    return await scene().effect(n)


@step(limit=LOWER)
async def below(n: int) -> str:
    return await scene().effect(n)


@step
async def ledge(n: int) -> list[str]:
    effect = scene().begin((n,))
    inside = await above(n)
    return [inside, await scene().finish(effect)]


@shape(2, into=LIMITED, limit=SOLO)
async def lone(n: int, m: int) -> list[str]:
    return [await make(n)]


@shape(2, into=LIMITED, limit=[SOLO, PAIR])
async def both(n: int, m: int) -> list[str]:
    """Waits behind one key, then behind another one."""
    return [await make(n)]


@shape(1, into=LIMITED, limit=TICK)
async def ticking(n: int, m: int) -> list[str]:
    return [await make(n)]


@shape(3, into=LIMITED)
async def calls(n: int, m: int) -> list[str]:
    return await call.map(range(n * 2), at_once=m)


@shape(2, into=LIMITED)
async def calls_often(n: int, m: int) -> list[str]:
    return await call_often.map(range(n), at_once=m)


@shape(1, into=LIMITED)
async def writes(n: int, m: int) -> list[str]:
    return [await write(place + 1) for place in range(n)]


@shape(1, into=LIMITED)
async def deep(n: int, m: int) -> list[str]:
    return [token for found in await around.map(range(n), at_once=m) for token in found]


@shape(1, into=LIMITED)
async def slowed(n: int, m: int) -> list[str]:
    return [await make(n), await busy(n)]


@shape(1, into=LIMITED, limit=SOLO)
async def guild(n: int, m: int) -> list[str]:
    """Waits for children that need the permit that it holds while it runs."""
    tokens = [await make(n)]
    try:
        tokens += await (await job("lone").submit(1, m)).result()
    except (JobFailed, JobCancelled):
        pass
    try:
        for found in await job("apprentice").map(range(n), at_once=m):
            tokens += found
    except ItemsFailed as failed:
        tokens += [token for found in failed.results if found for token in found]
    return [*tokens, await call(n, "end")]


@shape(2, into=LIMITED, limit=UPPER)
async def climb_down(n: int, m: int) -> list[str]:
    """Its step needs what `climb_up` holds, whose step needs what this one holds."""
    return [await below(place) for place in range(n)]


@shape(2, into=LIMITED, limit=LOWER)
async def climb_up(n: int, m: int) -> list[str]:
    return [await above(place) for place in range(n)]


@shape(1, into=LIMITED, limit=LOWER)
async def climb_inside(n: int, m: int) -> list[str]:
    """Keeps its permit while a step inside a step waits for another one."""
    return [token for place in range(n) for token in await ledge(place)]


@shape(0, limit=PAIR)
async def apprentice(n: int) -> list[str]:
    return [await make(n)]
