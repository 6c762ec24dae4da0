"""A rejected step runs again, with a new key and what the person said. What gets its result runs; the rest stays."""

import asyncio

import pytest

from holdfast import App, current, spend, step, wait_for
from holdfast.core.errors import BadValue, Invalid, NotAllowed, NotFound, StoreBusy
from holdfast.core.model import State, Where
from holdfast.core.reruns import AGAIN_PATH, ASIDE_PATH
from holdfast.jobs.replay_plans import preview_replay
from holdfast.jobs.views.pages.job_page import view_job_page
from tests.support.given import until

ENGINES = ["memory", "file", "sqlite", "postgres", "redis"]

calls: list[tuple[str, str]] = []
keys: list[str] = []
published_with: list[str] = []
heard: list[tuple[str, object]] = []
undone: list[tuple[str, str]] = []
world = {"fails": False, "pictures": 0}


def took(name: str, argument: str) -> None:
    calls.append((name, argument))


def erase(picture: str | None) -> None:
    undone.append((str(picture), current().idempotency_key))


@step(undo=erase)
async def sketch(scene: str) -> str:
    took("sketch", scene)
    keys.append(current().idempotency_key)
    heard.append((current().feedback, current().rejected))
    spend(usd=1)
    world["pictures"] += 1
    return f"{scene}-{world['pictures']}.png"


@step(key=lambda number, picture: f"clip-{number}")
async def animate(number: int, picture: str) -> str:
    took("animate", picture)
    return f"{picture}.mp4"


@step(effect="once", key=lambda film: "film")
async def publish(film: str) -> str:
    took("publish", film)
    published_with.append(current().idempotency_key)
    return f"published {film}"


@step
async def chapter(title: str) -> str:
    took("chapter", title)
    return await sketch(f"{title}-cover")


@pytest.fixture
def film(app: App):
    for record in (calls, keys, published_with, heard, undone):
        record.clear()
    world.update(fails=False, pictures=0)

    @app.job(retries=0)
    async def film(scenes: list[str], publishes: bool = False) -> list[str]:
        pictures = await sketch.map(scenes, at_once=1)
        clips = [await animate(number, picture) for number, picture in enumerate(pictures)]
        if world["fails"]:
            raise ValueError("the film is out")
        return [*clips, *([await publish(str(len(clips)))] if publishes else [])]

    return film


async def ended(app: App, run) -> State:
    async def state() -> State | None:
        (job,) = await app.engine.get([run.id])
        return job.state if job.state in (State.COMPLETED, State.REVIEW, State.CANCELLED) else None

    return await until(state)


async def test_of_an_ended_job_a_new_run_is_made_that_pays_only_for_what_changes(app: App, film):
    async with app.worker():
        run = await film.submit(["sea", "hill", "lake"], True)
        before = ["sea-1.png.mp4", "hill-2.png.mp4", "lake-3.png.mp4", "published 3"]
        assert await run.result() == before
        calls.clear()

        again = await run.rerun("sketch#2", feedback="six fingers")

        assert again.id != run.id
        assert await again.result() == ["sea-1.png.mp4", "hill-4.png.mp4", "lake-3.png.mp4", "published 3"]
        status = await again.status()
    assert calls == [("sketch", "hill"), ("animate", "hill-4.png")]
    assert heard[-1] == ("six fingers", "hill-2.png")
    assert len(set(keys)) == 4
    assert (status.spent, status.saved) == ({"usd": 1}, {"usd": 2})
    told = (await again.history())[1]
    assert (told.event, told.note["rerun"], told.note["kept"]) == ("activate", run.id, "6 recorded steps")
    assert told.note["at"] == 'sketch "hill"'
    assert await run.result() == before


