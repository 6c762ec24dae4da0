"""A transaction that one thread holds while a body on another event loop uses it.

Must not know the database: the holder begins, records and ends it, and waits on `over` for the end of the body.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextvars import ContextVar
from typing import Any, Generic, Protocol, TypeVar

from holdfast.core.errors import Invalid
from holdfast.core.model import Conflict, Recorded, Step
from holdfast.engines.checks import check_steps
from holdfast.engines.traits import Body


class Settable(Protocol):
    """Something to wait for that can be set from any thread."""

    def set(self) -> None:
        """Let the waiter continue."""


Over = TypeVar("Over", bound=Settable)


class HeldTransaction(Generic[Over]):
    """One transaction, shared by the thread that holds it and the event loop that uses it."""

    def __init__(self, step: Step, over: Over) -> None:
        self.step = step
        self.steps: Sequence[Step] = ()
        """What to record at its end; empty to roll it back."""
        self.over = over
        """Set when the body has ended, or nobody waits for it any more."""
        self.broken: Callable[[], Exception] | None = None
        """Why it can't be completed."""
        self.loop = asyncio.get_running_loop()
        """Where the end of the body is reported."""
        self._opened: asyncio.Future[Any] = self.loop.create_future()

    def open(self, connection: Any) -> None:
        """Let the body begin. From the holder's thread."""

        def opened() -> None:
            if not self._opened.done():
                self._opened.set_result(connection)

        try:
            self.loop.call_soon_threadsafe(opened)
        except RuntimeError:  # the loop has ended: nobody waits
            self.over.set()

    def break_off(self, why: Callable[[], Exception]) -> None:
        """Roll it back at once, while the body may still run. From any thread."""
        self.broken = why
        self.over.set()

    async def run_body(self, body: Body, held: Coroutine[Any, Any, Any]) -> Recorded | Conflict:
        """Run the body inside the transaction that `held` holds; return when the transaction has ended."""
        ended: asyncio.Task[Any] = asyncio.ensure_future(held)
        filling: asyncio.Task[Sequence[Step]] | None = None
        try:
            await asyncio.wait((ended, self._opened), return_when=asyncio.FIRST_COMPLETED)
            if not ended.done():
                filling = asyncio.ensure_future(self._fill(body, self._opened.result()))
                await asyncio.wait((ended, filling), return_when=asyncio.FIRST_COMPLETED)
                if filling.done() and not filling.cancelled() and filling.exception() is None:
                    self.steps = filling.result()
            self.over.set()
            answer: Recorded | Conflict | None = await ended  # an error of the store, or its time limit, comes first
            if answer is None:
                assert filling is not None
                filling.result()  # raises what the body raised
                raise AssertionError("a body returns what to record")
            return answer
        finally:
            self.over.set()
            for task in (ended, filling):
                if task is not None and not task.done():
                    task.cancel()
                    task.add_done_callback(ignored)

    async def _fill(self, body: Body, connection: Any) -> Sequence[Step]:
        HELD.set(self)
        steps = await body(connection)
        check_steps(steps)
        return steps


HELD: "ContextVar[HeldTransaction[Any] | None]" = ContextVar("holdfast_held", default=None)
"""The transaction whose body runs here."""


def ignored(task: "asyncio.Task[Any]") -> None:
    """Mark an error as seen: nobody waits for it any more, and asyncio would report it as never retrieved."""
    if not task.cancelled():
        task.exception()


def step_is_over() -> Exception:
    """The error of a connection that is used after its step."""
    return Invalid("tx(): the step and its transaction have ended; use the connection only inside the step")


def held_too_long(step: Step, limit_seconds: float) -> TimeoutError:
    """The error of a step that was rolled back because it kept its transaction open for too long."""
    return TimeoutError(
        f"step {step.name} kept its transaction open for more than {limit_seconds:g} s, so it was rolled back; do slow "
        "work in an earlier step and only write in this one"
    )
