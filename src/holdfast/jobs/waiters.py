"""Jobs that wait for a job which is not their child: each is noted with that one, and notified of its end.

Must not decide what an end is (`lifecycle`). Both notes are signals. The waiting job puts one into the other's inbox,
before it looks at it for the last time. Whoever commits that job's end puts one into the waiting job's inbox. It wakes
the job, or makes the store refuse a suspend that was decided before. Should nobody live to do that, upkeep does.
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
"""How often a change is decided anew when somebody else was faster. Only a bug or a storm needs more."""

WAITER = "~waiter"
"""Signals of this name, in the inbox of a job, hold the ids of jobs that wait for its end."""

ENDED = "~ended/"
"""A signal of this name and the id of a job says that the job has settled. It is a hint to look."""

CHAIN_LIMIT = 10_000
"""How many jobs are looked at in a search for jobs that wait for each other."""


def wait_for_end(id: str, until: Time | None = None) -> Wait:
    """What a job waits for that waits for the end of another one."""
    return Wait(WaitKind.SIGNAL, ENDED + id, until)


def awaited_job(wait: Wait) -> str | None:
    """The id of the job for whose end this is a wait, if it is one."""
    is_one = wait.kind is WaitKind.SIGNAL and wait.name.startswith(ENDED)
    return wait.name.removeprefix(ENDED) if is_one else None


def waiters_of(job: Job) -> list[str]:
    """The ids of the jobs that wait for this one's end, or once did. A damaged id is nobody's."""
    return [id for signal in job.inbox if signal.name == WAITER and (id := _text(signal.value)) is not None]


def _text(value: str) -> str | None:
    try:
        found = parse(value)
    except Invalid:
        return None
    return found if isinstance(found, str) else None


async def note_waiter(engine: Engine, id: str, waiter: str, *, by: str) -> Job | None:
    """Note with a job who waits for its end. The job as it was found: if it has settled, nothing was noted."""
    for _ in range(CHANGE_TRIES):
        (job,) = await engine.get([id])
        if job is None or job.state in SETTLED or waiter in waiters_of(job):
            return job
        if len(waiters_of(job)) >= WAITERS:
            raise NotAllowed(
                f"job {waiter} can't wait for job {id}: {WAITERS:,} other jobs wait for it already; "
                "let one job wait and submit the others with its result"
            )
        change = deliver(job, WAITER, canonical(waiter), await engine.now(), by=by)
        (answer,) = await engine.commit([replace(change, note={"waiter": waiter})])
        if isinstance(answer, Applied):
            return job
    raise Outrun(f"job {id}: changed by others {CHANGE_TRIES} times while job {waiter} tried to wait for it")


def has_waiters(change: Change, answer: Applied | Conflict) -> bool:
    """Whether somebody may wait for the job that this change has settled. Costs no call to the store.

    If nobody else changed the job since it was read, its inbox is known. Else there may be somebody.
    """
    if change.job.state not in SETTLED:
        return False
    is_known = isinstance(answer, Applied) and answer.version == change.job.version + 1
    return not is_known or any(signal.name == WAITER for signal in change.job.inbox)


async def notify_waiters(engine: Engine, id: str, *, by: str) -> None:
    """Notify the jobs that wait for a job which has settled. May be repeated."""
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
    """Whether a job waits for the end of this one, or may be about to. A job that is yet to run finds out by itself."""
    if job.state is State.PENDING:
        return any(awaited_job(wait) == ended for wait in job.waits)
    return job.state is State.ACTIVE


# For upkeep, should whoever had to notify them have died.


async def wake_if_ended(engine: Engine, job: Job, *, by: str) -> bool:
    """Wake a job that waits for the end of one that has settled, or is gone; whether it was woken."""
    ids = [id for id in map(awaited_job, job.waits) if id is not None]
    for id, one in zip(ids, await engine.get(ids) if ids else (), strict=True):
        if one is None or one.state in SETTLED:
            change = activate(job, await engine.now(), by=by, note={"ended": id})
            (answer,) = await engine.commit([change])
            return isinstance(answer, Applied)
    return False


# Jobs that wait for each other.


async def chain_between(engine: Engine, first: str, last: str) -> list[Job]:
    """The jobs by which the first waits for the last, each for the next one and without an end; empty if it doesn't.

    Looked for from the end: a job knows its parent and who waits for it, and these are few.
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
    """Wake one of the jobs that wait for each other, if this job is one of them: it then looks, and is refused.

    All who find a circle wake the same one, so that the others still wait when it looks.
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
    """Which jobs wait for each other, for a person."""
    return " waits for ".join(f"job {job.id} ({job.type})" for job in [*chain, chain[0]])


def _may_wait(job: Job) -> Iterable[str]:
    return waiters_of(job) if job.parent is None else [job.parent, *waiters_of(job)]


def _is_stuck(job: Job, target: Job) -> bool:
    """Whether a job waits for the end of the other one, and not only for a time."""
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
