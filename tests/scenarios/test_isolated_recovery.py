"""A worker is killed while its job runs in a process of its own: the process ends too, and another worker goes on."""

import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.given import wait_until
from tests.support.worker_processes import SMALL, Stage, is_dead, owner

PROGRAM = """
import asyncio, logging, os, time
from holdfast import App, Settings, current, step
from holdfast.core import lifecycle
lifecycle.RECOVERY_BACKOFF_MS = 100
settings = Settings(**eval(os.environ.get("TEST_SETTINGS", "{}")))
app = App(os.environ["TEST_URL"], settings=settings)

class Refused(Exception):
    pass

def mark(what):
    with open("marks", "a") as file:
        file.write(f"{what} {os.getpid()} {time.time()}\\n")

@step
async def draw(n: int) -> str:
    await asyncio.sleep(0.05)
    mark(f"draw:{n}")
    return f"{n}.png"

@step
def refuse(n: int) -> None:
    raise Refused("no credit")

@app.job(isolate="process")
async def film(n: int) -> int:
    mark(f"film:{current().epoch}")
    try:
        await refuse.aio(1)
    except Refused:
        return len(await draw.map(range(n), at_once=1))

@app.job(isolate="process")
def spins() -> int:
    mark(f"spins:{current().epoch}")
    if current().epoch == 1:
        sum(range(10**12))
    return 1

if __name__ == "__main__":
    logging.basicConfig(level="INFO", filename=f"log-{os.getpid()}")
    from holdfast.cli.worker_process import run_worker
    asyncio.run(run_worker(app, None, 8))
"""


@pytest.fixture
def stage(tmp_path: Path, store_url: str) -> Iterator[Stage]:
    stage = Stage(tmp_path, PROGRAM, store_url)
    yield stage
    stage.close()


def test_the_process_ends_with_its_worker_and_another_goes_on_from_the_records(stage):
    victim = stage.worker(SMALL)
    run = stage.submit("film", 20)
    wait_until(lambda: len(stage.marks("draw")) >= 5)
    ((_, child, _),) = stage.marks("film")
    assert child != victim.pid
    victim.kill()
    wait_until(lambda: is_dead(child), 5)
    stage.worker(SMALL)

    assert stage.do(run.result(30)) == 20

    assert [epoch for epoch, _, _ in stage.marks("film")] == ["1", "2"]
    made = Counter(n for n, _, _ in stage.marks("draw"))
    survived = int(next(e for e in stage.history(run) if e.event == "lapse").note["survived"].split()[0])
    assert sorted(made, key=int) == [str(n) for n in range(20)]
    again = [n for n, times in made.items() if times > 1]
    assert survived >= 4
    assert len(again) <= 1, "no more than what was under way ran again"


def test_native_code_that_never_ends_dies_with_its_worker(stage):
    victim = stage.worker(SMALL)
    run = stage.submit("spins")
    ((_, child, _),) = wait_until(lambda: stage.marks("spins"))
    victim.kill()
    wait_until(lambda: is_dead(child), 5)
    stage.worker(SMALL)
    assert stage.do(run.result(30)) == 1


def test_a_stopped_worker_stops_its_jobs_too_and_what_it_says_later_is_refused(stage):
    """While the worker stands still, nobody answers the job's process; when it goes on, others have its job."""
    stage.worker(SMALL)
    run = stage.submit("film", 200)
    wait_until(lambda: len(stage.marks("draw")) >= 3)
    zombie = owner(stage, run)
    ((_, child, _),) = stage.marks("film")
    stage.freeze(zombie)
    stage.worker(SMALL)
    wait_until(lambda: len(stage.marks("film")) == 2)
    before = len([pid for _, pid, _ in stage.marks("draw") if pid == child])
    zombie.send_signal(signal.SIGCONT)
    wait_until(lambda: len(stage.marks("draw")) >= before + 10)
    assert len([pid for _, pid, _ in stage.marks("draw") if pid == child]) == before, "it began a step behind the fence"
    assert stage.do(run.status()).attempt == 1
    stage.do(run.cancel())
