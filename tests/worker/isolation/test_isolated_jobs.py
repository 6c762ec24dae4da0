"""Whole jobs in processes of their own (`@app.job(isolate="process")`): what they may do, and what may end them."""

import asyncio
import os
import re
import time

import pytest
from msgspec.structs import replace

from holdfast.core.errors import Invalid, JobFailed
from holdfast.core.lifecycle import decide
from holdfast.core.model import Error, Event, Job, State, Step, StepState, Where
from holdfast.core.outcome import ONCE
from holdfast.core.shared_limits import BUCKET, Bucket, closed
from holdfast.jobs.service import Jobs
from holdfast.telemetry.counters import Counters
from holdfast.telemetry.metrics import SPEND
from holdfast.worker.isolation.isolated_attempt import IsolatedAttempt
from holdfast.worker.isolation.messages import Answer, Ended, Fence
from holdfast.worker.isolation.process import Process
from tests.support.given import QUICK, at_pace, entry_of, events, finished, in_state, paths, until
from tests.support.worker_processes import is_dead
from tests.worker.isolation import isolated_jobs as jobs


@pytest.fixture
def app(engine):
    """The jobs' own App, on the test's store."""
    app = jobs.app
    app.engine, app._jobs, app._opening, app.settings = engine, Jobs(engine), None, QUICK
    return app


async def log_of(app, run):
    return await app.jobs.log(run.id)


# What a job may do, it may do there.


async def test_steps_maps_and_nested_ones_are_recorded_by_the_worker(app):
    run = await jobs.film.submit(5)
    job = await finished(app, run)
    assert job.state is State.COMPLETED, job.error
    result = await run.result()
    assert result.pop("pid") != os.getpid()
    assert result == {"first": 5, "both": [15, 12], "scenes": [0, 1, 2]}
    assert len(await paths(app, run)) == 8
    steps = [step for step in await app.engine.steps(run.id) if step.name == "draw"]
    assert {step.epoch for step in steps} == {1}


async def test_a_step_that_is_tried_again_there_is_answered_by_what_is_recorded_inside(app, tmp_path):
    path = str(tmp_path / "ran")
    run = await jobs.tries_again.submit(path)
    job = await finished(app, run)
    assert job.state is State.COMPLETED, job.error
    assert len(jobs.lines(path + ".tries")) == 3
    assert (len(jobs.lines(path)), len(jobs.lines(path + "2"))) == (2, 1)
    assert len(await app.engine.find(Where(parent=run.id))) == 1


async def test_a_def_job_runs_there_too_and_knows_its_job(app):
    run = await jobs.blocking.submit(4)
    job = await finished(app, run)
    assert job.state is State.COMPLETED, job.error
    pid, *rest = await run.result()
    assert pid != os.getpid()
    assert rest == [8, 4, [2, 4], run.id, 1, 1]


async def test_what_drifted_there_is_told_here_though_nothing_was_recorded(app, engine):
    job, spec = Job(id="j", type="blocking", created_at=0, state=State.ACTIVE), app.registry.get("blocking")
    loop = asyncio.get_running_loop()
    away = IsolatedAttempt(
        job, spec, engine, loop, claimed=0.0, may_start=lambda: True, changed=lambda: None, chance=lambda: 0.5
    )
    away._take_over(Ended(drift=["draw#2 was called from different tasks"]))
    assert away.journal.calls.drift_lines() == ["draw#2 was called from different tasks"]


async def test_it_submits_only_as_many_children_as_its_type_may(app):
    few, many = await jobs.crowds.submit(2), await jobs.crowds.submit(3)
    async with app.worker():
        assert await few.result(20) == 2
        with pytest.raises(JobFailed, match="would have 3 children, and a job of this type may submit 2"):
            await many.result(20)
    assert await app.engine.find(Where(parent=many.id)) == []


async def test_a_submit_that_unique_refuses_names_the_run_that_exists(app):
    first = await jobs.child.submit(1, unique=jobs.ONLY_ONE)
    run = await jobs.is_refused.submit(1)
    async with app.worker():
        assert await run.result(20) == [first.id, first.id]


async def test_the_next_job_finds_a_warm_process(app):
    async with app.worker():
        first = await (await jobs.uses_threads.submit()).result(20)
        assert await (await jobs.uses_threads.submit()).result(20) == first


