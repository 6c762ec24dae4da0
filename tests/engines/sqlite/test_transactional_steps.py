"""Transactional steps on SQLite: what their connection may do, for how long, and whom they don't hurt."""

import asyncio
import enum
import os
import sqlite3
import threading
import time
from contextlib import closing
from typing import Any

import pytest

from holdfast.conformance.given import StoreClock, claimed, step, taken_over
from holdfast.core.errors import Invalid, StoreFull
from holdfast.core.model import Conflict, Recorded, StepState
from holdfast.engines.sqlite import SqliteEngine, transactions
from holdfast.engines.sqlite.guard import refusal
from holdfast.engines.sqlite.reads import SQL
from holdfast.engines.sqlite.store import own_names


class Store:
    """An engine on a file, with a table of a user's, and one job that is held."""

    def __init__(self, path, run):
        self.path, self.run, self.clock = path, run, StoreClock(settable=True)
        self.engine = SqliteEngine(path, self.clock)
        run(self.engine.open())
        self.sql("create table mine (n integer primary key, state text, job text)")
        self.job = run(claimed(self.engine, self.clock))

    def sql(self, statement, *params):
        """What a connection of the user's own sees."""
        connection = sqlite3.connect(self.path, isolation_level=None)
        try:
            return connection.execute(statement, params).fetchall()
        finally:
            connection.close()

    async def transact(self, body, path="pay#1", job=None):
        """Run a `def` body in a thread, inside a transaction, as a worker does."""

        async def fill(connection):
            value = await asyncio.to_thread(body, connection)
            return [step(job or self.job, path, result=f'"{value}"')]

        return await self.engine.transact(step(job or self.job, path, StepState.STARTED), fill)

    def do(self, body, path="pay#1", job=None):
        return self.run(asyncio.wait_for(self.transact(body, path, job), 20))

    def rows(self):
        return [n for (n,) in self.sql("select n from mine order by n")]

    def records(self):
        return [one.path for one in self.run(self.engine.steps(self.job.id))]


@pytest.fixture
def store(tmp_path, run):
    store = Store(tmp_path / "jobs.db", run)
    yield store
    run(store.engine.close())


def put(*numbers):
    """A body that writes these into the user's table."""

    def body(db):
        db.executemany("insert into mine (n) values (?)", [(n,) for n in numbers])

    return body


# One transaction.


def test_what_the_body_wrote_and_its_record_are_there_together(store):
    answer = store.do(put(1, 2))

    assert isinstance(answer, Recorded)
    assert answer.first
    assert (store.rows(), store.records()) == ([1, 2], ["pay#1"])


def test_nobody_sees_any_of_it_before_the_end(store):
    def body(db):
        put(1)(db)
        assert (store.rows(), db.execute("select n from mine").fetchall()) == ([], [(1,)])

    store.do(body)
    assert store.rows() == [1]


@pytest.mark.parametrize("error", [ValueError("no"), KeyError("x"), sqlite3.IntegrityError("mine"), OSError("disk")])
def test_what_the_body_raises_takes_back_both_and_is_raised(store, error):
    def body(db):
        put(1)(db)
        raise error

    with pytest.raises(type(error)) as caught:
        store.do(body)
    assert caught.value is error
    assert (store.rows(), store.records()) == ([], [])
    store.do(put(2))
    assert (store.rows(), store.records()) == ([2], ["pay#1"])


def test_a_body_whose_record_stands_is_not_run_again(store):
    first = store.do(put(1))

    again = store.do(put(2))

    assert again == Recorded(first.step, False)
    assert store.rows() == [1]


def test_a_stale_lease_runs_no_body_and_writes_nothing(store):
    fresh = store.run(taken_over(store.engine, store.clock, store.job))

    answer = store.do(put(1))

    assert isinstance(answer, Conflict)
    assert (store.rows(), store.records()) == ([], [])
    store.do(put(2), job=fresh)
    assert (store.rows(), store.records()) == ([2], ["pay#1"])


