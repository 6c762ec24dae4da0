"""Waits that are cancelled while their answer is on its way: no signal is lost, none is delivered twice."""

import asyncio
import contextvars
import random
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest

from holdfast import ask, step, wait_for
from holdfast.core.lifecycle import decide
from holdfast.core.model import Event, State
from holdfast.worker.context import attempt_here
from holdfast.worker.suspension import Suspension
from tests.support.given import entry_of, in_state, until

ENGINES = ("memory", "sqlite", "postgres", "redis")

SIGNALS = 150
QUESTION = "ask:7cc91c33"
TURNS = 30
"""Over how many turns of the loop a cancel is tried: a record in memory takes fewer."""


class Held:
    """Holds up the first record of a wait, before the store has it or after."""

    def __init__(self, engine, moment):
        self.here, self.free = asyncio.Event(), asyncio.Event()
        self._engine, self._moment = engine, moment
        engine.before = self._before

    async def _before(self, name, args):
        if name != "record" or self.here.is_set() or not args[0][0].path.startswith("~wait/"):
            return
        if self._moment == "after":
            await self._engine.engine.record(*args)
        self.here.set()
        await self.free.wait()

    async def cut_off(self, wait):
        """Cancel a wait whose record is held up, in a job that goes on from here as it did after a crash."""

        @step(name="cut")
        async def cut() -> None:
            await self.here.wait()

        await cut()
        await turns()
        came = "in time" if wait.done() else "too late"
        wait.cancel()
        return came


class Crash:
    """The end of a job that is taken from its worker once it has its answer, and then runs again."""

    def __init__(self):
        self.answers = []
        self._here = asyncio.Event()

    async def point(self, answer):
        """Where the first run ends. The second goes on."""
        self.answers.append(answer)
        if len(self.answers) == 1:
            self._here.set()
            await asyncio.sleep(30)
        return answer

    async def strike(self, app, run):
        """Take the job from its worker at that point."""
        await self._here.wait()
        await lapse(app, run)


@pytest.fixture(params=["before", "after"])
def moment(request):
    """Whether the store has the record when the wait is cancelled."""
    return request.param


async def turns(number=5):
    for _ in range(number):
        await asyncio.sleep(0)


async def alarms(run):
    """What the history says that a person should look at."""
    return {word for entry in await run.history() for word in entry.note} & {"drift", "never_asked_for", "forgets"}


async def lapse(app, run):
    """Take the job from its worker, as if that had died."""
    job = await app.jobs.get(run.id)
    await app.engine.commit([decide(job, Event.LAPSE, await app.engine.now(), by="test")])


async def test_the_signal_of_a_cancelled_wait_answers_the_next_one(app, engine, moment):
    held = Held(engine, moment)

    @app.job(retries=0)
    async def film() -> list[str]:
        first = asyncio.ensure_future(wait_for("s", as_=str))
        await held.here.wait()
        first.cancel()
        await asyncio.wait([first])
        held.free.set()
        return [await wait_for("s", as_=str), await wait_for("s", as_=str)]

    run = await film.submit()
    await run.signal("s", "one")
    await run.signal("s", "two")
    async with app.worker():
        assert await run.result(10) == ["one", "two"]


async def test_a_wait_may_be_cancelled_at_any_turn_of_the_loop(app):
    @app.job(retries=0)
    async def film(turn: int) -> str:
        first = asyncio.ensure_future(wait_for("s", as_=str))
        await turns(turn)
        first.cancel()
        await asyncio.wait([first])
        return await wait_for("s", as_=str) if first.cancelled() else first.result()

    runs = [await film.submit(turn) for turn in range(TURNS)]
    for number, run in enumerate(runs):
        await run.signal("s", f"for {number}")
    async with app.worker(at_once=TURNS):
        assert [await run.result(10) for run in runs] == [f"for {number}" for number in range(TURNS)]
    for run in runs:
        infos = [msgspec.json.decode(one.result) for one in await app.engine.steps(run.id)]
        took = [info.get("turn", 1) for info in infos]
        assert sorted(took) == list(range(1, len(took) + 1)), "a replay can tell which wait has the signal"


async def test_a_cancelled_wait_stays_cancelled_when_the_job_goes_on_after_a_suspend(app, engine, moment):
    held, gone_on = Held(engine, moment), asyncio.Event()

    @app.job(retries=0)
    async def film() -> str:
        first = asyncio.ensure_future(wait_for("s", as_=str))
        came = await held.cut_off(first)
        gone_on.set()
        await wait_for("go")
        return f"{came} {await wait_for('s', as_=str)}"

    run = await film.submit()
    await run.signal("s", "now")
    async with app.worker():
        await gone_on.wait()
        held.free.set()
        job = await in_state(app, run, State.PENDING)
        assert [signal.name for signal in job.inbox] == ["s"]
        await run.signal("go")
        assert await run.result(10) == "too late now"
    assert await alarms(run) == set()


