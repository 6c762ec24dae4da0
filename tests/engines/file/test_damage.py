"""Files that can't be a checkpoint: refused in one line that says where and what now, and left as they were."""

import asyncio
import errno
import json
import os
import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from holdfast.conformance.given import StoreClock, change, claimed, job, step
from holdfast.core.errors import (
    BadValue,
    StoreDamaged,
    StoreError,
    StoreForeign,
    StoreUnwritable,
)
from holdfast.core.model import Error, Event, Options, State, Wait, Where
from holdfast.engines.file import FileEngine
from tests.engines.file.simdisk import PATH, Faulty, SimDisk


@pytest.fixture(scope="module")
def healthy() -> bytes:
    """A small store with some of everything, on an imagined disk."""
    clock, disk = StoreClock(settable=True), SimDisk()

    async def main():
        engine = FileEngine(PATH, clock, disk=disk, inline=True)
        await engine.open()
        await engine.insert([job(clock, key="k"), job(clock, state=State.SCHEDULED)])
        [held] = await engine.claim("w-1", ["default"], 1)
        await engine.insert([job(clock, parent=held.id, group="ä")], held.lease)
        await engine.record([step(held)])
        await engine.commit([change(clock, held, Event.EXHAUST)])
        await engine.put_record("leader", '{"é":1.5}')
        await engine.close()

    asyncio.run(main())
    return disk.read(PATH)


def opened(data: bytes, clock: StoreClock) -> tuple[FileEngine, SimDisk]:
    disk = SimDisk({PATH: data})
    return FileEngine(PATH, clock, disk=disk, inline=True), disk


def refused(data: bytes, clock: StoreClock) -> StoreError:
    engine, disk = opened(data, clock)
    with pytest.raises((StoreDamaged, StoreForeign)) as caught:
        asyncio.run(engine.open())
    assert disk.read(PATH) == data
    assert disk.written == []
    assert str(caught.value).startswith(f"{PATH}: ")
    assert "the file was not changed" in str(caught.value)
    assert "\n" not in str(caught.value)
    return caught.value


def test_a_file_cut_off_anywhere_is_refused_and_left_alone(healthy, clock):
    for length in range(len(healthy) - 1):
        error = refused(healthy[:length], clock)
        assert type(error) is StoreDamaged
        line, column = map(int, re.search(r": line (\d+), column (\d+): ", str(error)).groups())
        lines = healthy[:length].split(b"\n")
        assert 1 <= line <= len(lines)
        assert 1 <= column <= len(lines[line - 1]) + 1

    # Without its last newline nothing is missing.
    engine, _ = opened(healthy[:-1], clock)
    asyncio.run(engine.open())


def test_a_flipped_bit_is_refused_or_means_something(healthy, clock):
    """Whatever a bit makes of the file: it opens, or one error says why not. Never anything else."""
    good = 0
    for place in range(len(healthy)):
        for bit in (0x01, 0x04, 0x20, 0x80):
            data = bytearray(healthy)
            data[place] ^= bit
            engine, disk = opened(bytes(data), clock)
            try:
                asyncio.run(engine.open())
                good += 1
            except (StoreDamaged, StoreForeign):
                assert disk.written == []
            if disk.written:  # What was understood can be read again.
                again, _ = opened(disk.written[-1], clock)
                asyncio.run(again.open())
    assert good < 2 * len(healthy)


def damaged(healthy: bytes, change) -> bytes:
    said = json.loads(healthy)
    change(said)
    return json.dumps(said, indent=2).encode()


def first(said: dict) -> dict:
    return said["jobs"][0]