def test_a_lease_can_not_be_taken_over_while_the_body_runs(store):
    """The takeover waits for the writer; so the record is under the lease that was current when it was written."""
    seen = []

    async def both():
        begun = asyncio.Event()
        loop = asyncio.get_running_loop()

        def body(db):
            loop.call_soon_threadsafe(begun.set)
            time.sleep(0.1)
            put(1)(db)
            seen.append("body")

        async def steal():
            await begun.wait()
            await taken_over(store.engine, store.clock, store.job)
            seen.append("stolen")

        return await asyncio.gather(store.transact(body), steal())

    answer, _ = store.run(both())
    assert isinstance(answer, Recorded)
    assert seen == ["body", "stolen"]
    assert (store.rows(), store.records()) == ([1], ["pay#1"])


def test_a_cancelled_caller_leaves_nothing_behind(store):
    async def cut_off():
        begun, go, heard = asyncio.Event(), threading.Event(), threading.Event()
        loop, errors = asyncio.get_running_loop(), []

        def body(db):
            put(1)(db)
            loop.call_soon_threadsafe(begun.set)
            go.wait(10)
            try:
                put(2)(db)
            except Invalid as error:
                errors.append(str(error))
            heard.set()

        task = asyncio.ensure_future(store.transact(body))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await store.engine.put_record("a", "1")  # the writer is free again
        go.set()
        assert await asyncio.to_thread(heard.wait, 10)
        return errors

    (error,) = store.run(asyncio.wait_for(cut_off(), 10))
    assert "the step and its transaction have ended" in error
    assert (store.rows(), store.records()) == ([], [])


def test_a_broken_foreign_key_is_told_at_the_end_and_takes_all_back(store):
    store.sql("create table child (n references mine (n) deferrable initially deferred)")

    with pytest.raises(sqlite3.IntegrityError, match="FOREIGN KEY"):
        store.do(lambda db: db.execute("insert into child values (7)"))
    assert (store.sql("select * from child"), store.records()) == ([], [])


def test_rows_that_were_not_read_to_their_end_don_t_hold_up_the_commit(store):
    kept: list[Any] = []

    def body(db):
        put(*range(100))(db)
        kept.append(db.execute("insert into mine (n) values (200), (201) returning n"))
        kept.append(db.execute("select n from mine"))
        return [kept[0].fetchone(), kept[1].fetchone()]

    store.do(body)
    assert len(store.rows()) == 102
    with pytest.raises(Invalid, match="the step and its transaction have ended"):
        kept[1].fetchone()


# The connection.


def test_it_reads_and_writes_as_sqlite_does(store):
    class Colour(enum.StrEnum):
        RED = "red"

    class Old(str, enum.Enum):  # noqa: UP042 (its str() is its name)
        BLUE = "blue"

    def body(db):
        cursor = db.cursor()
        cursor.execute("insert into mine (n, state) values (:n, :state)", {"n": 5, "state": Colour.RED})
        assert (cursor.lastrowid, cursor.rowcount) == (5, 1)
        db.execute("insert into mine values (?, ?, ?)", [6, Old.BLUE, 0.5])
        db.execute("insert into mine (n, state) values (?, ?)", (True, memoryview(b"\x01")))
        rows = db.execute("select n, state from mine order by n")
        assert [column[0] for column in rows.description] == ["n", "state"]
        assert list(rows) == [(1, b"\x01"), (5, "red"), (6, "blue")]
        return rows.fetchone()

    store.do(body)
    assert store.sql("select state from mine where n = 6") == [("blue",)]


