"""An app behind a server: the same typed calls, refused as in Python, under a token's scopes."""

import asyncio
import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from click.testing import CliRunner

from holdfast import App, Blob, BlobGone, Duplicate, JobFailed, QueueFull, Unique, chain, group
from holdfast.cli import main
from holdfast.core.errors import Invalid, KeyConflict, NotAllowed, NotFound, StoreBusy
from holdfast.core.model import Entry
from holdfast.core.references import Reference
from holdfast.jobs.requests import JobRequest
from holdfast.jobs.views.comparison import view_comparison
from holdfast.jobs.views.text import short_id
from tests.server.clients import a_real_server

PROGRAM = """
from pathlib import Path

from holdfast import App, Blob, step

app = App()

@step
async def paint(number: int) -> str:
    return f"image {number}"

@app.job(stages=[paint], retries=0)
async def film(title: str, scenes: int = 2) -> list[str]:
    if title == "broken":
        raise ValueError("no such film")
    images = await paint.map(range(scenes))
    if title == "broken late":
        raise ValueError("no such end")
    return images

@app.job
async def doubled(text: str, file: Blob) -> tuple[str, Blob]:
    content = await file.open().read()
    made = Path(f"{file.sha256}.made")
    made.write_bytes(content * 2)
    return text * 2, await Blob.from_path(made, media="text/plain")

@app.job
async def counted(value: str | int) -> int:
    return len(str(value))

@app.job
async def summed(numbers: list[int]) -> int:
    return sum(numbers)

app.limit("api", at_once=3)
app.queue("small", most_waiting=1)

@app.on("film.wanted")
@app.job
async def wanted(film: dict) -> str:
    return film["title"]
"""


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    folder: Path = tmp_path_factory.mktemp("remote")
    (folder / "films.py").write_text(PROGRAM)
    store = f"sqlite:///{folder}/x.db"
    with a_real_server(folder, "films:app", HOLDFAST_URL=store) as (place, _):
        command = [sys.executable, "-m", "holdfast.cli", "worker", "films:app"]
        with open(folder / "worker.log", "w") as log:
            worker = subprocess.Popen(
                command, cwd=folder, env={**os.environ, "HOLDFAST_URL": store}, stdout=log, stderr=log
            )
        try:
            yield place
        finally:
            worker.terminate()
            worker.wait(30)


def app_at(place: str, **more):
    app = App(place, **more)

    @app.job(retries=0)
    async def film(title: str, scenes: int = 2) -> list[str]:
        raise AssertionError("runs on the worker")

    return app, film


async def test_a_job_is_submitted_followed_and_read_through_the_server(served):
    app, film = app_at(served)
    run = await film.submit("sea", 3, key="order-42")
    again = await film.submit("sea", 3, key="order-42")
    events = [entry.event async for entry in run.follow() if isinstance(entry, Entry)]

    assert await run.result(timeout=60) == ["image 0", "image 1", "image 2"]
    assert again.id == run.id
    assert (events[0], events[-1]) == ("submit", "complete")
    assert (await run.status()).state == "completed"
    with pytest.raises(KeyConflict):
        await film.submit("land", key="order-42")
    await app.close()


async def test_unique_jobs_and_full_queues_are_refused_as_in_python(served):
    app, film = app_at(served)
    only_one = Unique(by=("args",), within="1h", then="refuse")
    first = await film.submit("lake", unique=only_one, queue="small", delay="1h")

    with pytest.raises(Duplicate) as refused:
        await film.submit("lake", unique=only_one)
    assert (await refused.value.existing.status()).id == first.id
    with pytest.raises(QueueFull) as full:
        await film.submit("river", queue="small", delay="1h")
    assert (full.value.queue, full.value.depth, full.value.most_waiting) == ("small", 1, 1)
    assert full.value.retry_after == 5.0
    await first.cancel()
    await app.close()


