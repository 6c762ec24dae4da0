"""Waiting: a parked job gives up its slot, loses nothing, and goes on when what it waits for is here."""

import asyncio
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from pydantic import BaseModel

from holdfast import sleep, step, wait_for
from holdfast.core.errors import BadValue, Invalid, WrongColour
from holdfast.core.lifecycle import decide
from holdfast.core.model import Event, State
from holdfast.worker.context import NoJob
from tests.support.given import events, in_state, until

ENGINES = ("memory", "sqlite", "postgres", "redis")

RAN: list[str] = []


@pytest.fixture(autouse=True)
def fresh():
    RAN.clear()


@step(name="draw")
async def draw(n: int) -> int:
    RAN.append(f"draw {n}")
    return n


@step(name="narrate")
def narrate(n: int) -> int:
    RAN.append(f"narrate {n}")
    return n


class Decision(BaseModel):
    ok: bool
    why: str = ""


# One wait.


async def test_a_sleeping_job_frees_its_slot_and_goes_on(app, clock):
    @app.job
    async def film() -> int:
        first = await draw(1)
        await sleep("2h")
        return first + await draw(2)

    @app.job
    async def other() -> str:
        return "ran"

    run = await film.submit()
    async with app.worker(at_once=1):
        job = await in_state(app, run, State.SCHEDULED)
        assert await (await other.submit()).result(5) == "ran"
        assert job.worker is None
        clock.advance(2 * 3600 + 1)
        assert await run.result(10) == 3
    assert RAN == ["draw 1", "draw 2"]
    assert await events(run) == ["submit", "claim", "rest", "promote", "claim", "complete"]
    assert (await app.jobs.get(run.id)).attempt == 1


async def test_a_signal_wakes_the_job_that_waits_for_it(app):
    @app.job
    async def film() -> str:
        decision = await wait_for("approved", as_=Decision)
        assert isinstance(decision, Decision)
        return decision.why

    run = await film.submit()
    async with app.worker(at_once=1):
        await in_state(app, run, State.PENDING)
        await run.signal("approved", {"ok": True, "why": "nice"})
        assert await run.result(5) == "nice"
    assert await events(run) == ["submit", "claim", "suspend", "activate", "claim", "complete"]


async def test_a_signal_that_came_before_is_taken_at_once_and_once(app):
    @app.job
    async def film() -> list[int]:
        return [await wait_for("n", as_=int), await wait_for("n", as_=int)]

    run = await film.submit()
    await run.signal("n", 1)
    await run.signal("n", 2)
    async with app.worker():
        assert await run.result(5) == [1, 2]
    assert "suspend" not in await events(run)


async def test_a_signal_between_look_and_suspend_is_not_lost(app, engine):
    @app.job
    async def film() -> str:
        return await wait_for("go", as_=str)

    run = await film.submit()
    sent = False

    async def send_before_the_suspend(name, args):
        nonlocal sent
        if name == "commit" and args[0][0].event == Event.SUSPEND and not sent:
            sent = True
            await app.jobs.signal(run.id, "go", "now")

    engine.before = send_before_the_suspend
    async with app.worker():
        assert await run.result(5) == "now"
    assert sent
    assert "suspend" not in await events(run)


async def test_within_is_over_once_and_for_all(app, clock):
    @app.job(retries=1)
    async def film() -> str:
        try:
            await wait_for("approved", within="2d")
        except TimeoutError as error:
            await draw(1)
            await wait_for("again")
            return str(error)
        return "approved"

    run = await film.submit()
    async with app.worker():
        await in_state(app, run, State.PENDING)
        clock.advance(2 * 86_400 + 1)
        await until(lambda: RAN == ["draw 1"])
        await in_state(app, run, State.PENDING)
        await run.signal("approved", "too late")
        await run.signal("again")
        assert await run.result(5) == "approved did not arrive within 2 d"


async def test_the_end_of_a_wait_is_fixed_when_it_is_first_asked_for(app, clock):
    @app.job
    async def film() -> str:
        first = asyncio.ensure_future(wait_for("n", as_=int))
        second = asyncio.ensure_future(sleep("2h"))
        await first
        await second
        return "done"

    run = await film.submit()
    async with app.worker():
        await in_state(app, run, State.PENDING)
        clock.advance(3_600)
        await run.signal("n", 1)
        await in_state(app, run, State.SCHEDULED)
        clock.advance(3_601)
        assert await run.result(5) == "done"


