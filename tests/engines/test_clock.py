"""The clock of a store on one machine: whatever is done to the machine's own clock, store time goes on evenly."""

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from holdfast.core.model import State
from holdfast.engines.clock import JUMP_MS, LOOK_MS, SLEW, TRUST_MS, MachineClock, SharedClock
from holdfast.engines.file import FileEngine
from holdfast.engines.memory import MemoryEngine
from holdfast.engines.sqlite import SqliteEngine
from holdfast.jobs.service import JobRequest, Jobs

START = 1_760_000_000_000
SECOND, MINUTE, HOUR = 1_000, 60_000, 3_600_000
JUMPS = [2 * HOUR, -2 * HOUR, 5 * SECOND, -5 * SECOND, 30 * 24 * HOUR, -30 * 24 * HOUR]


class Machine:
    """A machine whose clock can be set. `steady` is what nobody can set; it begins anew with each boot."""

    def __init__(self) -> None:
        self.steady = 1_000_000
        self.wall = START
        self.boots = 1

    def pass_by(self, milliseconds: int) -> None:
        self.steady += milliseconds
        self.wall += milliseconds

    def set(self, milliseconds: int) -> None:
        self.wall += milliseconds

    def boot(self, off_for: int = 0) -> None:
        self.steady, self.boots = 5_000, self.boots + 1
        self.wall += off_for

    def clock(self) -> MachineClock:
        return MachineClock(lambda: self.wall, lambda: self.steady, lambda: str(self.boots))

    def shared(self, path: Path, *, create: bool = True) -> SharedClock:
        clock = SharedClock(path / "live" / "clock", lambda: self.wall, lambda: self.steady, lambda: str(self.boots))
        clock.join(create=create)
        return clock


@pytest.fixture
def machine():
    return Machine()


def test_store_time_is_the_machines_time_while_nobody_sets_it(machine):
    clock = machine.clock()
    for _ in range(1_000):
        assert clock() == machine.wall
        machine.pass_by(random.randrange(10_000))


@pytest.mark.parametrize("jump", JUMPS)
def test_after_a_jump_a_minute_takes_a_minute(machine, jump):
    clock = machine.clock()
    machine.pass_by(MINUTE)
    before = clock()
    machine.set(jump)
    for _ in range(60):
        machine.pass_by(SECOND)
        clock()
    assert abs(clock() - before - MINUTE) <= MINUTE // SLEW


@pytest.mark.parametrize("jump", JUMPS)
def test_store_time_comes_right_within_ten_times_the_jump(machine, jump):
    clock = machine.clock()
    machine.set(jump)
    machine.pass_by(LOOK_MS)
    clock()
    machine.pass_by(abs(jump) * SLEW + SECOND)
    clock()
    machine.pass_by(LOOK_MS)
    assert abs(clock() - machine.wall) <= JUMP_MS


def test_store_time_never_goes_back(machine):
    clock = machine.clock()
    last = clock()
    chance = random.Random(7)
    for _ in range(5_000):
        machine.pass_by(chance.randrange(3_000))
        if chance.random() < 0.2:
            machine.set(chance.choice([-HOUR, HOUR, -700, 700, -3 * SECOND, 40 * MINUTE]))
        now = clock()
        assert now >= last
        last = now


# Several processes.


