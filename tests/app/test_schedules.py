"""`app.schedule` and `app.schedules`: what a user writes, what it becomes, and what is refused in one line."""

import asyncio
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from holdfast import App, Invalid, NotFound
from holdfast.core.errors import UnknownOption
from holdfast.core.model import Where
from holdfast.testing import in_memory
from tests.support.given import until

app = App("memory:")


@app.job(queue="reports", retries=1)
async def report(kind: str) -> str:
    return kind


@app.job
async def plain() -> None: ...


@app.job
async def sized(text: str) -> int:
    return len(text)


MANY: dict[str, Any] = {"every": "1m", "job": plain, "name": "x"}


@pytest.mark.parametrize(
    ("cron", "options", "message"),
    [
        (None, {"job": plain}, "schedule x: give one of a cron expression, every= and at="),
        ("@daily", MANY, "schedule x: give one of a cron expression, every= and at="),
        ("", {"job": plain}, "schedule x: the cron expression is empty"),
        (15, {"job": plain}, "schedule x: 15 isn't a cron expression"),
        ("61 * * * *", {"job": plain}, "schedule x: cron '61 * * * *': 61 isn't a valid minute; give 0 to 59"),
        ("0 0 30 2 *", {"job": plain}, "schedule x: cron '0 0 30 2 *' never fires"),
        ("@daily", {"job": plain, "tz": "Europe/Munich"}, "schedule x: there is no time zone 'Europe/Munich'"),
        ("@daily", {"job": plain, "tz": "berlin"}, "there is no time zone 'berlin'; did you mean Europe/Berlin?"),
        (None, {"job": plain, "every": "1m", "tz": "Europe/Berlin"}, "tz= works only with a cron expression"),
        (None, {"job": plain, "every": 0}, "every=0: give a time above 0"),
        (None, {"job": plain, "every": 0.01}, "schedule x: every= must be at least 1 s"),
        (None, {"job": plain, "every": "15x"}, "schedule x: every='15x' is not a duration"),
        (None, {"job": plain, "every": "1m", "jitter": -1}, "schedule x: jitter=-1 is not a duration"),
        ("@daily", {"job": plain, "tz": None}, "schedule x: tz=None: give the name of a time zone"),
        ("@daily", {"job": plain, "tz": ZoneInfo("Asia/Tokyo")}, "give the name of a time zone, like tz='Asia/Tokyo'"),
        ("@daily", {"job": plain, "tz": "Europe"}, "Europe/Amsterdam, Europe/Andorra or Europe/Astrakhan?"),
        ("@daily", {"job": sized.s("x" * 600_000)}, "schedule x: with its job's arguments it has 586 KiB, and 512 KiB"),
        (None, {"job": plain, "every": "soon"}, "'soon' is not a duration"),
        (None, {"job": plain, "at": datetime(2040, 1, 1)}, "give a datetime with a time zone"),  # noqa: DTZ001
        ("@daily", {"job": plain, "missed": "some"}, "missed='some' is unknown; use 'skip', 'once', 'all'"),
        ("@daily", {"job": plain, "overlap": "no"}, "overlap='no' is unknown"),
        ("@daily", {"job": report}, "schedule x: "),
        ("@daily", {"job": "report"}, "job='report': give a job, or a signature like report.s('daily')"),
        ("@daily", {"job": report.with_options(key="k").s("a")}, "its job can't have key="),
        ("@daily", {"job": report.with_options(delay="1m").s("a")}, "its job can't have delay="),
        ("@daily", {"job": plain, "name": "a/b"}, "'a/b' can't be a schedule's name"),
        ("@daily", {"job": plain, "name": ""}, "'' can't be a schedule's name"),
    ],
)
def test_what_is_wrong_is_refused_where_it_is_written(cron: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(Invalid) as refused:
        App("memory:").schedule(cron, **{"name": "x", **options})

    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(UnknownOption, match="did you mean every"):
        App("memory:").schedule(evry="1m", job=plain, name="x")  # type: ignore[call-arg]


def test_a_name_is_declared_once() -> None:
    one = App("memory:")
    one.schedule(every="1m", job=plain, name="x")
    one.schedule(every="1m", job=plain, name="x")
    with pytest.raises(Invalid, match="schedule x is declared twice"):
        one.schedule(every="2m", job=plain, name="x")


def test_a_job_of_a_tick_has_the_options_of_its_job() -> None:
    one = App("memory:")

    @one.job(queue="reports", retries=1)
    async def daily(kind: str) -> str:
        return kind

    one.schedule(every="1m", job=daily.with_options(priority=7, tags=["a"], expires="1h").s("k"), name="x")
    with in_memory(one) as test:
        test.advance("150s")
        found = one.sync.call(one.engine.find(Where()))

    assert [(job.queue, job.priority, job.options.tags, job.options.retry.retries) for job in found] == [
        ("reports", 7, ("a",), 1)
    ] * 2
    assert [job.result for job in found] == ['"k"', '"k"']


def test_large_arguments_of_a_tick_are_kept_as_those_of_a_submit() -> None:
    one = App("memory:")

    @one.job
    async def size(text: str) -> int:
        return len(text)

    one.schedule(every="1m", job=size.s("x" * 300_000), name="x")
    with in_memory(one) as test:
        test.advance("61s")
        one.sync.call(one.schedules.run_now("x"))
        test.advance("1s")
        found = one.sync.call(one.engine.find(Where()))

    assert [job.result for job in found] == ["300000"] * 2
    assert all(len(job.args) < 1_000 for job in found), "the value is in the blob store"


def test_daylight_saving_in_virtual_time() -> None:
    one = App("memory:")

    @one.job
    async def nightly() -> None: ...

    one.schedule("30 2 * * *", job=nightly, name="x", tz="Europe/Berlin")
    with in_memory(one) as test:
        test.clock.advance_to(round(datetime(2027, 3, 27, 12, tzinfo=UTC).timestamp() * 1_000))
        test.advance("3d")
        found = one.sync.call(one.engine.find(Where()))

    ticks = [job.options.meta["tick"] for job in found]
    assert ticks[-2:] == ["2027-03-29T00:30:00Z", "2027-03-30T00:30:00Z"]
    assert "2027-03-28T01:30:00Z" not in ticks


async def test_a_worker_fires_what_its_app_declares_and_what_callers_put() -> None:
    one = App("memory:")
    ran: list[str] = []

    @one.job
    async def note(what: str) -> None:
        ran.append(what)

    one.schedule(every="1s", job=note.s("declared"), name="declared")
    await one.schedules.put(every="1s", job=one.s("note", "put"), name="put")
    async with one.worker():
        await until(lambda: {"declared", "put"} <= set(ran))
        declared, put = await one.schedules.list()
    assert (declared.is_code, declared.is_declared, put.is_code, put.is_declared) == (True, True, False, True)
    assert declared.trouble == put.trouble == ""

    with pytest.raises(Invalid, match="schedule declared is declared in code"):
        await one.schedules.put(every="2s", job=note.s("x"), name="declared")
    with pytest.raises(NotFound, match="did you mean declared"):
        await one.schedules.get("declarde")


async def test_a_schedule_that_no_running_worker_declares_is_marked() -> None:
    old, new = App("memory:"), App("memory:")
    new.engine = old.engine
    new._jobs = old._jobs

    @old.job(name="note")
    async def one() -> None: ...

    @new.job(name="note")
    async def two(what: str) -> None: ...

    old.schedule(every="1h", job=one, name="gone")
    await old.schedules.put(every="1h", job=old.s("nobody.knows"), name="unknown")
    async with old.worker():
        pass
    async with new.worker():
        gone, unknown = await new.schedules.list()

    assert gone.trouble.startswith("no running worker declares it, so it doesn't fire")
    assert unknown.trouble.startswith("no running worker knows its job nobody.knows")


async def test_a_schedule_without_any_running_worker_says_so() -> None:
    one = App("memory:")
    await one.schedules.put(every="1h", job=one.s("note"), name="put")
    assert (await one.schedules.get("put")).trouble.startswith("no worker is running, so it doesn't fire")

    await one.schedules.pause("put", by="ann")
    assert (await one.schedules.get("put")).trouble == ""


async def test_arguments_that_no_longer_fit_are_told() -> None:
    one = App("memory:")

    @one.job
    async def note(what: int) -> None: ...

    await one.schedules.put(every="1s", job=App("memory:").s("note", "text"), name="x")
    async with one.worker():
        await until(lambda: _trouble(one))
    assert await one.engine.find(Where()) == []


async def _trouble(one: App) -> bool:
    trouble = (await one.schedules.get("x")).trouble
    assert trouble == "" or trouble.startswith("its arguments don't fit the job note any more: ")
    return bool(trouble)


def test_run_now_returns_the_run() -> None:
    one = App("memory:")

    @one.job
    async def note() -> int:
        return 7

    async def play() -> None:
        await one.schedules.put("@daily", job=note, name="x")
        run = await one.schedules.run_now("x", by="ann", reason="now")
        async with one.worker():
            assert await run.result(timeout=30) == 7

    asyncio.run(play())
