"""Children of a job: which it has submitted, and the waits for what becomes of them. Must not submit.

A child that completed stays so, and is read from the store; one that failed may be replayed by a person later, so what
the parent was told of it is recorded.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast.core.durations import in_words
from holdfast.core.lifecycle import SETTLED
from holdfast.core.model import PAGE_LIMIT, Error, Job, State, StepState, Time, Wait, WaitKind, Where
from holdfast.jobs.family import CHILD_PATH
from holdfast.worker.attempt import Attempt, record_info
from holdfast.worker.parking import Parked, until_of

LOOK_MS = 5_000
"""How often to look at a job that we wait for and whose end nobody will tell us of."""


TOLD_CHARACTERS = 500
"""How much of a child's error message its parent keeps."""


class Outcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """What became of a child: its result as text, or in `job` what is told of its failure."""

    result: str | None = None
    job: Job | None = None


async def known_children(attempt: Attempt) -> dict[str, Job]:
    """What earlier leases of this job submitted, read once."""
    if attempt.children is None:
        found: dict[str, Job] = {}
        where, after = Where(parent=attempt.job.id), ""
        while attempt.job.epoch > 1:
            page = await attempt.persist(partial(attempt.engine.find, where, after))
            found |= {job.id: job for job in page}
            if len(page) < PAGE_LIMIT:
                break
            after = page[-1].id
        attempt.children = found
    return attempt.children


def child_wait(attempt: Attempt, id: str, group: str | None, within_ms: int | None) -> Parked[Outcome]:
    """A wait for one child to settle. Without a group it is no child, but a job that somebody else submitted under the
    same key: nobody wakes us when that settles.
    """
    path = ""
    if within_ms is not None:
        path = f"{CHILD_PATH}{id}#{attempt.number(CHILD_PATH + id)}"
    until = until_of(attempt, path, within_ms)

    async def look() -> list[Outcome] | None:
        record = attempt.waits.get(path)
        if record is None or not record_info(record).get("late"):
            (outcome,) = await _outcomes(attempt, f"{CHILD_PATH}{id}", [id])
            if outcome is not None:
                return [outcome]
            if until is None or attempt.now() < until:
                parked.wait = await _wait_for(attempt, group, until)
                if group is not None and parked.wait.kind is WaitKind.TIME:  # it may have settled since we looked
                    (outcome,) = await _outcomes(attempt, f"{CHILD_PATH}{id}", [id])
                return None if outcome is None else [outcome]
            await attempt.keep_wait(attempt.wait_record(path, StepState.DONE, {"late": True}))
        raise TimeoutError(f"job {id} has not settled within {in_words(within_ms or 0)}; it goes on")

    parked = Parked(path, Wait(WaitKind.CHILDREN, group or "", until), look)
    return parked


def group_wait(attempt: Attempt, ids: Sequence[str], group: str) -> Parked[list[Outcome]]:
    """A wait for all children of a group to settle."""

    async def look() -> list[list[Outcome]] | None:
        wait = await _wait_for(attempt, group, None)
        if wait.kind is WaitKind.TIME:
            outcomes = [one for one in await _outcomes(attempt, f"{CHILD_PATH}{group}", ids) if one is not None]
            if len(outcomes) == len(ids):
                return [outcomes]
        parked.wait = wait
        return None

    parked = Parked("", Wait(WaitKind.CHILDREN, group), look)
    return parked


async def _wait_for(attempt: Attempt, group: str | None, until: Time | None) -> Wait:
    """What wakes the job: the last arrival of a group. Where none is to come, because the job is not ours or was
    replayed by a person after it had settled, only time does, and we look again.
    """
    missing = 0 if group is None else await attempt.persist(partial(attempt.engine.missing, attempt.job.id, group))
    if missing:
        return Wait(WaitKind.CHILDREN, group or "", until)
    look_at = attempt.now() + LOOK_MS
    return Wait(WaitKind.TIME, until=look_at if until is None else min(look_at, until))


async def _outcomes(attempt: Attempt, path: str, ids: Sequence[str]) -> list[Outcome | None]:
    """What became of each child, None while one has not settled. Failures are recorded, all at once."""
    record = attempt.waits.get(path)
    told = record_info(record).get("failed", {}) if record is not None and record.state is StepState.DONE else None
    found = await _read(attempt, [id for id in ids if told is None or id not in told])
    if told is None:
        failed = {id: job for id, job in found.items() if job.state in SETTLED and job.state is not State.COMPLETED}
        settled = sum(job.state in SETTLED for job in found.values()) == len(ids)
        told = {id: msgspec.to_builtins(_told(job)) for id, job in failed.items()}
        if settled and told:
            info: dict[str, Any] = {"failed": told}
            told = record_info(await attempt.keep_wait(attempt.wait_record(path, StepState.DONE, info)))["failed"]
    outcomes: list[Outcome | None] = []
    for id in ids:
        if id in told:
            outcomes.append(Outcome(job=msgspec.convert(told[id], Job)))
        else:
            job = found[id]
            outcomes.append(Outcome(result=job.result or "null") if job.state is State.COMPLETED else None)
    return outcomes


async def _read(attempt: Attempt, ids: Sequence[str]) -> dict[str, Job]:
    known = await known_children(attempt)
    unsettled = [id for id in ids if id not in known or known[id].state not in SETTLED]
    for start in range(0, len(unsettled), PAGE_LIMIT):
        page = unsettled[start : start + PAGE_LIMIT]
        jobs = await attempt.persist(partial(attempt.engine.get, page))
        known.update({id: job or _gone(id) for id, job in zip(page, jobs, strict=True)})
    return {id: known[id] for id in ids}


def _told(job: Job) -> Job:
    """What the parent is told of a child's failure, and what is kept of it."""
    error = job.error and replace(job.error, message=job.error.message[:TOLD_CHARACTERS], traceback="")
    return Job(id=job.id, type=job.type, created_at=job.created_at, state=job.state, error=error)


def _gone(id: str) -> Job:
    error = Error("NotFound", "it is no longer in the store; was it removed by hand?")
    return Job(id=id, type="gone", created_at=0, state=State.DISCARDED, error=error)
