"""Flows in real workers: what starts when, what comes out, and what a failure, a cancel or a lost worker does."""

import asyncio
from typing import Any, cast
from weakref import WeakSet

import pytest
from msgspec.structs import replace
from pydantic import BaseModel

from holdfast import App, BadValue, Invalid, JobCancelled, JobFailed, batch, chain, chord, group, wait_for
from holdfast.app.run import Run
from holdfast.core.model import State, Where
from holdfast.jobs.views.job import facts_of
from holdfast.worker import execution
from tests.support.given import until

ENGINES = ("memory", "file", "sqlite", "postgres", "redis")

RAN: list[Any] = []


@pytest.fixture(autouse=True)
def fresh():
    RAN.clear()


class Picture(BaseModel):
    title: str


@pytest.fixture
def jobs(app):
    """Jobs for flows."""

    class Jobs:
        @staticmethod
        @app.job
        async def draw(n: int) -> Picture:
            RAN.append(n)
            return Picture(title=f"picture {n}")

        @staticmethod
        @app.job
        async def join(pictures: list[Picture | None], sep: str = ", ") -> str:
            RAN.append("join")
            return sep.join("–" if one is None else one.title for one in pictures)

        @staticmethod
        @app.job
        def title(picture: Picture) -> str:
            return picture.title

        @staticmethod
        @app.job
        async def shout(text: str, mark: str = "!") -> str:
            RAN.append("shout")
            return text.upper() + mark

        @staticmethod
        @app.job(retries=0)
        async def fails(n: int = 0) -> Picture:
            RAN.append("fails")
            raise ValueError("no paint left")

        @staticmethod
        @app.job
        async def note(word: str) -> str:
            RAN.append(word)
            return word

    return Jobs


async def test_each_job_of_a_chain_gets_the_result_before_it_typed_by_its_own_hints(app, jobs):
    run = await chain(jobs.draw.s(1), jobs.title.s(), jobs.shout.s(mark="?")).submit()

    async with app.worker(at_once=1):
        assert await run.result(20) == "PICTURE 1?"
    assert str(await run.status()).startswith("completed")


async def test_a_job_named_by_its_type_gets_the_result_before_it_as_the_job_itself_does(app, jobs):
    assert app.s("shout", "?") == jobs.shout.s("?")
    assert app.s("title") == jobs.title.s()
    run = await chain(app.s("draw", 3), app.s("title"), app.s("shout")).submit()

    async with app.worker():
        assert await run.result(20) == "PICTURE 3!"
    with pytest.raises(BadValue, match="shout takes no argument|too many positional"):
        app.s("shout", "a", "b", "c")
    with pytest.raises(Invalid, match=r"title\.s\(…\) has no first argument"):
        app.s("title").submit()


async def test_the_callback_of_a_chord_gets_the_list_of_results_in_order(app, jobs):
    run = await chord(group(jobs.draw.s(n) for n in range(5)), jobs.join.s(sep="+")).submit(key="order-42")
    same = await chord(group(jobs.draw.s(n) for n in range(5)), jobs.join.s(sep="+")).submit(key="order-42")

    assert same.id == run.id
    async with app.worker():
        assert await run.result(20) == "+".join(f"picture {n}" for n in range(5))
    assert sorted(RAN, key=str) == [0, 1, 2, 3, 4, "join"]


async def test_the_result_of_a_group_is_typed_by_its_jobs(app, jobs):
    run = await group(jobs.draw.s(1), jobs.note.s("x")).submit()

    async with app.worker():
        assert await run.result(20) == [Picture(title="picture 1"), "x"]
        assert await (await app.run(run.id)).result(20) == [Picture(title="picture 1"), "x"]


async def test_flows_nest_in_one_slot(app, jobs):
    inner = chain(jobs.draw.s(2), jobs.title.s())
    flow = chain(group(jobs.note.s("a"), inner, group(jobs.note.s("b"), jobs.note.s("c"))), jobs.count.s())

    run = await flow.submit()
    async with app.worker(at_once=1):
        assert await run.result(20) == ["a", "picture 2", ["b", "c"]]


