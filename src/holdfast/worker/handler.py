"""Running a job's function: its arguments and its result at the border, its colour, its timeout.

Must not decide what an error means (`core`). It runs in the worker, or in a process of its own (`isolation`).
"""

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from holdfast.core.durations import in_words
from holdfast.worker.attempt import Attempt
from holdfast.worker.context import ATTEMPT
from holdfast.worker.registry import JobSpec
from holdfast.worker.steps import in_thread

T = TypeVar("T")


async def guarded(attempt: Attempt, work: Callable[[], Awaitable[str]]) -> tuple[str | None, BaseException | None]:
    """The handler's result, or what it raised as a value: `sys.exit` in a job must not end the worker's loop."""
    ATTEMPT.set(attempt)
    try:
        return await work(), None
    except GeneratorExit:
        raise
    except BaseException as error:
        return None, error


async def handled(attempt: Attempt) -> str:
    """The result of the job's function, as text."""
    signature = attempt.spec.signature
    args, kwargs = signature.decode(attempt.job.args)
    return signature.result.encode(await _called(attempt.spec, args, kwargs))


async def within(attempt: Attempt, work: Coroutine[Any, Any, T]) -> T:
    """The same under the job's own timeout, counted from its claim."""
    limit = attempt.job.options.timeout_ms
    if limit is None:
        return await work
    try:
        async with asyncio.timeout(limit / 1_000) as clock:
            attempt.own_timeout = clock
            return await work
    except TimeoutError:
        if clock.expired():
            raise TimeoutError(f"the job took longer than its timeout of {in_words(limit)}") from None
        raise


async def _called(spec: JobSpec, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if spec.is_async:
        return await spec.function(*args, **kwargs)
    return await in_thread(contextvars.copy_context(), lambda: spec.function(*args, **kwargs))
