"""Effects that happen once, and what a person says of one in doubt."""

import asyncio
import contextlib
import time

import pytest

from holdfast import current, step, wait_for
from holdfast.core.errors import Invalid, NotFound
from holdfast.core.model import Event, State, StepState
from tests.support.given import AT_ONCE_RETRY, entry_of, events, finished, in_state, until

ENGINES = ("memory", "sqlite", "postgres", "redis")

SENT: list[str] = []
TROUBLE: list[BaseException] = []


@pytest.fixture(autouse=True)
def fresh():
    SENT.clear()
    TROUBLE.clear()


@step(name="send", effect="once", key=lambda order: order)
async def send(order: str) -> str:
    SENT.append(order)
    if TROUBLE:
        raise TROUBLE.pop()
    return f"sent {order}"


@step(name="send_slowly", effect="once", key=lambda order: order)
def send_slowly(order: str) -> str:
    SENT.append(order)
    return f"sent {order}"


async def test_an_effect_costs_one_write_more_and_is_recorded(app, engine):
    @app.job
    async def order() -> str:
        return await send("42")

    run = await order.submit()
    assert (await finished(app, run)).state is State.COMPLETED
    assert engine.calls["record"] == 2
    (record,) = [one for one in await app.engine.steps(run.id) if not one.path.startswith("~")]
    assert (record.path, record.state) == ("send#42", StepState.DONE)


@pytest.mark.parametrize("colour", ["async", "def"])
async def test_a_crash_between_effect_and_record_stops_in_review(app, engine, colour):
    if colour == "async":

        @app.job
        async def order() -> str:
            return await send("42")
    else:

        @app.job
        def order() -> str:
            return send_slowly("42")

    run = await order.submit()
    crash(engine, "done")
    async with app.worker():
        job = await in_state(app, run, State.REVIEW)
    assert SENT == ["42"]
    assert job.error.type == "EffectInDoubt"
    assert "send" in job.error.message
    assert "--again" in job.error.message


def crash(engine, state):
    """Lose the lease at the moment when a step's record of this state is to be written, as after a kill."""

    async def before(name, args):
        if name != "record" or args[0][0].state != state or args[0][0].path.startswith("~"):
            return
        engine.before = None
        step = args[0][0]
        (job,) = await engine.engine.get([step.job])
        from holdfast.core.lifecycle import decide
        from holdfast.core.model import Event

        await engine.engine.commit([decide(job, Event.LAPSE, await engine.engine.now(), by="upkeep")])

    engine.before = before


async def test_a_crash_before_the_intent_runs_it_once(app, engine):
    @app.job
    async def order() -> str:
        return await send("42")

    run = await order.submit()
    crash(engine, "started")
    assert (await finished(app, run)).state is State.COMPLETED
    assert SENT == ["42"]


async def test_a_person_says_that_it_happened(app, engine):
    @app.job
    async def order() -> str:
        return (await send("42")).upper()

    run = await order.submit()
    crash(engine, "done")
    async with app.worker():
        await in_state(app, run, State.REVIEW)
        await run.resolve_step("send#42", "it was sent", reason="found it in the outbox")
        assert await run.result(5) == "IT WAS SENT"
    assert SENT == ["42"]
    note = (await entry_of(run, Event.REPLAY)).note
    assert note == {"reason": "found it in the outbox", "step": "send#42", "said": "it happened"}


async def test_a_person_says_do_it_again(app, engine):
    @app.job
    async def order() -> str:
        return await send("42")

    run = await order.submit()
    crash(engine, "done")
    async with app.worker():
        await in_state(app, run, State.REVIEW)
        await run.resolve_step("send#42", again=True)
        assert await run.result(5) == "sent 42"
    assert SENT == ["42", "42"]


async def test_a_plain_replay_does_not_run_it_again(app, engine):
    @app.job
    async def order() -> str:
        return await send("42")

    run = await order.submit()
    crash(engine, "done")
    async with app.worker():
        await in_state(app, run, State.REVIEW)
        await run.replay()
        job = await in_state(app, run, State.REVIEW)
        assert job.error.type == "EffectInDoubt"
    assert SENT == ["42"]


async def test_an_effect_that_failed_is_in_doubt_too_and_not_tried_again(app):
    TROUBLE.append(ConnectionError("reset by peer"))

    @app.job(retries=AT_ONCE_RETRY)
    async def order() -> str:
        return await send("42")

    run = await order.submit()
    job = await finished(app, run)
    assert job.state is State.REVIEW
    assert SENT == ["42"]
    assert "may have happened (ConnectionError: reset by peer)" in job.error.message