@pytest.fixture(autouse=True)
def count(app, jobs):
    @app.job
    async def count(found: list[Any]) -> list[Any]:
        return found

    jobs.count = count


async def test_a_group_in_a_chain_gives_each_of_its_jobs_the_result_before_it(app, jobs):
    run = await chain(jobs.note.s("a"), group(jobs.shout.s(), jobs.shout.s("?")), jobs.count.s()).submit()

    async with app.worker():
        assert await run.result(20) == ["A!", "A?"]


async def test_a_group_of_nothing_is_done_at_once(app, jobs, monkeypatch):
    apps: WeakSet[App] = WeakSet([app])
    monkeypatch.setattr("holdfast.app.only_app.APPS", apps)
    alone: Run[list[Any]] = await group([]).submit()
    run = await chord(group([]), jobs.join.s()).submit()
    nested = await group(group([]), jobs.note.s("a")).submit()

    async with app.worker():
        assert await run.result(20) == ""
        assert await nested.result(20) == [[], "a"]
        assert await alone.result(20) == []
    second = App("memory:")
    assert second in apps
    with pytest.raises(Invalid, match=r"a flow of nothing belongs to no App, and this program has 2; leave it out"):
        await group([]).submit()


async def test_a_failure_stops_a_chain_with_one_line_that_names_it(app, jobs):
    run = await chain(jobs.fails.s(), jobs.title.s()).submit()

    async with app.worker():
        with pytest.raises(JobFailed, match=r"step 1 of 2 failed: job .* \(fails\) failed: ValueError: no paint left"):
            await run.result(20)
    assert [job.type for job in await app.engine.find(Where(parent=run.id))] == ["fails"]
    assert "fail" not in [entry.event for entry in await run.history()]


async def test_need_says_how_many_of_a_group_must_succeed(app, jobs):
    members = [jobs.draw.s(1), jobs.fails.s(), jobs.draw.s(2)]
    enough = await chord(group(members, need=2), jobs.join.s()).submit()
    too_few = await chord(group(members, need=3), jobs.join.s()).submit()
    bare = await group(members, need=2).submit()

    async with app.worker():
        assert await enough.result(20) == "picture 1, –, picture 2"
        assert await bare.result(20) == [Picture(title="picture 1"), None, Picture(title="picture 2")]
        with pytest.raises(JobFailed, match="step 2 of 4 failed"):
            await too_few.result(20)


@pytest.mark.parametrize("engine", ["memory"], indirect=True)
async def test_a_group_with_options_keeps_them_in_a_chord(app, jobs):
    header = group([jobs.draw.s(1), jobs.fails.s()], need=1).with_options(meta={"kept": "yes"})
    run = await chord(header, jobs.join.s()).submit()

    async with app.worker():
        assert await run.result(20) == "picture 1, –"
    (inner,) = [job for job in await _children(app, run.id) if job.type == "holdfast.flow"]
    assert inner.options.meta == {"kept": "yes"}


@pytest.mark.parametrize("goes_well", [True, False])
async def test_each_callback_of_a_batch_runs_once_and_only_if_it_is_due(app, jobs, goes_well):
    members = [jobs.draw.s(1), jobs.draw.s(2) if goes_well else jobs.fails.s()]
    run = await batch(
        members, on_success=jobs.note.s("well"), on_failure=jobs.note.s("badly"), on_complete=jobs.join.s()
    ).submit()

    async with app.worker():
        result = await run.result(20)
        await until(lambda: _all_ended(app, run.id))

    assert result == [Picture(title="picture 1"), Picture(title="picture 2") if goes_well else None]
    words = [one for one in RAN if one in ("well", "badly", "join")]
    assert sorted(words) == (["join", "well"] if goes_well else ["badly", "join"])


@pytest.mark.parametrize("callback", ["on_success", "on_failure", "on_complete"])
async def test_a_callback_that_fails_fails_its_batch(app, jobs, callback):
    may_end = asyncio.Event()

    @app.job(retries=0)
    async def breaks(found: list[Any]) -> None:
        await may_end.wait()
        raise ValueError("no ink left")

    member = jobs.fails.s() if callback == "on_failure" else jobs.draw.s(1)
    run = await batch([jobs.draw.s(2), member], **{callback: breaks.s()}).submit()
    async with app.worker():
        await until(lambda: _rests_behind(app, run.id, "breaks"))  # so that the flow comes back in a new attempt
        may_end.set()
        with pytest.raises(JobFailed, match=r"step 3 of 3 failed: job .* \(breaks\) failed: ValueError: no ink left"):
            await run.result(20)
        await run.replay()
        with pytest.raises(JobFailed, match=r"\(breaks\) failed: ValueError: no ink left"):
            await run.result(20)


