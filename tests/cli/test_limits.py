"""`holdfast limits`: what it lists and changes, and what it refuses in one line."""

import asyncio
import json
from pathlib import Path

import pytest

from holdfast import App
from holdfast.core.model import Use
from holdfast.jobs.limits import declare_limits
from holdfast.jobs.requests import Demands
from holdfast.jobs.service import JobRequest, Jobs
from tests.cli.conftest import Cli


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """A store with two limits that code has declared, and a job that waits for one of them."""
    monkeypatch.setenv("HOLDFAST_URL", f"file:{tmp_path}/jobs.json")
    monkeypatch.setenv("COLUMNS", "120")
    app = App()
    app.limit("openai", at_once=20, rate="500/m")
    app.limit("tokens", rate="200000/m", per="{model}")

    async def fill() -> None:
        await app.open()
        await declare_limits(app.engine, app.registry.limits(), by="w-1")
        request = JobRequest(type="draw")
        (job,) = Jobs(app.engine).alike(request, [("[]", Demands((Use("openai"),)))], await app.engine.now())
        await app.engine.insert([job])
        await app.close()

    asyncio.run(fill())
    return Cli(tmp_path / "jobs.json")


def test_limits_are_listed_with_their_use(cli: Cli):
    out = cli.ok("limits")

    assert "openai  at most 20 at once, 500/m" in out
    assert "0 of 20 in use, 1 waiting, 50 left of the burst of 50" in out
    assert "tokens  200000/m, per {model}\n  not in use" in out


def test_a_person_sets_and_resets(cli: Cli):
    said = cli.ok("limits", "set", "openai", "--at-once", "5", "--reason", "they asked")
    assert said == "openai: at most 5 at once, 500/m\n"
    out = cli.ok("limits")
    assert "set by" in out
    assert ": they asked; code says at most 20 at once, 500/m" in out
    [openai, _] = cli.json("limits")["limits"]
    assert (openai["at_once"], openai["set_by"]["reason"], openai["code"]["at_once"]) == (5, "they asked", 20)
    assert [change["what"] for change in openai["changes"]][-1] == "set: at most 5 at once: they asked"

    assert cli.ok("limits", "reset", "openai") == "openai: at most 20 at once, 500/m, as code declares\n"


def test_a_person_closes_and_opens(cli: Cli):
    assert cli.ok("limits", "close", "openai", "--for", "10m").startswith("closed openai until 2")
    assert "closed until" in cli.ok("limits")
    [openai, _] = cli.json("limits")["limits"]
    assert openai["keys"][0]["closed_until"] is not None
    id = cli.json("jobs")["jobs"][0]["id"]
    assert "waiting for limit openai (closed, about 9 min" in cli.ok("status", id)
    assert "waiting for limit openai (closed, about 9 min" in cli.ok("jobs")
    assert cli.json("status", id)["limited"]["closed"]
    assert cli.ok("limits", "open", "openai") == "opened openai\n"
    assert "closed until" not in cli.ok("limits")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("set", "openia", "--at-once", "5"), "there is no limit 'openia' in this store; did you mean openai?"),
        (("set", "openai"), "limit openai: say what to set"),
        (("set", "openai", "--at-once", "0"), "at_once=0: give a whole number from 1"),
        (("set", "openai", "--rate", "fast"), "rate='fast': write a number above 0 and a period"),
        (("reset", "openai"), "limit openai: no person has set it"),
        (("close", "openai", "--for", "soon"), "'soon' is not a duration"),
        (
            ("close", "openai", "--for", "0"),
            "'0' is not a duration: give seconds, a timedelta, or text like '0s', '10m'",
        ),
        (
            ("close", "openai", "--for", "0s"),
            "limit openai: say for how long to close it, above 0: 10m; to open it: holdf",
        ),
        (("set", "openai", "--burst", "nan"), "limit openai: burst=nan: give a number above 0"),
        (("close", "tokens", "--for", "1m"), "limit tokens counts each {model} on its own; give the value too"),
        (("open", "openai"), "limit openai is not closed"),
    ],
)
def test_what_can_not_be_is_refused_in_one_line(cli: Cli, words: tuple[str, ...], line: str):
    result = cli("limits", *words)

    assert result.exit_code != 0
    assert line in result.stderr
    assert result.stderr.startswith("holdfast: ")
    assert result.stderr.count("\n") == 1


def test_a_store_without_limits_says_how_to_get_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "new").mkdir()
    monkeypatch.setenv("HOLDFAST_URL", f"file:{tmp_path}/new/jobs.json")

    async def make() -> None:
        app = App()
        await (await app.open()).submit([JobRequest(type="draw")])
        await app.close()

    asyncio.run(make())

    cli = Cli(tmp_path)
    assert "no limits yet: declare one with app.limit" in cli.ok("limits")
    assert json.loads(cli.ok("limits", "--json")) == {"limits": []}
