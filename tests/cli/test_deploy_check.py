"""`holdfast doctor MODULE:APP` names the unfinished jobs that new code would break, before it is deployed."""

from pathlib import Path

import pytest

from holdfast.core.model import State
from holdfast.worker import registry
from tests.cli.conftest import Cli

APP = """
from holdfast import App, step
app = App()

@step
async def draw(scene: int) -> {result}: ...

@app.job
async def make_video(brief: {brief}) -> None: ...
"""


def doctor(cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch, **types: str) -> tuple[int, str]:
    monkeypatch.delitem(registry.STEPS, "draw", raising=False)  # what other tests declared
    (folder / "newer.py").write_text(APP.format(**types))
    told = cli("doctor", "newer.py:app")
    return told.exit_code, told.stdout


def test_code_that_fits_is_fine(cli: Cli, ids: dict[State, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    code, told = doctor(cli, tmp_path, monkeypatch, brief="dict[str, str]", result="str")

    assert code == 0
    assert "ok   arguments: this App can read the arguments of unfinished jobs" in told
    assert "ok   results: this App can read recorded results of unfinished jobs" in told


def test_a_changed_signature_is_named_with_its_jobs(
    cli: Cli, ids: dict[State, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    code, told = doctor(cli, tmp_path, monkeypatch, brief="int", result="str")

    assert code == 1
    assert "fail arguments: 6 unfinished jobs (" in told
    assert "would break: this App can't read the arguments of make_video: argument 'brief' of make_video" in told
    assert "keep the old type readable, or let these jobs finish first" in told


def test_a_result_that_no_longer_decodes_is_named_with_its_jobs(
    cli: Cli, ids: dict[State, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    code, told = doctor(cli, tmp_path, monkeypatch, brief="dict[str, str]", result="int")

    assert code == 1
    assert "fail results: 2 unfinished jobs (" in told
    assert ids[State.REVIEW][-8:] in told
    assert "this App can't read recorded results of draw: result of draw" in told
