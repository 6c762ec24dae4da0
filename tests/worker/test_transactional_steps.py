"""Transactional steps: the effect and its record are one transaction, so each effect is there exactly once."""

import asyncio
import itertools
import os
import re
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast import App, HoldfastError, current, progress, sleep, step, tx, wait_for
from holdfast.core.errors import Invalid, StoreBusy, StoreError
from holdfast.core.lifecycle import decide
from holdfast.core.model import Event, State, StepState
from holdfast.engines.postgres import transactions as on_postgres
from holdfast.engines.postgres.guard import Blocking
from holdfast.engines.postgres.url import parse_url
from holdfast.engines.sqlite import SqliteEngine
from holdfast.engines.sqlite import transactions as on_sqlite
from holdfast.worker.transactions import BUSY_TRIES
from tests.support.given import AT_ONCE_RETRY, QUICK, finished, in_state, paths, undone, until
from tests.worker.ledger import Stage, ledger, sql
from tests.worker.sql_trace import AROUND, CALM, Trace, calm

ENGINES = ("sqlite", "postgres")
ROOT = Path(__file__).parents[2]
TROUBLE: list[BaseException] = []
RAN: list[object] = []


@pytest.fixture(autouse=True)
def fresh():
    TROUBLE.clear()
    RAN.clear()


@pytest.fixture
def path(tmp_path, engine, request):
    """Where the user's own table is: in the store's file, or in its database."""
    if isinstance(engine.engine, SqliteEngine):
        yield tmp_path / "jobs.db"
    else:
        dsn = parse_url(request.getfixturevalue("postgres_store")).dsn
        yield dsn
        sql(dsn, "drop table if exists ledger")


def write(statement, *params):
    """A statement of a body's, for whichever store it runs on."""
    db = tx()
    if isinstance(db, Blocking):
        numbers = itertools.count(1)
        statement = re.sub(r"\?", lambda _: f"${next(numbers)}", statement)
    return db.execute(statement, params)


async def with_table(app, path):
    """The user's own table, beside ours."""
    await app.open()
    sql(path, "create table ledger (n integer, step text, epoch integer)")


@step(name="pay", effect="transaction")
def pay(n: int) -> int:
    RAN.append(n)
    write("insert into ledger values (?, ?, ?)", n, current().step, current().epoch)
    if TROUBLE:
        raise TROUBLE.pop()
    return tx().execute("select count(*) from ledger").fetchone()[0]


# What it is.


@pytest.mark.parametrize("colour", ["async", "def"])
async def test_the_effect_and_its_record_are_there_together_and_answer_like_any_step(app, path, colour):
    await with_table(app, path)
    if colour == "async":

        @app.job
        async def order() -> list[int]:
            return [await pay.aio(1), await pay.aio(2), await pay.aio(1)]
    else:

        @app.job
        def order() -> list[int]:
            return [pay(1), pay(2), pay(1)]

    run = await order.submit()
    assert (await finished(app, run)).result == "[1,2,3]"
    assert ledger(path) == [1, 2, 1]
    steps = [one for one in await app.engine.steps(run.id) if not one.path.startswith("~")]
    assert [(one.name, one.state, one.result) for one in steps] == [("pay", StepState.DONE, str(n)) for n in (1, 2, 3)]
    assert sql(path, "select step from ledger") == [(one.path,) for one in steps]


async def test_a_recorded_one_is_not_run_again(app, path, interrupted):
    await with_table(app, path)

    @app.job(name="job")
    async def order() -> int:
        paid = await pay.aio(1)
        await interrupted.point()
        return paid

    run = await order.submit()
    assert (await interrupted.between(run)).result == "1"
    assert (RAN, ledger(path)) == ([1], [1])


