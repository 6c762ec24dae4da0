"""`holdfast worker`: what it says when it is told to stop, by whom it was told."""

import signal
import subprocess
import sys
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
    signal.SIGTERM: "a second SIGTERM stops at once and hands it over",
    signal.SIGINT: "Ctrl-C again stops now and hands it over",
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

    assert said == f"stopping: work that is under way may finish; {AGAIN[number]}\nstopped\n"
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