async def test_a_job_in_review_is_replayed_without_what_was_rejected_and_its_history_keeps_it(app: App, film):
    world["fails"] = True
    async with app.worker():
        run = await film.submit(["sea", "hill"])
        assert await ended(app, run) is State.REVIEW
        calls.clear()
        world["fails"] = False

        again = await run.rerun("sketch#1", feedback="too dark", reason="the client said so")

        assert again.id == run.id
        assert await run.result() == ["sea-3.png.mp4", "hill-2.png.mp4"]
        status = await run.status()
    assert calls == [("sketch", "sea"), ("animate", "sea-3.png")]
    assert heard[-1] == ("too dark", "sea-1.png")
    assert keys[-1] not in keys[:-1]
    assert (status.spent, status.wasted) == ({"usd": 3}, {"usd": 1})
    assert status.spending.wasted_by == {"sketch": {"usd": 1_000_000}}
    (told,) = [entry for entry in await run.history() if entry.event == "replay"]
    assert told.note["feedback"] == "too dark"
    assert told.note["reason"] == "the client said so"
    assert told.note["set_aside"] == 1
    assert told.note["again"] == ['sketch "sea"']
    (aside,) = await app.engine.steps_under(run.id, ASIDE_PATH)
    assert aside.result == '"sea-1.png"'


async def test_a_third_generation_has_a_third_key_and_an_interrupted_rerun_keeps_its_own(app: App, film):
    world["fails"] = True
    async with app.worker():
        run = await film.submit(["sea"])
        for _ in range(2):
            assert await ended(app, run) is State.REVIEW
            await run.rerun("sketch")
        assert await ended(app, run) is State.REVIEW
        await run.replay()  # without a rerun: nothing is drawn again
        await until(lambda: ended(app, run))

    assert calls.count(("sketch", "sea")) == 3
    assert len(set(keys)) == 3


async def test_the_steps_around_a_rejected_step_run_again_too(app: App, film):
    @app.job(retries=0)
    async def book(titles: list[str]) -> list[str]:
        return [await chapter(title) for title in titles]

    async with app.worker():
        run = await book.submit(["one", "two"])
        assert await run.result() == ["one-cover-1.png", "two-cover-2.png"]
        calls.clear()
        (inner,) = [
            one.path for one in await app.engine.steps(run.id) if "/" in one.path and one.result == '"one-cover-1.png"'
        ]
        again = await run.rerun(inner)
        assert await again.result() == ["one-cover-3.png", "two-cover-2.png"]

    assert calls == [("chapter", "one"), ("sketch", "one-cover")]


async def test_other_arguments_are_given_to_the_step_and_are_checked(app: App, film):
    async with app.worker():
        run = await film.submit(["sea"])
        await run.result()
        with pytest.raises(BadValue, match="of sketch: Input should be a valid string"):
            await run.rerun("sketch", args=[7])
        again = await run.rerun("sketch", args=["a calm sea"])
        assert await again.result() == ["a calm sea-2.png.mp4"]


@step
def paint(size: int) -> str:
    heard.append((current().feedback, current().rejected))
    return "x" * size


@step
async def portrait(size: int) -> int:
    return len(await paint.aio(size))


@pytest.mark.parametrize("engine", ["memory", "sqlite"], indirect=True)
async def test_a_large_rejected_result_is_seen_by_the_step_and_not_a_reference_to_it(app: App, film):
    @app.job(retries=0)
    async def gallery(size: int) -> int:
        return await portrait(size)

    async with app.worker():
        run = await gallery.submit(100_000)
        assert await run.result(timeout=60) == 100_000
        path = next(one.path for one in await app.engine.steps(run.id) if one.name == "paint")
        assert await (await run.rerun(path, feedback="too dull")).result(timeout=60) == 100_000
    assert heard[-1] == ("too dull", "x" * 100_000)


async def test_what_was_made_twice_is_undone_twice_with_both_keys(app: App, film):
    world["fails"] = True
    async with app.worker():
        run = await film.submit(["sea"])
        assert await ended(app, run) is State.REVIEW
        await run.rerun("sketch")
        await until(lambda: len(keys) == 2)
        assert await ended(app, run) is State.REVIEW
        await run.discard()
        await until(lambda: len(undone) == 2)

    assert {one for one, _ in undone} == {"sea-1.png", "sea-2.png"}
    assert {key for _, key in undone} == set(keys)


