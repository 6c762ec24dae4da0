"""Queues with a bound over HTTP: who is refused, who may wait for room, and what is told about it."""

import asyncio
from typing import Any

import pytest

from tests.server.ojs.given import MEDIA_TYPE, Client, a_client, fetched, submitted

JOB = {"type": "image.draw", "args": [], "options": {"queue": "q"}}


async def bounded(client: Client, most: int = 1, **more: Any) -> None:
    await client.put("/admin/queues/q/config", {"backpressure": {"max_depth": most, **more}})


async def submit(client: Client, body: Any = JOB, path: str = "/jobs", *, timeout: str = "") -> Any:
    headers = {"Content-Type": MEDIA_TYPE, **({"OJS-Block-Timeout": timeout} if timeout else {})}
    return await client.http.post(f"/ojs/v1{path}", json=body, headers=headers)


async def test_a_refused_submit_says_how_full_the_queue_is():
    async with a_client() as client:
        await bounded(client)
        await submitted(client, queue="q")

        answer = await submit(client)

        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["retryable"]) == (429, "QUEUE_FULL", True)
        assert (error["queue"], error["depth"], error["bound"]) == ("q", 1, 1)
        assert (answer.headers["X-OJS-Queue-Depth"], answer.headers["X-OJS-Queue-Bound"]) == ("1", "1")
        assert int(answer.headers["Retry-After"]) >= 1


async def test_a_submit_to_a_queue_that_is_nearly_full_is_warned():
    async with a_client() as client:
        await bounded(client, 4, warning_threshold=0.5)

        first, second = await submit(client), await submit(client)

        assert "X-OJS-Queue-Pressure" not in first.headers
        names = ("X-OJS-Queue-Depth", "X-OJS-Queue-Bound", "X-OJS-Queue-Pressure")
        assert [second.headers[name] for name in names] == ["2", "4", "0.50"]


@pytest.mark.parametrize("path", ["/jobs", "/jobs/batch"])
async def test_a_submit_waits_for_room_as_long_as_it_says(path: str):
    async with a_client() as client:
        await bounded(client, strategy="block")
        await submitted(client, queue="q")
        body = JOB if path == "/jobs" else {"jobs": [JOB]}

        async def make_room() -> None:
            await asyncio.sleep(0)
            await fetched(client, "q")

        async with asyncio.timeout(20):
            answer, _ = await asyncio.gather(submit(client, body, path, timeout="15"), make_room())

        assert answer.status_code == 201


@pytest.mark.parametrize(("timeout", "strategy"), [("", "block"), ("0", "block"), ("0.01", "block"), ("15", "reject")])
async def test_who_may_not_wait_or_has_waited_is_refused(timeout: str, strategy: str):
    async with a_client() as client:
        await bounded(client, strategy=strategy)
        await submitted(client, queue="q")

        async with asyncio.timeout(10):
            answer = await submit(client, timeout=timeout)

        assert answer.status_code == 429


@pytest.mark.parametrize("timeout", ["x", "-1", "nan", "1e9"])
async def test_a_wrong_time_to_wait_is_refused(timeout: str):
    async with a_client() as client:
        assert (await submit(client, timeout=timeout)).status_code == 400


async def test_refused_and_dropped_jobs_are_events():
    async with a_client() as client:
        await bounded(client)
        old = await submitted(client, queue="q")
        await submit(client)
        [refused] = (await client.get("/events?types=backpressure.rejected"))["events"]
        await bounded(client, strategy="drop_oldest")
        await submitted(client, queue="q")
        [dropped] = (await client.get("/events?types=backpressure.dropped"))["events"]

        assert refused["data"] == {"queue": "q", "depth": 1, "bound": 1, "job_type": "image.draw"}
        assert dropped["data"]["job_id"] == old
        assert (dropped["data"]["queue"], dropped["data"]["job_type"]) == ("q", "image.draw")


@pytest.mark.parametrize("depth", [0, None])
async def test_a_bound_can_be_taken_away(depth: int | None):
    async with a_client() as client:
        await bounded(client)
        await submitted(client, queue="q")
        await client.put("/admin/queues/q/config", {"backpressure": {} if depth is None else {"max_depth": depth}})

        assert (await submit(client)).status_code == 201
        shown = (await client.get("/admin/queues/q"))["configuration"]["backpressure"]
        assert shown["max_depth"] is None
