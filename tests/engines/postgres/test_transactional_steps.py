"""Transactional steps on Postgres: what their connection may do, for how long, and whom they don't hurt."""

import asyncio
import gc
import re
import threading
import time
from pathlib import Path

import asyncpg
import psycopg
import pytest

from holdfast.conformance.given import StoreClock, claimed, step, taken_over
from holdfast.core.errors import Invalid, StoreBusy, StoreClosed, StoreError
from holdfast.core.model import Conflict, Recorded, StepState
from holdfast.engines import engine_for
from holdfast.engines.postgres import transactions
from holdfast.engines.postgres.guard import refusal
from holdfast.engines.postgres.url import parse_url

BLOCKS = (
    "select count(*) from pg_stat_activity where state like 'idle in transaction%' and application_name = 'holdfast'"
)


class Store:
    """A store, a table of a user's in the same database, and one job that is held."""

    def __init__(self, url, run):
        self.run, self.clock, self.place = run, StoreClock(settable=False), parse_url(url)
        self.engine = engine_for(url)
        run(self.engine.open())
        self.sql("drop table if exists mine, child, log cascade", "create table mine (n integer primary key, t text)")
        self.job = run(claimed(self.engine, self.clock))

    def sql(self, *statements):
        """What a connection of the user's own sees; the rows of the last statement."""
        with psycopg.connect(self.place.dsn, autocommit=True) as connection:
            for statement in statements:
                found = connection.execute(statement.replace("{schema}", self.place.schema))
            return found.fetchall() if found.description else []

    async def transact(self, body, path="pay#1", job=None):
        """Run a body inside a transaction, as a worker does: a `def` one in a thread."""

        async def fill(connection):
            if asyncio.iscoroutinefunction(body):
                value = await body(connection)
            else:
                value = await asyncio.to_thread(body, connection.sync)
            return [step(job or self.job, path, result=f'"{value}"')]

        return await self.engine.transact(step(job or self.job, path, StepState.STARTED), fill)  # type: ignore[attr-defined]

    def do(self, body, path="pay#1", job=None):
        return self.run(asyncio.wait_for(self.transact(body, path, job), 20))

    def rows(self):
        return [n for (n,) in self.sql("select n from mine order by n")]

    def records(self):
        return [one.path for one in self.run(self.engine.steps(self.job.id))]

    def ours(self):
        """All rows of all tables of the engine's own, and which relations it has."""
        names = self.sql("select relname from pg_class where relnamespace = '{schema}'::regnamespace order by 1")
        tables = self.sql(
            "select relname from pg_class where relnamespace = '{schema}'::regnamespace and relkind in ('r', 'p')"
        )
        return names, {name: self.sql(f'select * from {{schema}}."{name}" order by 1, 2') for (name,) in tables}


@pytest.fixture
def store(postgres_store, run):
    store = Store(postgres_store, run)
    yield store
    run(store.engine.close())
    store.sql("drop table if exists mine, child, log cascade")


def put(*numbers):
    """A body that writes these into the user's table."""

    def body(db):
        db.executemany("insert into mine (n) values ($1)", [(n,) for n in numbers])

    return body


def send(statement):
    """A body that writes a row, and then sends this."""

    async def body(db):
        await db.execute("insert into mine (n) values (1)")
        await db.execute(statement)

    return body


# One transaction.


