"""SQLite when things go wrong: one clear error, nothing lost, and it goes on when the trouble ends."""

import asyncio
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from holdfast import App, step
from holdfast.cli import main as cli
from holdfast.core.errors import (
    Invalid,
    StoreBusy,
    StoreClosed,
    StoreDamaged,
    StoreForeign,
    StoreFull,
    StoreUnwritable,
)
from holdfast.core.model import State, Where
from holdfast.engines import engine_for
from holdfast.engines.sqlite import SqliteEngine, store
from tests.support.samples import NOW, job


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


def contents(path: Path) -> bytes:
    return path.read_bytes()


def test_a_full_disk_is_one_clear_error_and_goes_on_when_there_is_room(tiny_disk, run):
    engine = SqliteEngine(tiny_disk / "jobs.db")
    run(engine.open())
    kept = []
    big = '["' + "x" * 20_000 + '"]'

    with pytest.raises(StoreFull, match="no space left on the disk; nothing was written: free space"):
        for _ in range(200):
            made = job(args=big)
            run(engine.insert([made]))
            kept.append(made.id)

    assert len(kept) > 5
    assert {found.id for found in run(engine.find(Where()))} == set(kept)
    subprocess.check_call(["mount", "-o", "remount,size=8m", tiny_disk])
    after = job(args=big)
    run(engine.insert([after]))
    assert {found.id for found in run(engine.find(Where()))} == {*kept, after.id}
    run(engine.close())


def test_a_disk_that_fills_up_in_mid_job_is_said_by_the_worker_and_shown_by_status(tiny_disk, run, caplog):
    url = f"sqlite:///{tiny_disk}/jobs.db"
    app = App(url)

    @step(name="draw")
    async def draw(n: int) -> str:
        return "x" * 30_000

    @app.job
    async def film() -> int:
        return len(await draw.map(range(100)))

    async def filled() -> str:
        made = await film.submit()
        async with app.worker():
            async with asyncio.timeout(30):
                while not (await made.status()).trouble:  # noqa: ASYNC110 (a beat rings no bell)
                    await asyncio.sleep(0.05)
            one = await asyncio.to_thread(CliRunner().invoke, cli, ["status", made.id, "--url", url])
            all_of_it = await asyncio.to_thread(CliRunner().invoke, cli, ["status", "--url", url])
            await asyncio.to_thread(subprocess.check_call, ["mount", "-o", "remount,size=20m", tiny_disk])
            assert await made.result(30) == 100
        await app.close()
        return f"{one.output}\n{all_of_it.output}"

    shown = run(filled())

    assert "stalled: StoreFull:" in shown
    assert "no space left on the disk; nothing was written: free space, and try again" in " ".join(shown.split())
    assert "stalled: nothing can be written" in shown
    assert " left\n" not in shown
    assert len([line for line in caplog.messages if "can't write to the store: StoreFull" in line]) == 1


def test_a_read_only_file_system_is_told_and_recovers(tiny_disk, run):
    engine = SqliteEngine(tiny_disk / "jobs.db")
    run(engine.open())
    first = job()
    run(engine.insert([first]))
    run(engine.close())
    subprocess.check_call(["mount", "-o", "remount,ro", tiny_disk])

    with pytest.raises(StoreUnwritable, match="can't be written"):
        run(engine.open())

    subprocess.check_call(["mount", "-o", "remount,rw", tiny_disk])
    run(engine.open())
    run(engine.insert([job()]))
    assert run(engine.count()) == {("default", State.AVAILABLE): 2}
    run(engine.close())


def test_a_folder_that_is_not_there_is_told(tmp_path, run):
    with pytest.raises(StoreUnwritable, match="the folder .* doesn't exist; create it, or use another path"):
        run(SqliteEngine(tmp_path / "nowhere" / "jobs.db").open())
    assert not (tmp_path / "nowhere").exists()


def test_a_folder_in_place_of_the_file_is_told(tmp_path, run):
    with pytest.raises(StoreForeign, match="is not a regular file"):
        run(SqliteEngine(tmp_path).open())


def test_a_file_that_is_no_database_is_refused_and_not_touched(path, run):
    path.write_text("Dear diary,\n" * 100)
    before = contents(path)

    with pytest.raises(StoreDamaged, match="not a readable SQLite database.*the file was not changed"):
        run(SqliteEngine(path).open())

    assert contents(path) == before


def test_a_database_of_another_program_is_refused_and_not_touched(path, run):
    with sqlite3.connect(path) as db:
        db.execute("create table recipes (name text)")
    db.close()
    before = contents(path)

    with pytest.raises(StoreForeign, match="a SQLite database of another program"):
        run(SqliteEngine(path).open())

    assert contents(path) == before


def test_a_newer_schema_is_refused_and_not_written(path, run):
    engine = SqliteEngine(path)
    run(engine.open())
    run(engine.close())
    with sqlite3.connect(path) as db:
        db.execute("pragma user_version = 99")
    db.close()
    before = contents(path)

    with pytest.raises(StoreForeign, match=r"schema 99; this version supports \d+\)?.*upgrade this installation"):
        run(SqliteEngine(path).open())

    assert contents(path) == before


