"""What every request goes through: spellings, Host and Origin, bodies, errors of ours and of nobody."""

import asyncio
import json
import logging
import random
from typing import Any

import msgspec
import pytest
from starlette.responses import Response

from holdfast.core import errors
from holdfast.core.model import Conflict
from holdfast.jobs.requests import JobRequest
from holdfast.server import app as app_module
from holdfast.server.app import HEADERS
from holdfast.server.auth import Auth
from holdfast.server.bodies import json_reply
from holdfast.server.families import FAMILIES
from holdfast.server.problems import Problem
from holdfast.server.routes import OPEN, Family, Route
from tests.server.clients import BASE, a_server

MOST = 2_000


class Thing(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    size: int = 1


async def echo(call):
    return json_reply({"got": await call.json()})


async def thing(call):
    return json_reply((await call.read(Thing)).name)


async def blocked(call):
    await asyncio.sleep(60)
    return Response()


def raising(error):
    async def handler(call):
        raise error

    return handler


PATHS = (
    Route("POST", "/t/echo", echo, "read", body_bytes=MOST),
    Route("POST", "/t/thing", thing, "read", body_bytes=MOST),
    Route("GET", "/t/slow", blocked, "read"),
    Route("GET", "/t/bug", raising(ValueError("secret sauce")), "read"),
    Route("GET", "/t/full", raising(errors.StoreFull("the disk is full")), "read"),
    Route("GET", "/t/busy", raising(errors.StoreBusy("locked")), "read"),
    Route("GET", "/t/lost", raising(errors.LeaseLost("taken over")), "read"),
    Route("GET", "/t/dup", raising(errors.Duplicate("there is one", "id-1")), "read"),
    Route(
        "GET",
        "/t/queue",
        raising(errors.QueueFull("full", queue="q", depth=9, most_waiting=9, retry_after=1.2)),
        "read",
    ),
    Route("GET", "/t/none", raising(errors.NotFound("no job")), "read"),
    Route("GET", "/t/bad", raising(errors.BadValue("no")), "read"),
    Route("GET", "/t/open", raising(errors.NotAllowed("no")), OPEN),
)
SAMPLES = (*FAMILIES, Family("/t", PATHS))
JSON = {"Content-Type": "application/json"}


async def test_a_json_body_arrives_as_it_was_sent():
    async with a_server(families=SAMPLES) as (_, client):
        values: tuple[Any, ...] = ({"a": [1, 2.5, None, "é", {"b": True}]}, [], "x", -(2**63), {"k" * 200: ""})
        for value in values:
            assert (await client.post("/t/echo", json=value)).json() == {"got": value}


BAD_BODIES = {
    "empty": b"",
    "half": b'{"a": 1',
    "not utf-8": b'{"a": "\xff"}',
    "nan": b"[NaN]",
    "infinite": b"[1e999]",
    "twice": b'{"a": 1, "a": 2}',
    "wide": b"[123456789012345678901234567890]",
    "surrogate": rb'["\ud800"]',
    "deep": b"[" * 800 + b"]" * 800,
    "comment": b"{} // x",
    "two": b"{} {}",
    "nul": b"\x00",
}


@pytest.mark.parametrize("body", BAD_BODIES.values(), ids=BAD_BODIES)
async def test_what_is_not_strict_json_is_refused(body):
    async with a_server(families=SAMPLES) as (_, client):
        answer = await client.post("/t/echo", content=body, headers=JSON)

        assert answer.status_code == 400
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["code"] == "bad_value"


async def test_a_body_of_another_media_type_or_encoding_is_refused():
    async with a_server(families=SAMPLES) as (_, client):
        for headers in ({}, {"Content-Type": "text/plain"}, {"Content-Type": "application/x-www-form-urlencoded"}):
            assert (await client.post("/t/echo", content=b"{}", headers=headers)).status_code == 415
        zipped = {**JSON, "Content-Encoding": "gzip"}
        assert (await client.post("/t/echo", content=b"{}", headers=zipped)).status_code == 415
        for kind in ("application/json; charset=utf-8", "APPLICATION/JSON", "application/openjobspec+json"):
            assert (await client.post("/t/echo", content=b"{}", headers={"Content-Type": kind})).status_code == 200


async def test_a_body_too_large_is_refused_before_it_is_read_or_while():
    sent = 0

    async def endless():
        nonlocal sent
        while True:
            sent += 500
            yield b" " * 500

    async with a_server(families=SAMPLES) as (_, client):
        announced = await client.post("/t/echo", content=b" " * (MOST + 1), headers=JSON)
        streamed = await client.post("/t/echo", content=endless(), headers=JSON)

        assert (announced.status_code, streamed.status_code) == (413, 413)
        assert sent <= 2 * MOST


async def test_a_field_that_does_not_fit_is_named():
    async with a_server(families=SAMPLES) as (_, client):
        for body, name in [({"name": 1}, "$.name"), ({}, "name"), ({"name": "x", "more": 1}, "more"), ([], "object")]:
            answer = await client.post("/t/thing", json=body)
            assert answer.status_code == 400
            assert name in answer.json()["detail"]


@pytest.mark.parametrize(
    ("path", "status", "code", "retry"),
    [
        ("full", 503, "store_full", True),
        ("busy", 503, "store_unavailable", True),
        ("lost", 409, "lease_lost", False),
        ("dup", 409, "duplicate", False),
        ("queue", 429, "queue_full", True),
        ("none", 404, "not_found", False),
        ("bad", 400, "bad_value", False),
        ("open", 409, "not_allowed", False),
    ],
)
async def test_each_of_our_errors_has_its_answer(path, status, code, retry):
    async with a_server(families=SAMPLES) as (_, client):
        answer = await client.get(f"/t/{path}")

        assert (answer.status_code, answer.json()["code"]) == (status, code)
        assert answer.json()["status"] == status
        assert ("retry-after" in answer.headers) is retry


async def test_an_error_of_nobody_is_logged_and_its_text_stays_here(caplog):
    async with a_server(families=SAMPLES) as (_, client):
        answer = await client.get("/t/bug", headers={"X-Request-Id": "r-1"})

    assert answer.status_code == 500
    assert "sauce" not in answer.text
    assert answer.json()["request_id"] == "r-1" == answer.headers["x-request-id"]
    assert any("r-1" in record.getMessage() and "sauce" in (record.exc_text or "") for record in caplog.records)


async def test_a_handler_that_takes_too_long_is_ended(monkeypatch):
    monkeypatch.setattr(app_module, "REQUEST_SECONDS", 0.05)
    async with a_server(families=SAMPLES) as (_, client):
        answer = await client.get("/t/slow")

        assert (answer.status_code, answer.json()["code"]) == (503, "timeout")


async def test_every_answer_has_the_headers():
    async with a_server(families=SAMPLES) as (_, client):
        for path in ("/health", "/t/none", "/nothing", "/t/bug"):
            headers = (await client.get(path)).headers
            assert {name: headers[name] for name in HEADERS} == HEADERS
            assert headers["x-request-id"]
            assert "access-control-allow-origin" not in headers


@pytest.mark.parametrize("path", ["/health/", "//health", "/Health", "/health%2f", "/%2e/health", "/t"])
async def test_another_spelling_of_a_path_leads_nowhere(path):
    async with a_server(families=SAMPLES, auth=Auth(required=True)) as (_, client):
        request = client.build_request("GET", BASE)
        request.url = request.url.copy_with(raw_path=path.encode())
        assert (await client.send(request)).status_code == 401


async def test_another_method_names_those_that_there_are():
    async with a_server(families=SAMPLES) as (_, client):
        for method in ("PUT", "OPTIONS", "TRACE", "FOO"):
            answer = await client.request(method, "/t/echo")
            assert (answer.status_code, answer.headers["allow"]) == (405, "POST")


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8700", "localhost.evil.example", "127.0.0.1.evil", "10.0.0.1"]
)
async def test_a_foreign_name_is_refused_on_loopback(host):
    async with a_server(families=SAMPLES) as (_, client):
        assert (await client.get("/health", headers={"Host": host})).status_code == 421


