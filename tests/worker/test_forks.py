"""A fork begins with what another run had recorded before a step, pays only for the rest, and undoes nothing of it."""

from typing import Any

import pytest

from holdfast import App, spend, step
from holdfast.core.errors import NotAllowed, NotFound, StoreError
from holdfast.core.model import State, Where
from holdfast.jobs.views.comparison import view_comparison
from tests.support.given import until

ENGINES = ["memory", "file", "sqlite", "postgres", "redis"]

calls: list[str] = []
world = {"style": "oil"}


@step
async def analyse(brief: str) -> str:
    calls.append("analyse")
    spend(usd=2)
    return f"{brief}, in scenes"


@step
async def draw(script: str) -> str:
    calls.append("draw")
    spend(usd=1)
    return f"{script}, in {world['style']}"


@step(effect="once", key=lambda film: film)
async def publish(film: str) -> str:
    calls.append("publish")
    return film


@pytest.fixture
def film(app: App):
    calls.clear()
    world["style"] = "oil"

    @app.job(retries=0)
    async def caption(text: str) -> str:
        calls.append("caption")
        return f"[{text}]"

    @app.job(retries=0)
    async def film(brief: str, publishes: bool = False) -> str:
        script = await analyse(brief)
        first = await (await caption.submit(brief)).result()
        more = await caption.map(["a", "b"])
        picture = await draw(script)
        return " ".join([first, *more, await publish(picture) if publishes else picture])

    return film


async def test_a_fork_keeps_what_came_before_a_step_and_children_that_completed(app: App, film):
    async with app.worker():
        run = await film.submit("sea")
        assert await run.result(timeout=60) == "[sea] [a] [b] sea, in scenes, in oil"
        calls.clear()
        world["style"] = "chalk"

        other = await run.fork(until="draw")

        assert await other.result(timeout=60) == "[sea] [a] [b] sea, in scenes, in chalk"
        status = await other.status()
        jobs = await app.open()
        found = await view_comparison(jobs, await jobs.get(run.id), await jobs.get(other.id))
    assert calls == ["draw"]
    assert (status.spent, status.saved) == ({"usd": 1}, {"usd": 2})
    assert [(pair.path.partition("#")[0], pair.relation) for pair in found.steps] == [
        ("analyse", "same"),
        ("draw", "differs"),
    ]
    assert found.other.origin is not None
    assert (found.other.origin.jobs, found.other.origin.how, found.other.origin.at) == ((run.id,), "fork", "draw")
    assert found.shape()["same_result"] is False


async def test_a_copy_that_was_cut_off_before_it_had_its_records_never_runs(app: App, film):
    async with app.worker():
        run = await film.submit("sea", True)
        await run.result(timeout=60)
        calls.clear()
    jobs = await app.open()
    store: Any = app.engine
    store.fails["commit"] = 1_000
    with pytest.raises(StoreError):
        await run.fork()
    store.fails.clear()

    (left,) = await app.engine.find(Where(states=(State.PENDING,)))
    assert "waiting for its records, which are copied from another run" in str(await jobs.status(left.id))
    with pytest.raises(NotAllowed, match="cancel it, and rerun or fork that run again"):
        await jobs.activate(left.id)
    await jobs.cancel(left.id)
    async with app.worker():
        other = await run.fork()
        await other.result(timeout=60)

    assert calls == []


@pytest.mark.parametrize("engine", ["memory"], indirect=True)
async def test_a_fork_of_a_fork_still_knows_the_first_runs_children(app: App, film):
    async with app.worker():
        run = await film.submit("sea")
        await run.result(timeout=60)
        other = await run.fork(until="draw")
        await other.result(timeout=60)
        calls.clear()
        third = await other.fork(until="draw")
        await third.result(timeout=60)

    assert calls == ["draw"]


@pytest.mark.parametrize("engine", ["memory"], indirect=True)
async def test_a_fork_can_have_other_arguments(app: App, film):
    async with app.worker():
        run = await film.submit("sea")
        await run.result(timeout=60)
        calls.clear()
        other = await run.fork(args=["lake"])
        assert await other.result(timeout=60) == "[lake] [a] [b] lake, in scenes, in oil"

    assert calls == ["analyse", "caption", "draw"]


@pytest.mark.parametrize("engine", ["memory"], indirect=True)
async def test_an_effect_that_happened_later_needs_a_yes_by_name(app: App, film):
    async with app.worker():
        run = await film.submit("sea", True)
        await run.result(timeout=60)
        with pytest.raises(NotAllowed, match=r"a fork before draw would let publish#.* happen again"):
            await run.fork(until="draw")
        other = await run.fork(until="draw", allow=["publish"])
        await other.result(timeout=60)

    assert calls.count("publish") == 2


@pytest.mark.parametrize("engine", ["memory"], indirect=True)
async def test_a_run_that_is_gone_or_never_had_the_step_is_not_forked(app: App, film):
    run = await film.submit("sea")
    async with app.worker():
        await run.result(timeout=60)

    with pytest.raises(NotFound, match="has no recorded step 'darw'; did you mean draw"):
        await run.fork(until="darw")
    run.id = run.id[:-4] + "0000"
    with pytest.raises(NotFound, match=f"there is no job {run.id} in this store; it may have been pruned"):
        await run.fork()


@pytest.mark.parametrize("engine", ["memory"], indirect=True)
async def test_a_fork_of_a_run_with_an_effect_in_doubt_is_in_doubt_too(app: App):
    @step(effect="once", key="one", name="send_once")
    async def send() -> None:
        raise ValueError("no answer")

    @app.job(retries=0)
    async def letter() -> None:
        await send()

    async with app.worker():
        run = await letter.submit()

        async def in_review(id: str) -> bool:
            (job,) = await app.engine.get([id])
            return job is not None and job.state is State.REVIEW

        await until(lambda: in_review(run.id))
        other = await run.fork()
        await until(lambda: in_review(other.id))
        assert (await other.preview_replay()).in_doubt == ("send_once#one",)