async def test_a_signal_that_does_not_fit_is_refused_and_told(app):
    @app.job
    async def film() -> bool:
        return (await wait_for("approved", as_=Decision)).ok

    run = await film.submit()
    await run.signal("approved", "yes")
    async with app.worker():
        await in_state(app, run, State.PENDING)
        await run.signal("approved", {"ok": True})
        assert await run.result(5) is True
    (suspend,) = [entry for entry in await run.history() if entry.event == "suspend"]
    assert "approved from caller" in suspend.note["refused"][0]


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (b"x", "signal s: a bytes would come back as a str; "),
        ({1: 2}, "signal s: .*1.* come back as "),
        ({"at": [Decimal(1)]}, r"signal s: \.at\[0\]: a Decimal would come back as a str; "),
        ((1, 2), "signal s: a tuple would come back as a list; "),
        (datetime(2026, 1, 1, tzinfo=UTC), "signal s: a datetime would come back as a str; "),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_a_signal_that_a_wait_without_a_type_would_get_as_another_value_is_refused(app, value, why):
    @app.job
    async def film() -> None:
        await wait_for("s")

    run = await film.submit()
    async with app.worker():
        await in_state(app, run, State.PENDING)
        with pytest.raises(BadValue, match=why) as told:
            await run.signal("s", value)
    assert "\n" not in str(told.value)
    assert (await app.jobs.get(run.id)).inbox == ()


@pytest.mark.parametrize("early", [True, False])
async def test_a_wait_with_a_type_takes_a_signal_that_is_of_that_type(app, early):
    class Decision(BaseModel):
        at: datetime
        price: Decimal

    sent = Decision(at=datetime(2026, 1, 1, tzinfo=UTC), price=Decimal("1.5"))

    @app.job
    async def film() -> bool:
        return await wait_for("s", as_=Decision) == sent

    run = await film.submit()
    if early:
        await run.signal("s", sent)
    async with app.worker():
        if not early:
            await in_state(app, run, State.PENDING)
            await run.signal("s", sent)
        assert await run.result(10) is True


async def test_a_waiting_job_refuses_a_signal_of_another_type_at_the_door(app):
    @app.job
    async def film() -> bool:
        return (await wait_for("approved", as_=Decision)).ok

    run = await film.submit()
    async with app.worker():
        await in_state(app, run, State.PENDING)
        with pytest.raises(Invalid, match="signal approved: ok: "):
            await run.signal("approved", {"ok": "maybe"})
        with pytest.raises(Invalid, match="signal approved: .*'ok'"):
            await run.signal("approved", {"why": "x"})
        assert (await app.jobs.get(run.id)).state is State.PENDING
        await run.signal("approved", {"ok": False})
        assert await run.result(5) is False


# Several waits.


async def test_gathered_waits_are_answered_in_any_order(app):
    @app.job
    async def film() -> list[int]:
        return list(await asyncio.gather(wait_for("a", as_=int), wait_for("b", as_=int), draw(3)))

    run = await film.submit()
    async with app.worker():
        await in_state(app, run, State.PENDING)
        await run.signal("b", 2)
        await until(lambda: _suspends(run, 2))
        await in_state(app, run, State.PENDING)
        await run.signal("a", 1)
        assert await run.result(5) == [1, 2, 3]
    assert RAN == ["draw 3"]


async def _suspends(run, count):
    return (await events(run)).count("suspend") == count


