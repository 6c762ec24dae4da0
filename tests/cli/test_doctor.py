"""The doctor finds what was planted, and calls a healthy store healthy."""

import asyncio
import json
import shutil
import sqlite3
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.cli.render.overview import unknown_lines
from holdfast.cli.verbs import doctor as doctor_verb
from holdfast.conformance.given import HOUR, StoreClock, job, step
from holdfast.core.lifecycle import decide
from holdfast.core.model import NEVER_ASKED, Event, Job, Options, Presence, Running, State, Wait, WaitKind
from holdfast.engines.memory import MemoryEngine
from holdfast.engines.sqlite import SqliteEngine
from holdfast.jobs.checkup import check_jobs, check_queues, check_store, finding
from holdfast.jobs.service import JobRequest, Jobs, new_job
from holdfast.jobs.views.overview import QueueSummary, view_store
from holdfast.worker import registry
from tests.cli.conftest import Cli
from tests.cli.stores import MINUTE, in_store


def checks(cli: Cli, *words: str) -> dict[str, tuple[str, str]]:
    """What the doctor says, by the name of the check; the worst where there are several."""
    told = json.loads(cli("doctor", *words, "--json").stdout)
    order = ["ok", "warn", "fail"]
    found: dict[str, tuple[str, str]] = {}
    for one in sorted(told["checks"], key=lambda check: order.index(check["level"])):
        found[one["name"]] = (one["level"], one["text"])
    return found


def planted(cli: Cli, *jobs: dict) -> list[str]:
    """Jobs that were submitted a while ago."""

    async def work(store: Jobs) -> list[str]:
        now = await store.engine.now()
        made: list[Job] = []
        for number, more in enumerate(jobs):
            age = more.pop("age", 0)
            order = replace(
                JobRequest(type="draw", queue="video"), **{k: v(now) if callable(v) else v for k, v in more.items()}
            )
            made.append(new_job(order, f"0192f3a4-5b6c-7d8e-9f01-{number:012x}", now - age))
        await store.engine.insert(made)
        return [job.id for job in made]

    return in_store(cli.path, work)


def tampered(cli: Cli, statement: str) -> None:
    db = sqlite3.connect(cli.path)
    db.execute(statement)
    db.commit()
    db.close()


def test_a_healthy_store_is_healthy(cli: Cli):
    planted(cli)

    result = cli("doctor")

    assert result.exit_code == 0
    assert result.stdout.endswith("\n\nhealthy\n")
    assert f"ok   store: {cli.path} (sqlite; survives a power cut" in result.stdout
    for line in ("journal: mode wal", "integrity: no damage", "counters: match a recount"):
        assert f"ok   {line}" in result.stdout


def test_counters_that_differ_from_the_jobs_fail(cli: Cli, ids: dict[State, str]):
    tampered(cli, "update tally set jobs = jobs + 5 where queue = 'video' and state = 'available'")

    assert cli("doctor").exit_code == 1
    assert checks(cli)["counters"] == (
        "fail",
        "differ from a recount (video/available: kept 6, found 1); the numbers in status and queues are wrong",
    )


def test_a_large_store_is_not_recounted(cli: Cli, ids: dict[State, str], monkeypatch):
    monkeypatch.setattr(check_jobs, "RECOUNT_LIMIT", 5)

    assert checks(cli)["counters"] == ("ok", "not recounted: more than 5 jobs")


def test_an_active_job_without_a_running_worker_fails(cli: Cli, ids: dict[State, str]):
    assert checks(cli)["owners"][0] == "ok"  # claimed a moment ago: its worker may be about to beat

    tampered(cli, f"update job set claimed_at = claimed_at - {MINUTE} where state = 'active'")

    level, text = checks(cli)["owners"]
    assert (level, ids[State.ACTIVE][-8:] in text) == ("fail", True)


def test_an_owner_that_was_seen_to_die_fails_at_once(cli: Cli, ids: dict[State, str]):
    """Its file is there and its lock is free, and its job was claimed a moment ago."""

    async def work(jobs: Jobs) -> None:
        await jobs.engine.beat(Presence(worker="w-live", queues=("video",), slots=1))

    in_store(cli.path, work)
    level, text = checks(cli)["owners"]
    assert (level, ids[State.ACTIVE][-8:] in text) == ("fail", True)


