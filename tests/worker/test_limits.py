"""Shared limits in a worker: steps ask before each try, wait without losing anything, and give back what they hold."""

import asyncio
import itertools
import threading
import time

import pytest

from holdfast import App, Invalid, Retry, step
from holdfast.core.model import Event, State
from holdfast.core.shared_limits import BUCKET, Bucket, closed
from holdfast.engines.tables import Tables
from holdfast.jobs.limits import close_limit, set_limit
from holdfast.testing import in_memory
from tests.support.given import AT_ONCE_RETRY, QUICK, entry_of, events, finished, in_state, until

ENGINES = ("memory", "file", "sqlite", "postgres", "redis")

PATIENT = QUICK.__class__(**{**{name: getattr(QUICK, name) for name in QUICK.__struct_fields__}, "limit_seconds": 600})
HASTY = QUICK.__class__(**{**{name: getattr(QUICK, name) for name in QUICK.__struct_fields__}, "limit_seconds": 0.05})

SLOW = Retry(retries=3, strategy="constant", initial_ms=60_000, jitter=False)


class Gauge:
    """Counts the bodies that run at the same time, from any thread."""

    def __init__(self):
        self.now = self.most = self.all = 0
        self._lock = threading.Lock()

    def __enter__(self):
        with self._lock:
            self.now, self.all = self.now + 1, self.all + 1
            self.most = max(self.most, self.now)

    def __exit__(self, *_):
        with self._lock:
            self.now -= 1


class Held:
    """A step body that stays until it is let go."""

    def __init__(self):
        self.entered = asyncio.Event()
        self.go = asyncio.Event()
        self.bodies = 0

    async def __call__(self):
        self.bodies += 1
        self.entered.set()
        await self.go.wait()


async def held_of(app, limit):
    return sum(one.held for one in await app.engine.usage(limit))


async def waits_for(app, run, limit="api"):
    """The run, once its worker tells that a step of it waits for this limit."""

    async def look():
        running = [one for worker in await app.jobs.workers() for one in worker.running if one.job == run.id]
        return any(one.limited is not None and one.limited.key == limit for one in running)

    return await until(look)


@pytest.mark.parametrize("colour", ["async", "def"])
async def test_no_more_bodies_run_at_once_than_the_limit_says_over_two_workers(app, engine, colour):
    gauge, limit = Gauge(), app.limit("api", at_once=3)

    if colour == "async":

        @step(name="call", limit=limit)
        async def call(n: int) -> int:
            with gauge:
                await asyncio.sleep(0.002)
            return n

        @app.job
        async def work(first: int) -> list[int]:
            return await call.map(range(first, first + 10), at_once=10)

    else:

        @step(name="call", limit=limit)
        def call(n: int) -> int:
            with gauge:
                time.sleep(0.002)
            return n

        @app.job
        def work(first: int) -> list[int]:
            return call.map(range(first, first + 10), at_once=10)  # type: ignore[return-value]

    runs = await work.submit_many([0, 10, 20, 30])
    async with app.worker(at_once=2), app.worker(at_once=2):
        results = [await run.result(timeout=60) for run in runs]

    assert results == [list(range(first, first + 10)) for first in (0, 10, 20, 30)]
    assert gauge.all == 40
    assert gauge.most <= 3
    assert await app.engine.usage("api") == []


async def test_all_permits_are_used(app, engine):
    held = Held()

    @step(name="hold", limit=app.limit("api", at_once=3))
    async def hold(n: int) -> None:
        await held()

    @app.job
    async def work() -> None:
        await hold.map(range(5))

    run = await work.submit()
    async with app.worker():
        await until(lambda: held.bodies == 3)
        await waits_for(app, run)
        assert held.bodies == 3
        assert await held_of(app, "api") == 3
        held.go.set()
        await run.result(timeout=60)
    assert held.bodies == 5


async def test_no_more_jobs_run_at_once_than_the_limit_says(app, engine):
    gauge = Gauge()

    @app.job(limit=app.limit("customer", at_once=2, per="{customer}"))
    async def work(customer: str) -> None:
        with gauge:
            await asyncio.sleep(0.01)

    runs = await work.submit_many(["ada"] * 8)
    async with app.worker(), app.worker():
        for run in runs:
            await run.result(timeout=60)

    assert gauge.all == 8
    assert gauge.most <= 2


