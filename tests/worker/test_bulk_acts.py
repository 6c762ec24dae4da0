"""Acts on many jobs: each job once, in pages that survive a crash, with who and why in each history."""

import asyncio

import pytest

from holdfast import App
from holdfast.core.errors import Invalid, NotFound
from holdfast.core.model import PAGE_LIMIT, Job, State
from holdfast.jobs.bulk_acts import Act, Progress, act_progress, count_concerned, submit_act
from holdfast.jobs.selections import Selection
from holdfast.jobs.service import Jobs
from holdfast.jobs.views.pages.bulk import preview_bulk
from holdfast.worker import bulk_acts
from tests.support.given import Watched, until

ENGINES = ["memory", "file", "sqlite", "postgres", "redis"]

quota = {"raised": False}


class ProviderError(Exception):
    pass


def make_jobs(app: App) -> None:
    """Declare a job that fails until the quota is raised, and one that fails in another way."""
    quota["raised"] = False

    @app.job(retries=0)
    async def draw(number: int) -> int:
        if not quota["raised"]:
            raise ProviderError("quota exceeded")
        return number

    @app.job(retries=0)
    async def write(number: int) -> int:
        raise ValueError("wrong brief")

    app.draw, app.write = draw, write  # type: ignore[attr-defined]


async def in_review(app: App, draws: int, writes: int = 0) -> list[str]:
    """Submit jobs that fail, and wait until all of them need a person."""
    runs = await app.draw.submit_many([(n,) for n in range(draws)])  # type: ignore[attr-defined]
    runs += await app.write.submit_many([(n,) for n in range(writes)])  # type: ignore[attr-defined]
    async with app.worker():
        await until(lambda: all_in(app, [run.id for run in runs], State.REVIEW))
    return [run.id for run in runs]


async def all_in(app: App, ids: list[str], state: State) -> bool:
    return all(job is not None and job.state is state for job in await app.engine.get(ids))


async def ended(jobs: Jobs, act: Job) -> Progress:
    async def is_over() -> bool:
        return (await jobs.get(act.id)).state in (State.COMPLETED, State.REVIEW)

    await until(is_over)
    return await act_progress(jobs, act.id)


async def test_a_replay_of_many_runs_each_of_them_again_and_no_other(app: App):
    make_jobs(app)
    ids = await in_review(app, draws=5, writes=2)
    jobs = await app.open()
    act = Act("replay", Selection(error="ProviderError"), by="ada", reason="quota raised")
    assert await count_concerned(jobs, act) == {"draw": 5}

    quota["raised"] = True
    job = await submit_act(jobs, act)
    async with app.worker():
        progress = await ended(jobs, job)
        await until(lambda: all_in(app, ids[:5], State.COMPLETED))

    assert (progress.state, progress.outcome.done, progress.outcome.refused) == (State.COMPLETED, 5, 0)
    assert str(progress) == "5 jobs replayed (error ProviderError, state review): completed"
    assert await all_in(app, ids[5:], State.REVIEW)
    (replayed,) = [entry for entry in await jobs.history(ids[0]) if entry.event == "replay"]
    assert (replayed.by, replayed.note) == ("ada", {"reason": "quota raised", "act": job.id})


