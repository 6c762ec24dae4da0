"""A canary: a secret that a job leaks everywhere it can is found nowhere afterwards."""

import asyncio
import logging
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast import App, Invalid, redaction
from holdfast.redaction import REDACTED, redact, register_secrets

CANARY = 'sk-canary/"7d2f"+\u00e9-0042'

PROGRAM = """
import asyncio, logging, os
from holdfast import App, progress, step, JobFailed

CANARY = os.environ["CANARY"]
app = App("sqlite:///jobs.db", secrets=[CANARY])
log = logging.getLogger("shop")

@step(retries=1)
async def call(place: str) -> str:
    log.warning("calling with %s", CANARY)
    progress(1, 2, f"using {CANARY}")
    raise RuntimeError("x" * 3_990 + f"401 for https://api.example/?key={CANARY} {[CANARY]!r}")

@app.job(retries=1)
async def leak(place: str) -> str:
    log.error("started with %r", [CANARY])
    return await call(place)

@app.job(retries=0, isolate="process")
def leak_apart(place: str) -> str:
    log.error("apart with %s", CANARY)
    progress(1, 1, CANARY)
    raise ValueError({"key": CANARY})

@app.hook("failed", "review", "retried")
def tell(event):
    print("hook", event)
"""

DRIVE = """
import asyncio, shop
from holdfast import JobFailed

async def main():
    async with shop.app.worker():
        for job in (shop.leak, shop.leak_apart):
            run = await job.submit("here")
            try:
                await run.result(timeout=60)
            except JobFailed as error:
                print(error, error.traceback)
            async for entry in run.follow():
                print(entry)

asyncio.run(main())
"""


def forms(secret: str) -> list[bytes]:
    part = re.escape("7d2f")
    return [secret.encode(), part.encode(), b"0042"]


@pytest.fixture
def no_secrets(monkeypatch):
    monkeypatch.setattr(redaction, "_known", set())
    monkeypatch.setattr(redaction, "_pattern", None)


def test_a_canary_is_in_no_log_error_history_progress_event_or_export(tmp_path: Path):
    (tmp_path / "shop.py").write_text(PROGRAM)
    (tmp_path / "drive.py").write_text("import logging; logging.basicConfig(level=10)\n" + DRIVE)
    environment = {**os.environ, "CANARY": CANARY}

    def run(*command: str) -> bytes:
        done = subprocess.run(
            [sys.executable, *command], cwd=tmp_path, env=environment, capture_output=True, check=False, timeout=120
        )
        return done.stdout + done.stderr

    driven = run("drive.py")
    assert b"401 for" in driven or b"RuntimeError" in driven, driven
    ids = run("-m", "holdfast.cli", "jobs", "--json", "--url", "sqlite:///jobs.db")
    found = re.findall(rb'"id": "([0-9a-f-]{36})"', ids)
    assert len(found) == 2, (ids, driven)
    shown = b""
    for id in found:
        for verb in ("show", "export"):
            shown += run("-m", "holdfast.cli", verb, id.decode(), "--url", "sqlite:///jobs.db")
    shown += run("-m", "holdfast.cli", "review", "--json", "--url", "sqlite:///jobs.db")
    stored = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".py")

    own = [line for line in driven.splitlines() if b":shop:" not in line]  # what the job itself logs to its own handler
    for form in forms(CANARY):
        assert form not in shown
        assert form not in stored
        assert form not in b"\n".join(own), form
    assert REDACTED.encode() in stored


def test_a_secret_is_replaced_in_every_way_it_is_written(no_secrets):
    register_secrets([CANARY, "other-secret"])

    for text in (CANARY, repr(CANARY), f"{[CANARY]}", "a%22b", "other-secret"):
        assert "canary" not in redact(text)
    assert redact("plain") == "plain"
    assert redact(f"<{CANARY}>") == f"<{REDACTED}>"


def test_a_log_line_of_ours_holds_no_secret(no_secrets, caplog):
    register_secrets([CANARY])
    from holdfast.safe_text import logger

    logger("holdfast.test").warning("a %s and %r", CANARY, ValueError(CANARY))
    try:
        raise ValueError(CANARY)
    except ValueError:
        logger("holdfast.test").exception("failed")

    assert "canary" not in caplog.text


@pytest.mark.parametrize("secrets", ["plain-text", [""], ["short"], [7]])
def test_a_wrong_secret_is_refused_without_being_shown(no_secrets, secrets):
    with pytest.raises(Invalid, match="secrets=") as raised:
        App("memory:", secrets=secrets)
    assert "plain-text" not in str(raised.value)
    assert "short" not in str(raised.value)


async def test_no_secret_costs_nothing(no_secrets):
    await asyncio.sleep(0)
    text = "x" * 10
    assert redact(text) is text
    assert logging.getLogger("holdfast") is not None