async def test_a_cancelled_wait_stays_cancelled_after_a_crash_once_another_has_its_signal(app, engine, moment):
    held, crash = Held(engine, moment), Crash()

    @app.job(retries=0)
    async def film() -> str:
        first = asyncio.ensure_future(wait_for("s", as_=str))
        came = await held.cut_off(first)
        held.free.set()
        return await crash.point(f"{came} {await wait_for('s', as_=str)}")

    run = await film.submit()
    await run.signal("s", "now")
    async with app.worker():
        await crash.strike(app, run)
        assert await run.result(10) == "too late now"
    assert crash.answers == ["too late now"] * 2
    assert await alarms(run) == set()


async def test_a_signal_that_no_code_got_before_a_crash_is_delivered_after_it(app, engine, moment):
    held, cancelled, runs = Held(engine, moment), asyncio.Event(), []

    @app.job(retries=0)
    async def film() -> str:
        runs.append(1)
        first = asyncio.ensure_future(wait_for("s", as_=str))
        if len(runs) == 1:
            await held.here.wait()
            first.cancel()
            held.free.set()
            await until(recorded)
            cancelled.set()
            await asyncio.sleep(30)
        return await first

    async def recorded():
        return any(one.path == "~wait/s" for one in await app.engine.steps(run.id))

    run = await film.submit()
    await run.signal("s", "now")
    async with app.worker():
        await cancelled.wait()
        await lapse(app, run)
        assert await run.result(10) == "now"


@pytest.mark.parametrize("taker", ["first", "second"])
async def test_of_two_waits_at_once_the_other_one_gets_it(app, engine, moment, taker):
    """Whichever of them took it; and a crash doesn't change that."""
    held, crash = Held(engine, moment), Crash()

    @app.job(retries=0)
    async def film() -> str:
        waits = [wait_for("s", as_=str), wait_for("s", as_=str)]
        order = [0, 1] if taker == "first" else [1, 0]
        one, other = (asyncio.ensure_future(waits[place]) for place in order)
        came = await held.cut_off(one)
        held.free.set()
        return await crash.point(f"{came} {await other}")

    run = await film.submit()
    await run.signal("s", "now")
    async with app.worker():
        await crash.strike(app, run)
        assert await run.result(10) == "too late now"
    assert crash.answers == ["too late now"] * 2


async def test_a_signal_that_several_waits_in_a_row_did_not_deliver_is_delivered_once(app, engine):
    """Also when the record of one of those in between never comes to the store."""
    delivered = asyncio.Event()
    taken: list[str] = []
    runs: list[object] = []

    async def hold(name, args):
        if name == "record" and args[0][0].path.startswith("~wait/") and len(taken) < 3:
            taken.append(args[0][0].path)
            if len(taken) != 2:
                await engine.engine.record(*args)
            await asyncio.Event().wait()

    @step(name="cut")
    async def cut(number: int) -> None:
        await until(lambda: len(taken) > number)

    @app.job(retries=0)
    async def film() -> str:
        runs.append(1)
        late = 0
        for number in range(3):
            one = asyncio.ensure_future(wait_for("s", as_=str))
            await cut(number)
            await turns()
            late += not one.done()
            one.cancel()
        told = await wait_for("s", as_=str)
        if len(runs) == 1:
            delivered.set()
            await asyncio.sleep(30)
        return f"{late} {told}"

    engine.before = hold
    run = await film.submit()
    await run.signal("s", "now")
    async with app.worker():
        await delivered.wait()
        assert taken == ["~wait/s", "~wait/s#2", "~wait/s#3"]
        await lapse(app, run)
        assert await run.result(10) == "3 now"


@pytest.mark.parametrize("between", ["in its slot", "suspended"])
async def test_a_signal_that_was_given_back_outlives_the_next_one(app, engine, between):
    """Whoever sends the next one sees in the records that a wait has taken it, and takes it out of the inbox."""
    held, cut, sent = Held(engine, "after"), asyncio.Event(), asyncio.Event()

    @app.job(retries=0)
    async def film() -> list[int]:
        first = asyncio.ensure_future(wait_for("s", as_=int))
        await held.cut_off(first)
        held.free.set()
        await asyncio.wait([first])
        cut.set()
        await sent.wait()
        attempt = attempt_here()
        assert attempt is not None
        await Suspension.of(attempt).read_inbox()
        if between == "suspended":
            await wait_for("go", as_=None)
        heard = [] if first.cancelled() else [first.result()]
        while len(heard) < 2:
            heard.append(await wait_for("s", as_=int))
        return heard

    run = await film.submit()
    await run.signal("s", 0)
    async with app.worker():
        await cut.wait()
        await run.signal("s", 1)
        sent.set()
        if between == "suspended":
            await in_state(app, run, State.PENDING)
            await run.signal("go")
        assert await run.result(10) == [0, 1]


