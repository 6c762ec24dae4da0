"""`server_for` under a path, without a socket: addresses, cookies and who may come in."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from holdfast import App
from holdfast.mounting import server_for


@contextlib.asynccontextmanager
async def mounted(root: str = "", **options: Any) -> AsyncIterator[tuple[App, httpx.AsyncClient]]:
    """An App on a store of its own, mounted under /holdfast and /jobs, in an application under `root`."""
    app = App("memory:")
    server = server_for(app, **options)
    transport = httpx.ASGITransport(
        app=Starlette(routes=[Mount("/holdfast", server), Mount("/jobs", server)]), root_path=root
    )
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield app, client
    await app.close()


@pytest.mark.parametrize(
    ("root", "asked", "outside"),
    [
        ("", "/holdfast", "/holdfast"),
        ("", "/jobs", "/jobs"),
        ("/site", "/site/holdfast", "/site/holdfast"),
        ("/site", "/holdfast", "/site/holdfast"),  # a proxy cut its prefix off
    ],
)
async def test_every_address_begins_where_the_browser_sees_the_mount(root: str, asked: str, outside: str):
    async with mounted(root, needs_token=False) as (_, client):
        page = await client.get(f"{asked}/jobs")
        made = await client.post(f"{asked}/ojs/v1/jobs", json={"type": "any", "args": []})

    assert page.status_code == 200
    assert f'src="{outside}/static/app.js' in page.text
    assert made.status_code == 201, made.text
    assert made.headers["location"].startswith(f"{outside}/ojs/v1/jobs/")


async def test_without_a_token_nobody_comes_in_even_while_the_store_has_none():
    async with mounted() as (_, client):
        program = await client.get("/holdfast/api/v1/jobs")
        browser = await client.get("/holdfast/queues?a=1", headers={"Accept": "text/html"})

    assert program.status_code == 401
    assert (browser.status_code, browser.headers["location"]) == (
        303,
        "/holdfast/login?next=%2Fholdfast%2Fqueues%3Fa%3D1",
    )


async def test_without_tokens_only_the_names_that_were_given_are_served():
    async with mounted(needs_token=False, names=["example.com"]) as (_, client):
        own, foreign = [
            (await client.get("/holdfast/api/v1/jobs", headers={"Host": name})).status_code
            for name in ("example.com", "evil.example")
        ]

    assert (own, foreign) == (200, 421)
