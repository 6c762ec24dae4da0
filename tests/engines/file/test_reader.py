"""A file that is only looked at: at any moment, also while another process uses it, and without a trace."""

import asyncio
import os
import time
from collections.abc import Callable

import pytest

from holdfast.conformance.given import change, claimed, job, step
from holdfast.core.errors import HoldfastError, StoreClosed, StoreDamaged, StoreError, StoreUnwritable
from holdfast.core.model import Event, Presence, State, Where
from holdfast.engines.file import FileEngine
from holdfast.engines.file.reader import FileReader
from holdfast.jobs.service import Jobs
from tests.engines.file.given import left_running, states
from tests.engines.file.simdisk import PATH, Faulty, SimDisk


@pytest.fixture
def reader(path, clock, run):
    """An open reader of the same file."""
    reader = FileReader(path, clock)
    run(reader.open())
    yield reader
    run(reader.close())


# What a look sees.


def test_a_file_in_use_can_be_looked_at_and_each_look_is_at_what_it_says_now(run, engine, reader, clock):
    assert states(reader, run) == []

    run(engine.insert([job(clock)]))
    assert states(reader, run) == [State.AVAILABLE]

    [held] = run(engine.claim("w-1", ["default"], 1))
    run(engine.record([step(held)]))
    assert states(reader, run) == [State.ACTIVE]
    assert run(reader.get([held.id])) == run(engine.get([held.id]))
    assert run(reader.steps(held.id)) == run(engine.steps(held.id))

    run(engine.commit([change(clock, held, Event.COMPLETE)]))
    assert states(reader, run) == [State.COMPLETED]
    assert run(reader.history(held.id)) == run(engine.history(held.id))
    assert run(reader.count()) == run(engine.count())


def test_many_looks_during_many_writes_each_see_a_whole_file(run, engine, reader, clock):
    async def main() -> list[int]:
        seen: list[int] = []

        async def write():
            for _ in range(150):
                await engine.insert([job(clock)])

        writing = asyncio.create_task(write())
        while not writing.done():
            seen.append(sum((await reader.count()).values()))
            await asyncio.sleep(0)
        await writing
        return seen

    seen = run(main())

    assert seen == sorted(seen)
    assert len(set(seen)) > 3, "the looks raced with the writes"
    assert sum(run(reader.count()).values()) == 150


def test_a_file_that_did_not_change_is_read_once(run, engine, path, clock):
    run(engine.insert([job(clock)]))
    disk = Faulty()
    reader = FileReader(path, clock, disk=disk)
    run(reader.open())

    for _ in range(5):
        run(reader.count())
    assert disk.calls == ["read"]

    run(engine.insert([job(clock)]))
    run(reader.count())
    assert disk.calls == ["read", "read"]
    run(reader.close())


def test_a_half_written_file_beside_it_is_neither_seen_nor_swept(run, engine, path, clock):
    run(engine.insert([job(clock)]))
    half = path.with_name(f".checkpoint.json.{os.getpid()}-99.tmp")
    half.write_text('{"version": 1, "jobs": [')
    reader = FileReader(path, clock)

    run(reader.open())

    assert states(reader, run) == [State.AVAILABLE]
    assert half.exists()
    run(reader.close())


def test_a_file_that_is_not_there_is_empty_until_it_comes(run, path, clock):
    reader = FileReader(path, clock)
    run(reader.open())
    assert run(reader.count()) == {}
    assert list(path.parent.iterdir()) == []

    left_running(path, clock, run)
    assert states(reader, run) == [State.ACTIVE, State.AVAILABLE]

    path.unlink()
    assert run(reader.count()) == {}
    run(reader.close())


def test_a_link_is_followed(run, tmp_path, clock):
    left_running(tmp_path / "real.json", clock, run)
    (tmp_path / "link.json").symlink_to(tmp_path / "real.json")
    reader = FileReader(tmp_path / "link.json", clock)

    run(reader.open())

    assert states(reader, run) == [State.ACTIVE, State.AVAILABLE]
    run(reader.close())


