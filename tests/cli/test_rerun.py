"""`holdfast rerun`, `fork` and `compare`: what they say, as text and as JSON, and what they refuse."""

from holdfast.core.model import State
from tests.cli.conftest import Cli


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