async def test_acts_go_through_the_server_and_its_refusals_are_ours(served):
    app, film = app_at(served)
    late = await film.submit("late", delay="1h")
    await late.cancel(reason="not needed")
    broken = await film.submit("broken")
    with pytest.raises(JobFailed, match="no such film"):
        await broken.result(timeout=60)
    await broken.resolve(["by hand"], reason="done elsewhere")

    assert (await late.status()).state == "cancelled"
    assert await broken.result() == ["by hand"]
    assert (await broken.history())[-1].note["reason"] == "done elsewhere"
    with pytest.raises(NotAllowed):
        await late.cancel()
    with pytest.raises(NotFound):
        await (await app.open()).get("0192f3a4-5b6c-7d8e-9f01-23456789abcd")
    await app.close()


async def test_many_jobs_are_submitted_at_once(served):
    app, film = app_at(served)
    runs = await film.submit_many(["a", "b", "c"], delay="1h")

    assert [(await run.status()).state for run in runs] == ["scheduled"] * 3
    await app.close()


def test_synchronous_code_does_the_same(served):
    app, film = app_at(served)
    run = app.sync.submit(film, "sync", 1)

    followed = list(run.follow())
    assert run.result(timeout=60) == ["image 0"]
    assert [one.event for one in followed if isinstance(one, Entry)] == [one.event for one in run.history()]
    assert followed[-1].event == "complete"
    asyncio.run(app.close())


async def test_a_remote_app_runs_no_worker_and_makes_no_jobs_of_holdfast(served):
    app, _ = app_at(served)
    with pytest.raises(Invalid, match="needs the store itself"):
        async with app.worker():
            pass

    @app.job(name="holdfast.bulk")
    async def bulk(act: dict) -> None: ...

    with pytest.raises((NotAllowed, Invalid)):
        await bulk.submit({})
    await app.close()


async def test_no_token_can_be_read_and_no_state_written(served):
    app, _ = app_at(served)
    engine = (await app.open()).engine

    for prefix in ("token/", "", "l"):
        with pytest.raises(NotAllowed, match="can't be read through a server"):
            await engine.records(prefix)
    for name in ("token/x", "schedule/x", "limit/x", "bucket/x", "queue/x", "budget/x", "pause/x", "quiet/x"):
        with pytest.raises(NotAllowed, match="can't be written through a server"):
            await engine.put_record(name, "{}")
    await app.close()


async def test_large_values_and_files_go_through_the_server(served, tmp_path):
    app, _ = app_at(served)

    @app.job
    async def doubled(text: str, file: Blob) -> tuple[str, Blob]:
        raise AssertionError("runs on the worker")

    text, content = "wave " * 40_000, b"sea " * 500_000
    (tmp_path / "film").write_bytes(content)
    run = await doubled.submit(text, await Blob.from_path(tmp_path / "film"))
    twice, file = await run.result(timeout=60)
    await file.save_to(tmp_path / "saved")
    async with file.open() as stream:
        beginning = await stream.read(8)
    again = await doubled.submit("x", file)

    assert twice == text * 2
    assert (tmp_path / "saved").read_bytes() == content * 2
    assert (beginning, file.media) == (b"sea sea ", "text/plain")
    assert (await again.result(timeout=60))[1].size == 4 * len(content)
    await app.close()


async def test_a_file_that_nobody_has_is_refused(served):
    app, _ = app_at(served)
    jobs = await app.open()
    mark = '[{"$blob":{"media":"","sha256":"' + "0" * 64 + '","size":1}}]'
    with pytest.raises(BlobGone, match="isn't in the blob store"):
        await jobs.submit([JobRequest(type="doubled", args=mark)])
    with pytest.raises(BlobGone):
        await Blob(Reference("0" * 64, 1), jobs.engine.blobs).open().read()
    await app.close()


async def test_flows_run_through_the_server(served):
    app, film = app_at(served)
    chained = await chain(app.s("counted", "sea"), app.s("counted")).submit()
    grouped = await group(film.s(title, 1) for title in ("a", "b")).submit()
    nested = await chain(group(app.s("counted", "x"), app.s("counted", "yy")), app.s("summed")).submit(key="one")
    again = await chain(group(app.s("counted", "x"), app.s("counted", "yy")), app.s("summed")).submit(key="one")

    assert await chained.result(timeout=60) == 1
    assert await grouped.result(timeout=60) == [["image 0"], ["image 0"]]
    assert await nested.result(timeout=60) == 3
    assert again.id == nested.id
    assert "counted" in str(await nested.tree())
    await app.close()


