"""How `holdfast worker` and `holdfast dev` end: with their supervisor or terminal, and always after two signals."""

import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Cli

GONE_SECONDS = 20
"""How long worker processes may take to end. The grace of these workers is half a second."""

APP = """
import asyncio, multiprocessing, os, signal, subprocess, sys, threading, time
from holdfast import App, Settings, step
from holdfast.cli import lifeline
app = App(settings=Settings(grace_seconds=float(os.environ.get("GRACE", 0.5)), look_seconds=0.1))

def note(word):
    with open("notes", "a") as notes:
        notes.write(f"{word} {os.getpid()}\\n")

@app.job
async def wait() -> str:
    note("waits")
    while not os.path.exists("done"):
        await asyncio.sleep(0.02)
    return "finished"

@app.job(retries=0)
def pool() -> int:
    with multiprocessing.get_context("fork").Pool(2) as processes:
        return sum(processes.map(abs, [1, 2, 3]))

@app.job(retries=0)
def terminate() -> int:
    process = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
    process.start()
    process.terminate()
    process.join()
    return process.exitcode

@step
def fork(n: int) -> None:
    if n == 10:
        note("forks")
    subprocess.run(["true"], preexec_fn=os.setsid)

@app.job
async def storm() -> None:
    await fork.aio.map(range(100_000), at_once=6)

@app.job
async def deaf() -> None:
    for one in (signal.SIGTERM, signal.SIGINT):
        signal.signal(one, signal.SIG_IGN if os.environ.get("DEAF") == "ignores" else lambda *_: note("library"))
    note("deaf")
    await asyncio.sleep(600)

@app.job
async def stuck() -> None:
    async def never(*args):
        note("stuck")
        await asyncio.sleep(600)
    app.engine.commit = app.engine.turn = never
    lifeline.ABORT_SECONDS = 1.0
"""


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Callable[..., "subprocess.Popen[bytes]"]]:
    """Starts `holdfast VERB tale:app …`; at the end it, and all workers that it named, are killed."""
    (tmp_path / "tale.py").write_text(APP)
    all_started: list[subprocess.Popen[bytes]] = []

    def start(verb: str, *args: str, before: tuple[str, ...] = ()) -> "subprocess.Popen[bytes]":
        command = [*before, sys.executable, "-m", "holdfast.cli", verb, "tale:app", *args]
        with (tmp_path / "said").open("a") as said:
            running = subprocess.Popen(command, cwd=tmp_path, stdout=said, stderr=said, start_new_session=True)
        all_started.append(running)
        return running

    yield start
    for one in all_started:
        one.kill()
        one.wait(10)
    for pid in worker_pids(tmp_path):
        if lives(pid):
            os.kill(pid, signal.SIGKILL)


def wait_until(is_so: Callable[[], bool], folder: Path, seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end, (folder / "said").read_text()
        time.sleep(0.02)


def worker_pids(folder: Path) -> list[int]:
    """The processes of all workers that said so when they started: "worker w-HOST-PID-…"."""
    said = (folder / "said").read_text() if (folder / "said").exists() else ""
    return [int(line.split(":")[0].split("-")[-2]) for line in said.splitlines() if line.startswith("worker w-")]


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def submit(folder: Path, job: str) -> str:
    code = f"import tale; print(tale.app.sync.submit(tale.{job}).id)"
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=60)
    return done.stdout.strip()


def result(folder: Path, id: str) -> str:
    code = f"import tale; print(tale.app.sync.run({id!r}).result(30))"
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=60)
    return done.stdout.strip() or done.stderr


def notes(folder: Path) -> list[str]:
    return (folder / "notes").read_text().splitlines() if (folder / "notes").exists() else []


# With whoever started it.


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGKILL])
@pytest.mark.parametrize(("verb", "args"), [("worker", ("--processes", "2")), ("dev", ("--port", "0"))])
def test_workers_end_with_the_process_that_started_them(cli: Cli, started, tmp_path, verb, args, number):
    running = started(verb, *args)
    count = 2 if verb == "worker" else 1
    wait_until(lambda: len(worker_pids(tmp_path)) == count, tmp_path)
    jobs = [submit(tmp_path, "wait") for _ in range(count)]
    wait_until(lambda: len(notes(tmp_path)) == count, tmp_path)

    running.send_signal(number)

    wait_until(lambda: not any(map(lives, worker_pids(tmp_path))), tmp_path, GONE_SECONDS)
    assert running.wait(GONE_SECONDS) == (0 if number == signal.SIGHUP else -signal.SIGKILL)
    assert [job["state"] for job in cli.json("jobs")["jobs"]] == ["available"] * count, "each was handed over"
    assert cli.json("workers") == {"workers": []}

    (tmp_path / "done").touch()
    started("worker")
    assert [result(tmp_path, job) for job in jobs] == ["finished"] * count


