"""Waiting inside a job for a run that is not its child: without a slot, without looks, and woken by the end."""

import asyncio

import pytest

from holdfast import App, JobCancelled, JobFailed, NotFound, current, step, wait_for
from holdfast.core.errors import Outrun
from holdfast.core.lifecycle import deliver
from holdfast.core.model import Applied, Event, State, Where
from holdfast.engines.memory import MemoryEngine
from holdfast.jobs import waiters
from holdfast.jobs.waiters import ENDED, WAITER
from tests.support.given import QUICK, entry_of, events, in_state, until

ENGINES = ("memory", "file", "sqlite", "postgres", "redis")

NO_LOOKS = ["submit", "claim", "suspend", "activate", "claim", "complete"]
"""What happens to a job that waits once: it runs, waits, is woken and runs again."""


@pytest.fixture
def other(app):
    """A job that runs until it is told to end, and how to wait for one by its id."""

    @app.job(retries=0, keep="1s")
    async def awaited() -> str:
        word: str = await wait_for("go", as_=str)
        if word == "fail":
            raise ValueError("no kelp")
        return word

    return awaited


@pytest.fixture
def waits(app):
    """A job that waits for the run of an id, and tells what came of it."""

    @app.job(retries=0)
    async def waiting(id: str) -> str:
        try:
            return await (await app.run(id)).result()
        except (JobFailed, JobCancelled, NotFound) as error:
            return type(error).__name__

    return waiting


async def test_a_child_of_another_job_is_waited_for_without_a_slot_and_without_looks(app):
    @app.job
    async def child() -> str:
        return await wait_for("go", as_=str)

    @app.job
    async def parent(name: str) -> str:
        return await (await child.submit(key="shared")).result()

    async with app.worker(at_once=1):
        first = await parent.submit("first")
        await in_state(app, first, State.PENDING)
        second = await parent.submit("second")
        await in_state(app, second, State.PENDING)
        (shared,) = await app.engine.find(Where(parent=first.id))
        await until(lambda: _is_pending(app, shared.id))
        await app.jobs.signal(shared.id, "go", "on")
        assert [await first.result(10), await second.result(10)] == ["on", "on"]
    assert await events(first) == NO_LOOKS
    assert await events(second) == NO_LOOKS
    assert (await entry_of(second, Event.SUSPEND)).note["waits"] == [f"job {shared.id}"]
    assert (await entry_of(second, Event.ACTIVATE)).note == {"ended": shared.id}


async def test_a_run_that_was_submitted_outside_is_waited_for_by_its_id(app, other, waits):
    run = await other.submit()
    async with app.worker(at_once=1):
        await in_state(app, run, State.PENDING)
        waiting = await waits.submit(run.id)
        await in_state(app, waiting, State.PENDING)
        await run.signal("go", "on")
        assert await waiting.result(10) == "on"
    assert await events(waiting) == NO_LOOKS, await waiting.history()


async def test_a_run_that_a_job_was_handed_is_waited_for_in_the_same_way(app, other):
    run = await other.submit()

    @app.job
    async def waiting() -> str:
        return await run.result()

    async with app.worker(at_once=1):
        await in_state(app, run, State.PENDING)
        job = await waiting.submit()
        await in_state(app, job, State.PENDING)
        await run.signal("go", "on")
        assert await job.result(10) == "on"


async def test_a_def_job_waits_for_a_run_too(app, other):
    @app.job
    def waiting(id: str) -> str:
        return app.sync.run(id).result()

    run = await other.submit()
    async with app.worker(at_once=1):
        await in_state(app, run, State.PENDING)
        job = await waiting.submit(run.id)
        await in_state(app, job, State.PENDING)
        await run.signal("go", "on")
        assert await job.result(10) == "on"


ENDS = {
    "completes": ("on", lambda app, run: run.signal("go", "on")),
    "fails": ("JobFailed", lambda app, run: run.signal("go", "fail")),
    "is cancelled": ("JobCancelled", lambda app, run: run.cancel()),
}


