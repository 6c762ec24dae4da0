"""A job never ends in silence while one of its effects is in doubt, however the effect was cut off."""

import asyncio
import contextlib
import logging
import threading
from contextvars import copy_context

import pytest

from holdfast import sleep, step, wait_for
from holdfast.core.keys import derived_id
from holdfast.core.model import State, StepState
from tests.support.given import AT_ONCE_RETRY, events, finished, in_state, until

ENGINES = ("memory", "sqlite", "postgres", "redis")

SENT: list[str] = []
BEGUN, FREE = threading.Event(), threading.Event()


@pytest.fixture(autouse=True)
def fresh():
    SENT.clear()
    BEGUN.clear()
    FREE.clear()
    yield
    FREE.set()


@step(name="send", effect="once", key=lambda to: to)
async def send(to: str) -> str:
    SENT.append(to)
    await asyncio.sleep(30)
    return "sent"


@step(name="mail", effect="once", key=lambda to: to)
async def mail(to: str) -> str:
    SENT.append(to)
    if to == "bad":
        raise ConnectionError("line broke")
    return f"mailed {to}"


@step(name="mail_slowly", effect="once", key=lambda to: to)
def mail_slowly(to: str) -> str:
    SENT.append(to)
    if to == "bad":
        raise ConnectionError("line broke")
    return f"mailed {to}"


@step(name="hang", effect="once", key=lambda to: to)
def hang(to: str) -> str:
    SENT.append(to)
    BEGUN.set()
    FREE.wait(20)
    return "sent"


async def sent() -> None:
    await until(lambda: SENT)


async def forgotten() -> None:
    asyncio.get_running_loop().kept = asyncio.create_task(send("ada"))  # type: ignore[attr-defined]
    await sent()


async def left_by_gather() -> None:
    async def other() -> None:
        await sent()
        raise ValueError("something else")

    with contextlib.suppress(ValueError):
        await asyncio.gather(send("ada"), other())


async def given_up() -> None:
    task = asyncio.ensure_future(send("ada"))
    await sent()
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def given_up_in_a_thread() -> None:
    task = asyncio.ensure_future(hang.aio("ada"))
    await sent()
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


WAYS = [forgotten, left_by_gather, given_up, given_up_in_a_thread]


async def in_review(app, run, *, path):
    """The job, which must be in review over this effect alone."""
    async with app.worker():
        job = await in_state(app, run, State.REVIEW, State.COMPLETED, State.PENDING, State.SCHEDULED)
        FREE.set()  # threads end while there is a loop that hears of it
        await until(lambda: not any(thread.name == "left" for thread in threading.enumerate()))
    assert (job.state, job.error and job.error.type) == (State.REVIEW, "EffectInDoubt")
    assert (await run.history())[-1].note["in_doubt"] == [path]
    assert path in job.error.message
    return job


@pytest.mark.parametrize("way", WAYS)
async def test_a_job_that_left_an_effect_behind_does_not_complete(app, way):
    @app.job(retries=AT_ONCE_RETRY)
    async def order() -> str:
        await way()
        return "all fine"

    path = "hang#ada" if way is given_up_in_a_thread else "send#ada"
    run = await order.submit()
    await in_review(app, run, path=path)
    await run.resolve_step(path, "sent")
    async with app.worker():
        SENT.append("ada")  # what the code waits for before it goes on
        assert await run.result(10) == "all fine"


@pytest.mark.parametrize("way", WAYS)
async def test_a_job_that_left_an_effect_behind_does_not_try_again(app, way):
    @app.job(retries=AT_ONCE_RETRY)
    async def order() -> str:
        await way()
        raise KeyError("something else")

    run = await order.submit()
    await in_review(app, run, path="hang#ada" if way is given_up_in_a_thread else "send#ada")
    assert SENT == ["ada"]


@pytest.mark.parametrize("what", ["signal", "time"])
async def test_a_job_that_gave_up_an_effect_does_not_wait_before_a_person_is_asked(app, what):
    @app.job
    async def order() -> str:
        await given_up()
        return await wait_for("go") if what == "signal" else await nap()

    async def nap() -> str:
        await sleep("1h")
        return "went on"

    run = await order.submit()
    await in_review(app, run, path="send#ada")
    assert "suspend" not in await events(run)


async def test_a_def_job_that_left_an_effect_behind_does_not_complete(app):
    @app.job
    def order() -> str:
        thread = threading.Thread(target=copy_context().run, args=(quietly,), name="left", daemon=True)
        thread.start()
        assert BEGUN.wait(10)
        return "all fine"

    def quietly() -> None:
        with contextlib.suppress(BaseException):
            hang("ada")

    run = await order.submit()
    await in_review(app, run, path="hang#ada")


@pytest.mark.parametrize("colour", ["async", "threads", "def"])
async def test_a_map_that_needs_fewer_items_does_not_hide_one_in_doubt(app, colour):
    if colour == "def":

        @app.job
        def order() -> list[str | None]:
            return mail_slowly.map(["a", "bad", "c"], need=2)
    else:

        @app.job
        async def order() -> list[str | None]:
            return await (mail if colour == "async" else mail_slowly.aio).map(["a", "bad", "c"], need=2)

    path = "mail#bad" if colour == "async" else "mail_slowly#bad"
    run = await order.submit()
    job = await in_review(app, run, path=path)
    assert "ConnectionError: line broke" in job.error.message
    await run.resolve_step(path, "mailed after all")
    async with app.worker():
        assert await run.result(10) == ["mailed a", "mailed after all", "mailed c"]
    assert sorted(SENT) == ["a", "bad", "c"]


