"""Transactional steps on Postgres: in both colours, on many machines, killed or stopped at each moment."""

import asyncio
import os
import signal
import time
from contextlib import nullcontext, suppress

import asyncpg
import pytest

from holdfast import current, step, tx
from holdfast.core.errors import Invalid, ItemsFailed
from holdfast.core.model import State, StepState
from holdfast.engines.postgres.url import parse_url
from tests.support.given import AT_ONCE_RETRY, at_pace, finished, in_state, undone, until
from tests.worker.ledger import Stage, ledger, sql

ENGINES = ("postgres",)
TROUBLE: list[BaseException] = []
RAN: list[object] = []


@pytest.fixture(autouse=True)
def fresh():
    TROUBLE.clear()
    RAN.clear()


@pytest.fixture
def table(postgres_store):
    """A table of the user's own in the store's database, by the address of that."""
    dsn = parse_url(postgres_store).dsn
    sql(dsn, "drop table if exists ledger")
    sql(dsn, "create table ledger (n integer, step text, epoch integer)")
    yield dsn
    sql(dsn, "drop table ledger")


async def pay_in_async(n: int) -> int:
    RAN.append(n)
    await tx().execute("insert into ledger values ($1, $2, $3)", n, current().step, current().epoch)
    if TROUBLE:
        raise TROUBLE.pop()
    return await tx().fetchval("select count(*) from ledger")


pay = step(name="pay_in_async", effect="transaction")(pay_in_async)


# Async steps.


@pytest.mark.parametrize("colour", ["async", "def"])
async def test_an_async_step_and_its_record_are_there_together(app, table, colour):
    if colour == "async":

        @app.job
        async def order() -> list[int]:
            return [await pay(1), await pay(2), *await pay.map([3, 4], at_once=1)]
    else:

        @app.job
        def order() -> list[int]:
            return [pay.sync(1), pay.sync(2), *pay.sync.map([3, 4], at_once=1)]

    run = await order.submit()
    assert (await finished(app, run)).result == "[1,2,3,4]"
    assert ledger(table) == [1, 2, 3, 4]
    steps = [one for one in await app.engine.steps(run.id) if not one.path.startswith("~")]
    assert [(one.state, one.result) for one in steps] == [(StepState.DONE, str(n)) for n in (1, 2, 3, 4)]
    assert sql(table, "select step from ledger") == [(one.path,) for one in steps]


async def test_an_error_takes_back_an_async_step_and_retries_begin_anew(app, table):
    TROUBLE.extend([ValueError("1"), ValueError("2")])

    @app.job
    async def order() -> int:
        return await step(name="again", effect="transaction", retries=AT_ONCE_RETRY)(pay_in_async)(1)

    assert (await finished(app, await order.submit())).result == "1"
    assert (RAN, ledger(table)) == ([1, 1, 1], [1])


async def test_an_async_undo_is_a_transaction_too(app, table):
    here = asyncio.Event()

    async def refund(paid: int | None) -> None:
        await tx().execute("insert into ledger values ($1, $2, 0)", -1, current().step)

    buy = step(name="buy", effect="transaction", undo=refund)(pay_in_async)

    @app.job
    async def order() -> None:
        await buy(1)
        here.set()
        await asyncio.sleep(30)

    run = await order.submit()
    async with app.worker():
        await here.wait()
        await run.cancel()
        await undone(app, run, State.COMPLETED)
    assert ledger(table) == [1, -1]


async def test_a_timeout_stops_an_async_step_in_mid_statement_and_takes_it_back(app, table):
    @step(name="slow", effect="transaction", timeout="200ms")
    async def slow() -> None:
        await pay_in_async(1)
        await tx().execute("select pg_sleep(20)")

    @app.job(retries=0)
    async def order() -> None:
        await slow()

    began = time.monotonic()
    job = await finished(app, await order.submit())
    assert (job.error.type, ledger(table)) == ("TimeoutError", [])
    assert "took longer than its timeout of 200 ms" in job.error.message
    assert time.monotonic() - began < at_pace(10)


async def test_tx_gives_the_colour_of_the_code_that_asks(app, table):
    """An async step may do a part of its work in a thread, with the same transaction."""

    @step(name="both", effect="transaction")
    async def both() -> int:
        await tx().execute("insert into ledger (n) values (1)")
        await asyncio.to_thread(lambda: tx().execute("insert into ledger (n) values ($1)", (2,)))
        return await tx().fetchval("select count(*) from ledger")

    @app.job
    async def order() -> int:
        return await both()

    assert (await finished(app, await order.submit())).result == "2"
    assert ledger(table) == [1, 2]


