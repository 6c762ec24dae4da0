"""A pool of processes for isolated steps and jobs: started in advance, reused, and replaced when worn or dead.

Must not know what a failure means for a job. One pool belongs to one worker and its loop.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from msgspec import Raw, Struct

from holdfast.core.durations import in_words
from holdfast.core.errors import HoldfastError, Invalid, StepFailed
from holdfast.core.model import Error, Step, StepState
from holdfast.core.throttling import with_throttle
from holdfast.safe_text import logger
from holdfast.worker.context import PATH, Current, progress, settle, spend
from holdfast.worker.isolation.import_target import Target, target_of
from holdfast.worker.isolation.messages import (
    Attend,
    Began,
    Call,
    Done,
    Ended,
    Failed,
    Logged,
    News,
    Progress,
    Settled,
    Spent,
)
from holdfast.worker.isolation.process import GONE_SECONDS, Gone, Process, how
from holdfast.worker.recorded_errors import rebuild_error

log = logger("holdfast.worker")

MAX_USES = 500
"""A process is replaced after this many calls, so that leaks in it don't add up."""

SPARE = 1
"""How many processes stay ready for a call, even when nothing happens."""

IDLE_SECONDS = 60.0
"""How long further ones stay ready before they end."""

TEND_SECONDS = 5.0
"""How often the pool checks its processes when nothing happens."""

START_SECONDS = 300.0
"""How long a process may take to start and to import a module. A step's own timeout starts after that."""

START_TRIES = 3
"""How many processes are tried for a call if they die before the function starts."""

END_SECONDS = 2.0
"""How long a process that isn't needed any more may take to end by itself."""

KNOWN_LIMIT = 32
"""How many modules a new process imports in advance."""


class ProcessDied(HoldfastError):
    """The process of an isolated step or job died while it ran: a crash, an exit, or a kill from outside."""


class IsolatedCall(Struct, frozen=True, kw_only=True):
    """One call of a step that runs in its own process."""

    step: str
    """The step's name, for messages."""
    function: Callable[..., Any] | Target
    args: str
    """The arguments as canonical text, as the function's Signature encodes them."""
    current: Current
    """What `current()` returns in the function."""
    folder: str = ""
    """Where its process reads and writes blobs."""
    memory_mb: int | None = None
    """How much memory the call may use, on top of what the interpreter and the imported modules use."""


class Errand(Struct, frozen=True):
    """What a process has to do, and how messages name it."""

    kind: str
    """What it is: a step or a job."""
    name: str
    word: Call | Attend

    @property
    def what(self) -> str:
        """The errand in words."""
        return f"{self.kind} {self.name}"


def report_here(news: News) -> None:
    """Report here what the step's code reported, in the context of the task that awaits it."""
    if isinstance(news, Progress):
        progress(news.done, news.total, news.text)
    elif isinstance(news, Spent):
        spend(usd=news.usd, tokens=news.tokens)
    elif isinstance(news, Settled):
        try:
            settle(news.limit, news.units)
        except Invalid as error:  # the process of the step can't know that it doesn't use this limit
            log.warning("%s", error)
    elif isinstance(news, Logged):
        log_here(news)


def log_here(news: Logged) -> None:
    """Write a log line of another process here, as one of its step."""
    logger = logging.getLogger(news.logger)
    if not logger.isEnabledFor(news.level):
        return
    record = logging.LogRecord(news.logger, news.level, "", 0, news.text, None, None)
    record.created = news.at
    step = PATH.set(news.path or PATH.get())
    try:
        logger.handle(record)
    finally:
        PATH.reset(step)


