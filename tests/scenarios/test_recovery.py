"""Workers in real processes, on every shared store, are killed, stopped, told to end; work goes on, nothing twice."""

import os
import re
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from holdfast.core.model import State
from tests.support.given import at_pace, wait_until
from tests.support.worker_processes import SMALL, Stage, owner, presence, worker_of

PROGRAM = """
import asyncio, logging, os, signal, sys, time
from holdfast import App, Settings, current, step
from holdfast.core import lifecycle
lifecycle.RECOVERY_BACKOFF_MS = 100
settings = Settings(**eval(os.environ.get("TEST_SETTINGS", "{}")))
app = App(os.environ["TEST_URL"], settings=settings)

def mark(what):
    with open("marks", "a") as file:
        file.write(f"{what} {os.getpid()} {time.time()}\\n")

@step
async def draw(n: int) -> str:
    mark(f"begin:{n}")
    await asyncio.sleep(0.05)
    mark(f"draw:{n}")
    return f"{n}.png"

@app.job
async def film(n: int, at_once: int = 1) -> int:
    return len(await draw.map(range(n), at_once=at_once))

@app.job
def def_film(n: int) -> int:
    return len([draw.sync(i) for i in range(n)])

@app.job
async def poison(way: str) -> None:
    async def leave():
        sys.exit(7)

    loop = asyncio.get_running_loop()
    if way == "_exit":
        os._exit(1)
    elif way == "memory":  # as the kernel does it that is out of memory
        os.kill(os.getpid(), signal.SIGKILL)
    elif way == "task":
        task = asyncio.create_task(leave())
    elif way == "callback":
        loop.call_soon(sys.exit, 7)
    elif way == "interrupt":
        loop.call_soon(signal.default_int_handler, signal.SIGINT, None)
    else:
        loop.stop()
    await asyncio.sleep(60)

@app.job
async def quitter() -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.sleep(60)

@app.job
async def slow_poison(n: int) -> int:
    for i in range(n):
        if not os.path.exists(f"died-{i}"):
            open(f"died-{i}", "w").close()
            os._exit(1)
        await draw(i)
    return n

@step(stale_after=0.5)
async def hang(n: int) -> int:
    mark(f"hang:{current().epoch}")
    if current().epoch == 1:
        await asyncio.sleep(60)
    return n

@app.job
async def hangs() -> int:
    return await hang(1)

@app.job
async def zombie() -> str:
    mark(f"zombie:{current().epoch}")
    while current().epoch == 1 and not os.path.exists("awake"):
        time.sleep(0.01)  # stopped in here
    await draw(current().epoch)
    return f"epoch {current().epoch}"

@app.job
async def sleeper() -> None:
    mark("asleep")
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        mark("cancelled")
        raise

if __name__ == "__main__":
    logging.basicConfig(level="INFO", filename=f"log-{os.getpid()}")
    from holdfast.cli.worker_process import run_worker
    asyncio.run(run_worker(app, None, 8))
"""

KILLS = int(os.environ.get("HOLDFAST_KILLS", "10"))
"""How many workers are killed in the middle of their items: a handful by default, more in a soak."""


@pytest.fixture
def stage(tmp_path: Path, store_url: str) -> Iterator[Stage]:
    stage = Stage(tmp_path, PROGRAM, store_url)
    yield stage
    stage.close()


@pytest.fixture
def sqlite_stage(tmp_path: Path) -> Iterator[Stage]:
    """For laws that are tried on every engine elsewhere, and here in real processes."""
    stage = Stage(tmp_path, PROGRAM)
    yield stage
    stage.close()


