"""Jobs that the tests of isolation run in processes of their own: many of them behave badly.

The App here is in memory: in a job's process it is another store, so that what reaches the test's store went over the
line to its worker.
"""

import asyncio
import ctypes
import logging
import os
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast import App, Duplicate, Retry, Throttled, Unique, ask, current, progress, sleep, spend, step, wait_for
from holdfast.core.errors import Invalid

app = App("memory:")
log = logging.getLogger("isolated")

AT_ONCE = Retry(retries=3, strategy="constant", initial_ms=0, jitter=False)


def told(path: str) -> None:
    """Add a line to a file: whose process it was."""
    with open(path, "a") as file:
        file.write(f"{os.getpid()}\n")


def lines(path: Any) -> list[int]:
    return [int(line) for line in Path(path).read_text().split()] if Path(path).exists() else []


async def there(path: str) -> None:
    """Wait until a file is there."""
    while not os.path.exists(path):  # noqa: ASYNC110, ASYNC240
        await asyncio.sleep(0.02)


class Own(BaseException):
    """An error that no `except Exception` catches."""


# Steps.


@dataclass
class Scene:
    number: int
    text: str = ""


@step(isolate="process")
async def buys(n: int) -> int:
    spend(usd=0.25)
    return n


@step
async def orders(n: int) -> int:
    spend(usd=1)
    return n


@step
async def draw(n: int) -> Scene:
    return Scene(n, str(os.getpid()))


@step(effect="transaction")
def book(n: int) -> int:
    return n


@step
def narrate(n: int) -> int:
    return n * 2


@step(key=lambda: "low")
def murmur() -> None:
    log.warning("a line of a step")


@step
async def outer(n: int) -> int:
    return (await draw(n)).number + await narrate.aio(n)


@step
def noted(path: str, n: int = 0) -> int:
    told(path)
    return n


@step(effect="once", key="charge")
def charge(path: str, how: str) -> str:
    told(path)
    if how == "dies":
        os._exit(7)
    if how == "hangs":
        time.sleep(60)
    return "charged"


def unmake(path: str | None) -> None:
    if path is not None:
        Path(path + ".undone").touch()


@step(undo=unmake)
def make(path: str) -> str:
    told(path)
    return path


@step(key="1", retries=Retry(retries=3, strategy="constant", initial_ms=60_000, jitter=False))
def flaky() -> None:
    raise ConnectionError("429")


@step(isolate="process")
def crash() -> None:
    ctypes.string_at(0)


@step(isolate="process")
def elsewhere() -> int:
    progress(1, 2, "half")
    log.warning("from the step")
    return os.getpid()


@step
def refuses(kind: str) -> None:
    raise Refused("no credit") if kind == "own" else Invalid("give a prompt")


class Refused(Exception):
    pass


@step(retries=AT_ONCE)
async def tried_again(path: str) -> list[int]:
    told(path + ".tries")
    found = [*await noted.aio.map([path, path + "2"]), await noted.aio(path)]
    await child.submit(1)
    if len(lines(path + ".tries")) < 3:
        raise ConnectionError("429")
    return found


# Jobs that do well.


@app.job(isolate="process")
async def tries_again(path: str) -> list[int]:
    return await tried_again(path)


@app.job(isolate="process")
async def film(n: int) -> dict[str, Any]:
    first = await draw(n)
    both = await asyncio.gather(outer(n), narrate.aio(n + 1))
    scenes = await draw.map(range(3))
    return {"pid": os.getpid(), "first": first.number, "both": both, "scenes": [scene.number for scene in scenes]}


@app.job(isolate="process")
async def plain() -> int:
    return os.getpid()


@app.job(isolate="process")
async def tries() -> None:
    await flaky.aio()


@app.job(isolate="process")
async def scene(n: int) -> int:
    return (await draw(n)).number


@app.job(isolate="process", retries=AT_ONCE)
async def books(n: int) -> int:
    return await book.aio(n)


@app.job(isolate="process")
def blocking(n: int) -> list[Any]:
    here = current()
    return [os.getpid(), narrate(n), draw.sync(n).number, narrate.map([1, 2]), here.job_id, here.attempt, here.epoch]