async def test_steps_that_ask_together_are_one_call_and_so_are_their_records(app, engine):
    @step(name="call", limit=app.limit("api", at_once=1_000))
    async def call(n: int) -> int:
        return n

    @app.job
    async def work() -> int:
        return sum(await call.map(range(100), at_once=100))

    run = await work.submit()
    async with app.worker():
        assert await run.result(timeout=60) == 4950

    assert engine.calls["record"] == 0
    assert engine.calls["admit"] <= 6, "one for the asks, one for the records and permits given back, and a few"


async def test_steps_that_go_on_together_ask_again_together(app, engine):
    @step(name="call", limit=app.limit("api", at_once=1_000))
    async def call(n: int) -> int:
        return n

    @app.job
    async def work() -> int:
        return sum(await call.map(range(500), at_once=100))

    run = await work.submit()
    async with app.worker():
        assert await run.result(timeout=60) == 124750

    assert engine.calls["admit"] <= 14, "two for each hundred, and a few"


async def test_one_slot_and_one_permit_are_enough_for_all(app, engine):
    gauge, limit = Gauge(), app.limit("api", at_once=1)

    @step(name="call", limit=limit)
    async def call(n: int) -> int:
        with gauge:
            return n

    @app.job
    async def work(n: int) -> list[int]:
        return [await call(n), *await call.map([n + 1, n + 2])]

    runs = await work.submit_many([0, 10, 20])
    async with app.worker(at_once=1):
        assert [await run.result(timeout=60) for run in runs] == [[0, 1, 2], [10, 11, 12], [20, 21, 22]]
    assert gauge.most == 1


@pytest.mark.parametrize("colour", ["async", "def"])
async def test_a_job_that_waits_gives_up_its_slot_and_comes_back(app, engine, colour):
    app.settings = HASTY
    held, limit, before = Held(), app.limit("api", at_once=1), Gauge()

    @step(name="hold", limit=limit)
    async def hold() -> None:
        await held()

    @app.job
    async def holder() -> None:
        await hold()

    if colour == "async":

        @step(name="prepare")
        async def prepare() -> None:
            with before:
                pass

        @step(name="call", limit=limit)
        async def call() -> int:
            return 7

        @app.job
        async def work() -> int:
            await prepare()
            return await call()

    else:

        @step(name="prepare")
        def prepare() -> None:
            with before:
                pass

        @step(name="call", limit=limit)
        def call() -> int:
            return 7

        @app.job
        def work() -> int:
            prepare()  # type: ignore[unused-coroutine]
            return call()  # type: ignore[return-value]

    @app.job
    async def other() -> int:
        return 5

    first = await holder.submit()
    async with app.worker(at_once=2):
        await held.entered.wait()
        waiting = await work.submit()
        job = await in_state(app, waiting, State.PENDING)
        assert [wait.name for wait in job.waits] == ["api"]
        assert await (await other.submit()).result(timeout=60) == 5, "its slot is free"
        assert "waiting for limit api" in str(await waiting.status())
        held.go.set()
        assert await waiting.result(timeout=60) == 7
        await first.result(timeout=60)

    assert before.all == 1, "what is recorded doesn't run again"
    assert (await entry_of(waiting, Event.SUSPEND)).note["waits"] == ["limit api"]
    assert (await app.jobs.get(waiting.id)).attempt == 1