@pytest.mark.parametrize("damage", ["header", "middle", "truncated"])
def test_a_damaged_database_is_told_and_the_good_copy_works_again(path, run, damage):
    engine = SqliteEngine(path)
    run(engine.open())
    made = [job(args='["' + "y" * 500 + '"]') for _ in range(300)]
    run(engine.insert(made))
    run(engine.close())
    shutil.copy(path, path.with_name("good.db"))
    whole = contents(path)
    broken = {
        "header": b"\0" * 100 + whole[100:],
        "middle": whole[:8192] + b"\xff" * (len(whole) - 8192),
        "truncated": whole[: len(whole) // 3],
    }[damage]
    path.write_bytes(broken)

    with pytest.raises(StoreDamaged):
        run(engine.open())
        run(engine.get([found.id for found in made]))
        run(engine.insert([job() for _ in range(50)]))

    run(engine.close())
    shutil.copy(path.with_name("good.db"), path)
    run(engine.open())
    assert len(run(engine.find(Where()))) == 300
    run(engine.close())


def test_a_locked_database_is_told_after_a_bounded_wait_and_goes_on_afterwards(path, run, monkeypatch):
    monkeypatch.setattr(store, "BUSY_MS", 100)
    engine = SqliteEngine(path)
    run(engine.open())
    hog = sqlite3.connect(path, isolation_level=None)
    hog.execute("begin immediate")

    with pytest.raises(StoreBusy, match="locked by another program.*nothing was written"):
        run(engine.insert([job()]))

    assert run(engine.count()) == {}
    hog.execute("rollback")
    run(engine.insert([job()]))
    assert run(engine.count()) == {("default", State.AVAILABLE): 1}
    hog.close()
    run(engine.close())


def test_a_file_that_is_removed_under_us_is_never_silently_begun_anew(path, run):
    engine = SqliteEngine(path)
    run(engine.open())
    run(engine.insert([job()]))
    path.rename(path.with_name("elsewhere.db"))

    with pytest.raises(StoreDamaged, match="was moved away while in use; nothing was written"):
        run(engine.insert([job()]))

    assert not path.exists()
    path.with_name("elsewhere.db").rename(path)
    run(engine.insert([job()]))
    assert run(engine.count()) == {("default", State.AVAILABLE): 2}
    run(engine.close())


def test_a_bad_value_of_one_caller_does_not_fail_its_neighbours(path, run):
    engine = SqliteEngine(path)
    run(engine.open())

    async def crowd() -> list[object]:
        good = [engine.insert([job()]) for _ in range(20)]
        bad = engine.insert([job(state=State.ACTIVE)])  # without a worker: a CHECK of the schema refuses it
        return await asyncio.gather(*good[:10], bad, *good[10:], return_exceptions=True)

    answers = run(crowd())

    assert isinstance(answers[10], sqlite3.IntegrityError)
    assert sum(isinstance(answer, list) for answer in answers) == 20
    assert run(engine.count()) == {("default", State.AVAILABLE): 20}
    run(engine.close())


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "9p", "fuse.sshfs"])
def test_a_network_file_system_is_refused(tmp_path, run, monkeypatch, kind):
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        "21 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n"
        f"30 21 0:30 / {tmp_path}/far\\040away rw - {kind} host:/share rw\n"
        f"31 21 0:31 / {tmp_path}/far rw - ext4 /dev/vdb rw\n"
    )
    monkeypatch.setattr(store, "file_system", lambda path: real(path, mounts))
    (tmp_path / "far away").mkdir()

    with pytest.raises(StoreForeign, match=f"network file system \\({kind}\\).*use a local disk"):
        run(SqliteEngine(tmp_path / "far away" / "jobs.db").open())

    assert not (tmp_path / "far away" / "jobs.db").exists()


real = store.file_system


def test_only_the_owner_may_read_the_files(path, run):
    os.umask(old := os.umask(0))
    assert old is not None
    engine = SqliteEngine(path)
    run(engine.open())
    run(engine.insert([job()]))

    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.glob("jobs.db*")}

    assert modes["jobs.db"] == modes["jobs.db-wal"] == modes["jobs.db-shm"] == 0o600
    run(engine.close())


def test_an_unknown_state_is_refused_by_the_database_itself(path, run):
    engine = SqliteEngine(path)
    run(engine.open())
    run(engine.insert([job()]))
    run(engine.close())
    db = sqlite3.connect(path)

    for change in ("state = 'sleeping'", "state = 'active'", "worker = 'w'", "state = 'completed'"):
        with pytest.raises(sqlite3.IntegrityError, match="CHECK"):
            db.execute(f"update job set {change}")

    db.close()


