"""A whole job in its own process: the attempt runs here as it would in its worker, which calls the store for it.

Must not be imported by a worker. It holds no lease: its writes go through the worker (`remote_engine`), under the epoch
that the worker got, and no step starts here after the worker's own fence has closed.
"""

import asyncio
import inspect
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Protocol

from msgspec import Raw
from msgspec.structs import replace

from holdfast import forking
from holdfast.core.codec import Signature
from holdfast.core.model import Step
from holdfast.core.spending import amounts_of
from holdfast.core.throttling import throttle_of_job
from holdfast.jobs.consequences import wake_now
from holdfast.worker.admissions import Admissions
from holdfast.worker.attempt import Attempt
from holdfast.worker.context import register_host, timers_here
from holdfast.worker.handler import run_guarded, run_handler
from holdfast.worker.held_job import DOUBTED
from holdfast.worker.isolation.import_target import target_of
from holdfast.worker.isolation.messages import (
    Answer,
    Attend,
    Doing,
    Ended,
    Fence,
    Heard,
    Line,
    Progress,
    Refusal,
    Settled,
    Spent,
    Stop,
)
from holdfast.worker.isolation.pool import IsolatedCall, raised_here
from holdfast.worker.isolation.remote_engine import Asking, RemoteEngine, RemoteFailure
from holdfast.worker.progress import Progress as AttemptProgress
from holdfast.worker.recorded_errors import error_of, is_final, storable
from holdfast.worker.registry import JobSpec
from holdfast.worker.suspension import Suspension
from holdfast.worker.timers import watch_timers
from holdfast.worker.tries import Stopped

TIDY_SECONDS = 1.0
"""How long tasks and threads that a job left running may take to end, before its process is given up."""

LOOK_SECONDS = 0.001
"""How often to check whether the threads of `asyncio.to_thread` have ended."""

LOOP_ENDED = "its code stopped its event loop (sys.exit or loop.stop() in a task or a callback?)"
"""The error of a job whose event loop ends, which cancels every task: here only the job itself can end it."""

THREADS = "holdfast-to-thread"
"""The start of those threads' names."""


class Telling(Protocol):
    """Passes messages on, at a rate that a worker can handle."""

    def latest(self, word: Callable[[], Doing]) -> None:
        """Send it soon. A newer message replaces an older one."""


class HostedProgress(AttemptProgress):
    """The progress of an attempt in its own process. Its worker keeps the log."""

    def add_log_line(self, line: str) -> None:
        """See Progress.add_log_line."""
        assert isinstance(self._held, Hosted)
        self._held.send(Line(storable(line)))

    def take_log_record(self) -> tuple[Step, ...]:
        """See Progress.take_log_record."""
        return ()


class Hosted(Attempt):
    """An attempt in its own process."""

    progress_kind = HostedProgress
    keeps_result = False
    has_daemons = False  # so that its threads can be told from those that are meant to stay: see child._left_threads
    send: Callable[[Heard], None]


