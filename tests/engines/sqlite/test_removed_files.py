"""Somebody removes files of a SQLite store under living processes: it is noticed and said, and nothing is lost."""

import json
import logging
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from holdfast.cli import main
from holdfast.core.errors import StoreLost
from holdfast.core.model import Presence, State
from holdfast.engines.records import WORKER
from holdfast.engines.sqlite import SqliteEngine
from holdfast.jobs.service import JobRequest, Jobs

LOG, MEMORY = "jobs.db-wal", "jobs.db-shm"
LEASE_SECONDS = 2
"""As in APP."""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "jobs.db"


@pytest.fixture
def opened(path, run):
    """Opens engines on one file, as several processes would."""
    engines = []

    def another() -> SqliteEngine:
        engine = SqliteEngine(path)
        run(engine.open())
        engines.append(engine)
        return engine

    yield another
    for engine in engines:
        run(engine.close())


async def submitted(engine: SqliteEngine, number: int = 1) -> list[str]:
    return [one.id for one in await Jobs(engine).submit([JobRequest(type="t")] * number)]


def in_sqlite(path: Path, statement: str) -> str:
    """What another process is answered."""
    code = f"""
    import sqlite3
    db = sqlite3.connect({str(path)!r}, isolation_level=None)
    print(*(db.execute({statement!r}).fetchone() or ()))
    """
    words = [sys.executable, "-c", textwrap.dedent(code)]
    return subprocess.run(words, check=True, capture_output=True, text=True, timeout=60).stdout.strip()


def read_elsewhere(path: Path) -> int:
    """How many jobs another process finds."""
    assert in_sqlite(path, "pragma integrity_check") == "ok"
    return int(in_sqlite(path, "select count(*) from job"))


@pytest.mark.parametrize("names", [(LOG, MEMORY), (LOG,), (MEMORY,)], ids=["both", "the log", "the shared memory"])
def test_a_log_that_was_removed_is_put_back_and_nothing_more_is_written(path, run, opened, names):
    first = opened()
    run(submitted(first, 50))
    for name in names:
        (path.parent / name).unlink()

    with pytest.raises(StoreLost, match="no acknowledged work is lost; restart this process") as told:
        run(submitted(first))
    assert "\n" not in str(told.value)
    for call in (first.count(), first.claim("w-1", ["default"], 1), first.records("")):
        with pytest.raises(StoreLost):
            run(call)

    assert read_elsewhere(path) == 50
    run(first.close())
    assert read_elsewhere(path) == 50, "closing takes nothing away"


def test_every_process_hears_of_it_and_what_others_wrote_is_kept_as_well(path, run, opened):
    code = f"""
    import asyncio, sys
    from pathlib import Path
    from holdfast.core.errors import StoreLost
    from holdfast.engines.sqlite import SqliteEngine
    from holdfast.jobs.service import Jobs, JobRequest
    async def main():
        engine = SqliteEngine(Path({str(path)!r}))
        await engine.open()
        jobs = Jobs(engine)
        print(len(await jobs.submit([JobRequest(type="t")] * 20)), flush=True)
        sys.stdin.readline()
        try:
            await jobs.submit([JobRequest(type="t")])
        except StoreLost as error:
            print(error, flush=True)
        sys.stdin.readline()
        await engine.close()
    asyncio.run(main())
    """
    here = opened()
    run(submitted(here, 5))
    other = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert other.stdout.readline() == "20\n"
        (path.parent / LOG).unlink()
        (path.parent / MEMORY).unlink()
        with pytest.raises(StoreLost):
            run(submitted(here))
        assert read_elsewhere(path) == 25

        late = opened()  # a process that is started again goes on with all of it
        assert sum(run(late.count()).values()) == 25
        run(submitted(late, 3))

        other.stdin.write("\n")
        other.stdin.flush()
        assert "no acknowledged work is lost" in other.stdout.readline()
        other.stdin.write("\n")
        other.stdin.flush()
        assert other.wait(30) == 0
    finally:
        other.kill()
        other.communicate()
    run(here.close())
    assert sum(run(late.count()).values()) == 28
    assert read_elsewhere(path) == 28, "who ended took nothing of the new log away"