def test_a_living_owner_is_well(cli: Cli, ids: dict[State, str]):
    tampered(cli, f"update job set claimed_at = claimed_at - {MINUTE} where state = 'active'")

    async def work(jobs: Jobs) -> tuple[str, str]:
        await jobs.engine.beat(Presence(worker="w-live", queues=("video",), slots=1))
        (finding,) = [one for one in await check_jobs.check_jobs(jobs) if one.name == "owners"]
        await jobs.engine.beat(Presence(worker="w-live", leaving=True))
        return finding.level, finding.text

    assert in_store(cli.path, work) == ("ok", "every active job has a running worker")


def test_queues_that_are_paused_or_not_served_while_jobs_wait_are_told(cli: Cli, ids: dict[State, str]):
    cli.ok("queues", "pause", "video")

    told = cli("doctor").stdout

    assert "warn queue: video is paused and 2 jobs wait; to resume it: holdfast queues resume video" in told
    assert "warn queue: making: 1 job waits and no worker serves this queue" in told


async def workers_and_looks(jobs: Jobs, *types: tuple[str, ...] | None) -> tuple[list[str], list[str]]:
    """What the doctor and `status` say of types, while running workers of queue "video" know these."""
    for n, known in enumerate(types):
        await jobs.engine.beat(Presence(worker=f"w-{n}", queues=("video",), slots=1, types=known))
    doctor = [f"{one.level} {one.text}" for one in await check_jobs.check_jobs(jobs) if one.name == "types"]
    status = [line.plain for line in unknown_lines((await view_store(jobs, "here")).queues)]
    for n, _ in enumerate(types):
        await jobs.engine.beat(Presence(worker=f"w-{n}", leaving=True))
    return doctor, status


def test_a_type_that_no_running_worker_knows_is_told(cli: Cli, ids: dict[State, str]):
    doctor, status = in_store(cli.path, lambda jobs: workers_and_looks(jobs, ("draw", "holdfast.undo"), ("cut",)))

    assert doctor == [
        "warn video: no running worker knows the type of waiting jobs make_video: start a worker whose App has the "
        "code, or cancel these jobs"
    ]
    assert status == ["video: no running worker knows the type of waiting jobs make_video"]


@pytest.mark.parametrize("known", [("make_video", "draw"), None], ids=["one knows it", "one of an older version"])
def test_a_type_that_somebody_may_know_is_well(known, cli: Cli, ids: dict[State, str]):
    doctor, status = in_store(cli.path, lambda jobs: workers_and_looks(jobs, ("draw",), known))

    assert doctor == ["ok every queue's workers know the types of its waiting jobs"]
    assert status == []


def test_a_queue_that_the_app_does_not_use_is_named_with_the_one_that_was_meant():
    queue = QueueSummary(name="vidoe", counts={State.AVAILABLE: 1}, pause=None, workers=0)

    told = [
        one.text for one in check_queues.check_queues([queue], check_queues.Code("video:app", frozenset({"video"})))
    ]

    assert told == [
        "vidoe: 1 job waits and no worker serves this queue: holdfast worker video:app --queues vidoe",
        "vidoe: no job of video:app uses this queue; did you mean video?",
    ]


def test_where_no_worker_serves_a_queue_its_types_are_not_told_as_well(cli: Cli, ids: dict[State, str]):
    doctor, status = in_store(cli.path, lambda jobs: workers_and_looks(jobs))

    assert doctor == ["ok every queue's workers know the types of its waiting jobs"]
    assert status == []


async def undo_at_rest(jobs: Jobs) -> str:
    """A cancelled job whose undo was claimed once by a worker of another app, and rests."""
    engine = jobs.engine
    (accepted,) = await jobs.submit([JobRequest(type="make_video", queue="video", options=Options(cleanup=True))])
    (mine,) = await engine.claim("w-gone", ["video"], 1)
    now = await engine.now()
    await engine.commit([decide(mine, Event.SUSPEND, now, by="w-gone", waits=(Wait(WaitKind.SIGNAL, "never"),))])
    await jobs.cancel(accepted.id, by="ada")
    (undo,) = await engine.claim("w-0", ["video"], 1)
    assert undo.type == "holdfast.undo"
    await engine.commit([decide(undo, Event.REST, now, by="w-0", run_at=now + 1_000)])
    return undo.id


