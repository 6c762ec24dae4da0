"""Reservations: what a worker over HTTP is called in a store, and until when its jobs are its own."""

from typing import Any

import pytest

from holdfast.core.model import Job, Options, State, Step, StepState
from holdfast.core.reservations import (
    HELD_PATH,
    LONGEST_MS,
    RESERVATION_MS,
    SHORTEST_MS,
    holder_for,
    holder_of,
    is_remote,
    reserved_until,
)
from holdfast.engines.checks import check_worker


def held(worker: str | None, **options: Any) -> Job:
    return Job(
        id="j", type="t", created_at=0, state=State.ACTIVE, worker=worker, claimed_at=1_000, epoch=3,
        options=Options(**options),
    )  # fmt: skip


def report(epoch: int, at: int, result: str | None = None) -> Step:
    return Step(
        job="j", epoch=epoch, path=HELD_PATH, name="x", state=StepState.STARTED, started_at=at, result=result
    )  # fmt: skip


@pytest.mark.parametrize("name", ["", "w", "a b", "ü" * 300, "x" * 80, "x" * 81, "http.5.x", "a/b\n"])
@pytest.mark.parametrize("asked", [None, 0, 1, 5_000, 10**15])
def test_every_store_can_keep_a_holder_and_it_reads_back(name: str, asked: int | None):
    holder = holder_for(name, asked)

    check_worker(str(holder))
    assert holder_of(str(holder)) == holder
    assert holder.reservation_ms == 0 or SHORTEST_MS <= holder.reservation_ms <= LONGEST_MS


@pytest.mark.parametrize("worker", [None, "w-host-1-abc", "http", "http.x.y", "https.5.x"])
def test_our_own_workers_hold_no_reservation(worker: str | None):
    assert holder_of(worker) is None
    assert not is_remote(held(worker))
    assert reserved_until(held(worker)) is None


def test_the_reservation_is_the_workers_or_the_jobs_or_the_usual_one():
    asks = '{"options":{"visibility_timeout_ms":7000}}'
    assert reserved_until(held("http.5000.w", envelope=asks)) == 6_000
    assert reserved_until(held("http.0.w", envelope=asks)) == 8_000
    assert reserved_until(held("http.0.w")) == 1_000 + RESERVATION_MS
    assert (
        reserved_until(held("http.0.w", envelope='{"options":{"visibility_timeout_ms":"x"}}')) == 1_000 + RESERVATION_MS
    )
    assert RESERVATION_MS >= 70_000


def test_only_reports_of_the_same_claim_extend_it():
    job = held("http.5000.w")
    assert reserved_until(job, [report(2, 9_000)]) == 6_000
    assert reserved_until(job, [report(3, 9_000), report(3, 4_000)]) == 14_000
    assert reserved_until(job, [report(3, 9_000, "2000")]) == 11_000
