"""What a person may do to a checkpoint with an editor, and what a crash leaves: both honoured at the next open."""

import json
import logging
from pathlib import Path

import pytest

from holdfast.conformance.given import HOUR, StoreClock, change, children, claimed, done, step
from holdfast.core.keys import digest
from holdfast.core.lifecycle import RECOVERY_LIMIT, TERMINAL
from holdfast.core.model import Conflict, Error, Event, Job, Options, State, StepState, Wait, WaitKind, Where
from holdfast.engines.file.schema import EDIT
from tests.engines.file.given import TYPE, status

# What may be edited.


def test_a_job_in_review_is_replayed(desk, clock):
    job = desk.job(State.REVIEW)

    desk.edit(status("NEEDS_REVIEW", "PENDING"))

    now, entry = desk.now(job), desk.last(job)
    assert (now.state, now.error, now.attempt, now.run_at) == (State.AVAILABLE, None, 1, clock.now)
    assert (entry.event, entry.by, entry.at, entry.note) == (Event.REPLAY, "hand", clock.now, {})
    assert desk.run(desk.engine.claim("w-1", [job.queue], 1))[0].epoch == job.epoch + 1


def test_an_edit_is_durable_when_the_store_is_open(desk):
    job = desk.job(State.REVIEW)

    desk.edit(status("NEEDS_REVIEW", "PENDING"))

    assert '"event": "replay"' in desk.path.read_text()
    desk.edit()
    assert desk.last(job).event == Event.REPLAY


def test_a_replay_may_come_with_other_arguments(desk):
    job = desk.job(State.REVIEW)

    desk.edit(status("NEEDS_REVIEW", "PENDING"), ('[{"chapter": 7}]', '[{"title": "ä", "chapter":   8}]'))

    now = desk.now(job)
    assert now.args == '[{"chapter":8,"title":"ä"}]'
    assert now.digest == digest(TYPE, now.args)
    assert (desk.last(job).event, desk.last(job).note) == (Event.REPLAY, {"edited": ["args"]})


def test_a_job_in_review_is_resolved_with_the_result_in_the_file(desk):
    job = desk.job(State.REVIEW)

    desk.edit(status("NEEDS_REVIEW", "DONE"), ('"result": null', '"result": {"pages": 12}'))

    now, entry = desk.now(job), desk.last(job)
    assert (now.state, now.result, now.error) == (State.COMPLETED, '{"pages":12}', None)
    assert (entry.event, entry.by) == (Event.RESOLVE, "hand")


def test_a_job_may_be_resolved_with_nothing(desk):
    job = desk.job(State.REVIEW)

    desk.edit(status("NEEDS_REVIEW", "DONE"))

    assert (desk.now(job).state, desk.now(job).result) == (State.COMPLETED, "null")


def test_a_running_job_that_is_set_to_pending_lapses(desk):
    job = desk.job(State.ACTIVE)

    desk.edit(status("RUNNING", "PENDING"))

    now, entry = desk.now(job), desk.last(job)
    assert (now.state, now.worker, now.recoveries) == (State.AVAILABLE, None, 1)
    assert (entry.event, entry.by) == (Event.LAPSE, "hand")
    assert entry.note == {"lost": "w-1", "why": "set to PENDING by hand", "steps": 0}
    assert desk.engine.recovered == 1


@pytest.mark.parametrize("state", sorted(TERMINAL))
def test_a_job_that_has_ended_starts_again_under_its_id(desk, clock, state):
    job = desk.job(state, key="order-42", priority=3, options=Options(keep_ms=HOUR * 9), expires_at=clock.now + HOUR)
    if job.state is State.COMPLETED:
        assert job.epoch == 1

    desk.edit(status("DONE" if state is State.COMPLETED else "NEEDS_REVIEW", "PENDING"))

    now, [entry] = desk.now(job), desk.run(desk.engine.history(job.id))
    assert now.state is State.AVAILABLE
    assert (now.args, now.digest, now.key, now.priority, now.options) == (
        *(job.args, job.digest, "order-42", 3),
        job.options,
    )
    assert (now.epoch, now.version, now.attempt, now.error, now.result) == (job.epoch, 1, 1, None, None)
    assert (now.created_at, now.expires_at, now.finished_at, now.prune_at) == (clock.now, clock.now + HOUR, None, None)
    assert (entry.event, entry.by, entry.before) == (Event.SUBMIT, "hand", None)
    assert entry.note == {"again": state, "finished_at": "2025-10-09T08:53:20.000Z"}
    assert desk.run(desk.engine.steps(job.id)) == []
    [held] = desk.run(desk.engine.claim("w-9", [job.queue], 1))
    assert held.epoch == job.epoch + 1
    # Its key still stands for it.
    [answer] = desk.run(desk.engine.insert([inserted_with_key(job)]))
    assert (answer.id, answer.new) == (job.id, False)


