"""The laws that hold for every verb: what it shows, as what, with which exit code, and what it leaves alone."""

import asyncio
import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from holdfast.cli.main import VERBS, main
from holdfast.core.model import State
from holdfast.engines import engine_for
from tests.cli.conftest import Cli

LOOKS = [["status"], ["jobs"], ["ask"], ["review"], ["queues"], ["workers"], ["doctor"]]
OF_A_JOB = [["status"], ["show"]]
CALLS_WITH_A_STORE = [
    *LOOKS,
    ["show", "0192f3a4"],
    ["cancel", "0192f3a4"],
    ["cancel", "--queue", "video", "--yes"],
    ["signal", "0192f3a4", "go"],
    ["ask", "0192f3a4"],
    ["ask", "0192f3a4", "--answer", "1"],
    ["replay", "0192f3a4"],
    ["resolve", "0192f3a4", "--result", "1"],
    ["resolve", "0192f3a4", "--step", "send#1", "--again"],
    ["discard", "0192f3a4"],
    ["queues", "pause", "video"],
    ["queues", "resume", "video"],
    ["export", "0192f3a4"],
]


@pytest.mark.parametrize("call", CALLS_WITH_A_STORE, ids=" ".join)
def test_a_store_that_is_not_there_is_told_in_one_line_and_not_made(call: list[str], cli: Cli):
    result = cli(*call)

    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert result.stderr.startswith(f"holdfast: there is no store at {cli.path}; name one with --url")
    assert list(cli.path.parent.iterdir()) == []


@pytest.mark.parametrize("server", ["postgres", "redis"])
def test_a_store_that_is_not_on_a_server_is_told_in_one_line_and_not_made(
    server: str, cli: Cli, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
):
    url = request.getfixturevalue(f"{server}_store")
    monkeypatch.setenv("HOLDFAST_URL", url)

    results = [cli(*call) for call in CALLS_WITH_A_STORE]

    line = f"holdfast: there is no store at {url}; name one with --url or $HOLDFAST_URL"
    assert [(one.exit_code, one.stdout, one.stderr.count("\n")) for one in results] == [(1, "", 1)] * len(results)
    assert [one.stderr for one in results if not one.stderr.startswith(line)] == []
    assert not asyncio.run(engine_for(url).is_there())


@pytest.mark.parametrize("url", ["postgresql://nobody@127.0.0.1:1/none", "redis://127.0.0.1:1/0"])
def test_a_server_that_can_not_be_reached_is_not_told_as_a_store_that_is_not_there(url: str, cli: Cli):
    result = cli("status", "--url", url)
    assert result.exit_code == 1
    assert "can't be reached" in result.stderr
    assert "is the server up, and are host and port right?" in result.stderr
    assert result.stderr.count("\n") == 1

    told = json.loads(cli("doctor", "--url", url, "--json").stdout)
    assert [(one["name"], one["level"]) for one in told["checks"]][-1] == ("open", "fail")


def test_the_url_option_wins_over_the_environment(cli: Cli, tmp_path: Path):
    result = cli("jobs", "--url", f"sqlite:///{tmp_path}/other.db")

    assert "other.db" in result.stderr


def test_a_store_in_memory_can_not_be_looked_at(cli: Cli):
    result = cli("status", "--url", "memory:")

    assert result.exit_code == 2
    assert result.stderr.startswith("holdfast: memory:")


@pytest.mark.parametrize("call", LOOKS, ids=" ".join)
def test_what_is_piped_is_plain_and_fits_80_columns(call: list[str], cli: Cli, ids: dict[State, str]):
    shown = cli(*call).stdout

    assert shown
    assert "\x1b" not in shown
    if call != ["doctor"]:  # its lines are whole, to be searched
        assert max(map(len, shown.splitlines())) <= max(80, len(str(cli.path)) + 40)
    assert not any(line != line.rstrip() for line in shown.splitlines())


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("call", OF_A_JOB, ids=" ".join)
def test_a_job_in_any_state_can_be_looked_at(call: list[str], state: State, cli: Cli, ids: dict[State, str]):
    shown = cli.ok(*call, ids[state])

    assert ids[state] in shown
    assert re.search(rf"^  {state}\b", shown, re.MULTILINE), "the second line begins with the state"
    assert "\x1b" not in shown
    assert cli.json(*call, ids[state])


@pytest.mark.parametrize("call", LOOKS, ids=" ".join)
def test_json_is_one_document_without_colours(call: list[str], cli: Cli, ids: dict[State, str]):
    shown = cli(*call, "--json").stdout

    assert isinstance(json.loads(shown), dict)


