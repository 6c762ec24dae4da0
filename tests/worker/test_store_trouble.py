"""The store is away for a while: work goes on when it is back, and nothing runs twice."""

import asyncio
import threading

import pytest
from msgspec.structs import replace

from holdfast import App, current, sleep, step, wait_for
from holdfast.core.errors import StoreDamaged, StoreFull
from holdfast.core.lifecycle import decide
from holdfast.core.model import Event, State
from holdfast.worker import threads
from tests.support.given import AT_ONCE_RETRY, QUICK, events, in_state, until

ENGINES = ("memory", "sqlite", "postgres", "redis")


@pytest.fixture
def ran():
    return []


@pytest.fixture
def patient(engine):
    """An app with a long lease: between the fence and the lease's end there is time enough for a slow machine."""
    return App("memory:", settings=replace(QUICK, lease_seconds=4.0), engine=engine)


@pytest.fixture
def film(app, ran):
    @step(name="draw")
    async def draw(n: int) -> int:
        ran.append(n)
        await asyncio.sleep(0.01)
        return n

    async def film(n: int) -> int:
        return len(await draw.map(range(n), at_once=3))

    return app.job(film)


@pytest.mark.parametrize("fence", ["open", "closed"])
async def test_a_store_that_is_away_in_mid_run_costs_time_and_nothing_else(app, engine, film, ran, fence):
    run = await film.submit(30)
    async with app.worker():
        await until(lambda: len(ran) >= 10)
        engine.away = True
        await asyncio.sleep(0.3 if fence == "open" else 1.5)
        begun = len(ran)
        await asyncio.sleep(0.2)
        assert len(ran) == begun, "past what was under way nothing starts that can't be recorded"
        engine.away = False
        assert await run.result(10) == 30

    assert sorted(ran) == list(range(30)), "nothing twice"
    assert await events(run) == ["submit", "claim", "complete"]


async def test_the_end_of_a_job_waits_for_the_store(app, engine):
    entered = asyncio.Event()

    async def job() -> str:
        entered.set()
        engine.away = True
        return "made"

    run = await app.job(job).submit()
    async with app.worker():
        await entered.wait()
        await asyncio.sleep(0.3)
        engine.away = False
        assert await run.result(5) == "made"
    assert (await events(run)).count("claim") == 1


async def test_a_lost_answer_to_a_record_is_no_second_run(app, engine, film, ran):
    engine.loses["record"] = 3
    run = await film.submit(10)
    async with app.worker():
        assert await run.result(10) == 10
    assert sorted(ran) == list(range(10))


async def test_a_lost_answer_to_an_end_is_no_second_end(app, engine, film):
    engine.loses["commit"] = 1
    run = await film.submit(1)
    async with app.worker():
        assert await run.result(10) == 1
    assert await events(run) == ["submit", "claim", "complete"]


@pytest.mark.parametrize("end", ["complete", "fail", "rest", "suspend"])
async def test_a_lost_answer_to_an_end_of_ones_own_is_no_news(app, engine, clock, caplog, end):
    runs = 0

    async def job() -> int:
        nonlocal runs
        runs += 1
        if runs == 1 and end != "complete":
            engine.loses["commit"] = 1
        if end == "rest":
            await sleep("1h")
        elif end == "suspend":
            await wait_for("go")
        elif runs == 1 and end == "fail":
            raise OSError("weather")
        return runs

    engine.loses["commit"] = 1 if end == "complete" else 0
    run = await app.job(retries=AT_ONCE_RETRY)(job).submit()
    async with app.worker(), app.worker():
        if end == "suspend":
            await in_state(app, run, State.PENDING)
            await run.signal("go")
        elif end == "rest":
            await in_state(app, run, State.SCHEDULED)
            clock.advance(3_600)
        assert await run.result(10) == (1 if end == "complete" else 2)
        await until(lambda: not engine.loses["commit"])

    told = [line.getMessage() for line in caplog.records if "weather" not in line.getMessage()]
    assert told == []
    assert (await events(run)).count(end) == 1


