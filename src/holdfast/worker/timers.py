"""Timers that a job's own code has set on its event loop, by whatever means: a suspend would forget them.

Must not judge what a timer is for. Every timer of asyncio code, whichever loop runs it, is set by the loop's `call_at`
or `call_later`: both are watched, on the loop itself, for as long as it lives. Nothing that is private to a loop is
read.
"""

import asyncio
from collections.abc import Callable
from contextvars import Context
from typing import Any

from holdfast.core.errors import Invalid

PRUNE_AT = 64
"""How many timers of one job are kept before those that are over are forgotten."""


class Timers:
    """The timers that the code of one job has set. On its loop."""

    def __init__(self) -> None:
        self._set: list[asyncio.TimerHandle] = []
        self._prune_at = PRUNE_AT

    def add(self, timer: asyncio.TimerHandle, now: float) -> None:
        """One was set, at this time of the loop."""
        if self._set and self._set[-1] is timer:  # `call_at` calls `call_later`, or the other way round
            return
        if len(self._set) >= self._prune_at:
            self.left(now)
            self._prune_at = max(PRUNE_AT, 2 * len(self._set))
        self._set.append(timer)

    def left(self, now: float) -> list[float]:
        """Seconds until each of them strikes. Those that were cancelled or have struck are forgotten."""
        self._set = [timer for timer in self._set if not timer.cancelled() and timer.when() > now]
        return [timer.when() - now for timer in self._set]


Find = Callable[[Context | None], Timers | None]
"""Whose timer it is that is set in this context, or in the current one."""


def watch_timers(loop: asyncio.AbstractEventLoop, find: Find) -> None:
    """See every timer that a job sets on this loop from now on. May be called again. Refuses a loop that hides them."""
    try:
        for name in ("call_at", "call_later"):
            plain = getattr(loop, name)
            if not isinstance(plain, _Watched):
                setattr(loop, name, _Watched(plain, loop, find))
    except (AttributeError, TypeError):
        kind = f"{type(loop).__module__}.{type(loop).__qualname__}"
        raise Invalid(
            f"a worker can't run on the event loop {kind}: it hides the timers that jobs set; "
            "run it on asyncio's own loop or on uvloop"
        ) from None


class _Watched:
    """A loop's `call_at` or `call_later`, which notes the timers of jobs."""

    def __init__(self, plain: Callable[..., asyncio.TimerHandle], loop: asyncio.AbstractEventLoop, find: Find) -> None:
        self._plain = plain
        self._loop = loop
        self._find = find

    def __call__(self, when: float, callback: Any, *args: Any, context: Context | None = None) -> asyncio.TimerHandle:
        timer = self._plain(when, callback, *args, context=context)
        timers = self._find(context)
        if timers is not None:
            timers.add(timer, self._loop.time())
        return timer