async def test_an_event_reaches_the_subscribers_of_other_programs(served):
    app, _ = app_at(served)
    [run] = await app.emit("film.wanted", {"title": "sea"}, id="1")
    again = await app.emit("film.wanted", {"title": "sea"}, id="1")

    assert await run.result(timeout=60) == "sea"
    assert [one.id for one in again] == [run.id]
    await app.close()


async def test_schedules_are_put_paused_run_and_removed_by_the_server(served):
    app, film = app_at(served)
    put = await app.schedules.put("0 9 * * *", job=film.s("morning"), name="morning", by="somebody else")
    await app.schedules.pause("morning", reason="the report is wrong")
    paused = await app.schedules.get("morning")
    await app.schedules.resume("morning")
    run = await app.schedules.run_now("morning")
    result = await run.result(timeout=60)
    await app.schedules.remove("morning")

    assert (put.type, put.args) == ("film", '["morning"]')
    assert [change.by for change in put.changes] == ["http"]
    assert paused.paused is not None
    assert paused.paused.reason == "the report is wrong"
    assert result == ["image 0", "image 1"]
    assert await app.schedules.list() == []
    with pytest.raises(NotFound):
        await app.schedules.pause("evening")
    await app.close()


async def test_a_rerun_and_a_fork_are_made_by_the_server(served):
    app, film = app_at(served)
    run = await film.submit("again", 2)
    await run.result(timeout=60)
    again = await run.rerun("paint#2", feedback="too dark", reason="look again")
    fork = await run.fork("paint", args=["again", 3])

    assert await again.result(timeout=60) == ["image 0", "image 1"]
    compared = await view_comparison(app.jobs, await app.jobs.get(run.id), await app.jobs.get(again.id))
    assert await fork.result(timeout=60) == ["image 0", "image 1", "image 2"]
    assert len({run.id, again.id, fork.id}) == 3
    assert [(await one.history())[1].by for one in (again, fork)] == ["http", "http"]
    assert (await again.history())[1].note["rerun"] == run.id
    assert [pair.relation for pair in compared.steps].count("same") >= 1
    with pytest.raises(NotFound, match="no recorded step"):
        await run.rerun("pint")
    await app.close()


async def test_a_job_in_review_is_previewed_and_rerun_by_the_server(served):
    app, film = app_at(served)
    run = await film.submit("broken late")
    with pytest.raises(JobFailed):
        await run.result(timeout=60)
    plan = await run.preview_replay()
    same = await run.rerun("paint#1")

    assert len(plan.recorded) == 2
    assert same is run
    with pytest.raises(JobFailed):
        await run.result(timeout=60)
    await app.close()


async def test_limits_queues_and_workers_are_changed_by_the_server(served):
    app, film = app_at(served)
    jobs = await app.open()
    await (await film.submit("first", 1)).result(timeout=60)  # now the worker has declared its limits
    limit = await jobs.set_limit("api", at_once=2, reason="they asked", by="somebody else")
    back = await jobs.reset_limit("api")
    until = await jobs.close_limit("api", 600_000)
    await jobs.open_limit("api")
    bound = await jobs.set_bound("video", 5)
    none = await jobs.reset_bound("video")
    [worker] = [one.worker for one in await jobs.workers() if "default" in one.queues]
    await jobs.quiet_worker(worker)
    await jobs.let_claim(worker)

    assert (limit.now.at_once, limit.person.by, limit.changes[-1].by) == (2, "http", "http")
    assert (back.now.at_once, back.person) == (3, None)
    assert until > await jobs.engine.now()
    assert (bound.person.most_waiting, bound.person.by) == (5, "http")
    assert none.person is None
    with pytest.raises(NotFound):
        await jobs.open_limit("api")
    await app.close()


async def test_a_server_that_is_away_is_named():
    app, film = app_at("http://127.0.0.1:9")
    with pytest.raises(StoreBusy, match="can't be reached"):
        await film.submit("x")
    await app.close()


def test_a_token_is_for_a_server():
    with pytest.raises(Invalid, match="for a server"):
        App("memory:", token="hf_x")
    with pytest.raises(Invalid, match="write a server's URL"):
        App("http://user:secret@host/")


