"""One attempt: a job that runs here under a lease, what it has recorded, and what it is doing right now.

Must not decide what the end of the attempt means for the job (`core`), and must not claim or beat (`loop`, `leases`).
"""

import asyncio
import contextvars
import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable
from contextvars import ContextVar
from typing import Any, TypeVar

import msgspec

from holdfast.core.codec import canonical
from holdfast.core.errors import HoldfastError, Invalid, StoreError
from holdfast.core.keys import idempotency_key
from holdfast.core.model import Conflict, Job, Recorded, Running, Step, StepState, Time
from holdfast.engines.contract import Engine
from holdfast.jobs import LOG_PATH
from holdfast.worker.registry import JobSpec, StepSpec, place_of

T = TypeVar("T")

LOG_LINES = 500
"""How many of a job's last log lines are kept."""
LOG_LINE_CHARACTERS = 2_000
"""Longer log lines are cut."""
LOG_SECONDS = 2.0
"""New log lines are written with a step's record, but not more often than this."""

STORE_RETRY_SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0)
"""How long to wait before asking a store again that failed; the last one repeats until the attempt is stopped."""


class Stopped(BaseException):
    """Raised inside an attempt that may not go on. Not an Exception, so that a handler's `except` lets it through."""


class Attempt:
    """The state of one attempt. Owned by the worker's loop; steps in threads reach it by way of the loop."""

    def __init__(
        self,
        job: Job,
        spec: JobSpec,
        engine: Engine,
        records: Iterable[Step],
        *,
        may_start: Callable[[], bool],
        changed: Callable[[], None],
        chance: Callable[[], float],
    ) -> None:
        self.job = job
        self.spec = spec
        self.engine = engine
        self.loop = asyncio.get_running_loop()
        self.records = {step.path: step for step in records}
        self.chance = chance
        self.stop: str | None = None
        self.task: asyncio.Task[Any] | None = None
        self.started = time.monotonic()
        self.moved = self.started
        self.fresh_steps = 0
        self._may_start = may_start
        self._changed = changed
        self._calls: Counter[tuple[str, str, str]] = Counter()
        self._places: dict[str, str] = {}
        self._asked: set[str] = set()
        self._running: dict[str, tuple[StepSpec, Time]] = {}
        self._counts: dict[str, tuple[int, int | None]] = {}
        self._said: tuple[int | None, int | None, str] | None = None
        log = self.records.pop(LOG_PATH, None)
        self._log: deque[str] = deque(_lines(log), maxlen=LOG_LINES)
        self._log_written = len(self._log)
        self._log_due = self.started + LOG_SECONDS
        self._log_count = len(self._log)
        self._lock = threading.Lock()

    # Identity.

    def number(self, parent: str, name: str, key: str) -> int:
        """Which of the equal calls this one is: the first, the second, …"""
        with self._lock:
            self._calls[parent, name, key] += 1
            return self._calls[parent, name, key]

    def check_place(self, spec: StepSpec) -> None:
        """Two functions under one name in one run would answer for each other."""
        place = place_of(spec.function)
        there = self._places.setdefault(spec.name, place)
        if there != place:
            raise Invalid(f"two steps of this run are called {spec.name!r}: {there} and {place}; give one name='…'")

    def recorded(self, path: str) -> Step | None:
        """The record of a step that is done or failed, if there is one. A look, not a call to the store."""
        self._asked.add(path)
        step = self.records.get(path)
        return None if step is None or step.state is StepState.STARTED else step

    def unasked(self, name: str) -> list[Step]:
        """Records of this name that the code has not asked for in this attempt."""
        return [step for path, step in self.records.items() if step.name == name and path not in self._asked]

    # Going on, or not.

    def check(self) -> None:
        """Raise Stopped unless a new step may start now."""
        if self.stop is None and not self._may_start():
            self.stop = "fenced"
        if self.stop is not None:
            raise Stopped(self.stop)

    def halt(self, why: str) -> None:
        """Stop this attempt: nothing of it starts or is recorded any more. Async code is cancelled at an await."""
        if self.stop is None:
            self.stop = why
        if self.task is not None:
            self.task.cancel()

    async def persist(self, act: Callable[[], Awaitable[T]]) -> T:
        """Do one act on the store, again and again while the store has trouble, until the attempt is stopped."""
        tries = 0
        while True:
            try:
                return await act()
            except StoreError:
                if self.stop is not None:
                    raise
                await asyncio.sleep(STORE_RETRY_SECONDS[min(tries, len(STORE_RETRY_SECONDS) - 1)])
                tries += 1

    async def keep(self, step: Step) -> Step:
        """Record a step under this attempt's lease; answer with the record that stands, or stop."""
        if self.stop is not None:
            raise Stopped(self.stop)
        log = self.log_record(step.started_at) if time.monotonic() > self._log_due else ()
        answer, *_ = await self.persist(lambda: self.engine.record([step, *log]))
        if isinstance(answer, Conflict):
            self.halt("lost")
            raise Stopped(f"{answer.reason}: job {self.job.id}, epoch {self.job.epoch}")
        assert isinstance(answer, Recorded)
        self.records[step.path] = answer.step
        self.fresh_steps += 1
        self.move()
        return answer.step

    # What a person sees.

    def enter(self, path: str, spec: StepSpec, now: Time) -> None:
        """A step begins."""
        self._running[path] = (spec, now)
        self.move()

    def leave(self, path: str) -> None:
        """A step has ended, well or not."""
        self._running.pop(path, None)
        self.move()

    def count(self, name: str, done: int, total: int | None) -> None:
        """So many items of a step are done."""
        self._counts[name] = (done, total)
        self.move()

    def say(self, done: int | None, total: int | None, text: str) -> None:
        """The job tells its own progress."""
        self._said = (done, total, text)
        self.move()

    def move(self) -> None:
        """Something moved: the job is not stale."""
        self.moved = time.monotonic()
        self._changed()

    def running(self) -> Running:
        """What this attempt is doing, for the worker's beat."""
        stage = self.stage()
        done, total = self._counts.get(stage, (None, None))
        text = ""
        if self._said is not None:
            done, total, text = self._said if self._said[0] is not None else (done, total, self._said[2])
        since = min((at for spec, at in self._running.values() if spec.name == stage), default=None)
        return Running(
            job=self.job.id,
            epoch=self.job.epoch,
            stage=stage,
            done=done,
            total=total,
            text=text,
            since=since,
            silent_ms=round((time.monotonic() - self.moved) * 1_000),
            stale_after_ms=self._stale_after_ms(),
        )

    def stage(self) -> str:
        """The outermost step that is running now; the one that began first where there are several."""
        for path, (spec, _) in self._running.items():
            if "/" not in path:
                return spec.name
        return ""

    def _stale_after_ms(self) -> int | None:
        """How long the steps that run now may show no progress: the strictest of them counts."""
        limits = [spec.stale_after_ms for spec, _ in self._running.values() if spec.stale_after_ms is not None]
        return min(limits, default=None)

    # Log lines.

    def log(self, line: str) -> None:
        """Keep a log line with the job. Safe from any thread."""
        with self._lock:
            self._log.append(line[:LOG_LINE_CHARACTERS])
            self._log_count += 1

    def log_record(self, now: Time) -> tuple[Step, ...]:
        """The log lines as a record, if there are new ones. Written with the next record or with the end."""
        with self._lock:
            if self._log_written == self._log_count:
                return ()
            self._log_written = self._log_count
            self._log_due = time.monotonic() + LOG_SECONDS
            text = canonical(list(self._log))
        return (
            Step(
                job=self.job.id,
                epoch=self.job.epoch,
                path=LOG_PATH,
                name=LOG_PATH,
                state=StepState.STARTED,
                result=text,
                started_at=now,
            ),
        )


