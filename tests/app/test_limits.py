"""`app.limit(…)`: what it takes and refuses, and what a submit asks of a limit."""

import asyncio

import pytest
from msgspec import Struct

from holdfast import App, Invalid, Limit, UnknownOption, step
from holdfast.core.model import Use, Where
from holdfast.core.shared_limits import UNIT
from tests.support.given import finished

ENGINES = ("memory", "file", "sqlite", "postgres", "redis")


class Brief(Struct):
    model: str
    size: int = 1


def test_a_limit_is_a_value_that_needs_no_store(tmp_path):
    url = f"file:{tmp_path}/jobs.json"

    limit = App(url).limit("openai", at_once=20, rate="500/m", per="{model}", burst=50)

    assert isinstance(limit, Limit)
    assert repr(limit) == "<limit openai: at_once=20, rate='500/m', burst=50, per='{model}'>"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({}, "limit x: give at_once=, rate=, or both"),
        ({"at_once": 0}, "limit x: at_once=0: give a whole number from 1"),
        ({"at_once": -1}, "limit x: at_once=-1: give a whole number from 1"),
        ({"at_once": True}, "limit x: at_once=True: give a whole number from 1"),
        ({"rate": "0/m"}, "limit x: rate='0/m': write a number above 0 and a period"),
        ({"rate": "-5/m"}, "limit x: rate='-5/m': write a number above 0 and a period"),
        ({"rate": 5}, "limit x: rate=5: write a number above 0 and a period"),
        ({"rate": "5/y"}, "limit x: rate='5/y': write a number above 0 and a period"),
        ({"rate": "5/m", "burst": 0}, "limit x: burst=0: give a number above 0"),
        ({"at_once": 1, "burst": 1}, "limit x: burst=1 needs a rate="),
        ({"at_once": 1, "per": "model"}, "limit x: per='model' names no field"),
        ({"at_once": 1, "per": "{"}, "limit x: per='{' can't be read"),
        ({"at_once": 1, "per": "{}"}, "limit x: per='{}': write plain names in the braces"),
        ({"at_once": 1, "per": "{a!r}"}, "write plain names in the braces"),
        ({"at_once": 1, "per": 5}, "limit x: per=5 can't be read"),
    ],
)
def test_a_wrong_declaration_is_refused_in_one_line(app, given, line):
    with pytest.raises(Invalid) as refusal:
        app.limit("x", **given)

    assert line in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_wrong_name_or_option_is_refused(app):
    with pytest.raises(Invalid, match=r"'a b' can't be a limit's name"):
        app.limit("a b", at_once=1)
    with pytest.raises(UnknownOption, match="app.limit takes no 'atonce'; did you mean at_once"):
        app.limit("x", atonce=1)


def test_one_name_has_one_declaration(app):
    first = app.limit("x", at_once=2)

    assert app.limit("x", at_once=2) is first
    with pytest.raises(Invalid, match="limit x is declared twice with different settings: at_once=2; and at_once=3"):
        app.limit("x", at_once=3)
    assert App("memory:").limit("x", at_once=3).at_once == 3


@pytest.mark.parametrize("wrong", ["openai", [], ["openai"], 5])
def test_a_step_is_given_limits_not_names(wrong):
    with pytest.raises(Invalid, match=r"step draw: limit=.*: give what app.limit\('name', …\) returns"):

        @step(name="draw", limit=wrong)
        async def draw() -> None: ...


def test_an_unknown_field_is_refused_with_the_parameters(app):
    limit = app.limit("x", at_once=1, per="{modle}")

    with pytest.raises(Invalid, match=r"step draw: limit x counts per \{modle\}, .*; did you mean model\?"):

        @step(name="draw", limit=limit)
        async def draw(model: str, prompt: str) -> None: ...

    with pytest.raises(Invalid, match=r"isn't a parameter; there are customer, host, queue, type"):

        @app.job(limit=limit)
        async def work(customer: str) -> None: ...


def test_a_jobs_limit_can_not_count_per_machine(app):
    with pytest.raises(Invalid, match=r"job work: limit x counts per \{host\}, which isn't known before the job runs"):

        @app.job(limit=app.limit("x", at_once=1, per="{host}"))
        async def work() -> None: ...


def test_a_jobs_limit_belongs_to_its_own_app(app):
    with pytest.raises(Invalid, match="job work: limit x belongs to another App"):

        @app.job(limit=App("memory:").limit("x", at_once=1))
        async def work() -> None: ...


def test_a_limit_given_twice_is_refused(app):
    limit = app.limit("x", rate="5/m")

    with pytest.raises(Invalid, match="step draw: limit x is given twice"):

        @step(name="draw", limit=[limit, limit.cost(lambda: 2)])
        async def draw() -> None: ...


def test_a_cost_function_must_fit(app):
    with pytest.raises(Invalid, match="limit y has no rate= that units could count against"):
        app.limit("y", at_once=5).cost(lambda: 1)
    limit = app.limit("x", rate="50/m")
    with pytest.raises(Invalid, match=r"cost\(5\): give a function"):
        limit.cost(5)
    with pytest.raises(Invalid, match="the cost function of limit x takes 'promt', .*; did you mean prompt"):

        @step(name="draw", limit=limit.cost(lambda promt: len(promt)))
        async def draw(prompt: str) -> None: ...


