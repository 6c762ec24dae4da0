"""crash_everywhere: it finds what breaks when a worker dies, says where and what to do, and lets good code pass."""

import asyncio
import itertools
import random
import threading
import time
from collections import Counter
from typing import Any

import pytest

from holdfast import App, ask, current, sleep, step, wait_for
from holdfast.core.errors import Invalid
from holdfast.testing import Crash, Provider, crash_everywhere
from holdfast.worker.attempt import Attempt
from holdfast.worker.context import CAPTURING

app = App("sqlite:////no/such/folder/jobs.db")
made: list[Any] = []
undone: list[Any] = []
ticks = itertools.count()

BEFORE = "before the effect"
BETWEEN = "after the effect and before the record"
AFTER = "after the record"


@pytest.fixture(autouse=True)
def fresh():
    made.clear()
    undone.clear()


@step
async def draw(scene: Any) -> str:
    made.append(scene)
    await asyncio.sleep(0)
    return f"{scene}.png"


@step
def carve(scene: int) -> str:
    made.append(scene)
    return f"{scene}.stone"


@step(effect="once", key=lambda to: to)
async def send(to: str) -> str:
    made.append(to)
    return f"sent to {to}"


def found(job: Any, *args: Any, **options: Any) -> str:
    with pytest.raises(AssertionError) as raised:
        crash_everywhere(job, *args, **options)
    print(raised.value)
    return str(raised.value)


def whens(crashes: list[Crash], step: str) -> list[str]:
    return [crash.at.when for crash in crashes if crash.at.step == step]


# What it finds.


def test_it_finds_a_random_argument():
    @app.job(name="lottery")
    async def lottery() -> str:
        return await draw(random.random())

    told = found(lottery)
    assert "crash_everywhere(lottery): its worker was killed (lottery, before the end is written)" in told
    assert "Step draw was called with arguments that differ from the recorded ones: draw#" in told
    assert "it differs in 'scene'" in told
    assert "put everything random and every clock into a step" in told


def test_it_finds_an_effect_that_happens_twice():
    @app.job(name="shop")
    async def shop() -> str:
        await draw("receipt")
        return await draw("parcel")

    told = found(shop, effects=made)
    assert f"killed (shop: draw, {BETWEEN} (number 2), at draw#" in told
    assert "There were 3 effects; without a kill there were 2: the effect of draw happened again." in told
    assert "Pass current().idempotency_key to the provider" in told
    assert "repeats=1" in told


def test_it_finds_code_that_decides_by_the_clock():
    @app.job(name="by_night")
    async def by_night() -> str:
        return await (draw("sun") if next(ticks) % 2 else carve.aio(1))

    told = found(by_night)
    assert "Decide only by the job's arguments, step results and signals" in told


def test_it_finds_a_step_that_is_forgotten_after_a_kill():
    @app.job(name="hasty")
    async def hasty() -> str:
        if current().epoch == 1:
            await draw("sketch")
        return await draw("film")

    told = found(hasty)
    assert "Step draw#" in told
    assert "is recorded, but the job's code didn't call it when it ran again" in told


def test_it_finds_an_effect_between_steps():
    @app.job(name="careless")
    async def careless() -> str:
        image = await send("ada")
        made.append("not in a step")
        return image

    told = found(careless, effects=made)
    assert "There were 3 effects; without a kill there were 2" in told
    assert "put the effect into a step if it is outside of one" in told


def test_it_finds_a_child_that_is_submitted_anew():
    @app.job(name="leaf")
    async def leaf(number: float) -> float:
        await sleep("1h")  # so that the tree gives up its slot
        return 1.0

    @app.job(name="tree")
    async def tree() -> float:
        return await (await leaf.submit(random.random())).result()

    assert "does its code ask for something new each time it runs?" in found(tree)