@app.job(isolate="process")
async def tells() -> None:
    progress(1, 4, "one of four")
    log.warning("a line")
    await asyncio.sleep(0.5)
    await murmur.aio()
    await narrate.aio(1)
    progress(3, 4, "three")
    await asyncio.sleep(30)


@app.job(isolate="process")
async def halfway(fails: bool) -> None:
    progress(3, 7)
    await narrate.aio(1)
    progress(6, 7)
    if fails:
        raise ValueError("no paper")


@app.job(isolate="process")
async def naps(path: str) -> int:
    told(path)
    n = await narrate.aio(21)
    await sleep("1h")
    return n


@app.job(isolate="process")
def naps_blocking(path: str) -> int:
    told(path)
    sleep.sync("1h")
    return 1


@app.job(isolate="process")
async def asks() -> str:
    name: str = await wait_for("name", as_=str)
    scene = await ask({"for": name}, form=Scene)
    return f"{name} {scene.number}"


@app.job(isolate="process", retries=0)
async def listens(number: int) -> list[int]:
    """Hears so many signals, with a timer that strikes again and again."""
    heard: list[int] = []
    while len(heard) < number:
        try:
            async with asyncio.timeout(0.01):
                heard.append(await wait_for("s", as_=int))
        except TimeoutError:
            pass
    return heard


@app.job
async def child(n: int) -> int:
    if n < 0:
        raise Invalid("below zero")
    return n * 10


@app.job(isolate="process")
async def parent(n: int) -> list[int]:
    run = await child.submit(n)
    return [await run.result(), *await child.map([1, 2, 3])]


@app.job(isolate="process")
def parent_blocking(n: int) -> int:
    return app.sync.submit(child, n).result()


@app.job(isolate="process", most_children=2, retries=0)
async def crowds(number: int) -> int:
    return len(await child.submit_many(range(number)))


ONLY_ONE = Unique(by=("args",), within="1h", then="refuse")


@app.job(isolate="process", retries=0)
async def is_refused(n: int) -> list[str]:
    try:
        await child.submit(n, unique=ONLY_ONE)
    except Duplicate as error:
        return [error.id, (await error.existing.status()).id]
    return []


@app.job(isolate="process")
async def looks(other: str) -> list[str]:
    run = await app.run(other)
    await run.signal("hello", 1)
    return [(await run.status()).state, (await app.jobs.get(other)).type]


@step
async def big(n: int) -> str:
    return "x" * 900_000


@app.job(isolate="process")
async def large_then_waits(n: int) -> int:
    total = sum(len(text) for text in await big.map(range(n)))
    await wait_for("go")
    return total


@app.job(isolate="process")
async def with_isolated_step(dies: bool) -> list[int]:
    if dies:
        await crash.aio()
    return [os.getpid(), await elsewhere.aio()]


@app.job(isolate="process", retries=0)
async def catches(kind: str) -> str:
    try:
        await refuses.aio(kind)
    except Refused as error:
        return f"caught {error}"
    return "nothing"


# Jobs that die, or don't end.


@app.job(isolate="process", retries=AT_ONCE)
async def dies(path: str, how: str) -> str:
    await noted.aio(path, 1)
    if current().attempt == 1:
        if how == "segfault":
            ctypes.string_at(0)
        if how == "exit":
            os._exit(3)
        if how == "kill":
            os.kill(os.getpid(), 9)
        if how == "sys.exit":
            sys.exit(4)
        if how == "raise":
            raise ValueError("the prompt is empty")
        if how == "generator":
            raise GeneratorExit("closed")
        if how == "own":
            raise Own("no exception")
        if how == "cancelled":
            task = asyncio.ensure_future(asyncio.sleep(60))
            task.cancel()
            await task
        if how == "stops the loop":
            asyncio.get_running_loop().stop()
            await asyncio.sleep(60)
        if how == "exits in a task":
            task = asyncio.ensure_future(exits())
            await asyncio.sleep(60)
    return "done"


async def exits() -> None:
    sys.exit(4)


