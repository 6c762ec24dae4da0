"""Timers that a job's own code has set on its event loop, in any way. A suspend would lose them.

Must not judge what a timer is for. Every asyncio timer, on any loop, is set through the loop's `call_at` or
`call_later`: both are watched, on the loop itself, for as long as it lives. Must not read anything private of a loop.
"""

import asyncio
from collections.abc import Callable
from contextvars import Context
from typing import Any

from holdfast.core.errors import Invalid

PRUNE_AT = 64
"""How many timers of one job are kept before finished ones are removed."""

REPEAT_SECONDS = 60.0
"""How long timers that are set over and over, as for a heartbeat, may keep a job in its slot."""


class Strike:
    """What a timer calls, and whether it has fired. A timer may fire late, because loops sometimes lag."""

    __slots__ = ("_callback", "has_struck")

    def __init__(self, callback: Callable[..., Any]) -> None:
        self._callback = callback
        self.has_struck = False

    def __call__(self, *args: Any) -> None:
        self.has_struck = True
        self._callback(*args)


class Timers:
    """The timers that the code of one job has set. On its loop."""

    def __init__(self) -> None:
        self._set: list[tuple[asyncio.TimerHandle, Strike]] = []
        self._prune_at = PRUNE_AT
        self._rest: object = None
        self._until = 0.0
        """When the last timer fires that was set when the job started to wait."""

    def add(self, timer: asyncio.TimerHandle, strike: Strike) -> None:
        """Add a timer."""
        if self._set and self._set[-1][0] is timer:  # `call_at` calls `call_later`, or the other way round
            return
        if len(self._set) >= self._prune_at:
            self._prune()
            self._prune_at = max(PRUNE_AT, 2 * len(self._set))
        self._set.append((timer, strike))

    def left(self, now: float) -> list[float]:
        """Return the seconds until each of them fires, at this time of the loop."""
        self._prune()
        return [max(0.0, timer.when() - now) for timer, _ in self._set]

    def _prune(self) -> None:
        """Remove those that were cancelled or have fired."""
        self._set = [one for one in self._set if not one[1].has_struck and not one[0].cancelled()]

    def holding(self, now: float, rest: object, *, repeats: bool) -> list[float]:
        """The same, as long as they keep a waiting job in its slot. `rest` is what it waits for.

        A timer may be a timeout, or one side of a race: only the code knows. So all timers that are set when the job
        starts to wait keep the slot. With `repeats`, timers that are set later count only for a while.
        """
        left = self.left(now)
        if left and rest != self._rest:
            self._rest, self._until = rest, now + max(left)
        return [] if repeats and now > self._until + REPEAT_SECONDS else left


Find = Callable[[Context | None], Timers | None]
"""Finds the job whose timer is set in this context, or in the current one."""


def watch_timers(loop: asyncio.AbstractEventLoop, find: Find) -> None:
    """Watch every timer that a job sets on this loop from now on. Can be repeated. Refuses a loop that hides them."""
    try:
        for name in ("call_at", "call_later"):
            plain = getattr(loop, name)
            if not isinstance(plain, _Watched):
                setattr(loop, name, _Watched(plain, find))
    except (AttributeError, TypeError):
        kind = f"{type(loop).__module__}.{type(loop).__qualname__}"
        raise Invalid(
            f"a worker can't run on the event loop {kind}, because that loop hides the timers that jobs set; "
            "run it on asyncio's own loop or on uvloop"
        ) from None


class _Watched:
    """A loop's `call_at` or `call_later`, which also notes the timers of jobs."""

    def __init__(self, plain: Callable[..., asyncio.TimerHandle], find: Find) -> None:
        self._plain = plain
        self._find = find

    def __call__(self, when: float, callback: Any, *args: Any, context: Context | None = None) -> asyncio.TimerHandle:
        timers = self._find(context)
        if timers is None:
            return self._plain(when, callback, *args, context=context)
        strike = Strike(callback)
        timer = self._plain(when, strike, *args, context=context)
        timers.add(timer, strike)
        return timer
