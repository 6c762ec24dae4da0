"""A real browser, and real servers and workers, each stopped by its own process id."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.clients import a_real_server

APP = Path(__file__).parent / "sample_app.py"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
WAIT_SECONDS = 30.0
"""How long a test waits for anything on a busy machine."""


def browser_path() -> str | None:
    """The browser that is named by the environment, or on the PATH, or that playwright has installed."""
    named = os.environ.get("HOLDFAST_TEST_BROWSER") or next(filter(None, map(shutil.which, BROWSERS)), None)
    if named:
        return named
    try:
        from playwright.sync_api import sync_playwright

        with sync_playwright() as playwright:
            path = playwright.chromium.executable_path
            return path if Path(path).exists() else None
    except ImportError:
        return None


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    path = browser_path()
    if path is None:
        pytest.skip("no browser: install chromium, or name one in HOLDFAST_TEST_BROWSER")
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=WAIT_SECONDS * 1_000)
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(
            executable_path=path, args=["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
        )
        yield running
        running.close()


class Site:
    """One store with a server, and workers on demand."""

    def __init__(self, folder: Path, base: str, server: subprocess.Popen[str]) -> None:
        self.folder, self.base, self.server = folder, base, server
        self.api = httpx.Client(base_url=f"{base}/api/v1", timeout=WAIT_SECONDS)
        self.workers: list[subprocess.Popen[bytes]] = []

    def submit(self, type: str, *args: object, **more: object) -> str:
        """Submit a job and return its id."""
        answer = self.api.post("/jobs", json={"type": type, "args": list(args), **more})
        assert answer.status_code in (200, 201), answer.text
        return str(answer.json()["id"])

    def job(self, id: str) -> dict[str, Any]:
        """Read a job as its page."""
        return dict(self.api.get(f"/jobs/{id}").json())

    def until(self, id: str, *states: str) -> dict[str, Any]:
        """Wait until a job is in one of these states."""
        end = time.monotonic() + WAIT_SECONDS
        while (page := self.job(id))["job"]["state"] not in states:
            assert time.monotonic() < end, f"{id} is {page['job']['state']}, not {states}"
            time.sleep(0.1)
        return page

    def worker(self, *options: str, seconds: float = 0.15) -> subprocess.Popen[bytes]:
        """Start a worker."""
        command = [sys.executable, "-m", "holdfast.cli", "worker", f"{APP}:app", *options]
        environment = {**os.environ, "HOLDFAST_URL": url_in(self.folder), "SAMPLE_SECONDS": str(seconds)}
        with (self.folder / f"worker-{len(self.workers)}.log").open("wb") as log:
            self.workers.append(subprocess.Popen(command, cwd=self.folder, env=environment, stdout=log, stderr=log))
        return self.workers[-1]

    def working(self) -> None:
        """Start a worker for all queues, unless one runs."""
        if not any(one.poll() is None for one in self.workers):
            self.worker()

    def stop_workers(self) -> None:
        """Stop all workers, each by its process id."""
        for one in self.workers:
            if one.poll() is None:
                one.send_signal(signal.SIGTERM)
        for one in self.workers:
            with contextlib.suppress(subprocess.TimeoutExpired):
                one.wait(10)
            if one.poll() is None:
                one.kill()
                one.wait()
        self.workers.clear()


def url_in(folder: Path) -> str:
    return f"sqlite:///{folder}/jobs.db"


@contextlib.contextmanager
def a_site(folder: Path, *arguments: str) -> Iterator[Site]:
    """A server on a store in this folder."""
    with a_real_server(folder, f"{APP}:app", *arguments, HOLDFAST_URL=url_in(folder)) as (base, server):
        site = Site(folder, base, server)
        try:
            yield site
        finally:
            site.stop_workers()
            site.api.close()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with a_site(tmp_path_factory.mktemp("site")) as running:
        yield running


@pytest.fixture
def page(browser: Any, site: Site) -> Iterator[Any]:
    """A page in a fresh browser context. Errors and refusals of the policy fail the test."""
    context = browser.new_context(viewport={"width": 1440, "height": 900}, base_url=site.base)
    context.set_default_timeout(WAIT_SECONDS * 1_000)
    shown = context.new_page()
    troubles: list[str] = []
    shown.on("pageerror", lambda error: troubles.append(str(error)))
    shown.on("console", lambda said: troubles.append(said.text) if "Content Security Policy" in said.text else None)
    yield shown
    context.close()
    assert not troubles, troubles
