"""The children of a job: which ones it has submitted, and the waits for their outcomes. Must not submit.

A completed child stays completed and is read from the store. A failed child may be replayed later, so the failure that
the parent got is recorded.
"""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast.core.durations import in_words
from holdfast.core.errors import Invalid, NotFound, Outrun
from holdfast.core.lifecycle import SETTLED
from holdfast.core.limits import WAITS
from holdfast.core.model import PAGE_LIMIT, Error, Job, State, StepState, Time, Wait, WaitKind, Where
from holdfast.core.references import references_in
from holdfast.jobs.consequences import CHILD_PATH
from holdfast.jobs.waiters import CHANGE_TRIES, ENDED, chain_between, circle_in_words, note_waiter, wait_for_end
from holdfast.worker.attempt import Attempt
from holdfast.worker.maps import BATCH_SECONDS, LOOK_FIRST
from holdfast.worker.pending_wait import PendingWait, until_of
from holdfast.worker.records import record_info

TOLD_CHARACTERS = 500
"""How much of a child's error message its parent keeps."""


RUNNING_SECONDS = 0.5
"""How long a job keeps its slot while it waits for one of several children, if at least one is running."""

IDLE_SECONDS = 0.03
"""How long it keeps its slot if none of them is running: they may need this very slot."""


class Outcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """The outcome of a child: its result as text, or in `job` what the parent gets of its failure."""

    result: str | None = None
    job: Job | None = None


async def known_children(attempt: Attempt) -> dict[str, Job]:
    """Return the children that earlier leases of this job submitted. Read once."""
    journal = attempt.journal
    if journal.children is None:
        found: dict[str, Job] = {}
        where, after = Where(parent=attempt.job.id), ""
        while attempt.job.epoch > 1:
            page = await attempt.persist(partial(attempt.engine.find, where, after))
            found |= {job.id: job for job in page}
            if len(page) < PAGE_LIMIT:
                break
            after = page[-1].id
        journal.children = found
        journal.child_ids |= found.keys()
    return journal.children


def child_wait(attempt: Attempt, id: str, within_ms: int | None) -> PendingWait[Outcome]:
    """Make a wait for one child to settle. The child is a group by itself."""

    async def outcome() -> Outcome | None:
        (one,) = await _outcomes(attempt, f"{CHILD_PATH}{id}", [id])
        return one

    async def poll(until: Time | None) -> tuple[Outcome | None, Wait]:
        found = await outcome()
        if found is None and not await _missing(attempt, id):  # it was replayed, so its end won't wake us again
            return await _subscribe(attempt, id, until, outcome)
        return found, Wait(WaitKind.CHILDREN, id, until)

    return _make_wait(attempt, id, within_ms, poll)


def check_other(attempt: Attempt, id: str) -> None:
    """Refuse a job's wait for its own end."""
    if id == attempt.job.id:
        raise Invalid(f"job {id} ({attempt.job.type}) can't wait for itself; submit another job with a different key")


def run_wait(attempt: Attempt, id: str, within_ms: int | None) -> PendingWait[Outcome]:
    """Make a wait for any other job to settle."""
    check_other(attempt, id)

    async def poll(until: Time | None) -> tuple[Outcome | None, Wait]:
        outcome = await _outcome(attempt, id)
        if outcome is not None:
            return outcome, wait_for_end(id, until)
        if until is None:
            await _check_circle(attempt, id)
        return await _subscribe(attempt, id, until, partial(_outcome, attempt, id))

    return _make_wait(attempt, id, within_ms, poll)


def group_wait(attempt: Attempt, ids: Sequence[str], group: str, part: str = "") -> PendingWait[list[Outcome]]:
    """Make a wait for all children of a group to settle, or for those of one part of it."""

    async def poll() -> list[list[Outcome]] | None:
        pending.wait = Wait(WaitKind.CHILDREN, group)
        known = attempt.journal.children or {}
        if not all(id in known and known[id].state in SETTLED for id in ids) and await _missing(attempt, group):
            return None
        for _ in range(CHANGE_TRIES):
            outcomes = await _outcomes(attempt, f"{CHILD_PATH}{group}{part}", ids)
            late = [id for id, one in zip(ids, outcomes, strict=True) if one is None]
            if not late:
                return [[one for one in outcomes if one is not None]]
            if not await _is_settled(attempt, late[0]):  # it was replayed, so its end won't wake us again
                pending.wait = wait_for_end(late[0])
                return None
        raise Outrun(f"children {group} were replayed {CHANGE_TRIES} times while job {attempt.job.id} waited for them")

    pending = PendingWait("", Wait(WaitKind.CHILDREN, group), poll)
    return pending