def test_a_worker_whose_terminal_is_closed_hands_over_its_jobs_and_ends(cli: Cli, started, tmp_path):
    submit(tmp_path, "wait")
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        os.execv(sys.executable, [sys.executable, "-m", "holdfast.cli", "worker", "tale:app"])
    try:
        wait_until(lambda: len(notes(tmp_path)) == 1, tmp_path)

        os.close(terminal)

        wait_until(lambda: not lives(pid), tmp_path, GONE_SECONDS)
        assert [job["state"] for job in cli.json("jobs")["jobs"]] == ["available"]
        assert cli.json("workers") == {"workers": []}
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_a_second_sighup_is_no_second_order(started, tmp_path, monkeypatch):
    """The shell and the system may both tell of a closed terminal."""
    monkeypatch.setenv("GRACE", str(GONE_SECONDS))
    running = started("worker")
    job = submit(tmp_path, "wait")
    wait_until(lambda: len(notes(tmp_path)) == 1, tmp_path)

    running.send_signal(signal.SIGHUP)
    wait_until(lambda: "SIGTERM stops at once" in (tmp_path / "said").read_text(), tmp_path)
    running.send_signal(signal.SIGHUP)
    with pytest.raises(subprocess.TimeoutExpired):
        running.wait(0.5)
    (tmp_path / "done").touch()

    assert running.wait(GONE_SECONDS) == 0
    assert result(tmp_path, job) == "finished"
    assert len(notes(tmp_path)) == 1


def test_under_nohup_a_closed_terminal_stops_nothing(started, tmp_path):
    running = started("worker", before=("nohup",))
    wait_until(lambda: len(worker_pids(tmp_path)) == 1, tmp_path)

    running.send_signal(signal.SIGHUP)
    (tmp_path / "done").touch()

    assert result(tmp_path, submit(tmp_path, "wait")) == "finished"
    running.terminate()
    assert running.wait(GONE_SECONDS) == 0


# After two signals, always.


@pytest.fixture(params=["sqlite", "postgres", "redis", "file"])
def store(request: pytest.FixtureRequest, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each kind of store that a worker's process can use; the App and the verbs take it from the environment."""
    match request.param:
        case "sqlite":
            url = f"sqlite:///{cli.path}"
        case "file":
            url = f"file:{tmp_path}/jobs.json"
        case name:
            url = request.getfixturevalue(f"{name}_store")
    monkeypatch.setenv("HOLDFAST_URL", url)
    return url


def begun(started: Callable[..., "subprocess.Popen[bytes]"], folder: Path, job: str) -> "subprocess.Popen[bytes]":
    """A worker that runs this job. It was submitted before: a file belongs to one process at a time."""
    submit(folder, job)
    running = started("worker")
    wait_until(lambda: bool(notes(folder)), folder)
    return running


def test_two_sigterms_end_a_worker_while_its_jobs_fork(store: str, cli: Cli, started, tmp_path):
    running = begun(started, tmp_path, "storm")

    running.terminate()
    time.sleep(0.2)  # two signals of one kind at once are one
    running.terminate()

    assert running.wait(GONE_SECONDS) == 0, (tmp_path / "said").read_text()
    assert [job["state"] for job in cli.json("jobs")["jobs"]] == ["available"]


@pytest.mark.parametrize("how", ["handles", "ignores"])
def test_two_signals_end_a_worker_whose_job_has_replaced_their_handlers(started, tmp_path, monkeypatch, how):
    monkeypatch.setenv("DEAF", how)
    monkeypatch.setenv("GRACE", "600")
    submit(tmp_path, "deaf")
    running = started("worker")
    wait_until(lambda: "replaced the worker's handler of SIGTERM" in (tmp_path / "said").read_text(), tmp_path)

    running.terminate()
    wait_until(lambda: "stopping: " in (tmp_path / "said").read_text(), tmp_path)
    running.terminate()

    assert running.wait(GONE_SECONDS) == 0
    assert (tmp_path / "said").read_text().count("replaced the worker's handler") == 1


def test_two_sigterms_end_a_worker_whose_store_does_not_answer(store: str, started, tmp_path):
    running = begun(started, tmp_path, "stuck")

    running.terminate()
    time.sleep(0.2)
    running.terminate()

    assert running.wait(GONE_SECONDS) == 1
    assert (
        "still running 1 s after the signal to stop at once: ending the process now" in (tmp_path / "said").read_text()
    )


# What its jobs fork.


def test_sigterm_ends_what_a_job_has_forked(started, tmp_path):
    """`multiprocessing` ends its processes so: one that went on listening as a worker would keep its job for ever."""
    started("worker")

    assert result(tmp_path, submit(tmp_path, "pool")) == "6"
    assert result(tmp_path, submit(tmp_path, "terminate")) == str(-signal.SIGTERM)
