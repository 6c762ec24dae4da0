"""`holdfast worker`: what it says when it is told to stop, by whom it was told."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.conftest import Cli

APP = """
from holdfast import App
app = App()

@app.job
async def tell() -> str:
    return "hello"
"""

AGAIN = {
    signal.SIGTERM: "a second SIGTERM stops at once and hands over the rest",
    signal.SIGINT: "Ctrl-C again stops now and hands over the rest",
}


@pytest.mark.parametrize("number", AGAIN)
def test_a_worker_that_is_told_to_stop_says_what_stops_it_at_once(number: signal.Signals, cli: Cli, tmp_path: Path):
    (tmp_path / "tale.py").write_text(APP)
    command = [sys.executable, "-m", "holdfast.cli", "worker", "tale:app", "--log-level", "error"]
    running = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert running.stdout is not None
    assert running.stdout.readline().startswith("worker w-")

    running.send_signal(number)
    said, _ = running.communicate(timeout=30)

    assert said == f"stopping: running work may finish; {AGAIN[number]}\nstopped\n"
    assert running.returncode == 0


def test_ctrl_c_reaches_each_of_many_processes_as_ctrl_c(cli: Cli, tmp_path: Path):
    (tmp_path / "tale.py").write_text(APP)
    command = [sys.executable, "-m", "holdfast.cli", "worker", "tale:app", "--processes", "2", "--log-level", "error"]
    running = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert running.stdout is not None
    assert all(running.stdout.readline().startswith("worker w-") for _ in range(2))

    running.send_signal(signal.SIGINT)
    said, _ = running.communicate(timeout=30)

    assert said.count(AGAIN[signal.SIGINT]) == 2
    assert running.returncode == 0


BLOCKING = """
import time
from holdfast import App
app = App()

@app.job
async def block() -> None:
    print("blocking", flush=True)
    time.sleep(60)

if __name__ == "__main__":
    app.sync.submit(block)
"""


def test_a_second_signal_ends_a_worker_whose_loop_is_blocked(tmp_path: Path):
    (tmp_path / "tale.py").write_text(BLOCKING)
    subprocess.run([sys.executable, "tale.py"], cwd=tmp_path, check=True, timeout=30)
    command = [sys.executable, "-m", "holdfast.cli", "worker", "tale.py:app", "--log-level", "error"]
    running = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert running.stdout is not None
    assert running.stdout.readline().startswith("worker w-")
    assert running.stdout.readline() == "blocking\n"

    for _ in range(50):  # two signals of one kind at once are one, and a busy machine takes its time to hand them out
        running.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        if running.poll() is not None:
            break
    _, said = running.communicate(timeout=90)

    assert "a job blocks the event loop" in said
    assert running.returncode == 1


STUBBORN = """
import asyncio, time
from holdfast import App, Settings
from holdfast.worker import worker as loop
loop.HALT_SECONDS = 0.2
app = App(settings=Settings(grace_seconds=0.2))

@app.job
async def swallow() -> None:
    print("entered", flush=True)
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            await asyncio.sleep(1)
        except BaseException:
            pass

@app.job
async def block() -> None:
    print("entered", flush=True)
    await asyncio.to_thread(time.sleep, 60)

if __name__ == "__main__":
    import sys
    app.sync.submit({"swallow": swallow, "block": block}[sys.argv[1]])
"""


@pytest.mark.parametrize("kind", ["swallow", "block"])
def test_a_worker_ends_although_a_job_will_not(kind: str, cli: Cli, tmp_path: Path):
    (tmp_path / "tale.py").write_text(STUBBORN)
    subprocess.run([sys.executable, "tale.py", kind], cwd=tmp_path, check=True, timeout=30)
    command = [sys.executable, "-m", "holdfast.cli", "worker", "tale.py:app", "--log-level", "error"]
    running = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert running.stdout is not None
        assert running.stdout.readline().startswith("worker w-")
        assert running.stdout.readline() == "entered\n"

        running.send_signal(signal.SIGTERM)
        out, said = running.communicate(timeout=20)
    finally:
        running.kill()

    assert out.endswith("stopped\n")
    assert "ending although some jobs don't stop; they were handed over" in said
    assert running.returncode == 0
    assert [job["state"] for job in cli.json("jobs")["jobs"]] == ["available"]


STARTING = """
import asyncio, os, sys, time
from holdfast import App
app = App()
opened = app.engine.open

async def open_slowly() -> None:
    print("opening", flush=True)
    await asyncio.sleep(SECONDS)
    await opened()

if "worker" in sys.argv:
    app.engine.open = open_slowly

@app.job
async def tell() -> str:
    return "hello"

if __name__ == "__main__":
    app.sync.submit(tell)
elif IMPORTING:
    os.write(1, b"importing\\n")
    time.sleep(300)
