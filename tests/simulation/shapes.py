"""The jobs of a simulation, of many shapes. Each returns the tokens of the effects that it is made of.

Must not check anything, and must not know who runs them or what goes wrong.
"""

import asyncio
import sys
from typing import Any

from holdfast import (
    App,
    ItemsFailed,
    JobCancelled,
    JobFailed,
    Settings,
    StepFailed,
    current,
    progress,
    sleep,
    step,
    wait_for,
)
from holdfast.app.job import AsyncJob
from holdfast.core.model import Retry
from tests.simulation.scene import Broken, Handling, Mapped, program, scene

# Steps.

BRIEF = Retry(retries=2, strategy="exponential", initial_ms=300, factor=2.0, cap_ms=2_000)
ONCE_MORE = Retry(retries=1, strategy="constant", initial_ms=200, jitter=False)
STEP_TRIES = Retry(retries=3, strategy="constant", initial_ms=150)
STALE_SECONDS = 2.5
TIMEOUT_SECONDS = 1.5
NAP_SECONDS = 3.0
HURRY_SECONDS = 2.5
HURRY_ROUNDS = 50
"""How often a job listens for signals with a timer of its own, each for a moment only."""
HURRIED = "hurried"
HEARD = "heard "
BLOCK_SECONDS = 12.0
"""For how long a job holds the event loop of its worker: longer than any lease."""
RESIGNS = 12
"""How often a job tells its worker to stop that does so more often than a person would stand it."""


@step
async def make(n: int, after: str = "") -> str:
    return await scene().effect(n, after)


@step(retries=STEP_TRIES)
async def outer(n: int) -> list[str]:
    """Fails after what it made inside: the next try is answered by that."""
    effect = scene().begin((n,))
    inside = await make(n, "inside")
    return [inside, await scene().finish(effect, fails=n % 3)]


@step(retries=STEP_TRIES)
async def stubborn(n: int, fails: int) -> str:
    return await scene().effect(n, fails=fails)


@step(key=lambda n: f"k{n}")
async def keyed(n: int) -> str:
    return await scene().effect(n)


@step
async def brittle(n: int) -> str:
    return await scene().effect(n, fails=1_000_000)


async def take_back(value: str | None) -> None:
    await scene().undo(value)


async def clean_up(n: int, m: int) -> None:
    await scene().undo([n, m])


@step(effect="once", key=lambda n: f"once{n}")
async def pay(n: int) -> str:
    return await scene().effect(n)


@step(undo=take_back)
async def rent(n: int, after: str = "") -> str:
    return await scene().effect(n, after)


@step(stale_after=STALE_SECONDS)
async def hang(n: int, epochs: int) -> str:
    return await scene().effect(n, seconds=60.0 if current().epoch <= epochs else None)


@step(retries=STEP_TRIES)
async def shaky(n: int) -> str:
    """Code that is cancelled from inside, in a way that the number gives; or because another one shares its fate; or
    that exits.
    """
    here = scene()
    effect = here.begin((n,))
    try:
        match n % 7:
            case 1:
                await here.share()
            case 2:
                async with asyncio.timeout(here.random.random() * 0.4):
                    await here.share()
            case 3:
                subtask = asyncio.ensure_future(asyncio.sleep(here.random.random()))
                if here.random.random() < 0.7:
                    asyncio.get_running_loop().call_soon(subtask.cancel)
                await subtask
            case 4:
                raise asyncio.CancelledError
            case 5:
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
                await asyncio.sleep(1.0)
            case 6:
                sys.exit("this is no worker's business")
    except BaseException:
        effect.failed = True
        raise
    return await here.finish(effect)


CANCELS_ITSELF = 5
"""The item that cancels its own task. Outside a map nobody can tell that from a cancel by the caller."""


@step(stale_after=STALE_SECONDS)
async def plod(n: int) -> str:
    effect = scene().begin((n,))
    for _ in range(12):
        progress(text="on its way")
        await asyncio.sleep(STALE_SECONDS * (1.5 if scene().random.random() < 0.2 else 0.3))
    return await scene().finish(effect)


# Jobs. Each returns the tokens of the effects that it is made of.

TEMPLATE = App("memory:", settings=Settings())
SHAPES: dict[str, float] = {}
KEEP = "30d"


def shape(weight: float, into: dict[str, float] = SHAPES, **options: Any) -> Any:
    """Make a job of a function, known by its name, taken so often; 0 for a child, which has one argument."""

    def enter(function: Any) -> Any:
        async def run(*args: int) -> list[str]:
            here, world = current(), scene().world
            handling = Handling(here.job_id, here.epoch, program().name, world.now)
            scene().handlings.append(handling)
            try:
                tokens: list[str] = await function(*args)
                return tokens
            finally:
                handling.ended = world.now

        async def handler(n: int, m: int) -> list[str]:
            return await run(n, m)

        async def single(n: int) -> list[str]:
            return await run(n)

        if weight:
            into[function.__name__] = weight
        defaults: dict[str, Any] = {"retries": BRIEF, "keep": KEEP}
        decorated = TEMPLATE.job(name=function.__name__, **(defaults | options))
        decorated(handler if weight else single)
        return function

    return enter


