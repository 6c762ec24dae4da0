"""Hooks in real worker processes: a worker is killed, another one continues, and each tells what happened in it."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.core.model import Options, Retry, State
from tests.support.given import wait_until
from tests.support.worker_processes import SMALL, Stage, owner, worker_of

ONE_RETRY = Retry(retries=1, strategy="constant", initial_ms=0, jitter=False)

PROGRAM = """
import asyncio, logging, os, signal, time
from holdfast import App, JobEvent, Retry, Settings, current, step
from holdfast.core import lifecycle
lifecycle.RECOVERY_BACKOFF_MS = 100
settings = Settings(**eval(os.environ.get("TEST_SETTINGS", "{}")))
app = App(os.environ["TEST_URL"], settings=settings)
AT_ONCE = Retry(retries=1, strategy="constant", initial_ms=0, jitter=False)

def mark(what):
    with open("marks", "a") as file:
        file.write(f"{what} {os.getpid()} {time.time()}\\n")

@app.hook("submitted", "started", "retried", "recovered", "completed", "failed", "review", "cancelled")
def tell(event: JobEvent) -> None:
    import json, msgspec
    with open("told", "a") as file:
        file.write(json.dumps({"pid": os.getpid(), **msgspec.to_builtins(event)}) + "\\n")

@app.hook("started")
def hang(event: JobEvent) -> None:
    if event.type == "film":
        time.sleep(600)

@step
async def draw(n: int) -> int:
    mark(f"draw:{n}")
    await asyncio.sleep(0.05)
    return n

@app.job
async def film(n: int) -> int:
    return len(await draw.map(range(n), at_once=1))

@app.job
async def fails() -> None:
    raise ValueError("no ink")

@app.job
async def poison() -> None:
    os.kill(os.getpid(), signal.SIGKILL)

@app.job
async def waits() -> None:
    mark("waits")
    await asyncio.sleep(600)

@step(retries=AT_ONCE)
async def flaky() -> int:
    if not os.path.exists("tried"):
        mark("tried")
        open("tried", "w").close()
        raise ConnectionError("429")
    return 1

@app.job
async def part(n: int) -> int:
    return n

@app.job(isolate="process")
async def isolated() -> int:
    await part.submit(1)
    return await flaky()

if __name__ == "__main__":
    logging.basicConfig(level="INFO", filename=f"log-{os.getpid()}")
    from holdfast.cli.worker_process import run_worker
    asyncio.run(run_worker(app, None, 8))
"""


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(tmp_path, PROGRAM)
    yield stage
    stage.close()


def told(stage: Stage) -> list[dict[str, Any]]:
    path = stage.folder / "told"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def told_of(stage: Stage, run: Any) -> list[dict[str, Any]]:
    return [event for event in told(stage) if event["job_id"] == run.id]


def names(stage: Stage, run: Any) -> list[tuple[str, int]]:
    return [(event["what"], event["pid"]) for event in told_of(stage, run)]


def test_a_killed_worker_tells_no_more_and_the_next_one_tells_of_the_recovery(stage):
    """One of the hooks hangs the whole time."""
    victim = stage.worker(SMALL)
    run = stage.submit("film", 20)
    wait_until(lambda: len(stage.marks("draw")) >= 5)
    wait_until(lambda: told_of(stage, run))
    lost = worker_of(stage, victim)
    victim.kill()
    heir = stage.worker(SMALL)

    assert stage.do(run.result(60)) == 20

    wait_until(lambda: {"completed", "recovered"} <= {name for name, _ in names(stage, run)})
    first, *rest = names(stage, run)
    assert first == ("started", victim.pid)
    assert sorted(rest) == sorted([("started", heir.pid), ("recovered", heir.pid), ("completed", heir.pid)])
    recovered = next(event for event in told_of(stage, run) if event["what"] == "recovered")
    assert recovered["reason"].startswith(f"{lost}: process {victim.pid} on ")
    assert recovered["recoveries"] == 1
    assert recovered["worker"] == worker_of(stage, heir)


def test_a_stopping_worker_tells_its_hooks_and_does_not_wait_for_one_that_hangs(stage):
    worker = stage.worker(SMALL)
    stage.submit("film", 1)
    run = stage.submit("fails", options=Options(retry=ONE_RETRY))
    wait_until(lambda: stage.status(run).state is State.REVIEW)
    worker.send_signal(signal.SIGTERM)

    assert worker.wait(30) == 0
    assert [name for name, _ in names(stage, run)] == ["started", "failed", "retried", "started", "failed", "review"]
    review = told_of(stage, run)[-1]
    assert review["error"]["type"] == "ValueError"
    assert 'raise ValueError("no ink")' in review["error"]["traceback"]


def test_a_job_that_kills_its_workers_needs_review_where_the_last_loss_is_noticed(stage):
    keeper = stage.worker(SMALL)
    run = stage.submit("poison")
    while stage.status(run).state is not State.REVIEW:
        wait_until(lambda: stage.workers[-1].poll() is not None or stage.status(run).state is State.REVIEW)
        if stage.workers[-1].poll() is not None:
            keeper = stage.worker(SMALL)

    wait_until(lambda: "review" in {name for name, _ in names(stage, run)})
    reviews = [event for event in told_of(stage, run) if event["what"] == "review"]
    assert [(event["pid"], event["error"]["type"]) for event in reviews] == [(keeper.pid, "WorkersLost")]


def test_a_cancel_from_another_process_is_told_by_the_worker_that_ran_the_job(stage):
    worker = stage.worker(SMALL)
    run = stage.submit("waits")
    wait_until(lambda: stage.marks("waits"))
    assert owner(stage, run) is worker
    stage.do(run.cancel("wrong brief"))

    wait_until(lambda: ("cancelled", worker.pid) in names(stage, run))
    cancelled = told_of(stage, run)[-1]
    assert (cancelled["reason"], cancelled["worker"]) == ("wrong brief", worker_of(stage, worker))


def test_the_hooks_of_an_isolated_job_run_in_its_workers_process(stage):
    worker = stage.worker(SMALL)
    run = stage.submit("isolated")

    assert stage.do(run.result(60)) == 1

    wait_until(lambda: "completed" in {name for name, _ in names(stage, run)})
    assert names(stage, run) == [(name, worker.pid) for name in ("started", "retried", "completed")]
    ((_, child, _),) = stage.marks("tried")
    assert child != worker.pid
    retried = told_of(stage, run)[1]
    assert (retried["step"], retried["tries"], retried["error"]["type"]) == ("flaky", 1, "ConnectionError")
    wait_until(lambda: [event["pid"] for event in told(stage) if event["type"] == "part"])
    part = [(event["what"], event["pid"]) for event in told(stage) if event["type"] == "part"]
    assert part[0] == ("submitted", worker.pid)
