"""Alerts: one line and one call of the hooks for each crossing, whoever checks, and one when it is over."""

import asyncio
import logging

import pytest

from holdfast import AlertEvent, App, Invalid
from holdfast.conformance.given import MINUTE, StoreClock, claimed, done, inserted
from holdfast.core.alerts import ALERT, Alert, declare_alerts
from holdfast.core.model import Event, State
from holdfast.engines.memory import MemoryEngine
from holdfast.jobs.service import Jobs
from holdfast.jobs.views.overview import view_store
from holdfast.upkeep.alerts import Alerts


@pytest.fixture
def clock() -> StoreClock:
    return StoreClock(settable=True)


@pytest.fixture
def engine(clock: StoreClock) -> MemoryEngine:
    return MemoryEngine(clock)


@pytest.fixture
def told() -> list[AlertEvent]:
    return []


async def test_a_queue_that_is_too_deep_is_told_once_and_once_when_it_is_over(
    engine: MemoryEngine, clock: StoreClock, told: list[AlertEvent], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    keepers = [Alerts(engine, declare_alerts("default", 2, None, None), told.append) for _ in range(3)]
    await inserted(engine, clock)
    for keeper in keepers:
        await keeper.check()
    assert told == []

    await inserted(engine, clock)
    await asyncio.gather(*(keeper.check() for keeper in keepers))
    await keepers[0].check()

    [event] = told
    assert (event.kind, event.queue, event.value, event.threshold, event.is_over) == ("depth", "default", 2, 2, False)
    assert str(event) == "queue default has 2 jobs that could start, at or above 2"
    assert "alert: queue default has 2 jobs" in caplog.text

    await engine.claim("w-1", ["default"], 1)
    clock.advance(MINUTE)
    await asyncio.gather(*(keeper.check() for keeper in keepers))

    assert [one.is_over for one in told] == [False, True]
    assert told[1].since == event.since
    assert "alert over: queue default has 1 job" in caplog.text
    assert await engine.records(ALERT) == []

    await inserted(engine, clock)
    await keepers[2].check()
    assert [one.is_over for one in told] == [False, True, False]


async def test_a_job_that_waits_for_too_long_is_told(
    engine: MemoryEngine, clock: StoreClock, told: list[AlertEvent]
) -> None:
    alerts = Alerts(engine, declare_alerts("default", None, "10m", None), told.append)
    await inserted(engine, clock, run_at=clock.now)
    await inserted(engine, clock, queue="other", run_at=clock.now - 60 * MINUTE)
    await alerts.check()
    clock.advance(10 * MINUTE)
    await alerts.check()
    await engine.claim("w-1", ["default"], 1)
    await alerts.check()

    assert [(one.kind, one.value, one.threshold, one.is_over) for one in told] == [
        ("age", 600.0, 600.0, False),
        ("age", 0.0, 600.0, True),
    ]
    assert str(told[1]) == "queue default has no job that could start, below 10 min"


async def test_jobs_in_review_are_counted_in_all_queues_or_in_one(
    engine: MemoryEngine, clock: StoreClock, told: list[AlertEvent]
) -> None:
    declared = [*declare_alerts(None, None, None, 2), *declare_alerts("video", None, None, 1)]
    alerts = Alerts(engine, declared, told.append)
    for _ in range(2):
        await done(engine, clock, await claimed(engine, clock), Event.EXHAUST)
    await alerts.check()

    assert [(one.queue, one.value) for one in told] == [("", 2)]
    overview = await view_store(Jobs(engine), "here")
    assert overview.shape()["alerts"][0]["text"] == "the store has 2 jobs in review, at or above 2"


async def test_an_alert_that_nobody_declares_any_more_ends_when_it_is_over(
    engine: MemoryEngine, clock: StoreClock, told: list[AlertEvent]
) -> None:
    await inserted(engine, clock)
    await Alerts(engine, [Alert("depth", 1, "default")], told.append).check()
    later = Alerts(engine, [Alert("depth", 50, "default")], told.append)
    await later.check()
    assert len(told) == 1
    await engine.claim("w-1", ["default"], 1)
    await later.check()
    clock.advance(MINUTE)
    await later.check()

    assert [one.is_over for one in told] == [False, True]


async def test_other_code_leaves_the_end_of_an_alert_to_those_who_declare_it(
    engine: MemoryEngine, clock: StoreClock, told: list[AlertEvent]
) -> None:
    others: list[AlertEvent] = []
    mine = Alerts(engine, [Alert("depth", 1, "default")], told.append)
    other = Alerts(engine, [Alert("review", 1)], others.append)
    await inserted(engine, clock)
    await mine.check()
    await engine.claim("w-1", ["default"], 1)
    await other.check(leads=True)
    await mine.check()

    assert [one.is_over for one in told] == [False, True]
    assert others == []


async def test_the_leader_ends_what_nobody_declares_any_more_even_if_its_app_has_no_alerts(
    engine: MemoryEngine, clock: StoreClock, told: list[AlertEvent]
) -> None:
    await inserted(engine, clock)
    await Alerts(engine, [Alert("depth", 1, "default")], told.append).check()
    leader = Alerts(engine, [], told.append)
    await leader.check(leads=True)
    await engine.claim("w-1", ["default"], 1)
    for _ in range(3):
        await leader.check(leads=True)
        clock.advance(MINUTE)

    assert [one.is_over for one in told] == [False, True]
    assert await engine.records(ALERT) == []


async def test_a_record_that_cannot_be_read_stops_nothing(
    engine: MemoryEngine, clock: StoreClock, told: list[AlertEvent]
) -> None:
    await engine.put_record(f"{ALERT}default/depth/1", "nonsense")
    alerts = Alerts(engine, [Alert("depth", 1, "default"), Alert("review", 1)], told.append)
    await alerts.check()

    assert [one.is_over for one in told] == [True]


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({}, "app.alert needs a threshold"),
        ({"queue": "video"}, "app.alert needs a threshold"),
        ({"depth": 5}, "depth and age are those of a queue"),
        ({"age": "10m"}, "depth and age are those of a queue"),
        ({"queue": "video", "depth": 0}, "app.alert(depth=0): give a number of jobs"),
        ({"queue": "video", "depth": True}, "app.alert(depth=True): give a number of jobs"),
        ({"review": -1}, "app.alert(review=-1): give a number of jobs"),
        ({"queue": "video", "age": 0}, "app.alert(age=0): give a time above 0"),
        ({"queue": "video", "dept": 5}, "app.alert takes no 'dept'; did you mean depth?"),
    ],
)
def test_a_wrong_alert_is_refused_in_one_line(given: dict[str, object], line: str) -> None:
    with pytest.raises(Exception) as refusal:
        App("memory:").alert(**given)  # type: ignore[arg-type]

    assert line in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_hook_for_alerts_has_a_function_of_its_own() -> None:
    with pytest.raises(Invalid, match="a hook for alerts gets an AlertEvent"):

        @App("memory:").hook("alert", "failed")  # type: ignore[call-overload]
        def both(event: object) -> None:
            pass


async def test_a_worker_checks_and_calls_the_hooks() -> None:
    from holdfast import Settings

    app = App("memory:", settings=Settings(upkeep_seconds=0.05, look_seconds=0.05))
    app.alert(queue="later", depth=1)
    heard: list[AlertEvent] = []

    @app.hook("alert")
    def note(event: AlertEvent) -> None:
        heard.append(event)

    @app.job(queue="later")
    async def film() -> None:
        pass

    run = await film.submit()
    async with asyncio.timeout(30), app.worker(queues=["default"]):
        while not heard:  # noqa: ASYNC110 (bounded above)
            await asyncio.sleep(0.01)
        await run.cancel()
        while len(heard) < 2:  # noqa: ASYNC110 (bounded above)
            await asyncio.sleep(0.01)
    await app.close()
    assert [one.is_over for one in heard] == [False, True]
    assert (await run.status()).state is State.CANCELLED
