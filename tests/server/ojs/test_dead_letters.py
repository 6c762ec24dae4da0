"""What acts on many dead jobs: exactly what a filter names. A mistyped filter acts on nothing."""

from typing import Any

import pytest

from tests.server.ojs.given import Client, a_client, fetched, submitted

BROKEN = {"code": "x", "message": "no", "type": "Broken"}


async def dead(client: Client, queue: str, type: str = "image.draw", **retry: Any) -> str:
    options = {"queue": queue, "retry": {"max_attempts": 1, **retry}}
    id: str = (await client.post("/jobs", {"type": type, "args": [], "options": options}))["job"]["id"]
    await fetched(client, queue)
    await client.post("/workers/nack", {"job_id": id, "error": BROKEN})
    return id


async def listed(client: Client, query: str = "") -> list[str]:
    return sorted(job["id"] for job in (await client.get(f"/dead-letter{query}"))["jobs"])


@pytest.mark.parametrize(
    "body",
    [
        {"filter": {"queues": "a"}},
        {"filter": {"queue": ["a"]}},
        {"filter": {"queue": None}},
        {"filter": {"type": 7}},
        {"filter": "a"},
        {"filter": ["a"]},
        {"filter": {"since": "never"}},
        {"filters": {"queue": "a"}},
        {"queue": "a"},
    ],
)
@pytest.mark.parametrize(("method", "path"), [("DELETE", "/dead-letter"), ("POST", "/dead-letter/retry")])
async def test_a_mistyped_filter_is_refused_and_nothing_changes(method: str, path: str, body: dict[str, Any]):
    async with a_client() as client:
        id = await dead(client, "a")

        answer = await client.send(method, path, {**body, "confirm": True})

        assert answer.status_code == 400
        assert await listed(client) == [id]


@pytest.mark.parametrize("way", ["body", "query"])
async def test_a_purge_discards_what_its_filter_names(way: str):
    async with a_client() as client:
        kept = [await dead(client, "a", "x.y"), await dead(client, "b")]
        gone = await dead(client, "b", "x.y")

        if way == "body":
            answer = await client.send(
                "DELETE", "/dead-letter", {"filter": {"queue": "b", "type": "x.y"}, "confirm": True}
            )
        else:
            answer = await client.send("DELETE", "/dead-letter?queue=b&type=x.y&confirm=true")

        assert answer.json()["purged_count"] == 1
        assert await listed(client) == sorted(kept)
        assert await listed(client, "?type=x.y") == kept[:1]
        assert (await client.get(f"/jobs/{gone}"))["job"]["state"] == "discarded"


async def test_a_mistyped_query_purges_nothing():
    async with a_client() as client:
        id = await dead(client, "a")

        assert (await client.send("DELETE", "/dead-letter?queues=b&confirm=true")).status_code == 400
        assert await listed(client) == [id]


@pytest.mark.parametrize("override", [{"queue": "other"}, {"priority": 5}, {"arg": []}])
async def test_a_retry_that_would_change_more_than_arguments_is_refused(override: dict[str, Any]):
    async with a_client() as client:
        id = await dead(client, "a")

        answer = await client.send("POST", f"/dead-letter/{id}/retry", {"override": override})

        assert (answer.status_code, answer.json()["error"]["code"]) == (422, "unsupported")
        assert await listed(client) == [id]


@pytest.mark.parametrize("path", ["/admin/jobs/bulk/cancel", "/admin/jobs/bulk/delete"])
async def test_a_mistyped_field_of_an_act_on_many_jobs_is_refused(path: str):
    async with a_client() as client:
        id = await submitted(client)

        answer = await client.send("POST", path, {"filtr": {"queue": "other"}, "confirm": True})

        assert answer.status_code == 400
        assert (await client.get(f"/jobs/{id}"))["job"]["state"] == "available"


async def test_a_job_that_asks_to_be_discarded_is_in_no_dead_letter_queue():
    async with a_client() as client:
        usual = await dead(client, "a")
        asked = await dead(client, "a", on_exhaustion="discard")
        explicit = await dead(client, "a", on_exhaustion="dead_letter")

        assert await listed(client) == sorted([usual, explicit])
        assert (await client.get("/dead-letter/stats"))["total"] == 2
        jobs = [(await client.get(f"/jobs/{id}"))["job"] for id in (usual, asked, explicit)]
        assert {job["state"] for job in jobs} == {"discarded"}
        assert {(job["attempt"], job["error"]["type"]) for job in jobs} == {(1, "Broken")}
        assert [job["retry"]["on_exhaustion"] for job in jobs] == ["discard", "discard", "dead_letter"]
        assert all(job["completed_at"] and job["discarded_at"] for job in jobs)