def test_async_code_has_the_methods_of_its_driver(store):
    async def body(db):
        assert await db.execute("insert into mine values ($1, $2)", 1, "a") == "INSERT 0 1"
        assert await db.execute("insert into mine values (2, 'b'), (3, 'c')") == "INSERT 0 2"
        await db.executemany("insert into mine values ($1, $2)", [(4, "d"), (5, None)])
        assert [tuple(row) for row in await db.fetch("select n, t from mine where n > $1 order by n", 3)] == [
            (4, "d"),
            (5, None),
        ]
        assert (await db.fetchrow("select * from mine where n = 1"))["t"] == "a"
        assert await db.fetchrow("select * from mine where n = 9") is None
        assert await db.fetchval("select n, t from mine where n = 2", column=1) == "b"
        assert await db.fetchval("select n from mine where n = 9") is None
        assert store.rows() == [], "nobody else sees it yet"
        counts = await asyncio.gather(*(db.fetchval("select $1::int", n) for n in range(5)))
        return sum(counts)

    answer = store.do(body)
    assert answer == Recorded(step(store.job, "pay#1", result='"10"'), True)
    assert (store.rows(), store.records()) == ([1, 2, 3, 4, 5], ["pay#1"])


def test_blocking_code_has_what_psycopg_and_sqlite3_share(store):
    def body(db):
        assert db.execute("insert into mine values ($1, $2)", (1, "a")).rowcount == 1
        db.executemany("insert into mine values ($1, $2)", [[2, "b"], [3, "c"], [4, "d"]])
        found = db.execute("select n, t from mine where n > $1 order by n", [1])
        assert (found.rowcount, tuple(found.fetchone())) == (3, (2, "b"))
        assert [row["n"] for row in found.fetchmany(1)] == [3]
        assert [tuple(row) for row in found] == [(4, "d")]
        assert (found.fetchone(), found.fetchall()) == (None, [])
        assert db.execute("create table log (n int)").rowcount == -1
        with pytest.raises(Invalid, match="is not a list of parameters"):
            db.execute("select $1", "x")

    store.do(body)
    assert store.rows() == [1, 2, 3, 4]


@pytest.mark.parametrize("colour", ["async", "def"])
def test_a_part_can_fail_by_itself(store, colour):
    async def in_async(db):
        await db.execute("insert into mine (n) values (1)")
        with pytest.raises(asyncpg.UniqueViolationError):
            async with db.transaction():
                await db.execute("insert into mine (n) values (2)")
                await db.execute("insert into mine (n) values (1)")
        async with db.transaction():
            await db.execute("insert into mine (n) values (3)")
            with pytest.raises(ValueError, match="inner"):
                async with db.transaction():
                    await db.execute("insert into mine (n) values (4)")
                    raise ValueError("inner")

    def in_def(db):
        put(1)(db)
        with pytest.raises(asyncpg.UniqueViolationError), db.transaction():
            put(2, 1)(db)
        with db.transaction():
            put(3)(db)
            with pytest.raises(ValueError, match="inner"), db.transaction():
                put(4)(db)
                raise ValueError("inner")

    store.do(in_async if colour == "async" else in_def)
    assert store.rows() == [1, 3]


def test_savepoints_tables_triggers_and_functions_of_one_s_own(store):
    async def body(db):
        for statement in (
            "savepoint a",
            "insert into mine (n) values (1)",
            "ROLLBACK /* only */ WORK TO SAVEPOINT a",
            "release a",
            "create table log (what text)",
            "create function note() returns trigger language plpgsql as "
            "$$ begin insert into log values ('n' || new.n); return new; end $$",
            "create trigger noted after insert on mine for each row execute function note()",
            "insert into mine (n) values (2)",
            "do $$ begin insert into mine (n) values (3); exception when others then null; end $$",
            "drop trigger noted on mine",
            "drop function note",
        ):
            await db.execute(statement)
        return await db.fetchval("select string_agg(what, ',') from log")

    answer = store.do(body)
    assert answer.step.result == '"n2,n3"'
    assert store.rows() == [2, 3]


def test_it_is_the_user_s_own_search_path_and_a_plain_isolation(store):
    async def body(db):
        return await db.fetchval("select current_schema() || ' ' || current_setting('transaction_isolation')")

    assert store.do(body).step.result == '"public read committed"'


