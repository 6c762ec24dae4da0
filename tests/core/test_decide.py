"""What each event makes of a job: what it counts, writes, carries along and leaves alone."""

import pytest
from msgspec.structs import replace

from holdfast.core.errors import NotAllowed
from holdfast.core.lifecycle import (
    RECOVERY_LIMIT,
    applied,
    deliver,
    entry_of,
    first_state,
    lost_event,
    submit_entry,
    undo_job,
)
from holdfast.core.model import Job, Options, Signal, State, Step, StepState, Wait, WaitKind
from tests.core.second_copy import (
    BROKEN,
    EDGES,
    ENDED,
    JOB_ID,
    NOW,
    PROMISED_EVENTS,
    PROMISED_STATES,
    decided,
    job_in,
)

# What every store makes of a change.


def test_an_applied_change_counts_the_version_and_keeps_what_others_added():
    late = Signal(8, "go", "1", "bob", NOW)
    head = job_in("active", version=8, inbox=(*job_in("active").inbox, late))

    done = applied(head, decided("complete", takes=(5,)))

    assert (done.state, done.version, done.inbox) == ("completed", 9, (late,))


def test_an_applied_signal_is_named_by_the_version_it_made():
    head = job_in("active")

    after = applied(head, deliver(head, "go", "1", NOW, by="ada"))

    assert after == replace(head, version=8, inbox=(*head.inbox, Signal(8, "go", "1", "ada", NOW)))


@pytest.mark.parametrize(("event", "state"), EDGES)
def test_what_was_asked_stays_so_that_a_change_is_only_checked_from_the_state_on(event, state):
    asked = Job.__struct_fields__[: Job.__struct_fields__.index("state")]

    change = decided(event, state)

    assert [getattr(change.job, name) for name in asked] == [getattr(job_in(state), name) for name in asked]
    assert not change.edits


@pytest.mark.parametrize(("event", "state"), EDGES)
def test_the_history_entry_tells_what_happened(event, state):
    change = decided(event, state, by="ada", note={"why": "because"})

    entry = entry_of(change, 8)

    assert (entry.job, entry.version, entry.at, entry.by, entry.note) == (JOB_ID, 8, NOW, "ada", {"why": "because"})
    assert (entry.event, entry.before, entry.after) == (event, state, EDGES[event, state])
    assert entry.epoch == (3 if event == "claim" else 2)


def test_the_first_entry_is_the_submit():
    job = Job(id=JOB_ID, type="video.make", created_at=NOW, state=State.AVAILABLE)

    entry = submit_entry(job)

    assert (entry.version, entry.event, entry.before, entry.after) == (1, "submit", None, "available")
    assert (entry.at, entry.epoch) == (NOW, 0)


# Where a job begins.


@pytest.mark.parametrize(
    ("run_at", "waits", "begins"),
    [
        (None, (), ("available", NOW)),
        (NOW, (), ("available", NOW)),
        (NOW - 1, (), ("available", NOW)),
        (NOW + 1, (), ("scheduled", NOW + 1)),
        (None, (Wait(WaitKind.ACTIVATION),), ("pending", None)),
        (None, (Wait(WaitKind.ACTIVATION, until=NOW + 5),), ("pending", NOW + 5)),
    ],
)
def test_a_job_begins_where_its_wishes_put_it(run_at, waits, begins):
    assert first_state(NOW, run_at, waits) == begins


# What is counted.


@pytest.mark.parametrize(("event", "state"), EDGES)
def test_only_fail_exhaust_and_overrun_count_an_attempt(event, state):
    attempt = decided(event, state).job.attempt

    if event == "replay":
        assert attempt == 1
    else:
        assert attempt == (3 if event in ("fail", "exhaust", "overrun") else 2)


@pytest.mark.parametrize(("event", "state"), EDGES)
def test_the_epoch_counts_claims_and_never_goes_back(event, state):
    assert decided(event, state).job.epoch == (3 if event == "claim" else 2)


@pytest.mark.parametrize(("event", "state"), EDGES)
def test_only_a_lapse_counts_a_recovery_and_a_replay_starts_anew(event, state):
    assert decided(event, state).job.recoveries == {"lapse": 2, "replay": 0}.get(event, 1)


def test_a_lapse_after_progress_starts_the_row_of_recoveries_anew():
    change = decided("lapse", job=job_in("active", recoveries=3), progressed=True)

    assert change.job.recoveries == 1
    assert change.job.run_at <= NOW  # type: ignore[operator]