async def _rests_behind(app, flow: str, type: str) -> bool:
    """Whether a flow has suspended, and a job of this type runs."""
    is_running = any(job.type == type and job.state is State.ACTIVE for job in await _children(app, flow))
    return is_running and (await app.jobs.get(flow)).state is State.PENDING


async def _all_ended(app, parent: str) -> bool:
    return all(job.finished_at is not None or job.state is State.REVIEW for job in await _children(app, parent))


async def _children(app, parent: str) -> list[Any]:
    return await app.engine.find(Where(parent=parent))


async def test_a_replayed_flow_continues_where_it_failed(app, jobs):
    fixed: list[bool] = []

    @app.job(retries=0)
    async def paint(title: str) -> str:
        if not fixed:
            raise ValueError("no paint left")
        return f"painted {title}"

    run = await chain(jobs.draw.s(1), jobs.title.s(), paint.s(), jobs.shout.s()).submit()
    async with app.worker():
        with pytest.raises(JobFailed):
            await run.result(20)
        fixed.append(True)
        await run.replay()
        assert await run.result(20) == "PAINTED PICTURE 1!"
    assert RAN.count(1) == 1


async def test_a_member_that_a_person_discards_fails_the_flow(app, jobs):
    @app.job(retries=0)
    async def asks() -> str:
        await wait_for("approved")
        return "yes"

    run = await group(asks.s(), jobs.fails.s()).submit()
    async with app.worker():
        failed = await until(lambda: _in_review(app, run.id))
        await (await app.run(failed)).discard()
        waiting = next(job.id for job in await _children(app, run.id) if job.type == "asks")
        await until(lambda: _waits(app, waiting))
        await (await app.run(waiting)).signal("approved")
        with pytest.raises(JobFailed, match=r"step 2 of 2 failed: job .* \(fails\) was given up"):
            await run.result(20)


async def _in_review(app, parent: str) -> str | None:
    return next((job.id for job in await _children(app, parent) if job.state is State.REVIEW), None)


async def _waits(app, id: str) -> bool:
    return bool((await app.jobs.get(id)).waits)


async def test_cancelling_a_flow_reaches_all_its_jobs(app, jobs):
    @app.job
    async def long() -> None:
        RAN.append("began")
        await asyncio.sleep(60)

    run = await chain(group(long.s(), chain(long.s(), jobs.note.s())), jobs.count.s()).submit()
    async with app.worker():
        await until(lambda: len(RAN) == 2)
        await run.cancel()
        with pytest.raises(JobCancelled):
            await run.result(20)
        nested = next(job.id for job in await _children(app, run.id) if job.type == "holdfast.flow")
        await until(lambda: _all_ended(app, run.id))
        await until(lambda: _all_ended(app, nested))
    states = {job.state for id in (run.id, nested) for job in await _children(app, id) if job.type == "long"}
    assert states == {State.CANCELLED}


async def test_inside_a_job_a_flow_is_submitted_once_and_suspends_the_job(app, jobs):
    @app.job
    async def parent() -> str:
        run = await chord([jobs.draw.s(1), jobs.draw.s(2)], jobs.join.s()).submit()
        return await run.result()

    run = await parent.submit()
    async with app.worker(at_once=1):
        assert await run.result(20) == "picture 1, picture 2"
    (flow,) = await _children(app, run.id)
    assert flow.type == "holdfast.flow"


def test_a_flow_is_submitted_from_blocking_code(app, jobs):
    async def work() -> None:
        async with app.worker():
            await asyncio.to_thread(wait)

    def wait() -> None:
        run = app.sync.submit(chain(jobs.note.s("a"), jobs.shout.s()), key="k")
        assert run.result(20) == "A!"

    asyncio.run(work())


