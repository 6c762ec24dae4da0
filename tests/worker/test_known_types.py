"""Workers claim the job types that they know, on every engine: apps share a queue, deploys roll, and nobody spins."""

import asyncio

import pytest

from holdfast import App, wait_for
from holdfast.core.keys import derived_id
from holdfast.core.model import Event, State
from holdfast.jobs.built_in import BUILT_IN_TYPES
from holdfast.jobs.consequences import UNDO_TYPE
from holdfast.jobs.requests import JobRequest
from tests.support.given import QUICK, Watched, entry_of, events, in_state, until

ENGINES = ["memory", "sqlite", "postgres", "redis"]
CROWD = 40
QUIET_SECONDS = 0.5
"""For how long a worker is watched that has nothing to do."""


@pytest.fixture
def other(engine: Watched) -> App:
    """Another App on the same store."""
    return App("memory:", settings=QUICK, engine=engine)  # type: ignore[arg-type]


async def double(n: int) -> int:
    return 2 * n


async def triple(n: int) -> int:
    return 3 * n


async def test_two_apps_on_one_queue_do_not_hinder_each_other(app, other, engine):
    ours = await app.job(name="app.double")(double).submit_many(range(CROWD))
    theirs = await other.job(name="other.triple")(triple).submit_many(range(CROWD))

    async with app.worker(), app.worker(), other.worker(), other.worker():
        assert [await run.result(20) for run in ours] == [2 * n for n in range(CROWD)]
        assert [await run.result(20) for run in theirs] == [3 * n for n in range(CROWD)]

    for run in (*ours, *theirs):
        assert await events(run) == [Event.SUBMIT, Event.CLAIM, Event.COMPLETE]


async def test_in_a_rolling_deploy_nothing_is_lost_and_nothing_rests(app, other, engine):
    """The old code knows one type, the new code another one more; both work on one queue while the deploy lasts."""
    old_job = app.job(name="app.double")(double)
    same, new = other.job(name="app.double")(double), other.job(name="app.triple")(triple)

    async with app.worker():  # not deployed yet
        first = [await old_job.submit(n) for n in range(5)]
        async with other.worker():  # the first machine with the new code
            runs = [await job.submit(n) for n in range(10) for job in (new, same)]
            assert [await run.result(20) for run in runs] == [m * n for n in range(10) for m in (3, 2)]
        waiting = await new.submit(7)  # that machine is restarted
        assert [await run.result(20) for run in first] == [0, 2, 4, 6, 8]
        assert (await app.jobs.get(waiting.id)).state is State.AVAILABLE
        async with other.worker():
            assert await waiting.result(20) == 21

    for run in (*first, *runs, waiting):
        assert await events(run) == [Event.SUBMIT, Event.CLAIM, Event.COMPLETE]


async def test_a_job_that_no_worker_knows_stays_as_it_is(app, engine):
    (accepted,) = await (await app.open()).submit([JobRequest(type="elsewhere.made")])
    before = await app.jobs.get(accepted.id)

    async with app.worker():
        assert await (await app.job(double).submit(2)).result(20) == 4

    assert await app.jobs.get(accepted.id) == before
    assert len(await app.engine.history(accepted.id)) == 1


async def test_what_becomes_due_is_taken_by_who_knows_it_whoever_promotes_it(app, other, engine, clock):
    later = await other.job(name="other.triple")(triple).submit(5, delay="1h")
    app.job(double)
    async with app.worker(), other.worker():
        clock.advance(3_601)
        assert await later.result(20) == 15

    assert Event.REST not in await events(later)


async def test_foreign_jobs_wake_a_worker_and_do_not_make_it_spin(app, other, engine):
    app.job(double)
    foreign = other.job(name="other.triple")(triple)
    async with app.worker():
        await until(lambda: engine.calls["claim"] > 0)
        await asyncio.sleep(QUIET_SECONDS)
        idle = engine.calls["claim"]
        for n in range(10):
            await foreign.submit(n)
        await asyncio.sleep(QUIET_SECONDS)
        woken = engine.calls["claim"] - idle

    assert woken <= 10 + 10 * QUIET_SECONDS, "a wake-up is one claim, and a poll now and then"


