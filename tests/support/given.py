"""Small words for tests of jobs: quick settings, an engine that is watched, and waiting with a bound."""

import asyncio
import inspect
import os
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from holdfast import App, Settings
from holdfast.app.run import Run
from holdfast.core.errors import StoreError
from holdfast.core.keys import derived_id
from holdfast.core.lifecycle import decide
from holdfast.core.model import Entry, Event, Job, Retry, State

QUICK = Settings(
    beat_seconds=0.1,
    lease_seconds=1.0,
    look_seconds=0.05,
    poll_seconds=1.0,
    grace_seconds=0.2,
    upkeep_seconds=0.1,
)

AT_ONCE_RETRY = Retry(retries=3, strategy="constant", initial_ms=0, jitter=False)
"""Try again without a wait."""


class Watched:
    """An engine that counts its calls, and whose store can be away."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self.calls: Counter[str] = Counter()
        self.away: set[str] | bool = False
        """Which methods raise StoreError now; True for all of them."""
        self.away_with: StoreError = StoreError("the store is away")
        """What they raise then."""
        self.fails: Counter[str] = Counter()
        """How often each method shall still raise, before it does anything."""
        self.loses: Counter[str] = Counter()
        """How often each method shall still lose its answer, after it has done its work."""
        self.hook: Callable[[str, tuple[Any, ...]], None] | None = None
        self.before: Callable[[str, tuple[Any, ...]], Awaitable[None]] | None = None

    async def turn(self, changes: Any, worker: str, queues: Any, limit: int, types: Any = None) -> Any:
        """As two calls, so that both are watched."""
        answers = await self.commit(changes)
        try:
            return answers, await self.claim(worker, queues, limit, types) if limit else []
        except StoreError:
            return answers, []

    def __getattr__(self, name: str) -> Any:
        inner = getattr(self.engine, name)
        if not inspect.iscoroutinefunction(inner) or name in ("open", "close", "now"):
            return inner

        async def call(*args: Any, **kwargs: Any) -> Any:
            self.calls[name] += 1
            if self.hook is not None:
                self.hook(name, args)
            if self.before is not None:
                await self.before(name, args)
            if self.away is True or (self.away and name in self.away):
                raise self.away_with
            if self.fails[name] > 0:
                self.fails[name] -= 1
                raise StoreError("the store has trouble")
            answer = await inner(*args, **kwargs)
            if self.loses[name] > 0:
                self.loses[name] -= 1
                raise StoreError("the answer was lost")
            return answer

        return call


PATIENCE_SECONDS = 60.0
"""How long a test waits for what must come some time. A machine may be busy with other things."""


def at_pace(seconds: float) -> float:
    """A bound for what must happen within so many seconds: these, for each process that wants a core here. On a machine
    that is busy with other things everything takes that much longer.
    """
    return seconds * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


async def until(condition: Callable[[], Any] | Callable[[], Awaitable[Any]], seconds: float = PATIENCE_SECONDS) -> Any:
    """Wait until something is so, with a bound."""
    end = time.monotonic() + seconds
    while True:
        answer = condition()
        if inspect.isawaitable(answer):
            answer = await answer
        if answer:
            return answer
        assert time.monotonic() < end, f"did not come within {seconds} s"
        await asyncio.sleep(0.01)


def wait_until(condition: Callable[[], Any], seconds: float = PATIENCE_SECONDS, log: Path | None = None) -> Any:
    """As `until`, for tests without a loop; when it does not come, the log is shown."""
    end = time.monotonic() + seconds
    while not (answer := condition()):
        assert time.monotonic() < end, f"did not come within {seconds} s\n{log.read_text() if log else ''}"
        time.sleep(0.01)
    return answer


async def in_state(app: App, run: Run[Any], *states: State, seconds: float = PATIENCE_SECONDS) -> Job:
    """The job, once it is in one of these states."""

    async def there() -> Job | None:
        job = await app.jobs.get(run.id)
        return job if job.state in states else None

    return await until(there, seconds)


async def finished(app: App, run: Run[Any]) -> Job:
    """The job, run by a worker until it has settled."""
    async with app.worker():
        return await in_state(app, run, State.COMPLETED, State.REVIEW, State.CANCELLED, State.DISCARDED)


async def undone(app: App, run: Run[Any], *states: State) -> Job:
    """The undo job of a run, once it is in one of these states."""

    async def there() -> Job | None:
        (job,) = await app.engine.get([derived_id(run.id, "undo")])
        return job if job is not None and job.state in states else None

    return await until(there)


async def events(run: Run[Any]) -> list[str]:
    return [entry.event for entry in await run.history()]


async def entry_of(run: Run[Any], event: Event) -> Entry:
    """The last entry of this kind."""
    return [entry for entry in await run.history() if entry.event == event][-1]


async def paths(app: App, run: Run[Any]) -> list[str]:
    """The paths of a job's own records, in the order in which they were written."""
    return [step.path for step in await app.engine.steps(run.id) if not step.path.startswith("~")]


class Interrupted:
    """Runs a job until it says so, then takes it from its worker, and runs it again with other code."""

    def __init__(self, app):
        self.app = app
        self.here = asyncio.Event()
        self.runs = 0

    async def point(self):
        """Where the first run is interrupted. Later ones go on."""
        self.runs += 1
        if self.runs == 1:
            self.here.set()
            await asyncio.sleep(30)

    async def between(self, run, handler=None, event=Event.LAPSE, name="job"):
        """Run to the point, break the lease, change the code, run to the end."""
        async with self.app.worker():
            await self.here.wait()
            job = await self.app.jobs.get(run.id)
            now = await self.app.engine.now()
            facts = {"run_at": now} if event is Event.OVERRUN else {}
            change = decide(job, event, now, by="test", **facts)
            if handler is not None:
                self.app.registry._jobs.clear()
                self.app.job(name=name)(handler)
            await self.app.engine.commit([change])
            return await in_state(self.app, run, State.COMPLETED, State.REVIEW)
