"""`job.with_options(…)`: the options of `submit`, apart from the job's own arguments."""

from datetime import UTC, datetime

import pytest

from holdfast import App, KeyConflict, UnknownOption, current
from holdfast.core.errors import Invalid, WrongColour
from holdfast.core.model import State, Where
from tests.support.given import AT_ONCE_RETRY, finished

OPTIONS = {
    "key": "order-42",
    "key_for": "1d",
    "queue": "slow",
    "priority": 7,
    "delay": "2h",
    "tags": ["trial"],
    "meta": {"user": "7"},
    "expires": "3h",
}


def film_on(app: App):
    @app.job
    async def film(n: int, style: str = "oil") -> str:
        return f"{n} {style}"

    return film


async def test_a_submit_with_options_is_the_same_either_way(app):
    film = film_on(app)

    one = await film.with_options(**OPTIONS).submit(1, style="ink")

    assert (await film.submit(1, style="ink", **OPTIONS)).id == one.id
    job = await app.jobs.get(one.id)
    assert (job.args, job.queue, job.priority) == ('[1,"ink"]', "slow", 7)
    assert job.state is State.SCHEDULED
    assert (job.options.tags, job.options.meta) == (("trial",), {"user": "7"})
    assert job.expires_at - job.run_at == 3_600_000
    with pytest.raises(KeyConflict):
        await film.with_options(key="order-42").submit(2)


async def test_a_job_with_options_can_be_submitted_more_than_once(app):
    slow = film_on(app).with_options(queue="slow")

    runs = [await slow.submit(1), await slow.submit(1)]

    assert len({run.id for run in runs}) == 2
    assert [(await app.jobs.get(run.id)).queue for run in runs] == ["slow", "slow"]


@pytest.mark.parametrize(
    "options",
    [
        {"delay": 5, "at": datetime.now(UTC)},
        {"at": datetime(2030, 1, 1)},  # noqa: DTZ001
        {"priority": 1_000},
        {"queue": "No Such"},
        {"tags": "trial"},
        {"key": ""},
    ],
    ids=lambda options: next(iter(options)),
)
async def test_a_bad_option_gets_the_same_error_either_way(app, options):
    film = film_on(app)
    with pytest.raises(Invalid) as one:
        await film.submit(1, **options)

    with pytest.raises(Invalid) as other:
        await film.with_options(**options).submit(1)

    assert str(other.value) == str(one.value)
    assert not await app.engine.count()


async def test_an_unknown_option_is_refused_at_once(app):
    with pytest.raises(UnknownOption, match="film.with_options takes no 'kye'"):
        film_on(app).with_options(kye="order-42")


async def test_one_key_for_several_jobs_is_refused(app):
    film = film_on(app).with_options(key="order-42")

    with pytest.raises(UnknownOption, match="submit_many takes no 'key'"):
        await film.submit_many([1, 2])
    with pytest.raises(UnknownOption, match="map takes no 'key'"):
        await film.map([1, 2])
    assert not await app.engine.count()


async def test_a_bulk_submit_and_a_map_have_the_options_too(app):
    urgent = film_on(app).with_options(priority=9, tags=["trial"])

    runs = await urgent.submit_many([1, (2, "ink")])
    async with app.worker():
        assert await urgent.map([3, 4]) == ["3 oil", "4 oil"]
        assert await urgent.map([3, 4], at_once=1, key=str, need=1) == ["3 oil", "4 oil"]
        assert [await run.result(5) for run in runs] == ["1 oil", "2 ink"]

    jobs = [job async for job in app.jobs.walk(Where())]
    assert {(job.priority, job.options.tags) for job in jobs} == {(9, ("trial",))}
    assert len(jobs) == 6


async def test_inside_a_job_a_submit_with_options_is_recorded(app):
    film = film_on(app)

    @app.job(retries=AT_ONCE_RETRY)
    async def parent() -> list[str]:
        urgent = film.with_options(priority=9)
        runs = [
            await urgent.submit(1),
            await film.with_options(key="order-42").submit(2),
            *await urgent.submit_many([3]),
        ]
        results = await urgent.map([4, 5])
        if current().attempt < 3:
            raise ValueError
        assert results == ["4 oil", "5 oil"]
        return [run.id for run in runs]

    run = await parent.submit()
    await finished(app, run)

    children = [job async for job in app.jobs.walk(Where()) if job.parent == run.id]
    assert {job.id for job in children} >= set(await run.result(5))
    assert sorted((job.args, job.priority) for job in children) == [
        ("[1]", 9),
        ("[2]", 0),
        ("[3]", 9),
        ("[4]", 9),
        ("[5]", 9),
    ]


async def test_a_def_job_submits_with_options_through_app_sync(app):
    film = film_on(app)

    @app.job(retries=AT_ONCE_RETRY)
    def parent() -> str:
        run = app.sync.submit(film.with_options(priority=9), 1)
        (more,) = app.sync.submit_many(film.with_options(priority=8), [2])
        app.sync.map(film.with_options(priority=7), [3])
        if current().attempt < 2:
            raise ValueError
        return f"{run.result()}, {more.result()}"

    @app.job(retries=0)
    def wrong() -> None:
        film.with_options(priority=9).submit(1)

    run, other = await parent.submit(), await wrong.submit()
    async with app.worker():
        assert await run.result(5) == "1 oil, 2 oil"
        with pytest.raises(Exception, match=WrongColour.__name__):
            await other.result(5)

    children = [job async for job in app.jobs.walk(Where()) if job.parent == run.id]
    assert sorted(job.priority for job in children) == [7, 8, 9]


def test_blocking_code_submits_with_options(app):
    film = film_on(app)

    @app.job
    def def_film(n: int) -> int:
        return n

    one = app.sync.submit(film.with_options(key="order-42"), 1, style="ink")

    assert app.sync.submit(film, 1, "ink", key="order-42").id == one.id
    assert app.sync.submit(def_film.with_options(key="order-43"), 1).id != one.id
    assert len(app.sync.submit_many(film.with_options(queue="slow"), [1, 2])) == 2