async def test_an_answer_that_came_as_the_question_was_given_up_stays_in_the_inbox(app, engine, moment):
    held, gone_on = Held(engine, moment), asyncio.Event()

    @app.job(retries=0)
    async def film() -> str:
        first = asyncio.ensure_future(ask("Publish?", form=str))
        came = await held.cut_off(first)
        gone_on.set()
        return f"{came} {await ask('Publish?', form=str)}"

    run = await film.submit()
    await run.signal(QUESTION, "yes")
    async with app.worker():
        await gone_on.wait()
        held.free.set()
        job = await in_state(app, run, State.PENDING)
        assert [(signal.name, signal.value) for signal in job.inbox] == [(QUESTION, '"yes"')]
        (question,) = await app.jobs.questions()
        assert question.name == f"{QUESTION}.2"
        await app.jobs.answer(run.id, "no")
        assert await run.result(10) == "too late no"


# As many signals as it takes to hit every moment, on real stores.


SHORT_SECONDS = 0.02


async def by_timeout(seconds):
    async with asyncio.timeout(seconds):
        return await wait_for("s", as_=int)


async def by_cancel(seconds):
    task = asyncio.create_task(wait_for("s", as_=int))
    await asyncio.wait([task], timeout=seconds)
    if not task.done():
        task.cancel()
        await asyncio.wait([task])
    if task.cancelled():
        raise TimeoutError
    return task.result()


async def by_wait_for(seconds):
    return await asyncio.wait_for(wait_for("s", as_=int), seconds)


@pytest.mark.parametrize("way", [by_timeout, by_cancel, by_wait_for])
async def test_a_job_that_listens_with_short_timers_hears_every_signal_once(app, way):
    @app.job(retries=0)
    async def film() -> list[int]:
        heard: list[int] = []
        missed = 0  # in a row: on a slow machine no signal may come in so short a time
        while len(heard) < SIGNALS:
            try:
                heard.append(await way(SHORT_SECONDS * (1 + missed)))
                missed = 0
            except TimeoutError:
                missed += 1
        return heard

    chance = random.Random(7)
    run = await film.submit()
    async with app.worker():
        for number in range(SIGNALS):
            await asyncio.sleep(chance.random() * 0.03)
            await run.signal("s", number)
        assert await run.result(120) == list(range(SIGNALS))


# Timers of threads.


async def test_a_suspend_tells_that_it_forgets_a_timeout_of_the_jobs_own_thread(app, caplog):
    """A thread's timer can't be seen. That the function was not in the wait itself can."""

    @app.job(retries=0)
    def film() -> str:
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(contextvars.copy_context().run, wait_for.sync, "approved", as_=str)
            try:
                return answer.result(timeout=60)
            except TimeoutError:
                return "nobody came"

    run = await film.submit()
    async with app.worker():
        await in_state(app, run, State.PENDING)
        told = (await entry_of(run, Event.SUSPEND)).note["forgets"]
        assert told.startswith(
            "what its own thread does during the wait; a timeout there starts over; give the wait within="
        )
        assert f"job {run.id}: suspends and forgets {told}" in caplog.text
        await run.signal("approved", "yes")
        assert await run.result(10) == "yes"


async def test_a_short_timeout_of_the_jobs_own_thread_strikes(app):
    @app.job(retries=0)
    def film() -> str:
        pool = ThreadPoolExecutor(1)
        answer = pool.submit(contextvars.copy_context().run, wait_for.sync, "approved", as_=str)
        try:
            return answer.result(timeout=0.2)
        except TimeoutError:
            return "nobody came"
        finally:
            pool.shutdown(wait=False)

    run = await film.submit()
    async with app.worker():
        assert await run.result(10) == "nobody came"


async def test_a_def_job_that_waits_itself_forgets_nothing(app):
    @app.job(retries=0)
    def film() -> str:
        return wait_for.sync("approved", as_=str)

    run = await film.submit()
    async with app.worker():
        await in_state(app, run, State.PENDING)
        assert await alarms(run) == set()
        await run.signal("approved", "yes")
        assert await run.result(10) == "yes"
