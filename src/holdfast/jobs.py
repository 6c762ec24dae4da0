"""What callers may ask of jobs: submit, look, and the changes that need no lease.

Must not know a concrete store, and must not decide what a change is: each call looks, lets `lifecycle` decide, and
commits; when somebody else was faster, it looks again.
"""

import secrets
import threading
from collections.abc import AsyncIterator, Callable, Sequence

import msgspec

from holdfast.core.codec import canonical, parse
from holdfast.core.errors import Invalid, NotFound, Outrun
from holdfast.core.keys import check_id, check_queue, check_type, digest, new_id
from holdfast.core.lifecycle import decide, deliver, first_state
from holdfast.core.model import (
    PAGE_LIMIT,
    Applied,
    Change,
    Entry,
    Event,
    Inserted,
    Job,
    Lease,
    Options,
    Time,
    Wait,
    WaitKind,
    Where,
)
from holdfast.core.outcome import check_retry
from holdfast.engines.contract import PAUSE, Engine

PRIORITY_LIMIT = 100
"""Priorities go from minus this to plus this; higher comes first."""

KEY_LIMIT = 255
"""The longest idempotency key, in characters."""

CHANGE_TRIES = 50
"""How often a change is decided anew when somebody else was faster. Only a bug or a storm needs more."""

Ids = Callable[[Time], str]


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What a caller wants done. `args` is canonical JSON text; times are the store's."""

    type: str
    args: str = "[]"
    queue: str = "default"
    priority: int = 0
    key: str | None = None
    key_until: Time | None = None
    run_at: Time | None = None
    expires_at: Time | None = None
    pending: bool = False
    options: Options = Options()


class Jobs:
    """The jobs of one store."""

    def __init__(self, engine: Engine, ids: Ids | None = None) -> None:
        self.engine = engine
        self._ids = ids or random_ids()

    # Submitting.

    async def submit(self, orders: Sequence[Order], parent: Lease | None = None) -> list[Inserted]:
        """Accept jobs, all or none. A key that is known gives the job that has it.

        Raises KeyConflict when a key stands for other arguments, and LeaseLost when `parent` lost its lease.
        """
        now = await self.engine.now()
        return await self.engine.insert([new_job(order, self._ids(now), now) for order in orders], parent)

    # Looking.

    async def get(self, id: str) -> Job:
        """One job, or NotFound."""
        (job,) = await self.engine.get([check_id(id)])
        if job is None:
            raise NotFound(f"there is no job {id} in this store; it may have been pruned, or the store is another one")
        return job

    async def walk(self, where: Where) -> AsyncIterator[Job]:
        """All jobs of a kind, page by page."""
        after = ""
        while page := await self.engine.find(where, after):
            for job in page:
                yield job
            if len(page) < PAGE_LIMIT:
                return
            after = page[-1].id

    async def history(self, id: str) -> list[Entry]:
        """The whole history of a job."""
        entries: list[Entry] = []
        while page := await self.engine.history(id, after=len(entries)):
            entries += page
            if len(page) < PAGE_LIMIT:
                break
        return entries

    # Changes that need no lease. `by` names who asked, `reason` why; both are kept in the history.

    async def cancel(self, id: str, *, by: str = "caller", reason: str = "") -> Job:
        """Stop a job for good. A running one loses its lease at once."""
        return await self._change(id, lambda job, now: decide(job, Event.CANCEL, now, by=by, note=_note(reason)))

    async def activate(self, id: str, *, by: str = "caller", reason: str = "") -> Job:
        """Let a pending job go on, whatever it waited for."""
        return await self._change(id, lambda job, now: decide(job, Event.ACTIVATE, now, by=by, note=_note(reason)))

    async def signal(self, id: str, name: str, value: object = None, *, by: str = "caller") -> Job:
        """Send a job a named value. It wakes one that waits for it, and else waits in the inbox."""
        text = canonical(value)
        return await self._change(id, lambda job, now: deliver(job, name, text, now, by=by))

    async def replay(self, id: str, *, args: str | None = None, by: str = "person", reason: str = "") -> Job:
        """Run a job in review again, from what it has recorded, with its own arguments or with edited ones."""
        text = None if args is None else canonical(parse(args))

        def again(job: Job, now: Time) -> Change:
            edited = None if text is None else (text, digest(job.type, text))
            return decide(job, Event.REPLAY, now, by=by, args=edited, note=_note(reason))

        return await self._change(id, again)

    async def resolve(self, id: str, result: object = None, *, by: str = "person", reason: str = "") -> Job:
        """Complete a job in review with a result that a person supplies."""
        text = canonical(result)
        return await self._change(
            id, lambda job, now: decide(job, Event.RESOLVE, now, by=by, result=text, note=_note(reason))
        )

    async def discard(self, id: str, *, by: str = "person", reason: str = "") -> Job:
        """Give up a job in review for good."""
        return await self._change(id, lambda job, now: decide(job, Event.DISCARD, now, by=by, note=_note(reason)))

    async def _change(self, id: str, choose: Callable[[Job, Time], Change]) -> Job:
        """Look, decide, commit; again when somebody else was faster."""
        for _ in range(CHANGE_TRIES):
            job = await self.get(id)
            change = choose(job, await self.engine.now())
            (answer,) = await self.engine.commit([change])
            if isinstance(answer, Applied):
                return await self.get(id)
        raise Outrun(
            f"job {id}: changed by others {CHANGE_TRIES} times while we tried; look what drives it, then repeat"
        )

    # Queues.

    async def pause(self, queue: str, *, by: str = "caller", reason: str = "") -> None:
        """Hand out nothing of a queue until it is resumed. Jobs in flight go on, and no job changes its state."""
        await self.engine.put_record(PAUSE + check_queue(queue), canonical({"by": by, "reason": reason}))

    async def resume(self, queue: str) -> None:
        """Hand out a paused queue's jobs again."""
        await self.engine.put_record(PAUSE + check_queue(queue), None)

    async def paused(self) -> list[str]:
        """The queues that are paused."""
        return [record.name.removeprefix(PAUSE) for record in await self.engine.records(PAUSE)]


