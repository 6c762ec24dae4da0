"""Runs: a submitted job as its caller sees it, for async and for blocking code. Must not know apps or workers."""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Generic, TypeVar

from holdfast import forking
from holdfast.core.codec import Codec, Signature, canonical, parse
from holdfast.core.durations import Duration, milliseconds
from holdfast.core.errors import HoldfastError, JobCancelled, JobFailed, WrongColour
from holdfast.core.lifecycle import SETTLED, standing
from holdfast.core.model import Entry, Job, State
from holdfast.engines.topics import job_topic
from holdfast.jobs.service import Jobs, Status

R = TypeVar("R")
T = TypeVar("T")

FOLLOW_SECONDS = 5.0
"""How long a waiting caller waits for news before it looks by itself."""

TELL_SECONDS = 1.0
"""How long to ask in what state a job is that did not settle in time."""

PROGRESS_SECONDS = 0.5
"""How long to wait while the job runs: what its worker's beat tells rings no bell."""


class Run(Generic[R]):
    """One submitted job."""

    def __init__(self, open: Callable[[], Awaitable[Jobs]], id: str, signature: Signature | None) -> None:
        self.id = id
        self._open = open
        self._signature = signature
        self._codec: Codec[Any] = Codec[Any]() if signature is None else signature.result

    def __repr__(self) -> str:
        return f"<Run {self.id}>"

    async def status(self) -> Status:
        """Where it stands, for a person: state, stage, how far, for how long."""
        return await (await self._open()).status(self.id)

    async def result(self, timeout: Duration | None = None) -> R:
        """Wait for the value that the job returns.

        Raises JobFailed when it needs a person or was given up, JobCancelled when it was cancelled, and TimeoutError
        when it has not settled within `timeout`.
        """
        limit = None if timeout is None else milliseconds(timeout) / 1_000
        try:
            async with asyncio.timeout(limit):
                job = await self._settled()
        except TimeoutError:
            if limit is None:
                raise
            raise TimeoutError(await self._unsettled(limit)) from None
        if job.state is State.COMPLETED:
            value: R = self._codec.decode(job.result or "null")
            return value
        told = (await (await self._open()).history(self.id))[-1].note
        raise failure_of(job, str(told.get("reason", "")))

    async def cancel(self, reason: str = "") -> None:
        """Stop the job for good; it loses its lease at once. Raises NotAllowed when it has ended."""
        await (await self._open()).cancel(self.id, reason=reason)

    async def signal(self, name: str, value: object = None) -> None:
        """Send it a named value. It wakes a job that waits for it, and else waits in its inbox."""
        await (await self._open()).signal(self.id, name, value)

    async def replay(self, *, args: Sequence[Any] | str | None = None, reason: str = "") -> None:
        """Run it again from what it has recorded, when it is in review.

        With its own arguments, or with edited ones: a sequence of them, or the JSON text of one. They must fit the job.
        """
        text = args if isinstance(args, str) else None
        if args is not None and text is None:
            text = canonical(list(args)) if self._signature is None else self._signature.encode(args, {})
        if text is not None and self._signature is not None:
            self._signature.decode(text)
        await (await self._open()).replay(self.id, args=text, reason=reason)

    async def resolve(self, result: object = None, *, reason: str = "") -> None:
        """Complete it with this result, when it is in review. It must be what the job promises to return."""
        text = self._codec.encode(result)
        await (await self._open()).resolve(self.id, parse(text), reason=reason)

    async def resolve_step(self, path: str, result: object = None, *, again: bool = False, reason: str = "") -> None:
        """Say of a step in doubt that it happened, with its result, or that it shall be done again."""
        await (await self._open()).resolve_step(self.id, path, result, again=again, reason=reason)

    async def discard(self, *, reason: str = "") -> None:
        """Give it up for good, when it is in review."""
        await (await self._open()).discard(self.id, reason=reason)

    async def history(self) -> list[Entry]:
        """All that happened to it."""
        return await (await self._open()).history(self.id)

    async def follow(self) -> AsyncIterator[Entry | Status]:
        """Its history and its progress, live, until it settles."""
        jobs = await self._open()
        await jobs.get(self.id)
        mark, version, shown = 0, 0, None
        while True:
            while page := await jobs.engine.history(self.id, version):
                for entry in page:
                    version = entry.version
                    yield entry
            status = await jobs.status(self.id)
            if status.state in SETTLED and status.version == version:
                return
            active = status.state is State.ACTIVE
            if active and status.progress() != shown:
                shown = status.progress()
                yield status
            mark = await jobs.engine.wait([job_topic(self.id)], PROGRESS_SECONDS if active else FOLLOW_SECONDS, mark)

    async def _unsettled(self, seconds: float) -> str:
        """What to say to who waited in vain. A store that doesn't answer must not make them wait on."""
        state = ""
        with suppress(HoldfastError, TimeoutError):
            async with asyncio.timeout(TELL_SECONDS):
                job = await (await self._open()).get(self.id)
            failed = "" if job.error is None else f" after {job.error.type}: {job.error.message}"
            state = f": it is {standing(job.state)}{failed}"
        return f"job {self.id} has not settled within {seconds:g} s{state}, and goes on"

    async def _settled(self) -> Job:
        jobs = await self._open()
        mark = 0
        while True:
            job = await jobs.get(self.id)
            if job.state in SETTLED:
                return job
            mark = await jobs.engine.wait([job_topic(self.id)], FOLLOW_SECONDS, mark)


