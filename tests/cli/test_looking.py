"""What the looking verbs tell: status, jobs, show, review, queues, workers; their JSON, and `--watch`."""

import asyncio
import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from holdfast.cli.verbs import status
from holdfast.conformance.given import step
from holdfast.core.lifecycle import decide
from holdfast.core.model import Error, Event, Presence, Retrying, State, StepState, Where
from holdfast.engines.sqlite import SqliteEngine
from holdfast.jobs.service import LOG_PATH, JobRequest, Jobs
from holdfast.jobs.views.text import error_line
from tests.cli.conftest import Cli
from tests.cli.stores import MINUTE, NASTY, STAGES, in_store, presence

HOLDFAST = [sys.executable, "-m", "holdfast.cli"]


def with_live_worker(cli: Cli, *calls: tuple[str, ...], retrying: Retrying | None = None) -> list[str]:
    """What verbs say while a worker lives: its file is locked for as long as this engine is open."""

    async def work(jobs: Jobs) -> list[str]:
        engine, now = jobs.engine, await jobs.engine.now()
        (running,) = [job async for job in jobs.walk(Where(states=(State.ACTIVE,)))]
        # It stays alive for as long as the verbs take, however busy the machine is.
        beat = replace(presence(running, at=now), beat_ms=60_000, lease_ms=600_000)
        if retrying is not None:
            told = replace(retrying, next_at=now + retrying.next_at)
            beat = replace(beat, running=tuple(replace(one, retrying=told) for one in beat.running))
        await engine.beat(beat)
        shown = [await asyncio.to_thread(said, call) for call in calls]
        await engine.beat(Presence(worker=beat.worker, leaving=True))
        return shown

    return in_store(cli.path, work)


def said(call: tuple[str, ...]) -> str:
    """What a verb says in a process of its own."""
    return subprocess.run([*HOLDFAST, *call], capture_output=True, text=True, check=False, timeout=60).stdout


def test_status_tells_stage_bar_text_time_and_worker(cli: Cli, ids: dict[State, str]):
    (shown,) = with_live_worker(cli, ("status",))

    assert "\n1 worker, 1 of 8 slots in use\n" in shown
    assert f"make_video {ids[State.ACTIVE][-8:]}  draw, stage 3 of 7  for " in shown
    assert "████████░░░░░░░░░░░░ 12 of 30  scene 12  about 6 min left" in shown
    assert "worker w-live\n" in shown


@pytest.mark.parametrize("state", State)
def test_the_command_line_and_str_of_a_status_say_the_same_sentence(state: State, cli: Cli, ids: dict[State, str]):
    async def work(jobs: Jobs) -> str:
        return str(await jobs.status(ids[state]))

    shown = " ".join(cli.ok("status", ids[state]).split())

    sentence = in_store(cli.path, work)
    assert sentence in shown
    assert f" {state}" in shown


@pytest.mark.parametrize("verb", ["status", "show"])
def test_a_step_that_is_tried_again_is_told_with_its_try_its_error_and_its_next_try(verb, cli: Cli, ids):
    id = ids[State.ACTIVE]
    retrying = Retrying("draw#13", 2, 4, f"ProviderError: 429 {NASTY}", next_at=10 * MINUTE, others=1)

    whole, one, plain = with_live_worker(cli, ("status",), (verb, id), ("status", id, "--json"), retrying=retrying)

    for shown in (whole, one):
        flat = " ".join(shown.split())
        assert "try 2 of 4 of draw#13 after ProviderError: 429" in flat
        assert re.search(r", next try in (10|9) min(, \d+ s)?.*, and 1 more is being retried", flat)
        assert NASTY not in shown
    told = json.loads(plain)["retrying"]
    assert told["next_at"].endswith("Z")
    assert {name: told[name] for name in ("step", "try", "of", "others")} == {
        "step": "draw#13", "try": 2, "of": 4, "others": 1,
    }  # fmt: skip


def test_who_is_not_trying_again_is_told_so_in_json(cli: Cli, ids: dict[State, str]):
    one, workers = with_live_worker(cli, ("status", ids[State.ACTIVE], "--json"), ("workers", "--json"))

    assert json.loads(one)["retrying"] is None
    assert [run["retrying"] for worker in json.loads(workers)["workers"] for run in worker["running"]] == [None]