async def test_an_end_that_another_worker_made_of_the_same_job_is_told(app, engine, caplog):
    entered, taken = asyncio.Event(), asyncio.Event()

    async def job() -> int:
        if not entered.is_set():
            entered.set()
            await taken.wait()
        return 1

    run = await app.job(job).submit()
    async with app.worker(at_once=1):  # so that it does not take the job again itself
        await entered.wait()
        engine.away = {"beat"}  # nobody tells it before its end
        held = await app.jobs.get(run.id)
        await engine.commit([decide(held, Event.LAPSE, await engine.now(), by="test")])
        (again,) = await engine.claim("w-other", ["default"], 1)
        await engine.commit([decide(again, Event.COMPLETE, await engine.now(), by="w-other", result="2")])
        taken.set()
        await until(lambda: "its end was refused, the lease was lost; another worker continues it" in caplog.text)
        engine.away = False
    assert await run.result(1) == 2


async def test_a_lost_answer_to_a_claim_loses_no_job(app, engine, film):
    run = await film.submit(3)
    engine.loses["claim"] = 1
    async with app.worker():
        assert await run.result(10) == 3
    assert await events(run) == ["submit", "claim", "release", "claim", "complete"]


async def test_a_worker_that_stops_while_the_store_is_away_ends_and_its_job_goes_on_elsewhere(app, engine, film, ran):
    run = await film.submit(10)
    async with app.worker():
        await until(lambda: len(ran) >= 3)
        engine.away = True
    engine.away = False
    async with app.worker():
        assert await run.result(10) == 10
    assert len(ran) <= 10 + 3, "only what was under way ran again"


async def test_a_beat_that_fails_in_any_way_does_not_end_the_beats(app, engine, film, caplog):
    troubles = iter([ValueError("odd"), OSError("disk"), RuntimeError("?")])

    def trouble(name, _):
        if name == "beat" and (error := next(troubles, None)) is not None:
            raise error

    async with app.worker():
        engine.hook = trouble
        await until(lambda: "a heartbeat was not answered: RuntimeError: ?" in caplog.text)
        assert await (await film.submit(5)).result(5) == 5


async def test_upkeep_and_claims_survive_any_trouble(app, engine, film):
    broken = True

    def trouble(name, _):
        if broken and name in ("claim", "wait", "records", "find", "prune"):
            raise ZeroDivisionError(name)

    async with app.worker():
        engine.hook = trouble
        run = await film.submit(3)
        await asyncio.sleep(0.3)
        broken = False
        assert await run.result(10) == 3


@pytest.mark.parametrize("engine", ["memory", "sqlite"], indirect=True)  # on a server its lease may be over by then
async def test_a_fenced_worker_starts_no_step_and_claims_nothing(patient, engine):
    """It can't beat, though it could still write: others may hold it for dead."""
    app, started = patient, []

    @step(name="one")
    def one(n: int) -> None:
        started.append(n)

    @step(name="two")
    async def two(n: int) -> None:
        started.append(n)

    go = asyncio.Event()

    async def job() -> None:
        await go.wait()
        await asyncio.gather(two(1), asyncio.to_thread(one, 2))

    run = await app.job(job).submit()
    async with app.worker() as worker:
        await in_state(app, run, State.ACTIVE)
        engine.away = {"beat"}
        await until(lambda: not worker._leases.may_start())
        claims = engine.calls["claim"]
        go.set()
        await asyncio.sleep(0.2)
        assert started == []
        assert engine.calls["claim"] == claims
        engine.away = False
        await in_state(app, run, State.COMPLETED)
    assert sorted(started) == [1, 2]