@pytest.mark.parametrize("host", ["", "a b", "x@localhost", "[::1", "localhost:x", "<script>"])
async def test_a_host_that_is_none_is_refused(host):
    async with a_server(families=SAMPLES) as (_, client):
        assert (await client.get("/health", headers={"Host": host})).status_code == 400


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:1", "127.0.0.1:8700", "[::1]:8700", "jobs.example", "localhost."]
)
async def test_own_names_are_accepted(host):
    async with a_server(families=SAMPLES, names=["jobs.example"]) as (_, client):
        assert (await client.get("/health", headers={"Host": host})).status_code == 200


async def test_a_page_of_another_site_can_neither_change_nor_read():
    own, foreign = {"Origin": BASE}, {"Origin": "https://evil.example"}
    async with a_server(families=SAMPLES) as (_, client):
        assert (await client.post("/t/echo", json={}, headers=own)).status_code == 200
        for headers in (foreign, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}):
            assert (await client.post("/t/echo", json={}, headers=headers)).status_code == 403
            assert (await client.delete("/t/echo", headers=headers)).status_code == 403
        ask = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "cors"}
        follow = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
        assert (await client.get("/t/none", headers=ask)).status_code == 403
        assert (await client.get("/t/none", headers=follow)).status_code == 404
        assert (await client.post("/t/echo", json={}, headers=follow)).status_code == 403


