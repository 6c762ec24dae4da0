"""Children: a job submits others, waits for them without a slot, and is woken by the last of them."""

import asyncio
from typing import Any

import pytest

from holdfast import App, ItemsFailed, JobCancelled, JobFailed, step, wait_for
from holdfast.core.errors import NotAllowed, Outrun
from holdfast.core.model import Event, State, Where
from tests.support.given import AT_ONCE_RETRY, QUICK, events, finished, in_state, until

ENGINES = ("memory", "sqlite", "postgres", "redis")

RAN: list[Any] = []


@pytest.fixture(autouse=True)
def fresh():
    RAN.clear()


@step(name="draw")
async def draw(n: int) -> int:
    RAN.append(n)
    return n


async def test_a_one_slot_worker_runs_a_parent_and_its_child(app):
    @app.job
    async def child(n: int) -> int:
        return await draw(n) * 10

    @app.job
    async def parent() -> int:
        first = await child.submit(1)
        second = await child.submit(2)
        return await first.result() + await second.result()

    run = await parent.submit()
    async with app.worker(at_once=1):
        assert await run.result(10) == 30
    assert sorted(RAN) == [1, 2]
    jobs = await app.engine.find(Where(parent=run.id))
    assert len(jobs) == 2


async def test_a_child_that_settles_while_its_parent_looks_is_not_waited_for(app, engine):
    @app.job
    async def child() -> int:
        return 1

    @app.job
    async def parent() -> int:
        return await (await child.submit()).result()

    async def settles_first(name: str, _: object) -> None:
        if name == "missing":
            (job,) = await app.engine.engine.find(Where(parent=run.id))
            await until(lambda: _has_settled(app, job.id))

    run = await parent.submit()
    engine.before = settles_first
    async with app.worker():
        assert await run.result(3) == 1


async def _has_settled(app: App, id: str) -> bool:
    (job,) = await app.engine.engine.get([id])  # type: ignore[attr-defined]
    return job.finished_at is not None


async def test_a_map_over_a_job_is_one_group_and_one_wake_up(app, engine):
    @app.job
    async def child(n: int) -> int:
        return n * 10

    @app.job
    async def parent() -> list[int]:
        return await child.map(range(50))

    run = await parent.submit()
    async with app.worker(at_once=4):
        assert await run.result(15) == [n * 10 for n in range(50)]
    told = await events(run)
    assert told.count("suspend") <= 1
    assert told.count("activate") == told.count("suspend")


async def test_a_thousand_children_cost_one_arrival_each(app, engine):
    @app.job
    async def child(n: int) -> int:
        return n

    @app.job
    async def parent() -> int:
        return sum(await child.map(range(1_000)))

    run = await parent.submit()
    async with app.worker(at_once=50):
        assert await run.result(25) == sum(range(1_000))
    assert (await events(run)).count("claim") <= 2
    assert engine.calls["missing"] <= 10


