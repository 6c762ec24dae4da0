"""Hostile text stays text, everybody can use every page, and nothing moves for those who don't want it."""

import json
import re
import time
from pathlib import Path
from urllib.parse import quote

import axe_playwright_python  # type: ignore[import-untyped]
import pytest
from playwright.sync_api import expect

from tests.browser.conftest import WAIT_SECONDS

AXE = (Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text()
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]

HOSTILE = {
    "script": "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'>",
    "ansi": "\x1b[31mred\x1b[0m \x07 bell",
    "rtl": "\u202eright to left\u202c \u05e9\u05dc\u05d5\u05dd",
    "link": "javascript:window.hacked=1",
    "long": "x" * 1_000_000,
    "template": "${window.hacked=1} {{1+1}} &lt;b&gt;",
}


@pytest.fixture(scope="module")
def living(site):
    """A store in which every page has something to show. Returns what each page is called."""
    site.stop_workers()
    first = site.worker("--queues", "mail")
    doubt = site.submit("bill", 1186)
    end = time.monotonic() + WAIT_SECONDS
    while not site.api.get(f"/jobs/{doubt}/steps").json()["steps"]:  # what it began is recorded
        assert time.monotonic() < end
        time.sleep(0.1)
    first.kill()
    first.wait()
    site.worker("--queues", "video,books,film,mail,quotes")
    made = site.submit("make_video", "The Lighthouse", 70)
    asking, failed = site.submit("write_book", "Atlas of Tides"), site.submit("publish", "Storm Warning", 18)
    site.until(asking, "pending")
    site.until(failed, "review")
    site.until(made, "completed")
    running = site.submit("bill", 1187)
    site.until(running, "active")
    site.until(doubt, "review")
    site.until(site.submit("quote", "Ada"), "pending")
    site.submit("echo", "waits")
    assert site.api.get("/schedules").json()["schedules"]
    assert site.api.get("/limits").json()["limits"]
    assert site.api.get("/budgets").json()["budgets"]
    worker = site.api.get("/workers").json()["workers"][0]
    return [
        "/", "/jobs", f"/jobs/{made}", f"/jobs/{running}", f"/jobs/{failed}", f"/jobs/{doubt}", f"/review/{asking}",
        f"/review/{failed}", f"/review/{doubt}", "/queues", "/workers", f"/workers/{worker['id']}", "/schedules",
        "/lifecycle", "/login",
    ]  # fmt: skip


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_text_stays_text(site, page, kind):
    text = HOSTILE[kind]
    short = text[:200]
    id = site.submit("echo", text, tags=[short[:40]], meta={"name": short})
    site.api.post(f"/jobs/{id}/cancel", json={"reason": short})

    given = quote(short[:80], safe="")
    for path in (f"/jobs/{id}", "/jobs?queue=plain", f"/jobs?type={given}", f"/jobs/{given.replace('%2F', '')}"):
        page.goto(path)
        page.locator("main").wait_for()
        page.wait_for_timeout(200)
        assert page.evaluate("window.hacked") is None
        assert page.evaluate("document.querySelectorAll('main script, main img, main iframe').length") == 0
    page.goto(f"/jobs/{id}")
    if kind == "script":
        expect(page.locator(".job-title b")).to_contain_text("<script>")
    if kind == "long":
        expect(page.locator(".columns")).to_contain_text("1,000,004 bytes")