class LateThreads:
    """A machine that takes its time to begin the thread of a step."""

    def __init__(self) -> None:
        self.waiting, self.go = threading.Event(), threading.Event()

    async def hold(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Wait until a thread would begin; it does when it is told to go."""
        late = self

        class Late(threading.Thread):
            def run(self) -> None:
                if self.name == "holdfast-job":  # and none of the store's own
                    late.waiting.set()
                    late.go.wait(10)
                super().run()

        with monkeypatch.context() as patch:
            patch.setattr(threads.threading, "Thread", Late)  # type: ignore[attr-defined]
            await until(self.waiting.is_set, 3)


@pytest.mark.parametrize("engine", ["memory", "sqlite"], indirect=True)
async def test_a_thread_that_begins_behind_the_fence_waits_there(patient, engine, monkeypatch):
    app, started, late = patient, [], LateThreads()

    @step(name="one")
    def one() -> None:
        started.append(1)

    async def job() -> None:
        await one.aio()

    run = await app.job(job).submit()
    async with app.worker() as worker:
        await late.hold(monkeypatch)
        engine.away = {"beat"}
        await until(lambda: not worker._leases.may_start())
        late.go.set()
        await asyncio.sleep(0.2)
        assert started == []
        engine.away = False
        await in_state(app, run, State.COMPLETED)
    assert started == [1]


@pytest.mark.parametrize("engine", ["memory"], indirect=True)
@pytest.mark.parametrize("effect", [None, "once"])
async def test_a_step_that_was_given_up_before_its_thread_began_never_begins(app, engine, monkeypatch, effect):
    started, late = [], LateThreads()

    @step(name="one", timeout=0.1, **({} if effect is None else {"effect": effect, "key": "k"}))
    def one() -> None:
        started.append(1)

    async def job() -> str:
        try:
            await one.aio()
        except TimeoutError:
            late.go.set()
            await asyncio.sleep(0.1)
        return "gave up"

    run = await app.job(job).submit()
    async with app.worker():
        await late.hold(monkeypatch)
        assert await run.result(5) == "gave up"
    assert started == []


@pytest.mark.parametrize("engine", ["memory"], indirect=True)
async def test_an_effect_whose_thread_had_not_begun_at_the_stop_is_not_in_doubt(app, engine, monkeypatch):
    started, late = [], LateThreads()

    @step(name="one", effect="once", key="k")
    def one() -> None:
        started.append(1)

    async def job() -> None:
        await one.aio()

    run = await app.job(job).submit()
    async with app.worker() as worker:
        await late.hold(monkeypatch)
        stopping = asyncio.ensure_future(worker.stop(0.0))
        await until(lambda: all(attempt.stop is not None for attempt in worker._slots.attempts.values()), 3)
        late.go.set()
        await stopping
    assert started == []
    async with app.worker():
        await in_state(app, run, State.COMPLETED)
    assert started == [1]


async def test_a_submit_in_a_job_whose_lease_was_lost_stops_it(app, engine):
    swallowed = []

    async def child() -> None: ...

    made = app.job(child)

    async def job() -> None:
        if current().epoch == 1:
            held = await app.jobs.get(current().job_id)
            engine.away = {"beat"}
            await app.engine.commit([decide(held, Event.LAPSE, await app.engine.now(), by="test")])
            try:
                await made.submit()
            except Exception as error:
                swallowed.append(error)
            finally:
                engine.away = False

    run = await app.job(job).submit()
    async with app.worker(at_once=1):
        await in_state(app, run, State.COMPLETED)
    assert swallowed == []


# What a person is told.


async def test_a_full_disk_is_logged_and_shown_until_there_is_room(app, engine, film, ran, caplog):
    run = await film.submit(30)
    async with app.worker() as worker:
        await until(lambda: len(ran) >= 10)
        engine.away_with, engine.away = StoreFull("jobs.db: no room left on the disk"), {"record"}

        async def shown():
            status = await run.status()
            return status if status.trouble else None

        status = await until(shown)

        assert status.trouble == "StoreFull: jobs.db: no room left on the disk"
        assert status.remaining_ms is None, "nobody knows when there will be room"
        assert "stalled: StoreFull: jobs.db: no room left on the disk" in str(status)
        (presence,) = await app.jobs.workers()
        assert presence.trouble == status.trouble
        told = [line for line in caplog.messages if "can't write to the store" in line]
        assert told == [f"{worker.id}: can't write to the store: StoreFull: jobs.db: no room left on the disk"]

        engine.away = False
        assert await run.result(10) == 30
        assert (await run.status()).trouble == ""
        assert any("can write to the store again" in line for line in caplog.messages)


async def test_upkeep_whose_round_still_fails_does_not_say_that_it_goes_on(app, engine, caplog):
    engine.away_with, engine.away = StoreDamaged("jobs.db: was removed or replaced while in use"), {"prune"}
    async with app.worker():
        await until(lambda: engine.calls["prune"] >= 3)  # and in between many looks that went well

        assert [line for line in caplog.messages if "upkeep" in line and "leads" not in line] == [
            "upkeep failed: StoreDamaged: jobs.db: was removed or replaced while in use"
        ]
        engine.away = False
        await until(lambda: any("upkeep works again, after" in line for line in caplog.messages))
