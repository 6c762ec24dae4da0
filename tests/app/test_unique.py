"""`submit(unique=…)`: what callers and jobs get, on every engine."""

import asyncio

import pytest
from msgspec import Struct

from holdfast import App, Duplicate, Invalid, Unique, step
from holdfast.core.model import Where
from tests.support.given import AT_ONCE_RETRY

ENGINES = ("memory", "file", "sqlite", "postgres", "redis")
SAME = Unique(by=("args",))


class Brief(Struct):
    title: str
    size: int = 1


def make_report(app: App):
    @app.job
    async def report(customer: str, month: str = "May") -> str:
        return f"{customer} {month}"

    return report


async def test_a_submit_returns_refuses_or_replaces_the_job_like_it(app):
    report = make_report(app)
    first = await report.submit("acme", unique=SAME)

    assert (await report.submit("acme", "May", unique=SAME)).id == first.id
    assert (await report.with_options(unique=SAME).submit("acme")).id == first.id
    with pytest.raises(Duplicate) as refused:
        await report.submit("acme", unique=Unique(by=("args",), then="refuse"))
    assert refused.value.existing.id == refused.value.id == first.id
    assert (await refused.value.existing.status()).state == "available"

    second = await report.submit("acme", unique=Unique(by=("args",), then="replace"))

    assert (await first.status()).state == "cancelled"
    assert (await first.history())[-1].note["reason"].startswith(f"replaced by job {second.id}")
    assert (await report.submit("acme", unique=SAME)).id == second.id
    assert (await report.submit("acme", "June", unique=SAME)).id not in (first.id, second.id)


async def test_submit_many_is_unique_within_the_list_and_beyond(app):
    report = make_report(app)
    first = await report.submit("b", unique=SAME)

    runs = await report.submit_many(["a", "b", "a", "c"], unique=SAME)

    assert [run.id for run in runs] == [runs[0].id, first.id, runs[0].id, runs[3].id]
    assert len({run.id for run in runs}) == 3
    replaced = await report.submit_many(["a", "c"], unique=Unique(by=("args",), then="replace"))
    assert [(await run.status()).state for run in runs] == ["cancelled", "available", "cancelled", "cancelled"]
    assert [(await run.status()).state for run in replaced] == ["available", "available"]
    with pytest.raises(Duplicate) as refused:
        await report.submit_many(["d", "b"], unique=Unique(by=("args",), then="refuse"))
    assert refused.value.existing.id == first.id
    assert len(await app.jobs.engine.find(Where())) == 5, "d was not submitted"


async def test_a_window_counts_jobs_that_have_ended(app):
    report = make_report(app)
    hourly = Unique(by=("args",), within="1h")
    async with app.worker():
        first = await report.submit("acme", unique=hourly)
        assert await first.result(timeout=20) == "acme May"

    again = await report.submit("acme", unique=hourly)
    assert again.id == first.id
    assert await again.result(timeout=5) == "acme May"
    assert (await report.submit("acme", unique=SAME)).id != first.id


async def test_replacing_a_running_job_undoes_what_it_made(app):
    undone: list[str] = []
    started = asyncio.Event()

    def throw_away(image: str) -> None:
        undone.append(image)

    @step(name="draw", undo=throw_away)
    async def draw(scene: str) -> str:
        return f"{scene}.png"

    @app.job
    async def film(scene: str) -> None:
        await draw(scene)
        started.set()
        await asyncio.sleep(60)

    async with app.worker():
        first = await film.submit("sea", unique=SAME)
        await asyncio.wait_for(started.wait(), 20)
        second = await film.submit("sea", unique=Unique(by=("args",), then="replace"), delay="1h")
        async with asyncio.timeout(20):
            while not undone:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        assert (await first.status()).state == "cancelled"
        await second.cancel()
    assert undone[0] == "sea.png"


async def test_states_leave_a_running_job_alone(app):
    running, done = asyncio.Event(), asyncio.Event()

    @app.job
    async def index() -> None:
        running.set()
        await asyncio.wait_for(done.wait(), 20)

    waiting_only = Unique(by=("args",), states=("scheduled", "available"), then="replace")
    async with app.worker(at_once=1):
        first = await index.submit(unique=waiting_only)
        await asyncio.wait_for(running.wait(), 20)
        second = await index.submit(unique=waiting_only)
        third = await index.submit(unique=waiting_only)
        states = [(await run.status()).state for run in (first, second, third)]
        done.set()
        await third.result(timeout=20)

    assert states == ["active", "cancelled", "available"]
    assert (await first.status()).state == "completed"


