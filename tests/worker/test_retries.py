"""Every retry is visible: in the status while it happens, in the worker's log, and in the record afterwards."""

import asyncio
import logging
import re
import threading

import msgspec
import pytest

from holdfast import Retry, step
from holdfast.core.model import Presence, Retrying, Running, State, StepState
from holdfast.worker.recorded_errors import SHORT_CHARACTERS
from tests.support.given import AT_ONCE_RETRY, entry_of, finished, in_state, until

ENGINES = ("memory", "sqlite", "postgres", "redis")

SLOW = Retry(retries=3, strategy="constant", initial_ms=60_000, jitter=False)
"""Longer than any test: what is told between two tries can be looked at."""


class ProviderError(Exception):
    pass


def lines_of(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


async def told(run):
    """Where the run stands, once its worker has said that something is tried again."""

    async def look():
        status = await run.status()
        return status if status.retrying is not None else None

    return await until(look)


@pytest.mark.parametrize("colour", ["async", "def", "def in async", "isolated"])
async def test_a_step_that_waits_for_its_next_try_is_told_by_the_status_and_the_log(app, engine, caplog, colour):
    if colour == "async":

        @step(name="draw", key=lambda n: n, retries=SLOW)
        async def draw(n: int) -> None:
            raise ProviderError("429 Too Many\n\x1b[31mRequests")

        @app.job
        async def film() -> None:
            await draw(13)

    elif colour == "isolated":

        @app.job
        async def film() -> None:
            await crash_elsewhere.aio(13)

    elif colour == "def":

        @step(name="draw", key=lambda n: n, retries=SLOW)
        def draw(n: int) -> None:
            raise ProviderError("429 Too Many\n\x1b[31mRequests")

        @app.job
        def film() -> None:
            draw(13)  # type: ignore[unused-coroutine]

    else:

        @step(name="draw", key=lambda n: n, retries=SLOW)
        def carve(n: int) -> None:
            raise ProviderError("429 Too Many\n\x1b[31mRequests")

        @app.job
        async def film() -> None:
            await carve.aio(13)

    run = await film.submit()
    async with app.worker():
        status = await told(run)
        writes = engine.calls["record"]
        beats = engine.calls["beat"]
        await until(lambda: engine.calls["beat"] > beats + 2)
        assert engine.calls["record"] == writes == 0, "a failed try is no write"
        one = status.retrying
        assert (one.step, one.try_number, one.of, one.others) == ("draw#13", 2, 4, 0)
        assert one.error == "ProviderError: 429 Too Many \N{REPLACEMENT CHARACTER}[31mRequests"
        assert 0 < status.retry_ms <= 61_000  # a server has a clock of its own
        assert re.search(
            r"try 2 of 4 of draw#13 after ProviderError: 429 .*, next try in (1 min|\d+(\.\d)? s)", str(status)
        )
    begin = "): step draw#13 failed (try 1 of 4): ProviderError: 429 Too Many \N{REPLACEMENT CHARACTER}[31mRequests"
    (line,) = [one for one in lines_of(caplog) if begin in one]
    assert line.startswith(f"job {run.id} (")
    assert line.endswith("; next try in 60.0 s")


@step(name="draw", key=lambda n: n, retries=SLOW, isolate="process")
def crash_elsewhere(n: int) -> None:
    raise ProviderError("429 Too Many\n\x1b[31mRequests")


@pytest.mark.parametrize("colour", ["async", "def"])
@pytest.mark.parametrize("failures", [0, 1, 3, 4])
async def test_the_number_of_tries_is_in_the_record(app, engine, colour, failures):
    left = [failures]

    def body() -> str:
        if left[0]:
            left[0] -= 1
            raise ProviderError("429")
        return "drawn"

    if colour == "async":

        @step(name="draw", key=lambda n: n, retries=AT_ONCE_RETRY)
        async def draw(n: int) -> str:
            return body()

        @app.job(retries=0)
        async def film() -> str:
            return await draw(13)

    else:

        @step(name="draw", key=lambda n: n, retries=AT_ONCE_RETRY)
        def draw(n: int) -> str:
            return body()

        @app.job(retries=0)
        def film() -> str:
            return draw(13)  # type: ignore[return-value]

    run = await film.submit()
    await finished(app, run)
    (record,) = [one for one in await app.engine.steps(run.id) if one.path == "draw#13"]
    assert record.state is (StepState.FAILED if failures == 4 else StepState.DONE)
    assert record.tries == min(4, failures + 1)
    (beside,) = [one for one in await app.engine.steps(run.id) if one.path == "~args/draw#13"]
    assert beside.tries == 1
    assert engine.calls["record"] == 1
    assert (await run.status()).retrying is None


async def test_a_transaction_that_is_tried_again_counts_its_tries(app):
    if app.engine.guarantees.transactions == "no":
        pytest.skip("this store has no transactions")
    left = [2]

    @step(name="book", effect="transaction", retries=AT_ONCE_RETRY)
    def book() -> str:
        left[0] -= 1
        if left[0] >= 0:
            raise ProviderError("429")
        return "booked"

    @app.job
    async def order() -> str:
        return await book.aio()

    run = await order.submit()
    assert (await finished(app, run)).state is State.COMPLETED
    (record,) = [one for one in await app.engine.steps(run.id) if one.name == "book"]
    assert record.tries == 3


async def test_of_many_that_are_tried_again_the_last_is_told_and_the_others_are_counted(app):
    failed = []

    @step(name="draw", key=lambda n: n, retries=SLOW)
    async def draw(n: int) -> None:
        failed.append(n)
        raise ProviderError("429 " * 1_000)

    @app.job
    async def film() -> None:
        await draw.map(range(20), at_once=20)

    run = await film.submit()
    async with app.worker():
        await until(lambda: len(failed) == 20)

        async def all_told():
            status = await run.status()
            return status if status.retrying is not None and status.retrying.others == 19 else None

        status = await until(all_told)
        assert status.retrying.step == f"draw#{failed[-1]}"
        assert len(status.retrying.error) == SHORT_CHARACTERS
        assert "and 19 more are being retried" in str(status)


async def test_a_step_that_succeeds_in_the_end_is_no_longer_told_as_tried_again(app):
    go = threading.Event()
    left = [1]

    @step(name="draw", retries=AT_ONCE_RETRY)
    async def draw() -> None:
        left[0] -= 1
        if left[0] == 0:
            raise ProviderError("429")
        while not go.is_set():  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    @step(name="cut")
    async def cut() -> None:
        await asyncio.sleep(30)

    @app.job
    async def film() -> None:
        await draw()
        await cut()

    run = await film.submit()
    async with app.worker():
        status = await told(run)
        assert "try 2 of 4 of draw#" in str(status)
        assert status.retry_ms == 0
        assert "next try" not in str(status)  # it runs
        go.set()

        async def over():
            status = await run.status()
            return status.stage == "cut" and status.retrying is None

        await until(over)


async def test_a_step_that_is_never_tried_again_is_not_told_as_such(app, caplog):
    @step(name="draw", retries=Retry(retries=3, never=("ValueError",)))
    async def draw() -> None:
        raise ValueError("no")

    @app.job(retries=0)
    async def film() -> None:
        await draw()

    run = await film.submit()
    await finished(app, run)
    assert not any("next try" in line for line in lines_of(caplog))
    (record,) = [one for one in await app.engine.steps(run.id) if one.name == "draw"]
    assert record.tries == 1


async def test_an_attempt_that_failed_is_logged_with_its_number_and_when_the_next_one_comes(app, caplog):
    @app.job(retries=Retry(retries=2, strategy="constant", initial_ms=60_000, jitter=False))
    async def film() -> None:
        raise ProviderError("429 Too Many Requests")

    run = await film.submit()
    async with app.worker():
        await in_state(app, run, State.RETRYABLE)
    (line,) = [line for line in lines_of(caplog) if run.id in line]
    assert re.match(rf"job {run.id} \(film\) failed after \d+ ms \(attempt 1 of 3\): ", line)
    assert re.search(r"ProviderError: 429 Too Many Requests \(.*:\d+ in film\); next attempt in 1 min$", line)
    assert (await entry_of(run, "fail")).note["attempt"] == 1  # type: ignore[arg-type]


class RunningBefore(msgspec.Struct):
    """What an older program reads of a beat."""

    job: str
    epoch: int


class PresenceBefore(msgspec.Struct):
    worker: str
    running: tuple[RunningBefore, ...]


def test_beats_are_read_across_versions():
    ours = Presence(worker="w-1", running=(Running("j", 1, retrying=Retrying("draw#1", 2, 4, "E", 5)),))
    theirs = PresenceBefore("w-1", (RunningBefore("j", 1),))
    assert msgspec.json.decode(msgspec.json.encode(ours), type=PresenceBefore) == theirs
    assert msgspec.json.decode(msgspec.json.encode(theirs), type=Presence).running == (Running("j", 1),)
