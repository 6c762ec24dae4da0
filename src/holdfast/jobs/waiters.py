"""Jobs that wait for a job that isn't their child: each is registered with that job and notified when it ends.

Must not decide what an end is (`lifecycle`). Both messages are signals. The waiting job puts one into the other job's
inbox before it reads that job for the last time. Whoever commits that job's end puts one into the waiting job's inbox:
it wakes the job, or makes the store refuse a suspend decided before. If the notifier dies first, upkeep does its part.
"""

from collections.abc import Iterable
from itertools import pairwise

from msgspec.structs import replace

from holdfast.core.changes import activate
from holdfast.core.codec import canonical, parse
from holdfast.core.errors import Invalid, NotAllowed, Outrun
from holdfast.core.lifecycle import SETTLED, deliver
from holdfast.core.limits import WAITERS
from holdfast.core.model import PAGE_LIMIT, Applied, Change, Conflict, Job, State, Time, Wait, WaitKind
from holdfast.engines.contract import Engine

CHANGE_TRIES = 50
"""How often a change is decided again because somebody else changed the job first. Only a bug or a storm needs more."""

WAITER = "~waiter"
"""The name of the signals, in a job's inbox, that hold the ids of jobs that wait for its end."""

ENDED = "~ended/"
"""The prefix of a signal's name, followed by a job's id: that job has settled. It is only a hint to read the job."""

CHAIN_LIMIT = 10_000
"""How many jobs are read, at most, to find jobs that wait for each other."""


def wait_for_end(id: str, until: Time | None = None) -> Wait:
    """Return the wait for the end of another job."""
    return Wait(WaitKind.SIGNAL, ENDED + id, until)


def awaited_job(wait: Wait) -> str | None:
    """Return the id of the job whose end this waits for, or None if it is another kind of wait."""
    is_one = wait.kind is WaitKind.SIGNAL and wait.name.startswith(ENDED)
    return wait.name.removeprefix(ENDED) if is_one else None


def waiters_of(job: Job) -> list[str]:
    """Return the ids of the jobs that wait for this job's end, or once did. Damaged ids are skipped."""
    return [id for signal in job.inbox if signal.name == WAITER and (id := _text(signal.value)) is not None]


def _text(value: str) -> str | None:
    try:
        found = parse(value)
    except Invalid:
        return None
    return found if isinstance(found, str) else None


async def note_waiter(engine: Engine, id: str, waiter: str, *, by: str) -> Job | None:
    """Register a job as waiting for another job's end. Returns that job; if it has settled, nothing was stored."""
    for _ in range(CHANGE_TRIES):
        (job,) = await engine.get([id])
        if job is None or job.state in SETTLED or waiter in waiters_of(job):
            return job
        if len(waiters_of(job)) >= WAITERS:
            raise NotAllowed(
                f"job {waiter} can't wait for job {id}: {WAITERS:,} other jobs already do; "
                "let one job wait for it, and submit the others with its result"
            )
        change = deliver(job, WAITER, canonical(waiter), await engine.now(), by=by)
        (answer,) = await engine.commit([replace(change, note={"waiter": waiter})])
        if isinstance(answer, Applied):
            return job
    raise Outrun(
        f"job {waiter} couldn't start to wait for job {id}: other callers changed it {CHANGE_TRIES} times meanwhile"
    )


def has_waiters(change: Change, answer: Applied | Conflict) -> bool:
    """Whether somebody may wait for the job that this change has settled. Makes no call to the store.

    If nobody else changed the job since it was read, its inbox is known. Otherwise the answer is yes.
    """
    if change.job.state not in SETTLED:
        return False
    is_known = isinstance(answer, Applied) and answer.version == change.job.version + 1
    return not is_known or any(signal.name == WAITER for signal in change.job.inbox)


async def notify_waiters(engine: Engine, id: str, *, by: str) -> None:
    """Notify the jobs that wait for a job that has settled. Safe to repeat."""
    (job,) = await engine.get([id])
    if job is None or job.state not in SETTLED:
        return
    waiters = waiters_of(job)
    for start in range(0, len(waiters), PAGE_LIMIT):
        await _notify(engine, id, waiters[start : start + PAGE_LIMIT], by)


