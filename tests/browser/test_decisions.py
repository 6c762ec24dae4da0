"""What a person decides in the browser: cancel, signal, answer, review. And who may decide nothing."""

import subprocess
import sys

from playwright.sync_api import expect

from tests.browser.conftest import a_site, url_in


def test_a_job_is_cancelled_on_the_second_press(site, page):
    id = site.submit("echo", "stop me")
    page.goto(f"/jobs/{id}")

    page.get_by_role("button", name="Cancel").click()
    expect(page.get_by_role("button", name="Cancel it")).to_be_visible()
    assert site.job(id)["job"]["state"] == "available", "the first press only asks"
    page.get_by_role("button", name="Cancel it").click()

    expect(page.locator(".pill")).to_contain_text("cancelled")
    assert site.job(id)["story"][0]["event"] == "cancel"


def test_a_signal_reaches_a_waiting_job(site, page):
    site.working()
    id = site.submit("wait_for_approval", "Atlas")
    site.until(id, "pending")
    page.goto(f"/jobs/{id}")

    page.get_by_role("button", name="More").click()
    page.get_by_label("Signal").fill("approved")
    page.get_by_label("Value").fill('"by ada"')
    page.get_by_role("button", name="Send").click()

    expect(page.locator(".pill")).to_contain_text("completed")
    expect(page.get_by_label("Result")).to_contain_text("by ada")


def test_a_question_is_answered_and_its_form_refuses_bad_input(site, page):
    site.working()
    id = site.submit("write_book", "Atlas of Tides")
    site.until(id, "pending")
    page.goto(f"/review/{id}")
    expect(page.get_by_role("heading", name="Which cover shall the book have?")).to_be_visible()

    page.get_by_text("B", exact=True).click()
    page.get_by_label("Copies").fill("900")
    page.keyboard.press("Control+Enter")
    expect(page.locator(".field .error")).to_contain_text("50")
    page.reload()
    expect(page.get_by_label("Copies")).to_have_value("900")
    page.get_by_label("Copies").fill("12")
    page.keyboard.press("Control+Enter")

    ended = site.until(id, "completed")
    assert ended["result"]["json"] == "Atlas of Tides, cover B, 12 copies"
    expect(page.locator(".need", has_text="Atlas of Tides")).to_have_count(0)


def test_a_form_says_what_is_wrong_with_a_nested_model_a_list_and_a_mapping(site, page):
    site.working()
    id = site.submit("print_book", "Atlas of Tides")
    site.until(id, "pending")
    page.goto(f"/review/{id}")

    page.get_by_role("button", name="Answer").click()
    expect(page.get_by_role("alert")).to_contain_text("'height' is missing")
    expect(page.get_by_label("Height")).to_be_focused()
    page.get_by_label("Width").fill("210")
    page.get_by_label("Height").fill("0")
    page.get_by_role("button", name="Answer").click()
    expect(page.locator(".field", has=page.get_by_label("Height")).last.get_by_role("alert")).to_contain_text("1")
    page.get_by_label("Height").fill("297")
    page.get_by_label("Colours").fill('{"red": "much"}')
    page.get_by_role("button", name="Answer").click()
    expect(page.get_by_role("alert")).to_contain_text("red: must be of type integer")
    page.get_by_label("Colours").fill("")
    page.get_by_role("button", name="Add one").click()
    page.get_by_label("1", exact=True).fill("one")
    page.get_by_role("button", name="Answer").click()
    expect(page.get_by_role("alert")).to_contain_text("integer")
    page.get_by_label("1", exact=True).fill("1")
    page.get_by_role("button", name="Answer").click()

    assert site.until(id, "completed")["result"]["json"] == "Atlas of Tides, 210 by 297"


def test_a_draft_without_the_nested_model_says_so(site, page):
    site.working()
    id = site.submit("print_book", "Low Water")
    site.until(id, "pending")
    page.goto(f"/review/{id}")
    expect(page.get_by_role("heading", name="How shall it be printed?")).to_be_visible()
    name = site.job(id)["questions"][0]["name"]
    page.evaluate("([id, name]) => sessionStorage.setItem(`holdfast.draft.${id}.${name}`, '{}')", [id, name])
    page.reload()

    page.get_by_role("button", name="Answer").click()

    expect(page.get_by_role("alert")).to_contain_text("'size' is missing")


def test_the_key_that_a_button_shows_presses_it(site, page):
    site.working()
    id = site.submit("publish", "By key", 18)
    site.until(id, "review")
    page.goto(f"/jobs/{id}")
    expect(page.get_by_role("button", name="Replay", exact=True)).to_be_visible()
    before = site.job(id)["job"]["version"]

    page.keyboard.press("r")

    expect(page.locator(".story")).to_contain_text("Replayed")
    assert site.until(id, "review")["job"]["version"] > before