async def test_progress_stage_and_log_lines_are_told_while_it_runs(app):
    run = await jobs.tells.submit()
    async with app.worker():

        async def said(text):
            return (await run.status()).text == text

        await until(lambda: said("one of four"))
        await until(lambda: said("three"))
        status = await run.status()
        assert (status.stage, status.done, status.total) == ("narrate", 3, 4)

        async def logged():
            found = [line.split(" ", 1)[1] for line in await log_of(app, run)]
            return found == ["WARNING isolated: a line", "[murmur#low] WARNING isolated: a line of a step"]

        await until(logged)
        await run.cancel()


@pytest.mark.parametrize("fails", [False, True])
async def test_what_it_said_last_is_told_after_it_has_ended(app, fails):
    run = await jobs.halfway.submit(fails)
    async with app.worker():
        await in_state(app, run, State.RETRYABLE if fails else State.COMPLETED, seconds=20)
        status = await run.status()
        assert (status.done, status.total) == (6, 7)


async def test_what_its_steps_spend_is_told_wherever_they_run(app):
    counters = Counters()
    app.engine.observe(counters)
    run = await jobs.shops.submit()
    assert (await finished(app, run)).state is State.COMPLETED
    assert (await run.status()).spent == {"usd": 1.25, "tokens": 3}
    assert f'{SPEND.name}{{type="shops",queue="default",kind="kept"}} 1.25' in counters.lines()


async def test_what_its_code_spent_between_steps_before_it_failed_is_wasted(app):
    counters = Counters()
    app.engine.observe(counters)
    run = await jobs.wastes.submit()
    assert (await finished(app, run)).state is State.REVIEW
    status = await run.status()
    assert (status.spent, status.wasted) == ({"usd": 3}, {"usd": 2})
    told = [line for line in counters.lines() if line.startswith(f'{SPEND.name}{{type="wastes"')]
    assert [line.partition("kind=")[2] for line in sorted(told)] == ['"kept"} 1', '"wasted"} 2']


async def test_a_sleep_frees_the_process_and_goes_on_from_the_records(app, clock, tmp_path):
    run = await jobs.naps.submit(str(tmp_path / "ran"))
    async with app.worker() as worker:
        await in_state(app, run, State.SCHEDULED)
        await until(lambda: not worker._pool._busy and not worker._slots.running)
        clock.advance(3_600)
        assert await run.result(20) == 42
    assert len(jobs.lines(tmp_path / "ran")) == 2
    assert await events(run) == ["submit", "claim", "rest", "promote", "claim", "complete"]
    assert len(await paths(app, run)) == 1


async def test_a_def_job_sleeps_too(app, clock, tmp_path):
    run = await jobs.naps_blocking.submit(str(tmp_path / "ran"))
    async with app.worker() as worker:
        await in_state(app, run, State.SCHEDULED)
        await until(lambda: not worker._pool._busy)
        clock.advance(3_600)
        assert await run.result(20) == 1


async def test_signals_and_answers_reach_it(app):
    run = await jobs.asks.submit()
    await run.signal("name", 7)
    async with app.worker():
        await in_state(app, run, State.PENDING)
        await run.signal("name", "Ada")

        async def asked():
            return await app.jobs.questions(run.id)

        await until(asked)
        await app.jobs.answer(run.id, {"number": 3})
        assert await run.result(20) == "Ada 3"
    assert any("signal name was refused" in line for line in await log_of(app, run))


async def test_children_are_submitted_once_and_wake_it(app):
    run, other = await jobs.parent.submit(5), await jobs.parent_blocking.submit(6)
    async with app.worker():
        assert await run.result(20) == [50, 10, 20, 30]
        assert await other.result(20) == 60
    assert (await app.engine.count())["default", State.COMPLETED] == 7


async def test_timers_that_strike_as_signals_come_lose_none_of_them(app):
    run = await jobs.listens.submit(100)
    async with app.worker():
        for number in range(100):
            await run.signal("s", number)
            await asyncio.sleep(0.007)
        assert await run.result(20) == list(range(100))


async def test_the_app_in_it_is_the_workers_store(app):
    waiting = await jobs.asks.submit()
    run = await jobs.looks.submit(waiting.id)
    async with app.worker():
        state, kind = await run.result(20)
    assert kind == "asks"
    assert state in ("available", "active", "pending")
    assert [signal.name for signal in (await app.jobs.get(waiting.id)).inbox] == ["hello"]


async def test_records_of_any_size_cross(app):
    run = await jobs.large_then_waits.submit(6)
    async with app.worker():
        await in_state(app, run, State.PENDING)
        await run.signal("go")
        assert await run.result(20) == 5_400_000