@app.job(isolate="process", retries=0, memory_mb=200)
def grows(megabytes: int) -> int:
    return len(bytearray(megabytes << 20))


@app.job(isolate="process", retries=0, timeout="8s")
def never(path: str) -> None:
    told(path)
    sum(range(10**12))


@app.job(isolate="process")
async def tidies(path: str) -> None:
    told(path)
    try:
        await asyncio.sleep(60)
    finally:
        told(path + ".tidied")


@app.job(isolate="process")
def deaf(path: str) -> None:
    make(path + ".made")
    told(path)
    sum(range(10**12))


@app.job(isolate="process")
async def counts(path: str) -> int:
    for n in range(3):
        await noted.aio(path, n)
    told(path + ".here")
    await there(path + ".go")
    return 3


@app.job(isolate="process", retries=0)
async def shops() -> None:
    await orders(1)
    await buys(1)
    spend(tokens=3)


@app.job(isolate="process", retries=0)
async def wastes() -> None:
    await orders(1)
    spend(usd=2)
    raise ValueError("no film")


@app.job(isolate="process", retries=0)
async def pays(path: str, how: str) -> str:
    return await charge.aio(path, how)


@step(effect="once", key="apart", isolate="process")
def charge_apart(path: str) -> str:
    told(path)
    return "charged apart"


@step(key=lambda n, path: n)
async def part(n: int, path: str) -> str:
    return await charge_apart.aio(path) + await charge.aio(path, "well")


@app.job(isolate="process", retries=0)
async def pays_in_parts(path: str) -> list[str]:
    return list(await asyncio.gather(part(1, path), part(2, path), charge_apart.aio(path)))


@app.job(isolate="process", retries=0)
async def leaves_an_effect(path: str) -> str:
    task = asyncio.create_task(stays(path))
    await there(path)
    return f"all fine, {task.done()}"


@step(effect="once", key="stays")
async def stays(path: str) -> str:
    told(path)
    await asyncio.sleep(60)
    return "lingered"


@app.job(isolate="process")
def leaves_a_thread(path: str) -> int:
    told(path)
    threading.Thread(target=time.sleep, args=(60,)).start()
    return os.getpid()


@app.job(isolate="process")
async def uses_threads() -> int:
    await asyncio.to_thread(os.getpid)
    return os.getpid()


@app.job(isolate="process", retries=0)
async def wrong() -> int:
    return "no number"  # type: ignore[return-value]


@app.job(isolate="process", retries=3)
async def invalid() -> int:
    raise Invalid("give a prompt")


@app.job
async def beside() -> int:
    await asyncio.sleep(0.05)
    return 1


@step
async def waits(path: str) -> str:
    told(path)
    await there(path + ".go")
    return f"epoch {current().epoch}"


@app.job(isolate="process")
async def waits_in_a_step(path: str) -> str:
    return await waits(path)


@app.job(isolate="process")
async def waits_for_file_then_steps(path: str) -> None:
    told(path)
    await there(path + ".go")
    await noted.aio(path + ".step", 1)


@app.job(isolate="process", retries=0)
def crashes() -> None:
    ctypes.string_at(0)


@step(stale_after="500ms")
def stalls(path: str) -> str:
    told(path)
    if current().epoch == 1:
        sum(range(10**12))
    return f"epoch {current().epoch}"


@app.job(isolate="process")
async def goes_stale(path: str) -> str:
    return await stalls.aio(path)


@step(isolate="process")
def lingers(path: str) -> None:
    told(path)
    time.sleep(60)


@app.job(isolate="process")
async def waits_for_an_isolated_step(path: str) -> None:
    await lingers.aio(path)


api = app.limit("api", at_once=2)


@step(limit=api)
async def limited(n: int) -> int:
    return n


@app.job(isolate="process")
async def asks_for_permits(items: int) -> list[int]:
    return await limited.map(range(items), at_once=items)


@step(limit=api, isolate="process")
def throttled_elsewhere(n: int) -> int:
    raise Throttled("429", retry_after=600)


@app.job
async def is_throttled_elsewhere() -> int:
    return await throttled_elsewhere.aio(1)
