"""Wait: events wake those who wait for them, none is missed between two calls, and no wait exceeds its timeout.

Besides the races, these are the only tests in real time: moving a clock can't cause a wake-up. `wait` may always return
early, so they check only one thing: that it doesn't sleep through an event.
"""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable

import pytest

from holdfast.conformance.given import HOUR, Another, StoreClock, change, claimed, in_state, inserted, job, signal
from holdfast.core.model import Event, Presence, State
from holdfast.engines.contract import Engine
from holdfast.engines.records import PAUSE, QUIET
from holdfast.engines.topics import job_topic, queue_topic, worker_topic

LONG_SECONDS = 30.0
"""How long a waiter waits: longer than any test."""

PATIENCE_SECONDS = 5.0
"""How late a wake-up may be on a busy machine."""

SETTLE_SECONDS = 0.02
"""Time for a waiter to start. If it hasn't started by then, its mark must catch the event.
"""

SOON_MS = 50
"""When a job becomes due that somebody waits for: by the store's clock; the wait is in real time."""

DUE_SECONDS = 3.0
"""How late the end of a wait may be if the engine itself ends it."""

Act = Callable[[], Awaitable[object]]


async def assert_wakes(engine: Engine, topic: str, act: Act) -> None:
    """Assert that an event ends a wait: while somebody waits, and between two waits."""
    mark = await engine.wait([topic], 0)
    waiting = asyncio.create_task(engine.wait([topic], LONG_SECONDS, mark))
    await asyncio.sleep(SETTLE_SECONDS)
    await act()
    async with asyncio.timeout(PATIENCE_SECONDS):
        await waiting


async def assert_not_missed(engine: Engine, topic: str, act: Act) -> None:
    """Assert that after an event between two waits, the second one ends at once."""
    mark = await engine.wait([topic], 0)
    await act()
    async with asyncio.timeout(PATIENCE_SECONDS):
        await engine.wait([topic], LONG_SECONDS, mark)


@pytest.fixture(params=[assert_wakes, assert_not_missed], ids=["while-waiting", "between-waits"])
def assert_heard(request: pytest.FixtureRequest) -> Callable[[Engine, str, Act], Awaitable[None]]:
    """Both ways in which an event can happen: during a wait, and between two."""
    heard: Callable[[Engine, str, Act], Awaitable[None]] = request.param
    return heard


Heard = Callable[[Engine, str, Act], Awaitable[None]]


async def test_a_new_job_is_news_of_its_queue(engine: Engine, clock: StoreClock, assert_heard: Heard) -> None:
    await assert_heard(engine, queue_topic("q"), lambda: engine.insert([job(clock, queue="q")]))


@pytest.mark.parametrize(
    ("event", "source"),
    [
        (Event.RELEASE, State.ACTIVE),
        (Event.LAPSE, State.ACTIVE),
        (Event.REPLAY, State.REVIEW),
        (Event.ACTIVATE, State.PENDING),
        (Event.PROMOTE, State.SCHEDULED),
    ],
)
async def test_a_job_that_becomes_available_is_news_of_its_queue(
    engine: Engine, clock: StoreClock, assert_heard: Heard, event: Event, source: State
) -> None:
    head = await in_state(engine, clock, source)

    await assert_heard(engine, queue_topic(head.queue), lambda: engine.commit([change(clock, head, event)]))


async def test_a_new_job_of_a_change_is_news_of_its_queue(
    engine: Engine, clock: StoreClock, assert_heard: Heard
) -> None:
    held = await claimed(engine, clock)
    new = job(clock, queue="q", parent=held.id)

    await assert_heard(
        engine, queue_topic("q"), lambda: engine.commit([change(clock, held, Event.COMPLETE, inserts=(new,))])
    )


async def test_every_change_is_news_of_its_job(engine: Engine, clock: StoreClock, assert_heard: Heard) -> None:
    held = await claimed(engine, clock)

    await assert_heard(engine, job_topic(held.id), lambda: engine.commit([signal(clock, held)]))
    await assert_heard(engine, job_topic(held.id), lambda: engine.commit([change(clock, held, Event.COMPLETE)]))


@pytest.mark.parametrize("event", [Event.CANCEL, Event.LAPSE, Event.OVERRUN, Event.ABANDON])
async def test_a_worker_hears_that_its_job_was_taken(
    engine: Engine, clock: StoreClock, assert_heard: Heard, event: Event
) -> None:
    held = await claimed(engine, clock, worker="w-7")

    await assert_heard(engine, worker_topic("w-7"), lambda: engine.commit([change(clock, held, event)]))


@pytest.mark.parametrize("name", [PAUSE + "q", QUIET + "w-7"])
async def test_a_worker_hears_of_a_pause(engine: Engine, clock: StoreClock, assert_heard: Heard, name: str) -> None:
    await engine.beat(Presence(worker="w-7", queues=("q",)))

    await assert_heard(engine, worker_topic("w-7"), lambda: engine.put_record(name, "1"))
    await assert_heard(engine, worker_topic("w-7"), lambda: engine.put_record(name, None))


async def test_any_of_several_topics_wakes(engine: Engine, clock: StoreClock, assert_heard: Heard) -> None:
    held = await claimed(engine, clock)
    topics = [queue_topic("a"), job_topic(held.id), queue_topic("b")]
    mark = await engine.wait(topics, 0)

    await engine.insert([job(clock, queue="b")])

    async with asyncio.timeout(PATIENCE_SECONDS):
        await engine.wait(topics, LONG_SECONDS, mark)