async def test_an_isolated_step_of_it_runs_in_yet_another_process(app):
    run, dying = await jobs.with_isolated_step.submit(False), await jobs.with_isolated_step.submit(True)
    async with app.worker(at_once=2):
        ours, theirs = await run.result(20)
        assert len({os.getpid(), ours, theirs}) == 3
        job = await in_state(app, dying, State.RETRYABLE, State.REVIEW)
        assert job.error.message.startswith("step crash: its process died with SIGSEGV before the step finished")
    assert any("from the step" in line for line in await log_of(app, run))


async def test_a_transactional_step_of_it_is_refused_with_one_line(app):
    run = await jobs.books.submit(1)
    job = await finished(app, run)
    assert job.state is State.REVIEW
    assert (await events(run)).count("claim") == 1
    assert "step book: a transaction can't run in the process of an isolated job" in job.error.message


async def test_an_error_keeps_its_class_there_and_its_traceback_here(app, tmp_path):
    run, failing = await jobs.catches.submit("own"), await jobs.dies.submit(str(tmp_path / "ran"), "raise")
    async with app.worker():
        assert await run.result(20) == "caught no credit"
        assert await failing.result(20) == "done"
    entry = await entry_of(failing, Event.FAIL)
    assert entry.note["error"] == "ValueError: the prompt is empty"


async def test_what_can_not_be_right_is_not_tried_again(app):
    run, other = await jobs.invalid.submit(), await jobs.wrong.submit()
    async with app.worker():
        job = await in_state(app, run, State.REVIEW)
        await in_state(app, other, State.REVIEW)
    assert job.attempt == 2
    assert job.error.type == "holdfast.core.errors.Invalid"
    assert "in invalid\n" in job.error.traceback


# What kills it is one failed attempt.


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("segfault", "job dies: its process died with SIGSEGV before the job finished: a crash in native code"),
        ("exit", "job dies: its process exited with code 3 before the job finished"),
        ("kill", "job dies: its process died with SIGKILL before the job finished; this worker did not kill it"),
        ("sys.exit", "SystemExit: 4"),
        ("generator", "GeneratorExit: closed"),
        ("own", "Own: no exception"),
        ("cancelled", "CancelledError: cancelled from inside"),
        ("stops the loop", "RuntimeError: its code stopped its event loop (sys.exit or loop.stop()"),
        ("exits in a task", "RuntimeError: its code stopped its event loop (sys.exit or loop.stop()"),
    ],
)
async def test_a_process_that_dies_fails_the_attempt_and_its_records_stay(app, tmp_path, how, reason):
    path = tmp_path / "ran"
    run, beside = await jobs.dies.submit(str(path), how), await jobs.beside.submit()
    async with app.worker():
        assert await beside.result(20) == 1
        assert await run.result(20) == "done"
    assert reason in (await entry_of(run, Event.FAIL)).note["error"]
    assert await events(run) == ["submit", "claim", "fail", "promote", "claim", "complete"]
    assert len(jobs.lines(path)) == 1, "the recorded step ran once"


async def test_the_last_word_of_a_process_is_heard_although_its_worker_talks_to_it(app, tmp_path, monkeypatch):
    """What is written to a process that has gone fails, and must not cost what that has said before."""
    send = Process.send

    def busy_and_talking(self, word):
        send(self, word)
        if isinstance(word, Answer):
            end = time.monotonic() + 0.5
            while not self.has_ended() and time.monotonic() < end:
                time.sleep(0.01)  # the worker's loop reads nothing meanwhile
            send(self, Fence(time.monotonic() + 60))

    monkeypatch.setattr(Process, "send", busy_and_talking)
    run = await jobs.dies.submit(str(tmp_path / "ran"), "stops the loop")
    async with app.worker():
        assert await run.result(20) == "done"
    assert "its code stopped its event loop" in (await entry_of(run, Event.FAIL)).note["error"]


async def test_a_crash_tells_where_it_happened(app):
    job = await finished(app, await jobs.crashes.submit())
    assert re.search(r"isolated_jobs.py\", line \d+ in crashes", job.error.traceback)


async def test_too_much_memory_fails_the_attempt(app):
    run = await jobs.grows.submit(300)
    async with app.worker():
        job = await in_state(app, run, State.REVIEW)
        assert await (await jobs.grows.submit(100)).result(20) == 100 << 20
    assert (job.error.type, job.error.message[:38]) == ("MemoryError", "it exceeded its memory limit of 200 MB")


