"""Running a step, from its call to its record: answer, admit, try, retry, record.

Must not know apps or decorators. Sync and async follow the same plan: `run_async` awaits it on the loop, `run_sync`
runs it in the job's own thread and uses the loop only for the record.
"""

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from holdfast.core.model import Step, Time
from holdfast.core.outcome import TRANSACTION
from holdfast.worker.attempt import Attempt
from holdfast.worker.bodies import admit, body_of, run_blocking, run_timed, traced
from holdfast.worker.call import OUTSIDE, Body, Call
from holdfast.worker.cancellation import Watch, cancels_of
from holdfast.worker.context import PATH
from holdfast.worker.effect_call import EffectCall
from holdfast.worker.own_loop import run_on_loop
from holdfast.worker.permits import StepPermits, permits_of
from holdfast.worker.registry import StepSpec
from holdfast.worker.throttling import heed, rest, wait_out
from holdfast.worker.transactions import TransactionCall
from holdfast.worker.tries import TRY

_KINDS: dict[str | None, type[Call]] = {"once": EffectCall, TRANSACTION: TransactionCall}


def make_call(
    attempt: Attempt,
    spec: StepSpec,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    key: Any,
    *,
    item: Watch | None = None,
) -> Call:
    """Make one call of a step, of the class that its effect needs. This fixes the call's identity."""
    kind = Call if spec.effect is None else _KINDS.get(spec.effect, Call)
    return kind(attempt, spec, args, kwargs, key, item=item)


# Async: on the loop.


def run_async(call: Call, body: Body | None = None) -> Coroutine[Any, Any, Any]:
    """Answer a call from its record, or run its body, by default the step's function, and record the outcome."""
    body = body or body_of(call.spec)
    if (tracer := call.attempt.engine.tracer) is not None:
        body = traced(body, tracer)
    if isinstance(call, EffectCall):
        return _run_effect(call, body)
    return _run(call, call.in_transaction(body) if isinstance(call, TransactionCall) else body)


async def _run_effect(call: EffectCall, body: Body) -> Any:
    under_way, is_ours = call.join()
    if not is_ours:
        return await _value(call, call.read_result(await asyncio.shield(asyncio.wrap_future(under_way))))
    with call.lead(under_way):
        return await _run(call, body)


async def _run(call: Call, body: Body) -> Any:
    is_answered, value = call.answer()
    if is_answered:
        return await _value(call, value)
    attempt = call.attempt
    if attempt.stop is not None or attempt.is_fenced():
        await attempt.admit()
    if attempt.starting is not None:
        await attempt.starting(call.path)
    if attempt.job.epoch > 1:
        call.go_on()
        if call.is_rejected:
            await call.read_rejected()
        if call.not_before is not None:
            await rest(call)
    if (permits := permits_of(call)) is None:
        return await _run_admitted(call, body)
    try:
        await permits.acquire(call)
        return await _run_admitted(call, body)
    finally:
        permits.give_back(call.path)


async def _run_admitted(call: Call, body: Body) -> Any:
    attempt = call.attempt
    started_at = attempt.now()
    here = asyncio.current_task()
    call.enter(started_at, here)
    token = PATH.set(call.path)
    # A task that this call adds to the attempt is cancelled with it. The tasks of a map are already added.
    task = None if call.item is not None or here is attempt.root or here in attempt.tasks else here
    if task is not None:
        attempt.tasks.add(task)
    try:
        if call.has_intents():
            await call.write_intents(started_at)
            with _taking_back(call):
                await attempt.admit()
        if attempt.job.epoch > 1:
            call.note_run()
        step = await _try(call, body, started_at, here)
        if call.within is not None:
            call.shield_record(here)
            here = None
        return await _value(call, call.read_result(await call.record(step)))
    finally:
        PATH.reset(token)
        if call.is_retried:
            TRY.set(call.within)
        if task is not None:
            attempt.tasks.discard(task)
        call.leave(here)


async def _value(call: Call, value: Any) -> Any:
    """Return a recorded value; fetch it first if it is a blob."""
    return value if value is not OUTSIDE else await call.read_outside()


