"""One damaged row stops neither a queue nor a listing: its job is set aside for a person, and nothing of it is lost."""

import asyncio
import logging
from typing import Any

import pytest
from click.testing import CliRunner

from holdfast import step, wait_for
from holdfast.app.run import Run
from holdfast.cli import main
from holdfast.core.errors import JobFailed
from holdfast.core.model import State, Where
from holdfast.core.unreadable import UNREADABLE_ERROR, unreadable_parts
from tests.jobs.transfer.pipeline import in_engine
from tests.support.given import in_state, until
from tests.worker.damage import (
    COLUMNS,
    GARBAGE,
    WRONG,
    an_app,
    damage,
    damage_note,
    damage_record,
    double,
    in_thread,
    run_sqlite,
)

PARTS = ("options", "inbox", "waits")


@pytest.fixture
def url(store_url: str) -> str:
    return store_url


# The queue goes on.


@pytest.mark.parametrize("text", [GARBAGE, WRONG], ids=["not JSON", "of another form"])
@pytest.mark.parametrize("part", PARTS)
async def test_a_damaged_job_goes_to_review_and_its_neighbours_run(url, part, text):
    async with an_app(url) as app:
        job = double(app)
        runs = [await job.submit(n) for n in range(5)]
        await damage(app, runs[2].id, part, text)

        async with app.worker():
            assert [await run.result(10) for run in (*runs[:2], *runs[3:])] == [0, 2, 6, 8]
            await in_state(app, runs[2], State.REVIEW)

        status = await runs[2].status()
        assert status.error.type == UNREADABLE_ERROR
        assert part in status.error.message
        assert text in status.error.traceback, "what was there is shown"
        assert [entry.event for entry in await runs[2].history()] == ["submit", "claim", "exhaust"]
        with pytest.raises(JobFailed, match="can't be read"):
            await runs[2].result(1)


@pytest.mark.parametrize("part", PARTS)
async def test_a_replay_goes_on_without_the_damaged_part_and_writes_it_down(url, part):
    async with an_app(url) as app:
        run = await double(app).submit(21)
        await damage(app, run.id, part)
        async with app.worker():
            await in_state(app, run, State.REVIEW)
            held = unreadable_parts(await app.jobs.get(run.id))
            assert held == {part: GARBAGE}, "until a person decides, all of it is kept"

            if part == "options" and url.startswith("redis"):  # there they are one text with the arguments
                await app.jobs.replay(run.id, args="[21]")
            else:
                await app.jobs.replay(run.id)
            assert await run.result(10) == 42

        (replay,) = [entry for entry in await run.history() if entry.event == "replay"]
        assert replay.note["left_out"] == {part: GARBAGE}
        assert not unreadable_parts(await app.jobs.get(run.id))


async def test_arguments_that_are_lost_with_the_body_are_never_run_without(redis_store):
    async with an_app(redis_store) as app:
        ran = []

        @app.job
        async def job(n: int = 7) -> None:
            ran.append(n)

        run = await job.submit(1)
        await damage(app, run.id, "options")
        async with app.worker():
            await in_state(app, run, State.REVIEW)
            await app.jobs.replay(run.id)
            await until(lambda: _count(run, "exhaust", 2))
        assert not ran


async def _count(run: Run, event: str, number: int) -> bool:
    return [entry.event for entry in await run.history()].count(event) == number


@pytest.mark.parametrize("how", ["not JSON", "not of its type"])
async def test_damaged_arguments_send_their_job_to_review_with_the_reason(url, how):
    async with an_app(url) as app:
        job = double(app)
        damaged, healthy = await job.submit(1), await job.submit(2)
        await damage(app, damaged.id, "args", GARBAGE if how == "not JSON" else '["x"]')
        async with app.worker():
            assert await healthy.result(10) == 4
            await in_state(app, damaged, State.REVIEW)
        assert "BadValue" in (await damaged.status()).error.type