def test_hostile_text_of_code_and_of_its_failures_stays_text(site, page):
    """Stages, logs, questions, forms, errors, results, keys and signals: all that a job's own code says."""
    site.working()
    bad = HOSTILE["script"]
    asking = site.submit("hostile", bad, key=bad[:60])
    page_of = site.until(asking, "pending")
    assert page_of["questions"][0]["question"] == bad
    site.api.post(f"/queues/{quote('plain')}/pause", json={"reason": bad})
    shown = [f"/review/{asking}", f"/jobs/{asking}", "/review", "/", "/queues", f"/jobs?key={quote(bad[:60])}"]
    see_only_text(page, shown)
    site.api.post("/queues/plain/resume", json={})
    page.goto(f"/jobs/{asking}")
    page.get_by_label("Answer").fill("go")
    page.get_by_role("button", name="Answer").click()
    site.until(asking, "review")
    see_only_text(page, [f"/review/{asking}", f"/jobs/{asking}", "/review", "/", "/jobs?state=review"])
    page.goto(f"/jobs/{asking}")
    expect(page.locator("h1.sentence")).to_contain_text("hacked")
    expect(page.locator(".log")).to_contain_text("<script>")


def see_only_text(page, paths) -> None:
    for path in paths:
        page.goto(path)
        page.locator("main h1").first.wait_for()
        page.wait_for_timeout(200)
        assert page.evaluate("window.hacked") is None, path
        assert page.evaluate("document.querySelectorAll('main script, main img, main iframe').length") == 0, path


PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000d49444154789c6360f8cf500003010180a0d3d1b6"
    "0000000049454e44ae426082"
)


def test_files_in_a_result_are_shown_as_what_they_are_and_never_run(site, page):
    site.working()
    id = site.submit("echo", "files")
    whole = site.until(id, "completed", "available")
    marks = {
        "picture": {"media": "image/png", "sha256": "a" * 64, "size": 70},
        "words": {"media": "text/plain", "sha256": "b" * 64, "size": 40},
        "page": {"media": "text/html", "sha256": "c" * 64, "size": 30},
        "drawing": {"media": "image/svg+xml", "sha256": "d" * 64, "size": 30},
        "sound": {"media": "audio/mpeg", "sha256": "e" * 64, "size": 30},
        "elsewhere": {"media": "image/png", "sha256": "//evil.example/x", "size": 1},
    }
    files = {name: {"$blob": mark} for name, mark in marks.items()}
    whole["result"] = {"json": files, "text": "", "bytes": 10, "is_whole": True}
    event = f"event: view\ndata: {json.dumps(whole)}\n\n"
    asked: list[str] = []

    def blob(route):
        asked.append(route.request.url.rpartition("/blobs/")[2])
        if "/blobs/a" in route.request.url:
            return route.fulfill(body=PIXEL, content_type="image/png")
        return route.fulfill(body="<b>plain</b> words", content_type="application/octet-stream")

    page.route("**/api/v1/stream?*", lambda route: route.fulfill(body=event, content_type="text/event-stream"))
    page.route("**/api/v1/blobs/**", blob)
    page.goto(f"/jobs/{id}")

    result = page.get_by_label("Result")
    expect(result.locator("img")).to_have_count(1)
    expect(result.locator("audio")).to_have_count(1)
    expect(result).to_contain_text("<b>plain</b> words")
    expect(result.get_by_role("link")).to_have_count(5)
    assert result.locator("b, iframe, object, embed").count() == 0
    assert set(asked) <= {f"{'a' * 64}?media=image%2Fpng", "b" * 64}, "nothing else is read before somebody asks"


def check(page, found, name: str) -> None:
    """Let axe look at what is shown, and see that nothing scrolls sideways."""
    page.evaluate(AXE)
    answer = page.evaluate("tags => axe.run(document, {runOnly: {type: 'tag', values: tags}})", RULES)
    if trouble := [(one["id"], one["nodes"][0]["target"], one["help"]) for one in answer["violations"]]:
        found[name] = trouble
    wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
    if wide > 0:
        found[f"{name} scrolls sideways"] = [wide]