async def test_an_error_takes_back_the_effect_and_is_recorded_as_any_step_s(app, path):
    await with_table(app, path)
    TROUBLE.append(ValueError("no funds"))

    @app.job(retries=0)
    async def order() -> int:
        return await pay.aio(1)

    run = await order.submit()
    job = await finished(app, run)
    assert (job.state, job.error.type, job.error.message) == (State.REVIEW, "ValueError", "no funds")
    assert ledger(path) == []
    assert [one.state for one in await app.engine.steps(run.id)] == [StepState.FAILED]
    await run.replay()
    assert (await finished(app, run)).state is State.COMPLETED
    assert ledger(path) == [1]


async def test_a_try_that_failed_leaves_nothing_for_the_next_one(app, path):
    await with_table(app, path)
    TROUBLE.extend([ValueError("1"), ValueError("2")])

    @step(name="pay_again", effect="transaction", retries=AT_ONCE_RETRY)
    def pay_again(n: int) -> int:
        return pay.spec.function(n)

    @app.job
    async def order() -> int:
        return await pay_again.aio(1)

    run = await order.submit()
    assert (await finished(app, run)).result == "1"
    assert (RAN, ledger(path)) == ([1, 1, 1], [1])


async def test_inside_a_step_that_is_tried_again_it_is_committed_once_and_one_that_failed_runs_again(app, path):
    await with_table(app, path)
    TROUBLE.append(ValueError("no funds yet"))
    tries = []

    @step(name="outer", retries=AT_ONCE_RETRY)
    async def outer() -> list[int]:
        tries.append(1)
        paid = [await pay.aio(1), await pay.aio(2)]
        if len(tries) < 3:
            raise ConnectionError("429")
        return paid

    @app.job(retries=0)
    async def order() -> list[int]:
        return await outer()

    run = await order.submit()
    assert (await finished(app, run)).result == "[1,2]"
    assert len(tries) == 3
    assert (RAN, ledger(path)) == ([1, 1, 2], [1, 2])


@pytest.mark.parametrize("colour", ["async", "def"])
async def test_items_of_a_map_are_transactions_of_their_own(app, path, colour):
    await with_table(app, path)

    @step(name="pay_even", effect="transaction")
    def pay_even(n: int) -> int:
        pay.spec.function(n)
        if n % 2:
            raise ValueError(n)
        return n

    if colour == "async":

        @app.job(retries=0)
        async def order() -> list[int | None]:
            return await pay_even.aio.map(range(20), need=5)
    else:

        @app.job(retries=0)
        def order() -> list[int | None]:
            return pay_even.map(range(20), need=5)

    run = await order.submit()
    job = await finished(app, run)
    assert job.result == "[" + ",".join(str(n) if n % 2 == 0 else "null" for n in range(20)) + "]"
    assert sorted(ledger(path)) == list(range(0, 20, 2))


async def test_a_key_names_it_as_any_step(app, path):
    await with_table(app, path)

    @step(name="pay_order", effect="transaction", key=lambda n: f"order-{n}")
    def pay_order(n: int) -> int:
        return pay.spec.function(n)

    @app.job
    async def order() -> list[int]:
        return [await pay_order.aio(7), await pay_order.aio(7)]

    run = await order.submit()
    assert (await finished(app, run)).result == "[1,2]"
    assert await paths(app, run) == ["pay_order#order-7", "pay_order#order-7#2"]
    assert [one.path for one in await app.engine.steps(run.id) if one.path.startswith("~")] == [
        "~args/pay_order#order-7",
        "~args/pay_order#order-7#2",
    ]


async def test_a_value_that_can_t_be_stored_takes_back_the_effect(app, path):
    await with_table(app, path)

    @step(name="pay_oddly", effect="transaction")
    def pay_oddly(n: int) -> object:
        pay.spec.function(n)
        return object()

    @app.job(retries=0)
    async def order() -> None:
        await pay_oddly.aio(1)

    job = await finished(app, await order.submit())
    assert (job.state, RAN, ledger(path)) == (State.REVIEW, [1], [])


async def test_progress_and_log_lines_work_inside(app, path):
    await with_table(app, path)

    @step(name="talk", effect="transaction")
    def talk() -> str:
        progress(1, 2, "half")
        return current().idempotency_key

    @app.job
    async def order() -> str:
        return await talk.aio()

    assert len((await finished(app, await order.submit())).result) > 10  # type: ignore[arg-type]


