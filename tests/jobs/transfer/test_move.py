"""All jobs from one store to another: nothing is lost, changed or run twice, wherever the move is cut."""

import asyncio
import json
import os
import random
import secrets
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace

from holdfast import App, Settings
from holdfast.cli import main
from holdfast.conformance.dump import Dump, dump
from holdfast.core.errors import KeyConflict, Moved
from holdfast.core.lifecycle import decide
from holdfast.core.model import Event, Options, Record, State, UniqueName, Where
from holdfast.core.moves import MOVED, HeldKey
from holdfast.core.schedules import Definition, Template
from holdfast.engines import engine_class
from holdfast.engines.urls import named
from holdfast.jobs.full_queues import set_bound, stored_bounds
from holdfast.jobs.schedules import find_schedule, pause_schedule, put_schedule
from holdfast.jobs.service import JobRequest, Jobs
from holdfast.jobs.transfer.drain import OURS
from holdfast.jobs.transfer.move import Side, move
from tests.jobs.transfer import killed, pipeline
from tests.jobs.transfer.pipeline import SCENES, Pipeline, drawn, in_engine, in_pipeline
from tests.support.given import until

PROCESS_SECONDS = 60.0


def called(*words: str) -> Result:
    return CliRunner().invoke(main, ["move", *words], prog_name="holdfast", catch_exceptions=False)


def moved(source: str, target: str, *more: str) -> dict[str, Any]:
    """Move by the command line, which must succeed; answer with what it told."""
    result = called("--from", source, "--to", target, "--json", *more)
    assert result.exit_code == 0, result.output
    told: dict[str, Any] = json.loads(result.stdout)
    return told


Contents = tuple[Dump, list[str], list[HeldKey], list[Record]]


async def contents(engine: Any) -> Contents:
    """All that a store holds, but for the mark and the workers: the jobs, their order, keys, records and versions."""
    held = await dump(engine)
    records = [record for record in held.records if record.name != MOVED]
    order, keys = await engine.in_order(), sorted(await engine.keys(), key=lambda key: (key.type, key.key))
    kept = [record for record in await engine.all_records() if record.name != MOVED]
    return replace(held, records=records, workers={}), [job.id for job in order], keys, kept


def read(url: str) -> Contents:
    return asyncio.run(in_engine(url, contents))


@pytest.fixture(autouse=True)
def nothing_drawn() -> None:
    drawn.clear()
    pipeline.stuck.clear()