def window_wait(attempt: Attempt, ids: Sequence[str], prefix: str = "") -> PendingWait[dict[str, Outcome]]:
    """Make a wait for any of these children to settle. Each is a group by itself, named by this prefix and its id.

    The job keeps its slot for a moment: if children are quick, the next ones are submitted without a suspend.
    """

    settled: dict[str, Outcome] = {}

    async def poll() -> list[dict[str, Outcome]] | None:
        left = [id for id in ids if id not in settled]
        found = await _read(attempt, left[:LOOK_FIRST])
        if not any(job.state in SETTLED for job in found.values()):
            found |= await _read(attempt, left[LOOK_FIRST:])
        for id, job in found.items():
            if job.state in SETTLED:
                (outcome,) = await _outcomes(attempt, f"{CHILD_PATH}{id}", [id])
                if outcome is not None:
                    settled[id] = outcome
        if settled:
            collect_until = pending.since + BATCH_SECONDS
            if len(settled) * 2 >= len(ids) or collect_until <= attempt.loop.time():
                return [settled]
            pending.stays_until = collect_until
            return None
        is_running = any(job.state is State.ACTIVE for job in found.values())
        stays_until = pending.since + (RUNNING_SECONDS if is_running else IDLE_SECONDS)
        if not pending.stays_until or stays_until > attempt.loop.time():
            pending.stays_until = stays_until
            return None
        pending.waits = []
        for id in ids[:WAITS]:
            if await _missing(attempt, prefix + id):
                pending.waits.append(Wait(WaitKind.CHILDREN, prefix + id))
            elif await _is_settled(attempt, id):
                return await poll()
            else:  # it was replayed, so its end won't wake us again
                pending.waits.append(wait_for_end(id))
        return None

    pending = PendingWait("", Wait(WaitKind.CHILDREN, prefix + ids[0]), poll)
    pending.waits = [Wait(WaitKind.CHILDREN, prefix + id) for id in ids[:WAITS]]
    return pending


def _make_wait(
    attempt: Attempt,
    id: str,
    within_ms: int | None,
    poll_job: Callable[[Time | None], Awaitable[tuple[Outcome | None, Wait]]],
) -> PendingWait[Outcome]:
    """Make a wait for one job. A timeout is recorded, as it is for a signal."""
    path = f"{CHILD_PATH}{id}#{attempt.journal.calls.number(CHILD_PATH + id)}" if within_ms is not None else ""
    until = until_of(attempt, path, within_ms)

    async def poll() -> list[Outcome] | None:
        record = attempt.journal.records.waits.get(path)
        if record is None or not record_info(record).get("late"):
            outcome, pending.wait = await poll_job(until)
            if outcome is not None:
                return [outcome]
            if until is None or attempt.now() < until:
                return None
            await attempt.journal.record_wait(path, {"late": True})
        raise TimeoutError(f"timed out after {in_words(within_ms or 0)} waiting for job {id}; the job continues")

    pending = PendingWait(path, Wait(WaitKind.CHILDREN, id, until), poll)
    return pending


def recorded_type(attempt: Attempt, id: str) -> str | None:
    """Return the type of a job whose outcome is recorded. The job itself may have been pruned."""
    record = attempt.journal.records.waits.get(f"{CHILD_PATH}{id}")
    told = {} if record is None else record_info(record)
    type: str | None = told.get("type") or told.get("failed", {}).get(id, {}).get("type")
    return type


async def _missing(attempt: Attempt, group: str) -> int:
    """Return how many children of a group haven't settled yet. The last one wakes the job."""
    return await attempt.persist(partial(attempt.engine.missing, attempt.job.id, group))


