"""Code of a job that runs an event loop of its own, as `asyncio.run` in a `def` job does."""

import asyncio

import pytest

from holdfast import sleep, step, wait_for
from holdfast.core.model import State
from tests.support.given import AT_ONCE_RETRY, events, finished, in_state, paths, until

ENGINES = ("memory", "sqlite", "postgres", "redis")

RAN: list[int] = []


@pytest.fixture(autouse=True)
def fresh():
    RAN.clear()


@step
async def fetch(n: int) -> int:
    RAN.append(n)
    await asyncio.sleep(0.01)
    return n


@step
def carve(n: int) -> int:
    RAN.append(n)
    return n


async def both(numbers: range) -> list[int]:
    return [*await asyncio.gather(*map(fetch, numbers)), *await asyncio.gather(*map(carve.aio, numbers))]


async def mapped(numbers: range) -> list[int]:
    return [*await fetch.map(numbers), *await carve.aio.map(numbers)]


@pytest.mark.parametrize("way", [both, mapped])
async def test_a_def_job_runs_its_async_steps_in_one_loop_after_the_other(app, way):
    @app.job(retries=0)
    def film() -> list[int]:
        return asyncio.run(way(range(5))) + asyncio.run(way(range(5, 10)))

    run = await film.submit()
    job = await finished(app, run)
    assert job.state is State.COMPLETED, job.error
    assert await run.result() == [*range(5), *range(5), *range(5, 10), *range(5, 10)]
    assert len(RAN) == len(await paths(app, run)) == 20


@pytest.mark.parametrize("way", [both, mapped])
async def test_an_async_job_runs_steps_on_its_own_loop_and_on_that_of_a_thread(app, way):
    @app.job(retries=0)
    async def film() -> list[int]:
        beside = asyncio.to_thread(lambda: asyncio.run(way(range(5, 10))))
        return [one for found in await asyncio.gather(way(range(5)), beside) for one in found]

    run = await film.submit()
    job = await finished(app, run)
    assert job.state is State.COMPLETED, job.error
    assert len(RAN) == len(await paths(app, run)) == 20


async def test_what_another_loop_called_is_known_again_after_a_wait_there(app, clock):
    async def story() -> list[object]:
        one = await fetch(1)
        await sleep("1h")
        return [one, await wait_for("go"), await fetch(1)]

    @app.job(retries=0)
    def film() -> list[object]:
        return asyncio.run(story())

    run = await film.submit()
    async with app.worker():
        await in_state(app, run, State.SCHEDULED)
        await run.signal("go", "now")
        clock.advance(3_600)
        assert await run.result(20) == [1, "now", 1]
    assert RAN == [1, 1]
    assert "rest" in await events(run)


async def test_children_are_submitted_and_waited_for_from_another_loop(app):
    @app.job
    async def kid(n: int) -> int:
        return n

    async def family() -> list[int]:
        runs = [await kid.submit(1), *await kid.submit_many([(2,), (3,)])]
        return [*[await run.result() for run in runs], *await kid.map([4, 5]), *await kid.map([6], at_once=1)]

    @app.job(retries=0)
    def film() -> list[int]:
        return asyncio.run(family())

    run = await film.submit()
    job = await finished(app, run)
    assert job.state is State.COMPLETED, job.error
    assert await run.result() == [1, 2, 3, 4, 5, 6]
    assert (await app.engine.count())["default", State.COMPLETED] == 7


async def test_a_failure_is_told_and_tried_again_there(app):
    @step(name="flaky", retries=AT_ONCE_RETRY)
    async def flaky() -> int:
        RAN.append(1)
        if len(RAN) < 3:
            raise ConnectionError("429")
        return await fetch(7)

    @step(name="fails")
    async def fails() -> None:
        raise ValueError("no")

    async def story() -> int:
        with pytest.raises(ValueError, match="no"):
            await fails()
        return await flaky()

    @app.job(retries=0)
    def film() -> int:
        return asyncio.run(story())

    run = await film.submit()
    job = await finished(app, run)
    assert job.state is State.COMPLETED, job.error
    assert RAN == [1, 1, 1, 7]


async def test_a_cancel_on_another_loop_reaches_the_step_and_one_of_the_job_ends_both(app):
    cut: list[str] = []

    @step(name="hangs")
    async def hangs(what: str) -> None:
        try:
            RAN.append(1)
            await asyncio.sleep(60)
        finally:
            cut.append(what)

    async def story() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(hangs("inside"), 0.1)
        await hangs("outside")

    @app.job(retries=0)
    def film() -> None:
        asyncio.run(story())

    run = await film.submit()
    async with app.worker():
        await until(lambda: len(RAN) == 2)
        assert cut == ["inside"]
        await run.cancel("enough")
        await until(lambda: cut == ["inside", "outside"])
        await in_state(app, run, State.CANCELLED)
    assert await paths(app, run) == []
