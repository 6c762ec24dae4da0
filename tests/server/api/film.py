"""A small app behind a server in this process: a film, a question, an effect that fails."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import httpx
from pydantic import BaseModel

from holdfast import App, ask, spend, step
from holdfast.app.typed import AppJobs
from holdfast.server.app import Server
from tests.server.clients import BASE


class Brief(BaseModel):
    title: str
    scenes: int = 3


class Answer(BaseModel):
    ok: bool
    note: str = ""


@step
async def paint(number: int) -> str:
    spend(usd=0.5)
    return f"image {number}"


def make_app(url: str = "memory:") -> App:
    app = App(url)

    @app.job(stages=[paint])
    async def film(brief: Brief) -> list[str]:
        """Make a film."""
        return await paint.map(range(brief.scenes))

    @app.job
    async def approve(what: str) -> bool:
        return (await ask({"what": what}, form=Answer, within="2d")).ok

    @app.job(retries=0)
    async def broken(number: int) -> int:
        raise ValueError(f"no {number}")

    return app


class Client(httpx.AsyncClient):
    """Asks, and expects an answer that isn't an error."""

    async def look(self, path: str, /, **query: Any) -> Any:
        answer = await self.get(f"/api/v1{path}", params=query)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def act(self, path: str, status: int = 200, /, **body: Any) -> Any:
        answer = await self.post(f"/api/v1{path}", json=body)
        assert answer.status_code == status, answer.text
        return answer.json()

    async def submit(self, type: str, args: Any, /, **more: Any) -> str:
        found: str = (await self.act("/jobs", 201, type=type, args=args, **more))["id"]
        return found


@contextlib.asynccontextmanager
async def served(app: App, *, typed: bool = True, **options: Any) -> AsyncIterator[tuple[Server, Client]]:
    """A server of this app, without a socket, and a client of it."""
    server = Server(app.open, typed=AppJobs(app) if typed else None, **options)
    transport = httpx.ASGITransport(app=server, raise_app_exceptions=False)
    try:
        async with Client(transport=transport, base_url=BASE) as client:
            yield server, client
    finally:
        server.stopping.set()
        await app.close()


async def settled(app: App, id: str) -> str:
    """Wait until a job has settled or waits; return its state."""
    jobs = await app.open()
    mark = 0
    for _ in range(200):
        job = await jobs.get(id)
        if job.epoch and job.state not in ("active", "available"):
            return job.state
        mark = await jobs.engine.wait([f"job:{id}"], 0.1, mark)
    raise AssertionError(f"job {id} is still {job.state}")
