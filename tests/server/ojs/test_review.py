"""Over the specification a job in review looks discarded: only a retry or a deletion of the dead letter works."""

import pytest

from tests.server.ojs.given import Client, a_client, fetched, submitted


async def dead(client: Client) -> str:
    id = await submitted(client, retry={"max_attempts": 1})
    await fetched(client)
    await client.post("/workers/nack", {"job_id": id, "error": {"code": "x", "message": "no", "type": "Broken"}})
    return id


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("DELETE", "/jobs/{id}", None),
        ("POST", "/jobs/{id}/cancel", {}),
        ("POST", "/jobs/{id}/activate", {}),
        ("POST", "/workers/ack", {"job_id": "{id}"}),
        ("POST", "/workers/nack", {"job_id": "{id}", "error": {}}),
        ("PUT", "/jobs/{id}/checkpoint", {"state": 1}),
        ("POST", "/jobs/{id}/steps", {"name": "draw"}),
    ],
)
async def test_a_job_in_review_answers_409(method: str, path: str, body: dict[str, str] | None):
    async with a_client() as client:
        id = await dead(client)
        filled = None if body is None else {name: id if value == "{id}" else value for name, value in body.items()}

        answer = await client.send(method, path.format(id=id), filled)

        assert answer.status_code == 409, answer.text
        assert answer.json()["error"]["code"] == "conflict"
        assert (await client.get(f"/jobs/{id}"))["job"]["state"] == "discarded"


async def test_a_retry_from_the_dead_letter_queue_is_a_replay_that_begins_anew():
    async with a_client() as client:
        id = await dead(client)

        job = (await client.post(f"/dead-letter/{id}/retry", {}))["job"]

        assert (job["state"], job["attempt"]) == ("available", 0)
        assert "error" not in job
        assert "errors" not in job
        assert (await fetched(client))["attempt"] == 1
        assert (await client.get("/dead-letter"))["jobs"] == []


async def test_a_deletion_from_the_dead_letter_queue_discards():
    async with a_client() as client:
        id = await dead(client)

        assert await client.delete(f"/dead-letter/{id}") == {"deleted": True, "job_id": id}

        assert (await client.send("POST", f"/dead-letter/{id}/retry", {})).status_code == 404
        assert (await client.send("DELETE", f"/dead-letter/{id}")).status_code == 404
        assert (await client.get(f"/jobs/{id}"))["job"]["state"] == "discarded"


async def test_the_errors_of_all_attempts_are_told():
    async with a_client() as client:
        id = await submitted(client, retry={"max_attempts": 2, "initial_interval": "PT0S", "jitter": False})
        for number in range(2):
            await fetched(client)
            error = {
                "code": "handler_error",
                "message": f"no {number}",
                "details": {"error_class": "Net.Down", "host": "h"},
            }
            await client.post("/workers/nack", {"job_id": id, "error": error})

        job = (await client.get(f"/jobs/{id}"))["job"]

        assert [(one["type"], one["code"], one["message"], one["attempt"]) for one in job["errors"]] == [
            ("Net.Down", "handler_error", "no 0", 1),
            ("Net.Down", "handler_error", "no 1", 2),
        ]
        assert job["errors"][0]["details"]["host"] == "h"
        assert job["error"] == job["errors"][-1]
