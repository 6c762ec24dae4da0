"""`attach`: wait for a job that a provider runs, by its id, and never start it twice.

    video = await attach(start, poll, cancel, key="clip-3")

The provider's id is recorded before the wait. Between polls the job holds no slot. After a crash the next worker polls
the same id. If the job is cancelled, `cancel(id)` is called.
"""

import asyncio
import contextvars
import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, overload

from msgspec.structs import replace

from holdfast.app.waiting import async_attempt, sync_attempt
from holdfast.core.codec import Signature
from holdfast.core.durations import Duration, milliseconds
from holdfast.core.errors import Invalid, StepFailed
from holdfast.core.model import Retry, Wait, WaitKind
from holdfast.jobs.consequences import ATTACHED_RESULT
from holdfast.worker.attachments import ATTACH, cancel_name
from holdfast.worker.attempt import Attempt
from holdfast.worker.call import Call
from holdfast.worker.context import PATH, plain_call
from holdfast.worker.own_loop import await_on_loop, is_away, run_on_loop
from holdfast.worker.pending_wait import PendingWait
from holdfast.worker.recorded_errors import text_of, type_name
from holdfast.worker.registry import StepSpec
from holdfast.worker.steps import make_call, run_async
from holdfast.worker.suspension import Suspension
from holdfast.worker.threads import run_in_thread

T = TypeVar("T")
Id = TypeVar("Id")

EVERY = "5s"
"""How often the provider is asked, by default."""


class Attach:
    """`await attach(start, poll, cancel, key="clip-3")`; in a `def` job, `attach.sync(…)`."""

    @overload
    async def __call__(
        self,
        start: Callable[[], Awaitable[Id]],
        poll: Callable[[Id], Awaitable[T | None]],
        cancel: Callable[[Id], object] | None = None,
        *,
        key: str,
        every: Duration = EVERY,
    ) -> T: ...

    @overload
    async def __call__(
        self,
        start: Callable[[], Id],
        poll: Callable[[Id], T | None],
        cancel: Callable[[Id], object] | None = None,
        *,
        key: str,
        every: Duration = EVERY,
    ) -> T: ...

    async def __call__(
        self,
        start: Callable[[], Any],
        poll: Callable[[Any], Any],
        cancel: Callable[[Any], object] | None = None,
        *,
        key: str,
        every: Duration = EVERY,
    ) -> Any:
        """Start a provider's job, record its id, and ask `poll(id)` until it returns something other than None.

        `start` runs as a step: give the provider `current().idempotency_key`. `cancel(id)` is called if this job is
        cancelled before there is a result; it must be a function at the top of a module. It gets None if `start` was
        cut off, so that it may have happened; its `current().idempotency_key` is the same as in `start`. `key` names
        the attachment.
        """
        attempt = async_attempt("attach")
        if attempt is None:
            return await _attach_plainly(start, poll, milliseconds(every))
        attached = _attach(attempt, start, poll, cancel, key, milliseconds(every))
        return await (await_on_loop(attempt, attached) if is_away(attempt) else attached)

    def sync(
        self,
        start: Callable[[], Any],
        poll: Callable[[Any], T | None],
        cancel: Callable[[Any], object] | None = None,
        *,
        key: str,
        every: Duration = EVERY,
    ) -> T:
        """The same in a `def` job. The functions run in threads."""
        attempt = sync_attempt("attach")
        if attempt is None:
            found: T = asyncio.run(_attach_plainly(start, poll, milliseconds(every)))
            return found
        found = run_on_loop(attempt, _attach(attempt, start, poll, cancel, key, milliseconds(every)))
        return found  # noqa: RET504 (typed)


attach = Attach()


async def _attach(
    attempt: Attempt,
    start: Callable[[], Any],
    poll: Callable[[Any], Any],
    cancel: Callable[[Any], object] | None,
    key: str,
    every_ms: int,
) -> Any:
    if not isinstance(key, str) or not key:
        raise Invalid(f"attach(key={key!r}): give a text that names this attachment in its job, such as key='clip-3'")
    if every_ms <= 0:
        raise Invalid(f"attach(every={every_ms / 1_000:g}): give a time above zero")
    spec = _spec(ATTACH, start)
    if cancel is not None:
        spec = replace(spec, undo=cancel, undo_name=cancel_name(cancel))
    call = make_call(attempt, spec, (), {}, key)

    async def begin(_: Call) -> Any:
        return await _run(start)

    id = await run_async(call, begin)
    token = PATH.set(call.path)
    try:
        result = make_call(attempt, _spec(ATTACHED_RESULT, poll), (id,), {}, None)
    finally:
        PATH.reset(token)
    is_recorded, value = result.answer()
    while not is_recorded and value is None:
        with attempt.activity():
            value = await _poll(attempt, poll, key, call.path, id)
        if value is None:
            await Suspension.of(attempt).wait(_until_next(attempt, every_ms))
    if is_recorded:
        return value

    async def known(_: Call) -> Any:
        return value

    return await run_async(result, known)


async def _poll(attempt: Attempt, poll: Callable[[Any], Any], key: str, path: str, id: Any) -> Any:
    try:
        return await _ask(poll, id)
    except Exception as error:
        what = f"{type_name(error)}: {text_of(error)}"
        told = (
            f"attach {key!r}: asking for {id!r} failed: {what}; the id is kept, so a replay asks for it again; if the "
            f"provider has forgotten it, start a new one: holdfast rerun {attempt.job.id} {path}"
        )
        raise StepFailed(told, type=type_name(error), message=told) from error


def _until_next(attempt: Attempt, every_ms: int) -> PendingWait[None]:
    """Wait for the next poll. All attachments of a job are asked at the same times, so it wakes once for all."""
    until = (attempt.now() // every_ms + 1) * every_ms

    async def answer() -> list[None] | None:
        return [None] if attempt.now() >= until else None

    return PendingWait("", Wait(WaitKind.TIME, until=until), answer)


async def _ask(poll: Callable[[Any], Any], id: Any) -> Any:
    """Ask a provider once."""
    return await _run(functools.partial(poll, id))


async def _run(function: Callable[[], Any]) -> Any:
    """Call a user's function: an async one here, any other in a thread."""
    found = getattr(function, "func", function)
    if inspect.iscoroutinefunction(inspect.unwrap(found)):
        return await function()
    made = await run_in_thread(contextvars.copy_context(), function)
    return await made if inspect.isawaitable(made) else made


async def _attach_plainly(start: Callable[[], Any], poll: Callable[[Any], Any], every_ms: int) -> Any:
    """The same outside a job."""
    with plain_call(ATTACH):
        id = await _run(start)
    while (value := await _ask(poll, id)) is None:  # noqa: ASYNC110 (providers set no event)
        await asyncio.sleep(every_ms / 1_000)
    return value


def _spec(name: str, function: Callable[..., Any]) -> StepSpec:
    """Return what is recorded of a user's function: its result, by its type hints."""
    return StepSpec(
        name=name,
        function=_spec,
        signature=Signature(function),
        is_async=True,
        retry=Retry(retries=0),
        timeout_ms=None,
        stale_after_ms=None,
        key=None,
    )
