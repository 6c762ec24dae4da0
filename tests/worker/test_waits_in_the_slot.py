"""A job that keeps its slot while it waits: what it asks is seen, checked and answered as if it had given its slot up.

Timers of asyncio and steps beside a wait keep a job in its slot; `test_timers` has the laws of that.
"""

import asyncio
from contextlib import suppress
from functools import partial
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field, field_validator

from holdfast import ask, step, wait_for
from holdfast.core import lifecycle
from holdfast.core.errors import BadValue, NotAllowed, NotFound
from holdfast.core.model import Event, Retry, State, Wait, WaitKind
from holdfast.jobs.questions import WAIT_PATH, untaken
from tests.support.given import events, in_state, until

ENGINES = ("memory", "sqlite", "file", "postgres", "redis")

HOUR = 3_600

PROMPT_SECONDS = 4.0
"""An answer is there much sooner. Without a wake-up it would take LISTEN_SECONDS, which is longer."""

Few = Annotated[int, Field(le=5)]


class Even(BaseModel):
    """A form with a rule that only the job itself can check."""

    number: int

    @field_validator("number")
    @classmethod
    def is_even(cls, value: int) -> int:
        if value % 2:
            raise ValueError("an even number, please")
        return value


async def by_wait_for(wait: Any) -> Any:
    return await asyncio.wait_for(wait, HOUR)


async def by_timeout(wait: Any) -> Any:
    async with asyncio.timeout(HOUR):
        return await wait


async def by_wait(wait: Any) -> Any:
    done, _ = await asyncio.wait({asyncio.ensure_future(wait)}, timeout=HOUR)
    return done.pop().result()


async def by_a_race_with_sleep(wait: Any) -> Any:
    nap, asked = asyncio.ensure_future(asyncio.sleep(HOUR)), asyncio.ensure_future(wait)
    await asyncio.wait({nap, asked}, return_when=asyncio.FIRST_COMPLETED)
    nap.cancel()
    return asked.result()


async def question_of(app, run):
    """The job's one question, once all can see it."""
    (question,) = await until(app.jobs.questions)
    assert question.job == run.id
    return question


@pytest.mark.parametrize(
    "kept", [by_wait_for, by_timeout, by_wait, by_a_race_with_sleep], ids=lambda kept: kept.__name__
)
async def test_a_question_under_a_timer_is_seen_and_answered_in_the_slot(app, kept):
    @app.job
    async def film() -> int:
        return await kept(ask("publish?", form=Few))

    run = await film.submit()
    async with app.worker():
        question = await question_of(app, run)

        assert question.value == "publish?"
        status = await run.status()
        assert (status.state, status.waits) == (State.ACTIVE, (Wait(WaitKind.SIGNAL, question.name),))
        with pytest.raises(BadValue, match="less than or equal to 5"):
            await app.jobs.answer(run.id, 9)
        assert (await app.jobs.answer(run.id, 5)).state in (State.ACTIVE, State.COMPLETED)
        assert await run.result(PROMPT_SECONDS) == 5
    assert (await events(run)).count(Event.CLAIM) == 1, "the attempt that asked was answered"


async def test_a_question_beside_a_step_that_takes_long_is_seen_and_answered(app):
    shut = asyncio.Event()

    @step(name="stay")
    async def stay() -> int:
        await shut.wait()
        return 1

    @app.job
    async def film() -> int:
        async def publish() -> int:
            answer = await ask("publish?", form=int)
            shut.set()
            return answer

        return sum(await asyncio.gather(stay(), publish()))

    run = await film.submit()
    async with app.worker():
        await question_of(app, run)
        await app.jobs.answer(run.id, 5)
        assert await run.result(PROMPT_SECONDS) == 6


async def test_an_answered_question_is_open_no_more_and_the_next_one_is(app):
    @app.job
    async def film() -> int:
        async with asyncio.timeout(HOUR):
            return await ask("how many?", form=int) + await ask("how many more?", form=int)

    run = await film.submit()
    async with app.worker():
        first = await question_of(app, run)
        await app.jobs.answer(run.id, 1)
        with pytest.raises(NotFound, match="no open question"):
            await app.jobs.answer(run.id, 1, name=first.name)

        async def next_one():
            return [one for one in await app.jobs.questions(run.id) if one.name != first.name]

        (second,) = await until(next_one)
        assert second.value == "how many more?"
        await app.jobs.answer(run.id, 2)
        assert await run.result(PROMPT_SECONDS) == 3
    assert await app.jobs.questions() == []


