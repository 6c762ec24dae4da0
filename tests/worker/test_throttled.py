"""A provider's "slow down" costs no try, closes the limit for every worker, and is told."""

import asyncio
import itertools
import logging
from types import SimpleNamespace

import pytest

from holdfast import App, Throttled, step, wait_for
from holdfast.core import throttling
from holdfast.core.model import State
from holdfast.testing import in_memory
from holdfast.worker import throttling as heeding
from tests.support.given import QUICK, finished, in_state, until

ENGINES = ("memory", "file", "sqlite", "postgres", "redis")


class TooMany(Exception):
    """What a client raises for a 429."""

    def __init__(self, after):
        super().__init__("429 Too Many Requests")
        self.response = SimpleNamespace(status_code=429, headers={"Retry-After": after})


@pytest.mark.parametrize("kind", ["explicit", "by shape"])
async def test_a_limit_is_closed_for_all_workers(app, engine, caplog, kind):
    limit, calls = app.limit("api", at_once=5), []
    other = App("memory:", settings=QUICK, engine=app.engine)
    same = other.limit("api", at_once=5)

    @step(name="call", limit=limit)
    async def call() -> None:
        calls.append("here")
        raise Throttled("429", retry_after=600) if kind == "explicit" else TooMany("600")

    @app.job(name="here")
    async def here() -> None:
        await call()

    @step(name="call", limit=same)
    async def call_there() -> None:
        calls.append("there")

    @other.job(name="there")
    async def there() -> None:
        await call_there()

    run = await here.submit()
    with caplog.at_level(logging.WARNING):
        async with app.worker(), other.worker():
            job = await in_state(app, run, State.PENDING)
            waiting = await there.submit()
            await in_state(app, waiting, State.PENDING)
    assert calls == ["here"]
    assert job.attempt == 1
    [used] = await app.engine.usage("api")
    assert used.held == 0
    assert 500_000 < used.closed_until - await app.engine.now() <= 600_000
    assert "limit api: closed for all workers for 600.0 s" in caplog.text
    assert "the provider asks to slow down" in caplog.text


@pytest.mark.parametrize("colour", ["async", "def"])
@pytest.mark.parametrize("limited", [True, False])
async def test_it_costs_no_try_and_the_step_comes_back(app, limited, colour):
    limit, calls = app.limit("api", at_once=5), []

    def body() -> int:
        calls.append(test.clock())
        if len(calls) <= 3:
            raise TooMany("60")
        return 7

    if colour == "async":

        @step(name="call", limit=limit if limited else None)
        async def call() -> int:
            return body()

        @app.job
        async def work() -> int:
            return await call()

    else:

        @step(name="call", limit=limit if limited else None)
        def call() -> int:
            return body()

        @app.job
        def work() -> int:
            return call()  # type: ignore[return-value]

    async with in_memory(app) as test:
        run = await work.submit()
        await test.idle()
        assert len(calls) == 1
        assert (await app.jobs.get(run.id)).state is (State.PENDING if limited else State.SCHEDULED), "no slot is held"
        await test.advance("5m")
        assert await run.result() == 7
        [record] = [one for one in await app.engine.steps(run.id) if one.path.startswith("call")]
        assert record.tries == 1
        assert (await app.jobs.get(run.id)).attempt == 1
        assert all(after - before >= 59_000 for before, after in itertools.pairwise(calls))


async def test_it_ends_some_time(app, monkeypatch, caplog):
    monkeypatch.setattr(heeding, "IN_A_ROW", 3)
    calls = []

    @step(name="call", limit=app.limit("api", at_once=5))
    async def call() -> None:
        calls.append(1)
        raise Throttled("429", retry_after=1)

    @app.job(retries=0)
    async def work() -> None:
        await call()

    async with in_memory(app) as test:
        run = await work.submit()
        await test.advance("5m")
        job = await app.jobs.get(run.id)
        assert job.state is State.REVIEW
        assert job.error is not None
        assert job.error.type.endswith("Throttled")
    assert len(calls) == 4
    assert throttling.IN_A_ROW == 100
    assert "asked to slow down 4 times in a row; this counts as a failure" in caplog.text