DAMAGES = [
    pytest.param(lambda said: said["jobs"].append(said["jobs"][0]), "appears twice, first in line 4", id="id-twice"),
    pytest.param(lambda said: first(said).update(state="activ"), "Invalid enum value 'activ'", id="state"),
    pytest.param(
        lambda said: first(said).update(status="done"), "status 'done' is unknown; use one of PENDING", id="status"
    ),
    pytest.param(lambda said: first(said).pop("state"), "missing required field `state`", id="no-state"),
    pytest.param(lambda said: first(said).pop("history"), "missing required field `history`", id="no-history"),
    pytest.param(lambda said: first(said).update(history=[]), "its history ends with nothing", id="empty-history"),
    pytest.param(lambda said: first(said)["history"].pop(1), "has version 3 where version 2 is expected", id="gap"),
    pytest.param(lambda said: first(said)["history"].pop(), "its history ends with active", id="short-history"),
    pytest.param(lambda said: first(said).pop("args"), 'has no "args"', id="no-args"),
    pytest.param(lambda said: first(said).update(resutl=1), "unknown field `resutl`", id="misspelt"),
    pytest.param(lambda said: first(said).update(epoch="1"), "Expected `int`, got `str`", id="type"),
    pytest.param(lambda said: first(said).update(epoch=True), "Expected `int`, got `bool`", id="bool"),
    pytest.param(lambda said: first(said).update(created_at="soon"), "'soon' is not a time", id="time"),
    pytest.param(lambda said: first(said).update(created_at="2026-01-01T00:00"), "is not a time", id="time-zone"),
    pytest.param(lambda said: first(said).update(options={"retries": 1}), "no option 'retries'", id="option"),
    pytest.param(lambda said: first(said).update(options={"keep_ms": "1h"}), "options: Expected", id="option-type"),
    pytest.param(lambda said: said["jobs"].insert(1, 7), "Expected `object`, got `int`", id="no-block"),
    pytest.param(lambda said: said.update(notes=1), "'notes' is not a part of a checkpoint", id="part"),
    pytest.param(lambda said: said.update(keys={}), "'keys' must be a list", id="no-list"),
    pytest.param(lambda said: said["keys"].append({}), "missing required field", id="key"),
    pytest.param(lambda said: said["records"][0].pop("version"), "missing required field `version`", id="record"),
    pytest.param(lambda said: said["jobs"][1].pop("run_at"), 'is available and has no "run_at"', id="run-at"),
]


@pytest.mark.parametrize(("change", "words"), DAMAGES)
def test_a_contradiction_is_refused_with_its_place(healthy, clock, change, words):
    error = refused(damaged(healthy, change), clock)

    assert type(error) is StoreDamaged
    assert words in str(error)
    assert re.search(r": line \d+, column \d+: ", str(error))


def places(plain, way=()):
    """The ways to all values inside a value."""
    members = plain.items() if isinstance(plain, dict) else enumerate(plain) if isinstance(plain, list) else ()
    for key, value in members:
        yield (*way, key)
        yield from places(value, (*way, key))


@pytest.mark.parametrize("place", ["value", "name"])
def test_a_lone_surrogate_anywhere_is_one_clear_error_or_kept_text(healthy, clock, place):
    told = []
    for way in places(json.loads(healthy)):
        said = json.loads(healthy)
        around = said
        for key in way[:-1]:
            around = around[key]
        if place == "value":
            around[way[-1]] = "\ud800"
        elif isinstance(around, dict):
            around["\ud800"] = 1
        engine, disk = opened(json.dumps(said).encode(), clock)
        try:
            asyncio.run(engine.open())
        except (StoreDamaged, StoreForeign) as error:
            told.append(str(error))
            assert disk.read(PATH) == json.dumps(said).encode()

    assert len(told) > 20
    assert not [line for line in told if "\n" in line]
    assert [line for line in told if "a text with a lone surrogate, which is not valid Unicode" in line]


def parse_url(data: bytes, text: str) -> str:
    """Where a text stands that is there once."""
    before, found, after = data.decode().partition(text)
    assert found
    assert text not in after
    return f": line {before.count(chr(10)) + 1}, column {len(before) - before.rfind(chr(10))}: "


