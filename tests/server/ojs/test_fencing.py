"""Fencing over HTTP: a lease token of an older claim writes nothing, whatever the request."""

from typing import Any

import pytest

from holdfast.core.reservations import HELD_PATH
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


def beats(job: str, token: str) -> list[dict[str, Any]]:
    """The ways in which a heartbeat shows its lease."""
    return [
        {"active_jobs": [job], "lease_tokens": {job: token}},
        {"active_jobs": [job], "lease_token": token},
        {"active_job_ids": [job], "active_jobs": 1, "lease_token": token},
        {"lease_tokens": {job: token}},
    ]


async def held_since(client: Client, job: str) -> int | None:
    """When the worker of a job was last heard of by a heartbeat."""
    held = [step for step in await client.engine.steps(job) if step.path == HELD_PATH]
    return held[0].started_at if held else None


@pytest.mark.parametrize("place", range(4))
async def test_a_heartbeat_with_an_old_lease_token_is_refused_and_extends_nothing(place: int):
    async with a_client() as client:
        id, old, new = await handed_over(client)

        stale = await client.send("POST", "/workers/heartbeat", {"worker_id": "w", **beats(id, old)[place]})
        heard = await held_since(client, id)
        fresh = await client.post("/workers/heartbeat", {"worker_id": "w", **beats(id, new)[place]})

        error = stale.json()["error"]
        assert (stale.status_code, error["code"]) == (409, "x_lease_lost")
        assert (error["details"]["jobs_extended"], error["details"]["lost_jobs"], heard) == ([], [id], None)
        assert (fresh["jobs_extended"], fresh["lost_jobs"]) == ([id], [])


async def test_a_heartbeat_with_one_old_lease_token_still_extends_the_other_leases():
    async with a_client() as client:
        id, old, _ = await handed_over(client)
        other = await submitted(client, queue="r")
        tokens = {id: old, other: (await fetched(client, "r"))["lease_token"]}

        answer = await client.send("POST", "/workers/heartbeat", {"worker_id": "w", "lease_tokens": tokens})

        assert answer.status_code == 409
        assert answer.json()["error"]["details"]["jobs_extended"] == [other]
        assert await held_since(client, other) is not None


@pytest.mark.parametrize("place", range(4))
@pytest.mark.parametrize("token", ["1-x", "", 7, "nonsense"])
async def test_a_heartbeat_with_a_malformed_lease_token_extends_nothing(place: int, token: Any):
    async with a_client() as client:
        id, _, _ = await handed_over(client)

        answer = await client.send("POST", "/workers/heartbeat", {"worker_id": "w", **beats(id, token)[place]})

        assert answer.status_code == 400
        assert await held_since(client, id) is None


@pytest.mark.parametrize("named", [{"active_jobs": 1}, {"active_jobs": ["ID"]}])
async def test_a_heartbeat_without_the_lease_tokens_that_a_server_requires_extends_nothing(named: dict[str, Any]):
    async with a_client(requires_lease_token=True) as client:
        id = await submitted(client, queue="q")
        token = (await fetched(client, "q", worker="w"))["lease_token"]
        body = {"active_jobs": [id]} if named["active_jobs"] == ["ID"] else named

        answer = await client.send("POST", "/workers/heartbeat", {"worker_id": "w", **body})

        assert answer.status_code == (200 if named == {"active_jobs": 1} else 400)
        assert await held_since(client, id) is None
        beat = {"worker_id": "w", "active_jobs": [id], "lease_tokens": {id: token}}
        assert (await client.post("/workers/heartbeat", beat))["jobs_extended"] == [id]


async def test_a_heartbeat_for_a_cancelled_job_says_so():
    async with a_client() as client:
        id, _, new = await handed_over(client)
        await client.delete(f"/jobs/{id}")

        answer = await client.post("/workers/heartbeat", {"worker_id": "w", "lease_tokens": {id: new}})

        assert (answer["jobs_extended"], answer["cancelled_jobs"], answer["lost_jobs"]) == ([], [id], [])


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
