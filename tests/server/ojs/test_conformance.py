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

if FOLDER is None:
    print("OJS_SUITES names no folder: the conformance cases of the Open Job Spec are not run")


@pytest.mark.skipif(FOLDER is None, reason="OJS_SUITES names no folder with conformance cases")
def test_there_are_cases():
    assert CASES


@pytest.mark.parametrize(("path", "case"), CASES, ids=[path for path, _ in CASES])
async def test_a_case_of_the_specification_passes(path: str, case: dict[str, Any], tmp_path: Path):
    if case["test_id"] == CONTRADICTS_ITSELF:
        pytest.skip("this case contradicts itself")
    if waits_ms(case) > LONG_MS and not os.environ.get("OJS_LONG"):
        pytest.skip(f"this case waits for {waits_ms(case) // 1_000} s; OJS_LONG=1 runs it")
    app = App(f"sqlite:///{tmp_path / 'jobs.db'}", settings=Settings(upkeep_seconds=0.5))
    server = Server(app.open, app.close)
    transport = httpx.ASGITransport(app=server, raise_app_exceptions=True)
    try:
        async with app.upkeep(), httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8700") as client:
            await run_case(case, client)
    finally:
        await app.close()
