"""The examples run as they stand, from an empty folder, and the film survives a kill."""

import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def started(tmp_path: Path) -> Iterator["list[subprocess.Popen[str]]"]:
    """Processes that a test has started; those that still run are killed at its end."""
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        process.kill()
        process.communicate(timeout=30)


def start(folder: Path, *words: str, url: str = "") -> "subprocess.Popen[str]":
    environment = {name: value for name, value in os.environ.items() if name != "HOLDFAST_URL"}
    if url:
        environment["HOLDFAST_URL"] = url
    return subprocess.Popen(
        [sys.executable, *words], cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def calls(folder: Path) -> Counter[str]:
    """How often each item was made, by stage and item."""
    log = folder / "calls.log"
    return Counter(log.read_text().splitlines()) if log.exists() else Counter()


def images(folder: Path) -> int:
    return sum(call.startswith("storyboard\t") for call in calls(folder))


def wait_for_images(folder: Path, number: int, process: "subprocess.Popen[str]") -> None:
    until = time.monotonic() + 60
    while images(folder) < number:
        assert process.poll() is None, process.communicate(timeout=30)
        assert time.monotonic() < until
        time.sleep(0.02)


def finished(folder: Path, process: "subprocess.Popen[str]") -> str:
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert len(calls(folder)) == 65
    return out


def test_every_example_has_a_paragraph():
    told = (EXAMPLES / "README.md").read_text()

    for example in EXAMPLES.glob("*.py"):
        assert f"**[{example.name}]({example.name})**" in told


def test_a_killed_film_goes_on_at_the_next_image(tmp_path: Path, started: "list[subprocess.Popen[str]]"):
    first = start(tmp_path, str(EXAMPLES / "video.py"))
    started.append(first)
    wait_for_images(tmp_path, 12, first)
    first.kill()
    first.communicate(timeout=30)
    before = calls(tmp_path)
    assert images(tmp_path) < 30, "the kill came in the middle of the images"

    second = start(tmp_path, str(EXAMPLES / "video.py"))
    started.append(second)
    out = finished(tmp_path, second)

    # Four items run at once: only what was under way at the kill, or answered in its very moment, may be made again.
    twice = [call for call, number in calls(tmp_path).items() if number > 1]
    assert len(twice) <= 4, twice
    assert max(calls(tmp_path).values()) <= 2
    assert sum(before.values()) >= 15
    assert re.search(r"storyboard, stage 4 of 7, \d+ of 30", out)


def test_a_second_worker_takes_the_film_over_by_itself(
    tmp_path: Path, started: "list[subprocess.Popen[str]]", store_url: str
):
    owner = start(tmp_path, str(EXAMPLES / "video.py"), url=store_url)
    started.append(owner)
    wait_for_images(tmp_path, 3, owner)
    other = start(tmp_path, "-m", "holdfast.cli", "worker", str(EXAMPLES / "video.py:app"), url=store_url)
    started.append(other)
    assert other.stdout is not None
    assert other.stdout.readline().startswith("worker ")
    owner.kill()
    owner.communicate(timeout=30)
    made = len(calls(tmp_path))

    until = time.monotonic() + 60
    while len(calls(tmp_path)) < 65:
        assert other.poll() is None, other.communicate(timeout=30)
        assert time.monotonic() < until
        time.sleep(0.05)

    assert made < 65
    assert sum(number > 1 for number in calls(tmp_path).values()) <= 4
    other.terminate()
    assert other.wait(timeout=30) == 0


def test_the_book_is_written_chapter_by_chapter(tmp_path: Path):
    for _ in range(2):
        process = start(tmp_path, str(EXAMPLES / "ebook.py"))
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err

    chapters = (tmp_path / "book.md").read_text().count("# ")
    done = [job for job in json.loads((tmp_path / "book.json").read_text())["jobs"] if job["status"] == "DONE"]
    assert chapters == len(done)
    assert f"{chapters} chapters are written, {7 - chapters} need you" in out


def test_the_agent_asks_and_sends_one_mail_however_often_it_is_started(tmp_path: Path):
    for _ in range(2):
        process = start(tmp_path, str(EXAMPLES / "agent.py"))
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        assert "sent to ada@example.org" in out

    done = Counter(line.partition("\t")[0] for line in (tmp_path / "agent.log").read_text().splitlines())
    assert done == {"plan": 1, "search": 3, "summarise": 3, "mail": 1}
