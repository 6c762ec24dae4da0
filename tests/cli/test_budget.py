"""`holdfast budget`: what it lists and adds, what it refuses in one line, and what an export takes along."""

import asyncio
import json
from pathlib import Path

import pytest

from holdfast import App, spend, step
from holdfast.jobs.budgets import charge, get_budget
from holdfast.jobs.run_file import collect_run, dump_run, insert_run, parse_run
from tests.cli.conftest import Cli
from tests.support.given import AT_ONCE_RETRY, QUICK


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


def test_jobs_lists_what_each_one_has_spent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOLDFAST_URL", f"file:{tmp_path}/jobs.json")
    monkeypatch.setenv("COLUMNS", "140")
    app = App(settings=QUICK)
    tries: list[int] = []

    @step(name="paid", retries=AT_ONCE_RETRY)
    async def paid() -> None:
        spend(usd=0.5, tokens=1_200)
        tries.append(1)
        if len(tries) == 1:
            raise OSError("once more")

    @app.job
    async def film() -> None:
        await paid()

    @app.job
    async def free() -> None: ...

    async def fill() -> None:
        runs = [await free.submit()]
        async with app.worker():
            await runs[0].result(20)
        await app.close()

    asyncio.run(fill())
    cli = Cli(tmp_path / "jobs.json")
    assert "spent" not in cli.ok("jobs"), "nobody has spent anything"
    assert json.loads(cli.ok("jobs", "--json"))["jobs"][0]["spent"] == {}

    async def pay() -> None:
        run = await film.submit()
        async with app.worker():
            await run.result(20)
        await app.close()

    asyncio.run(pay())
    lines = cli.ok("jobs").splitlines()
    assert "spent" in lines[0]
    assert "$1.00 and 2,400 tokens ($0.50 and 1,200 tokens wasted)" in lines[1]
    paying, idle = json.loads(cli.ok("jobs", "--json"))["jobs"]
    assert (paying["spent"], paying["wasted"], paying["saved"]) == (
        {"usd": 1, "tokens": 2400}, {"usd": 0.5, "tokens": 1200}, {},
    )  # fmt: skip
    assert idle["spent"] == {}
    monkeypatch.setenv("COLUMNS", "60")
    assert "spent $1.00 and 2,400 tokens" in " ".join(cli.ok("jobs").split())


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