async def test_the_commands_work_through_the_server(served):
    def run(*arguments: str) -> str:
        command = [sys.executable, "-m", "holdfast.cli", *arguments, "--url", served]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout

    app, film = app_at(served)
    id = (await film.submit("verbs", delay="1h")).id
    shown = await asyncio.to_thread(run, "status", id)
    cancelled = await asyncio.to_thread(run, "cancel", id, "--reason", "x")

    assert "scheduled" in shown
    assert cancelled.startswith("cancelled")
    assert "film" in await asyncio.to_thread(run, "jobs", "--limit", "5")
    assert "at most 2 at once" in await asyncio.to_thread(run, "limits", "set", "api", "--at-once", "2")
    broken = await film.submit("broken")
    with pytest.raises(JobFailed):
        await broken.result(timeout=60)
    act = await asyncio.to_thread(run, "discard", "--type", "film", "--error", "ValueError", "--yes", "--json")
    await (await app.run(json.loads(act)["act"])).result(timeout=60)
    assert (await broken.status()).state == "discarded"
    assert "at most 5 waiting" in await asyncio.to_thread(run, "queues", "set", "video", "--most-waiting", "5")
    await app.close()


def holdfast(place: str, *words: str, code: int = 0) -> str:
    """Call a verb in this process, on the server."""
    result = CliRunner().invoke(main, [*words, "--url", place], prog_name="holdfast", catch_exceptions=False)
    assert result.exit_code == code, (words, result.output)
    return result.output


def test_every_command_that_looks_or_acts_works_through_the_server(served, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    app, film = app_at(served)
    done, late, *broken = [app.sync.submit(film, title, 2) for title in ("sea", "later", *["broken late"] * 5)]
    assert done.result(timeout=60) == ["image 0", "image 1"]
    for run in (late, *broken):
        with suppress(JobFailed):
            run.result(timeout=60)
    waiting = app.sync.submit(film.with_options(delay="1h"), "waits")
    one, two, three, four, five = (run.id for run in broken)

    def says(*words: str) -> str:
        return holdfast(served, *words)

    assert "need a person" in says("review")
    assert "no such end" in says("show", one)
    assert json.loads(says("show", one, "--json"))["job"]["id"] == one
    assert "completed" in says("status", done.id)
    assert "default" in says("status")
    assert short_id(done.id) in says("jobs", "--limit", "50")
    assert "no open questions" in says("ask")
    assert "steps are the same" in says("compare", done.id, late.id)
    assert done.id in says("export", done.id)
    assert "slots in use" in says("workers")
    worker = next(one["id"] for one in json.loads(says("workers", "--json"))["workers"] if one["id"].startswith("w-"))
    says("workers", "quiet", worker)
    says("workers", "resume", worker)
    assert says("queues", "pause", "default", "--reason", "x").startswith("paused")
    assert says("queues", "resume", "default").startswith("resumed")
    says("queues", "set", "default", "--most-waiting", "500")
    says("queues", "reset", "default")
    for words in (["set", "api", "--at-once", "1"], ["close", "api", "--for", "5m"], ["open", "api"], ["reset", "api"]):
        assert "api" in says("limits", *words)
    assert "no job uses a budget" in says("budget")
    assert "next" in says("schedules", "put", "verbs", "--cron", "0 3 * * *", "--job", "film", "--args", '["x"]')
    for act in ("next", "pause", "resume", "run", "remove"):
        says("schedules", act, "verbs")
    assert "steps are kept" in says("replay", one, "--preview")
    says("replay", one, "--yes")
    says("resolve", two, "--result", "[]")
    says("rerun", three, "paint#1", "--feedback", "too dark")
    says("fork", four)
    says("discard", five)
    says("signal", waiting.id, "go", "--json", "1")
    says("cancel", waiting.id)
    assert (app.sync.run(two).status().state, app.sync.run(five).status().state) == ("completed", "discarded")
    assert waiting.status().state == "cancelled"
    for words in (["doctor"], ["token", "list"], ["import", "run.json"], ["worker", "films:app"], ["serve"]):
        (tmp_path / "run.json").write_text("{}")
        assert "needs the store behind it" in holdfast(served, *words, code=2)
    asyncio.run(app.close())
