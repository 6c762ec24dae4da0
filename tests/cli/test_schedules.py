"""`holdfast schedules`: what it lists and changes, and what it refuses in one line."""

import asyncio
import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from holdfast import App
from holdfast.jobs.schedules import declare_schedules, find_schedule
from tests.cli.conftest import Cli


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """A store with a schedule that code has declared."""
    monkeypatch.setenv("HOLDFAST_URL", f"file:{tmp_path}/jobs.json")
    monkeypatch.setenv("COLUMNS", "200")
    app = App()

    @app.job
    async def report(kind: str) -> None: ...

    app.schedule("0 9 * * mon-fri", job=report.s("daily"), name="morning", tz="Europe/Berlin")

    async def fill() -> None:
        await app.open()
        await declare_schedules(app.engine, app.registry.schedules, by="w-1")
        await app.close()

    asyncio.run(fill())
    return Cli(tmp_path / "jobs.json")


def test_schedules_are_listed_with_their_next_tick(cli: Cli):
    out = cli.ok("schedules")

    assert 'morning  0 9 * * mon-fri Europe/Berlin  report["daily"]' in out
    assert " 09:00:00 CE" in out
    [shape] = cli.json("schedules")["schedules"]
    assert (shape["name"], shape["type"], shape["args"], shape["from"]) == ("morning", "report", ["daily"], "code")
    assert (shape["missed"], shape["overlap"], shape["last_job"], shape["paused"]) == ("skip", "allow", None, None)
    assert len(shape["next"]) == 5


def test_the_next_ticks(cli: Cli):
    assert len(cli.ok("schedules", "next", "morning", "--count", "7").splitlines()) == 7
    assert len(cli.json("schedules", "next", "morning")["next"]) == 5


def test_next_says_why_a_schedule_can_not_fire(cli: Cli):
    async def break_it() -> None:
        app = App()
        await app.open()
        record, one = await find_schedule(app.engine, "morning")
        broken = replace(one, definition=replace(one.definition, tz="Mars/Base"))
        await app.engine.put_record(record.name, broken.text(), record.version)
        await app.close()

    asyncio.run(break_it())

    assert "Mars/Base" in cli.ok("schedules", "next", "morning")


def test_a_person_pauses_and_resumes(cli: Cli):
    assert cli.ok("schedules", "pause", "morning", "--reason", "it is wrong") == "paused morning\n"
    out = cli.ok("schedules")
    assert "paused by" in out
    assert "it is wrong" in out
    assert cli.ok("schedules", "next", "morning") == "morning is paused\n"

    assert cli.ok("schedules", "resume", "morning").startswith("resumed morning; next ")
    assert "paused" not in cli.ok("schedules")


def test_a_person_runs_it_now_and_show_says_where_the_job_comes_from(cli: Cli):
    said = cli.ok("schedules", "run", "morning")
    id = said.split()[2]
    assert said.startswith(f"submitted report {id}\nnext: holdfast status ")
    assert "schedule=morning" in cli.ok("show", id)
    assert cli.json("schedules")["schedules"][0]["last_job"] == id
    assert ": available" in cli.ok("schedules")


def test_a_person_puts_and_removes(cli: Cli):
    said = cli.ok("schedules", "put", "nightly", "--every", "15m", "--job", "report", "--args", '["x"]')
    assert said.startswith("nightly: every 15 min; next ")
    assert [one["name"] for one in cli.json("schedules")["schedules"]] == ["morning", "nightly"]
    assert cli.ok("schedules", "remove", "nightly") == "removed nightly\n"
    assert "the next worker that starts makes it again" in cli.ok("schedules", "remove", "morning")
    assert "no schedules yet: declare one with app.schedule" in cli.ok("schedules")
    assert json.loads(cli.ok("schedules", "--json")) == {"schedules": []}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["pause", "mornin"], "there is no schedule 'mornin' in this store; did you mean morning?"),
        (["resume", "morning"], "schedule morning isn't paused, so there is nothing to resume"),
        (["put", "x", "--job", "report"], "schedule x: give one of a cron expression, every= and at="),
        (["put", "x", "--job", "report", "--cron", "0 0 30 2 *"], "schedule x: cron '0 0 30 2 *' never fires"),
        (
            ["put", "x", "--job", "report", "--cron", "@daily", "--tz", "Europe/Berln"],
            "there is no time zone 'Europe/Berln'; did you mean Europe/Berlin",
        ),
        (["put", "x", "--job", "report", "--every", "soon"], "'soon' is not a duration"),
        (["put", "x", "--job", "report", "--at", "soon"], "--at 'soon': not a time"),
        (["put", "x", "--job", "report", "--at", "2020-01-01T00:00Z"], "2020-01-01T00:00:00Z is in the past"),
        (["put", "a/b", "--job", "report", "--every", "1m"], "'a/b' can't be a schedule's name"),
        (["put", "morning", "--job", "report", "--every", "1m"], "schedule morning is declared in code"),
    ],
)
def test_what_is_wrong_is_one_line(cli: Cli, words: list[str], message: str):
    result = cli("schedules", *words)

    assert result.exit_code in (1, 2)
    assert message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_doctor_tells_of_a_schedule_in_trouble(cli: Cli):
    assert "morning: no worker is running, so it doesn't fire; start one" in cli("doctor").stdout
    assert "no worker is running, so it doesn't fire" in cli.ok("schedules")
    cli.ok("schedules", "pause", "morning")
    assert "1 schedule, none in trouble" in cli("doctor").stdout