async def test_a_damaged_error_is_shown_as_such_and_its_job_goes_on(url):
    async with an_app(url) as app:
        run = await double(app).submit(2)
        await damage(app, run.id, "error")
        status = await run.status()
        assert (status.error.type, status.error.traceback) == (UNREADABLE_ERROR, GARBAGE)
        async with app.worker():
            assert await run.result(10) == 4


async def test_a_damaged_result_is_one_clear_error_for_who_asks_for_it(url):
    async with an_app(url) as app:
        run = await double(app).submit(2)
        async with app.worker():
            assert await run.result(10) == 4
        await damage(app, run.id, "result")
        with pytest.raises(ValueError, match="result") as told:
            await run.result(1)
        assert "\n" not in str(told.value)
        assert (await run.status()).state is State.COMPLETED


# Waits, which a claim does not meet.


async def test_a_job_whose_waits_are_damaged_goes_to_review_with_the_next_signal(url):
    async with an_app(url) as app:

        @app.job
        async def waiter() -> None:
            await wait_for("go")

        run = await waiter.submit()
        async with app.worker():
            await in_state(app, run, State.PENDING)
            await damage(app, run.id, "waits")
            await run.signal("another")
            await in_state(app, run, State.REVIEW)
            await app.jobs.replay(run.id)
            await in_state(app, run, State.PENDING)
            await run.signal("go")
            await run.result(10)


async def test_upkeep_finds_a_job_whose_waits_are_damaged(url):
    async with an_app(url) as app:

        @app.job
        async def waiter() -> None:
            await wait_for("go")

        run = await waiter.submit()
        async with app.worker():
            await in_state(app, run, State.PENDING)
        await damage(app, run.id, "waits")
        async with app.worker():  # who takes the lead looks at once
            await in_state(app, run, State.REVIEW)


async def test_a_signal_into_a_damaged_inbox_is_kept_beside_what_was_there(url):
    async with an_app(url) as app:
        run = await double(app).submit(1)
        await run.signal("first")
        await damage(app, run.id, "inbox")
        await run.signal("go", "now")
        job = await app.jobs.get(run.id)
        assert unreadable_parts(job) == {"inbox": GARBAGE}
        assert [signal.value for signal in job.inbox if signal.name == "go"] == ['"now"']


# Records.


@pytest.mark.parametrize("path", ["draw#1", "~log", "~wait/sleep#1"])
async def test_a_damaged_record_runs_nothing_twice_and_ends_in_review_or_goes_on(url, path):
    async with an_app(url) as app:
        drawn = []

        @step(name="draw")
        async def draw(n: int) -> int:
            drawn.append(n)
            return n

        @app.job(retries=0)
        async def film() -> int:
            logging.getLogger("film").warning("drawing")
            first = await draw(1)
            await wait_for("go")
            return first

        run = await film.submit()
        async with app.worker():
            await in_state(app, run, State.PENDING)
            paths = [one.path for one in await app.engine.steps(run.id)]
            asked = next((one for one in paths if one.startswith(path.partition("#")[0].partition("/")[0])), None)
            assert asked is not None, paths
            await damage_record(app, run.id, asked)
            await run.signal("go")
            await until(lambda: _settled(run))
            status = await run.status()
        assert drawn == [1], "what is recorded is not done again"
        if asked == "~log":
            assert status.state is State.COMPLETED
            return
        assert status.state is State.REVIEW
        assert asked in status.error.message
        assert "\n" not in status.error.message


async def _settled(run: Run) -> bool:
    return (await run.status()).state in (State.REVIEW, State.COMPLETED)


# Looking.


