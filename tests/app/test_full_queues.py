"""`app.queue(…)`: a queue that is full refuses or sheds, and what a job may submit."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from typing import Any

import pytest

from holdfast import App, Duplicate, Invalid, JobFailed, KeyConflict, NotAllowed, QueueFull, Unique, UnknownOption
from holdfast.core.changes import release
from holdfast.core.model import Inserted, Job, Lease, State, Where
from holdfast.core.queue_bounds import WAITING, depth_of
from holdfast.engines.contract import Engine
from holdfast.jobs.full_queues import bound_in, reset_bound, set_bound, stored_bounds
from holdfast.jobs.room import find_room
from holdfast.jobs.service import JobRequest, Jobs
from tests.support.given import until

ENGINES = ("memory", "file", "sqlite", "postgres", "redis")

SAME = Unique(by=("args",))
REFUSING = Unique(by=("args",), then="refuse")


def make_clip(app: App):
    @app.job(queue="video")
    async def clip(n: int) -> int:
        return n

    return clip


async def depth(app: App) -> int:
    return depth_of(await (await app.open()).engine.count(), "video")


def test_a_bound_is_declared_without_a_store(tmp_path):
    App(f"file:{tmp_path}/jobs.json").queue("video", most_waiting=10)

    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"most_waiting": 0}, "queue video: most_waiting=0: give a whole number from 1"),
        ({"most_waiting": True}, "queue video: most_waiting=True: give a whole number from 1"),
        ({"most_waiting": "many"}, "queue video: most_waiting='many': give a whole number from 1"),
        ({"most_waiting": 5, "when_full": "shed"}, "when_full='shed' is unknown; did you mean shed_oldest?"),
        ({"most_waiting": 5, "when_full": "block"}, "when_full='block' is unknown; use refuse or shed_oldest"),
    ],
)
def test_a_wrong_bound_is_refused_in_one_line(given, line):
    with pytest.raises(Invalid) as refusal:
        App("memory:").queue("video", **given)

    assert line in str(refusal.value)


def test_a_queue_has_one_bound():
    app = App("memory:")
    app.queue("video", most_waiting=5)
    app.queue("video", most_waiting=5)

    with pytest.raises(Invalid, match="queue video is declared twice with different bounds"):
        app.queue("video", most_waiting=6)
    with pytest.raises(UnknownOption, match="app.queue takes no 'most_wating'; did you mean most_waiting"):
        app.queue("video", most_wating=6)  # type: ignore[call-arg]
    with pytest.raises(Invalid, match="can't be a queue"):
        app.queue("no queue", most_waiting=6)


async def test_a_full_queue_refuses_with_its_depth_and_a_hint(app):
    app.queue("video", most_waiting=3)
    clip = make_clip(app)
    await clip.submit_many([1, 2])
    await clip.submit(3, delay="1h")

    with pytest.raises(QueueFull, match="queue video is full: 3 jobs wait, and at most 3 may") as refused:
        await clip.submit(4)
    with pytest.raises(QueueFull):
        await clip.submit_many([4, 5])

    assert (refused.value.queue, refused.value.depth, refused.value.most_waiting) == ("video", 3, 3)
    assert refused.value.retry_after > 0
    assert await depth(app) == 3
    await clip.submit(4, queue="other")


async def test_a_full_queue_sheds_the_oldest_jobs_that_never_started(app):
    app.queue("video", most_waiting=3, when_full="shed_oldest")
    clip = make_clip(app)
    runs = await clip.submit_many([1, 2, 3])

    runs += await clip.submit_many([4, 5])

    states = [(await run.status()).state for run in runs]
    assert states == ["cancelled", "cancelled", "available", "available", "available"]
    assert "shed: queue video is full (3 jobs wait, at most 3 may)" in (await runs[0].history())[-1].note["reason"]
    with pytest.raises(QueueFull):
        await clip.submit_many([6, 7, 8, 9])
    assert await depth(app) == 3


async def only_work_that_never_started_is_shed(app: App) -> None:
    """And the history of what is shed says that it was cancelled, and why."""
    app.queue("video", most_waiting=2, when_full="shed_oldest")
    clip = make_clip(app)
    started = await clip.submit(1)
    engine = (await app.open()).engine
    [held] = await engine.claim("w-1", ["video"], 1)
    await engine.commit([release(held, await engine.now(), by="w-1")])
    never_started = await clip.submit(2)

    await clip.submit(3)

    assert [(await run.status()).state for run in (started, never_started)] == ["available", "cancelled"]
    assert [entry.event for entry in await never_started.history()] == ["submit", "cancel"]
    assert "shed: queue video is full" in (await never_started.history())[-1].note["reason"]
    with pytest.raises(QueueFull):
        await clip.submit_many([4, 5])


async def test_only_work_that_never_started_is_shed(app):
    await only_work_that_never_started_is_shed(app)


async def test_a_bound_below_the_depth_refuses_and_sheds_nothing_by_itself(app):
    app.queue("video", most_waiting=4)
    clip = make_clip(app)
    await clip.submit_many([1, 2, 3, 4])
    engine = (await app.open()).engine

    await set_bound(engine, "video", 2, by="ann", reason="disk")

    assert await depth(app) == 4
    with pytest.raises(QueueFull, match="4 jobs wait, and at most 2 may"):
        await clip.submit(5)
    await set_bound(engine, "video", 9, by="ann")
    await clip.submit(5)
    await reset_bound(engine, "video")
    with pytest.raises(QueueFull, match="at most 4 may"):
        await clip.submit(6)


async def children_always_find_room(app: App, when_full: str) -> None:
    """What a running job submits is never refused, nor shed for what others submit."""
    app.queue("video", most_waiting=1, when_full=when_full)
    clip = make_clip(app)

    @app.on("cut")
    @app.job(queue="video")
    async def trailer(n: int) -> int:
        return n

    @app.job(retries=0)
    async def film() -> int:
        runs = [await clip.submit(1), *await clip.submit_many([2, 3])]
        runs += [await clip.submit(4, key="k"), await clip.submit(5, unique=SAME)]
        runs += await app.emit("cut", 8)
        return sum(await clip.map([6, 7])) + sum([await run.result() for run in runs])

    async with app.worker(queues=["default"]):
        engine = app.jobs.engine
        [record] = await engine.records("queue/video")
        assert bound_in(record).code.most_waiting == 1, "the worker has declared it"
        run = await film.submit()

        async def is_ready() -> bool:
            return await depth(app) == 8 or (await run.status()).state == "review"

        await until(is_ready)
        with pytest.raises(QueueFull):
            await clip.submit(9)
        async with app.worker(queues=["video"]):
            assert await run.result(timeout=30) == 36


@pytest.mark.parametrize("when_full", ["refuse", "shed_oldest"])
async def test_nothing_that_a_running_job_submits_is_refused_or_shed(app, when_full):
    await children_always_find_room(app, when_full)


async def sheds_children(engine: Engine, queue: str, number: int, spared: Collection[str]) -> list[Job]:
    waiting = await engine.find(Where(states=WAITING, queue=queue))
    return [job for job in waiting if job.epoch == 0 and job.id not in spared][:number]


async def sheds_what_has_started(engine: Engine, queue: str, number: int, spared: Collection[str]) -> list[Job]:
    waiting = await engine.find(Where(states=WAITING, queue=queue))
    return [job for job in waiting if job.parent is None and job.id not in spared][:number]


async def children_need_room(jobs: Jobs, new: Sequence[Job], parent: Lease | None = None) -> list[Inserted]:
    await find_room(jobs.engine, await stored_bounds(jobs.engine), new)
    return await jobs.engine.insert(new, parent)


@pytest.mark.parametrize("engine", ["memory"], indirect=True)
@pytest.mark.parametrize(
    ("bug", "where", "law"),
    [
        (sheds_what_has_started, "room._oldest", only_work_that_never_started_is_shed),
        (sheds_children, "room._oldest", partial(children_always_find_room, when_full="shed_oldest")),
        (children_need_room, "service.Jobs.insert", partial(children_always_find_room, when_full="refuse")),
    ],
)
async def test_every_planted_bug_is_caught(
    app: App, monkeypatch: pytest.MonkeyPatch, bug: Any, where: str, law: Callable[[App], Awaitable[None]]
) -> None:
    monkeypatch.setattr(f"holdfast.jobs.{where}", bug)

    with pytest.raises((AssertionError, pytest.fail.Exception, JobFailed)):
        await law(app)


async def test_submitters_exceed_a_bound_by_no_more_than_those_under_way(app):
    app.queue("video", most_waiting=10)
    clip = make_clip(app)
    at_once = 4

    async def submitter(seat: int) -> int:
        done = 0
        for n in range(8):
            try:
                await clip.submit(100 * seat + n)
                done += 1
            except QueueFull:
                pass
        return done

    accepted = sum(await asyncio.gather(*(submitter(seat) for seat in range(at_once))))

    assert 10 <= accepted == await depth(app) <= 10 + at_once - 1


async def test_a_job_submits_only_so_many_children(app):
    @app.job
    async def leaf(n: int) -> int:
        return n

    @app.job(most_children=3, retries=0)
    async def tree(n: int) -> int:
        runs = await leaf.submit_many(range(n))
        try:
            await leaf.submit(99)
        except NotAllowed:
            return len(runs)
        return -1

    async with app.worker():
        assert await (await tree.submit(3)).result(timeout=30) == 3
        with pytest.raises(JobFailed, match="would have 4 children, and a job of this type may submit 3"):
            await (await tree.submit(4)).result(timeout=30)

    counts = await app.jobs.engine.count()
    assert counts["default", State.COMPLETED] == 4, "one tree and its three leaves"
    with pytest.raises(Invalid, match="job tree: most_children=-1: give a whole number, 0 or more"):
        app.job(most_children=-1)(tree.spec.function)


async def test_what_is_too_much_already_is_shed_before_more_comes_in(app, monkeypatch):
    app.queue("video", most_waiting=3, when_full="shed_oldest")
    clip = make_clip(app)
    engine = (await app.open()).engine
    await Jobs(engine).submit([JobRequest(type="clip", queue="video", args=f"[{n}]") for n in range(7)])
    insert, seen = engine.insert, []

    async def looking(*given):
        answers = await insert(*given)
        seen.append(await depth(app))
        return answers

    monkeypatch.setattr(engine, "insert", looking)

    runs = await clip.submit_many([7, 8])

    assert seen == [3 + 2]
    assert await depth(app) == 3
    assert [(await run.status()).state for run in runs] == ["available"] * 2


async def test_a_child_that_was_waited_for_is_counted_once(app):
    @app.job
    async def leaf(n: int) -> int:
        return n

    @app.job(most_children=4, retries=0)
    async def one_by_one() -> list[int]:
        return [await (await leaf.submit(n)).result() for n in range(4)]

    @app.job(most_children=4, retries=0)
    async def two_at_once() -> list[int]:
        return await leaf.map(range(4), at_once=2)

    @app.job(most_children=4, retries=0)
    async def one_more() -> None:
        for n in range(5):
            await (await leaf.submit(n)).result()

    async with app.worker():
        runs = [await one_by_one.submit(), await two_at_once.submit()]
        assert [await run.result(timeout=30) for run in runs] == [[0, 1, 2, 3]] * 2
        with pytest.raises(JobFailed, match="would have 5 children, and a job of this type may submit 4"):
            await (await one_more.submit()).result(timeout=30)


async def test_a_submit_that_adds_no_child_is_not_counted(app):
    """Because a job with its key or its unique name is there already, or because it is refused."""

    @app.job(queue="later")
    async def leaf(n: int) -> int:
        return n

    @app.job(most_children=1, retries=0)
    async def tree() -> list[str]:
        for _ in range(2):
            theirs = [await leaf.submit(1, key="theirs"), await leaf.submit(2, unique=SAME)]
            with pytest.raises(KeyConflict):
                await leaf.submit(3, key="theirs")
            with pytest.raises(Duplicate):
                await leaf.submit(2, unique=REFUSING)
            await leaf.submit(4, key="mine")
        with pytest.raises(NotAllowed, match="would have 2 children, and a job of this type may submit 1"):
            await leaf.submit(5, key="another")
        return [run.id for run in theirs]

    theirs = [await leaf.submit(1, key="theirs"), await leaf.submit(2, unique=SAME)]
    run = await tree.submit()
    async with app.worker(queues=["default"]):
        assert await run.result(timeout=30) == [one.id for one in theirs]

    assert len(await app.jobs.engine.find(Where(parent=run.id))) == 1


async def test_too_many_children_are_final_at_once(app):
    @app.job
    async def leaf(n: int) -> int:
        return n

    @app.job(most_children=3, retries=5)
    async def tree() -> int:
        return len(await leaf.submit_many(range(4)))

    async with app.worker():
        run = await tree.submit()
        with pytest.raises(JobFailed, match="would have 4 children, and a job of this type may submit 3"):
            await run.result(timeout=30)

    assert [entry.event for entry in await run.history()] == ["submit", "claim", "exhaust"]


def test_blocking_code_meets_a_full_queue(app):
    app.queue("video", most_waiting=1)
    clip = make_clip(app)
    app.sync.submit(clip, 1)

    with pytest.raises(QueueFull):
        app.sync.submit(clip, 2)