async def test_a_job_keeps_its_slot_while_another_step_of_it_runs(app, engine):
    app.settings = HASTY
    held, beside, limit = Held(), Held(), app.limit("api", at_once=1)

    @step(name="hold", limit=limit)
    async def hold() -> None:
        await held()

    @step(name="draw")
    async def draw() -> None:
        await beside()

    @step(name="call", limit=limit)
    async def call() -> int:
        return 7

    @app.job
    async def holder() -> None:
        await hold()

    @app.job
    async def work() -> int:
        _, value = await asyncio.gather(draw(), call())
        return value

    await holder.submit()
    async with app.worker():
        await held.entered.wait()
        run = await work.submit()
        await beside.entered.wait()
        await waits_for(app, run)
        await asyncio.sleep(4 * HASTY.limit_seconds)
        assert (await app.jobs.get(run.id)).state is State.ACTIVE
        beside.go.set()
        await in_state(app, run, State.PENDING)
        held.go.set()
        assert await run.result(timeout=60) == 7
    assert beside.bodies == 1


async def test_a_retry_gives_its_permit_back_while_it_waits(app, engine):
    limit = app.limit("api", at_once=1)

    @step(name="fail", limit=limit, retries=SLOW)
    async def fail() -> None:
        raise OSError("503")

    @step(name="call", limit=limit)
    async def call() -> int:
        return 7

    @app.job
    async def failing() -> None:
        await fail()

    @app.job
    async def work() -> int:
        return await call()

    run = await failing.submit()
    async with app.worker():

        async def is_retried():
            return (await run.status()).retrying

        await until(is_retried)
        assert await (await work.submit()).result(timeout=60) == 7
        assert await held_of(app, "api") == 0


@pytest.mark.parametrize("colour", ["async", "def"])
async def test_each_try_pays_the_rate(app, engine, colour):
    limit, tries = app.limit("api", rate="1000/d", burst=10), []

    if colour == "async":

        @step(name="call", limit=limit, retries=AT_ONCE_RETRY)
        async def call() -> int:
            tries.append(1)
            if len(tries) < 3:
                raise OSError("503")
            return 7

        @app.job
        async def work() -> int:
            return await call()

    else:

        @step(name="call", limit=limit, retries=AT_ONCE_RETRY)
        def call() -> int:
            tries.append(1)
            if len(tries) < 3:
                raise OSError("503")
            return 7

        @app.job
        def work() -> int:
            return call()  # type: ignore[return-value]

    run = await work.submit()
    assert (await finished(app, run)).state is State.COMPLETED
    [used] = await app.engine.usage("api")
    assert used.tokens is not None
    assert used.tokens // 1_000_000 == 7
    [record] = [one for one in await app.engine.steps(run.id) if one.path.startswith("call")]
    assert record.tries == 3


async def test_a_retry_that_waits_for_a_limit_keeps_its_count_of_tries(app, engine):
    """A job that gives up its slot between two tries must not begin to count anew: it would try for ever."""
    app.settings = HASTY
    limit, tries, until_then = app.limit("api", at_once=5), [], {}

    @step(name="call", limit=limit, retries=Retry(retries=2, strategy="constant", initial_ms=0, jitter=False))
    async def call() -> None:
        tries.append(1)
        until_then["at"] = await app.engine.now() + 3_600_000
        await app.engine.put_record(BUCKET + "api", closed(Bucket(), until_then["at"]).text())
        raise OSError("503")

    @app.job(retries=0)
    async def work() -> None:
        await call()

    run = await work.submit()
    async with app.worker():
        for number in (1, 2):
            await in_state(app, run, State.PENDING)
            assert len(tries) == number
            await app.engine.put_record(BUCKET + "api", None)
            await until(lambda number=number: len(tries) > number)
        await in_state(app, run, State.REVIEW)
    assert len(tries) == 3


async def test_the_permits_of_a_lost_lease_are_free_for_others(app, engine, interrupted):
    limit = app.limit("api", at_once=1)

    @step(name="call", limit=limit)
    async def call() -> int:
        await interrupted.point()
        return 7

    @app.job
    async def work() -> int:
        return await call()

    run = await work.submit()
    job = await interrupted.between(run)

    assert job.state is State.COMPLETED
    assert interrupted.runs == 2
    assert await held_of(app, "api") == 0


