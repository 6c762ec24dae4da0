"""`Run`: a submitted job, as its caller sees it. Must not know apps.

Inside a job of the same store, waiting for a run's result suspends that job. Elsewhere the caller waits for a wake-up.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Generic, TypeVar
from urllib.parse import unquote

from holdfast.app.patience import patiently
from holdfast.blobs.here import read_value
from holdfast.core.canonical import clipped
from holdfast.core.changes import resolve
from holdfast.core.codec import Codec, Signature, canonical, parse
from holdfast.core.durations import Duration, milliseconds
from holdfast.core.errors import BadValue, HoldfastError, Invalid, NotFound
from holdfast.core.lifecycle import SETTLED, standing
from holdfast.core.model import Entry, Job, State
from holdfast.engines.contract import Engine
from holdfast.engines.topics import job_topic
from holdfast.jobs.failures import failure_of
from holdfast.jobs.flows import flow_codec, flow_result, load_flow
from holdfast.jobs.large_values import result_of
from holdfast.jobs.replay_plans import Plan, preview_replay
from holdfast.jobs.reruns import fork, rerun
from holdfast.jobs.service import Jobs, Status
from holdfast.jobs.views.tree import Tree, view_tree
from holdfast.worker.attempt import Attempt
from holdfast.worker.children import check_other, child_wait, run_wait
from holdfast.worker.context import attempt_here
from holdfast.worker.registry import STEPS
from holdfast.worker.suspension import Suspension

R = TypeVar("R")

ResultOf = Callable[[str], Codec[Any] | None]
"""Finds how to read the results of a job type, if the type is known here."""

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
        result_of: ResultOf | None = None,
    ) -> None:
        self.id = id
        self._open = open
        self._signature = signature
        self._parent = parent
        """The attempt that submitted the job as its child. Other attempts wait for it as for an unrelated job."""
        self._result_of = result_of
        """How to read what the jobs of a flow return, by type, if this is the run of a flow."""

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
        if it hasn't settled within `timeout`. While the store or its server is away, the wait continues: until
        then, or without a timeout for a minute.
        """
        attempt = attempt_here()
        if attempt is not None and await self._is_in_store_of(attempt):
            return await self._suspend_for_result(attempt, timeout)
        limit = None if timeout is None else milliseconds(timeout) / 1_000
        try:
            async with asyncio.timeout(limit):
                job = await self._wait_until_settled(is_bounded=limit is not None)
        except TimeoutError:
            if limit is None:
                raise
            raise TimeoutError(await self._timeout_message(limit)) from None
        jobs = await self._open()
        if job.state is State.COMPLETED:
            text = await patiently(lambda: result_of(jobs.engine, job))
            return await patiently(lambda: self._decode(text, jobs.engine))
        note = (await patiently(lambda: jobs.history(self.id)))[-1].note
        raise failure_of(job, str(note.get("reason", "")), is_inside=attempt is not None)

    async def _suspend_for_result(self, attempt: Attempt, timeout: Duration | None) -> R:
        limit = None if timeout is None else milliseconds(timeout)
        start_wait = child_wait if attempt is self._parent else run_wait
        outcome = await Suspension.of(attempt).wait(start_wait(attempt, self.id, limit))
        if outcome.job is not None:
            raise failure_of(outcome.job, is_inside=True)
        with attempt.activity():
            return await attempt.persist(lambda: self._decode(outcome.result or "null", attempt.engine))

    async def _decode(self, text: str, engine: Engine) -> R:
        """Read a result. That of a flow may be with its jobs."""
        codec = self._codec
        if self._result_of is not None:
            (job,) = await engine.get([self.id])
            if job is None:
                raise NotFound(f"flow {self.id} is no longer in this store; it may have been pruned")
            codec = flow_codec(await load_flow(engine, job), self._result_of)
            text = await flow_result(engine, await engine.blobs.fetch(text))
        value: R = await read_value(engine.blobs, text, codec.decode)
        return value

    async def _is_in_store_of(self, attempt: Attempt) -> bool:
        """Return whether the run is in the store of the job that waits for it. A job in another store would never wake
        it.
        """
        return attempt is self._parent or (await attempt.persist(self._open)).engine is attempt.engine

    async def cancel(self, reason: str = "") -> None:
        """Cancel the job. It loses its lease at once. Raises NotAllowed if it has ended already."""
        await (await self._open()).cancel(self.id, reason=reason)

    async def add_budget(self, *, usd: float = 0, tokens: float = 0, reason: str = "") -> None:
        """Add to what the job and its children may spend. If it waits for its budget, it continues."""
        await (await self._open()).add_budget(self.id, {"usd": usd, "tokens": tokens}, reason=reason)

    async def signal(self, name: str, value: object = None) -> None:
        """Send the job a named value. If the job waits for it, it wakes up; otherwise the value stays in its inbox."""
        await (await self._open()).signal(self.id, name, value)

    async def preview_replay(self, *, args: Sequence[Any] | str | None = None) -> Plan:
        """Return what a replay would do: `.will_run`, `.recorded`, `.in_doubt`, and in words with `str`.

        Raises NotAllowed unless the job is in review.
        """
        return await preview_replay(await self._open(), self.id, args=self._encode(args))

    async def replay(self, *, args: Sequence[Any] | str | None = None, reason: str = "") -> None:
        """Run a job in review again. Recorded steps keep their results.

        By default it keeps its arguments. `args` replaces them: a sequence of arguments, or their JSON text. They must
        fit.
        """
        await (await self._open()).replay(self.id, args=self._encode(args), reason=reason)

    def _encode(self, args: Sequence[Any] | str | None) -> str | None:
        """Return edited arguments as text, checked against the job's type hints."""
        if args is None:
            return None
        if not isinstance(args, str):
            args = _as_list(args)
            args = canonical(args) if self._signature is None else self._signature.encode(args, {})
        if self._signature is not None:
            self._signature.decode(args)
        return args

    async def rerun(
        self,
        *steps: str,
        args: Sequence[Any] | str | None = None,
        feedback: str = "",
        allow: Collection[str] = (),
        reason: str = "",
    ) -> "Run[R]":
        """Reject the results of recorded steps and run them again: `await run.rerun("draw#3", feedback="six fingers")`.

        Steps that receive a changed value run again, too; everything else is kept. In the step, `current()` has the
        feedback and the rejected result. `args` are other arguments for it. `allow` names effects that may happen
        again. Returns this run if the job is in review. Of a job that has ended, a new run is made and returned.
        """
        text = None if args is None else _step_args(steps, args)
        jobs = await self._open()
        job = await rerun(jobs, self.id, steps, args=text, feedback=feedback, allow=allow, reason=reason)
        return self if job.id == self.id else Run(self._open, job.id, self._signature)

    async def fork(
        self,
        until: str | None = None,
        *,
        args: Sequence[Any] | str | None = None,
        allow: Collection[str] = (),
        reason: str = "",
    ) -> "Run[R]":
        """Make a new run that keeps what this one recorded before its first step `until`, by name or path.

        Without `until`, it keeps every recorded step. `args` are other arguments for the job. `allow` names effects
        that this run had later and that may happen again.
        """
        text = self._encode(args)
        job = await fork(await self._open(), self.id, until, args=text, allow=allow, reason=reason)
        return Run(self._open, job.id, self._signature)

    async def resolve(self, result: object = None, *, reason: str = "") -> None:
        """Complete a job in review with this result, which must fit the job's return type."""
        jobs = await self._open()
        # A job that isn't in review can't be resolved, whatever the result.
        resolve(await jobs.get(self.id), await jobs.engine.now(), by="person", result="null")
        text = self._codec.encode(result)
        await jobs.resolve(self.id, parse(text), reason=reason)

    async def resolve_step(self, path: str, result: object = None, *, again: bool = False, reason: str = "") -> None:
        """Decide a step in doubt: it happened, with this result; or, with `again=True`, it must run again."""
        await (await self._open()).resolve_step(self.id, path, result, again=again, reason=reason)

    async def discard(self, *, reason: str = "") -> None:
        """Give up a job in review. It never runs again."""
        await (await self._open()).discard(self.id, reason=reason)

    async def tree(self) -> Tree:
        """Return the job and all jobs below it, as a flow's steps. `str(tree)` draws them."""
        jobs = await self._open()
        return await view_tree(jobs, await jobs.get(self.id))

    async def history(self) -> list[Entry]:
        """Return everything that happened to the job, oldest first."""
        return await (await self._open()).history(self.id)

    async def follow(self) -> AsyncIterator[Entry | Status]:
        """Yield the job's history entries and, while it runs, its progress, until it settles.

        A store or a server that is away for less than a minute doesn't end it.
        """
        attempt = attempt_here()
        if attempt is not None:
            check_other(attempt, self.id)
        jobs = await self._open()
        await patiently(lambda: jobs.get(self.id))
        mark, version, shown = 0, 0, None
        while True:
            while page := await patiently(partial(jobs.engine.history, self.id, version)):
                for entry in page:
                    version = entry.version
                    yield entry
            status = await patiently(lambda: jobs.status(self.id))
            if status.state in SETTLED and status.version == version:
                return
            active = status.state is State.ACTIVE
            if active and status.progress() != shown:
                shown = status.progress()
                yield status
            mark = await self._wake(jobs, PROGRESS_SECONDS if active else FOLLOW_SECONDS, mark)

    async def _wake(self, jobs: Jobs, seconds: float, mark: int, *, is_bounded: bool = False) -> int:
        """Wait for a wake-up of the job, or as long as this."""
        return await patiently(lambda: jobs.engine.wait([job_topic(self.id)], seconds, mark), is_bounded=is_bounded)

    async def _timeout_message(self, seconds: float) -> str:
        """Return the message of a TimeoutError. A store that doesn't answer must not make the caller wait longer."""
        state = "has not settled"
        with suppress(HoldfastError, TimeoutError):
            async with asyncio.timeout(STATE_SECONDS):
                status = await self.status()
            told = str(status)
            state = f"is {told}" if told.startswith(status.state) else f"is {standing(status.state)}: {told}"
        return f"timed out after {seconds:g} s; job {self.id} {state}"

    async def _wait_until_settled(self, *, is_bounded: bool) -> Job:
        jobs = await self._open()
        mark = 0
        while True:
            job = await patiently(lambda: jobs.get(self.id), is_bounded=is_bounded)
            if job.state in SETTLED:
                return job
            mark = await self._wake(jobs, FOLLOW_SECONDS, mark, is_bounded=is_bounded)


def _step_args(steps: Sequence[str], args: Sequence[Any] | str) -> str:
    """Return a step's arguments as text, checked against its type hints if this process knows the step."""
    if not isinstance(args, str):
        args = _as_list(args)
    name = unquote(str(steps[0]).rpartition("/")[2].partition("#")[0]) if steps else ""
    trouble: BadValue | None = None
    for spec in STEPS.get(name, {}).values():
        try:
            text = args if isinstance(args, str) else spec.signature.encode(tuple(args), {})
            spec.signature.decode(text)
        except BadValue as error:
            trouble = trouble or error
        else:
            return text
    if trouble is not None:
        raise trouble
    return args if isinstance(args, str) else canonical(args)


def _as_list(args: Any) -> list[Any]:
    """Return edited arguments as a list, or raise Invalid."""
    if not isinstance(args, list | tuple):
        raise Invalid(
            f'args={clipped(repr(args))} is not a list of arguments; give one, such as args=["sea", 3], or JSON text'
        )
    return list(args)
