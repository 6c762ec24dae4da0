"""The jobs of the stores that are kept to try upgrades on. They hang and fail while such a store is made.

Must use nothing but the public surface, so that older and newer versions can run it. What is made while the store is
made says "then", and what is made after the upgrade says "now".
"""

import asyncio
import os
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from pydantic import BaseModel

from holdfast import App, Settings, sleep, step, wait_for
from holdfast.core.model import Retry

MAKING = "HOLDFAST_UPGRADES_MAKING"
"""Set while a store is made."""

LATER = "later"
"""The queue that nobody serves while a store is made."""

SETTINGS = Settings(
    beat_seconds=0.2,
    lease_seconds=1.5,
    look_seconds=0.1,
    poll_seconds=0.5,
    grace_seconds=0.5,
    upkeep_seconds=0.2,
    keep_days=40_000,
)
FOREVER_SECONDS = 3_600.0
UNDONE: list[str] = []


def is_making() -> bool:
    return MAKING in os.environ


def when() -> str:
    return "then" if is_making() else "now"


async def erase(value: str | None) -> None:
    UNDONE.append(f"{value} {when()}")


@step
async def draw(n: int) -> str:
    return f"{n} {when()}"


@step(undo=erase)
async def paint(size) -> str:
    return f"{size[0]} {when()}"


@step(effect="once", key=lambda sum: f"payment {sum[0]}")
async def pay(sum) -> str:
    if is_making():
        await asyncio.sleep(FOREVER_SECONDS)
    return f"{sum[0]} {when()}"


class Size(BaseModel):
    width: int


OPEN = ((1, 2), b"ab", {1: 2}, Decimal("1.5"), datetime(2026, 3, 1, tzinfo=UTC), Size(width=1))
"""What format 1 took without a hint, and JSON gives back as another type."""

AS_JSON = ([1, 2], "YWI=", {"1": 2}, "1.5", "2026-03-01T00:00:00Z", {"width": 1})
"""As which."""


@step
async def took(value) -> str:
    return f"{value} {when()}"


@step
def took_plainly(value) -> str:
    return f"{value} {when()}"


@step(isolate="process")
def took_apart(value) -> str:
    return f"{value} {when()}"


def shown(value) -> str:
    return str(value)


async def plain(n: int) -> int:
    return 2 * n


async def stepped(n: int) -> list[str]:
    made = [await draw(0)]
    if is_making():
        await asyncio.sleep(FOREVER_SECONDS)
    return [*made, *[await draw(m) for m in range(1, n)]]


async def listener() -> list[Any]:
    return [await draw(0), await wait_for("go", as_=int)]


async def sleeper() -> list[str]:
    made = await draw(0)
    await sleep("1h")
    return [made, await draw(1)]


async def flaky() -> str:
    if is_making():
        raise ValueError("not then")
    return when()


async def broken(n: int) -> str:
    if is_making():
        raise ValueError("broken then")
    return f"mended {n}"


async def buyer() -> list[str]:
    return [await draw(0), await pay((1, "eur"))]


async def painter() -> None:
    await paint((1, 2))
    await wait_for("never")


async def taker() -> list[str]:
    made = [await took(value) for value in OPEN]
    made += await took.map(OPEN)
    made += await took_plainly.aio.map(OPEN)
    await wait_for("go")
    return [*made, await took((3, 4))]


async def apart() -> list[str]:
    made = [*await took_apart.aio.map(OPEN), await took_apart.aio(OPEN[0])]
    await wait_for("go")
    return made


def plain_taker() -> list[str]:
    made = [took_plainly(value) for value in OPEN]
    made += took_plainly.map(OPEN)
    wait_for.sync("go")
    return [*made, took_plainly((3, 4))]


def build(url: str, engine: Any = None) -> tuple[App, dict[str, Any]]:
    """An App with these jobs, and the jobs by their names."""
    app = App(url, settings=SETTINGS) if engine is None else App(url, settings=SETTINGS, engine=engine)
    functions = (plain, shown, stepped, listener, sleeper, buyer, painter, taker, plain_taker, apart)
    jobs: dict[str, Any] = {one.__name__: app.job(name=f"upgrades.{one.__name__}")(one) for one in functions}
    jobs["flaky"] = app.job(name="upgrades.flaky", retries=Retry(retries=5, initial_ms=3_600_000))(flaky)
    jobs["broken"] = app.job(name="upgrades.broken", retries=0)(broken)
    child = jobs["child"] = app.job(name="upgrades.child", queue=LATER)(plain)

    async def parent(n: int) -> int:
        return sum(await child.map(range(n)))

    jobs["parent"] = app.job(name="upgrades.parent")(parent)
    given = jobs["given"] = app.job(name="upgrades.given", queue=LATER)(shown)

    async def giver() -> list[str]:
        runs = [await given.submit(value) for value in OPEN]
        mapped, *made = await asyncio.gather(given.map(OPEN), *(run.result() for run in runs))
        return mapped + made

    jobs["giver"] = app.job(name="upgrades.giver")(giver)
    return app, jobs
