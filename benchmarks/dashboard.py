"""The dashboard in a real browser: first paint, a long list, the cost of updates, and of many open tabs.

    python benchmarks/dashboard.py sqlite:///jobs.db [--jobs 1000000] [--tabs 20]
    python -m tests.support.postgres_server --safe python benchmarks/dashboard.py {url}

Needs Chromium or Chrome (HOLDFAST_TEST_BROWSER, or on the PATH). Everything runs on this machine, so the browser takes
its share of the same cores. Exits with 1 if a floor is missed.
"""

import argparse
import asyncio
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
from measuring import check_floor

from holdfast.core.keys import digest, new_id
from holdfast.core.model import Job, State
from holdfast.engines import engine_for

INSERTED_AT_ONCE = 2_000
PAINT_MS, LIST_MS, UPDATE_MS, IDLE_SHARE = 1_000.0, 200.0, 8.0, 0.10
DROPPED_FRAMES = 0.0
WATCHED_SECONDS = 10.0
FRAMES_SECONDS = 3.0
ROUNDS = 7


async def fill(url: str, count: int) -> None:
    """Insert this many jobs that wait."""
    engine = engine_for(url)
    await engine.open()
    try:
        now = await engine.now()
        for start in range(0, count, INSERTED_AT_ONCE):
            numbers = range(start, min(count, start + INSERTED_AT_ONCE))
            await engine.insert([_job(now, number) for number in numbers])
    finally:
        await engine.close()


def _job(now: int, number: int) -> Job:
    args = json.dumps([f"job {number}"])
    return Job(
        id=new_id(now, number), type="film", queue="video", state=State.AVAILABLE, args=args,
        digest=digest("film", args), created_at=now, run_at=now,
    )  # fmt: skip


@contextlib.contextmanager
def served(url: str, folder: Path) -> Iterator[tuple[str, int]]:
    """Serve a store on a free port: the address, and the process id."""
    with (folder / "serve.log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "holdfast.cli", "serve", "--port", "0", "--url", url, "--log-level", "warning"],
            stdout=subprocess.PIPE, stderr=log, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )  # fmt: skip
    try:
        assert process.stdout is not None
        found = re.search(r"at (http://\S+)", process.stdout.readline())
        assert found, (folder / "serve.log").read_text()
        yield found[1], process.pid
    finally:
        process.terminate()
        process.wait(30)