@pytest.mark.parametrize(
    "types",
    [[("draw", "holdfast.undo")], [("draw",), ("make_video",)], [None], []],
    ids=["none", "one", "old", "unserved"],
)
def test_an_undo_whose_jobs_type_no_running_worker_knows_is_told(types, cli: Cli):
    async def look(jobs: Jobs) -> tuple[str, list[str]]:
        id = await undo_at_rest(jobs)
        for n, known in enumerate(types):
            await jobs.engine.beat(Presence(worker=f"w-{n}", queues=("video",), slots=1, types=known))
        told = [f"{one.level} {one.text}" for one in await check_jobs.check_jobs(jobs) if one.name == "undo"]
        for n, _ in enumerate(types):
            await jobs.engine.beat(Presence(worker=f"w-{n}", leaving=True))
        return id, told

    id, (told,) = in_store(cli.path, look)

    if types == [("draw", "holdfast.undo")]:
        assert told == (
            f"warn 1 undo job waits ({id[-8:]}), but no running worker knows the type of the job to undo (make_video): "
            "start a worker whose App has the code; after an hour, any worker runs the undo without the code and lists "
            "in review what it couldn't undo"
        )
    else:
        assert told.startswith("ok ")


def test_queues_that_nobody_serves_are_told_with_one_worker_for_all(cli: Cli):
    planted(cli, {"queue": "video"}, {"queue": "audio"}, {"queue": "video"})

    assert checks(cli)["queue"] == (
        "warn",
        "3 jobs wait in queues that no worker serves (audio: 1, video: 2): "
        "holdfast worker MODULE:APP --queues audio,video",
    )


def test_very_many_queues_that_nobody_serves_are_not_all_told(cli: Cli, monkeypatch):
    monkeypatch.setattr(check_queues, "QUEUES_NAMED", 2)
    planted(cli, *({"queue": name} for name in ("a", "b", "c", "d")))

    assert checks(cli)["queue"][1] == (
        "4 jobs wait in queues that no worker serves (a: 1, b: 1, and 2 more queues): "
        "holdfast worker MODULE:APP --queues a,b"
    )


def test_jobs_that_expired_or_were_due_long_ago_or_wait_too_long_are_told(cli: Cli):
    expired, due, old = planted(
        cli,
        {"age": 30 * MINUTE, "expires_at": lambda now: now - 10 * MINUTE},
        {"age": 30 * MINUTE, "run_at": lambda now: now - 10 * MINUTE},
        {"age": 120 * MINUTE},
    )

    found = checks(cli)

    assert found["expired"][0] == "warn"
    assert found["due"][0] == "warn"
    assert found["oldest"] == ("warn", f"job {old[-8:]} (draw, queue video) has been waiting for a worker for 2 h")
    assert {expired, due, old} == {job["id"] for job in cli.json("jobs")["jobs"]}


def test_a_job_from_the_future_is_told(cli: Cli):
    planted(cli, {"age": -60 * MINUTE})

    assert checks(cli)["time"][0] == "warn"


def test_jobs_in_review_are_told(cli: Cli, ids: dict[State, str]):
    assert checks(cli)["review"] == ("warn", "1 job needs a person: holdfast review")


def test_a_store_that_others_can_read_is_told(cli: Cli, ids: dict[State, str]):
    cli.path.chmod(0o644)

    assert checks(cli)["permissions"][0] == "warn"


@pytest.mark.parametrize(("free", "level"), [(10, "fail"), (500_000_000, "warn"), (10**12, "ok")])
def test_a_disk_that_fills_up_is_told(free: int, level: str, cli: Cli, ids: dict[State, str], monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**12, 0, free))

    assert checks(cli)["disk"][0] == level


def test_a_clock_that_was_never_set_fails(cli: Cli, ids: dict[State, str], monkeypatch):
    monkeypatch.setattr(check_store.time, "time", lambda: 100.0)  # type: ignore[attr-defined]

    assert checks(cli)["clock"][0] == "fail"


def test_a_damaged_store_fails_and_is_left_as_it_is(cli: Cli):
    cli.path.write_bytes(b"not a database at all, but long enough to be read as one" * 100)
    before = cli.path.read_bytes()

    result = cli("doctor")

    assert result.exit_code == 1
    assert "fail open: " in result.stdout
    assert cli.path.read_bytes() == before


def test_a_damaged_page_is_found(cli: Cli, ids: dict[State, str]):
    db = sqlite3.connect(cli.path)
    db.execute("pragma wal_checkpoint(truncate)")
    page, size = db.execute("select rootpage from sqlite_schema where name = 'body'").fetchone()[0], 4096
    db.close()
    raw = bytearray(cli.path.read_bytes())
    raw[(page - 1) * size : (page - 1) * size + 200] = b"\xee" * 200
    cli.path.write_bytes(bytes(raw))

    result = cli("doctor")

    assert result.exit_code == 1
    assert "fail open: " in result.stdout or "fail integrity: " in result.stdout
    assert "Traceback" not in result.output


