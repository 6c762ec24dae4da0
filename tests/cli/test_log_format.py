"""The log of `holdfast worker`: text for a person, or JSON for a machine, and safe in both."""

import io
import json
import logging
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from holdfast.cli.log_format import JsonLines, TextLines, log_level_option
from holdfast.safe_text import UNSAFE

HOSTILE = "\x1b[31mred\x07 \u202e\x9b"


class Odd:
    def __str__(self) -> str:
        raise ValueError("no text")


def line_of(formatter: logging.Formatter, message: str, **more) -> str:
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(formatter)
    log = logging.Logger("mine")
    log.addHandler(handler)
    log.warning(message, **more)
    return out.getvalue()


def test_json_is_one_object_a_line_with_every_field():
    line = line_of(JsonLines(), "two\nlines", extra={"job": "4f2a91bc", "duration_ms": 12, "none": None})

    assert line.count("\n") == 1
    told = json.loads(line)
    assert list(told)[:4] == ["ts", "level", "logger", "message"]
    assert told["ts"].endswith("Z")
    assert (told["level"], told["logger"], told["message"]) == ("warning", "mine", "two\nlines")
    assert (told["job"], told["duration_ms"], told["none"]) == ("4f2a91bc", 12, None)


@pytest.mark.parametrize("value", [Odd(), object(), float("nan"), "\ud800", {1: {Odd()}}, b"\xff", [Path("a")]])
def test_json_is_written_whatever_the_fields_hold(value):
    assert json.loads(line_of(JsonLines(), "said", extra={"value": value}))["message"] == "said"


def test_a_field_replaces_none_of_the_four():
    assert json.loads(line_of(JsonLines(), "said", extra={"level": "mine", "ts": 1}))["level"] == "warning"


@pytest.mark.parametrize("formatter", [TextLines(), JsonLines()])
def test_nothing_that_a_terminal_obeys_reaches_the_log(formatter):
    try:
        raise ValueError(HOSTILE)
    except ValueError:
        line = line_of(formatter, HOSTILE, exc_info=True, extra={"value": HOSTILE})

    assert UNSAFE.search(line) is None
    assert "red" in line


def test_json_keeps_what_it_escapes():
    assert json.loads(line_of(JsonLines(), HOSTILE))["message"] == HOSTILE


APP = """
import logging
from holdfast import App, step
app = App()

@step(retries=0)
async def draw(n: int) -> None:
    raise ValueError("no ink")

@app.job(retries=0)
async def film(secret: str) -> None:
    try:
        await draw(1)
    except ValueError:
        logging.getLogger("mine").exception("it went wrong", extra={"shot": 7})
        raise
"""


def worker_output(folder: Path, *words: str) -> tuple[str, str]:
    """What a worker prints and logs that runs one job."""
    (folder / "tale.py").write_text(APP)
    code = "import tale; tale.app.sync.submit(tale.film, 'hunter2')"
    subprocess.run([sys.executable, "-c", code], cwd=folder, check=True, timeout=60)
    command = [sys.executable, "-m", "holdfast.cli", "worker", "tale:app", *words]
    running = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert running.stderr is not None
    lines: list[str] = []
    for line in running.stderr:  # the test's own bound ends this, should the line never come
        lines.append(line)
        if "it needs a person" in line:
            running.terminate()
    return running.communicate(timeout=60)[0], "".join(lines)


def test_a_worker_logs_jobs_as_text_by_default_with_the_users_file_and_line(tmp_path: Path):
    out, err = worker_output(tmp_path)

    assert "(film) started\n" in err
    assert "ValueError: no ink (tale.py:8 in draw); it needs a person: holdfast show " in err
    assert "holdfast/worker" not in err, "the traceback that the job logs shows only its own frames"
    assert "frames of holdfast" in err
    assert "stopped" in out
    assert "hunter2" not in out + err


def test_a_worker_that_logs_json_prints_nothing_else(tmp_path: Path):
    out, err = worker_output(tmp_path, "--log-format", "json")

    assert out == ""
    told = [json.loads(line) for line in err.splitlines()]
    (started,) = [one for one in told if one["message"].endswith("(film) started")]
    (ended,) = [one for one in told if one.get("outcome") == "review"]
    (own,) = [one for one in told if one["logger"] == "mine"]
    assert (started["job"], started["type"]) == (ended["job"], "film")
    assert (ended["error"], ended["error_type"], ended["place"]) == ("no ink", "ValueError", "tale.py:8 in draw")
    assert ended["duration_ms"] >= 0
    assert own["shot"] == 7
    assert "holdfast/worker" not in own["traceback"] + ended["traceback"]
    assert told[-1]["message"] == "stopped"
    assert "hunter2" not in err


@pytest.mark.parametrize("word", ["warning", "WARNING", "Warning"])
def test_a_level_is_taken_in_any_case(word: str):
    @click.command
    @log_level_option
    def say(log_level: str) -> None:
        click.echo(log_level)

    assert CliRunner().invoke(say, ["--log-level", word]).output == "warning\n"