@pytest.mark.parametrize("error", [ValueError("no"), KeyError("x"), asyncpg.UniqueViolationError("mine"), OSError("x")])
def test_what_the_body_raises_takes_back_both_and_is_raised(store, error):
    async def body(db):
        await db.execute("insert into mine (n) values (1)")
        raise error

    with pytest.raises(type(error)) as caught:
        store.do(body)
    assert caught.value is error
    assert (store.rows(), store.records()) == ([], [])
    store.do(put(2))
    assert (store.rows(), store.records()) == ([2], ["pay#1"])


def test_what_was_deferred_is_the_body_s_own_error_and_takes_all_back(store):
    store.sql("create table child (n int references mine (n) deferrable initially deferred)")
    store.sql("create table log (n int)")  # found by the body's search path, also at its end
    store.sql(
        "create function late() returns trigger language plpgsql as "
        "$$ begin insert into log values (1); return null; end $$",
        "create constraint trigger late after insert on mine deferrable initially deferred "
        "for each row execute function late()",
    )
    try:
        with pytest.raises(asyncpg.ForeignKeyViolationError):
            store.do(send("insert into child values (7)"))
        assert (store.rows(), store.records()) == ([], [])
        store.do(send("insert into child values (1)"))
        assert (store.sql("select * from child"), store.sql("select * from log")) == ([(1,)], [(1,)])
    finally:
        store.sql("drop function late cascade")


def test_an_error_that_was_swallowed_is_told_for_postgres_keeps_nothing_after_it(store):
    async def body(db):
        await db.execute("insert into mine (n) values (1)")
        with pytest.raises(asyncpg.UniqueViolationError):
            await db.execute("insert into mine (n) values (1)")

    with pytest.raises(Invalid, match=r"one of its statements failed \(duplicate key .* tx\(\).transaction\(\)"):
        store.do(body)
    assert (store.rows(), store.records()) == ([], [])


# Whose transaction it is.

ENDS = [
    *("begin", "start transaction", "commit", "COMMIT", "end", "rollback", "abort", "commit and chain", "end work"),
    *("rollback and chain", "rollback transaction", "  ;; commit", "\n\t/* a */ commit", "-- a\ncommit", "--\rcommit"),
    *("/* a /* b */ commit */commit", "/**/commit/**/", "prepare transaction 'x'", "commit prepared 'x'"),
]
OTHERS = ["copy mine from stdin", "copy mine to stdout", "discard all", "deallocate all", "listen x"]


@pytest.mark.parametrize("statement", [*ENDS, *OTHERS])
def test_a_statement_that_would_end_it_is_never_sent(store, statement):
    async def swallowed(db):
        for use in (db.execute, db.fetch, db.fetchrow, db.fetchval):
            with pytest.raises(Invalid, match=r"tx\(\): "):
                await use(statement)
        with pytest.raises(Invalid, match=r"tx\(\): "):
            await db.executemany(statement, [()])
        await db.execute("insert into mine (n) values (2)")

    with pytest.raises(Invalid, match=r"tx\(\): "):
        store.do(send(statement))
    assert (store.rows(), store.records()) == ([], [])
    store.do(swallowed)
    assert (store.rows(), store.records()) == ([2], ["pay#1"])


@pytest.mark.parametrize(
    "statement", ["insert into mine (n) values (2); commit", "select 1; rollback; begin", "do $$ begin commit; end $$"]
)
def test_nor_does_the_server_take_one_behind_or_within_another(store, statement):
    with pytest.raises((asyncpg.PostgresSyntaxError, asyncpg.InvalidTransactionTerminationError)):
        store.do(send(statement))
    assert (store.rows(), store.records()) == ([], [])


@pytest.mark.parametrize(
    "statement", ["/* commit */ select 1", "select 'commit'", "-- commit\nselect 1", "table mine", ""]
)
def test_a_word_elsewhere_is_no_reason(statement):
    assert refusal(statement) is None