async def test_a_handler_may_answer_for_an_effect_that_failed(app):
    TROUBLE.append(ConnectionError("reset by peer"))

    @app.job(retries=AT_ONCE_RETRY)
    async def order() -> str:
        try:
            return await send("42")
        except ConnectionError:
            return "asked the provider: not sent"

    run = await order.submit()
    assert (await finished(app, run)).state is State.COMPLETED


async def test_one_key_is_one_effect(app):
    @app.job
    async def order() -> list[str]:
        return [await send("42"), await send("42")]

    run = await order.submit()
    job = await finished(app, run)
    assert job.state is State.COMPLETED
    assert SENT == ["42"]


async def test_a_swallowed_doubt_still_stops_the_job(app, engine):
    @app.job
    async def order() -> str:
        try:
            return await send("42")
        except BaseException:
            return await send("43")

    run = await order.submit()
    crash(engine, "done")
    async with app.worker():
        await in_state(app, run, State.REVIEW)
    assert SENT == ["42"]


async def test_only_a_step_in_doubt_can_be_resolved(app):
    @app.job
    async def order() -> str:
        return await send("42")

    run = await order.submit()
    await finished(app, run)
    with pytest.raises(NotFound, match="no step of this job is"):
        await run.resolve_step("send#42", "x")


def test_what_makes_no_sense_is_refused_at_decoration():
    async def mail() -> None: ...

    with pytest.raises(Invalid, match="needs key="):
        step(name="mail", effect="once")(mail)
    with pytest.raises(Invalid, match="never retried automatically"):
        step(name="mail", effect="once", key="k", retries=2)(mail)
    with pytest.raises(Invalid, match="effect='twice' is unknown"):
        step(name="mail", effect="twice", key="k")(mail)  # type: ignore[call-overload]


async def test_the_providers_key_is_the_same_over_attempts_recoveries_and_replays(app, engine):
    keys: list[str] = []
    fail = [True, True, False]

    @step(name="charge")
    async def charge(amount: int) -> int:
        keys.append(current().idempotency_key)
        if fail.pop(0):
            raise ConnectionError("declined")
        return amount

    @app.job(retries=0)
    async def order() -> int:
        return await charge(7)

    run = await order.submit()
    async with app.worker():
        await in_state(app, run, State.REVIEW)
        await run.replay()
        await in_state(app, run, State.REVIEW)
        crash(engine, "done")
        await run.replay()
        fail.append(False)
        assert await run.result(5) == 7
    assert len(keys) == 4
    assert len(set(keys)) == 1
    assert "lapse" in await events(run)


async def test_what_was_said_of_a_step_can_be_corrected(app, engine):
    @app.job
    async def order() -> str:
        return await send("42")

    run = await order.submit()
    crash(engine, "done")
    async with app.worker():
        await in_state(app, run, State.REVIEW)
        await run.resolve_step("send#42", {"not": "a text"})

        async def refused():
            job = await app.jobs.get(run.id)
            return job if job.state is State.REVIEW and job.error.type != "EffectInDoubt" else None

        await until(refused)
        await run.resolve_step("send#42", "it was sent")
        assert await run.result(5) == "it was sent"


async def test_an_effect_whose_failure_was_answered_for_stays_answered_over_a_wait(app):
    TROUBLE.append(ConnectionError("reset by peer"))

    @app.job
    async def order() -> str:
        try:
            word = await send("42")
        except ConnectionError as error:
            word = f"not sent: {error}"
        await wait_for("go")
        return word

    run = await order.submit()
    async with app.worker():
        await in_state(app, run, State.PENDING)
        await run.signal("go")
        assert await run.result(5) == "not sent: reset by peer"
    assert SENT == ["42"]


@pytest.mark.parametrize("how", ["gather", "map", "threads"])
async def test_an_effect_that_is_asked_for_twice_at_once_happens_once(app, how):
    @step(name="pay", effect="once", key=lambda order: order)
    async def pay(order: str) -> str:
        SENT.append(order)
        await asyncio.sleep(0.1)
        return f"paid {order}"

    @step(name="pay_slowly", effect="once", key=lambda order: order)
    def pay_slowly(order: str) -> str:
        SENT.append(order)
        time.sleep(0.1)
        return f"paid {order}"

    @app.job(retries=0)
    async def order() -> list[str]:
        if how == "map":
            return await pay.map(["a", "a"])
        if how == "threads":
            return await pay_slowly.aio.map(["a", "a"])
        return list(await asyncio.gather(pay("a"), pay("a")))

    run = await order.submit()
    async with app.worker():
        assert await run.result(5) == ["paid a", "paid a"]
    assert SENT == ["a"]


