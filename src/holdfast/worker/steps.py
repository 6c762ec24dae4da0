"""Running a step: is it recorded, may it start, does it try again, and what is recorded of it.

Must not know apps or decorators. The same plan serves both colours: `run_async` awaits it on the loop, `run_sync`
walks through it in the job's own thread and reaches the loop for the record only.
"""

import asyncio
import concurrent.futures
import contextvars
import copy
import inspect
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from msgspec.structs import replace

from holdfast import forking
from holdfast.core.codec import Changed, canonical
from holdfast.core.durations import in_words
from holdfast.core.errors import BadValue, EffectInDoubt, Invalid, WrongColour
from holdfast.core.keys import step_path
from holdfast.core.model import Step, StepState, Time
from holdfast.core.outcome import FAILED_ONCE_PATH, ONCE, TRANSACTION, never_retried, next_delay
from holdfast.jobs.consequences import UNDO_PATH
from holdfast.worker.attempt import ARGS_PATH, FENCE_SECONDS, Attempt, beside
from holdfast.worker.cancellation import Watch, cancels_of
from holdfast.worker.context import ATTEMPT, PATH, check_no_tx, current, loop_here
from holdfast.worker.drift import arguments_key, differing, read_tags, tags, tags_text
from holdfast.worker.isolation.pool import IsolatedCall
from holdfast.worker.own_loop import on_loop
from holdfast.worker.recorded_errors import contained, error_of, module_of, raised_again, type_name
from holdfast.worker.registry import StepSpec
from holdfast.worker.tries import TRY, Stopped, Try

T = TypeVar("T")