@shape(2)
async def line(n: int, m: int) -> list[str]:
    tokens = [""]
    for place in range(n):
        tokens.append(await make(place, tokens[-1]))
    return tokens[1:]


@shape(2)
async def pace(n: int, m: int) -> list[str]:
    tokens = []
    for place in range(n):
        await asyncio.sleep(scene().random.random() * m)
        tokens.append(await make(place))
    return tokens


@shape(2)
async def fan(n: int, m: int) -> list[str]:
    return await make.map(range(n * 2), at_once=m)


@shape(1.5)
async def crowd(n: int, m: int) -> list[str]:
    """Items that are cancelled from inside, in a map or in a task group, which drops in silence what is cancelled."""
    items = list(range(n * 2))
    results: list[Any]
    if m == 3:
        items = [item for item in items if item != CANCELS_ITSELF]
        results = await _grouped(items)
    else:
        try:
            results = await shaky.map(items, at_once=n, need=0 if m == 1 else None)
        except ItemsFailed as failed:
            results = failed.results
    scene().mapped.append(Mapped(current().job_id, items, results))  # type: ignore[arg-type]
    return [token for token in results if token is not None]


async def _grouped(items: list[int]) -> list[Any]:
    async def one(item: int) -> str | None:
        try:
            return await shaky(item)
        except (StepFailed, TimeoutError):
            return None

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(item)) for item in items]
    return [None if task.cancelled() else task.result() for task in tasks]


@shape(1)
async def nest(n: int, m: int) -> list[str]:
    first, second = await asyncio.gather(outer(n), keyed(m))
    return [*first, second]


@shape(1)
async def flaky(n: int, m: int) -> list[str]:
    token = await make(n)
    if current().attempt < min(m, 3):
        raise Broken("not yet")
    return [token]


@shape(1, retries=ONCE_MORE)
async def doomed(n: int, m: int) -> list[str]:
    await make(n)
    raise Broken("never")


@shape(1)
async def trying(n: int, m: int) -> list[str]:
    return [await stubborn(n, m)]


@shape(1)
async def planb(n: int, m: int) -> list[str]:
    try:
        return [await brittle(n)]
    except Broken:
        return [await make(n, "b"), await make(m, "b2")]


@shape(0.5)
async def stale(n: int, m: int) -> list[str]:
    return [await make(n), await hang(n, min(m, 2))]


@shape(1.5)
async def plodder(n: int, m: int) -> list[str]:
    """Shows progress all along, and now and then a little late."""
    return [await plod(n)]


@shape(0.5, timeout=TIMEOUT_SECONDS)
async def tardy(n: int, m: int) -> list[str]:
    token = await make(n)
    await asyncio.sleep(10.0 if current().attempt < min(m, 3) else 0.01)
    return [token]


@shape(0.6, timeout=TIMEOUT_SECONDS)
async def deaf(n: int, m: int) -> list[str]:
    token = await make(n)
    world = scene().world
    end = world.now + (4.0 * m if current().attempt == 1 else 0.1)
    while world.now < end and not world.over:
        try:
            await asyncio.sleep(0.5)
        except asyncio.CancelledError:
            pass
    return [token]


@shape(0.7)
async def poison(n: int, m: int) -> list[str]:
    token = await make(n)
    if current().epoch <= m + (2 if n == 4 else -1):
        scene().poisoned.append(program())
        program().kill()
        await asyncio.sleep(3_600)
    return [token]


@shape(0.4)
async def unloop(n: int, m: int) -> list[str]:
    """Ends the event loop of its worker: by `sys.exit` in a task or a callback, or by `loop.stop()`."""
    token = await make(n)
    if current().epoch <= m + (2 if n == 4 else -1):
        scene().unlooped.add(program().name)
        loop = asyncio.get_running_loop()
        ways = [lambda: loop.create_task(exits()), lambda: loop.call_soon(sys.exit, 1), loop.stop]
        ways[n % 3]()
        await asyncio.sleep(3_600)
    return [token]


async def exits() -> None:
    sys.exit(1)


@shape(0.4)
async def resign(n: int, m: int) -> list[str]:
    """Tells its worker to stop."""
    token = await make(n)
    if current().epoch <= (RESIGNS if n > 2 else m):
        scene().resigned.append(program())
        await asyncio.sleep(3_600)
    return [token]


@shape(0.3)
async def block(n: int, m: int) -> list[str]:
    """Holds the event loop of its worker for longer than a lease, or all threads, as code does that keeps the GIL."""
    token = await make(n)
    if current().epoch == 1:
        scene().world.later(BLOCK_SECONDS, program().hold(() if m == 3 else ("main",)))
        await asyncio.sleep(0)
    return [token, await make(n, "end")]