async def test_garbage_is_left_to_the_steps_own_backoff(app, engine):
    calls = []

    @step(name="call", limit=app.limit("api", at_once=5))
    async def call() -> None:
        calls.append(1)
        raise TooMany("tomorrow")

    @app.job(retries=0)
    async def work() -> None:
        await call()

    job = await finished(app, await work.submit())

    assert job.state is State.REVIEW
    assert calls == [1]
    assert await app.engine.usage("api") == []


async def test_one_of_several_limits_is_named(app, engine):
    first, second = app.limit("a", at_once=5), app.limit("b", at_once=5, per="{model}")

    @step(name="call", limit=[first, second])
    async def call(model: str) -> None:
        raise Throttled("429", retry_after=600, limit=second)

    @app.job
    async def work() -> None:
        await call("gpt")

    run = await work.submit()
    async with app.worker():
        job = await in_state(app, run, State.PENDING)
    assert [wait.name for wait in job.waits] == ["b/gpt"]
    assert await app.engine.usage("a") == []
    assert [one.key for one in await app.engine.usage("b")] == ["b/gpt"]


async def test_a_limit_that_the_step_does_not_use_is_refused(app, engine):
    limit = app.limit("a", at_once=5)

    @step(name="call")
    async def call() -> None:
        raise Throttled("429", retry_after=600, limit=limit)

    @app.job
    async def work() -> None:
        await call()

    job = await finished(app, await work.submit())

    assert job.error is not None
    assert "step call raised Throttled(limit=a), a limit that it doesn't use" in job.error.message


async def test_the_status_tells_it(app, engine):
    @step(name="call", limit=app.limit("api", at_once=5))
    async def call(n: int) -> None:
        if n:
            raise Throttled("429 slow down", retry_after=600)
        await asyncio.sleep(30)

    @app.job
    async def work() -> None:
        await asyncio.gather(call(0), call(1))

    run = await work.submit()
    async with app.worker():

        async def tells():
            status = await run.status()
            return status.retrying is not None and "429 slow down" in str(status)

        await until(tells)


async def test_an_effect_that_the_provider_refused_is_not_in_doubt(app):
    calls = []

    @step(name="pay", key=lambda n: n, effect="once", limit=app.limit("api", at_once=5))
    async def pay(n: int) -> int:
        calls.append(n)
        if len(calls) == 1:
            raise Throttled("429", retry_after=60)
        return n

    @app.job
    async def work() -> int:
        return await pay(7)

    async with in_memory(app) as test:
        run = await work.submit()
        await test.idle()
        assert (await app.jobs.get(run.id)).state is State.PENDING
        await test.advance("2m")
        assert await run.result() == 7
    assert calls == [7, 7]


async def test_an_effect_is_not_repeated_because_of_what_a_response_says(app, engine):
    calls = []

    @step(name="pay", key=lambda n: n, effect="once")
    async def pay(n: int) -> int:
        calls.append(n)
        raise TooMany("1")

    @app.job
    async def work() -> int:
        return await pay(7)

    job = await finished(app, await work.submit())

    assert job.state is State.REVIEW
    assert calls == [7]


@pytest.mark.parametrize("limited", [True, False])
async def test_the_rest_counts_for_no_timeout_of_the_step_around_it(app, limited):
    limit, calls = app.limit("api", at_once=5), []

    @step(name="call", limit=limit if limited else None)
    async def call() -> int:
        calls.append(1)
        if len(calls) == 1:
            raise Throttled(retry_after=1)  # the shortest there is: only real time tells
        return 7

    @step(name="outer", timeout="500ms", stale_after="500ms")
    async def outer() -> int:
        return await call()

    @app.job(timeout="800ms", retries=0)
    async def work() -> int:
        return await outer()

    run = await work.submit()
    async with app.worker():
        assert await run.result(timeout=20) == 7
    assert (await run.status()).recoveries == 0


# In the code of a job, outside its steps.