async def test_a_job_that_is_made_known_while_a_worker_runs_is_claimed(app, other, engine):
    app.job(double)
    late = await other.job(name="late.triple")(triple).submit(4)
    async with app.worker():
        await until(lambda: engine.calls["claim"] > 0)
        app.job(name="late.triple")(triple)
        await (await app.job(double).submit(1)).result(20)
        assert await late.result(20) == 12


async def test_a_worker_tells_which_types_it_claims(app, engine):
    app.job(name="app.double")(double)
    async with app.worker():
        await until(lambda: engine.calls["beat"] > 0)
        (presence,) = await app.jobs.workers()

    assert presence.types == ("app.double", *BUILT_IN_TYPES)


async def test_a_worker_with_very_many_types_tells_none(app, engine):
    for n in range(501):
        app.job(name=f"app.double-{n}")(double)
    async with app.worker():
        (presence,) = await app.jobs.workers()

    assert presence.types is None


async def undo_of(other, app, cleaned=None):
    """A job of the other app was cancelled: the undo job of what it made, as this app sees it."""

    async def clean(n: int) -> None:
        if cleaned is not None:
            cleaned.append(n)

    async def making(n: int) -> None:
        await wait_for("never")

    run = await other.job(name="other.making", cleanup=clean)(making).submit(3)
    async with other.worker():
        await in_state(app, run, State.PENDING)
    await run.cancel()
    return await app.run(derived_id(run.id, "undo"))


async def test_what_another_app_made_is_undone_by_that_app(app, other, engine):
    """Every worker claims undo jobs; one without the code leaves it to one that has it."""
    cleaned: list[int] = []
    app.job(double)
    undo = await undo_of(other, app, cleaned)

    async with app.worker():
        await in_state(app, undo, State.SCHEDULED)
        assert cleaned == []
    async with other.worker():
        await in_state(app, undo, State.COMPLETED, seconds=20)

    assert cleaned == [3]
    assert "doesn't have the code to undo job" in (await entry_of(undo, Event.REST)).note["why"]


async def test_a_worker_that_put_an_undo_to_rest_lets_others_claim_it_first(app, other, engine, monkeypatch):
    asked = []
    claim = engine.claim

    async def noted(worker, queues, limit, types=None):
        asked.append(types)
        return await claim(worker, queues, limit, types)

    known = app.job(double)
    undo = await undo_of(other, app)
    monkeypatch.setattr(engine, "claim", noted)

    async with app.worker():
        await in_state(app, undo, State.SCHEDULED)
        before = len(asked)
        await known.submit(1)
        await until(lambda: len(asked) > before)
        assert UNDO_TYPE in asked[0]
        assert UNDO_TYPE not in asked[-1]


async def test_an_undo_that_no_app_knows_is_logged_once_and_comes_to_a_person_in_the_end(
    app, other, engine, clock, caplog
):
    async def clean(n: int) -> None: ...

    async def making(n: int) -> None:
        await wait_for("never")

    app.job(double)
    runs = await other.job(name="other.making", cleanup=clean)(making).submit_many([3, 4])
    async with other.worker():
        for run in runs:
            await in_state(app, run, State.PENDING)
    for run in runs:
        await run.cancel()
    undo, second = [await app.run(derived_id(run.id, "undo")) for run in runs]
    async with app.worker():
        await in_state(app, undo, State.SCHEDULED)
        await in_state(app, second, State.SCHEDULED)
        (told,) = [one.getMessage() for one in caplog.records if "which this worker doesn't know" in one.getMessage()]
        assert "undoes a job of type other.making" in told
        assert "for up to 1 h" in told
        clock.advance(3_700)
        job = await in_state(app, undo, State.REVIEW, State.RETRYABLE, seconds=20)

    assert "this worker knows no job 'other.making' with a cleanup" in job.error.message
