"""The file engine's own laws: one write for a batch, all or nothing, nothing shown before it is durable, one owner."""

import asyncio
import errno
import logging
import os
import stat
import threading
from pathlib import Path
from typing import Any

import pytest

from holdfast.conformance.given import HOUR, StoreClock, change, claimed, done, in_state, job, step
from holdfast.core.errors import BadValue, KeyConflict, StoreError, StoreFull, StoreUnwritable
from holdfast.core.lifecycle import TERMINAL
from holdfast.core.model import Applied, Conflict, Event, Options, Presence, State, StepState, Where
from holdfast.engines.file import FileEngine
from holdfast.engines.file import engine as file
from holdfast.engines.file.writer import FileText
from holdfast.engines.topics import job_topic
from tests.engines.file.simdisk import Faulty


@pytest.fixture
def disk() -> Faulty:
    return Faulty()


@pytest.fixture
def engine(path, clock, disk, run):
    """An open engine on a real disk that can be told to fail."""
    engine = FileEngine(path, clock, disk=disk)
    run(engine.open())
    yield engine
    run(engine.close())


def saves(disk: Faulty) -> int:
    return disk.calls.count("rename")


# When the file is written.


def test_a_new_store_is_written_with_its_first_act(path, run, engine, clock):
    assert not path.exists()

    run(engine.insert([job(clock)]))

    assert path.exists()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_reads_beats_and_acts_that_change_nothing_write_nothing(run, engine, clock, disk):
    held = run(claimed(engine, clock))
    run(engine.record([step(held)]))
    before = saves(disk)

    async def look():
        await engine.beat(Presence("w-1", queues=("default",)))
        await engine.get([held.id])
        await engine.find(Where())
        await engine.count()
        await engine.steps(held.id)
        await engine.history(held.id)
        await engine.missing(held.id, "")
        await engine.records("")
        assert await engine.claim("w-2", ["default"], 9) == []
        assert await engine.prune() == 0
        assert await engine.record([step(held)])
        assert isinstance((await engine.commit([change(clock, held, Event.COMPLETE, at=0)]))[0], Applied)
        [late] = await engine.commit([change(clock, held, Event.COMPLETE)])
        assert isinstance(late, Conflict)
        [answer] = await engine.insert([held])
        assert not answer.new

    run(look())
    assert saves(disk) == before + 1  # The one commit that held.


def test_acts_that_wait_together_are_written_together(run, engine, clock, disk):
    async def many():
        await asyncio.gather(*(engine.insert([job(clock)]) for _ in range(200)))
        return await engine.count()

    assert sum(run(many()).values()) == 200
    assert saves(disk) < 20


def test_the_event_loop_goes_on_while_the_disk_is_slow(run, path, clock):
    class Slow(Faulty):
        reached, go = threading.Event(), threading.Event()

        def fsync(self, fd):
            self.reached.set()
            assert self.go.wait(30)
            super().fsync(fd)

    slow = Slow()
    engine = FileEngine(path, clock, disk=slow)

    async def main():
        await engine.open()
        first = job(clock)
        insert = asyncio.create_task(engine.insert([first]))
        await asyncio.to_thread(slow.reached.wait, 30)
        read = asyncio.create_task(engine.get([first.id]))
        await asyncio.sleep(0)
        # The loop runs, the disk doesn't: nobody is told of what isn't durable.
        assert not insert.done()
        assert not read.done()
        slow.go.set()
        await insert
        assert await read == [first]
        await engine.close()

    run(main())


# When the write fails.

TROUBLES = [
    pytest.param("create", errno.EROFS, StoreUnwritable, id="read-only"),
    pytest.param("create", errno.EACCES, StoreUnwritable, id="no-right"),
    pytest.param("write", errno.ENOSPC, StoreFull, id="full"),
    pytest.param("write", errno.EDQUOT, StoreFull, id="quota"),
    pytest.param("write", errno.EIO, StoreError, id="write"),
    pytest.param("fsync", errno.EIO, StoreError, id="fsync"),
    pytest.param("rename", errno.EIO, StoreError, id="rename"),
    pytest.param("rename", errno.EROFS, StoreUnwritable, id="read-only-late"),
]