def cpu_seconds(pid: int) -> float:
    """How much processor time a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def first_paint(browser: Any, base: str, path: str) -> float:
    """Milliseconds until the first paint of a page, in a fresh context."""
    context = browser.new_context(base_url=base)
    page = context.new_page()
    page.goto(path)
    page.locator("main h1").first.wait_for()
    painted = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? 1e9")
    context.close()
    return float(painted)


def useful_list(browser: Any, base: str) -> float:
    """Milliseconds from a click on Jobs to the first row."""
    context = browser.new_context(base_url=base)
    page = context.new_page()
    page.goto("/lifecycle")
    page.locator("main h1").first.wait_for()
    took = page.evaluate(
        """() => new Promise((done) => {
          const began = performance.now();
          new MutationObserver((_, all) => {
            if (document.querySelector(".job-rows .job-row")) { all.disconnect(); done(performance.now() - began); }
          }).observe(document.body, { childList: true, subtree: true });
          document.querySelector('.pages a[href="/jobs"]').click();
        })"""
    )
    context.close()
    return float(took)


def update_cost(browser: Any, base: str) -> float:
    """Milliseconds of main thread for one update of 60 rows, of which all change, without what it costs idle."""
    still, _ = busy_thread(browser, base, changes=False)
    busy, updates = busy_thread(browser, base, changes=True)
    return max(0.0, busy - still) / max(1, updates)


def busy_thread(browser: Any, base: str, *, changes: bool) -> tuple[float, int]:
    """How long the main thread works while the list is shown, and how often it was read."""
    page = browser.new_page(base_url=base)
    first = httpx.get(f"{base}/api/v1/jobs", params={"limit": 60}).json()
    reads = [0]

    def changed(route: Any) -> None:
        reads[0] += 1
        number = reads[0] if changes else 0
        jobs = [{**one, "where": f"image, {number} of 9,000", "version": number} for one in first["jobs"]]
        route.fulfill(json={**first, "jobs": jobs, "next": None})

    page.route("**/api/v1/jobs?*", changed)
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})  # the thread's own time
    page.goto("/jobs?order=oldest")
    page.locator(".job-row").nth(20).wait_for()

    def busy() -> tuple[float, int]:
        found = {one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]}
        return found["TaskDuration"] * 1_000, reads[0]

    page.wait_for_timeout(3_000)
    before, updates = busy()
    page.wait_for_timeout(WATCHED_SECONDS * 1_000)
    after, then = busy()
    page.close()
    return after - before, then - updates


OFTEN = """
const Real = window.EventSource;
window.EventSource = class extends EventTarget {
  constructor(address) {
    super();
    this.real = new Real(address);
    let number = 0, first = null;
    const pass = (name) => this.real.addEventListener(name, ({ data }) => {
      if (name === "view") first ??= JSON.parse(data);
      this.dispatchEvent(new MessageEvent(name, { data }));
    });
    ["view", "beat", "trouble", "gone"].forEach(pass);
    this.timer = setInterval(() => {
      if (!first?.jobs || !window.updatesOften) return;
      number += 1;
      const jobs = first.jobs.map((one) => ({ ...one, doing: `image, ${number} of 9,000`, version: number }));
      this.dispatchEvent(new MessageEvent("view", { data: JSON.stringify({ ...first, jobs }) }));
    }, 20);
  }
  close() {
    clearInterval(this.timer);
    this.real.close();
  }
};
"""
"""A stream that has something new 50 times a second, once the page wants it."""

LATE_FRAMES = """(seconds) => new Promise((done) => {
  let late = 0, before = performance.now();
  const until = before + seconds * 1000;
  const look = (now) => {
    late += Math.max(0, Math.round((now - before) / (1000 / 60)) - 1);
    before = now;
    now < until ? requestAnimationFrame(look) : done(late);
  };
  requestAnimationFrame(look);
})"""


def dropped_frames(browser: Any, base: str) -> float:
    """How many frames more the list drops with 50 updates a second than without."""
    page = browser.new_page(base_url=base)
    page.add_init_script(OFTEN)
    page.goto("/jobs?queue=video")
    page.locator(".job-row").nth(20).wait_for()
    page.wait_for_timeout(1_000)
    still = page.evaluate(LATE_FRAMES, FRAMES_SECONDS)
    page.evaluate("window.updatesOften = true")
    page.wait_for_timeout(200)
    busy = page.evaluate(LATE_FRAMES, FRAMES_SECONDS)
    shown = page.locator(".job-row", has_text="image,").count()
    page.close()
    assert shown, "the updates weren't shown"
    return max(0.0, float(busy - still))


def idle_share(browser: Any, base: str, pid: int, tabs: int) -> float:
    """The share of a core that the server needs while this many overviews are open and nothing happens."""
    contexts = [browser.new_context(base_url=base) for _ in range(tabs)]
    for context in contexts:
        page = context.new_page()
        page.goto("/")
        page.locator(".node").first.wait_for()
    time.sleep(2)
    before, began = cpu_seconds(pid), time.monotonic()
    time.sleep(WATCHED_SECONDS)
    share = (cpu_seconds(pid) - before) / (time.monotonic() - began)
    for context in contexts:
        context.close()
    return share


def main() -> None:
    """Measure, print the figures, and check the floors."""
    given = argparse.ArgumentParser(description=__doc__)
    given.add_argument("url")
    given.add_argument("--jobs", type=int, default=1_000_000)
    given.add_argument("--tabs", type=int, default=20)
    options = given.parse_args()
    path = os.environ.get("HOLDFAST_TEST_BROWSER") or shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        sys.exit("no browser: install chromium, or name one in HOLDFAST_TEST_BROWSER")
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder:
        url = options.url.replace("sqlite:///", f"sqlite:///{folder}/")
        asyncio.run(fill(url, options.jobs))
        with served(url, Path(folder)) as (base, pid), sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
            first_paint(browser, base, "/")  # the first one starts what all need
            paint = [first_paint(browser, base, "/") for _ in range(ROUNDS)]
            listed = [useful_list(browser, base) for _ in range(ROUNDS)]
            update = update_cost(browser, base)
            dropped = [dropped_frames(browser, base) for _ in range(ROUNDS)]
            idle = idle_share(browser, base, pid, options.tabs)
            browser.close()
    print(f"{options.jobs:,} jobs, load {os.getloadavg()[0]:.0f}")
    fine = [
        check_floor("first paint of the overview", paint, PAINT_MS, "ms", at_most=True),
        check_floor("the list of jobs, from a click to its first row", listed, LIST_MS, "ms", at_most=True),
        check_floor("main thread for an update of 60 rows", [update], UPDATE_MS, "ms", at_most=True),
        check_floor("frames dropped by 50 updates a second", dropped, DROPPED_FRAMES, "frames", at_most=True),
        check_floor(f"share of a core for {options.tabs} idle overviews", [idle], IDLE_SHARE, "", at_most=True),
    ]
    sys.exit(not all(fine))


if __name__ == "__main__":
    main()