async def test_a_map_over_a_job_may_be_bounded(app):
    running, most = 0, 0

    @app.job
    async def child(n: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1
        return n

    @app.job
    async def parent() -> list[int]:
        return await child.map(range(9), at_once=3)

    run = await parent.submit()
    async with app.worker(at_once=8):
        assert await run.result(20) == list(range(9))
    assert most <= 3


async def test_equal_items_have_children_of_their_own(app):
    @app.job
    async def child(n: int) -> int:
        RAN.append(n)
        return n

    @app.job
    async def parent() -> list[int]:
        return await child.map([1, 1, 1])

    run = await parent.submit()
    async with app.worker():
        assert await run.result(10) == [1, 1, 1]
    assert RAN == [1, 1, 1]


async def test_a_failed_child_is_a_failed_item_and_stays_one(app):
    broken = True

    @app.job(retries=0)
    async def child(n: int) -> int:
        if n == 2 and broken:
            raise ValueError("no kelp")
        return n

    @app.job(retries=1)
    async def parent() -> list[int | None]:
        found = await child.map([1, 2, 3], need=2)
        if not RAN:
            RAN.append("failed once")
            raise RuntimeError("try again")
        return found

    run = await parent.submit()
    async with app.worker():
        await until(lambda: RAN == ["failed once"])
        broken = False
        bad = [job for job in await app.engine.find(Where(parent=run.id)) if job.state is State.REVIEW]
        await app.jobs.replay(bad[0].id)
        assert await run.result(15) == [1, None, 3]


async def test_too_many_failed_children_fail_the_map(app):
    @app.job(retries=0)
    async def child(n: int) -> int:
        raise ValueError("no kelp")

    @app.job(retries=0)
    async def parent() -> str:
        try:
            await child.map([1, 2])
        except ItemsFailed as error:
            RAN.extend(type(failure.error) for failure in error.failures)
            return str(error)
        return "?"

    run = await parent.submit()
    async with app.worker():
        assert (await run.result(10)).startswith("child: 2 of 2 items failed; first failure: item 1 of 2")
    assert [JobFailed, JobFailed] == RAN


async def test_the_result_of_a_cancelled_child_says_so(app):
    @app.job
    async def child() -> None:
        await asyncio.sleep(60)

    @app.job
    async def parent() -> str:
        run = await child.submit()
        RAN.append(run.id)
        try:
            await run.result()
        except JobCancelled:
            return "cancelled"
        return "?"

    run = await parent.submit()
    async with app.worker():
        await in_state(app, run, State.PENDING)
        await app.jobs.cancel(RAN[0])
        assert await run.result(10) == "cancelled"


async def test_a_result_may_be_late(app, clock):
    @app.job
    async def child() -> None:
        await asyncio.sleep(60)

    @app.job
    async def parent() -> str:
        run = await child.submit()
        try:
            await run.result(timeout="1h")
        except TimeoutError:
            return "late"
        return "?"

    run = await parent.submit()
    async with app.worker():
        await in_state(app, run, State.PENDING)
        clock.advance(3_601)
        assert await run.result(10) == "late"


async def test_children_are_submitted_once_however_often_the_parent_runs(app, engine):
    @app.job
    async def child(n: int) -> int:
        return n

    @app.job(retries=AT_ONCE_RETRY)
    async def parent() -> int:
        runs = await child.submit_many([1, 2])
        RAN.append("ran")
        if len(RAN) < 3:
            raise RuntimeError("again")
        return sum([await run.result() for run in runs])

    run = await parent.submit()
    async with app.worker():
        assert await run.result(10) == 3
    assert len(await app.engine.find(Where(parent=run.id))) == 2
    assert engine.calls["insert"] == 2, "one for the parent, one for its children: what is there is not inserted again"


async def test_a_def_job_has_children_too(app):
    @app.job
    def child(n: int) -> int:
        return n + 1

    @app.job
    def parent() -> int:
        run = app.sync.submit(child, 1)
        return run.result() * 10

    run = await parent.submit()
    async with app.worker(at_once=1):
        assert await run.result(10) == 20
    assert "suspend" in await events(run)
    assert len(await app.engine.find(Where(parent=run.id))) == 1


async def test_cancelling_reaches_children_and_their_children(app):
    @app.job
    async def leaf() -> None:
        await asyncio.sleep(60)

    @app.job
    async def branch() -> None:
        await (await leaf.submit()).result()

    @app.job
    async def root() -> None:
        runs = [await branch.submit() for _ in range(3)]
        for run in runs:
            await run.result()

    run = await root.submit()
    async with app.worker(at_once=16):

        async def all_running() -> bool:
            jobs = [job async for job in app.jobs.walk(Where(states=(State.ACTIVE,)))]
            return sum(job.type == "leaf" for job in jobs) == 3

        await until(all_running)
        await run.cancel("enough")
        jobs = [job async for job in app.jobs.walk(Where())]
        mine = [job for job in jobs if job.type in ("root", "branch", "leaf")]
        assert len(mine) == 7
        assert {job.state for job in mine} == {State.CANCELLED}


async def test_a_parent_wakes_although_the_worker_of_its_last_child_died_before_it_could_say_so(app, engine):
    @app.job
    async def child() -> int:
        return 1

    @app.job
    async def parent() -> int:
        return await (await child.submit()).result()

    run = await parent.submit()

    async def lose_the_word(name, args):
        if name == "commit" and args[0][0].event == Event.ACTIVATE:
            raise Outrun("the word is lost")

    async with app.worker(at_once=1):
        engine.before = lose_the_word
        await in_state(app, run, State.PENDING)

        async def child_done() -> bool:
            return any(job.state is State.COMPLETED for job in await app.engine.find(Where(parent=run.id)))

        await until(child_done)
        assert (await run.status()).state is State.PENDING
        engine.before = None
    other = App("memory:", settings=QUICK, engine=engine)
    other.registry = app.registry
    async with other.worker():
        assert await run.result(10) == 1


async def test_outside_a_job_a_map_submits_and_waits(app):
    @app.job
    async def child(n: int) -> int:
        return n * 2

    async with app.worker():
        assert await child.map([1, 2, 3]) == [2, 4, 6]


async def test_a_job_that_somebody_else_submitted_under_the_key_is_waited_for_without_a_slot(app, clock, engine):
    @app.job
    async def child() -> int:
        return 7

    @app.job
    async def parent() -> int:
        return await (await child.submit(key="k")).result()

    run = await parent.submit(priority=1)
    first = await child.submit(key="k", delay=2)
    before = engine.calls["commit"]
    async with app.worker(at_once=1):
        await in_state(app, run, State.PENDING)
        assert engine.calls["commit"] - before < 10
        clock.advance(6)
        assert await run.result(15) == 7
    assert await app.engine.find(Where(parent=run.id)) == []
    assert (await app.jobs.get(first.id)).state is State.COMPLETED


async def test_a_late_result_stays_late(app, clock):
    @app.job
    async def child() -> str:
        await asyncio.sleep(0.5)
        return "in time"

    @app.job
    async def parent() -> str:
        run = await child.submit(delay="90m")
        try:
            word = await run.result(timeout="1h")
        except TimeoutError:
            word = "late"
        await wait_for("go")
        return word

    run = await parent.submit()
    async with app.worker():
        await in_state(app, run, State.PENDING)
        clock.advance(3_601)
        await until(lambda: _events_count(run, "suspend", 2))
        clock.advance(3_601)

        async def child_done() -> bool:
            return any(job.state is State.COMPLETED for job in await app.engine.find(Where(parent=run.id)))

        await until(child_done)
        await run.signal("go")
        assert await run.result(10) == "late"


async def _events_count(run, event, count):
    return (await events(run)).count(event) == count


async def test_each_of_many_children_wakes_its_parent_on_its_own(app):
    @app.job
    async def child(n: int) -> int:
        if n == 1:
            await wait_for("go")
        return n

    @step(name="tell")
    async def tell(id: str) -> None:
        await (await app.run(id)).signal("go")

    @app.job
    async def parent() -> list[int]:
        runs = await child.submit_many([0, 1])
        first = await runs[0].result()
        await tell(runs[1].id)
        return [first, await runs[1].result()]

    run = await parent.submit()
    async with app.worker(at_once=1):
        assert await run.result(15) == [0, 1]


async def test_a_child_that_is_replayed_before_its_siblings_are_in_is_waited_for(app, clock):
    broken, gate = [True], asyncio.Event()

    @app.job(retries=0)
    async def child(n: int) -> int:
        if n == 0 and broken:
            raise ValueError("no kelp")
        if n == 0:
            await wait_for("go")
        if n == 1:
            await gate.wait()
        return n

    @app.job(retries=0)
    async def parent() -> list[int]:
        return await child.map([0, 1])

    run = await parent.submit()
    async with app.worker(at_once=4, queues=["default"]):

        async def first_failed():
            jobs = await app.engine.find(Where(parent=run.id))
            return next((job for job in jobs if job.state is State.REVIEW), None)

        job = await until(first_failed)
        broken.clear()
        await app.jobs.replay(job.id)
        await until(lambda: _pending(app, job.id))
        gate.set()
        await asyncio.sleep(0.3)
        await app.jobs.signal(job.id, "go")
        for _ in range(3):
            clock.advance(6)
            await asyncio.sleep(0.2)
        assert await run.result(10) == [0, 1]


async def test_a_result_may_be_asked_for_again_after_it_was_late(app, clock):
    @app.job
    async def child() -> int:
        await wait_for("go")
        return 7

    @step(name="tell")
    async def tell(id: str) -> None:
        await (await app.run(id)).signal("go")

    @app.job(retries=0)
    async def parent() -> int:
        run = await child.submit()
        try:
            return await run.result(timeout="1h")
        except TimeoutError:
            await tell(run.id)
        return await run.result()

    run = await parent.submit()
    async with app.worker():
        await in_state(app, run, State.PENDING)
        clock.advance(3_601)
        assert await run.result(10) == 7


async def _pending(app, id):
    return (await app.jobs.get(id)).state is State.PENDING


# A person's replay of a parent.


async def test_a_replay_runs_the_failed_child_again_and_keeps_those_that_did_well(app, clock):
    broken = True

    @app.job(retries=0)
    async def child(n: int) -> int:
        RAN.append(n)
        if n == 2 and broken:
            raise ValueError("no kelp")
        return n * 10

    @app.job(retries=0)
    async def parent(mapped: bool) -> list[int]:
        if mapped:
            return await child.map([1, 2])
        return [await (await child.submit(n)).result() for n in (1, 2)]

    runs = [await parent.submit(True), await parent.submit(False)]
    async with app.worker():
        for run in runs:
            await in_state(app, run, State.REVIEW)
        broken = False
        for run in runs:
            await run.replay(reason="the provider is back")
        await until(lambda: sorted(RAN) == [1, 1, 2, 2, 2, 2])
        for run in runs:
            await in_state(app, run, State.SCHEDULED, State.COMPLETED)
        clock.advance(6)
        for run in runs:
            assert await run.result(15) == [10, 20]
    assert sorted(RAN) == [1, 1, 2, 2, 2, 2]
    (bad,) = [job for job in await app.engine.find(Where(parent=runs[0].id)) if job.args == "[2]"]
    (entry,) = [one for one in await app.jobs.history(bad.id) if one.event == Event.REPLAY]
    assert entry.note == {"reason": f"its parent {runs[0].id} was replayed: the provider is back"}


async def test_a_replay_of_a_parent_replays_the_failed_children_of_its_children(app, clock):
    broken = True

    @app.job(retries=0)
    async def leaf() -> str:
        if broken:
            raise ValueError("no kelp")
        return "kelp"

    @app.job(retries=0)
    async def branch() -> str:
        return await (await leaf.submit()).result()

    @app.job(retries=0)
    async def root() -> str:
        return await (await branch.submit()).result()

    run = await root.submit()
    async with app.worker():
        await in_state(app, run, State.REVIEW)
        broken = False
        await run.replay()

        async def through():
            clock.advance(1)
            return (await run.status()).state is State.COMPLETED

        await until(through)
        assert await run.result(5) == "kelp"


async def test_a_replay_that_is_refused_replays_no_child(app):
    @app.job(retries=0)
    async def child() -> None:
        raise ValueError("no kelp")

    @app.job(retries=0)
    async def parent() -> str:
        try:
            await (await child.submit()).result()
        except JobFailed:
            return "without"
        return "with"

    run = await parent.submit()
    async with app.worker():
        assert await run.result(10) == "without"
        with pytest.raises(NotAllowed):
            await run.replay()
    (one,) = await app.engine.find(Where(parent=run.id))
    assert one.state is State.REVIEW


async def test_a_replay_waits_again_for_what_was_late(app, clock):
    @app.job(retries=0)
    async def child() -> str:
        return await wait_for("go", as_=str)

    @app.job(retries=0)
    async def parent() -> str:
        run = await child.submit()
        return await run.result(60)

    run = await parent.submit()
    async with app.worker():
        await in_state(app, run, State.PENDING)
        clock.advance(61)
        assert "timed out after" in (await in_state(app, run, State.REVIEW)).error.message
        await run.replay()
        await in_state(app, run, State.PENDING)
        (one,) = await app.engine.find(Where(parent=run.id))
        await app.jobs.signal(one.id, "go", "now")
        assert await run.result(10) == "now"


async def test_a_replayed_child_wakes_its_parent_and_costs_no_look(app):
    broken = True

    @app.job(retries=0)
    async def child() -> str:
        if broken:
            raise ValueError("no kelp")
        return await wait_for("go", as_=str)

    @app.job(retries=0)
    async def parent() -> str:
        return await (await child.submit()).result("1h")

    run = await parent.submit()
    async with app.worker():
        await in_state(app, run, State.REVIEW)
        broken = False
        await run.replay()
        job = await in_state(app, run, State.PENDING)
        (one,) = await app.engine.find(Where(parent=run.id))
        await until(lambda: _pending(app, one.id))
        await app.jobs.signal(one.id, "go", "now")
        assert await run.result(10) == "now"
        assert (await app.jobs.get(run.id)).epoch == job.epoch + 1


async def settled(app, id):
    return (await app.jobs.get(id)).state is State.COMPLETED


@pytest.mark.parametrize("what", ["submit", "submit_many", "map"])
async def test_what_a_def_job_can_not_await_is_told_with_what_to_write(app, what):
    @app.job
    def child(n: int) -> int:
        return n + 1

    @app.job(retries=0)
    def parent() -> None:
        getattr(child, what)([1])

    run = await parent.submit()
    job = await finished(app, run)
    assert job.state is State.REVIEW
    assert job.error is not None
    assert f"in a def job, call app.sync.{what}(child, …)" in job.error.message


async def test_a_def_job_maps_over_children(app):
    @app.job
    def child(n: int) -> int:
        return n + 1

    @app.job
    def parent() -> list[int]:
        return app.sync.map(child, range(3))

    run = await parent.submit()
    assert (await finished(app, run)).state is State.COMPLETED
    assert await run.result() == [1, 2, 3]


async def test_a_bounded_map_over_quick_children_submits_them_together_and_keeps_its_slot(app, engine):
    @app.job
    async def child(n: int) -> int:
        return n

    @app.job
    async def parent() -> int:
        return sum(await child.map(range(200), at_once=20))

    run = await parent.submit()
    async with app.worker(at_once=8):
        assert await run.result(60) == sum(range(200))
    assert engine.calls["insert"] <= 100, "not one act for each child"
    assert (await events(run)).count("claim") <= 20, "not one suspend for each child"


async def test_a_bounded_map_on_a_worker_with_one_slot_lets_its_children_have_it(app):
    @app.job
    async def child(n: int) -> int:
        return n

    @app.job
    async def parent() -> list[int]:
        return await child.map(range(6), at_once=2)

    run = await parent.submit()
    async with app.worker(at_once=1):
        assert await run.result(60) == list(range(6))


async def test_of_a_map_outside_a_job_only_the_item_whose_key_is_taken_fails(app):
    @app.job
    async def child(n: int) -> int:
        return n

    await child.submit(7, key="1")
    async with app.worker(at_once=8):
        results = await child.map(range(3), key=lambda n: str(n), need=2, at_once=3)
    assert results == [0, None, 2]
