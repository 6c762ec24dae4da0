"""The list of jobs: filters and links, the place that back and reload keep, many at once, 100,000 rows."""

import re
import time

import pytest
from playwright.sync_api import expect

ROWS = 200
"""How many row nodes there may be, however long the list is."""


@pytest.fixture(scope="module")
def filled(site):
    """A store with jobs of two queues; some are in review."""
    site.worker()
    site.api.post("/queues/plain/pause", json={})
    for number in range(30):
        site.submit("echo", f"plain {number}")
    failed = [site.submit("publish", f"film {number}", 18) for number in range(4)]
    for id in failed:
        site.until(id, "review")
    return site


def rows(page):
    return page.locator(".job-rows .job-row")


def until(page, words: str) -> None:
    """Wait until this is true in the page. The policy of our pages forbids playwright's own way, which needs eval."""
    end = time.monotonic() + 30
    while not page.evaluate(words):
        assert time.monotonic() < end, words
        time.sleep(0.1)


def test_filters_make_links_that_can_be_shared(filled, page):
    page.goto("/jobs")
    expect(rows(page).first).to_be_visible()

    page.locator("#find").fill("type publish")
    page.locator("#find").press("Enter")
    expect(rows(page)).to_have_count(4)
    assert page.url.endswith("/jobs?type=publish")
    page.locator(".states a", has_text="review").click()
    expect(rows(page)).to_have_count(4)
    shared = page.url
    page.goto("/")
    page.goto(shared)

    expect(rows(page)).to_have_count(4)
    expect(page.locator(".tokens .chip")).to_contain_text("type publish")
    page.get_by_role("button", name="Remove the filter type").click()
    expect(page.locator(".tokens .chip")).to_have_count(0)


def test_a_filter_that_the_server_refuses_says_why(filled, page):
    for query in ("state=bogus", "error=boom", "queue=Not%20One"):
        page.goto(f"/jobs?{query}")
        expect(page.locator("h1.sentence")).to_contain_text(re.compile("state|review|queue"))
        expect(page.locator("h1.sentence")).not_to_have_text("Jobs")
        expect(page.locator("#find")).to_be_visible()
        expect(page.locator(".job-rows")).to_have_count(0)
    page.locator(".states a", has_text="All").click()
    page.get_by_role("button", name="Remove the filter queue").click()
    expect(rows(page).first).to_be_visible()


def test_counts_stand_only_where_they_are_true(filled, page):
    page.goto("/jobs?queue=plain")
    expect(page.locator(".states a", has_text="available").locator("b")).to_have_text(re.compile(r"\d+"))
    page.goto("/jobs?type=publish")
    expect(rows(page)).to_have_count(4)
    expect(page.locator(".states b")).to_have_count(0)


def test_all_that_match_are_acted_on_without_choosing_first(filled, page):
    page.goto("/jobs?type=publish&state=review")
    expect(rows(page)).to_have_count(4)

    page.get_by_role("button", name="Act on all that match").click()
    page.locator(".dock").get_by_role("button", name="Replay all that match").click()

    expect(page.locator(".dock")).to_contain_text("Replay 4 jobs")
    page.keyboard.press("Escape")
    expect(page.locator(".dock")).to_have_count(0)


def test_a_job_is_found_by_its_short_id_and_by_its_key(filled, page):
    id = filled.submit("echo", "findable", key="order-4711")
    for words in (id[-8:], "key order-4711"):
        page.goto("/jobs")
        page.locator("#find").fill(words)
        page.locator("#find").press("Enter")
        expect(rows(page)).to_have_count(1)
        expect(rows(page)).to_contain_text("findable")
    page.keyboard.press("Control+k")
    page.locator("#palette-list").wait_for()
    page.keyboard.type("order-4711")
    expect(page.get_by_role("option", name="findable")).to_be_visible()
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/jobs/{id}")


def test_back_and_reload_keep_the_place(filled, page):
    page.set_viewport_size({"width": 1440, "height": 500})
    page.goto("/jobs?queue=plain")
    expect(rows(page).first).to_be_visible()
    page.evaluate("scrollTo(0, 700)")
    link = page.locator(".job-row", has_text="plain 10").locator("a")
    link.hover()
    place = page.evaluate("scrollY")
    assert place > 400
    link.click()
    expect(page.locator(".job-title")).to_be_visible()

    page.go_back()
    until(page, f"Math.abs(scrollY - {place}) < 3")
    page.reload()
    until(page, f"Math.abs(scrollY - {place}) < 3")


def test_many_jobs_are_replayed_after_a_preview(filled, page):
    page.goto("/jobs?type=publish&state=review")
    expect(rows(page)).to_have_count(4)

    rows(page).nth(0).hover()
    rows(page).nth(0).locator("input").click()
    rows(page).nth(2).locator("input").click(modifiers=["Shift"])
    expect(page.locator(".dock")).to_contain_text("3 chosen")
    page.locator(".dock").get_by_role("button", name="Cancel", exact=False).first.click()
    expect(page.locator(".dock")).to_contain_text("3 jobs")
    page.locator(".dock").get_by_role("button", name="Cancel 3").click()
    page.locator(".dock").get_by_role("button", name="Press again").click()

    expect(page.locator(".dock")).to_contain_text("3 jobs cancelled")
    left = filled.api.get("/jobs", params={"type": "publish", "state": "review"}).json()
    assert len(left["jobs"]) == 1


ENDLESS = """
const real = window.fetch;
let first = null;
window.fetch = async (address, more) => {
  const url = new URL(address, location.href);
  if (!url.pathname.endsWith("/api/v1/jobs")) return real(address, more);
  first ??= await (await real("/api/v1/jobs?limit=1", more)).json();
  const page = { ...first };
  const start = Number(url.searchParams.get("after") ?? 0);
  page.jobs = Array.from({ length: 2000 }, (_, i) => {
    return { ...first.jobs[0], id: `id-${start + i}`, name: `row ${start + i}` };
  });
  page.next = start + 2000 < 100000 ? String(start + 2000) : null;
  return new Response(JSON.stringify(page));
};
"""
"""Makes a list of a hundred thousand rows from one."""


def test_100_000_jobs_are_scrolled_with_few_nodes(filled, page):
    page.add_init_script(ENDLESS)
    page.goto("/jobs?order=oldest")
    expect(rows(page).first).to_be_visible()
    end = time.monotonic() + 60
    most, count = 0, 0
    while count < 100_000 and time.monotonic() < end:
        page.evaluate("scrollTo(0, document.body.scrollHeight)")
        page.wait_for_timeout(20)
        nodes = rows(page).count()
        most = max(most, nodes)
        count = page.evaluate("Math.round(document.querySelector('.job-rows').clientHeight / 40)")

    assert count >= 100_000
    assert most < ROWS
    page.evaluate("scrollTo(0, 40 * 50_000)")
    expect(page.get_by_text("row 50000", exact=True)).to_be_visible()
