"""Steps in processes of their own, inside jobs: a crash is the step's failure, and the worker lives."""

import os
import signal
import time

import pytest

from holdfast import step
from holdfast.core.errors import Invalid
from holdfast.core.model import State
from tests.support.given import at_pace, finished, in_state, until


@step(isolate="process")
def double(n: int) -> int:
    return n * 2


@step(isolate="process")
async def where() -> int:
    return os.getpid()


@step(isolate="process")
def crash() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


@step(isolate="process", timeout="500ms")
def never() -> None:
    while True:
        sum(range(10**7))


@step(isolate="process")
def linger() -> None:
    time.sleep(60)


async def test_isolated_steps_run_elsewhere_and_are_recorded(app):
    @app.job
    async def film() -> list[int]:
        return [await where(), *await double.aio.map([1, 2])]

    run = await film.submit()
    job = await finished(app, run)
    assert job.state is State.COMPLETED, job.error
    pid, *doubled = await run.result()
    assert pid != os.getpid()
    assert doubled == [2, 4]


async def test_a_crash_fails_the_step_and_nothing_else(app):
    @app.job(retries=0)
    def film() -> None:
        crash()

    @app.job
    async def other() -> int:
        return await double.aio(21)

    run, beside = await film.submit(), await other.submit()
    async with app.worker():
        job = await in_state(app, run, State.REVIEW)
        assert await beside.result(20) == 42
    assert "its process died with SIGSEGV" in job.error.message


async def test_a_timeout_kills_what_never_ends(app):
    @app.job(retries=0)
    async def film() -> None:
        await never.aio()

    run = await film.submit()
    job = await finished(app, run)
    assert "took longer than its timeout of 500 ms and was killed" in job.error.message


async def test_cancelling_kills_the_process(app):
    @app.job
    async def film() -> None:
        await linger.aio()

    run = await film.submit()
    async with app.worker() as worker:
        await in_state(app, run, State.ACTIVE)
        await until(lambda: worker._pool._busy)
        began = time.monotonic()
        await run.cancel()
        await until(lambda: not worker._pool._busy)
        assert time.monotonic() - began < at_pace(2)


def test_what_can_not_be_isolated_is_refused_at_decoration():
    def nested() -> None: ...

    with pytest.raises(Invalid, match="nested"):
        step(name="nested", isolate="process")(nested)
    with pytest.raises(Invalid, match="isolate='thread' is unknown"):
        step(name="nested", isolate="thread")(nested)  # type: ignore[call-overload]
    with pytest.raises(Invalid, match="memory_mb"):
        step(name="nested", memory_mb=100)(nested)
