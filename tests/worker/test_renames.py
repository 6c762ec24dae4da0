"""A step that was renamed finds its records by `was=`; without it, what the code never asks for is told loudly."""

import asyncio
import contextlib
import logging

import pytest
from msgspec.structs import replace

from holdfast import current, step, wait_for
from holdfast.core.errors import Invalid
from holdfast.core.lifecycle import decide
from holdfast.core.model import Event, State, StepState
from holdfast.worker.registry import STEPS, UNDOABLE
from tests.support.given import AT_ONCE_RETRY, entry_of, finished, in_state, paths, until

ENGINES = ("memory", "sqlite", "postgres", "redis")

RAN: list[str] = []


@pytest.fixture(autouse=True)
def fresh():
    RAN.clear()
    known, undoable = dict(STEPS), dict(UNDOABLE)
    STEPS.clear()
    UNDOABLE.clear()
    yield
    for there, before in ((STEPS, known), (UNDOABLE, undoable)):
        there.clear()
        there.update(before)


def deploy(app, handler, **options):
    """Another version of the code, which knows only its own steps, runs this app's job from now on."""
    app.registry._jobs.clear()
    return app.job(name="film", **{"retries": 0} | options)(handler)


def drawing(name, **options):
    """A step under this name that notes its calls and their idempotency keys."""
    STEPS.clear()
    UNDOABLE.clear()

    @step(name=name, **options)
    async def draw(n: int) -> str:
        RAN.append(f"{name} {n} {current().idempotency_key}")
        return f"{n}.png"

    return draw


def numbers():
    return [line.split(" ")[1] for line in RAN]


def keys():
    return [line.split(" ")[2] for line in RAN]


async def until_it_waits(app, handler):
    """A job of the first version, which waits for the signal `go`."""
    run = await deploy(app, handler).submit()
    async with app.worker():
        await in_state(app, run, State.PENDING)
    return run


async def goes_on(app, run, handler):
    """The job as the second version of the code ends it."""
    deploy(app, handler)
    await run.signal("go", "went on")
    async with app.worker():
        return await in_state(app, run, State.REVIEW, State.COMPLETED)


async def drawn(app):
    """A job that has drawn three pictures under the name `draw`, and waits."""
    draw = drawing("draw")

    async def film() -> list[str]:
        pictures = await draw.map(range(3))
        await wait_for("go")
        return pictures

    return await until_it_waits(app, film)


