"""Migrations of the SQLite schema: forward only, whole or not at all, and safe when many processes start at once."""

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.conformance.given import StoreClock, change, claimed, step
from holdfast.core.errors import StoreError
from holdfast.core.model import Admission, Ask, Event, Options, State, Use
from holdfast.core.shared_limits import LIMIT
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


def test_the_migrations_are_numbered_in_order_and_set_their_own_version():
    steps = migrations(PACKAGE)

    assert [number for number, _ in steps] == sorted({number for number, _ in steps})
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


WITHOUT_LIMITS = """
drop index job_ready;
drop index holdfast_limited;
drop index holdfast_parked;
drop index holdfast_fair;
drop view whole;
drop table holdfast_permit;
drop table holdfast_waiting;
alter table job drop column limit_key;
alter table job drop column parked_key;
alter table job drop column fair;
create index job_ready on job (queue, type, priority desc, run_at) where state = 'available';
create view whole as
  select job.n, id, type, queue, args, digest, priority, key, key_until, parent, family, created_at, expires_at,
    options, state, version, run_at, epoch, attempt, recoveries, worker, claimed_at, waits, result, error,
    finished_at, prune_at, inbox, arrived
  from job join body on body.n = job.n;
pragma user_version = 4;
"""
"""What makes a store of version 4 of a newer one."""

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
    db.executescript(WITHOUT_LIMITS)
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


def test_a_store_without_limits_is_opened_and_its_jobs_wait_for_permits_from_then_on(tmp_path, run):
    engine = SqliteEngine(tmp_path / "jobs.db")
    run(engine.open())
    held = run(claimed(engine, CLOCK))
    jobs = [job(CLOCK.now, priority=n) for n in range(3)]
    later = job(CLOCK.now, state=State.SCHEDULED)
    run(engine.insert([*jobs, later]))
    run(engine.close())
    with sqlite3.connect(engine.path) as db:  # as the version before has made it
        db.executescript(WITHOUT_LIMITS)
    db.close()

    again = SqliteEngine(engine.path)
    run(again.open())
    run(again.put_record(LIMIT + "api", '{"at_once":1}'))
    limited = [job(CLOCK.now + 1, options=Options(limits=(Use("api"),))) for _ in range(2)]
    run(again.insert(limited))

    taken = run(again.claim("w-1", ["default"], 9))
    assert [one.id for one in taken] == [jobs[2].id, jobs[1].id, jobs[0].id, later.id, limited[0].id]
    ask = Ask(job=held.id, epoch=held.epoch, path="draw#1", uses=(Use("api"),))
    assert run(again.admit([ask])) == ([Admission(False, "api", None)], [])
    run(again.commit([change(CLOCK, taken[-1], Event.COMPLETE)]))
    assert run(again.admit([ask])) == ([Admission(True)], [])
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
