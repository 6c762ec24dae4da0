"""How the function of a step runs: awaited on the loop, in its own thread, or in its own process.

Must not record anything or decide whether a step is retried (`steps`).
"""

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from holdfast.engines.observers import Tracer
from holdfast.worker.attempt import Attempt
from holdfast.worker.call import Body, Call
from holdfast.worker.context import current_at
from holdfast.worker.isolation.lent_blobs import lending
from holdfast.worker.isolation.pool import IsolatedCall
from holdfast.worker.own_loop import run_on_loop
from holdfast.worker.recorded_errors import error_of
from holdfast.worker.registry import StepSpec
from holdfast.worker.threads import run_in_thread


def body_of(spec: StepSpec) -> Body:
    """Return how a step's function runs on the loop: a `def` function runs in a thread."""
    if spec.isolated:
        return run_isolated
    return _run_here if spec.is_async else _run_threaded


def traced(body: Body, tracer: Tracer) -> Body:
    """Return a body whose tries a tracer follows."""

    async def run(call: Call) -> Any:
        with _following(call, tracer):
            return await body(call)

    return run


@contextmanager
def _following(call: Call, tracer: Tracer) -> Iterator[None]:
    with tracer.running(call.attempt.job, call.spec.name, call.path, call.tries) as fail:
        try:
            yield
        except Exception as error:
            fail(error_of(error))
            raise


async def run_timed(call: Call, body: Body) -> Any:
    """Run a body within the step's timeout, if it has one."""
    if call.spec.timeout_ms is None:
        return await body(call)
    clocks = call.attempt.step_clocks
    try:
        async with asyncio.timeout(call.spec.timeout_ms / 1_000) as limit:
            clocks.start(call.path, limit)
            return await body(call)
    except TimeoutError:
        if limit.expired():
            raise call.timeout_error() from None
        raise
    finally:
        clocks.end(call.path)


async def _run_here(call: Call) -> Any:
    args, kwargs = call.make_arguments()
    return await call.spec.function(*args, **kwargs)


async def _run_threaded(call: Call) -> Any:
    args, kwargs = call.make_arguments()
    await call.wait_for_threads()
    turn = threading.Lock()
    """Whoever takes it first decides: either the body starts, or we have given it up and it never starts."""

    def work() -> Any:
        try:
            admit(call.attempt)  # the thread may start late: by then another worker may own the job
            if not turn.acquire(blocking=False):
                return None
            call.has_begun = True
            return call.spec.function(*args, **kwargs)
        finally:
            call.threads -= 1
            if call.within is not None:
                call.within.leave(None)

    call.threads += 1
    if call.within is not None:
        call.within.hold(None)
    try:
        return await run_in_thread(call.make_context(), work)
    except BaseException:
        if turn.acquire(blocking=False) and not call.has_begun and call.attempt.stop is not None:
            call.take_back()
        raise


async def run_isolated(call: Call) -> Any:
    """Run the function, sync or async, in a separate process. Cancelling this kills the process."""
    spec = call.spec
    async with lending(call.attempt, call.arguments_text) as lent:
        asked = IsolatedCall(
            step=spec.name,
            function=spec.function,
            args=call.arguments_text,
            current=current_at(call.attempt, call.path),
            folder=str(lent.folder),
            memory_mb=spec.memory_mb,
        )
        timeout = None if spec.timeout_ms is None else spec.timeout_ms / 1_000
        text = await call.attempt.isolate(asked, timeout=timeout)
        await lent.take_back(text)
    return spec.signature.result.decode(text)


def run_blocking(call: Call) -> Any:
    """Run the function in this thread. It can't be stopped from outside: a timeout is noticed when it returns."""
    tracer = call.attempt.engine.tracer
    with nullcontext() if tracer is None else _following(call, tracer):
        return _run_blocking(call)


def _run_blocking(call: Call) -> Any:
    if call.spec.isolated:
        return run_on_loop(call.attempt, run_isolated(call))
    args, kwargs = call.make_arguments()
    limit = call.spec.timeout_ms
    if limit is None:
        return call.make_context().run(call.spec.function, *args, **kwargs)
    clocks = call.attempt.step_clocks
    began = time.monotonic()
    clocks.start(call.path)
    try:
        value = call.make_context().run(call.spec.function, *args, **kwargs)
    finally:
        waited = clocks.end(call.path)
    if (time.monotonic() - began - waited) * 1_000 > limit:
        raise call.timeout_error()
    return value


def admit(attempt: Attempt) -> None:
    """Like Attempt.admit, from a thread. Doesn't go through the loop while the fence is open."""
    attempt.check()
    if attempt.is_fenced():
        run_on_loop(attempt, attempt.admit())