async def test_a_child_that_exists_is_found_again_by_the_next_run_of_its_parent(app):
    report = make_report(app)
    runs: list[str] = []

    @app.job(retries=AT_ONCE_RETRY)
    async def parent() -> str:
        run = await report.submit("acme", unique=SAME)
        runs.append(run.id)
        if len(runs) == 1:
            await run.cancel()
            raise ValueError("again")
        return run.id

    existing = await report.submit("acme", unique=SAME, delay="1h")
    async with app.worker():
        assert await (await parent.submit()).result(timeout=30) == existing.id

    assert runs == [existing.id, existing.id], "although it has ended meanwhile"


async def test_a_refusal_inside_a_job_is_remembered(app):
    report = make_report(app)
    seen: list[str] = []

    @app.job
    async def parent() -> list[str]:
        try:
            await report.submit("acme", unique=Unique(by=("args",), then="refuse"))
        except Duplicate as error:
            seen.append(error.existing.id)
        await report.submit("other")
        child = await report.submit("more")
        await child.result()
        return seen

    existing = await report.submit("acme", unique=SAME, delay="1h")
    run = await parent.submit()
    async with app.worker():
        assert set(await run.result(timeout=20)) == {existing.id}


async def test_a_field_of_a_struct_names_a_job(app):
    @app.job
    async def film(brief: Brief) -> None: ...

    titled = Unique(by=("args.title",))
    first = await film.submit(Brief("sea"), unique=titled)

    assert (await film.submit(Brief("sea", 2), unique=titled)).id == first.id
    assert (await film.submit(Brief("sea", 2), unique=Unique(by=("args.brief.title",)))).id != first.id
    with pytest.raises(Invalid, match=r"film: unique= names args.titel, but there is no 'titel'"):
        await film.submit(Brief("sea"), unique=Unique(by=("args.titel",)))


async def test_a_refused_signature_names_the_run_that_exists(app):
    report = make_report(app)
    only_one = report.with_options(unique=Unique(by=("args",), within="1h", then="refuse")).s("acme")
    first = await only_one.submit()

    with pytest.raises(Duplicate) as refused:
        await only_one.submit()
    assert (await refused.value.existing.status()).id == first.id

    @app.job(retries=0)
    async def parent() -> str:
        try:
            await only_one.submit()
        except Duplicate as error:
            return (await error.existing.status()).id
        return "submitted"

    run = await parent.submit()
    async with app.worker(queues=["default"]):
        assert await run.result(timeout=30) == first.id


async def test_wrong_calls_are_refused(app):
    report = make_report(app)

    with pytest.raises(Invalid, match=r"give a holdfast.Unique, such as Unique\(by=\(\"args\",\)\)"):
        await report.submit("acme", unique=True)
    with pytest.raises(Invalid, match="report: key= and unique= both say which job is the same; give one of them"):
        await report.submit("acme", key="k", unique=SAME)
    with pytest.raises(Invalid, match="takes no 'unique'"):
        await report.with_options(unique=SAME).map(["acme"])


def test_blocking_code_submits_unique_jobs(app):
    report = make_report(app)
    first = app.sync.submit(report, "acme", unique=SAME)

    assert app.sync.submit(report.with_options(unique=SAME), "acme").id == first.id
    only_one = report.with_options(unique=Unique(by=("args",), then="refuse"))
    for refuse in (lambda: app.sync.submit(only_one, "acme"), lambda: app.sync.submit_many(only_one, ["acme"])):
        with pytest.raises(Duplicate) as refused:
            refuse()
        assert refused.value.existing.status().id == first.id
    replaced = app.sync.submit(report, "acme", unique=Unique(by=("args",), then="replace"))
    assert replaced.id != first.id
    assert first.status().state == "cancelled"


async def test_of_32_submitters_one_gets_in(app, rounds):
    report = make_report(app)
    for number in range(rounds(3, 1_000)):
        once = Unique(by=("args",), within="1h")

        runs = await asyncio.gather(*(report.submit(f"customer-{number}", unique=once) for _ in range(32)))

        assert len({run.id for run in runs}) == 1