# It leaves no trace.


def test_what_a_crash_left_running_is_shown_so_and_is_still_to_be_recovered(run, path, clock):
    left_running(path, clock, run)
    path.with_name("checkpoint.json.lock").unlink()
    before = {one.name: (one.read_bytes(), one.stat().st_mtime_ns) for one in path.parent.iterdir()}

    for _ in range(2):
        reader = FileReader(path, clock)
        run(reader.open())
        assert states(reader, run) == [State.ACTIVE, State.AVAILABLE]
        assert reader.recovered == 0
        run(reader.close())

    assert {one.name: (one.read_bytes(), one.stat().st_mtime_ns) for one in path.parent.iterdir()} == before
    engine = FileEngine(path, clock)
    run(engine.open())
    assert engine.recovered == 1
    assert states(engine, run) == [State.AVAILABLE, State.AVAILABLE]
    run(engine.close())


def test_looking_calls_nothing_that_changes_a_disk(clock, run, path):
    left_running(path, clock, run)
    disk = SimDisk({PATH: path.read_bytes()})
    disk.locked = True  # Somebody else has it.
    reader = FileReader(PATH, clock, disk=disk, inline=True)

    run(reader.open())
    states(reader, run)
    run(reader.close())

    assert len(disk.moments) == 1, "the start"
    assert disk.locked


def test_a_file_that_may_only_be_read_can_be_looked_at(clock, run, path):
    left_running(path, clock, run)
    disk = Faulty()
    disk.readonly = True
    reader = FileReader(path, clock, disk=disk)

    run(reader.open())

    assert states(reader, run) == [State.ACTIVE, State.AVAILABLE]
    run(reader.close())


WRITES: dict[str, Callable] = {
    "insert": lambda reader, clock: reader.insert([job(clock)]),
    "claim": lambda reader, clock: reader.claim("w-1", ["default"], 1),
    "beat": lambda reader, clock: reader.beat(Presence("w-1")),
    "commit": lambda reader, clock: reader.commit([change(clock, job(clock), Event.CANCEL)]),
    "record": lambda reader, clock: reader.record([step(job(clock))]),
    "prune": lambda reader, clock: reader.prune(),
    "put_record": lambda reader, clock: reader.put_record("leader", "1"),
}


@pytest.mark.parametrize("name", WRITES)
def test_every_act_that_writes_is_refused_in_the_same_words(run, path, clock, name):
    left_running(path, clock, run)
    text = path.read_bytes()
    reader = FileReader(path, clock)
    run(reader.open())

    with pytest.raises(StoreUnwritable) as caught:
        run(WRITES[name](reader, clock))

    assert str(caught.value) == f"{path} was opened read-only; nothing was changed; open it for writing"
    assert path.read_bytes() == text
    assert run(reader.records("")) == []
    run(reader.close())


def test_a_writer_may_come_while_somebody_looks(run, reader, path, clock):
    engine = FileEngine(path, clock)
    run(engine.open())
    run(engine.insert([job(clock)]))

    assert states(reader, run) == [State.AVAILABLE]
    run(engine.close())


# Edits, and files that are none.


def test_an_edit_by_hand_is_shown_as_it_will_be_and_stays_to_be_carried_out(run, engine, path, clock):
    held = run(claimed(engine, clock))
    run(engine.commit([change(clock, held, Event.EXHAUST)]))
    run(engine.close())
    edited = path.read_bytes().replace(b"NEEDS_REVIEW", b"PENDING")
    path.write_bytes(edited)
    reader = FileReader(path, clock)

    run(reader.open())

    assert states(reader, run) == [State.AVAILABLE]
    assert path.read_bytes() == edited
    run(reader.close())