async def test_a_timeout_kills_what_never_ends(app, tmp_path):
    path = tmp_path / "ran"
    run = await jobs.never.submit(str(path))
    job = await finished(app, run)
    assert job.error.message == "the job took longer than its timeout of 8 s"
    (pid,) = jobs.lines(path)
    await until(lambda: is_dead(pid))


async def test_a_process_with_a_thread_left_in_it_is_not_used_again(app, tmp_path):
    path = tmp_path / "ran"
    async with app.worker():
        pid = await (await jobs.leaves_a_thread.submit(str(path))).result(20)
        assert await (await jobs.leaves_a_thread.submit(str(path))).result(20) != pid
        await until(lambda: is_dead(pid))


# Stopping it.


async def test_a_cancel_is_told_and_heeded_at_once(app, tmp_path):
    path = tmp_path / "ran"
    run = await jobs.tidies.submit(str(path))
    async with app.worker() as worker:
        await until(lambda: jobs.lines(path))
        began = time.monotonic()
        await run.cancel()
        await until(lambda: not worker._pool._busy)
        assert time.monotonic() - began < at_pace(1.5)
        assert jobs.lines(str(path) + ".tidied") == jobs.lines(path)
        assert not is_dead(jobs.lines(path)[0]), "it stopped in peace, and is used again"


async def test_a_cancel_that_is_not_heeded_kills_and_then_undoes(app, tmp_path, monkeypatch):
    monkeypatch.setattr("holdfast.worker.isolation.isolated_attempt.STOP_SECONDS", 0.3)
    path = tmp_path / "ran"
    run = await jobs.deaf.submit(str(path))
    async with app.worker():
        await until(lambda: jobs.lines(path))
        await run.cancel()
        await until(lambda: is_dead(jobs.lines(path)[0]))
        await until((tmp_path / "ran.made.undone").exists)
    assert (await app.jobs.get(run.id)).state is State.CANCELLED


async def test_a_worker_that_stops_hands_it_over_and_the_next_goes_on(app, tmp_path):
    path = tmp_path / "ran"
    run = await jobs.counts.submit(str(path))
    async with app.worker():
        await until(lambda: jobs.lines(str(path) + ".here"))
    assert (await app.jobs.get(run.id)).state is State.AVAILABLE
    assert (await entry_of(run, Event.RELEASE)).note == {"steps": 3, "why": "released"}
    (tmp_path / "ran.go").touch()
    assert (await finished(app, run)).state is State.COMPLETED
    assert len(jobs.lines(path)) == 3


async def test_a_worker_that_stops_kills_what_does_not_stop_and_hands_it_over(app, tmp_path, monkeypatch):
    monkeypatch.setattr("holdfast.worker.isolation.isolated_attempt.STOP_SECONDS", 0.3)
    path = tmp_path / "ran"
    run = await jobs.deaf.submit(str(path))
    async with app.worker():
        await until(lambda: jobs.lines(path))
    assert (await app.jobs.get(run.id)).state is State.AVAILABLE
    assert (await entry_of(run, Event.RELEASE)).note == {"steps": 1, "why": "released"}
    assert is_dead(jobs.lines(path)[0])


async def test_what_it_records_after_it_was_taken_over_is_refused(app, tmp_path):
    """Its worker hears of nothing meanwhile: it is the epoch that the store compares."""
    path = tmp_path / "ran"
    run = await jobs.waits_in_a_step.submit(str(path))
    async with app.worker() as worker:
        await until(lambda: jobs.lines(path))
        app.engine.away = {"beat", "claim"}
        job = await app.jobs.get(run.id)
        await app.engine.commit([decide(job, Event.LAPSE, await app.engine.now(), by="test")])
        (tmp_path / "ran.go").touch()
        await until(lambda: not worker._slots.running)
        assert await paths(app, run) == []
        app.engine.away = False
        assert await run.result(20) == "epoch 2"
    (step,) = [step for step in await app.engine.steps(run.id) if step.path[0] != "~"]
    assert step.epoch == 2


async def test_a_cancel_before_it_has_begun_kills_its_process(app):
    run = await jobs.film.submit(1)
    async with app.worker() as worker:
        await until(lambda: worker._pool._busy)
        await run.cancel()
        await until(lambda: not worker._slots.running)
    assert (await app.jobs.get(run.id)).state is State.CANCELLED
    assert await paths(app, run) == []


