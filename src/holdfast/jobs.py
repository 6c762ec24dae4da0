"""What callers may ask of jobs: submit, look, and the changes that need no lease.

Must not know a concrete store, and must not decide what a change is: each call looks, lets `lifecycle` decide, and
commits; when somebody else was faster, it looks again.
"""

import secrets
import threading
from collections.abc import AsyncIterator, Callable, Sequence

import msgspec
from msgspec.structs import replace

from holdfast.core.codec import canonical, parse
from holdfast.core.durations import in_words
from holdfast.core.errors import Invalid, NotFound, Outrun
from holdfast.core.keys import check_id, check_queue, check_type, digest, new_id
from holdfast.core.lifecycle import decide, deliver, first_state
from holdfast.core.model import (
    PAGE_LIMIT,
    Applied,
    Change,
    Entry,
    Error,
    Event,
    Inserted,
    Job,
    Lease,
    Options,
    Presence,
    Running,
    State,
    Step,
    StepState,
    Time,
    Wait,
    WaitKind,
    Where,
)
from holdfast.core.outcome import check_retry
from holdfast.engines.contract import PAUSE, WORKER, Engine

PRIORITY_LIMIT = 100
"""Priorities go from minus this to plus this; higher comes first."""

LABEL_LIMIT, LABEL_CHARACTERS, META_CHARACTERS = 50, 100, 4_000
"""How many tags and meta entries a job may have, and how long they may be."""

KEY_LIMIT = 255
"""The longest idempotency key, in characters."""

LOG_PATH = "~log"
"""The record under which a job's log lines are kept. No step's path begins with a tilde."""

CHANGE_TRIES = 50
"""How often a change is decided anew when somebody else was faster. Only a bug or a storm needs more."""