# Undo: with the record comes what there is to undo, and the undo is a transaction too.


def refund(paid: int | None) -> None:
    RAN.append(("refund", paid))
    write("insert into ledger values (?, ?, 0)", -1, current().step)


@step(name="pay_back", effect="transaction", undo=refund)
def pay_back(n: int) -> int:
    return pay.spec.function(n)


async def test_what_was_written_is_undone_in_a_transaction_and_what_was_not_never(app, path):
    await with_table(app, path)
    here = asyncio.Event()

    @app.job
    async def order() -> None:
        await pay_back.aio(1)
        TROUBLE.append(ValueError("no"))
        try:
            await pay_back.aio(2)
        except ValueError:
            here.set()
        await asyncio.sleep(30)

    run = await order.submit()
    async with app.worker():
        await here.wait()
        assert app.engine.calls["transact"] == 2
        await run.cancel()
        await undone(app, run, State.COMPLETED)
    assert [one for one in RAN if isinstance(one, tuple)] == [("refund", 1)], "never with a doubt"
    assert ledger(path) == [1, -1]
    ((of, _),) = sql(path, "select step, n from ledger where n = -1")
    assert of.startswith("pay_back#"), "the undo has the key of what it undoes"


async def test_an_undo_that_fails_is_taken_back_and_tried_again(app, path, monkeypatch):
    await with_table(app, path)
    here = asyncio.Event()
    monkeypatch.setattr("holdfast.worker.undo._TRANSACTION", _hasty())

    def refund_at_last(paid: int | None) -> None:
        refund(paid)
        if TROUBLE:
            raise TROUBLE.pop()

    @step(name="pay_at_last", effect="transaction", undo=refund_at_last)
    def pay_at_last(n: int) -> int:
        return pay.spec.function(n)

    @app.job
    async def order() -> None:
        await pay_at_last.aio(1)
        TROUBLE.append(ConnectionError("once"))
        here.set()
        await asyncio.sleep(30)

    run = await order.submit()
    async with app.worker():
        await here.wait()
        await run.cancel()
        await undone(app, run, State.COMPLETED)
    assert [one for one in RAN if isinstance(one, tuple)] == [("refund", 1)] * 2
    assert ledger(path) == [1, -1]


def _hasty():
    from msgspec.structs import replace

    from holdfast.worker.undo import _TRANSACTION

    return replace(_TRANSACTION, retry=AT_ONCE_RETRY)


# Refusals.


async def refused(app, path, body, **options):
    """What a transactional step with this body is told; its job's own error."""
    await with_table(app, path)

    @step(name="odd", effect="transaction", **options)
    def odd() -> None:
        tx().execute("insert into ledger values (1, '', 1)")
        body()

    @app.job(retries=0)
    async def order() -> None:
        await odd.aio()

    job = await finished(app, await order.submit())
    assert job.state is State.REVIEW
    assert ledger(path) == []
    return job.error


@step(name="plain")
def plain() -> int:
    return 1


@step(name="plain_async")
async def plain_async() -> int:
    return 1


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("a step", "another step inside a transaction would wait for itself"),
        ("an async step", "another step inside a transaction would wait for itself"),
        ("a map", "another step inside a transaction"),
        ("an async map", "a call that the store answers inside a transaction"),
        ("itself", "another step inside a transaction"),
        ("a sleep", "a call that the store answers inside a transaction"),
        ("a signal", "a call that the store answers inside a transaction"),
        ("a submit", "a call that the store answers inside a transaction"),
        ("an async submit", "submitting a job inside a transaction"),
        ("a status", "a call that the store answers inside a transaction"),
    ],
)
async def test_what_would_wait_for_the_store_is_refused_inside(app, path, what, words):
    @app.job
    async def child() -> None: ...

    bodies = {
        "a step": plain,
        "an async step": plain_async.sync,
        "a map": lambda: pay.map([1]),
        "an async map": lambda: plain_async.sync.map([()]),  # type: ignore[misc,arg-type]
        "itself": lambda: pay(1),
        "a sleep": lambda: sleep.sync(1),
        "a signal": lambda: wait_for.sync("go"),
        "a submit": lambda: app.sync.submit(child),
        "an async submit": lambda: asyncio.run(child.submit()),
        "a status": lambda: app.sync.run("x"),
    }
    began = time.monotonic()

    error = await refused(app, path, bodies[what])

    assert error.type.endswith(("Invalid", "ItemsFailed")), error
    assert words in error.message
    assert time.monotonic() - began < on_sqlite.LIMIT_SECONDS, "nobody waited for the limit"