@pytest.mark.parametrize("how", ENDS)
async def test_a_run_that_has_settled_before_answers_at_once(app, other, waits, how):
    told, end = ENDS[how]
    run = await other.submit()
    async with app.worker():
        await in_state(app, run, State.PENDING)
        await end(app, run)
        await in_state(app, run, State.COMPLETED, State.REVIEW, State.CANCELLED)
        waiting = await waits.submit(run.id)
        assert await waiting.result(10) == told
    assert await events(waiting) == ["submit", "claim", "complete"]


@pytest.mark.parametrize("how", ENDS)
async def test_whoever_ends_a_run_wakes_who_waits_for_it(app, other, waits, how):
    told, end = ENDS[how]
    run = await other.submit()
    async with app.worker(at_once=1):
        await in_state(app, run, State.PENDING)
        waiting = await waits.submit(run.id)
        await in_state(app, waiting, State.PENDING)
        await end(app, run)
        assert await waiting.result(10) == told
    assert await events(waiting) == NO_LOOKS, await waiting.history()


async def test_a_run_that_expires_wakes_who_waits_for_it(app, clock, waits):
    @app.job(queue="nobody")
    async def late() -> None: ...

    run = await late.submit(expires="1h")
    async with app.worker(queues=["default"]):
        waiting = await waits.submit(run.id)
        await in_state(app, waiting, State.PENDING)
        clock.advance(3_601)
        assert await waiting.result(10) == "JobFailed"


async def test_a_child_that_is_cancelled_with_its_parent_wakes_who_waits_for_it(app, other, waits):
    @app.job
    async def parent() -> str:
        return await (await other.submit()).result()

    family = await parent.submit()
    async with app.worker():
        await in_state(app, family, State.PENDING)
        (child,) = await app.engine.find(Where(parent=family.id))
        await until(lambda: _is_pending(app, child.id))
        waiting = await waits.submit(child.id)
        await in_state(app, waiting, State.PENDING)
        await family.cancel()
        assert await waiting.result(10) == "JobCancelled"


@pytest.mark.parametrize("moment", ["note", "suspend"])
async def test_a_run_that_ends_in_the_very_moment_is_not_missed(app, engine, other, waits, moment):
    run = await other.submit()
    ended = False

    async def end_it(name, args):
        nonlocal ended
        if name != "commit" or ended:
            return
        (change, *_) = args[0]
        notes = change.signal is not None and change.signal[0] == WAITER
        if (moment == "note" and notes) or (moment == "suspend" and change.event == Event.SUSPEND and ready):
            ended = True
            await app.jobs.cancel(run.id)

    ready = False
    async with app.worker():
        await in_state(app, run, State.PENDING)
        ready = True
        engine.before = end_it
        waiting = await waits.submit(run.id)
        assert await waiting.result(10) == "JobCancelled"
    assert ended
    assert "suspend" not in await events(waiting)


async def test_one_end_wakes_all_who_wait_for_it(app, other, waits):
    run = await other.submit()
    async with app.worker(at_once=8):
        await in_state(app, run, State.PENDING)
        waiting = await waits.submit_many([run.id] * 20)
        for one in waiting:
            await in_state(app, one, State.PENDING)
        await run.signal("go", "on")
        assert [await one.result(10) for one in waiting] == ["on"] * 20
    for one in waiting:
        assert await events(one) == NO_LOOKS


@pytest.mark.parametrize("engine", ["memory", "sqlite"], indirect=True)
async def test_a_waiting_job_goes_on_although_the_teller_died_before_it_could_say_so(app, engine, other, waits):
    run = await other.submit()

    async def lose_the_word(name, args):
        if name == "commit" and any(one.signal is not None and one.signal[0].startswith(ENDED) for one in args[0]):
            raise Outrun("the word is lost")

    async with app.worker():
        await in_state(app, run, State.PENDING)
        waiting = await waits.submit(run.id)
        await in_state(app, waiting, State.PENDING)
        engine.before = lose_the_word
        await run.signal("go", "on")
        await in_state(app, run, State.COMPLETED)
        assert (await waiting.status()).state is State.PENDING
    engine.before = None
    successor = App("memory:", settings=QUICK, engine=engine)
    successor.registry = app.registry
    async with successor.worker():
        assert await waiting.result(10) == "on"


