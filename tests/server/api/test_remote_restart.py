"""A server that is restarted under a remote app: its waits go on."""

import asyncio
from urllib.parse import urlsplit

import pytest

from holdfast import App, JobCancelled
from holdfast.core.model import Entry
from tests.server.clients import a_real_server


async def test_a_restart_of_the_server_ends_neither_a_result_nor_a_follow(tmp_path):
    store = f"sqlite:///{tmp_path}/x.db"
    with a_real_server(tmp_path, HOLDFAST_URL=store) as (place, _):
        app = App(place)

        @app.job
        async def film(title: str) -> str:
            raise AssertionError("nobody runs it")

        run = await film.submit("sea", delay="1h")

        async def follow() -> list[str]:
            return [entry.event async for entry in run.follow() if isinstance(entry, Entry)]

        waits = [asyncio.create_task(run.result(timeout=90)), asyncio.create_task(follow())]
        await asyncio.wait(waits, timeout=0.5)
    await asyncio.wait(waits, timeout=1)  # both find the server away
    assert not any(wait.done() for wait in waits)
    with a_real_server(tmp_path, "--port", str(urlsplit(place).port), HOLDFAST_URL=store):
        await run.cancel(reason="the server is back")

        with pytest.raises(JobCancelled):
            await asyncio.wait_for(waits[0], 60)
        assert await asyncio.wait_for(waits[1], 60) == ["submit", "cancel"]
        await app.close()