def test_after_a_kill_the_next_item_starts_within_seconds_and_no_recorded_one_runs_again(stage):
    """With default settings; every other round it is the leader of the upkeep that is killed. Where death is seen by a
    connection that is gone and a beat that is missed, it takes four seconds."""
    on_file = stage.url.startswith("sqlite")
    kills, bound = (KILLS, 1.0) if on_file else (max(4, KILLS // 5), 4.0)
    delays: dict[bool, list[float]] = {True: [], False: []}
    stage.worker()
    stage.worker()
    wait_until(stage.leader)
    for number in range(kills):
        (stage.folder / "marks").unlink(missing_ok=True)
        run = stage.submit("film", 30)
        victim = owner(stage, run)
        other = next(process for process in stage.workers if process.poll() is None and process is not victim)
        leads = number % 2 == 0
        stage.hand_the_lead_to(worker_of(stage, victim if leads else other))
        wait_until(lambda: len(stage.marks("draw")) >= 8)
        assert stage.leads(victim) is leads
        at = time.time()
        victim.kill()
        assert stage.do(run.result(30)) == 30, number
        delays[leads].append(min(when for _, pid, when in stage.marks("begin") if pid != victim.pid) - at)
        wait_until(partial(stage.leads, other))

        made = Counter(n for n, _, _ in stage.marks("draw"))
        survived = int(next(e for e in stage.history(run) if e.event == "lapse").note["survived"].split()[0])
        assert sorted(made, key=int) == [str(n) for n in range(30)]
        again = [n for n, times in made.items() if times > 1]
        assert all(int(n) >= survived for n in again), "a recorded item ran again"
        assert len(again) <= 1, "more than what was under way ran again"
        stage.worker()
    print("recovery", {leads: [round(one, 3) for one in some] for leads, some in delays.items()})
    assert len(delays[True]) == (kills + 1) // 2
    assert all(delay < at_pace(bound) for some in delays.values() for delay in some), delays


def test_the_leaders_death_delays_nothing_and_another_leads_at_once(stage):
    first, second, third = stage.worker(), stage.worker(), stage.worker()
    wait_until(stage.leader)
    leader = next(process for process in (first, second, third) if stage.leads(process))
    assert sum(stage.leads(process) for process in (first, second, third)) == 1
    at = time.monotonic()
    leader.kill()
    bound = 1.5 if stage.url.startswith("sqlite") else 4.0
    wait_until(lambda: stage.leader() and not stage.leads(leader))
    took = time.monotonic() - at
    assert took < at_pace(bound), took
    print("leadership after", round(took, 3))


def test_a_def_job_is_recovered_too(stage):
    stage.worker()
    stage.worker()
    run = stage.submit("def_film", 10)
    wait_until(lambda: len(stage.marks("draw")) >= 3)
    owner(stage, run).kill()
    assert stage.do(run.result(20)) == 10
    assert len(stage.marks("draw")) <= 11


def test_a_zombie_cannot_write_and_stops_when_it_wakes(stage):
    first = stage.worker(SMALL)
    run = stage.submit("zombie")
    wait_until(lambda: stage.marks("zombie"))
    stage.freeze(first)
    stage.worker(SMALL)
    assert stage.do(run.result(20)) == "epoch 2"
    (stage.folder / "awake").touch()
    first.send_signal(signal.SIGCONT)
    wait_until(lambda: not presence(stage, first).running)
    assert [n for n, _, _ in stage.marks("begin")] == ["2"], "past its fence it started no step"
    other = stage.submit("film", 3)
    assert stage.do(other.result(20)) == 3

    assert [entry.event for entry in stage.history(run)] == ["submit", "claim", "lapse", "claim", "complete"]
    steps = stage.do(stage.app.engine.steps(run.id))
    assert [step.epoch for step in steps if not step.path.startswith("~")] == [2]
    assert first.poll() is None, "the zombie lives on as a worker"
    log = (stage.folder / f"log-{first.pid}").read_text()
    assert re.search(rf"job {run.id} \(\w+\) lost its lease \(epoch 1\) after .* and was stopped here", log), log


def test_a_stale_stage_is_recovered_and_the_history_says_what_was_seen(stage):
    stage.worker(SMALL)
    run = stage.submit("hangs")
    assert stage.do(run.result(20)) == 1
    lapse = next(entry for entry in stage.history(run) if entry.event == "lapse")
    assert "stage hang showed no progress for" in lapse.note["why"]
    assert "longer than 500 ms; its worker is alive" in lapse.note["why"]
    assert stage.marks("hang")[0][1] == stage.marks("hang")[1][1], "one worker, and it went on itself"


QUICKER = SMALL.replace("grace_seconds=0.3", "grace_seconds=0.3, poll_seconds=0.3")


def until_review(stage, run, settings=QUICKER):
    """Start a worker in the place of each that ends, until a person is needed; how many there were."""
    for started in range(1, 20):
        stage.worker(settings)
        wait_until(lambda: stage.status(run).state is State.REVIEW or all(w.poll() is not None for w in stage.workers))
        if stage.status(run).state is State.REVIEW:
            return started
        stage.workers = [worker for worker in stage.workers if worker.poll() is None or _reap(worker)]
    raise AssertionError("no end")


WAYS = {"_exit": 1, "memory": -signal.SIGKILL, "task": 1, "callback": 1, "interrupt": 1, "stop": 1}
"""How a job ends its worker's process, and the exit code that follows."""


def test_a_job_that_kills_its_workers_ends_in_review(stage):
    ends_in_review(stage, "_exit")


@pytest.mark.parametrize("way", [way for way in WAYS if way != "_exit"])
def test_a_job_that_ends_its_workers_in_any_way_ends_in_review(sqlite_stage, way):
    ends_in_review(sqlite_stage, way)


def ends_in_review(stage, way):
    run = stage.submit("poison", way)
    first = stage.worker(QUICKER)
    until_review(stage, run)
    assert stage.status(run).error.type == "WorkersLost"
    events = [entry.event for entry in stage.history(run)]
    assert (events.count("claim"), events.count("lapse"), events[-1]) == (4, 3, "abandon")
    assert first.returncode == WAYS[way]


def test_a_job_that_tells_its_worker_to_stop_looks_like_a_deploy_ten_times_and_then_ends_in_review(sqlite_stage):
    stage = sqlite_stage
    run = stage.submit("quitter")
    until_review(stage, run)
    assert stage.status(run).error.type == "ReleasedTooOften"
    events = [entry.event for entry in stage.history(run)]
    assert (events.count("claim"), events.count("release"), events[-1]) == (10, 9, "exhaust")


def _reap(worker: "subprocess.Popen[str]") -> bool:
    assert worker.stdout is not None
    worker.stdout.close()
    return False


def test_a_job_that_gets_on_between_its_deaths_is_not_given_up(stage):
    run = stage.submit("slow_poison", 6)
    for _ in range(8):
        stage.worker(QUICKER)
        wait_until(lambda: stage.status(run).state is State.COMPLETED or stage.workers[-1].poll() is not None)
        if stage.status(run).state is State.COMPLETED:
            break
    assert stage.do(run.result(1)) == 6
    assert len(stage.marks("draw")) == 6


def test_sigterm_hands_over_and_costs_no_attempt_and_no_item(stage):
    first = stage.worker(SMALL)
    run = stage.submit("film", 40)
    wait_until(lambda: len(stage.marks("draw")) >= 5)
    first.send_signal(signal.SIGTERM)
    assert first.wait(10) == 0
    status = stage.status(run)
    assert (status.state, status.attempt, status.recoveries) == (State.AVAILABLE, 1, 0)
    stage.worker(SMALL)
    assert stage.do(run.result(20)) == 40
    made = Counter(n for n, _, _ in stage.marks("draw"))
    assert set(made.values()) == {1}
    assert [entry.event for entry in stage.history(run)] == ["submit", "claim", "release", "claim", "complete"]


def test_a_second_sigterm_stops_at_once(stage):
    first = stage.worker("dict(grace_seconds=60)")
    run = stage.submit("sleeper")
    wait_until(lambda: stage.marks("asleep"))
    first.send_signal(signal.SIGTERM)
    assert first.stdout.readline().startswith("stopping: ")
    at = time.monotonic()
    first.send_signal(signal.SIGTERM)
    assert first.wait(30) == 0
    assert time.monotonic() - at < min(at_pace(2), 30)
    assert stage.status(run).state is State.AVAILABLE


def test_a_cancel_from_another_process_reaches_running_code_within_a_moment(stage):
    stage.worker()
    delays = []
    for _ in range(3):
        (stage.folder / "marks").unlink(missing_ok=True)
        run = stage.submit("sleeper")
        wait_until(lambda: stage.marks("asleep"))
        time.sleep(0.2)
        at = time.time()
        stage.do(run.cancel())
        wait_until(lambda: stage.marks("cancelled"), at_pace(3))
        delays.append(stage.marks("cancelled")[0][2] - at)
    print("cancel", [round(delay, 3) for delay in delays])
    assert min(delays) < at_pace(0.1), delays
    assert max(delays) < at_pace(0.5), delays


@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
def test_the_store_renamed_away_in_mid_run_is_waited_for(stage):
    stage.worker(SMALL)
    run = stage.submit("film", 30, 3)
    wait_until(lambda: len(stage.marks("draw")) >= 6)
    stage.do(stage.app.close())
    for suffix in ("", "-wal", "-shm"):
        path = stage.folder / f"jobs.db{suffix}"
        if path.exists():
            path.rename(stage.folder / f"gone.db{suffix}")
    time.sleep(2)
    for suffix in ("", "-wal", "-shm"):
        path = stage.folder / f"gone.db{suffix}"
        if path.exists():
            path.rename(stage.folder / f"jobs.db{suffix}")
    assert stage.do(run.result(30)) == 30
    made = Counter(n for n, _, _ in stage.marks("draw"))
    assert set(made.values()) == {1}, "nothing twice"