@shape(1.2)
async def family(n: int, m: int) -> list[str]:
    await make(n)
    first = await job("line").submit(1, m)
    more = await job("flaky").submit_many([(place, m) for place in range(n)])
    await make(n, "end")
    return [first.id, *(run.id for run in more)]


@shape(0.5)
async def staged(n: int, m: int) -> list[str]:
    return [await make(n)]


@shape(1)
async def nap(n: int, m: int) -> list[str]:
    first = await make(n, "before")
    await sleep(NAP_SECONDS)
    return [first, await make(n, "after")]


@shape(1.5)
async def listen(n: int, m: int) -> list[str]:
    first = await make(n, "before")
    try:
        value = await wait_for("go", as_=int, within=None if m > 1 else 5.0)
    except TimeoutError:
        return [first, await make(m, "late")]
    return [first, await make(m, f"go {value}")]


@shape(1)
async def juggle(n: int, m: int) -> list[str]:
    """Steps, a sleep and signals, all at once."""

    async def hear(place: int) -> str:
        return await make(place, f"go {await wait_for('go', as_=int)}")

    async def doze() -> str:
        await sleep(m * 1.2)
        return await make(m, "dozed")

    found = await asyncio.gather(make(n), doze(), *(hear(place) for place in range(min(n, 2))))
    return list(found)


@shape(1)
async def hurry(n: int, m: int) -> list[str]:
    """Waits for something durable, each time in another way that ends by a timer of its own."""
    first = await make(n, "before")

    async def child() -> str:
        return (await (await job("line").submit(1, m)).result())[0]

    waits = [lambda: sleep(60.0), lambda: wait_for("go", as_=int), child, lambda: wait_for("go", within=40.0)]
    ways = [by_timeout, by_wait, by_sleep]
    rounds = HURRY_ROUNDS if n % 4 == 1 else 1
    came = [await ways[m % 3](waits[n % 4], HURRY_SECONDS / rounds) for _ in range(rounds)]
    return [first, await make(m, HEARD + ",".join(f"{one}" for one in came if isinstance(one, int)))]


async def by_timeout(wait: Any, seconds: float) -> Any:
    try:
        async with asyncio.timeout(seconds):
            return await wait()
    except TimeoutError:
        return HURRIED


async def by_wait(wait: Any, seconds: float) -> Any:
    (task,) = tasks = [asyncio.ensure_future(wait())]
    await asyncio.wait(tasks, timeout=seconds)
    return task.result() if task.done() or not task.cancel() else HURRIED


async def by_sleep(wait: Any, seconds: float) -> Any:
    nap, task = asyncio.ensure_future(asyncio.sleep(seconds)), asyncio.ensure_future(wait())
    await asyncio.wait([nap, task], return_when=asyncio.FIRST_COMPLETED)
    nap.cancel()
    return task.result() if task.done() or not task.cancel() else HURRIED


@shape(1)
async def ally(n: int, m: int) -> list[str]:
    """Waits for a job that others may have submitted, and that others may wait for."""
    shared = await job("line").submit(1, m, key=f"shared {m}")
    try:
        found = f"{await shared.result()}"
    except (JobFailed, JobCancelled):
        found = "nothing"
    return [await make(n, f"after {found}")]


@shape(1.2)
async def clan(n: int, m: int) -> list[str]:
    """Waits for one child, then for a group of them; some may fail."""
    first = await job("line").submit(1, m)
    tokens = []
    try:
        tokens += await first.result()
    except (JobFailed, JobCancelled):
        pass
    try:
        for found in await job("child").map(range(n), at_once=None if m > 1 else 2):
            tokens += found
    except ItemsFailed as failed:
        tokens += [token for found in failed.results if found for token in found]
    return [*tokens, await make(n, "end")]


@shape(0)
async def child(n: int) -> list[str]:
    token = await make(n)
    if n == 3:
        raise Broken("this one fails")
    return [token]


@shape(1.2)
async def buy(n: int, m: int) -> list[str]:
    first = await make(n)
    return [first, *[await pay(place) for place in range(m)]]


@shape(1.5, cleanup=clean_up)
async def lodge(n: int, m: int) -> list[str]:
    tokens = list(await asyncio.gather(*(rent(place) for place in range(m))))
    await asyncio.sleep(scene().random.random() * n)
    tokens.append(await rent(n, "more"))
    if n == 4:
        raise Broken("a person will discard it")
    return tokens


def job(type: str, app: App | None = None) -> AsyncJob[Any, Any]:
    """A job of the running process's app, to submit it."""
    spec = TEMPLATE.registry.get(type)
    assert spec is not None
    return AsyncJob((app or program().app).open, spec)
