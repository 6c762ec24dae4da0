"""`in_memory(app)`: runs your App on a store in memory, with a worker and a clock that the test advances.

Must not touch the App's own store. For blocking and async tests: `with` or `async with`.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Self

from msgspec.structs import replace

from holdfast.app.app import App
from holdfast.core.durations import Duration, milliseconds
from holdfast.core.model import Job
from holdfast.jobs.service import Jobs
from holdfast.testing.store import Clock, Store, can_go_on, moved
from holdfast.upkeep.keeper import Keeper
from holdfast.upkeep.scheduling import Scheduling
from holdfast.worker.attempt import Attempt
from holdfast.worker.registry import JobSpec
from holdfast.worker.suspension import Suspension
from holdfast.worker.worker import Worker

LOOK_SECONDS = 0.002
"""How often to check whether any job can still continue."""

MOVES_LIMIT = 10_000
"""How often one `advance` may stop for something that becomes due."""

GRACE_SECONDS = 0.2
"""How long running jobs may take to finish when the test is over."""


PATIENCE_SECONDS = 0.05
"""How long a job whose tasks all wait keeps running before it suspends. Short, because tests wait for it."""


class Impatient(Worker):
    """A worker whose jobs suspend sooner, and whose isolated jobs run in the test's own process."""

    def make_attempt(self, job: Job, spec: JobSpec, claimed: float) -> Attempt:
        """See Worker.make_attempt."""
        attempt = super().make_attempt(job, replace(spec, isolated=False), claimed)
        Suspension.of(attempt).patience_seconds = attempt.limit_seconds = PATIENCE_SECONDS
        return attempt


def in_memory(app: App, *, at_once: int = 8) -> "InMemory":
    """Run this App's jobs on a store in memory, with a worker of `at_once` slots, until the block ends.

    Use `with in_memory(app) as test:` in a blocking test, and `async with in_memory(app) as test:` in an async one.
    Submit as usual: `app.sync.submit(job, …)` or `await job.submit(…)`. The App's own store isn't touched.
    """
    return InMemory(app, at_once)


class InMemory:
    """An App in memory, for an async test."""

    def __init__(self, app: App, at_once: int) -> None:
        self.app = app
        self.clock = Clock()
        """The store's clock. Mostly you want this test's `advance`, which also waits until the jobs have reacted."""
        self._at_once = at_once
        self._store = Store(self.clock)
        self._stack = AsyncExitStack()
        self._worker: Worker
        self._keeper: Keeper
        self._scheduling: Scheduling

    async def __aenter__(self) -> Self:
        settings, store = self.app.settings, self._store
        store.observe_like(self.app.engine)
        self._stack.enter_context(moved(self.app, store))
        self._worker = Impatient(
            store, self.app.registry, queues=self.app._queues(), at_once=self._at_once, hooks=self.app.hooks
        )
        self._keeper = Keeper(
            store,
            self._worker.id,
            lease_seconds=settings.lease_seconds,
            look_seconds=settings.look_seconds,
            upkeep_seconds=settings.upkeep_seconds,
        )
        self._scheduling = Scheduling(
            store, self._worker.id, self.app.registry.misfit, steady=lambda: self.clock() / 1_000
        )
        try:
            await self.app.open()
            await self._worker.start()
        except BaseException:
            await self._stack.aclose()
            raise
        self._stack.push_async_callback(self.app.hooks.drain)
        self._stack.push_async_callback(self._worker.stop, GRACE_SECONDS)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def __enter__(self) -> "SyncInMemory":
        self.app.sync.call(self.__aenter__())
        return SyncInMemory(self)

    def __exit__(self, *_: object) -> None:
        self.app.sync.call(self.__aexit__())

    async def idle(self, within: Duration = "30s") -> None:
        """Wait until no job can continue by itself: each has ended, needs a person, or waits for something.

        Then wait a moment for the App's hooks.
        """
        await idle(self._store, self._worker, within)
        await self.app.hooks.drain()

    async def advance(self, by: Duration) -> None:
        """Let time pass, and wait until the jobs have reacted. Whatever becomes due on the way happens at its time."""
        await self.idle()
        target = self.clock() + milliseconds(by)
        for _ in range(MOVES_LIMIT):
            await self._fire()
            due = [at for at in (self._store.next_moment(), self._scheduling.next_at()) if at is not None]
            moment = min([target, *due])
            self.clock.advance_to(moment)
            await self._fire()
            await self._keeper.tidy()
            await self.idle()
            if moment == target:
                return
        raise AssertionError(f"advance({by!r}): more than {MOVES_LIMIT} things became due; advance in smaller steps")

    async def _fire(self) -> None:
        """Fire the ticks that are due, and hear of new schedules."""
        await self._scheduling.look({one.worker: one for one in await Jobs(self._store).workers()})


class SyncInMemory:
    """An App in memory, for a blocking test."""

    def __init__(self, test: InMemory) -> None:
        self.app = test.app
        self.clock = test.clock
        self._test = test

    def idle(self, within: Duration = "30s") -> None:
        """See InMemory.idle."""
        self.app.sync.call(self._test.idle(within))

    def advance(self, by: Duration) -> None:
        """See InMemory.advance."""
        self.app.sync.call(self._test.advance(by))


async def idle(store: Store, worker: Worker, within: Duration, check: Callable[[], None] = lambda: None) -> None:
    """Wait until no job can continue by itself, and the worker has finished the last one."""
    end = time.monotonic() + milliseconds(within) / 1_000
    while (jobs := can_go_on(store, worker.queues, worker.types(), await Jobs(store).paused())) or worker.is_busy():
        check()
        if time.monotonic() > end:
            what = [f"job {job.id} ({job.type}): {await Jobs(store).status(job.id)}" for job in jobs[:1]]
            raise TimeoutError(f"still not idle after {within}: {', '.join(what) or 'the worker is finishing a job'}")
        await asyncio.sleep(LOOK_SECONDS)