async def test_a_wait_without_news_ends(engine: Engine, clock: StoreClock) -> None:
    mark = await engine.wait([queue_topic("q")], 0)
    async with asyncio.timeout(PATIENCE_SECONDS):
        for seconds in (0, 0.01, 0.05):
            mark = await engine.wait([queue_topic("q")], seconds, mark)
        await engine.wait([], 0.01, mark)
        await engine.wait([], 0)


async def test_a_wait_may_be_given_up(engine: Engine, clock: StoreClock) -> None:
    mark = await engine.wait([queue_topic("q")], 0)
    waiting = asyncio.create_task(engine.wait([queue_topic("q")], LONG_SECONDS, mark))
    await asyncio.sleep(SETTLE_SECONDS)

    waiting.cancel()
    await asyncio.wait([waiting], timeout=PATIENCE_SECONDS)

    assert waiting.done()
    await assert_wakes(engine, queue_topic("q"), lambda: engine.insert([job(clock, queue="q")]))


# What is due.


@pytest.mark.parametrize("state", [State.SCHEDULED, State.PENDING, State.AVAILABLE])
async def test_a_wait_for_a_queue_ends_when_a_job_becomes_due(engine: Engine, clock: StoreClock, state: State) -> None:
    for soon in (SOON_MS, SOON_MS * 4, SOON_MS * 16, SOON_MS * 64):
        topics = [queue_topic("a"), queue_topic(f"q-{soon}")]
        due = clock.now + soon
        # An available job has a future run_at only after it lost its second worker in a row.
        await inserted(engine, clock, queue=f"q-{soon}", state=state, run_at=due, recoveries=2)
        mark = 0
        for _ in range(3):  # the first waits may end early because of earlier events
            mark = await engine.wait(topics, 0, mark)
        if clock.now < due:  # a slow machine missed that moment: try again with a later one
            break

    async with asyncio.timeout(DUE_SECONDS + soon / 1_000):
        await engine.wait(topics, LONG_SECONDS, mark)


async def test_who_waits_hears_of_a_job_that_becomes_due_sooner(engine: Engine, clock: StoreClock) -> None:
    await inserted(engine, clock, queue="q", state=State.SCHEDULED, run_at=clock.now + HOUR)
    held = await claimed(engine, clock)
    retry = change(clock, held, Event.FAIL, run_at=clock.now + SOON_MS)

    async def wait_twice(mark: int) -> None:
        mark = await engine.wait([queue_topic("q"), queue_topic(held.queue)], LONG_SECONDS, mark)
        await engine.wait([queue_topic("q"), queue_topic(held.queue)], LONG_SECONDS, mark)

    waiting = asyncio.create_task(wait_twice(await engine.wait([queue_topic("q")], 0)))
    await asyncio.sleep(SETTLE_SECONDS)
    await engine.commit([retry])

    async with asyncio.timeout(PATIENCE_SECONDS):
        await waiting


# Several waiters.


class Waiter(threading.Thread):
    """Waits once, on its own thread and loop."""

    def __init__(self, engine: Engine, topic: str, mark: int) -> None:
        super().__init__(daemon=True)
        self._engine, self._topic, self._mark = engine, topic, mark
        self.seconds = LONG_SECONDS

    def run(self) -> None:
        """Wait, and note how long it took."""
        began = time.monotonic()
        asyncio.run(self._wait())
        self.seconds = time.monotonic() - began

    async def _wait(self) -> None:
        await self._engine.wait([self._topic], LONG_SECONDS, self._mark)


async def test_waiters_on_other_threads_and_loops_all_wake(engine: Engine, clock: StoreClock) -> None:
    mark = await engine.wait([queue_topic("q")], 0)
    waiters = [Waiter(engine, queue_topic("q"), mark) for _ in range(3)]
    for waiter in waiters:
        waiter.start()
    await asyncio.sleep(SETTLE_SECONDS)

    await engine.insert([job(clock, queue="q")])

    for waiter in waiters:
        await asyncio.to_thread(waiter.join, PATIENCE_SECONDS)
    assert [waiter for waiter in waiters if waiter.seconds >= PATIENCE_SECONDS] == []


async def test_who_waits_with_its_marks_finds_every_job(engine: Engine, clock: StoreClock) -> None:
    number = 30

    async def work() -> int:
        found, mark = 0, await engine.wait([queue_topic("q")], 0)
        while found < number:
            while held := await engine.claim("w-1", ["q"], 4):
                found += len(held)
            if found < number:
                mark = await engine.wait([queue_topic("q")], LONG_SECONDS, mark)
        return found

    working = asyncio.create_task(work())
    for n in range(number):
        await engine.insert([job(clock, queue="q")])
        if n % 3 == 0:
            await asyncio.sleep(0)

    async with asyncio.timeout(PATIENCE_SECONDS):
        assert await working == number


async def test_news_reach_other_engines_on_the_same_store(
    engine: Engine, another: Another, clock: StoreClock, assert_heard: Heard
) -> None:
    if not engine.guarantees.shared or engine.guarantees.wakes == "one process":
        pytest.skip("wake-ups of this engine don't reach other engines")
    other = await another()
    held = await inserted(engine, clock, state=State.SCHEDULED, run_at=clock.now + HOUR)

    await assert_heard(engine, queue_topic("q"), lambda: other.insert([job(clock, queue="q")]))
    await assert_heard(other, job_topic(held.id), lambda: engine.commit([change(clock, held, Event.CANCEL)]))


async def test_a_topic_may_be_named_twice(engine: Engine) -> None:
    mark = await engine.wait(["queue:a", "queue:a"], 0.001)

    assert await engine.wait(["queue:a", "queue:a"], 0.001, mark) >= mark