@pytest.mark.parametrize(("call", "number", "kind"), TROUBLES)
def test_a_failed_write_changes_nothing_and_the_next_one_works(call, number, kind, run, engine, clock, disk, path):
    held = run(claimed(engine, clock, key="k", digest="d"))
    before, text = run(everything(engine)), path.read_bytes()

    disk.trouble[call] = number
    for act in (
        engine.insert([job(clock)]),
        engine.commit([change(clock, held, Event.COMPLETE)]),
        engine.record([step(held)]),
        engine.put_record("leader", "1"),
    ):
        with pytest.raises(kind) as caught:
            run(act)
        assert str(caught.value).startswith(f"{path}: ")
        assert "\n" not in str(caught.value)
        assert path.read_bytes() == text
        assert run(everything(engine)) == before

    disk.trouble.clear()
    assert isinstance(run(engine.commit([change(clock, held, Event.COMPLETE)]))[0], Applied)
    assert run(reopened(engine, clock)) == run(everything(engine))
    assert leftovers(path) == []


def test_when_only_the_folder_could_not_be_synced_the_old_file_is_put_back(run, engine, clock, disk, path):
    run(engine.insert([job(clock)]))
    text = path.read_bytes()
    failed: list[Any] = []

    def fails_once(folder):
        if not failed:
            failed.append(folder)
            raise OSError(errno.EIO, "no")

    disk.fsync_dir = fails_once
    with pytest.raises(StoreError, match="which may or may not be stored"):
        run(engine.insert([job(clock)]))

    assert path.read_bytes() == text
    assert run(engine.count()) == {("default", State.AVAILABLE): 1}


def test_a_failed_fsync_is_never_tried_again_on_the_same_file(run, engine, clock, disk, path):
    run(engine.insert([job(clock)]))
    disk.calls.clear()
    disk.trouble["fsync"] = errno.EIO
    with pytest.raises(StoreError):
        run(engine.insert([job(clock)]))

    assert disk.calls == ["create", "write", "fsync", "remove"]
    assert leftovers(path) == []


def test_a_failed_batch_answers_acts_with_the_error_and_reads_with_what_is_durable(run, engine, clock, disk):
    first = job(clock)
    run(engine.insert([first]))

    async def together():
        disk.trouble["fsync"] = errno.EIO
        return await asyncio.gather(
            engine.insert([job(clock)]),
            engine.claim("w-1", ["default"], 9),
            engine.get([first.id]),
            engine.count(),
            engine.insert([first]),
            return_exceptions=True,
        )

    # All in one batch: the lane is held up by a first act that waits for the same disk.
    inserted, claim, got, count, again = run(together())

    assert isinstance(inserted, StoreError)
    assert isinstance(claim, StoreError)
    assert got == [first]
    assert count == {("default", State.AVAILABLE): 1}
    assert isinstance(again, StoreError) or not again[0].new


def test_a_refused_act_takes_nothing_from_its_neighbours(run, engine, clock):
    run(engine.insert([job(clock, key="k", digest="d1")]))

    async def together():
        return await asyncio.gather(
            engine.insert([job(clock)]),
            engine.insert([job(clock), job(clock, key="k", digest="d2")]),
            engine.insert([job(clock)]),
            return_exceptions=True,
        )

    first, second, third = run(together())

    assert isinstance(second, KeyConflict)
    assert first[0].new
    assert third[0].new
    assert sum(run(engine.count()).values()) == 3


def test_what_no_json_can_say_is_refused_alone(run, engine, clock):
    odd, *others = [run(claimed(engine, clock)) for _ in range(6)]
    before = run(everything(engine))
    changes = [change(clock, held, Event.COMPLETE) for held in others]

    with pytest.raises(BadValue):
        run(engine.commit([*changes, change(clock, odd, Event.COMPLETE, note={"odd": {1, 2}})]))

    assert run(everything(engine)) == before
    assert whole(engine) == engine._text.data(engine._rows)
    run(engine.insert([job(clock)]))


def test_after_a_failed_write_nothing_has_changed_its_place(run, engine, clock, disk):
    old = [run(in_state(engine, clock, State.COMPLETED, options=Options(keep_ms=0))) for _ in range(2)]
    held = run(claimed(engine, clock))
    run(engine.record([step(held, "a", StepState.FAILED), step(held, "b"), step(held, "c", StepState.FAILED)]))
    clock.advance(HOUR)
    steps, text = run(engine.steps(held.id)), whole(engine)

    disk.trouble["write"] = errno.ENOSPC
    with pytest.raises(StoreFull):
        run(engine.commit([change(clock, held, Event.FAIL)]))
    with pytest.raises(StoreFull):
        run(engine.prune())
    disk.trouble.clear()

    assert run(engine.steps(held.id)) == steps
    assert [one.path for one in steps] == ["a", "b", "c"]
    assert whole(engine) == text
    assert all(run(engine.get([one.id for one in old])))