def some(url: str, number: int = 12) -> None:
    """A small store, without a worker's help."""

    async def work(engine: Any) -> None:
        jobs = Jobs(engine)
        for n in range(number):
            await jobs.submit([JobRequest(type="t", args=f"[{n}]", key=f"k-{n}" if n % 3 else None)])
        for job in await engine.claim("w-1", ["default"], number // 2):
            await engine.commit([decide(job, Event.COMPLETE, await engine.now(), by="w-1", result="1")])
        await jobs.pause("video")

    asyncio.run(in_engine(url, work))


# The whole way.


def test_a_pipeline_goes_on_after_a_move_from_file_to_sqlite_to_postgres_to_redis_to_sqlite(
    tmp_path: Path, postgres_store: str, redis_store: str
):
    stores = [
        f"file:{tmp_path}/checkpoint.json",
        f"sqlite:///{tmp_path}/one.db",
        postgres_store,
        redis_store,
        f"sqlite:///{tmp_path}/two.db",
    ]
    ids = asyncio.run(in_pipeline(stores[0], pipeline.fill))
    states = {State(name.partition("/")[2]) for name in read(stores[0])[0].counts}
    assert states == set(State) - {State.ACTIVE}  # which a file recovers when it is opened

    told = moved(stores[0], stores[1])
    assert read(stores[1]) == read(stores[0])
    assert told["jobs"] == len(read(stores[1])[0].jobs) > 15
    asyncio.run(in_engine(stores[1], _leave_one_active))
    for source, target in pairwise(stores[1:]):
        again = moved(source, target)
        assert read(target) == read(source)
        assert (again["jobs"], again["keys"]) == (told["jobs"], told["keys"])

    asyncio.run(in_pipeline(stores[-1], lambda pipeline: _goes_on(pipeline, ids)))


def test_a_pipeline_goes_on_in_redis(tmp_path: Path, redis_store: str):
    old = f"sqlite:///{tmp_path}/old.db"
    ids = asyncio.run(in_pipeline(old, pipeline.fill))
    asyncio.run(in_engine(old, _leave_one_active))

    moved(old, redis_store)

    assert read(redis_store) == read(old)
    asyncio.run(in_pipeline(redis_store, lambda pipeline: _goes_on(pipeline, ids)))


def test_schedules_go_along_with_their_last_ticks(tmp_path: Path):
    old, new = f"file:{tmp_path}/old.json", f"sqlite:///{tmp_path}/new.db"
    definition = Definition(job=Template(type="report"), every_ms=1_000)

    async def put(engine: Any) -> Any:
        await put_schedule(engine, "second", definition, by="ann")
        await pause_schedule(engine, "second", by="ann", reason="moving")
        return await find_schedule(engine, "second")

    _, before = asyncio.run(in_engine(old, put))
    moved(old, new)
    _, after = asyncio.run(in_engine(new, lambda engine: find_schedule(engine, "second")))

    assert after == before


def test_bounds_and_names_of_pruned_unique_jobs_go_along(tmp_path: Path, postgres_store: str, redis_store: str):
    stores = [f"file:{tmp_path}/old.json", f"sqlite:///{tmp_path}/new.db", postgres_store, redis_store]
    once = Options(keep_ms=0, unique=UniqueName(key="f" * 64, states=tuple(State), within_ms=3_600_000))

    async def fill(engine: Any) -> str:
        [one] = await Jobs(engine).submit([JobRequest(type="t", options=once)])
        [job] = await engine.claim("w-1", ["default"], 1)
        await engine.commit([decide(job, Event.COMPLETE, await engine.now(), by="w-1", result="1")])
        assert await engine.prune(10) == 1
        await set_bound(engine, "video", 500, by="ann", reason="disk")
        return one.id

    async def again(engine: Any) -> tuple[str, Any]:
        [found] = await Jobs(engine).submit([JobRequest(type="t", options=once)])
        return found.id, (await stored_bounds(engine))["video"].most_waiting

    id = asyncio.run(in_engine(stores[0], fill))
    for source, target in pairwise(stores):
        moved(source, target)
        assert asyncio.run(in_engine(target, again)) == (id, 500)


async def _leave_one_active(engine: Any) -> None:
    """A worker that died and left no trace; it holds the second of five jobs that are claimed in an order."""
    [_, held] = await engine.claim("w-dead", ["line"], 2)
    assert held.args == "[3]"


async def _goes_on(pipeline: Pipeline, ids: dict[str, str]) -> None:
    app, jobs, engine = pipeline.app, pipeline.app.jobs, pipeline.app.engine
    assert drawn == SCENES[:3]
    # Keys stand for what they stood for: of a job that is there, that was edited, that is gone.
    assert (await pipeline.make_video.submit(SCENES, key="order-42")).id == ids["video"]
    with pytest.raises(KeyConflict):
        await pipeline.make_video.submit(SCENES[:1], key="order-42")
    for type, key, holder in (("edited", "order-43", "edited"), ("gone", "order-1", "gone")):
        [answer] = await jobs.submit([JobRequest(type=type, key=key)])
        assert (answer.id, answer.new) == (ids[holder], False)
    assert await jobs.paused() == ["later"]
    assert (await jobs.get(ids["signalled"])).inbox[0].value == '{"by":"Ada"}'
    assert [job.args for job in await engine.claim("w-2", ["line"], 9)] == ["[0]", "[2]", "[4]"]

    await jobs.answer(ids["question"], True)
    await jobs.signal(ids["late"], "late", "fine")
    async with app.worker(at_once=4):
        assert await (await app.run(ids["video"])).result(20) == [f"{scene}.png" for scene in SCENES]
        assert await (await app.run(ids["question"])).result(20) == "The Pier: True"
        assert await (await app.run(ids["parent"])).result(20) == ["early", "late fine", "first"]
        # The active ones of a dead worker are rescued, under the next epoch.
        await until(lambda: _none_held_by(engine, "w-dead"), 20)
    assert drawn == SCENES  # not one of them twice


async def _none_held_by(engine: Any, worker: str) -> bool:
    return not [job for job in await engine.find(Where(states=(State.ACTIVE,))) if job.worker == worker]


# Refused.


def test_the_old_store_says_where_its_jobs_are(tmp_path: Path):
    old, new = f"sqlite:///{tmp_path}/old.db", f"sqlite:///{tmp_path}/new.db"
    some(old)
    # An app that is open all the while must not be able to submit, either.
    app = App(old)

    @app.job
    async def late() -> None: ...

    async def submit() -> None:
        await late.submit()
        command = [sys.executable, "-m", "holdfast.cli", "move", "--from", old, "--to", new]
        await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True, timeout=PROCESS_SECONDS)
        before = await in_engine(new, contents)
        with pytest.raises(Moved, match=r"were moved to sqlite:///.*/new\.db; use that store"):
            await late.submit()
        await app.close()
        with pytest.raises(Moved, match=r"new\.db"):
            await app.open()
        assert await in_engine(new, contents) == before

    asyncio.run(submit())
    (tmp_path / "app.py").write_text(f"from holdfast import App\napp = App({old!r})\n")
    result = CliRunner().invoke(main, ["worker", f"{tmp_path}/app.py:app"], prog_name="holdfast")
    assert result.exit_code == 3, "there is no use in starting it again"
    assert result.stderr.count("\n") == 1
    assert "new.db" in result.stderr
    for verb in ("status", "jobs", "queues", "workers", "review", "ask"):
        result = CliRunner().invoke(main, [verb, "--url", old], prog_name="holdfast")
        assert result.exit_code == 0, result.output
        assert result.stderr.startswith("holdfast: this store's jobs were moved to sqlite:///"), verb


