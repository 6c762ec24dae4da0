"""`Run`: a submitted job as its caller sees it. Must not know apps.

Inside a job of the same store, waiting for a run's result suspends that job; outside it waits for news of the run.
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
"""How long a waiting caller waits for news before it looks by itself."""

TELL_SECONDS = 1.0
"""How long to ask in what state a job is that did not settle in time."""

PROGRESS_SECONDS = 0.5
"""How long to wait while the job runs: what its worker's beat tells rings no bell."""


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
        """The attempt that submitted it as its child. Any other attempt waits for it as for somebody else's job."""

    @property
    def _codec(self) -> Codec[Any]:
        return Codec[Any]() if self._signature is None else self._signature.result

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
        attempt = attempt_here()
        if attempt is not None and await self._is_in_store_of(attempt):
            return await self._suspend_for_result(attempt, timeout)
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
        """Whether it is in the store of the job that waits for it: nobody wakes a job for the end of one elsewhere."""
        return attempt is self._parent or (await attempt.persist(self._open)).engine is attempt.engine

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
