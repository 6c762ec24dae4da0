"""Takes pictures of every page of the dashboard, in both themes, wide and on a phone: `make screenshots`.

Everything shown is real: a server, workers, a killed worker. The pictures go to build/screenshots.
"""

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.browser.conftest import Site, a_site, browser_path

FOLDER = Path("build/screenshots")
WIDTHS = {"wide": (1440, 900), "phone": (390, 844)}
SETTLED_SECONDS = 0.8

CUT_SECONDS = 0.6
"""A moment in which the worker's items are under way, and its heartbeat has said so."""


def main() -> None:
    """Fill a store, and take the pictures."""
    path = browser_path()
    if path is None:
        sys.exit("no browser: install chromium, or name one in HOLDFAST_TEST_BROWSER")
    from playwright.sync_api import sync_playwright

    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, a_site(Path(folder)) as site, sync_playwright() as playwright:
        pages = fill(site)
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        for theme in ("light", "dark"):
            for name, (width, height) in WIDTHS.items():
                context = browser.new_context(
                    viewport={"width": width, "height": height},
                    base_url=site.base,
                    color_scheme=theme,
                    device_scale_factor=1.5,
                )
                take(context.new_page(), pages, f"{theme}-{name}")
                context.close()
        browser.close()
    print(f"pictures are in {FOLDER}")


def fill(site: Site) -> dict[str, str]:
    """Fill the store: a film whose worker was lost, a question, a failure, an effect in doubt, jobs that wait."""
    sender = site.worker("--queues", "mail")
    doubt = site.submit("bill", 1187)
    while not site.api.get(f"/jobs/{doubt}/steps").json()["steps"]:
        time.sleep(0.1)
    sender.kill()
    first = site.worker("--at-once", "2", "--queues", "video", seconds=1.2)
    film = site.submit("make_video", "The Lighthouse", 30, key="order-42")
    while len([cell for tab in site.job(film)["items"] for cell in tab["cells"] if cell["state"] == "done"]) < 12:
        time.sleep(0.1)
    site.worker("--at-once", "6", "--queues", "video,books,film,mail,quotes", seconds=6)
    site.until(doubt, "review")  # the other worker is up
    time.sleep(CUT_SECONDS)
    first.kill()
    site.until(site.submit("quote", "Ada"), "pending")
    asking, failed = site.submit("write_book", "Atlas of Tides"), site.submit("publish", "Storm Warning", 18)
    for number, title in enumerate(("Harbour at Dawn", "Low Water", "Night Ferry")):
        site.submit("make_video", title, 10 + number)
    for title in ("Spring Tide", "Neap Tide"):
        site.submit("publish", title, 6)
    site.api.post(
        f"/jobs/{site.submit('publish', 'Undertow', 6, queue='plain')}/cancel", json={"reason": "wrong brief"}
    )
    for number in range(20):
        site.submit("echo", f"Chapter {number + 1}")
    site.until(asking, "pending")
    site.until(failed, "review")
    while not sum(site.api.get("/overview").json()["finished"]["cancelled"]):  # the server counts now and then
        time.sleep(0.5)
    return {
        "job": f"/jobs/{film}", "overview": "/", "jobs": "/jobs", "question": f"/review/{asking}",
        "doubt": f"/review/{doubt}", "failure": f"/review/{failed}",
        "queues": "/queues", "workers": "/workers", "schedules": "/schedules",
        "lifecycle": "/lifecycle", "login": "/login",
    }  # fmt: skip


def take(page: Any, pages: dict[str, str], kind: str) -> None:
    """Take a picture of each page."""
    for name, path in pages.items():
        page.goto(path)
        page.locator("main h1").first.wait_for()
        page.wait_for_timeout(SETTLED_SECONDS * 1_000)
        page.screenshot(path=FOLDER / f"{name}-{kind}.png", full_page=True)


if __name__ == "__main__":
    main()