def test_a_closed_engine_says_so(path, run):
    engine = SqliteEngine(path)
    with pytest.raises(StoreClosed, match="not open; open it in this process first"):
        run(engine.insert([job()]))
    run(engine.open())
    run(engine.close())
    run(engine.close())
    with pytest.raises(StoreClosed):
        run(engine.count())
    run(engine.open())
    assert run(engine.count()) == {}
    run(engine.close())


FORK = """
import asyncio, os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from tests.support.samples import job
from holdfast.core.errors import StoreClosed
from holdfast.engines.sqlite import SqliteEngine

engine = SqliteEngine(Path(sys.argv[1]))
with asyncio.Runner() as runner:
    runner.run(engine.open())
    runner.run(engine.insert([job()]))
    if os.fork() == 0:
        try:
            with asyncio.Runner() as child:
                try:
                    child.run(engine.insert([job()]))
                    os._exit(3)
                except StoreClosed:
                    pass
                child.run(engine.open())
                child.run(engine.insert([job()]))
                child.run(engine.close())
            os._exit(0)
        except BaseException:
            import traceback; traceback.print_exc()
            os._exit(4)
    _, status = os.wait()
    assert os.waitstatus_to_exitcode(status) == 0, status
    runner.run(engine.insert([job()]))
    print(runner.run(engine.count()))
    runner.run(engine.close())
"""


def test_a_forked_child_must_open_for_itself_and_harms_nobody(path):
    out = subprocess.run(
        [sys.executable, "-c", FORK, path, Path(__file__).parents[3]], capture_output=True, text=True, timeout=60
    )
    assert out.returncode == 0, out.stderr
    assert ": 3}" in out.stdout


def test_a_clock_that_jumps_loses_nothing_and_runs_nothing_twice(path, run):
    time = [NOW]
    engine = SqliteEngine(path, lambda: time[0])
    run(engine.open())
    soon = job(state=State.SCHEDULED, run_at=NOW + 60_000)
    run(engine.insert([job(), soon]))

    time[0] = NOW - 86_400_000
    assert run(engine.claim("w", ["default"], 10)) == []
    time[0] = NOW + 1
    assert len(run(engine.claim("w", ["default"], 10))) == 1
    time[0] = NOW + 10 * 86_400_000
    assert [claimed.id for claimed in run(engine.claim("w", ["default"], 10))] == [soon.id]
    time[0] = NOW
    assert run(engine.claim("w", ["default"], 10)) == []
    run(engine.close())


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("sqlite://jobs.db", "write sqlite:///jobs.db"),
        ("sqlite:///", "doesn't name a file"),
        ("sqlite:///jobs.db?mode=ro", "can't contain '\\?'"),
        ("nats://u:secret@h/0", "not in this version"),
        ("mysql://u:secret@h/db", "is not the URL of a store"),
        ("mysql://u:sec/secret@h/db", "is not the URL of a store"),
        ("postgresql+asyncpg://u:secret@h/db", r"write postgresql://… without \+asyncpg"),
        ("postgresql://u:secret#x@h/db", "in a password write @ as %40"),
        ("postgresql://u:secret/x@h/db", "in a password write @ as %40"),
        ("redis://:secret?x@h/0", "in a password write @ as %40"),
        ("redis://:1/secret@h/0", "in a password write @ as %40"),
        ("redis://h/0?app=secret@x", "in a password write @ as %40"),
        ("postgresql://u:12#secret@h/db", "in a password write @ as %40"),
        ("postgresql://u@corp:secret@h/db", "in a password write @ as %40"),
        ("postgresql://u:a\nsecret@h/db", "in a password write @ as %40"),
        ("postgresql:/u:secret@h/db", "write postgresql://user:password@host"),
        ("postgresql:u:secret@h/db", "write postgresql://user:password@host"),
        ("postgres//u:secret@h/db", "is not the URL of a store"),
        ("u:secret@h/db", "is not the URL of a store"),
        ("postgresql+psycopg://u@corp:secret@h/db", "without"),
        ("mysql://h/db?PASSWORD=secret", "is not the URL of a store"),
        ("jobs.db", r"is not the URL of a store; did you mean sqlite:///jobs.db\?"),
        ("book.json", r"did you mean file:book.json\?"),
        ("sqlte:///jobs.db", r"did you mean sqlite\?"),
        ("postgre://u:secret@h/db", r"did you mean postgresql\?"),
        ("a\nb.db", "is not the URL of a store; use one of"),
        ("memory:x", "a memory store has no name"),
    ],
)
def test_a_wrong_url_is_one_line_without_its_password(url, words):
    with pytest.raises(Invalid, match=words) as error:
        engine_for(url)
    assert "secret" not in str(error.value)
    assert "\n" not in str(error.value)


def test_three_slashes_are_relative_and_four_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert engine_for("sqlite:///a b%20c.db").path == tmp_path / "a b c.db"  # type: ignore[attr-defined]
    assert engine_for("sqlite:////data/jobs.db").path == Path("/data/jobs.db")  # type: ignore[attr-defined]