async def test_a_cancelled_job_leaves_the_line(app, engine):
    app.settings = PATIENT
    held, limit, ran = Held(), app.limit("api", at_once=1), []

    @step(name="hold", limit=limit)
    async def hold() -> None:
        await held()

    @step(name="call", limit=limit)
    async def call(n: int) -> int:
        ran.append(n)
        return n

    @app.job
    async def holder() -> None:
        await hold()

    @app.job
    async def work(n: int) -> int:
        return await call(n)

    await holder.submit()
    async with app.worker():
        await held.entered.wait()
        first, second = await work.submit_many([1, 2])
        await waits_for(app, first)
        await waits_for(app, second)
        await first.cancel()
        await in_state(app, first, State.CANCELLED)
        held.go.set()
        assert await second.result(timeout=60) == 2
    assert ran == [2]


async def test_a_task_that_is_cancelled_while_it_waits_leaves_no_permit_behind(app, engine):
    app.settings = PATIENT
    held, limit = Held(), app.limit("api", at_once=1)

    @step(name="hold", limit=limit)
    async def hold() -> None:
        await held()

    @step(name="call", limit=limit)
    async def call(n: int) -> int:
        return n

    @app.job
    async def work() -> int:
        holding = asyncio.create_task(hold())
        await held.entered.wait()
        waiting = asyncio.create_task(call(1))
        await asyncio.sleep(0.05)
        waiting.cancel()
        await asyncio.wait([waiting])
        assert waiting.cancelled()
        held.go.set()
        await holding
        return await call(2)

    run = await work.submit()
    async with app.worker():
        assert await run.result(timeout=60) == 2
    assert await app.engine.usage("api") == []


async def test_waiting_counts_for_no_timeout(app, engine):
    app.settings = PATIENT
    held, limit = Held(), app.limit("api", at_once=1)

    @step(name="hold", limit=limit)
    async def hold() -> None:
        await held()

    @step(name="call", limit=limit, timeout="400ms", stale_after="300ms")
    async def call() -> int:
        return 7

    @app.job
    async def holder() -> None:
        await hold()

    @app.job(timeout="500ms", retries=0)
    async def work() -> int:
        return await call()

    await holder.submit()
    async with app.worker():
        await held.entered.wait()
        run = await work.submit()
        await waits_for(app, run)
        await asyncio.sleep(1.0)  # longer than both timeouts: only real time tells whether they run
        held.go.set()
        assert await run.result(timeout=60) == 7
    assert await events(run) == ["submit", "claim", "complete"]


@pytest.mark.parametrize("colour", ["async", "def"])
async def test_waiting_inside_a_step_counts_for_no_timeout_of_those_around_it(app, engine, colour):
    """Of no step around it, and not of the job, while nothing else runs."""
    app.settings = PATIENT
    held, limit = Held(), app.limit("api", at_once=1)

    @step(name="hold", limit=limit)
    async def hold() -> None:
        await held()

    if colour == "async":

        @step(name="call", limit=limit)
        async def call() -> int:
            return 7

        @step(name="inner", timeout="400ms", stale_after="300ms")
        async def inner() -> int:
            return await call()

        @step(name="outer", timeout="400ms", stale_after="300ms")
        async def outer() -> int:
            return await inner()

    else:

        @step(name="call", limit=limit)
        def call() -> int:
            return 7

        @step(name="inner", timeout="400ms", stale_after="300ms")
        def inner() -> int:
            return call()  # type: ignore[return-value]

        @step(name="outer", timeout="400ms", stale_after="300ms")
        def outer() -> int:
            return inner()  # type: ignore[return-value]

    @app.job
    async def holder() -> None:
        await hold()

    if colour == "async":

        @app.job(timeout="500ms", retries=0)
        async def work() -> int:
            return await outer()

    else:

        @app.job(timeout="500ms", retries=0)
        def work() -> int:
            return outer()  # type: ignore[return-value]

    await holder.submit()
    async with app.worker():
        await held.entered.wait()
        run = await work.submit()
        await waits_for(app, run)
        await asyncio.sleep(1.0)  # longer than all timeouts: only real time tells whether they run
        held.go.set()
        assert await run.result(timeout=60) == 7
    assert await events(run) == ["submit", "claim", "complete"]


