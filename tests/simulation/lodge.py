"""The job of the search, in kinds: each has user code of another sort.

Must not know what strikes, and must not judge. Code that exits, dies, blocks or runs late does so the first time only.
"""

import asyncio
import sys

from holdfast import current, step
from holdfast.core.model import Retry
from tests.simulation.plot import Done, Plot
from tests.simulation.scene import Broken, program
from tests.simulation.shapes import TEMPLATE

TYPE = "search.lodge"
WORK_SECONDS, UNDO_SECONDS = 1.0, 0.1
HOLD_SECONDS = 20.0
"""How long code blocks its whole process: longer than a lease."""

TIMEOUT_SECONDS = 2.5
"""The timeout of a job that runs late."""

LATE_SECONDS = 60.0
TRY_AGAIN = Retry(retries=1, strategy="constant", initial_ms=200, jitter=False)

KINDS = {
    "line": "two steps one after the other",
    "fails": "of which the second fails",
    "slow": "which go on though they are cancelled",
    "together": "both at once, and the second fails",
    "cut": "both in a task group, where the second one is cancelled from inside",
    "exits": "both at once, and the second calls sys.exit",
    "ends": "which end the event loop: the first by loop.stop(), the second by sys.exit in a callback",
    "dies": "of which the second ends its process, as os._exit does",
    "blocks": "between which the job blocks all threads for longer than a lease",
    "hurried": "of which the job's own code cuts off the second by asyncio.timeout, and takes a third one instead",
    "late": "of which the second takes longer than the job's timeout",
}
FAIL = frozenset({"fails", "together", "cut"})
"""The kinds that fail until a person looks after them. All others complete, unless they are cancelled."""

AT_ONCE = frozenset({"together", "cut", "exits"})


def plot() -> Plot:
    """The world of the search."""
    found = program().scene
    assert isinstance(found, Plot)
    return found


async def ran(done: Done, seconds: float, *, stubborn: bool = False) -> None:
    """Let something take its time; `stubborn` things go on though they are cancelled."""
    here, who = plot(), program()
    here.point(who, f"{done.path} begins")
    end = here.world.now + seconds
    try:
        await asyncio.sleep(0)
        while here.world.now < end - 1e-6 and not here.world.over:
            try:
                await asyncio.sleep(end - here.world.now)
            except asyncio.CancelledError:
                if not stubborn:
                    raise
        here.point(who, f"{done.path} ends")
        await asyncio.sleep(0)
        done.ended = True
    finally:
        if who.alive and not here.world.over:
            done.stopped = here.world.now


async def give_back(value: str | None) -> None:
    done = Done(current().step, program().name, current().epoch, plot().world.now, value)
    plot().undone.append(done)
    await ran(done, UNDO_SECONDS)


async def sweep(kind: str) -> None:
    done = Done("", program().name, current().epoch, plot().world.now, kind)
    plot().undone.append(done)
    await ran(done, UNDO_SECONDS)


@step(undo=give_back)
async def let(n: int, kind: str) -> str:
    return await work(n, kind)


@step
async def see(n: int, kind: str) -> str:
    """Makes nothing that is to be undone: nothing of it is written before it begins."""
    return await work(n, kind)


async def work(n: int, kind: str) -> str:
    here, who = plot(), program()
    done = Done(current().step, who.name, current().epoch, here.world.now)
    first = all(one.path != done.path for one in here.made)
    here.made.append(done)
    if n == 2 and kind == "hurried":
        here.given_up.add(done.path)
    try:
        await ran(done, WORK_SECONDS / (2 if kind in AT_ONCE and n == 2 else 1), stubborn=kind == "slow")
        if first:
            await misbehave(n, kind)
        if n == 2 and kind in ("fails", "together"):
            raise Broken("the second one fails")
        if n == 2 and kind == "cut":
            subtask = asyncio.ensure_future(asyncio.sleep(WORK_SECONDS))
            subtask.cancel()
            await subtask
    finally:
        if who.alive and not here.world.over:
            done.stopped = here.world.now
    return f"{current().step} at {current().epoch}"


async def misbehave(n: int, kind: str) -> None:
    """What the code of a step does the first time that it runs."""
    match n, kind:
        case 2, "exits":
            sys.exit("no worker's business")
        case 1, "ends":
            asyncio.get_running_loop().stop()
            await asyncio.sleep(LATE_SECONDS)
        case 2, "ends":
            asyncio.get_running_loop().call_soon(sys.exit, 1)
            await asyncio.sleep(LATE_SECONDS)
        case 2, "dies":
            plot().kill(program())
            await asyncio.sleep(0)  # from which the dead don't come back
        case 2, "hurried" | "late":
            await asyncio.sleep(LATE_SECONDS)


async def block() -> None:
    """Keep all threads of this process from running, as code does that holds the GIL."""
    here = plot()
    if not here.held:
        here.held.append(HOLD_SECONDS)
        here.world.later(HOLD_SECONDS, program().hold())
        await asyncio.sleep(0)


@TEMPLATE.job(name=TYPE, retries=TRY_AGAIN, cleanup=sweep, keep="30d")
async def lodge(kind: str) -> list[str]:
    if kind == "cut":
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(let(n, kind)) for n in (1, 2)]
        return [task.result() for task in tasks if not task.cancelled()]
    if kind in AT_ONCE:
        return list(await asyncio.gather(let(1, kind), let(2, kind)))
    first = await let(1, kind)
    if kind == "blocks":
        await block()
        return [first, await see(2, kind)]
    if kind != "hurried":
        return [first, await let(2, kind)]
    try:
        async with asyncio.timeout(WORK_SECONDS / 2):
            return [first, await let(2, kind)]
    except TimeoutError:
        return [first, await let(3, kind)]