def test_a_transaction_that_was_ended_all_the_same_is_seen(store, monkeypatch):
    """If something got past the first words, the server's own word for it is heard."""
    monkeypatch.setattr("holdfast.engines.postgres.guard.refusal", lambda statement: None)

    async def ended(db):
        await db.execute("rollback")
        with pytest.raises(Invalid, match="ended the transaction"):
            await db.execute("insert into mine (n) values (2)")

    for body in (ended, send("rollback and chain")):
        with pytest.raises(Invalid, match="ended the transaction"):
            store.do(body)
        assert (store.rows(), store.records()) == ([], [])


OURS = [
    "update {schema}.job set worker = 'x'",
    "delete from {schema}.step",
    "insert into {schema}.record values ('a', 'b', 1, 1)",
    "select * from {schema}.job",
    "select * from {schema}.jobs",
    "select id from {schema}.history",
    "truncate {schema}.tally",
    "lock table {schema}.step",
    "select * from {schema}.claim('x', '{{default}}', 9, 9)",
    "create table {schema}.more (n int)",
    "create index more on {schema}.job (type)",
    "create view mine_too as select * from {schema}.job",
    "alter table {schema}.step add column mine text",
    "drop index {schema}.job_ready",
    "drop table {schema}.step cascade",
    "drop schema {schema} cascade",
    "alter table {schema}.step rename to steps",
    "create table child (id text references {schema}.name (id))",
    "do $$ begin execute 'delete from {schema}' || '.tally'; end $$",
    "create trigger t after insert on {schema}.step execute function suppress_redundant_updates_trigger()",
]


@pytest.mark.parametrize("statement", OURS)
def test_what_touches_a_table_of_ours_takes_all_back(store, statement):
    if "job_ready" in statement:
        [(name,)] = store.sql(
            "select indexname from pg_indexes where schemaname = '{schema}' and tablename = 'job' limit 1"
        )
        statement = statement.replace("job_ready", name)
    before = store.ours()

    with pytest.raises((Invalid, asyncpg.PostgresError)) as caught:
        store.do(send(statement.replace("{schema}", store.place.schema).replace("{{", "{").replace("}}", "}")))
    if isinstance(caught.value, Invalid):
        assert "Holdfast's" in str(caught.value)
    assert store.ours() == before
    assert store.rows() == []
    store.do(put(2))
    assert store.rows() == [2]


@pytest.mark.parametrize(
    "ways",
    [
        ["create view seen as select count(*) from {schema}.job", "body: select * from seen"],
        [
            "create function sly() returns trigger language plpgsql as "
            "$$ begin delete from {schema}.step; return new; end $$",
            "create trigger sly after insert on mine for each row execute function sly()",
            "body: insert into mine (n) values (2)",
        ],
        [
            "create function sly() returns trigger language plpgsql as "
            "$$ begin delete from {schema}.step; return new; end $$",
            "create constraint trigger sly after insert on mine deferrable initially deferred "
            "for each row execute function sly()",
            "body: insert into mine (n) values (2)",
        ],
    ],
)
def test_nothing_that_the_user_made_reaches_our_tables_from_within(store, ways):
    store.sql(*ways[:-1])
    before = store.ours()
    try:
        with pytest.raises(Invalid, match="is Holdfast's own"):
            store.do(send(ways[-1].removeprefix("body: ")))
        assert (store.ours(), store.rows()) == (before, [])
    finally:
        store.sql("drop view if exists seen", "drop function if exists sly cascade")


