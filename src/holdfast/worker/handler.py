"""Running a job's function: decoding its arguments, encoding its result, sync or async, with its timeout.

Must not decide what an error means (`core`). Runs in the worker, or in a separate process (`isolation`).
"""

import asyncio
import contextvars
import threading
from collections.abc import Callable, Coroutine
from typing import Any

from holdfast.core.durations import in_words
from holdfast.core.errors import BadValue
from holdfast.core.references import is_kept_outside, may_need_blobs
from holdfast.engines.observers import Tracer
from holdfast.jobs.flows import is_member, misfit
from holdfast.jobs.large_values import reading_arguments
from holdfast.worker.attempt import Attempt
from holdfast.worker.context import ATTEMPT
from holdfast.worker.large_results import keep_job_result
from holdfast.worker.recorded_errors import error_of
from holdfast.worker.threads import run_in_thread

Work = Callable[[Any], Coroutine[Any, Any, str]]


async def run_guarded(attempt: Attempt, work: Work) -> tuple[str | None, BaseException | None]:
    """Run a handler and return its result, or its exception as a value: `sys.exit` in a job must not end the worker."""
    ATTEMPT.set(attempt)
    try:
        return await work(attempt), None
    except BaseException as error:  # GeneratorExit too: for the caller of close(), returning is as good as raising
        return None, error


async def run_traced(attempt: Attempt, work: Work, tracer: Tracer) -> tuple[str | None, BaseException | None]:
    """Like run_guarded, while a tracer follows it."""
    with tracer.processing(attempt.job) as end:
        result, error = await run_guarded(attempt, work)
        if attempt.stop is not None or isinstance(error, asyncio.CancelledError):
            end(attempt.stop or "cancelled", None)
        else:
            end("completed" if error is None else "failed", None if error is None else error_of(error))
        return result, error


async def run_handler(attempt: Attempt) -> str:
    """Run the job's function and return its result as text."""
    spec, text = attempt.spec, attempt.args or attempt.job.args
    if is_kept_outside(text):
        with reading_arguments():
            text = await attempt.engine.blobs.fetch(text)
    try:
        args, kwargs = spec.signature.decode(text)
    except BadValue as error:
        raise (misfit(text, error) if is_member(attempt.job) else error) from error.__cause__
    if spec.is_async:
        value = await spec.function(*args, **kwargs)
    else:

        def work() -> Any:
            attempt.own_thread = threading.get_ident()
            return spec.function(*args, **kwargs)

        value = await run_in_thread(contextvars.copy_context(), work)
    text, _ = spec.signature.result.part(value)  # whoever keeps it says whether it is too large
    if attempt.keeps_result and (may_need_blobs(text) or attempt.job.options.keep_result_ms is not None):
        return await keep_job_result(attempt, text)
    return text


async def run_within(limit: int, work: Work, attempt: Attempt) -> str:
    """Run a handler under the job's own timeout, counted from its claim, without the time it only waits for limits."""
    ATTEMPT.set(None)  # so that this timeout doesn't count as a timer of the job's own code
    try:
        async with asyncio.timeout(limit / 1_000) as clock:
            ATTEMPT.set(attempt)
            attempt.clock = clock
            return await work(attempt)
    except TimeoutError:
        if clock.expired():
            raise TimeoutError(f"the job took longer than its timeout of {in_words(limit)}") from None
        raise