async def sent_and_not_recorded(app, engine, number):
    """A job whose worker went away after it had sent so many at once, and before any was recorded."""

    @app.job(retries=0)
    async def order() -> list[str]:
        return list(await asyncio.gather(*(send(str(n)) for n in range(1, number + 1))))

    async def before(name, args):
        if name == "record" and args[0][0].state == "done":
            await asyncio.sleep(30)

    run = await order.submit()
    engine.before = before
    async with app.worker():
        await until(lambda: len(SENT) == number)
    engine.before = None
    return run


async def test_a_person_who_resolves_all_steps_in_doubt_needs_one_replay(app, engine):
    run = await sent_and_not_recorded(app, engine, 3)
    job = await app.jobs.get(run.id)
    assert job.state is State.REVIEW
    await run.resolve_step("send#2", "two", reason="seen in the outbox")
    await run.resolve_step("send#1", again=True)
    await run.resolve_step("send#2", "second")
    job = await app.jobs.get(run.id)
    assert (job.state, job.epoch) == (State.REVIEW, 1)
    assert await said_events(run) == ["signal", "signal", "signal"]
    async with app.worker():
        await run.resolve_step("send#3", "third")
        assert await run.result(10) == ["sent 1", "second", "third"]
    job = await app.jobs.get(run.id)
    assert (job.epoch, job.inbox) == (2, ())
    assert sorted(SENT) == ["1", "1", "2", "3"]
    note = (await entry_of(run, Event.REPLAY)).note
    assert note["steps"] == {"send#1": "do it again", "send#2": "it happened", "send#3": "it happened"}


async def said_events(run):
    return [event for event in await events(run) if event in ("signal", "replay")]


async def test_what_was_said_of_some_steps_goes_with_a_plain_replay(app, engine):
    run = await sent_and_not_recorded(app, engine, 2)
    await run.resolve_step("send#2", "two")
    async with app.worker():
        await run.replay()
        job = await in_state(app, run, State.REVIEW)
    assert "send#1 may have happened: it started, and no result was recorded" in job.error.message
    assert {step.path: step.result for step in await app.engine.steps(run.id)}["send#2"] == '"two"'
    assert sorted(SENT) == ["1", "2"]


@pytest.mark.parametrize("beside", [0, 2])
async def test_an_effect_that_was_stopped_while_its_intent_was_written_has_not_begun(app, engine, beside):
    @step(name="linger")
    async def linger(n: int) -> int:
        await asyncio.sleep(30 if current().epoch == 1 else 0)
        return n

    @app.job
    async def order() -> str:
        sent, *_ = await asyncio.gather(send("42"), *(linger(n) for n in range(beside)))
        return sent

    slow_intent(engine)
    run = await order.submit()
    async with app.worker() as worker:
        await until(lambda: has_intent(app, run.id))
        worker.abort()
    assert SENT == []
    async with app.worker():
        assert await run.result(10) == "sent 42"
    assert SENT == ["42"]


async def test_an_effect_whose_job_timed_out_while_its_intent_was_written_has_not_begun(app, engine):
    @app.job(retries=AT_ONCE_RETRY, timeout="500ms")
    async def order() -> str:
        return await send("42")

    slow_intent(engine)
    run = await order.submit()
    async with app.worker():
        assert await run.result(10) == "sent 42"
    assert SENT == ["42"]


async def test_an_intent_that_was_cut_off_and_written_again_is_not_taken_back(app, engine):
    @step(name="hang", effect="once", key=lambda order: order)
    async def hang(order: str) -> str:
        SENT.append(order)
        await asyncio.sleep(30)
        return order

    @app.job
    async def order() -> str:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.2):
                await hang("42")
        return await hang("42")

    slow_intent(engine)
    run = await order.submit()
    async with app.worker() as worker:
        await until(lambda: SENT)
        worker.abort()
    async with app.worker():
        assert (await in_state(app, run, State.REVIEW)).error.type == "EffectInDoubt"
    assert SENT == ["42"]


def slow_intent(engine):
    """The first intent is written, and its answer takes a second."""
    record, left = engine.engine.record, [1]

    async def slow(steps):
        answer = await record(steps)
        if left and any(one.state is StepState.STARTED and not one.path.startswith("~") for one in steps):
            left.clear()
            await asyncio.sleep(1)
        return answer

    engine.engine.record = slow


async def has_intent(app, id):
    return any(one.state is StepState.STARTED for one in await app.engine.steps(id))
