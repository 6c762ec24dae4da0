"""Honest types: a type checker knows what steps and jobs take and give, and refuses what would fail."""

import re
from pathlib import Path

from mypy import api

FOLDER = Path(__file__).parent / "typing"
ERROR = re.compile(r"^[^:]*bad\.py:(\d+): error:", re.MULTILINE)


def checked(name: str, cache: Path) -> str:
    options = ["--strict", "--no-error-summary", "--hide-error-context", f"--cache-dir={cache}"]
    out, err, _ = api.run([*options, "--config-file=", str(FOLDER / name)])
    assert not err, err
    return out


def test_a_checker_knows_what_steps_and_jobs_take_and_give(tmp_path):
    assert checked("good.py", tmp_path) == ""


def test_a_checker_refuses_what_would_fail_and_nothing_else(tmp_path):
    lines = (FOLDER / "bad.py").read_text().splitlines()
    expected = {number for number, line in enumerate(lines, 1) if line.endswith("# bad")}
    out = checked("bad.py", tmp_path)
    refused = {int(number) for number in ERROR.findall(out)}
    assert {number: lines[number - 1] for number in expected - refused} == {}, "accepted"
    assert {number: lines[number - 1] for number in refused - expected} == {}, out