async def test_a_waiting_job_is_told_although_its_worker_died_before_it_could_suspend(app, other, waits):
    """It was noted as waiting, and another worker runs it from the top: it is not noted twice."""
    run = await other.submit()
    async with app.worker():
        await in_state(app, run, State.PENDING)
        waiting = await waits.submit(run.id)
        await in_state(app, waiting, State.PENDING)
        await app.jobs.activate(waiting.id)
        await until(lambda: _has(waiting, "suspend", 2))
        assert [signal.name for signal in (await app.jobs.get(run.id)).inbox] == [WAITER]
        await run.signal("go", "on")
        assert await waiting.result(10) == "on"


async def test_an_unknown_run_is_refused(app, other):
    run = await other.submit()
    await run.cancel()

    @app.job(retries=0)
    async def waiting() -> str:
        try:
            return await run.result()
        except NotFound as error:
            return str(error)

    async def is_gone() -> bool:
        await app.engine.prune()
        return await app.engine.get([run.id]) == [None]

    await until(is_gone)
    async with app.worker():
        told = await (await waiting.submit()).result(10)
    assert told.startswith(f"there is no job {run.id} in this store; it may have been pruned")


async def test_a_run_that_is_pruned_before_its_waiting_job_looks_is_told_as_gone(app, clock, other, waits):
    run = await other.submit()
    async with app.worker():
        await in_state(app, run, State.PENDING)
        waiting = await waits.submit(run.id)
        await in_state(app, waiting, State.PENDING)
    await run.cancel()
    clock.advance(5)

    async def is_gone() -> bool:
        await app.engine.prune()
        return await app.engine.get([run.id]) == [None]

    await until(is_gone)
    async with app.worker():
        assert await waiting.result(10) == "NotFound"


async def test_what_became_of_a_run_is_recorded_and_stays_after_it_was_pruned(app, clock, other):
    @app.job
    async def waiting(id: str) -> str:
        word: str = await (await app.run(id)).result()
        await wait_for("more")
        return word

    run = await other.submit()
    async with app.worker():
        await in_state(app, run, State.PENDING)
        job = await waiting.submit(run.id)
        await in_state(app, job, State.PENDING)
        await run.signal("go", "on")
        await until(lambda: _has(job, "suspend", 2))
        clock.advance(5)

        async def is_gone() -> bool:
            return await app.engine.get([run.id]) == [None]

        await until(is_gone)
        await job.signal("more")
        assert await job.result(10) == "on"


async def test_the_wait_for_a_run_may_be_late(app, clock, other):
    @app.job(retries=0)
    async def waiting(id: str) -> str:
        run = await app.run(id)
        try:
            return await run.result("1h")
        except TimeoutError:
            return "late"

    run = await other.submit()
    async with app.worker():
        job = await waiting.submit(run.id)
        await in_state(app, job, State.PENDING)
        clock.advance(3_601)
        assert await job.result(10) == "late"


async def test_who_waits_no_longer_is_not_disturbed(app, clock, other):
    @app.job(retries=0)
    async def waiting(id: str) -> str:
        run = await app.run(id)
        try:
            await run.result("1h")
        except TimeoutError:
            pass
        return await wait_for("more", as_=str)

    run = await other.submit()
    async with app.worker():
        job = await waiting.submit(run.id)
        await in_state(app, job, State.PENDING)
        clock.advance(3_601)
        await until(lambda: _has(job, "suspend", 2))
        await run.signal("go", "on")
        await in_state(app, run, State.COMPLETED)
        await job.signal("more", "done")
        assert await job.result(10) == "done"
    assert (await events(job)).count("claim") == 3


