"""Who may ask: tokens made, expired, revoked and too narrow, tried on every route of the table."""

import asyncio

import pytest
from starlette.responses import Response

from holdfast.jobs.tokens import SCOPES, create_token, find_token, list_tokens, revoke_token
from holdfast.server.auth import ANY, COOKIE, CSRF_HEADER, OPEN, Auth, Fresh, csrf_of
from holdfast.server.families import FAMILIES
from holdfast.server.routes import Family, Route, Table
from tests.server.clients import a_server, required


async def answer(call):
    return Response(b"reached")


SAMPLES = Family("/sample", tuple(Route("POST", f"/sample/{scope}", answer, scope) for scope in (*SCOPES, ANY)))
CLOSED = [route for route in Table((*FAMILIES, SAMPLES), hooks=True).routes if route.scope != OPEN]


def filled(path: str) -> str:
    return path.replace(":path}", "}").replace("{", "").replace("}", "")


def bearer(text: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {text}"}


async def token_for(server, *scopes: str, name: str = "t", **more) -> str:
    jobs = await server.open()
    text, _ = await create_token(jobs.engine, name, scopes, by="test", **more)
    return text


async def test_every_closed_route_refuses_no_token_a_wrong_an_expired_a_revoked_and_a_narrow_one():
    async with a_server(test_hooks=True, families=(*FAMILIES, SAMPLES)) as (server, client):
        engine = (await server.open()).engine
        good = await token_for(server, *SCOPES, name="good")
        short = await token_for(server, *SCOPES, name="short", expires_ms=1)
        gone = await token_for(server, *SCOPES, name="gone")
        narrow = {
            scope: await token_for(server, *(one for one in SCOPES if one != scope), name=f"all but {scope}")
            for scope in SCOPES
        }
        await revoke_token(engine, "gone", by="test")
        await asyncio.sleep(0.005)
        wrong = ("", "hf_", good[:-1] + "!", short, gone)

        for route in CLOSED:
            path, name = filled(route.path), f"{route.method} {route.path}"
            for token in wrong:
                answer = await client.request(route.method, path, headers=bearer(token) if token else {})
                assert answer.status_code == 401, (name, token)
            for headers in ({"Authorization": "Basic eDp5"}, {"Cookie": f"x={good}"}):
                assert (await client.request(route.method, path, headers=headers)).status_code == 401, name
            if route.scope != ANY:
                answer = await client.request(route.method, path, headers=bearer(narrow[route.scope]))
                assert answer.status_code == 403, name


async def test_a_path_that_leads_nowhere_tells_a_stranger_nothing():
    async with a_server(auth=required()) as (_, client):
        for method, path in [("GET", "/nothing"), ("DELETE", "/health/"), ("OPTIONS", "/api/v1/jobs")]:
            assert (await client.request(method, path)).status_code == 401


async def test_health_and_ready_need_no_token():
    async with a_server(auth=required()) as (_, client):
        assert (await client.get("/health")).json() == {"status": "ok"}
        assert (await client.get("/ready")).json() == {"status": "ready"}
        assert (await client.head("/health")).status_code == 200


async def test_a_server_without_tokens_is_open_and_closes_with_the_first_one():
    async with a_server() as (server, client):
        assert (await client.get("/nothing")).status_code == 404
        text = await token_for(server, "read")

        assert (await client.get("/nothing")).status_code == 401
        assert (await client.get("/nothing", headers=bearer(text))).status_code == 404


async def test_revoking_the_last_token_opens_nothing():
    async with a_server() as (server, client):
        text = await token_for(server, "read")
        await revoke_token((await server.open()).engine, "t", by="test")

        assert (await client.get("/nothing", headers=bearer(text))).status_code == 401
        assert (await client.get("/nothing")).status_code == 401


async def test_no_auth_asks_for_nothing_although_there_are_tokens():
    async with a_server(auth=Auth(off=True)) as (server, client):
        await token_for(server, "read")

        assert (await client.get("/nothing")).status_code == 404


async def test_a_change_by_cookie_needs_the_csrf_header_and_a_read_does_not():
    async with a_server() as (server, client):
        text = await token_for(server, *SCOPES)
        cookie = {"Cookie": f"{COOKIE}={text}"}

        assert (await client.get("/nothing", headers=cookie)).status_code == 404
        assert (await client.delete("/nothing", headers=cookie)).status_code == 403
        assert (await client.delete("/nothing", headers={**cookie, CSRF_HEADER: csrf_of("other")})).status_code == 403
        assert (await client.delete("/nothing", headers={**cookie, CSRF_HEADER: csrf_of(text)})).status_code == 404


async def test_the_store_keeps_no_secret_and_knows_the_last_use():
    async with a_server() as (server, client):
        text = await token_for(server, "read")
        engine = (await server.open()).engine
        secret = text.split("_", 2)[2]

        await client.get("/nothing", headers=bearer(text))
        await asyncio.gather(*server.auth.noting)

        (token,) = await list_tokens(engine)
        assert token.used_at is not None
        assert not [record for record in await engine.records("") if secret in record.value or text in record.value]
        assert len(secret) >= 43
        assert find_token([token], text) is token
        assert find_token([token], text + "x") is None


async def test_reads_that_begin_together_share_a_read_that_began_after_them():
    reads, fresh = 0, Fresh[int]()

    async def load() -> int:
        nonlocal reads
        reads += 1
        mine = reads
        await asyncio.sleep(0.01)
        return mine

    first = asyncio.create_task(fresh.read(load))
    await asyncio.sleep(0.002)
    later = await asyncio.gather(*(fresh.read(load) for _ in range(20)))

    assert await first == 1
    assert later == [2] * 20
    assert await fresh.read(load) == 3


async def test_a_read_that_fails_reaches_its_callers_and_the_next_one_works():
    fresh = Fresh[int]()

    async def fail() -> int:
        raise ValueError("away")

    async def work() -> int:
        return 1

    with pytest.raises(ValueError, match="away"):
        await fresh.read(fail)
    assert await fresh.read(work) == 1
