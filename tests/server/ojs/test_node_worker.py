"""The worker in Node: it records each item, is killed, and another one continues. Real processes, a real server."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.clients import a_real_server

WORKER = Path(__file__).parents[3] / "examples" / "worker.mjs"
NODE = shutil.which("node")
SCENES = 30
PATIENCE = 90.0

pytestmark = pytest.mark.skipif(NODE is None, reason="node is not installed here")


@contextmanager
def a_node_worker(folder: Path, server: str, name: str) -> Iterator["subprocess.Popen[bytes]"]:
    environment = {
        **os.environ, "HOLDFAST_SERVER": server, "WORKER_ID": name, "BEAT_MS": "500", "ITEM_MS": "60",
    }  # fmt: skip
    with open(folder / f"{name}.log", "w") as log:
        process = subprocess.Popen([str(NODE), WORKER], env=environment, stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def until(ready: Any, what: str, folder: Path) -> Any:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if found := ready():
            return found
        time.sleep(0.1)
    logs = "\n".join(path.read_text()[-2_000:] for path in folder.glob("*.log"))
    raise AssertionError(f"{what}: not within {PATIENCE:g} s\n{logs}")


def test_a_killed_node_worker_is_continued_by_another_at_the_first_item_that_is_not_recorded(tmp_path: Path):
    scenes = [f"scene-{number}" for number in range(SCENES)]
    with a_real_server(tmp_path) as (base, _), httpx.Client(base_url=f"{base}/ojs/v1") as client:
        body = {"type": "image.draw", "args": [scenes], "options": {"queue": "images"}}
        id = client.post("/jobs", json=body).json()["job"]["id"]

        def steps() -> list[Any]:
            return list(client.get(f"/jobs/{id}/steps").json()["steps"])

        def ended() -> Any:
            answer = client.get(f"/jobs/{id}/result")
            return answer.json() if answer.status_code == 200 else None

        with a_node_worker(tmp_path, base, "first") as first:
            until(lambda: len(steps()) >= 5, "five items", tmp_path)
            os.kill(first.pid, signal.SIGKILL)
            first.wait()
        recorded = {step["path"]: step["recorded_at"] for step in steps()}
        assert len(recorded) < SCENES, "it was killed in the middle"

        with a_node_worker(tmp_path, base, "second"):
            result = until(
                lambda: (answer := client.get(f"/jobs/{id}/result")).status_code == 200 and answer.json(),
                "the result",
                tmp_path,
            )["result"]

        assert result == {"images": [{"file": f"{scene}.png"} for scene in scenes]}
        after = {step["path"]: step["recorded_at"] for step in steps()}
        assert len(after) == SCENES
        assert {path: after[path] for path in recorded} == recorded, "what was recorded was not made again"
        made = (tmp_path / "second.log").read_text().count("recorded draw#")
        assert made == SCENES - len(recorded)
        job = client.get(f"/jobs/{id}").json()["job"]
        assert (job["state"], job["attempt"]) == ("completed", 2)