def test_a_failed_job_is_replayed_with_edited_arguments(site, page):
    site.working()
    id = site.submit("publish", "Storm Warning", 18)
    site.until(id, "review")
    page.goto(f"/review/{id}")
    expect(page.locator(".decide h2")).to_contain_text("Storm Warning is refused: 18")
    expect(page.locator(".trace")).to_contain_text("raise ContentRefused")

    page.get_by_role("button", name="Edit and replay").click()
    page.get_by_label("Rating").fill("high")
    page.get_by_role("button", name="Replay with this").click()
    expect(page.locator(".decide .error")).to_contain_text("int")
    page.get_by_label("Rating").fill("6")
    page.get_by_label("Reason").fill("rated again")
    page.get_by_role("button", name="Replay with this").click()

    assert site.until(id, "completed")["result"]["json"] == "Storm Warning is public"
    page.goto(f"/jobs/{id}")
    expect(page.locator(".story")).to_contain_text("rated again")


def test_an_effect_in_doubt_has_two_doors(site, page):
    site.stop_workers()
    sender = site.worker("--queues", "mail")
    id = site.submit("bill", 1187)
    site.until(id, "active")
    page.goto(f"/jobs/{id}")
    expect(page.locator(".plot .bar")).to_have_count(1)
    sender.kill()
    sender.wait()
    site.worker("--queues", "mail")
    site.until(id, "review")

    page.goto(f"/review/{id}")
    expect(page.locator(".door")).to_have_count(2)
    page.locator(".door input").fill('"sent by hand"')
    page.locator(".door .btn.main").click()

    assert site.until(id, "completed")["result"]["json"] == "sent by hand"


def test_giving_up_takes_two_presses_and_supplying_a_result_one(site, page):
    site.stop_workers()
    site.working()
    given_up, supplied = site.submit("publish", "One", 18), site.submit("publish", "Two", 18)
    site.until(given_up, "review")
    site.until(supplied, "review")

    page.goto(f"/jobs/{given_up}")
    page.get_by_role("button", name="Give up").click()
    page.get_by_role("button", name="Give it up").click()
    expect(page.locator(".job-title .pill")).to_contain_text("discarded")
    page.goto(f"/jobs/{supplied}")
    page.get_by_role("button", name="Supply the result").click()
    page.get_by_label("The result").fill('"by hand"')
    page.get_by_role("button", name="Complete with this").click()
    expect(page.locator(".job-title .pill")).to_contain_text("completed")


def token(folder, *scopes: str) -> str:
    command = [sys.executable, "-m", "holdfast.cli", "token", "create", f"t{len(scopes)}", "--scope", ",".join(scopes)]
    done = subprocess.run(
        [*command, "--url", url_in(folder)], cwd=folder, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_read_only_token_logs_in_and_sees_no_buttons(browser, tmp_path):
    with a_site(tmp_path) as site:
        id = site.submit("echo", "look but don't touch")
        text = token(tmp_path, "read")
        page = browser.new_page(base_url=site.base)
        page.goto(f"/jobs/{id}")

        expect(page.get_by_label("Token")).to_be_visible()
        page.get_by_label("Token").fill("hf_wrong")
        page.get_by_role("button", name="Log in").click()
        expect(page.get_by_role("alert")).to_contain_text("token")
        page.get_by_label("Token").fill(text)
        page.get_by_role("button", name="Log in").click()

        expect(page.locator(".job-title b")).to_have_text("look but don't touch")
        assert page.evaluate("document.cookie") == ""
        expect(page.get_by_role("button", name="Cancel")).to_have_count(0)
        page.goto("/queues")
        expect(page.locator(".card h2").first).to_be_visible()
        expect(page.get_by_role("button", name="Pause")).to_have_count(0)
        page.goto("/jobs")
        expect(page.locator(".job-rows .job-row")).to_have_count(1)
        expect(page.locator(".job-rows input")).to_have_count(0)

        acting = token(tmp_path, "read", "act")
        page.goto("/login")
        page.get_by_label("Token").fill(acting)
        page.get_by_role("button", name="Log in").click()
        page.wait_for_url("**/")
        page.goto(f"/jobs/{id}")
        page.get_by_role("button", name="Cancel").click()
        page.get_by_role("button", name="Cancel it").click()
        expect(page.locator(".pill")).to_contain_text("cancelled")
        page.close()
