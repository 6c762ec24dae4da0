"""`@app.job(fair=…)`: what it takes and refuses, and whose turn it is."""

import pytest
from msgspec import Struct

from holdfast import App, Invalid
from holdfast.core.fairness import FAIR_KEY_CHARACTERS
from holdfast.core.model import Where


class Order(Struct):
    customer: str


def test_jobs_of_many_customers_take_turns(app: App) -> None:
    started: list[str] = []

    @app.job(fair="{customer}")
    async def render(customer: str, number: int) -> None:
        started.append(customer)

    async def go() -> None:
        await render.submit_many([("big", number) for number in range(6)])
        runs = [await render.submit(customer, 0) for customer in ("small", "tiny")]
        async with app.worker(at_once=1):
            for run in runs:
                await run.result(timeout=30)

    play(app, go())
    assert set(started[:3]) == {"big", "small", "tiny"}


@pytest.mark.parametrize(
    ("fair", "key"),
    [
        ("{customer}", "acme"),
        ("{order.customer}", "zeta"),
        ("{customer}/{size}", "acme/3"),
        ("plan-{size}", "plan-3"),
    ],
)
def test_the_key_comes_from_the_arguments(app: App, fair: str, key: str) -> None:
    @app.job(fair=fair)
    async def render(customer: str, order: Order, size: int = 3) -> None:
        pass

    async def go() -> list[str]:
        await render.submit("acme", Order("zeta"))
        await render.submit_many([("acme", Order("zeta"))])
        return [job.options.fair for job in await (await app.open()).engine.find(Where())]

    assert play(app, go()) == [key, key]


def test_a_long_key_is_replaced_by_its_hash(app: App) -> None:
    @app.job(fair="{customer}")
    async def render(customer: str) -> None:
        pass

    async def go() -> set[str]:
        for customer in ("x" * 1_000, "x" * 1_001):
            await render.submit(customer)
        return {job.options.fair for job in await (await app.open()).engine.find(Where())}

    keys = play(app, go())
    assert len(keys) == 2
    assert all(0 < len(key) <= FAIR_KEY_CHARACTERS for key in keys)


@pytest.mark.parametrize(
    ("fair", "line"),
    [
        (5, "job render: fair=5: give a text with an argument's name in braces"),
        ("customer", "job render: fair='customer' names no argument"),
        ("", "job render: fair='' names no argument"),
        ("{custmer}", "job render: fair names {custmer}, which isn't a parameter; did you mean customer?"),
        ("{queue}", "job render: fair names {queue}, which isn't a parameter; there are customer"),
        ("{customer", "job render: fair='{customer' can't be read"),
        ("{customer!r}", "job render: fair='{customer!r}': write plain names in the braces"),
    ],
)
def test_a_wrong_template_is_refused_in_one_line(app: App, fair: object, line: str) -> None:
    with pytest.raises(Invalid) as refusal:

        @app.job(fair=fair)  # type: ignore[call-overload]
        async def render(customer: str) -> None:
            pass

    assert line in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_value_without_the_field_is_refused(app: App) -> None:
    @app.job(fair="{order.customer}")
    async def render(order: dict[str, str]) -> None:
        pass

    with pytest.raises(Invalid, match=r"fair names \{order.customer\}, but the value given has no 'customer'"):
        play(app, render.submit({}))


def play(app: App, work):
    """Run something on the app's store, and close the store."""
    import asyncio

    async def bounded():
        async with asyncio.timeout(60):
            try:
                return await work
            finally:
                await app.close()

    return asyncio.run(bounded())