@pytest.mark.parametrize(("recoveries", "waits_ms"), [(0, 0), (1, 10_000), (2, 20_000)])
def test_the_first_lapse_is_available_at_once_and_later_ones_after_a_backoff(recoveries, waits_ms):
    after = decided("lapse", job=job_in("active", recoveries=recoveries)).job

    assert after.recoveries == recoveries + 1
    assert max(after.run_at - NOW, 0) == waits_ms  # type: ignore[operator]


@pytest.mark.parametrize("progressed", [False, True])
def test_a_lapse_that_is_nobodys_fault_counts_nothing(progressed):
    after = decided("lapse", job=job_in("active", recoveries=2), recovery=False, progressed=progressed).job

    assert after.recoveries == 2
    assert after.run_at <= NOW  # type: ignore[operator]


@pytest.mark.parametrize(
    ("recoveries", "progressed", "in_doubt", "event"),
    [
        (0, False, False, "lapse"),
        (2, False, False, "lapse"),
        (3, False, False, "abandon"),
        (3, True, False, "lapse"),
        (9, True, False, "lapse"),
        (0, False, True, "abandon"),
        (0, True, True, "abandon"),
    ],
)
def test_the_fourth_lost_worker_in_a_row_or_a_doubt_calls_a_person(recoveries, progressed, in_doubt, event):
    assert RECOVERY_LIMIT == 3
    assert lost_event(job_in("active", recoveries=recoveries), progressed=progressed, in_doubt=in_doubt) == event


# What else an event writes.


@pytest.mark.parametrize(("event", "state"), EDGES)
def test_whoever_leaves_active_leaves_no_worker_behind(event, state):
    after = decided(event, state).job

    if event == "claim":
        assert (after.worker, after.claimed_at) == ("w-8", NOW)
    else:
        assert (after.worker, after.claimed_at) == (None, None)


@pytest.mark.parametrize("keep_ms", [None, 0, 86_400_000])
@pytest.mark.parametrize(("event", "state"), EDGES)
def test_an_end_says_when_it_was_and_when_it_is_forgotten(event, state, keep_ms):
    after = decided(event, job=job_in(state, options=Options(keep_ms=keep_ms))).job

    if EDGES[event, state] in ENDED:
        assert after.finished_at == NOW
        assert after.prune_at == (None if keep_ms is None else NOW + keep_ms)
    else:
        assert (after.finished_at, after.prune_at) == (None, None)


@pytest.mark.parametrize("event", ["complete", "resolve"])
def test_a_result_takes_the_place_of_an_older_error(event):
    job = job_in(PROMISED_EVENTS[event][0], error=BROKEN)

    after = decided(event, job=job).job

    assert (after.result, after.error) == ("42", None)


@pytest.mark.parametrize("event", ["fail", "exhaust", "overrun", "abandon"])
def test_a_failure_keeps_its_error(event):
    assert decided(event).job.error == BROKEN


@pytest.mark.parametrize("event", ["fail", "overrun", "rest"])
def test_whoever_comes_back_later_says_when(event):
    assert decided(event).job.run_at == NOW + 9_000


def test_suspend_keeps_all_waits_and_the_first_end_of_them():
    waits = (
        Wait(WaitKind.SIGNAL, "go"),
        Wait(WaitKind.CHILDREN, "images", until=NOW + 500),
        Wait(WaitKind.TIME, until=NOW + 200),
    )

    after = decided("suspend", waits=waits).job

    assert (after.waits, after.run_at) == (waits, NOW + 200)


def test_a_suspend_without_an_end_has_no_moment():
    assert decided("suspend", waits=(Wait(WaitKind.SIGNAL, "go"),)).job.run_at is None


def test_rest_keeps_its_waits():
    waits = (Wait(WaitKind.TIME, until=NOW + 9_000),)

    assert decided("rest", waits=waits).job.waits == waits


def test_an_activated_job_is_due_now():
    assert decided("activate", job=job_in("pending", run_at=NOW + 500)).job.run_at == NOW


@pytest.mark.parametrize(("event", "state"), [edge for edge in EDGES if edge[1] in ("pending", "scheduled")])
def test_whoever_is_woken_or_ends_waits_for_nothing_more(event, state):
    assert job_in(state).waits

    assert decided(event, state).job.waits == ()


def test_a_replay_begins_again_with_what_was_recorded():
    job = job_in("review", args="[1]", digest="d1", error=BROKEN, attempt=5, recoveries=3, run_at=NOW - 9)

    change = decided("replay", job=job)

    assert change.job == replace(job, state=State.AVAILABLE, attempt=1, recoveries=0, error=None, run_at=NOW)
    assert not change.edits


