"""`holdfast demo`: what it shows is real, what it tells is measured, and nothing of it stays behind."""

import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from holdfast.core.model import Step, StepState
from holdfast.core.throttling import throttle_of
from holdfast.demo import video
from holdfast.demo.figures import Killed, measure
from holdfast.demo.provider import BROKEN, BUSY, CUT, MADE, RETRY_AFTER_SECONDS, Call

MANY = frozenset({"storyboard"})
KILLED = Killed(at=100.0, worker=1, pid=11, epoch=1, image=2)


def start(folder: Path, *options: str) -> "subprocess.Popen[str]":
    """A demo whose temporary files all go into this folder."""
    return subprocess.Popen(
        [sys.executable, "-m", "holdfast.cli", "demo", *options],
        env=os.environ | {"TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def left_behind(folder: Path) -> list[str]:
    """Processes that were started with this folder as theirs, and still run."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if f"TMPDIR={folder}".encode() in (place / "environ").read_bytes().split(b"\0"):
                found.append((place / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return found


def wait_for(condition: object, seconds: float = 10.0) -> bool:
    until = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


def test_the_demo_survives_its_kill_within_a_minute_and_leaves_nothing(tmp_path: Path):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    began = time.monotonic()

    process = start(scratch, "--db", str(tmp_path / "kept.db"), "--svg", str(tmp_path / "demo.svg"))
    out, err = process.communicate(timeout=120)

    assert process.returncode == 0, err
    assert time.monotonic() - began < 60
    assert err == ""
    assert "\x1b" not in out
    assert re.search(r"worker [12] is killed: SIGKILL to process \d+; \d\d of 30 images are recorded", out)
    assert re.search(r"worker [12] continues with the next image, \d", out)
    assert 'image 13 is rejected: "the hand has six fingers"' in out
    assert re.search(r"the image, its clip and the film are made again: \d+ calls, and 62 recorded steps are kept", out)
    assert re.search(r"^ made +65 of 65 ", out, re.MULTILINE)
    assert re.search(r"^ made twice +0 ", out, re.MULTILINE)
    assert int(re.search(r"cut by the kill +(\d+)", out)[1]) <= 4  # type: ignore[index]
    assert int(re.search(r"calls saved +(\d+)", out)[1]) >= 15  # type: ignore[index]
    assert re.search(r"^ attempts +1 +2 claims", out, re.MULTILINE)
    assert (tmp_path / "demo.svg").read_text().startswith("<svg")
    assert list(scratch.iterdir()) == []
    assert left_behind(scratch) == []
    store = sqlite3.connect(tmp_path / "kept.db")
    assert [row[0] for row in store.execute("select state from jobs")] == ["completed", "completed"]  # and the rerun
    store.close()


@pytest.mark.parametrize("engine", ["postgres", "redis"])
def test_the_same_demo_runs_on_a_shared_store(tmp_path: Path, request: pytest.FixtureRequest, engine: str):
    process = start(tmp_path, "--url", request.getfixturevalue(f"{engine}_store"))
    out, err = process.communicate(timeout=120)

    assert (process.returncode, err) == (0, "")
    assert re.search(r"^ made +65 of 65 ", out, re.MULTILINE)
    assert re.search(r"^ made twice +0 ", out, re.MULTILINE)
    assert re.search(r"^ attempts +1 +2 claims", out, re.MULTILINE)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_demo_that_is_interrupted_cleans_up(tmp_path: Path, number: signal.Signals):
    process = start(tmp_path)
    assert process.stdout is not None
    for line in process.stdout:
        if "script_analysis: done" in line:
            break
    assert len(left_behind(tmp_path)) == 4

    process.send_signal(number)
    out, err = process.communicate(timeout=30)

    assert process.returncode == 130, err
    assert "stopped; all processes of the demo have ended" in out
    assert err == ""
    assert left_behind(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_no_process_outlives_a_demo_that_is_killed(tmp_path: Path):
    process = start(tmp_path)
    assert wait_for(lambda: len(left_behind(tmp_path)) == 4)
    assert process.stdout is not None
    assert process.stdout.readline()

    process.kill()
    process.communicate(timeout=30)

    assert wait_for(lambda: left_behind(tmp_path) == [])


def test_a_store_that_cant_be_made_is_one_line(tmp_path: Path):
    process = start(tmp_path, "--db", str(tmp_path / "no" / "folder" / "demo.db"))
    out, err = process.communicate(timeout=30)

    assert process.returncode == 1
    assert out == ""
    assert len(err.splitlines()) == 1
    assert err.startswith("holdfast: ")
    assert left_behind(tmp_path) == []


# The figures: each can tell that something went wrong.


def call(item: str, caller: int = 11, at: float = 1.0, outcome: str = MADE) -> Call:
    return Call("storyboard", item, caller, at, outcome)


def step(item: str, epoch: int = 1) -> Step:
    return Step(job="j", epoch=epoch, path=f"storyboard#{item}", name="storyboard", state=StepState.DONE, started_at=1)


def test_a_recorded_item_that_is_made_again_counts_as_made_twice():
    figures = measure([call("1"), call("1", 22, 101.0)], [step("1")], KILLED, MANY)

    assert (figures.made, figures.twice, figures.cut) == (1, 1, 0)


def test_a_call_that_was_under_way_at_the_kill_is_counted_apart():
    calls = [call("1"), call("2", outcome=CUT), call("3"), call("2", 22, 100.5), call("3", 22, 100.6)]

    figures = measure(calls, [step("1"), step("2", 2), step("3", 2)], KILLED, MANY)

    # Of item 3 the answer came, but nobody lived to record it.
    assert (figures.twice, figures.cut, figures.saved, figures.lost_seconds) == (0, 2, 1, 0.5)


def test_refused_and_failed_calls_make_nothing():
    figures = measure([call("1", outcome=BUSY), call("1", outcome=BROKEN), call("1")], [step("1")], KILLED, MANY)

    assert (figures.made, figures.calls, figures.busy, figures.broken, figures.cut) == (1, 3, 1, 1, 0)


def test_a_busy_provider_closes_the_limit_that_all_steps_share():
    error = video.ProviderTrouble(429, "Too Many Requests", {"Retry-After": str(RETRY_AFTER_SECONDS)})
    throttle = throttle_of(error, now=0.0)

    assert throttle is not None
    assert throttle.ms == RETRY_AFTER_SECONDS * 1_000
    assert all(one.spec.limits == (video.provider,) for one in (video.storyboard, video.video_generation))
    assert throttle_of(video.ProviderTrouble(500, "Internal Server Error", {}), now=0.0) is None
