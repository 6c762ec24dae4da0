"""Running a step: is it recorded, may it start, does it try again, and what is recorded of it.

Must not know apps or decorators. The same plan serves both colours: `run_async` awaits it on the loop, `run_sync`
walks through it in the job's own thread and reaches the loop for the record only.
"""

import asyncio
import contextvars
import sys
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from holdfast.core.codec import canonical
from holdfast.core.durations import in_words
from holdfast.core.errors import BadValue, ItemFailure, ItemsFailed, StepFailed
from holdfast.core.keys import digest, step_path
from holdfast.core.model import Error, Step, StepState, Time
from holdfast.core.outcome import never_retried, next_delay
from holdfast.worker.attempt import ATTEMPT, PATH, RUNNING, Attempt
from holdfast.worker.registry import StepSpec

T = TypeVar("T")

TRACEBACK_CHARACTERS = 16_000
"""Longer tracebacks keep their beginning and their end."""
MESSAGE_CHARACTERS = 4_000
"""Longer error texts are cut."""


class Call:
    """One call of a step inside an attempt: where it is recorded, and its arguments in the recorded form."""

    def __init__(
        self, attempt: Attempt, spec: StepSpec, args: tuple[Any, ...], kwargs: dict[str, Any], key: Any
    ) -> None:
        attempt.check_place(spec)
        self.attempt = attempt
        self.spec = spec
        self.text = spec.signature.encode(args, kwargs)
        self.keyed = key is not None
        given = key(*args, **kwargs) if callable(key) else key
        parent = PATH.get()
        text = _key_text(given) if self.keyed else digest(self.text)[:16]
        self.path = step_path(parent, spec.name, text, attempt.number(parent, spec.name, text))

    def answered(self) -> tuple[bool, Any]:
        """Whether the record answers this call, and with what. A failed record raises again."""
        step = self.attempt.recorded(self.path)
        if step is None:
            return False, None
        if step.state is StepState.FAILED:
            raise raised_again(step)
        return True, self.result(step)

    def result(self, step: Step) -> Any:
        """A record's value in the type that the function promises."""
        return self.spec.signature.result.decode(step.result or "null")

    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The body's own copy of the arguments, decoded from the recorded form."""
        return self.spec.signature.decode(self.text)

    def context(self) -> contextvars.Context:
        """The context in which the body runs: inside this step."""
        context = contextvars.copy_context()
        context.run(PATH.set, self.path)
        return context

    def done(self, value: Any, started_at: Time, now: Time) -> Step:
        """The record of a step that succeeded."""
        return self._step(StepState.DONE, started_at, now, result=self.spec.signature.result.encode(value))

    def failed(self, error: BaseException, started_at: Time, now: Time) -> Step:
        """The record of a step that failed for good."""
        return self._step(StepState.FAILED, started_at, now, error=error_of(error))

    def next_try(self, error: BaseException, failures: int) -> float | None:
        """Seconds until the next try; None when this failure is final."""
        retry = self.spec.retry
        if isinstance(error, BadValue) or failures > retry.retries or never_retried(retry, type_name(error)):
            return None
        return next_delay(retry, failures, self.attempt.chance()) / 1_000

    def too_slow(self) -> TimeoutError:
        """What a step that ran into its timeout raises."""
        assert self.spec.timeout_ms is not None
        return TimeoutError(f"step {self.spec.name} took longer than its timeout of {in_words(self.spec.timeout_ms)}")

    def _step(self, state: StepState, started_at: Time, now: Time, **more: Any) -> Step:
        job = self.attempt.job
        return Step(
            job=job.id,
            epoch=job.epoch,
            path=self.path,
            name=self.spec.name,
            state=state,
            started_at=started_at,
            finished_at=now,
            **more,
        )


# Async: on the loop.


async def run_async(call: Call, body: Callable[[], Awaitable[Any]]) -> Any:
    """Answer a call from its record, or run its body and record what came of it."""
    answered, value = call.answered()
    if answered:
        return value
    attempt = call.attempt
    attempt.check()
    started_at = await attempt.engine.now()
    attempt.enter(call.path, call.spec, started_at)
    token = PATH.set(call.path)
    try:
        failures = 0
        while True:
            try:
                value = await _within(call, body)
                step = call.done(value, started_at, await attempt.engine.now())
                break
            except Exception as error:
                failures += 1
                delay = call.next_try(error, failures)
                if delay is None:
                    await attempt.keep(call.failed(error, started_at, await attempt.engine.now()))
                    raise
            await asyncio.sleep(delay)
            attempt.check()
        return call.result(await attempt.keep(step))
    finally:
        PATH.reset(token)
        attempt.leave(call.path)