def test_a_change_that_failed_does_not_let_a_job_come_early(run, engine, clock, disk):
    held = run(claimed(engine, clock))
    run(done(engine, clock, held, Event.LAPSE))
    [held] = run(engine.claim("w-1", [held.queue], 1))
    disk.trouble["fsync"] = errno.EIO
    with pytest.raises(StoreError):
        run(engine.commit([change(clock, held, Event.RELEASE)]))  # It would have been available at once.
    disk.trouble.clear()

    waiting = run(done(engine, clock, held, Event.LAPSE))  # The second lost worker in a row makes it wait.

    assert waiting.run_at > clock.now
    assert run(engine.claim("w-1", [held.queue], 1)) == []


def test_a_rest_that_failed_does_not_wake_a_job_early(run, engine, clock, disk):
    held = run(claimed(engine, clock))
    disk.trouble["fsync"] = errno.EIO
    with pytest.raises(StoreError):
        run(engine.commit([change(clock, held, Event.REST, run_at=clock.now)]))
    disk.trouble.clear()

    resting = run(done(engine, clock, held, Event.REST, run_at=clock.now + HOUR))

    assert run(engine.claim("w-1", [held.queue], 1)) == []
    assert run(engine.get([held.id])) == [resting]


def test_the_text_that_is_kept_is_the_text_that_would_be_written_anew(run, engine, clock, disk):
    for state in State:
        held = run(in_state(engine, clock, state, key=f"k-{state}"))
        assert whole(engine) == engine._text.data(engine._rows)
        act = engine.put_record("leader", "1")
        if held.state not in TERMINAL:
            act.close()
            act = engine.commit([change(clock, held, Event.CANCEL, inserts=(job(clock, parent=held.id),))])
        disk.trouble["fsync"] = errno.EIO
        with pytest.raises(StoreError):
            run(act)
        disk.trouble.clear()
        assert whole(engine) == engine._text.data(engine._rows)


def test_news_ring_only_after_the_write(run, engine, clock, disk):
    async def main():
        mark = await engine.wait([], 0)
        new = job(clock)
        disk.trouble["fsync"] = errno.EIO
        with pytest.raises(StoreError):
            await engine.insert([new])
        assert await engine.wait([job_topic(new.id)], 0.01, mark) == mark
        disk.trouble.clear()
        await engine.insert([new])
        assert await engine.wait([job_topic(new.id)], 0.01, mark) > mark

    run(main())


# How much it holds.


def test_too_many_jobs_are_refused_and_nothing_is_lost(run, engine, clock, path, monkeypatch):
    monkeypatch.setattr(file, "JOB_LIMIT", 5)
    held = run(claimed(engine, clock))
    run(engine.insert([job(clock) for _ in range(3)]))
    text = path.read_bytes()

    for act in (
        engine.insert([job(clock), job(clock)]),
        engine.commit([change(clock, held, Event.COMPLETE, inserts=(job(clock), job(clock)))]),
    ):
        with pytest.raises(StoreFull, match=r"sqlite:///") as caught:
            run(act)
        assert "up to 5 jobs" in str(caught.value)
    assert path.read_bytes() == text

    run(engine.insert([job(clock)]))
    assert isinstance(run(engine.commit([change(clock, held, Event.COMPLETE)]))[0], Applied)


def test_many_jobs_are_warned_of_once(run, engine, clock, caplog, monkeypatch):
    monkeypatch.setattr(file, "COMFORTABLE_JOBS", 3)
    caplog.set_level(logging.WARNING)
    for _ in range(6):
        run(engine.insert([job(clock)]))

    [record] = caplog.records
    assert "more than 3 jobs" in record.getMessage()
    assert "sqlite:///" in record.getMessage()


def test_the_limits_are_those_that_the_guarantees_tell():
    assert (file.COMFORTABLE_JOBS, file.JOB_LIMIT) == (1_000, 10_000)
    assert FileEngine.guarantees.limit == "1,000 jobs comfortably, 10,000 at most"


async def everything(engine: FileEngine) -> object:
    jobs = await engine.find(Where())
    return (
        jobs,
        [await engine.steps(one.id) for one in jobs],
        [await engine.history(one.id) for one in jobs],
        dict(await engine.count()),
        await engine.records(""),
    )


async def reopened(engine: FileEngine, clock: StoreClock) -> object:
    """The same, from the file alone. Nothing in it may be active."""
    await engine.close()
    await engine.open()
    return await everything(engine)


def whole(engine: FileEngine) -> bytes:
    """The file as it would be written with nothing kept from before."""
    return FileText().data(engine._rows)


def leftovers(path: Path) -> list[str]:
    return [name for name in os.listdir(path.parent) if name.endswith(".tmp")]