def inserted_with_key(job: Job) -> Job:
    return Job(
        id=job.id[:-1] + "f",
        type=job.type,
        args=job.args,
        digest=job.digest,
        key=job.key,
        created_at=job.created_at,
        run_at=job.created_at,
        state=State.AVAILABLE,
    )


def test_a_job_that_starts_again_may_have_other_arguments_and_its_key_stands_for_them(desk):
    job = desk.job(State.COMPLETED, key="k")

    desk.edit(status("DONE", "PENDING"), ('[{"chapter": 7}]', "[8]"))

    assert desk.now(job).args == "[8]"
    [entry] = desk.run(desk.engine.history(job.id))
    assert entry.note["edited"] == ["args"]
    with_key = inserted_with_key(desk.now(job))
    assert not desk.run(desk.engine.insert([with_key]))[0].new


def test_a_child_that_starts_again_leaves_its_parents_count_alone(desk, clock):
    parent = desk.run(claimed(desk.engine, clock))
    first, second = desk.run(children(desk.engine, clock, parent, 2))
    desk.run(done(desk.engine, clock, first, Event.COMPLETE))
    desk.run(done(desk.engine, clock, parent, Event.SUSPEND, waits=(Wait(WaitKind.CHILDREN, "g"),)))

    desk.edit(status("DONE", "PENDING"))

    assert desk.run(desk.engine.missing(parent.id, "g")) == 1
    assert (desk.now(first).parent, desk.now(first).state) == (None, State.AVAILABLE)
    for child in (first, second):
        desk.run(desk.engine.claim("w-1", [child.queue], 1))
    answers = [desk.run(desk.engine.commit([complete(desk.now(child), clock)]))[0] for child in (first, second)]
    assert [answer.missing for answer in answers] == [None, 0]


def complete(job: Job, clock: StoreClock):
    return change(clock, job, Event.COMPLETE)


@pytest.mark.parametrize("state", [State.AVAILABLE, State.SCHEDULED, State.PENDING, State.RETRYABLE, State.REVIEW])
def test_the_arguments_of_a_job_that_has_not_ended_may_be_edited(desk, clock, state):
    job = desk.job(state)

    desk.edit(('[{"chapter": 7}]', "[8]"))

    now, entry = desk.now(job), desk.last(job)
    assert (now.state, now.args, now.digest) == (state, "[8]", digest(TYPE, "[8]"))
    assert now.version == job.version + 1
    assert (entry.event, entry.by, entry.before, entry.after) == (EDIT, "hand", state, state)
    assert entry.note == {"edited": ["args"]}
    desk.edit()
    assert desk.now(job) == now


def test_the_arguments_of_a_running_job_may_be_edited_and_it_is_recovered(desk):
    job = desk.job(State.ACTIVE)

    desk.edit(('[{"chapter": 7}]', "[8]"))

    events = [(entry.event, entry.by) for entry in desk.run(desk.engine.history(job.id))]
    assert events[-2:] == [(EDIT, "hand"), (Event.LAPSE, "file")]
    assert desk.now(job).args == "[8]"


def test_an_edited_job_that_waits_is_claimed_once(desk):
    job = desk.job(State.AVAILABLE)

    desk.edit(('[{"chapter": 7}]', "[8]"))

    assert [one.id for one in desk.run(desk.engine.claim("w-1", ["default"], 9))] == [job.id]


def test_a_file_that_was_only_laid_out_anew_says_the_same(desk):
    jobs = [desk.job(state) for state in State if state is not State.ACTIVE]
    desk.run(desk.engine.close())
    desk.path.write_text("\ufeff" + json.dumps(json.loads(desk.path.read_text()), indent=7).replace("\n", "\r\n"))
    text = desk.path.read_bytes()

    desk.edit()

    assert [desk.now(job) for job in jobs] == jobs
    assert desk.path.read_bytes() == text


def test_digests_of_another_kind_are_no_edits(desk):
    job = desk.job(State.AVAILABLE, key="k", digest="made elsewhere")

    desk.edit()

    assert desk.now(job) == job


def test_without_a_digest_an_edit_of_arguments_is_still_seen(desk):
    job = desk.job(State.AVAILABLE, digest="")

    desk.edit(('[{"chapter": 7}]', "[8]"))

    assert (desk.now(job).args, desk.now(job).digest) == ("[8]", "")
    assert desk.last(job).note == {"edited": ["args"]}


# What is taken out.


def without(path: Path, job: Job) -> None:
    """Remove a job's block, as a person would."""
    said = json.loads(path.read_text())
    said["jobs"] = [block for block in said["jobs"] if block["id"] != job.id]
    path.write_text(json.dumps(said))


