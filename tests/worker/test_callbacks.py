"""A callback token answers one wait of one job, once: early or late, forged or used, each is told apart."""

import asyncio

import pytest

from holdfast import App, callback, step
from holdfast.core.errors import BadValue, NotAllowed, NotFound
from holdfast.core.model import State
from holdfast.jobs.callbacks import answer_callback
from tests.support.given import until

ENGINES = ["memory", "file", "sqlite", "postgres", "redis"]

tokens: list[str] = []
world = {"hold": False}


@step
async def order(webhook: str) -> str:
    tokens.append(webhook)
    while world["hold"]:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    return "ordered"


@pytest.fixture
def film(app: App):
    tokens.clear()
    world["hold"] = False

    @app.job(retries=0)
    async def film() -> int:
        async with callback(as_=dict[str, int], within="2h") as cb:
            await order(cb.token)
            return (await cb.wait())["seconds"]

    return film


async def in_state(app: App, run, state: State) -> None:
    async def is_there() -> bool:
        (job,) = await app.engine.get([run.id])
        return job is not None and job.state is state

    await until(is_there)


async def test_an_answer_wakes_the_job_and_the_token_is_the_same_when_it_runs_again(app: App, film):
    async with app.worker():
        run = await film.submit()
        await in_state(app, run, State.PENDING)
        jobs = await app.open()
        await answer_callback(jobs, tokens[0], {"seconds": 7})
        assert await run.result(timeout=60) == 7
        with pytest.raises(NotAllowed, match=f"job {run.id} is already completed, so its callback can't be answered"):
            await answer_callback(jobs, tokens[0], {"seconds": 8})
    assert len(tokens) == 1


async def test_an_answer_may_come_before_the_wait_and_only_once(app: App, film):
    world["hold"] = True
    async with app.worker():
        run = await film.submit()
        await until(lambda: tokens)
        jobs = await app.open()
        await answer_callback(jobs, tokens[0], {"seconds": 7})
        with pytest.raises(NotAllowed, match="its callback was already answered; a callback token works once"):
            await answer_callback(jobs, tokens[0], {"seconds": 8})
        world["hold"] = False
        assert await run.result(timeout=60) == 7


async def test_of_two_answers_at_once_one_is_taken(app: App, film):
    async with app.worker():
        run = await film.submit()
        await in_state(app, run, State.PENDING)
    jobs = await app.open()
    answers = await asyncio.gather(
        *(answer_callback(jobs, tokens[0], {"seconds": n}) for n in range(4)), return_exceptions=True
    )

    assert sum(isinstance(answer, NotAllowed) for answer in answers) == 3


async def test_an_answer_that_comes_too_late_is_told(app: App, film, clock):
    async with app.worker():
        run = await film.submit()
        await in_state(app, run, State.PENDING)
    clock.advance(2 * 3_600 + 60)

    with pytest.raises(NotAllowed, match="the answer to its callback comes too late by 1 min"):
        await answer_callback(await app.open(), tokens[0], {"seconds": 7})


@pytest.mark.parametrize("engine", ["memory"], indirect=True)
async def test_a_forged_token_says_nothing(app: App, film):
    async with app.worker():
        run = await film.submit()
        await in_state(app, run, State.PENDING)
    jobs = await app.open()
    job, name, mac = tokens[0].split(".")

    other = f"{mac[:-1]}{'0' if mac[-1] != '0' else '1'}"
    for forged in (
        "",
        "x",
        f"{job}.{name}",
        f"{job}.{name}.{other}",
        f"{job}.bmFtZQ.{mac}",
        "ü.ü.ü",
        f"{job}.ü.{mac}",
        None,
        5,
    ):
        with pytest.raises(NotFound, match="this callback token isn't valid here"):
            await answer_callback(jobs, forged, {})  # type: ignore[arg-type]
    with pytest.raises(BadValue, match="seconds"):
        await answer_callback(jobs, tokens[0], {"seconds": "seven"})
    await run.signal("callback", {"seconds": 7})  # a person can stand in
    async with app.worker():
        assert await run.result(timeout=60) == 7


@pytest.mark.parametrize("engine", ["memory"], indirect=True)
async def test_several_callbacks_are_told_apart_and_blocking_jobs_have_them_too(app: App, film, monkeypatch):
    monkeypatch.setenv("HOLDFAST_PUBLIC_URL", "https://example.org/")

    @app.job(retries=0)
    def both() -> list[str]:
        with callback.sync(as_=str, key="a") as one, callback.sync(as_=str) as other:
            tokens.extend([one.token, other.url])
            return [one.wait(), other.wait()]

    async with app.worker():
        run = await both.submit()
        await until(lambda: len(tokens) >= 2)
        jobs = await app.open()
        assert tokens[1].startswith("https://example.org/callback/")
        await answer_callback(jobs, tokens[1].rpartition("/")[2], "second")
        await answer_callback(jobs, tokens[0], "first")
        assert await run.result(timeout=60) == ["first", "second"]