async def test_the_timeout_of_a_step_goes_on_while_another_step_inside_it_runs(app, engine):
    app.settings = PATIENT
    held, other, limit = Held(), Held(), app.limit("api", at_once=1)

    @step(name="hold", limit=limit)
    async def hold() -> None:
        await held()

    @step(name="call", limit=limit)
    async def call() -> None: ...

    @step(name="busy")
    async def busy() -> None:
        await other()

    @step(name="outer", timeout="300ms")
    async def outer() -> None:
        await asyncio.gather(call(), busy())

    @app.job
    async def holder() -> None:
        await hold()

    @app.job(retries=0)
    async def work() -> None:
        await outer()

    await holder.submit()
    async with app.worker():
        await held.entered.wait()
        run = await work.submit()
        await in_state(app, run, State.REVIEW)
        held.go.set()
    job = await app.jobs.get(run.id)
    assert job.error is not None
    assert "timeout of 300 ms" in job.error.message, job.error.message


async def test_a_changed_limit_counts_at_once_for_those_who_wait(app, engine):
    app.settings = PATIENT
    held, limit = Held(), app.limit("api", at_once=1)

    @step(name="hold", limit=limit)
    async def hold(n: int) -> None:
        await held()

    @app.job
    async def work() -> None:
        await hold.map([1, 2, 3])

    run = await work.submit()
    async with app.worker():
        await held.entered.wait()
        assert held.bodies == 1
        await set_limit(app.engine, "api", at_once=3, by="ada")
        await until(lambda: held.bodies == 3)
        held.go.set()
        await run.result(timeout=60)


@pytest.mark.parametrize("trouble", ["fails", "loses"])
async def test_a_store_in_trouble_costs_no_permit_and_lets_nobody_in_twice(app, engine, trouble):
    gauge, limit = Gauge(), app.limit("api", at_once=2)

    @step(name="call", limit=limit)
    async def call(n: int) -> int:
        with gauge:
            getattr(engine, trouble)["admit"] += n % 3 == 0
            await asyncio.sleep(0.001)
        return n

    @app.job
    async def work() -> list[int]:
        return await call.map(range(12), at_once=6)

    run = await work.submit()
    async with app.worker():
        assert await run.result(timeout=60) == list(range(12))
    assert gauge.most <= 2
    assert gauge.all == 12
    assert await app.engine.usage("api") == []


async def test_the_status_says_what_a_job_waits_for(app, engine):
    app.settings = PATIENT
    held, limit = Held(), app.limit("api", at_once=1)

    @step(name="hold", limit=limit)
    async def hold(n: int) -> None:
        await held()

    @app.job
    async def work() -> None:
        await hold.map([1, 2, 3])

    @app.job(limit=limit)
    async def other() -> None: ...

    run = await work.submit()
    async with app.worker():
        await held.entered.wait()
        await waits_for(app, run)
        status = await run.status()
        assert "waiting for limit api (1 of 1 in use)" in str(status)
        assert status.limited is not None
        assert status.limited.steps == 2
        waiting = await other.submit()
        assert str(await waiting.status()) == "waiting for limit api (1 of 1 in use)"
        [listed] = await app.jobs.statuses([await app.jobs.get(run.id)])
        assert str(listed.limited) == "waiting for limit api (1 of 1 in use)"
        held.go.set()
        await run.result(timeout=60)
        await waiting.result(timeout=60)
        assert "limit" not in str(await run.status())


async def test_the_status_says_about_how_long(app):
    @step(name="call", limit=app.limit("api", rate="60/h", burst=1))
    async def call(n: int) -> int:
        return n

    @app.job
    async def work() -> list[int]:
        return await call.map(range(2))

    async with in_memory(app) as test:
        run = await work.submit()
        await test.idle()
        words = str(await run.status())
        assert words in ("waiting for limit api (about 59 s)", "waiting for limit api (about 1 min)"), words


# What could wait for ever is refused.


async def refusal(app, run):
    job = await finished(app, run)
    assert job.state is State.REVIEW
    assert job.error is not None
    assert job.error.type.endswith("Invalid")
    return job.error.message


