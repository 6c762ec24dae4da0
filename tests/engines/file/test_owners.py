"""The file engine's owner and place: one process at a time, across forks, and what lies beside the file."""

import asyncio
import os
import stat
import subprocess
import sys
import threading
from queue import SimpleQueue
from typing import Any

import pytest

from holdfast.conformance.given import job
from holdfast.core.errors import StoreBusy, StoreClosed, StoreError
from holdfast.engines import engine_for
from holdfast.engines.batch_thread import BatchThread
from holdfast.engines.file import FileEngine

# Who may use it.


def test_a_second_engine_in_the_same_process_is_refused(run, engine, path, clock):
    other = FileEngine(path, clock)

    with pytest.raises(StoreBusy) as caught:
        run(other.open())

    wanted = (
        f"{path} is in use by process {os.getpid()}; stop that process, or use sqlite:///jobs.db for several processes"
    )
    assert str(caught.value) == wanted
    run(engine.insert([job(clock)]))


def test_a_second_process_is_refused_by_name(run, path, clock):
    engine = FileEngine(path, clock)
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
    ) as holder:
        try:
            assert holder.stdout.readline() == "open\n"
            with pytest.raises(StoreBusy, match=f"in use by process {holder.pid};"):
                run(engine.open())
        finally:
            holder.kill()

    run(engine.open())  # The lock ended with its holder.
    run(engine.close())


HOLDER = """
import asyncio, sys
from holdfast.engines.file import FileEngine
async def main():
    await FileEngine(sys.argv[1]).open()
    print("open", flush=True)
    sys.stdin.read()
asyncio.run(main())
"""


def test_the_lock_file_stays_and_names_the_holder(run, engine, path):
    lock = path.with_name("checkpoint.json.lock")
    assert lock.read_text() == f"{os.getpid()}\n"

    run(engine.close())

    assert lock.read_text() == ""


def test_a_lock_file_that_somebody_removed_is_taken_again(run, engine, path, clock):
    lock = path.with_name("checkpoint.json.lock")
    lock.unlink()

    run(engine.insert([job(clock)]))

    assert lock.read_text() == f"{os.getpid()}\n"
    with pytest.raises(StoreBusy):
        run(FileEngine(path, clock).open())


def test_who_lost_the_lock_to_another_writes_nothing(run, engine, path, clock):
    run(engine.insert([job(clock)]))
    path.with_name("checkpoint.json.lock").unlink()
    other = FileEngine(path, clock)
    run(other.open())
    text = path.read_bytes()

    with pytest.raises(StoreBusy):
        run(engine.insert([job(clock)]))

    assert path.read_bytes() == text
    run(other.close())


def test_a_forked_child_can_neither_use_nor_free_the_store(run, engine, path, clock):
    run(engine.insert([job(clock)]))
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            loop = asyncio.new_event_loop()
            refused = []
            for call in (engine.count, lambda: engine.insert([job(clock)]), engine.close, engine.open, engine.count):
                try:
                    loop.run_until_complete(call())
                except StoreError as error:
                    refused.append(type(error))
            status = 0 if refused == [StoreClosed, StoreClosed, StoreBusy, StoreClosed] else 2
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0

    with pytest.raises(StoreBusy):
        run(FileEngine(path, clock).open())
    run(engine.insert([job(clock)]))


def test_a_forked_child_may_open_the_store_when_its_parent_has_closed_it(run, path, clock):
    engine = FileEngine(path, clock)
    run(engine.open())
    run(engine.insert([job(clock)]))
    told, asked = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.read(told, 1)
            loop = asyncio.new_event_loop()
            loop.run_until_complete(engine.open())
            loop.run_until_complete(engine.insert([job(clock)]))
            status = 0
        finally:
            os._exit(status)
    run(engine.close())
    os.write(asked, b"x")
    assert os.waitpid(pid, 0)[1] == 0

    run(engine.open())
    assert sum(run(engine.count()).values()) == 2
    run(engine.close())
    os.close(told)
    os.close(asked)


def test_a_child_that_outlives_its_parent_does_not_keep_the_lock(run, path, clock):
    parent = subprocess.run(
        [sys.executable, "-c", FORKER, str(path)], stdout=subprocess.PIPE, text=True, timeout=60, check=True
    )
    child = int(parent.stdout)
    engine = FileEngine(path, clock)
    try:
        os.kill(child, 0)  # It lives.
        run(engine.open())
    finally:
        os.kill(child, 9)
    run(engine.close())


