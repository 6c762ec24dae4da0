"""What is given to replay and resolve: JSON that is told how to be written, checked by an App's type hints; --json."""

import json
from pathlib import Path

import pytest

from holdfast.cli import person
from holdfast.cli.verbs import replay as replay_verb
from holdfast.core.model import State
from tests.cli.conftest import Cli

APP = """
from holdfast import App
app = App()

@app.job(name="{name}")
async def make_video(brief: dict[str, str], *, scenes: int = 3) -> dict[str, str]:
    return brief
"""


@pytest.fixture
def app(cli: Cli, tmp_path: Path) -> str:
    """An App that knows the jobs of the store."""
    (tmp_path / "shop_of_films.py").write_text(APP.format(name="make_video"))
    return str(tmp_path / "shop_of_films.py:app")


def state(cli: Cli, ids: dict[State, str]) -> str:
    return cli.json("status", ids[State.REVIEW])["state"]


# JSON


@pytest.mark.parametrize(
    ("call", "line"),
    [
        (
            ["resolve", "ID", "--result", "hello"],
            "--result hello: not JSON; put the text in quotes: --result '\"hello\"'",
        ),
        (
            ["resolve", "ID", "--result", "it's done"],
            "--result it's done: not JSON; put the text in quotes: --result '\"it'\"'\"'s done\"'",
        ),
        (
            ["resolve", "ID", "--result", "{film: 1}"],
            "--result: not JSON: Expecting property name enclosed in double quotes at line 1, column 2; "
            """put it in single quotes, for the shell: --result '{"name": "value"}'""",
        ),
        (["resolve", "ID", "--result", "None"], "--result None: not JSON; write null, true or false"),
        (
            ["replay", "ID", "--args", "hello"],
            "--args hello: not JSON; put the text in quotes: --args '[\"hello\"]'",
        ),
        (
            ["replay", "ID", "--args", '{"title": "The Pier"}'],
            "--args: give the whole list of arguments as holdfast show prints it, in the function's order: "
            """--args '["first", 2]'""",
        ),
        (
            ["signal", "ID", "go", "--json", "now"],
            "--json now: not JSON; put the text in quotes: --json '\"now\"'",
        ),
    ],
    ids=lambda value: " ".join(value[2:]) if isinstance(value, list) else "",
)
def test_what_is_not_json_is_told_with_how_to_write_it(call: list[str], line: str, cli: Cli, ids: dict[State, str]):
    result = cli(*(ids[State.REVIEW] if word == "ID" else word for word in call))

    assert (result.exit_code, result.stdout, result.stderr) == (2, "", f"holdfast: {line}\n")
    assert state(cli, ids) == "review"


# --app


def test_a_result_that_the_app_could_not_read_is_refused(cli: Cli, ids: dict[State, str], app: str):
    result = cli("resolve", ids[State.REVIEW], "--result", "[1]", "--app", app)

    assert result.exit_code == 2
    assert result.stderr.startswith("holdfast: result of make_video: ")
    assert result.stderr.count("\n") == 1
    assert state(cli, ids) == "review"


def test_a_result_that_fits_the_app_is_taken(cli: Cli, ids: dict[State, str], app: str):
    cli.ok("resolve", ids[State.REVIEW], "--result", '{"film": "by-hand.mp4"}', "--app", app)

    assert state(cli, ids) == "completed"


@pytest.mark.parametrize("args", ["[1]", "[]", '[{"a": "b"}, 2]', '[{"a": "b"}, {"**": {"sceens": 2}}]'])
def test_arguments_that_the_app_could_not_read_are_refused(args: str, cli: Cli, ids: dict[State, str], app: str):
    result = cli("replay", ids[State.REVIEW], "--args", args, "--app", app)

    assert result.exit_code == 2
    assert "make_video" in result.stderr
    assert result.stderr.count("\n") == 1
    assert state(cli, ids) == "review"


@pytest.mark.parametrize("args", [[], ["--args", '[{"a": "b"}]'], ["--args", '[{"a": "b"}, {"**": {"scenes": 2}}]']])
def test_arguments_that_fit_the_app_are_taken(args: list[str], cli: Cli, ids: dict[State, str], app: str):
    cli.ok("replay", ids[State.REVIEW], *args, "--app", app)

    assert state(cli, ids) == "available"


def test_a_preview_checks_edited_arguments_too(cli: Cli, ids: dict[State, str], app: str):
    result = cli("replay", ids[State.REVIEW], "--args", "[1]", "--app", app, "--preview")

    assert (result.exit_code, result.stdout) == (2, "")
    assert "make_video" in result.stderr


def test_a_result_for_many_jobs_must_fit_the_type_of_each(cli: Cli, ids: dict[State, str], app: str):
    many = ["resolve", "--type", "make_video", "--app", app, "--yes"]

    result = cli(*many, "--result", "[1]")

    assert result.exit_code == 2
    assert result.stderr.startswith("holdfast: result of make_video: ")
    assert not cli.json("jobs", "--type", "holdfast.bulk")["jobs"]
    assert cli.json(*many, "--result", '{"film": "by-hand.mp4"}')["verb"] == "resolve"


def test_an_app_that_does_not_know_the_job_is_told(cli: Cli, ids: dict[State, str], tmp_path: Path):
    (tmp_path / "shop_of_books.py").write_text(APP.format(name="make_book"))

    result = cli("resolve", ids[State.REVIEW], "--result", "1", "--app", "shop_of_books.py:app")

    assert result.exit_code == 2
    assert result.stderr == (
        f"holdfast: job {ids[State.REVIEW]}: shop_of_books.py:app has no job of type make_video; it has make_book\n"
    )