async def test_long_results_stay_with_the_jobs_that_made_them(app, jobs):
    @app.job
    async def write(n: int) -> str:
        return str(n) * 20_000

    @app.job
    async def measure(texts: list[str]) -> int:
        return sum(map(len, texts))

    run = await chord(group(write.s(n) for n in range(5)), measure.s()).submit()
    bare = await group(write.s(n) for n in range(5)).submit()
    async with app.worker():
        assert await run.result(20) == 100_000
        assert [len(text) for text in await bare.result(20)] == [20_000] * 5
    (callback,) = [job for job in await _children(app, run.id) if job.type == "measure"]
    assert len(callback.args) < 200
    stored = await app.jobs.get(bare.id)
    assert len(stored.result) < 200


PLACES_TO_GO: dict[str, Any] = {"places": ["Rome", "Paris"], "~results_of": "summer"}
"""Looks a little like what a flow stores in place of results."""


@pytest.mark.parametrize("engine", ["memory", "sqlite"], indirect=True)
async def test_data_that_looks_like_a_reference_to_results_is_data(app, jobs):
    @app.job(retries=0)
    async def travel(trip: dict[str, Any]) -> dict[str, Any]:
        return trip

    told = await jobs.note.s("secret").submit()
    async with app.worker():
        await told.result(20)
        value: dict[str, Any]
        for value in (PLACES_TO_GO, {"places": [[0, 1]]}, {"places": []}, {"~result_of": 1}):
            run = await chain(travel.s(value), travel.s()).submit()
            assert await run.result(20) == value
        forged: dict[str, Any]
        for forged in ({"~result_of": told.id}, {"places": [[0, 1]], "~results_of": told.id}):
            with pytest.raises(BadValue, match="travel: its first argument: a dict of .* is reserved for Holdfast"):
                group(travel.s(forged))
        forge = await chain(jobs.note.s(told.id), _forging(app).s()).submit()
        with pytest.raises(JobFailed, match="its result: a dict of .* is reserved for Holdfast"):
            await forge.result(20)


def _forging(app: App) -> Any:
    @app.job(retries=0)
    async def forge(id: str) -> dict[str, Any]:
        return {"places": [[0, 1]], "~results_of": id}

    return forge


async def test_a_callback_whose_hint_has_no_room_for_a_failed_job_says_so(app, jobs):
    @app.job
    async def titles(pictures: list[Picture]) -> int:
        return len(pictures)

    run = await chord(group([jobs.draw.s(1), jobs.fails.s()], need=1), titles.s()).submit()

    async with app.worker():
        with pytest.raises(JobFailed, match=r"'pictures' of titles.*job failed is None.* as list\[int \| None\] does"):
            await run.result(20)


async def test_a_result_of_the_wrong_type_is_named_with_the_job_that_got_it(app, jobs):
    run = await chain(jobs.note.s("a"), jobs.title.s()).submit()

    async with app.worker():
        with pytest.raises(JobFailed, match=r"step 2 of 2 failed: .*BadValue: argument 'picture' of title"):
            await run.result(20)


async def test_show_says_what_a_flow_is_made_of(app, jobs):
    header = group([chain(jobs.draw.s(1), jobs.title.s()), jobs.note.s("a"), jobs.note.s("b"), jobs.draw.s(2)])
    run = await chord(header, jobs.join.s()).submit()

    job = await (await app.open()).get(run.id)
    facts = facts_of(job, job.created_at)
    assert facts["flow"] == "a chord of 5 jobs: a chain, 2 note, draw, join"
    assert "arguments" not in facts
    assert "flow" not in facts_of(replace(job, type="draw"), job.created_at)
    assert facts_of(replace(job, args="[1]"), job.created_at)["arguments"] == "[1]"


