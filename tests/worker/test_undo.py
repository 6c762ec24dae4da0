"""Undo and cleanup: what a stopped job made is taken back, newest first, and nothing is forgotten."""

import asyncio
import threading
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast import App, current, sleep, step
from holdfast.core.errors import Invalid, NotAllowed
from holdfast.core.keys import derived_id, idempotency_key
from holdfast.core.model import Event, Retry, State, StepState, Where
from holdfast.worker import registry
from holdfast.worker import undo as undo_module
from tests.support.given import AT_ONCE_RETRY, QUICK, entry_of, in_state, undone, until

ENGINES = ("memory", "sqlite", "postgres", "redis")

DID: list[Any] = []
BROKEN: set[object] = set()
GATE: list[asyncio.Event] = []


@pytest.fixture(autouse=True)
def fresh():
    DID.clear()
    BROKEN.clear()
    GATE.clear()


async def delete_image(image: str | None) -> None:
    if image in BROKEN:
        raise ConnectionError("no network")
    DID.append(("delete", image, current().idempotency_key))


def delete_audio(audio: str | None) -> None:
    DID.append(("delete", audio))


@step(name="draw", undo=delete_image)
async def draw(n: int) -> str:
    DID.append(("draw", n))
    if n < 0:
        await GATE[0].wait()
    return f"{n}.png"


@step(name="narrate", undo=delete_audio)
def narrate(text: str) -> str:
    DID.append(("narrate", text))
    return f"{text}.mp3"


def cutting(app, undo):
    """A job that makes one thing, which this undoes, and sleeps."""

    @step(name="cut", undo=undo)
    async def cut() -> str:
        return "cut.mp4"

    @app.job
    async def film() -> None:
        await cut()
        await sleep("1h")

    return film


async def given_up(app, run, clock):
    """The undo job of a run, once it is left to a person. Its backoffs are over at once."""

    async def in_review():
        (job,) = await app.engine.get([derived_id(run.id, "undo")])
        if job is not None and job.state in (State.SCHEDULED, State.RETRYABLE):
            clock.advance(400)
        return job if job is not None and job.state is State.REVIEW else None

    return await until(in_review, 25)


def deletes():
    return [one[1] for one in DID if one[0] == "delete"]


async def test_a_cancelled_job_is_undone_newest_first_and_cleaned_up_last(app):
    def sweep(title: str) -> None:
        DID.append(("delete", f"folder of {title}"))

    @app.job(cleanup=sweep)
    async def film(title: str) -> None:
        await draw(1)
        await narrate.aio("a")
        await draw(2)
        await sleep("1h")

    run = await film.submit("kelp")
    async with app.worker():
        await in_state(app, run, State.SCHEDULED)
        await run.cancel()
        job = await undone(app, run, State.COMPLETED)
    assert deletes() == ["2.png", "a.mp3", "1.png", "folder of kelp"]
    assert job.parent == run.id


async def test_a_step_with_undo_costs_one_write_more(app, engine):
    @app.job
    async def film() -> None:
        await draw(1)

    run = await film.submit()
    async with app.worker():
        await run.result(5)
    assert engine.calls["record"] == 2


async def test_what_may_have_happened_is_undone_with_none_and_its_key(app):
    GATE.append(asyncio.Event())

    @app.job
    async def film() -> None:
        await draw(1)
        await draw(-1)

    run = await film.submit()
    async with app.worker():
        await until(lambda: ("draw", -1) in DID)
        await run.cancel()
        await undone(app, run, State.COMPLETED)
    assert deletes() == [None, "1.png"]
    intents = [one.path.removeprefix("~undo/") for one in await app.engine.steps(run.id) if "~undo/" in one.path]
    keys = [one[2] for one in DID if one[0] == "delete"]
    assert keys == [idempotency_key(run.id, path) for path in reversed(intents)]


async def test_undo_waits_until_the_owner_has_stopped(app):
    began, stopping = asyncio.Event(), asyncio.Event()

    @step(name="slow", undo=delete_audio)
    async def slow() -> None:
        began.set()
        try:
            await asyncio.sleep(60)
        finally:
            DID.append(("tidying",))
            await stopping.wait()
            DID.append(("stopped",))

    @app.job
    async def film() -> None:
        await slow()

    run = await film.submit()
    async with app.worker():
        await until(began.is_set)
        await run.cancel()
        await until(lambda: DID == [("tidying",)])
        waiting = await undone(app, run, State.PENDING)
        assert waiting.waits[0].kind == "stopped"
        stopping.set()
        await undone(app, run, State.COMPLETED)
    assert DID == [("tidying",), ("stopped",), ("delete", None)]


