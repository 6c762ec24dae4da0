"""Verbs on a file: to look at one that is in use, or that a crash has left, changes nothing."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import run_items
from tests.cli.conftest import Cli

SCRIPT = """
import sys, time
from pathlib import Path
from holdfast import run_items

def write(title):
    if title == "fog":
        return False, "no thread"
    if title == "storm" and not Path("quick").exists():
        Path("reached").touch()
        while not Path("quick").exists():
            time.sleep(0.02)
    return title.upper()

run_items("book.json", ["dawn", "fog", "storm", "calm"], write, retries=0)
"""

LOOKING = {
    "status": [],
    "jobs": [],
    "review": [],
    "queues": [],
    "workers": [],
    "doctor": [],
    "show": ["ID"],
    "export": ["ID"],
}


@pytest.fixture
def book(tmp_path: Path, path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that the verbs look at."""
    monkeypatch.setenv("HOLDFAST_URL", f"file:{tmp_path}/book.json")
    (tmp_path / "book.py").write_text(SCRIPT)
    return tmp_path / "book.json"


@pytest.fixture
def running(book: Path) -> Iterator["subprocess.Popen[str]"]:
    """A list in the middle of its third item."""
    process = start(book)
    until = time.monotonic() + 30
    while not (book.parent / "reached").exists():
        assert process.poll() is None, process.communicate(timeout=30)
        assert time.monotonic() < until
        time.sleep(0.02)
    yield process
    process.kill()
    process.communicate(timeout=30)


def start(book: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "book.py"], cwd=book.parent, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def finish(process: "subprocess.Popen[str]", book: Path) -> list[str]:
    (book.parent / "quick").touch()
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    return out.splitlines()


def id_of(book: Path, title: str) -> str:
    return next(job["id"] for job in json.loads(book.read_text())["jobs"] if job["key"] == title)


def look(cli: Cli, book: Path, verb: str) -> str:
    return cli.ok(verb, *(id_of(book, "storm") if word == "ID" else word for word in LOOKING[verb]))


@pytest.mark.parametrize("verb", LOOKING)
def test_a_list_that_runs_can_be_looked_at(cli: Cli, book: Path, running: "subprocess.Popen[str]", verb: str):
    text = book.read_bytes()

    look(cli, book, verb)

    assert book.read_bytes() == text
    assert finish(running, book)[-3] == "finished: 3 done, 1 needs review"


def test_a_list_that_runs_is_shown_with_what_it_does_and_who_does_it(
    cli: Cli, book: Path, running: "subprocess.Popen[str]"
):
    told = cli.json("status")
    (queue,) = told["queues"]
    shown = cli.ok("status")
    (worker,) = cli.json("workers")["workers"]

    assert {state: number for state, number in queue["jobs"].items() if number} == {
        "available": 1,
        "active": 1,
        "review": 1,
        "completed": 1,
    }
    assert [one["id"] for one in told["active"]] == [id_of(book, "storm")]
    assert "1 worker, 1 of 1 slots in use" in shown
    assert "not responding" not in shown
    assert worker["pid"] == running.pid
    assert "fail" not in {check["level"] for check in cli.json("doctor")["checks"]}


def test_after_a_crash_looking_leaves_the_recovery_to_the_next_run(
    cli: Cli, book: Path, running: "subprocess.Popen[str]"
):
    running.send_signal(signal.SIGKILL)
    running.communicate(timeout=30)
    text = book.read_bytes()

    for verb in LOOKING:
        look(cli, book, verb)
    shown = cli.ok("status")

    assert book.read_bytes() == text
    assert "no worker" in shown
    assert "which is not responding" in shown
    (book.parent / "quick").touch()
    assert "recovered 1 item from a crash" in finish(start(book), book)


def test_watching_sees_a_list_get_on(book: Path, running: "subprocess.Popen[str]"):
    watch = subprocess.Popen(
        [sys.executable, "-m", "holdfast.cli", "status", id_of(book, "storm"), "--watch"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert watch.stdout is not None
        assert watch.stdout.readline().startswith("item.write ")
        assert "active" in watch.stdout.readline()
        finish(running, book)
        out, err = watch.communicate(timeout=30)
    finally:
        watch.kill()

    assert (watch.returncode, err) == (0, "")
    assert "completed" in out


def test_a_shell_completes_ids_of_a_list_that_runs(book: Path, running: "subprocess.Popen[str]"):
    words = {"_HOLDFAST_COMPLETE": "bash_complete", "COMP_WORDS": "holdfast show ", "COMP_CWORD": "2"}
    program = Path(sys.executable).with_name("holdfast")

    done = subprocess.run([program], env=os.environ | words, capture_output=True, text=True, timeout=60, check=True)

    assert id_of(book, "storm")[-8:] in done.stdout


@pytest.mark.parametrize("verb", ["status", "jobs", "review", "queues", "workers"])
def test_a_file_that_was_edited_wrongly_is_told_in_one_line(cli: Cli, book: Path, verb: str):
    run_items(book, ["dawn"], str.upper, quiet=True)
    text = book.read_text().replace('"status": "DONE"', '"status": "RUNNING"')
    book.write_text(text)

    result = cli(verb)

    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(f"holdfast: {book}: line ")
    assert "status can't be changed from DONE to RUNNING; allowed here: DONE, PENDING" in result.stderr
    assert result.stderr.count("\n") == 1
    assert book.read_text() == text


def test_the_doctor_tells_it_as_a_failure(cli: Cli, book: Path):
    book.write_text("{")

    result = cli("doctor")

    assert result.exit_code == 1
    assert "fail open: " in result.stdout


def test_a_file_that_is_not_there_is_not_made(cli: Cli, book: Path):
    result = cli("status")

    assert result.exit_code == 1
    assert f"there is no store at {book}" in result.stderr
    assert not list(book.parent.glob("book.json*"))


WRITING = {
    "replay": ["replay", "fog"],
    "resolve": ["resolve", "fog", "--result", "1"],
    "discard": ["discard", "fog"],
    "cancel": ["cancel", "fog"],
    "signal": ["signal", "fog", "go"],
    "pause": ["queues", "pause", "item.write"],
    "resume": ["queues", "resume", "item.write"],
}


def written(book: Path, name: str) -> list[str]:
    return [id_of(book, "fog") if word == "fog" else word for word in WRITING[name]]


@pytest.mark.parametrize("name", WRITING)
def test_a_verb_that_changes_something_does_so_in_a_file(cli: Cli, book: Path, name: str):
    (book.parent / "quick").touch()
    finish(start(book), book)
    if name == "resume":
        cli.ok(*written(book, "pause"))
    text = book.read_bytes()

    cli.ok(*written(book, name))

    assert book.read_bytes() != text


@pytest.mark.parametrize("name", WRITING)
def test_a_verb_that_changes_something_is_refused_while_the_file_is_in_use(
    cli: Cli, book: Path, running: "subprocess.Popen[str]", name: str
):
    result = cli(*written(book, name))

    assert result.exit_code == 1
    assert f"book.json is in use by process {running.pid}" in result.stderr


def test_a_run_is_exported_from_one_file_and_imported_into_another(cli: Cli, book: Path, tmp_path: Path):
    run_items(book, ["dawn"], str.upper, quiet=True)
    cli.ok("export", id_of(book, "dawn"), "--output", "run.json")

    cli.ok("import", "run.json", "--url", f"file:{tmp_path}/other.json")

    assert cli.json("jobs", "--url", f"file:{tmp_path}/other.json")["jobs"][0]["id"] == id_of(book, "dawn")
