"""The four apps of the guide that mount Holdfast, served for real: a worker is killed, another one continues."""

import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from holdfast import App

ROOT = Path(__file__).parents[2]
UVICORN = ("uvicorn", "--host", "127.0.0.1", "--port", "0")
GUNICORN = ("gunicorn", "--bind", "127.0.0.1:0", "--worker-class", "asgi", "--workers", "2", "--graceful-timeout", "2")
SERVERS = {
    "mount_fastapi": UVICORN,
    "mount_starlette": UVICORN,
    "mount_flask": GUNICORN,
    "mount_django": UVICORN,
}
CLIPS = 100


class Place:
    """A folder with a store, and processes beside the examples."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"sqlite:///{folder / 'web.db'}"
        self.environment = {
            **os.environ,
            "HOLDFAST_URL": self.url,
            "PYTHONPATH": os.pathsep.join([str(ROOT / "examples"), str(ROOT / "src")]),
        }

    @contextlib.contextmanager
    def start(self, *words: str) -> "Iterator[tuple[subprocess.Popen[bytes], Path]]":
        """`python -m …`, until the end of the block."""
        log = self.folder / f"{time.monotonic_ns()}.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", *words], cwd=self.folder, env=self.environment, stdout=out, stderr=out
            )
        try:
            yield process, log
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(30)

    def worker(self, name: str) -> Any:
        return self.start("holdfast.cli", "worker", f"{name}:app", "--at-once", "1")

    def token(self) -> str:
        words = [sys.executable, "-m", "holdfast.cli", "token", "create", "test", "--scope", "read,act"]
        return subprocess.check_output(words, env=self.environment, cwd=self.folder, text=True, timeout=60).strip()


def until(asked: Callable[[], Any], log: Path) -> Any:
    end = time.monotonic() + 90
    while not (found := asked()):
        assert time.monotonic() < end, log.read_text()
        time.sleep(0.05)
    return found


@pytest.mark.parametrize("name", list(SERVERS))
def test_a_mounted_server_shows_a_job_whose_worker_was_killed(name: str, tmp_path: Path):
    place = Place(tmp_path)
    bearer = {"Authorization": f"Bearer {(token := place.token())}"}
    with contextlib.ExitStack() as stack:
        server, log = stack.enter_context(place.start(*SERVERS[name], f"{name}:web"))
        base = until(lambda: re.search(r"http://127\.0\.0\.1:[1-9]\d*", log.read_text()), log).group()
        client = stack.enter_context(httpx.Client(base_url=base, timeout=30))
        with place.worker(name) as (worker, work_log):
            id = client.post(f"/videos?clips={CLIPS}").raise_for_status().json()["id"]

            def job() -> Any:
                return client.get(f"/holdfast/api/v1/jobs/{id}", headers=bearer).raise_for_status().json()

            until(lambda: job()["stages"][0]["done"] >= 3, work_log)
            worker.kill()
            worker.wait(30)
            assert job()["stages"][0]["done"] < CLIPS
        with place.worker(name) as (_, work_log):
            until(lambda: job()["job"]["state"] == "completed", work_log)
            shown = job()
            assert (shown["stages"][0]["done"], shown["job"]["recoveries"]) == (CLIPS, 1)
        assert App(f"{base}/holdfast", token=token).sync.run(id).status().state == "completed"

        # Without a token, a browser is sent to the login page, and comes back.
        page = client.get(f"/holdfast/jobs/{id}", headers={"Accept": "text/html"})
        assert (page.status_code, page.headers["location"]) == (303, f"/holdfast/login?next=%2Fholdfast%2Fjobs%2F{id}")
        assert client.get("/holdfast/api/v1/jobs").status_code == 401

        # A browser that has logged in: the cookie is for the mounted part only, and every file is found.
        answer = client.post("/holdfast/login", json={"token": token}).raise_for_status()
        assert "Path=/holdfast;" in answer.headers["set-cookie"]
        html = client.get(f"/holdfast/jobs/{id}").raise_for_status().text
        files = re.findall(r'(?:src|href)="([^"]+)"', html)
        assert files
        for file in files:
            assert file.startswith("/holdfast/static/")
            client.get(file).raise_for_status()

        with client.stream("GET", f"/holdfast/api/v1/stream?view=job&id={id}") as stream:
            lines = stream.iter_lines()
            assert next(line for line in lines if line.startswith("event:")) == "event: view"
            server.terminate()
            with contextlib.suppress(httpx.RemoteProtocolError):  # gunicorn cuts a stream off after its grace
                for _ in lines:
                    pass
            assert server.wait(30) in (0, -15), log.read_text()


@pytest.mark.parametrize("name", list(SERVERS))
def test_the_guide_shows_the_example_as_it_is(name: str):
    assert (ROOT / "examples" / f"{name}.py").read_text() in (ROOT / "docs/guides/web.md").read_text()