async def test_a_run_that_is_replayed_is_waited_for_again_and_tells_again(app, other):
    @app.job(retries=0)
    async def waiting(id: str) -> str:
        return await (await app.run(id)).result()

    run = await other.submit()
    async with app.worker():
        await in_state(app, run, State.PENDING)
        job = await waiting.submit(run.id)
        await in_state(app, job, State.PENDING)
        await run.signal("go", "fail")
        await in_state(app, job, State.REVIEW)
        # The signal that it took is recorded: it would fail again. A person gives it a result instead.
        await job.replay()
        await in_state(app, job, State.REVIEW)
        await run.resolve("after all")
        await job.replay()
        assert await job.result(10) == "after all"


async def test_a_wait_for_a_run_inside_a_step_is_refused(app, other):
    run = await other.submit()

    @step(name="bad")
    async def bad() -> str:
        return await run.result()

    @app.job(retries=0)
    async def film() -> str:
        return await bad()

    async with app.worker():
        job = await in_state(app, await film.submit(), State.REVIEW)
    assert "a wait inside a step would keep the slot" in job.error.message


async def test_a_run_of_another_store_is_waited_for_as_from_outside(app):
    elsewhere = App("memory:", settings=QUICK, engine=MemoryEngine())

    @elsewhere.job
    async def far() -> str:
        return "far"

    @app.job
    async def near() -> str:
        return await (await elsewhere.run(run.id)).result(10)

    run = await far.submit()
    async with elsewhere.worker(), app.worker():
        assert await (await near.submit()).result(10) == "far"


# Jobs that wait for each other.


async def test_a_job_that_waits_for_itself_is_refused(app):
    @app.job(retries=3)
    async def selfish() -> int:
        return await (await selfish.submit(key="same")).result()

    run = await selfish.submit(key="same")
    async with app.worker():
        job = await in_state(app, run, State.REVIEW)
    assert f"job {run.id} (selfish) can't wait for itself" in job.error.message


async def test_a_job_that_follows_itself_is_refused(app):
    @app.job(retries=3)
    async def vain() -> int:
        return len([one async for one in (await app.run(current().job_id)).follow()])

    run = await vain.submit()
    async with app.worker():
        job = await in_state(app, run, State.REVIEW)
    assert f"job {run.id} (vain) can't wait for itself" in job.error.message
    assert [one.event async for one in run.follow()] == ["submit", "claim", "exhaust"]
    assert await events(run) == ["submit", "claim", "exhaust"]


@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("at_once", [1, 8])
async def test_jobs_that_wait_for_each_other_in_a_circle_are_refused(app, size, at_once):
    @app.job(retries=0)
    async def link(n: int) -> int:
        return await (await link.submit((n + 1) % size, key=f"link {(n + 1) % size}")).result()

    runs = [await link.submit(n, key=f"link {n}") for n in range(size)]
    async with app.worker(at_once=at_once):
        jobs = [await in_state(app, run, State.REVIEW) for run in runs]
    refused = [job for job in jobs if job.error.type.endswith("Invalid")]
    told = [job for job in jobs if job.error.type.endswith("JobFailed")]
    assert len(refused) == 1, "one is refused, and the others are told that it failed"
    assert len(told) == size - 1
    message = refused[0].error.message
    assert message.startswith(f"job {refused[0].id} (link) can't wait for job ")
    assert message.count(" waits for job ") == size
    assert "\n" not in message
    assert all(run.id in message for run in runs)


