"""`Run`: a submitted job, as its caller sees it. Must not know apps.

Inside a job of the same store, waiting for a run's result suspends that job. Elsewhere the caller waits for a wake-up.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Generic, TypeVar

from holdfast.core.codec import Codec, Signature, canonical, parse
from holdfast.core.durations import Duration, milliseconds
from holdfast.core.errors import HoldfastError
from holdfast.core.lifecycle import SETTLED, standing
from holdfast.core.model import Entry, Job, State
from holdfast.engines.topics import job_topic
from holdfast.jobs.failures import failure_of
from holdfast.jobs.service import Jobs, Status
from holdfast.worker.attempt import Attempt
from holdfast.worker.children import check_other, child_wait, run_wait
from holdfast.worker.context import attempt_here
from holdfast.worker.suspension import Suspension

R = TypeVar("R")

FOLLOW_SECONDS = 5.0
"""How long a caller waits for a wake-up before it checks the job anyway."""

STATE_SECONDS = 1.0
"""How long to spend on reading the state of a job that didn't settle in time."""

PROGRESS_SECONDS = 0.5
"""The same while the job runs: progress in a worker's heartbeat causes no wake-up."""


class Run(Generic[R]):
    """One submitted job."""

    def __init__(
        self,
        open: Callable[[], Awaitable[Jobs]],
        id: str,
        signature: Signature | None,
        parent: Attempt | None = None,
    ) -> None:
        self.id = id
        self._open = open
        self._signature = signature
        self._parent = parent
        """The attempt that submitted the job as its child. Other attempts wait for it as for an unrelated job."""

    @property
    def _codec(self) -> Codec[Any]:
        return Codec[Any]() if self._signature is None else self._signature.result

    def __repr__(self) -> str:
        return f"<Run {self.id}>"

    async def status(self) -> Status:
        """Return the job's status, for a person: its state, its stage, its progress, and since when."""
        return await (await self._open()).status(self.id)

    async def result(self, timeout: Duration | None = None) -> R:
        """Wait until the job settles, and return its result.

        Raises JobFailed if the job needs a person or was given up, JobCancelled if it was cancelled, and TimeoutError
        if it hasn't settled within `timeout`.
        """
        attempt = attempt_here()
        if attempt is not None and await self._is_in_store_of(attempt):
            return await self._suspend_for_result(attempt, timeout)
        limit = None if timeout is None else milliseconds(timeout) / 1_000
        try:
            async with asyncio.timeout(limit):
                job = await self._wait_until_settled()
        except TimeoutError:
            if limit is None:
                raise
            raise TimeoutError(await self._timeout_message(limit)) from None
        if job.state is State.COMPLETED:
            value: R = self._codec.decode(job.result or "null")
            return value
        note = (await (await self._open()).history(self.id))[-1].note
        raise failure_of(job, str(note.get("reason", "")), is_inside=attempt is not None)

    async def _suspend_for_result(self, attempt: Attempt, timeout: Duration | None) -> R:
        limit = None if timeout is None else milliseconds(timeout)
        start_wait = child_wait if attempt is self._parent else run_wait
        outcome = await Suspension.of(attempt).wait(start_wait(attempt, self.id, limit))
        if outcome.job is not None:
            raise failure_of(outcome.job, is_inside=True)
        value: R = self._codec.decode(outcome.result or "null")
        return value

    async def _is_in_store_of(self, attempt: Attempt) -> bool:
        """Return whether the run is in the store of the job that waits for it. A job in another store would never wake
        it.
        """
        return attempt is self._parent or (await attempt.persist(self._open)).engine is attempt.engine

    async def cancel(self, reason: str = "") -> None:
        """Cancel the job. It loses its lease at once. Raises NotAllowed if it has ended already."""
        await (await self._open()).cancel(self.id, reason=reason)

    async def signal(self, name: str, value: object = None) -> None:
        """Send the job a named value. If the job waits for it, it wakes up; otherwise the value stays in its inbox."""
        await (await self._open()).signal(self.id, name, value)

    async def replay(self, *, args: Sequence[Any] | str | None = None, reason: str = "") -> None:
        """Run a job in review again. Recorded steps keep their results.

        By default it keeps its arguments. `args` replaces them: a sequence of arguments, or their JSON text. They must
        fit.
        """
        text = args if isinstance(args, str) else None
        if args is not None and text is None:
            text = canonical(list(args)) if self._signature is None else self._signature.encode(args, {})
        if text is not None and self._signature is not None:
            self._signature.decode(text)
        await (await self._open()).replay(self.id, args=text, reason=reason)

    async def resolve(self, result: object = None, *, reason: str = "") -> None:
        """Complete a job in review with this result, which must fit the job's return type."""
        text = self._codec.encode(result)
        await (await self._open()).resolve(self.id, parse(text), reason=reason)

    async def resolve_step(self, path: str, result: object = None, *, again: bool = False, reason: str = "") -> None:
        """Decide a step in doubt: it happened, with this result; or, with `again=True`, it must run again."""
        await (await self._open()).resolve_step(self.id, path, result, again=again, reason=reason)

    async def discard(self, *, reason: str = "") -> None:
        """Give up a job in review. It never runs again."""
        await (await self._open()).discard(self.id, reason=reason)

    async def history(self) -> list[Entry]:
        """Return everything that happened to the job, oldest first."""
        return await (await self._open()).history(self.id)

    async def follow(self) -> AsyncIterator[Entry | Status]:
        """Yield the job's history entries and, while it runs, its progress, until it settles."""
        attempt = attempt_here()
        if attempt is not None:
            check_other(attempt, self.id)
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

    async def _timeout_message(self, seconds: float) -> str:
        """Return the message of a TimeoutError. A store that doesn't answer must not make the caller wait longer."""
        state = ""
        with suppress(HoldfastError, TimeoutError):
            async with asyncio.timeout(STATE_SECONDS):
                job = await (await self._open()).get(self.id)
            failed = "" if job.error is None else f" after {job.error.type}: {job.error.message}"
            state = f": it is {standing(job.state)}{failed}"
        return f"job {self.id} has not settled within {seconds:g} s{state}; the job continues"

    async def _wait_until_settled(self) -> Job:
        jobs = await self._open()
        mark = 0
        while True:
            job = await jobs.get(self.id)
            if job.state in SETTLED:
                return job
            mark = await jobs.engine.wait([job_topic(self.id)], FOLLOW_SECONDS, mark)
