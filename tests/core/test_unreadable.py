"""What stands for a damaged value keeps its raw text, can be stored anywhere, and is taken for nothing else."""

from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.core.lifecycle import applied, decide, deliver
from holdfast.core.model import Error, Event, Job, Options, State, Wait, WaitKind
from holdfast.core.unreadable import (
    RAW_SHOWN,
    is_unreadable,
    set_aside,
    unreadable_error,
    unreadable_options,
    unreadable_parts,
    unreadable_signal,
    unreadable_waits,
    without_unreadable,
)
from holdfast.engines.checks import check_changes, check_jobs

NASTY = "[\0 \ud800 \U0001f600"


def job(**fields):
    plain: dict[str, Any] = {"id": "j", "type": "t", "created_at": 0, "state": State.AVAILABLE, "run_at": 0}
    return Job(**plain | fields)


@pytest.mark.parametrize("raw", ["[{", NASTY, b"\xff\x00{"], ids=["text", "what no store can hold", "bytes"])
def test_what_stands_for_a_damaged_value_can_be_stored_anywhere(raw):
    damaged = job(
        options=unreadable_options(raw),
        waits=unreadable_waits(raw),
        inbox=(unreadable_signal(raw),),
        error=unreadable_error(raw),
    )
    check_jobs([damaged])
    assert set(unreadable_parts(damaged)) == {"options", "waits", "inbox"}
    assert len(set(unreadable_parts(damaged).values())) == 1


def test_a_healthy_job_has_no_damaged_part():
    healthy = job(options=Options(meta={"a": "b"}), waits=(Wait(WaitKind.ACTIVATION),))
    assert unreadable_parts(healthy) == {}
    assert not is_unreadable(Error("Unreadable", "somebody's own"))


def test_a_claimed_job_with_a_damaged_part_goes_to_review_and_keeps_the_part():
    claimed = applied(job(), decide(job(options=unreadable_options("[{")), Event.CLAIM, 1, by="w"))
    change = set_aside(claimed, unreadable_parts(claimed), 2, by="w")
    check_changes([change])
    assert (change.event, change.job.state, change.epoch) == (Event.EXHAUST, State.REVIEW, claimed.epoch)
    assert change.job.options == claimed.options


def test_a_replay_leaves_damaged_parts_out_and_says_what_they_were():
    long = "x" * (RAW_SHOWN + 1)
    damaged = job(
        state=State.REVIEW,
        options=unreadable_options(long),
        waits=unreadable_waits("w"),
        inbox=(unreadable_signal("i", 7), replace(unreadable_signal("k", 8), name="kept")),
    )
    change = without_unreadable(damaged, decide(damaged, Event.REPLAY, 1, by="ada"))
    assert change.edits
    assert change.takes == (7,)
    assert change.job.options == Options()
    assert change.note["left_out"] == {"options": long[:-1], "waits": "w", "inbox": "i"}
    healthy = job(state=State.REVIEW)
    plain = decide(healthy, Event.REPLAY, 1, by="ada")
    assert without_unreadable(healthy, plain) is plain


def test_nobody_takes_a_damaged_wait_for_one_that_is_over():
    waiting = job(state=State.PENDING, waits=unreadable_waits("[{"))
    woken = deliver(waiting, "go", "1", 1)
    assert woken.event == Event.ACTIVATE
    assert unreadable_parts(woken.job) == {"waits": "[{"}, "the worker that claims it still sees the damage"