async def test_a_step_inside_one_that_holds_the_same_limit_is_refused(app, engine):
    limit = app.limit("api", at_once=5)

    @step(name="inner", limit=limit)
    async def inner() -> None: ...

    @step(name="outer", limit=limit)
    async def outer() -> None:
        await inner()

    @app.job
    async def work() -> None:
        await outer()

    line = await refusal(app, await work.submit())
    assert line.startswith("step inner asks for limit api, which step outer")
    assert "around it holds already" in line


async def test_a_step_of_a_job_that_holds_the_same_limit_is_refused(app, engine):
    limit = app.limit("api", at_once=5)

    @step(name="call", limit=limit)
    async def call() -> None: ...

    @app.job(limit=limit)
    async def work() -> None:
        await call()

    assert "step call asks for limit api, which its job holds already" in await refusal(app, await work.submit())


async def test_nested_limits_are_taken_in_one_order(app, engine):
    first, second = app.limit("a", at_once=5), app.limit("b", at_once=5)

    @step(name="inner", limit=first)
    async def inner() -> None: ...

    @step(name="outer", limit=second)
    async def outer() -> None:
        await inner()

    @step(name="deep", limit=second)
    async def deep() -> int:
        return 1

    @step(name="around", limit=first)
    async def around() -> int:
        return await deep()

    @app.job
    async def wrong() -> None:
        await outer()

    @app.job
    async def right() -> int:
        return await around()

    assert "could wait for each other forever" in await refusal(app, await wrong.submit())
    run = await right.submit()
    await finished(app, run)
    assert await run.result() == 1


async def test_a_job_and_a_step_inside_another_one_take_their_limits_in_one_order(app, engine):
    """The job keeps its permit while the inner step waits, because the step around that runs."""
    first, second = app.limit("a", at_once=5), app.limit("b", at_once=5)

    @step(name="of_a", limit=first)
    async def of_a() -> int:
        return 1

    @step(name="of_b", limit=second)
    async def of_b() -> int:
        return 1

    @step(name="around")
    async def around(is_a: bool) -> int:
        return await of_a() if is_a else await of_b()

    @app.job(limit=second)
    async def wrong() -> int:
        return await around(True)

    @app.job(limit=first)
    async def right() -> int:
        return await around(False)

    line = await refusal(app, await wrong.submit())
    assert line.startswith("step of_a, inside step around#"), line
    assert "asks for limit a while its job holds limit b" in line
    assert "give both limits to the outer one" in line
    run = await right.submit()
    await finished(app, run)
    assert await run.result() == 1


async def test_jobs_whose_steps_need_what_the_other_one_holds_get_on(app, engine):
    """A job gives up its own permit with its slot, so either order is fine between a job and a step of its own."""
    app.settings = HASTY
    first, second = app.limit("a", at_once=1), app.limit("b", at_once=1)
    both = asyncio.Barrier(2)

    @step(name="of_a", limit=first)
    async def of_a() -> int:
        return 1

    @step(name="of_b", limit=second)
    async def of_b() -> int:
        return 1

    async def meet() -> None:
        if not met:  # the first time that both run
            await both.wait()
            met.add(True)

    @app.job(limit=first)
    async def one() -> int:
        await meet()
        return await of_b()

    @app.job(limit=second)
    async def other() -> int:
        await meet()
        return await of_a()

    met: set[bool] = set()
    runs = [await one.submit(), await other.submit()]
    async with app.worker(at_once=2):
        assert [await run.result(timeout=20) for run in runs] == [1, 1]


async def test_a_limit_of_another_app_is_refused(app, engine):
    @step(name="call", limit=App("memory:").limit("api", at_once=5))
    async def call() -> None: ...

    @app.job
    async def work() -> None:
        await call()

    line = await refusal(app, await work.submit())
    assert line.startswith("step call: limit api belongs to another App than job work")


async def test_a_cost_function_that_raises_fails_its_step(app, engine):
    def weigh(n: int) -> float:
        raise KeyError("no such model")

    @step(name="call", limit=app.limit("api", rate="100/m").cost(weigh), retries=3)
    async def call(n: int) -> None: ...

    @app.job
    async def work() -> str:
        try:
            await call(1)
        except Invalid as error:
            return str(error)
        return ""

    run = await work.submit()
    await finished(app, run)
    line = await run.result()
    assert line.startswith("step call: the cost function of limit api (")
    assert line.endswith("weigh) raised KeyError: 'no such model'")


