"""`@step`, for functions whose results are recorded. Must not run a step (`worker.steps`).

A step is async if its function is: calling an `async def` step returns an awaitable, calling a `def` step returns the
value. A job of the other kind uses a view: `narrate.aio(x)`, `draw.sync(x)`.
"""

import asyncio
import contextvars
import functools
import inspect
import threading
import warnings
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Generic, Literal, ParamSpec, TypeVar, overload

from holdfast.app.mapping import AwaitedMap, BlockingMap, Key
from holdfast.app.options import (
    STEP_OPTIONS,
    check_callback,
    check_map,
    check_options,
    check_step_key,
    check_step_name,
    parse_effect,
    parse_isolation,
    parse_limit,
    parse_old_names,
    parse_retries,
)
from holdfast.core.budgets import cost_of
from holdfast.core.codec import Signature
from holdfast.core.declared_limits import Limit, check_uses
from holdfast.core.durations import Duration
from holdfast.core.errors import Invalid, WrongColour
from holdfast.core.model import Retry
from holdfast.core.outcome import TRANSACTION
from holdfast.worker.attempt import Attempt
from holdfast.worker.call import Call
from holdfast.worker.cancellation import Watch
from holdfast.worker.context import attempt_here, attempts_anywhere, loop_here, plain_call
from holdfast.worker.maps import Tally, map_async, map_sync
from holdfast.worker.own_loop import await_on_loop, is_away, run_on_loop
from holdfast.worker.registry import STEPS, UNDOABLE, StepSpec, check_function
from holdfast.worker.steps import make_call, run_async, run_sync
from holdfast.worker.threads import run_in_thread

P = ParamSpec("P")
R = TypeVar("R")

AT_ONCE = 8
"""How many items of a map run at the same time, by default."""


