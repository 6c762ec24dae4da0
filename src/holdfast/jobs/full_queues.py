"""The bounds of queues in a store: read, declare, set and reset them. Must not know who they let in (`room`).

The record `queue/NAME` has what the worker that started last declares (`code`), and what a person has set, which beats
code.
"""

from collections.abc import Callable, Sequence

import msgspec
from msgspec import DecodeError, Struct
from msgspec.structs import replace

from holdfast.core.errors import Invalid, NotFound, Outrun
from holdfast.core.keys import check_queue
from holdfast.core.limits import REASON_CHARACTERS
from holdfast.core.model import Conflict, Record, Time
from holdfast.core.queue_bounds import QueueBound, check_most_waiting
from holdfast.engines.contract import Engine

QUEUE = "queue/"
"""The record `queue/NAME` has the bound of that queue."""

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


async def stored_bounds(engine: Engine) -> dict[str, QueueBound]:
    """Return the bounds that count for callers that declare none themselves, by queue."""
    found = {queue: record.now(queue) for queue, record in (await read_bounds(engine)).items()}
    return {queue: bound for queue, bound in found.items() if bound is not None}


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