async def test_a_copy_never_undoes_what_the_first_run_made(app: App, film):
    async with app.worker():
        run = await film.submit(["sea", "hill"])
        await run.result()
        world["fails"] = True
        again = await run.rerun("sketch#1")
        assert await ended(app, again) is State.REVIEW
        await again.discard()
        await until(lambda: len(undone) == 1)

    assert undone == [("sea-3.png", keys[-1])]


async def test_steps_are_numbered_in_the_order_of_their_calls_whichever_ended_first(app: App, film):
    gates = [asyncio.Event() for _ in range(4)]

    @step(name="shot")
    async def shot(number: int) -> str:
        await gates[number].wait()
        took("shot", str(number))
        heard.append((current().feedback, current().rejected))
        return f"shot {number}"

    @app.job(retries=0)
    async def reel(numbers: list[int]) -> list[str]:
        shots = await shot.map(numbers)
        if world["fails"]:
            raise ValueError("the reel is out")
        return shots

    async with app.worker():
        run = await reel.submit([0, 1, 2, 3])
        for gate in reversed(gates):
            gate.set()
            await until(lambda gate=gate: len(calls) == 4 - gates.index(gate))
        await run.result()
        assert [number for _, number in calls] == ["3", "2", "1", "0"]

        world["fails"] = True
        again = await run.rerun("shot#3", feedback="first")
        assert await ended(app, again) is State.REVIEW
        assert (calls[-1], heard[-1]) == (("shot", "2"), ("first", "shot 2"))
        await again.rerun("shot#2", feedback="then")
        assert await ended(app, again) is State.REVIEW
        assert (calls[-1], heard[-1]) == (("shot", "1"), ("then", "shot 1"))
        await again.rerun("shot#3", feedback="last")
        assert await ended(app, again) is State.REVIEW
        assert (calls[-1], heard[-1]) == (("shot", "2"), ("last", "shot 2"))


@step
async def cut(parts: list[str]) -> str:
    took("cut", str(len(parts)))
    return f"cut {len(calls)} of {' '.join(parts)}"


@pytest.fixture
def reel(app: App, film):
    @app.job(retries=0)
    async def reel(scenes: list[str]) -> list[str]:
        pictures = [await sketch(scene) for scene in scenes]
        title = await chapter("one")
        return [*pictures, title, await cut([*pictures, title])]

    return reel


@pytest.mark.parametrize("engine", ["memory", "sqlite"], indirect=True)
async def test_results_that_a_rerun_has_replaced_do_not_count_and_steps_inside_others_come_in_their_place(
    app: App, reel
):
    async with app.worker():
        run = await reel.submit(["sea", "hill", "lake"])
        first = await run.result(timeout=60)
        for number, scene in ((3, "lake"), (1, "sea"), (4, "one-cover")):
            run = await run.rerun(f"sketch#{number}")
            await run.result(timeout=60)
            assert [argument for name, argument in calls if name == "sketch"][-1] == scene
        calls.clear()

        last = await (await run.rerun("cut", feedback="too long")).result(timeout=60)

    assert calls == [("cut", "4")]
    assert last[1] == first[1]
    assert last[:4] == (await run.result())[:4]


async def test_what_a_rerun_has_replaced_is_in_no_count_and_no_plan(app: App, film):
    """Of `animate`, which has a key, two results are replaced; the second one only once the last run has ended."""
    async with app.worker():
        run = await film.submit(["sea", "hill", "lake"])
        await run.result(timeout=60)
        again = await run.rerun("sketch#2")
        await again.result(timeout=60)
        status, page = await again.status(), await view_job_page(app.jobs, again.id, {})
        world["fails"] = True
        last = await again.rerun("sketch#2")
        assert await ended(app, last) is State.REVIEW
        plan, stopped = await preview_replay(app.jobs, last.id), await view_job_page(app.jobs, last.id, {})

    assert (status.done, status.total) == (6, 6)
    assert [(tab.stage, tab.words, len(tab.cells)) for tab in page.items] == [
        ("animate", "3 of 3", 3),
        ("sketch", "3 of 3", 3),
    ]
    assert len(await app.engine.steps_page(again.id)) == 7, "the record itself is kept"
    assert len(plan.recorded) == 6
    assert {path.partition("*")[2] for path in plan.recorded} == {"", "2"}
    assert [(tab.stage, tab.words) for tab in stopped.items] == [("animate", "3 of 3"), ("sketch", "3 of 3")]


