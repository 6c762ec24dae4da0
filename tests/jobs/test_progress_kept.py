"""How far a job came is still told when it has ended, whichever way it did."""

import asyncio

from holdfast import Retry, progress, sleep, step, wait_for
from holdfast.core.model import State
from tests.support.given import in_state, until

ENGINES = ["memory", "sqlite", "file", "postgres", "redis"]
NEVER = 3_600.0


@step
async def draw(n: int) -> int:
    return n


async def told(run):
    status = await run.status()
    return status.done, status.total


async def shows(run, *numbers):
    async def does():
        return await told(run) == numbers

    await until(does)


def hanging(app):
    """A job that says how far it is, and stays there."""

    @app.job
    async def film() -> None:
        progress(3, 7)
        await asyncio.Event().wait()

    return film


async def test_what_a_job_said_last_is_told_after_it_has_completed(app):
    gate = asyncio.Event()

    @app.job
    async def film() -> None:
        progress(3, 7, "three")
        await gate.wait()
        progress(6, 7)

    run = await film.submit()
    async with app.worker():
        await shows(run, 3, 7)
        gate.set()
        await run.result(10)
    assert await told(run) == (6, 7)


async def test_what_it_said_counts_for_more_than_its_steps(app):
    @app.job
    async def film() -> None:
        await draw.map(range(4))
        progress(5, 7)

    run = await film.submit()
    async with app.worker():
        await run.result(10)
    assert await told(run) == (5, 7)


async def test_a_job_that_failed_after_a_map_tells_how_much_there_was_until_it_is_discarded_and_after(app):
    @app.job(retries=0)
    async def film() -> None:
        await draw.map(range(4))
        raise ValueError("no paper")

    run = await film.submit()
    async with app.worker():
        await in_state(app, run, State.REVIEW)
    assert await told(run) == (4, 4)
    await run.discard()
    assert await told(run) == (4, 4)


async def test_what_a_failed_attempt_said_is_not_told_of_one_that_completed(app):
    tries = []

    @app.job(retries=Retry(retries=1, strategy="constant", initial_ms=0, jitter=False))
    async def film() -> None:
        tries.append(1)
        if len(tries) == 1:
            progress(1, 7)
            raise ConnectionError("again")
        await draw.map(range(4))

    run = await film.submit()
    async with app.worker():
        await run.result(10)
    assert await told(run) == (4, 4)


async def test_a_job_that_is_cancelled_while_it_runs_tells_how_far_it_was(app):
    run = await hanging(app).submit()
    async with app.worker():
        await shows(run, 3, 7)
        await run.cancel()
        assert await told(run) == (3, 7)
    assert (await run.status()).state is State.CANCELLED
    assert await told(run) == (3, 7)


async def test_a_job_that_is_cancelled_while_it_sleeps_tells_how_far_it_was(app):
    @app.job
    async def film() -> None:
        progress(3, 7)
        await sleep(NEVER)

    run = await film.submit()
    async with app.worker():
        await in_state(app, run, State.SCHEDULED)
    assert await told(run) == (3, 7)
    await run.cancel()
    assert await told(run) == (3, 7)


async def test_a_job_that_told_how_far_it_was_waits_and_resumes_as_any_other(app):
    @app.job
    async def film() -> list[int]:
        await draw.map(range(4))
        first = await wait_for("go", as_=int)
        progress(5, 7)
        return [first, await wait_for("on", as_=int)]

    run = await film.submit()
    async with app.worker():
        for numbers, signal in (((4, 4), "go"), ((5, 7), "on")):
            await in_state(app, run, State.PENDING)
            await shows(run, *numbers)
            await run.signal(signal, 1)
        assert await run.result(10) == [1, 1]
    assert await told(run) == (5, 7)


async def test_a_job_that_is_handed_over_tells_how_far_it_was(app):
    run = await hanging(app).submit()
    async with app.worker():
        await shows(run, 3, 7)
    assert (await run.status()).state is State.AVAILABLE
    assert await told(run) == (3, 7)


async def test_telling_progress_costs_no_write(app, engine):
    @app.job
    async def film() -> None:
        for n in range(200):
            progress(n, 200)

    run = await film.submit()
    before = engine.calls["record"]
    async with app.worker():
        await run.result(10)
    assert engine.calls["record"] == before
    assert await told(run) == (199, 200)