def test_it_finds_a_child_that_is_submitted_again_after_a_kill():
    @app.job(name="twig")
    async def twig(owner: int) -> None: ...

    @app.job(name="bush")
    async def bush() -> None:
        await twig.submit(min(2, current().epoch))

    assert "This run made 2 of twig; the first run made 1" in found(bush)


def test_it_finds_a_result_that_depends_on_the_kill():
    @app.job(name="vain")
    async def vain() -> str:
        await draw("film")
        return f"made by owner {current().epoch}"

    assert "The result is 'made by owner 2'; in the first run it was 'made by owner 1'" in found(vain)
    assert crash_everywhere(vain, same=lambda text: text.partition(" owner ")[0])


def test_a_failure_without_any_kill_is_told_as_such():
    @app.job(name="broken", retries=0)
    async def broken() -> None:
        raise RuntimeError("no film")

    told = found(broken)
    assert "even without killing a worker, ended in review with RuntimeError: no film" in told
    assert "Traceback" in told


def test_a_wait_that_nobody_answers_is_told_with_what_to_give():
    @app.job(name="lonely")
    async def lonely() -> Any:
        return await wait_for("approved")

    assert "waits for 'approved', and nothing answers it; pass signals={'approved': …}" in found(lonely)


def test_a_job_that_expires_is_told_too():
    @app.job(name="too_late")
    async def too_late() -> None: ...

    assert "even without killing a worker, ended in discarded" in found(too_late, delay="2h", expires="1h")


def test_a_life_that_does_not_end_is_bounded():
    @app.job(name="slow")
    async def slow() -> None:
        await asyncio.sleep(30)

    began = time.monotonic()
    assert "it didn't end within 0.2 s" in found(slow, within=0.2)
    assert time.monotonic() - began < 10


@pytest.mark.parametrize("wrong", [draw, len, None])
def test_what_is_no_job_is_refused(wrong: Any):
    with pytest.raises(Invalid, match="is not a job"):
        crash_everywhere(wrong)


def test_it_would_find_a_worker_that_forgets_what_is_recorded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Attempt, "load", lambda attempt, steps: None)

    @app.job(name="forgotten")
    async def forgotten() -> str:
        return await draw("sea")

    assert "was recorded, but ran again" in found(forgotten)


# What passes, and where the kills are.


def test_each_step_is_killed_at_its_three_boundaries_and_the_job_at_its_own(caplog):
    @app.job(name="film")
    async def film() -> str:
        return await carve.aio(1) + await draw("sea")

    crashes = crash_everywhere(film, effects=made, repeats=1)
    assert [str(crash.at) for crash in crashes] == [
        "film, after the claim",
        f"film: carve, {BEFORE}",
        f"film: carve, {BETWEEN}",
        f"film: carve, {AFTER}",
        f"film: draw, {BEFORE}",
        f"film: draw, {BETWEEN}",
        f"film: draw, {AFTER}",
        "film, before the end is written",
        "film, after the end is written",
    ]
    assert [crash.effects for crash in crashes] == [2, 2, 3, 2, 2, 3, 2, 2, 2]
    assert [crash.recorded for crash in crashes] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert "stopped the event loop" not in caplog.text, "that is our own kill, and no fault of the job's"


def test_a_kill_runs_no_finally_block():
    tidied: list[int] = []

    @app.job(name="tidy")
    async def tidy() -> str:
        try:
            return await send("ada")
        finally:
            tidied.append(current().epoch)

    crashes = crash_everywhere(tidy, effects=tidied, repeats=1)
    ran = {crash.at.when: crash.effects for crash in crashes}
    assert ran == {
        "after the claim": 1,
        BEFORE: 1,
        "after the intent and before the effect": 1,
        BETWEEN: 1,
        AFTER: 1,
        "before the end is written": 2,
        "after the end is written": 1,
    }, "only where the killed worker had come past it"


