"""How a call of a step is known again, and what is told when code calls it with other arguments."""

import asyncio

import pytest

from holdfast import current, step
from holdfast.core.model import Event, State
from tests.support.given import entry_of, events, finished, paths

CALLS: list[object] = []


@pytest.fixture(autouse=True)
def _no_calls():
    CALLS.clear()


@step
async def draw(n: int, style: str = "oil") -> str:
    CALLS.append(n)
    return f"{n}.png"


@step
def narrate(text: str) -> str:
    CALLS.append(text)
    return text.upper()


# Identity.


async def test_a_recorded_step_is_never_run_again(app, interrupted):
    async def job() -> list[str]:
        first = [await draw(1), await narrate.aio("a")]
        await interrupted.point()
        return [*first, await draw(2)]

    run = await app.job(job).submit()
    await interrupted.between(run)

    assert await run.result() == ["1.png", "A", "2.png"]
    assert CALLS == [1, "a", 2]
    assert (await events(run)) == ["submit", "claim", "lapse", "claim", "complete"]


async def test_records_are_found_when_code_is_reordered_and_stages_are_added(app, interrupted):
    async def job() -> list[str]:
        await draw(1)
        await draw(2)
        await interrupted.point()
        return []

    async def reordered() -> list[str]:
        return [await narrate.aio("new"), await draw(2), await draw(1)]

    run = await app.job(name="job")(job).submit()
    await interrupted.between(run, reordered)

    assert await run.result() == ["NEW", "2.png", "1.png"]
    assert CALLS == [1, 2, "new"]


async def test_a_new_argument_with_a_default_keeps_the_record(app, interrupted):
    calls = []

    @step(name="grow")
    async def grow(a: int) -> int:
        calls.append(a)
        return a

    async def job() -> None:
        await grow(1)
        await interrupted.point()

    run = await app.job(name="job")(job).submit()

    def again():
        @step(name="grow")
        async def grow(a: int, tone: str = "calm") -> int:
            calls.append(a)
            return a

        async def job() -> int:
            return await grow(1)

        return job

    await interrupted.between(run, again())
    assert calls == [1]


async def test_equal_calls_are_numbered(app):
    async def job() -> None:
        await draw(1)
        await draw(1)
        await draw(1, style="oil")

    run = await app.job(job).submit()
    await finished(app, run)

    one, two, three = await paths(app, run)
    assert (two, three) == (f"{one}#2", f"{one}#3")


async def test_a_step_inside_a_step_is_recorded_under_it_in_every_colour(app):
    @step(name="inner")
    def inner(n: int) -> int:
        return n

    @step(name="outer")
    async def outer(n: int) -> int:
        return sum(await asyncio.gather(inner.aio(n), inner.aio(n + 1)))

    @step(name="def_outer")
    def def_outer(n: int) -> int:
        return inner(n) + outer.sync(n)

    async def job() -> int:
        return await outer(1) + await def_outer.aio(5)

    run = await app.job(job).submit()
    await finished(app, run)

    shape = sorted("/".join(part.split("#")[0] for part in path.split("/")) for path in await paths(app, run))
    assert shape == ["def_outer", "def_outer/inner", "def_outer/outer", "def_outer/outer/inner",
                     "def_outer/outer/inner", "outer", "outer/inner", "outer/inner"]  # fmt: skip
    assert await run.result() == 3 + (5 + 11)


async def test_gathered_and_grouped_steps_do_not_leak_into_one_another(app):
    seen = {}

    @step(name="look")
    async def look(n: int) -> None:
        await asyncio.sleep(0.01 * (3 - n))
        seen[n] = current().step

    async def job() -> None:
        await asyncio.gather(look(0), look(1))
        async with asyncio.TaskGroup() as group:
            group.create_task(look(2))
            group.create_task(look(3))
        assert current().step == ""

    run = await app.job(job).submit()
    job_ = await finished(app, run)
    assert job_.state is State.COMPLETED, job_.error
    assert sorted(seen.values()) == sorted(await paths(app, run))
    assert not any("/" in path for path in seen.values())