def test_tables_views_indexes_triggers_and_savepoints_of_one_s_own(store):
    store.sql("insert into mine (n) values (9)")
    store.sql("analyze")
    store.sql("delete from mine")

    def body(db):
        for statement in (
            "create table log (id integer primary key autoincrement, what text)",
            "create index log_what on log (what)",
            "create table pair (a integer, b text, unique (a, b))",
            "insert into pair values (1, 'x')",
            "create unique index pair_b on pair (b)",
            "reindex pair",
            "create view loud as select upper(what) as what from log",
            "create trigger noted after insert on mine begin insert into log (what) values ('n' || new.n); end",
            "create trigger through instead of insert on loud begin insert into log (what) values (new.what); end",
            "alter table log add column at text",
            "alter table log rename column at to moment",
            "insert into mine (n) values (1)",
            "insert into loud values ('x')",
            "savepoint a",
            "insert into mine (n) values (2)",
            "rollback to a",
            "release a",
            "insert into pair select value, 'j' || value from json_each('[2,3]')",
            "drop index log_what",
            "drop table pair",
            "drop trigger through",
            "create virtual table words using fts5 (text)",
            "insert into words values ('a hold fast')",
            "drop table words",
            "alter table log rename to journal",
        ):
            db.execute(statement)
        assert db.execute("select what from loud").fetchall() == [("N1",), ("X",)]
        assert db.execute(
            "with recursive t (n) as (select 1 union select n + 1 from t where n < 3) select max(n) from t"
        )
        assert len(db.execute("pragma table_info(mine)").fetchall()) == 3
        assert db.execute("select count(*) from pragma_table_info('mine')").fetchone() == (3,)
        db.execute("drop view loud")
        db.execute("drop trigger noted")
        db.execute("drop table journal")

    store.do(body)
    assert store.rows() == [1]


OURS = [
    "update job set state = 'completed', worker = null",
    "delete from step",
    "insert into record values ('a', 'b', 1, 1)",
    "insert or replace into tally values ('default', 'active', 99)",
    "select * from job",
    "select count(*) from step",
    "insert into mine (n) select n from job",
    "select * from jobs",
    "drop table job",
    "drop view jobs",
    "drop index job_ready",
    "alter table step add column mine text",
    "alter table step rename to steps",
    "create index mine_too on job (type)",
    "create trigger t after insert on step begin insert into mine (n) values (9); end",
    "create trigger t instead of insert on jobs begin insert into mine (n) values (9); end",
    "create temp trigger t after insert on step begin insert into mine (n) values (9); end",
    "create temp table job (n)",
    "create temp table anything (n)",
    "create temp view step as select 1",
    "create table temp.step (n)",
    "create table holdfast_later (n)",
    "create virtual table holdfast_words using fts5 (text)",
    "create virtual table pages using sqlite_dbpage",
    "create virtual table sizes using dbstat",
    "create table more as select * from job",
    "with j as (select * from job) select * from j",
    "select (select max(epoch) from job)",
    "insert into mine (n) values (1) returning (select count(*) from job)",
    "insert into mine (n) values (1) on conflict do update set state = (select state from job)",
    SQL.drop_step.replace(":n", "1").replace(":path", "'x'"),
]
OTHERS = [
    *("begin", "commit", "end", "rollback", "begin immediate"),
    *("attach ':memory:' as other", "attach 'other.db' as other", "detach main", "vacuum", "vacuum into 'copy.db'"),
    *("analyze", "analyze mine", "reindex"),
    *("pragma writable_schema = on", "pragma synchronous = off", "pragma journal_mode = delete"),
    *("pragma user_version = 7", "pragma application_id = 1", "pragma wal_checkpoint", "pragma query_only = on"),
    *("pragma foreign_keys = off", "pragma temp_store_directory = '/'", "pragma busy_timeout = 0"),
    *("pragma schema_version = 1", "pragma journal_size_limit = 0", "pragma trusted_schema = on"),
    *("select load_extension('x')", "select fts3_tokenizer('simple')", "insert into sqlite_stat1 values (1, 2, 3)"),
    "delete from sqlite_master",
    "update sqlite_schema set sql = ''",
]


@pytest.mark.parametrize("statement", [*OURS, *OTHERS])
def test_what_is_not_the_user_s_is_refused_and_the_step_with_it(store, statement):
    before = dump(store)

    def body(db):
        put(1)(db)
        db.execute(statement)

    with pytest.raises((Invalid, sqlite3.Error)) as caught:
        store.do(body)
    if statement in OURS:
        assert isinstance(caught.value, Invalid)
        assert str(caught.value).startswith("tx(): ")
    assert dump(store) == before
    assert not os.path.exists("other.db") and not os.path.exists("copy.db")  # noqa: PT018
    store.do(put(2))
    assert store.rows() == [2]


