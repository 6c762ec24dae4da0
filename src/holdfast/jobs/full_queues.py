"""Queues with a bound: make room for a submit or refuse it; declare a bound, set and reset it. Must not know apps.

The record `queue/NAME` has what the worker that started last declares (`code`), and what a person has set, which beats
code. A submit counts and then inserts, in two acts: a queue exceeds its bound by no more than the submits under way.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import msgspec
from msgspec import DecodeError, Struct
from msgspec.structs import replace

from holdfast.core.errors import Invalid, NotFound, Outrun, QueueFull
from holdfast.core.keys import check_queue
from holdfast.core.limits import REASON_CHARACTERS
from holdfast.core.model import PAGE_LIMIT, Applied, Conflict, Event, Job, Record, Time, Where
from holdfast.core.queue_bounds import SHED_OLDEST, WAITING, QueueBound, check_most_waiting, depth_of
from holdfast.engines.contract import Engine
from holdfast.jobs.consequences import end_change, notify_others

QUEUE = "queue/"
"""The record `queue/NAME` has the bound of that queue."""

SHED_AT_ONCE = 1_000
"""How many jobs one submit sheds at most. Where more are too many, somebody has lowered the bound: it refuses."""

PAGES_READ = 20
"""How many pages of waiting jobs one submit reads to find jobs that it may shed."""

RETRY_SECONDS = 5.0
"""When a refused caller should try again."""

CHANGE_TRIES = 20


class Bound(Struct, frozen=True, omit_defaults=True):
    """A bound as somebody wrote it, with who, when and why."""

    most_waiting: int
    when_full: str = ""
    by: str = ""
    reason: str = ""
    at: Time = 0


class BoundRecord(Struct, frozen=True, omit_defaults=True):
    """The record of a queue's bound."""

    code: Bound | None = None
    person: Bound | None = None

    def now(self, queue: str) -> QueueBound | None:
        """The bound that counts: a person's number, and what code does when the queue is full."""
        code, person = self.code, self.person
        found = person or code
        if found is None:
            return None
        when_full = code.when_full if code is not None and code.when_full else "refuse"
        return QueueBound(queue, found.most_waiting, when_full)


def bound_in(record: Record) -> BoundRecord:
    """Read the record of a bound. One that can't be read counts as none."""
    try:
        return msgspec.json.decode(record.value, type=BoundRecord)
    except DecodeError:
        return BoundRecord()


async def read_bounds(engine: Engine) -> dict[str, BoundRecord]:
    """Return the bounds of all queues that have one, by queue."""
    return {record.name.removeprefix(QUEUE): bound_in(record) for record in await engine.records(QUEUE)}


# By a submitter.


async def make_room(engine: Engine, declared: Mapping[str, QueueBound], jobs: Sequence[Job]) -> None:
    """Let these new jobs in, shed others for them, or raise QueueFull. Looks only at queues that are declared here."""
    coming = Counter(job.queue for job in jobs if job.state in WAITING and job.queue in declared)
    if not coming:
        return
    counts = await engine.count()
    for queue, number in coming.items():
        bound = await _bound(engine, declared[queue])
        depth = depth_of(counts, queue)
        excess = depth + number - bound.most_waiting
        if excess <= 0:
            continue
        may_shed = bound.when_full == SHED_OLDEST and number <= bound.most_waiting and excess <= SHED_AT_ONCE
        if not may_shed or await _shed(engine, bound, depth, excess) < excess:
            raise _full(bound, depth, number)


async def _bound(engine: Engine, declared: QueueBound) -> QueueBound:
    """The bound that counts for a submitter: its own declaration, unless a person has set another number."""
    name = QUEUE + declared.queue
    for record in await engine.records(name):
        if record.name == name and (person := bound_in(record).person) is not None:
            return replace(declared, most_waiting=person.most_waiting)
    return declared