@pytest.mark.parametrize("colour", ["async", "def"])
@pytest.mark.parametrize("kind", ["explicit", "by shape"])
async def test_a_job_whose_own_code_is_throttled_comes_back_and_has_used_no_attempt(app, kind, colour, caplog):
    limit, calls, kept = app.limit("api", at_once=5), [], []

    @step(name="keep")
    async def keep() -> None:
        kept.append(1)

    def body() -> int:
        calls.append(test.clock())
        if len(calls) <= 3:
            raise Throttled(retry_after=60) if kind == "explicit" else TooMany("60")
        return 7

    if colour == "async":

        @app.job(limit=limit, retries=0)
        async def work() -> int:
            await keep()
            return body()

    else:

        @app.job(limit=limit, retries=0)
        def work() -> int:
            return body()

    async with in_memory(app) as test:
        run = await work.submit()
        await test.idle()
        assert len(calls) == 1
        job = await app.jobs.get(run.id)
        assert (job.state, job.attempt) == (State.SCHEDULED, 1), "no slot is held"
        [used] = await app.engine.usage("api")
        assert used.closed_until == job.run_at
        await test.advance("5m")
        assert await run.result() == 7
        assert (await app.jobs.get(run.id)).attempt == 1
        assert all(after - before >= 59_000 for before, after in itertools.pairwise(calls))
        entries = [entry for entry in await run.history() if entry.event == "rest"]
    assert len(entries) == 3
    assert entries[0].note["throttled"].startswith("Throttled" if kind == "explicit" else "TooMany")
    assert len(kept) == (1 if colour == "async" else 0)
    assert "limit api: closed for all workers for 60.0 s" in caplog.text
    assert "runs again in 60.0 s; this uses no attempt" in caplog.text


async def test_a_job_without_limits_rests_when_its_code_says_so_and_fails_when_only_a_response_does(app):
    calls = []

    @app.job(retries=0)
    async def says() -> int:
        calls.append(1)
        if len(calls) == 1:
            raise Throttled(retry_after=60)
        return 7

    @app.job(retries=0)
    async def gets() -> None:
        raise TooMany("60")

    async with in_memory(app) as test:
        said, got = await says.submit(), await gets.submit()
        await test.advance("2m")
        assert await said.result() == 7
        assert (await app.jobs.get(got.id)).state is State.REVIEW


async def test_a_job_with_several_limits_names_one(app, engine):
    first, second, other = app.limit("a", at_once=5), app.limit("b", at_once=5), app.limit("c", at_once=5)

    @app.job(limit=[first, second])
    async def right() -> None:
        raise Throttled(retry_after=600, limit=second)

    @app.job(limit=[first, second])
    async def wrong() -> None:
        raise Throttled(retry_after=600, limit=other)

    misled = await finished(app, await wrong.submit())
    run = await right.submit()
    async with app.worker():
        await in_state(app, run, State.SCHEDULED)
    assert misled.state is State.REVIEW
    assert "job wrong raised Throttled(limit=c), a limit that it doesn't use" in misled.error.message
    assert [one.key for one in await app.engine.usage("b") if one.closed_until] == ["b"]
    assert not [one for one in await app.engine.usage("a") if one.closed_until]


async def test_the_slow_down_of_a_job_ends_some_time(app, monkeypatch, caplog):
    monkeypatch.setattr(heeding, "IN_A_ROW", 3)
    calls = []

    @app.job(limit=app.limit("api", at_once=5), retries=0)
    async def work() -> None:
        calls.append(1)
        raise Throttled("429", retry_after=1)

    async with in_memory(app) as test:
        run = await work.submit()
        await test.advance("5m")
        job = await app.jobs.get(run.id)
        assert job.state is State.REVIEW
        assert job.error is not None
        assert job.error.type.endswith("Throttled")
    assert len(calls) == 4
    assert "the provider asked to slow down 4 times in a row; this counts as a failure" in caplog.text


async def test_what_a_step_raised_for_good_does_not_let_its_job_rest(app, engine):
    calls = []

    @step(name="pay", key=lambda n: n, effect="once")
    async def pay(n: int) -> None:
        calls.append(n)
        raise TooMany("1")

    @app.job(limit=app.limit("api", at_once=5), retries=0)
    async def work() -> None:
        await pay(7)

    job = await finished(app, await work.submit())

    assert job.state is State.REVIEW
    assert calls == [7]


async def test_a_signal_that_arrives_while_a_job_is_throttled_is_kept(app, engine):
    calls = []

    @app.job(limit=app.limit("api", at_once=5), retries=0)
    async def work() -> int:
        calls.append(1)
        if len(calls) == 1:
            await run.signal("go", 5)
            raise Throttled(retry_after=1)
        return await wait_for("go", as_=int)

    run = await work.submit()
    async with app.worker():
        assert await run.result(timeout=20) == 5
    assert (await run.status()).attempt == 1