def test_a_map_with_items_at_once_repeats_no_more_than_ran_at_once():
    @app.job(name="album")
    async def album() -> list[str]:
        return await draw.map(range(5), at_once=3)

    crashes = crash_everywhere(album, effects=made, repeats=3)
    assert Counter(whens(crashes, "draw")) == {BEFORE: 5, BETWEEN: 5, AFTER: 5}
    assert max(crash.effects for crash in crashes) > 6, "more than one item was under way at a kill"
    assert crashes[1].at.when == BEFORE
    assert crashes[1].effects == 5, "its neighbours, which were about to begin, did not either"


def test_def_jobs_threads_and_both_colours():
    @app.job(name="statue")
    def statue() -> list[str]:
        stones = carve.map(range(4), at_once=2)
        sleep.sync("1d")
        return [*stones, draw.sync("sea"), wait_for.sync("go", as_=str)]

    crashes = crash_everywhere(statue, signals={"go": "on"}, effects=made, repeats=2)
    assert Counter(whens(crashes, "carve")) == {BEFORE: 4, BETWEEN: 4, AFTER: 4}


def test_waits_are_boundaries_and_cost_no_time():
    @app.job(name="patient")
    async def patient() -> list[Any]:
        first = await draw("sea")
        await sleep("30d")
        verdict = await ask({"image": first}, form=str, within="2d")
        try:
            await wait_for("never", within="7d")
        except TimeoutError:
            verdict += ", late"
        return [verdict, *await asyncio.gather(wait_for("a", as_=int), wait_for("b", as_=int))]

    signals = {"ask": lambda question: f"{question['image']} is fine", "a": 1, "b": 2}
    crashes = crash_everywhere(patient, signals=signals, effects=made, repeats=1)
    answers = ["before the answer is recorded", "after the answer is recorded"]
    assert [whens(crashes, name) for name in ("ask", "never", "a", "b")] == [answers] * 4
    assert whens(crashes, "").count("before the wait is written") >= 4


def test_children_are_killed_at_their_boundaries_too():
    @app.job(name="chapter")
    async def chapter(number: int) -> str:
        return await draw(number)

    @app.job(name="book")
    async def book() -> list[str]:
        preface = await chapter.submit(0)
        return [*await chapter.map([1, 2]), await preface.result()]

    crashes = crash_everywhere(book, effects=made, repeats=3)
    where = Counter((crash.at.job, crash.at.when) for crash in crashes)
    assert where["chapter", BETWEEN] == 3
    assert where["chapter", "after the end is written"] == 3
    assert where["book", "after the children are submitted"] == 2


def test_steps_in_steps_failures_and_retries():
    @step(name="fails")
    async def fails() -> None:
        raise LookupError("no such scene")

    @step(name="outer")
    async def outer(scene: str) -> str:
        return await draw(scene) + await draw(f"{scene} 2")

    @app.job(name="stubborn", retries=1)
    async def stubborn() -> str:
        try:
            await fails()
        except LookupError:
            text = await outer("sea")
        if current().attempt == 1:
            raise RuntimeError("the first attempt")
        return text

    crashes = crash_everywhere(stubborn, effects=made, repeats=1)
    assert whens(crashes, "")[1:4] == [
        "before the failure is written",
        "after the failure is written",
        "after the claim",
    ]


def test_undo_is_killed_at_its_boundaries():
    async def give_back(flat: str | None) -> None:
        undone.append(flat)

    @step(name="rent", undo=give_back)
    async def rent(flat: str) -> str:
        made.append(flat)
        return flat

    @app.job(name="stay")
    async def stay() -> None:
        await rent("one")
        await rent("two")
        await wait_for("approved")

    crashes = crash_everywhere(stay, cancel_at="approved", effects=undone, repeats=1)
    jobs = Counter(crash.at.job for crash in crashes)
    assert jobs["holdfast.undo"] >= 2 * 3
    assert undone[:2] == ["two", "one"]
    lives = len(crashes) + 1
    assert 2 * lives <= len(undone) <= 2 * lives + 2, "only where the undo itself was cut off it ran again"


