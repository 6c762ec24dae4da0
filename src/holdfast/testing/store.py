"""A test's store: in memory, with a clock that the test advances, and workers that live until they are killed.

Must not know what is tested. It reports each moment at which a worker can be killed to whoever watches.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import contextmanager

import msgspec

from holdfast.app.app import App
from holdfast.core.durations import Duration, milliseconds
from holdfast.core.model import (
    Admission,
    Applied,
    Ask,
    Beat,
    Change,
    Conflict,
    Inserted,
    Job,
    Lease,
    Presence,
    Record,
    Recorded,
    State,
    Step,
    Time,
)
from holdfast.core.shared_limits import awaits_permit
from holdfast.engines.contract import system_clock
from holdfast.engines.memory import MemoryEngine
from holdfast.engines.records import WORKER, worker_in
from holdfast.engines.wakeups import EVERYTHING
from holdfast.jobs.service import Jobs
from holdfast.testing.moments import Moment, apart, claimed, committed, inserted, recorded

WAITING = (State.SCHEDULED, State.RETRYABLE, State.PENDING, State.AVAILABLE)
"""States in which a job can become due."""


class Clock:
    """A store's time: the machine's, plus what a test has added."""

    def __init__(self) -> None:
        self._ahead: Time = 0
        self._hearing: list[Callable[[], None]] = []

    def __call__(self) -> Time:
        """Milliseconds since 1970."""
        return system_clock() + self._ahead

    def advance(self, by: Duration) -> None:
        """Let time pass. Everything due by then becomes due at once."""
        self._ahead += milliseconds(by)
        for heard in self._hearing:
            heard()

    def advance_to(self, time: Time) -> None:
        """Let time pass until then. A time in the past changes nothing."""
        self.advance(max(0, time - self()) / 1_000)

    def tell(self, heard: Callable[[], None]) -> None:
        """Call this whenever time has passed."""
        self._hearing.append(heard)


class Store(MemoryEngine):
    """The memory engine for one test."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.clock = clock
        self.watch: Callable[[Moment, str], Awaitable[None]] | None = None
        """Awaited with each moment, just before and just after its write."""
        self._dead: set[str] = set()
        self._still: set[asyncio.AbstractEventLoop] = set()
        self._unwinding: set[asyncio.AbstractEventLoop] = set()
        clock.tell(lambda: self._wakeups.ring([EVERYTHING]))

    def kill(self, worker: str, loop: asyncio.AbstractEventLoop) -> None:
        """Kill this worker: from now on its loop's writes are dropped, and its calls never return."""
        self._dead.add(worker)
        self._still.add(loop)

    def unwind(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let what is left on this loop end. Its writes are still dropped."""
        self._unwinding.add(loop)

    async def answers(self) -> None:
        """Return only if the calling worker is alive."""
        loop = asyncio.get_running_loop()
        if loop in self._unwinding:
            raise asyncio.CancelledError
        if loop in self._still:
            await loop.create_future()

    def type_of(self, job: str) -> str:
        """A job's type; "" if the job doesn't exist."""
        found = self._tables.jobs.get(job)
        return "" if found is None else found.type

    def is_recorded(self, job: str, path: str) -> bool:
        """Whether a step has a finished record."""
        step = self._tables.steps.get(job, {}).get(path)
        return step is not None and step.finished_at is not None

    def all_jobs(self) -> list[Job]:
        """All jobs, in the order of their ids."""
        with self._lock:
            return [self._tables.jobs[id] for id in sorted(self._tables.jobs)]

    def all_steps(self, job: str) -> list[Step]:
        """All records of a job."""
        with self._lock:
            return list(self._tables.steps.get(job, {}).values())

    def next_moment(self) -> Time | None:
        """When a waiting job becomes due or expires; None if time changes nothing."""
        now, jobs = self.clock(), [job for job in self.all_jobs() if job.state in WAITING]
        moments = (at for job in jobs for at in (job.run_at, job.expires_at, self.looked_at(job)) if at is not None)
        return min((at for at in moments if at > now), default=None)

    def looked_at(self, job: Job) -> Time | None:
        """When a claim next looks whether a job that waits for a limit may start; None: only after an event."""
        with self._lock:
            return self._tables.looked_at(job) if awaits_permit(job) else None

    # Writes of workers.

    async def _before(self, moment: Moment | None) -> None:
        await self.answers()
        if self.watch is not None and moment is not None and moment.before is not None:
            await self.watch(moment, moment.before)

    async def _after(self, moment: Moment | None) -> None:
        if self.watch is not None and moment is not None and moment.after is not None:
            await self.watch(moment, moment.after)

    async def _insert(self, jobs: Sequence[Job], parent: Lease | None) -> list[Inserted]:
        moment = inserted(jobs, parent)
        await self._before(moment)
        answer = await super()._insert(jobs, parent)
        await self._after(moment)
        return answer

    async def _claim(self, worker: str, queues: list[str], limit: int, types: list[str] | None) -> list[Job]:
        await self._before(None)
        jobs = await super()._claim(worker, queues, limit, types)
        for job in jobs:
            await self._after(claimed(job))
        return jobs

    async def _record(self, steps: Sequence[Step]) -> list[Recorded | Conflict]:
        """Record each step separately: a kill may fall between any two that were sent together."""
        answers: list[Recorded | Conflict] = []
        for part in apart(steps):
            moment = recorded(part)
            await self._before(moment)
            answers += await super()._record(part)
            await self._after(moment)
        return answers

    async def _admit(
        self, asks: Sequence[Ask], steps: Sequence[Step]
    ) -> tuple[list[Admission | Conflict], list[Recorded | Conflict]]:
        """Record the steps first: a kill may fall between them and what is asked for."""
        recorded = await self._record(steps)
        await self._before(None)
        admitted, _ = await super()._admit(asks, ())
        return admitted, recorded

    async def _turn(
        self, changes: Sequence[Change], worker: str, queues: list[str], limit: int, types: list[str] | None
    ) -> tuple[list[Applied | Conflict], list[Job]]:
        """Commit each end separately: a worker may be killed between two of them."""
        answers = [answer for change in changes for answer in await self._commit([change])]
        return answers, await self._claim(worker, queues, limit, types) if limit else []

    async def _commit(self, changes: Sequence[Change]) -> list[Applied | Conflict]:
        moment = committed(changes)
        await self._before(moment)
        answer = await super()._commit(changes)
        await self._after(moment)
        return answer

    async def _put_record(
        self, name: str, value: str | None, expected: int | None, jobs: Sequence[Job]
    ) -> Record | Conflict:
        await self._before(None)
        return await super()._put_record(name, value, expected, jobs)

    # Workers live until they are killed: advancing the clock makes none of them look silent.

    async def _beat(self, presence: Presence) -> Beat:
        if presence.worker in self._dead:
            return Beat(now=self.clock())
        return await super()._beat(presence)

    async def _records(self, prefix: str) -> list[Record]:
        return [self._alive(record) for record in await super()._records(prefix)]

    def _alive(self, record: Record) -> Record:
        if not record.name.startswith(WORKER):
            return record
        presence = worker_in(record)
        gone = presence.worker in self._dead
        presence = msgspec.structs.replace(presence, beat_at=self.clock(), gone=gone)
        return msgspec.structs.replace(record, value=msgspec.json.encode(presence).decode())


@contextmanager
def moved(app: App, store: Store) -> Iterator[None]:
    """Keep an App's jobs in this store for a while. Its own store stays untouched, open or not."""
    kept = (app.url, app.engine, app._jobs, app._opening)
    app.url, app.engine, app._jobs, app._opening = "memory:", store, Jobs(store), None
    try:
        yield
    finally:
        app.url, app.engine, app._jobs, app._opening = kept


def can_go_on(store: Store, queues: Collection[str], types: Collection[str], paused: Collection[str]) -> list[Job]:
    """The jobs that are running, or that a worker with these queues and types could claim now."""
    now = store.clock()
    found: list[Job] = []
    for job in store.all_jobs():
        if job.state is State.ACTIVE:
            found.append(job)
        elif job.state in WAITING and job.queue in queues and job.type in types and job.queue not in paused:
            due = job.run_at is not None and job.run_at <= now
            if awaits_permit(job):
                at = store.looked_at(job)
                if (at is not None and at <= now) or (due and job.state is State.PENDING):
                    found.append(job)
            elif due or (job.state is State.AVAILABLE and job.run_at is None):
                found.append(job)
    return found