@pytest.mark.parametrize("what", ["a step", "a map", "a submit"])
async def test_what_belongs_into_the_job_is_refused_inside_async_code_too(app, table, what):
    @app.job
    async def child() -> None: ...

    bodies = {"a step": lambda: pay(1), "a map": lambda: pay.map([1]), "a submit": child.submit}

    @step(name="odd", effect="transaction")
    async def odd() -> None:
        await pay_in_async(1)
        with pytest.raises((Invalid, ItemsFailed), match="inside a transaction would wait for itself"):
            await bodies[what]()
        raise ValueError("enough")

    @app.job(retries=0)
    async def order() -> None:
        await odd()

    assert (await finished(app, await order.submit())).error.message == "enough"
    assert ledger(table) == []


async def test_a_database_error_is_raised_as_it_is_and_a_broken_line_is_a_failed_try(app, table):
    sql(table, "create unique index once on ledger (n)")
    kill = [True]

    @step(name="cut_off", effect="transaction", retries=AT_ONCE_RETRY)
    async def cut_off(n: int) -> int:
        await pay_in_async(n)
        if kill and kill.pop():
            await tx().execute("select pg_terminate_backend(pg_backend_pid())")
        return n

    @app.job(retries=0)
    async def order() -> int:
        with pytest.raises(asyncpg.UniqueViolationError):
            await pay(await cut_off(1))
        return 1

    run = await order.submit()
    assert (await finished(app, run)).result == "1"
    assert RAN == [1, 1, 1], "cut off, again, and the one that failed"
    assert ledger(table) == [1]
    (record,) = [one for one in await app.engine.steps(run.id) if one.name == "cut_off"]
    assert record.tries == 2


@pytest.mark.parametrize("how", ["told", "swallowed", "def", "idle"])
async def test_a_session_that_the_server_ends_each_time_costs_the_step_s_tries_and_no_more(app, table, caplog, how):
    ended = "select pg_terminate_backend(pg_backend_pid())"

    @step(name="heavy", effect="transaction", retries=AT_ONCE_RETRY)
    async def heavy(n: int) -> int:
        await pay_in_async(n)
        if how == "idle":
            await tx().execute("set local idle_in_transaction_session_timeout = '50ms'")
            await asyncio.sleep(0.5)  # the server's clock: the body itself ends well
            return n
        with suppress(asyncpg.PostgresError) if how == "swallowed" else nullcontext():
            await tx().execute(ended)
        return n

    @step(name="heavy_def", effect="transaction", retries=AT_ONCE_RETRY)
    def heavy_def(n: int) -> int:
        RAN.append(n)
        tx().execute(ended)
        return n

    @app.job(retries=0)
    async def order() -> int:
        return await (heavy_def.aio(1) if how == "def" else heavy(1))

    run = await order.submit()
    job = await finished(app, run)
    assert job.state is State.REVIEW
    assert "can't be reached" in job.error.message
    assert (RAN, ledger(table)) == ([1, 1, 1, 1], [])
    (record,) = [one for one in await app.engine.steps(run.id) if not one.path.startswith("~")]
    assert (record.state, record.tries) == (StepState.FAILED, 4)
    assert [n for n in (1, 2, 3) if f"failed (try {n} of 4): StoreError" in caplog.text] == [1, 2, 3]


async def test_what_a_step_touches_of_ours_fails_it_once(app, table, postgres_store):
    schema = parse_url(postgres_store).schema

    @step(name="odd", effect="transaction", retries=AT_ONCE_RETRY)
    def odd() -> None:
        RAN.append(1)
        tx().execute(f'update "{schema}".job set priority = 9')

    @app.job(retries=0)
    async def order() -> None:
        await odd.aio()

    job = await finished(app, await order.submit())
    assert (job.state, job.priority, RAN) == (State.REVIEW, 0, [1])
    assert job.error.message.startswith("step odd: job")
    assert "is Holdfast's own" in job.error.message


async def test_a_cancel_reaches_an_async_step_in_mid_statement(app, table):
    @step(name="late", effect="transaction")
    async def late() -> None:
        await pay_in_async(1)
        await tx().execute("select pg_sleep(20)")

    @app.job
    async def order() -> None:
        await late()

    run = await order.submit()
    began = time.monotonic()
    async with app.worker():
        await until(lambda: RAN)
        await run.cancel()
        await in_state(app, run, State.CANCELLED)
    assert time.monotonic() - began < at_pace(8), "neither the cancel nor the worker's end waited for the statement"
    assert ledger(table) == []
    assert await app.engine.steps(run.id) == []


# Real processes, killed or stopped at each moment.

