"""`holdfast rerun`, `fork` and `compare`: what they say, as text and as JSON, and what they refuse."""

from pathlib import Path

import pytest

from holdfast.conformance.given import step
from holdfast.core.changes import complete
from holdfast.core.model import State, StepState
from holdfast.jobs.requests import JobRequest
from holdfast.jobs.service import Jobs
from holdfast.worker import registry
from tests.cli.conftest import Cli
from tests.cli.stores import in_store


def test_a_rerun_of_a_job_in_review_replays_it(cli: Cli, ids: dict[State, str]):
    told = cli.ok("rerun", ids[State.REVIEW], "draw#2", "--feedback", "six fingers")

    assert told == f"replayed {ids[State.REVIEW][-8:]}; it waits for a worker\n"
    shown = cli.json("show", ids[State.REVIEW])
    assert [one["path"] for one in shown["steps"]] == ["draw#1", "draw#3"]
    note = shown["history"][-1]["note"]
    assert (note["again"], note["feedback"], note["set_aside"]) == (["draw#2"], "six fingers", 1)


def test_a_rerun_of_an_ended_job_makes_a_new_one(cli: Cli, ids: dict[State, str]):
    told = cli.json("rerun", ids[State.COMPLETED], "draw#1")

    assert told["from"] == ids[State.COMPLETED]
    assert told["job"]["id"] != ids[State.COMPLETED]
    assert told["job"]["state"] == "available"
    text = cli.ok("rerun", ids[State.COMPLETED], "draw#1")
    assert text.startswith("made ")
    assert f"holdfast compare {ids[State.COMPLETED][-8:]} " in text


def test_a_fork_and_its_comparison(cli: Cli, ids: dict[State, str]):
    made = cli.json("fork", ids[State.COMPLETED])["job"]["id"]

    told = cli.json("compare", ids[State.COMPLETED], made)

    assert [run["id"] for run in told["runs"]] == [ids[State.COMPLETED], made]
    assert told["runs"][1]["origin"] == {"job": ids[State.COMPLETED], "how": "fork", "at": ""}
    assert [(step["path"], step["relation"]) for step in told["steps"]] == [("draw#1", "same")]
    assert "1 of 1 steps are the same" in cli.ok("compare", ids[State.COMPLETED], made)


def test_a_running_job_and_an_unknown_step_are_refused(cli: Cli, ids: dict[State, str]):
    running = cli("rerun", ids[State.ACTIVE], "draw#1")
    unknown = cli("rerun", ids[State.REVIEW], "drow")

    assert (running.exit_code, running.stderr) == (
        1,
        f"holdfast: job {ids[State.ACTIVE]} is active, so its steps can't run again now; wait until it has ended or "
        "needs a person, or cancel it first\n",
    )
    assert unknown.stderr == f"holdfast: job {ids[State.REVIEW]} has no recorded step 'drow'; did you mean draw?\n"


APP = """
from holdfast import App, step
app = App()

@step
async def etched(plate: int) -> str:
    return "new"

@step
async def inked(plate: int) -> str:
    return "as it was"
"""


def test_what_older_code_made_is_shown_and_rerun(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name in ("etched", "inked"):
        monkeypatch.delitem(registry.STEPS, name, raising=False)
    (tmp_path / "press.py").write_text(APP)

    async def work(jobs: Jobs) -> str:
        await jobs.submit([JobRequest(type="print")])
        (held,) = await jobs.engine.claim("w-1", ["default"], 1)
        code = step(held, "~code/1", StepState.STARTED, result='{"etched":"0a1b2c3d"}')
        await jobs.engine.record([step(held, "etched#1"), step(held, "etched#2"), step(held, "inked#1"), code])
        await jobs.engine.commit([complete(held, await jobs.engine.now(), by="w-1", result="null")])
        return held.id

    id = in_store(cli.path, work)
    assert "code: etched 0a1b2c3d (2)" in cli.ok("show", id)

    made = cli.json("rerun", id, "--older-code", "--app", "press.py:app")["job"]["id"]

    assert [one["path"] for one in cli.json("show", made)["steps"]] == ["inked#1"]
    again = cli("rerun", made, "--older-code", "--app", "press.py:app")
    assert (again.exit_code, again.stderr) == (1, f"holdfast: job {made}: this code made every step that is recorded\n")
    assert cli("rerun", id, "--older-code").exit_code == 2