class Call:
    """One call of a step inside an attempt: where it is recorded, and its arguments in the recorded form."""

    def __init__(
        self,
        attempt: Attempt,
        spec: StepSpec,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        key: Any,
        *,
        item: Watch | None = None,
    ) -> None:
        check_no_tx("another step")
        self.within = TRY.get()
        """The try of a step around it, if one of those may be tried again."""
        if self.within is not None:
            self.within.check()
        attempt.check_place(spec)
        self.attempt = attempt
        self.spec = spec
        self.item = item
        changes: list[Changed] = []
        self.text, *copies = spec.signature.copied(args, kwargs, changes)
        self._copies: Any = copies
        self._has_tuples = bool(changes)
        self._refusal: BadValue | None = None
        """Why the body can't have these arguments. A record answers all the same."""
        for changed in changes:
            if self._refusal is None and (spec.isolated or not changed.only_tuples):
                self._refusal = changed.refusal
        self._done: Step | None = None
        self._value: Any = None
        self.keyed = key is not None
        self.threads = 0
        self.tries = 1
        """Which try this is."""
        self.is_retried = spec.retry.retries > 0
        self.now: Try | None = None
        self.begun = False
        """Whether its body has ever begun, in a thread."""
        self.has_intents = spec.effect == "once" or (spec.undo is not None and spec.effect != TRANSACTION)
        given = key(*args, **kwargs) if callable(key) else key
        self.parent = parent = PATH.get()
        self.is_elsewhere = False
        """Whether another step asked for this effect first, so that it is known by that step's path."""
        self.key = text = _key_text(given) if self.keyed else arguments_key(self.text)
        self.name, self.path = attempt.placed(spec, parent, text)
        call = self.path if self.name == spec.name else step_path(parent, spec.name, text)
        # One key is one effect: what is done once is not done again because it is asked for twice. Nor is what an
        # earlier version of this step has done or begun as such.
        if spec.effect != "once" and (attempt.job.epoch == 1 or not self._was_once()):
            nth = attempt.number(call)
            if item is None and loop_here():
                attempt.note_caller(call, nth)
            if nth > 1:
                self.name, self.path = attempt.placed(spec, parent, text, nth)

    def answered(self) -> tuple[bool, Any]:
        """Whether the record answers this call, and with what. A failed record raises again."""
        step = self.attempt.recorded(self.path)
        if step is None:
            is_begun = self.attempt.is_begun(self.path)
            if (is_begun or self.attempt.job.epoch > 1) and not self.is_elsewhere:
                self._raise_again(is_begun)
            if is_begun:
                raise self.attempt.doubt(self.path)
            if self.attempt.unsettled:
                self.attempt.check_unsettled(self.spec)
            if self._refusal is not None:
                raise self._refusal
            return False, None
        if self.keyed:
            self._compare()
        return True, self.result(step)

    def _was_once(self) -> bool:
        """Whether an earlier version of this step recorded or began this call as an effect, here or in another step."""
        if self.attempt.is_begun(self.path):
            return True
        if self.keyed and (path := self.attempt.once_path(self.spec, self.key, self.path)) is not None:
            self._move(path)
            return True
        return False

    def _move(self, path: str) -> None:
        """Be known by the path of the step that asked for this effect first."""
        if path == self.path:
            return
        if f"{self.parent}/".startswith(f"{path}/"):
            raise Invalid(f"step {path} asks for itself: inside an effect, call another step, or give another key")
        there = self.attempt.records.get(path)
        self.name, self.path, self.is_elsewhere = there.name if there else self.name, path, True

    def result(self, step: Step) -> Any:
        """A record's value in the type that the function promises, or its error."""
        if step.state is StepState.FAILED:
            raise raised_again(step)
        if step is self._done or step == self._done:
            return self._value
        try:
            return self.spec.signature.result.decode(step.result or "null")
        except BadValue as error:
            raise BadValue(f"the recorded result of step {step.path}: {error}") from error

    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The body's own copy of the arguments, decoded from the recorded form: another one for each try."""
        if self._has_tuples:  # which the recorded form has not
            return copy.deepcopy(self._copies)  # type: ignore[no-any-return]
        copies, self._copies = self._copies, None
        return copies or self.spec.signature.decode(self.text)

    def context(self) -> contextvars.Context:
        """The context in which the body runs: inside this step, and inside this try."""
        context = contextvars.copy_context()
        context.run(PATH.set, self.path)
        if self.now is not None:
            context.run(TRY.set, self.now)
        return context

    def enter(self, started_at: Time, task: "asyncio.Task[Any] | None" = None) -> None:
        """Its first try is about to begin."""
        if self.within is not None:
            self.within.enter(task)
        self.attempt.enter(self.path, self.spec, started_at)

    def leave(self, task: "asyncio.Task[Any] | None" = None) -> None:
        """It has ended, well or not."""
        if self.within is not None:
            self.within.leave(task)
        self.attempt.leave(self.path)

    def begin_try(self) -> None:
        """One try begins. The calls inside it are counted from the start, so that what is recorded answers them."""
        if self.is_retried:
            self.now = Try(self.path, self.within)

    def uncancelled(self, task: "asyncio.Task[Any] | None") -> None:
        """It has done well and is only to be recorded: if the try around it ends meanwhile, that is waited for."""
        assert self.within is not None
        self.within.hold(None)
        self.within.leave(task)

    def check(self) -> None:
        """Raise unless this call may go on: what fails once we have stopped it has not failed by itself."""
        self.attempt.check()
        if self.within is not None:
            self.within.check()

    async def end_try(self) -> None:
        """A try has failed, and another one follows. What it left running is cancelled and waited for, because two at
        once would pay twice. What failed inside may run again.
        """
        assert self.now is not None
        self.now.end()
        self.now.cancel()
        while self.now.is_busy():
            self.attempt.check()
            await asyncio.sleep(FENCE_SECONDS)
        self.attempt.forget_failures(self.path)

    def done(self, value: Any, started_at: Time) -> Step:
        """The record of a step that succeeded."""
        text, self._value = self.spec.signature.result.copied(value)
        self._done = self._step(StepState.DONE, started_at, result=text)
        return self._done

    def failed(self, error: BaseException, started_at: Time) -> Step:
        """The record of a step that failed for good."""
        return self._step(StepState.FAILED, started_at, error=error_of(error))

    def keep(self, step: Step) -> Coroutine[Any, Any, Step]:
        """Record it; with a key, what its arguments were goes with it, unless that went with the intent."""
        told = tags_text(self.text) if self.keyed and self.spec.effect != "once" else None
        return self.attempt.keep(step, told)

    def intents(self, started_at: Time) -> list[Step]:
        """What is written before the body runs: that an effect may happen, and that it is to be undone one day."""
        begun = self._step(StepState.STARTED, started_at, result=ONCE)
        intents = [begun] if self.spec.effect == "once" else []
        path = UNDO_PATH + self.path
        if self.spec.undo is not None and path not in self.attempt.waits:
            told = {"step": self.spec.name, "place": module_of(self.spec.function)}
            if (first := self.attempt.first_path(self.path)) != self.path:
                told["first"] = first
            if self.spec.effect == TRANSACTION:
                told["effect"] = TRANSACTION
            intents.append(replace(begun, path=path, name=UNDO_PATH[:-1], result=canonical(told), finished_at=None))
        return [replace(intent, finished_at=None) for intent in intents]

    async def begin(self, started_at: Time) -> None:
        """Write the intents, if there are any; after that, an effect is in doubt until it is recorded."""
        attempt, once, intents = self.attempt, self.spec.effect == "once", self.intents(started_at)
        if once:  # it is written now that this is an effect: the step may be none by the time that it is settled
            told = tags_text(self.text, once=True)
            intents.append(beside(intents[0], ARGS_PATH + self.path, StepState.DONE, told))
        try:
            if intents:
                await attempt.begin(intents)
        except BaseException:
            if once:  # written or not, it has not begun
                attempt.drops.append(self.path)
            raise
        if once:
            attempt.drops = [path for path in attempt.drops if path != self.path]
            attempt.doubts.append(self.path)
            attempt.heard.discard(self.path)

    def lead(self) -> tuple["concurrent.futures.Future[Step]", bool]:
        """The effect of this name and key that is under way, and whether it is ours to bring about."""
        self._move(self.attempt.effect_path(self.spec, self.key, self.path))
        fresh: concurrent.futures.Future[Step] = concurrent.futures.Future()
        under_way = self.attempt.once.setdefault(self.path, fresh)
        return under_way, under_way is fresh

    @contextmanager
    def leading(self, under_way: "concurrent.futures.Future[Step]") -> Iterator[None]:
        """Tell those who ask for the same effect meanwhile what came of it."""
        try:
            yield
            under_way.set_result(self.attempt.records[self.path])
        except Exception as error:
            under_way.set_exception(error)
            raise
        except BaseException:
            under_way.set_exception(EffectInDoubt(f"step {self.path} was cut off: it may have happened"))
            raise
        finally:
            self.attempt.once.pop(self.path, None)

    async def keep_failure(self, error: BaseException, started_at: Time) -> None:
        """Record that it failed for good."""
        if self.spec.effect != "once" and self.within is None:
            await self.keep(self.failed(error, started_at))
        else:
            await self._keep_beside(error, started_at)

    async def _keep_beside(self, error: BaseException, started_at: Time) -> None:
        """Record the error of an effect that stays in doubt, or of a step that the next try of another runs again: this
        is what the attempt hears of it until then.
        """
        told = canonical({"attempt": self.attempt.job.attempt, "place": module_of(self.spec.function)})
        failed = self._step(StepState.STARTED, started_at, result=told, error=error_of(error))
        await self.attempt.begin([replace(failed, path=FAILED_ONCE_PATH + self.path, name=FAILED_ONCE_PATH[:-1])])
        self.attempt.heard.add(self.path)

    def _raise_again(self, is_begun: bool) -> None:
        failed = self.attempt.failure_of(self.path)
        if failed is not None:
            if is_begun and self.path not in self.attempt.doubts:
                self.attempt.doubts.append(self.path)
            self.attempt.heard.add(self.path)
            raise raised_again(failed)

    @contextmanager
    def not_yet(self) -> Iterator[None]:
        """Between intent and effect: if we are stopped here, it did not happen, and the intent is taken back."""
        try:
            yield
        except BaseException:
            self.take_back()
            raise

    def take_back(self) -> None:
        """The effect has not begun, and won't: there is nothing to ask a person about."""
        if self.spec.effect == "once":
            self.attempt.doubts.remove(self.path)
            self.attempt.drops.append(self.path)

    def next_try(self, error: BaseException) -> float | None:
        """Seconds until the next try, which is told to whoever looks; None when this failure is final."""
        retry = self.spec.retry
        if isinstance(error, Invalid | WrongColour) or self.tries > retry.retries:
            return None
        if retry.strategy == "none" or never_retried(retry, type_name(error)):
            return None
        delay = next_delay(retry, self.tries, self.attempt.chance()) / 1_000
        self.attempt.retry(self.path, self.tries, retry.retries + 1, error, delay)
        return delay

    async def is_still(self) -> None:
        """Wait until the thread of an earlier try has ended: two at once would pay twice."""
        while self.threads:  # noqa: ASYNC110 (a thread ends when it ends)
            await asyncio.sleep(FENCE_SECONDS)

    def too_slow(self) -> TimeoutError:
        """What a step that ran into its timeout raises."""
        assert self.spec.timeout_ms is not None
        return TimeoutError(f"step {self.spec.name} took longer than its timeout of {in_words(self.spec.timeout_ms)}")

    def _step(self, state: StepState, started_at: Time, **more: Any) -> Step:
        job = self.attempt.job
        return Step(
            job=job.id,
            epoch=job.epoch,
            path=self.path,
            name=self.name,
            state=state,
            started_at=started_at,
            finished_at=self.attempt.now(),
            tries=self.tries,
            **more,
        )

    def _compare(self) -> None:
        """Under a key the record answers whatever the arguments are; the history is told when they differ."""
        stored, mine = self.attempt.arguments.get(self.path), tags(self.text)
        if stored is None or (there := read_tags(stored)) == mine:
            return
        names = list(inspect.signature(self.spec.function).parameters)
        which = differing(names, there, mine)
        self.attempt.note_drift(f"{self.path} was answered from its record, which was made with another {which}")