async def by_a_task(wait: Any, seconds: float) -> None:
    asking = asyncio.ensure_future(wait)
    await asyncio.wait({asking}, timeout=seconds)
    asking.cancel()
    await asyncio.wait({asking})


async def by_its_own_timeout(wait: Any, seconds: float) -> None:
    with suppress(TimeoutError):
        await asyncio.wait_for(wait, seconds)


@pytest.mark.parametrize("given_up", [by_a_task, by_its_own_timeout], ids=lambda given_up: given_up.__name__)
async def test_a_question_that_the_job_gave_up_is_open_no_more_while_it_runs_on(app, given_up):
    @app.job
    async def film() -> int:
        await given_up(ask("publish?", form=int), 2)
        return await asyncio.wait_for(wait_for("go", as_=int), HOUR)

    run = await film.submit()
    async with app.worker():
        question = await question_of(app, run)

        async def closed():
            return not await app.jobs.questions()

        await until(closed)
        assert (await app.jobs.get(run.id)).state is State.ACTIVE
        with pytest.raises(NotFound, match="no open question"):
            await app.jobs.answer(run.id, 5)
        await run.signal(question.name, "not a number")  # nobody asks for it any more: nothing to check it against
        await run.signal("go", 7)
        assert await run.result(PROMPT_SECONDS) == 7


async def test_a_question_stays_open_when_its_worker_stops_and_is_asked_again(app):
    @app.job
    async def film() -> int:
        return await asyncio.wait_for(ask("publish?", form=Few), HOUR)

    run = await film.submit()
    async with app.worker():
        asked = await question_of(app, run)
    assert (await app.jobs.get(run.id)).state is State.AVAILABLE
    with pytest.raises(BadValue, match="less than or equal to 5"):
        await app.jobs.answer(run.id, 9)
    async with app.worker():
        await in_state(app, run, State.ACTIVE)
        (again,) = await app.jobs.questions()
        assert (again.name, again.asked_at) == (asked.name, asked.asked_at)
        await app.jobs.answer(run.id, 5)
        assert await run.result(PROMPT_SECONDS) == 5


async def test_an_answer_that_only_the_job_can_refuse_is_told_beside_the_question(app):
    @app.job
    async def film() -> int:
        return (await asyncio.wait_for(ask("how many?", form=Even), HOUR)).number

    run = await film.submit()
    async with app.worker():
        await question_of(app, run)
        await app.jobs.answer(run.id, {"number": 3}, by="Ada")

        async def refused():
            return [one.refused for one in await app.jobs.questions() if one.refused]

        (told,) = await until(refused, PROMPT_SECONDS)
        assert told.by == "Ada"
        assert "an even number, please" in told.why
        for number in (5, 7):  # each is refused in turn, and the question stays open
            await app.jobs.answer(run.id, {"number": number}, by=f"Bob {number}")

            async def told_again(by=f"Bob {number}"):
                return [one for one in await refused() if one.by == by]

            await until(told_again, PROMPT_SECONDS)
        await app.jobs.answer(run.id, {"number": 4})
        assert await run.result(PROMPT_SECONDS) == 4


async def test_listing_questions_reads_no_records_of_parked_jobs_that_ask_none(app, engine):
    @app.job
    async def film() -> int:
        return await wait_for("go", as_=int)

    run = await film.submit()
    async with app.worker():
        await in_state(app, run, State.PENDING)
    engine.calls.clear()

    assert await app.jobs.questions() == []

    assert not engine.calls["steps"] + engine.calls["steps_under"]


# Signals are checked wherever it is known what the job takes.


