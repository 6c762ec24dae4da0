"""The one sentence of a job: the same words for every kind of caller."""

from typing import Any

import pytest
from msgspec.structs import replace
from rich.console import Console

from holdfast.cli.render.job import status_lines
from holdfast.core.model import Error, Job, Options, Retrying, Running, State, Wait, WaitKind
from holdfast.core.summaries import StepSummary
from holdfast.jobs.limit_status import LimitWait
from holdfast.jobs.status import Status, stage_words, status_of
from holdfast.jobs.views.job import stages_of

NOW = 1_760_000_000_000
MINUTE = 60_000
JOB = Job(
    id="j",
    type="make_video",
    state=State.ACTIVE,
    created_at=NOW - 60 * MINUTE,
    epoch=1,
    worker="w-1",
    claimed_at=NOW - 20 * MINUTE,
    options=Options(stages=("analyse", "draw", "animate")),
)
DRAWING = Running("j", 1, stage="draw", done=11, total=30, made=11, since=NOW - 12 * MINUTE)


def status(state: State, running: Running | None = None, trouble: str = "", **facts: Any) -> Status:
    return status_of(replace(JOB, state=state, **facts), StepSummary(JOB.id), [], running, NOW, trouble)


def test_a_job_that_runs_is_told_by_its_stage_and_how_far_it_is():
    assert str(status(State.ACTIVE, DRAWING)) == "draw, stage 2 of 3, 11 of 30, about 20 min left"


def test_a_recovery_does_not_start_the_time_of_a_stage_anew():
    running = replace(DRAWING, made=0, since=NOW - 4_000, earlier=11, earlier_ms=11 * MINUTE)

    assert str(status(State.ACTIVE, running)) == "draw, stage 2 of 3, 11 of 30, about 19 min left"
    assert "for 11 min" in str(status(State.ACTIVE, replace(running, done=None, total=None)))


def test_a_job_tells_what_it_says_of_itself_and_what_is_tried_again():
    retrying = Retrying("draw#12", 2, 4, "ProviderError: 429", NOW + 8_000)
    running = replace(DRAWING, text="scene\n12\x1b[2J", made=0, retrying=retrying)

    told = str(status(State.ACTIVE, running))

    assert told == (
        "draw, stage 2 of 3, 11 of 30, scene 12\N{REPLACEMENT CHARACTER}[2J, for 12 min, "
        "try 2 of 4 of draw#12 after ProviderError: 429, next try in 8 s"
    )


def test_a_job_that_stands_still_says_so():
    told = str(status(State.ACTIVE, DRAWING, "no space left on device"))

    assert told.endswith(", stalled: no space left on device")


def test_a_stage_that_begins_like_a_state_hides_no_state():
    console = Console(width=80, record=True)
    for line in status_lines(status(State.ACTIVE, Running("j", 1, stage="active_scan")), [], NOW):
        console.print(line)

    assert "active: active_scan" in console.export_text()


def test_a_job_that_begins_to_wait_or_to_stall_has_news():
    still = status(State.ACTIVE, DRAWING).progress()

    assert status(State.ACTIVE, DRAWING, "no space left on device").progress() != still
    assert replace(status(State.ACTIVE, DRAWING), limited=LimitWait(key="openai")).progress() != still


def test_a_job_without_a_step_yet_just_runs():
    assert stage_words(status(State.ACTIVE)) == ""
    assert str(status(State.ACTIVE)) == "running, for 20 min"


@pytest.mark.parametrize(
    ("state", "facts", "words"),
    [
        (State.AVAILABLE, {}, "waiting for a worker"),
        (State.SCHEDULED, {"run_at": NOW + 2 * 60 * MINUTE}, "scheduled, due in 2 h"),
        (
            State.RETRYABLE,
            {"run_at": NOW + MINUTE, "error": Error("Timeout", "slow")},
            "retryable, due in 1 min, Timeout: slow",
        ),
        (State.PENDING, {"waits": (Wait(WaitKind.SIGNAL, "approved"),)}, "waiting for signal approved"),
        (State.PENDING, {"waits": (Wait(WaitKind.SIGNAL, "ask:1"),)}, "waiting for a person's answer"),
        (State.REVIEW, {"error": Error("ValueError", "no")}, "needs a person, ValueError: no"),
        (State.COMPLETED, {"finished_at": NOW - 3 * MINUTE}, "completed 3 min ago"),
        (State.CANCELLED, {"finished_at": NOW - 3 * MINUTE}, "cancelled 3 min ago"),
    ],
)
def test_each_state_has_its_sentence(state: State, facts: dict[str, Any], words: str):
    assert str(status(state, **facts)) == words


@pytest.mark.parametrize("state", State)
def test_no_state_is_without_words(state: State):
    assert str(status(state))


def test_stages_are_passed_current_or_ahead():
    assert [stage.place for stage in stages_of(status(State.ACTIVE, DRAWING))] == ["passed", "current", "ahead"]
    assert {stage.place for stage in stages_of(status(State.COMPLETED))} == {"passed"}