async def test_no_step_starts_behind_the_workers_fence(app, tmp_path, monkeypatch):
    """The store is away for longer than the lease: what the job does next waits, and goes on when it is back."""
    path = tmp_path / "ran"
    run = await jobs.waits_for_file_then_steps.submit(str(path))
    async with app.worker():
        await until(lambda: jobs.lines(path))
        app.engine.away = {"beat"}
        await asyncio.sleep(QUICK.lease_seconds)
        (tmp_path / "ran.go").touch()
        await asyncio.sleep(0.3)
        assert not jobs.lines(str(path) + ".step")
        app.engine.away = False
        await run.result(20)
    assert jobs.lines(str(path) + ".step")


async def test_a_stage_that_went_stale_is_taken_from_it_and_its_process_killed(app, tmp_path, monkeypatch):
    monkeypatch.setattr("holdfast.worker.isolation.isolated_attempt.STOP_SECONDS", 0.3)
    path = tmp_path / "ran"
    run = await jobs.goes_stale.submit(str(path))
    async with app.worker():
        assert await run.result(20) == "epoch 2"
    assert "showed no progress" in (await entry_of(run, Event.LAPSE)).note["why"]
    assert is_dead(jobs.lines(path)[0])


async def test_a_cancel_kills_the_isolated_step_that_it_waits_for(app, tmp_path):
    path = tmp_path / "ran"
    run = await jobs.waits_for_an_isolated_step.submit(str(path))
    async with app.worker() as worker:
        await until(lambda: jobs.lines(path))
        assert len(worker._pool._busy) == 2
        await run.cancel()
        await until(lambda: is_dead(jobs.lines(path)[0]))
        await until(lambda: not worker._pool._busy)


# What an older version recorded.


async def test_recorded_steps_that_nobody_asks_for_there_are_told_here(app, caplog):
    run = await jobs.scene.submit(5)
    (job,) = await app.engine.claim("w-before", ["default"], 1)
    done = Step(job=job.id, epoch=1, path="sketch#1", name="sketch", state=StepState.DONE, result="1", started_at=1)
    await app.engine.record([done, replace(done, path="sketch#2")])
    await app.engine.commit([decide(job, Event.RELEASE, await app.engine.now(), by="w-before")])
    assert (await finished(app, run)).state is State.COMPLETED
    assert (await entry_of(run, Event.COMPLETE)).note["never_asked_for"] == {"sketch": 2}
    assert any("2 recorded steps were not used: sketch (2)" in one.getMessage() for one in caplog.records)


# Retries.


async def test_a_step_that_is_tried_again_there_is_told_here(app, caplog):
    run = await jobs.tries.submit()
    async with app.worker():

        async def told():
            status = await run.status()
            return status if status.retrying is not None else None

        status = await until(told)
        await until(lambda: any("next try in" in record.getMessage() for record in caplog.records))
    assert (status.retrying.step, status.retrying.try_number, status.retrying.of) == ("flaky#1", 2, 4)
    assert status.retrying.error == "ConnectionError: 429"
    (line,) = [record.getMessage() for record in caplog.records if "next try in" in record.getMessage()]
    assert line.startswith(f"job {run.id} (tries): step flaky#1 failed (try 1 of 4): ConnectionError: 429 (")
    assert line.endswith(" in flaky); next try in 60.0 s")


# Effects.


async def test_an_effect_under_which_the_process_dies_is_in_doubt(app, tmp_path):
    path = tmp_path / "ran"
    run = await jobs.pays.submit(str(path), "dies")
    job = await finished(app, run)
    assert job.state is State.REVIEW
    assert job.error.type == "EffectInDoubt"
    assert "may have happened (holdfast.worker.isolation.pool.ProcessDied" in job.error.message
    await run.resolve_step("charge#charge", "charged")
    assert (await finished(app, run)).state is State.COMPLETED
    assert len(jobs.lines(path)) == 1


async def test_an_effect_that_a_stopping_worker_cuts_off_is_in_doubt(app, tmp_path, monkeypatch):
    monkeypatch.setattr("holdfast.worker.isolation.isolated_attempt.STOP_SECONDS", 0.3)
    path = tmp_path / "ran"
    run = await jobs.pays.submit(str(path), "hangs")
    async with app.worker():
        await until(lambda: jobs.lines(path))
    job = await app.jobs.get(run.id)
    assert job.state is State.REVIEW
    assert job.error.message.startswith("charge#charge may have happened: it started")
    steps = {step.path: step.state for step in await app.engine.steps(run.id)}
    assert steps["charge#charge"] is StepState.STARTED