def test_show_tells_how_often_a_step_was_tried(cli: Cli):
    async def work(jobs: Jobs) -> str:
        await jobs.submit([JobRequest(type="film")])
        (held,) = await jobs.engine.claim("w-1", ["default"], 1)
        await jobs.engine.record([step(held, "draw#1", tries=3), step(held, "draw#2")])
        return held.id

    id = in_store(cli.path, work)

    shown = cli.ok("show", id)
    assert re.search(r"draw 1 +done, 3 tries ", shown)
    assert re.search(r"draw 2 +done  ", shown)
    assert [one["tries"] for one in cli.json("show", id)["steps"]] == [3, 1]


def test_status_tells_a_lost_worker_and_what_needs_a_person(cli: Cli, ids: dict[State, str]):
    shown = cli.ok("status")

    assert "\nno worker\n" in shown
    assert "worker w-live, which is not responding" in shown
    assert f"Needs a person\n  make_video {ids[State.REVIEW][-8:]}" in shown
    assert "ProviderError: boom" in shown


def test_show_says_once_what_went_wrong_above_the_traceback(cli: Cli):
    async def fail(jobs: Jobs) -> str:
        await jobs.submit([JobRequest(type="film")])
        (job,) = await jobs.engine.claim("w-1", ["default"], 1)
        text = 'Traceback (most recent call last):\n  File "video.py", line 7, in film\nValueError: no ink\n'
        error = Error("ValueError", "no ink", text)
        await jobs.engine.commit([decide(job, Event.EXHAUST, await jobs.engine.now(), by="w-1", error=error)])
        return job.id

    shown = cli.ok("show", in_store(cli.path, fail)).partition("\nError\n")[2]

    assert shown.count("ValueError: no ink") == 1
    assert 'File "video.py", line 7, in film' in shown


def test_status_counts_every_state_of_every_queue(cli: Cli, ids: dict[State, str]):
    overview = cli.json("status")

    assert set(overview) == {"store", "at", "queues", "workers", "active", "review", "asking", "alerts"}
    assert overview["store"] == str(cli.path)
    jobs = {queue["name"]: queue["jobs"] for queue in overview["queues"]}
    assert {state: jobs["making"][state] + jobs["video"][state] for state in State} == dict.fromkeys(State, 1)
    assert [one["id"] for one in overview["active"]] == [ids[State.ACTIVE]]
    assert [one["id"] for one in overview["review"]] == [ids[State.REVIEW]]


def test_status_of_one_job_has_stable_keys(cli: Cli, ids: dict[State, str]):
    keys = [set(cli.json("status", id)) for id in ids.values()]

    assert all(one == keys[0] for one in keys)
    assert {"id", "state", "stage", "stage_number", "done", "total", "remaining_ms", "attempt", "recoveries"} <= keys[0]


def test_jobs_are_listed_by_state_queue_and_type(cli: Cli, ids: dict[State, str]):
    def listed(*options: str) -> set[str]:
        return {job["id"] for job in cli.json("jobs", *options)["jobs"]}

    assert listed() == set(ids.values())
    for state in State:
        assert listed("--state", state.value) == {ids[state]}
    assert listed("--state", "active", "--state", "review") == {ids[State.ACTIVE], ids[State.REVIEW]}
    assert listed("--queue", "video") == {ids[s] for s in (State.AVAILABLE, State.SCHEDULED, State.CANCELLED)}
    assert listed("--type", "draw") == set()
    assert cli.ok("jobs", "--type", "draw") == "no such jobs\n"


def test_a_mistyped_type_or_queue_is_answered_with_the_one_that_was_meant(cli: Cli, ids: dict[State, str]):
    assert cli.ok("jobs", "--type", "make_vidoe") == "no such jobs; did you mean make_video?\n"
    assert cli.ok("jobs", "--queue", "viedo") == "no such jobs; did you mean video?\n"
    assert cli.ok("jobs", "--queue", "video", "--type", "make_vidoe") == "no such jobs; did you mean make_video?\n"
    cancelled = cli("cancel", "--type", "make_vidoe", "--yes")
    assert cancelled.stderr == "note: no such jobs; did you mean make_video?\n"
    paused = cli("queues", "pause", "viedo")
    assert paused.stderr == (
        "holdfast: queue viedo has no jobs and no worker; to pause it anyway, add --yes; did you mean video?\n"
    )