async def test_a_signal_is_checked_while_the_job_waits_for_a_worker(app):
    @app.job
    async def film() -> list[int]:
        return list(await asyncio.gather(wait_for("a", as_=Few), wait_for("b", as_=Few)))

    run = await film.submit()
    async with app.worker():
        await in_state(app, run, State.PENDING)
    await run.signal("a", 1)
    assert (await app.jobs.get(run.id)).state is State.AVAILABLE

    with pytest.raises(BadValue, match="signal b: .*less than or equal to 5"):
        await run.signal("b", 9)

    await run.signal("a", "for another wait")  # the one for `a` has its value, and what comes next is not known
    await run.signal("b", 2)
    async with app.worker():
        assert await run.result(PROMPT_SECONDS) == [1, 2]


async def test_a_signal_is_checked_in_a_kept_slot(app):
    @app.job
    async def film() -> int:
        return await asyncio.wait_for(wait_for("a", as_=Few), HOUR)

    run = await film.submit()
    async with app.worker():

        async def waits():
            return (await run.status()).waits

        assert await until(waits) == (Wait(WaitKind.SIGNAL, "a"),)
        with pytest.raises(BadValue, match="signal a: .*less than or equal to 5"):
            await run.signal("a", 9)
        await run.signal("a", 2)
        assert await run.result(PROMPT_SECONDS) == 2


async def test_a_signal_is_checked_while_the_job_waits_for_its_next_try(app):
    fail = asyncio.Event()

    @step(name="draw", retries=0)
    async def draw() -> None:
        await fail.wait()
        raise ValueError("no paper")

    @app.job(retries=Retry(retries=1, strategy="constant", initial_ms=HOUR * 1_000))
    async def film() -> int:
        _, answer = await asyncio.gather(draw(), wait_for("a", as_=Few))
        return answer

    run = await film.submit()
    async with app.worker():

        async def waits():
            return (await run.status()).waits

        await until(waits)
        fail.set()
        await in_state(app, run, State.RETRYABLE)

        with pytest.raises(BadValue, match="signal a: .*less than or equal to 5"):
            await run.signal("a", 9)
        await run.signal("a", 2)


# A full inbox.

SOME = 20


@pytest.fixture
def small(monkeypatch):
    """An inbox that is full soon."""
    monkeypatch.setattr(lifecycle, "INBOX_SIGNALS", SOME)


async def flooded(app):
    """A job that will wait for a signal in its slot, and whose inbox is full of others."""

    @app.job
    async def film() -> int:
        return await asyncio.wait_for(wait_for("go", as_=int), HOUR)

    run = await film.submit()
    for n in range(SOME):
        await run.signal("other", n)
    return run


async def waits(run):
    return (await run.status()).waits


async def test_a_flood_of_other_signals_keeps_no_job_in_its_slot_from_the_one_it_waits_for(app, small):
    run = await flooded(app)
    async with app.worker():
        await until(partial(waits, run))
        with pytest.raises(NotAllowed, match="the inbox is full"):
            await run.signal("other", 0)
        await run.signal("go", 42)
        assert await run.result(PROMPT_SECONDS) == 42


async def test_a_flood_of_the_signal_that_a_job_in_its_slot_waits_for_has_a_bound(app, small):
    run = await flooded(app)
    async with app.worker():
        await until(partial(waits, run))
    # Nobody takes anything now, and what it waits for is known.
    await run.signal("go", 1)
    with pytest.raises(NotAllowed, match="the inbox is full"):
        await run.signal("go", 2)


async def test_what_a_job_takes_in_its_slot_makes_room(app, small):
    @app.job
    async def film() -> int:
        total = 0
        async with asyncio.timeout(HOUR):
            while (n := await wait_for("n", as_=int)) >= 0:
                total += n
        return total

    run = await film.submit()
    async with app.worker():
        for _ in range(3 * SOME):
            await run.signal("n", 1)

            async def taken():
                steps = await app.engine.steps_under(run.id, WAIT_PATH)
                return not untaken(await app.jobs.get(run.id), steps)

            await until(taken, PROMPT_SECONDS)
            assert len((await app.jobs.get(run.id)).inbox) <= 2, "what it has taken leaves the inbox"
        await run.signal("n", -1)
        assert await run.result(PROMPT_SECONDS) == 3 * SOME
    assert (await events(run)).count(Event.CLAIM) == 1
