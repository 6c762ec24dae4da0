"""Budgets in a worker: a step starts while something is left, and past that the job waits until a person adds to it."""

import asyncio
from collections import Counter

import pytest

from holdfast import Invalid, Throttled, spend, step
from holdfast.core.model import Event, State, Where
from holdfast.core.shared_limits import LIMIT
from holdfast.jobs.budgets import get_budget, list_budgets
from tests.support.given import AT_ONCE_RETRY, QUICK, entry_of, in_state, until

WAITING = Where(states=(State.PENDING,))
ENGINES = ("memory", "file", "sqlite", "postgres", "redis")

HASTY = QUICK.__class__(**{**{name: getattr(QUICK, name) for name in QUICK.__struct_fields__}, "limit_seconds": 0.05})


@step(name="paid")
async def paid(n: int) -> int:
    spend(usd=2)
    return n


@step(name="dear", cost={"usd": 2})
async def dear(n: int) -> int:
    return n


async def left_of(app, run, currency="usd"):
    return (await get_budget(app.engine, run.id))[1].left[currency] / 1_000_000


async def test_blocking_code_adds_to_a_budget(app):
    app.settings = HASTY

    @app.job(budget={"usd": 1})
    async def film() -> list[int]:
        return [await paid(n) for n in range(2)]

    run = await film.submit()
    async with app.worker():
        await in_state(app, run, State.PENDING)
        await asyncio.to_thread(lambda: app.sync.run(run.id).add_budget(usd=2, reason="worth it"))
        assert await run.result(20) == [0, 1]


async def test_past_its_budget_a_job_waits_until_a_person_adds_to_it(app):
    app.settings = HASTY

    @app.job(budget={"usd": 3})
    async def film() -> list[int]:
        return [await paid(n) for n in range(3)]

    run = await film.submit()
    async with app.worker():
        await in_state(app, run, State.PENDING)
        status = await run.status()
        assert str(status) == "waiting for budget: $4.00 of $3.00 spent"
        assert status.steps == 2  # the second one started while something was left
        assert status.spent == {"usd": 4}
        assert (await entry_of(run, Event.SUSPEND)).note["waits"] == ["budget (usd)"]
        await run.add_budget(usd=1)
        await asyncio.sleep(0.2)
        assert (await run.status()).state is State.PENDING
        await run.add_budget(usd=0.5, reason="worth it")
        assert await run.result(20) == [0, 1, 2]

    status = await run.status()
    assert status.spent == {"usd": 6}
    assert "budget: $6.00 of $4.50 spent" in str(status)
    notes = (await get_budget(app.engine, run.id))[1].notes
    assert [(one.added, one.reason) for one in notes] == [({"usd": 1_000_000}, ""), ({"usd": 500_000}, "worth it")]


async def test_a_declared_cost_is_reserved_before_the_step_starts(app):
    app.settings = HASTY

    @app.job(budget={"usd": 5})
    async def film() -> list[int]:
        return list(await asyncio.gather(*(dear(n) for n in range(3))))

    run = await film.submit()
    async with app.worker():
        await in_state(app, run, State.PENDING)
        status = await run.status()
        assert str(status) == "waiting for budget: $4.00 of $5.00 spent, the next step needs $2.00"
        assert status.spent == {"usd": 4}
        await run.add_budget(usd=0.99)
        await asyncio.sleep(0.2)
        assert (await run.status()).state is State.PENDING
        await run.add_budget(usd=0.01)
        assert await run.result(20) == [0, 1, 2]
    assert await left_of(app, run) == 0