@pytest.mark.parametrize("end", ["--newest", "--oldest"])
def test_a_walk_over_the_pages_meets_each_job_once(end: str, cli: Cli, ids: dict[State, str]):
    seen: list[str] = []
    page = cli.json("jobs", end, "--limit", "4")
    while True:
        seen += [job["id"] for job in page["jobs"]]
        if page["next"] is None:
            break
        assert f"--after {seen[-1][-8:]}" in cli.ok("jobs", end, "--limit", "4", *_behind(seen[:-4]))
        page = cli.json("jobs", end, "--limit", "4", "--after", page["next"])

    assert seen == sorted(ids.values(), reverse=end == "--newest")


def _behind(seen: list[str]) -> list[str]:
    return ["--after", seen[-1]] if seen else []


def test_show_tells_the_story_steps_log_and_error(cli: Cli, ids: dict[State, str]):
    shown = cli.ok("show", ids[State.REVIEW])

    for part in (
        '[{"title":"The Lighthouse"}]',
        "claimed by w-1, epoch 1",
        "failed, needs a person (w-1)",
        "error: ProviderError: boom",
        "Steps: 3 of 3 done",
        "draw 2",
        '"scene-2.png"',
        "Log: 2 lines",
        "drawing 1",
        'File "video.py", line 7',
        f"next:\n  holdfast replay {ids[State.REVIEW][-8:]}\n",
    ):
        assert part in shown


def test_a_job_that_does_not_run_tells_its_failed_attempts_as_review_does(cli: Cli, ids: dict[State, str]):
    for state in (State.REVIEW, State.RETRYABLE):
        for verb in ("show", "status"):
            shown = cli.ok(verb, ids[state])
            assert ", 1 failed attempt" in shown
            assert "attempt 2" not in shown


def test_a_finished_run_tells_how_long_it_took(cli: Cli, ids: dict[State, str]):
    async def later(jobs: Jobs) -> str:
        (job,) = await jobs.engine.claim("w-1", ["video"], 1)
        assert job.claimed_at is not None
        await jobs.engine.commit([decide(job, Event.COMPLETE, job.claimed_at + 25 * MINUTE, by="w-1", result="1")])
        return job.id

    id = in_store(cli.path, later)

    for verb in ("show", "status"):
        assert ", took 25 min\n" in cli.ok(verb, id)
        assert "took " not in cli.ok(verb, ids[State.CANCELLED])  # nobody had claimed it
        assert ", took " not in cli.ok(verb, ids[State.REVIEW])  # it has not ended


def test_show_tells_what_a_job_waits_for_and_why_it_was_stopped(cli: Cli, ids: dict[State, str]):
    assert "waiting for signal approved, 1 h left" in cli.ok("show", ids[State.PENDING])
    assert "reason: wrong brief" in cli.ok("show", ids[State.CANCELLED])
    assert "cancelled by ada" in cli.ok("show", ids[State.CANCELLED])


def test_show_names_the_steps_that_log_lines_are_from(cli: Cli):
    kept = ["2026-01-02T03:04:05Z [draw#3] INFO video: drawn", "2026-01-02T03:04:06Z WARNING video: between steps"]

    async def work(jobs: Jobs) -> str:
        await jobs.submit([JobRequest(type="make_book", queue="books")])
        (job,) = await jobs.engine.claim("w", ["books"], 1)
        await jobs.engine.record([step(job, "draw#3"), step(job, LOG_PATH, StepState.STARTED, result=json.dumps(kept))])
        return job.id

    id = in_store(cli.path, work)

    shown = cli.ok("show", id)
    assert "2026-01-02T03:04:05Z [draw 3] INFO video: drawn\n" in shown
    assert "2026-01-02T03:04:06Z WARNING video: between steps\n" in shown
    assert cli.json("show", id)["log"] == kept


