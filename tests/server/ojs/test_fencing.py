"""Fencing over HTTP: a lease token of an older claim writes nothing, whatever the request."""

from typing import Any

import pytest

from tests.server.ojs.given import Client, a_client, fetched, submitted

pytestmark = pytest.mark.filterwarnings("error")


def writes(job: str) -> list[tuple[str, str, dict[str, Any]]]:
    """Everything that a worker can write about a job."""
    at = f"/jobs/{job}"
    return [
        ("POST", "/workers/ack", {"job_id": job, "result": 1}),
        ("POST", f"{at}/ack", {"result": 1}),
        ("POST", "/workers/nack", {"job_id": job, "error": {"code": "x", "message": "y"}}),
        ("POST", "/workers/nack", {"job_id": job, "requeue": True}),
        ("PUT", f"{at}/checkpoint", {"state": {"n": 1}}),
        ("PUT", f"{at}/progress", {"progress": 0.5}),
        ("POST", f"{at}/steps", {"name": "draw", "key": "1", "result": 2}),
    ]


async def handed_over(client: Client) -> tuple[str, str, str]:
    """A job that was given back and claimed again: its id, the old token and the new one."""
    id = await submitted(client, queue="q")
    old = (await fetched(client, "q"))["lease_token"]
    await client.post("/workers/nack", {"job_id": id, "requeue": True, "lease_token": old})
    new = (await fetched(client, "q"))["lease_token"]
    return id, old, new


@pytest.mark.parametrize("place", range(7))
async def test_a_write_with_an_old_lease_token_is_refused_and_changes_nothing(place: int):
    async with a_client() as client:
        id, old, new = await handed_over(client)
        method, path, body = writes(id)[place]

        answer = await client.send(method, path, {**body, "lease_token": old})

        assert answer.status_code == 409
        assert answer.json()["error"]["code"] == "x_lease_lost"
        assert (await client.get(f"/jobs/{id}/steps"))["steps"] == []
        assert (await client.get(f"/jobs/{id}"))["job"]["state"] == "active"
        assert old != new


@pytest.mark.parametrize("place", range(7))
async def test_the_current_lease_token_writes(place: int):
    async with a_client() as client:
        id, _, new = await handed_over(client)
        method, path, body = writes(id)[place]

        assert (await client.send(method, path, {**body, "lease_token": new})).is_success


async def test_a_heartbeat_with_an_old_lease_token_extends_nothing():
    async with a_client() as client:
        id, old, new = await handed_over(client)

        stale = await client.post(
            "/workers/heartbeat", {"worker_id": "w", "active_jobs": [id], "lease_tokens": {id: old}}
        )
        fresh = await client.post(
            "/workers/heartbeat", {"worker_id": "w", "active_jobs": [id], "lease_tokens": {id: new}}
        )

        assert (stale["jobs_extended"], stale["lost_jobs"]) == ([], [id])
        assert (fresh["jobs_extended"], fresh["lost_jobs"]) == ([id], [])


async def test_a_token_of_another_job_is_no_token():
    async with a_client() as client:
        one, other = await submitted(client, queue="q"), await submitted(client, queue="q")
        tokens = {job["id"]: job["lease_token"] for job in [await fetched(client, "q"), await fetched(client, "q")]}

        answer = await client.send("POST", "/workers/ack", {"job_id": one, "lease_token": tokens[other]})

        assert answer.status_code == 400
        assert "lease_token" in answer.json()["error"]["message"]


@pytest.mark.parametrize("place", range(7))
async def test_a_server_can_require_lease_tokens(place: int):
    async with a_client(requires_lease_token=True) as client:
        id, _, new = await handed_over(client)
        method, path, body = writes(id)[place]

        refused = await client.send(method, path, body)

        assert refused.status_code == 400
        assert "lease_token" in refused.json()["error"]["message"]
        assert (await client.send(method, path, {**body, "lease_token": new})).is_success


async def test_a_worker_writes_for_no_job_of_another_worker():
    async with a_client() as client:
        id = await submitted(client, queue="q")
        await fetched(client, "q", worker="one")

        answer = await client.send("POST", "/workers/ack", {"job_id": id, "worker_id": "two"})

        assert answer.status_code == 409
        assert (await client.get(f"/jobs/{id}"))["job"]["state"] == "active"


async def test_a_job_on_one_of_our_own_workers_is_not_acknowledged_over_http():
    async with a_client() as client:
        id = await submitted(client, queue="q")
        assert await client.engine.claim("w-own", ["q"], 1)

        answer = await client.send("POST", "/workers/ack", {"job_id": id})

        assert answer.status_code == 409


async def test_the_first_record_of_a_step_stands():
    async with a_client() as client:
        id = await submitted(client, queue="q")
        token = (await fetched(client, "q"))["lease_token"]
        step = {"name": "draw", "key": "7", "lease_token": token}

        first = await client.send("POST", f"/jobs/{id}/steps", {**step, "result": "one"})
        again = await client.send("POST", f"/jobs/{id}/steps", {**step, "result": "two"})

        assert (first.status_code, again.status_code) == (201, 200)
        assert again.json()["step"]["result"] == "one"
        assert not again.json()["recorded"]
        assert (await client.get(f"/jobs/{id}/steps"))["steps"][0]["path"] == "draw#7"
