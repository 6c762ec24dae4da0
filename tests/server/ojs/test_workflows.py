"""Workflows over the Open Job Spec: one that failed has an end, although a person may still replay its steps."""

import asyncio

import httpx

from holdfast import App
from holdfast.app.settings import Settings
from holdfast.server.app import Server
from tests.server.ojs.given import Client, fetched

SECONDS = 20.0
"""How long the upkeep may take to see that a step failed."""


async def test_a_failed_workflow_says_when_it_ended():
    app = App("memory:", settings=Settings(upkeep_seconds=0.5))
    transport = httpx.ASGITransport(app=Server(app.open, app.close), raise_app_exceptions=True)
    try:
        async with app.upkeep(), httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8700") as http:
            client = Client(http, app.engine)
            body = {"type": "chain", "name": "film", "steps": [{"type": "a.b", "args": []}] * 2}
            id = (await client.post("/workflows", body))["id"]
            running = (await client.get(f"/workflows/{id}"))["workflow"]
            step = await fetched(client)
            await client.post("/workers/nack", {"job_id": step["id"], "error": {"code": "x", "retryable": False}})
            async with asyncio.timeout(SECONDS):
                while True:
                    shown = (await client.get(f"/workflows/{id}"))["workflow"]
                    if "completed_at" in shown:
                        break
                    await asyncio.sleep(0.02)
    finally:
        await app.close()

    assert (running["state"], running["metadata"]["completed_at"]) == ("running", None)
    assert (shown["state"], shown["steps_total"], shown["metadata"]["failed_count"]) == ("failed", 2, 1)
    assert shown["completed_at"] == shown["metadata"]["completed_at"] >= shown["created_at"]