async def test_a_key_names_a_call_by_value_or_by_function(app):
    @step(name="fixed", key="the one")
    async def fixed(n: int) -> None: ...

    @step(name="chosen", key=lambda scene: scene["id"])
    async def chosen(scene: dict[str, int]) -> None: ...

    async def job() -> None:
        await fixed(1)
        await chosen({"id": 7, "x": 1})
        await chosen.map([{"id": 8}, {"id": 9}], key=lambda scene: f"s{scene['id']}")

    run = await app.job(job).submit()
    await finished(app, run)
    assert await paths(app, run) == ["fixed#the one", "chosen#7", "chosen#s8", "chosen#s9"]


async def test_two_functions_under_one_name_in_one_run_are_an_error_that_names_both(app):
    def made(n: int):
        if n:

            @step(name="twin")
            async def first() -> None: ...

            return first

        @step(name="twin")
        async def second() -> None: ...

        return second

    async def job() -> None:
        await made(1)()
        await made(0)()

    job_ = await finished(app, await app.job(job).submit())
    assert job_.state is State.REVIEW
    assert ".first (line" in job_.error.message
    assert ".second (line" in job_.error.message
    assert "give one of them name='…'" in job_.error.message


# Drift.


async def test_with_a_key_other_arguments_are_answered_from_the_record_and_the_history_says_so(app, interrupted):
    ran = []

    @step(name="send", key=lambda to, text: to)
    async def send(to: str, text: str) -> str:
        ran.append(text)
        return f"sent {text}"

    async def job() -> str:
        answer = await send("bob", "hello" if interrupted.runs == 0 else "good day")
        await interrupted.point()
        return answer

    run = await app.job(job).submit()
    await interrupted.between(run)

    assert await run.result() == "sent hello"
    assert ran == ["hello"]
    (line,) = (await entry_of(run, Event.COMPLETE)).note["drift"]
    assert line == "send#bob returned its recorded result, although that was recorded with a different 'text'"
    assert await paths(app, run) == ["send#bob"]


async def test_without_a_key_a_changed_call_runs_and_the_history_names_the_argument(app, interrupted):
    @step(name="mix")
    async def mix(title: str, tone: str, size: int) -> str:
        CALLS.append(tone)
        return tone

    async def job() -> str:
        answer = await mix("film", "calm" if interrupted.runs == 0 else "wild", 3)
        await draw(1 if interrupted.runs == 0 else 2)
        await interrupted.point()
        return answer

    run = await app.job(job).submit()
    await interrupted.between(run)

    assert await run.result() == "wild"
    lines = (await entry_of(run, Event.COMPLETE)).note["drift"]
    assert len(lines) == 2
    assert "it differs in 'tone' from the recorded mix#" in lines[0]
    assert "it differs in 'n' from the recorded draw#" in lines[1]


async def test_going_on_in_the_middle_of_a_map_is_no_drift(app, interrupted):
    async def job() -> None:
        await draw.map(range(5), at_once=1)
        await interrupted.point()
        await draw.map(range(10), at_once=3, key=None)

    run = await app.job(job).submit()
    await interrupted.between(run)
    assert "drift" not in (await entry_of(run, Event.COMPLETE)).note


async def test_drift_is_bounded(app, interrupted):
    async def job() -> None:
        await draw.map(range(50) if interrupted.runs == 0 else range(100, 150))
        await interrupted.point()

    run = await app.job(job).submit()
    await interrupted.between(run)
    assert len((await entry_of(run, Event.COMPLETE)).note["drift"]) == 10


async def test_equal_calls_from_different_tasks_are_noted(app):
    @step(name="roll")
    async def roll(n: int) -> int:
        return n

    @app.job
    async def game() -> None:
        await asyncio.gather(roll(1), roll(1))

    @app.job
    async def calm() -> None:
        await roll(1)
        await roll(1)
        await roll.map([2, 2])

    first, second = await game.submit(), await calm.submit()
    async with app.worker():
        await first.result(5)
        await second.result(5)
    (line,) = (await first.history())[-1].note["drift"]
    assert "was called from different tasks, whose order may change" in line
    assert "drift" not in (await second.history())[-1].note