async def test_undo_does_not_wait_for_ever_for_an_owner_that_died(app, clock, engine):
    @app.job
    async def film() -> None:
        await draw(1)
        await asyncio.sleep(60)

    run = await film.submit()

    async def is_drawn() -> bool:
        return any(one.state is StepState.DONE for one in await engine.steps(run.id))

    async with app.worker() as worker:
        await until(is_drawn)
        engine.away = {"beat"}  # or it would give back what it doesn't know, before the cancel
        worker._slots.attempts.clear()  # it hears nothing any more, and says nothing
        await run.cancel()
        engine.away = False
        await undone(app, run, State.PENDING)
        clock.advance(61)
        await undone(app, run, State.COMPLETED)
    assert deletes() == ["1.png"]


async def test_a_failed_step_is_undone_too(app):
    @step(name="half", undo=delete_audio)
    async def half() -> None:
        raise ValueError("half done")

    @app.job(retries=0)
    async def film() -> None:
        await half()

    run = await film.submit()
    async with app.worker():
        await in_state(app, run, State.REVIEW)
        assert deletes() == [], "never on review"
        await run.discard()
        await undone(app, run, State.COMPLETED)
    assert deletes() == [None]


async def test_an_expired_job_is_undone(app, clock):
    @app.job(retries=AT_ONCE_RETRY)
    async def film() -> None:
        await draw(1)
        await sleep("2h")

    run = await film.submit(expires="1h")
    async with app.worker():
        await in_state(app, run, State.SCHEDULED)
        clock.advance(3_601)
        await in_state(app, run, State.DISCARDED)
        await undone(app, run, State.COMPLETED)
    assert deletes() == ["1.png"]


class Own(BaseException):
    """An error that no `except Exception` catches."""


@pytest.mark.parametrize("engine", ["memory"], indirect=True)
@pytest.mark.parametrize("colour", ["async", "def"])
@pytest.mark.parametrize(
    "kind", [asyncio.CancelledError, GeneratorExit, KeyboardInterrupt, SystemExit, Own], ids=lambda kind: kind.__name__
)
async def test_an_undo_or_cleanup_that_raises_no_exception_holds_up_no_other(app, monkeypatch, kind, colour):
    monkeypatch.setattr(undo_module, "_SPEC", replace(undo_module._SPEC, retry=Retry(retries=0)))

    async def fails(value: object) -> None:
        raise kind("odd")

    def def_fails(value: object) -> None:
        raise kind("odd")

    undo = fails if colour == "async" else def_fails

    @step(name="cut", undo=undo)
    async def cut(n: int) -> int:
        return n

    @app.job(cleanup=undo)
    async def film(n: int) -> None:
        await draw(n)
        await cut(n)
        await sleep("1h")

    run = await film.submit(1)
    async with app.worker():
        await in_state(app, run, State.SCHEDULED)
        await run.cancel()
        await until(lambda: deletes() == ["1.png"])
        job = await undone(app, run, State.RETRYABLE, State.REVIEW)
    assert job.error.type.endswith("UndoFailed")
    for what in ("cut#", "cleanup ("):
        assert kind.__name__ in job.error.message.partition(what)[2]


@pytest.mark.parametrize("which", ["an undo", "a cleanup"])
async def test_an_undo_or_cleanup_that_cancels_its_own_task_holds_up_no_other(app, clock, monkeypatch, which):
    monkeypatch.setattr(undo_module, "_SPEC", replace(undo_module._SPEC, retry=Retry(retries=0)))

    async def cancels_itself(*_: object) -> None:
        asyncio.current_task().cancel()
        await asyncio.sleep(0)

    def sweep() -> None:
        DID.append(("delete", "folder"))

    @step(name="cut", undo=cancels_itself if which == "an undo" else delete_audio)
    async def cut() -> str:
        return "cut.mp4"

    @app.job(cleanup=cancels_itself if which == "a cleanup" else sweep)
    async def film() -> None:
        await draw(1)
        await cut()
        await sleep("1h")

    run = await film.submit()
    async with app.worker():
        await in_state(app, run, State.SCHEDULED)
        await run.cancel()
        job = await undone(app, run, State.RETRYABLE, State.REVIEW)
    assert deletes() == (["1.png", "folder"] if which == "an undo" else ["cut.mp4", "1.png"])
    assert job.error.type.endswith("UndoFailed")
    what = "cut#" if which == "an undo" else "cleanup ("
    assert "CancelledError: cancelled from inside" in job.error.message.partition(what)[2]


async def test_an_undo_is_stopped_with_its_worker_and_goes_on_with_the_next(app):
    """In a task of its own it is still part of its job."""
    begun, stopped = asyncio.Event(), []

    async def slow(value: object) -> None:
        if begun.is_set():
            DID.append(("delete", value))
            return
        begun.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            stopped.append(value)
            raise

    run = await cutting(app, slow).submit()
    async with app.worker():
        await in_state(app, run, State.SCHEDULED)
        await run.cancel()
        await asyncio.wait_for(begun.wait(), 10)
    assert stopped == ["cut.mp4"]
    assert deletes() == []
    async with app.worker():
        job = await undone(app, run, State.COMPLETED)
    assert deletes() == ["cut.mp4"]
    assert job.attempt == 1, "to be stopped is no failed attempt"