def _lines(step: Step | None) -> list[str]:
    if step is None or step.result is None:
        return []
    return msgspec.json.decode(step.result, type=list[str])


# Who runs here.

RUNNING: "weakref.WeakSet[Attempt]" = weakref.WeakSet()
"""All attempts of this process, to tell a stray thread that it has lost its job."""

ATTEMPT: ContextVar[Attempt | None] = ContextVar("holdfast_attempt", default=None)
PATH: ContextVar[str] = ContextVar("holdfast_path", default="")


class Current:
    """The job that this code runs for, and the step it is in."""

    def __init__(self, attempt: Attempt, path: str) -> None:
        self._attempt = attempt
        self._path = path

    @property
    def job_id(self) -> str:
        """The id of the job."""
        return self._attempt.job.id

    @property
    def attempt(self) -> int:
        """Which attempt this is: failures so far, plus one."""
        return self._attempt.job.attempt

    @property
    def epoch(self) -> int:
        """The number of this lease: hand it to a system that can refuse older ones."""
        return self._attempt.job.epoch

    @property
    def deadline(self) -> float | None:
        """When the job's timeout is over, as seconds since 1970; None if it has none."""
        limit, claimed_at = self._attempt.job.options.timeout_ms, self._attempt.job.claimed_at
        return None if limit is None or claimed_at is None else (claimed_at + limit) / 1_000

    @property
    def step(self) -> str:
        """The path of the step that runs, as in its record; "" between steps."""
        return self._path

    @property
    def idempotency_key(self) -> str:
        """What to hand to a provider so that it drops a second call: the same over attempts, recoveries and replays."""
        return idempotency_key(self.job_id, self._path)

    def bind(self, function: Callable[..., T]) -> Callable[..., T]:
        """The function, bound to this job, for an executor that doesn't carry context variables along."""
        context = contextvars.copy_context()
        return lambda *args, **kwargs: context.copy().run(function, *args, **kwargs)


class NoJob(HoldfastError, LookupError):
    """There is no job here: the code was called outside one."""


def current() -> Current:
    """The job and step that this code runs for. Raises NoJob outside a job."""
    attempt = ATTEMPT.get()
    if attempt is None:
        raise NoJob("current(): no job runs here; it is there inside a job, in its tasks, and in asyncio.to_thread")
    return Current(attempt, PATH.get())


def progress(done: int | None = None, total: int | None = None, text: str = "") -> None:
    """Tell how far the job has come. Outside a job it does nothing."""
    attempt = ATTEMPT.get()
    if attempt is not None:
        attempt.say(done, total, text)