def test_show_lists_the_children(cli: Cli):
    async def work(jobs: Jobs) -> str:
        await jobs.submit([JobRequest(type="make_book", queue="books")])
        (parent,) = await jobs.engine.claim("w", ["books"], 1)
        (child,) = await jobs.submit([JobRequest(type="write")], parent.lease, groups=["chapters"])
        return f"{parent.id} {child.id}"

    parent, child = in_store(cli.path, work).split()

    assert f"{child[-8:]}  write  available  chapters" in cli.ok("show", parent)
    assert cli.json("show", parent)["children"] == [
        {"id": child, "type": "write", "state": "available", "group": "chapters"}
    ]


def test_show_has_everything_as_json(cli: Cli, ids: dict[State, str]):
    told = cli.json("show", ids[State.REVIEW])

    assert set(told) == {
        *(
            "job",
            "history",
            "attempts",
            "before_import",
            "budget",
            "origin",
            "set_aside",
            "steps",
            "in_doubt",
            "to_undo",
            "log",
            "children",
        ),
        *("refused", "lost_workers", "spent", "wasted", "saved"),
    }
    assert told["job"]["args"] == [{"title": "The Lighthouse"}]
    assert told["job"]["error"]["message"] == NASTY
    assert told["job"]["options"]["stages"] == list(STAGES)
    assert [entry["event"] for entry in told["history"]] == ["submit", "claim", "exhaust"]
    assert [step["result"] for step in told["steps"]] == ["scene-1.png", "scene-2.png", "scene-3.png"]
    assert told["log"] == ["drawing 1", "drawing 2 \x1b[2J"]


def test_review_tells_since_when_why_and_what_can_be_done(cli: Cli, ids: dict[State, str]):
    (job,) = cli.json("review")["jobs"]
    shown = cli.ok("review")

    assert job["id"] == ids[State.REVIEW]
    assert job["failed_attempts"] == 1
    assert job["possible"] == ["cancel", "replay", "resolve", "discard"]
    assert f"{ids[State.REVIEW][-8:]}  make_video  for" in shown
    assert "1 failed attempt" in shown


def test_workers_tells_who_lives_and_who_is_gone(cli: Cli, ids: dict[State, str]):
    alive, as_json = with_live_worker(cli, ("workers",), ("workers", "--json"))

    assert "w-live  alive  1 of 8 slots in use" in alive
    assert "process 42 on here, last heartbeat" in alive
    assert f"{ids[State.ACTIVE][-8:]}  draw, 12 of 30" in alive
    assert '"state": "alive"' in as_json

    async def die(jobs: Jobs) -> None:
        await jobs.engine.beat(Presence(worker="w-dead", pid=7, queues=("video",), slots=2))

    in_store(cli.path, die)  # closed without a word: its lock is free

    assert [(one["id"], one["state"]) for one in cli.json("workers")["workers"]] == [("w-dead", "gone")]
    assert "w-dead  gone" in cli.ok("workers")


# --watch


def without_ages(text: str) -> str:
    """A second may pass between two looks at the same job."""
    return re.sub(r"\b(now|\d+ s ago)\b", "AGE", text)


def test_watching_a_settled_job_shows_it_once_and_ends(cli: Cli, ids: dict[State, str]):
    for state in (State.COMPLETED, State.REVIEW, State.CANCELLED):
        watched, shown = cli.ok("status", ids[state], "--watch"), cli.ok("status", ids[state])
        assert without_ages(watched) == without_ages(shown)


def test_watching_in_a_terminal_draws_until_the_job_settles(cli: Cli, ids: dict[State, str]):
    id = ids[State.AVAILABLE]
    shown = in_terminal([*HOLDFAST, "status", id, "--watch"], until=b"available", then=lambda: cli.ok("cancel", id))

    assert b"\x1b[" in shown.text
    assert shown.text.rindex(b"cancelled") > shown.text.index(b"available")
    assert shown.code == 0


def test_ctrl_c_ends_watching_with_0(cli: Cli, ids: dict[State, str]):
    shown = in_terminal([*HOLDFAST, "status", "--watch"], until=b"Needs a person", then=signal.SIGINT)

    assert shown.code == 0
    assert b"Traceback" not in shown.text
    assert b"Aborted" not in shown.text