def test_a_job_whose_block_was_removed_is_gone_with_its_key(desk):
    gone, stays = desk.job(State.COMPLETED, key="a"), desk.job(State.AVAILABLE, key="b")
    desk.run(desk.engine.close())
    without(desk.path, gone)

    desk.edit()

    assert desk.now(gone) is None
    assert desk.run(desk.engine.find(Where())) == [stays]
    assert desk.run(desk.engine.history(gone.id)) == []
    assert desk.run(desk.engine.insert([inserted_with_key(gone)]))[0].new
    assert not desk.run(desk.engine.insert([inserted_with_key(stays)]))[0].new


def test_a_key_that_outlives_its_job_stays(desk, clock):
    job = desk.job(State.COMPLETED, key="a", key_until=clock.now + HOUR * 9, options=Options(keep_ms=0))
    assert desk.run(desk.engine.prune()) == 1

    desk.edit()

    [answer] = desk.run(desk.engine.insert([inserted_with_key(job)]))
    assert (answer.id, answer.new) == (job.id, False)


def test_nobody_waits_for_a_child_whose_block_was_removed(desk, clock):
    parent = desk.run(claimed(desk.engine, clock))
    first, second = desk.run(children(desk.engine, clock, parent, 2))
    desk.run(done(desk.engine, clock, first, Event.COMPLETE))
    parent = desk.run(done(desk.engine, clock, parent, Event.SUSPEND, waits=(Wait(WaitKind.CHILDREN, "g"),)))
    desk.run(desk.engine.close())
    without(desk.path, second)

    desk.edit()

    assert desk.run(desk.engine.missing(parent.id, "g")) == 0
    assert desk.now(parent).state is State.AVAILABLE
    assert (desk.last(parent).event, desk.last(parent).by) == (Event.ACTIVATE, "hand")
    assert desk.last(parent).note == {"group": "g", "removed": 1}


def test_a_parent_still_waits_for_the_children_that_are_left(desk, clock):
    parent = desk.run(claimed(desk.engine, clock))
    _, second, third = desk.run(children(desk.engine, clock, parent, 3))
    parent = desk.run(done(desk.engine, clock, parent, Event.SUSPEND, waits=(Wait(WaitKind.CHILDREN, "g"),)))
    desk.run(desk.engine.close())
    without(desk.path, second)

    desk.edit()

    assert desk.run(desk.engine.missing(parent.id, "g")) == 2
    assert desk.now(parent).state is State.PENDING
    assert desk.now(third).parent == parent.id


# What may not be edited.

NO_WAY = [
    pytest.param(state, was, to, id=f"{state}-{to}")
    for state, was, tos in (
        (State.AVAILABLE, "PENDING", ("RUNNING", "DONE", "NEEDS_REVIEW")),
        (State.SCHEDULED, "PENDING", ("RUNNING", "DONE", "NEEDS_REVIEW")),
        (State.PENDING, "PENDING", ("RUNNING", "DONE", "NEEDS_REVIEW")),
        (State.RETRYABLE, "PENDING", ("RUNNING", "DONE", "NEEDS_REVIEW")),
        (State.ACTIVE, "RUNNING", ("DONE", "NEEDS_REVIEW")),
        (State.REVIEW, "NEEDS_REVIEW", ("RUNNING",)),
        (State.COMPLETED, "DONE", ("RUNNING", "NEEDS_REVIEW")),
        (State.DISCARDED, "NEEDS_REVIEW", ("RUNNING", "DONE")),
        (State.CANCELLED, "NEEDS_REVIEW", ("RUNNING", "DONE")),
    )
    for to in tos
]


@pytest.mark.parametrize(("state", "was", "to"), NO_WAY)
def test_what_makes_no_sense_is_refused_with_its_place(desk, state, was, to):
    desk.job(State.AVAILABLE)
    job = desk.job(state, queue="here")
    head = desk.path.read_text().partition(f'"id": "{job.id}"')[0]
    block = desk.path.read_text()[len(head) :]
    swapped = block.replace(*status(was, to))

    line = desk.refused((block, swapped))

    place = f"line {head.count(chr(10)) + 3}, column 17"
    assert f"{place}: job {job.id} is {state}, so its status can't be changed from {was} to {to}" in line
    assert "; allowed here: " in line


def test_a_misspelt_status_is_refused(desk):
    job = desk.job(State.REVIEW)

    line = desk.refused(status("NEEDS_REVIEW", "PENDNG"))

    assert (
        f"line 7, column 17: job {job.id}: status 'PENDNG' is unknown; use one of PENDING, RUNNING, NEEDS_REVIEW, DONE"
        in line
    )


