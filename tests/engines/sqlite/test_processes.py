"""SQLite among processes: kills, wake-ups, and workers that die."""

import asyncio
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import msgspec
import pytest

from holdfast.core.model import Presence, State, Where
from holdfast.engines.records import WORKER
from holdfast.engines.sqlite import SqliteEngine
from holdfast.engines.sqlite.liveness import Liveness
from holdfast.engines.sqlite.reads import SQL
from holdfast.engines.sqlite.store import prepare
from holdfast.engines.topics import queue_topic
from tests.support.samples import job

HERE = Path(__file__).parents[3]

WRITER = """
import asyncio, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from tests.support.samples import job
from holdfast.core.lifecycle import decide
from holdfast.core.model import Event, Step, StepState
from holdfast.engines.sqlite import SqliteEngine

async def main():
    engine = SqliteEngine(Path(sys.argv[1]))
    await engine.open()
    async def life(worker):
        while True:
            now = await engine.now()
            (made,) = await engine.insert([job(now)])
            print("made", made.id, flush=True)
            for mine in await engine.claim(worker, ["default"], 2):
                step = Step(job=mine.id, epoch=mine.epoch, path="a#1", name="a", state=StepState.DONE,
                            result="1", started_at=now)
                await engine.record([step])
                print("step", mine.id, flush=True)
                await engine.commit([decide(mine, Event.COMPLETE, now, by=worker, result="2")])
                print("done", mine.id, flush=True)
    await asyncio.gather(*(life(f"w{n}") for n in range(8)))

asyncio.run(main())
"""


def test_killed_processes_leave_a_usable_file_with_all_that_was_acknowledged(tmp_path, run, rounds):
    path, chance = tmp_path / "jobs.db", random.Random(7)
    said: list[list[str]] = []
    for _ in range(rounds(12, 200)):
        writers = [
            subprocess.Popen([sys.executable, "-c", WRITER, path, HERE], stdout=subprocess.PIPE, text=True)
            for _ in range(2)
        ]
        # Wait for the first word, so that the kill hits the work and not the start.
        first = [writer.stdout.readline() for writer in writers]
        time.sleep(chance.random() * 0.15)
        for writer in writers:
            writer.send_signal(signal.SIGKILL)
        for writer, line in zip(writers, first, strict=True):
            out, _ = writer.communicate()
            said += [words.split() for words in [line, *out.splitlines()] if len(words.split()) == 2]

    engine = SqliteEngine(path)
    run(engine.open())
    found: dict[str, State] = {}
    after = ""
    while page := run(engine.find(Where(), after)):
        found |= {one.id: one.state for one in page}
        after = page[-1].id
    made, stepped, done = ({id for word, id in said if word == kind} for kind in ("made", "step", "done"))
    assert len(done) > 50, "the writers must have got somewhere before they were killed"
    assert made <= set(found)
    assert all(found[id] is State.COMPLETED for id in done)
    for id in list(stepped)[:200]:
        assert [step.result for step in run(engine.steps(id))] == ["1"]
    for id in list(found)[:200]:
        assert [entry.version for entry in run(engine.history(id))] == list(
            range(1, run(engine.get([id]))[0].version + 1)
        )
    counted = run(engine.count())
    assert sum(counted.values()) == len(found)
    run(engine.insert([job()]))
    run(engine.close())
    db = sqlite3.connect(path)
    assert db.execute("pragma integrity_check").fetchall() == [("ok",)]
    recount = dict(db.execute("select state, count(*) from job group by state").fetchall())
    tally = dict(db.execute("select state, sum(jobs) from tally where jobs <> 0 group by state").fetchall())
    assert recount == tally
    db.close()


LISTENER = """
import asyncio, sys, time
from pathlib import Path
from holdfast.engines.sqlite import SqliteEngine

async def main():
    engine = SqliteEngine(Path(sys.argv[1]))
    await engine.open()
    mark = await engine.wait([sys.argv[2]], 5)
    print("ready", flush=True)
    await engine.wait([sys.argv[2]], 20, mark)
    print(time.monotonic_ns(), flush=True)

asyncio.run(main())
"""


@pytest.mark.parametrize("depth", [0, 12])
def test_news_reach_a_waiting_process_at_once_however_long_its_path_is(tmp_path, run, depth):
    folder = tmp_path
    for _ in range(depth):
        folder = folder / "a-rather-long-name"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "jobs.db"
    engine = SqliteEngine(path)
    run(engine.open())
    listener = subprocess.Popen(
        [sys.executable, "-c", LISTENER, path, queue_topic("default")], stdout=subprocess.PIPE, text=True
    )
    assert listener.stdout.readline() == "ready\n"
    run(asyncio.sleep(0.1))  # so that it really waits, and is not just about to

    told = time.monotonic_ns()
    run(engine.insert([job()]))
    heard = int(listener.communicate(timeout=30)[0])

    assert (heard - told) / 1e6 < 1_000, "milliseconds; a poll would have taken the whole timeout"
    run(engine.close())


