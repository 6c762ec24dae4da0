"""run_items under kill -9 and Ctrl-C: real processes, and what the next start finds."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import asyncpg
import pytest

from holdfast.engines.postgres.url import parse_url
from tests.support.given import at_pace

LEASE_SECONDS = 15

SCRIPT = """
import asyncio, os, sys, time
from pathlib import Path
from holdfast import run_items

SLOW = "three"

def note(item):
    with open("calls", "a") as file:
        file.write(item + "\\n")

def wait_for_the_end(item):
    note(item)
    if item == SLOW and not Path("quick").exists():
        Path("reached").touch()
        time.sleep(float(os.environ.get("SLOW_SECONDS", "600")))
    return item.upper()

async def wait_async(item):
    note(item)
    if item == SLOW and not Path("quick").exists():
        Path("reached").touch()
        await asyncio.sleep(float(os.environ.get("SLOW_SECONDS", "600")))
    return item.upper()

work = {"sync": wait_for_the_end, "async": wait_async}[sys.argv[2]]
counts = run_items(sys.argv[1], ["one", "two", "three", "four"], work, name="chapters")
print(dict(counts), counts.recovered)
"""


@pytest.fixture
def book(tmp_path: Path) -> Path:
    (tmp_path / "book.py").write_text(SCRIPT)
    return tmp_path


@pytest.fixture(params=["file", "sqlite", "postgres", "redis"])
def where(request: pytest.FixtureRequest) -> str:
    if request.param in ("postgres", "redis"):
        return str(request.getfixturevalue(f"{request.param}_store"))
    return {"file": "book.json", "sqlite": "sqlite:///book.db"}[request.param]


def start(book: Path, where: str, kind: str, **environment: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "book.py", where, kind],
        cwd=book,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def reached(book: Path, process: "subprocess.Popen[str]") -> None:
    until = time.monotonic() + 30
    while not (book / "reached").exists():
        assert process.poll() is None, process.communicate(timeout=30)
        assert time.monotonic() < until
        time.sleep(0.02)


async def is_steady(where: str) -> None:
    """Wait until the server has been up for a lease: after a restart everybody might just be coming back."""
    age = "select extract(epoch from clock_timestamp() - pg_postmaster_start_time()) > $1::int"
    db = await asyncpg.connect(parse_url(where).dsn)
    async with asyncio.timeout(2 * LEASE_SECONDS):
        while not await db.fetchval(age, LEASE_SECONDS):  # noqa: ASYNC110 (it happens in the server)
            await asyncio.sleep(0.1)
    await db.close()


def again(book: Path, where: str, kind: str) -> list[str]:
    (book / "quick").touch()
    process = start(book, where, kind)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    return out.splitlines()


def calls(book: Path) -> Counter[str]:
    return Counter((book / "calls").read_text().split())


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_killed_list_goes_on_at_the_item_it_was_killed_in(book: Path, where: str, kind: str):
    process = start(book, where, kind)
    reached(book, process)
    if where.startswith("postgresql:"):
        asyncio.run(is_steady(where))
    process.kill()
    process.communicate(timeout=30)

    began = time.monotonic()
    lines = again(book, where, kind)

    assert time.monotonic() - began < at_pace(10), "no lease was waited for"
    assert "recovered 1 item from a crash" in lines
    assert lines[-1] == "{'PENDING': 0, 'RUNNING': 0, 'NEEDS_REVIEW': 0, 'DONE': 4} 1"
    assert calls(book) == {"one": 1, "two": 1, "three": 2, "four": 1}


def test_a_killed_list_in_a_file_keeps_its_order(book: Path):
    process = start(book, "book.json", "sync")
    reached(book, process)
    process.kill()
    process.communicate(timeout=30)

    again(book, "book.json", "sync")

    assert (book / "calls").read_text().split() == ["one", "two", "three", "three", "four"]


def test_a_file_shows_the_four_words_at_every_stage(book: Path):
    process = start(book, "book.json", "sync")
    reached(book, process)
    process.kill()
    process.communicate(timeout=30)

    jobs = json.loads((book / "book.json").read_text())["jobs"]

    assert [job["status"] for job in jobs] == ["DONE", "DONE", "RUNNING", "PENDING"]


def test_after_ctrl_c_what_is_under_way_may_finish(book: Path, where: str):
    process = start(book, where, "sync", SLOW_SECONDS="1.5")
    reached(book, process)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)

    assert process.returncode == -signal.SIGINT, err  # 130 for a shell
    assert err == "", "the summary has told of it"
    assert "stopping: running items have 10 s to finish; Ctrl-C again stops now" in out
    assert "stopped: 3 done, 1 to do; start it again to continue" in out
    lines = again(book, where, "sync")
    assert not any("recovered" in line for line in lines), "it was no crash"
    assert lines[-1] == "{'PENDING': 0, 'RUNNING': 0, 'NEEDS_REVIEW': 0, 'DONE': 4} 0"
    assert calls(book) == {"one": 1, "two": 1, "three": 1, "four": 1}


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_second_ctrl_c_stops_at_once_and_loses_nothing_finished(book: Path, where: str, kind: str):
    process = start(book, where, kind)
    reached(book, process)
    process.send_signal(signal.SIGINT)
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)

    assert process.returncode != 0
    assert "Traceback" not in err
    lines = again(book, where, kind)
    assert lines[-1].startswith("{'PENDING': 0, 'RUNNING': 0, 'NEEDS_REVIEW': 0, 'DONE': 4}")
    assert calls(book) == {"one": 1, "two": 1, "three": 2, "four": 1}


def test_a_file_in_use_is_refused_with_one_line(book: Path):
    process = start(book, "book.json", "sync")
    reached(book, process)

    other = start(book, "book.json", "sync")
    _, err = other.communicate(timeout=30)
    process.kill()
    process.communicate(timeout=30)

    assert other.returncode == 1
    assert f"book.json is in use by process {process.pid}" in err.splitlines()[-1]


def test_a_wrong_edit_is_told_in_one_line_under_the_callers_own(book: Path):
    (book / "quick").touch()
    start(book, "book.json", "sync").communicate(timeout=30)
    text = (book / "book.json").read_text().replace('"status": "DONE"', '"status": "RUNNING"', 1)
    (book / "book.json").write_text(text)

    process = start(book, "book.json", "sync")
    _, err = process.communicate(timeout=30)

    lines = err.splitlines()
    assert process.returncode == 1
    assert lines[0] == "Traceback (most recent call last):"
    assert [line.split('"')[1].rsplit("/", 2)[-2:] for line in lines if line.startswith("  File ")] == [
        [book.name, "book.py"],
    ]
    assert lines[-1].startswith(f"holdfast.core.errors.StoreDamaged: {book}/book.json: line ")
    assert (
        "its status can't be changed from DONE to RUNNING; allowed here: DONE, PENDING; the file was not changed"
        in lines[-1]
    )
    assert (book / "book.json").read_text() == text


@pytest.mark.parametrize("where", ["sqlite", "postgres", "redis"], indirect=True)
def test_two_processes_share_a_list(book: Path, where: str):
    (book / "quick").touch()
    both = [start(book, where, "sync") for _ in range(2)]
    outs = [process.communicate(timeout=60) for process in both]

    assert [process.returncode for process in both] == [0, 0], outs
    assert calls(book) == {"one": 1, "two": 1, "three": 1, "four": 1}