async def _shed(engine: Engine, bound: QueueBound, depth: int, number: int) -> int:
    """Cancel so many of the oldest jobs that never started. Return how many no longer wait.

    Children are spared: what a running job has submitted, it waits for.
    """
    note = {"reason": f"shed: queue {bound.queue} is full ({depth:,} jobs wait, at most {bound.most_waiting:,} may)"}
    old = await _oldest(engine, bound.queue, number)
    now = await engine.now()
    changes = [await end_change(engine, job, Event.CANCEL, now, by="caller", note=note) for job in old]
    for change, answer in zip(changes, await engine.commit(changes), strict=True):
        if isinstance(answer, Applied):
            await notify_others(engine, change, answer, by=change.by)
    return len(old)


async def _oldest(engine: Engine, queue: str, number: int) -> list[Job]:
    found: list[Job] = []
    after = ""
    for _ in range(PAGES_READ):
        page = await engine.find(Where(states=WAITING, queue=queue), after)
        found += [job for job in page if job.epoch == 0 and job.parent is None]
        if len(found) >= number or len(page) < PAGE_LIMIT:
            break
        after = page[-1].id
    return found[:number]


def _full(bound: QueueBound, depth: int, number: int) -> QueueFull:
    more = "" if number == 1 else f", and {number:,} more would come"
    return QueueFull(
        f"queue {bound.queue} is full: {depth:,} jobs wait{more}, and at most {bound.most_waiting:,} may; nothing was "
        f"submitted; try again in {RETRY_SECONDS:g} seconds, start more workers, or raise most_waiting",
        queue=bound.queue,
        depth=depth,
        most_waiting=bound.most_waiting,
        retry_after=RETRY_SECONDS,
    )


# By a worker and by a person.


async def declare_bounds(engine: Engine, bounds: Sequence[QueueBound], *, by: str) -> list[str]:
    """Write what code declares, where it has changed. Return what is worth a line in the log."""
    known = await read_bounds(engine) if bounds else {}
    told: list[str] = []
    for bound in bounds:
        record = known.get(bound.queue, BoundRecord())
        if _is_same(record.code, bound):
            continue

        def change(old: BoundRecord, now: Time, bound: QueueBound = bound) -> BoundRecord:
            code = Bound(bound.most_waiting, bound.when_full, by=by, at=now)
            return old if _is_same(old.code, bound) else replace(old, code=code)

        await _update(engine, bound.queue, change)
        if record.person is not None:
            told.append(f"queue {bound.queue}: a person's bound counts, not the code's: {record.person.most_waiting:,}")
    return told


async def set_bound(engine: Engine, queue: str, most_waiting: int, *, by: str, reason: str = "") -> BoundRecord:
    """Set how many jobs may wait in a queue, whatever code says."""
    check_most_waiting(check_queue(queue), most_waiting)
    _check_reason(reason)
    return await _update(
        engine, queue, lambda old, now: replace(old, person=Bound(most_waiting, by=by, reason=reason, at=now))
    )


async def reset_bound(engine: Engine, queue: str) -> BoundRecord:
    """Let the code's bound count again."""

    def change(old: BoundRecord, now: Time) -> BoundRecord:
        if old.person is None:
            raise NotFound(f"queue {queue}: no person has set its bound, so there is nothing to reset")
        return replace(old, person=None)

    return await _update(engine, check_queue(queue), change)


async def _update(engine: Engine, queue: str, change: Callable[[BoundRecord, Time], BoundRecord]) -> BoundRecord:
    name = QUEUE + queue
    for _ in range(CHANGE_TRIES):
        there = next((record for record in await engine.records(name) if record.name == name), None)
        old = BoundRecord() if there is None else bound_in(there)
        new = change(old, await engine.now())
        text = msgspec.json.encode(new).decode() if new != BoundRecord() else None
        answer = await engine.put_record(name, text, 0 if there is None else there.version)
        if not isinstance(answer, Conflict):
            return new
    raise Outrun(f"queue {queue}: others kept changing its bound, so nothing was changed; try again")


def _is_same(code: Bound | None, bound: QueueBound) -> bool:
    return code is not None and (code.most_waiting, code.when_full) == (bound.most_waiting, bound.when_full)


def _check_reason(reason: str) -> None:
    if len(reason) > REASON_CHARACTERS:
        raise Invalid(f"reason has {len(reason):,} characters, but the limit is {REASON_CHARACTERS:,}; shorten it")