BEATER = """
import asyncio, sys
from pathlib import Path
from holdfast.core.model import Presence
from holdfast.engines.sqlite import SqliteEngine

async def main():
    engine = SqliteEngine(Path(sys.argv[1]))
    await engine.open()
    await engine.beat(Presence("w-1", host="here", pid=1, queues=("default",)))
    if "fork" in sys.argv:
        import os, time
        heard, said = os.pipe()
        if os.fork() == 0:
            os.write(said, b"x")
            time.sleep(60)
        os.read(heard, 1)
    print("beat", flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


def presences(run, engine) -> dict[str, Presence]:
    return {
        record.name.removeprefix(WORKER): msgspec.json.decode(record.value, type=Presence)
        for record in run(engine.records(WORKER))
    }


@pytest.mark.parametrize("mode", ["plain", "fork"])
def test_a_killed_worker_is_seen_as_gone_at_once_even_if_it_left_a_child(tmp_path, run, mode):
    path = tmp_path / "jobs.db"
    engine = SqliteEngine(path)
    run(engine.open())
    beater = subprocess.Popen(
        [sys.executable, "-c", BEATER, path, mode], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert beater.stdout.readline() == "beat\n"
        assert presences(run, engine)["w-1"].gone is False

        beater.kill()
        beater.wait()

        assert presences(run, engine)["w-1"].gone is True
    finally:
        with suppress(ProcessLookupError):
            os.killpg(beater.pid, signal.SIGKILL)
        beater.stdout.close()
    run(engine.prune())
    assert presences(run, engine) == {}, "nothing is left to rescue, so its trace is tidied away"
    run(engine.close())


def test_a_dead_worker_that_still_holds_a_job_is_not_forgotten(tmp_path, run):
    path = tmp_path / "jobs.db"
    gone, engine = SqliteEngine(path), SqliteEngine(path)
    run(gone.open())
    run(gone.beat(Presence("w-1")))
    run(gone.insert([job(run(gone.now()))]))
    assert len(run(gone.claim("w-1", ["default"], 1))) == 1
    run(gone.close())
    run(engine.open())

    run(engine.prune())

    assert presences(run, engine)["w-1"].gone is True
    run(engine.close())


def test_a_worker_that_leaves_is_gone_from_the_list(tmp_path, run):
    engine = SqliteEngine(tmp_path / "jobs.db")
    run(engine.open())
    run(engine.beat(Presence("w-1")))
    assert list(presences(run, engine)) == ["w-1"]

    run(engine.beat(Presence("w-1", leaving=True)))

    assert presences(run, engine) == {}
    run(engine.close())


@pytest.mark.parametrize(
    ("statement", "index"),
    [
        ("ready", "job_ready (queue=? AND type=?)"),
        ("ready_among", "job_ready (queue=? AND type=?)"),
        ("unlimited_types", "job_ready (queue=? AND type>?)"),
        ("ready_types", "job_ready (queue=? AND type>?)"),
        ("ready_types", "holdfast_limited (limit_key=? AND queue=? AND type>?)"),
        ("ready_behind", "holdfast_limited (limit_key=? AND queue=? AND type=?)"),
        ("waiting_firsts", "holdfast_limited (limit_key=? AND queue=? AND type>?)"),
        ("waited_for", "holdfast_limited (limit_key=? AND queue=?)"),
        ("waited_for", "holdfast_parked (parked_key=? AND queue=?)"),
        ("find_waiting", "holdfast_limited (limit_key=? AND queue>?)"),
        ("count_waiting", "holdfast_limited (limit_key=?)"),
        ("keys_to_look_at", "holdfast_waiting_due (queue=? AND at<?)"),
        ("next_look", "holdfast_waiting_due (queue=? AND at>?)"),
        ("parked", "holdfast_parked (parked_key=? AND queue=?)"),
        ("stale_permits", "sqlite_autoindex_job_1 (id=?)"),
        ("permits_of", "holdfast_permit_job (job=?)"),
        ("due", "job_due (queue=? AND run_at>? AND run_at<?)"),
        ("next_due", "job_due (queue=? AND run_at>?"),
        ("held", "job_held (worker=?)"),
        ("old", "job_old (prune_at<?)"),
        ("heads", "sqlite_autoindex_job_1 (id=?)"),
        ("add_steps", "sqlite_autoindex_job_1 (id=?)"),
        ("replace_steps", "sqlite_autoindex_job_1 (id=?)"),
        ("add_count", "sqlite_autoindex_job_1 (id=?)"),
        ("summaries", "sqlite_autoindex_job_1 (id=?)"),
        ("steps_under", "sqlite_autoindex_step_1 (job=? AND path>? AND path<?)"),
        ("steps_page", "sqlite_autoindex_step_1 (job=?)"),
        ("count_steps", "sqlite_autoindex_step_1 (job=?)"),
        ("recount", "sqlite_autoindex_step_1 (job=?)"),
        ("find", "sqlite_autoindex_job_1 (id>?)"),
        ("find_newest", "sqlite_autoindex_job_1 (id<?)"),
        ("find_state", "job_state (state=? AND id>?)"),
        ("find_state_newest", "job_state (state=? AND id<?)"),
        ("find_active", "job_held"),
        ("find_active_newest", "job_held"),
        ("find_children", "job_parent (parent=? AND id>?)"),
        ("find_expired", "job_expiring (expires_at>? AND expires_at<?)"),
        ("find_expired_newest", "job_expiring (expires_at>? AND expires_at<?)"),
    ],
)
def test_no_statement_walks_over_finished_jobs(tmp_path, statement, index):
    db = prepare(tmp_path / "jobs.db")
    sql = getattr(SQL, statement)
    names = {word.strip(",;)") for word in sql.replace(":", " :").split() if word.startswith(":")}

    plan = [row[3] for row in db.execute(f"explain query plan {sql}", dict.fromkeys((n[1:] for n in names), 1))]

    assert any(index in line for line in plan), plan
    # What workers hold is few, and nothing in that index has finished.
    assert not any("SCAN job" in line and "job_held" not in line for line in plan), plan
    db.close()


FORKED = """
import asyncio, os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from holdfast.engines.sqlite import SqliteEngine
from tests.support.samples import job