def test_a_worker_of_a_store_that_was_drained_and_moved_ends(tmp_path: Path):
    old, new = f"sqlite:///{tmp_path}/old.db", f"sqlite:///{tmp_path}/new.db"
    some(old)
    app = App(old, settings=Settings(beat_seconds=0.1))

    async def live() -> None:
        async with app.worker() as worker:
            command = [sys.executable, "-m", "holdfast.cli", "move", "--from", old, "--to", new, "--drain", "20s"]
            await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True, timeout=PROCESS_SECONDS)
            async with asyncio.timeout(10):
                assert isinstance(await worker.until_lost(), Moved)

    asyncio.run(live())


def test_the_doctor_tells_of_a_drain_that_was_cut_off(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/old.db"
    some(url)
    asyncio.run(in_engine(url, lambda engine: engine.put_record("quiet/w-1", OURS, 0)))
    result = CliRunner().invoke(main, ["doctor", "--url", url], prog_name="holdfast")
    assert "drained: 1 worker has stopped claiming because of a move (w-1)" in result.stdout
    assert "give it up: holdfast move --from THIS-STORE --give-up" in result.stdout


def test_the_doctor_says_that_jobs_were_moved(tmp_path: Path):
    old, new = f"sqlite:///{tmp_path}/old.db", f"sqlite:///{tmp_path}/new.db"
    some(old)
    moved(old, new)

    for url, code in ((old, 1), (new, 0)):
        result = CliRunner().invoke(main, ["doctor", "--url", url], prog_name="holdfast")
        assert result.exit_code == code
        assert ("were moved to" in result.stdout) == (code == 1)


def test_a_store_with_jobs_in_it_is_no_target(tmp_path: Path):
    old, new = f"sqlite:///{tmp_path}/old.db", f"sqlite:///{tmp_path}/new.db"
    some(old)
    some(new, 3)
    before = read(old), read(new)

    result = called("--from", old, "--to", new)

    assert result.exit_code == 1
    assert f"sqlite:///{tmp_path}/new.db isn't empty: it has 3 jobs; nothing was moved" in result.stderr
    assert (read(old), read(new)) == before
    some(old)  # it goes on


def test_a_store_is_not_moved_to_itself(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/old.db"
    asyncio.run(in_engine(url, lambda engine: engine.put_record("leader", "1")))
    link = tmp_path / "link.db"
    link.symlink_to(tmp_path / "old.db")

    for other in (url, f"sqlite:///{link}"):
        result = called("--from", url, "--to", other)
        assert result.exit_code == 2, result.output
        assert "are the same store" in result.stderr
    some(url)


def test_a_file_with_too_little_room_is_no_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    old = f"sqlite:///{tmp_path}/old.db"
    some(old)
    monkeypatch.setattr("holdfast.engines.file.engine.FileEngine.room", 11)

    result = called("--from", old, "--to", f"file:{tmp_path}/new.json")

    assert result.exit_code == 1
    assert "no room for 12 jobs (1,000 jobs comfortably, 10,000 at most)" in result.stderr
    some(old)


def test_what_was_asked_wrongly_is_told(tmp_path: Path):
    old = f"sqlite:///{tmp_path}/old.db"
    assert called("--from", old, "--to", f"sqlite:///{tmp_path}/new.db").exit_code == 1
    assert list(tmp_path.iterdir()) == []
    some(old)
    assert "name the new store" in called("--from", old).stderr
    assert "takes only --from" in called("--from", old, "--to", old, "--give-up").stderr
    assert called("--from", old, "--to", "memory:").exit_code == 2
    assert "nothing to give up" in called("--from", old, "--give-up").stderr


# Cut off.


@pytest.mark.parametrize("kinds", ["sqlite-sqlite", "sqlite-file", "file-sqlite", "sqlite-redis", "redis-sqlite"])
def test_a_move_goes_on_wherever_it_was_killed(tmp_path: Path, kinds: str, rounds: Any, request: pytest.FixtureRequest):
    points, stride = 0, 1 if kinds == "sqlite-sqlite" else rounds(4, 1)
    for act in range(1, 100, stride):
        folder = tmp_path / str(act)
        folder.mkdir()
        old, new = (fresh(kind, folder, request) for kind in kinds.split("-"))
        some(old, 8)
        before = read(old)
        ended = killed.move_until(old, new, act)
        if ended == 0:
            break
        assert ended == -signal.SIGKILL
        points += 1
        assert not both_work(old, new)

        told = moved(old, new)

        assert told["already"] or told["jobs"] == 8
        assert read(new) == before
        assert not both_work(old, new)
        asyncio.run(in_engine(new, lambda engine: engine.claim("w-1", ["default"], 1)))
    # Two marks, three pages with where they end, keys, records, done, and the mark that goes.
    assert points == -(-(2 + 3 * 2 + 2 + 2) // stride)


def fresh(kind: str, folder: Path, request: pytest.FixtureRequest) -> str:
    """The URL of a new store; what is on a server is removed when the test has ended."""
    name = f"{folder}/{secrets.token_hex(4)}"
    if kind in ("sqlite", "file"):
        return f"sqlite:///{name}.db" if kind == "sqlite" else f"file:{name}.json"
    server = request.getfixturevalue(f"{kind}_url")
    engine = engine_class(server)
    url = engine.scratch(server, folder)
    request.addfinalizer(lambda: asyncio.run(engine.scrap(url)))
    return url


def both_work(old: str, new: str) -> bool:
    """Whether the jobs could be worked on in two stores."""

    async def works(engine: Any) -> bool:
        return not await engine.records(MOVED) and await engine.count() != {}

    return asyncio.run(in_engine(old, works)) and asyncio.run(in_engine(new, works))


@pytest.mark.parametrize("kinds", ["sqlite-postgres", "sqlite-redis", "redis-sqlite"])
def test_a_move_goes_on_after_kills_at_random_moments(
    tmp_path: Path, kinds: str, rounds: Any, request: pytest.FixtureRequest
):
    old, new = (fresh(kind, tmp_path, request) for kind in kinds.split("-"))
    some(old, 1_500)
    before = read_many(old)
    chance = random.Random(7)
    command = [sys.executable, "-m", "holdfast.cli", "move", "--from", old, "--to", new]

    kills = 0
    for _ in range(rounds(6, 40)):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            process.wait(chance.uniform(0.1, 0.9))  # the shortest is less than a start takes, on any machine
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            kills += 1
        process.wait(PROCESS_SECONDS)
    told = moved(old, new)

    assert kills
    assert told["already"] or told["jobs"] == 1_500
    assert read_many(new) == before


def read_many(url: str) -> Any:
    async def work(engine: Any) -> Any:
        ids: list[str] = []
        while page := await engine.in_order(ids[-1] if ids else ""):
            ids += [job.id for job in page]
        return ids, await engine.count(), sorted(key.job for key in await engine.keys())

    return asyncio.run(in_engine(url, work))


def test_a_move_that_was_cut_off_can_be_given_up(tmp_path: Path):
    old, new = f"sqlite:///{tmp_path}/old.db", f"sqlite:///{tmp_path}/new.db"
    some(old)
    assert killed.move_until(old, new, 6) == -signal.SIGKILL
    with pytest.raises(Moved, match="--give-up"):
        some(old)
    assert "are being moved to" in called("--from", old, "--to", f"sqlite:///{tmp_path}/other.db").stderr

    result = called("--from", old, "--give-up")

    assert result.exit_code == 0, result.output
    assert f"delete their copies in sqlite:///{tmp_path}/new.db" in " ".join(result.stdout.split())
    some(old)
    # What is half there must not be filled up with what is newer, nor be worked on.
    assert "holds part of another move" in called("--from", old, "--to", new).stderr
    with pytest.raises(Moved):
        some(new)
    assert moved(old, f"sqlite:///{tmp_path}/third.db")["jobs"] == 12 + 4  # of those with a key there is one each


def test_a_move_that_ended_is_given_up_only_by_who_is_sure(tmp_path: Path):
    old, new = f"sqlite:///{tmp_path}/old.db", f"sqlite:///{tmp_path}/new.db"
    some(old)
    moved(old, new)

    assert "confirm with --yes" in called("--from", old, "--give-up").stderr
    assert "give up the move there" not in called("--from", new, "--give-up").stderr
    assert moved(old, new)["already"]
    assert called("--from", old, "--give-up", "--yes").exit_code == 0
    some(old)


def test_a_difference_is_seen_and_opens_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from holdfast.engines.sqlite import SqliteEngine

    old, new = f"sqlite:///{tmp_path}/old.db", f"sqlite:///{tmp_path}/new.db"
    some(old)
    load = SqliteEngine.load

    async def spoiled(self: Any, wholes: Any, keys: Any = (), records: Any = ()) -> int:
        return await load(self, [replace(one, job=replace(one.job, attempt=7)) for one in wholes], keys, records)

    monkeypatch.setattr(SqliteEngine, "load", spoiled)
    result = called("--from", old, "--to", new)

    assert result.exit_code == 1
    assert "differ after the move (job " in result.stderr
    for store in (old, new):
        with pytest.raises(Moved):
            some(store)


def test_no_password_is_shown_or_kept(tmp_path: Path, postgres_store: str):
    old = f"sqlite:///{tmp_path}/old.db"
    some(old)
    secret = postgres_store.replace("postgres@", "postgres:s3cret@", 1) + "&password=s3cret"
    shown = called("--from", old, "--to", secret)
    assert shown.exit_code == 0, shown.output

    marks = asyncio.run(in_engine(old, lambda engine: engine.all_records()))

    assert "s3cret" not in shown.output + repr(marks)
    assert "postgres@" not in repr(marks)
    assert "schema=holdfast_scratch_" in repr(marks)


def test_two_apps_on_one_redis_server_are_two_stores(tmp_path: Path, request: pytest.FixtureRequest):
    old, new, other = (fresh("redis", tmp_path, request) for _ in range(3))
    some(old)
    secret = new.replace("redis://", "redis://:s3cret@", 1)
    assert "s3cret" not in called("--from", old, "--to", secret).output

    assert moved(old, new)["jobs"] == 12

    assert named(new).endswith(new.partition("?")[2])
    assert f"were moved to {named(new)}" in called("--from", old, "--to", other).stderr
    with pytest.raises(Moved, match=new.partition("?")[2]):
        some(old)


# Workers.

WORKING = """
import asyncio, os, pathlib
from holdfast import App, Settings, step
app = App(settings=Settings(beat_seconds=0.3, lease_seconds=3.0))

@step
async def draw(n: int) -> int:
    await asyncio.sleep(0.3)
    with open("calls.log", "a") as log:
        log.write(f"{n}\\n")
    return n

@app.job
async def make(numbers: list[int]) -> list[int]:
    return await draw.map(numbers, at_once=1)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "work.py").write_text(WORKING)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOLDFAST_URL", f"sqlite:///{tmp_path}/old.db")
    return tmp_path


def start_worker(folder: Path, url: str) -> "subprocess.Popen[bytes]":
    """A worker process that has claimed something, or is about to."""
    command = [sys.executable, "-m", "holdfast.cli", "worker", "work.py:app", "--at-once", "1", "--url", url]
    with (folder / "worker.log").open("ab") as log:
        return subprocess.Popen(command, cwd=folder, stdout=log, stderr=log, env=os.environ | {"PYTHONUNBUFFERED": "1"})


def submitted(url: str, numbers: list[int]) -> str:
    async def work(engine: Any) -> str:
        [answer] = await Jobs(engine).submit([JobRequest(type="make", args=json.dumps([numbers]))])
        return answer.id

    return asyncio.run(in_engine(url, work))


def waited_for(lines: int, folder: Path) -> None:
    end = time.monotonic() + PROCESS_SECONDS
    while not (folder / "calls.log").exists() or len((folder / "calls.log").read_text().split()) < lines:
        assert time.monotonic() < end, (folder / "worker.log").read_text()
        time.sleep(0.05)


def test_a_store_is_not_moved_while_workers_run(folder: Path):
    old, new = f"sqlite:///{folder}/old.db", f"sqlite:///{folder}/new.db"
    submitted(old, [1, 2])
    worker = start_worker(folder, old)
    try:
        waited_for(1, folder)
        result = called("--from", old, "--to", new)
    finally:
        worker.send_signal(signal.SIGTERM)
        worker.wait(PROCESS_SECONDS)

    assert result.exit_code == 1
    assert f"1 worker is running on sqlite:///{folder}/old.db" in result.stderr
    assert "--drain" in result.stderr
    assert not (folder / "new.db").exists()
    assert moved(old, new)["jobs"] == 1


def test_a_store_is_drained_by_its_worker_and_goes_on_elsewhere(folder: Path):
    old, new = f"sqlite:///{folder}/old.db", f"sqlite:///{folder}/new.db"
    first, second = submitted(old, [1, 2, 3, 4]), submitted(old, [5, 6])
    worker = start_worker(folder, old)
    try:
        waited_for(1, folder)
        told = moved(old, new, "--drain", "30s")
        assert told["jobs"] == 2
        # It finished what it had, and took nothing more, though it still runs.
        assert (folder / "calls.log").read_text().split() == ["1", "2", "3", "4"]
        assert worker.poll() is None
    finally:
        worker.send_signal(signal.SIGTERM)
        worker.wait(PROCESS_SECONDS)

    def state(id: str) -> State:
        return asyncio.run(in_engine(new, lambda engine: engine.get([id])))[0].state

    assert (state(first), state(second)) == (State.COMPLETED, State.AVAILABLE)
    other = start_worker(folder, new)
    try:
        waited_for(6, folder)
    finally:
        other.send_signal(signal.SIGTERM)
        other.wait(PROCESS_SECONDS)
    assert (folder / "calls.log").read_text().split() == ["1", "2", "3", "4", "5", "6"]
    assert state(second) is State.COMPLETED


def test_a_drain_that_takes_too_long_changes_nothing(folder: Path):
    old, new = f"sqlite:///{folder}/old.db", f"sqlite:///{folder}/new.db"
    submitted(old, [1, 2, 3, 4, 5, 6])
    submitted(old, [7])
    worker = start_worker(folder, old)
    try:
        waited_for(1, folder)
        result = called("--from", old, "--to", new, "--drain", "500ms")
        assert result.exit_code == 1
        assert "1 job is still running" in result.stderr
        waited_for(7, folder)  # it goes on, and claims again
    finally:
        worker.send_signal(signal.SIGTERM)
        worker.wait(PROCESS_SECONDS)


def test_workers_go_on_when_a_drain_that_was_killed_is_given_up(folder: Path):
    old, new = f"sqlite:///{folder}/old.db", f"sqlite:///{folder}/new.db"
    submitted(old, [1, 2, 3])
    submitted(old, [4])
    worker = start_worker(folder, old)
    try:
        waited_for(1, folder)
        command = [sys.executable, "-m", "holdfast.cli", "move", "--from", old, "--to", new, "--drain"]
        move = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        assert move.stderr is not None
        assert b"draining" in move.stderr.readline()
        move.send_signal(signal.SIGKILL)
        move.wait(PROCESS_SECONDS)
        move.stderr.close()
        waited_for(3, folder)

        result = called("--from", old, "--give-up")

        assert "lets its workers claim again" in result.stdout, result.output
        waited_for(4, folder)
    finally:
        worker.send_signal(signal.SIGTERM)
        worker.wait(PROCESS_SECONDS)


def test_jobs_of_a_killed_worker_are_moved_and_rescued(folder: Path):
    old, new = f"sqlite:///{folder}/old.db", f"sqlite:///{folder}/new.db"
    id = submitted(old, [1, 2, 3, 4])
    worker = start_worker(folder, old)
    waited_for(2, folder)
    worker.send_signal(signal.SIGKILL)
    worker.wait(PROCESS_SECONDS)

    moved(old, new)

    [job] = asyncio.run(in_engine(new, lambda engine: engine.get([id])))
    assert (job.state, job.epoch) == (State.ACTIVE, 1)
    other = start_worker(folder, new)
    try:
        waited_for(4, folder)
        end = time.monotonic() + PROCESS_SECONDS
        while job.state is not State.COMPLETED:
            assert time.monotonic() < end
            [job] = asyncio.run(in_engine(new, lambda engine: engine.get([id])))
    finally:
        other.send_signal(signal.SIGTERM)
        other.wait(PROCESS_SECONDS)
    drawn = (folder / "calls.log").read_text().split()
    assert sorted(set(drawn)) == ["1", "2", "3", "4"]
    assert len(drawn) <= 5  # at most the one that was cut between its effect and its record
    assert job.epoch == 2


def test_a_worker_that_claims_in_the_last_moment_is_waited_for(tmp_path: Path):
    """Between the look at the workers and the mark, one of them claims: the mark is taken back, and it drains again."""
    from holdfast.core.model import Presence
    from holdfast.engines.memory import MemoryEngine

    class Late(MemoryEngine):
        late = True

        async def put_record(self, name: str, value: str | None, expected: int | None = None, jobs: Any = ()) -> Any:
            if name == MOVED and self.late:
                self.late = False
                [job] = await self.claim("w-1", ["default"], 1)
                asyncio.get_running_loop().call_later(0.3, lambda: asyncio.ensure_future(self._finish(job)))
            return await super().put_record(name, value, expected)

        async def _finish(self, job: Any) -> None:
            await self.commit([decide(job, Event.COMPLETE, await self.now(), by="w-1", result="1")])
            await self.beat(Presence(worker="w-1", leaving=True))

    async def work() -> None:
        source, target = Late(), MemoryEngine()
        await Jobs(source).submit([JobRequest(type="t")])
        await source.beat(Presence(worker="w-1"))
        beating = asyncio.create_task(_beats(source))
        try:
            report = await move(Side(source, "old"), Side(target, "new"), drain_seconds=20)
        finally:
            beating.cancel()
        assert report.jobs == 1
        assert await target.count() == {("default", State.COMPLETED): 1}

    async def _beats(source: Any) -> None:
        while source.late or await source.find(Where(states=(State.ACTIVE,))):
            await asyncio.sleep(0.05)
            await source.beat(Presence(worker="w-1"))

    asyncio.run(asyncio.wait_for(work(), PROCESS_SECONDS))
