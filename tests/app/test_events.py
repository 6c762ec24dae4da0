"""Events: each subscribed job runs once for each event id, whoever emits it."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from pydantic import BaseModel

from holdfast import App, BadValue, Invalid, KeyConflict, NotAllowed, StoreClosed, step
from holdfast.core.codec import parse
from holdfast.core.events import EVENT_DEPTH
from holdfast.core.model import Job, State, Where
from holdfast.worker.context import PLAIN, Current
from tests.support.given import AT_ONCE_RETRY, QUICK, until

ENGINES = ("memory", "file", "sqlite", "postgres", "redis")

RAN: list[Any] = []


@pytest.fixture(autouse=True)
def fresh():
    RAN.clear()


class Order(BaseModel):
    order: int


@pytest.fixture
def shop(app):
    """Two jobs that are subscribed to one event."""

    @app.on("order.paid")
    @app.job
    async def send(order: Order) -> int:
        RAN.append(("send", order.order))
        return order.order

    @app.on("order.paid", queue="books", retries=1)
    def book(payload: dict[str, int]) -> str:
        RAN.append(("book", payload["order"]))
        return "booked"

    return app


async def test_each_subscribed_job_runs_once_for_each_id(shop):
    first = await shop.emit("order.paid", {"order": 42}, id="evt-1")
    again = await shop.emit("order.paid", {"order": 42}, id="evt-1")
    other = await shop.emit("order.paid", {"order": 42}, id="evt-2")

    async with shop.worker():
        assert [await run.result(20) for run in first] == [42, "booked"]
        assert [await run.result(20) for run in other] == [42, "booked"]
    assert [run.id for run in again] == [run.id for run in first]
    assert sorted(RAN) == [("book", 42), ("book", 42), ("send", 42), ("send", 42)]
    job = await shop.jobs.get(first[1].id)
    assert (job.type, job.queue, job.options.meta["event_id"]) == ("book", "books", "evt-1")


async def test_an_id_with_another_payload_is_refused(shop):
    await shop.emit("order.paid", {"order": 42}, id="evt-1")

    with pytest.raises(KeyConflict, match="event/order.paid/evt-1"):
        await shop.emit("order.paid", {"order": 43}, id="evt-1")


async def test_without_an_id_each_emit_is_an_event_of_its_own(shop):
    one, two = await shop.emit("order.paid", {"order": 1}), await shop.emit("order.paid", {"order": 1})

    assert {run.id for run in one}.isdisjoint(run.id for run in two)


async def test_a_payload_of_the_wrong_type_is_refused_before_anything_is_submitted(shop):
    with pytest.raises(BadValue, match="payload doesn't fit a subscriber: argument 'order' of send"):
        await shop.emit("order.paid", {"order": "many"}, id="evt-1")

    assert await shop.engine.find(Where()) == []


async def test_a_job_emits_an_event_once_however_often_it_runs(shop):
    @shop.job(retries=2)
    async def pay(n: int) -> None:
        RAN.append("pay")
        await shop.emit("order.paid", {"order": n})
        if RAN.count("pay") < 3:
            raise ValueError("again")

    run = await pay.submit(7)
    async with shop.worker():
        await run.result(20)
        await until(lambda: len(RAN) >= 5)
        assert await events_of(shop, "order.paid") == [7, 7]
    assert sorted(one for one in RAN if one != "pay") == [("book", 7), ("send", 7)]


async def test_every_item_emits_its_event_even_if_it_fails_first_and_runs_again(shop):
    tries: Counter[int] = Counter()

    @step(name="draw")
    async def draw(n: int) -> int:
        tries[n] += 1
        if n >= 3 and tries[n] == 1:
            raise ValueError("429")
        await shop.emit("order.paid", {"order": n})
        return n

    @shop.job(retries=AT_ONCE_RETRY)
    async def film() -> list[int]:
        return await draw.map(range(5))

    async with shop.worker():
        assert await (await film.submit()).result(20) == [0, 1, 2, 3, 4]
    assert await events_of(shop, "order.paid") == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]


async def test_events_are_told_apart_by_their_payload_when_a_later_attempt_emits_others_first(shop):
    @shop.job(retries=AT_ONCE_RETRY)
    async def pay() -> None:
        RAN.append("pay")
        for n in (1, 2) if RAN.count("pay") == 1 else (3, 2, 1):
            await shop.emit("order.paid", {"order": n})
        await shop.emit("order.paid", {"order": 1})
        if RAN.count("pay") == 1:
            raise ValueError("again")

    async with shop.worker():
        await (await pay.submit()).result(20)
    assert await events_of(shop, "order.paid") == [1, 1, 1, 1, 2, 2, 3, 3]


async def events_of(app: App, event: str) -> list[int]:
    """The orders of all jobs that this event made."""
    found = await app.engine.find(Where())
    return sorted(parse(job.args)[0]["order"] for job in found if job.options.meta.get("event") == event)


async def test_events_that_lead_to_each_other_end_with_a_clear_error(app):
    @app.on("ping")
    @app.job
    async def ping(n: int) -> None:
        RAN.append(n)
        await back.submit(n)

    @app.job(retries=AT_ONCE_RETRY)
    async def back(n: int) -> None:
        try:
            await app.emit("ping", n + 1)
        except NotAllowed as error:
            RAN.append(str(error))
            raise

    await app.emit("ping", 1)

    async def in_review() -> list[Job]:
        return await app.engine.find(Where(states=(State.REVIEW,)))

    async with app.worker():
        (job,) = await until(in_review, 30)
    assert (job.type, job.attempt) == ("back", 2)  # one more than it has used
    assert RAN[:-1] == list(range(1, EVENT_DEPTH + 1))
    assert "looks like a loop" in RAN[-1]


@contextmanager
def isolated_step(job: str) -> Iterator[None]:
    """Run code as in the process of an isolated step: outside its attempt, which `current()` still names."""
    token = PLAIN.set(Current(job_id=job, attempt=1, epoch=1, deadline=None, step="draw#1", first="draw#1"))
    try:
        yield
    finally:
        PLAIN.reset(token)


@pytest.mark.parametrize("engine", ["sqlite", "postgres"], indirect=True)
async def test_an_isolated_step_that_runs_again_emits_the_same_events(shop):
    job = (await shop.s("film").submit()).id
    tries = []
    for _ in range(2):
        with isolated_step(job):
            tries.append([run.id for n in (1, 1, 2) for run in await shop.emit("order.paid", {"order": n})])

    assert tries[0] == tries[1]
    assert await events_of(shop, "order.paid") == [1, 1, 1, 1, 2, 2]


@pytest.mark.parametrize("engine", ["sqlite"], indirect=True)
async def test_events_that_isolated_steps_emit_are_no_endless_loop_either(shop):
    last = await shop.emit("order.paid", {"order": 1})
    for depth in range(2, EVENT_DEPTH + 1):
        with isolated_step(last[0].id):
            last = await shop.emit("order.paid", {"order": depth})

    with isolated_step(last[0].id), pytest.raises(NotAllowed, match="looks like a loop"):
        await shop.emit("order.paid", {"order": 0})


async def test_an_isolated_step_has_no_store_in_memory():
    with (
        isolated_step("0192f3a4-5b6c-7d8e-9f01-23456789abcd"),
        pytest.raises(StoreClosed, match="isolate the whole job"),
    ):
        await App("memory:").open()


async def test_an_emitter_without_the_code_reaches_subscribers_that_a_worker_declared(shop, engine):
    other = App("memory:", settings=QUICK, engine=engine)
    assert await other.emit("order.paid", {"order": 1}, id="early") == []

    async with shop.worker():
        runs = await other.emit("order.paid", Order(order=5), id="evt-1")
        assert sorted([await run.result(20) for run in runs], key=str) == [5, "booked"]
        assert await shop.emit("order.paid", {"order": 5}, id="evt-1")
    assert sorted(RAN) == [("book", 5), ("send", 5)]


async def test_a_job_that_is_no_longer_subscribed_gets_no_more_events(shop, engine):
    async with shop.worker():
        pass
    later = App("memory:", settings=QUICK, engine=engine)

    @later.job
    async def send(order: Order) -> int:
        return order.order

    async with later.worker():
        runs = await later.emit("order.paid", {"order": 5}, id="evt-1")
    assert [(await later.jobs.get(run.id)).type for run in runs] == ["book"]


class TestCalls:
    """What `on` and `emit` refuse. Needs no store."""

    @pytest.mark.parametrize("engine", ["memory"], indirect=True)
    def test_a_subscription_that_can_not_work_is_refused_in_one_line(self, app):
        @app.job
        async def nothing() -> None: ...

        @app.job
        async def pair(a: int, b: int) -> None: ...

        other = App("memory:")
        for name, job, line in [
            ("Order Paid", nothing, "can't be the name of an event"),
            ("order.paid", nothing, "so it must take one: nothing takes no positional argument"),
            ("order.paid", pair, "so it must take one: pair needs the argument 'a'"),
        ]:
            with pytest.raises(Invalid, match=line):
                app.on(name)(job)
        with pytest.raises(Invalid, match="the job belongs to another App"):
            other.on("order.paid")(pair)

    @pytest.mark.parametrize("engine", ["memory"], indirect=True)
    async def test_a_mistyped_event_is_told_with_the_one_that_was_meant(self, shop, caplog):
        assert await shop.emit("order.payd", {"order": 1}) == []

        assert "no job is subscribed to it, so nothing runs; did you mean order.paid?" in caplog.text
