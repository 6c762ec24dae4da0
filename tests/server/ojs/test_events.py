"""The list of events: paged, it has each event once; and it has what the levels of the specification name."""

from typing import Any

import pytest

from holdfast.jobs.flows import FLOW_TYPE
from holdfast.server.ojs import events
from holdfast.server.ojs.events import SETTLED_MS
from tests.server.ojs.given import Client, a_client, fetched, submitted
from tests.server.ojs.test_reservations import Clock

URLS = ("memory:", "sqlite:///{}/jobs.db")


async def paged(client: Client, query: str = "", limit: int = 200) -> list[dict[str, Any]]:
    """All events, page after page."""
    found: list[dict[str, Any]] = []
    after = "evt_0"
    while page := (await client.get(f"/events?limit={limit}&after={after}{query}"))["events"]:
        found += page
        after = page[-1]["id"]
    return found


@pytest.mark.parametrize("url", URLS)
async def test_a_thousand_jobs_have_a_thousand_events_of_each_kind(url: str, tmp_path: Any, monkeypatch):
    monkeypatch.setattr(events, "PAGE_LIMIT", 300)  # several pages of the store
    clock = Clock()
    async with a_client(url.format(tmp_path), clock=clock) as client:
        for _ in range(2):
            body = {"jobs": [{"type": "a.b", "args": []} for _ in range(500)]}
            await client.post("/jobs/batch", body)
        for _ in range(10):
            clock.advance(1)
            await client.post("/workers/fetch", {"queues": ["default"], "count": 100})
        clock.advance(SETTLED_MS)

        found = await paged(client)

        for type in ("job.enqueued", "job.started"):
            assert len({one["subject"] for one in found if one["type"] == type}) == 1_000
        assert len({one["id"] for one in found}) == len(found) == 2_000
        assert [one["id"] for one in found] == sorted(one["id"] for one in found)


async def test_the_last_events_come_without_waiting():
    async with a_client(clock=Clock()) as client:
        ids = [await submitted(client) for _ in range(3)]

        shown = (await client.get("/events?limit=2"))["events"]

        assert [one["subject"] for one in shown] == ids[1:]


async def test_a_page_that_follows_waits_until_no_earlier_event_can_come():
    clock = Clock()
    async with a_client(clock=clock) as client:
        await submitted(client)

        assert await paged(client) == []
        clock.advance(SETTLED_MS)
        assert len(await paged(client)) == 1


async def test_what_a_worker_reports_and_what_becomes_of_the_job_are_events():
    clock = Clock()
    async with a_client(clock=clock) as client:
        id = await submitted(client, retry={"max_attempts": 2, "initial_interval": "PT0S"})
        await fetched(client, worker="w")
        await client.post("/workers/heartbeat", {"worker_id": "w", "active_jobs": [id]})
        await client.put(f"/jobs/{id}/progress", {"progress": 0.25, "message": "half of half"})
        await client.put(f"/jobs/{id}/checkpoint", {"state": 7})
        await client.post("/workers/nack", {"job_id": id, "error": {"code": "x", "message": "no"}})
        await fetched(client)
        await client.post("/workers/nack", {"job_id": id, "error": {"code": "x", "message": "no"}})
        await client.delete(f"/dead-letter/{id}")
        clock.advance(SETTLED_MS)

        found = await paged(client)

        types = [one["type"] for one in found]
        assert sorted(types) == sorted([
            *("job.enqueued", "job.started", "job.heartbeat", "job.progress", "job.checkpointed"),
            *("job.failed", "job.retrying", "job.enqueued", "job.started", "job.failed", "job.discarded"),
        ])  # fmt: skip
        (progress,) = [one["data"] for one in found if one["type"] == "job.progress"]
        assert (progress["progress"], progress["percentage"], progress["message"]) == (0.25, 25, "half of half")


async def test_queues_and_cron_jobs_have_events():
    clock = Clock()
    async with a_client(clock=clock) as client:
        await client.post("/queues/a/pause")
        clock.advance(10)
        await client.post("/queues/a/resume")
        clock.advance(SETTLED_MS)

        found = await paged(client, "&queues=a")

        assert [(one["type"], one["subject"]) for one in found] == [("queue.paused", "a"), ("queue.resumed", "a")]


async def test_a_workflow_has_events_and_our_own_jobs_have_none():
    clock = Clock()
    async with a_client(clock=clock) as client:
        body = {"type": "chain", "name": "c", "steps": [{"type": "a.b", "args": []}]}
        id = (await client.post("/workflows", body))["id"]
        clock.advance(SETTLED_MS)

        found = await paged(client)

        assert ("workflow.started", id) in [(one["type"], one["subject"]) for one in found]
        assert not [one for one in found if one["data"].get("job_type", "").startswith("holdfast.")]
        assert FLOW_TYPE not in [job["type"] for job in (await client.get("/admin/jobs"))["items"]]
        bulk = await client.post("/admin/jobs/bulk/cancel", {"confirm": True})
        assert (bulk["failed"], (await client.get(f"/workflows/{id}"))["workflow"]["state"]) == (0, "running")
