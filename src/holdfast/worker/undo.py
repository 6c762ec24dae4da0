"""Undo: the job that takes back what a stopped job made, newest first, and runs its cleanup last.

Must not decide when it starts (`lifecycle.undo_job`): by then the owner has stopped. Each undo is a recorded step, so
it continues after a crash, and a failed undo doesn't block the others.
"""

import asyncio
import contextvars
import inspect
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from msgspec.structs import replace

from holdfast.core.codec import Signature, parse
from holdfast.core.errors import Invalid, NotFound, UndoFailed
from holdfast.core.model import Job, Options, Retry, Step, StepState
from holdfast.core.outcome import TRANSACTION
from holdfast.engines.contract import Engine
from holdfast.jobs.consequences import UNDO_PATH, UNDO_TYPE, cancel_children
from holdfast.jobs.flows import resolved_args
from holdfast.worker.attachments import find_cancel, has_ended
from holdfast.worker.call import Call
from holdfast.worker.context import UNDONE, attempt_here
from holdfast.worker.recorded_errors import text_of, type_name
from holdfast.worker.records import record_info
from holdfast.worker.registry import (
    NO_GENERATOR,
    UNDOABLE,
    JobSpec,
    Registry,
    StepSpec,
    is_generator,
    place_of,
)
from holdfast.worker.steps import make_call, run_async
from holdfast.worker.threads import run_in_thread

UNDO_RETRY = Retry(retries=2, initial_ms=500)
"""How often one undo is tried before it counts as failed for this attempt."""


def undo_spec(job: Job, engine: Engine, registry: Registry) -> JobSpec | None:
    """Return what to run for an undo job; None for any other type."""
    if job.type != UNDO_TYPE:
        return None

    async def undo(id: str) -> list[str]:
        return await _Undo(engine, registry, id).run()

    return JobSpec(
        type=UNDO_TYPE, function=undo, signature=Signature(undo), is_async=True, queue=job.queue, options=Options()
    )


async def foreign_type(job: Job, engine: Engine, registry: Registry) -> str | None:
    """Return the type of the job to undo, if this worker knows neither that type nor all undos it needs.

    Then it belongs to another app. A worker that knows the type runs the undo, even if its code no longer has an undo:
    no other worker of this app has it either, and a person must see what is missing.
    """
    (undone,) = await engine.get([job.parent or ""])
    if undone is None or registry.get(undone.type) is not None:
        return None
    intents = await engine.steps_under(undone.id, UNDO_PATH)
    calls_known = all(_is_known(record_info(intent)) for intent in intents)
    return None if calls_known and not undone.options.cleanup else undone.type


def _is_known(info: Mapping[str, str]) -> bool:
    """Whether this process has the function that undoes a step."""
    if "undo" not in info:
        return info["step"] in UNDOABLE
    try:
        return bool(find_cancel(info["undo"]))
    except NotFound:
        return False


