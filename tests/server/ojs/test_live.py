"""Streams over the Open Job Spec: each change once, the latest reports, the end."""

import asyncio
import json
from typing import Any

import pytest

from holdfast.jobs.service import Jobs
from holdfast.server.app import Server
from holdfast.server.call import Call
from holdfast.server.ojs import live
from holdfast.server.ojs.reports import progress_of
from holdfast.server.ojs.service import Ojs
from tests.server.ojs.given import Client, a_client, fetched, submitted
from tests.server.ojs.test_reservations import Clock


def events_in(text: str) -> list[tuple[str, str, Any]]:
    found = []
    for block in text.split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if "data" in lines:
            found.append((lines.get("event", ""), lines.get("id", ""), json.loads(lines["data"])))
    return found


async def streamed(client: Client, path: str, **headers: str) -> list[tuple[str, str, Any]]:
    """The events of a stream that ends."""
    async with asyncio.timeout(30):
        answer = await client.http.get(
            f"/ojs/v1{path}", headers={name.replace("_", "-"): v for name, v in headers.items()}
        )
    assert answer.headers["content-type"].startswith("text/event-stream"), answer.text
    assert answer.text.startswith("retry: 3000")
    return events_in(answer.text)


async def test_the_stream_of_a_job_has_each_change_once_and_ends_with_it():
    async with a_client() as client:
        id = await submitted(client, queue="q")
        await fetched(client, "q", worker="w")
        await client.put(f"/jobs/{id}/progress", {"progress": 0.25, "message": "a quarter"})
        following = asyncio.create_task(streamed(client, f"/jobs/{id}/events"))
        await asyncio.sleep(0)
        await client.post("/workers/ack", {"job_id": id})

        found = await following

        changes = [(data["from"], data["to"]) for name, _, data in found if name == "job.state_changed"]
        assert changes == [(None, "available"), ("available", "active"), ("active", "completed")]
        ids = [int(id) for _, id, _ in found if id]
        assert ids == sorted(set(ids))
        assert all(data["job_id"] == id and data["queue"] == "q" and data["type"] == "image.draw" for *_, data in found)
        (progress,) = [data for name, _, data in found if name == "job.progress"]
        assert progress["progress"] == 25

        later = await streamed(client, f"/jobs/{id}/events", last_event_id=str(ids[0]))
        assert [int(id) for _, id, _ in later if id] == ids[1:]
        lost = await streamed(client, f"/jobs/{id}/events?event_types=system.gap", last_event_id="nonsense")
        assert [name for name, *_ in lost] == ["system.gap"]


async def test_the_stream_of_progress_has_each_report_and_how_the_job_ended():
    async with a_client() as client:
        id = await submitted(client)
        await fetched(client)
        ojs = Ojs(Jobs(client.engine))
        stream = live._until_end(ojs, id, lambda job: progress_of(ojs, job))
        found = []
        async with asyncio.timeout(30):
            assert await anext(stream) == live.RETRY
            for share in (0.5, 0.75):
                await client.put(f"/jobs/{id}/progress", {"progress": share})
                found += events_in((await anext(stream)).decode())
            await client.post("/workers/ack", {"job_id": id, "result": 7})
            found += [one async for chunk in stream for one in events_in(chunk.decode())]

        assert [(name, data.get("progress")) for name, _, data in found[:-1]] == [
            *(("progress", 0.5), ("progress", 0.75), ("progress", 1.0)),
        ]
        name, _, end = found[-1]
        assert (name, end["state"], end["result"]) == ("completed", "completed", 7)


@pytest.mark.parametrize(("act", "name"), [("ack", "completed"), ("nack", "failed"), ("cancel", "cancelled")])
async def test_the_stream_of_a_result_tells_the_end(act: str, name: str):
    async with a_client() as client:
        id = await submitted(client, retry={"max_attempts": 1})
        await fetched(client)
        following = asyncio.create_task(streamed(client, f"/jobs/{id}/result/stream"))
        match act:
            case "ack":
                await client.post("/workers/ack", {"job_id": id, "result": {"n": 1}})
            case "nack":
                await client.post("/workers/nack", {"job_id": id, "error": {"code": "x", "message": "no"}})
            case _:
                await client.delete(f"/jobs/{id}")

        assert [kind for kind, *_ in await following] == [name]


@pytest.mark.parametrize("queue", ["q", None])
async def test_the_stream_of_a_queue_has_the_changes_since_an_event(queue: str | None, monkeypatch):
    monkeypatch.setattr(live, "SETTLED_MS", 0)
    clock = Clock()
    async with a_client(clock=clock) as client:
        ids = [await submitted(client, queue="q") for _ in range(3)]
        await submitted(client, queue="other")
        await fetched(client, "q")
        clock.advance(1)
        jobs = Jobs(client.engine)

        async def opening() -> Jobs:
            return jobs

        call = Call({"type": "http", "headers": [(b"last-event-id", b"evt_0000000000001_")], "query_string": b"",
                     "method": "GET", "path": "/"}, None, Server(opening))  # type: ignore[arg-type]  # fmt: skip
        stream = live._queue_events(call, Ojs(jobs), queue)
        assert await anext(stream) == live.RETRY
        async with asyncio.timeout(20):
            found = [events_in((await anext(stream)).decode())[0] for _ in range(4 if queue else 5)]

        assert [name for name, *_ in found] == ["job.state_changed"] * len(found)
        assert len({id for _, id, _ in found}) == len(found)
        assert {data["job_id"] for *_, data in found} >= set(ids)
        assert ({data["queue"] for *_, data in found} == {"q"}) == (queue is not None)


@pytest.mark.parametrize(
    "path", ["/jobs/nothing/events", "/events/stream?channel=job:nothing", "/jobs/x/progress/stream"]
)
async def test_a_stream_of_no_job_is_refused(path: str):
    async with a_client() as client:
        assert (await client.send("GET", path)).status_code == 404


async def test_a_channel_that_is_not_known_is_refused():
    async with a_client() as client:
        assert (await client.send("GET", "/events/stream?channel=shop:1")).status_code == 400


async def test_a_client_hears_that_the_server_stops():
    async with a_client() as client:
        id = await submitted(client)
        transport: Any = client.http._transport
        server = transport.app
        following = asyncio.create_task(streamed(client, f"/jobs/{id}/events"))
        async with asyncio.timeout(10):
            while True:
                if server.streams:
                    break
                await asyncio.sleep(0.01)
        server.stopping.set()

        name, _, told = (await following)[-1]

        assert (name, told) == ("server.shutdown", {"reason": "shutdown", "grace_period_ms": 10_000})
