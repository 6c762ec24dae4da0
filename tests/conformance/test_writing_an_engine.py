"""The guide "Write an engine", followed: the small engine that it describes passes the whole suite, and works."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

from holdfast import App
from holdfast.engines.contract import Engine, system_clock
from holdfast.engines.traits import Movable, Transactional
from tests.conformance.log_engine import ACTS, LogEngine

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "guides" / "writing-an-engine.md"
SUITE_SECONDS = 500.0


def test_the_engine_of_the_guide_passes_the_suite(tmp_path: Path):
    path = os.pathsep.join([*(entry for entry in sys.path if entry), str(ROOT)])
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--pyargs", "holdfast.conformance"]
    done = subprocess.run(
        [*command, "--engine", "tests.conformance.log_engine:LogEngine", "--examples", "10"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=SUITE_SECONDS,
        check=False,
    )

    assert done.returncode == 0, done.stdout[-3_000:]
    assert " passed" in done.stdout


def test_an_app_works_on_it_and_goes_on_after_a_restart(tmp_path: Path):
    async def live(submits: bool) -> list[str]:
        engine = LogEngine.from_url(f"log:{tmp_path}/jobs.log", system_clock)
        app = App(engine=engine)

        @app.job
        async def greet(name: str) -> str:
            return f"hello {name}"

        try:
            run = await greet.submit("Ada", key="one")
            if submits:
                return []
            async with app.worker():
                return [await run.result(10)]
        finally:
            await app.close()

    assert asyncio.run(live(submits=True)) == []
    assert asyncio.run(live(submits=False)) == ["hello Ada"]


def test_a_line_that_was_cut_never_happened(tmp_path: Path):
    async def records(path: Path, value: str) -> list[str]:
        engine = LogEngine(path)
        await engine.open()
        await engine.put_record(f"r/{value}", value)
        found = [record.value for record in await engine.records("r/")]
        await engine.close()
        return found

    path = tmp_path / "jobs.log"
    assert asyncio.run(records(path, "a")) == ["a"]
    with path.open("ab") as file:
        file.write(b'["put_record",1,["r/b"')
    assert asyncio.run(records(path, "c")) == ["a", "c"]


def members(kind: type) -> set[str]:
    return {name for name in {**vars(kind), **kind.__annotations__} if not name.startswith("_")}


def test_the_guide_names_every_member_of_the_contract_and_of_its_traits():
    text = GUIDE.read_text()
    public = members(Engine) | members(Transactional) | members(Movable)

    assert public >= {name.lstrip("_") for name in Engine.__abstractmethods__ | ACTS.keys()} | {
        "guarantees",
        "look_seconds",
        "room",
        "wholes",
    }
    assert [name for name in sorted(public) if f"`{name}`" not in text and f"`_{name}`" not in text] == []