class _Undo:
    """One pass over what a stopped job made."""

    def __init__(self, engine: Engine, registry: Registry, id: str) -> None:
        self._engine = engine
        self._registry = registry
        self._id = id
        self._undone: list[str] = []
        self._left: list[str] = []

    async def run(self) -> list[str]:
        """Undo all of it. Raises UndoFailed, which names what is left."""
        attempt = attempt_here()
        assert attempt is not None
        (job,) = await attempt.persist(lambda: self._engine.get([self._id]))
        if job is None:
            return []
        await attempt.persist(lambda: cancel_children(self._engine, self._id, by=UNDO_TYPE))
        steps = {step.path: step for step in await attempt.persist(lambda: self._engine.steps(self._id))}
        for intent in reversed([step for path, step in steps.items() if path.startswith(UNDO_PATH)]):
            path = intent.path.removeprefix(UNDO_PATH)
            info = record_info(intent)
            if "undo" not in info:
                await self._try(path, self._undo_of(intent, steps.get(path)), info)
            elif not has_ended(path, steps):
                await self._try(path, partial(self._stop_attached, info["undo"], steps.get(path)), info)
        spec = self._registry.get(job.type)
        if spec is None or spec.cleanup is None:
            if job.options.cleanup:
                self._left.append(f"cleanup (this worker knows no job {job.type!r} with a cleanup)")
        else:
            text = await attempt.persist(lambda: resolved_args(self._engine, job))
            args, kwargs = spec.signature.decode(text)
            await self._try("cleanup", lambda: _call(spec.cleanup, *args, **kwargs))
        if self._left:
            raise UndoFailed(f"could not be undone: {'; '.join(self._left)}")
        return self._undone

    def _undo_of(self, intent: Step, record: Step | None) -> Callable[[], Awaitable[Any]]:
        """Undo one step: with its result, or with None if it may have happened."""
        name, place = record_info(intent)["step"], record_info(intent)["place"]

        async def undo() -> None:
            known = UNDOABLE.get(name, {})
            # A step that has moved to another module is still the right one, if only one step has its name.
            spec = known.get(place) or (next(iter(known.values())) if len(known) == 1 else None)
            if spec is None:
                where = (
                    f"there are several with this name, in {', '.join(known)}" if known else "is its module imported?"
                )
                raise NotFound(f"this worker knows no step {name!r} of {place} with an undo; {where}")
            done = record is not None and record.state is StepState.DONE
            value = None
            if done and record is not None:
                value = spec.signature.result.decode(await self._engine.blobs.fetch(record.result or "null"))
            await _call(spec.undo, value)

        return undo

    async def _stop_attached(self, name: str, record: Step | None) -> None:
        """Cancel a provider's job by the id that was recorded when it was started; None if it may have been started."""
        text = "null" if record is None else await self._engine.blobs.fetch(record.result or "null")
        await _call(find_cancel(name), parse(text))

    async def _try(self, path: str, work: Callable[[], Awaitable[Any]], info: Mapping[str, str] | None = None) -> None:
        """Run one undo as a step of this job, of the same kind as the step that it undoes. A failure is noted, and the
        next undo runs.
        """
        attempt = attempt_here()
        assert attempt is not None
        info = info or {}
        call = make_call(attempt, _TRANSACTION if info.get("effect") == TRANSACTION else _SPEC, (path,), {}, path)

        async def within(_: Call) -> None:
            step, first = path if path != "cleanup" else "", info.get("first", "")
            token = UNDONE.set((self._id, step, first, info.get("generation", "")))
            try:
                await work()
            finally:
                UNDONE.reset(token)

        try:
            await run_async(call, within)
            self._undone.append(path)
        except Exception as error:
            self._left.append(f"{path} ({type_name(error)}: {text_of(error)})")


async def _call(function: Any, *args: Any, **kwargs: Any) -> None:
    """Call an undo or a cleanup, sync or async, in its own task: one that cancels its own task must not cancel those
    that follow.
    """

    async def alone() -> BaseException | None:
        try:
            if inspect.iscoroutinefunction(function):
                await function(*args, **kwargs)
                return None
            answer = await run_in_thread(contextvars.copy_context(), lambda: function(*args, **kwargs))
            if inspect.isawaitable(answer):  # from a lambda, or an object whose `__call__` is async
                await answer
            if is_generator(answer):
                raise Invalid(f"{place_of(function)} returned a generator: {NO_GENERATOR}")
        except BaseException as error:  # returned as a value: a task that raises SystemExit ends the event loop
            return error
        return None

    if (error := await asyncio.create_task(alone(), name="holdfast undo")) is not None:
        raise error


def _undo(path: str) -> None: ...


_SPEC = StepSpec(
    name="undo",
    function=_undo,
    signature=Signature(_undo),
    is_async=True,
    retry=UNDO_RETRY,
    timeout_ms=None,
    stale_after_ms=None,
    key=None,
)
_TRANSACTION = replace(_SPEC, effect=TRANSACTION, is_async=False)
