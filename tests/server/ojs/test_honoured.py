"""What a request asks for is done or refused, never silently left out."""

import json
from typing import Any

import pytest

from holdfast.jobs.flows import FLOW_TYPE, read_flow
from tests.server.ojs.given import a_client, fetched, submitted
from tests.server.ojs.test_reservations import Clock

DAY = 86_400_000


async def test_a_result_can_be_read_for_as_long_as_its_job_asks():
    clock = Clock()
    async with a_client(clock=clock) as client:
        id = await submitted(client, result_ttl=60)
        await fetched(client)
        await client.post("/workers/ack", {"job_id": id, "result": {"n": 1}})

        found = await client.get(f"/jobs/{id}/result")
        clock.advance(60_000)
        gone = await client.send("GET", f"/jobs/{id}/result")

        assert (found["result"], found["result_size_bytes"]) == ({"n": 1}, 7)
        assert found["result_expires_at"] > found["result_stored_at"]
        assert gone.status_code == 410
        assert "result" not in (await client.get(f"/jobs/{id}"))["job"]
        assert (await client.post("/jobs/results", {"ids": [id]}))["results"][0]["result"] is None


async def test_a_result_that_is_not_to_be_stored_is_not_stored():
    async with a_client() as client:
        id = await submitted(client, result_ttl=0)
        await fetched(client)
        await client.post("/workers/ack", {"job_id": id, "result": {"n": 1}})

        (job,) = await client.engine.get([id])
        assert job is not None
        assert job.result == "null"
        assert (await client.send("GET", f"/jobs/{id}/result")).status_code == 410


@pytest.mark.parametrize(("ttl", "kept"), [(None, 30 * DAY), (60, 30 * DAY), (90 * 86_400, 90 * DAY), (-1, None)])
async def test_a_job_is_kept_as_long_as_its_result(ttl: int | None, kept: int | None):
    options: dict[str, Any] = {} if ttl is None else {"result_ttl": ttl}
    async with a_client() as client:
        id = await submitted(client, **options)

        (job,) = await client.engine.get([id])

        assert job is not None
        assert job.options.keep_ms == kept


@pytest.mark.parametrize("ttl", [-2, "7d", 1.5, True])
async def test_a_wrong_result_ttl_is_refused(ttl: Any):
    async with a_client() as client:
        body = {"type": "a.b", "args": [], "options": {"result_ttl": ttl}}

        assert (await client.send("POST", "/jobs", body)).status_code == 400


async def test_the_options_of_a_workflow_count_for_its_steps():
    async with a_client() as client:
        steps = [
            {"type": "a.b", "args": []},
            {
                "type": "group",
                "jobs": [{"type": "a.c", "args": [], "options": {"queue": "own"}}],
                "options": {"priority": 3},
            },
        ]
        options = {"queue": "films", "retry": {"max_attempts": 7}}
        body = {"type": "group", "name": "g", "jobs": steps, "options": options}
        flow = (await client.post("/workflows", body))["id"]

        (job,) = await client.engine.get([flow])

        assert job is not None
        run = read_flow(job)
        outer = next(call for call in run.calls if call.type == "a.b")
        (nested,) = [step for step in run.flow.steps if run.calls[step.call].type == FLOW_TYPE]
        (inner,) = json.loads(bytes(nested.args))[0]["calls"]
        assert (outer.queue, outer.priority, outer.options.retry.retries) == ("films", 0, 6)
        assert (inner["queue"], inner["priority"], inner["options"]["retry"]["retries"]) == ("own", 3, 6)


async def test_an_option_that_a_workflow_cannot_give_its_steps_is_refused():
    async with a_client() as client:
        body = {"type": "chain", "steps": [{"type": "a.b", "args": []}], "options": {"unique": {}}}

        answer = await client.send("POST", "/workflows", body)

        assert (answer.status_code, answer.json()["error"]["code"]) == (422, "unsupported")


async def test_the_administrators_jobs_are_sorted_as_asked():
    async with a_client() as client:
        ids = [await submitted(client, priority=number) for number in (2, 3, 1)]

        async def listed(query: str) -> list[int]:
            return [ids.index(job["id"]) for job in (await client.get(f"/admin/jobs?{query}"))["items"]]

        assert await listed("") == [2, 1, 0]
        assert await listed("order=asc") == [0, 1, 2]
        assert await listed("sort=priority") == [1, 0, 2]
        assert await listed("sort=priority&order=asc") == [2, 0, 1]


@pytest.mark.parametrize("place", ["jobs", "queues", "workers", "dead-letter"])
@pytest.mark.parametrize("query", ["sort=nonsense", "order=up"])
async def test_an_order_that_is_not_known_is_refused(place: str, query: str):
    async with a_client() as client:
        assert (await client.send("GET", f"/admin/{place}?{query}")).status_code == 400


@pytest.mark.parametrize(
    ("setting", "status"),
    [({"block_timeout": "PT5S"}, 422), ({"max_size_bytes": 5}, 422), ({"depth": 5}, 400)],
)
async def test_a_setting_that_a_queue_cannot_have_is_refused(setting: dict[str, Any], status: int):
    async with a_client() as client:
        body = {"backpressure": {"max_depth": 5, **setting}}

        assert (await client.send("PUT", "/admin/queues/q/config", body)).status_code == status


async def test_a_replacement_that_keeps_the_schedule_is_shown_as_it_waits():
    async with a_client() as client:
        unique = {"keys": ["type"], "on_conflict": "replace_except_schedule"}
        options = {"unique": unique, "scheduled_at": "2999-01-01T00:00:00Z"}
        body = {"type": "a.b", "args": [], "options": options}
        old = (await client.post("/jobs", body))["job"]

        new = (await client.post("/jobs", {"type": "a.b", "args": [2], "options": {"unique": unique}}))["job"]

        assert new["id"] != old["id"]
        assert (new["state"], new["scheduled_at"]) == ("scheduled", "2999-01-01T00:00:00.000Z")
        assert (await client.get(f"/jobs/{new['id']}"))["job"]["state"] == "scheduled"
        assert (await client.get(f"/jobs/{old['id']}"))["job"]["state"] == "cancelled"
