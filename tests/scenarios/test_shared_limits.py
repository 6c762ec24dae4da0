"""Shared limits among real processes: workers that hold permits are killed, and others get the permits in seconds."""

import time
from collections.abc import Iterator
from functools import partial
from itertools import cycle, islice
from pathlib import Path

import pytest
from msgspec import json

from holdfast.core.model import Options, Use
from holdfast.core.shared_limits import LIMIT, settings_from
from tests.support.given import at_pace, wait_until
from tests.support.worker_processes import SMALL, Stage

AT_ONCE = 2
LIMITED = Options(limits=(Use("api"),))
TAKEN_OVER_SECONDS = 3.0
ROUNDS, JOBS = 4, 60

PROGRAM = """
import asyncio, os, time
from holdfast import App, Settings, current, step
from holdfast.core import lifecycle
lifecycle.RECOVERY_BACKOFF_MS = 100
app = App(os.environ["TEST_URL"], settings=Settings(**eval(os.environ["TEST_SETTINGS"])))

def mark(what):
    with open("marks", "a") as file:
        file.write(f"{what} {os.getpid()} {time.time()}\\n")

@app.job
async def hold(n: int) -> int:
    mark(f"begin:{n}")
    await asyncio.sleep(600 if current().epoch == 1 else 0)
    return n

@app.job
async def call(n: int) -> int:
    mark(f"begin:{n}")
    await asyncio.sleep(0.03)
    mark(f"end:{n}")
    return n

@step(limit=app.limit("steps", at_once=2))
async def pay(n: int) -> int:
    mark(f"begin:{n}")
    await asyncio.sleep(0.03)
    mark(f"end:{n}")
    return n

@app.job
async def ask(n: int) -> int:
    return await pay(n)

if __name__ == "__main__":
    from holdfast.cli.worker_process import run_worker
    asyncio.run(run_worker(app, None, 8))
"""


@pytest.fixture
def stage(tmp_path: Path, store_url: str) -> Iterator[Stage]:
    """A store with a limit."""
    stage = Stage(tmp_path, PROGRAM, store_url)
    settings = json.encode(settings_from("api", at_once=AT_ONCE)).decode()
    stage.do(stage.app.open())
    stage.do(stage.app.engine.put_record(LIMIT + "api", settings))
    yield stage
    stage.close()


def test_the_permits_of_a_killed_worker_are_used_by_others_within_seconds(stage: Stage) -> None:
    victim = stage.worker(SMALL)
    held = [stage.submit("hold", n, options=LIMITED) for n in range(AT_ONCE)]
    wait_until(lambda: len(stage.marks("begin")) == AT_ONCE)
    stage.worker(SMALL)
    calls = [stage.submit("call", 10 + n, options=LIMITED) for n in range(4)]
    free = stage.submit("call", 99)
    assert stage.do(free.result(30)) == 99, "who needs no permit waits for none"
    [used] = stage.do(stage.app.engine.usage("api"))
    assert (used.held, used.waiting) == (AT_ONCE, 4)

    at = time.time()
    victim.kill()

    assert [stage.do(run.result(30)) for run in (*calls, *held)] == [10, 11, 12, 13, 0, 1]
    taken_over = min(when for n, _, when in stage.marks("begin") if n.startswith("1") and len(n) == 2)
    assert taken_over - at < at_pace(TAKEN_OVER_SECONDS)
    assert stage.do(stage.app.engine.usage("api")) == []


def most_at_once(stage: Stage, kills: dict[int, float], numbers: range) -> int:
    """How many of these calls ran at the same time. One that was killed ran until its process was killed."""
    ends = {(n, pid): at for n, pid, at in stage.marks("end")}
    moments: list[tuple[float, int]] = []
    for n, pid, at in stage.marks("begin"):
        if int(n) in numbers:
            moments += [(at, 1), (ends.get((n, pid), kills.get(pid, float("inf"))), -1)]
    running = most = 0
    for _, more in sorted(moments):
        running += more
        most = max(most, running)
    return most


def has_ended(stage: Stage, least: int) -> bool:
    return len(stage.marks("end")) >= least


def test_limits_hold_while_workers_are_killed_at_random(stage: Stage) -> None:
    """Of jobs, and of steps whose jobs give up their slots while they wait."""
    impatient = SMALL.replace("dict(", "dict(limit_seconds=0.1, ")
    of_jobs, of_steps = range(JOBS // 2), range(JOBS // 2, JOBS)
    runs = [stage.submit("call", n, options=LIMITED) for n in of_jobs] + [stage.submit("ask", n) for n in of_steps]
    workers = [stage.worker(impatient) for _ in range(3)]
    kills: dict[int, float] = {}
    for number, nth in enumerate(islice(cycle(range(3)), ROUNDS)):
        least = 10 * (number + 1)
        wait_until(partial(has_ended, stage, least))
        kills[workers[nth].pid] = time.time()
        workers[nth].kill()
        workers[nth] = stage.worker(impatient)

    assert [stage.do(run.result(60)) for run in runs] == list(range(JOBS))
    assert most_at_once(stage, kills, of_jobs) == AT_ONCE
    assert most_at_once(stage, kills, of_steps) == AT_ONCE
    assert stage.do(stage.app.engine.usage("api")) == stage.do(stage.app.engine.usage("steps")) == []