def new_job(order: Order, id: str, now: Time) -> Job:
    """The job that an order makes, checked."""
    if not -PRIORITY_LIMIT <= order.priority <= PRIORITY_LIMIT:
        raise Invalid(f"priority {order.priority}: give a number from {-PRIORITY_LIMIT} to {PRIORITY_LIMIT}")
    if order.key is not None and not 0 < len(order.key) <= KEY_LIMIT:
        raise Invalid(f"a key of {len(order.key)} characters: give 1 to {KEY_LIMIT}")
    if order.expires_at is not None and order.expires_at <= now:
        raise Invalid(f"{order.type}: expires before it was submitted; give a time that is still to come")
    check_retry(order.options.retry)
    waits = (Wait(WaitKind.ACTIVATION),) if order.pending else ()
    state, run_at = first_state(now, order.run_at, waits)
    return Job(
        id=id,
        type=check_type(order.type),
        queue=check_queue(order.queue),
        args=order.args,
        digest=digest(order.type, order.args),
        priority=order.priority,
        key=order.key,
        key_until=order.key_until,
        created_at=now,
        expires_at=order.expires_at,
        options=order.options,
        state=state,
        run_at=run_at,
        waits=waits,
    )


def random_ids() -> Ids:
    """Ids that sort in the order in which this process drew them, and that no other process draws."""
    lock = threading.Lock()
    last_at, last_bits = 0, 0

    def draw(now: Time) -> str:
        nonlocal last_at, last_bits
        with lock:
            if now > last_at:
                last_at, last_bits = now, secrets.randbits(73)
            else:  # the same millisecond, or a clock that was set back
                last_bits += 1 + secrets.randbits(32)
            return new_id(last_at, last_bits)

    return draw


def _note(reason: str) -> dict[str, str]:
    return {"reason": reason} if reason else {}
