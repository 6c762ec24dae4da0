"""What a store says of a worker, or of who leads the upkeep, may be damaged. It stops neither a look nor a rescue."""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast import App
from holdfast.core.codec import canonical
from holdfast.core.model import Presence, Signal
from holdfast.engines import engine_for
from holdfast.engines.contract import Engine
from holdfast.engines.records import PAUSE, WORKER
from holdfast.jobs.replays import SAID, said_of
from holdfast.jobs.service import JobRequest, new_job
from holdfast.jobs.waiters import WAITER, waiters_of
from holdfast.upkeep.keeper import LEADER, Keeper
from holdfast.upkeep.snapshot import Snapshots
from tests.support.given import until
from tests.worker.damage import an_app, double, in_redis, in_thread, run_postgres, run_sqlite

GARBAGE = "garbage"
WRONG = '{"worker":3}'
"""JSON, and no worker."""


@pytest.fixture
def url(store_url: str) -> str:
    return store_url


async def damage_worker(app: App, worker: str, text: str, *, whole: bool = True) -> None:
    """Write something else where a worker's beat is kept. Not `whole`: only what it said, and not when."""
    await app.open()
    if app.url.startswith("sqlite"):
        path = Path(f"{app.url.removeprefix('sqlite:///')}-live") / f"{worker}.worker"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(text.encode("latin-1"))
    elif app.url.startswith("postgres"):
        statement = (
            "insert into {schema}.worker (name, presence, beat_at, beat_ms, lease_ms) values ($1, $2, $3, 100, 1000) "
            "on conflict (name) do update set presence = excluded.presence"
        )
        await run_postgres(app.url, statement, worker, text, await app.engine.now())
    else:
        beat = text.encode("latin-1") if whole else msgspec.msgpack.encode([await app.engine.now(), 1, 1, text])
        await in_redis(app, "HSET", app.engine._key("w"), worker, beat)  # type: ignore[attr-defined]


async def damage_record(app: App, name: str, text: str) -> None:
    """Write something else where a record is kept."""
    await app.open()
    if app.url.startswith("sqlite"):
        await asyncio.to_thread(run_sqlite, app.url, "update record set value = ? where name = ?", text, name)
    elif app.url.startswith("postgres"):
        await run_postgres(app.url, "update {schema}.record set value = $1 where name = $2", text, name)
    else:
        await in_redis(app, "HSET", app.engine._key("d"), name, text)  # type: ignore[attr-defined]


def complaints(caplog: pytest.LogCaptureFixture, part: str) -> list[str]:
    return [record.getMessage() for record in caplog.records if part in record.getMessage()]


async def held_by(app: App, job: Callable[..., Any], worker: str, n: int) -> Any:
    """A job that this worker holds. The worker is none of ours, and does nothing for it."""
    run = await job.submit(n)  # type: ignore[attr-defined]
    [taken] = await app.engine.claim(worker, ["default"], 1)
    assert taken.id == run.id
    return run


# Workers.


@pytest.mark.parametrize("text", [GARBAGE, WRONG, '{"worker":"\xff"}'], ids=["not JSON", "another form", "not UTF-8"])
@pytest.mark.parametrize("whole", [True, False], ids=["whole", "in part"])
async def test_an_unreadable_worker_keeps_nobody_from_the_jobs_of_a_dead_one_nor_from_its_own(url, text, whole, caplog):
    caplog.set_level(logging.WARNING)
    async with an_app(url) as app:
        job = double(app)
        await app.open()
        dead = engine_for(url)  # a process that beats, and dies
        await dead.open()
        await dead.beat(Presence("w-dead", beat_ms=100, lease_ms=1_000))
        runs = [await held_by(app, job, "w-dead", 1), await held_by(app, job, "ghost", 2)]
        await damage_worker(app, "ghost", text, whole=whole)
        await dead.close()
        async with app.worker():
            assert [await run.result(15) for run in runs] == [2, 4]
    assert not complaints(caplog, "unexpected error")


@pytest.mark.parametrize("whole", [True, False], ids=["whole", "in part"])
async def test_every_verb_looks_past_an_unreadable_worker_and_the_doctor_names_it(url, whole):
    async with an_app(url) as app:
        job = double(app)
        await damage_worker(app, "ghost", GARBAGE, whole=whole)
        for verb in (["status"], ["status", "--json"], ["workers"], ["workers", "--json"], ["queues"], ["jobs"]):
            answer = await in_thread(url, *verb)
            assert answer.exit_code == 0, (verb, answer.output)
        doctor = await in_thread(url, "doctor")
        assert doctor.exit_code == 0, doctor.output
        assert "warn workers: the status of 1 worker (ghost) can't be read" in doctor.stdout
        run = await held_by(app, job, "ghost", 3)
        assert (await in_thread(url, "status", run.id)).exit_code == 0
        assert (await app.jobs.status(run.id)).worker == "ghost"