@pytest.mark.parametrize(("rate", "burst"), [("1.5/s", 1), ("5.0/d", 1), ("50.0/d", 5), ("0.5/s", 0.05)])
def test_the_burst_of_a_fractional_rate_has_room_for_a_whole_unit(app, rate, burst):
    assert app.limit("x", rate=rate).settings.burst == round(burst * UNIT)


@pytest.mark.parametrize("given", [{"rate": "0.5/s"}, {"rate": "1.0/d"}, {"rate": "3.5/s", "burst": 0.5}])
def test_calls_that_use_a_whole_unit_are_refused_where_none_can_start(app, given):
    limit = app.limit("x", **given)

    for decorate in (step(name="draw", limit=limit), app.job(name="draw", limit=limit)):
        with pytest.raises(Invalid, match=r"(step|job) draw: limit x has a burst of 0\.\d+, but a call") as refusal:

            @decorate
            async def draw() -> None: ...

        assert "never start; write the rate with a longer period, as in '30/m'" in str(refusal.value)

    @step(name="draw", limit=limit.cost(lambda: 0.01))
    async def draw_cheaply() -> None: ...


async def uses(app, run):
    return (await app.jobs.get(run.id)).options.limits


async def test_a_submit_asks_by_its_arguments(app, engine):
    customer = app.limit("customer", at_once=2, per="{customer}")
    tokens = app.limit("tokens", rate="1000/m", burst=500, per="{brief.model}-{queue}-{type}")

    @app.job(limit=[customer, tokens.cost(lambda brief, times: brief.size * times)])
    async def work(customer: str, brief: Brief, times: float = 2) -> None: ...

    run = await work.submit("ada", Brief("gpt", 3), queue="slow")
    other = await work.submit("bob", brief=Brief("gpt", 3), times=0.5)

    assert await uses(app, run) == (Use("customer/ada"), Use("tokens/gpt-slow-work", 6 * UNIT))
    assert await uses(app, other) == (Use("customer/bob"), Use("tokens/gpt-default-work", 2 * UNIT)), "rounded up"


async def test_a_fraction_of_a_unit_counts_where_the_rate_has_a_point(app, engine):
    @app.job(limit=app.limit("usd", rate="50.0/d").cost(lambda n: n / 4))
    async def work(n: int) -> None: ...

    assert await uses(app, await work.submit(1)) == (Use("usd", UNIT // 4),)


async def test_many_submits_and_maps_ask_each_for_themselves(app, engine):
    @app.job(limit=app.limit("n", at_once=2, per="{n}"))
    async def work(n: int) -> int:
        return n

    runs = await work.submit_many([1, 2, 2])

    assert [await uses(app, run) for run in runs] == [(Use("n/1"),), (Use("n/2"),), (Use("n/2"),)]
    async with app.worker():
        assert await work.map([3, 4]) == [3, 4]
        assert await asyncio.gather(*[run.result(timeout=60) for run in runs]) == [1, 2, 2]


async def test_children_ask_each_for_themselves(app, engine):
    @app.job(limit=app.limit("n", at_once=1, per="{n}"))
    async def work(n: int) -> int:
        return n

    @app.job
    async def parent() -> list[int]:
        run = await work.submit(1)
        runs = await work.submit_many([2, 3])
        return [await run.result(), *[await one.result() for one in runs], *await work.map([4, 5], at_once=1)]

    run = await parent.submit()
    await finished(app, run)

    assert await run.result() == [1, 2, 3, 4, 5]
    children = [job async for job in app.jobs.walk(Where(parent=run.id))]
    assert sorted(job.options.limits[0].key for job in children) == ["n/1", "n/2", "n/3", "n/4", "n/5"]


async def test_a_cost_that_can_not_be_is_refused_at_the_submit(app, engine):
    def weigh(n: int) -> float:
        if n == 0:
            raise KeyError("no such model")
        return n

    @app.job(limit=app.limit("x", rate="100/m").cost(weigh))
    async def work(n: int) -> None: ...

    with pytest.raises(
        Invalid, match=r"job work: a cost of 11 is above the burst of limit x \(10\), so it could never"
    ):
        await work.submit(11)
    with pytest.raises(Invalid, match=r"the cost function of limit x \(.*weigh\) raised KeyError: 'no such model'"):
        await work.submit(0)
    with pytest.raises(Invalid, match="the cost function of limit x returned -1; return a number, 0 or more"):
        await work.submit(-1)
    assert not await app.engine.count()


async def test_a_field_that_an_argument_lacks_is_refused_at_the_submit(app, engine):
    @app.job(limit=app.limit("x", at_once=1, per="{brief.modle}"))
    async def work(brief: Brief) -> None: ...

    with pytest.raises(Invalid, match=r"limit x counts per \{brief.modle\}, but the value given has no 'modle'"):
        await work.submit(Brief("gpt"))