async def test_a_failing_undo_holds_up_no_other_and_names_what_is_left(app, clock):
    BROKEN.add("1.png")

    @app.job
    async def film() -> None:
        await draw(1)
        await draw(2)
        await sleep("1h")

    run = await film.submit()
    async with app.worker():
        await in_state(app, run, State.SCHEDULED)
        await run.cancel()
        job = await given_up(app, run, clock)
        assert "draw#" in job.error.message
        assert "ConnectionError: no network" in job.error.message
        assert deletes() == ["2.png"]
        BROKEN.clear()
        await app.jobs.replay(job.id)
        await undone(app, run, State.COMPLETED)
    assert deletes() == ["2.png", "1.png"]


async def test_an_undo_that_is_killed_goes_on_with_the_next(app, engine):
    @app.job
    async def film() -> None:
        for n in range(4):
            await draw(n)
        await sleep("1h")

    run = await film.submit()
    async with app.worker():
        await in_state(app, run, State.SCHEDULED)

    async def lapse_in_the_middle(name, args):
        if name == "record" and args[0][0].name == "undo" and len(deletes()) == 2:
            engine.before = None
            (job,) = await engine.engine.get([derived_id(run.id, "undo")])
            from holdfast.core.lifecycle import decide

            await engine.engine.commit([decide(job, Event.LAPSE, await engine.engine.now(), by="upkeep")])

    async with app.worker():
        engine.before = lapse_in_the_middle
        await run.cancel()
        await undone(app, run, State.COMPLETED)
    assert deletes() == ["3.png", "2.png", "2.png", "1.png", "0.png"], "the one in the middle at least once"


async def test_nothing_is_undone_of_a_job_that_never_ran(app):
    @app.job
    async def film() -> None: ...

    run = await film.submit()
    await run.cancel()
    assert await app.engine.find(Where(parent=run.id)) == []


async def test_a_completed_job_is_not_undone(app):
    @app.job
    async def film() -> None:
        await draw(1)

    run = await film.submit()
    async with app.worker():
        await run.result(5)
    assert deletes() == []
    assert [one.state for one in await app.engine.steps(run.id) if one.path.startswith("~undo")] == [StepState.STARTED]


async def test_cancel_and_complete_race_and_one_wins(app):
    @app.job
    async def film() -> str:
        return "done"

    won = {"cancelled": 0, "completed": 0}
    async with app.worker(at_once=4):
        for _ in range(30):
            run = await film.submit()
            try:
                await run.cancel()
            except NotAllowed:
                won["completed"] += 1
                assert await run.result(5) == "done"
            else:
                won["cancelled"] += 1
                assert (await run.status()).state is State.CANCELLED
    assert sum(won.values()) == 30


def test_undo_is_a_plain_function():
    with pytest.raises(Invalid, match="undo=3: give a function"):
        step(name="x", undo=3)(lambda_free)  # type: ignore[call-overload]
    with pytest.raises(Invalid, match="give a plain function"):
        step(name="x", undo=draw)(lambda_free)


def lambda_free() -> None: ...


def yields(value: object) -> Any:
    DID.append(("delete", value))
    yield


async def yields_async(value: object) -> Any:
    DID.append(("delete", value))
    yield


@pytest.mark.parametrize("function", [yields, yields_async])
def test_a_generator_undoes_nothing_and_is_refused(function):
    with pytest.raises(Invalid, match="undo=.*yields.*a generator can't be recorded; return a list"):
        step(name="x", undo=function)(lambda_free)
    with pytest.raises(Invalid, match="cleanup=.*yields.*a generator can't be recorded"):
        App("memory:").job(cleanup=function)(lambda_free)


class Deletes:
    async def __call__(self, value: object) -> None:
        DID.append(("delete", value))


@pytest.mark.parametrize("undo", [lambda value: Deletes()(value), Deletes()], ids=["a lambda", "an object"])
async def test_what_an_undo_gives_to_await_is_awaited(app, undo):
    run = await cutting(app, undo).submit()
    async with app.worker():
        await in_state(app, run, State.SCHEDULED)
        await run.cancel()
        await undone(app, run, State.COMPLETED)
    assert deletes() == ["cut.mp4"]