def opened(page, living):
    """Open everything that lies over a page, one after the other, and yield what it is called."""
    made = living[2]
    page.goto(made)
    page.get_by_role("button", name="More").click()
    yield "the menu of a job"
    page.keyboard.press("Escape")
    page.locator(".squares").press("Enter")
    expect(page.get_by_role("dialog")).to_contain_text("Key")
    yield "a step"
    page.keyboard.press("Escape")
    page.keyboard.press("Control+k")
    expect(page.get_by_role("option").first).to_be_visible()
    yield "the palette"
    page.keyboard.press("Escape")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("this list")
    yield "the keys"
    page.goto("/jobs?type=publish")
    expect(page.locator(".job-rows .job-row").first).to_be_visible()
    page.keyboard.press("x")
    expect(page.locator(".dock")).to_contain_text("1 chosen")
    yield "chosen rows"
    page.locator(".dock").get_by_role("button", name="Replay", exact=False).first.click()
    expect(page.locator(".dock input")).to_be_visible()
    yield "the preview of an act on many"
    page.goto(next(path for path in living if path.startswith("/review/")))
    page.get_by_label("Copies").fill("900")
    page.get_by_role("button", name="Answer").click()
    expect(page.locator(".field .error").first).to_be_visible()
    yield "a refused form"


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 390])
def test_axe_finds_nothing(browser, site, living, theme, width):
    context = browser.new_context(
        viewport={"width": width, "height": 900}, base_url=site.base, color_scheme=theme, bypass_csp=True,
        reduced_motion="reduce",
    )  # fmt: skip
    page = context.new_page()
    found: dict[str, object] = {}
    for path in living:
        page.goto(path)
        page.locator("main h1").first.wait_for()
        expect(page.locator("main")).not_to_have_attribute("aria-busy", "true")
        page.wait_for_timeout(150)
        check(page, found, path)
    for name in opened(page, living):
        check(page, found, name)
    context.close()
    assert not found, "\n".join(f"{path}: {trouble}" for path, trouble in found.items())


def test_everything_is_done_with_keys_alone(site, living, page):
    page.goto("/")
    page.locator(".node").first.wait_for()
    page.keyboard.press("g")
    page.keyboard.press("j")
    page.wait_for_url("**/jobs")
    expect(page.locator(".job-rows .job-row").first).to_be_visible()
    page.keyboard.press("j")
    expect(page.locator(".job-row.current")).to_have_attribute("aria-posinset", "2")
    page.keyboard.press("x")
    expect(page.locator(".dock")).to_contain_text("1 chosen")
    page.keyboard.press("Escape")
    expect(page.locator(".dock")).to_have_count(0)
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(r"/jobs/\w"))
    first = page.url
    page.keyboard.press("]")
    expect(page).not_to_have_url(first)
    page.keyboard.press("[")
    page.wait_for_url(first)
    page.keyboard.press("Escape")
    page.wait_for_url("**/jobs")
    theme = page.evaluate("document.documentElement.dataset.theme")
    page.keyboard.press("t")
    assert page.evaluate("document.documentElement.dataset.theme") != theme
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("next and previous row")
    page.keyboard.press("Escape")
    expect(page.locator("dialog .help")).to_have_count(0)
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "find"
    page.keyboard.press("Escape")
    page.keyboard.press("Control+k")
    page.get_by_role("combobox").wait_for()
    page.keyboard.type("lifecy")
    expect(page.get_by_role("option").first).to_have_text("Lifecyclepage")
    page.keyboard.press("Enter")
    page.wait_for_url("**/lifecycle")


def test_an_item_among_many_is_lit_and_opened_with_keys(site, living, page):
    page.goto(living[2])
    squares = page.get_by_role("listbox", name="70 of 70")
    squares.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    expect(page.locator(".squares .lit")).to_have_count(1)
    expect(page.locator(".plot .bar.lit")).to_have_count(1)
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_contain_text("image 12")
    page.keyboard.press("Escape")
    expect(squares).to_be_focused()


def test_a_worker_says_what_it_runs_and_ran_and_leads_there(site, living, page):
    worker = next(path for path in living if path.startswith("/workers/"))
    page.goto(worker)
    expect(page.locator(".card", has_text="What it ran")).to_contain_text("The Lighthouse")
    page.get_by_role("link", name="The Lighthouse").click()
    page.wait_for_url("**" + living[2])


