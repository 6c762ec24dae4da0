"""Runs blocking code of a job in its own thread. Must not know what the code does."""

import asyncio
import contextvars
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from holdfast import forking
from holdfast.worker.context import ATTEMPT
from holdfast.worker.recorded_errors import contain
from holdfast.worker.tries import Stopped

T = TypeVar("T")


async def run_in_thread(context: contextvars.Context, work: Callable[[], T]) -> T:
    """Run blocking work in its own thread, which never keeps the process alive."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    attempt, copies = context.get(ATTEMPT), forking.copies

    def run() -> None:
        try:
            value = context.run(work)
        except BaseException as error:
            if forking.copies != copies:
                forking.end_copy(error)
            _answer(loop, future, None, error)
        else:
            if forking.copies != copies:
                forking.end_copy()
            _answer(loop, future, value, None)
        finally:
            if attempt is not None:
                attempt.count_thread(-1)

    if attempt is not None:
        attempt.count_thread(1)
    daemon = attempt is None or attempt.has_daemons
    threading.Thread(target=run, name="holdfast-job", daemon=daemon).start()
    return await future


def _answer(
    loop: asyncio.AbstractEventLoop, future: "asyncio.Future[Any]", value: Any, error: BaseException | None
) -> None:
    """Pass the outcome of the work on to the loop."""

    def answer() -> None:
        if future.done():
            return
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error if isinstance(error, Stopped) else contain(error))

    try:
        loop.call_soon_threadsafe(answer)
    except RuntimeError:  # the loop has ended, so nobody waits
        pass
