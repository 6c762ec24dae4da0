"""A flow through `kill -9`: whenever workers die, each job is submitted once, and the flow ends with its result."""

import asyncio
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from holdfast import App, Settings, chain, chord, group
from holdfast.core.model import State, Where

PROGRAM = """
import asyncio, os, sys
from holdfast import App, Settings
app = App(sys.argv[1], settings=Settings(beat_seconds=0.2, lease_seconds=1.0, look_seconds=0.1, upkeep_seconds=0.2))

@app.job(retries=0)
async def add(n: int, more: int) -> int:
    await asyncio.sleep(0.02)
    return n + more

@app.job(retries=0)
async def total(found: list[int]) -> int:
    return sum(found)

async def main():
    async with app.worker(at_once=2):
        print("ready", flush=True)
        await asyncio.sleep(600)

if __name__ == "__main__":
    asyncio.run(main())
"""
PATIENCE = 90.0
KILLS = 3


def test_a_flow_whose_workers_are_killed_ends_once_with_its_result(tmp_path: Path, store_url: str, rounds):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    app = App(store_url, settings=Settings())

    @app.job
    async def add(n: int, more: int) -> int:
        return n + more

    @app.job
    async def total(found: list[int]) -> int:
        return sum(found)

    lines = [chain(add.s(n, 1), add.s(1), add.s(1)) for n in range(5)]
    flow = chain(chord(group(lines), total.s()), add.s(100), group(add.s(0), add.s(1)), total.s())
    chance = random.Random(store_url.partition(":")[0])

    async def life() -> int:
        run = await flow.submit(key="the flow")
        for _ in range(rounds(KILLS, 50)):
            worker = start(program, store_url)
            await asyncio.sleep(chance.uniform(0.0, 0.5))
            kill(worker)
        worker = start(program, store_url)
        try:
            return await run.result(timeout=PATIENCE)
        finally:
            kill(worker)

    async def whole() -> None:
        assert await life() == 2 * (sum(range(5)) + 15 + 100) + 1
        jobs = await app.engine.find(Where())
        assert Counter(job.type for job in jobs) == {"holdfast.flow": 6, "add": 15 + 3, "total": 2}
        assert {job.state for job in jobs} == {State.COMPLETED}
        await app.close()

    asyncio.run(whole())


def start(program: Path, url: str) -> "subprocess.Popen[str]":
    """Start a worker in a process of its own, and wait until it claims jobs."""
    process = subprocess.Popen([sys.executable, program, url], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    end = time.monotonic() + PATIENCE
    while not process.stdout.readline():
        assert time.monotonic() < end, "the worker did not start"
    return process


def kill(process: "subprocess.Popen[str]") -> None:
    """Kill a worker without warning."""
    process.kill()
    process.wait(30)
    assert process.stdout is not None
    process.stdout.close()
