"""What an administrator asks over the Open Job Spec: totals, their past, latencies, dead letters and workers."""

from typing import Any

import pytest

from tests.server.ojs.given import Client, a_client, fetched, submitted

START = 1_800_000_000_000
MINUTE = 60_000


class Clock:
    """The store's time, which only a test moves."""

    def __init__(self, at: int) -> None:
        self.at = at

    def __call__(self) -> int:
        return self.at

    def advance(self, milliseconds: int) -> None:
        self.at += milliseconds


async def done(client: Client, clock: Clock, milliseconds: int, queue: str = "default") -> None:
    id = await submitted(client, queue=queue)
    await fetched(client, queue)
    clock.advance(milliseconds)
    await client.post("/workers/ack", {"job_id": id})


async def dead(client: Client, queue: str = "default", type: str = "image.draw") -> str:
    body = {"type": type, "args": [], "options": {"queue": queue, "retry": {"max_attempts": 1}}}
    id: str = (await client.post("/jobs", body))["job"]["id"]
    await fetched(client, queue)
    await client.post("/workers/nack", {"job_id": id, "error": {"code": "x"}})
    return id


async def test_the_past_is_counted_in_periods():
    clock = Clock(START)
    async with a_client(clock=clock) as client:
        for milliseconds in (100, 300):
            await done(client, clock, milliseconds)
        clock.advance(5 * MINUTE)
        await dead(client, "other")

        answer = await client.get("/admin/stats/history?period=5m&since=2027-01-15T08:00:00Z")
        named = await client.get("/admin/stats/history?queue=other")

        assert answer["period"] == "5m"
        first, second = answer["data"]
        assert first == {
            "timestamp": "2027-01-15T08:00:00.000Z", "processed": 2, "failed": 0, "enqueued": 2,
            "latency_p50_ms": 100, "latency_p99_ms": 300,
        }  # fmt: skip
        assert (second["processed"], second["failed"], second["enqueued"]) == (0, 1, 1)
        assert len(named["data"]) in (12, 13)  # an hour
        assert sum(one["enqueued"] for one in named["data"]) == 1


@pytest.mark.parametrize(
    "query",
    [
        *("period=3m", "period=", "since=never", "queue=A!", "since=2027-01-15T09:00:00Z&until=2027-01-15T08:00:00Z"),
        "period=1m&since=2020-01-01T00:00:00Z",
    ],
)
async def test_a_past_that_cannot_be_counted_is_refused(query: str):
    async with a_client() as client:
        assert (await client.send("GET", f"/admin/stats/history?{query}")).status_code == 400


async def test_a_queue_says_how_long_its_jobs_run():
    clock = Clock(START)
    async with a_client(clock=clock) as client:
        for milliseconds in (10, 20, 30):
            await done(client, clock, milliseconds)
        await submitted(client, queue="new")

        shown = {one["name"]: one for one in (await client.get("/admin/queues"))["items"]}

        assert shown["default"]["latency_ms"] == {"p50": 20, "p95": 30, "p99": 30}
        assert shown["new"]["latency_ms"] == {"p50": None, "p95": None, "p99": None}


async def test_a_job_that_fails_now_counts_for_this_minute_however_old_it_is():
    clock = Clock(START)
    async with a_client(clock=clock) as client:
        id = await submitted(client, retry={"max_attempts": 1})
        await fetched(client)
        clock.advance(2 * MINUTE)
        await client.post("/workers/nack", {"job_id": id, "error": {"code": "x"}, "worker_id": ""})

        assert (await client.get("/admin/stats"))["throughput"]["failed_per_minute"] == 1
        clock.advance(2 * MINUTE)
        assert (await client.get("/admin/stats"))["throughput"]["failed_per_minute"] == 0


async def test_the_dead_letter_queue_is_purged_up_to_a_time():
    clock = Clock(START)
    async with a_client(clock=clock) as client:
        old = await dead(client)
        clock.advance(MINUTE)
        new = await dead(client)
        body: dict[str, Any] = {"older_than": "2027-01-15T08:00:30Z"}

        assert (await client.send("DELETE", "/admin/dead-letter", body)).status_code == 400
        answer = await client.send("DELETE", "/admin/dead-letter", {**body, "confirm": True})

        assert answer.json()["purged_count"] == 1
        assert [job["id"] for job in (await client.get("/dead-letter"))["jobs"]] == [new]
        assert (await client.get(f"/jobs/{old}"))["job"]["state"] == "discarded"


async def test_a_type_that_ends_in_a_star_means_all_that_begin_so():
    async with a_client() as client:
        for type in ("image.draw", "image.cut", "film.cut"):
            await client.post("/jobs", {"type": type, "args": []})

        listed = await client.get("/admin/jobs?type=image.*&order=asc")

        assert [job["type"] for job in listed["items"]] == ["image.draw", "image.cut"]


async def test_a_job_that_is_not_dead_is_not_retried():
    async with a_client() as client:
        id = await submitted(client)

        answer = await client.send("POST", f"/admin/jobs/{id}/retry")

        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "conflict")


async def test_a_worker_is_shown_with_the_jobs_that_it_has():
    async with a_client() as client:
        id = await submitted(client)
        await fetched(client, worker="w")

        shown = await client.get("/admin/workers/w")

        assert [job["id"] for job in shown["jobs"]] == [id]