class TestCalls:
    """What `chain`, `group`, `chord` and `batch` refuse. Needs no store."""

    @pytest.mark.parametrize("engine", ["memory"], indirect=True)
    def test_a_call_that_can_not_work_is_refused_in_one_line(self, app, jobs):
        refused: list[tuple[Any, str]] = [
            (lambda: chain(), "chain() needs at least one job"),
            (lambda: chain(jobs.draw), "isn't a signature; write draw.s(…)"),
            (lambda: group(cast(Any, 3)), "group: 3 isn't a signature; make one with job.s(…)"),
            (lambda: group([jobs.draw.s(1)], need=2), "group(need=2): give a number from 0 to 1"),
            (lambda: batch(group([jobs.draw.s(1)], need=0)), "batch: its group has need=, which a batch can't follow"),
            (
                lambda: batch(group([jobs.draw.s(1)]).with_options(queue="gpu")),
                "batch: its group has queue=, which a batch can't follow; give the batch a list of jobs instead",
            ),
            (lambda: chain(jobs.title.s(), jobs.shout.s()).submit(), "has no first argument, so it can't be submitted"),
            (lambda: chain(jobs.draw.s(1), jobs.draw.s(2)), "gets their result as its first argument: draw"),
            (lambda: chain(jobs.draw.with_options(key="a").s(1)), "draw: a job in a flow can't have key="),
            (
                lambda: chain(jobs.note.s("a")).submit(**cast(Any, {"qeue": "x"})),
                "submit takes no 'qeue'; did you mean queue?",
            ),
        ]
        for call, line in refused:
            with pytest.raises((Invalid, BadValue)) as caught:
                call()
            assert line in str(caught.value)
            assert "\n" not in str(caught.value)


@pytest.mark.parametrize("engine", ["memory", "sqlite"], indirect=True)
async def test_the_tree_and_the_status_show_what_is_done_and_what_is_to_come(app, jobs):
    @app.job
    async def asks(n: int | str) -> int | str:
        await wait_for("approved")
        return n

    run = await chain(group(jobs.note.s("a"), chain(jobs.note.s("b"), asks.s()), asks.s(2)), jobs.count.s()).submit()
    graph = chain(jobs.note.s("a"), jobs.title.s())
    assert "note: not started yet" in str(await run.tree())
    async with app.worker():
        await until(lambda: _count_waits(app, 2))
        lines = str(await run.tree()).splitlines()
        assert str(await run.status()) == "1 of 4 jobs done"
        failed = await graph.submit()
        with pytest.raises(JobFailed):
            await failed.result(20)
        failed_lines = str(await failed.tree()).splitlines()

    assert [line.split(": ")[-1] for line in lines] == [
        "pending",
        "completed",
        "pending",
        "completed",
        "pending",
        "pending",
        "not started yet",
    ]
    assert lines[1].startswith("├─ note ")
    assert lines[4].startswith("│  └─ asks ")
    assert failed_lines[2].startswith("└─ title ")
    assert "BadValue" in failed_lines[2]


async def _count_waits(app, number: int) -> bool:
    waiting = await app.engine.find(Where(states=(State.PENDING,), type="asks"))
    return len(waiting) == number


@pytest.mark.parametrize("engine", ["memory", "sqlite"], indirect=True)
async def test_a_flow_with_large_arguments_and_results_runs(app):
    @app.job
    async def write(text: str) -> str:
        return text * 100_000

    @app.job
    async def measure(texts: list[str], more: str) -> int:
        return sum(map(len, texts)) + len(more)

    run = await chord(group(write.s("a"), write.s("b")), measure.s(more="x" * 100_000)).submit()
    linked = await chain(write.s("a"), measure.s(more="y" * 100_000)).submit()
    async with app.worker():
        assert await run.result(30) == 300_000
        assert "measure" in str(await run.tree())
        with pytest.raises(JobFailed, match="argument 'texts' of measure"):
            await linked.result(30)


@pytest.mark.parametrize("engine", ["memory"], indirect=True)
async def test_a_step_whose_arguments_cannot_be_read_for_any_reason_has_failed(app, jobs, monkeypatch):
    """Otherwise it would hold its slot, and stay active for as long as its worker lives."""

    def odd(*_: Any) -> None:
        raise TypeError("nobody expected this")

    monkeypatch.setattr(execution, "resolved_args", odd)
    run = await chain(jobs.draw.s(1), jobs.title.s()).submit()
    async with app.worker(at_once=1):
        with pytest.raises(JobFailed, match="nobody expected this"):
            await run.result(30)
