"""What a job spends is recorded with its steps, and its status says what was kept, wasted and saved."""

import asyncio

import pytest

from holdfast import Retry, spend, step, wait_for
from holdfast.core.errors import Invalid
from holdfast.core.model import State
from holdfast.core.spending import SPENT_PATH
from holdfast.jobs.consequences import presence_of, running_of
from holdfast.jobs.lost_workers import decide_loss, read_past
from tests.support.given import in_state, until
from tests.worker.isolation import isolated_jobs as isolated

ENGINES = ["memory", "sqlite", "file", "postgres", "redis"]
AT_ONCE = Retry(retries=1, strategy="constant", initial_ms=0, jitter=False)


@step
async def draw(n: int) -> int:
    spend(usd=0.04, tokens=100)
    return n


@step
def narrate(n: int) -> int:
    spend(usd=0.5)
    return n


async def spent(run):
    status = await run.status()
    return status.spent, status.wasted, status.saved


async def test_what_steps_spend_adds_up(app):
    @app.job
    async def film() -> None:
        await draw.map(range(5))
        await narrate.aio(1)
        spend(tokens=7)

    run = await film.submit()
    async with app.worker():
        await run.result(10)

    assert await spent(run) == ({"usd": 0.7, "tokens": 507}, {}, {})
    assert "$0.70 and 507 tokens spent" in str(await run.status())


async def test_amounts_are_recorded_with_their_step_and_not_beside_steps_that_spend_nothing(app):
    @step(name="free")
    async def free() -> None: ...

    @app.job
    async def film() -> None:
        await free()
        await draw(1)

    run = await film.submit()
    async with app.worker():
        await run.result(10)

    beside = [one.path for one in await app.engine.steps(run.id) if one.path.startswith(SPENT_PATH)]
    assert len(beside) == 1
    assert beside[0].startswith(f"{SPENT_PATH}draw#")


async def test_what_a_running_step_has_spent_is_shown_while_it_runs(app):
    gate = asyncio.Event()

    @step(name="long")
    async def long() -> None:
        spend(usd=1)
        await gate.wait()

    @app.job
    async def film() -> None:
        await long()

    run = await film.submit()
    async with app.worker():

        async def shown():
            return (await run.status()).spent == {"usd": 1}

        await until(shown)
        assert "$1.00 spent" in str(await run.status())
        gate.set()
        await run.result(10)
    assert await spent(run) == ({"usd": 1}, {}, {})


async def test_a_try_that_fails_is_wasted(app):
    tries = []

    @step(name="flaky", retries=AT_ONCE)
    async def flaky() -> int:
        spend(usd=2)
        tries.append(1)
        if len(tries) == 1:
            raise ConnectionError("again")
        return 1

    @app.job
    async def film() -> int:
        return await flaky()

    run = await film.submit()
    async with app.worker():
        await run.result(10)

    assert await spent(run) == ({"usd": 4}, {"usd": 2}, {})
    status = await run.status()
    assert "$4.00 spent, $2.00 of it wasted" in str(status)
    assert status.spending.wasted_by == {"flaky": {"usd": 2_000_000}}


async def test_a_retried_job_saves_what_is_recorded_and_wastes_what_failed(app):
    tries = []

    @step(name="fails")
    async def fails() -> None:
        spend(usd=3)
        tries.append(1)
        if len(tries) == 1:
            raise ConnectionError("again")

    @app.job(retries=AT_ONCE)
    async def film() -> None:
        await draw(1)
        await fails()

    run = await film.submit()
    async with app.worker():
        await run.result(10)

    assert await spent(run) == (
        {"usd": 6.04, "tokens": 100},
        {"usd": 3},
        {"usd": 0.04, "tokens": 100},
    )


async def test_a_wait_saves_nothing(app):
    @app.job
    async def film() -> None:
        await draw(1)
        await wait_for("go")

    run = await film.submit()
    async with app.worker():
        await in_state(app, run, State.PENDING)
        assert await spent(run) == ({"usd": 0.04, "tokens": 100}, {}, {})
        await run.signal("go")
        await run.result(10)

    assert await spent(run) == ({"usd": 0.04, "tokens": 100}, {}, {})


@pytest.mark.parametrize("engine", ["memory", "sqlite"], indirect=True)
async def test_a_lost_worker_wastes_what_ran_and_the_next_one_saves_what_was_recorded(app):
    began = asyncio.Event()

    @step(name="cut")
    async def cut() -> None:
        spend(usd=5)
        if not began.is_set():
            began.set()
            await asyncio.Event().wait()

    @app.job
    async def film() -> None:
        await draw(1)
        await cut()

    run = await film.submit()
    async with app.worker():

        async def shown():
            return (await run.status()).spent == {"usd": 5.04, "tokens": 100}

        await until(shown)
        job = await app.jobs.get(run.id)
        await lapse(app, job)
        await run.result(10)

    status = await run.status()
    assert status.spent == {"usd": 10.04, "tokens": 100}
    assert status.wasted == {"usd": 5}
    assert status.spending.wasted_by == {"cut": {"usd": 5_000_000}}
    assert status.saved == {"usd": 0.04, "tokens": 100}
    assert "at least $10.04" in str(status)


async def lapse(app, job):
    """Take a job from its worker, as upkeep does with one that it takes for dead."""
    running = running_of(await presence_of(app.engine, job), job)
    past = await read_past(app.engine, job.id)
    change = decide_loss(job, past, await app.engine.now(), by="test", why="for a test", running=running)
    await app.engine.commit([change])


@pytest.mark.parametrize("engine", ["memory"], indirect=True)
async def test_an_isolated_step_spends_too(app):
    @app.job
    async def film() -> None:
        await isolated.buys(1)

    run = await film.submit()
    async with app.worker():
        await run.result(30)
    assert await spent(run) == ({"usd": 0.25}, {}, {})


@pytest.mark.parametrize("engine", ["memory"], indirect=True)
@pytest.mark.parametrize("amount", [-1, float("nan"), float("inf"), True, "1", 2_000_000_000])
async def test_an_amount_that_cannot_be_right_is_refused(app, amount):
    @step(name="wrong")
    async def wrong() -> None:
        with pytest.raises(Invalid, match=r"spend\(\): usd=.*give a number from 0 to"):
            spend(usd=amount)

    @app.job
    async def film() -> None:
        await wrong()

    run = await film.submit()
    async with app.worker():
        await run.result(10)


def test_outside_a_job_nothing_is_spent():
    spend(usd=1)
