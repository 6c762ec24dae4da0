"""A provider's job is started once, asked for by its recorded id, and cancelled with the job that waits for it."""

import asyncio

import pytest

from holdfast import App, attach, current, step
from holdfast.core.errors import JobFailed
from holdfast.core.model import State
from tests.support.given import until

ENGINES = ["memory", "file", "sqlite", "postgres", "redis"]

started: list[str] = []
asked: list[str] = []
stopped: list[str] = []
world: dict[str, object] = {"ready": False, "forgets": False}


async def begin() -> str:
    started.append(current().idempotency_key)
    return f"render-{len(started)}"


async def look(id: str) -> dict[str, str] | None:
    asked.append(id)
    if world["forgets"]:
        raise LookupError(f"no such render: {id}")
    return {"url": f"{id}.mp4"} if world["ready"] else None


async def begin_slowly() -> str:
    started.append(current().idempotency_key)
    await asyncio.sleep(600)
    return "never"


def stop(id: str | None) -> None:
    stopped.append(id or f"None {current().idempotency_key}")


@step
async def pay() -> str:
    return "paid"


@pytest.fixture
def clip(app: App):
    for told in (started, asked, stopped):
        told.clear()
    world.update(ready=False, forgets=False)

    @app.job(retries=0)
    async def clip() -> str:
        await pay()
        return (await attach(begin, look, stop, key="clip-3", every="2s"))["url"]

    return clip


async def state_of(app: App, run) -> State:
    (job,) = await app.engine.get([run.id])
    assert job is not None
    return job.state


async def test_it_is_started_once_and_waits_without_a_slot_until_there_is_a_result(app: App, clip):
    async with app.worker(at_once=1):
        run = await clip.submit()

        async def is_asleep() -> bool:
            return await state_of(app, run) is State.SCHEDULED

        await until(is_asleep)
        world["ready"] = True
        assert await run.result(timeout=60) == "render-1.mp4"
    assert len(started) == 1
    assert set(asked) == {"render-1"}
    assert stopped == []


async def test_after_a_crash_the_next_worker_asks_for_the_same_id(app: App, clip, interrupted):
    async with app.worker():
        run = await clip.submit()
        await until(lambda: asked)
    world["ready"] = True
    async with app.worker():  # another worker
        assert await run.result(timeout=60) == "render-1.mp4"
    assert len(started) == 1


async def test_a_cancel_stops_it_at_the_provider_but_not_when_it_has_ended(app: App, clip):
    @app.job(retries=0)
    async def two() -> None:
        world["ready"] = True
        await attach(begin, look, stop, key="first")
        world["ready"] = False
        await attach(begin, look, stop, key="second", every="2s")

    async with app.worker():
        run = await two.submit()
        await until(lambda: "render-2" in asked)
        await run.cancel()
        await until(lambda: stopped)

    assert stopped == ["render-2"]


@pytest.mark.parametrize("engine", ["memory", "sqlite"], indirect=True)
async def test_a_start_that_was_cut_off_may_have_happened_and_is_cancelled_by_its_key(app: App, clip):
    @app.job(retries=0)
    async def slow() -> dict[str, str]:
        return await attach(begin_slowly, look, stop, key="slow")

    async with app.worker():
        run = await slow.submit()
        await until(lambda: started)
        await run.cancel()
        await until(lambda: stopped)

    assert stopped == [f"None {started[0]}"]


@pytest.mark.parametrize("engine", ["memory"], indirect=True)
async def test_a_provider_that_forgot_its_id_is_told_and_a_rerun_starts_a_new_one(app: App, clip):
    world["forgets"] = True
    async with app.worker():
        run = await clip.submit()
        with pytest.raises(
            JobFailed,
            match=r"attach 'clip-3': asking for 'render-1' failed: LookupError: no such render: render-1; "
            r"the id is kept, so a replay asks for it again; if the provider has forgotten it, start a new one: "
            r"holdfast rerun .* "
            r"attach#clip-3",
        ):
            await run.result(timeout=60)
        world.update(forgets=False, ready=True)
        await run.rerun("attach#clip-3")
        assert await run.result(timeout=60) == "render-2.mp4"
    assert started[0] != started[1]


@pytest.mark.parametrize("engine", ["memory"], indirect=True)
async def test_blocking_jobs_attach_too(app: App, clip):
    calls: list[str] = []

    def start() -> str:
        return "render-9"

    def poll(id: str) -> str | None:
        calls.append(id)
        return f"{id}.mp4" if len(calls) > 1 else None

    @app.job(retries=0)
    def film() -> str:
        return attach.sync(start, poll, key="film", every=0.2)

    async with app.worker():
        assert await (await film.submit()).result(timeout=60) == "render-9.mp4"
    assert calls == ["render-9", "render-9"]
    assert await attach(begin, lambda id: f"{id}.mp4", key="plain") == "render-1.mp4"  # outside a job


@pytest.mark.parametrize("engine", ["memory"], indirect=True)
async def test_a_cancel_that_nobody_could_find_again_is_refused(app: App, clip):
    @app.job(retries=0)
    async def film() -> None:
        await attach(begin, look, lambda id: None, key="x")

    async with app.worker():
        with pytest.raises(
            JobFailed, match="another worker can't find this function; give one that is defined at the top"
        ):
            await (await film.submit()).result(timeout=60)
    assert started == []