def test_what_a_body_leaves_on_the_connection_is_gone_for_the_next(postgres_store, run):
    store = Store(f"{postgres_store}&connections=1", run)
    store.sql("drop role if exists lesser", "create role lesser")
    seen = []

    async def look(db):
        seen.append(
            await db.fetchrow(
                "select pg_backend_pid(), current_user, current_setting('search_path'), current_setting('work_mem'),"
                " to_regclass('leftover'), (select count(*) from pg_locks where locktype = 'advisory' and objid = 77"
                " and pid = pg_backend_pid()), current_setting('statement_timeout')"
            )
        )

    async def leave(db):
        await db.execute("create temp table leftover (n int)")
        await db.execute("set work_mem = '1MB'")
        await db.execute("set statement_timeout = 1000")
        await db.execute("set search_path = nowhere")
        await db.execute("select pg_advisory_lock(77)")
        await db.execute("set role lesser")

    store.do(look, "pay#1")
    store.do(leave, "pay#2")
    store.do(look, "pay#3")
    assert seen[0] == seen[1], "the same connection, as it was"
    assert store.records() == ["pay#1", "pay#2", "pay#3"], "whatever role and path the body chose for itself"
    run(store.engine.close())
    store.sql("drop role lesser", "drop table mine")


def test_a_role_with_the_rights_of_a_worker_is_enough(store, run):
    page = (Path(__file__).parents[3] / "docs" / "guides" / "postgres.md").read_text()
    [roles] = re.findall(r"```sql\n(create role.*?)```", page, re.DOTALL)
    store.sql(
        "drop role if exists holdfast_worker", *roles.replace("schema holdfast", "schema {schema}").split(";\n")[:-1]
    )
    store.sql("grant all on mine to holdfast_worker")
    kept, url = store.engine, store.place.dsn.replace("//postgres@", "//holdfast_worker@")
    try:
        store.engine = engine_for(f"{url}?schema={store.place.schema}")
        run(store.engine.open())
        store.do(put(1))
        with pytest.raises(Invalid, match="is Holdfast's own"):
            store.do(lambda db: db.execute(f"select * from {store.place.schema}.job"), "pay#2")
        assert store.rows() == [1]
    finally:
        run(store.engine.close())
        store.engine = kept
        store.sql("drop owned by holdfast_worker", "drop role holdfast_worker")


def test_what_is_handed_out_is_dead_afterwards_and_gives_nothing_away(store):
    kept = []

    async def body(db):
        kept.extend([db, db.sync, db.sync.execute])
        for face in (db, db.sync):
            for name in ("commit", "rollback", "close", "terminate", "prepare", "copy_to_table", "add_listener"):
                with pytest.raises(AttributeError, match="ends with the step"):
                    getattr(face, name)
            assert not [name for name in dir(face) if not name.startswith("_") and "session" in name]

    store.do(body)
    connection, blocking, execute = kept
    for use in (
        lambda: store.run(connection.execute("insert into mine (n) values (1)")),
        lambda: store.run(connection.fetch("select 1")),
        lambda: blocking.execute("insert into mine (n) values (1)"),
        lambda: blocking.cursor().execute("select 1"),
        lambda: blocking.executemany("insert into mine (n) values ($1)", [(1,)]),
        lambda: execute("select 1"),
        lambda: blocking.transaction().__enter__(),
    ):
        with pytest.raises(Invalid, match="the step and its transaction have ended"):
            use()
    assert store.rows() == []


# The lease, and answers that were lost.


def test_a_job_can_be_taken_over_while_the_body_runs_and_then_nothing_of_it_is_kept(store):
    """A worker that hangs in the middle keeps nobody waiting, and writes nothing when it comes back."""

    async def scene():
        begun, go = asyncio.Event(), asyncio.Event()

        async def body(db):
            await db.execute("insert into mine (n) values (1)")
            begun.set()
            await go.wait()

        zombie = asyncio.ensure_future(store.transact(body))
        await begun.wait()
        began = time.monotonic()
        fresh = await taken_over(store.engine, store.clock, store.job)
        await store.transact(put(2), job=fresh)
        took = time.monotonic() - began
        go.set()
        return await zombie, took

    answer, took = store.run(asyncio.wait_for(scene(), 20))
    assert isinstance(answer, Conflict)
    assert took < 5, "nobody waited for the body"
    assert (store.rows(), store.records()) == ([2], ["pay#1"])