# Async: on the loop.


Body = Callable[[Call], Coroutine[Any, Any, Any]]
"""One try of a call: the function with its own copy of the arguments."""


def run_async(call: Call, body: Body) -> Coroutine[Any, Any, Any]:
    """Answer a call from its record, or run its body and record what came of it."""
    return _run_once(call, body) if call.spec.effect == "once" else _run_async(call, body)


async def _run_once(call: Call, body: Body) -> Any:
    under_way, first = call.lead()
    if not first:
        return call.result(await asyncio.shield(asyncio.wrap_future(under_way)))
    with call.leading(under_way):
        return await _run_async(call, body)


async def _run_async(call: Call, body: Body) -> Any:
    answered, value = call.answered()
    if answered:
        return value
    attempt = call.attempt
    if attempt.stop is not None or attempt.is_fenced():
        await attempt.admit()
    if attempt.starting is not None:
        await attempt.starting(call.path)
    started_at = attempt.now()
    here = asyncio.current_task()
    call.enter(started_at, here)
    token = PATH.set(call.path)
    # A task that this call brings into the attempt is cancelled with it. Those of a map are in it already.
    task = None if call.item is not None or here is attempt.root or here in attempt.tasks else here
    if task is not None:
        attempt.tasks.add(task)
    try:
        if call.has_intents:
            await call.begin(started_at)
            with call.not_yet():
                await attempt.admit()
        spec = call.spec
        if attempt.job.epoch > 1:
            attempt.note_run(call.path, spec, keyed=call.keyed)
        # An isolated step's time begins when its process has imported it, a transaction's when the store is its own.
        timeless = spec.timeout_ms is None or spec.isolated or spec.effect == TRANSACTION
        while True:
            cancels = cancels_of(here)
            if call.is_retried:
                call.begin_try()
                TRY.set(call.now)
            try:
                try:
                    step = call.done(await (body(call) if timeless else timed(call, body)), started_at)
                    break
                except BaseException:
                    with Watch(attempt, here, call.item, cancels):
                        raise
            except Exception as error:
                call.check()
                delay = call.next_try(error)
                if delay is None:
                    await call.keep_failure(error, started_at)
                    raise
            await call.end_try()
            await asyncio.sleep(delay)
            await attempt.admit()
            call.tries += 1
        if call.within is not None:
            call.uncancelled(here)
            here = None
        return call.result(await call.keep(step))
    finally:
        PATH.reset(token)
        if call.is_retried:
            TRY.set(call.within)
        if task is not None:
            attempt.tasks.discard(task)
        call.leave(here)


