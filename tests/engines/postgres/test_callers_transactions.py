"""Submitting inside the caller's own transaction: commit makes the job, rollback leaves nothing, on every driver."""

import asyncio
import re
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from holdfast import App, Unique
from holdfast.core.errors import Duplicate, Invalid, KeyConflict, Moved, QueueFull
from holdfast.core.model import State
from holdfast.core.moves import MOVED, Mark
from holdfast.engines.postgres.url import parse_url


class Undone(Exception):
    """Why a transaction is rolled back."""


@asynccontextmanager
async def on_asyncpg(dsn: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(dsn)
    try:
        async with connection.transaction():
            yield connection
    finally:
        await connection.close()


@asynccontextmanager
async def on_asyncpg_pool(dsn: str) -> AsyncIterator[Any]:
    async with (
        asyncpg.create_pool(dsn, min_size=1, max_size=1) as pool,
        pool.acquire() as connection,
        connection.transaction(),
    ):
        yield connection


@asynccontextmanager
async def on_psycopg(dsn: str) -> AsyncIterator[Any]:
    async with await psycopg.AsyncConnection.connect(dsn, row_factory=psycopg.rows.dict_row) as connection:
        yield connection


@asynccontextmanager
async def on_sqlalchemy(dsn: str, driver: str = "asyncpg") -> AsyncIterator[Any]:
    engine = create_async_engine(dsn.replace("postgresql:", f"postgresql+{driver}:"))
    try:
        async with engine.begin() as connection:
            yield connection
    finally:
        await engine.dispose()


@asynccontextmanager
async def on_sqlalchemy_psycopg(dsn: str) -> AsyncIterator[Any]:
    async with on_sqlalchemy(dsn, "psycopg") as connection:
        yield connection


@asynccontextmanager
async def on_async_session(dsn: str) -> AsyncIterator[Any]:
    engine = create_async_engine(dsn.replace("postgresql:", "postgresql+asyncpg:"))
    try:
        async with AsyncSession(engine) as session, session.begin():
            yield session
    finally:
        await engine.dispose()


@contextmanager
def on_sync_psycopg(dsn: str) -> Iterator[Any]:
    with psycopg.connect(dsn) as connection:
        yield connection


@contextmanager
def on_sync_sqlalchemy(dsn: str) -> Iterator[Any]:
    engine = sqlalchemy.create_engine(dsn.replace("postgresql:", "postgresql+psycopg:"))
    try:
        with engine.begin() as connection:
            yield connection
    finally:
        engine.dispose()


@contextmanager
def on_session(dsn: str) -> Iterator[Any]:
    engine = sqlalchemy.create_engine(dsn.replace("postgresql:", "postgresql+psycopg:"))
    try:
        with Session(engine) as session, session.begin():
            yield session
    finally:
        engine.dispose()


ASYNC = [on_asyncpg, on_asyncpg_pool, on_psycopg, on_sqlalchemy, on_sqlalchemy_psycopg, on_async_session]
SYNC = [on_sync_psycopg, on_sync_sqlalchemy, on_session]


def app_on(url: str) -> App:
    app = App(url)

    @app.job
    async def double(n: int) -> int:
        return 2 * n

    app.double = double  # type: ignore[attr-defined]
    return app


async def count(app: App) -> int:
    return sum((await app.engine.count()).values())


@pytest.mark.parametrize("begun", ASYNC, ids=lambda begun: begun.__name__)
def test_a_job_is_there_with_the_commit_and_never_after_a_rollback(postgres_store: str, run, begun: Any):
    async def live() -> None:
        app: Any = app_on(postgres_store)
        await app.open()
        dsn = parse_url(postgres_store).dsn
        async with begun(dsn) as connection:
            kept = await app.double.submit(4, key="order-4", tags=["a"], delay=0, connection=connection)
            more = await app.double.submit_many([5, 6], connection=connection)
            assert await count(app) == 0, "nobody sees it yet"
        assert await count(app) == 3
        with pytest.raises(Undone):
            async with begun(dsn) as connection:
                await app.double.submit(7, connection=connection)
                raise Undone
        assert await count(app) == 3
        async with app.worker():
            assert [await one.result(10) for one in (kept, *more)] == [8, 10, 12]
        await app.close()

    run(live())


@pytest.mark.parametrize("begun", SYNC, ids=lambda begun: begun.__name__)
def test_blocking_code_does_the_same(postgres_store: str, run, begun: Any):
    app: Any = app_on(postgres_store)
    run(app.open())
    dsn = parse_url(postgres_store).dsn
    with begun(dsn) as connection:
        app.sync.submit(app.double, 4, connection=connection)
        assert run(count(app)) == 0
    assert run(count(app)) == 1
    with pytest.raises(Undone), begun(dsn) as connection:
        app.sync.submit(app.double, 5, connection=connection)
        raise Undone
    assert run(count(app)) == 1
    run(app.close())


@pytest.mark.parametrize("begun", ASYNC, ids=lambda begun: begun.__name__)
def test_an_event_is_emitted_with_the_commit_and_never_after_a_rollback(postgres_store: str, run, begun: Any):
    async def live() -> None:
        app: Any = app_on(postgres_store)
        app.on("number.given")(app.double)

        @app.on("number.given")
        @app.job
        async def negate(n: int) -> int:
            return -n

        await app.open()
        dsn = parse_url(postgres_store).dsn
        with pytest.raises(Undone):
            async with begun(dsn) as connection:
                assert len(await app.emit("number.given", 4, id="evt-1", connection=connection)) == 2
                raise Undone
        assert await count(app) == 0
        async with begun(dsn) as connection:
            runs = await app.emit("number.given", 4, id="evt-1", connection=connection)
            again = await app.emit("number.given", 4, id="evt-1", connection=connection)
            assert await count(app) == 0, "nobody sees it yet"
        assert [one.id for one in again] == [one.id for one in runs]
        assert [one.id for one in await app.emit("number.given", 4, id="evt-1")] == [one.id for one in runs]
        assert await count(app) == 2
        async with app.worker():
            assert sorted([await one.result(10) for one in runs]) == [-4, 8]
        await app.close()

    run(live())


@pytest.mark.parametrize("begun", SYNC, ids=lambda begun: begun.__name__)
def test_blocking_code_emits_an_event_with_its_commit(postgres_store: str, run, begun: Any):
    app: Any = app_on(postgres_store)
    app.on("number.given")(app.double)
    run(app.open())
    dsn = parse_url(postgres_store).dsn
    with pytest.raises(Undone), begun(dsn) as connection:
        app.sync.emit("number.given", 5, id="evt-1", connection=connection)
        raise Undone
    assert run(count(app)) == 0
    with begun(dsn) as connection:
        app.sync.emit("number.given", 5, id="evt-1", connection=connection)
        assert run(count(app)) == 0
    assert run(count(app)) == 1
    run(app.close())


def test_a_worker_hears_of_it_soon_after_the_commit(postgres_store: str, run):
    async def live() -> None:
        app: Any = app_on(postgres_store)
        async with app.worker():
            await (await app.double.submit(1)).result(10)
            async with on_asyncpg(parse_url(postgres_store).dsn) as connection:
                late = await app.double.submit(2, connection=connection)
                await asyncio.sleep(0.5)
                assert (await app.engine.get([late.id])) == [None]
            began = time.monotonic()
            assert await late.result(10) == 4
            assert time.monotonic() - began < 3, "not only when the worker looks by itself"
        await app.close()

    run(live())


def test_a_unique_name_is_kept_with_the_commit_and_given_back_by_a_rollback(postgres_store: str, run):
    async def live() -> None:
        app: Any = app_on(postgres_store)
        await app.open()
        dsn, same = parse_url(postgres_store).dsn, Unique(by=("args",))
        with pytest.raises(Undone):
            async with on_asyncpg(dsn) as connection:
                await app.double.submit(1, unique=same, connection=connection)
                raise Undone
        async with on_psycopg(dsn) as connection:
            first = await app.double.submit(1, unique=same, connection=connection)
            again = await app.double.submit(1, unique=same, connection=connection)
        assert first.id == again.id == (await app.double.submit(1, unique=same)).id
        async with on_asyncpg(dsn) as connection:
            with pytest.raises(Duplicate) as refused:
                await app.double.submit(1, unique=Unique(by=("args",), then="refuse"), connection=connection)
            with pytest.raises(Invalid, match=r"then='replace' can't be part of your transaction \(connection=\)"):
                await app.double.submit(1, unique=Unique(by=("args",), then="replace"), connection=connection)
        assert refused.value.existing.id == first.id
        assert await count(app) == 1
        await app.close()

    run(live())


def test_a_key_is_kept_with_the_commit_and_given_back_by_a_rollback(postgres_store: str, run):
    async def live() -> None:
        app: Any = app_on(postgres_store)
        await app.open()
        dsn = parse_url(postgres_store).dsn
        with pytest.raises(Undone):
            async with on_asyncpg(dsn) as connection:
                await app.double.submit(1, key="k", connection=connection)
                raise Undone
        async with on_asyncpg(dsn) as connection:
            first = await app.double.submit(2, key="k", connection=connection)
            again = await app.double.submit(2, key="k", connection=connection)
        assert first.id == again.id
        with pytest.raises(KeyConflict):
            async with on_asyncpg(dsn) as connection:
                await app.double.submit(3, key="k", connection=connection)
        assert await app.engine.count() == {("default", State.AVAILABLE): 1}
        await app.close()

    run(live())


@pytest.mark.parametrize("begun", ASYNC, ids=lambda begun: begun.__name__)
def test_a_store_whose_jobs_are_moved_waits_for_callers_and_then_refuses_them(postgres_store: str, run, begun: Any):
    async def live() -> None:
        app: Any = app_on(postgres_store)
        await app.open()
        dsn, mark = parse_url(postgres_store).dsn, Mark(move="m", away=True, store="sqlite:////srv/new.db").text()
        async with begun(dsn) as connection:
            await app.double.submit(4, connection=connection)
            marking = asyncio.create_task(app.engine.put_record(MOVED, mark))
            await asyncio.wait([marking], timeout=0.3)
            assert not marking.done(), "what is under way would be lost"
        await marking
        assert len(await app.engine.in_order()) == 1
        with pytest.raises(Moved, match=r"sqlite:////srv/new\.db"):
            async with begun(dsn) as connection:
                await app.double.submit(5, connection=connection)
        assert await count(app) == 1
        await app.close()

    run(live())


def test_what_is_no_connection_and_a_store_without_transactions_are_refused(postgres_store: str, run, tmp_path: Path):
    async def live() -> None:
        app: Any = app_on(postgres_store)
        await app.open()
        with pytest.raises(Invalid, match="asyncpg, psycopg or SQLAlchemy"):
            await app.double.submit(1, connection=object())
        other: Any = app_on(f"sqlite:///{tmp_path / 'jobs.db'}")
        with pytest.raises(Invalid, match="a sqlite store can't take part in your transaction; submit after"):
            await other.double.submit(1, connection=object())
        assert await count(app) == 0
        await other.close()
        await app.close()

    run(live())


@pytest.mark.parametrize("begun", ASYNC, ids=lambda begun: begun.__name__)
def test_a_connection_to_a_database_without_the_store_is_refused(postgres_store: str, run, begun: Any):
    async def live() -> None:
        app: Any = app_on(postgres_store)
        await app.open()
        with pytest.raises(
            Invalid, match="connection=: its database doesn't have this store; pass a connection to postgres"
        ):
            async with begun(re.sub(r"/\w+($|\?)", r"/template1\1", parse_url(postgres_store).dsn)) as connection:
                await app.double.submit(1, connection=connection)
        assert await count(app) == 0
        await app.close()

    run(live())


def test_a_session_that_is_another_one_in_each_thread_is_refused_and_the_one_behind_it_taken(postgres_store: str, run):
    """As web frameworks hand it out. Blocking calls run on a thread of their own: what they wrote would be lost."""
    app = App(postgres_store)

    @app.job(name="hello")
    async def hello(n: int) -> None: ...

    engine = sqlalchemy.create_engine(parse_url(postgres_store).dsn.replace("postgresql:", "postgresql+psycopg:"))
    session = scoped_session(sessionmaker(engine))
    with pytest.raises(Invalid, match="it gives each thread another session; call it"):
        app.sync.submit(hello, 1, connection=session)
    made = app.sync.submit(hello, 1, connection=session())
    session.commit()
    assert made.status().state is State.AVAILABLE
    session.remove()
    engine.dispose()
    run(app.close())


def test_a_connection_without_a_transaction_is_refused(postgres_store: str, run) -> None:
    async def try_all() -> None:
        app = App(postgres_store)

        @app.job(name="hello")
        async def hello(n: int) -> None: ...

        dsn = parse_url(postgres_store).dsn
        async with asyncpg.create_pool(dsn, min_size=1, max_size=1) as pool:
            with pytest.raises(Invalid, match="it has no open transaction"):
                await hello.submit(1, connection=pool)
            async with pool.acquire() as connection:
                with pytest.raises(Invalid, match="it has no open transaction"):
                    await hello.submit(1, connection=connection)
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as by_itself:
            with pytest.raises(Invalid, match="it has no open transaction"):
                await hello.submit(1, connection=by_itself)
            async with by_itself.transaction():
                await hello.submit(1, connection=by_itself)
        for driver in ("asyncpg", "psycopg"):
            engine = create_async_engine(dsn.replace("postgresql:", f"postgresql+{driver}:"))
            with pytest.raises(Invalid, match="it has no open transaction"):
                await hello.submit(1, connection=engine)
            commits = engine.execution_options(isolation_level="AUTOCOMMIT")
            async with commits.connect() as connection, AsyncSession(commits) as session:  # type: ignore[assignment]
                for by_itself in (connection, session):  # type: ignore[assignment]
                    with pytest.raises(Invalid, match="it has no open transaction"):
                        await hello.submit(1, connection=by_itself)
            async with engine.connect() as connection:  # type: ignore[assignment]  # begins with the first statement
                await hello.submit(1, connection=connection)
            await engine.dispose()
        assert sum((await app.engine.count()).values()) == 1
        await app.close()

    run(try_all())


SUBMITS_AND_ENDS = """
import asyncio, sys
from holdfast import App

app = App(sys.argv[1])

@app.job(name="hello")
async def hello(n: int) -> None: ...

if sys.argv[2] == "sync":
    app.sync.submit(hello, 1)
else:
    async def main(): await hello.submit(1)
    asyncio.run(main())
"""


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_a_job_of_a_process_that_ends_at_once_is_heard_of(postgres_store: str, run, colour: str) -> None:
    async def hear() -> None:
        app, ran = App(postgres_store), asyncio.Event()

        @app.job(name="hello")
        async def hello(n: int) -> None:
            ran.set()

        async with app.worker():
            for _ in range(3):
                ran.clear()
                process = await asyncio.create_subprocess_exec(
                    sys.executable, "-c", SUBMITS_AND_ENDS, postgres_store, colour
                )
                assert await process.wait() == 0
                async with asyncio.timeout(5):  # by itself the worker looks every 15 s
                    await ran.wait()
        await app.close()

    run(hear())


def test_a_full_queue_sheds_nobody_for_a_transaction_that_may_roll_back(postgres_store: str, run):
    async def live() -> None:
        app: Any = app_on(postgres_store)
        app.queue("default", most_waiting=1, when_full="shed_oldest")
        first = await app.double.submit(1, key="k")
        async with on_asyncpg(parse_url(postgres_store).dsn) as connection:
            assert (await app.double.submit(1, key="k", connection=connection)).id == first.id
            with pytest.raises(QueueFull, match=r"jobs can't be shed in your transaction \(connection=\)"):
                await app.double.submit(2, connection=connection)
        assert (await first.status()).state == "available"
        await app.close()

    run(live())


def test_open_transactions_with_jobs_of_one_fair_key_hold_up_nobody(postgres_store: str, run):
    async def live() -> None:
        app = App(postgres_store)

        @app.job(fair="{customer}")
        async def render(customer: str, page: int) -> None: ...

        engine = (await app.open()).engine
        await render.submit("small", 1)
        [first] = await engine.claim("w-1", ["default"], 1)  # there is a round
        await render.submit("small", 2)
        dsn = parse_url(postgres_store).dsn
        async with on_asyncpg(dsn) as one, on_asyncpg(dsn) as other:
            async with asyncio.timeout(20):
                await render.submit("small", 3, connection=one)
                await render.submit("small", 4, connection=other)
                await render.submit("small", 5)
                claimed = [job.args for _ in range(2) for job in await engine.claim("w-1", ["default"], 1)]
            assert claimed == ['["small",2]', '["small",5]']
        assert first.args == '["small",1]'
        left = [job.args for job in await engine.claim("w-1", ["default"], 5)]
        assert left == ['["small",3]', '["small",4]']
        await app.close()

    run(live())
