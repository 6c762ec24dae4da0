"""Limits in the store: code declares them, a person's setting beats code, and who changed what is kept."""

import json
import logging

import pytest

from holdfast import App, Invalid
from holdfast.core.errors import NotFound
from holdfast.core.model import State, Use
from holdfast.core.shared_limits import BUCKET, LIMIT, Settings, bucket_of, settings_of
from holdfast.jobs.limits import (
    CHANGES_KEPT,
    close_limit,
    declare_limits,
    get_limit,
    limit_in,
    list_limits,
    open_limit,
    reset_limit,
    set_limit,
)
from holdfast.jobs.run_file import collect_run, dump_run, insert_run, parse_run
from tests.support.given import QUICK, in_state

ENGINES = ("memory", "file", "sqlite", "postgres", "redis")


async def declared(app, *, by="w-1"):
    await app.open()
    return await declare_limits(app.engine, app.registry.limits(), by=by)


async def stored(app, name="x"):
    return next(record for record in await app.engine.records(LIMIT) if record.name == LIMIT + name)


async def test_a_worker_declares_its_limits_before_it_claims(app, engine):
    limit = app.limit("x", at_once=3, rate="600/m")

    @app.job
    async def work() -> int | None:
        return settings_of((await stored(app)).value).at_once

    run = await work.submit()
    async with app.worker() as worker:
        assert await run.result(timeout=60) == 3

    record = await stored(app)
    assert settings_of(record.value) == limit.settings
    code = limit_in(record).code
    assert code is not None
    assert (code.at_once, code.rate, code.by) == (3, "600/m", worker.id)


async def test_an_unchanged_declaration_writes_nothing(app, engine):
    app.limit("x", at_once=3)
    await declared(app)
    version = (await stored(app)).version

    await declared(app, by="w-2")

    assert (await stored(app)).version == version


async def test_among_code_the_last_started_worker_counts(app, engine, caplog):
    app.limit("x", at_once=3)
    await declared(app)
    other = App("memory:", settings=QUICK, engine=app.engine)
    other.limit("x", at_once=5)

    with caplog.at_level(logging.WARNING):
        async with other.worker():
            pass

    assert settings_of((await stored(app)).value) == Settings(at_once=5)
    assert "limit x: now at most 5 at once; other code declared at most 3 at once before" in caplog.text
    assert [change.what for change in (await get_limit(app.engine, "x")).changes] == [
        "code: at most 3 at once",
        "code: at most 5 at once",
    ]


async def test_a_persons_setting_beats_code_and_says_who_and_why(app, engine):
    app.limit("x", at_once=20, rate="500/m", burst=50)
    await declared(app)

    view = await set_limit(app.engine, "x", at_once=5, by="ada", reason="provider asked")

    assert view.now.at_once == 5
    assert view.now.rate == "500/m"
    assert settings_of((await stored(app)).value).at_once == 5
    other = App("memory:", settings=QUICK, engine=app.engine)
    other.limit("x", at_once=30, rate="100/m")
    [line] = await declared(other)
    assert line == "limit x: a person's setting counts, not the code's: at most 5 at once"
    view = await get_limit(app.engine, "x")
    assert (view.now.at_once, view.now.rate, view.now.burst) == (5, "100/m", None)
    assert view.person is not None
    assert (view.person.by, view.person.reason) == ("ada", "provider asked")
    assert view.changes[1].what == "set: at most 5 at once: provider asked"

    view = await reset_limit(app.engine, "x", by="bob")
    assert view.person is None
    assert view.settings.at_once == 30
    with pytest.raises(NotFound, match="limit x: no person has set it"):
        await reset_limit(app.engine, "x", by="bob")


async def test_a_burst_goes_with_its_rate(app, engine):
    app.limit("x", rate="500/m", burst=100)
    await declared(app)

    assert (await set_limit(app.engine, "x", rate="50/m", by="ada")).now.burst is None
    assert (await set_limit(app.engine, "x", burst=20, by="ada")).now.words() == "50/m, burst 20"
    with pytest.raises(Invalid, match="burst=60"):
        await set_limit(app.engine, "x", burst=60, by="ada")
    assert (await get_limit(app.engine, "x")).now.words() == "50/m, burst 20"


async def test_what_can_not_be_set_is_refused(app, engine):
    app.limit("openai", at_once=3)
    await declared(app)

    with pytest.raises(NotFound, match="there is no limit 'openia' in this store; did you mean openai"):
        await set_limit(app.engine, "openia", at_once=1, by="ada")
    with pytest.raises(Invalid, match="at_once=0: give a whole number from 1"):
        await set_limit(app.engine, "openai", at_once=0, by="ada")
    with pytest.raises(Invalid, match="limit openai: say what to set"):
        await set_limit(app.engine, "openai", by="ada")
    with pytest.raises(Invalid, match="reason has"):
        await set_limit(app.engine, "openai", at_once=1, by="ada", reason="x" * 10_000)


@pytest.mark.parametrize("burst", [5, float("nan")])
async def test_a_burst_without_a_rate_is_refused(app, engine, burst):
    app.limit("x", at_once=3)
    await declared(app)

    with pytest.raises(
        Invalid, match=r"limit x: burst=.*: the limit has no rate that a burst could belong to; set --rate"
    ):
        await set_limit(app.engine, "x", burst=burst, by="ada")

    assert (await get_limit(app.engine, "x")).person is None