class DecoratedStep(Generic[P, R]):
    """A function that `@step` decorates. Has what async and `def` steps share."""

    def __init__(self, spec: StepSpec) -> None:
        self.spec = spec
        self.name = spec.name
        functools.update_wrapper(self, spec.function)  # type: ignore[arg-type]

    def __repr__(self) -> str:
        return f"<step {self.name}>"

    def _for_async(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        key: Key,
        *,
        item: Watch | None = None,
        calls: list[Call] | None = None,
    ) -> Callable[[], Awaitable[Any]]:
        """Return what to await for one call of an async or `def` step. The call's identity is fixed here; `calls` notes
        it.
        """
        attempt = attempt_here()
        if attempt is not None:
            if is_away(attempt):
                return lambda: await_on_loop(attempt, self._aio(args, kwargs))
            call = make_call(attempt, self.spec, args, kwargs, key, item=item)
            if calls is not None:
                calls.append(call)
            return lambda: run_async(call)
        plain = self._call_outside(args, kwargs)
        if self.spec.is_async:
            return plain
        return lambda: run_in_thread(contextvars.copy_context(), plain)

    def _for_sync(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], key: Key, calls: list[Call] | None = None
    ) -> Callable[[], Any]:
        """Return what blocking code calls for one call of an async or `def` step."""
        attempt = attempt_here()
        if attempt is not None:
            call = make_call(attempt, self.spec, args, kwargs, key)
            if calls is not None:
                calls.append(call)
            if self.spec.is_async or self.spec.effect == TRANSACTION:
                return lambda: run_on_loop(attempt, run_async(call))
            return lambda: run_sync(call)
        plain = self._call_outside(args, kwargs)
        return (lambda: asyncio.run(plain())) if self.spec.is_async else plain

    def _call_outside(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[], Any]:
        """Return a call outside any job, async or not as the function is.

        In a stray call, `current()` raises: an idempotency key would be wrong.
        """
        function = self.spec.function
        if _is_stray(self.name):
            return lambda: function(*args, **kwargs)

        def call() -> Any:
            with plain_call(self.name):
                return function(*args, **kwargs)

        async def call_async() -> Any:
            with plain_call(self.name):
                return await function(*args, **kwargs)

        return call_async if self.spec.is_async else call

    async def _aio(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return await self._for_async(args, kwargs, self.spec.key)()

    def _sync(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self._for_sync(args, kwargs, self.spec.key)()

    async def _map_aio(self, items: Iterable[Any], at_once: int | None, key: Key, need: int | None) -> list[Any]:
        at_once = AT_ONCE if at_once is None else at_once
        check_map(self.name, at_once, need)
        attempt = attempt_here()
        if attempt is not None and is_away(attempt):
            return await await_on_loop(attempt, self._map_aio(list(items), at_once, key, need))
        key = self.spec.key if key is None else key
        caller = Watch(attempt, asyncio.current_task())
        calls: list[Call] | None = None if attempt is None or need is None else []

        def prepare(item: Any) -> Callable[[], Awaitable[Any]]:
            return self._for_async((item,), {}, key, item=caller, calls=calls)

        tally = Tally(attempt, self.name, items, need, prepare)
        results = await map_async(tally, at_once, caller)
        _mark_unseen(attempt, calls)
        return results

    def _map_sync(self, items: Iterable[Any], at_once: int | None, key: Key, need: int | None) -> list[Any]:
        at_once = AT_ONCE if at_once is None else at_once
        attempt = attempt_here()
        if attempt is not None and self.spec.is_async:
            # Read the items here: they may call steps themselves, and the loop's thread must not wait for those.
            return run_on_loop(attempt, self._map_aio(list(items), at_once, key, need))
        check_map(self.name, at_once, need)
        key = self.spec.key if key is None else key
        calls: list[Call] | None = None if attempt is None or need is None else []
        tally = Tally(attempt, self.name, items, need, lambda item: self._for_sync((item,), {}, key, calls))
        results = map_sync(tally, at_once, Watch(attempt))
        _mark_unseen(attempt, calls)
        return results


def _mark_unseen(attempt: Attempt | None, calls: Sequence[Call] | None) -> None:
    """Mark the failed calls of a finished map as unseen by the job's code. With `need=`, that may hide an effect."""
    if attempt is not None and calls:
        attempt.journal.effects.forget_heard(call.path for call in calls)


class AsyncStep(DecoratedStep[P, R], AwaitedMap):
    """An `async def` step: `await draw(x)`. From a `def` job, use `draw.sync(x)`."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        """Run the step, or return its recorded result."""
        if not loop_here() and attempt_here() is not None:
            raise WrongColour(f"{self.name} is an async step; in a def job, call {self.name}.sync(…)")
        return self._aio(args, kwargs)

    def _map(
        self, items: Iterable[Any], at_once: int | None, key: Key, need: int | None
    ) -> Coroutine[Any, Any, list[Any]]:
        return self._map_aio(items, at_once, key, need)

    @property
    def sync(self) -> "SyncView[P, R]":
        """This step, for blocking code."""
        return SyncView(self)


class SyncStep(DecoratedStep[P, R], BlockingMap):
    """A `def` step: `narrate(x)`. From an async job, use `await narrate.aio(x)`."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the step, or return its recorded result."""
        if loop_here() and attempt_here() is not None:
            raise WrongColour(f"{self.name} is a def step; in an async job, call await {self.name}.aio(…)")
        value: R = self._sync(args, kwargs)
        return value

    def _map(self, items: Iterable[Any], at_once: int | None, key: Key, need: int | None) -> list[Any]:
        if loop_here() and attempt_here() is not None:
            raise WrongColour(f"{self.name} is a def step; in an async job, call await {self.name}.aio.map(…)")
        return self._map_sync(items, at_once, key, need)

    @property
    def aio(self) -> "AioView[P, R]":
        """This step, for async code. Its body runs in a thread."""
        return AioView(self)


class AioView(Generic[P, R], AwaitedMap):
    """A `def` step, for async code."""

    def __init__(self, step: SyncStep[P, R]) -> None:
        self._step = step

    async def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the step in a thread, or return its recorded result."""
        value: R = await self._step._aio(args, kwargs)
        return value

    def _map(
        self, items: Iterable[Any], at_once: int | None, key: Key, need: int | None
    ) -> Coroutine[Any, Any, list[Any]]:
        return self._step._map_aio(items, at_once, key, need)


class SyncView(Generic[P, R], BlockingMap):
    """An `async def` step, for blocking code."""

    def __init__(self, step: AsyncStep[P, R]) -> None:
        self._step = step

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the step, or return its recorded result. Blocks until it has finished."""
        self._check()
        value: R = self._step._sync(args, kwargs)
        return value

    def _map(self, items: Iterable[Any], at_once: int | None, key: Key, need: int | None) -> list[Any]:
        self._check()
        return self._step._map_sync(items, at_once, key, need)

    def _check(self) -> None:
        if loop_here():
            name = self._step.name
            raise WrongColour(f"{name}.sync(…) would block the event loop; in async code, call await {name}(…)")


class StepDecorator:
    """`@step(…)` with options: called with the function, it makes the step."""

    def __init__(self, **options: Any) -> None:
        self._options = options

    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, function: Callable[P, Coroutine[Any, Any, R]]
    ) -> AsyncStep[P, R]: ...

    @overload
    def __call__(self, function: Callable[P, R]) -> SyncStep[P, R]: ...

    def __call__(self, function: Callable[..., Any]) -> Any:
        """Turn the function into a step."""
        return _make_step(function, **self._options)


@overload
def step(  # type: ignore[overload-overlap]
    function: Callable[P, Coroutine[Any, Any, R]], /
) -> AsyncStep[P, R]: ...


@overload
def step(function: Callable[P, R], /) -> SyncStep[P, R]: ...


@overload
def step(
    *,
    name: str | None = None,
    key: Key = None,
    retries: int | Retry = 0,
    timeout: Duration | None = None,
    stale_after: Duration | None = None,
    effect: Literal["once", "transaction"] | None = None,
    undo: Callable[[Any], Any] | None = None,
    isolate: Literal["process"] | None = None,
    memory_mb: int | None = None,
    was: str | tuple[str, ...] | None = None,
    limit: Limit | Sequence[Limit] | None = None,
    cost: Mapping[str, float] | Callable[..., Mapping[str, float]] | None = None,
) -> StepDecorator: ...


def step(function: Any = None, /, **options: Any) -> Any:
    """Record what this function returns, once for each call. Later calls return the recorded result.

    A call is identified by its arguments, or by `key`: a value, or a function of the arguments. `retries` is how often
    to retry (a number, or a Retry policy). `timeout` is how long one try may take. A try that shows no progress for
    `stale_after` is stopped and recovered.

    `effect="once"` never runs a call a second time by itself: if the call was started but not recorded, a person is
    asked whether it happened. It needs `key`. `effect="transaction"` gives the function a connection to the store's own
    database, `tx()`. What it writes and the step's record are one transaction, so it happens exactly once. It needs an
    engine with an SQL database.

    `undo` takes back what the step made, after its job was cancelled, expired or was discarded. It gets the step's
    result, or None if nobody knows whether the step happened.

    `isolate="process"` runs the step in a separate process, which a timeout or a cancel kills. A crash there fails only
    this step. `memory_mb` limits its memory.

    `was` is an earlier name of the step, or a tuple of several, oldest first. Results recorded under that name are
    found again, and `current().idempotency_key` doesn't change.

    `limit` is what `app.limit(…)` returns, or a list: a try starts once it has a permit of each, and until then the
    step waits. Waiting costs no try and counts for no timeout.

    `cost` is what a try costs, `{"usd": 0.04}`, or a function of those arguments that it names. Where the job has a
    budget, a try starts once that much is left. What the step reports with `spend()` counts instead of it.
    """
    check_options("@step", options, STEP_OPTIONS)
    return StepDecorator(**options) if function is None else _make_step(function, **options)


def _make_step(
    function: Any,
    *,
    name: str | None = None,
    key: Key = None,
    retries: int | Retry = 0,
    timeout: Duration | None = None,
    stale_after: Duration | None = None,
    effect: Any = None,
    undo: Any = None,
    isolate: Any = None,
    memory_mb: Any = None,
    was: Any = None,
    limit: Any = None,
    cost: Any = None,
) -> Any:
    check_function(function, "step", name)
    check_step_name(name)
    called = name or function.__name__
    check_step_key(called, key, function)
    is_async = inspect.iscoroutinefunction(function)
    signature = Signature(function)
    spec = StepSpec(
        name=called,
        function=function,
        signature=signature,
        is_async=is_async,
        retry=parse_retries(retries),
        timeout_ms=parse_limit("timeout", timeout),
        stale_after_ms=parse_limit("stale_after", stale_after),
        key=key,
        effect=parse_effect(function.__name__, effect, key, retries, isolate),
        undo=check_callback("undo", undo),
        isolated=parse_isolation("step", function, isolate, memory_mb),
        memory_mb=memory_mb,
        was=parse_old_names(called, was),
        limits=check_uses(f"step {called}", limit, signature.names),
        cost=cost_of(f"step {called}", cost, signature.names),
    )
    if effect == TRANSACTION and undo is not None and inspect.iscoroutinefunction(undo) is not is_async:
        raise Invalid(f"step {spec.name}: its undo is a transaction too, so both must be def or both async def")
    for known in (STEPS, *([] if undo is None else [UNDOABLE])):
        known.setdefault(spec.name, {})[function.__module__] = spec
        for old in spec.was:
            known.setdefault(old, {}).setdefault(function.__module__, spec)
    return AsyncStep[Any, Any](spec) if is_async else SyncStep[Any, Any](spec)


def _is_stray(name: str) -> bool:
    """Return whether a step is called from a thread that lost its job, and warn: the call would not be recorded."""
    stray = attempts_anywhere() and threading.current_thread() is not threading.main_thread() and not loop_here()
    if stray:
        warnings.warn(
            f"step {name} was called outside a job, from a thread of a process that runs jobs, so it is not recorded. "
            "To keep the job, start the thread's function with asyncio.to_thread or current().bind(fn)",
            RuntimeWarning,
            stacklevel=4,
        )
    return stray
