"""No body makes a route of our API answer 500 or hang: bodies made of the document, with wild values in any place."""

import asyncio
import json
import random
from typing import Any

import pytest

from holdfast.server.api.operations import API, document
from holdfast.server.routes import Route
from tests.server.clients import a_server

FEW, MANY = 8, 500
"""How many bodies each route gets, and with --soak."""

WILD: list[Any] = [
    *(None, True, 0, -1, 2**63, 10**30, 0.5, 1e308, "", " ", "x", "default", "\x00", "\ud800", "a" * 5_000, "..", "1h"),
    *("60/m", "2026-11-18T09:00:00Z", "9999-12-31T23:59:59Z", "draw#1", [], [[]], [None], {}, {"a": None}, {"x": {}}),
]
"""What may stand in any place of a body."""

DOCUMENT = json.loads(document())


def body_of(schema: Any, schemas: Any, chance: random.Random) -> Any:
    """A value that fits a schema, now and then with a wild one in it."""
    if chance.random() < 0.1:
        return chance.choice(WILD)
    if (name := schema.get("$ref")) is not None:
        return body_of(schemas[name.rpartition("/")[2]], schemas, chance)
    if (choices := schema.get("anyOf") or schema.get("oneOf")) is not None:
        return body_of(chance.choice(choices), schemas, chance)
    if "enum" in schema:
        return chance.choice(schema["enum"])
    match schema.get("type"):
        case "object":
            needed = schema.get("required", ())
            fields = {name for name in schema.get("properties", {}) if name in needed or chance.random() < 0.5}
            return {name: body_of(schema["properties"][name], schemas, chance) for name in sorted(fields)}
        case "array":
            return [body_of(schema.get("items", {}), schemas, chance) for _ in range(chance.randint(0, 3))]
        case "integer" | "number":
            return chance.choice([0, 1, 5, 1_000])
        case "boolean":
            return chance.random() < 0.5
    return chance.choice(WILD)


@pytest.mark.parametrize(
    "route",
    [route for route in API.routes if route.method == "POST"],
    ids=lambda route: f"{route.method} {route.path}",
)
async def test_no_body_is_answered_with_500(route: Route, request: pytest.FixtureRequest, rounds: Any):
    chance = random.Random(None if request.config.getoption("--soak") else route.path)
    asked = DOCUMENT["paths"].get(route.path, {}).get("post", {}).get("requestBody", {}).get("content", {})
    schema = asked.get("application/json", {}).get("schema", {})
    async with a_server() as (_, client):
        for _ in range(rounds(FEW, MANY)):
            job = {"type": "image.draw", "args": [1], "options": {"pending": chance.random() < 0.5}}
            answer = await client.post("/ojs/v1/jobs", json=job)
            values = [answer.json()["id"], "default", "nothing", "~", "%00", "x" * 300]
            path = route.path
            while "{" in path:
                name = path[path.index("{") : path.index("}") + 1]
                value = values[0] if "id" in name and chance.random() < 0.7 else chance.choice(values)
                path = path.replace(name, value, 1)
            content = json.dumps(body_of(schema, DOCUMENT["components"]["schemas"], chance)).encode()
            async with asyncio.timeout(60):
                answer = await client.post(path, content=content, headers={"Content-Type": "application/json"})
            assert answer.status_code < 500, f"{path} {content[:300]!r}: {answer.text[:500]}"
