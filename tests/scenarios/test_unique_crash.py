"""Unique jobs through `kill -9`: whenever a submitter that replaces jobs is killed, one job of the name is left."""

import asyncio
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from holdfast import App
from holdfast.core.lifecycle import TERMINAL
from holdfast.core.model import Where

PROGRAM = """
import asyncio, sys
from holdfast import App, Unique
app = App(sys.argv[1])

@app.job
async def index(document: str, version: int) -> None: ...

async def main():
    newest = Unique(by=("args.document",), then="replace")
    for version in range(1_000_000):
        await index.submit("readme", version, unique=newest)
        print(version, flush=True)

asyncio.run(main())
"""
START_SECONDS = 30.0


@pytest.mark.parametrize("store", ["sqlite", "file"])
def test_a_killed_submitter_never_leaves_no_job_and_never_two(tmp_path: Path, store: str, rounds) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db" if store == "sqlite" else f"file:{tmp_path}/jobs.json"
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    chance = random.Random(store)
    for _ in range(rounds(3, 30)):
        process = subprocess.Popen([sys.executable, program, url], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        end = time.monotonic() + START_SECONDS
        while not process.stdout.readline():
            assert time.monotonic() < end, "it submits nothing"
        time.sleep(chance.uniform(0.0, 0.3))
        process.send_signal(signal.SIGKILL)
        process.wait(START_SECONDS)
        process.stdout.close()

        assert asyncio.run(live_jobs(url)) == 1


async def live_jobs(url: str) -> int:
    app = App(url)
    engine = (await app.open()).engine
    count, after = 0, ""
    while page := await engine.find(Where(), after):
        count += sum(job.state not in TERMINAL for job in page)
        after = page[-1].id
    await app.close()
    return count