def test_an_app_brings_its_own_store(cli: Cli, ids: dict[State, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("HOLDFAST_URL")
    text = APP.format(name="make_video").replace("App()", f"App('sqlite:///{cli.path}')")
    (tmp_path / "shop_with_store.py").write_text(text)

    cli.ok("replay", ids[State.REVIEW], "--app", "shop_with_store.py:app")


# --json


@pytest.mark.parametrize(
    ("call", "after"),
    [(["replay"], "available"), (["resolve", "--result", "1"], "completed"), (["discard"], "discarded")],
    ids=["replay", "resolve", "discard"],
)
def test_json_is_the_jobs_new_status(call: list[str], after: str, cli: Cli, ids: dict[State, str]):
    told = cli.json(*call, ids[State.REVIEW])

    assert (told["id"], told["state"]) == (ids[State.REVIEW], after)
    assert told == cli.json("status", ids[State.REVIEW])


@pytest.mark.parametrize("verb", ["replay", "discard"])
def test_json_of_several_has_the_refused_ones_too(verb: str, cli: Cli, ids: dict[State, str]):
    yes = ["--yes"] if verb == "discard" else []

    result = cli(verb, ids[State.COMPLETED], ids[State.REVIEW], *yes, "--json")

    told = json.loads(result.stdout)
    assert (result.exit_code, result.stderr) == (1, "")
    assert told["jobs"] == [cli.json("status", ids[State.REVIEW])]
    assert [one["id"] for one in told["refused"]] == [ids[State.COMPLETED]]
    assert f"has already completed, so it can't be {verb}ed" in told["refused"][0]["why"]


def test_json_of_one_that_is_refused_is_a_line_and_no_document(cli: Cli, ids: dict[State, str]):
    result = cli("replay", ids[State.COMPLETED], "--json")

    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(f"holdfast: job {ids[State.COMPLETED]} has already completed, so it can't be")


# Groups, previews, acts on many


def test_review_groups_jobs_by_what_stopped_them(cli: Cli, ids: dict[State, str]):
    (group,) = cli.json("review")["groups"]

    assert (group["type"], group["step"], group["error"], group["count"]) == (
        "make_video", "(the job's own code)", "ProviderError", 1,
    )  # fmt: skip
    assert group["examples"] == [ids[State.REVIEW]]
    assert "     1  make_video  in (the job's own code): ProviderError" in cli.ok("review", "--groups")
    assert cli.ok("review", "--type", "other") == "nothing needs a person\n"


def test_review_of_one_shows_everything_and_what_a_replay_would_do(cli: Cli, ids: dict[State, str]):
    told = cli.json("review", ids[State.REVIEW])

    assert told["job"]["id"] == ids[State.REVIEW]
    assert told["replay"]["recorded"] == ["draw#1", "draw#2", "draw#3"]
    assert [one["how"] for one in told["attempts"]] == ["exhaust"]
    assert "3 recorded steps are kept" in cli.ok("review", ids[State.REVIEW])


def test_a_preview_changes_nothing(cli: Cli, ids: dict[State, str]):
    told = cli.ok("replay", ids[State.REVIEW], "--preview")

    assert told.startswith(f"replay of make_video {ids[State.REVIEW][-8:]}\n")
    assert cli.json("replay", "--type", "make_video", "--preview")["total"] == 1
    assert state(cli, ids) == "review"


def test_on_a_terminal_the_plan_is_shown_and_asked_about(cli: Cli, ids: dict[State, str], monkeypatch):
    monkeypatch.setattr(person, "at_terminal", lambda: True)
    monkeypatch.setattr(replay_verb, "at_terminal", lambda: True)

    refused = cli("replay", ids[State.REVIEW], input="n\n")

    assert refused.exit_code == 1
    assert "3 recorded steps are kept" in refused.stdout
    assert "replay 1 job?" in refused.stderr
    assert state(cli, ids) == "review"
    assert cli("replay", ids[State.REVIEW], input="y\n").exit_code == 0
    assert state(cli, ids) == "available"


def test_many_jobs_are_replayed_by_a_job_that_a_worker_runs(cli: Cli, ids: dict[State, str]):
    asked = cli("replay", "--error", "ProviderError")
    told = cli.json("replay", "--error", "ProviderError", "--reason", "quota raised", "--yes")

    assert (asked.exit_code, asked.stderr) == (
        2, "holdfast: replay 1 job? there is no terminal to ask on; pass --yes\n",
    )  # fmt: skip
    assert (told["verb"], told["selection"]) == ("replay", "error ProviderError, state review")
    act = cli.json("show", told["act"])["job"]
    assert (act["type"], act["queue"], act["state"], act["priority"]) == ("holdfast.bulk", "making", "available", 100)


@pytest.mark.parametrize("verb", ["replay", "discard"])
def test_many_is_ids_or_a_selection(verb: str, cli: Cli, ids: dict[State, str]):
    neither, both = cli(verb), cli(verb, ids[State.REVIEW], "--type", "make_video")

    assert neither.exit_code == both.exit_code == 2
    assert "give either ids, or --type, --queue, --error or --failed-in" in neither.stderr
    assert cli(verb, "--type", "nothing", "--yes").stderr == (
        f"holdfast: no job matches (type nothing, state review), so there is nothing to {verb}\n"
    )