async def test_a_rate_so_slow_that_nothing_could_start_is_refused(app, engine):
    app.limit("x", rate="100/m")
    app.limit("calls", at_once=3)
    app.limit("usd", rate="50.0/d")
    await declared(app)

    for name in ("x", "calls"):
        with pytest.raises(
            Invalid, match=rf"limit {name} has a burst of 0.05, but a call without a cost uses a whole unit"
        ):
            await set_limit(app.engine, name, rate="0.5/s", by="ada")
    assert (await set_limit(app.engine, "usd", rate="0.5/s", by="ada")).now.rate == "0.5/s", "its calls may cost less"


async def test_a_job_that_needs_more_than_a_person_lets_it_have_says_so(app, engine):
    @app.job(limit=app.limit("x", rate="1.5/s"))
    async def work() -> int:
        return 1

    await declared(app)
    await set_limit(app.engine, "x", rate="0.5/s", by="ada")

    run = await work.submit()

    words = str(await run.status())
    assert words == "waiting for limit x (needs 1, above the burst of 0.05, so it can't start; see holdfast limits)", (
        words
    )


async def test_only_the_last_changes_are_kept(app, engine):
    app.limit("x", at_once=3)
    await declared(app)

    for number in range(1, 30):
        await set_limit(app.engine, "x", at_once=number, by="ada")

    changes = (await get_limit(app.engine, "x")).changes
    assert len(changes) == CHANGES_KEPT
    assert changes[-1].what == "set: at most 29 at once"


async def test_a_closed_limit_lets_nothing_start_until_it_is_opened(app, engine):
    @app.job(limit=app.limit("x", at_once=3))
    async def work() -> int:
        return 1

    await declared(app)
    until = await close_limit(app.engine, "x", 3_600_000, by="ada", reason="they are down")
    run = await work.submit()
    async with app.worker():
        [view] = await list_limits(app.engine)
        assert view.usage[0].closed_until == until
        assert (await app.jobs.get(run.id)).state is State.AVAILABLE
        await open_limit(app.engine, "x", by="ada")
        await in_state(app, run, State.COMPLETED)
    with pytest.raises(NotFound, match="limit x is not closed"):
        await open_limit(app.engine, "x", by="ada")
    whats = [change.what for change in (await get_limit(app.engine, "x")).changes]
    assert whats[1:] == ["closed for 1 h: they are down", "opened"]


async def test_a_shorter_close_does_not_open(app, engine):
    app.limit("x", rate="100/m", burst=10)
    await declared(app)

    until = await close_limit(app.engine, "x", 3_600_000, by="ada")
    await close_limit(app.engine, "x", 1_000, by="bob")

    [record] = await app.engine.records(BUCKET)
    bucket = bucket_of(record.value)
    assert bucket is not None
    assert bucket.closed_until == until
    assert bucket.tokens == 10_000_000, "closing costs nothing"


async def test_a_limit_per_value_is_closed_for_one_value(app, engine):
    app.limit("x", at_once=3, per="{model}")
    app.limit("y", at_once=3)
    await declared(app)

    with pytest.raises(Invalid, match=r"limit x counts each \{model\} on its own; give the value too: x/VALUE"):
        await close_limit(app.engine, "x", 1_000, by="ada")
    with pytest.raises(Invalid, match="limit y has one counter for all; leave out /gpt"):
        await close_limit(app.engine, "y/gpt", 1_000, by="ada")
    await close_limit(app.engine, "x/gpt", 60_000, by="ada")

    assert [one.key for one in (await get_limit(app.engine, "x")).usage] == ["x/gpt"]


async def test_a_damaged_record_counts_as_none_and_is_written_anew(app, engine):
    app.limit("x", at_once=3)
    await app.open()
    await app.engine.put_record(LIMIT + "x", "not json")

    await declared(app)

    assert settings_of((await stored(app)).value) == Settings(at_once=3)


async def test_an_imported_run_needs_its_permits_as_before(app, engine):
    source = App("memory:")

    def with_report(home):
        customer = home.limit("customer", at_once=1, rate="50/s", burst=20, per="{name}")

        @home.job(limit=customer.cost(lambda units: units), name="report")
        async def report(name: str, units: int) -> str:
            [used] = await home.engine.usage("customer")
            return f"{name}: {used.held}"

        return report

    run = await with_report(source).submit("ada", 7)
    text = dump_run(await collect_run(source.jobs, run.id), await source.engine.now(), "0")
    with_report(app)
    await app.open()
    imported = await insert_run(app.jobs, parse_run(text, "run.json"), "bob")
    assert imported.options.limits == (Use("customer/ada", 7_000_000),)

    await app.jobs.replay(imported.id, by="bob")
    async with app.worker():
        assert await (await app.run(imported.id)).result(timeout=60) == "ada: 1"
    await source.close()


@pytest.mark.parametrize(
    ("uses", "told"),
    [
        ([{"key": "~budget/x/usd"}], "'~budget' can't be a limit's name"),
        ([{"key": "api", "units": -1}], "has -1 units, which no limit has"),
        ([{"key": "api", "units": 10**18}], "units, which no limit has"),
        ([{"key": "api"}, {"key": "api"}], "names one of its limits twice"),
    ],
)
async def test_a_run_file_with_limits_that_no_job_has_is_refused(uses, told):
    source = App("memory:")

    @source.job
    async def report() -> None: ...

    run = await report.submit()
    shape = json.loads(dump_run(await collect_run(source.jobs, run.id), 0, "0"))
    shape["job"]["options"]["limits"] = uses

    with pytest.raises(Invalid, match=told):
        parse_run(json.dumps(shape), "run.json")
    await source.close()