async def _within(call: Call, body: Callable[[], Awaitable[Any]]) -> Any:
    if call.spec.timeout_ms is None:
        return await body()
    try:
        async with asyncio.timeout(call.spec.timeout_ms / 1_000) as limit:
            return await body()
    except TimeoutError:
        if limit.expired():
            raise call.too_slow() from None
        raise


def body_of(call: Call) -> Callable[[], Awaitable[Any]]:
    """The function with its own copy of the arguments; a `def` function runs in a thread."""

    async def awaited() -> Any:
        args, kwargs = call.arguments()
        return await call.spec.function(*args, **kwargs)

    async def threaded() -> Any:
        args, kwargs = call.arguments()
        return await in_thread(call.context(), lambda: call.spec.function(*args, **kwargs))

    return awaited if call.spec.is_async else threaded


async def in_thread(context: contextvars.Context, work: Callable[[], T]) -> T:
    """Run blocking work in a thread of its own, which never keeps the process from ending."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def run() -> None:
        try:
            value = context.run(work)
        except BaseException as error:
            _settle(loop, future, None, error)
        else:
            _settle(loop, future, value, None)

    threading.Thread(target=run, name="holdfast-job", daemon=True).start()
    return await future


def _settle(
    loop: asyncio.AbstractEventLoop, future: "asyncio.Future[Any]", value: Any, error: BaseException | None
) -> None:
    def settle() -> None:
        if future.done():
            return
        if error is None:
            future.set_result(value)
        elif isinstance(error, StopIteration | SystemExit | KeyboardInterrupt):
            future.set_exception(Escaped(error))
        else:
            future.set_exception(error)

    try:
        loop.call_soon_threadsafe(settle)
    except RuntimeError:  # the loop has ended: nobody waits
        pass


class Escaped(Exception):
    """An error that must not travel through an event loop, wrapped: `sys.exit`, a keyboard interrupt, StopIteration."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(str(error))
        self.error = error


# Sync: in the job's own thread.


def on_loop(attempt: Attempt, work: Coroutine[Any, Any, T]) -> T:
    """Run a piece of work on the worker's loop, and wait for it here in a thread."""
    return asyncio.run_coroutine_threadsafe(work, attempt.loop).result()


def run_sync(call: Call) -> Any:
    """Answer a call from its record, or run its body in this thread and record what came of it."""
    answered, value = call.answered()
    if answered:
        return value
    attempt = call.attempt
    attempt.check()
    started_at = on_loop(attempt, attempt.engine.now())
    attempt.enter(call.path, call.spec, started_at)
    try:
        failures = 0
        while True:
            try:
                args, kwargs = call.arguments()
                began = time.monotonic()
                value = call.context().run(call.spec.function, *args, **kwargs)
                # A thread can't be stopped from outside: a timeout is told when the body comes back.
                limit = call.spec.timeout_ms
                if limit is not None and (time.monotonic() - began) * 1_000 > limit:
                    raise call.too_slow()
                step = call.done(value, started_at, on_loop(attempt, attempt.engine.now()))
                break
            except Exception as error:
                failures += 1
                delay = call.next_try(error, failures)
                if delay is None:
                    now = on_loop(attempt, attempt.engine.now())
                    on_loop(attempt, attempt.keep(call.failed(error, started_at, now)))
                    raise
            time.sleep(delay)
            attempt.check()
        return call.result(on_loop(attempt, attempt.keep(step)))
    finally:
        attempt.leave(call.path)


# Maps.


class Tally:
    """The items of one map: their results in place, and which failed."""

    def __init__(self, attempt: Attempt | None, name: str, items: Iterable[Any], need: int | None) -> None:
        self.attempt = attempt
        self.name = name
        self.total = len(items) if hasattr(items, "__len__") else None  # type: ignore[arg-type]
        self.need = need
        self.results: list[Any] = []
        self.failures: list[ItemFailure] = []
        self.done = 0
        self._lock = threading.Lock()
        self._items = iter(items)

    def take(self) -> tuple[int, Any] | None:
        """The next item and its place."""
        with self._lock:
            for item in self._items:
                self.results.append(None)
                return len(self.results) - 1, item
            return None

    def settle(self, index: int, value: Any) -> None:
        """One item is done."""
        self.results[index] = value
        self._count()

    def fail(self, index: int, item: Any, error: BaseException) -> None:
        """One item failed."""
        self.failures.append(ItemFailure(index, item, error))
        self._count()

    def _count(self) -> None:
        with self._lock:
            self.done += 1
        if self.attempt is not None:
            self.attempt.count(self.name, self.done, self.total)

    def outcome(self) -> list[Any]:
        """The results, or ItemsFailed."""
        wanted = len(self.results) if self.need is None else self.need
        succeeded = len(self.results) - len(self.failures)
        if succeeded >= wanted:
            return self.results
        self.failures.sort(key=lambda failure: failure.index)
        first = self.failures[0] if self.failures else None
        why = f"; the first was item {first.index}: {type_name(first.error)}: {text_of(first.error)}" if first else ""
        raise ItemsFailed(
            f"{self.name}: {succeeded} of {len(self.results)} items succeeded, {wanted} were needed{why}",
            self.results,
            self.failures,
        ) from (first.error if first else None)