async def _subscribe(
    attempt: Attempt, id: str, until: Time | None, read: Callable[[], Awaitable[Outcome | None]]
) -> tuple[Outcome | None, Wait]:
    """Ask to be woken when a job ends; or return its outcome, if it has settled meanwhile."""
    for _ in range(CHANGE_TRIES):
        if not await _is_settled(attempt, id):
            return None, wait_for_end(id, until)
        outcome = await read()
        if outcome is not None:
            return outcome, wait_for_end(id, until)
    raise Outrun(f"job {id} was replayed {CHANGE_TRIES} times while job {attempt.job.id} waited for it")


async def _is_settled(attempt: Attempt, id: str) -> bool:
    """Whether a job has settled. If not, we are registered with it and notified of its end."""
    attempt.journal.inbox.take_hints(ENDED + id)
    by = attempt.job.worker or ""
    job = await attempt.persist(lambda: note_waiter(attempt.engine, id, attempt.job.id, by=by))
    return job is None or job.state in SETTLED


async def _check_circle(attempt: Attempt, id: str) -> None:
    """Refuse to wait for a job that waits for us: neither could ever continue."""
    ours = attempt.job
    chain = await attempt.persist(lambda: chain_between(attempt.engine, id, ours.id))
    if chain:
        raise Invalid(
            f"job {ours.id} ({ours.type}) can't wait for job {id}: {circle_in_words([*chain[-1:], *chain[:-1]])}; "
            "remove one of these waits, or give result() a timeout="
        )


async def _outcome(attempt: Attempt, id: str) -> Outcome | None:
    """Return the outcome of a job that isn't our child, None until it settles. Recorded, as the job may be pruned."""
    path = f"{CHILD_PATH}{id}"
    record = attempt.journal.records.waits.get(path)
    if record is None or record.state is not StepState.DONE:
        (job,) = await attempt.persist(partial(attempt.engine.get, [id]))
        if job is None:
            raise NotFound(f"there is no job {id} in this store; it may have been pruned, or it is in another store")
        if job.state not in SETTLED:
            return None
        failed = {} if job.state is State.COMPLETED else {id: msgspec.to_builtins(_shorten_failure(job))}
        info: dict[str, Any] = {"failed": failed} if failed else {"result": job.result or "null", "type": job.type}
        if files := references_in(job.result):  # that job may be pruned before ours
            await attempt.engine.blobs.refer(files, attempt.job.id)
        record = await attempt.journal.record_wait(path, info)
    told = record_info(record)
    if "result" in told:
        return Outcome(result=told["result"])
    return Outcome(job=msgspec.convert(told["failed"][id], Job))


async def _outcomes(attempt: Attempt, path: str, ids: Sequence[str]) -> list[Outcome | None]:
    """Return the outcome of each child, None for one that hasn't settled. Failures are recorded, all at once."""
    record = attempt.journal.records.waits.get(path)
    told = record_info(record).get("failed", {}) if record is not None and record.state is StepState.DONE else None
    found = await _read(attempt, [id for id in ids if told is None or id not in told])
    if told is None:
        failed = {id: job for id, job in found.items() if job.state in SETTLED and job.state is not State.COMPLETED}
        settled = sum(job.state in SETTLED for job in found.values()) == len(ids)
        told = {id: msgspec.to_builtins(_shorten_failure(job)) for id, job in failed.items()}
        if settled and told:
            info: dict[str, Any] = {"failed": told}
            told = record_info(await attempt.journal.record_wait(path, info))["failed"]
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
        known.update({id: job or _missing_job(id) for id, job in zip(page, jobs, strict=True)})
    return {id: known[id] for id in ids}


def _shorten_failure(job: Job) -> Job:
    """Return what the parent gets and keeps of a child's failure."""
    error = job.error and replace(job.error, message=job.error.message[:TOLD_CHARACTERS], traceback="")
    return Job(id=job.id, type=job.type, created_at=job.created_at, state=job.state, error=error)


def _missing_job(id: str) -> Job:
    error = Error("NotFound", "this child job is no longer in the store; was it deleted by hand?")
    return Job(id=id, type="gone", created_at=0, state=State.DISCARDED, error=error)