def test_a_file_of_another_program_fails(cli: Cli):
    db = sqlite3.connect(cli.path)
    db.execute("create table mine (x)")
    db.close()

    assert checks(cli)["open"][0] == "fail"


APP = """
from holdfast import App
app = App("sqlite:///{path}")

@app.job(queue="{queue}")
async def {name}(x: int) -> int:
    return x
"""


@pytest.mark.parametrize(
    ("name", "queue", "level"), [("make_video", "video", "ok"), ("other", "other", "warn"), ("other", "video", "warn")]
)
def test_jobs_that_an_app_does_not_know_are_told(
    name: str, queue: str, level: str, cli: Cli, ids: dict[State, str], tmp_path: Path, monkeypatch
):
    monkeypatch.delenv("HOLDFAST_URL")  # the App names its own store
    file = tmp_path / f"shop_{name}_{queue}.py"
    file.write_text(APP.format(path=cli.path, queue=queue, name=name))

    assert checks(cli, f"{file}:app")["app"][0] == level


STEPS_APP = """
from holdfast import App, step
app = App("sqlite:///{path}")

@step(name="{step}"{was})
async def draw(n: int) -> int:
    return n

@app.job
async def film() -> int:
    return await draw(1)
"""


@pytest.mark.parametrize(
    ("name", "was", "level"),
    [("sketched", "", "ok"), ("painted", "", "fail"), ("painted", ", was='sketched'", "ok")],
)
def test_steps_that_an_app_does_not_define_are_told_before_it_is_deployed(name, was, level, cli, tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "STEPS", known := {})  # type: ignore[var-annotated]
    monkeypatch.setattr(doctor_verb, "STEPS", known)
    monkeypatch.setattr("holdfast.app.step.STEPS", known)
    file = tmp_path / f"studio_{level}_{name}.py"
    file.write_text(STEPS_APP.format(path=cli.path, step=name, was=was))

    async def work(jobs: Jobs) -> str:
        await jobs.submit([JobRequest(type="film")])
        (held,) = await jobs.engine.claim("w-1", ["default"], 1)
        await jobs.engine.record([step(held, f"sketched#{n}") for n in range(3)])
        return held.id

    id = in_store(cli.path, work)
    told, text = checks(cli, f"{file}:app")["steps"]
    assert told == level
    if level == "fail":
        assert text == (
            f"1 unfinished job ({id[-8:]}) recorded sketched (3), which this App doesn't define: "
            "if you renamed a step, @step(was='sketched') makes it use the old records"
        )


def test_jobs_that_went_on_without_their_records_are_told_for_a_day(cli: Cli):
    async def work(jobs: Jobs) -> str:
        await jobs.submit([JobRequest(type="film")])
        for _ in range(2):
            (held,) = await jobs.engine.claim("w-1", ["default"], 1)
            event, now = (Event.COMPLETE if held.epoch > 1 else Event.RELEASE), await jobs.engine.now()
            note = {NEVER_ASKED: {"draw": 3, "cut": 1}} if held.epoch > 1 else {}
            facts: dict[str, Any] = {"result": "null"} if event is Event.COMPLETE else {}
            await jobs.engine.commit([decide(held, event, now, by="w-1", note=note, **facts)])
        return held.id

    id = in_store(cli.path, work)
    assert checks(cli)["resumed"] == (
        "warn",
        f"1 job ({id[-8:]}) resumed recently, and draw (3), cut (1) were recorded and never asked for: "
        "if you renamed a step, @step(was='draw') makes it use the old records",
    )
    tampered(cli, f"update entry set at = at - {25 * 60 * MINUTE}")
    assert checks(cli)["resumed"][0] == "ok"


MANY = 1_200
"""More jobs than a store gives in one page."""


async def without_its_records(jobs: Jobs) -> str:
    """A job that went on and never asked for what it had recorded."""
    await jobs.submit([JobRequest(type="film")])
    for _ in range(2):
        (held,) = await jobs.engine.claim("w-1", ["default"], 1)
        facts: dict[str, Any] = {"note": {NEVER_ASKED: {"draw": 3}}, "result": "null"} if held.epoch > 1 else {}
        event = Event.COMPLETE if held.epoch > 1 else Event.RELEASE
        await jobs.engine.commit([decide(held, event, await jobs.engine.now(), by="w-1", **facts)])
    return held.id