async def _try(call: Call, body: Body, started_at: Time, here: "asyncio.Task[Any] | None") -> Step:
    """Run the body until it succeeds or its failure is final; return what to record."""
    attempt = call.attempt
    is_timed = call.is_timed_here and call.spec.timeout_ms is not None and not call.spec.isolated
    while True:
        cancels = cancels_of(here)
        call.declare_cost()
        if call.is_retried:
            call.begin_try()
            TRY.set(call.now)
        try:
            try:
                return call.make_done(await (run_timed(call, body) if is_timed else body(call)), started_at)
            except BaseException:
                with Watch(attempt, here, call.item, cancels):
                    raise
        except Exception as error:
            call.check()
            throttle = heed(call, error)
            delay = call.plan_retry(error) if throttle is None else 0
            if delay is None:
                await call.record_failure(error, started_at)
                raise
        await call.end_try(is_refused=throttle is not None)
        permits = permits_of(call)
        if permits is not None:
            permits.give_back(call.path)
        if throttle is None:
            await asyncio.sleep(delay)
            call.tries += 1
        else:
            call.take_back()
            await wait_out(call, throttle)
        await attempt.admit()
        if permits is not None:
            await permits.acquire_again(call)
        if throttle is not None:
            await call.write_intents(started_at)


# Sync: in the job's own thread.


def run_sync(call: Call) -> Any:
    """Answer a call from its record, or run its body in this thread and record the outcome."""
    if not isinstance(call, EffectCall):
        return _run_sync(call)
    under_way, is_ours = call.join()
    if not is_ours:
        return _value_sync(call, call.read_result(under_way.result()))
    with call.lead(under_way):
        return _run_sync(call)


def _run_sync(call: Call) -> Any:
    is_answered, value = call.answer()
    if is_answered:
        return _value_sync(call, value)
    attempt = call.attempt
    admit(attempt)
    if attempt.starting is not None:
        run_on_loop(attempt, attempt.starting(call.path))
    if attempt.job.epoch > 1:
        call.go_on()
        if call.is_rejected:
            run_on_loop(attempt, call.read_rejected())
        if call.not_before is not None:
            run_on_loop(attempt, rest(call))
    if not call.needs_permits:
        return _run_sync_admitted(call)
    try:
        run_on_loop(attempt, _acquire(call))
        return _run_sync_admitted(call)
    finally:
        attempt.loop.call_soon_threadsafe(_give_back, call)


async def _acquire(call: Call, *, again: bool = False) -> None:
    permits = StepPermits.of(call.attempt)
    await (permits.acquire_again(call) if again else permits.acquire(call))


def _give_back(call: Call) -> None:
    StepPermits.of(call.attempt).give_back(call.path)


def _run_sync_admitted(call: Call) -> Any:
    attempt = call.attempt
    started_at = attempt.now()
    call.enter(started_at)
    try:
        if call.has_intents():
            run_on_loop(attempt, call.write_intents(started_at))
            with _taking_back(call):
                admit(attempt)
        if attempt.job.epoch > 1:
            call.note_run()
        return _value_sync(call, call.read_result(run_on_loop(attempt, call.record(_try_sync(call, started_at)))))
    finally:
        call.leave()


def _value_sync(call: Call, value: Any) -> Any:
    """Like _value, in this thread."""
    return value if value is not OUTSIDE else run_on_loop(call.attempt, call.read_outside())


def _try_sync(call: Call, started_at: Time) -> Step:
    """Like _try, in this thread."""
    attempt = call.attempt
    watch = Watch(attempt)
    while True:
        call.declare_cost()
        call.begin_try()
        try:
            with watch:
                return call.make_done(run_blocking(call), started_at)
        except Exception as error:
            call.check()
            throttle = heed(call, error)
            delay = call.plan_retry(error) if throttle is None else 0
            if delay is None:
                run_on_loop(attempt, call.record_failure(error, started_at))
                raise
        run_on_loop(attempt, call.end_try(is_refused=throttle is not None))
        if call.needs_permits:
            attempt.loop.call_soon_threadsafe(_give_back, call)
        if throttle is None:
            attempt.pause(delay)
            call.tries += 1
        else:
            call.take_back()
            run_on_loop(attempt, wait_out(call, throttle))
        admit(attempt)
        if call.needs_permits:
            run_on_loop(attempt, _acquire(call, again=True))
        if throttle is not None:
            run_on_loop(attempt, call.write_intents(started_at))


@contextmanager
def _taking_back(call: Call) -> Iterator[None]:
    """Guard the time between intent and effect: if we are stopped here, nothing happened, and the intent is removed."""
    try:
        yield
    except BaseException:
        call.take_back()
        raise