@pytest.mark.parametrize("call", LOOKS, ids=" ".join)
def test_an_empty_store_has_something_to_say(call: list[str], cli: Cli):
    async def made() -> None:
        engine = engine_for(f"sqlite:///{cli.path}")
        await engine.open()
        await engine.close()

    asyncio.run(made())

    result = cli(*call)

    assert result.exit_code == 0
    assert result.stdout.strip()
    assert cli(*call, "--json").exit_code == 0


@pytest.mark.parametrize("verb", [*VERBS, "queues pause", "queues resume"])
def test_every_verb_has_help_that_ends_with_examples(verb: str):
    shown = CliRunner().invoke(main, [*verb.split(), "--help"], prog_name="holdfast")
    _, options, epilog = shown.stdout.partition("\nOptions:\n")

    assert shown.exit_code == 0
    assert options
    examples = [line.strip() for line in epilog.partition("Examples:\n")[2].splitlines()]
    assert any(line.startswith(f"holdfast {verb}") for line in examples), shown.stdout
    assert max(map(len, shown.stdout.splitlines())) <= 100


@pytest.mark.parametrize(
    "call",
    [
        ["show"],
        ["show", "abc"],
        ["show", "not-an-id"],
        ["show", "0192f3a4-5b6c-7d8e-9f01-23456789abcd0"],
        ["status", "zzzzzz"],
        ["status", "--watch", "--json"],
        ["jobs", "--state", "asleep"],
        ["jobs", "--queue", "Video!"],
        ["jobs", "--type", "Make Video"],
        ["jobs", "--limit", "0"],
        ["jobs", "--limit", "1001"],
        ["jobs", "--after", "x"],
        ["cancel"],
        ["cancel", "0192f3a4", "--queue", "video"],
        ["cancel", "--state", "completed"],
        ["signal", "0192f3a4"],
        ["signal", "0192f3a4", " "],
        ["signal", "0192f3a4", "go", "--json", "{"],
        ["replay"],
        ["replay", "0192f3a4", "--args", "{}"],
        ["replay", "0192f3a4", "--args", "nonsense"],
        ["replay", "0192f3a4", "0192f3a5", "--args", "[]"],
        ["resolve", "0192f3a4"],
        ["resolve", "0192f3a4", "--result", "nonsense"],
        ["resolve", "0192f3a4", "--again"],
        ["resolve", "0192f3a4", "--step", "send#1"],
        ["resolve", "0192f3a4", "--step", "send#1", "--again", "--result", "1"],
        ["resolve", "0192f3a4", "--step", "send#1", "--result", "1", "--app", "video:app"],
        ["ask", "--answer", "1"],
        ["ask", "--name", "ask:1"],
        ["ask", "0192f3a4", "--answer", "nonsense"],
        ["discard"],
        ["discard", "0192f3a4", "0192f3a5"],
        ["queues", "pause"],
        ["queues", "pause", "Not A Queue"],
        ["queues", "stop"],
        ["import"],
        ["import", "no-such-file.json"],
        ["completion"],
        ["completion", "powershell"],
        ["dev"],
        ["dev", "no_such_module_here:app"],
        ["dev", "no-such-file.py:app"],
        ["doctor", "no_such_module_here:app"],
        ["jobs", "--url", "ftp://x"],
        ["jobs", "--url", "nats://x"],
    ],
    ids=" ".join,
)
def test_a_wrong_call_exits_with_2_and_changes_nothing(call: list[str], cli: Cli, ids: dict[State, str]):
    before = cli.json("jobs")

    result = cli(*call)

    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    assert cli.json("jobs") == before


NOBODY = "0192f3a4-5b6c-7d8e-9f01-23456789abcd"


@pytest.mark.parametrize(
    "call",
    [
        ["status", NOBODY],
        ["show", NOBODY],
        ["cancel", NOBODY],
        ["signal", NOBODY, "go"],
        ["replay", NOBODY],
        ["resolve", NOBODY, "--result", "1"],
        ["resolve", NOBODY, "--step", "send#1", "--again"],
        ["ask", NOBODY],
        ["ask", NOBODY, "--answer", "1"],
        ["discard", NOBODY],
        ["export", NOBODY],
        ["show", "ffffff"],
        ["queues", "resume", "video"],
    ],
    ids=" ".join,
)
def test_what_is_not_there_exits_with_1_and_one_line(call: list[str], cli: Cli, ids: dict[State, str]):
    result = cli(*call)

    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.startswith("holdfast: ")
    assert result.stderr.count("\n") == 1


def test_text_of_users_can_neither_steer_a_terminal_nor_be_markup(cli: Cli, ids: dict[State, str]):
    for call in (["show", ids[State.REVIEW]], ["review"], ["status"], ["status", ids[State.REVIEW]]):
        shown = cli.ok(*call)

        assert "[bold]" in shown
        assert not {"\x1b", "\N{RIGHT-TO-LEFT OVERRIDE}"} & set(shown)
