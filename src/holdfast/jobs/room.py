"""Room for new jobs in queues with a bound: let them in, refuse them, or shed others for them. Must not know apps.

A submit looks for room, sheds what is too much already, inserts, and then sheds for its own jobs: several acts. So jobs
are shed only for others that are in the store. Submits at the same moment may exceed a bound, or shed more than they
need, by no more than the submits under way.
"""

from collections.abc import Collection, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from holdfast.core.errors import QueueFull
from holdfast.core.model import PAGE_LIMIT, Applied, Event, Inserted, Job, Where
from holdfast.core.moves import HeldKey
from holdfast.core.queue_bounds import SHED_OLDEST, WAITING, QueueBound, depth_of
from holdfast.core.unique import REFUSE, REPLACE, UNIQUE, counts, stamp, until
from holdfast.engines.contract import Engine
from holdfast.jobs.consequences import end_change, notify_others
from holdfast.jobs.full_queues import read_bounds

SHED = "shed: "
"""What the reason begins with for which a shed job was cancelled."""

SHED_AT_ONCE = 1_000
"""How many jobs one submit sheds at most. Where more are too many, somebody has lowered the bound: it refuses."""

PAGES_READ = 20
"""How many pages of waiting jobs one submit reads to find jobs that it may shed."""

FEW = 20
"""How many more jobs the first of these pages has than are needed: most of the oldest jobs never started."""

SHED_TRIES = 20
"""How often a submit looks for others to shed, if workers or other submits were faster."""

RETRY_SECONDS = 5.0
"""When a refused caller should try again."""


class Shed(Struct, frozen=True):
    """What a full queue owes for jobs that may come in: how many others must go, and who that is at the moment."""

    bound: QueueBound
    depth: int
    excess: int
    old: Sequence[Job]
    spared: Collection[str]
    """The jobs that answer this submit: they aren't shed for it."""


class Arrivals(Struct, frozen=True):
    """Which of the jobs of a submit are new to the store, and which existing jobs answer for the others.

    The new jobs in `replacing` take the place of one that waits in the same queue.
    """

    new: Sequence[Job]
    answering: Collection[str]
    replacing: Collection[str] = ()


async def find_room(
    engine: Engine, declared: Mapping[str, QueueBound], jobs: Sequence[Job], *, may_shed: bool = True, leaving: int = 0
) -> list[Shed]:
    """Return what must be shed once these jobs are in, or raise QueueFull. Looks only at queues that are declared here.

    Jobs whose key or unique name an existing job answers for need no room. `leaving` jobs are about to leave.
    """
    coming = [job for job in jobs if job.state in WAITING and job.queue in declared]
    if not coming:
        return []
    depths = await engine.count()
    bounds = await _bounds(engine, {job.queue: declared[job.queue] for job in coming})
    tight = {
        queue: bound
        for queue, bound in bounds.items()
        if depth_of(depths, queue) - leaving + _number(coming, queue) > bound.most_waiting
    }
    if not tight:
        return []
    arrivals = await find_arrivals(engine, jobs)
    entering = [job for job in arrivals.new if job.id not in arrivals.replacing]
    sheds: list[Shed] = []
    for queue, bound in tight.items():
        number, depth = _number(entering, queue), depth_of(depths, queue)
        excess = depth - leaving + number - bound.most_waiting
        if number == 0 or excess <= 0:
            continue
        if bound.when_full == SHED_OLDEST and not may_shed:
            raise _full(bound, depth, number, "jobs can't be shed in your transaction (connection=); ")
        if bound.when_full != SHED_OLDEST or number > bound.most_waiting or excess > SHED_AT_ONCE:
            raise _full(bound, depth, number)
        old = await _oldest(engine, queue, excess, arrivals.answering)
        if len(old) < excess:
            raise _full(bound, depth, number)
        sheds.append(Shed(bound, depth, excess, old, arrivals.answering))
    return sheds


async def shed(engine: Engine, sheds: Sequence[Shed], answers: Sequence[Inserted]) -> None:
    """Cancel the oldest jobs that never started, for these new ones, as far as their queues exceed their bounds.

    Children are spared: what a running job has submitted, it waits for.
    """
    for one in sheds if any(answer.new for answer in answers) else ():
        await _shed(engine, one, one.excess, {*one.spared, *(answer.id for answer in answers)})


async def shed_overflow(engine: Engine, sheds: Sequence[Shed]) -> None:
    """Cancel what a queue holds above its bound already: submits at the same moment may all have found room."""
    for one in sheds:
        if (over := one.depth - one.bound.most_waiting) > 0:
            await _shed(engine, one, over, one.spared)


