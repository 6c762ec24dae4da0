"""The conformance cases of the Open Job Spec, each on a store of its own. `OJS_SUITES` names the folder with them."""

import os
from pathlib import Path
from typing import Any

import httpx
import pytest

from holdfast import App
from holdfast.app.settings import Settings
from holdfast.server.app import Server
from tests.support.ojs_cases import LONG_MS, cases, run_case, suites, waits_ms

CONTRADICTS_ITSELF = "L1-RTR-014"
"""It expects error types that its own requests never send."""

FOLDER = suites()
CASES = list(cases(FOLDER)) if FOLDER is not None else []

SHORT_MS = 1_000
"""The cases that wait no longer than this run on Postgres and Redis, too; the others would take minutes."""

SHORT_CASES = [(path, case) for path, case in CASES if waits_ms(case) <= SHORT_MS]

if FOLDER is None:
    print("OJS_SUITES names no folder: the conformance cases of the Open Job Spec are not run")


@pytest.mark.skipif(FOLDER is None, reason="OJS_SUITES names no folder with conformance cases")
def test_there_are_cases():
    assert CASES


@pytest.mark.parametrize(("path", "case"), CASES, ids=[path for path, _ in CASES])
async def test_a_case_of_the_specification_passes(path: str, case: dict[str, Any], tmp_path: Path):
    if waits_ms(case) > LONG_MS and not os.environ.get("OJS_LONG"):
        pytest.skip(f"this case waits for {waits_ms(case) // 1_000} s; OJS_LONG=1 runs it")
    await passes(case, f"sqlite:///{tmp_path / 'jobs.db'}")


@pytest.fixture
def server_store(request: pytest.FixtureRequest) -> Any:
    """The URL of an empty store on a real server of the kind that the test names."""
    return request.getfixturevalue(request.param)


@pytest.mark.parametrize("server_store", ["postgres_store", "redis_store"], indirect=True)
@pytest.mark.parametrize(("path", "case"), SHORT_CASES, ids=[path for path, _ in SHORT_CASES])
async def test_a_short_case_passes_on_a_server(path: str, case: dict[str, Any], server_store: str):
    await passes(case, server_store)


async def passes(case: dict[str, Any], url: str) -> None:
    """Run a case against a server of this store, with its upkeep."""
    if case["test_id"] == CONTRADICTS_ITSELF:
        pytest.skip("this case contradicts itself")
    app = App(url, settings=Settings(upkeep_seconds=0.5))
    server = Server(app.open, app.close)
    transport = httpx.ASGITransport(app=server, raise_app_exceptions=True)
    try:
        async with app.upkeep(), httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8700") as client:
            await run_case(case, client)
    finally:
        await app.close()