FORKER = """
import asyncio, os, sys, time
from holdfast.engines.file import FileEngine
async def main():
    await FileEngine(sys.argv[1]).open()
asyncio.run(main())
pid = os.fork()
if pid == 0:
    os.close(1)
    time.sleep(60)
    os._exit(0)
print(pid, flush=True)
os._exit(0)
"""


def test_an_engine_that_is_not_open_says_so(run, path, clock):
    engine = FileEngine(path, clock)
    with pytest.raises(StoreClosed):
        run(engine.count())
    run(engine.open())
    run(engine.open())
    run(engine.close())
    run(engine.close())
    with pytest.raises(StoreClosed):
        run(engine.insert([job(clock)]))

    run(engine.open())
    run(engine.insert([job(clock)]))
    run(engine.close())


def test_work_handed_in_while_closing_is_answered(run, path, clock):
    async def main():
        engine = FileEngine(path, clock)
        await engine.open()
        tasks = [asyncio.create_task(engine.insert([job(clock)])) for _ in range(50)]
        await asyncio.sleep(0)
        await engine.close()
        return await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 30)

    answers = run(main())

    inserted = sum(not isinstance(answer, StoreClosed) for answer in answers)
    assert path.read_text().count('"status"') == inserted


def test_an_engine_may_be_used_from_several_loops(path, clock):
    engine = FileEngine(path, clock)
    asyncio.run(engine.open())
    threads = [threading.Thread(target=lambda: asyncio.run(engine.insert([job(clock)]))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sum(asyncio.run(engine.count()).values()) == 8
    asyncio.run(engine.close())


def test_a_lane_answers_whoever_was_just_in_time(run):
    closing = threading.Event()

    class Held:
        """A queue on which somebody is slow to put work, while somebody else closes the lane."""

        def __init__(self):
            self.queue: SimpleQueue[Any] = SimpleQueue()
            self.get, self.get_nowait = self.queue.get, self.queue.get_nowait

        def put(self, ticket):
            if ticket is not None and ticket.work == "late":
                closing.wait(0.5)
            self.queue.put(ticket)

    def answer(tickets):
        for ticket in tickets:
            ticket.answer = ticket.work

    lane = BatchThread("lane", answer)
    lane._queue = Held()  # type: ignore[assignment]

    def close():
        lane.close()
        closing.set()

    async def main():
        assert await lane.do("early") == "early"
        threading.Timer(0.1, close).start()
        return await asyncio.wait_for(lane.do("late"), 10)

    assert run(main()) == "late"


# Where it is.


def test_a_url_names_a_file(tmp_path, monkeypatch, run):
    monkeypatch.chdir(tmp_path)
    engine = engine_for("file:a%20b.json")
    assert isinstance(engine, FileEngine)
    assert engine.path == tmp_path / "a b.json"
    assert len({FileEngine.scratch("file:x.json", tmp_path / "a?b") for _ in range(50)}) == 50
    assert engine_for(FileEngine.scratch("file:x.json", tmp_path / "a?b")).path.parent == tmp_path / "a?b"  # type: ignore[attr-defined]


def test_a_link_is_followed_and_stays_a_link(run, tmp_path, clock):
    real, link = tmp_path / "real" / "jobs.json", tmp_path / "link.json"
    real.parent.mkdir()
    link.symlink_to(real)
    engine = FileEngine(link, clock)
    run(engine.open())
    run(engine.insert([job(clock)]))

    assert link.is_symlink()
    assert real.is_file()
    with pytest.raises(StoreBusy):
        run(FileEngine(real, clock).open())
    run(engine.close())


def test_a_file_keeps_the_mode_that_somebody_gave_it(run, engine, clock, path):
    run(engine.insert([job(clock)]))
    path.chmod(0o644)
    run(engine.insert([job(clock)]))

    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_what_a_killed_writer_left_is_swept_away_and_nothing_else(run, path, clock):
    ours, others = path.with_name(".checkpoint.json.123-4.tmp"), path.with_name(".checkpoint.json.x.tmp")
    for left in (ours, others):
        left.write_text("{")
    engine = FileEngine(path, clock)
    run(engine.open())

    assert not ours.exists()
    assert others.exists()
    run(engine.close())


def test_what_a_person_edits_while_it_is_in_use_is_kept_aside(run, engine, clock, path, caplog):
    run(engine.insert([job(clock)]))
    edited = path.read_bytes().replace(b"PENDING", b"DONE")
    path.write_bytes(edited)

    run(engine.insert([job(clock)]))
    run(engine.insert([job(clock)]))

    assert path.with_name("checkpoint.json.edited-1").read_bytes() == edited
    assert not path.with_name("checkpoint.json.edited-2").exists()
    assert path.read_text().count('"PENDING"') == 3
    assert "edited while in use" in caplog.text
