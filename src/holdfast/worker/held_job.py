"""A job held under a lease: whether it may continue, what is stopped with it, and its calls to the store.

Must not know what the job's code does (`journal`, `progress`), and must not claim or send heartbeats (`worker`).
"""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import partial
from math import inf
from typing import Any, TypeVar

from holdfast import forking
from holdfast.background import LogOnce
from holdfast.core.errors import StoreError, StoreFull, StoreLost, StoreUnwritable
from holdfast.core.model import Change, Conflict, Job, Recorded, Step, Time
from holdfast.engines.contract import Engine
from holdfast.jobs.job_events import StepRetry
from holdfast.safe_text import logger
from holdfast.worker.admissions import Admissions
from holdfast.worker.registry import JobSpec
from holdfast.worker.step_clocks import StepClocks
from holdfast.worker.tries import LeftBehind, Stopped

T = TypeVar("T")

log = logger("holdfast.worker")

STORE_RETRY_SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0)
"""How long to wait before retrying a call that the store failed. The last value repeats until the attempt stops."""

LOGGED_TRIES = 3
"""How many failed tries there are before the log reports the store; an error that needs a person is logged at once."""

FENCE_SECONDS = 0.05
"""How often a step that may not start checks whether the fence is open again."""

CANCEL_AGAIN_SECONDS = 10.0
"""How long a cancelled handler may clean up before it is cancelled again."""

LIMIT_SECONDS = 2.0
"""How long a step that waits for a shared limit keeps its job's slot."""

RELEASED, LOST, CANCELLED = "released", "lost", "cancelled"
"""Why an attempt is stopped: it is released to other workers, its lease was taken, or its job was cancelled."""

CUT = "cut off"
"""Why an attempt is stopped: its worker's event loop is ending, although nobody asked the worker to stop."""

SUSPENDED = "suspended"
"""Why an attempt is stopped: its job waits. When the wait is answered, its code runs again from the top."""

DOUBTED = "in doubt"
"""Why an attempt is stopped: it reached an effect that may have happened, and only a person can decide."""

ENDED = "ended"
"""Why an attempt is stopped: its handler has ended, and code that it left running may do nothing more."""


class Suspended(Stopped):
    """Raised inside a `def` job that waits, by the wait and by every later call. The job runs again from the top."""