async def timed(call: Call, body: Body) -> Any:
    """The body, for as long as the step's timeout lets it, if there is one."""
    if call.spec.timeout_ms is None:
        return await body(call)
    try:
        async with asyncio.timeout(call.spec.timeout_ms / 1_000) as limit:
            return await body(call)
    except TimeoutError:
        if limit.expired():
            raise call.too_slow() from None
        raise


def body_of(spec: StepSpec) -> Body:
    """How a step's function is run on the loop: a `def` function runs in a thread."""
    if spec.isolated:
        return _isolated
    return _awaited if spec.is_async else _threaded


async def _awaited(call: Call) -> Any:
    args, kwargs = call.arguments()
    return await call.spec.function(*args, **kwargs)


async def _threaded(call: Call) -> Any:
    args, kwargs = call.arguments()
    await call.is_still()
    turn = threading.Lock()
    """Who takes it is first: the body begins, or we have given it up, and it never begins."""

    def work() -> Any:
        try:
            _admit(call.attempt)  # a thread begins when the machine lets it: meanwhile the job may be another's
            if not turn.acquire(blocking=False):
                return None
            call.begun = True
            return call.spec.function(*args, **kwargs)
        finally:
            call.threads -= 1
            if call.within is not None:
                call.within.leave(None)

    call.threads += 1
    if call.within is not None:
        call.within.hold(None)
    try:
        return await in_thread(call.context(), work)
    except BaseException:
        if turn.acquire(blocking=False) and not call.begun and call.attempt.stop is not None:
            call.take_back()
        raise


