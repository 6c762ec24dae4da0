"""What the doctor says of a Redis server: how full it is, and what its settings can lose."""

import asyncio
import json
from collections.abc import Iterator

import pytest
from click.testing import CliRunner

from holdfast.cli import main
from holdfast.engines import engine_for
from tests.support.redis_server import Server, server


@pytest.fixture
def own_server() -> Iterator[Server]:
    with server() as running:
        asyncio.run(made(running.url))
        yield running


async def made(url: str) -> None:
    engine = engine_for(url)
    await engine.open()
    await engine.close()


def told(url: str) -> tuple[int, dict[str, tuple[str, str]]]:
    result = CliRunner().invoke(main, ["doctor", "--url", url, "--json"], prog_name="holdfast", catch_exceptions=False)
    checks = json.loads(result.stdout)["checks"]
    return result.exit_code, {one["name"]: (one["level"], one["text"]) for one in checks}


@pytest.mark.parametrize(
    ("settings", "level", "says"),
    [
        ({}, "ok", "a killed server loses nothing, a power cut what appendfsync allows"),
        ({"appendfsync": "no"}, "warn", "a power cut can lose the writes of about 30 seconds"),
        ({"appendonly": "no", "save": ""}, "warn", "a restart of the server loses every job; set appendonly yes"),
        (
            {"appendonly": "no", "save": "60 1"},
            "warn",
            "a crash of the server loses every write since its last snapshot",
        ),
    ],
)
def test_what_the_servers_settings_can_lose_is_told(
    own_server: Server, settings: dict[str, str], level: str, says: str
):
    for name, value in settings.items():
        own_server.ask("CONFIG", "SET", name, value)

    code, found = told(own_server.url)

    assert code == 0, found
    assert found["durability"][0] == level
    assert says in found["durability"][1]


@pytest.mark.parametrize(
    ("part", "level", "says"),
    [
        (None, "ok", "the server has no maxmemory"),
        (0.2, "ok", " %)"),
        (0.9, "warn", "raise maxmemory soon"),
        (1.5, "fail", "writes are refused; raise maxmemory"),
    ],
)
def test_how_full_the_memory_is_is_told(own_server: Server, part: float | None, level: str, says: str):
    if part is not None:
        own_server.ask("SETRANGE", "ballast", 50_000_000, "x")  # what the connections need is little beside it
        info = str(own_server.ask("INFO", "memory"))
        used = int(info.split("used_memory:")[1].split()[0])
        own_server.ask("CONFIG", "SET", "maxmemory", round(used / part))

    code, found = told(own_server.url)

    assert found["memory"][0] == level, found
    assert says in found["memory"][1]
    assert code == (level == "fail")