engine = SqliteEngine(Path(sys.argv[1]))
with asyncio.Runner() as runner:
    runner.run(engine.open())
    runner.run(engine.insert([job()]))
    to_child, from_parent = os.pipe()
    if os.fork() == 0:
        with asyncio.Runner() as child:
            child.run(engine.open())
            for _ in range(5):
                child.run(engine.insert([job(queue="child")]))
            os.write(1, b"child wrote\\n")
            os.read(to_child, 1)
            child.run(engine.insert([job(queue="child")]))
            child.run(engine.close())
        os._exit(0)
    sys.stdin.readline()
    runner.run(engine.close())
    os.write(from_parent, b"x")
    os.wait()
"""


def test_what_a_forked_child_wrote_survives_the_end_of_its_parent(tmp_path, run):
    path = tmp_path / "jobs.db"
    parent = subprocess.Popen(
        [sys.executable, "-c", FORKED, path, HERE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout.readline() == "child wrote\n"

    parent.communicate("go\n", timeout=60)

    assert parent.returncode == 0
    engine = SqliteEngine(path)
    run(engine.open())
    assert run(engine.count()) == {("child", State.AVAILABLE): 6, ("default", State.AVAILABLE): 1}
    run(engine.close())


def test_a_listener_that_was_busy_still_hears_of_every_topic(tmp_path, run):
    path = tmp_path / "jobs.db"
    engine = SqliteEngine(path)
    run(engine.open())
    listener = subprocess.Popen(
        [sys.executable, "-c", LISTENER, path, queue_topic("b")], stdout=subprocess.PIPE, text=True
    )
    assert listener.stdout.readline() == "ready\n"
    listener.send_signal(signal.SIGSTOP)
    for _ in range(30):  # more datagrams than the system keeps for it
        run(engine.insert([job(queue="a")]))
    told = time.monotonic_ns()
    run(engine.insert([job(queue="b")]))

    listener.send_signal(signal.SIGCONT)

    heard = int(listener.communicate(timeout=30)[0])
    assert (heard - told) / 1e9 < 5, "seconds; unheard, it would wait for 20"
    run(engine.close())


def _note(event: threading.Event, topics: object) -> None:
    event.set()


def test_a_process_that_begins_to_listen_later_hears_the_news(tmp_path):
    heard: dict[str, threading.Event] = {name: threading.Event() for name in ("first", "second")}
    folder = tmp_path / "live"
    folder.mkdir()
    os.utime(folder, (0, 0))  # it has not changed for long, so who is there is remembered
    teller = Liveness(folder, lambda topics: None)
    listeners = {name: Liveness(folder, partial(_note, event)) for name, event in heard.items()}

    teller.tell(["queue:a"])
    for name, listener in listeners.items():
        listener.listen()
        teller.tell(["queue:a"])
        assert heard[name].wait(20), name
        os.utime(folder, (1, 1))
        teller.tell(["queue:a"])

    for one in (teller, *listeners.values()):
        one.close()