async def _shed(engine: Engine, one: Shed, left: int, spared: Collection[str]) -> None:
    old = one.old
    for _ in range(SHED_TRIES):
        now_over = depth_of(await engine.count(), one.bound.queue) - one.bound.most_waiting
        left = min(left, now_over)
        if left <= 0 or not old:
            break
        left -= await _cancel(engine, one, old[:left])
        old = await _oldest(engine, one.bound.queue, left, spared) if left > 0 else ()


async def _bounds(engine: Engine, declared: Mapping[str, QueueBound]) -> dict[str, QueueBound]:
    """The bounds that count for a submitter: its own declarations, unless a person has set another number."""
    records = await read_bounds(engine)
    persons = {queue: record.person for queue, record in records.items() if record.person is not None}
    return {
        queue: replace(bound, most_waiting=persons[queue].most_waiting) if queue in persons else bound
        for queue, bound in declared.items()
    }


def _number(jobs: Sequence[Job], queue: str) -> int:
    return sum(job.queue == queue and job.state in WAITING for job in jobs)


async def find_arrivals(engine: Engine, jobs: Sequence[Job]) -> Arrivals:
    """Which of these jobs an insert would add, as far as can be told now: none if it would refuse one of them."""
    asked = [name for job in jobs if (name := _name(job)) is not None]
    held = dict(zip(asked, await engine.holders(asked), strict=True))
    ids = {*(job.id for job in jobs), *(one.job for one in held.values() if one is not None)}
    there = {job.id: job for job in await engine.get(sorted(ids)) if job is not None}
    new: list[Job] = []
    answering, replacing = set[str](), set[str]()
    for job in jobs:
        if job.id in there:
            answering.add(job.id)
            continue
        name, unique = _name(job), job.options.unique
        one = None if name is None else held.get(name)
        holder = None if one is None else there.get(one.job)
        is_taken = one is not None and _counts(one, holder, job)
        if one is not None and is_taken:
            if (one.digest != job.digest) if unique is None else (unique.then == REFUSE):
                return Arrivals((), ())
            answering.add(one.job)
        is_replaced = is_taken and unique is not None and unique.then == REPLACE
        if is_taken and not is_replaced:
            continue
        there[job.id] = job
        if name is not None:
            held[name] = _held_by(name, job)
        new.append(job)
        if is_replaced and holder is not None and holder.state in WAITING and holder.queue == job.queue:
            replacing.add(job.id)
    return Arrivals(new, answering, replacing)


def _name(job: Job) -> tuple[str, str] | None:
    """The unique name or the key that a job takes."""
    if job.options.unique is not None:
        return UNIQUE, job.options.unique.key
    return None if job.key is None else (job.type, job.key)


def _held_by(name: tuple[str, str], job: Job) -> HeldKey:
    if job.options.unique is None:
        return HeldKey(*name, job.id, job.digest, job.key_until)
    return HeldKey(*name, job.id, stamp(job), until(job))


def _counts(one: HeldKey, holder: Job | None, job: Job) -> bool:
    if job.options.unique is not None:
        return counts(one.digest, one.until, None if holder is None else holder.state, job)
    return one.until is None or one.until > job.created_at


async def _oldest(engine: Engine, queue: str, number: int, spared: Collection[str]) -> list[Job]:
    found: list[Job] = []
    after, limit = "", min(PAGE_LIMIT, number + FEW)
    for _ in range(PAGES_READ):
        page = await engine.find(Where(states=WAITING, queue=queue), after, limit)
        found += [job for job in page if job.epoch == 0 and job.parent is None and job.id not in spared]
        if len(found) >= number or len(page) < limit:
            break
        after, limit = page[-1].id, PAGE_LIMIT
    return found[:number]


async def _cancel(engine: Engine, one: Shed, old: Sequence[Job]) -> int:
    """Cancel these jobs, and return how many it were: some may have started meanwhile."""
    bound = one.bound
    why = f"{SHED}queue {bound.queue} is full ({one.depth:,} jobs wait, at most {bound.most_waiting:,} may)"
    now = await engine.now()
    changes = [await end_change(engine, job, Event.CANCEL, now, by="caller", note={"reason": why}) for job in old]
    applied = 0
    for change, answer in zip(changes, await engine.commit(changes), strict=True):
        if isinstance(answer, Applied):
            applied += 1
            await notify_others(engine, change, answer, by=change.by)
    return applied


def _full(bound: QueueBound, depth: int, number: int, why: str = "") -> QueueFull:
    more = "" if number == 1 else f", and {number:,} more would come"
    return QueueFull(
        f"queue {bound.queue} is full: {depth:,} jobs wait{more}, and at most {bound.most_waiting:,} may; {why}nothing "
        f"was submitted; try again in {RETRY_SECONDS:g} seconds, start more workers, or raise most_waiting",
        queue=bound.queue,
        depth=depth,
        most_waiting=bound.most_waiting,
        retry_after=RETRY_SECONDS,
    )