async def test_a_refusal_is_not_tried_again(app, path):
    error = await refused(app, path, lambda: tx().execute("commit"), retries=AT_ONCE_RETRY)
    assert error.message.startswith("tx(): ")


async def test_tx_is_only_there_inside_a_transactional_step(app, path):
    said = []

    @step(name="other")
    def other() -> None:
        with pytest.raises(Invalid) as caught:
            tx()
        said.append(str(caught.value))

    @app.job
    async def order() -> None:
        await other.aio()
        with pytest.raises(Invalid, match="outside a transaction"):
            tx()

    assert (await finished(app, await order.submit())).state is State.COMPLETED
    assert said == [
        "tx() was called outside a transaction; call it in a step with effect='transaction' of a submitted job"
    ]
    with pytest.raises(Invalid, match="outside a transaction"):
        pay(1)


async def test_a_connection_that_was_kept_is_dead_after_the_step(app, path):
    await with_table(app, path)
    kept = []

    @step(name="keep", effect="transaction")
    def keep() -> None:
        kept.append(tx())
        kept.append(threading.Thread(target=current().bind(lambda: kept.append(later()))))

    def later():
        try:
            return tx().execute("insert into ledger values (1, '', 1)")
        except HoldfastError as error:
            return error

    @app.job
    async def order() -> None:
        await keep.aio()
        with pytest.raises(Invalid, match="the step and its transaction have ended"):
            kept[0].execute("insert into ledger values (1, '', 1)")
        kept[1].start()
        kept[1].join(10)

    assert (await finished(app, await order.submit())).state is State.COMPLETED
    assert "the step and its transaction have ended" in str(kept[2])
    assert ledger(path) == []


@pytest.mark.parametrize("engine", ["sqlite"], indirect=True)
async def test_an_async_step_is_refused_where_one_writer_would_wait_for_it(app, path):
    await app.open()

    @step(name="pay_later", effect="transaction")
    async def pay_later() -> None:
        RAN.append("ran")

    @app.job(retries=0)
    async def order() -> None:
        await pay_later()

    job = await finished(app, await order.submit())
    assert (job.state, RAN) == (State.REVIEW, [])
    assert job.error.message == (
        "step pay_later: on sqlite a transaction blocks the only writer, which must not wait for async code; "
        "make it a def step"
    )


