"""Errors that fail a map that fails a job that fails its parent: each level adds one fact, and nobody advises twice."""

import pytest

from holdfast import App, JobFailed, step
from holdfast.app.run import Run
from holdfast.core.model import Error, Job, State
from holdfast.jobs.failures import failure_of
from tests.support.given import finished

ADVICE = "look at it with holdfast show"


@step(retries=0)
async def draw(n: int) -> int:
    if n == 2:
        raise ValueError("no ink")
    return n


@step(effect="once", key=lambda to: to)
async def send(to: str) -> None:
    raise ValueError("cut off")


async def failed(app: App, run: Run) -> tuple[Job, str]:
    job = await finished(app, run)
    assert job.state is State.REVIEW
    with pytest.raises(JobFailed) as caught:
        await run.result()
    return job, str(caught.value)


async def test_a_map_says_how_many_items_failed_and_why_the_first_did(app):
    async def film(count: int) -> list[int]:
        return await draw.map(range(count))

    run = await app.job(retries=0)(film).submit(4)
    job, text = await failed(app, run)

    what = "draw: 1 of 4 items failed; first failure: item 3 of 4: ValueError: no ink"
    assert job.error.message == what
    assert text == (
        f"job {run.id} (film) needs a person: {what}; {ADVICE} {run.id[-8:]}, then replay, resolve or discard it"
    )


async def test_a_map_that_needs_fewer_says_how_many(app):
    async def film() -> list[int | None]:
        return await draw.map([2, 2, 1], need=2)

    job, _ = await failed(app, await app.job(retries=0)(film).submit())

    assert (
        job.error.message
        == "draw: 2 of 3 items failed, and 2 must succeed; first failure: item 1 of 3: ValueError: no ink"
    )


async def test_a_map_with_too_few_items_says_so(app):
    async def film() -> list[int | None]:
        return await draw.map([1], need=2)

    job, _ = await failed(app, await app.job(retries=0)(film).submit())

    assert job.error.message == "draw: all 1 items succeeded, but need=2"


async def test_a_chain_of_jobs_names_each_job_and_advises_once(app):
    @app.job(retries=0)
    async def picture(n: int) -> int:
        return await draw(n)

    @app.job(retries=0)
    async def album() -> list[int | None]:
        return await picture.map([1, 2])

    @app.job(retries=0)
    async def shelf() -> list[int | None]:
        run = await album.submit()
        ids.append(run.id)
        return await run.result()

    ids: list[str] = []
    run = await shelf.submit()
    job, text = await failed(app, run)

    child = f"job {ids[0]} (album) failed: picture: 1 of 2 items failed; first failure: item 2 of 2: job "
    assert job.error.message.startswith(child)
    assert job.error.message.endswith(" (picture) failed: ValueError: no ink")
    assert "JobFailed" not in job.error.message
    assert ADVICE not in job.error.message + job.error.traceback
    assert text.count(ADVICE) == 1
    assert text.startswith(f"job {run.id} (shelf) needs a person: {child}")


async def test_an_effect_in_doubt_says_what_to_do_and_nothing_else_does(app):
    @app.job(retries=0)
    async def mail() -> None:
        await send("ada")

    run = await mail.submit()
    _, text = await failed(app, run)

    assert text.count(f"holdfast resolve {run.id}") == 1
    assert ADVICE not in text


@pytest.mark.parametrize("state", [State.DISCARDED, State.CANCELLED])
def test_a_job_that_has_ended_needs_no_advice(state):
    job = Job(id="a" * 36, type="film", args="[]", state=state, error=Error("ValueError", "no"), created_at=0)

    assert "holdfast" not in str(failure_of(job))