@pytest.mark.parametrize("colour", ["async", "def"])
async def test_what_a_step_reports_counts_instead_of_its_declared_cost(app, colour):
    if colour == "async":

        @step(name="call", cost={"usd": 2, "tokens": 50})
        async def call() -> None:
            spend(usd=0.25)

        @app.job(budget={"usd": 5, "tokens": 100})
        async def film() -> None:
            await call()

    else:

        @step(name="call", cost={"usd": 2, "tokens": 50})
        def call() -> None:
            spend(usd=0.25)

        @app.job(budget={"usd": 5, "tokens": 100})
        def film() -> None:
            call()  # type: ignore[unused-coroutine]

    run = await film.submit()
    async with app.worker():
        await run.result(20)

    assert (await run.status()).spent == {"usd": 0.25, "tokens": 50}
    assert (await left_of(app, run), await left_of(app, run, "tokens")) == (4.75, 50)


async def test_a_cost_may_be_a_function_of_the_arguments(app):
    @step(name="call", cost=lambda prompt: {"tokens": 4 * len(prompt)})
    async def call(prompt: str, model: str = "x") -> None: ...

    @app.job(budget={"tokens": 100})
    async def film() -> None:
        await call("hello", model="y")

    run = await film.submit()
    async with app.worker():
        await run.result(20)

    assert await left_of(app, run, "tokens") == 80
    assert (await run.status()).spent == {"tokens": 20}


async def test_a_declared_cost_counts_as_spent_without_a_budget_too(app):
    @app.job
    async def film() -> None:
        await dear(1)
        await dear(2)

    run = await film.submit()
    async with app.worker():
        await run.result(20)

    assert (await run.status()).spent == {"usd": 4}
    assert await app.engine.records(LIMIT) == []


async def test_failed_tries_are_paid_and_a_try_that_the_provider_refused_is_not(app):
    tries = iter([ValueError("bad"), Throttled(retry_after=0.01), None])

    @step(name="call", cost={"usd": 1}, retries=AT_ONCE_RETRY)
    async def call() -> None:
        if (error := next(tries)) is not None:
            raise error

    @app.job(budget={"usd": 5})
    async def film() -> None:
        await call()

    run = await film.submit()
    async with app.worker():
        await run.result(20)

    status = await run.status()
    assert (status.spent, status.wasted) == ({"usd": 2}, {"usd": 1})
    assert await left_of(app, run) == 3


async def test_children_draw_on_the_budget_of_their_root(app):
    app.settings = HASTY

    @app.job(budget={"usd": 100})
    async def scene(n: int) -> int:
        return await dear(n)

    @app.job(budget={"usd": 5})
    async def film() -> list[int]:
        await paid(-1)
        return await scene.map(range(3))

    run = await film.submit()
    async with app.worker():
        await until(lambda: _waiting(app))
        await until(lambda: _left_is(app, run, 1))
        [(root, budget)] = await list_budgets(app.engine)
        assert (root.id, budget.granted) == (run.id, {"usd": 5_000_000})
        await run.add_budget(usd=20)
        assert await run.result(20) == [0, 1, 2]

    assert await left_of(app, run) == 25 - 8


async def _left_is(app, run, amount):
    return await left_of(app, run) == amount


async def _waiting(app):
    return [one for one in await app.jobs.statuses([job async for job in app.jobs.walk(WAITING)]) if one.limited]


@pytest.mark.parametrize("before", ["the answer", "the suspend"])
async def test_a_step_that_is_admitted_while_its_job_gives_up_its_slot_pays_once(app, engine, before):
    """Room comes just then: while the store has the ask and the job could give up its slot, or the other way round."""
    app.settings = HASTY
    raced = asyncio.Event()

    @app.job(budget={"usd": 5})
    async def film() -> list[int]:
        return [await dear(n) for n in range(3)]

    async def others_go_on() -> None:
        for _ in range(20):
            await asyncio.sleep(0.01)

    async def before_the_suspend(name: str, args: tuple) -> None:
        if name == "commit" and args[0][0].event is Event.SUSPEND and not raced.is_set():
            raced.set()
            await run.add_budget(usd=20)
            await others_go_on()

    async def slow_admit(asks, steps=()):
        asked.update(ask.path for ask in asks if ask.uses)
        if 2 not in asked.values() or raced.is_set():
            return await admit(asks, steps)
        raced.set()  # the one without room asks again
        await run.add_budget(usd=20)
        answer = await admit(asks, steps)
        await others_go_on()
        return answer

    asked: Counter[str] = Counter()
    admit = engine.engine.admit
    if before == "the answer":
        engine.engine.admit = slow_admit
    else:
        engine.before = before_the_suspend
    run = await film.submit()
    async with app.worker():
        assert await run.result(20) == [0, 1, 2]

    assert raced.is_set()
    assert await left_of(app, run) == 25 - 6