@pytest.mark.parametrize("url", ["memory:", "file:checkpoint.json"])
async def test_a_store_without_transactions_says_what_to_use_instead(url, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    app = App(url, settings=QUICK)

    @app.job(retries=0)
    async def order() -> None:
        await pay.aio(1)

    job = await finished(app, await order.submit())
    await app.close()
    name = url.partition(":")[0]
    assert RAN == []
    assert job.error.message == (
        f"step pay: effect='transaction' needs an SQL store, which {name} isn't; "
        "keep the jobs in sqlite:///… or postgresql://…, or use effect='once' with key="
    )


def test_what_does_not_go_together_is_refused_at_decoration():
    with pytest.raises(Invalid, match="leave out isolate"):
        step(effect="transaction", isolate="process")(plain.spec.function)
    with pytest.raises(Invalid, match="use 'once' or 'transaction'"):
        step(effect="twice")(plain.spec.function)  # type: ignore[call-overload]

    async def late(value: int | None) -> None: ...

    with pytest.raises(Invalid, match="both must be def or both async def"):
        step(effect="transaction", undo=late)(plain.spec.function)


# Time.


async def test_its_timeout_takes_back_the_effect(app, path):
    await with_table(app, path)
    go = threading.Event()

    @step(name="slow", effect="transaction", timeout="100ms")
    def slow() -> None:
        pay.spec.function(1)
        go.wait(20)

    @app.job(retries=0)
    async def order() -> None:
        await slow.aio()

    job = await finished(app, await order.submit())
    go.set()
    assert (job.error.type, ledger(path)) == ("TimeoutError", [])
    assert "took longer than its timeout of 100 ms" in job.error.message


async def test_a_body_that_hangs_is_rolled_back_while_other_jobs_go_on(app, path, monkeypatch):
    for module in (on_sqlite, on_postgres):
        monkeypatch.setattr(module, "LIMIT_SECONDS", 0.3)
    await with_table(app, path)
    go = threading.Event()

    @step(name="hang", effect="transaction")
    def hang() -> None:
        pay.spec.function(1)
        go.wait(20)

    @app.job(retries=0)
    async def order() -> None:
        await hang.aio()

    @app.job
    async def other(n: int) -> int:
        return await plain_async()

    run = await order.submit()
    async with app.worker():
        await until(lambda: RAN)
        runs = [await other.submit(n) for n in range(5)]
        assert [await one.result(10) for one in runs] == [1] * 5
        job = await in_state(app, run, State.REVIEW)
        go.set()
    assert (job.error.type, ledger(path)) == ("TimeoutError", [])
    assert "for more than 0.3 s, so it was rolled back" in job.error.message


# Leases, and a store in trouble.


async def test_a_lease_that_was_taken_over_before_writes_nothing(app, engine, path):
    await with_table(app, path)

    async def steal(name, args):
        if name != "transact":
            return
        engine.before = None
        (job,) = await engine.engine.get([args[0].job])
        await engine.engine.commit([decide(job, Event.LAPSE, await engine.engine.now(), by="upkeep")])

    engine.before = steal

    @app.job
    async def order() -> int:
        return await pay.aio(1)

    run = await order.submit()
    assert (await finished(app, run)).state is State.COMPLETED
    assert RAN == [1], "the first worker's body was not even begun"
    assert sql(path, "select n, epoch from ledger") == [(1, 2)]


@pytest.mark.parametrize("trouble", ["fails", "loses"])
async def test_a_lost_answer_or_a_store_that_is_away_makes_no_second_effect(app, engine, path, trouble):
    await with_table(app, path)
    getattr(engine, trouble)["transact"] = 2

    @app.job
    async def order() -> int:
        return await pay.aio(1)

    run = await order.submit()
    assert (await finished(app, run)).result == "1"
    assert (RAN, ledger(path)) == ([1], [1])
    assert engine.calls["transact"] == 3


@pytest.mark.parametrize(
    ("trouble", "runs"),
    [(StoreError("the line broke"), 4), (StoreBusy("a table was altered"), 4 * (1 + BUSY_TRIES))],
    ids=["lost", "busy"],
)
async def test_trouble_of_the_store_in_each_try_costs_the_tries_of_the_step_and_no_more(
    app, engine, path, caplog, trouble, runs
):
    await with_table(app, path)
    inner = engine.engine.transact

    async def transact(step, body):
        async def cut(connection):
            await body(connection)
            raise Cut

        try:
            return await inner(step, cut)
        except Cut:
            raise trouble from None

    class Cut(Exception):
        pass

    engine.transact = transact

    @step(name="pay_again", effect="transaction", retries=AT_ONCE_RETRY)
    def pay_again(n: int) -> int:
        return pay.spec.function(n)

    @app.job(retries=0)
    async def order() -> int:
        return await pay_again.aio(1)

    run = await order.submit()
    job = await finished(app, run)
    assert (job.state, job.error.message) == (State.REVIEW, str(trouble))
    assert (RAN, ledger(path)) == ([1] * runs, [])
    (record,) = [one for one in await app.engine.steps(run.id) if not one.path.startswith("~")]
    assert (record.state, record.tries) == (StepState.FAILED, 4)
    assert [n for n in (1, 2, 3) if f"failed (try {n} of 4)" in caplog.text] == [1, 2, 3]


async def test_an_error_of_ours_that_the_body_raises_is_its_own_failure(app, engine, path):
    await with_table(app, path)
    TROUBLE.append(StoreError("of another store"))

    @app.job(retries=0)
    async def order() -> int:
        return await pay.aio(1)

    job = await finished(app, await order.submit())
    assert (job.error.message, RAN, ledger(path)) == ("of another store", [1], [])


async def test_a_cancelled_job_records_nothing_more(app, path):
    await with_table(app, path)
    go = threading.Event()

    @step(name="late", effect="transaction")
    def late() -> None:
        pay.spec.function(1)
        go.wait(3)

    @app.job
    async def order() -> None:
        await late.aio()

    run = await order.submit()
    async with app.worker():
        await until(lambda: RAN)
        cancelling = asyncio.ensure_future(run.cancel())  # it waits for the writer, and the writer for the body
        await asyncio.sleep(0.05)
        go.set()
        await cancelling
        await in_state(app, run, State.CANCELLED)
    done = [one.path for one in await app.engine.steps(run.id) if one.state is StepState.DONE]
    assert len(ledger(path)) == len(done), "both or none"


# Costs.


async def test_it_costs_one_transaction_as_a_plain_step_does(tmp_path):
    app, trace, count = App(f"sqlite:///{tmp_path / 'jobs.db'}", settings=CALM), Trace(), 20
    begun: list[Any] = []

    @step(name="write", effect="transaction")
    def write(n: int) -> int:
        tx().execute("insert into ledger values (?, '', 0)", (n,))
        return n

    @app.job(name="walk")
    async def walk() -> None:
        for n in range(count):
            await write.aio(n)

    await with_table(app, tmp_path / "jobs.db")
    await trace.watch(app.engine)
    db = app.engine._writer._transactions._connected()  # type: ignore[attr-defined]
    db.set_trace_callback(begun.append)
    async with app.worker():
        await calm(app, trace)
        run = await walk.submit()
        await in_state(app, run, State.COMPLETED)
    assert begun.count("begin immediate;") == begun.count("commit;") == count
    assert "rollback;" not in begun
    assert len(trace.transactions()) <= AROUND, "nothing of it is written in any other transaction"
    assert ledger(tmp_path / "jobs.db") == list(range(count))
    await app.close()


# Real processes, killed at each moment.

PROGRAM = """
import asyncio, os, signal, sys, time
from pathlib import Path
from holdfast import App, Settings, current, step, tx
from holdfast.engines.sqlite import transactions
from holdfast.engines.sqlite.writes import Writes
from holdfast.core import lifecycle
lifecycle.RECOVERY_BACKOFF_MS = 100

app = App("sqlite:///jobs.db", settings=Settings(
    beat_seconds=0.2, lease_seconds=1.0, look_seconds=0.1, upkeep_seconds=0.2, grace_seconds=0.3))
MOMENT = os.environ.get("DIE", "never")
HOW = os.environ.get("HOW", "kill")

def moment(name):
    if name == MOMENT and not os.path.exists("died"):
        Path("died").touch()
        os.kill(os.getpid(), signal.SIGKILL) if HOW == "kill" else os._exit(1)

@step(effect="transaction")
def pay(n: int) -> int:
    moment("before the effect")
    tx().execute("insert into ledger values (?, ?)", (n, current().epoch))
    moment("between effect and record")
    return n

record = Writes.record
def recorded(acts, steps):
    answer = record(acts, steps)
    if steps[0].name == "pay":
        moment("between record and commit")
    return answer
Writes.record = recorded

run = transactions.Transactions.run
def committed(self, hold):
    answer = run(self, hold)
    moment("after the commit")
    return answer
transactions.Transactions.run = committed

@app.job
async def order() -> int:
    return await pay.aio(7)

@app.job
def many(start: int, count: int) -> int:
    return sum(pay.map(range(start, start + count), at_once=4))

@app.job
async def zombie() -> int:
    if current().epoch == 1:
        with app.engine._write.gate:  # between two transactions: a process that sleeps in one holds the file
            os.kill(os.getpid(), signal.SIGSTOP)
    return await pay.aio(current().epoch)

if __name__ == "__main__":
    from holdfast.cli.worker_process import run_worker
    asyncio.run(run_worker(app, None, 8))
"""


@pytest.mark.parametrize("how", ["kill", "exit"])
@pytest.mark.parametrize(
    ("moment", "epoch"),
    [
        ("before the effect", 2),
        ("between effect and record", 2),
        ("between record and commit", 2),
        ("after the commit", 1),
    ],
)
async def test_a_process_that_dies_at_any_moment_leaves_exactly_one_effect(tmp_path, moment, epoch, how):
    stage = Stage(tmp_path, PROGRAM)
    await stage.app.open()
    sql(stage.path, "create table ledger (n integer, epoch integer)")
    try:
        run = await stage.submit("order")
        victim = stage.worker(DIE=moment, HOW=how)
        assert await asyncio.to_thread(victim.wait, 20) != 0
        assert len(ledger(stage.path)) == (1 if moment == "after the commit" else 0)
        stage.worker()
        assert await run.result(20) == 7
        assert sql(stage.path, "select n, epoch from ledger") == [(7, epoch)]
        assert [entry.event for entry in await run.history()].count("lapse") == 1
    finally:
        await stage.end()


async def test_two_processes_that_are_killed_again_and_again_write_each_effect_once(tmp_path, rounds):
    stage = Stage(tmp_path, PROGRAM)
    await stage.app.open()
    sql(stage.path, "create table ledger (n integer, epoch integer)")
    count = 40
    try:
        runs = [await stage.submit("many", start, count) for start in range(0, 4 * count, count)]
        stage.worker(), stage.worker()
        for n in range(rounds(3, 20)):
            seen = len(ledger(stage.path))
            await until(lambda seen=seen: len(ledger(stage.path)) > seen or len(ledger(stage.path)) == 4 * count, 20)
            stage.workers[n].send_signal(signal.SIGKILL)
            await asyncio.to_thread(stage.worker)
        for run in runs:
            await run.result(25)
        assert sorted(ledger(stage.path)) == list(range(4 * count)), "each once, none twice, none lost"
    finally:
        await stage.end()


async def test_a_worker_that_was_asleep_while_its_job_went_on_writes_nothing(tmp_path):
    stage = Stage(tmp_path, PROGRAM)
    await stage.app.open()
    sql(stage.path, "create table ledger (n integer, epoch integer)")
    try:
        run = await stage.submit("zombie")
        zombie = stage.worker()
        await asyncio.to_thread(os.waitid, os.P_PID, zombie.pid, os.WSTOPPED | os.WNOWAIT)
        stage.worker()
        assert await run.result(20) == 2
        zombie.send_signal(signal.SIGCONT)
        zombie.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(zombie.wait, 20) == 0
        assert sql(stage.path, "select n, epoch from ledger") == [(2, 2)]
    finally:
        await stage.end()


@pytest.mark.parametrize("engine", ["sqlite"], indirect=True)
async def test_a_body_that_keeps_its_own_record_from_being_written_fails_once(app):
    calls = []

    @step(name="refer", effect="transaction")
    def refer() -> int:
        calls.append(1)
        tx().execute("create table kid (x references step (path))")
        return 1

    @app.job(name="refers", retries=0)
    async def refers() -> int:
        return await refer.aio()

    run = await refers.submit()
    job = await finished(app, run)
    assert job.state is State.REVIEW
    assert job.error is not None
    assert "does one of your tables refer to a table of Holdfast?" in job.error.message
    assert len(calls) == 1
