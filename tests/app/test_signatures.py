"""Signatures: a job with its arguments and options as data, checked when it is made."""

import json
from datetime import UTC, datetime

import pytest

from holdfast import App, BadValue, Invalid, UnknownOption
from holdfast.core.model import State, Where


def report_on(app: App):
    @app.job(queue="slow")
    async def report(day: str, copies: int = 1) -> str:
        return f"{day} x{copies}"

    return report


async def test_a_signature_submits_the_same_job_as_its_arguments_would(app):
    report = report_on(app)

    run = await report.with_options(key="k", priority=3, tags=["x"]).s("daily", copies=2).submit()

    assert (await report.submit("daily", 2, key="k")).id == run.id
    job = await app.jobs.get(run.id)
    assert (job.type, job.args, job.queue, job.priority) == ("report", '["daily",2]', "slow", 3)
    assert job.options.tags == ("x",)


async def test_durations_count_from_the_submit_and_moments_are_kept(app):
    report = report_on(app)
    later = report.with_options(delay="2h", expires="3h").s("daily")
    then = datetime(2100, 1, 1, tzinfo=UTC)

    job = await app.jobs.get((await later.submit()).id)
    at = await app.jobs.get((await report.with_options(at=then).s("daily").submit()).id)

    assert job.state is State.SCHEDULED
    assert job.run_at is not None
    assert job.run_at - job.created_at == 7_200_000
    assert job.expires_at is not None
    assert job.expires_at - job.created_at == 10_800_000
    assert at.run_at == then.timestamp() * 1_000


async def test_a_signature_is_data_that_can_be_stored_and_read_again(app):
    report = report_on(app)
    signature = report.with_options(queue="other", priority=2, delay="1m", meta={"by": "me"}).s("daily", 2)

    stored = json.loads(json.dumps(signature.as_json()))
    again = app.signature_from(stored)

    assert again == signature
    assert hash(again) == hash(signature)
    assert stored["args"] == ["daily", 2]
    assert again != report.s("daily", 2)
    assert (await app.jobs.get((await again.submit()).id)).queue == "other"


async def test_a_stored_signature_that_no_longer_fits_is_refused(app):
    stored = report_on(app).s("daily").as_json()

    with pytest.raises(BadValue, match="argument 'day' of report"):
        app.signature_from(stored | {"args": [[1]]})
    with pytest.raises(BadValue, match="a stored signature can't be read"):
        app.signature_from({"type": "report"})


def test_arguments_are_checked_when_the_signature_is_made(app):
    report = report_on(app)

    with pytest.raises(BadValue, match="argument 'copies' of report"):
        report.s("daily", "many")
    with pytest.raises(BadValue, match="report"):
        report.s("daily", 1, 2)
    with pytest.raises(BadValue, match="takes no argument 'pages'"):
        report.s("daily", pages=2)
    with pytest.raises(BadValue, match="did you mean copies"):
        report.s("daily", copeis=2)
    with pytest.raises(UnknownOption, match=r"write report.with_options\(key=…\).s\(…\)"):
        report.s("daily", key="k")


def test_options_are_checked_when_the_signature_is_made(app):
    report = report_on(app)

    with pytest.raises(Invalid, match="priority 1000 is out of range"):
        report.with_options(priority=1_000).s("daily")
    with pytest.raises(Invalid, match="can't hold a connection"):
        report.with_options(connection=object()).s("daily")
    with pytest.raises(Invalid, match="give delay or at"):
        report.s("daily").with_options(delay=1, at=datetime.now(UTC))


def test_a_signature_without_its_first_argument_is_for_flows(app):
    report = report_on(app)
    open_call = report.s(copies=2)

    assert open_call.call.is_open
    assert open_call.call.args == "[2]"
    assert report.s().call.args == "[]"
    with pytest.raises(Invalid, match="can't be submitted alone"):
        open_call.submit()
    with pytest.raises(BadValue, match="argument 'copies' of report"):
        report.s("daily").follow_up()


def test_a_signature_shows_its_job_and_arguments(app):
    report = report_on(app)

    assert repr(report.s("daily", 2)) == '<signature report("daily", 2)>'
    assert repr(report.s()) == "<signature report(…)>"


async def test_a_job_of_another_program_is_named_by_its_type(app):
    run = await app.s("image.resize", 640, {"format": "png"}).with_options(queue="images").submit()

    job = await app.jobs.get(run.id)
    assert (job.type, job.queue, job.args) == ("image.resize", "images", '[640,{"format":"png"}]')
    with pytest.raises(Invalid, match="can't be a job type"):
        app.s("Image Resize")
    with pytest.raises(BadValue):
        app.s("image.resize", object())


async def test_a_job_of_this_app_named_by_its_type_is_checked_by_its_hints(app):
    report = report_on(app)

    assert app.s("report", "daily") == report.s("daily")
    with pytest.raises(BadValue, match="argument 'day' of report"):
        app.s("report", [1])


async def test_a_limit_is_asked_with_the_arguments_of_the_signature(app):
    @app.job(limit=app.limit("customer", at_once=1, per="{customer}"))
    async def bill(customer: str, sum: int) -> int:
        return sum

    run = await bill.s("ann", 3).submit()

    (use,) = (await app.jobs.get(run.id)).options.limits
    assert "ann" in use.key
    with pytest.raises(Invalid, match="needs its first argument, 'customer'"):
        bill.s(3)


async def test_inside_a_job_a_signature_is_submitted_once_as_a_child(app):
    report = report_on(app)

    @app.job
    async def parent() -> str:
        return await (await report.s("daily").submit()).result()

    async with app.worker():
        run = await parent.submit()
        assert await run.result(timeout=30) == "daily x1"

    assert len(await app.jobs.engine.find(Where(parent=run.id))) == 1
