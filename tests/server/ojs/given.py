"""A client of the Open Job Spec in this process, and what many tests do first."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx

from holdfast.engines import engine_for
from holdfast.engines.contract import Engine, system_clock
from holdfast.jobs.service import Jobs
from holdfast.server.app import Server

MEDIA_TYPE = "application/openjobspec+json"


class Client:
    """Sends requests below /ojs/v1."""

    def __init__(self, http: httpx.AsyncClient, engine: Engine) -> None:
        self.http = http
        self.engine = engine

    async def send(self, method: str, path: str, body: Any = None) -> httpx.Response:
        headers = {} if body is None else {"Content-Type": MEDIA_TYPE}
        return await self.http.request(method, f"/ojs/v1{path}", json=body, headers=headers)

    async def post(self, path: str, body: Any = None) -> Any:
        return _good(await self.send("POST", path, body))

    async def put(self, path: str, body: Any = None) -> Any:
        return _good(await self.send("PUT", path, body))

    async def get(self, path: str) -> Any:
        return _good(await self.send("GET", path))

    async def delete(self, path: str) -> Any:
        return _good(await self.send("DELETE", path))


def _good(answer: httpx.Response) -> Any:
    assert answer.is_success, answer.text
    return answer.json()


@asynccontextmanager
async def a_client(
    url: str = "memory:", *, clock: Callable[[], int] = system_clock, **options: Any
) -> AsyncIterator[Client]:
    """A client of a server on a store of its own."""
    engine = engine_for(url, clock)
    await engine.open()
    jobs = Jobs(engine)

    async def opening() -> Jobs:
        return jobs

    server = Server(opening, **options)
    transport = httpx.ASGITransport(app=server, raise_app_exceptions=True)
    try:
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8700") as http:
            yield Client(http, engine)
    finally:
        await engine.close()


async def submitted(client: Client, *, queue: str = "default", args: Any = (), **options: Any) -> str:
    """The id of a new job."""
    body = {"type": "image.draw", "args": list(args), "options": {"queue": queue, **options}}
    id: str = (await client.post("/jobs", body))["job"]["id"]
    return id


async def fetched(client: Client, queue: str = "default", *, worker: str = "", **more: Any) -> Any:
    """A job that was fetched now."""
    body = {"queues": [queue], **({"worker_id": worker} if worker else {}), **more}
    [job] = (await client.post("/workers/fetch", body))["jobs"]
    return job
