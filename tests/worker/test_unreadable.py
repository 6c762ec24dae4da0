"""One damaged row stops neither a queue nor a listing: its job is set aside for a person, and nothing of it is lost."""

import asyncio
import json
import logging
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import msgspec
import pytest
from click.testing import CliRunner, Result

from holdfast import App, step, wait_for
from holdfast.app.run import Run
from holdfast.cli import main
from holdfast.core.errors import JobFailed
from holdfast.core.model import State, Where
from holdfast.core.unreadable import UNREADABLE_ERROR, unreadable_parts
from holdfast.engines.postgres.url import parse_url
from tests.jobs.transfer.pipeline import in_engine
from tests.support.given import QUICK, in_state, until

STORES = ("sqlite", "postgres", "redis")
GARBAGE = '[{"damaged'
"""What a part of a row is replaced by. It is not JSON."""

WRONG = '{"retry":{"retries":"many"}}'
"""JSON, and not what belongs there."""

PARTS = ("options", "inbox", "waits")


@pytest.fixture(params=STORES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/jobs.db"
    found: str = request.getfixturevalue(f"{request.param}_store")
    return found


@asynccontextmanager
async def an_app(url: str) -> AsyncIterator[App]:
    app = App(url, settings=QUICK)
    try:
        yield app
    finally:
        await app.close()


def double(app: App) -> Any:
    @app.job(name="double")
    async def double(n: int) -> int:
        return 2 * n

    return double


# How a row is damaged, as a hand, a foreign program or a bad disk would do it.

COLUMNS = {"options": "body", "args": "body", "inbox": "job", "waits": "job", "error": "job", "result": "job"}
FIELDS = {"options": "b", "args": "b", "inbox": "i2", "error": "x", "result": "r"}


async def damage(app: App, id: str, part: str, text: str = GARBAGE) -> None:
    """Replace a part of a job's row by a text."""
    await app.open()
    if app.url.startswith("sqlite"):
        table = COLUMNS[part]
        await asyncio.to_thread(
            _run_sqlite, app.url, f"update {table} set {part} = ? where n = (select n from job where id = ?)", text, id
        )
    elif app.url.startswith("postgres"):
        for table in ("job", "done"):
            await _run_postgres(app.url, f"update {{schema}}.{table} set {part} = $1 where id = $2", text, id)
    else:
        await _damage_in_redis(app, id, part, text)


async def damage_record(app: App, id: str, path: str, text: str = GARBAGE) -> None:
    """Replace what a step's record says."""
    if app.url.startswith("sqlite"):
        which = "update step set result = ? where job = (select n from job where id = ?) and path = ?"
        await asyncio.to_thread(_run_sqlite, app.url, which, text, id, path)
    elif app.url.startswith("postgres"):
        which = (
            "update {schema}.step set result = $1 where path = $3 and n = (select n from {schema}.name where id = $2)"
        )
        await _run_postgres(app.url, which, text, id, path)
    else:
        key = app.engine._key(f"s:{id}")  # type: ignore[attr-defined]
        old = await _in_redis(app, "HGET", key, path)
        await _in_redis(app, "HSET", key, path, old[:13] + text.encode())


async def damage_note(app: App, id: str, version: int, text: str = GARBAGE) -> None:
    """Replace the note of a history entry; on Redis the entry."""
    if app.url.startswith("sqlite"):
        which = "update entry set note = ? where job = (select n from job where id = ?) and version = ?"
        await asyncio.to_thread(_run_sqlite, app.url, which, text, id, version)
    elif app.url.startswith("postgres"):
        which = (
            "update {schema}.entry set note = $1 where n = (select n from {schema}.name where id = $2) and version = $3"
        )
        await _run_postgres(app.url, which, text, id, version)
    else:
        await _in_redis(app, "HSET", app.engine._key(f"j:{id}"), f"e{version}", text)  # type: ignore[attr-defined]


def _run_sqlite(url: str, statement: str, *params: Any) -> None:
    with sqlite3.connect(url.removeprefix("sqlite:///"), timeout=10) as db:
        assert db.execute(statement, params).rowcount == 1
    db.close()


async def _run_postgres(url: str, statement: str, *params: Any) -> None:
    place = parse_url(url)
    db = await asyncpg.connect(place.dsn)
    try:
        await db.execute(statement.format(schema=place.schema), *params)
    finally:
        await db.close()


async def _in_redis(app: App, *words: Any) -> Any:
    engine = app.engine
    return await engine._call(lambda: engine._looks.call(*words))  # type: ignore[attr-defined]


async def _damage_in_redis(app: App, id: str, part: str, text: str) -> None:
    key = app.engine._key(f"j:{id}")  # type: ignore[attr-defined]
    head = msgspec.msgpack.decode(await _in_redis(app, "HGET", key, "h"))
    if part == "waits":
        head[17] = text
    elif part == "inbox":
        head[20] = [2]
    elif part in ("error", "result"):
        head[22] |= 2 if part == "error" else 1
    await _in_redis(app, "HSET", key, "h", msgspec.msgpack.encode(head))
    if part == "args":
        body = json.loads(await _in_redis(app, "HGET", key, "b"))
        text = json.dumps([text, *body[1:]])
    if part != "waits":
        await _in_redis(app, "HSET", key, FIELDS[part], text)


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


def called(url: str, *words: str) -> Result:
    return CliRunner().invoke(main, [*words, "--url", url], prog_name="holdfast", catch_exceptions=False)


async def in_thread(url: str, *words: str) -> Result:
    return await asyncio.to_thread(called, url, *words)


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
    assert "3 jobs can't be read whole" in doctor.stdout
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
        await asyncio.to_thread(_run_sqlite, app.url, which, runs[1].id)
        async with app.worker():
            assert [await runs[0].result(10), await runs[2].result(10)] == [0, 4]
            await in_state(app, runs[1], State.COMPLETED if part == "error" else State.REVIEW)
        listed = await in_thread(app.url, "jobs")
        assert listed.exit_code == 0, listed.output