Ids = Callable[[Time], str]


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What a caller wants done. Times are the store's.

    `args` is JSON text, which is checked and made canonical unless it is `encoded` already, by a `Signature`.
    """

    type: str
    args: str = "[]"
    encoded: bool = False
    queue: str = "default"
    priority: int = 0
    key: str | None = None
    key_until: Time | None = None
    run_at: Time | None = None
    expires_at: Time | None = None
    pending: bool = False
    options: Options = Options()


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """Where a job stands, for a person. Times are milliseconds: `…_at` since 1970, `…_ms` a duration."""

    id: str
    type: str
    queue: str
    state: State
    version: int
    stage: str
    stage_number: int | None
    stages: tuple[str, ...]
    done: int | None
    total: int | None
    made: int
    text: str
    attempt: int
    recoveries: int
    epoch: int
    worker: str | None
    steps: int
    error: Error | None
    waits: tuple[Wait, ...]
    run_at: Time | None
    created_at: Time
    finished_at: Time | None
    running_ms: int | None
    stage_ms: int | None

    @property
    def remaining_ms(self) -> int | None:
        """An estimate of what is left of this stage: as long for each item as those took that this attempt made."""
        if not self.made or self.done is None or self.total is None or self.stage_ms is None:
            return None
        return round(self.stage_ms / self.made * max(0, self.total - self.done))

    def progress(self) -> tuple[object, ...]:
        """What changes when the job gets on."""
        return self.state, self.stage, self.done, self.total, self.text, self.steps

    def __str__(self) -> str:
        """In words: "drawing, stage 3 of 7, 12 of 30, for 2 min"."""
        words = [str(self.state)]
        if self.stage and self.state is State.ACTIVE:
            place = f"stage {self.stage_number} of {len(self.stages)}" if self.stage_number else "stage"
            words.append(f"{place}: {self.stage}")
        if self.done is not None and self.total is not None:
            words.append(f"{self.done} of {self.total}")
        if self.text:
            words.append(self.text)
        if self.stage_ms is not None:
            words.append(f"for {in_words(self.stage_ms)}")
        if self.remaining_ms is not None:
            words.append(f"about {in_words(self.remaining_ms)} left")
        return ", ".join(words)


class Pause(msgspec.Struct, frozen=True, kw_only=True):
    """Why a queue hands out nothing."""

    at: Time
    by: str = ""
    reason: str = ""


class Jobs:
    """The jobs of one store."""

    def __init__(self, engine: Engine, ids: Ids | None = None) -> None:
        self.engine = engine
        self._ids = ids or random_ids()

    # Submitting.

    async def submit(
        self,
        orders: Sequence[Order],
        parent: Lease | None = None,
        *,
        ids: Sequence[str] | None = None,
        group: str | None = None,
    ) -> list[Inserted]:
        """Accept jobs, all or none. A key that is known gives the job that has it.

        With `parent` they are children of the job that holds this lease, in a group of their own; their derived `ids`
        make it safe to submit them again. Raises KeyConflict when a key stands for other arguments, and LeaseLost when
        the parent lost its lease.
        """
        now = await self.engine.now()
        jobs = [
            new_job(order, self._ids(now) if ids is None else ids[place], now) for place, order in enumerate(orders)
        ]
        if parent is not None:
            jobs = [replace(job, parent=parent.job, group=group) for job in jobs]
        return await self.engine.insert(jobs, parent)

    # Looking.

    async def get(self, id: str) -> Job:
        """One job, or NotFound."""
        (job,) = await self.engine.get([check_id(id)])
        if job is None:
            raise NotFound(f"there is no job {id} in this store; it may have been pruned, or the store is another one")
        return job

    async def status(self, id: str) -> Status:
        """Where a job stands, for a person."""
        job = await self.get(id)
        now = await self.engine.now()
        running: Running | None = None
        if job.worker is not None:
            name = WORKER + job.worker
            for record in [one for one in await self.engine.records(name) if one.name == name]:
                presence = msgspec.json.decode(record.value, type=Presence)
                running = next((one for one in presence.running if (one.job, one.epoch) == (id, job.epoch)), None)
        steps = [step for step in await self.engine.steps(id) if not step.path.startswith("~")]
        return status_of(job, steps, running, now)

    async def statuses(self, jobs: Sequence[Job]) -> list[Status]:
        """Where each of these jobs stands. The workers are asked once for all of them."""
        now = await self.engine.now()
        running = {
            (one.job, one.epoch): one
            for presence in (await self.workers() if any(job.worker for job in jobs) else [])
            for one in presence.running
        }
        found: list[Status] = []
        for job in jobs:
            steps = [step for step in await self.engine.steps(job.id) if not step.path.startswith("~")]
            found.append(status_of(job, steps, running.get((job.id, job.epoch)), now))
        return found

    async def workers(self) -> list[Presence]:
        """All workers that have shown themselves and not left, by name; the dead are marked as gone."""
        return [msgspec.json.decode(record.value, type=Presence) for record in await self.engine.records(WORKER)]

    async def log(self, id: str) -> list[str]:
        """The log lines that are kept with a job."""
        for step in await self.engine.steps(id):
            if step.path == LOG_PATH and step.result is not None:
                return msgspec.json.decode(step.result, type=list[str])
        return []

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

    async def pauses(self) -> dict[str, Pause]:
        """The queues that are paused, with who paused them, when and why."""
        return {
            record.name.removeprefix(PAUSE): Pause(at=record.at, **_told(record.value))
            for record in await self.engine.records(PAUSE)
        }


def status_of(job: Job, steps: Sequence[Step], running: Running | None, now: Time) -> Status:
    """Put together where a job stands from its row, its records, and what its worker last said."""
    done_steps = [step for step in steps if step.state is StepState.DONE]
    stage = running.stage if running is not None else ""
    if not stage and steps and job.state is not State.COMPLETED:
        stage = steps[-1].path.split("/")[0].split("#")[0]
    done = running.done if running is not None else None
    total = running.total if running is not None else None
    since = (running.since if running is not None else None) or job.claimed_at
    stages = job.options.stages
    return Status(
        id=job.id,
        type=job.type,
        queue=job.queue,
        state=job.state,
        version=job.version,
        stage=stage,
        stage_number=stages.index(stage) + 1 if stage in stages else None,
        stages=stages,
        done=done if done is not None else (len(done_steps) or None),
        total=total,
        made=running.made if running is not None else 0,
        text=running.text if running is not None else "",
        attempt=job.attempt,
        recoveries=job.recoveries,
        epoch=job.epoch,
        worker=job.worker,
        steps=len(done_steps),
        error=job.error,
        waits=job.waits,
        run_at=job.run_at,
        created_at=job.created_at,
        finished_at=job.finished_at,
        running_ms=None if job.claimed_at is None else max(0, now - job.claimed_at),
        stage_ms=None if since is None or job.state is not State.ACTIVE else max(0, now - since),
    )


def new_job(order: Order, id: str, now: Time) -> Job:
    """The job that an order makes, checked."""
    if type(order.priority) is not int or not -PRIORITY_LIMIT <= order.priority <= PRIORITY_LIMIT:
        raise Invalid(f"priority {order.priority}: give a number from {-PRIORITY_LIMIT} to {PRIORITY_LIMIT}")
    if order.key is not None and not (isinstance(order.key, str) and 0 < len(order.key) <= KEY_LIMIT):
        raise Invalid(f"key {order.key!r}: give a text of 1 to {KEY_LIMIT} characters")
    _check_labels(order.options)
    if order.expires_at is not None and order.expires_at <= now:
        raise Invalid(f"{order.type}: expires before it was submitted; give a time that is still to come")
    args = order.args if order.encoded else canonical(parse(order.args))
    check_retry(order.options.retry)
    waits = (Wait(WaitKind.ACTIVATION),) if order.pending else ()
    state, run_at = first_state(now, order.run_at, waits)
    return Job(
        id=id,
        type=check_type(order.type),
        queue=check_queue(order.queue),
        args=args,
        digest=digest(order.type, args),
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


def _check_labels(options: Options) -> None:
    """Tags and meta are small texts, for people and filters."""
    tags, meta = options.tags, options.meta
    if len(tags) > LABEL_LIMIT or not all(isinstance(tag, str) and 0 < len(tag) <= LABEL_CHARACTERS for tag in tags):
        raise Invalid(f"tags: give up to {LABEL_LIMIT} texts of 1 to {LABEL_CHARACTERS} characters each")
    if not isinstance(meta, dict) or len(meta) > LABEL_LIMIT:
        raise Invalid(f"meta: give a dict with up to {LABEL_LIMIT} entries")
    for name, value in meta.items():
        if not (isinstance(name, str) and isinstance(value, str) and len(name) + len(value) <= META_CHARACTERS):
            raise Invalid(f"meta {name!r}: give texts, of {META_CHARACTERS} characters in all")


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


def _told(text: str) -> dict[str, str]:
    """Who paused a queue and why. A record that somebody else wrote in another form pauses all the same."""
    try:
        value = parse(text)
    except Invalid:
        return {}
    return {name: str(value[name]) for name in ("by", "reason") if name in value} if isinstance(value, dict) else {}


def _note(reason: str) -> dict[str, str]:
    return {"reason": reason} if reason else {}
