"""Cron jobs over the Open Job Spec: they are shown as they were written, and say how often they ran."""

import pytest

from tests.server.ojs.given import a_client


def a_cron(expression: str, **more: str) -> dict[str, object]:
    return {"name": "nightly", "expression": expression, "job_template": {"type": "report.make", "args": []}, **more}


@pytest.mark.parametrize("expression", ["0 3 * * MON-FRI", "@hourly", "@every 1h30m", "@every  90s", "0 0 L * *"])
async def test_an_expression_is_shown_as_it_was_written(expression: str):
    async with a_client() as client:
        made = (await client.post("/cron", a_cron(expression, description="every night")))["cron"]
        shown = (await client.get("/cron/nightly"))["cron"]

        assert made["expression"] == shown["expression"] == shown["cron"] == expression
        assert shown["description"] == "every night"


async def test_an_expression_that_has_changed_is_not_shown_as_it_was():
    async with a_client() as client:
        for expression in ("@every 1h", "0 3 * * *", "@every 2h"):
            await client.post("/cron", a_cron(expression))

            assert (await client.get("/cron"))["crons"][0]["expression"] == expression


async def test_a_cron_job_counts_its_runs():
    async with a_client() as client:
        assert (await client.post("/cron", a_cron("@daily")))["cron"]["run_count"] == 0
        for _ in range(2):
            await client.post("/cron/nightly/trigger")

        assert (await client.get("/cron/nightly"))["cron"]["run_count"] == 2