async def _notify(engine: Engine, id: str, waiters: list[str], by: str) -> None:
    left = waiters
    for _ in range(CHANGE_TRIES):
        now = await engine.now()
        jobs = [job for job in await engine.get(left) if job is not None and _needs_notice(job, id)]
        if not jobs:
            return
        changes = [replace(deliver(job, ENDED + id, "null", now, by=by), note={"ended": id}) for job in jobs]
        answers = await engine.commit(changes)
        left = [job.id for job, answer in zip(jobs, answers, strict=True) if isinstance(answer, Conflict)]


def _needs_notice(job: Job, ended: str) -> bool:
    """Whether a job waits for the end of this one, or may be about to. A job that hasn't run yet will check itself."""
    if job.state is State.PENDING:
        return any(awaited_job(wait) == ended for wait in job.waits)
    return job.state is State.ACTIVE


# For upkeep, in case the process that had to notify them died.


async def wake_if_ended(engine: Engine, job: Job, *, by: str) -> bool:
    """Wake a job that waits for one that has settled or is gone; return whether it was woken."""
    ids = [id for id in map(awaited_job, job.waits) if id is not None]
    for id, one in zip(ids, await engine.get(ids) if ids else (), strict=True):
        if one is None or one.state in SETTLED:
            change = activate(job, await engine.now(), by=by, note={"ended": id})
            (answer,) = await engine.commit([change])
            return isinstance(answer, Applied)
    return False


# Jobs that wait for each other.


async def chain_between(engine: Engine, first: str, last: str) -> list[Job]:
    """Return the chain of jobs through which the first waits for the last without a time limit; empty if it doesn't.

    The search starts at the last job: a job knows its parent and its waiters, and these are few.
    """
    (job,) = await engine.get([last])
    if job is None:
        return []
    after: dict[str, Job] = {}
    jobs, frontier = {last: job}, [job]
    while frontier and len(jobs) < CHAIN_LIMIT:
        pairs = [(id, one) for one in frontier for id in _may_wait(one) if id not in jobs]
        found = {one.id: one for one in await _get(engine, {id for id, _ in pairs})}
        after |= {id: one for id, one in pairs if id in found and _is_stuck(found[id], one)}
        frontier = [one for id, one in found.items() if id in after]
        jobs |= {one.id: one for one in frontier}
        if first in after:
            chain = [jobs[first]]
            while chain[-1].id != last:
                chain.append(after[chain[-1].id])
            return chain
    return []


async def break_circle(engine: Engine, id: str, *, by: str) -> bool:
    """If this job is part of a cycle of waiting jobs, wake one of them. It then checks, and its wait is refused.

    Everybody who finds the cycle wakes the same job, so the others still wait when it checks.
    """
    (job,) = await engine.get([id])
    if job is None or job.state is not State.PENDING:
        return False
    for other in [awaited_job(wait) for wait in job.waits if wait.until is None]:
        chain = [] if other is None else await chain_between(engine, other, id)
        circle = [*chain, *chain[:1]]
        by_end = [one for one, following in pairwise(circle) if any(awaited_job(w) == following.id for w in one.waits)]
        if by_end:
            chosen = min(by_end, key=lambda one: one.id)
            change = activate(chosen, await engine.now(), by=by, note={"why": circle_in_words(chain)})
            await engine.commit([change])
            return True
    return False


def circle_in_words(chain: list[Job]) -> str:
    """Describe the cycle of waiting jobs for a person."""
    return " waits for ".join(f"job {job.id} ({job.type})" for job in [*chain, chain[0]])


def _may_wait(job: Job) -> Iterable[str]:
    return waiters_of(job) if job.parent is None else [job.parent, *waiters_of(job)]


def _is_stuck(job: Job, target: Job) -> bool:
    """Whether a job waits for the end of the other one without a time limit."""
    if job.state is not State.PENDING:
        return False
    group = (target.group or "") if target.parent == job.id else None
    return any(
        wait.until is None
        and (
            awaited_job(wait) == target.id
            or (wait.kind is WaitKind.CHILDREN and group is not None and wait.name == group)
        )
        for wait in job.waits
    )


async def _get(engine: Engine, ids: Iterable[str]) -> list[Job]:
    wanted = list(ids)
    found: list[Job] = []
    for start in range(0, len(wanted), PAGE_LIMIT):
        found += [job for job in await engine.get(wanted[start : start + PAGE_LIMIT]) if job is not None]
    return found