@pytest.mark.parametrize("engine", ["memory", "sqlite"], indirect=True)
async def test_a_call_without_a_key_that_a_rerun_has_replaced_is_not_counted_once_the_run_has_completed(app: App, reel):
    async with app.worker():
        run = await reel.submit(["sea", "hill"])
        await run.result(timeout=60)
        first = await run.status()
        run = await run.rerun("sketch#1")
        await run.result(timeout=60)
        again = await run.status()

    assert (first.done, first.total) == (again.done, again.total) == (5, 5)


@pytest.mark.parametrize("engine", ["memory", "sqlite"], indirect=True)
async def test_a_fork_of_a_rerun_keeps_what_was_made_again_before_the_step(app: App, reel):
    async with app.worker():
        run = await reel.submit(["sea", "hill"])
        await run.result(timeout=60)
        run = await run.rerun("sketch#1")
        made = await run.result(timeout=60)
        calls.clear()

        assert (await (await run.fork(until="cut")).result(timeout=60))[:3] == made[:3]
        assert calls == [("cut", "3")]
        calls.clear()
        assert (await (await run.fork(until="chapter")).result(timeout=60))[:2] == made[:2]
        assert calls == [("chapter", "one"), ("sketch", "one-cover"), ("cut", "3")]


async def test_a_fork_before_a_step_inside_another_runs_both(app: App, reel):
    async with app.worker():
        run = await reel.submit(["sea"])
        await run.result(timeout=60)
        (inner,) = [
            one.path for one in await app.engine.steps(run.id) if one.path.startswith("chapter") and "/" in one.path
        ]
        calls.clear()
        await (await run.fork(until=inner)).result(timeout=60)

    assert calls == [("chapter", "one"), ("sketch", "one-cover"), ("cut", "2")]


@pytest.mark.parametrize("engine", ["memory"], indirect=True)
async def test_of_a_run_that_was_pruned_nothing_is_made_and_nothing_runs_again(app: App, film, clock):
    async with app.worker():
        run = await film.submit(["sea"])
        await run.result(timeout=60)
    clock.advance(60 * 24 * 3_600)
    assert await app.engine.prune() == 1
    for act in (run.fork(), run.fork(until="sketch"), run.rerun("sketch"), run.replay(), run.preview_replay()):
        with pytest.raises(NotFound, match="there is no job .*it may have been pruned"):
            await act


async def test_what_a_cancelled_run_has_undone_is_made_again_in_its_copies(app: App, film):
    @app.job(retries=0)
    async def book(titles: list[str]) -> list[str]:
        covers = [*[await chapter(title) for title in titles], await animate(0, "title")]
        return [await wait_for("go", as_=str), *covers]

    async def copied(run) -> list[str]:
        calls.clear()
        await run.signal("go", "done")
        await run.result()
        return sorted(f"{name} {argument}" for name, argument in calls)

    async with app.worker():
        run = await book.submit(["one", "two"])
        await until(lambda: len(calls) == 5)
        await run.cancel()
        await until(lambda: len(undone) == 2)
        all_again = ["chapter one", "chapter two", "sketch one-cover", "sketch two-cover"]

        assert await copied(await run.fork()) == all_again
        (clip,) = [one for one in await app.engine.steps(run.id) if one.name == "animate"]
        assert await copied(await run.rerun(clip.path)) == ["animate title", *all_again]


@pytest.mark.parametrize("engine", ["memory"], indirect=True)
async def test_an_effect_needs_a_yes_by_name(app: App, film):
    async with app.worker():
        run = await film.submit(["sea"], True)
        await run.result()
        with pytest.raises(NotAllowed, match=r"would let publish#film happen again.*--allow 'publish#film'"):
            await run.rerun("publish")
        again = await run.rerun("publish", allow=["publish"])
        await again.result()

    assert calls.count(("publish", "1")) == 2


@pytest.fixture
def poster(app: App, film):
    @app.job(retries=2)
    async def poster(scene: str) -> str:
        published = await publish(await sketch(scene))
        if world["fails"]:
            raise ValueError("the poster is out")
        return published

    return poster