"""


def start(folder: Path, *words: str, **more: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "holdfast.cli", "worker", "tale.py:app", "--log-level", "error", *words]
    return subprocess.Popen(
        command,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, **more},
    )


@pytest.mark.parametrize("number", AGAIN)
def test_a_worker_that_is_told_to_stop_while_it_starts_claims_nothing(number: signal.Signals, cli: Cli, tmp_path: Path):
    (tmp_path / "tale.py").write_text(STARTING.replace("SECONDS", "1").replace("IMPORTING", "False"))
    subprocess.run([sys.executable, "tale.py"], cwd=tmp_path, check=True, timeout=30)
    running = start(tmp_path)
    try:
        assert running.stdout is not None
        assert running.stdout.readline() == "opening\n"
        running.send_signal(number)
        said, trouble = running.communicate(timeout=20)
    finally:
        running.kill()

    assert (running.returncode, trouble) == (0, "")
    assert said.endswith("stopped\n")
    (job,) = cli.json("jobs")["jobs"]
    assert job["state"] == "available"
    assert [entry["event"] for entry in cli.json("show", job["id"])["history"]] == ["submit"]


def test_a_second_signal_stops_a_worker_that_can_not_start(cli: Cli, tmp_path: Path):
    (tmp_path / "tale.py").write_text(STARTING.replace("SECONDS", "60").replace("IMPORTING", "False"))
    running = start(tmp_path)
    try:
        assert running.stdout is not None
        assert running.stdout.readline() == "opening\n"
        running.send_signal(signal.SIGTERM)
        running.send_signal(signal.SIGINT)
        said, trouble = running.communicate(timeout=20)
    finally:
        running.kill()

    assert (running.returncode, said, trouble) == (0, "stopped\n", "")


@pytest.mark.parametrize("processes", ["1", "2"])
@pytest.mark.parametrize("number", AGAIN)
def test_a_worker_whose_app_is_still_imported_stops_at_once(
    number: signal.Signals, processes: str, cli: Cli, tmp_path: Path
):
    (tmp_path / "tale.py").write_text(STARTING.replace("IMPORTING", "True"))
    running = start(tmp_path, "--processes", processes)
    try:
        assert running.stdout is not None
        assert all(running.stdout.readline() == "importing\n" for _ in range(int(processes)))
        running.send_signal(number)
        said, trouble = running.communicate(timeout=10)
    finally:
        running.kill()

    assert (running.returncode, said, trouble) == (0, "stopped\n" * int(processes), "")


BOOTING = """
import os, sys, time
if "worker" in sys.orig_argv and "HOLDFAST_LIFELINE" in os.environ:
    os.write(1, b"booting\\n")  # in one write: that of another process may come in between two
    time.sleep(300)
"""


def test_many_processes_that_have_not_even_begun_are_stopped_in_order(cli: Cli, tmp_path: Path):
    (tmp_path / "tale.py").write_text(APP)
    (tmp_path / "sitecustomize.py").write_text(BOOTING)
    paths = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    running = start(tmp_path, "--processes", "2", PYTHONPATH=paths)
    try:
        assert running.stdout is not None
        assert all(running.stdout.readline() == "booting\n" for _ in range(2))
        running.send_signal(signal.SIGTERM)
        said, trouble = running.communicate(timeout=10)
    finally:
        running.kill()

    assert (running.returncode, said, trouble) == (0, "", "")


@pytest.mark.parametrize("where", ["--url", "the App's own", "$HOLDFAST_URL"])
@pytest.mark.parametrize("url", ["file:jobs.json", "memory:"])
def test_several_processes_on_a_store_for_one_are_refused(cli: Cli, tmp_path: Path, monkeypatch, url: str, where: str):
    (tmp_path / "tale.py").write_text(APP.replace("App()", f"App({url!r})" if where == "the App's own" else "App()"))
    if where == "$HOLDFAST_URL":
        monkeypatch.setenv("HOLDFAST_URL", url)
    more = ["--url", url] if where == "--url" else []

    done = subprocess.run(
        [sys.executable, "-m", "holdfast.cli", "worker", "tale:app", "--processes", "2", *more],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )

    line = (
        f"holdfast: --processes 2: a {url.partition(':')[0]} store is for one process; leave it out and raise "
        "--at-once, or use sqlite:///jobs.db"
    )
    assert done.returncode == 2
    assert set(done.stderr.splitlines()) == {line}
    assert done.stderr.count("\n") == 1 or where != "--url", "only then can it be known before any process starts"
    assert "worker w-" not in done.stdout
    assert not (tmp_path / "jobs.json").exists()


def test_a_number_of_processes_that_is_none_is_told_as_such(cli: Cli):
    assert "--processes: 'x' is not a whole number" in cli("worker", "tale:app", "--processes", "x").stderr


@pytest.mark.parametrize(
    ("queues", "warning"),
    [
        ("defualt", "the queue defualt, and this store has no job in it; did you mean default?"),
        ("default,mail", "the queue mail, and this store has no job in it"),
        ("default,viedo", "the queue viedo, and this store has no job in it; did you mean video?"),
        ("default,video,paused", None),
    ],
)
def test_a_queue_that_nobody_knows_gets_a_warning_and_the_worker_starts(
    queues: str, warning: str | None, cli: Cli, tmp_path: Path
):
    (tmp_path / "tale.py").write_text(APP)
    cli.ok("submit", "tale.py:app", "tell", "--queue", "video")
    cli.ok("queues", "pause", "paused", "--yes")
    command = [sys.executable, "-m", "holdfast.cli", "worker", "tale:app", "--log-level", "error", "--queues", queues]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as running:
        assert running.stdout is not None
        assert f"queues {queues.replace(',', ', ')}" in running.stdout.readline()
        running.send_signal(signal.SIGTERM)
        _, warned = running.communicate(timeout=30)

    assert warned == ("" if warning is None else f"warning: no job of this App uses {warning}\n")
    assert running.returncode == 0