async def test_a_map_does_not_hide_an_effect_in_doubt_inside_one_of_its_items(app):
    @step(name="part")
    async def part(to: str) -> str:
        return await mail(to)

    @app.job
    async def order() -> list[str | None]:
        return await part.map(["a", "bad", "c"], need=2, key=lambda to: to)

    run = await order.submit()
    await in_review(app, run, path="part#bad/mail#bad")
    await run.resolve_step("part#bad/mail#bad", "mailed after all")
    async with app.worker():
        assert await run.result(10) == ["mailed a", "mailed after all", "mailed c"]


async def test_a_map_whose_failure_the_code_catches_is_answered_for(app):
    @app.job
    async def order() -> str:
        try:
            await mail.map(["a", "bad"])
        except Exception as error:
            return type(error).__name__
        return "all fine"

    run = await order.submit()
    assert (await finished(app, run)).state is State.COMPLETED
    assert await run.result(5) == "ItemsFailed"


async def test_an_effect_whose_record_is_being_written_at_the_jobs_end_is_not_in_doubt(app, engine):
    writing = asyncio.Event()

    async def before(name, args):
        if name == "record" and args[0][0].state is StepState.DONE and args[0][0].path == "mail#ada":
            writing.set()
            await asyncio.sleep(0.1)

    engine.before = before

    @app.job
    async def order() -> str:
        asyncio.get_running_loop().kept = asyncio.create_task(mail("ada"))  # type: ignore[attr-defined]
        await writing.wait()
        return "all fine"

    run = await order.submit()
    assert (await finished(app, run)).state is State.COMPLETED
    assert {one.path: one.state for one in await app.engine.steps(run.id)}["mail#ada"] is StepState.DONE


@pytest.mark.parametrize("end", ["return", "wait"])
async def test_an_effect_that_was_given_up_while_its_intent_was_written_is_not_in_doubt(app, engine, end):
    writing = asyncio.Event()
    record, slow = engine.engine.record, [True]

    async def late(steps):
        answer = await record(steps)
        if slow and any(one.state is StepState.STARTED and one.path == "mail#ada" for one in steps):
            slow.clear()
            writing.set()
            await asyncio.sleep(1)
        return answer

    engine.engine.record = late

    @app.job
    async def order() -> str:
        task = asyncio.create_task(mail("ada"))
        await writing.wait()
        if end == "wait":
            task.cancel()
            await asyncio.wait([task])
            return await wait_for("go")
        asyncio.get_running_loop().kept = task  # type: ignore[attr-defined]
        return "went on"

    run = await order.submit()
    async with app.worker():
        if end == "wait":
            await in_state(app, run, State.PENDING)
            writing.set()
        else:
            await in_state(app, run, State.COMPLETED)
    assert SENT == []
    assert [one.path for one in await app.engine.steps(run.id) if one.path == "mail#ada"] == []


async def test_a_worker_that_stops_does_not_hand_over_an_effect_that_its_code_gave_up(app):
    @app.job
    async def order() -> str:
        try:
            await send("ada")
        except BaseException:
            return "swallowed"
        return "sent"

    run = await order.submit()
    async with app.worker() as worker:
        await sent()
        worker.abort()
    job = await app.jobs.get(run.id)
    assert (job.state, job.error and job.error.type) == (State.REVIEW, "EffectInDoubt")
    assert "release" not in await events(run)


async def test_a_job_that_timed_out_over_an_effect_asks_a_person(app):
    @app.job(timeout="500ms", retries=AT_ONCE_RETRY)
    async def order() -> str:
        asyncio.get_running_loop().kept = asyncio.create_task(send("ada"))  # type: ignore[attr-defined]
        await asyncio.sleep(30)
        return "all fine"

    run = await order.submit()
    job = await in_review(app, run, path="send#ada")
    assert "took longer than its timeout" in job.error.message


async def test_a_cancel_names_the_effect_that_it_cut_off(app, caplog):
    @app.job
    async def order() -> str:
        return await send("ada")

    run = await order.submit()
    async with app.worker():
        await sent()
        with caplog.at_level(logging.WARNING, "holdfast.worker"):
            await run.cancel()
            undo = await app.run(derived_id(run.id, "undo"))
            await in_state(app, undo, State.COMPLETED)
    told = [entry.note.get("in_doubt") for entry in await undo.history()]
    assert ["send#ada"] in told
    assert any("send#ada may have happened" in record.getMessage() for record in caplog.records)


async def test_a_step_in_doubt_is_named_once(app):
    @app.job
    async def order() -> str:
        await given_up()
        return await send("ada")

    run = await order.submit()
    job = await in_review(app, run, path="send#ada")
    assert job.error.message.count("send#ada may have happened") == 1
    assert "send#ada, send#ada" not in job.error.message


async def test_effects_of_a_map_are_still_recorded_together(app, engine):
    @step(name="note", effect="once", key=lambda n: n)
    async def note(n: int) -> int:
        await asyncio.sleep(0)
        return n

    @app.job
    async def order() -> list[int]:
        return await note.map(range(50), at_once=50)

    run = await order.submit()
    assert (await finished(app, run)).state is State.COMPLETED
    assert engine.calls["record"] < 20