class HeldJob:
    """A job under a lease of this worker. Belongs to the worker's loop; threads of the job use it through the loop.

    `claimed` is when the claim was sent, by our clock. `may_start` is the worker's fence. `changed` requests a
    heartbeat soon, because there is something new to report.
    """

    args: str | None = None
    """The arguments to call with, if those of the job refer to results of other jobs."""
    follows: Callable[[Time], tuple[Job, ...]] | None = None
    """Makes the jobs that the completion of this one submits, if it is a step of a flow."""
    permits: object = None
    """The StepPermits, once a step has asked for a permit."""
    admissions: Admissions | None = None
    """Through which its steps ask for permits, together with those of the worker's other attempts."""
    has_asked = False
    """Whether a step has asked for a permit, so that permits may end with its lease."""
    limit_seconds = LIMIT_SECONDS
    """How long a step that waits for a limit keeps the slot."""
    clock: asyncio.Timeout | None = None
    """The job's own timeout."""
    waited_seconds = 0.0
    """For how long it did nothing but wait for limits. Its timeout doesn't count that."""
    _limit_waits = 0
    _step_clocks: StepClocks | None = None
    _idle_since: float | None = None
    _clock_left: float | None = None
    has_daemons = True
    """Whether the threads of its code are daemons, which never keep the process alive."""
    isolate: Callable[..., Awaitable[str]]
    """Runs a step in a separate process, through the worker's pool."""
    writing: LogOnce | None = None
    """The worker's report, for the log and the heartbeat, that its attempts can't be written."""
    starting: Callable[[str], Coroutine[Any, Any, None]] | None = None
    """Awaited with a step's path before anything is done for it. Tests kill the worker here."""
    on_activity_end: Callable[[], None] | None = None
    """Called when a step or another activity ends while a wait is pending."""
    on_retry: Callable[[StepRetry], None] | None = None
    """Called when a step failed and will be retried, if there is a hook for it. From any thread of the job."""
    stop: str | None = None
    """Why it was stopped; None while it runs."""
    is_closing = False
    """Whether a suspend is being committed. No step starts meanwhile."""
    stop_after_closing: str | None = None
    """What a heartbeat said during a suspend. It applies afterwards, unless the suspend explains it."""
    root: asyncio.Task[Any] | None = None
    """The task of the handler itself."""
    threads = 0
    """How many threads run code of this job. They can't be stopped from outside."""
    own_thread: int | None = None
    """The thread that runs the function of a `def` job."""
    own_call: asyncio.Task[Any] | None = None
    """The task on the loop that this thread waits for."""
    _tasks: set[asyncio.Task[Any]] | None = None
    _stopped: threading.Event | None = None
    _has_warned = False
    _cancel_again = 0.0

    def __init__(
        self,
        job: Job,
        spec: JobSpec,
        engine: Engine,
        loop: asyncio.AbstractEventLoop,
        *,
        claimed: float,
        may_start: Callable[[], bool],
        changed: Callable[[], None],
        chance: Callable[[], float],
    ) -> None:
        self.job = job
        self.spec = spec
        self.engine = engine
        self.lease = job.lease
        self.loop = loop
        self.chance = chance
        self.claimed = claimed
        self.changed = changed
        self._may_start = may_start
        limit = job.options.timeout_ms
        self._overdue = inf if limit is None else claimed + limit / 1_000
        self._copy = forking.copies

    def is_here(self) -> bool:
        """Whether it runs in this process. After a fork it runs only in the parent."""
        return self._copy == forking.copies

    def now(self) -> Time:
        """The store's time, computed from the time of the claim and our own clock, to save a call to the store."""
        return (self.job.claimed_at or 0) + round((time.monotonic() - self.claimed) * 1_000)

    # Whether it may continue.

    def check(self) -> None:
        """Raise Stopped unless this attempt may continue."""
        if self.stop is not None:
            raise self.stop_error()

    def stop_error(self) -> Stopped:
        """Make the exception for code that may not continue."""
        if self.stop == ENDED:
            self._warn_left_behind()
            return LeftBehind(f"job {self.job.id}: {self.stop}")
        kind = Suspended if self.stop == SUSPENDED else Stopped
        return kind(f"job {self.job.id}: {self.stop}")

    def _warn_left_behind(self) -> None:
        """Log once that code outlived its job."""
        if not self._has_warned:
            self._has_warned = True
            log.warning(
                "job %s (%s) has ended, but code that it left running still calls steps or waits; these calls don't "
                "run: await every task in the job",
                self.job.id, self.job.type,
            )  # fmt: skip

    def is_stopping(self) -> bool:
        """Whether this attempt is being stopped from outside: it was halted, or its handler's task was cancelled, as at
        the end of the loop.
        """
        return self.stop is not None or (self.root is not None and self.root.cancelling() > 0)

    def is_fenced(self) -> bool:
        """Whether no step may start now: our last answered heartbeat is too old, the job is about to suspend, or its
        timeout has passed while the process was suspended.
        """
        return self.is_closing or not self._may_start() or time.monotonic() > self._overdue

    async def admit(self) -> None:
        """Wait until a new step may start, or raise Stopped. A closed fence opens with an answered heartbeat."""
        while self.stop is None and self.is_fenced():  # noqa: ASYNC110 (it opens on another thread)
            await asyncio.sleep(FENCE_SECONDS)
        self.check()

    # Waiting for limits.

    @contextmanager
    def limit_wait(self, path: str) -> Iterator[None]:
        """Mark a step as waiting: for a limit, or until its provider wants to be called again. On the loop."""
        self._count_limit_wait(path, 1)
        try:
            yield
        finally:
            self._count_limit_wait(path, -1)

    def _count_limit_wait(self, path: str, change: int) -> None:
        self._limit_waits += change
        self.step_clocks.count_wait(path, change)
        self.recount_waiting()

    @property
    def step_clocks(self) -> StepClocks:
        """The clocks of its running steps."""
        return self._step_clocks or self.make_once("_step_clocks", lambda: StepClocks(self.loop))

    def running_paths(self) -> list[str]:
        """Return the paths of the steps that are running."""
        return []

    def recount_waiting(self) -> None:
        """Stop the timeouts of the job and of its steps while they do nothing but wait for limits. On the loop."""
        is_idle = not self.step_clocks.recount(self.running_paths()) and self._limit_waits > 0
        now = time.monotonic()
        if is_idle and self._idle_since is None:
            self._idle_since = now
            if self.clock is not None and (when := self.clock.when()) is not None and not self.clock.expired():
                self._clock_left = when - self.loop.time()
                self.clock.reschedule(None)
        elif not is_idle and self._idle_since is not None:
            self.note_waited(now - self._idle_since)
            self._idle_since = None
            if self._clock_left is not None and self.clock is not None:
                self.clock.reschedule(self.loop.time() + self._clock_left)
                self._clock_left = None

    def note_waited(self, seconds: float) -> None:
        """Add time in which it only waited for limits."""
        self.waited_seconds += seconds
        self._overdue += seconds

    def extend_timeout(self, seconds: float) -> None:
        """Extend the job's timeout, because its process did nothing but wait for limits. On the loop."""
        self.note_waited(seconds)
        if self.clock is not None and (when := self.clock.when()) is not None and not self.clock.expired():
            self.clock.reschedule(when + seconds)

    def waited_ms(self) -> int:
        """Return for how long it did nothing but wait for limits, up to now."""
        since = self._idle_since
        return round((self.waited_seconds + (0.0 if since is None else time.monotonic() - since)) * 1_000)

    def may_recount(self) -> bool:
        """Whether a step that starts or ends may change what it waits for."""
        return self._limit_waits > 0 or self._idle_since is not None

    # Stopping it.

    def halt(self, why: str) -> None:
        """Stop this attempt: no step starts, and async code is cancelled at its next await. From any thread."""
        self.note_stop(why)
        try:
            self.loop.call_soon_threadsafe(self.cancel)
        except RuntimeError:  # the loop has ended, and all tasks with it
            pass

    def lose(self, why: str) -> None:
        """Halt because the lease isn't ours any more. During a suspend, which may be the reason, wait for it first."""
        if self.is_closing:
            self.stop_after_closing = why
        else:
            self.halt(why)

    def finish_closing(self) -> None:
        """Let steps start again after a suspend succeeded or failed, unless a heartbeat has stopped the job."""
        self.is_closing = False
        if self.stop_after_closing is not None and self.stop is None:
            self.halt(self.stop_after_closing)

    def note_stop(self, why: str) -> None:
        """Let nothing start any more, without cancelling anything. The first reason counts."""
        if self.stop is None:
            self.stop = why
        if self._stopped is not None:
            self._stopped.set()

    def mark_ended(self) -> None:
        """Note that the handler has ended: code that it left running may do nothing more. On the loop."""
        self.note_stop(ENDED)
        if self._tasks:
            self.cancel()

    def cancel(self) -> None:
        """Cancel the tasks. They get time to clean up before the next cancel, even if every heartbeat asks for one."""
        now = time.monotonic()
        if now < self._cancel_again:
            return
        self._cancel_again = now + CANCEL_AGAIN_SECONDS
        if self.root is not None:
            self.root.cancel()
        for task in list(self.tasks):
            task.cancel()

    async def wait_for_suspend(self) -> bool:
        """Wait until a suspend that is being committed has succeeded or failed; return whether the job suspended."""
        while self.is_closing:  # noqa: ASYNC110 (only as long as a commit, and rarely)
            await asyncio.sleep(FENCE_SECONDS / 10)
        return self.stop == SUSPENDED

    # Tasks and threads.

    @property
    def tasks(self) -> set[asyncio.Task[Any]]:
        """The other tasks that are stopped with it: those that run its steps."""
        if self._tasks is None:
            self._tasks = set()
        return self._tasks

    def count_thread(self, change: int) -> None:
        """Count a thread that starts or ends running code of this job. From any thread."""
        with self.make_once("_threads_lock", threading.Lock):
            self.threads += change

    def pause(self, seconds: float) -> None:
        """Wait in a thread of the job, at most until this attempt is stopped."""
        stopped = self.make_once("_stopped", threading.Event)
        if self.stop is None:
            stopped.wait(seconds)

    def make_once(self, name: str, make: Callable[[], T]) -> T:
        """Create a part that most attempts never need. Two threads that ask at the same time get the same one."""
        made: T = self.__dict__.setdefault(name, make())
        return made

    # Calls to the store.

    async def persist(self, act: Callable[[], Awaitable[T]]) -> T:
        """Call the store, and repeat the call while the store fails, until the attempt is stopped."""
        tries = 0
        while True:
            try:
                answer = await act()
                if tries and self.writing is not None:
                    self.writing.recovered()
                return answer
            except StoreError as error:
                # While the handler runs, only the worker stops it: the handler might catch our error and continue.
                if self.stop not in ((None,) if isinstance(error, StoreLost) else (None, ENDED)):
                    raise
                is_lasting = tries >= LOGGED_TRIES or isinstance(error, StoreFull | StoreUnwritable)
                if is_lasting and self.writing is not None:
                    self.writing.say(error)
                    self.changed()
                await asyncio.sleep(STORE_RETRY_SECONDS[min(tries, len(STORE_RETRY_SECONDS) - 1)])
                tries += 1

    def standing_step(self, answer: Recorded | Conflict) -> Step:
        """Return the record that the store has now; or stop, because somebody else has the lease."""
        if isinstance(answer, Conflict):
            self.halt(LOST)
            raise Stopped(f"{answer.reason}: job {self.job.id}, epoch {self.job.epoch}")
        return answer.step

    async def is_in_history(self, change: Change) -> bool:
        """Whether a change that the store refused is in the history after all, so that only its answer was lost."""
        ours, after = (change.event, change.by, self.job.epoch), self.job.version
        while page := await self.persist(partial(self.engine.history, self.job.id, after)):
            if any((entry.event, entry.by, entry.epoch) == ours for entry in page):
                return True
            after = page[-1].version
        return False