def test_a_job_that_went_on_without_its_records_is_told_however_many_came_after_it(cli: Cli):
    async def work(jobs: Jobs) -> str:
        id = await without_its_records(jobs)
        await jobs.submit([JobRequest(type="other", queue="other") for _ in range(MANY)])
        return id

    id = in_store(cli.path, work)
    level, text = checks(cli)["resumed"]
    assert level == "warn"
    assert f"1 job ({id[-8:]}) resumed recently" in text


def test_a_look_at_jobs_that_ended_early_says_how_far_it_came(cli: Cli, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(finding, "WALK_SECONDS", 0.0)
    file = tmp_path / "studio_walk.py"
    file.write_text(STEPS_APP.format(path=cli.path, step="walked_early", was=""))

    async def work(jobs: Jobs) -> None:
        await without_its_records(jobs)
        now = await jobs.engine.now()
        await jobs.submit([JobRequest(type="film", queue="later", run_at=now + HOUR) for _ in range(3)])
        await jobs.submit([JobRequest(type="film", queue="held") for _ in range(3)])
        await jobs.engine.claim("w-1", ["held"], 3)

    in_store(cli.path, work)
    found = checks(cli, f"{file}:app")
    for name in ("resumed", "steps", "due", "owners"):
        assert found[name][1].endswith(" (only the newest job checked: the walk took too long)"), found[name]
    assert found["resumed"][0] == "ok"


def test_a_look_that_saw_all_jobs_says_nothing_of_how_far_it_came(cli: Cli, ids: dict[State, str]):
    for name in ("resumed", "due", "owners"):
        assert "newest" not in checks(cli)[name][1]


def test_a_job_that_is_long_due_is_told_however_many_are_not(cli: Cli):
    later = [{"run_at": lambda now: now + HOUR} for _ in range(MANY)]
    late = {"run_at": lambda now: now - 30 * MINUTE, "age": HOUR}
    *_, id = planted(cli, *later, late)
    assert checks(cli)["due"] == ("warn", f"1 job long overdue ({id[-8:]}): no worker claims from their queues")


def test_a_lost_job_is_told_however_many_have_a_running_worker(cli: Cli):
    async def work(jobs: Jobs) -> str:
        await jobs.submit([JobRequest(type="draw") for _ in range(MANY)])
        for _ in range(0, MANY, 100):
            await jobs.engine.claim("w-live", ["default"], 100)
        await jobs.submit([JobRequest(type="draw")])
        [lost] = await jobs.engine.claim("w-lost", ["default"], 1)
        return lost.id

    id = in_store(cli.path, work)
    tampered(cli, f"update job set claimed_at = claimed_at - {MINUTE} where id = '{id}'")

    async def alive(jobs: Jobs) -> dict[str, tuple[str, str]]:
        await jobs.engine.beat(Presence("w-live", queues=("default",)))
        return await asyncio.to_thread(checks, cli)

    level, text = in_store(cli.path, alive)["owners"]
    assert level == "fail"
    assert f"1 active job without a running worker ({id[-8:]})" in text


def test_a_busy_store_is_not_called_wrong(cli: Cli, ids: dict[State, str], monkeypatch):
    original, calls = SqliteEngine.count, []

    async def moving(self):
        calls.append(1)
        counts = dict(await original(self))
        return {**counts, ("video", State.AVAILABLE): 1_000 + len(calls)}

    monkeypatch.setattr(SqliteEngine, "count", moving)

    assert checks(cli)["counters"] == ("ok", "not compared: the jobs change too fast")


def test_a_doctor_that_takes_long_for_a_recount_takes_nothing_for_the_future_and_nobody_for_lost(monkeypatch):
    """The time is read with what it is compared to, and not once at the beginning."""

    async def look() -> dict[str, str]:
        clock = StoreClock(settable=True)
        monkeypatch.setattr(check_jobs, "system_clock", clock)
        engine = MemoryEngine(clock)
        await engine.insert([job(clock)])
        (held,) = await engine.claim("w-1", ["default"], 1)
        await engine.beat(Presence("w-1", running=(Running(held.id, held.epoch),)))
        count = engine.count

        async def slowly():
            counts = await count()
            clock.advance(HOUR)
            await engine.beat(Presence("w-1", running=(Running(held.id, held.epoch),)))
            return counts

        engine.count = slowly  # type: ignore[method-assign]
        return {finding.name: finding.level for finding in await check_jobs.check_jobs(Jobs(engine))}

    found = asyncio.run(look())
    assert (found["time"], found["owners"]) == ("ok", "ok")