def test_the_theme_is_kept_and_set_before_the_first_paint(site, page):
    page.goto("/")
    page.keyboard.press("t")
    chosen = page.evaluate("document.documentElement.dataset.theme")

    page.reload(wait_until="commit")
    expect(page.locator("html")).to_have_attribute("data-theme", chosen)

    assert page.evaluate("document.documentElement.dataset.theme") == chosen


def test_a_phone_has_the_live_dot_the_theme_find_and_every_page(browser, site, living):
    page = browser.new_page(base_url=site.base, viewport={"width": 390, "height": 844})
    page.goto("/")
    expect(page.locator(".live")).to_be_in_viewport()
    expect(page.locator(".live")).to_have_text("Live")
    theme = page.evaluate("document.documentElement.dataset.theme")
    page.get_by_role("button", name="Change the theme").click()
    assert page.evaluate("document.documentElement.dataset.theme") != theme
    for name in ("Overview", "Jobs", "Review", "Queues", "Workers", "Schedules", "Lifecycle"):
        page.locator(".tabbar, .side").get_by_role("link", name=name).click()
        page.wait_for_url("**/" if name == "Overview" else f"**/{name.lower()}*")
    page.get_by_role("button", name="Find a job").click()
    expect(page.get_by_role("combobox")).to_be_focused()
    page.close()


@pytest.mark.parametrize("width", [1440, 390])
def test_no_words_of_a_timeline_lie_over_each_other_or_beyond_its_edge(browser, site, living, width):
    made = next(path for path in living if path.startswith("/jobs/"))
    page = browser.new_page(base_url=site.base, viewport={"width": width, "height": 900})
    starts = range(0, 18_000, 2_000)
    slept = {"kind": "slept", "words": "waited 2 s before the next attempt"}
    waits = [{**slept, "at": at + 900, "end": at + 1_900} for at in starts]
    lost = {"kind": "lost", "at": 17_800, "end": 17_990, "words": "nobody worked on it for 190 ms"}
    worker = {"worker": "w-a-long-name-1", "how": ""}
    bands = [{**worker, "epoch": n + 1, "at": at, "end": at + 900} for n, at in enumerate(starts)]
    line = site.api.get(f"{made}/timeline").json()
    line |= {"gaps": [*waits, lost], "bands": bands, "end": 18_000}
    page.route("**/timeline", lambda route: route.fulfill(json=line))
    page.goto(made)
    expect(page.locator(".plot .loss text")).to_be_visible()

    boxes = page.evaluate(
        "[...document.querySelectorAll('.plot text')].filter(one => one.textContent)"
        ".map(one => { const {left, right, top, bottom} = one.getBoundingClientRect();"
        " return [left, right, top, bottom, one.textContent] })"
    )
    plot = page.evaluate("(({left, right}) => [left, right])(document.querySelector('.plot').getBoundingClientRect())")
    page.close()

    assert any(words.startswith("waited") for *_, words in boxes)
    for n, (left, right, top, bottom, words) in enumerate(boxes):
        assert plot[0] - 1 <= left, words
        assert right <= plot[1] + 1, words
        for other in boxes[n + 1 :]:
            is_apart = right <= other[0] or other[1] <= left or bottom - 3 <= other[2] or other[3] - 3 <= top
            assert is_apart, f"{words!r} lies over {other[4]!r}"


def test_nothing_moves_for_those_who_ask_for_it(browser, site, living):
    page = browser.new_page(base_url=site.base, reduced_motion="reduce")
    for path in living[:4]:
        page.goto(path)
        page.locator("main h1").first.wait_for()
        page.wait_for_timeout(300)
        assert page.evaluate("document.getAnimations().length") == 0
    page.close()


def test_every_page_works_at_200_percent(site, living, page):
    page.set_viewport_size({"width": 720, "height": 450})
    for path in living:
        page.goto(path)
        page.locator("main h1").first.wait_for()
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, path
