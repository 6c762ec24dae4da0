"""A canary: a secret that a worker over HTTP tells everywhere it can is found nowhere afterwards."""

import logging
from pathlib import Path

import pytest

from holdfast import redaction
from holdfast.redaction import REDACTED, register_secrets
from tests.server.ojs.given import a_client, fetched, submitted

CANARY = "sk-canary-7d2f-0042"


@pytest.fixture
def secret(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(redaction, "_known", set())
    monkeypatch.setattr(redaction, "_pattern", None)
    register_secrets([CANARY])
    return CANARY


def everything_in(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


async def test_a_canary_is_in_no_answer_log_metric_or_store(secret: str, tmp_path: Path, caplog):
    caplog.set_level(logging.DEBUG)
    error = {
        "code": f"code-{secret}",
        "type": f"Bad.{secret}",
        "message": "x" * 3_990 + f"401 for {secret}",
        "details": {"error_class": secret, "deep": [{secret: [f"<{secret}>"]}]},
        "backtrace": [f"in call({secret!r})"],
    }
    async with a_client(f"sqlite:///{tmp_path / 'jobs.db'}") as client:
        for tries in (2, 1):
            retry = {"max_attempts": tries, "initial_interval": "PT0S"}
            id = await submitted(client, retry=retry)
            await fetched(client, worker=f"w {secret}", heartbeat_interval_ms=60_000)
            beat = {"worker_id": f"w {secret}", "active_jobs": [id], "hostname": f"h-{secret}", "state": secret}
            assert (await client.post("/workers/heartbeat", beat))["jobs_extended"] == [id]
            await client.put(f"/jobs/{id}/checkpoint", {"state": {"key": secret}})
            report = {"progress": 0.5, "message": secret, "data": {"a": [secret]}, "checkpoint": [secret]}
            await client.put(f"/jobs/{id}/progress", report)
            await client.post("/workers/nack", {"job_id": id, "worker_id": f"w {secret}", "error": error})
            await client.send("POST", f"/jobs/{id}/cancel", {"reason": f"because of {secret}"})
        shown = [
            (await client.http.get(path)).text
            for path in (
                *(f"/ojs/v1/jobs/{id}{more}" for more in ("", "/history", "/progress", "/checkpoint", "/steps")),
                *("/ojs/v1/events", "/ojs/v1/dead-letter", "/ojs/v1/admin/workers", "/ojs/v1/admin/jobs", "/metrics"),
            )
        ]

    stored = everything_in(tmp_path)
    for text in (*shown, caplog.text, stored.decode("latin-1")):
        assert CANARY not in text
        assert "7d2f" not in text
    assert REDACTED in stored.decode("latin-1")
    assert REDACTED in shown[0]