@pytest.mark.parametrize(
    "spoil",
    [
        lambda text: text[:-9],
        lambda text: text.replace(b'"RUNNING"', b'"NEEDS_REVIEW"'),
        lambda text: b"",
        lambda text: b'{"mine": 1}',
        lambda text: b'{"version": 2, "jobs": []}',
    ],
    ids=["cut", "wrong-edit", "empty", "foreign", "newer"],
)
def test_what_cant_be_right_is_told_in_the_words_of_the_engine(run, path, clock, spoil):
    left_running(path, clock, run)
    text = spoil(path.read_bytes())
    path.write_bytes(text)
    told = []
    for kind in (FileEngine, FileReader):
        with pytest.raises(StoreError) as caught:
            run(kind(path, clock).open())
        told.append((type(caught.value), str(caught.value)))

    assert told[0] == told[1]
    assert "\n" not in told[0][1]
    assert path.read_bytes() == text


def test_a_file_that_is_spoilt_between_two_looks_is_told_and_may_be_mended(run, path, clock):
    left_running(path, clock, run)
    text = path.read_bytes()
    reader = FileReader(path, clock)
    run(reader.open())

    path.write_bytes(text[:-9])
    for _ in range(2):
        with pytest.raises(StoreDamaged, match=r"line \d+, column \d+: "):
            run(reader.count())
    path.write_bytes(text)

    assert states(reader, run) == [State.ACTIVE, State.AVAILABLE]
    run(reader.close())


@pytest.mark.parametrize("kind", ["folder", "pipe", "below-a-file", "loop"])
def test_a_place_where_no_file_can_be_is_one_line(run, tmp_path, clock, kind):
    path = tmp_path / "checkpoint.json"
    match kind:
        case "folder":
            path.mkdir()
        case "pipe":
            os.mkfifo(path)
        case "below-a-file":
            path.write_text("x")
            path = path / "checkpoint.json"
        case "loop":
            path.symlink_to(path)

    with pytest.raises(StoreError) as caught:
        run(FileReader(path, clock).open())

    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_a_reader_that_is_not_open_says_so_and_may_be_opened_again(run, path, clock):
    left_running(path, clock, run)
    reader = FileReader(path, clock)
    for _ in range(2):
        with pytest.raises(StoreClosed):
            run(reader.count())
        run(reader.open())
        run(reader.open())
        assert states(reader, run) == [State.ACTIVE, State.AVAILABLE]
        run(reader.close())
        run(reader.close())


# Waiting for news.


def test_a_wait_ends_when_the_file_changes(run, engine, reader, clock):
    async def main() -> float:
        mark = await reader.wait(["job:x"], 0)
        began = time.monotonic()
        waiting = asyncio.create_task(reader.wait(["job:x"], 30, mark))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        await engine.insert([job(clock)])
        assert await waiting > mark
        return time.monotonic() - began

    assert run(main()) < 10


def test_a_wait_without_news_ends_in_time(run, reader):
    began = time.monotonic()

    mark = run(reader.wait([], 0.3))

    assert 0.25 < time.monotonic() - began < 5
    assert run(reader.wait([], 0.01, mark)) == mark


def test_news_between_two_waits_are_not_missed(run, engine, reader, clock):
    mark = run(reader.wait([], 0))
    run(engine.insert([job(clock)]))
    run(reader.count())

    began = time.monotonic()
    assert run(reader.wait([], 30, mark)) > mark
    assert time.monotonic() - began < 10


def test_jobs_of_a_reader_can_be_asked_but_not_changed(run, path, clock):
    left_running(path, clock, run)
    reader = FileReader(path, clock)
    run(reader.open())
    jobs = Jobs(reader)
    held = run(reader.find(Where()))[0]

    assert run(jobs.status(held.id)).state is State.ACTIVE
    with pytest.raises(HoldfastError, match="opened read-only"):
        run(jobs.cancel(held.id))
    run(reader.close())
