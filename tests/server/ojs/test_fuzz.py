"""No input makes a route of the Open Job Spec answer 500 or hang: wrong types, wild texts, odd paths, broken bodies."""

import asyncio
import json
import random
from typing import Any

import httpx
import pytest

from holdfast.server.ojs.routes import OJS
from holdfast.server.routes import Route
from tests.server.ojs.given import MEDIA_TYPE, Client, a_client, fetched, submitted

FEW, MANY = 12, 500
"""How many wild requests each route gets, and with --soak."""

WILD: list[Any] = [
    *(None, True, False, 0, -1, 1, 2**31, 2**63, -(2**63), 10**30, 0.5, -0.0, 1e308, 1e400),
    *("", " ", "x", "default", "\x00", "\ud800", "𝔘", "a" * 5_000, "+PT2S", "PT", "-PT1S", "2026-11-18T09:00:00Z"),
    *("9999-12-31T23:59:59.999Z", "0001-01-01T00:00:00+14:00", "* * * * *", "@every 1s", "http.5.x", "holdfast.flow"),
    *([], [[]], [None], ["default"], [0], {}, {"a": None}, {"state": "available"}, {"limit": 1, "period": "PT1S"}),
]
NAMES = [
    *("type", "args", "id", "meta", "options", "queue", "queues", "priority", "scheduled_at", "delay_until", "tags"),
    *("expires_at", "retry", "unique", "rate_limit", "timeout_ms", "timeout", "visibility_timeout_ms", "pending"),
    *("jobs", "steps", "callbacks", "on_success", "depends_on", "name", "expression", "timezone", "job_template"),
    *("overlap_policy", "enabled", "worker_id", "count", "wait_ms", "job_id", "result", "error", "code", "message"),
    *("retryable", "details", "error_class", "requeue", "rate_limit_until", "active_jobs", "active_job_ids", "state"),
    *("lease_token", "lease_tokens", "heartbeat_interval", "heartbeat_interval_ms", "progress", "data", "checkpoint"),
    *("key", "keys", "tries", "ids", "filter", "confirm", "states", "older_than", "override", "backpressure"),
    *("max_depth", "strategy", "warning_threshold", "schema", "concurrency", "rate", "period", "max_attempts"),
    *("initial_interval", "backoff_coefficient", "max_interval", "jitter", "non_retryable_errors", "on_exhaustion"),
    *("backoff_strategy", "args_keys", "meta_keys", "on_conflict", "hostname", "pid", "shutdown", "description"),
]
QUERIES = [
    *("", "?limit=0", "?limit=x", "?limit=200&cursor=zz", "?offset=99999999", "?page=0", "?per_page=%00", "?types=,,"),
    *("?queues=A!&types=x", "?after=%ff", "?state=%F0", "?since=never", "?wait=true&timeout=0", "?order=asc&state=x"),
]
BROKEN = [
    *(b"", b"{", b"[]", b"null", b'"x"', b"\xff\xfe", b"{" * 10_000, b"[" * 10_000),
    *(b'{"a":1,"a":2}', b'{"n":NaN}', b"9" * 6_000),
]


def routes() -> list[Route]:
    return [route for route in OJS.routes if not route.path.endswith("/reset")]


def wild_value(chance: random.Random, depth: int = 0) -> Any:
    if depth < 3 and chance.random() < 0.45:
        if chance.random() < 0.7:
            return {chance.choice(NAMES): wild_value(chance, depth + 1) for _ in range(chance.randint(0, 5))}
        return [wild_value(chance, depth + 1) for _ in range(chance.randint(0, 3))]
    return chance.choice(WILD)


def likely_body(chance: random.Random, job: str, token: str) -> Any:
    """A body that is nearly right, so that it gets past the first checks."""
    good: dict[str, Any] = {
        "type": "image.draw", "args": [1], "queues": ["default"], "job_id": job, "lease_token": token, "worker_id": "w",
        "name": "n", "expression": "0 3 * * *", "state": {"a": 1}, "progress": 0.5, "confirm": True, "ids": [job],
        "jobs": [{"type": "a.b", "args": []}], "steps": [{"id": "a", "type": "a.b", "args": []}], "schema": {},
        "job_template": {"type": "a.b", "args": []}, "backpressure": {"max_depth": 5}, "concurrency": 3,
        "error": {"code": "x", "message": "y"}, "active_jobs": [job],
        "callbacks": {"on_success": {"type": "a.b", "args": []}},
    }  # fmt: skip
    for _ in range(chance.randint(1, 4)):
        good[chance.choice(NAMES)] = wild_value(chance)
    for name in chance.sample(sorted(good), chance.randint(0, 3)):
        del good[name]
    return good


async def ask(client: Client, method: str, path: str, content: bytes) -> httpx.Response:
    async with asyncio.timeout(60):
        return await client.http.request(method, path, content=content, headers={"Content-Type": MEDIA_TYPE})


@pytest.mark.parametrize("route", routes(), ids=lambda route: f"{route.method} {route.path}")
async def test_no_request_is_answered_with_500(route: Route, request: pytest.FixtureRequest, rounds: Any):
    is_long = request.config.getoption("--soak")
    chance = random.Random(None if is_long else f"{route.method} {route.path}")
    async with a_client() as client:
        for number in range(rounds(FEW, MANY)):
            id = await submitted(client)
            await client.post("/queues/default/resume")
            token = (await fetched(client))["lease_token"] if chance.random() < 0.7 else "1-x"
            values = [id, "default", "nothing", "a.b", "~", "%00", "%F0%9F", "x" * 300, "..", "1"]
            path = route.path
            while "{" in path:
                name = path[path.index("{") : path.index("}") + 1]
                path = path.replace(name, id if "id" in name and chance.random() < 0.6 else chance.choice(values), 1)
            path += chance.choice(QUERIES) if chance.random() < 0.5 else ""
            body = likely_body(chance, id, token) if number % 2 else wild_value(chance)
            content = chance.choice(BROKEN) if chance.random() < 0.15 else json.dumps(body).encode()

            method = "HEAD" if route.is_stream else route.method  # a stream of a job that goes on would not end
            answer = await ask(client, method, path, content if route.body_bytes else b"")

            assert answer.status_code < 500, f"{route.method} {path} {content[:300]!r}: {answer.text[:500]}"
            if answer.status_code >= 400 and method != "HEAD":
                assert answer.json()["error"]["message"], path
            for job in (await client.post("/workers/fetch", {"queues": ["default"], "count": 100}))["jobs"]:
                await client.send("POST", "/workers/ack", {"job_id": job["id"]})
