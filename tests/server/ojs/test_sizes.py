"""How large what a worker sends may be: a value that is too large changes nothing, and the job goes on."""

import pytest

from tests.server.ojs.given import a_client, fetched, submitted

TOO_LARGE = "x" * (1 << 20)
"""One MiB of text, which is more as JSON."""


@pytest.mark.parametrize("size", [1 << 20, 3 << 20])
async def test_a_result_that_is_too_large_is_refused_and_the_job_stays_active(size: int):
    async with a_client() as client:
        id = await submitted(client)
        await fetched(client)

        answer = await client.send("POST", "/workers/ack", {"job_id": id, "result": "x" * size})

        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "RESULT_TOO_LARGE")
        assert (await client.get(f"/jobs/{id}"))["job"]["state"] == "active"
        job = (await client.post("/workers/ack", {"job_id": id, "result": "x" * ((1 << 20) - 2)}))["job"]
        assert job["state"] == "completed"


@pytest.mark.parametrize(
    ("path", "body"),
    [("checkpoint", {"state": TOO_LARGE}), ("progress", {"progress": 0.5, "checkpoint": [TOO_LARGE]})],
)
async def test_a_checkpoint_that_is_too_large_is_refused_and_the_one_before_stays(path: str, body: dict[str, object]):
    async with a_client() as client:
        id = await submitted(client)
        await fetched(client)
        await client.put(f"/jobs/{id}/checkpoint", {"state": 1})

        answer = await client.send("PUT", f"/jobs/{id}/{path}", body)

        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "x_too_large")
        assert (await client.get(f"/jobs/{id}/checkpoint"))["state"] == 1
        assert (await client.get(f"/jobs/{id}/progress"))["progress"] is None


async def test_progress_may_have_only_data():
    async with a_client() as client:
        id = await submitted(client)
        await fetched(client)

        first = await client.put(f"/jobs/{id}/progress", {"data": {"page": 1}})
        await client.put(f"/jobs/{id}/progress", {"progress": 0.25})
        last = await client.put(f"/jobs/{id}/progress", {"data": {"page": 2}})

        assert (first["progress"], first["data"]) == (None, {"page": 1})
        assert (last["progress"], last["data"]) == (0.25, {"page": 2})