@pytest.mark.parametrize("statement", [*OURS, *OTHERS])
def test_a_refusal_that_is_swallowed_has_done_nothing(store, statement):
    before = [row for row in dump(store) if "pay#1" not in row]

    def body(db):
        put(1)(db)
        with pytest.raises((Invalid, sqlite3.Error)):
            db.execute(statement)

    store.do(body)
    own = ("pay#1", "'summary': (1, 'pay', 0, 1, 0, 1, None)", "'mine': (1, None, None)")
    assert [row for row in dump(store) if not any(one in row for one in own)] == before
    assert store.rows() == [1]


def dump(store):
    """All rows of all tables, and the schema."""
    tables = sorted(name for (name,) in store.sql("select name from sqlite_schema where type = 'table'"))
    found = [f"{name!r}: {row}" for name in tables for row in store.sql(f'select * from "{name}"')]
    return [*found, *map(repr, store.sql("select type, name, tbl_name, sql from sqlite_schema order by name"))]


@pytest.mark.parametrize(
    "ways",
    [
        ["create trigger t after insert on mine begin update job set worker = 'x'; end"],
        ["create trigger t after insert on mine begin delete from step; end"],
        ["create view v as select * from job", "create trigger t after insert on mine begin select * from v; end"],
        [
            "create view v as select n from mine",
            "create trigger t instead of insert on v begin insert into record values ('a', 'b', 1, 1); end",
            "create trigger u after insert on mine begin insert into v values (new.n); end",
        ],
        ["create table fk (n integer references job (n) on delete cascade)", "insert into fk values (1)"],
    ],
)
@pytest.mark.parametrize("made_by", ["the body", "another connection"])
def test_nothing_that_the_user_made_reaches_our_tables_from_within(store, ways, made_by):
    if made_by == "another connection":
        for way in ways:
            store.sql(way)
    before = dump(store)

    def body(db):
        for way in ways if made_by == "the body" else ways[:0] if "insert into fk" not in ways[-1] else ways[-1:]:
            db.execute(way)
        put(1)(db)

    with pytest.raises(Invalid, match="Holdfast's own"):
        store.do(body)
    assert dump(store) == before


def test_a_statement_that_we_have_prepared_ourselves_is_refused_all_the_same(store):
    """Prepared statements are kept by their text: ours were prepared without the guard."""
    store.do(put(1), path="pay#0")
    params = {"job": store.job.id, "path": "pay#0"}

    for statement, values in (
        (SQL.step, params),
        (SQL.add_steps, {"steps": "[]"}),
        (SQL.heads, {"ids": "[]"}),
        (SQL.commit, {}),
    ):

        def body(db, statement=statement, values=values):
            db.execute(statement, values)

        with pytest.raises(Invalid, match="tx\\(\\)"):
            store.do(body)


@pytest.mark.parametrize(
    "statement",
    [
        "insert or rollback into mine (n) values (1)",
        "update or rollback mine set n = 1",
        "insert into mine (n, state) values (9, 'raise')",
    ],
)
def test_a_statement_that_rolls_all_back_ends_the_step_also_when_it_is_swallowed(store, statement):
    store.sql(
        "create trigger mine_raise before insert on mine when new.state = 'raise' "
        "begin select raise(rollback, 'all of it'); end"
    )

    def body(db):
        put(1, 2)(db)
        with pytest.raises(sqlite3.Error):
            db.execute(statement)
        with pytest.raises(Invalid, match="rolled back the whole transaction"):
            put(3)(db)

    with pytest.raises(Invalid, match="rolled back the whole transaction"):
        store.do(body)
    assert (store.rows(), store.records()) == ([], [])


def test_what_is_handed_out_is_dead_afterwards_and_gives_nothing_away(store):
    kept: list[Any] = []

    def body(db):
        kept.extend([db, db.cursor(), db.execute("select 1")])
        for name in ("commit", "rollback", "close", "executescript", "set_authorizer", "create_function", "interrupt"):
            with pytest.raises(AttributeError, match="ends with the step"):
                getattr(db, name)
        assert not hasattr(kept[1], "connection")

    store.do(body)
    connection, cursor, rows = kept
    for use in (
        connection.cursor,
        lambda: connection.execute("select 1"),
        lambda: connection.executemany("insert into mine (n) values (?)", [(1,)]),
        lambda: cursor.execute("insert into mine (n) values (1)"),
        rows.fetchone,
        rows.fetchall,
        lambda: list(rows),
        cursor.close,
    ):
        with pytest.raises(Invalid, match="the step and its transaction have ended"):
            use()
    assert store.rows() == []