async def test_the_access_log_says_who_did_what_and_no_value(caplog):
    caplog.set_level(logging.INFO, "holdfast.access")
    async with a_server(families=SAMPLES) as (_, client):
        await client.post("/t/echo?q=secret", json={"a": "secret"}, headers={"X-Request-Id": "r-2"})

    [record] = [record for record in caplog.records if record.name == "holdfast.access"]
    fields = vars(record)
    assert (fields["method"], fields["path"], fields["status"], fields["by"]) == ("POST", "/t/echo", 200, "http")
    assert fields["request_id"] == "r-2"
    assert "secret" not in json.dumps({name: str(value) for name, value in fields.items()})


async def test_the_reset_exists_only_with_test_hooks_and_leaves_tokens():
    async with a_server() as (server, client):
        assert (await client.post("/ojs/v1/admin/reset")).status_code in (404, 405)
    async with a_server(test_hooks=True) as (server, client):
        jobs = await server.open()
        await jobs.submit([JobRequest(type="x", args="[]")])
        assert not isinstance(await jobs.engine.put_record("pause/q", "{}"), Conflict)
        await jobs.engine.put_record("token/x", "{}")

        assert (await client.post("/ojs/v1/admin/reset")).status_code == 401  # a record of a token locks
        await jobs.engine.put_record("token/x", None)
        assert (await client.post("/ojs/v1/admin/reset")).json() == {"reset": True}

        assert await jobs.engine.count() == {}
        assert await jobs.engine.records("pause/") == []


async def test_a_store_that_is_away_is_a_503_and_comes_back_by_itself(monkeypatch):
    async with a_server() as (server, client):
        engine = (await server.open()).engine
        records = engine._records

        def away(prefix):
            raise errors.StoreError("the server is away")

        monkeypatch.setattr(engine, "_records", away)
        answer = await client.get("/x")
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
        for path in ("/ready", "/ojs/v1/health"):  # the time of the store may be known without asking it
            answer = await client.get(path)
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "2"), path
        monkeypatch.setattr(engine, "_records", records)
        assert (await client.get("/x")).status_code == 404
        assert (await client.get("/ready")).status_code == (await client.get("/ojs/v1/health")).status_code == 200


async def test_problem_members_are_data_and_never_markup():
    async with a_server(
        families=(Family("/", (Route("GET", "/p", raising(Problem(418, "tea", "<b>\x1b[31m")), OPEN),)),)
    ) as (
        _,
        client,
    ):
        answer = await client.get("/p")

        assert answer.headers["content-type"] == "application/problem+json"
        assert "\x1b" not in answer.json()["detail"]


async def test_random_requests_get_an_answer_below_500(rounds):
    """Given every route, random bodies, headers and parameters. A stream that goes on would not end: only its head."""
    rng = random.Random(7)
    async with a_server(families=SAMPLES, test_hooks=True) as (server, client):
        for route in [one for one in server.table.routes if "/t/" not in one.path or one.body_bytes]:
            method = "HEAD" if route.is_stream and route.method == "GET" else route.method
            for _ in range(rounds(5, 50)):
                body = rng.choice([b"", b"{}", b"[]", b'"x"', b"null", b"\xff", b'{"a":' * 40, rng.randbytes(50)])
                path = route.path.replace(":path}", "}").replace("{", "").replace("}", "")
                async with asyncio.timeout(60):
                    answer = await client.request(method, path, content=body, headers=JSON)
                assert answer.status_code < 500, (route, body, answer.text)