async def test_a_task_group_and_asyncio_wait_work_as_in_any_code(app):
    @app.job
    async def film() -> list[str]:
        async with asyncio.TaskGroup() as group:
            one = group.create_task(wait_for("a", as_=str))
            two = group.create_task(draw(1))
        later = {asyncio.ensure_future(wait_for("b", as_=str)), asyncio.ensure_future(wait_for("never"))}
        done, pending = await asyncio.wait(later, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
        return [one.result(), str(two.result()), done.pop().result()]

    run = await film.submit()
    async with app.worker():
        await in_state(app, run, State.PENDING)
        await run.signal("a", "x")
        await until(lambda: _suspends(run, 2))
        await run.signal("b", "y")
        assert await run.result(5) == ["x", "1", "y"]
    assert RAN == ["draw 1"]


async def test_a_running_step_holds_the_job_and_a_signal_meanwhile_is_heard(app):
    gate = asyncio.Event()

    @step(name="slow")
    async def slow() -> str:
        await gate.wait()
        return "slow"

    heard = asyncio.Event()

    @app.job
    async def film() -> list[str]:
        async def hear() -> str:
            word = await wait_for("go", as_=str)
            heard.set()
            return word

        return list(await asyncio.gather(hear(), slow()))

    run = await film.submit()
    async with app.worker():
        await in_state(app, run, State.ACTIVE)
        await asyncio.sleep(0.2)
        await run.signal("go", "now")
        await asyncio.wait_for(heard.wait(), 2)
        gate.set()
        assert await run.result(5) == ["now", "slow"]
    assert "suspend" not in await events(run)


async def test_a_timeout_of_the_jobs_own_strikes_while_it_waits(app):
    @app.job
    async def film() -> str:
        try:
            async with asyncio.timeout(0.3):
                await wait_for("never")
        except TimeoutError:
            return "gave up"
        return "?"

    run = await film.submit()
    async with app.worker():
        assert await run.result(5) == "gave up"


async def test_the_jobs_own_timeout_does_not_keep_it_in_its_slot(app, clock):
    @app.job(timeout="30s")
    async def film() -> str:
        await sleep("1h")
        return "done"

    run = await film.submit()
    async with app.worker():
        await in_state(app, run, State.SCHEDULED, seconds=5)
        clock.advance(3_601)
        assert await run.result(5) == "done"


async def test_tasks_that_a_job_left_parked_end_with_it(app):
    left: list[asyncio.Task[None]] = []

    @app.job
    async def film() -> str:
        left.append(asyncio.ensure_future(wait_for("never")))
        await asyncio.sleep(0.05)
        return "done"

    run = await film.submit()
    async with app.worker():
        assert await run.result(5) == "done"
        await until(lambda: left[0].cancelled())


# What survives.


async def test_a_restart_in_the_middle_of_a_wait_loses_nothing(app):
    @app.job
    async def film() -> int:
        one = await draw(1)
        await wait_for("go")
        return one + await draw(2)

    run = await film.submit()
    async with app.worker():
        await in_state(app, run, State.PENDING)
    await run.signal("go")
    async with app.worker():
        assert await run.result(5) == 3
    assert RAN == ["draw 1", "draw 2"]


async def test_finally_runs_at_every_suspend_and_the_handlers_end_is_ignored(app):
    @app.job
    async def film() -> str:
        try:
            await wait_for("go")
        except asyncio.CancelledError:
            RAN.append("cancelled")
            return "swallowed"
        finally:
            RAN.append("finally")
        return "done"

    run = await film.submit()
    async with app.worker():
        await in_state(app, run, State.PENDING)
        await until(lambda: RAN == ["cancelled", "finally"])
        await run.signal("go")
        assert await run.result(5) == "done"


async def test_a_waiting_job_can_be_cancelled(app):
    @app.job
    async def film() -> None:
        await wait_for("never")

    run = await film.submit()
    async with app.worker():
        await in_state(app, run, State.PENDING)
        await run.cancel()
        assert (await run.status()).state is State.CANCELLED


# def jobs.


async def test_a_def_job_waits_too(app, clock):
    @app.job
    def film() -> list[object]:
        one = narrate(1)
        sleep.sync("1h")
        try:
            word = wait_for.sync("go", as_=str)
        finally:
            RAN.append("finally")
        return [one, word, narrate(2)]

    run = await film.submit()
    async with app.worker(at_once=1):
        await in_state(app, run, State.SCHEDULED)
        clock.advance(3_601)
        await in_state(app, run, State.PENDING)
        await run.signal("go", "on")
        assert await run.result(5) == [1, "on", 2]
    assert [one for one in RAN if one != "finally"] == ["narrate 1", "narrate 2"]


async def test_a_def_job_that_swallows_the_suspend_does_nothing_more(app):
    @app.job
    def film() -> str:
        try:
            wait_for.sync("go")
        except BaseException as error:
            RAN.append(type(error).__name__)
            narrate(1)
        return "?"

    run = await film.submit()
    async with app.worker():
        await in_state(app, run, State.PENDING)
        await until(lambda: RAN)
        assert RAN == ["Suspended"]
        assert (await run.status()).state is State.PENDING


# Refused.


async def test_a_wait_inside_a_step_is_refused(app):
    @step(name="bad")
    async def bad() -> None:
        await sleep("1h")

    @app.job(retries=0)
    async def film() -> None:
        await bad()

    run = await film.submit()
    async with app.worker():
        job = await in_state(app, run, State.REVIEW)
    assert "a wait inside a step would keep the slot" in job.error.message


async def test_wrong_colours_and_plain_calls_are_told(app):
    with pytest.raises(NoJob, match="nobody can answer outside a job"):
        await wait_for("x")
    with pytest.raises(WrongColour, match=r"await sleep\(…\)"):
        sleep.sync(1)
    await sleep(0.001)

    @app.job(retries=0)
    def film() -> None:
        sleep("1h")  # type: ignore[unused-coroutine]

    run = await film.submit()
    async with app.worker():
        job = await in_state(app, run, State.REVIEW)
    assert "in a def job, call sleep.sync(…)" in job.error.message


# Questions.


# What a person does while the job stays in its slot, and what code does with its waits.


@pytest.mark.parametrize("form", ["at once", "soon", "timeout"])
async def test_a_signal_is_heard_by_a_job_that_asks_again_and_again(app, form):
    @app.job(retries=0)
    async def film() -> str:
        for n in range(100):
            try:
                if form == "timeout":
                    async with asyncio.timeout(0.1):
                        return await wait_for("stop", as_=str)
                return await wait_for("stop", as_=str, within=0 if form == "at once" else "100ms")
            except TimeoutError:
                await draw(n)
                await asyncio.sleep(0.02)
        return "never heard"

    run = await film.submit()
    async with app.worker():
        await until(lambda: len(RAN) >= 3)
        await run.signal("stop", "heard")
        assert await run.result(10) == "heard"


async def test_what_a_task_does_after_its_wait_is_not_cut_off_by_the_wait_of_the_job(app):
    @app.job
    async def film() -> None:
        async def side() -> None:
            await draw(await wait_for("x", as_=int))

        async with asyncio.TaskGroup() as group:
            group.create_task(side())
            await wait_for("y")

    run = await film.submit()
    async with app.worker():
        await in_state(app, run, State.PENDING)
        await run.signal("x", 7)
        await until(lambda: RAN == ["draw 7"])
        await in_state(app, run, State.PENDING)
        await run.signal("y")
        assert await run.result(5) is None
    assert RAN == ["draw 7"]


async def test_a_wait_that_the_job_gave_up_takes_no_signal_from_the_next(app):
    @app.job
    async def film() -> str:
        skip = asyncio.ensure_future(wait_for("skip", as_=str))
        await asyncio.sleep(0.05)
        await draw(1)
        skip.cancel()
        return await wait_for("skip", as_=str)

    run = await film.submit()
    async with app.worker():
        await in_state(app, run, State.PENDING)
        await run.signal("skip", "now")
        assert await run.result(5) == "now"


async def test_the_type_of_a_wait_may_change_while_the_job_waits(app):
    kind: list[type] = [int]

    @app.job
    async def film() -> str:
        return str(await wait_for("x", as_=kind[0]))

    run = await film.submit()
    async with app.worker():
        await in_state(app, run, State.PENDING)
        kind[0] = bool
        await run.signal("x", 5)
        await until(lambda: _suspends(run, 2))
        await in_state(app, run, State.PENDING)
        await run.signal("x", True)
        assert await run.result(5) == "True"


async def test_a_signal_may_be_large_and_not_too_large(app):
    @app.job
    async def film() -> int:
        return len(await wait_for("x", as_=str))

    run = await film.submit()
    with pytest.raises(Invalid, match="at most 512 KiB"):
        await run.signal("x", "x" * 600_000)
    await run.signal("x", '"' * 250_000)
    async with app.worker():
        assert await run.result(5) == 250_000


async def test_a_replay_waits_again_for_what_did_not_come_in_time(app, clock):
    @app.job(retries=0)
    async def film() -> str:
        first = await wait_for("first", as_=str)
        return first + await wait_for("approved", as_=str, within="1h")

    run = await film.submit()
    async with app.worker():
        await in_state(app, run, State.PENDING)
        await run.signal("first", "kelp ")

        async def waits():
            job = await app.jobs.get(run.id)
            return job.state is State.PENDING and job.waits[0].name == "approved"

        await until(waits)
        clock.advance(3_601)
        assert "approved did not arrive within 1 h" in (await in_state(app, run, State.REVIEW)).error.message
        await run.replay()
        job = await in_state(app, run, State.PENDING)
        assert job.waits[0].until > await app.engine.now() + 3_500_000, "its time begins anew"
        await run.signal("approved", "yes")
        assert await run.result(10) == "kelp yes"


async def test_the_end_of_a_wait_in_its_slot_is_fixed_before_a_crash(app, clock, interrupted):
    """A step that runs beside the wait keeps the job in its slot; then its worker is lost."""

    @step(name="point")
    async def point() -> None:
        await interrupted.point()

    @app.job
    async def film() -> str:
        beside = asyncio.ensure_future(point())
        try:
            await wait_for("approved", within="1h")
        except TimeoutError:
            return "late"
        await beside
        return "in time"

    run = await film.submit()

    async def fixed():
        return [one for one in await app.engine.steps(run.id) if one.path == "~wait/approved"]

    async with app.worker():
        await interrupted.here.wait()
        await until(fixed)
        clock.advance(1_800)
        job = await app.jobs.get(run.id)
        await app.engine.commit([decide(job, Event.LAPSE, await app.engine.now(), by="test")])
        await until(lambda: interrupted.runs == 2)
        await in_state(app, run, State.PENDING)
        clock.advance(1_801)
        assert await run.result(10) == "late"


async def test_a_short_wait_in_its_slot_costs_no_write(app, engine):
    @app.job
    async def film() -> None:
        await asyncio.gather(draw(1), sleep(0.2))

    run = await film.submit()
    async with app.worker():
        await run.result(10)
    assert engine.calls["record"] == 1