def test_watching_elsewhere_prints_again_only_when_something_moved(cli: Cli, ids: dict[State, str], monkeypatch):
    waits: list[int] = []

    async def cancelled_at_the_fifth_look(engine: SqliteEngine, topics: object, timeout: float, after: int = 0) -> int:
        waits.append(after)
        if len(waits) == 5:
            await Jobs(engine).cancel(ids[State.AVAILABLE])
        return after

    monkeypatch.setattr(SqliteEngine, "wait", cancelled_at_the_fifth_look)
    monkeypatch.setattr(status, "REDRAW_SECONDS", 0.0)

    shown = cli.ok("status", ids[State.AVAILABLE], "--watch")

    assert len(waits) == 5
    assert shown.count(ids[State.AVAILABLE]) == 2
    assert "\x1b" not in shown


class Shown:
    def __init__(self, text: bytes, code: int) -> None:
        self.text = text
        self.code = code


def in_terminal(command: list[str], *, until: bytes, then: object) -> Shown:
    """Run a command in a pseudo-terminal; when it has shown something, act; answer with all that it showed."""
    master, slave = pty.openpty()
    child = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, start_new_session=True)
    os.close(slave)
    text, acted, deadline = b"", False, time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            more = os.read(master, 65_536)
        except OSError:  # the other end was closed
            break
        if not more:
            break
        text += more
        if not acted and until in text:
            acted = True
            child.send_signal(then) if isinstance(then, signal.Signals) else then()  # type: ignore[operator]
    os.close(master)
    code = child.wait(30)
    assert acted, text
    return Shown(text, code)


def test_a_full_store_shows_a_bounded_overview(cli: Cli):
    async def work(jobs: Jobs) -> None:
        await jobs.submit([JobRequest(type="draw", queue="video") for _ in range(60)])
        await jobs.engine.claim("w", ["video"], 50)

    in_store(cli.path, work)

    shown = cli.ok("status")

    assert "and 30 more: holdfast jobs --state active" in shown
    assert "50 active" in shown


@pytest.mark.parametrize("verb", ["status", "jobs", "doctor", "cancel"])
def test_an_empty_file_is_no_store_and_stays_empty(verb: str, cli: Cli):
    cli.path.touch()

    result = cli(verb, *(["--type", "draw", "--yes"] if verb == "cancel" else []))

    assert result.exit_code == 1
    assert f"there is no store at {cli.path}" in result.stderr
    assert [(one.name, one.stat().st_size) for one in cli.path.parent.iterdir()] == [(cli.path.name, 0)]


def test_looking_makes_nothing_but_what_sqlite_needs(cli: Cli, ids: dict[State, str]):
    before = set(Path(cli.path.parent).iterdir())

    for call in (["status"], ["jobs"], ["queues"], ["workers"], ["show", ids[State.ACTIVE]]):
        cli.ok(*call)

    assert set(Path(cli.path.parent).iterdir()) == before


def test_lost_workers_are_counted_in_all_and_stay_counted(cli: Cli):
    """The row of losses begins anew with a new step and with a replay. A person wants to know how many there were."""

    async def lose(jobs: Jobs) -> str:
        (made,) = await jobs.submit([JobRequest(type="make_video")])
        for number in (1, 2):
            (job,) = await jobs.engine.claim(f"w-{number}", ["default"], 1)
            note = {"lost": job.worker, "why": "it was killed"}
            change = decide(job, Event.LAPSE, await jobs.engine.now(), by="w-9", progressed=True, note=note)
            await jobs.engine.commit([change])
        return made.id

    id = in_store(cli.path, lose)
    assert "2 workers lost" in cli.ok("show", id)
    assert "2 workers lost" in cli.ok("status", id)
    assert cli.json("show", id)["lost_workers"] == 2
    assert cli.json("show", id)["job"]["recoveries"] == 1, "in a row"

    async def resolve(jobs: Jobs) -> None:
        (job,) = await jobs.engine.claim("w-3", ["default"], 1)
        error = Error("ValueError", "no")
        await jobs.engine.commit([decide(job, Event.EXHAUST, await jobs.engine.now(), by="w-3", error=error, note={})])
        await jobs.resolve(id, 1)

    in_store(cli.path, resolve)
    assert "2 workers lost" in cli.ok("show", id)


def test_errors_of_our_own_are_told_without_their_module():
    assert error_line(Error("holdfast.core.errors.ItemsFailed", "2 of 3")) == "ItemsFailed: 2 of 3"
    assert error_line(Error("video.errors.TooLong", "by 2 s")) == "video.errors.TooLong: by 2 s"
