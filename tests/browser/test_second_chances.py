"""A result is rejected in the browser and made again; a run begins in the middle; two runs lie side by side."""

import re

from playwright.sync_api import expect


def a_finished_film(site) -> str:
    site.working()
    id = site.submit("make_video", "Tides", 3)
    site.until(id, "completed")
    return str(id)


def open_image(page, id: str) -> None:
    page.goto(f"/jobs/{id}")
    page.get_by_role("button", name=re.compile("^image 2:")).click()
    expect(page.get_by_role("dialog")).to_be_visible()


def other_run(page, id: str) -> str:
    expect(page.get_by_role("link", name="The first run")).to_be_visible()
    made = re.findall(r"/jobs/([0-9a-f-]{36})", page.url)[0]
    assert made != id
    return str(made)


def test_a_result_is_rejected_with_words_and_both_runs_are_compared(site, page):
    id = a_finished_film(site)
    open_image(page, id)
    panel = page.get_by_role("dialog")
    expect(panel).to_contain_text("Code")

    panel.get_by_label("What is wrong with it?").fill("six fingers <b>")
    expect(panel.locator(".copy")).to_contain_text("--feedback 'six fingers <b>'")
    panel.get_by_role("button", name="Run it again").click()
    made = other_run(page, id)
    site.until(made, "completed")

    expect(page.locator(".why", has_text="A rerun of")).to_contain_text("six fingers <b>")
    page.get_by_role("button", name="Compare").click()
    expect(page.get_by_role("dialog")).to_contain_text("of 5 steps are the same")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    open_image(page, made)
    expect(page.get_by_label("Rejected before")).to_contain_text("six fingers <b>")
    expect(page.get_by_label("Rejected before")).to_contain_text("images/02.png")


def test_a_step_runs_again_with_other_arguments_after_the_api_has_refused_wrong_ones(site, page):
    id = a_finished_film(site)
    open_image(page, id)
    panel = page.get_by_role("dialog")
    arguments = panel.get_by_label("Other arguments")

    for wrong, words in (("[9", "aren't JSON"), ('{"number": 9}', "args"), ('["nine"]', "number")):
        arguments.fill(wrong)
        panel.get_by_role("button", name="Run it again").click()
        expect(panel.get_by_role("alert")).to_contain_text(words)
    assert page.url.endswith(f"/jobs/{id}"), "nothing was made"
    arguments.fill("[9]")
    expect(panel.locator(".copy")).to_contain_text("--args '[9]'")
    panel.get_by_role("button", name="Run it again").click()
    made = other_run(page, id)
    done = site.until(made, "completed")

    [images] = [tab for tab in done["items"] if tab["stage"] == "image"]
    paths = [cell["path"] for cell in images["cells"]]
    results = [site.api.get(f"/jobs/{made}/step", params={"path": path}).json()["result"]["json"] for path in paths]
    assert sorted(results) == ["images/01.png", "images/03.png", "images/09.png"]


def test_a_fork_begins_before_a_step(site, page):
    id = a_finished_film(site)
    open_image(page, id)

    page.get_by_role("button", name="Fork before it").click()

    made = other_run(page, id)
    site.until(made, "completed")
    expect(page.locator(".why", has_text="A fork of")).to_contain_text("before image")
    told = site.api.get(f"/jobs/{made}/story").json()["entries"]
    assert any("kept" in " ".join(entry.get("notes", ())) + entry["sentence"] for entry in told)


def test_a_replay_is_preceded_by_its_plan_also_with_edited_arguments(site, page):
    site.working()
    id = site.submit("publish", "Plan", 18)
    site.until(id, "review")
    page.goto(f"/review/{id}")
    expect(page.locator(".plan")).to_contain_text("replay of publish")

    page.get_by_role("button", name="Edit and replay").click()
    page.get_by_label("Rating").fill("6")
    page.get_by_role("button", name="What would it do?").click()

    expect(page.locator(".plan")).to_contain_text("its arguments change")
    assert site.job(id)["job"]["state"] == "review", "a plan changes nothing"


def test_a_group_in_review_is_replayed_after_a_look(site, page):
    site.working()
    ids = [site.submit("publish", f"Together {number}", 18) for number in range(3)]
    for id in ids:
        site.until(id, "review")
    page.goto("/review")
    group = page.locator(".group", has_text="publish: ")
    expect(group).to_contain_text("ContentRefused")

    group.get_by_role("button", name="Replay all").click()
    expect(group.locator(".plan")).to_contain_text("failed steps run again")
    group.get_by_label("Reason").fill("asked again")
    group.get_by_role("button", name=re.compile(r"Replay \d+")).click()

    expect(page.locator(".job-title .pill")).to_contain_text("completed")
    for id in ids:
        told = site.api.get(f"/jobs/{id}/story").json()["entries"]
        assert any("asked again" in str(entry) for entry in told)