PLACES = [
    pytest.param(lambda said: first(said).update(state="nowhere"), '"nowhere"', id="state"),
    pytest.param(lambda said: first(said).update(status="nowhere"), '"nowhere"', id="status"),
    pytest.param(lambda said: first(said).update(type=777777), "777777", id="type"),
    pytest.param(lambda said: first(said).update(epoch="777777"), '"777777"', id="epoch"),
    pytest.param(lambda said: first(said).update(epoch=-777777), "-777777", id="epoch-below-0"),
    pytest.param(lambda said: first(said).update(priority=7 << 80), str(7 << 80), id="77-bits"),
    pytest.param(lambda said: first(said).update(run_at=7 << 80), str(7 << 80), id="time-77-bits"),
    pytest.param(lambda said: first(said).update(args={"a": [1, float("nan")]}), "NaN", id="nan"),
    pytest.param(lambda said: first(said).update(args={"a": [1, float("inf")]}), "Infinity", id="infinity"),
    pytest.param(lambda said: first(said).update(args=[-float("inf")]), "-Infinity", id="minus-infinity"),
    pytest.param(lambda said: first(said).update(options={"keep_ms": "777777"}), '"777777"', id="option"),
    pytest.param(lambda said: first(said).update(options={"keep_ms": 7 << 80}), str(7 << 80), id="option-77-bits"),
    pytest.param(lambda said: first(said).update(options={"777777": "nowhere"}), '"nowhere"', id="no-option"),
    pytest.param(lambda said: first(said).update(created_at="soon"), '"soon"', id="time"),
    pytest.param(lambda said: first(said)["history"][1].update(after="nowhere"), '"nowhere"', id="history"),
    pytest.param(lambda said: first(said)["history"][1].update(version=777777), "777777", id="gap"),
    pytest.param(lambda said: first(said)["steps"][0].update(started_at="soon"), '"soon"', id="step-time"),
    pytest.param(lambda said: first(said).update(nowhere=777777), "777777", id="unknown"),
    pytest.param(lambda said: first(said)["steps"][0].update(nowhere=777777), "777777", id="unknown-in-step"),
    pytest.param(lambda said: said["records"][0].update(version="777777"), '"777777"', id="record"),
]


@pytest.mark.parametrize(("change", "value"), PLACES)
def test_the_place_is_that_of_the_value(healthy, clock, change, value):
    data = damaged(healthy, change)

    assert parse_url(data, value) in str(refused(data, clock))


@pytest.mark.parametrize("name", ["status", "args", "history"])
def test_the_place_of_a_name_that_is_there_twice_is_its_second_one(healthy, clock, name):
    text = healthy.decode()
    at = text.index('      "state"', text.index(f'"{name}"'))
    if name == "history":
        at = text.index('      "history"')
    data = f'{text[:at]}      "{name}":   [777777],\n{text[at:]}'
    line = data[:at].count("\n") + 1
    if name == "history":
        line += 1  # The one that was there before comes second.

    assert f": line {line}, column 7: '{name}' appears twice" in str(refused(data.encode(), clock))


def test_a_name_that_is_there_twice_deep_inside_is_found(healthy, clock):
    data = damaged(healthy, lambda said: first(said).update(args=[{"a": 1, "777777": [{"a": 2}], "b": {"a": 3}}]))
    data = data.replace(b'"b": {', b'"777777": {')
    second = data.decode().rindex('"777777"')
    line, column = data[:second].count(b"\n") + 1, second - data.decode().rfind("\n", 0, second)

    assert f": line {line}, column {column}: '777777' appears twice" in str(refused(data, clock))


