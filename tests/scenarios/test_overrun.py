"""A job whose timeout has passed and whose owner, a real process, can't heed it: upkeep fails it, and others go on."""

import signal
from pathlib import Path

import pytest

from holdfast.core.model import Options, Retry, State
from holdfast.engines.clock import SLEW
from holdfast.upkeep.rescue import OVERRUN_MARGIN_MS
from tests.support.given import wait_until
from tests.support.worker_processes import Stage, presence, worker_of

PROGRAM = """
import asyncio, logging, os, time
from holdfast import App, Settings, current, step
SETTINGS = dict(beat_seconds=0.2, look_seconds=0.1, upkeep_seconds=0.2, grace_seconds=0.3)
app = App(os.environ["TEST_URL"], settings=Settings(**SETTINGS))

def mark(what):
    with open("marks", "a") as file:
        file.write(f"{what} {os.getpid()} {time.time()}\\n")

@step
async def draw(n: int) -> int:
    mark(f"drawn:{current().epoch}")
    return n

def stand_still():
    mark("stuck")
    while not os.path.exists("go"):
        time.sleep(0.02)

@app.job
async def stuck() -> str:
    if current().epoch == 1:
        stand_still()  # and the whole event loop with it
    try:
        await draw(1)
    except BaseException as error:
        mark(f"refused:{type(error).__name__}")
    return f"epoch {current().epoch}"

@app.job
def def_stuck() -> str:
    if current().epoch == 1:
        stand_still()
    try:
        draw.sync(1)
    except BaseException as error:
        mark(f"refused:{type(error).__name__}")
    return f"epoch {current().epoch}"

if __name__ == "__main__":
    logging.basicConfig(level="INFO", filename=f"log-{os.getpid()}")
    from holdfast.cli.worker_process import run_worker
    asyncio.run(run_worker(app, None, 8))
"""

TIMEOUT_MS = 1_000
SLEWED_MS = TIMEOUT_MS // SLEW
"""How far the store's clock may lag behind the owner's in that time, while it approaches the machine's clock."""
OPTIONS = Options(timeout_ms=TIMEOUT_MS, retry=Retry(retries=1, strategy="constant", initial_ms=200, jitter=False))
"""What a job has that was decorated with `timeout="1s"`: it travels with the job."""


@pytest.fixture
def stage(tmp_path: Path, store_url: str):
    stage = Stage(tmp_path, PROGRAM, store_url)
    yield stage
    stage.close()


def wait_for_a_beat(stage, process):
    """Wait until a worker has beaten and has been answered: its next beat but one is written."""
    for _ in range(2):
        last = presence(stage, process).beat_at
        wait_until(lambda last=last: presence(stage, process).beat_at > last)  # type: ignore[misc]


def let_go(stage, process):
    """Let a stuck owner go on, and wait until it has given up the job that it was stuck in."""
    (stage.folder / "go").touch()
    process.send_signal(signal.SIGCONT)
    wait_until(lambda: stage.marks("refused"))
    wait_until(lambda: not presence(stage, process).running)
    assert process.poll() is None, "it lives on as a worker"
    assert "unexpected" not in (stage.folder / f"log-{process.pid}").read_text()


@pytest.mark.parametrize(("job", "frozen"), [("stuck", False), ("stuck", True), ("def_stuck", True)])
def test_a_job_whose_stuck_owner_lets_its_timeout_pass_is_failed_by_upkeep_and_its_late_result_refused(
    stage, job, frozen
):
    workers = [stage.worker(), stage.worker()]
    run = stage.submit(job, options=OPTIONS)
    ((_, pid, _),) = wait_until(lambda: stage.marks("stuck"))
    workers.sort(key=lambda process: process.pid != pid)
    first, second = workers
    if frozen:
        stage.freeze(first)
    owner, other = worker_of(stage, first), worker_of(stage, second)
    # A process whose event loop stands still rescues its own jobs; one that is frozen must not be the leader.
    leader = other if frozen else owner
    stage.hand_the_lead_to(leader)

    assert stage.do(run.result(30)) == "epoch 2"

    _, claim, overrun, *_ = stage.history(run)
    assert (overrun.event, overrun.before, overrun.after) == ("overrun", State.ACTIVE, State.RETRYABLE)
    assert overrun.by == leader
    assert overrun.note == {
        "worker": owner,
        "error": "TimeoutError: the job took longer than its timeout of 1 s",
    }
    assert overrun.at - claim.at > TIMEOUT_MS + OVERRUN_MARGIN_MS, "its owner had its time to heed it"
    status = stage.status(run)
    assert (status.attempt, status.recoveries) == (2, 0), "a failure, and not a lost worker"

    if not frozen:
        wait_for_a_beat(stage, first)  # from its own thread; what it is told, it heeds as soon as it can
    let_go(stage, first)
    drawn = [mark for mark, _, _ in stage.marks("drawn")]
    assert drawn == ["2"] or (frozen and drawn == ["2", "1"]), "who knows that the job is lost starts no step of it"
    recorded = stage.do(stage.app.engine.steps(run.id))
    assert [step.epoch for step in recorded if not step.path.startswith("~")] == [2]
    assert stage.do(run.result(1)) == "epoch 2"
    events = [(entry.event, entry.by) for entry in stage.history(run)]
    assert events[1:] == [
        ("claim", owner),
        ("overrun", leader),
        ("promote", "time"),
        ("claim", other),
        ("complete", other),
    ]


def test_a_def_job_that_blocks_its_thread_is_failed_by_its_owner_who_heeds_the_timeout_itself(stage):
    first = stage.worker()
    run = stage.submit("def_stuck", options=OPTIONS)
    assert stage.do(run.result(30)) == "epoch 2"
    let_go(stage, first)

    history = stage.history(run)
    assert [entry.event for entry in history] == ["submit", "claim", "fail", "promote", "claim", "complete"]
    _, claim, fail, *_ = history
    assert (fail.by, fail.after) == (worker_of(stage, first), State.RETRYABLE)
    assert TIMEOUT_MS - SLEWED_MS <= fail.at - claim.at < TIMEOUT_MS + OVERRUN_MARGIN_MS
    assert stage.status(run).attempt == 2
    recorded = stage.do(stage.app.engine.steps(run.id))
    assert [step.epoch for step in recorded if not step.path.startswith("~")] == [2]
    assert [mark for mark, _, _ in stage.marks("drawn")] == ["2"]
    assert stage.do(run.result(1)) == "epoch 2"
