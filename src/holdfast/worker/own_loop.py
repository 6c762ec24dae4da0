"""Reaching the loop of an attempt from elsewhere: from a thread of its job, or from another loop in that thread.

Must not know what runs there.
"""

import asyncio
import concurrent.futures
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from holdfast import forking
from holdfast.core.errors import Invalid
from holdfast.worker.attempt import Attempt
from holdfast.worker.cancellation import cancels_of
from holdfast.worker.context import check_no_tx
from holdfast.worker.recorded_errors import Escaped
from holdfast.worker.tries import Stopped

T = TypeVar("T")


def run_on_loop(attempt: Attempt, work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on the worker's loop, and wait for it in this thread. It is cancelled with the attempt."""
    try:
        return _send(attempt, work, is_own=threading.get_ident() == attempt.own_thread).result()
    except concurrent.futures.CancelledError as error:
        raise _cancel_error(attempt, error) from None
    except RuntimeError:
        if attempt.loop.is_closed():
            raise Stopped(f"job {attempt.job.id}: its worker has stopped") from None
        raise


def is_away(attempt: Attempt) -> bool:
    """Whether this code runs on a loop other than its attempt's, as under `asyncio.run` in a `def` job."""
    return asyncio.get_running_loop() is not attempt.loop


async def await_on_loop(attempt: Attempt, work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on the worker's loop, and await it here on another loop: an attempt's waits and records belong to
    its own loop.
    """
    here = asyncio.current_task()
    cancels = cancels_of(here)
    try:
        return await asyncio.wrap_future(_send(attempt, work))
    except asyncio.CancelledError as error:
        if cancels_of(here) > cancels and not attempt.is_stopping():
            raise
        raise _cancel_error(attempt, error) from None


def _send(attempt: Attempt, work: Coroutine[Any, Any, T], *, is_own: bool = False) -> "concurrent.futures.Future[T]":
    """Start the coroutine on the worker's loop. `is_own` says that the function of a `def` job waits for it."""
    if not attempt.is_here():
        forking.end_copy()
    try:
        check_no_tx("a call that the store answers")
    except Invalid:
        work.close()
        raise

    async def run_adopted() -> T:
        task = asyncio.current_task()
        assert task is not None
        attempt.tasks.add(task)
        if is_own:
            attempt.own_call = task
        try:
            return await work
        finally:
            attempt.tasks.discard(task)
            if is_own:
                attempt.own_call = None

    sent = run_adopted()
    try:
        return asyncio.run_coroutine_threadsafe(sent, attempt.loop)
    except RuntimeError:
        sent.close()
        work.close()
        raise


def _cancel_error(attempt: Attempt, error: BaseException) -> BaseException:
    """Return what a coroutine that was cancelled there raises here: a stop, or an error of its own code."""
    return attempt.stop_error() if attempt.is_stopping() else Escaped(asyncio.CancelledError(*error.args))