def test_a_connection_that_was_kept_is_of_no_use_in_a_later_step(store):
    kept: list[Any] = []
    store.do(kept.append)

    def body(db):
        with pytest.raises(Invalid, match="the step and its transaction have ended"):
            put(1)(kept[0])
        put(2)(db)

    store.do(body, path="pay#2")
    assert store.rows() == [2]


def test_our_own_names_are_those_of_the_migrations(store):
    assert {"job", "step", "record", "jobs", "job_ready"} <= own_names()
    assert not {"mine", "sqlite_master"} & own_names()
    assert refusal(sqlite3.SQLITE_READ, "mine", "job", "main") is None, "a column may be called like a table of ours"


# Time, and neighbours.


@pytest.fixture
def hasty(monkeypatch):
    """A limit that a test can wait for."""
    monkeypatch.setattr(transactions, "LIMIT_SECONDS", 0.3)


FOREVER = "with recursive t (n) as (select 1 union all select n + 1 from t) select count(*) from t"


def test_a_statement_without_an_end_is_interrupted_and_taken_back(store, hasty):
    heard = []

    def body(db):
        put(1)(db)
        try:
            db.execute(FOREVER)
        except TimeoutError as error:
            heard.append(str(error))
            raise

    with pytest.raises(TimeoutError, match=r"kept its transaction open for more than 0.3 s, so it was rolled back"):
        store.do(body)
    assert (store.rows(), store.records()) == ([], [])
    store.do(put(2))
    assert store.rows() == [2]
    assert len(heard) == 1


def test_an_insert_without_an_end_is_interrupted_too(store, hasty):
    store.sql("create table big (n)")
    with pytest.raises(TimeoutError):
        store.do(lambda db: db.execute(f"insert into big {FOREVER.replace('count(*)', 'n')}"))
    assert store.sql("select count(*) from big") == [(0,)]


def test_code_that_does_not_come_back_holds_up_nobody_for_longer(store, hasty):
    """It can't be stopped; but the writer goes on without it, and what it does with the connection later is refused."""
    go, told, heard = threading.Event(), threading.Event(), []

    def body(db):
        put(1)(db)
        go.wait(20)
        try:
            put(2)(db)
        except TimeoutError as error:
            heard.append(str(error))
        told.set()

    async def scene():
        began = time.monotonic()
        with pytest.raises(TimeoutError, match="kept its transaction open"):
            await store.transact(body)
        await store.engine.put_record("a", "1")
        took = time.monotonic() - began
        go.set()
        assert await asyncio.to_thread(told.wait, 10)
        return took

    assert store.run(asyncio.wait_for(scene(), 10)) < 3
    assert "rolled back" in heard[0]
    assert (store.rows(), store.records()) == ([], [])


def test_an_event_loop_that_hangs_does_not_hold_the_store(store, hasty):
    """The writer doesn't rely on the caller's loop to hear that the time is over."""

    async def scene():
        async def fill(connection):
            time.sleep(0.8)  # noqa: ASYNC251 (this is the hanging loop)
            other = sqlite3.connect(store.path, timeout=0, isolation_level=None)
            other.execute("insert into mine (n) values (7)")  # the file is free again
            other.close()
            return [step(store.job, "pay#1")]

        await store.engine.transact(step(store.job, "pay#1", StepState.STARTED), fill)

    with pytest.raises(TimeoutError, match="kept its transaction open"):
        store.run(scene())
    assert (store.rows(), store.records()) == ([7], [])