# With a clock that a test advances.


async def test_a_rate_lets_its_burst_start_and_the_rest_later(app):
    starts = []

    @step(name="call", limit=app.limit("api", rate="60/h", burst=2))
    async def call(n: int) -> int:
        starts.append(test.clock())
        return n

    @app.job
    async def work() -> list[int]:
        return await call.map(range(5), at_once=5)

    async with in_memory(app) as test:
        run = await work.submit()
        await test.idle()
        assert len(starts) == 2
        assert (await app.jobs.get(run.id)).state is State.PENDING
        await test.advance("3m")
        assert len(starts) == 4
        await test.advance("3m")
        assert await run.result() == list(range(5))
        gaps = [after - before for before, after in itertools.pairwise(starts[1:])]
        assert all(gap > 55_000 for gap in gaps), "a unit takes about 61 s to come in"


@pytest.mark.parametrize("is_closed", [False, True])
async def test_jobs_that_wait_for_a_limit_cost_no_claim(monkeypatch, is_closed):
    app = App("memory:")

    @app.job(limit=app.limit("api", rate="1/d"))
    async def work() -> None: ...

    claims = []

    def counted(*given, claim=Tables.claim):
        claims.append(given)
        return claim(*given)

    monkeypatch.setattr(Tables, "claim", counted)
    async with in_memory(app) as test:
        if is_closed:
            await close_limit(app.engine, "api", 86_400_000, by="ada", reason="")
        await work.submit_many([()] * 50)
        await test.idle()
        assert claims, "it has looked once"
        claims.clear()
        await test.advance("10m")
        [used] = await app.engine.usage("api")

    assert used.waiting == 50 - (not is_closed)
    assert claims == []


async def test_a_cost_of_many_units_rests_until_they_are_there(app):
    limit = app.limit("api", rate="60/h", burst=20)

    @step(name="call", limit=limit.cost(lambda n: n))
    async def call(n: int) -> int:
        return n

    @app.job
    async def work() -> list[int]:
        return [await call(20), await call(15)]

    async with in_memory(app) as test:
        run = await work.submit()
        await test.idle()
        assert (await app.jobs.get(run.id)).state is State.SCHEDULED
        await test.advance("10m")
        assert (await app.jobs.get(run.id)).epoch == 1, "it does not come back before"
        await test.advance("15m")
        assert await run.result() == [20, 15]


async def test_a_cost_above_a_burst_that_a_person_has_lowered_is_told(app):
    limit = app.limit("api", rate="60/h", burst=20)

    @step(name="call", limit=limit.cost(lambda n: n))
    async def call(n: int) -> int:
        return n

    @app.job
    async def work() -> list[int]:
        return [await call(20), await call(15)]

    async with in_memory(app) as test:
        await set_limit(app.engine, "api", rate="60/h", burst=10, by="ada")
        run = await work.submit()
        await test.idle()
        job = await app.jobs.get(run.id)
        assert job.state is State.REVIEW
        assert job.error is not None
        assert "a cost of 20 is above the burst of limit api, which is 10 now" in job.error.message


@pytest.mark.parametrize(("cost", "told"), [(None, "1"), (0.2, "0.2")])
async def test_a_call_above_a_fractional_burst_that_a_person_has_lowered_is_told(app, cost, told):
    limit = app.limit("api", rate="1.5/s")

    @step(name="call", limit=limit if cost is None else limit.cost(lambda: cost))
    async def call() -> None: ...

    @app.job
    async def work() -> None:
        await call()

    async with in_memory(app) as test:
        await set_limit(app.engine, "api", rate="0.5/s", by="ada")
        run = await work.submit()
        await test.idle()
        job = await app.jobs.get(run.id)
        assert job.state is State.REVIEW
        assert f"a cost of {told} is above the burst of limit api, which is 0.05 now" in job.error.message