PROGRAM = """
import asyncio, os, signal, sys, time
from pathlib import Path
import asyncpg
from holdfast import App, Settings, current, step, tx
from holdfast.core import lifecycle
lifecycle.RECOVERY_BACKOFF_MS = 100

app = App(settings=Settings(
    beat_seconds=0.2, lease_seconds=1.0, look_seconds=0.1, upkeep_seconds=0.2, grace_seconds=0.3))
MOMENT = os.environ.get("DIE", "never")
HOW = getattr(signal, os.environ.get("HOW", "SIGKILL"))

def moment(name):
    if name == MOMENT and not os.path.exists("died"):
        Path("died").touch()
        os.kill(os.getpid(), HOW)
        time.sleep(0.5)  # the signal may meet another thread first: this one must not run on meanwhile

execute = asyncpg.Connection.execute
async def watched(self, query, *args, **options):
    if query == "commit;":
        moment("between record and commit")
    answer = await execute(self, query, *args, **options)
    if query == "commit;":
        moment("after the commit")
    return answer
asyncpg.Connection.execute = watched

@step(effect="transaction")
async def pay(n: int) -> int:
    moment("before the effect")
    await tx().execute("insert into ledger values ($1, $2, $3)", n, current().step, current().epoch)
    moment("between effect and record")
    return n

@step(effect="transaction")
def pay_in_def(n: int) -> int:
    moment("before the effect")
    tx().execute("insert into ledger values ($1, $2, $3)", (n, current().step, current().epoch))
    moment("between effect and record")
    return n

@app.job
async def order_async() -> int:
    return await pay(7)

@app.job
def order_def() -> int:
    return pay_in_def(7)

@app.job
async def many(start: int, count: int) -> int:
    return sum(await pay.map(range(start, start + count), at_once=4))

if __name__ == "__main__":
    from holdfast.cli.worker_process import run_worker
    asyncio.run(run_worker(app, None, 8))
"""

MOMENTS = [
    ("before the effect", 2),
    ("between effect and record", 2),
    ("between record and commit", 2),
    ("after the commit", 1),
]


@pytest.fixture
def stage(tmp_path, table, postgres_store):
    return Stage(tmp_path, PROGRAM, postgres_store)


@pytest.mark.parametrize("colour", ["async", "def"])
@pytest.mark.parametrize(("moment", "epoch"), MOMENTS)
async def test_a_process_that_dies_at_any_moment_leaves_exactly_one_effect(stage, table, moment, epoch, colour):
    try:
        run = await stage.submit(f"order_{colour}")
        victim = stage.worker(DIE=moment)
        assert await asyncio.to_thread(victim.wait, 20) != 0
        stage.worker()
        assert await run.result(20) == 7
        assert sql(table, "select n, epoch from ledger") == [(7, epoch)]
        assert [entry.event for entry in await run.history()].count("lapse") == 1
    finally:
        await stage.end()


@pytest.mark.parametrize(("moment", "epoch"), MOMENTS)
async def test_a_worker_that_is_stopped_at_any_moment_holds_up_nobody_and_writes_nothing_twice(
    stage, table, moment, epoch
):
    """It sleeps in the middle of its transaction, while another worker does its job; then it goes on."""
    try:
        run = await stage.submit("order_async")
        zombie = stage.worker(DIE=moment, HOW="SIGSTOP")
        await asyncio.to_thread(os.waitid, os.P_PID, zombie.pid, os.WSTOPPED | os.WNOWAIT)
        stage.worker()
        began = time.monotonic()
        assert await run.result(20) == 7
        assert time.monotonic() - began < at_pace(15), "where it holds the job's row, the server soon ends its session"
        zombie.send_signal(signal.SIGCONT)
        zombie.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(zombie.wait, 20) == 0
        assert sql(table, "select n, epoch from ledger") == [(7, epoch)]
    finally:
        await stage.end()


async def test_two_processes_that_are_killed_again_and_again_write_each_effect_once(stage, table, rounds):
    count = 40
    try:
        runs = [await stage.submit("many", start, count) for start in range(0, 4 * count, count)]
        stage.worker(), stage.worker()
        for n in range(rounds(3, 20)):
            seen = len(ledger(table))
            await until(lambda seen=seen: len(ledger(table)) > seen or len(ledger(table)) == 4 * count, 20)
            stage.workers[n].send_signal(signal.SIGKILL)
            await asyncio.to_thread(stage.worker)
        for run in runs:
            await run.result(45)
        assert sorted(ledger(table)) == list(range(4 * count)), "each once, none twice, none lost"
    finally:
        await stage.end()