@pytest.mark.parametrize("first", ["parent", "child"])
async def test_a_child_that_waits_for_the_parent_that_waits_for_it_is_refused(app, first):
    gate = asyncio.Event()

    @app.job(retries=0)
    async def child(id: str) -> str:
        if first == "parent":
            await gate.wait()
        return await (await app.run(id)).result()

    @app.job(retries=0)
    async def parent() -> str:
        run = await child.submit(parents[0])
        if first == "child":
            await gate.wait()
        return await run.result()

    parents: list[str] = []
    async with app.worker():
        async with asyncio.TaskGroup():
            run = await parent.submit(delay=0.2)
            parents.append(run.id)
        (one,) = await until(lambda: app.engine.find(Where(parent=run.id)))
        waiter = run if first == "parent" else await app.run(one.id)
        await in_state(app, waiter, State.PENDING)
        gate.set()
        job = await in_state(app, await app.run(one.id), State.REVIEW)
        assert f"job {one.id} (child) can't wait for job {run.id}" in job.error.message
        await in_state(app, run, State.REVIEW)


async def test_a_wait_with_an_end_is_no_part_of_a_circle(app, clock):
    @app.job(retries=0)
    async def patient() -> str:
        return await (await hasty.submit(key="hasty")).result()

    @app.job(retries=0)
    async def hasty() -> str:
        try:
            return await (await patient.submit(key="patient")).result("1h")
        except TimeoutError:
            return "went on"

    run = await patient.submit(key="patient")
    quick = await hasty.submit(key="hasty")
    async with app.worker():
        await in_state(app, run, State.PENDING)
        await in_state(app, quick, State.PENDING)
        clock.advance(3_601)
        assert await run.result(10) == "went on"


@pytest.mark.parametrize("engine", ["memory", "sqlite"], indirect=True)
async def test_upkeep_finds_a_circle_that_nobody_else_saw(app, engine, monkeypatch):
    @app.job(retries=0)
    async def ping() -> str:
        return await (await pong.submit(key="pong")).result()

    @app.job(retries=0)
    async def pong() -> str:
        return await (await ping.submit(key="ping")).result()

    async def sees_nothing(*_: object, **__: object) -> list[object]:
        return []

    runs = [await ping.submit(key="ping"), await pong.submit(key="pong")]
    with monkeypatch.context() as blind:
        blind.setattr("holdfast.worker.children.chain_between", sees_nothing)
        blind.setattr("holdfast.jobs.waiters.chain_between", sees_nothing)
        async with app.worker():
            for run in runs:
                await in_state(app, run, State.PENDING)
    async with app.worker():
        for run in runs:
            await in_state(app, run, State.REVIEW)


async def test_a_hint_that_nobody_needs_changes_nothing(app, other, waits):
    """Somebody says that the run has ended, and it has not: the job looks, and waits on."""
    run = await other.submit()
    async with app.worker():
        await in_state(app, run, State.PENDING)
        waiting = await waits.submit(run.id)
        job = await in_state(app, waiting, State.PENDING)
        (answer,) = await app.engine.commit([deliver(job, ENDED + run.id, "null", await app.engine.now())])
        assert isinstance(answer, Applied)
        await until(lambda: _has(waiting, "suspend", 2))
        await in_state(app, waiting, State.PENDING)
        assert (await app.jobs.get(waiting.id)).inbox == ()
        await run.signal("go", "on")
        assert await waiting.result(10) == "on"


async def _is_pending(app, id):
    return (await app.jobs.get(id)).state is State.PENDING


async def _has(run, event, count):
    return (await events(run)).count(event) >= count


async def test_how_many_may_wait_for_one_job_has_a_bound_and_the_next_one_is_refused(app, other, waits, monkeypatch):
    monkeypatch.setattr(waiters, "WAITERS", 2)
    run = await other.submit()
    async with app.worker():
        await in_state(app, run, State.PENDING)
        early = [await waits.submit(run.id) for _ in range(2)]
        for one in early:
            await in_state(app, one, State.PENDING)

        late = await in_state(app, await waits.submit(run.id), State.REVIEW)
        await run.signal("go", "on")

        assert [await one.result(10) for one in early] == ["on", "on"]
    assert late.error.type.endswith("NotAllowed")
    assert "2 other jobs already do" in late.error.message