def test_a_state_that_was_edited_instead_of_the_status_is_refused(desk):
    desk.job(State.REVIEW)

    line = desk.refused(status("NEEDS_REVIEW", "PENDING"), ('"state": "review"', '"state": "available"'))

    assert 'its "state" is available, but its history ends with review' in line
    assert 'edit its "status"' in line


def test_the_arguments_of_a_job_that_has_ended_stay(desk):
    desk.job(State.COMPLETED)

    line = desk.refused(('[{"chapter": 7}]', "[8]"))

    assert "its args were edited after the job had ended (completed); set its status to PENDING" in line


def test_arguments_that_no_store_could_hold_are_refused(desk):
    desk.job(State.AVAILABLE)

    assert "beyond 64 bits" in desk.refused(('[{"chapter": 7}]', f"[{2**64}]"))


# What a crash leaves.


def test_jobs_that_ran_when_the_process_died_are_recovered(desk, clock):
    job, other = desk.job(State.ACTIVE), desk.job(State.AVAILABLE)
    desk.run(desk.engine.record([step(job, "draw#1"), step(job, "draw#2", StepState.STARTED)]))

    desk.edit()

    assert desk.engine.recovered == 1
    now, entry = desk.now(job), desk.last(job)
    assert (now.state, now.recoveries, now.worker, now.epoch) == (State.AVAILABLE, 1, None, 1)
    assert (entry.event, entry.by, entry.at) == (Event.LAPSE, "file", clock.now)
    assert entry.note == {"lost": "w-1", "why": "recovered from a crash", "steps": 1}
    assert desk.now(other) == other
    [late] = desk.run(desk.engine.commit([complete(job, clock)]))
    assert isinstance(late, Conflict)


@pytest.mark.parametrize(("count", "words"), [(1, ": 1 job was running"), (2, ": 2 jobs were running")])
def test_the_log_tells_how_many_were_running(desk, caplog, count, words):
    for _ in range(count):
        desk.job(State.ACTIVE)
    caplog.set_level(logging.INFO)

    desk.edit()

    assert f"{desk.path}{words} when the last process ended; recovered" in caplog.text


def test_the_row_of_lost_workers_starts_anew_when_something_was_recorded(desk, clock):
    job = desk.job(State.ACTIVE)
    for recorded, expected in ((False, 1), (False, 2), (True, 1), (False, 2)):
        if recorded:
            desk.run(desk.engine.record([step(desk.now(job), f"draw#{expected}")]))
        desk.edit()
        assert desk.now(job).recoveries == expected
        clock.advance(HOUR)
        assert desk.run(desk.engine.claim("w-1", [job.queue], 1))


def test_a_step_that_only_began_is_no_progress(desk, clock):
    job = desk.job(State.ACTIVE)
    for expected in (1, 2, 3):
        desk.run(desk.engine.record([step(desk.now(job), "send#1", StepState.STARTED)]))
        desk.edit()
        assert desk.now(job).recoveries == expected
        clock.advance(HOUR)
        assert desk.run(desk.engine.claim("w-1", [job.queue], 1))


def test_a_job_that_kills_every_process_goes_to_a_person(desk, clock):
    job = desk.job(State.ACTIVE)
    for _ in range(RECOVERY_LIMIT):
        desk.edit()
        clock.advance(HOUR)
        assert desk.run(desk.engine.claim("w-1", [job.queue], 1))

    desk.edit()

    now = desk.now(job)
    assert now.state is State.REVIEW
    assert now.error == Error("WorkersLost", "4 workers in a row were lost while running this job, last w-1")
    assert (desk.last(job).event, desk.last(job).by) == (Event.ABANDON, "file")


def test_a_child_that_a_crash_sends_to_a_person_arrives_at_its_parent(desk, clock):
    parent = desk.run(claimed(desk.engine, clock))
    [child] = desk.run(children(desk.engine, clock, parent, 1))
    desk.run(done(desk.engine, clock, parent, Event.SUSPEND, waits=(Wait(WaitKind.CHILDREN, "g"),)))
    for _ in range(RECOVERY_LIMIT):
        desk.edit()
        clock.advance(HOUR)
        assert desk.run(desk.engine.claim("w-1", [child.queue], 1))

    desk.edit()

    assert desk.now(child).state is State.REVIEW
    assert desk.run(desk.engine.missing(parent.id, "g")) == 0


def test_a_store_without_edits_or_crashes_is_not_written_at_open(desk):
    for state in State:
        if state is not State.ACTIVE:
            desk.job(state)
    before = desk.path.stat()

    desk.edit()

    assert desk.path.stat().st_ino == before.st_ino  # A write would have put another file there.
    assert desk.engine.recovered == 0