async def _isolated(call: Call) -> Any:
    """The function in a process of its own, whatever its colour. Cancelling this kills the process."""
    spec = call.spec
    asked = IsolatedCall(
        step=spec.name,
        function=spec.function,
        args=call.text,
        current=replace(current(), step=call.path, first=call.attempt.first_path(call.path)),
        memory_mb=spec.memory_mb,
    )
    timeout = None if spec.timeout_ms is None else spec.timeout_ms / 1_000
    return spec.signature.result.decode(await call.attempt.isolate(asked, timeout=timeout))


async def in_thread(context: contextvars.Context, work: Callable[[], T]) -> T:
    """Run blocking work in a thread of its own, which never keeps the process from ending."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    attempt, copies = context.get(ATTEMPT), forking.copies

    def run() -> None:
        try:
            value = context.run(work)
        except BaseException as error:
            if forking.copies != copies:
                forking.end_copy(error)
            _settle(loop, future, None, error)
        else:
            if forking.copies != copies:
                forking.end_copy()
            _settle(loop, future, value, None)
        finally:
            if attempt is not None:
                attempt.in_thread(-1)

    if attempt is not None:
        attempt.in_thread(1)
    daemon = attempt is None or attempt.has_daemons
    threading.Thread(target=run, name="holdfast-job", daemon=daemon).start()
    return await future


def _settle(
    loop: asyncio.AbstractEventLoop, future: "asyncio.Future[Any]", value: Any, error: BaseException | None
) -> None:
    def settle() -> None:
        if future.done():
            return
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error if isinstance(error, Stopped) else contained(error))

    try:
        loop.call_soon_threadsafe(settle)
    except RuntimeError:  # the loop has ended: nobody waits
        pass


# Sync: in the job's own thread.


def run_sync(call: Call) -> Any:
    """Answer a call from its record, or run its body in this thread and record what came of it."""
    if call.spec.effect != "once":
        return _run_sync(call)
    under_way, first = call.lead()
    if not first:
        return call.result(under_way.result())
    with call.leading(under_way):
        return _run_sync(call)


def _run_sync(call: Call) -> Any:
    answered, value = call.answered()
    if answered:
        return value
    attempt = call.attempt
    _admit(attempt)
    if attempt.starting is not None:
        on_loop(attempt, attempt.starting(call.path))
    started_at = attempt.now()
    call.enter(started_at)
    try:
        if call.has_intents:
            on_loop(attempt, call.begin(started_at))
            with call.not_yet():
                _admit(attempt)
        if attempt.job.epoch > 1:
            attempt.note_run(call.path, call.spec, keyed=call.keyed)
        watch = Watch(attempt)
        while True:
            call.begin_try()
            try:
                with watch:
                    step = call.done(_timed(call), started_at)
                break
            except Exception as error:
                call.check()
                delay = call.next_try(error)
                if delay is None:
                    on_loop(attempt, call.keep_failure(error, started_at))
                    raise
            on_loop(attempt, call.end_try())
            attempt.pause(delay)
            _admit(attempt)
            call.tries += 1
        return call.result(on_loop(attempt, call.keep(step)))
    finally:
        call.leave()


def _admit(attempt: Attempt) -> None:
    """As Attempt.admit, without a way to the loop when the fence is open."""
    attempt.check()
    if attempt.is_fenced():
        on_loop(attempt, attempt.admit())


def _timed(call: Call) -> Any:
    """The body, here. A thread can't be stopped from outside: a timeout is told when the body comes back."""
    if call.spec.isolated:
        return on_loop(call.attempt, _isolated(call))
    args, kwargs = call.arguments()
    began = time.monotonic()
    value = call.context().run(call.spec.function, *args, **kwargs)
    limit = call.spec.timeout_ms
    if limit is not None and (time.monotonic() - began) * 1_000 > limit:
        raise call.too_slow()
    return value


def _key_text(key: Any) -> str:
    return key if isinstance(key, str) else canonical(key)