async def test_the_next_beat_of_a_running_worker_makes_it_readable_again(url):
    async with an_app(url) as app:
        job = double(app)
        async with app.worker() as worker:
            await job.submit(1)
            await damage_worker(app, worker.id, GARBAGE)

            async def readable() -> bool:
                return [(one.worker, one.unreadable) for one in await app.jobs.workers()] == [(worker.id, False)]

            await until(readable)


async def test_the_trace_of_an_unreadable_worker_that_holds_nothing_is_removed(url):
    """Given one whose beat is not known, and the dead are tidied away; on Postgres it must be old."""
    async with an_app(url) as app:
        await damage_worker(app, "ghost", GARBAGE)
        if url.startswith("postgres"):
            await run_postgres(url, "update {schema}.worker set beat_at = 1 where name = $1", "ghost")
        assert [one.worker for one in await app.jobs.workers()] == ["ghost"]
        await app.engine.prune(10)
        assert await app.jobs.workers() == []


class Damaged:
    """An engine of somebody else's, which hands on what it holds of a worker as it is."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def records(self, prefix: str) -> Any:
        found = await self._engine.records(prefix)
        return [msgspec.structs.replace(one, value=GARBAGE) if one.name == WORKER + "ghost" else one for one in found]


async def test_a_look_sets_aside_what_an_engine_hands_on_unread(engine):
    await engine.beat(Presence("ghost"))
    await engine.beat(Presence("w-1"))
    look = await Snapshots(Damaged(engine), 15.0).take()  # type: ignore[arg-type]
    assert set(look.present) == {"ghost", "w-1"}
    assert look.present["ghost"].unreadable
    assert look.present["ghost"].beat_at == look.present["w-1"].beat_at > 0


# The lead, and other records.


@pytest.mark.parametrize("text", [GARBAGE, "[1]", '{"worker":3}', '{"boss":"w-1"}'])
async def test_an_unreadable_record_of_who_leads_is_taken_over_and_told_once(url, text, caplog):
    caplog.set_level(logging.WARNING, "holdfast.upkeep")
    async with an_app(url) as app:
        await app.open()
        await app.engine.put_record(LEADER, canonical({"worker": "w-gone"}))
        await damage_record(app, LEADER, text)
        async with app.worker() as worker:

            async def leads() -> bool:
                return [one.value for one in await app.engine.records(LEADER)] == [canonical({"worker": worker.id})]

            await until(leads)
    assert len(complaints(caplog, "the record that names the leader can't be read")) == 1
    assert not complaints(caplog, "can't give up the leadership")


async def test_a_leader_whose_record_was_damaged_resigns_without_a_word(url, caplog):
    async with an_app(url) as app:
        await app.open()
        one = Keeper(app.engine, "w-1", lease_seconds=15, look_seconds=1, upkeep_seconds=1)
        await app.engine.put_record(LEADER, canonical({"worker": "w-1"}))
        await damage_record(app, LEADER, GARBAGE)
        await one._resign()
        assert not complaints(caplog, "can't give up the leadership")


async def test_damaged_records_of_pauses_still_pause_and_every_verb_looks_past_them(url):
    async with an_app(url) as app:
        await app.open()
        await app.jobs.pause("video", reason="x")
        await damage_record(app, PAUSE + "video", GARBAGE)
        assert await app.jobs.paused() == ["video"]
        for verb in (["status"], ["queues"], ["doctor"]):
            answer = await in_thread(url, *verb)
            assert answer.exit_code == 0, (verb, answer.output)
        await app.jobs.resume("video")
        assert await app.jobs.paused() == []


def test_a_damaged_word_of_our_own_in_an_inbox_is_no_waiter_and_no_word_of_a_person():
    words = [Signal(2, name, GARBAGE, "", 0) for name in (WAITER, SAID)]
    job = new_job(JobRequest(type="draw"), "0192f3a4-5b6c-7d8e-9f01-000000000001", 0)
    damaged = msgspec.structs.replace(job, inbox=(*words, Signal(3, WAITER, '"other"', "", 0)))
    assert waiters_of(damaged) == ["other"]
    assert said_of(damaged) == {}