@pytest.mark.parametrize("jump", JUMPS)
def test_all_processes_agree_after_a_jump_also_one_that_comes_later(machine, tmp_path, jump):
    first, second = machine.shared(tmp_path), machine.shared(tmp_path)
    machine.pass_by(10 * SECOND)
    machine.set(jump)
    late = machine.shared(tmp_path)
    for _ in range(30):
        machine.pass_by(SECOND // 3)
        times = [first(), second(), late()]
        assert max(times) - min(times) <= LOOK_MS // SLEW
    machine.pass_by(LOOK_MS)
    assert len({first(), second(), late()}) == 1


@pytest.mark.parametrize("jump", JUMPS)
def test_who_comes_back_alone_takes_the_machines_time_but_never_goes_back(machine, tmp_path, jump):
    clock = machine.shared(tmp_path)
    machine.pass_by(10 * MINUTE)
    last = clock()
    clock.close()
    machine.set(jump)
    machine.pass_by(SECOND)
    again = machine.shared(tmp_path)
    assert again() == max(machine.wall, last + SECOND)


def test_after_a_restart_of_the_machine_time_goes_on_where_it_was(machine, tmp_path):
    clock = machine.shared(tmp_path)
    for _ in range(10 * 60):
        machine.pass_by(SECOND)
        last = clock()
    clock.close()
    machine.set(-HOUR)
    machine.boot(off_for=5 * MINUTE)
    again = machine.shared(tmp_path)
    assert last - MINUTE <= again() <= last
    machine.pass_by(MINUTE)
    assert again() >= last - MINUTE + MINUTE * (SLEW - 1) // SLEW


def test_after_a_long_time_off_the_machines_time_counts(machine, tmp_path):
    machine.shared(tmp_path).close()
    machine.boot(off_for=24 * HOUR)
    assert machine.shared(tmp_path)() == machine.wall


def test_a_file_that_is_removed_is_made_anew_and_nobody_jumps(machine, tmp_path):
    first = machine.shared(tmp_path)
    machine.set(2 * HOUR)
    machine.pass_by(SECOND)
    before = first()
    (tmp_path / "live" / "clock").unlink()
    (tmp_path / "live").rmdir()
    machine.pass_by(SECOND)
    first()
    late = machine.shared(tmp_path)
    assert late() == first()
    assert first() - before <= SECOND + SECOND // SLEW


def test_a_file_that_makes_no_sense_is_written_anew(machine, tmp_path):
    machine.shared(tmp_path).close()
    (tmp_path / "live" / "clock").write_text("{garbage\n" * 500)
    clock = machine.shared(tmp_path)
    machine.pass_by(SECOND)
    assert clock() == machine.wall == machine.shared(tmp_path)()


def test_who_only_looks_makes_no_file(machine, tmp_path):
    clock = machine.shared(tmp_path, create=False)
    assert clock() == machine.wall
    assert not (tmp_path / "live").exists()


def test_a_time_from_a_far_future_is_not_followed(machine):
    clock = machine.clock()
    clock.not_before(machine.wall + TRUST_MS + 1)
    assert clock() == machine.wall
    clock.not_before(machine.wall + HOUR)
    assert clock() == machine.wall + HOUR


# Engines.


@pytest.mark.parametrize("jump", [2 * HOUR, -2 * HOUR])
@pytest.mark.parametrize("kind", ["memory", "file", "sqlite"])
def test_a_jump_leaves_no_job_standing_and_spends_no_time(tmp_path, monkeypatch, run, kind, jump):
    machine = Machine()
    monkeypatch.setattr("holdfast.engines.clock.system_clock", lambda: machine.wall)
    engine = {
        "memory": lambda: MemoryEngine(),
        "file": lambda: FileEngine(tmp_path / "jobs.json"),
        "sqlite": lambda: SqliteEngine(tmp_path / "jobs.db"),
    }[kind]()
    clock = engine._clock._clock if kind == "sqlite" else engine._clock  # type: ignore[attr-defined]
    assert isinstance(clock, MachineClock)
    clock._wall, clock._steady = (lambda: machine.wall), (lambda: machine.steady)
    clock._looked, clock._course = (
        machine.steady,
        type(clock._course)("", machine.steady, START, START - machine.steady),
    )

    async def life() -> None:
        await engine.open()
        jobs = Jobs(engine)
        (old,) = await jobs.submit([JobRequest(type="t")])
        (later,) = await jobs.submit([JobRequest(type="t", run_at=await engine.now() + 10 * SECOND)])
        machine.set(jump)
        machine.pass_by(SECOND)
        (new,) = await jobs.submit([JobRequest(type="t")])
        assert {one.id for one in await engine.claim("w-1", ["default"], 9)} == {old.id, new.id}
        machine.pass_by(6 * SECOND)
        assert await engine.claim("w-1", ["default"], 9) == [], "not before its time"
        machine.pass_by(5 * SECOND)
        assert [one.id for one in await engine.claim("w-1", ["default"], 9)] == [later.id]
        await engine.close()

    run(life())


@pytest.mark.parametrize("kind", ["file", "sqlite"])
def test_a_clock_that_was_set_back_between_two_runs_leaves_no_job_standing(tmp_path, monkeypatch, run, kind):
    ahead = [0]
    monkeypatch.setattr(time, "time_ns", lambda real=time.time_ns: real() + ahead[0] * 1_000_000)
    ahead[0] = 2 * HOUR

    async def life(work):
        engine = FileEngine(tmp_path / "jobs.json") if kind == "file" else SqliteEngine(tmp_path / "jobs.db")
        await engine.open()
        try:
            return await work(engine)
        finally:
            await engine.close()

    (old,) = run(life(lambda engine: Jobs(engine).submit([JobRequest(type="t")])))
    ahead[0] = 0
    (claimed,) = run(life(lambda engine: engine.claim("w-1", ["default"], 9)))
    assert claimed.id == old.id


# Real processes, whose clock is set under them.

PATCH = """
import os, time
_real_ns, _real = time.time_ns, time.time
def _ahead():
    return int(open(os.environ["AHEAD"]).read() or 0)
time.time_ns = lambda: _real_ns() + _ahead() * 1_000_000
time.time = lambda: _real() + _ahead() / 1_000
"""

APP = """
import asyncio, os
from holdfast import App, Settings, sleep, step
QUICK = Settings(beat_seconds=0.2, lease_seconds=2, upkeep_seconds=0.3, look_seconds=0.1)
app = App(os.environ["STORE"], settings=QUICK)

@step
async def part(n: int) -> int:
    await asyncio.sleep(0.5)
    return n

@app.job(timeout="60s", retries=0)
async def limited() -> int:
    return sum([await part(n) for n in range(10)])

@app.job(retries=0)
async def sleeper() -> str:
    await sleep(3)
    return "awake"

@app.job(retries=0)
async def quick() -> int:
    return 1
"""


@pytest.mark.parametrize("jump", [2 * HOUR, -2 * HOUR])
def test_workers_whose_clock_is_set_under_them_lose_no_job_and_no_time(tmp_path, jump):
    (tmp_path / "sitecustomize.py").write_text(PATCH)
    (tmp_path / "jumping.py").write_text(APP)
    ahead = tmp_path / "ahead"
    ahead.write_text("0")
    env = os.environ | {"AHEAD": str(ahead), "STORE": f"sqlite:///{tmp_path}/jobs.db", "PYTHONPATH": str(tmp_path)}

    def called(code: str) -> str:
        words = [sys.executable, "-c", textwrap.dedent(code)]
        return subprocess.run(
            words, env=env, cwd=tmp_path, check=True, capture_output=True, text=True, timeout=60
        ).stdout

    submit = "import jumping as j; print([j.app.sync.submit(one).id for one in ({})])"
    worker = [sys.executable, "-m", "holdfast.cli", "worker", "jumping:app"]
    workers = [
        subprocess.Popen(worker, env=env, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(2)
    ]
    try:
        before = json.loads(called(submit.format("j.limited, j.sleeper")).replace("'", '"'))
        look = f"import jumping as j, json; print(json.dumps([j.app.sync.run(one).status().steps for one in {before}]))"
        end = time.monotonic() + 60
        while json.loads(called(look))[0] < 2:
            assert time.monotonic() < end
        ahead.write_text(str(jump))
        after = json.loads(called(submit.format("j.quick, j.quick")).replace("'", '"'))
        ends = called(
            f"""
            import jumping as j, json
            runs = [j.app.sync.run(one) for one in {[*before, *after]}]
            print(json.dumps([run.result(timeout=40) for run in runs]))
            print(json.dumps([[str(entry.event) for entry in run.history()] for run in runs]))
            """
        ).splitlines()
        assert json.loads(ends[0]) == [45, "awake", 1, 1]
        events = [event for one in json.loads(ends[1]) for event in one]
        assert not {"overrun", "lapse", "abandon", "exhaust"} & set(events), events
    finally:
        for process in workers:
            process.send_signal(signal.SIGTERM)
        for process in workers:
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()


def test_the_doctor_tells_a_store_whose_time_is_not_the_machines(tmp_path, monkeypatch):
    from click.testing import CliRunner

    from holdfast.cli import main

    ahead = [2 * HOUR]
    monkeypatch.setattr(time, "time_ns", lambda real=time.time_ns: real() + ahead[0] * 1_000_000)
    url = f"sqlite:///{tmp_path}/jobs.db"

    async def fill() -> None:
        engine = SqliteEngine(tmp_path / "jobs.db")
        await engine.open()
        await Jobs(engine).submit([JobRequest(type="t")])
        assert (await engine.count())["default", State.AVAILABLE] == 1
        await engine.close()

    asyncio.run(fill())
    ahead[0] = 0
    told = CliRunner().invoke(main, ["doctor", "--url", url], prog_name="holdfast", catch_exceptions=False).stdout
    assert "ahead of this machine's clock" in told