async def test_every_read_answers_for_a_store_with_damaged_rows(url):
    async with an_app(url) as app:
        job = double(app)
        runs = [await job.submit(n) for n in range(4)]
        async with app.worker():
            for run in runs:
                await run.result(10)
        more = [await job.submit(n) for n in range(5)]
        await more[-1].signal("go")
        await damage_note(app, more[-1].id, 2)
        for part, run in zip((*PARTS, "error"), more[:4], strict=True):
            await damage(app, run.id, part)

        engine = app.engine
        ids = sorted(run.id for run in (*runs, *more))
        assert [one.id for one in await engine.get(ids)] == ids
        assert sorted(one.id for one in await engine.find(Where())) == ids
        assert {one.id for one in await engine.find(Where(states=(State.AVAILABLE,)))} == {run.id for run in more}
        assert sorted(one.id for one in await engine.in_order()) == ids  # type: ignore[attr-defined]
        assert len(await engine.wholes(await engine.in_order())) == len(ids)  # type: ignore[attr-defined]
        assert sum((await engine.count()).values()) == len(ids)
        assert [entry.version for entry in await engine.history(more[-1].id)] == [1, 2]
        assert (await engine.history(more[-1].id))[1].note == {"~unreadable": GARBAGE}
        assert len(await app.jobs.statuses(await engine.get(ids))) == len(ids)  # type: ignore[arg-type]


async def test_every_verb_tells_of_damaged_rows_in_plain_words(url):
    async with an_app(url) as app:
        job = double(app)
        done = await job.submit(1)
        async with app.worker():
            await done.result(10)
        runs = {part: await job.submit(2) for part in (*PARTS, "error", "args")}
        for part, run in runs.items():
            await run.signal("go")
            await damage(app, run.id, part)
            await damage_note(app, run.id, 2)
        await damage(app, done.id, "result")
    for verb in (["jobs"], ["jobs", "--json"], ["status"], ["review"], ["queues"], ["workers"]):
        answer = await in_thread(url, *verb)
        assert answer.exit_code == 0, (verb, answer.output)
    for run in (*runs.values(), done):
        for verb in (["show"], ["show", "--json"], ["status"], ["export"]):
            answer = await in_thread(url, *verb, run.id)
            assert answer.exit_code == 0, (verb, answer.output)
    doctor = await in_thread(url, "doctor")
    assert doctor.exit_code == 1
    assert "3 jobs can't be read completely" in doctor.stdout
    for part in PARTS:
        assert f"{runs[part].id[-8:]}: {part}" in doctor.stdout


def test_a_move_takes_damaged_parts_along_as_they_are(url, tmp_path, postgres_store):
    target = postgres_store if not url.startswith("postgres") else f"sqlite:///{tmp_path}/target.db"

    async def damaged() -> dict[str, Run]:
        async with an_app(url) as app:
            job = double(app)
            runs = {part: await job.submit(3) for part in PARTS}
            for part, run in runs.items():
                await damage(app, run.id, part)
            return runs

    runs = asyncio.run(damaged())
    words = ["move", "--from", url, "--to", target]
    answer = CliRunner().invoke(main, words, prog_name="holdfast", catch_exceptions=False)
    assert answer.exit_code == 0, answer.output

    async def look(engine: Any) -> dict[str, dict[str, str]]:
        return {one.id: unreadable_parts(one) for one in await engine.in_order()}

    assert asyncio.run(in_engine(target, look)) == {run.id: {part: GARBAGE} for part, run in runs.items()}


# SQLite: text that is not even UTF-8.


@pytest.mark.parametrize("part", ["args", "options", "inbox", "waits", "error"])
async def test_text_that_is_not_utf_8_stops_no_queue(tmp_path, part):
    async with an_app(f"sqlite:///{tmp_path}/jobs.db") as app:
        job = double(app)
        runs = [await job.submit(n) for n in range(3)]
        which = (
            f"update {COLUMNS[part]} set {part} = cast(x'5bff5d' as text) where n = (select n from job where id = ?)"
        )
        await asyncio.to_thread(run_sqlite, app.url, which, runs[1].id)
        async with app.worker():
            assert [await runs[0].result(10), await runs[2].result(10)] == [0, 4]
            await in_state(app, runs[1], State.COMPLETED if part == "error" else State.REVIEW)
        listed = await in_thread(app.url, "jobs")
        assert listed.exit_code == 0, listed.output