def warnings(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


# Adopting.


@pytest.mark.parametrize("was", ["draw", ("sketch", "draw"), ["draw", "sketch"]])
async def test_records_under_an_old_name_answer(app, caplog, was):
    run = await drawn(app)
    paint = drawing("paint", was=was)

    async def film() -> list[str]:
        pictures = await paint.map(range(4))
        await wait_for("go")
        return pictures

    job = await goes_on(app, run, film)
    assert job.state is State.COMPLETED, job.error
    assert await run.result(5) == ["0.png", "1.png", "2.png", "3.png"]
    assert numbers() == ["0", "1", "2", "3"]
    assert [path.split("#")[0] for path in await paths(app, run)] == ["draw", "draw", "draw", "paint"]
    assert [one.name for one in await app.engine.steps(run.id) if one.path[0] != "~"] == ["draw"] * 3 + ["paint"]
    assert "never_asked_for" not in (await entry_of(run, Event.COMPLETE)).note
    assert "drift" not in (await entry_of(run, Event.COMPLETE)).note
    assert not warnings(caplog)


@pytest.mark.parametrize("colour", ["async", "def", "def in async"])
async def test_equal_calls_and_keys_are_adopted_in_every_colour(app, colour):
    def version(name, **options):
        STEPS.clear()

        @step(name=name, **options)
        async def draw(n: int) -> str:
            RAN.append(f"{name} {n} -")
            return f"{n}.png"

        @step(name=name, **options)
        def draw_slowly(n: int) -> str:
            RAN.append(f"{name} {n} -")
            return f"{n}.png"

        async def film() -> list[str]:
            call = draw if colour == "async" else draw_slowly.aio
            pictures = [await call(1), await call(1), await call(2)]
            await wait_for("go")
            return pictures

        def film_slowly() -> list[str]:
            pictures = [draw_slowly(1), draw_slowly(1), draw_slowly(2)]
            wait_for.sync("go")
            return pictures

        return film_slowly if colour == "def" else film

    run = await until_it_waits(app, version("draw", key=lambda n: f"scene {n}"))
    job = await goes_on(app, run, version("paint", was="draw", key=lambda n: f"scene {n}"))
    assert job.state is State.COMPLETED, job.error
    assert numbers() == ["1", "1", "2"]
    assert await run.result(5) == ["1.png", "1.png", "2.png"]
    assert await paths(app, run) == ["draw#scene 1", "draw#scene 1#2", "draw#scene 2"]


@pytest.mark.parametrize("is_recorded", [True, False])
async def test_steps_inside_a_renamed_step_are_adopted_whether_it_was_recorded_or_not(app, interrupted, is_recorded):
    def version(name, **options):
        STEPS.clear()

        @step(name="ink")
        async def ink(n: int) -> str:
            RAN.append(f"ink {n} {current().idempotency_key}")
            return f"ink {n}"

        @step(name=name, **options)
        async def draw(n: int) -> str:
            RAN.append(f"{name} {n} -")
            inked = await ink(n)
            if not is_recorded:
                await interrupted.point()
            return inked

        async def film() -> list[str]:
            pictures = [await draw(1)]
            if is_recorded:
                await interrupted.point()
            return pictures

        return film

    run = await deploy(app, version("draw")).submit()
    job = await interrupted.between(run, version("paint", was="draw"), name="film")
    assert job.state is State.COMPLETED, job.error
    assert [line.split(" ")[0] for line in RAN] == (["draw", "ink"] if is_recorded else ["draw", "ink", "paint"])
    assert sorted(path.split("#")[0] for path in await paths(app, run)) == ["draw", "draw"]
    assert await run.result(5) == ["ink 1"]


async def test_a_child_that_a_renamed_step_submitted_is_submitted_once(app, interrupted):
    @app.job(name="scene")
    async def scene(n: int) -> int:
        return n

    born = []

    def version(name, **options):
        STEPS.clear()

        @step(name=name, **options)
        async def order(n: int) -> str:
            run = await app_scene().submit(n)
            born.append(run.id)
            await interrupted.point()
            return run.id

        async def film() -> str:
            return await order(1)

        return film

    def app_scene():
        return scene

    run = await deploy(app, version("draw")).submit()
    await interrupted.between(run, version("paint", was="draw"), name="film")
    assert len(born) == 2
    assert len(set(born)) == 1


# The provider's key.


async def test_the_idempotency_key_outlasts_a_rename_while_the_call_was_under_way(app, interrupted):
    """The commonest moment of a deploy: the call has reached the provider and is not recorded."""

    def version(name, **options):
        STEPS.clear()

        @step(name="ink")
        async def ink(n: int) -> None:
            RAN.append(f"ink {n} {current().idempotency_key}")
            await interrupted.point()

        @step(name=name, **options)
        async def draw(n: int) -> None:
            RAN.append(f"{name} {n} {current().idempotency_key}")
            await ink(n)

        async def film() -> None:
            await draw(1)

        return film

    run = await deploy(app, version("draw")).submit()
    job = await interrupted.between(run, version("paint", was=("draw", "sketch")), name="film")
    assert job.state is State.COMPLETED, job.error
    assert [line.split(" ")[0] for line in RAN] == ["draw", "ink", "paint", "ink"]
    first, second = keys()[:2], keys()[2:]
    assert first == second
    assert len(set(first)) == 2


async def test_an_effect_in_doubt_is_adopted_and_has_its_old_key_when_it_is_done_again(app):
    send = sending("send")

    async def film() -> str:
        return await send("42")

    run = await deploy(app, film).submit()
    await finished(app, run)
    post = sending("post", was="send")

    async def later() -> str:
        return await post("42")

    deploy(app, later)
    await run.replay()
    job = await finished(app, run)
    assert job.error.type == "EffectInDoubt"
    assert numbers() == ["42"]
    await run.resolve_step("send#42", again=True)
    job = await finished(app, run)
    assert job.error.type == "EffectInDoubt"  # it failed again
    assert [line.split(" ")[0] for line in RAN] == ["send", "post"]
    assert len(set(keys())) == 1
    await run.resolve_step("post#42", "it was sent")
    assert (await finished(app, run)).state is State.COMPLETED
    assert await run.result(5) == "it was sent"


async def test_what_a_person_said_of_an_effect_answers_the_renamed_step(app):
    send = sending("send")

    async def film() -> str:
        return await send("42")

    run = await deploy(app, film).submit()
    await finished(app, run)
    post = sending("post", was="send")

    async def later() -> str:
        return await post("42")

    deploy(app, later)
    await run.resolve_step("send#42", "it was sent")
    assert (await finished(app, run)).state is State.COMPLETED
    assert await run.result(5) == "it was sent"
    assert numbers() == ["42"]


async def test_a_caught_failure_of_an_effect_is_raised_again_by_the_renamed_step(app):
    send = sending("send")

    async def film() -> str:
        with contextlib.suppress(ConnectionError):
            await send("42")
        return await wait_for("go")

    run = await until_it_waits(app, film)
    post = sending("post", was="send", effect=None)
    heard = []

    async def later() -> str:
        for _ in range(2):
            try:
                await post("42")
            except ConnectionError as error:
                heard.append(str(error))
        return await wait_for("go")

    job = await goes_on(app, run, later)
    assert job.state is State.COMPLETED, job.error
    assert heard == ["cut", "cut"]
    assert numbers() == ["42"]


def sending(name, effect="once", **options):
    STEPS.clear()

    @step(name=name, effect=effect, key=lambda order: order, **options)
    async def send(order: str) -> str:
        RAN.append(f"{name} {order} {current().idempotency_key}")
        raise ConnectionError("cut")

    return send


async def test_what_a_renamed_step_made_is_undone_once_and_with_the_old_key(app):
    undone = []

    def version(name, **options):
        STEPS.clear()
        UNDOABLE.clear()

        def unmake(picture) -> None:
            undone.append((picture, current().idempotency_key))

        @step(name=name, undo=unmake, **options)
        async def draw(n: int) -> str:
            RAN.append(f"{name} {n} {current().idempotency_key}")
            return f"{n}.png"

        return draw

    draw = version("draw")

    async def film() -> None:
        await draw(1)
        await wait_for("go")

    run = await until_it_waits(app, film)
    paint = version("paint", was="draw")

    async def later() -> None:
        await paint(1)
        await paint(2)
        await wait_for("stop")

    deploy(app, later)
    await run.signal("go")
    async with app.worker():
        await until(lambda: len(RAN) == 2)
        await in_state(app, run, State.PENDING)  # both are recorded
        await run.cancel()
        await until(lambda: len(undone) == 2)
    assert numbers() == ["1", "2"]
    assert sorted(undone) == sorted(zip(["1.png", "2.png"], keys(), strict=True))


# Two steps that would answer for one another.


@pytest.mark.parametrize("order", [0, 1])
async def test_an_old_name_that_a_step_of_the_run_still_has_is_refused_with_one_line(app, order):
    draw, paint = drawing("draw"), drawing("paint", was="draw")

    async def film() -> None:
        for one in (draw, paint)[:: -1 if order else 1]:
            await one(1)

    job = await finished(app, await deploy(app, film).submit())
    assert job.state is State.REVIEW
    assert job.error.message.startswith("step 'paint' has was='draw', but this job still has a step 'draw' (tests.")
    assert "\n" not in job.error.message


async def test_two_steps_that_had_one_name_are_refused_with_one_line(app):
    def made(n):
        if n:

            @step(name="paint", was="draw")
            async def paint() -> None: ...

            return paint

        @step(name="sketch", was="draw")
        async def sketch() -> None: ...

        return sketch

    async def film() -> None:
        await made(1)()
        await made(0)()

    job = await finished(app, await deploy(app, film).submit())
    assert job.state is State.REVIEW
    assert job.error.message.startswith("two steps of this job have was='draw': tests.")


@pytest.mark.parametrize("was", ["", "~draw", 7, (), ("draw", 7), ("draw", "draw"), {"draw"}])
def test_what_can_be_no_old_name_is_refused_at_decoration(was):
    with pytest.raises(Invalid, match="step paint: was=.* oldest first"):
        drawing("paint", was=was)


def test_a_step_was_not_what_it_is():
    with pytest.raises(Invalid, match="step paint: was='paint' is the step's present name"):
        drawing("paint", was="paint")


# Without was=.


async def test_a_step_that_vanished_is_named_with_its_number_in_the_log_and_the_history(app, caplog):
    run = await drawn(app)
    paint = drawing("paint")

    async def film() -> list[str]:
        pictures = await paint.map(range(3))
        await wait_for("go")
        return pictures

    job = await goes_on(app, run, film)
    assert job.state is State.COMPLETED
    assert (await entry_of(run, Event.COMPLETE)).note["never_asked_for"] == {"draw": 3}
    line = (
        "3 recorded steps were not used: draw (3); "
        "if you renamed the step, @step(was='draw') makes it use the old records"
    )
    assert f"job {run.id} (film): {line}" in warnings(caplog)


async def test_it_is_told_when_the_job_waits_again_if_something_ran_anew(app, caplog):
    run = await drawn(app)
    paint = drawing("paint")

    async def film() -> None:
        await paint.map(range(3))
        await wait_for("go")
        await wait_for("more")

    deploy(app, film)
    await run.signal("go")
    async with app.worker():
        await until(lambda: any("not used: " in line for line in warnings(caplog)))
        await in_state(app, run, State.PENDING)
    assert (await entry_of(run, Event.SUSPEND)).note["never_asked_for"] == {"draw": 3}


async def test_a_job_that_only_waits_again_is_not_told_of_at_each_wait(app, caplog):
    run = await drawn(app)
    STEPS.clear()

    async def film() -> None:
        await wait_for("go")
        await wait_for("more")

    deploy(app, film)
    await run.signal("go")
    async with app.worker():

        async def waits_again():
            return [entry.event for entry in await run.history()].count(Event.SUSPEND) == 2

        await until(waits_again)
        assert not warnings(caplog)
        await run.signal("more")
        await in_state(app, run, State.COMPLETED)
    assert len([line for line in warnings(caplog) if "not used: " in line]) == 1


async def test_a_loop_that_ended_earlier_and_a_call_that_changed_are_no_alarm(app, caplog):
    run = await drawn(app)
    draw = drawing("draw")

    async def film() -> list[str]:
        pictures = await draw.map([0])
        await wait_for("go")
        return pictures

    job = await goes_on(app, run, film)
    assert job.state is State.COMPLETED
    assert "never_asked_for" not in (await entry_of(run, Event.COMPLETE)).note
    assert not warnings(caplog)


async def test_a_key_that_changed_is_a_note(app, caplog):
    draw = drawing("draw", key=lambda n: f"a{n}")

    async def film() -> None:
        await draw.map(range(2))
        await wait_for("go")

    run = await until_it_waits(app, film)
    again = drawing("draw", key=lambda n: f"b{n}")

    async def later() -> None:
        await again.map(range(2), at_once=1)
        await wait_for("go")

    await goes_on(app, run, later)
    lines = (await entry_of(run, Event.COMPLETE)).note["drift"]
    assert lines[0] == "draw#b0 ran, but the recorded draw#a0 was not used (2 such): did its key change?"
    assert not warnings(caplog)


async def test_an_attempt_that_failed_early_raises_no_alarm(app, caplog):
    run = await drawn(app)
    STEPS.clear()

    async def film() -> None:
        raise ValueError("too early to tell")

    await goes_on(app, run, film)
    assert not any("not used: " in line for line in warnings(caplog))


async def test_what_lies_inside_a_recorded_step_is_not_counted(app):
    def version(name):
        STEPS.clear()

        @step(name="ink")
        async def ink(n: int) -> int:
            return n

        @step(name=name)
        async def draw(n: int) -> int:
            return await ink(n)

        async def film() -> None:
            await draw(1)
            await wait_for("go")

        return film

    run = await until_it_waits(app, version("draw"))
    await goes_on(app, run, version("draw"))
    assert "never_asked_for" not in (await entry_of(run, Event.COMPLETE)).note

    run = await until_it_waits(app, version("draw"))
    await goes_on(app, run, version("paint"))
    assert (await entry_of(run, Event.COMPLETE)).note["never_asked_for"] == {"draw": 1}


async def test_a_first_run_has_nothing_that_could_be_missing(app):
    draw = drawing("draw", retries=AT_ONCE_RETRY)

    async def film() -> None:
        await asyncio.gather(draw(1), draw(2))

    run = await deploy(app, film).submit()
    await finished(app, run)
    assert (await entry_of(run, Event.COMPLETE)).note == {}


async def test_many_names_that_vanished_are_told_up_to_a_bound(app):
    run = await drawn(app)
    job = await app.jobs.get(run.id)
    await run.signal("go")
    (held,) = await app.engine.claim("w-before", ["default"], 1)
    (record,) = [one for one in await app.engine.steps(run.id) if one.name == "draw"][:1]
    many = [replace(record, epoch=held.epoch, path=f"s{n}#1", name=f"s{n}", state=StepState.DONE) for n in range(50)]
    await app.engine.record(many)
    await app.engine.commit([decide(held, Event.RELEASE, await app.engine.now(), by="w-before")])
    assert job.epoch == 1
    STEPS.clear()

    async def film() -> None: ...

    deploy(app, film)
    assert (await finished(app, run)).state is State.COMPLETED
    assert len((await entry_of(run, Event.COMPLETE)).note["never_asked_for"]) == 10