class Pool:
    """Runs isolated steps, up to `at_once` at a time; others wait their turn. Starts nothing before its first use.

    Jobs don't wait their turn: they have a slot, and a step that a job waits for must be able to end.
    """

    def __init__(
        self,
        at_once: int = 8,
        *,
        spare: int = SPARE,
        max_uses: int = MAX_USES,
        idle_seconds: float = IDLE_SECONDS,
    ) -> None:
        self._limit = at_once + spare
        self._spare = spare
        self._max_uses = max_uses
        self._idle_seconds = idle_seconds
        self._turn = asyncio.Semaphore(at_once)
        self._idle: list[Process] = []  # The last used is the last, and is taken first: it is the warmest.
        self._busy: set[Process] = set()
        self._ending: set[asyncio.Task[int | None]] = set()
        self._known: dict[Target, None] = {}
        self._tending: asyncio.Task[None] | None = None
        self._nudge = asyncio.Event()
        self._is_closed = False

    async def run(
        self, call: IsolatedCall, *, timeout: float | None = None, on_news: Callable[[News], None] = report_here
    ) -> str:
        """Run a step's function and return its result as canonical text.

        Raises what the function raised, as a failed record does (`recorded_errors.raised_again`); ProcessDied if its
        process died; TimeoutError if it took longer than `timeout` seconds and was killed; Invalid if another process
        couldn't find the function. Cancelling this kills the process at once. `on_news` gets what the function reports
        with `progress()` and `logging`, and must not raise.
        """
        target = call.function if isinstance(call.function, Target) else target_of(call.function)
        word = Call(target, Raw(call.args.encode()), call.current, call.memory_mb, call.folder)
        errand = Errand("step", call.step, word)
        async with self._turn:
            answer = await self._run(errand, on_news, timeout)
        if isinstance(answer, Failed):
            raise with_throttle(raised_here(answer.error, call), answer.throttle)
        assert isinstance(answer, Done)
        return bytes(answer.result).decode()

    async def attend(
        self, name: str, word: Attend, *, on_news: Callable[[News], None], on_begin: Callable[[Process], None]
    ) -> Ended | Failed:
        """Run a job's attempt in a process. Failed means that it couldn't start. Raises ProcessDied; cancelling kills
        it.

        `on_begin` gets the process once the job's function runs there, to talk to it.
        """
        answer = await self._run(Errand("job", name, word), on_news, None, on_begin)
        assert isinstance(answer, Ended | Failed)
        return answer

    def warm(self) -> None:
        """Start the spare processes. The first call does that too, but has to wait for it."""
        if self._is_closed:
            raise HoldfastError("isolated steps can't run any more, because their worker has stopped")
        if self._tending is None:
            self._tending = asyncio.get_running_loop().create_task(self._tend(), name="holdfast isolation")

    async def close(self) -> None:
        """End all processes, including those in the middle of a call, and wait until they are gone."""
        self._is_closed = True
        if self._tending is not None:
            self._tending.cancel()
            await asyncio.wait([self._tending])
        for process in list(self._busy):
            self._end(process, 0)
        while self._idle:
            self._end(self._idle.pop(), END_SECONDS)
        if self._ending:
            await asyncio.wait(self._ending)

    # One call.

    async def _run(
        self,
        errand: Errand,
        on_news: Callable[[News], None],
        timeout: float | None,
        on_begin: Callable[[Process], None] = lambda process: None,
    ) -> Done | Failed | Ended:
        """Run an errand and return its outcome."""
        answer: Done | Failed | Ended | None
        process, answer = await self._begin(errand, on_news)
        try:
            if answer is None:
                on_begin(process)
                async with asyncio.timeout(timeout):
                    answer = await process.answer(on_news)
            return answer
        except TimeoutError:
            limit = in_words(round((timeout or 0) * 1_000))
            raise TimeoutError(f"{errand.what} took longer than its timeout of {limit} and was killed") from None
        except Gone:
            raise await self._death(process, errand, f"before the {errand.kind} finished") from None
        finally:
            self._return(process, answer)

    async def _begin(self, errand: Errand, on_news: Callable[[News], None]) -> tuple[Process, Failed | None]:
        """Return a process in which the function runs, or couldn't be called. One that dies before that is replaced."""
        death: ProcessDied | None = None
        for _ in range(START_TRIES):
            process = await self._take(errand)
            began: Began | Failed | None = None
            try:
                async with asyncio.timeout(START_SECONDS):
                    began = await process.begin(errand.word, on_news)
            except TimeoutError:
                limit = in_words(round(START_SECONDS * 1_000))
                raise TimeoutError(f"{errand.what}: importing its module took longer than {limit}") from None
            except Gone:
                death = await self._death(process, errand, f"before the {errand.kind} started")
            finally:
                if began is None:
                    self._bury(process)
            if isinstance(began, Began):
                self._remember(errand.word.target)
                return process, None
            if began is not None:
                return process, began
        assert death is not None
        raise death

    async def _take(self, errand: Errand) -> Process:
        self.warm()
        self._nudge.set()
        while self._idle:
            process = self._idle.pop()
            if not process.has_ended():
                self._busy.add(process)
                return process
            self._bury(process)
        try:
            process = await Process.start(list(self._known))
        except OSError as error:
            raise ProcessDied(f"{errand.what}: no process could be started: {error}") from error
        self._busy.add(process)
        if self._is_closed:
            self._end(process, 0)
        return process

    def _return(self, process: Process, answer: Done | Failed | Ended | None) -> None:
        """Keep a process for the next call, unless it is dead, being ended, or worn."""
        process.uses += 1
        if answer is None or self._is_closed or answer.worn:
            self._end(process, 0)
        elif process.uses >= self._max_uses:
            self._end(process, END_SECONDS)
        else:
            self._busy.discard(process)
            process.idle_since = asyncio.get_running_loop().time()
            self._idle.append(process)
        self._nudge.set()

    async def _death(self, process: Process, errand: Errand, when: str) -> ProcessDied:
        """Return the error for a process that closed its connection."""
        if self._is_closed:
            return ProcessDied(f"{errand.what}: its process was killed {when}, because the worker stopped")
        code = await asyncio.shield(self._end(process, GONE_SECONDS))
        limit = errand.word.memory_mb
        limited = "" if limit is None else f" (its memory was limited to {limit} MB)"
        died = ProcessDied(f"{errand.what}: its process {how(code, when)}{limited}")
        if process.last_words:
            died.add_note(process.last_words)
        return died

    def _end(self, process: Process, patience_seconds: float) -> "asyncio.Task[int | None]":
        """End a process in the background: at once, or after it had some time to end by itself."""
        self._busy.discard(process)
        if not patience_seconds:
            process.kill()
        if process.ending is None:
            process.ending = asyncio.get_running_loop().create_task(process.end(patience_seconds))
            self._ending.add(process.ending)
            process.ending.add_done_callback(self._ending.discard)
        return process.ending

    def _bury(self, process: Process) -> None:
        """End a process that ran nothing. If it never got ready, an import in advance may be the reason."""
        if not process.is_ready:
            self._known.clear()
        self._end(process, 0)

    # All processes.

    async def _tend(self) -> None:
        """Keep spare processes ready, end those that aren't needed, and remove dead ones."""
        while True:
            now = asyncio.get_running_loop().time()
            for process in list(self._idle):
                is_old = now - process.idle_since > self._idle_seconds and len(self._idle) > self._spare
                if process.has_ended():
                    self._idle.remove(process)
                    self._bury(process)
                elif is_old:
                    self._idle.remove(process)
                    self._end(process, END_SECONDS)
            await self._stock()
            self._nudge.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(TEND_SECONDS):
                    await self._nudge.wait()

    async def _stock(self) -> None:
        for _ in range(self._spare):
            if len(self._idle) >= self._spare or len(self._idle) + len(self._busy) >= self._limit:
                return
            try:
                process = await Process.start(list(self._known))
            except OSError as error:
                log.warning("no process could be started in advance for isolated code: %s", error)
                return
            process.idle_since = asyncio.get_running_loop().time()
            self._idle.insert(0, process)

    def _remember(self, target: Target) -> None:
        self._known.pop(target, None)
        self._known[target] = None
        if len(self._known) > KNOWN_LIMIT:
            del self._known[next(iter(self._known))]


def raised_here(error: Error, call: IsolatedCall) -> Exception:
    """Return the function's error, as if it had been raised here, with its process's traceback as a note."""
    here = call.current
    step = Step(
        job=here.job_id,
        epoch=here.epoch,
        path=here.step,
        name=call.step,
        state=StepState.FAILED,
        started_at=0,
        error=error,
    )
    made = rebuild_error(step)
    made.__notes__ = [f"in the step's own process:\n{error.traceback}"]
    if isinstance(made, StepFailed):
        made.args = (f"step {call.step} failed in its own process: {error.type}: {error.message}",)
    return made
