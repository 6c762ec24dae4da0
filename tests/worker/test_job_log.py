"""A worker's log has one line for the start of each attempt and one for its end, with fields for other formatters."""

import asyncio
import logging
import re

import pytest

from holdfast import Retry, step, wait_for
from holdfast.core.model import Job, State
from holdfast.safe_text import UNSAFE
from holdfast.worker import job_log
from tests.support.given import AT_ONCE_RETRY, finished, in_state, until

FIELDS = {"job", "type", "queue", "attempt", "worker"}


@pytest.fixture
def told(caplog):
    caplog.set_level("INFO", logger="holdfast.worker")

    def of(run) -> list[logging.LogRecord]:
        return [record for record in caplog.records if getattr(record, "job", None) == run.id]

    return of


def lines(records) -> list[str]:
    """The lines without durations."""
    return [re.sub(r"\d+(\.\d)? m?s\b", "N ms", record.getMessage()) for record in records]


def outcomes(records) -> list[str]:
    return [getattr(record, "outcome", "") for record in records]


async def test_a_job_that_completes_has_a_line_at_its_start_and_one_at_its_end(app, told):
    async def film() -> int:
        return 1

    run = await app.job(queue="video")(film).submit()
    await finished(app, run)
    await until(lambda: len(told(run)) == 2)

    first, last = told(run)
    assert lines([first, last]) == [f"job {run.id} (film) started", f"job {run.id} (film) completed after N ms"]
    assert {first.levelname, last.levelname} == {"INFO"}
    assert (first.type, first.queue, first.attempt) == ("film", "video", 1)
    assert last.outcome == "completed"
    assert last.duration_ms >= 0
    assert vars(first).keys() >= FIELDS


async def test_a_failure_is_a_warning_and_the_last_one_an_error_with_the_users_file_and_line(app, told):
    async def film() -> None:
        raise ValueError("no ink")

    run = await app.job(retries=Retry(retries=1, strategy="constant", initial_ms=0, jitter=False))(film).submit()
    await finished(app, run)

    _, failed, again, review = told(run)
    assert outcomes(told(run)) == ["", "failed", "", "review"]
    assert [one.levelname for one in told(run)] == ["INFO", "WARNING", "INFO", "ERROR"]
    assert again.getMessage() == f"job {run.id} (film) resumed, attempt 2 of 2"
    assert (review.attempt, review.error, review.error_type) == (2, "no ink", "ValueError")
    assert re.fullmatch(r"tests/worker/test_job_log.py:\d+ in film", review.place)
    assert f"ValueError: no ink ({review.place}); it needs a person: holdfast show {run.id[-8:]}" in review.getMessage()
    assert review.traceback.endswith("ValueError: no ink\n")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", failed.retry_at)


@step(retries=0)
async def draw(n: int) -> None:
    raise ValueError(f"no ink for {n}")


async def test_the_failure_of_an_item_names_the_line_of_the_item(app, told):
    async def film() -> None:
        await draw.map([1])

    run = await app.job(retries=0)(film).submit()
    await finished(app, run)

    assert told(run)[-1].place.endswith(" in draw")


async def test_a_job_that_waits_says_what_for_and_resumes(app, told):
    async def film() -> None:
        await wait_for("approved")

    run = await app.job(film).submit()
    async with app.worker():
        await in_state(app, run, State.PENDING)
        await until(lambda: len(told(run)) == 2)
        await run.signal("approved")
        await run.result(10)
        await until(lambda: len(told(run)) == 4)

    assert lines(told(run)) == [
        f"job {run.id} (film) started",
        f"job {run.id} (film) suspended after N ms: waiting for signal approved",
        f"job {run.id} (film) resumed",
        f"job {run.id} (film) completed after N ms",
    ]
    assert outcomes(told(run)) == ["", "waiting", "", "completed"]


async def test_a_cancelled_job_and_a_released_one_say_so(app, told):
    async def film() -> None:
        await asyncio.sleep(60)

    job = app.job(film)
    cancelled, released = await job.submit(), await job.submit()
    async with app.worker():
        await until(lambda: told(cancelled) and told(released))
        await cancelled.cancel()
        await until(lambda: len(told(cancelled)) == 2)

    assert lines(told(cancelled))[1] == f"job {cancelled.id} (film) was cancelled after N ms"
    assert lines(told(released))[1:] == [
        f"job {released.id} (film) released after N ms: its worker is stopping, and another worker continues it"
    ]
    assert outcomes([*told(cancelled), *told(released)]) == ["", "cancelled", "", "released"]


async def test_nothing_is_made_for_a_line_that_nobody_reads(app, caplog, monkeypatch):
    caplog.set_level("WARNING", logger="holdfast.worker")
    made: list[str] = []

    def make(job: Job, **_: object) -> dict[str, object]:
        made.append(job.id)
        return {}

    monkeypatch.setattr(job_log, "_fields", make)

    async def film() -> int:
        return 1

    await finished(app, await app.job(film).submit())

    assert made == []


async def test_what_a_job_raises_reaches_no_log_as_it_is(app, told):
    async def film() -> None:
        raise ValueError("\x1b[31mred\x07\nsecond line \u202e")

    run = await app.job(retries=0)(film).submit()
    await finished(app, run)

    record = told(run)[-1]
    assert "\n" not in record.getMessage()
    for text in (record.getMessage(), record.error, record.traceback, record.place):
        assert UNSAFE.search(text) is None


async def test_arguments_and_results_stay_out_of_the_log(app, told):
    async def film(password: str) -> str:
        if password == "bad":
            raise ValueError("refused")
        return password

    job = app.job(retries=AT_ONCE_RETRY)(film)
    runs = [await job.submit("bad"), await job.submit("hunter2")]
    for run in runs:
        await finished(app, run)
        assert told(run)
        assert not [one for one in told(run) if "hunter2" in str(vars(one)) or '"bad"' in one.getMessage()]