async def test_an_effect_that_receives_a_new_result_happens_again_if_that_was_allowed(app: App, poster):
    async with app.worker():
        run = await poster.submit("sea")
        await run.result()

        again = await run.rerun("sketch", feedback="six fingers", allow=["publish"])

        assert await again.result() == "published sea-2.png"
    assert calls == [("sketch", "sea"), ("publish", "sea-1.png"), ("sketch", "sea"), ("publish", "sea-2.png")]


async def test_an_effect_that_nobody_allowed_stops_in_review_and_can_be_allowed_there(app: App, poster):
    async with app.worker():
        run = await poster.submit("sea")
        await run.result()
        again = await run.rerun("sketch")
        assert await ended(app, again) is State.REVIEW
        status = await again.status()
        assert "publish#film has already happened, and a rerun has changed its arguments" in str(status)
        assert (
            f"holdfast rerun {again.id} 'publish#film' --allow 'publish#film'"
            in (await app.engine.get([again.id]))[0].error.message
        )
        assert calls.count(("publish", "sea-2.png")) == 0

        await again.rerun("publish", allow=["publish#film"])

        assert await again.result() == "published sea-2.png"
    assert [argument for name, argument in calls if name == "publish"] == ["sea-1.png", "sea-2.png"]


async def test_an_allowed_effect_in_a_replayed_job_gets_a_new_key_and_happens_once(app: App, poster):
    world["fails"] = True
    async with app.worker():
        run = await poster.submit("sea")
        assert await ended(app, run) is State.REVIEW
        await run.rerun("sketch", allow=["publish"])
        assert await ended(app, run) is State.REVIEW
        world["fails"] = False
        await run.replay()
        assert await run.result() == "published sea-2.png"

    assert [argument for name, argument in calls if name == "publish"] == ["sea-1.png", "sea-2.png"]
    assert len(set(published_with)) == 2


@pytest.mark.parametrize("engine", ["memory"], indirect=True)
async def test_a_yes_is_for_one_rerun_only(app: App, poster):
    async with app.worker():
        run = await poster.submit("sea")
        await run.result()
        again = await run.rerun("sketch", allow=["publish"])
        await again.result()
        third = await again.rerun("sketch")
        assert await ended(app, third) is State.REVIEW
        (counted,) = [one for one in await app.engine.steps((await again.fork()).id) if one.path == AGAIN_PATH]
        assert counted.result == "1"

    assert [argument for name, argument in calls if name == "publish"] == ["sea-1.png", "sea-2.png"]


@pytest.mark.parametrize("engine", ["memory"], indirect=True)
async def test_only_recorded_effects_can_be_allowed(app: App, film):
    async with app.worker():
        run = await film.submit(["sea"], True)
        await run.result()
        with pytest.raises(Invalid, match=r"has no recorded effect \(.*\) 'nonsense'; it has publish"):
            await run.rerun("sketch", allow=["nonsense"])
        with pytest.raises(Invalid, match="'sketch'; it has publish"):
            await run.fork(allow=["sketch"])


@pytest.mark.parametrize("engine", ["memory"], indirect=True)
async def test_what_can_not_run_again_is_refused_with_what_to_do(app: App, film):
    run = await film.submit(["sea", "hill"])
    with pytest.raises(NotFound, match="has no recorded step 'sketch'; it has recorded none"):
        await run.rerun("sketch")
    async with app.worker():
        await run.result()
    with pytest.raises(NotFound, match=r"has no recorded step 'sketched'; did you mean sketch\?"):
        await run.rerun("sketched")
    with pytest.raises(Invalid, match="has 2 steps sketch; choose one, such as sketch#1"):
        await run.rerun("sketch")
    with pytest.raises(NotFound, match="has 2 steps sketch, so there is no 'sketch#3'"):
        await run.rerun("sketch#3")
    with pytest.raises(Invalid, match="name the steps to run again"):
        await run.rerun()