async def map_async(tally: Tally, one: Callable[[Any], Awaitable[Any]], at_once: int) -> list[Any]:
    """Run `one` for each item, so many at once; all settle, then the outcome."""

    async def walk() -> None:
        while (taken := tally.take()) is not None:
            index, item = taken
            try:
                tally.settle(index, await one(item))
            except Exception as error:
                tally.fail(index, item, error)

    async with asyncio.TaskGroup() as group:
        for _ in range(at_once if tally.total is None else max(1, min(at_once, tally.total))):
            group.create_task(walk())
    return tally.outcome()


def map_sync(tally: Tally, one: Callable[[Any], Any], at_once: int) -> list[Any]:
    """The same in threads."""

    def walk() -> None:
        while (taken := tally.take()) is not None:
            index, item = taken
            try:
                tally.settle(index, one(item))
            except Exception as error:
                tally.fail(index, item, error)

    workers = at_once if tally.total is None else max(1, min(at_once, tally.total))
    with ThreadPoolExecutor(workers, thread_name_prefix="holdfast-map") as pool:
        for future in [pool.submit(contextvars.copy_context().run, walk) for _ in range(workers)]:
            future.result()
    return tally.outcome()


# Errors as data.


def error_of(error: BaseException) -> Error:
    """What went wrong, as data. Never fails, whatever the exception does."""
    if isinstance(error, Escaped):
        error = error.error
    try:
        lines = "".join(traceback.format_exception(error))
    except Exception:
        lines = "(the traceback could not be written)"
    if len(lines) > TRACEBACK_CHARACTERS:
        half = TRACEBACK_CHARACTERS // 2
        lines = f"{lines[:half]}\n… {len(lines) - TRACEBACK_CHARACTERS} characters left out …\n{lines[-half:]}"
    return Error(type_name(error), text_of(error), _storable(lines))


def type_name(error: BaseException) -> str:
    """The name of an error's type: bare for Python's own, with its module otherwise."""
    if isinstance(error, Escaped):
        error = error.error
    if isinstance(error, StepFailed) and error.type:
        return error.type
    kind = type(error)
    return (
        kind.__qualname__ if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}.{kind.__qualname__}"
    )


def text_of(error: BaseException) -> str:
    """An error's text, or a word on why there is none."""
    if isinstance(error, StepFailed) and error.message:
        return error.message
    try:
        text = str(error)
    except Exception as trouble:
        text = f"(its text can't be had: __str__ raised {type(trouble).__name__})"
    return _storable(text[:MESSAGE_CHARACTERS])


def _storable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")


def raised_again(step: Step) -> Exception:
    """The error of a failed record. A class that this process has already loaded is used, so that `except` still works.

    Nothing is imported or called: only a subclass of Exception is taken, and made without its `__init__`.
    """
    error = step.error or Error("Exception", "")
    module, _, name = error.type.rpartition(".")
    kind: Any = sys.modules.get(module or "builtins")
    for part in name.split("."):
        kind = getattr(kind, part, None)
    if isinstance(kind, type) and issubclass(kind, Exception):
        made = kind.__new__(kind)
        made.args = (error.message,)
        made.add_note(f"(recorded: step {step.path} failed earlier in this attempt)")
        return made
    line = f"step {step.path} failed earlier in this attempt: {error.type}: {error.message}"
    return StepFailed(line, type=error.type, message=error.message, traceback=error.traceback)


def _key_text(key: Any) -> str:
    return key if isinstance(key, str) else canonical(key)


def attempt_here() -> Attempt | None:
    """The attempt that this code belongs to."""
    return ATTEMPT.get()


def loop_here() -> bool:
    """Whether this thread is running an event loop just now: then only async calls make sense."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def attempts_anywhere() -> bool:
    """Whether any attempt runs in this process."""
    return len(RUNNING) > 0