def test_other_steps_of_the_job_are_recorded_while_the_body_runs(store):
    async def scene():
        async def body(db):
            await db.execute("insert into mine (n) values (1)")
            async with asyncio.timeout(5):
                await store.engine.record([step(store.job, "plain#1")])

        return await store.transact(body)

    assert isinstance(store.run(scene()), Recorded)
    assert store.records() == ["plain#1", "pay#1"]


@pytest.mark.parametrize("writes", ["the same row", "another row"])
def test_of_two_tries_at_once_one_is_kept_and_both_hear_of_it(store, writes):
    """A commit whose answer was lost may still be under way when the step is tried again."""

    async def scene():
        begun, go = asyncio.Event(), asyncio.Event()

        async def first(db):
            await db.execute("insert into mine (n) values (1)")
            begun.set()
            await go.wait()
            return "first"

        async def second(db):
            begun.set()
            insert = db.execute("insert into mine (n) values ($1)", 1 if writes == "the same row" else 2)
            asyncio.get_running_loop().call_later(0.2, go.set)
            if writes == "another row":
                await asyncio.wait([under_way])
            await insert  # the same row waits for the first one's commit, and then is there already
            return "second"

        under_way = asyncio.ensure_future(store.transact(first))
        await begun.wait()
        return await asyncio.gather(under_way, store.transact(second))

    first, second = store.run(asyncio.wait_for(scene(), 20))
    assert (first.step.result, first.first) == ('"first"', True)
    assert (second.step.result, second.first) == ('"first"', False)
    assert store.rows() == [1]


@pytest.mark.parametrize("level", ["serializable", "repeatable read"])
def test_a_stricter_isolation_is_the_body_s_to_choose_and_is_fenced_too(store, level):
    async def body(db):
        await db.execute(f"set transaction isolation level {level}")
        await db.execute("insert into mine (n) values (1)")

    async def stolen(db):
        await body(db)
        await taken_over(store.engine, store.clock, store.job)

    with pytest.raises(StoreBusy):  # which is tried again, and then told that the lease is over
        store.do(stolen, "pay#2")
    assert isinstance(store.do(body), Conflict)
    assert store.rows() == []


# Time, and trouble.


@pytest.fixture
def hasty(monkeypatch):
    """A limit that a test can wait for."""
    monkeypatch.setattr(transactions, "LIMIT_SECONDS", 0.3)


@pytest.mark.parametrize("colour", ["async", "def"])
def test_a_statement_without_an_end_is_stopped_on_the_server_and_taken_back(store, hasty, colour):
    heard = []

    def in_def(db):
        put(1)(db)
        try:
            db.execute("select pg_sleep(60)")
        except TimeoutError as error:
            heard.append(str(error))
            raise

    in_async = send("select pg_sleep(60)")
    began = time.monotonic()
    with pytest.raises(TimeoutError, match=r"kept its transaction open for more than 0.3 s, so it was rolled back"):
        store.do(in_async if colour == "async" else in_def)
    assert time.monotonic() - began < 5
    assert (store.rows(), store.records()) == ([], [])
    assert store.sql(
        "select count(*) from pg_stat_activity where query like 'select pg_sleep%' and state = 'active'"
    ) == [(0,)]
    store.do(put(2))
    assert store.rows() == [2]
    assert len(heard) == (colour == "def")


def test_code_that_does_not_come_back_holds_no_transaction(store, hasty):
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
        with pytest.raises(TimeoutError, match="kept its transaction open"):
            await store.transact(body)
        go.set()
        assert await asyncio.to_thread(told.wait, 10)

    store.run(asyncio.wait_for(scene(), 10))
    assert "rolled back" in heard[0]
    assert (store.rows(), store.records(), store.sql(BLOCKS)) == ([], [], [(0,)])


