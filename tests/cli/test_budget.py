"""`holdfast budget`: what it lists and adds, what it refuses in one line, and what an export takes along."""

import asyncio
import json
from pathlib import Path

import pytest

from holdfast import App
from holdfast.jobs.budgets import charge, get_budget
from holdfast.jobs.run_file import collect_run, dump_run, insert_run, parse_run
from tests.cli.conftest import Cli


async def spent_job(app: App) -> str:
    """A job that has spent $4.20 of $5.00."""

    @app.job(budget={"usd": 5})
    async def film() -> None: ...

    run = await film.submit()
    job = await app.jobs.get(run.id)
    await charge(app.engine, job, {"usd": 4_200_000})
    return run.id


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """A store with such a job."""
    monkeypatch.setenv("HOLDFAST_URL", f"file:{tmp_path}/jobs.json")
    monkeypatch.setenv("COLUMNS", "120")
    app = App()

    async def fill() -> None:
        await spent_job(app)
        await app.close()

    asyncio.run(fill())
    return Cli(tmp_path / "jobs.json")


def test_budgets_are_listed_and_added_to(cli: Cli):
    assert "film  $4.20 of $5.00 spent" in cli.ok("budget")
    assert cli.ok("budgets") == cli.ok("budget")
    [one] = json.loads(cli.ok("budget", "--json"))["budgets"]
    assert one["budget"] == {"usd": {"granted": 5, "spent": 4.2, "left": 0.8}}

    cli.ok("budget", one["id"], "--add", "usd=5", "--reason", "worth it")

    shown = json.loads(cli.ok("budget", one["id"], "--json"))
    assert shown["budget"]["usd"]["granted"] == 10
    assert [(note["usd"], note["reason"]) for note in shown["added"]] == [(5, "worth it")]
    assert "$4.20 of $10.00 spent" in cli.ok("show", one["id"]) + cli.ok("status", one["id"])
    assert "no limits yet" in cli.ok("limits")


def test_a_jobs_options_show_its_budget_in_plain_units(cli: Cli):
    [one] = json.loads(cli.ok("jobs", "--json"))["jobs"]

    assert one["options"]["budget"] == {"usd": 5}
    assert json.loads(cli.ok("export", one["id"]))["job"]["options"]["budget"] == {"usd": 5_000_000}, (
        "as import reads it"
    )


async def test_an_exported_run_takes_its_budget_along():
    here, there = App("memory:"), App("memory:")
    id = await spent_job(here)
    await there.open()

    run = parse_run(dump_run(await collect_run(here.jobs, id), await here.engine.now(), "0"), "run.json")
    await insert_run(there.jobs, run, "ada")

    _, budget = await get_budget(there.engine, id)
    assert (budget.granted, budget.left) == ({"usd": 5_000_000}, {"usd": 800_000})