async def test_a_step_that_is_admitted_while_its_attempt_fails_pays_nothing(app, engine):
    app.settings = HASTY
    asked, attempts = asyncio.Event(), []

    @app.job(budget={"usd": 10}, retries=AT_ONCE_RETRY)
    async def film() -> int:
        attempts.append(1)
        if len(attempts) > 1:
            return await dear(1)
        async with asyncio.TaskGroup() as group:
            group.create_task(dear(1))
            await asked.wait()
            raise ValueError("no")

    async def slow_admit(asks, steps=()):
        answer = await admit(asks, steps)
        if asks and not asked.is_set():
            asked.set()
            for _ in range(20):
                await asyncio.sleep(0.01)
        return answer

    admit = engine.engine.admit
    engine.engine.admit = slow_admit
    run = await film.submit()
    async with app.worker():
        assert await run.result(20) == 1

    assert await left_of(app, run) == 10 - 2


async def test_what_is_spent_between_steps_counts_too(app):
    app.settings = HASTY

    @app.job(budget={"usd": 5})
    async def film() -> None:
        spend(usd=1)
        await paid(1)
        spend(usd=3)
        await paid(2)

    run = await film.submit()
    async with app.worker():
        await in_state(app, run, State.PENDING)
        assert str(await run.status()).startswith("waiting for budget: $6.00 of $5.00 spent")
        assert await left_of(app, run) == -1
        await run.add_budget(usd=10)
        await run.result(20)

    assert await left_of(app, run) == -1 + 10 - 1 - 3 - 2  # code between steps runs and pays again after a wait


async def test_two_additions_at_once_both_count(app):
    @app.job(budget={"usd": 1})
    async def film() -> None: ...

    run = await film.submit()
    await asyncio.gather(*(run.add_budget(usd=1) for _ in range(5)))

    assert (await get_budget(app.engine, run.id))[1].granted == {"usd": 6_000_000}


async def test_a_step_settles_what_it_really_used_of_a_rate(app):
    tokens = app.limit("tokens", rate="1000/h", burst=100)

    @step(name="call", limit=tokens.cost(lambda: 10))
    async def call() -> None:
        tokens.settle(150)

    @app.job
    async def film() -> None:
        await call()

    run = await film.submit()
    async with app.worker():
        await run.result(20)

    [used] = await app.engine.usage("tokens")
    assert used.tokens is not None
    assert -51_000_000 < used.tokens < -45_000_000  # the debt carries over


async def test_bad_amounts_are_refused_in_one_line(app):
    with pytest.raises(Invalid, match=r"job film: budget: usd=-5: give a number from 0"):

        @app.job(name="film", budget={"usd": -5})
        async def film() -> None: ...

    with pytest.raises(Invalid, match=r"job eur: budget: 'eur' isn't a currency; there are usd and tokens"):

        @app.job(name="eur", budget={"eur": 5})
        async def eur() -> None: ...

    with pytest.raises(Invalid, match=r"spend\(\): usd=-1: give a number from 0"):
        spend(usd=-1)
    with pytest.raises(Invalid, match=r"step call: its cost function takes 'promt'.*did you mean prompt"):

        @step(name="call", cost=lambda promt: {"usd": 1})
        async def call(prompt: str) -> None: ...

    with pytest.raises(Invalid, match=r"limit x has no rate="):
        app.limit("x", at_once=1).settle(1)