TEXTS = [
    pytest.param(b"", "line 1, column 1: the file is empty", id="empty"),
    pytest.param(b" \n ", "line 1, column 1: the file is empty", id="blank"),
    pytest.param(b"\0" * 100, "line 1, column 1: not JSON", id="zeros"),
    pytest.param(b'{"version": 1,\n "jobs": [\n  {"id": "\xff"}]}', "line 3, column 11: not UTF-8", id="utf-8"),
    pytest.param(b'{"version": 1, "jobs": [{"id": 1, "id": 2}]}', "'id' appears twice", id="name-twice"),
    pytest.param(b'{"version": 1, "version": 1, "jobs": []}', "'version' appears twice", id="part-twice"),
    pytest.param(b'{"version": 1, "jobs": [NaN]}', "NaN is not a number", id="nan"),
    pytest.param(b'{"version": 1, "jobs": []} {}', "line 1, column 28: expected nothing more", id="more"),
    pytest.param(b'{"version": 1, "jobs": [],}', "line 1, column 27", id="comma"),
    pytest.param(b'{"version": 1\n "jobs": []}', 'line 2, column 2: expected "," or "}"', id="no-comma"),
    pytest.param(b"{'version': 1}", "line 1, column 2", id="quotes"),
    pytest.param(b'{1: 2, "jobs": []}', "expected a name in quotes", id="name"),
    pytest.param(b'{"version": 1, "jobs": [' + b"[" * 200_000, "nested too deeply", id="deep"),
    pytest.param(b'{"version": 1, "jobs": [' + b"1" * 9_999, "digits", id="long-number"),
    pytest.param(b"\x89PNG\r\n\x1a\n", "not UTF-8", id="image"),
    pytest.param(b"<<<<<<< HEAD\n{}", "line 1, column 1: not JSON", id="merge"),
]


@pytest.mark.parametrize(("data", "words"), TEXTS)
def test_what_is_no_json_is_refused_with_line_and_column(data, words, clock):
    error = refused(data, clock)

    assert type(error) is StoreDamaged
    assert words in str(error)
    assert str(error).endswith("the file was not changed: correct it, or move it away")


FOREIGN = [
    pytest.param(b"[]", id="list"),
    pytest.param(b"17", id="number"),
    pytest.param(b"{}", id="nothing"),
    pytest.param(b'{"name": "x", "dependencies": {}}', id="another"),
    pytest.param(b'{"version": 1, "chapters": []}', id="chapters"),
    pytest.param(b'{"version": "1", "jobs": []}', id="text-version"),
    pytest.param(b'{"version": true, "jobs": []}', id="bool-version"),
    pytest.param(b'{"version": 1, "jobs": {}}', id="jobs"),
    pytest.param(b'{"version": 0, "jobs": []}', id="older"),
    pytest.param(b'{"version": 2, "jobs": [{"new": "shape"}], "more": 1}', id="newer"),
]


@pytest.mark.parametrize("data", FOREIGN)
def test_what_is_not_ours_is_refused(data, clock):
    error = refused(data, clock)

    assert type(error) is StoreForeign
    assert str(error).endswith("the file was not changed: use another file name")


def test_a_newer_version_is_named(clock):
    assert "version 2, and this program supports version 1" in str(refused(b'{"version": 2, "jobs": []}', clock))


def test_a_refused_file_may_be_mended_and_opened(healthy, clock, tmp_path, run):
    path = tmp_path / "checkpoint.json"
    path.write_bytes(healthy[:-9])
    engine = FileEngine(path, clock)
    with pytest.raises(StoreDamaged):
        run(engine.open())
    path.write_bytes(healthy)

    run(engine.open())

    assert len(run(engine.find(Where()))) == 3
    run(engine.close())


# Places where no file can be.


def place(kind: str, folder: Path) -> Path:
    path = folder / "checkpoint.json"
    match kind:
        case "folder":
            path.mkdir()
        case "pipe":
            os.mkfifo(path)
        case "missing":
            return folder / "not" / "there.json"
        case "below-a-file":
            path.write_text("x")
            return path / "checkpoint.json"
        case "loop":
            path.symlink_to(path)
        case "dangling":
            path.symlink_to(folder / "nowhere" / "x.json")
        case "long":
            return folder / ("x" * 300)
    return path


@pytest.mark.parametrize("kind", ["folder", "pipe", "missing", "below-a-file", "loop", "dangling", "long"])
def test_a_place_where_no_file_can_be_is_refused(kind, tmp_path, clock, run):
    path = place(kind, tmp_path)
    before = sorted(os.listdir(tmp_path))

    with pytest.raises(StoreUnwritable) as caught:
        run(FileEngine(path, clock).open())

    assert str(path) in str(caught.value)
    assert "; " in str(caught.value)
    assert sorted(os.listdir(tmp_path)) == before