# Effects that happen once.


def test_who_knows_the_truth_resolves_what_is_in_doubt():
    @app.job(name="mail")
    async def mail() -> str:
        return await send("ada")

    crashes = crash_everywhere(mail, effects=made)
    doubted = [crash.at.when for crash in crashes if crash.doubts == ("send#ada",)]
    assert doubted == ["after the intent and before the effect", BETWEEN]


def test_done_again_it_happens_twice():
    @app.job(name="mail_again")
    async def mail_again() -> str:
        return await send("ada")

    assert "the effect of send happened again" in found(mail_again, effects=made, doubt="again")


def test_a_function_may_look():
    looked: list[str] = []

    def look(path: str) -> str:
        looked.append(path)
        if "bob" in made:
            return "sent to bob"
        raise LookupError

    @app.job(name="mail_bob")
    async def mail_bob() -> str:
        made.clear()
        return await send("bob")

    crash_everywhere(mail_bob, doubt=look)
    assert looked == ["send#bob"] * 2


def test_a_function_is_asked_of_each_of_several_effects_in_doubt():
    @step(name="send_beside", effect="once", key=lambda to: to)
    async def send_beside(to: str) -> str:
        made.append(to)
        await asyncio.sleep(0.01)
        return to

    def look(path: str) -> str:
        to = path.partition("#")[2]
        if to in made:
            return to
        raise LookupError

    @app.job(name="mail_each")
    async def mail_each() -> list[str]:
        if current().epoch == 1:
            made.clear()
        return await send_beside.map(["ann", "bob"], at_once=2)

    crashes = crash_everywhere(mail_each, doubt=look, within="10s")
    assert {crash.doubts for crash in crashes if len(crash.doubts) > 1} == {("send_beside#ann", "send_beside#bob")}


def test_what_only_the_provider_knows_is_not_guessed():
    @step(name="send_slowly", effect="once", key=lambda to: to)
    async def send_slowly(to: str) -> str:
        await asyncio.sleep(0.02)
        return to

    @app.job(name="mail_both")
    async def mail_both() -> list[str]:
        return await send_slowly.map(["ada", "bob"])

    assert "was running when its worker was killed" in found(mail_both)


def test_a_provider_counts_for_itself_and_async_tests_hand_it_to_a_thread():
    @app.job(name="charged")
    async def charged() -> str:
        return await send("ada")

    async def main() -> int:
        with Provider() as provider:
            return len(await asyncio.to_thread(crash_everywhere, charged, effects=provider))

    assert asyncio.run(main()) == 7


def test_nothing_is_left_behind():
    @app.job(name="transient")
    def transient() -> str:
        return carve(1) + draw.sync("sea")

    @app.job(name="transient_too")
    async def transient_too() -> list[str]:
        return list(await asyncio.gather(carve.aio(1), draw("sea"), asyncio.to_thread(str, 1)))

    before = set(threading.enumerate())
    capturing = CAPTURING._users
    crash_everywhere(transient)
    crash_everywhere(transient_too)
    left = [thread for thread in set(threading.enumerate()) - before if thread.is_alive()]
    for thread in left:
        thread.join(5)
    assert [thread.name for thread in left if thread.is_alive()] == []
    assert CAPTURING._users == capturing


def test_it_works_where_an_event_loop_runs():
    @app.job(name="in_a_loop")
    async def in_a_loop() -> str:
        return await draw("sea")

    async def main() -> list[Crash]:
        return crash_everywhere(in_a_loop)

    assert len(asyncio.run(main())) == 6


@app.job(isolate="process")
async def far() -> str:
    return await draw("sea")


def test_isolated_jobs_run_where_the_test_can_see_them():
    crashes = crash_everywhere(far, effects=made, repeats=1)
    assert whens(crashes, "draw") == [BEFORE, BETWEEN, AFTER]