def test_a_log_that_another_program_began_anew_is_never_written_over(path, run, opened):
    first = opened()
    run(submitted(first, 2))
    (path.parent / LOG).unlink()
    (path.parent / MEMORY).unlink()
    in_sqlite(path, "create table theirs (n)")

    with pytest.raises(StoreLost, match="may be lost"):
        run(submitted(first))
    run(first.close())

    assert in_sqlite(path, "pragma integrity_check") == "ok"
    assert in_sqlite(path, "select count(*) from theirs") == "0", "closing takes nothing of theirs away"


def test_who_comes_just_then_waits_until_the_others_have_put_the_log_back(path, run, opened):
    first = opened()
    run(submitted(first, 7))
    (path.parent / LOG).unlink()
    (path.parent / MEMORY).unlink()
    code = f"""
    import asyncio
    from pathlib import Path
    from holdfast.engines.sqlite import SqliteEngine
    from holdfast.jobs.service import Jobs, JobRequest
    async def main():
        engine = SqliteEngine(Path({str(path)!r}))
        print("opens", flush=True)
        await engine.open()
        await Jobs(engine).submit([JobRequest(type="t")])
        await engine.close()
    asyncio.run(main())
    """
    words = [sys.executable, "-c", textwrap.dedent(code)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as late:
        assert late.stdout.readline() == "opens\n"
        with pytest.raises(StoreLost, match="no acknowledged work is lost"):
            run(first.beat(Presence("w-1")))
        assert late.wait(30) == 0
    assert read_elsewhere(path) == 8


def test_who_only_waits_or_beats_hears_of_it(path, run, opened):
    first = opened()
    run(submitted(first))
    (path.parent / LOG).unlink()
    with pytest.raises(StoreLost):
        run(first.beat(Presence("w-1")))
    second = opened()
    (path.parent / LOG).unlink()
    with pytest.raises(StoreLost):
        run(second.wait(["queue:default"], 0.01))


def test_a_database_that_is_deleted_stops_reads_and_writes_alike(path, run, opened):
    first = opened()
    run(submitted(first))
    for file in path.parent.glob("jobs.db*"):
        shutil.rmtree(file) if file.is_dir() else file.unlink()
    with pytest.raises(StoreLost, match=r"restore the database, or start with a new one"):
        run(first.beat(Presence("w-1")))
    for call in (first.count(), submitted(first), first.records(WORKER)):
        with pytest.raises(StoreLost):
            run(call)
    assert not path.exists(), "nothing is begun anew by itself"


def test_the_doctor_and_status_tell_what_was_removed(path, run, opened):
    first = opened()
    run(submitted(first))
    (path.parent / LOG).unlink()
    with pytest.raises(StoreLost):
        run(submitted(first))
    for verb in ("doctor", "status"):
        told = CliRunner().invoke(
            main, [verb, "--url", f"sqlite:///{path}"], prog_name="holdfast", catch_exceptions=False
        )
        assert f"{LOG} was removed or replaced while in use" in told.output


def test_two_files_that_were_removed_are_told_in_one_sentence(path, run, opened):
    first = opened()
    run(submitted(first))
    for name in (LOG, MEMORY):
        (path.parent / name).unlink()
    with pytest.raises(StoreLost, match="jobs.db-wal and jobs.db-shm were removed or replaced while in use"):
        run(submitted(first))


def test_trouble_that_closes_the_last_connection_is_no_loss(path, run, opened, monkeypatch):
    first = opened()
    run(submitted(first))
    real = first._writer._attempt
    failed: list[Any] = []

    def fail_once(db, tickets):
        if not failed:
            failed.append(True)
            raise sqlite3.OperationalError("disk I/O error")
        return real(db, tickets)

    monkeypatch.setattr(first._writer, "_attempt", fail_once)
    with pytest.raises(Exception, match="disk I/O error"):
        run(submitted(first))
    run(submitted(first))
    assert sum(run(first.count()).values()) == 2


# The folder of the living.


def test_a_worker_whose_file_was_removed_makes_it_anew_and_says_so_once(path, run, opened, caplog):
    first, second = opened(), opened()
    run(first.beat(Presence("w-1")))
    shutil.rmtree(path.parent / "jobs.db-live")
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            run(first.beat(Presence("w-1")))
    assert [one.name for one in run(second.records(WORKER))] == [f"{WORKER}w-1"]
    assert not json.loads(run(second.records(WORKER))[0].value).get("gone")
    assert len([one for one in caplog.records if "were removed from this folder while in use" in one.message]) == 1


def test_wake_ups_come_again_after_the_folder_was_removed(path, run, opened):
    first, second = opened(), opened()
    run(first.wait(["queue:default"], 0.01))
    run(first.beat(Presence("w-1")))
    shutil.rmtree(path.parent / "jobs.db-live")
    mark = run(first.wait(["queue:default"], 0.01))
    run(first.beat(Presence("w-1")))
    mark = run(first.wait(["queue:default"], 5, mark))
    run(submitted(second))
    began = time.monotonic()
    run(first.wait(["queue:default"], 20, mark))
    assert time.monotonic() - began < 15


# Real workers.

APP = """
import asyncio, os
from holdfast import App, Settings, step
QUICK = Settings(beat_seconds=0.2, lease_seconds=2, upkeep_seconds=0.2, look_seconds=0.1)
app = App(os.environ["STORE"], settings=QUICK)

@step
async def long(n: int) -> int:
    while not os.path.exists("go"):
        await asyncio.sleep(0.05)
    return n

@app.job(retries=0)
async def film() -> int:
    return await long(1)

@app.job(retries=0)
async def quick() -> int:
    return 1
"""


@pytest.fixture
def workers(tmp_path):
    (tmp_path / "tidied.py").write_text(APP)
    env = os.environ | {"STORE": f"sqlite:///{tmp_path}/jobs.db", "PYTHONPATH": str(tmp_path)}
    words = [sys.executable, "-m", "holdfast.cli", "worker", "tidied:app"]
    begun: list[Any] = []

    def start(number: int) -> list[subprocess.Popen[bytes]]:
        for _ in range(number):
            with (tmp_path / f"log-{len(begun)}").open("w") as err:
                begun.append(subprocess.Popen(words, env=env, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=err))
        return begun

    def called(code: str) -> str:
        call = [sys.executable, "-c", "import tidied as t; s = t.app.sync; " + code]
        return subprocess.run(
            call, env=env, cwd=tmp_path, check=True, capture_output=True, text=True, timeout=60
        ).stdout

    start.called = called  # type: ignore[attr-defined]
    yield start
    for process in begun:
        process.send_signal(signal.SIGTERM)
    for process in begun:
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def active(called, id: str) -> None:
    end = time.monotonic() + 60
    while called(f"print(s.run({id!r}).status().state)").strip() != State.ACTIVE:
        assert time.monotonic() < end


def test_no_job_is_taken_from_a_healthy_worker_whose_folder_was_removed(tmp_path, workers):
    workers(2)
    id = workers.called("print(s.submit(t.film).id)").strip()
    active(workers.called, id)
    shutil.rmtree(tmp_path / "jobs.db-live")
    new = workers.called("print(s.submit(t.quick).id)").strip()
    assert workers.called(f"print(s.run({new!r}).result(timeout=30))").strip() == "1"
    end = time.monotonic() + 3 * LEASE_SECONDS
    while time.monotonic() < end:  # for so long, somebody might take it for lost
        assert workers.called(f"print(s.run({id!r}).status().state)").strip() == State.ACTIVE
    (tmp_path / "go").touch()
    assert workers.called(f"print(s.run({id!r}).result(timeout=30))").strip() == "1"
    events = workers.called(f"print([str(one.event) for one in s.run({id!r}).history()])").strip()
    assert events == "['submit', 'claim', 'complete']"
    assert "created again" in (tmp_path / "log-0").read_text() + (tmp_path / "log-1").read_text()


@pytest.mark.parametrize("what", ["log", "database"])
def test_workers_whose_files_were_removed_end_with_3_and_no_job_is_lost(tmp_path, workers, what):
    begun = workers(2)
    id = workers.called("print(s.submit(t.film).id)").strip()
    active(workers.called, id)
    names = (LOG, MEMORY) if what == "log" else ("jobs.db", LOG, MEMORY)
    for name in names:
        (tmp_path / name).unlink(missing_ok=True)
    assert [process.wait(60) for process in begun] == [3, 3]
    logs = (tmp_path / "log-0").read_text() + (tmp_path / "log-1").read_text()
    assert "removed or replaced while in use" in logs
    assert "goes on" not in logs
    if what == "log":
        (tmp_path / "go").touch()
        workers(1)
        assert workers.called(f"print(s.run({id!r}).result(timeout=40))").strip() == "1"
