"""Honest types: mypy and pyright know what steps and jobs take and give, and refuse what would fail."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from mypy import api

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "tests" / "typing"
SECONDS = 240.0
MYPY_ERROR = re.compile(r"^[^:]*\.py:(\d+): error: (.*)$", re.MULTILINE)

Refused = dict[int, str]
"""Line numbers and what a checker says about each."""


def refused_by_mypy(name: str, scratch: Path, monkeypatch: pytest.MonkeyPatch) -> Refused:
    monkeypatch.setenv("MYPYPATH", str(ROOT / "src"))
    options = ["--strict", "--follow-imports=silent", "--no-error-summary", f"--cache-dir={scratch}", "--config-file="]
    out, err, _ = api.run([*options, str(FOLDER / name)])
    assert not err, err
    return {int(number): words for number, words in MYPY_ERROR.findall(out)}


def refused_by_pyright(name: str, scratch: Path, monkeypatch: pytest.MonkeyPatch) -> Refused:
    """Ask pyright itself if it is installed; otherwise basedpyright, which brings its own Node, in pyright's mode."""
    shutil.copy(FOLDER / name, scratch)
    settings = {"include": [name], "extraPaths": [str(ROOT / "src")], "typeCheckingMode": "standard"}
    (scratch / "pyrightconfig.json").write_text(json.dumps(settings))
    pyright = [found] if (found := shutil.which("pyright")) else [sys.executable, "-m", "basedpyright"]
    command = [*pyright, "--outputjson", "--pythonpath", sys.executable, "-p", str(scratch)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode in (0, 1), done.stderr
    report = json.loads(done.stdout)
    assert report["summary"]["filesAnalyzed"] == 1, report
    errors = [one for one in report["generalDiagnostics"] if one["severity"] == "error"]
    return {one["range"]["start"]["line"] + 1: one["message"] for one in errors}


checkers = pytest.mark.parametrize("refused_by", [refused_by_mypy, refused_by_pyright], ids=["mypy", "pyright"])


@checkers
def test_a_checker_knows_what_steps_and_jobs_take_and_give(refused_by, tmp_path, monkeypatch):
    assert refused_by("good.py", tmp_path, monkeypatch) == {}


@checkers
def test_a_checker_refuses_what_would_fail_and_nothing_else(refused_by, tmp_path, monkeypatch):
    lines = (FOLDER / "bad.py").read_text().splitlines()
    expected = {number for number, line in enumerate(lines, 1) if line.endswith("# bad")}

    refused = refused_by("bad.py", tmp_path, monkeypatch)

    assert {number: lines[number - 1] for number in expected - refused.keys()} == {}, "accepted"
    assert {number: words for number, words in refused.items() if number not in expected} == {}
