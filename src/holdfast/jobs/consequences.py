"""What the end of a job means for others: cancel its children, wake the jobs that wait for it, undo what it made.

Must not decide what an end is (`lifecycle`). Every function checks first and can safely be repeated.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from holdfast.core.changes import activate, promote
from holdfast.core.keys import derived_id
from holdfast.core.lifecycle import TERMINAL, allowed, decide, undo_job
from holdfast.core.model import Applied, Change, Conflict, Event, Job, Presence, Running, State, Time, WaitKind, Where
from holdfast.core.reservations import is_remote
from holdfast.engines.contract import Engine
from holdfast.engines.records import WORKER, worker_in
from holdfast.jobs.status import progress_records
from holdfast.jobs.waiters import CHANGE_TRIES, has_waiters, notify_waiters

UNDO_TYPE = "holdfast.undo"
"""The type of the jobs that undo what a stopped job made. Every worker knows it."""


CHILD_PATH = "~child/"
"""The path under which a job records the end of a child, or of a group of children."""

UNDO_PATH = "~undo/"
"""The path of the intents of steps that can be undone, written before the step runs."""

ATTACHED_RESULT = "attach:result"
"""The name of the step, inside the one that started a provider's job, that has its result."""


async def end_change(engine: Engine, job: Job, event: Event, now: Time, *, by: str, note: Mapping[str, Any]) -> Change:
    """Build a cancel, an expiry or a discard. It also inserts the undo job, if there may be something to undo."""
    inserts = (undo_job(job, UNDO_TYPE, now),) if await _may_undo(engine, job, event) else ()
    steps = progress_records(job, running_of(await presence_of(engine, job), job), now)
    return decide(job, event, now, by=by, note=note, inserts=inserts, steps=steps)


async def presence_of(engine: Engine, job: Job) -> Presence | None:
    """Return the last worker status of the worker that runs a job; None if nobody runs it or no status was sent."""
    if job.worker is None:
        return None
    name = WORKER + job.worker
    found = [worker_in(one) for one in await engine.records(name) if one.name == name]
    return found[0] if found else None


def running_of(presence: Presence | None, job: Job) -> Running | None:
    """Return a worker's last report about a job that it runs."""
    reported = () if presence is None else presence.running
    return next((one for one in reported if (one.job, one.epoch) == (job.id, job.epoch)), None)


async def _may_undo(engine: Engine, job: Job, event: Event) -> bool:
    """Whether a job may have made something to undo. A running job may: it could be starting a step right now."""
    if job.epoch == 0 or job.type == UNDO_TYPE or not allowed(event, job.state):
        return False
    starts_steps = job.state is State.ACTIVE and not is_remote(job)  # workers over HTTP have no steps to undo
    if starts_steps or job.options.cleanup or await engine.find(Where(parent=job.id), limit=1):
        return True
    return bool(await engine.steps_under(job.id, UNDO_PATH))


async def cancel_children(engine: Engine, parent: str, *, by: str) -> int:
    """Cancel all children of a job that haven't ended, and their children; return how many."""
    cancelled, parents = 0, [parent]
    while parents:
        one, after = parents.pop(), ""
        while page := await engine.find(Where(parent=one), after):
            now = await engine.now()
            note = {"reason": f"its parent {one} was cancelled"}
            live = [job for job in page if job.state not in TERMINAL and job.type != UNDO_TYPE]
            changes = [await end_change(engine, job, Event.CANCEL, now, by=by, note=note) for job in live]
            answers = await engine.commit(changes)
            applied = [answer for answer in answers if isinstance(answer, Applied)]
            cancelled += len(applied)
            for change, answer in zip(changes, answers, strict=True):
                if isinstance(answer, Applied) and has_waiters(change, answer):
                    await notify_waiters(engine, change.job.id, by=by)
            if len(applied) == len(live):  # otherwise somebody else changed one of them: read the page again
                parents += [job.id for job in page if job.epoch > 0]
                after = page[-1].id
    return cancelled


async def notify_others(engine: Engine, change: Change, answer: Applied | Conflict, *, by: str) -> None:
    """Wake the parent of a job that this change has settled, or may have, and the jobs that wait for its end."""
    if change.arrives:
        await wake_parent(engine, change.job, answer, by=by)
    if has_waiters(change, answer):
        await notify_waiters(engine, change.job.id, by=by)


def may_concern_others(change: Change, answer: Applied) -> bool:
    """Whether this change may concern other jobs. It runs at every end, so it is quick and makes no call."""
    job = change.job
    return change.arrives or answer.version != job.version + 1 or (bool(job.inbox) and has_waiters(change, answer))


async def wake_parent(engine: Engine, child: Job, answer: Applied | Conflict, *, by: str) -> None:
    """Wake the parent of a settled child, if the parent waits for the child's group and this was the last one."""
    assert child.parent is not None
    missing = answer.missing if isinstance(answer, Applied) else await engine.missing(child.parent, child.group or "")
    if missing == 0:
        await wake_if_children_ended(engine, child.parent, by=by)


async def wake_if_children_ended(engine: Engine, id: str, *, by: str) -> bool:
    """Wake a job whose group of children has settled completely; return whether it was woken."""
    for _ in range(CHANGE_TRIES):
        (job,) = await engine.get([id])
        if job is None or job.state is not State.PENDING:
            return False
        groups = [wait.name for wait in job.waits if wait.kind is WaitKind.CHILDREN]
        for group in groups:
            if await engine.missing(id, group) == 0:
                note = {"children": group}
                break
        else:
            if not any(wait.is_unreadable for wait in job.waits):
                return False
            note = {"why": "the record of what it waits for is damaged"}
        change = activate(job, await engine.now(), by=by, note=note)
        (answer,) = await engine.commit([change])
        if isinstance(answer, Applied):
            return True
    return False


async def announce_stopped(engine: Engine, job: Job, *, by: str, doubts: Sequence[str] = ()) -> None:
    """Let the undo of a cancelled job start, because its owner has stopped. A stop of an earlier owner doesn't count.

    `doubts` are the effects that the stop interrupted; the undo's history names them.
    """
    cancelled, undo = await engine.get([job.id, derived_id(job.id, "undo")])
    ours = cancelled is not None and cancelled.epoch == job.epoch
    if ours and undo is not None and undo.state is State.PENDING:
        note: dict[str, Any] = {"stopped": job.id}
        if doubts:
            note["in_doubt"] = list(doubts)
        change = activate(undo, await engine.now(), by=by, note=note)
        await engine.commit([change])


async def wake_now(engine: Engine, id: str, *, by: str, why: str) -> None:
    """Let a waiting job run now, if it still waits."""
    (job,) = await engine.get([id])
    if job is not None and job.state in (State.PENDING, State.SCHEDULED):
        wake, now = activate if job.state is State.PENDING else promote, await engine.now()
        change = wake(job, now, by=by, note={"why": why})
        await engine.commit([replace(change, job=replace(change.job, run_at=now))])
