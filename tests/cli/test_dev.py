"""`holdfast dev`: a worker that starts anew when the code changes."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from holdfast.cli import source_files
from holdfast.cli.job_news import url_of
from holdfast.cli.source_files import changed_files, files_below, folder_of
from holdfast.core.errors import Invalid
from tests.cli.conftest import Cli

APP = """
from holdfast import App
app = App()

@app.job
async def tell() -> str:
    return "%s"
"""


def test_only_python_files_are_watched_and_none_that_are_not_the_users(tmp_path: Path):
    for name in ("a.py", "b/c.py", "d.txt", ".git/e.py", "__pycache__/f.py", "venv/g.py", "node_modules/h.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "venv" / "pyvenv.cfg").touch()

    assert {Path(name).relative_to(tmp_path).as_posix() for name in files_below(tmp_path)} == {"a.py", "b/c.py"}


def test_the_walk_is_bounded(tmp_path: Path, monkeypatch):
    for number in range(9):
        (tmp_path / f"{number}.py").touch()
    monkeypatch.setattr(source_files, "FILES_LIMIT", 5)

    assert len(files_below(tmp_path)) == 5


def test_a_file_that_came_went_or_was_written_is_a_change():
    assert changed_files({"a": 1, "b": 1, "c": 1}, {"b": 2, "c": 1, "d": 1}) == ["a", "b", "d"]
    assert changed_files({"a": 1}, {"a": 1}) == []


def test_the_folder_of_an_app_is_found_without_importing_it(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "shop_pkg").mkdir()
    (tmp_path / "shop_pkg" / "__init__.py").write_text("raise RuntimeError('imported')")
    (tmp_path / "one_file.py").write_text("raise RuntimeError('imported')")

    assert folder_of("shop_pkg.jobs:app") == tmp_path / "shop_pkg"
    assert folder_of("one_file:app") == tmp_path
    assert folder_of("shop_pkg/__init__.py:app") == tmp_path / "shop_pkg"
    with pytest.raises(Invalid, match="no module"):
        folder_of("nowhere_at_all:app")


def test_the_store_of_an_app_is_asked_of_the_app(tmp_path: Path):
    file = tmp_path / "video.py"
    file.write_text("from holdfast import App\nprint('noise')\napp = App('sqlite:///own.db')\n")
    broken = tmp_path / "broken.py"
    broken.write_text("def (")

    assert url_of(f"{file}:app") == "sqlite:///own.db"
    assert url_of(f"{broken}:app") is None


def test_a_change_starts_the_worker_anew_and_ctrl_c_ends_both(cli: Cli, tmp_path: Path):
    (tmp_path / "tale.py").write_text(APP % "old")
    log = tmp_path / "log"
    command = [sys.executable, "-m", "holdfast.cli", "dev", "tale:app", "--port", "0"]
    with log.open("w") as out:
        running = subprocess.Popen(command, cwd=tmp_path, stdout=out, stderr=out, start_new_session=True)
    try:
        wait_until(lambda: log.read_text().count("\nworker w-") == 1, log)
        (tmp_path / "tale.py").write_text("def (")
        wait_until(lambda: "waiting for a change" in log.read_text(), log)
        (tmp_path / "tale.py").write_text(APP % "new, and longer")
        wait_until(lambda: log.read_text().count("\nworker w-") == 2, log)
        assert result_of(tmp_path) == "new, and longer"

        os.kill(running.pid, signal.SIGINT)

        assert running.wait(30) == 0
        assert log.read_text().endswith("stopped serving\nended\n")
        assert cli.json("workers") == {"workers": []}
    finally:
        if running.poll() is None:
            running.terminate()
            running.wait(30)


def result_of(folder: Path) -> str:
    code = "import tale; print(tale.app.sync.submit(tale.tell).result(20))"
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=60)
    return done.stdout.strip()


def wait_until(there, log: Path) -> None:
    deadline = time.monotonic() + 30
    while not there():
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)
