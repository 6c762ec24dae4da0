"""Migrations of the SQLite schema: forward only, whole or not at all, and safe when many processes start at once."""

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.conformance.given import StoreClock, claimed, step
from holdfast.core.errors import StoreError
from holdfast.core.model import State
from holdfast.engines.sql import migrations
from holdfast.engines.sqlite import SqliteEngine, store
from tests.support.samples import job

CLOCK = StoreClock(settable=False)
PACKAGE = "holdfast.engines.sqlite"
LAST = migrations(PACKAGE)[-1][0]
NEXT = f"create table later (n integer primary key) strict;\npragma user_version = {LAST + 1};\n"


@pytest.fixture
def path(tmp_path: Path, run) -> Path:
    """A store with one job in it."""
    engine = SqliteEngine(tmp_path / "jobs.db")
    run(engine.open())
    run(engine.insert([job()]))
    run(engine.close())
    return engine.path


def look(path: Path, sql: str) -> list[tuple[object, ...]]:
    db = sqlite3.connect(path)
    try:
        return db.execute(sql).fetchall()
    finally:
        db.close()


def test_the_migrations_are_numbered_without_a_gap_and_set_their_own_version():
    steps = migrations(PACKAGE)

    assert [number for number, _ in steps] == list(range(1, len(steps) + 1))
    assert all(f"pragma user_version = {number};" in text for number, text in steps)


def test_an_older_store_is_brought_up_to_date_with_all_that_is_in_it(path, run, monkeypatch):
    monkeypatch.setattr(store, "migrations", lambda package: [*migrations(package), (LAST + 1, NEXT)])
    engine = SqliteEngine(path)

    run(engine.open())

    assert run(engine.count()) == {("default", State.AVAILABLE): 1}
    run(engine.close())
    assert look(path, "pragma user_version") == [(LAST + 1,)]
    assert look(path, "select count(*) from later") == [(0,)]


def test_a_migration_that_fails_leaves_the_store_as_it_was(path, run, monkeypatch):
    broken = NEXT.replace("pragma", "select nonsense;\npragma")
    monkeypatch.setattr(store, "migrations", lambda package: [*migrations(package), (LAST + 1, broken)])

    with pytest.raises(StoreError, match="nonsense"):
        run(SqliteEngine(path).open())

    assert look(path, "pragma user_version") == [(LAST,)]
    assert look(path, "select count(*) from sqlite_schema where name = 'later'") == [(0,)]
    monkeypatch.undo()
    engine = SqliteEngine(path)
    run(engine.open())
    assert run(engine.count()) == {("default", State.AVAILABLE): 1}
    run(engine.close())


OLD_STEP = """
insert into step (job, path, name, state, epoch, started_at, finished_at, error, result)
select n, 'draw#2', 'draw', 'done', epoch, 1, 2, null, '"two"' from job
"""


def test_a_store_without_the_number_of_tries_is_opened_and_an_older_worker_goes_on(tmp_path, run):
    engine = SqliteEngine(tmp_path / "jobs.db")
    run(engine.open())
    held = run(claimed(engine, CLOCK))
    run(engine.record([step(held, "draw#1")]))
    run(engine.close())
    db = sqlite3.connect(engine.path)  # as the version before has made it
    db.executescript("alter table step drop column tries; alter table job drop column summed; drop table summary;")
    db.executescript("pragma user_version = 2;")

    again = SqliteEngine(engine.path)
    run(again.open())
    with db:
        db.execute(OLD_STEP)  # a worker that has been running since before
    db.close()
    run(again.record([step(held, "draw#3", tries=3)]))

    assert [one.tries for one in run(again.steps(held.id))] == [1, 1, 3]
    assert [one.total.done for one in run(again.summaries([held.id]))] == [3]
    run(again.close())
    assert look(engine.path, "pragma user_version") == [(LAST,)]


STARTER = """
import asyncio, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from holdfast.engines.sqlite import SqliteEngine
from tests.support.samples import job

async def main():
    engine = SqliteEngine(Path(sys.argv[1]))
    print("ready", flush=True)
    sys.stdin.readline()
    await engine.open()
    await engine.insert([job()])
    await engine.close()

asyncio.run(main())
"""


def test_many_processes_may_start_at_once_on_a_store_that_is_not_there_yet(tmp_path, run):
    path, root = tmp_path / "jobs.db", Path(__file__).parents[3]
    starters = [
        subprocess.Popen(
            [sys.executable, "-c", STARTER, path, root], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(6)
    ]
    for starter in starters:
        assert starter.stdout.readline() == "ready\n"

    for starter in starters:
        starter.stdin.write("go\n")
        starter.stdin.flush()

    for starter in starters:
        starter.communicate(timeout=60)
    assert [starter.returncode for starter in starters] == [0] * 6
    engine = SqliteEngine(path)
    run(engine.open())
    assert run(engine.count()) == {("default", State.AVAILABLE): 6}
    run(engine.close())