async def test_an_effect_that_is_recorded_is_not_in_doubt(app, tmp_path):
    run = await jobs.pays.submit(str(tmp_path / "ran"), "well")
    assert (await finished(app, run)).state is State.COMPLETED


async def test_an_effect_that_its_job_left_behind_is_in_doubt(app, tmp_path):
    path = tmp_path / "ran"
    run = await jobs.leaves_an_effect.submit(str(path))
    job = await finished(app, run)
    assert (job.state, job.error and job.error.type) == (State.REVIEW, "EffectInDoubt")
    assert (await entry_of(run, Event.EXHAUST)).note["in_doubt"] == ["stays#stays"]
    await run.resolve_step("stays#stays", "lingered")
    assert (await finished(app, run)).state is State.COMPLETED
    assert len(jobs.lines(path)) == 1


async def test_one_key_is_one_effect_there_too(app, tmp_path):
    path = tmp_path / "ran"
    run = await jobs.pays_in_parts.submit(str(path))
    job = await finished(app, run)
    assert job.state is State.COMPLETED, job.error
    assert await run.result() == ["charged apartcharged", "charged apartcharged", "charged apart"]
    assert len(jobs.lines(path)) == 2


@pytest.mark.parametrize("is_caught", [True, False])
@pytest.mark.parametrize("has_steps", [True, False])
async def test_what_an_older_version_began_is_in_doubt_there_too(app, tmp_path, is_caught, has_steps):
    """The older version ran in its worker's process, and had a step that this one doesn't know."""
    path = tmp_path / "ran"
    run = await (jobs.pays.submit(str(path), "well") if has_steps else jobs.plain.submit())
    (job,) = await app.engine.claim("w-before", ["default"], 1)
    begun = Step(job=job.id, epoch=1, path="pay#1", name="pay", state=StepState.STARTED, result=ONCE, started_at=1)
    told = replace(begun, path="~failed/pay#1", name="~failed", result='{"attempt":1}', error=Error("E", "cut"))
    await app.engine.record([begun, told] if is_caught else [begun])
    await app.engine.commit([decide(job, Event.RELEASE, await app.engine.now(), by="w-before")])
    job = await finished(app, run)
    assert job.state is State.REVIEW
    assert job.error.type == "EffectInDoubt"
    assert "pay#1" in job.error.message
    assert jobs.lines(path) == []


# What is refused.


def test_what_can_not_be_isolated_is_refused_at_decoration(app):
    def nested() -> None: ...

    with pytest.raises(Invalid, match="nested .* is defined inside a function"):
        app.job(isolate="process")(nested)
    with pytest.raises(Invalid, match="job nested: isolate='thread' is unknown; use isolate='process'"):
        app.job(isolate="thread")(nested)
    with pytest.raises(Invalid, match="job nested: memory_mb=100: give megabytes, together with isolate='process'"):
        app.job(memory_mb=100)(nested)
    with pytest.raises(Invalid, match="memory_mb=0"):
        app.job(isolate="process", memory_mb=0)(nested)


# Shared limits.


async def test_steps_there_ask_through_the_worker_and_give_back(app):
    run = await jobs.asks_for_permits.submit(6)
    job = await finished(app, run)
    assert job.state is State.COMPLETED, job.error
    assert await run.result() == list(range(6))
    assert await app.engine.usage("api") == []


async def test_a_job_there_gives_up_its_slot_for_a_closed_limit_and_comes_back(app):
    await app.open()
    await app.engine.put_record(BUCKET + "api", closed(Bucket(), await app.engine.now() + 3_600_000).text())
    run = await jobs.asks_for_permits.submit(2)
    async with app.worker():
        job = await in_state(app, run, State.PENDING)
        assert [wait.name for wait in job.waits] == ["api"]
        await app.engine.put_record(BUCKET + "api", None)
        job = await in_state(app, run, State.COMPLETED, State.REVIEW)
    assert job.state is State.COMPLETED, job.error
    assert await run.result() == [0, 1]


async def test_a_step_there_that_is_throttled_closes_its_limit(app):
    run = await jobs.is_throttled_elsewhere.submit()
    async with app.worker():
        job = await in_state(app, run, State.PENDING, State.REVIEW)
    assert job.state is State.PENDING, job.error
    [used] = await app.engine.usage("api")
    assert used.closed_until
