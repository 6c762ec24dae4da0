"""Who works on a file that is looked at. It keeps no beats: what is known is which process has it open."""

import subprocess
import sys

import pytest

from holdfast.core.model import State
from holdfast.engines.file.reader import FileReader
from holdfast.engines.records import WORKER
from holdfast.jobs.service import Jobs
from tests.engines.file.given import left_running, states

HOLDER = """
import asyncio, sys
from holdfast.conformance.given import StoreClock, job
from holdfast.engines.file import FileEngine
async def main():
    engine = FileEngine(sys.argv[1])
    await engine.open()
    await engine.insert([job(StoreClock(settable=False)) for _ in range(2)])
    await engine.claim("w-7", ["default"], int(sys.argv[2]))
    print("open", flush=True)
    sys.stdin.read()
asyncio.run(main())
"""


@pytest.mark.parametrize(("number", "name"), [(2, "w-7"), (0, "process-{pid}")])
def test_a_worker_lives_as_long_as_the_process_that_has_the_file_open(run, path, number, name):
    reader = FileReader(path)
    run(reader.open())
    assert run(reader.records(WORKER)) == []
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path), str(number)],
        stdout=subprocess.PIPE,
        stdin=subprocess.PIPE,
        text=True,
    ) as holder:
        try:
            assert holder.stdout.readline() == "open\n"
            [seen] = run(Jobs(reader).workers())
            now = run(reader.now())
        finally:
            holder.kill()

    assert (seen.worker, seen.pid, len(seen.running)) == (name.format(pid=holder.pid), holder.pid, number)
    assert seen.queues == ("default",)
    assert seen.slots >= max(1, number)
    assert now - 60_000 < seen.started_at <= seen.beat_at <= now
    assert states(reader, run).count(State.ACTIVE) == number
    assert run(Jobs(reader).workers()) == [], "it was killed"
    run(reader.close())


@pytest.mark.parametrize("text", ["", "0\n", "99999999999999999999999999\n", "someone\n"])
def test_a_lock_that_names_nobody_is_nobodys(run, path, clock, text):
    left_running(path, clock, run)
    path.with_name("checkpoint.json.lock").write_text(text)
    reader = FileReader(path, clock)
    run(reader.open())

    assert run(reader.records(WORKER)) == []
    run(reader.close())