def test_an_event_loop_that_hangs_holds_no_transaction(store, hasty):
    """The hub doesn't rely on the caller's loop to hear that the time is over."""

    async def body(db):
        await db.execute("insert into mine (n) values (1)")
        time.sleep(1)  # noqa: ASYNC251 (this is the hanging loop)
        assert store.sql(BLOCKS) == [(0,)]

    with pytest.raises(TimeoutError, match="kept its transaction open"):
        store.do(body)
    assert (store.rows(), store.records()) == ([], [])


def test_a_caller_who_is_cancelled_stops_its_statement_on_the_server(store, caplog):
    async def scene():
        task = asyncio.ensure_future(store.transact(send("select pg_sleep(50)")))
        await asyncio.sleep(0.5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return await store.transact(put(2))

    assert isinstance(store.run(asyncio.wait_for(scene(), 10)), Recorded)
    assert store.sql(
        "select count(*) from pg_stat_activity where query like 'select pg_sleep%' and state = 'active'"
    ) == [(0,)]
    assert (store.rows(), store.sql(BLOCKS)) == ([2], [(0,)])
    gc.collect()
    assert caplog.text == "", "nobody is told of errors that nobody waits for"


@pytest.mark.parametrize("swallowed", [False, True])
def test_a_connection_that_broke_is_the_store_s_trouble_and_not_the_body_s(store, swallowed):
    async def body(db):
        await db.execute("insert into mine (n) values (1)")
        try:
            await db.execute("select pg_terminate_backend(pg_backend_pid())")
        except asyncpg.PostgresError:
            if not swallowed:
                raise

    with pytest.raises(StoreError, match="can't be reached"):
        store.do(body)
    assert (store.rows(), store.records()) == ([], [])
    store.do(put(2))
    assert store.rows() == [2]


def test_a_table_that_was_altered_meanwhile_is_trouble_that_passes(store):
    async def body(db):
        return await db.fetchval("select t from mine limit 1")

    store.do(body, "pay#1")
    store.sql("alter table mine alter column t type varchar(9)")
    with pytest.raises(StoreBusy, match="was altered at the same time"):
        store.do(body, "pay#2")
    store.do(body, "pay#2")


def test_many_at_once_leave_the_other_acts_alone(store):
    """Bodies have connections of their own: however many there are, no record, claim or beat waits for one."""

    async def scene():
        begun, go = asyncio.Event(), asyncio.Event()

        async def slow(db):
            begun.set()
            await go.wait()

        many = [asyncio.ensure_future(store.transact(slow, f"pay#{n}")) for n in range(20)]
        await begun.wait()
        for n in range(10):
            await store.engine.record([step(store.job, f"plain#{n}")])
        assert not any(task.done() for task in many)
        go.set()
        await asyncio.gather(*many)

    store.run(asyncio.wait_for(scene(), 20))
    assert len(store.records()) == 30


def test_a_close_takes_back_what_is_under_way(store):
    async def scene():
        begun = asyncio.Event()

        async def body(db):
            await db.execute("insert into mine (n) values (1)")
            begun.set()
            await asyncio.sleep(60)

        task = asyncio.ensure_future(store.transact(body))
        await begun.wait()
        began = time.monotonic()
        await store.engine.close()
        with pytest.raises(StoreClosed):
            await task
        return time.monotonic() - began

    assert store.run(asyncio.wait_for(scene(), 20)) < 5
    assert (store.rows(), store.sql(BLOCKS)) == ([], [(0,)])


def test_it_works_by_way_of_a_pooler_too(store, run):
    """No session state, no prepared statement that outlives its transaction."""
    url = f"{store.place.dsn}?schema={store.place.schema}&pooler=transaction"
    engine, kept = engine_for(url), store.engine
    run(engine.open())
    store.engine = engine
    try:
        store.do(put(1, 2))
        with pytest.raises(ValueError, match="no"):

            async def body(db):
                await db.execute("insert into mine (n) values (3)")
                raise ValueError("no")

            store.do(body, "pay#2")
    finally:
        store.engine = kept
        run(engine.close())
    assert (store.rows(), store.records()) == ([1, 2], ["pay#1"])
