"""An App in memory: time passes when the test says so, for blocking tests and async ones; its own store is left."""

import asyncio
import subprocess
import sys
import time

import pytest

from holdfast import App, ask, current, sleep, step, wait_for
from holdfast.core.errors import WrongColour
from holdfast.core.model import State
from holdfast.jobs.service import JobRequest
from holdfast.testing import in_memory

app = App("sqlite:////no/such/folder/jobs.db")
woken: list[int] = []


@pytest.fixture(autouse=True)
def fresh():
    woken.clear()


@step
async def write(topic: str) -> str:
    return f"all about {topic}"


@app.job
async def remind(days: int) -> str:
    for day in range(days):
        woken.append(day)
        await sleep("1d")
    return await write("kelp")


@app.job
async def approve() -> str:
    try:
        return await wait_for("approved", as_=str, within="2d")
    except TimeoutError:
        return "nobody answered"


@app.job
async def both() -> list[object]:
    return await asyncio.gather(sleep("3h"), ask("go on?", form=str))


@app.job(retries=1, queue="slow")
def fragile() -> str:
    if current().attempt == 1:
        raise RuntimeError("the first attempt")
    return "the second"


def test_a_day_takes_no_time_in_a_blocking_test():
    began = time.monotonic()
    with in_memory(app) as test:
        run = app.sync.submit(remind, 1)
        test.idle()
        assert run.status().state is State.SCHEDULED
        test.advance("23h")
        assert run.status().state is State.SCHEDULED
        test.advance("1h")
        assert run.status().state is State.COMPLETED
        assert run.result() == "all about kelp"
    assert time.monotonic() - began < 10


def test_what_is_due_on_the_way_happens_one_by_one():
    with in_memory(app) as test:
        run = app.sync.submit(remind, 5)
        test.advance("73h")
        assert woken == [0, *range(2), *range(3), *range(4)], "its code runs again from the top after each wait"
        test.advance("2d")
        assert run.status().state is State.COMPLETED


def test_the_same_in_an_async_test():
    async def main() -> None:
        async with in_memory(app) as test:
            run = await remind.submit(1)
            await test.advance("1d")
            assert await run.result(timeout=5) == "all about kelp"

    asyncio.run(main())


def test_a_wait_that_nobody_answers_is_over_in_its_time():
    with in_memory(app) as test:
        answered, forgotten = app.sync.submit(approve), app.sync.submit(approve)
        test.idle()
        answered.signal("approved", "yes")
        test.advance("47h")
        assert forgotten.status().state is State.PENDING
        test.advance("1h")
        assert (answered.result(), forgotten.result()) == ("yes", "nobody answered")


def test_waits_in_gather_need_no_second_each():
    began = time.monotonic()
    with in_memory(app) as test:
        run = app.sync.submit(both)
        test.idle()
        (question,) = app.sync.call(app.jobs.questions())
        app.sync.call(app.jobs.answer(run.id, "yes", name=question.name))
        test.advance("3h")
        assert run.result(timeout=5) == [None, "yes"]
    assert time.monotonic() - began < 5


def test_a_retry_comes_after_its_backoff_and_a_def_job_runs_too():
    with in_memory(app) as test:
        run = app.sync.submit(fragile)
        test.idle()
        assert run.status().state is State.RETRYABLE
        test.advance("10m")
        assert run.result() == "the second"


def test_a_job_expires_when_its_time_is_over():
    with in_memory(app) as test:
        run = app.sync.submit(remind, 1, delay="2h", expires="1h")
        test.advance("61m")
        assert run.status().state is State.DISCARDED


def test_many_small_advances_make_no_worker_look_dead():
    with in_memory(app) as test:
        run = app.sync.submit(remind, 1)
        for _ in range(20):
            test.advance("10s")
        test.advance("1d")
        assert run.result() == "all about kelp"
        assert [entry.event for entry in run.history()].count("lapse") == 0


def test_the_apps_own_store_is_put_back_as_it_was(tmp_path):
    own = App(f"sqlite:///{tmp_path / 'jobs.db'}")

    @own.job
    async def greet() -> str:
        return "hello"

    first = own.sync.submit(greet)
    with in_memory(own):
        assert own.place() == "memory:"
        assert own.sync.submit(greet).result(timeout=5) == "hello"
    assert own.sync.run(first.id).status().state is State.AVAILABLE
    assert own.place() == str(tmp_path / "jobs.db")
    own.sync.call(own.close())


def test_the_blocking_form_in_async_code_names_the_other():
    async def main() -> None:
        with pytest.raises(WrongColour, match="await the async call"), in_memory(app):
            pass

    asyncio.run(main())
    assert app.place() != "memory:"


def test_what_never_ends_is_told_with_its_name():
    @app.job(name="endless")
    async def endless() -> None:
        await asyncio.sleep(60)

    with in_memory(app) as test:
        app.sync.submit(endless)
        with pytest.raises(TimeoutError, match=r"still not idle after 50ms: job .* \(endless\)"):
            test.idle("50ms")


def test_it_needs_no_pytest():
    code = "import sys, holdfast.testing; sys.exit('pytest' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


async def paused_and_advanced() -> list[State]:
    async with in_memory(app) as test:
        await app.jobs.pause("slow")
        held = await fragile.submit()
        awake = await remind.submit(1)
        await test.advance("2d")
        return [(await app.jobs.get(run.id)).state for run in (held, awake)]


def test_time_passes_while_a_job_waits_in_a_paused_queue():
    assert asyncio.run(paused_and_advanced()) == [State.AVAILABLE, State.COMPLETED]


async def foreign_and_advanced() -> list[State]:
    async with in_memory(app) as test:
        (foreign,) = await app.jobs.submit([JobRequest(type="elsewhere.made")])
        awake = await remind.submit(1)
        await test.advance("2d")
        return [(await app.jobs.get(id)).state for id in (foreign.id, awake.id)]


def test_a_job_that_the_app_does_not_know_waits_and_holds_up_nothing():
    assert asyncio.run(foreign_and_advanced()) == [State.AVAILABLE, State.COMPLETED]