def test_an_edited_replay_has_new_arguments_and_their_digest():
    change = decided("replay", args=("[2]", "d2"))

    assert (change.job.args, change.job.digest, change.edits) == ("[2]", "d2", True)


@pytest.mark.parametrize(("event", "state"), EDGES)
def test_failed_steps_are_dropped_when_a_new_attempt_begins(event, state):
    assert decided(event, state).drops_failed == (event in ("fail", "overrun", "replay"))


@pytest.mark.parametrize(("event", "state"), EDGES)
def test_a_child_arrives_when_it_is_settled(event, state):
    child = decided(event, job=job_in(state, parent=JOB_ID, group="images"))

    assert child.arrives == (EDGES[event, state] in {*ENDED, "review"})
    assert not decided(event, state).arrives


def test_an_arrival_is_remembered_over_a_replay():
    child = job_in("review", parent=JOB_ID, group="images", arrived=True)

    again = applied(child, decided("replay", job=child))

    assert again.arrived


def test_what_goes_with_a_change_is_carried_as_it_is():
    step = Step(job=JOB_ID, epoch=2, path="draw#1", name="draw", state=StepState.DONE, started_at=NOW)
    new = Job(id="018bcfe5-6800-7000-8000-000000000002", type="t", created_at=NOW, state=State.AVAILABLE)

    change = decided("complete", steps=(step,), drops=("draw#2",), takes=(5,), inserts=(new,), note={"a": 1})

    assert (change.steps, change.drops, change.takes) == ((step,), ("draw#2",), (5,))
    assert (change.inserts, change.note) == ((new,), {"a": 1})


# Signals.


@pytest.mark.parametrize("state", PROMISED_STATES)
def test_a_signal_wakes_waits_or_is_refused_by_state(state):
    job = job_in(state)

    if state in ENDED:
        with pytest.raises(NotAllowed, match=rf"job {JOB_ID} (has|was) already {state}, so you can't send it a signal"):
            deliver(job, "go", "1", NOW)
        return
    change = deliver(job, "go", "1", NOW, by="ada")

    assert (change.signal, change.by, change.at) == (("go", "1"), "ada", NOW)
    assert (change.epoch, change.version) == (None, 7)
    if state == "pending":
        assert (change.event, change.job.state, change.job.waits) == ("activate", "available", ())
    else:
        assert (change.event, change.before, change.job) == ("signal", state, job)
    assert applied(job, change).inbox == (*job.inbox, Signal(8, "go", "1", "ada", NOW))


@pytest.mark.parametrize(
    "wait",
    [
        Wait(WaitKind.SIGNAL, "stop"),
        Wait(WaitKind.CHILDREN, "go"),
        Wait(WaitKind.STOPPED, "go"),
        Wait(WaitKind.ACTIVATION),
    ],
    ids=lambda wait: wait.kind,
)
def test_a_signal_for_something_else_stays_in_the_inbox(wait):
    change = deliver(job_in("pending", waits=(wait,)), "go", "1", NOW)

    assert (change.event, change.job.state, change.job.waits) == ("signal", "pending", (wait,))


# Undo.


def test_an_undo_waits_for_the_word_of_a_running_owner_or_the_grace():
    job = job_in("active", queue="video", priority=4)

    undo = undo_job(job, "holdfast.undo", NOW)

    assert (undo.state, undo.run_at) == ("pending", NOW + 60_000)
    assert undo.waits == (Wait(WaitKind.STOPPED, JOB_ID, NOW + 60_000),)
    assert (undo.type, undo.queue, undo.priority, undo.args) == ("holdfast.undo", "video", 4, f'["{JOB_ID}"]')
    assert (undo.version, undo.epoch, undo.attempt, undo.inbox) == (1, 0, 1, ())


@pytest.mark.parametrize("state", [state for state in PROMISED_STATES if state != "active"])
def test_an_undo_of_a_job_that_nobody_runs_may_begin_at_once(state):
    undo = undo_job(job_in(state), "holdfast.undo", NOW)

    assert (undo.state, undo.run_at, undo.waits) == ("available", NOW, ())


def test_there_is_one_undo_for_a_job_whenever_it_is_worked_out():
    early = undo_job(job_in("active"), "holdfast.undo", NOW)
    late = undo_job(job_in("available", version=9, epoch=5), "holdfast.undo", NOW + 99)

    assert early.id == late.id != JOB_ID