@pytest.mark.parametrize("engine", ["memory"], indirect=True)
@pytest.mark.parametrize(
    ("steps", "given", "line"),
    [
        ([3], {}, 'step 3 is not a text; give one, such as "draw#3"'),
        (["sketch"], {"feedback": None}, 'feedback=None is not a text; give one, such as feedback="too dark"'),
        (["sketch"], {"feedback": 5}, 'feedback=5 is not a text; give one, such as feedback="too dark"'),
        (["sketch"], {"reason": 5}, 'reason=5 is not a text; give one, such as reason="too dark"'),
        (
            ["sketch"],
            {"allow": "publish"},
            "allow='publish' is not a list of names; give one, such as allow=[\"publish\"]",
        ),
        (["sketch"], {"allow": [5]}, 'allow=[5]: 5 is not a text; give one, such as "publish"'),
        (["sketch"], {"args": 3}, 'args=3 is not a list of arguments; give one, such as args=["sea", 3], or JSON text'),
        (["strange"], {"args": "3"}, 'args 3 is not a list of arguments; give the whole list, such as ["sea", 3]'),
    ],
    ids=str,
)
async def test_what_is_given_wrongly_is_refused_in_one_line(app: App, film, steps, given, line):
    async with app.worker():
        run = await film.submit(["sea"])
        await run.result()
    with pytest.raises(Invalid) as refused:
        await run.rerun(*steps, **given)
    assert str(refused.value) == line
    for name in given.keys() & {"reason", "allow", "args"}:
        with pytest.raises(Invalid) as refused:
            await run.fork(**{name: given[name]})
    with pytest.raises(Invalid, match='step 5 is not a text; give one, such as "draw#3"'):
        await run.fork(until=5)
    with pytest.raises(Invalid, match="args=3 is not a list of arguments"):
        await run.replay(args=3)


@pytest.mark.parametrize("engine", ["memory"], indirect=True)
async def test_who_names_a_child_job_is_led_to_its_own_run(app: App, film):
    @app.job(retries=0)
    async def clip(scene: str) -> str:
        return await sketch(scene)

    @app.job(retries=0)
    async def reel(scenes: list[str]) -> list[str]:
        return await clip.map(scenes)

    async with app.worker():
        run = await reel.submit(["sea", "hill"])
        await run.result(timeout=60)
    _, second = await app.engine.find(Where(parent=run.id))

    with pytest.raises(NotFound, match=f"clip is a job of its own; rerun a step of that job, {second.id}"):
        await run.rerun("clip#2")


@pytest.mark.parametrize("engine", ["memory"], indirect=True)
async def test_a_running_job_is_not_rerun(app: App, film):
    started = []

    @app.job(retries=0)
    async def waits() -> None:
        await sketch("sea")
        started.append(1)
        await wait_for("go")

    async with app.worker():
        run = await waits.submit()
        await until(lambda: started)
        with pytest.raises(NotAllowed, match="so its steps can't run again now; wait until"):
            await run.rerun("sketch")
        await run.cancel()


@pytest.mark.parametrize("engine", ["memory", "sqlite"], indirect=True)
async def test_of_two_people_who_rerun_at_once_one_is_told_that_the_job_has_moved_on(app: App, film):
    world["fails"] = True
    async with app.worker():
        run = await film.submit(["sea"])
        assert await ended(app, run) is State.REVIEW
    answers = await asyncio.gather(run.rerun("sketch"), run.replay(), return_exceptions=True)

    refused = [answer for answer in answers if isinstance(answer, NotAllowed)]
    assert len(refused) == 1
    assert "is available" in str(refused[0])


async def test_a_new_run_whose_records_cannot_be_written_is_not_left_behind(app: App, film, monkeypatch):
    async with app.worker():
        run = await film.submit(["sea"])
        await run.result()
    commit = app.engine.commit

    async def fail_once(changes):
        monkeypatch.setattr(app.engine, "commit", commit)
        raise StoreBusy("away for a moment")

    monkeypatch.setattr(app.engine, "commit", fail_once)
    with pytest.raises(StoreBusy):
        await run.fork()

    states = [state for (_, state), jobs in (await app.engine.count()).items() if jobs]
    assert sorted(states) == [State.CANCELLED, State.COMPLETED]