def failure_of(job: Job, reason: str = "") -> Exception:
    """The error that a job without a result is told with, and the reason that a person gave."""
    error = job.error
    told = {} if error is None else {"type": error.type, "message": error.message, "traceback": error.traceback}
    if job.state is State.CANCELLED:
        return JobCancelled(f"job {job.id} was cancelled{f': {reason}' if reason else ''}", **told)
    what = "needs a person" if job.state is State.REVIEW else "was given up"
    why = f": {error.type}: {error.message}" if error is not None else f": {reason}" if reason else ""
    now = "; see holdfast show, then replay, resolve or discard" if job.state is State.REVIEW else ""
    return JobFailed(f"job {job.id} {what}{why}{now}", **told)


class SyncRun(Generic[R]):
    """One submitted job, for blocking code."""

    def __init__(self, call: Callable[[Coroutine[Any, Any, Any]], Any], run: Run[R]) -> None:
        self.id = run.id
        self._call = call
        self._run = run

    def __repr__(self) -> str:
        return f"<SyncRun {self.id}>"

    def status(self) -> Status:
        """See Run.status."""
        status: Status = self._call(self._run.status())
        return status

    def result(self, timeout: Duration | None = None) -> R:
        """See Run.result."""
        value: R = self._call(self._run.result(timeout))
        return value

    def cancel(self, reason: str = "") -> None:
        """See Run.cancel."""
        self._call(self._run.cancel(reason))

    def signal(self, name: str, value: object = None) -> None:
        """See Run.signal."""
        self._call(self._run.signal(name, value))

    def replay(self, *, args: Sequence[Any] | str | None = None, reason: str = "") -> None:
        """See Run.replay."""
        self._call(self._run.replay(args=args, reason=reason))

    def resolve(self, result: object = None, *, reason: str = "") -> None:
        """See Run.resolve."""
        self._call(self._run.resolve(result, reason=reason))

    def resolve_step(self, path: str, result: object = None, *, again: bool = False, reason: str = "") -> None:
        """See Run.resolve_step."""
        self._call(self._run.resolve_step(path, result, again=again, reason=reason))

    def discard(self, *, reason: str = "") -> None:
        """See Run.discard."""
        self._call(self._run.discard(reason=reason))

    def history(self) -> list[Entry]:
        """See Run.history."""
        entries: list[Entry] = self._call(self._run.history())
        return entries


class Portal(forking.Forkable):
    """A thread with an event loop, for blocking code to call into. Starts at first use, and anew after a fork."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        forking.watch(self)

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine over there, and wait for it here. Who is interrupted here ends it there."""
        if _loop_is_running():
            work.close()
            raise WrongColour("app.sync would block the event loop that runs here: await the async call instead")
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="holdfast-sync", daemon=True).start()
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def leave_behind(self) -> None:
        """See Forkable. The thread is not here."""
        self._lock, self._loop = threading.Lock(), None


def _loop_is_running() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