@pytest.mark.parametrize("function", [yields, yields_async])
@pytest.mark.parametrize("engine", ["memory"], indirect=True)
async def test_an_undo_that_comes_back_with_a_generator_has_failed(app, monkeypatch, function):
    monkeypatch.setattr(undo_module, "_SPEC", replace(undo_module._SPEC, retry=Retry(retries=0)))

    run = await cutting(app, lambda value: function(value)).submit()
    async with app.worker():
        await in_state(app, run, State.SCHEDULED)
        await run.cancel()
        job = await undone(app, run, State.RETRYABLE, State.REVIEW)
    assert "returned a generator: a generator can't be recorded" in job.error.message


async def test_the_history_of_an_undo_tells_who_stopped(app):
    @app.job
    async def film() -> None:
        await draw(1)
        await asyncio.sleep(60)

    run = await film.submit()
    async with app.worker():
        await until(lambda: ("draw", 1) in DID)
        await run.cancel()
        job = await undone(app, run, State.COMPLETED)
        undo = await app.run(job.id)
    assert (await entry_of(undo, Event.ACTIVATE)).note == {"stopped": run.id}


async def test_no_undo_is_made_where_nothing_can_be_undone(app):
    @app.job(retries=0)
    async def film() -> None:
        raise ValueError("no kelp")

    run = await film.submit()
    async with app.worker():
        await in_state(app, run, State.REVIEW)
        await run.discard()
    assert await app.engine.find(Where(parent=run.id)) == []


@pytest.mark.parametrize("colour", ["def job", "aio"])
async def test_nothing_is_undone_under_a_thread_that_still_runs(app, colour):
    gate = threading.Event()

    @step(name="block", undo=delete_audio)
    def block() -> None:
        DID.append(("begun",))
        gate.wait(10)
        DID.append(("effect",))

    if colour == "aio":

        @app.job
        async def film() -> None:
            await block.aio()
    else:

        @app.job
        def film() -> None:
            block()

    run = await film.submit()
    async with app.worker():
        await until(lambda: DID == [("begun",)])
        await run.cancel()
        await asyncio.sleep(0.3)
        assert DID == [("begun",)]
        gate.set()
        await undone(app, run, State.COMPLETED)
    assert DID == [("begun",), ("effect",), ("delete", None)]


async def test_the_undo_begins_at_once_when_the_owner_learns_of_the_cancel_by_a_refused_record(app, engine):
    @app.job
    async def film() -> None:
        await draw(1)

    run = await film.submit()

    async def cancel_first(name, args):
        if name == "record" and args[0][0].state == StepState.DONE:
            engine.before = None
            await app.jobs.cancel(run.id)

    engine.before = cancel_first
    async with app.worker():
        await undone(app, run, State.COMPLETED)
    assert deletes() == [None]


async def test_a_cleanup_that_nobody_here_knows_is_left_over(app, engine, clock):
    def sweep() -> None: ...

    @app.job(cleanup=sweep)
    async def film() -> None:
        await sleep("1h")

    run = await film.submit()
    async with app.worker():
        await in_state(app, run, State.SCHEDULED)
    await run.cancel()
    other = App("memory:", settings=QUICK, engine=engine)
    async with other.worker(queues=["default"]):
        job = await given_up(app, run, clock)
    assert "cleanup (this worker knows no job 'film' with a cleanup)" in job.error.message


@pytest.mark.parametrize("gone", ["the undo of a step", "the step itself", "the cleanup"])
async def test_what_a_deploy_removed_is_named_at_once_among_what_is_left(app, engine, clock, monkeypatch, gone):
    """A worker that knows the job's type has all the code that there is: it leaves the undo to nobody."""
    monkeypatch.setattr(undo_module, "_SPEC", replace(undo_module._SPEC, retry=Retry(retries=0)))

    @step(name="cut", undo=delete_audio)
    async def cut() -> str:
        return "cut.mp4"

    def sweep() -> None:
        DID.append(("delete", "folder"))

    async def film() -> None:
        await draw(1)
        await cut()
        await sleep("1h")

    run = await app.job(cleanup=sweep)(film).submit()
    async with app.worker():
        await in_state(app, run, State.SCHEDULED)
    deployed = App("memory:", settings=QUICK, engine=engine)
    deployed.job(cleanup=None if gone == "the cleanup" else sweep)(film)
    if gone != "the cleanup":
        monkeypatch.delitem(registry.UNDOABLE, "cut")
    if gone == "the step itself":
        monkeypatch.delitem(registry.STEPS, "cut")
    await run.cancel()
    async with deployed.worker():
        job = await given_up(app, run, clock)
    history = await app.engine.history(job.id)
    assert Event.REST not in [entry.event for entry in history]
    left, kept = ("cleanup (", "cut#") if gone == "the cleanup" else ("cut#", "cleanup")
    assert left in job.error.message
    assert kept not in job.error.message
    assert deletes() == (["cut.mp4", "1.png"] if gone == "the cleanup" else ["1.png", "folder"])