def test_a_file_that_may_not_be_read_is_refused(tmp_path, clock, run, healthy):
    path, disk = tmp_path / "checkpoint.json", Faulty()
    path.write_bytes(healthy)
    disk.trouble["read"] = errno.EACCES
    engine = FileEngine(path, clock, disk=disk)

    with pytest.raises(StoreUnwritable, match="make the file and its folder readable and writable"):
        run(engine.open())

    disk.trouble.clear()
    run(engine.open())
    run(engine.close())


def test_a_folder_that_may_not_be_written_is_refused(tmp_path, clock, run):
    disk = Faulty()
    disk.readonly = True

    with pytest.raises(StoreUnwritable, match="has no permission to write"):
        run(FileEngine(tmp_path / "checkpoint.json", clock, disk=disk).open())

    assert os.listdir(tmp_path) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_real_folder_that_may_not_be_written_is_refused(tmp_path, clock, run):
    tmp_path.chmod(0o500)

    with pytest.raises(StoreUnwritable):
        run(FileEngine(tmp_path / "checkpoint.json", clock).open())


def test_a_job_with_a_broken_history_is_not_written(tmp_path, clock, run):
    engine = FileEngine(tmp_path / "checkpoint.json", clock)
    run(engine.open())

    with pytest.raises(ValueError, match="history"):
        run(engine.insert([job(clock, version=7)]))

    assert run(engine.count()) == {}
    run(engine.close())


UNREADABLE = [
    pytest.param({"priority": True}, id="bool"),
    pytest.param({"priority": 1.5}, id="float"),
    pytest.param({"priority": 1 << 77}, id="77-bits"),
    pytest.param({"run_at": 1 << 63}, id="time"),
    pytest.param({"run_at": "soon"}, id="text-time"),
    pytest.param({"priority": "high", "state": State.AVAILABLE}, id="text-priority"),
    pytest.param({"epoch": -1}, id="epoch"),
    pytest.param({"key": 7}, id="key"),
    pytest.param({"queue": None}, id="queue"),
    pytest.param({"state": State.ACTIVE}, id="no-worker"),
    pytest.param({"options": Options(keep_ms="1h")}, id="option"),  # type: ignore[arg-type]
    pytest.param({"options": Options(timeout_ms=1 << 64)}, id="wide-option"),
    pytest.param({"waits": (Wait("sun"),)}, id="wait"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize("fields", UNREADABLE)
def test_a_job_that_could_not_be_read_again_is_refused(tmp_path, clock, run, fields):
    engine = FileEngine(tmp_path / "checkpoint.json", clock)
    run(engine.open())
    kept = job(clock)
    run(engine.insert([kept]))
    text = engine.path.read_bytes()

    with pytest.raises(BadValue) as caught:
        run(engine.insert([job(clock), replace(job(clock, state=State.SCHEDULED), **fields)]))

    assert "\n" not in str(caught.value)
    assert engine.path.read_bytes() == text
    assert run(engine.find(Where())) == [kept]
    run(engine.insert([job(clock), job(clock, state=State.SCHEDULED), job(clock, state=State.SCHEDULED)]))
    run(engine.close())
    run(engine.open())
    assert sum(run(engine.count()).values()) == 4
    run(engine.close())


def test_a_step_or_end_that_could_not_be_read_again_is_refused(tmp_path, clock, run):
    engine = FileEngine(tmp_path / "checkpoint.json", clock)
    run(engine.open())
    held = run(claimed(engine, clock))

    for act in (
        engine.record([step(held), step(held, "b", started_at=1.5)]),
        engine.record([step(held, name=7)]),
        engine.commit([change(clock, held, Event.COMPLETE, note={1: 1, "1": 2})]),
        engine.commit([change(clock, held, Event.EXHAUST, error=Error("E", "m", 7))]),  # type: ignore[arg-type]
        engine.commit([change(clock, held, Event.COMPLETE, by=7)]),
    ):
        with pytest.raises(BadValue):
            run(act)

    assert run(engine.steps(held.id)) == []
    assert run(engine.get([held.id])) == [held]
    run(engine.close())