@pytest.mark.parametrize("engine", ["sqlite"], indirect=True)
async def test_an_act_whose_worker_dies_continues_and_acts_on_each_job_once(
    app: App, engine: Watched, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(bulk_acts, "PAGE", 4)
    monkeypatch.setattr(bulk_acts, "AT_ONCE", 1)
    make_jobs(app)
    ids = await in_review(app, draws=10)
    jobs = await app.open()
    job = await submit_act(jobs, Act("replay", Selection(type="draw")))
    replayed: list[str] = []

    async def stop_after_six(method: str, args: object) -> None:
        if method == "commit" and args[0][0].event == "replay":  # type: ignore[index]
            replayed.append(args[0][0].job.id)  # type: ignore[index]
            if len(replayed) == 6:
                raise asyncio.CancelledError  # as if the worker ended here

    engine.before = stop_after_six
    async with app.worker():
        progress = await ended(jobs, job)
        await until(lambda: all_in(app, ids, State.REVIEW))  # they fail again, and aren't replayed again

    assert progress.state is State.COMPLETED
    assert (progress.outcome.done, progress.outcome.refused) == (10, 0)
    for id in ids:
        assert sum(entry.event == "replay" for entry in await jobs.history(id)) == 1


async def test_a_resolve_and_a_discard_of_many(app: App):
    make_jobs(app)
    ids = await in_review(app, draws=3, writes=2)
    jobs = await app.open()
    one = await submit_act(jobs, Act("resolve", Selection(type="draw"), result="7"))
    other = await submit_act(jobs, Act("discard", Selection(ids=tuple(ids[3:]), step="(the job's own code)")))

    async with app.worker():
        assert (await ended(jobs, one)).outcome.done == 3
        assert (await ended(jobs, other)).outcome.done == 2

    assert [job and job.result for job in await app.engine.get(ids[:3])] == ["7"] * 3
    assert await all_in(app, ids[3:], State.DISCARDED)


async def test_an_act_is_stopped_by_cancelling_it(app: App):
    make_jobs(app)
    ids = await in_review(app, draws=2)
    jobs = await app.open()
    act = await submit_act(jobs, Act("replay", Selection(type="draw")))

    await jobs.cancel(act.id)

    assert (await act_progress(jobs, act.id)).state is State.CANCELLED
    assert await all_in(app, ids, State.REVIEW)


async def test_a_refusal_is_counted_and_named(app: App):
    make_jobs(app)
    ids = await in_review(app, draws=2)
    jobs = await app.open()
    act = await submit_act(jobs, Act("discard", Selection(ids=tuple(ids))))
    await jobs.resolve(ids[0], 1)

    async with app.worker():
        progress = await ended(jobs, act)

    # It no longer is what the act was asked about: that is counted where the page was chosen before.
    assert progress.outcome.done + progress.outcome.refused == 2
    assert progress.outcome.refused == 1
    assert progress.outcome.examples[0][0] == ids[0]
    assert "has already completed, so it can't be discarded" in progress.outcome.examples[0][1]


@pytest.mark.parametrize("engine", ["memory"], indirect=True)
async def test_what_an_act_can_not_do_is_refused_with_what_it_can(app: App):
    jobs = await app.open()

    with pytest.raises(NotFound, match=r"no job matches \(type draw, state review\), so there is nothing to replay"):
        await submit_act(jobs, Act("replay", Selection(type="draw")))
    with pytest.raises(Invalid, match="jobs that are active can't be replayed; possible states: review"):
        await submit_act(jobs, Act("replay", Selection(states=(State.ACTIVE,))))
    with pytest.raises(Invalid, match="there is no bulk act 'delete'; there are replay, resolve, discard, cancel"):
        await submit_act(jobs, Act("delete", Selection()))  # type: ignore[arg-type]
    with pytest.raises(Invalid, match="10,001 ids, and at most 10,000 are allowed"):
        await submit_act(jobs, Act("replay", Selection(ids=("x",) * 10_001)))


@pytest.mark.parametrize("engine", ["memory", "sqlite"], indirect=True)
async def test_an_act_among_too_many_jobs_to_look_at_is_submitted_and_finds_them(
    app: App, engine: Watched, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("holdfast.jobs.bulk_acts.PAGES_COUNTED", 1)
    monkeypatch.setattr("holdfast.jobs.views.pages.bulk.PAGES_COUNTED", 1)
    make_jobs(app)
    await app.draw.submit_many([(n,) for n in range(PAGE_LIMIT + 1)], delay="1h")  # type: ignore[attr-defined]
    late = await app.draw.with_options(tags=["old"], delay="1h").submit(0)  # type: ignore[attr-defined]
    jobs = await app.open()
    asked = Act("cancel", Selection(tag="old"))
    before = await preview_bulk(jobs, asked)
    looked = engine.calls["find"]
    act = await submit_act(jobs, asked)
    assert engine.calls["find"] == looked + 1
    async with app.worker():
        after = await ended(jobs, act)

    assert (before.total, before.is_least) == (0, True)
    assert before.sentence.startswith("None of the jobs looked at matches; the act looks at all of them (tag old")
    assert (after.state, after.outcome.done) == (State.COMPLETED, 1)
    assert (await late.status()).state == "cancelled"


async def test_an_act_on_a_queue_that_nobody_serves_runs_on_any_worker(app: App):
    make_jobs(app)
    jobs = await app.open()
    left = await app.draw.submit_many([(1,), (2,)], queue="abandoned")  # type: ignore[attr-defined]
    async with app.worker(queues=["default"]):
        act = await submit_act(jobs, Act("cancel", Selection(queue="abandoned")))

        assert (act.queue, (await ended(jobs, act)).outcome.done) == ("default", 2)
    assert await all_in(app, [run.id for run in left], State.CANCELLED)


async def test_an_act_avoids_paused_queues_and_quiet_workers(app: App):
    make_jobs(app)
    jobs = await app.open()
    await app.draw.submit(1, delay="1h")  # type: ignore[attr-defined]
    async with app.worker(queues=["default", "other"]) as worker:
        await jobs.pause("default")
        paused = await submit_act(jobs, Act("cancel", Selection(queue="default", type="draw")))
        assert paused.queue == "other"
        await ended(jobs, paused)
        await jobs.quiet_worker(worker.id)
        await app.draw.submit(2, delay="1h")  # type: ignore[attr-defined]
        alone = await submit_act(jobs, Act("cancel", Selection(type="draw")))
        assert alone.queue == "default"


async def test_without_a_worker_the_preview_and_the_progress_say_what_the_act_waits_for(app: App):
    make_jobs(app)
    jobs = await app.open()
    await app.draw.submit(1)  # type: ignore[attr-defined]
    asked = Act("cancel", Selection(type="draw"))
    before = await preview_bulk(jobs, asked)
    act = await submit_act(jobs, asked)
    waiting = str(await act_progress(jobs, act.id))
    async with app.worker():
        after = await ended(jobs, act)
        served = await preview_bulk(jobs, asked)

    assert "no worker takes jobs now, so it starts once one does" in before.sentence
    assert waiting.endswith("available; no worker takes jobs of queue default now; it starts once one does")
    assert after.hint == ""
    assert "no worker" not in served.sentence
