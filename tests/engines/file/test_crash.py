"""A process that is killed while it writes, and a disk that is full: what was acknowledged is there, and it goes on."""

import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast.conformance.given import StoreClock, change, claimed, job, step
from holdfast.core.errors import StoreFull
from holdfast.core.model import Event, State, Where
from holdfast.engines.file import FileEngine

HERE = Path(__file__).parents[3]
SLOWEST = 5
"""How many times as many kills a busy machine may need until as many jobs were done."""

KILLS = 20

WRITER = """
import asyncio, sys
from holdfast.conformance.given import StoreClock, job, step
from holdfast.core.lifecycle import decide
from holdfast.core.model import Event
from holdfast.engines.file import FileEngine
from msgspec.structs import replace

path, run = sys.argv[1], sys.argv[2]
clock = StoreClock(settable=False)

async def life(engine, worker):
    for number in range(1_000_000):
        new = replace(job(clock), id=f"{run}-{worker}-{number}")
        await engine.insert([new])
        print("made", new.id, flush=True)
        for held in await engine.claim(worker, ["default"], 1):
            await engine.record([step(held)])
            print("step", held.id, flush=True)
            await engine.commit([decide(held, Event.COMPLETE, clock.now, by=worker, result="1")])
            print("done", held.id, flush=True)
            await engine.prune()

async def main():
    engine = FileEngine(path)
    await engine.open()
    print("open", engine.recovered, flush=True)
    await asyncio.gather(*(life(engine, f"w{n}") for n in range(4)))

asyncio.run(main())
"""


def test_killed_processes_leave_all_that_they_acknowledged(tmp_path, run):
    path, chance = tmp_path / "checkpoint.json", random.Random(7)
    said: list[list[str]] = []
    told: list[list[str]] = []
    for number in range(KILLS * SLOWEST):
        said += lines_until_killed(path, number, chance)
        check(path, said, run)
        told = [line for line in said if line[0] == "done"]
        if number >= KILLS - 1 and len(told) > KILLS:
            break
    print(f"\n{number + 1} kills, {len(said)} acts acknowledged, {len(told)} jobs done")
    assert len(told) > KILLS
    assert [line for line in said if line[0] == "open" and line[1] != "0"], "no kill hit a running job"


def lines_until_killed(path: Path, number: int, chance: random.Random) -> list[list[str]]:
    """What a writer said before it was killed at some moment of its work."""
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), f"r{number}"], stdout=subprocess.PIPE, text=True, cwd=HERE
    ) as writer:
        assert writer.stdout is not None
        first = writer.stdout.readline()
        time.sleep(chance.uniform(0, 0.2))
        writer.kill()
        rest = writer.stdout.read()
    assert writer.returncode == -9
    whole = [line for line in (first + rest).splitlines(keepends=True) if line.endswith("\n")]
    return [line.split() for line in whole]


def check(path: Path, said: list[list[str]], run) -> None:
    # Only a copy is opened, so that the next writer meets what the killed one left.
    if not path.exists():
        assert all(word == "open" for word, *_ in said), "a writer that was killed before its first write said nothing"
        return
    copy = path.with_name("copy.json")
    copy.write_bytes(path.read_bytes())
    engine = FileEngine(copy, StoreClock(settable=False))

    async def found():
        await engine.open()
        jobs: list[Any] = []
        while page := await engine.find(Where(), jobs[-1].id if jobs else ""):
            jobs += page
        steps = {one.id: await engine.steps(one.id) for one in jobs}
        await engine.close()
        return {one.id: one for one in jobs}, steps

    jobs, steps = run(found())
    for word, *rest in said:
        if word == "open":
            continue
        assert rest[0] in jobs, f"{word} {rest[0]} was acknowledged"
        if word == "done":
            assert jobs[rest[0]].state is State.COMPLETED
        if word in ("step", "done"):
            assert len(steps[rest[0]]) == 1


def test_a_full_disk_fails_cleanly_and_goes_on(tiny_disk, run):
    path, clock = tiny_disk / "checkpoint.json", StoreClock(settable=True)
    engine = FileEngine(path, clock)
    run(engine.open())
    held = run(claimed(engine, clock))
    ballast = tiny_disk / "ballast"
    size = os.statvfs(tiny_disk)
    ballast.write_bytes(b"x" * (size.f_bavail * size.f_bsize))
    text, jobs = path.read_bytes(), run(engine.find(Where()))

    for act in (
        engine.insert([job(clock)]),
        engine.record([step(held)]),
        engine.commit([change(clock, held, Event.COMPLETE)]),
    ):
        with pytest.raises(StoreFull, match="free space, and try again"):
            run(act)
    assert path.read_bytes() == text
    assert run(engine.find(Where())) == jobs

    ballast.unlink()
    run(engine.record([step(held)]))
    run(engine.commit([change(clock, held, Event.COMPLETE)]))
    run(engine.close())
    run(engine.open())
    assert run(engine.get([held.id]))[0].state is State.COMPLETED
    assert not [name for name in os.listdir(tiny_disk) if name.endswith(".tmp")]
    run(engine.close())


def test_a_store_that_outgrows_the_disk_keeps_what_it_had(tiny_disk, run):
    path, clock = tiny_disk / "checkpoint.json", StoreClock(settable=True)
    engine = FileEngine(path, clock)
    run(engine.open())
    made = []

    async def until_full():
        while True:
            new = job(clock, args=f'["{"x" * 20_000}"]')
            await engine.insert([new])
            made.append(new.id)

    with pytest.raises(StoreFull):
        run(until_full())
    assert len(made) > 10

    run(engine.close())
    run(engine.open())
    assert [one.id for one in run(engine.find(Where()))] == made
    run(engine.close())


def test_a_full_disk_does_not_keep_a_store_from_being_opened(tiny_disk, run):
    path, clock = tiny_disk / "checkpoint.json", StoreClock(settable=True)
    engine = FileEngine(path, clock)
    run(engine.open())
    run(engine.insert([job(clock)]))
    run(engine.close())
    size = os.statvfs(tiny_disk)
    (tiny_disk / "ballast").write_bytes(b"x" * (size.f_bavail * size.f_bsize))

    run(engine.open())

    assert len(run(engine.find(Where()))) == 1
    run(engine.close())