class Host:
    """One job that runs here. Created by the thread that listens to the worker, so that it misses no message."""

    def __init__(self, word: Attend) -> None:
        self.word = word
        self._until = word.until
        self._why: str | None = None
        self._attempt: Hosted | None = None
        self._asking: Asking | None = None
        self._lock = threading.Lock()
        self._own_loop: forking.OwnLoop | None = None
        register_host(self)

    def has_attempts(self) -> bool:
        """See AttemptHost."""
        return self._attempt is not None

    def hear(self, word: Fence | Stop | Answer | Refusal | Progress | Spent | Settled) -> None:
        """Handle a message of the worker. On the listening thread."""
        match word:
            case Fence(until):
                self._until = until
            case Stop(why):
                with self._lock:
                    self._why, attempt = why, self._attempt
                if attempt is not None:
                    attempt.halt(why)
            case Answer() | Refusal():
                if self._asking is not None:
                    self._asking.hear(word)
            case Progress(done, total, text):
                if self._attempt is not None:
                    self._attempt.progress.report(done, total, text)
            case Spent(usd, tokens, path):
                if self._attempt is not None:
                    self._attempt.progress.spend(path, amounts_of("spend()", {"usd": usd, "tokens": tokens}))
            case Settled(limit, units, path):
                if self._attempt is not None:
                    self._attempt.settle(path, limit, units)

    async def run(
        self, function: Callable[..., Any], signature: Signature, send: Callable[[Heard], None], telling: Telling
    ) -> Ended:
        """Run the handler to its end; return its outcome."""
        self._own_loop = forking.OwnLoop()
        executor = ThreadPoolExecutor(thread_name_prefix=THREADS)
        loop = asyncio.get_running_loop()
        loop.set_default_executor(executor)
        watch_timers(loop, timers_here)
        attempt = self._make_attempt(function, signature, send, telling)
        root = asyncio.create_task(run_guarded(attempt, run_handler), name=f"holdfast {attempt.job.type}")
        attempt.root = root
        with self._lock:
            self._attempt, why = attempt, self._why
        if why is not None:
            attempt.halt(why)
        result, error = await root
        ours = asyncio.current_task()
        if ours is not None and ours.cancelling() and isinstance(error, asyncio.CancelledError):
            cancelled, error = error, RuntimeError(LOOP_ENDED)
            error.__cause__ = cancelled
        if attempt.is_closing and await attempt.wait_for_suspend():  # it ended just while it was suspended
            by = attempt.job.worker or ""
            await wake_now(attempt.engine, attempt.job.id, by=by, why="the job ended while it was being suspended")
        stop = attempt.stop
        attempt.mark_ended()
        await attempt.journal.wait_until_written()
        Suspension.of(attempt).close()
        worn = not await _tidy_up(attempt, executor)
        if stop is None and error is None and attempt.journal.effects.is_in_doubt():
            stop = DOUBTED
        self._attempt = None
        return _outcome(attempt, stop, result, error, worn=worn)

    def _make_attempt(
        self, function: Callable[..., Any], signature: Signature, send: Callable[[Heard], None], telling: Telling
    ) -> Hosted:
        job = self.word.job
        spec = JobSpec(
            type=job.type,
            function=function,
            signature=signature,
            is_async=inspect.iscoroutinefunction(function),
            queue=job.queue,
            options=job.options,
            most_children=self.word.most_children,
        )
        asking = self._asking = Asking(send)
        attempt = Hosted(
            job,
            spec,
            RemoteEngine(asking),
            asyncio.get_running_loop(),
            claimed=self.word.claimed,
            may_start=lambda: time.monotonic() < self._until,
            changed=lambda: telling.latest(lambda: Doing(attempt.progress.describe())),
            chance=random.random,
        )
        attempt.args = self.word.args
        attempt.send = send
        if self.word.tells_retries:
            attempt.on_retry = send
        attempt.admissions = Admissions(attempt.engine)
        attempt.isolate = lambda call, timeout=None: _run_isolated(asking, call, timeout)
        attempt.journal.load(self.word.steps)
        self.word = replace(self.word, steps=[])  # They may be many, and this process may be idle for long.
        return attempt


async def _run_isolated(asking: Asking, call: IsolatedCall, timeout: float | None) -> str:
    """Run a step in yet another process of the worker's, so that its crash or timeout doesn't end this one."""
    assert callable(call.function)
    target = target_of(call.function)
    try:
        text: str = await asking.ask(
            "isolate", call.step, target, call.args, call.current, call.memory_mb, call.folder, timeout
        )
    except RemoteFailure as trouble:
        raise raised_here(trouble.error, call) from None
    return text


async def _tidy_up(attempt: Attempt, executor: ThreadPoolExecutor) -> bool:
    """End what the job left running. Returns whether nothing runs here any more: no step, task or thread of the job."""
    ours = asyncio.current_task()
    executor.shutdown(wait=False, cancel_futures=True)
    with suppress(TimeoutError):
        async with asyncio.timeout(TIDY_SECONDS):
            await attempt.wait_until_still()
            left = [task for task in asyncio.all_tasks() if task is not ours]
            for task in left:
                task.cancel()
            if left:
                await asyncio.wait(left)
            await asyncio.get_running_loop().shutdown_asyncgens()
            while any(thread.name.startswith(THREADS) for thread in threading.enumerate()):  # noqa: ASYNC110
                await asyncio.sleep(LOOK_SECONDS)
            return True
    return False


def _outcome(
    attempt: Attempt, stop: str | None, result: str | None, error: BaseException | None, *, worn: bool
) -> Ended:
    is_cut = stop is not None and isinstance(error, asyncio.CancelledError | Stopped)
    return Ended(
        result=Raw((result or "null").encode()),
        error=None if error is None or is_cut else error_of(error),
        is_final=error is not None and is_final(error),
        is_cut=is_cut,
        stop=stop,
        doubts=attempt.journal.effects.doubts,
        drops=attempt.journal.effects.drops,
        drift=attempt.journal.calls.drift_lines(),
        kept_slot=attempt.kept_slot,
        vanished=attempt.journal.calls.vanished_counts(),
        places=attempt.journal.calls.places(completes=error is None and stop is None),
        worn=worn or isinstance(error, MemoryError),
        throttle=throttle_of_job(error, time.time(), is_limited=bool(attempt.job.options.limits)),
    )
