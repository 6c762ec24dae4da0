"""What tokens may do over the Open Job Spec, and that the history names them, not what a worker calls itself."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from holdfast.jobs.service import Jobs
from holdfast.jobs.tokens import create_token
from tests.server.ojs.given import Client, a_client, fetched, submitted

URLS = ("memory:", "sqlite:///{}/jobs.db")


class Holder:
    """Who asks: the client, with one token after another."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def becomes(self, name: str, *scopes: str) -> None:
        text, _ = await create_token(self._client.engine, name, scopes, by="test")
        self._client.http.headers["Authorization"] = f"Bearer {text}"


@asynccontextmanager
async def clients(url: str, folder: Any) -> AsyncIterator[tuple[Client, Holder]]:
    async with a_client(url.format(folder)) as client:
        yield client, Holder(client)


async def history(client: Client, id: str) -> dict[str, str]:
    return {entry["event"]: entry["by"] for entry in (await client.get(f"/jobs/{id}/history"))["history"]}


@pytest.mark.parametrize("url", URLS)
async def test_the_history_names_the_token_that_submitted_and_worked(url: str, tmp_path: Any):
    async with clients(url, tmp_path) as (client, holder):
        await holder.becomes("shop", "submit")
        one, other, third = [await submitted(client, queue="q") for _ in range(3)]
        await holder.becomes("printer", "work")
        for _ in range(3):
            await fetched(client, "q", worker="somebody else")
        await client.post("/workers/ack", {"job_id": one, "worker_id": "somebody else"})
        await client.post("/workers/nack", {"job_id": other, "error": {"code": "x", "message": "no"}})
        await client.post("/workers/nack", {"job_id": third, "requeue": True})
        await holder.becomes("boss", "read")

        assert (await history(client, one)).items() >= {"submit": "shop", "complete": "printer"}.items()
        assert (await history(client, other)).items() >= {"submit": "shop", "fail": "printer"}.items()
        assert (await history(client, third)).items() >= {"submit": "shop", "release": "printer"}.items()
        assert (await Jobs(client.engine).history(one))[0].by == "shop"


@pytest.mark.parametrize("url", URLS)
async def test_the_history_of_a_batch_and_of_a_workflow_names_the_token(url: str, tmp_path: Any):
    async with clients(url, tmp_path) as (client, holder):
        await holder.becomes("shop", "submit", "read")
        (job,) = (await client.post("/jobs/batch", {"jobs": [{"type": "a.b", "args": []}]}))["jobs"]
        body = {"type": "chain", "name": "c", "steps": [{"type": "a.b", "args": []}]}
        flow = (await client.post("/workflows", body))["id"]

        assert (await history(client, job["id"]))["submit"] == "shop"
        assert (await history(client, flow))["submit"] == "shop"


async def test_a_worker_without_a_token_is_named_by_what_it_calls_itself():
    async with a_client() as client:
        id = await submitted(client)
        await fetched(client, worker="w-1")
        await client.post("/workers/ack", {"job_id": id})

        assert await history(client, id) == {"submit": "http", "claim": "http.0.w-1", "complete": "http.0.w-1"}


@pytest.mark.parametrize("path", ["steps", "checkpoint"])
async def test_a_worker_may_read_what_is_recorded_of_a_job(path: str):
    async with a_client() as client:
        id = await submitted(client)
        await fetched(client)
        await client.put(f"/jobs/{id}/checkpoint", {"state": 1})
        holder = Holder(client)
        answers = {}
        for scope in ("work", "read", "submit"):
            await holder.becomes(scope, scope)
            answers[scope] = (await client.send("GET", f"/jobs/{id}/{path}")).status_code

        assert answers == {"work": 200, "read": 200, "submit": 403}