def test_neighbours_are_neither_rolled_back_nor_kept_waiting_for_more_than_one(store):
    order = []

    async def scene():
        begun, go = asyncio.Event(), threading.Event()
        loop = asyncio.get_running_loop()

        def first(db):
            loop.call_soon_threadsafe(begun.set)
            go.wait(10)
            order.append("first")
            raise ValueError("first")

        def later(db):
            order.append("later")
            raise ValueError("later")

        holds = [asyncio.ensure_future(store.transact(first))]
        await begun.wait()
        # All of these arrive while the writer is held: one batch, with two more transactions in it.
        holds += [asyncio.ensure_future(store.transact(later, f"pay#{n}")) for n in (2, 3)]
        neighbours = [asyncio.ensure_future(store.engine.put_record(f"r{n}", "1")) for n in range(5)]
        recorded = asyncio.ensure_future(store.engine.record([step(store.job, "plain#1")]))
        for one in neighbours:
            one.add_done_callback(lambda _: order.append("neighbour"))
        await asyncio.sleep(0.05)
        go.set()
        raised = await asyncio.gather(*holds, return_exceptions=True)
        assert [str(error) for error in raised] == ["first", "later", "later"]
        await asyncio.gather(*neighbours, recorded)

    store.run(asyncio.wait_for(scene(), 10))
    assert order.count("neighbour") == 5
    assert order[0] == "first"
    assert order.index("neighbour") < len(order) - 1 - order[::-1].index("later"), order
    assert store.records() == ["plain#1"]
    assert len(store.run(store.engine.records("r"))) == 5


def test_a_full_disk_is_the_store_s_trouble_and_not_the_body_s(tiny_disk, run):
    store = Store(tiny_disk / "jobs.db", run)

    def body(db):
        db.executemany("insert into mine (state) values (?)", [("x" * 100_000,)] * 50)

    with pytest.raises(StoreFull, match="no space left"):
        store.do(body)
    assert (store.rows(), store.records()) == ([], [])
    store.do(put(1))
    assert store.rows() == [1]
    run(store.engine.close())


def test_other_processes_have_their_turn_between_transactions_one_after_the_other(store, monkeypatch):
    """SQLite looks every 0.1 s whether the file is free: without a gap it would hardly ever look at the right time."""
    monkeypatch.setattr(transactions, "HELD_SECONDS", 0.2)

    async def scene():
        held = threading.Event()

        def body(db):
            held.set()
            time.sleep(0.3)

        def other():
            connection = sqlite3.connect(store.path, timeout=1.5, isolation_level=None)
            with closing(connection):
                for n in range(3):
                    held.clear()
                    assert held.wait(5)
                    connection.execute("insert into mine (n) values (?)", (100 + n,))

        waiting = asyncio.ensure_future(asyncio.to_thread(other))

        async def walk(walker):
            n = 0
            while not waiting.done():
                await store.transact(body, f"pay#{walker}.{n}")
                n += 1

        await asyncio.gather(*map(walk, range(4)))
        await waiting

    store.run(asyncio.wait_for(scene(), 15))
    assert store.rows() == [100, 101, 102]


def test_an_error_that_rolled_all_back_is_the_body_s_own(store):
    put_one = put(1)

    def body(db):
        put_one(db)
        db.execute("insert or rollback into mine (n) values (1)")

    with pytest.raises(sqlite3.IntegrityError, match="UNIQUE"):
        store.do(body)
    assert (store.rows(), store.records()) == ([], [])
    store.do(put(2))
    assert (store.rows(), store.records()) == ([2], ["pay#1"])


def test_a_body_that_leaves_a_statement_running_is_taken_back_whole(store):
    """The statement is interrupted at the body's end, and takes the transaction with it: no record may stay alone."""
    store.sql("create table big (n)")
    running = threading.Event()

    def work(db):
        running.set()
        with pytest.raises(Invalid, match="the step and its transaction have ended"):
            db.execute(f"insert into big {FOREVER.replace('count(*)', 'n')}")

    def body(db):
        put(1)(db)
        thread = threading.Thread(target=work, args=(db,))
        thread.start()
        assert running.wait(5)
        time.sleep(0.1)

    with pytest.raises(Invalid, match="still ran in a thread"):
        store.do(body)
    assert (store.rows(), store.records()) == ([], [])
    store.do(put(2))
    assert (store.rows(), store.records()) == ([2], ["pay#1"])
