"""What engines on a server share: its clock, and reconnecting.

Must not know any server or how to talk to it.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable

from holdfast.core.model import Time

DEAF_POLL_SECONDS = 1.0
"""How often a waiter polls while it receives no wake-ups."""

CLOCK_SECONDS = 5.0
"""How long our own clock replaces the server's before we ask the server again."""

CLOCK_SET_MS = 500
"""If an answer is this far behind our estimate, the server's clock was set back."""

RETRY_SECONDS = (0.1, 0.3, 1.0, 2.0)
"""The pauses between tries to reconnect after the connection was lost."""

CHECK = "is the server up, and are host and port right?"
"""What to check when there is no connection."""

TIMED_OUT = "timed out; the write may or may not have been stored: check, then repeat it"

UNKNOWN = "writes in progress may or may not have been stored"


class ServerClock:
    """The server's clock. Between two answers our own clock continues it, never ahead of it. Used from every thread."""

    def __init__(self, here: Callable[[], float] = time.monotonic) -> None:
        self._here = here
        self.forget()

    def forget(self) -> None:
        """Ask the server next time, because its clock was set."""
        # What the server said, when by our own clock, and when it last answered: read and replaced as one value.
        self._last_heard: tuple[Time, float, float] = (0, 0.0, -CLOCK_SECONDS)

    async def now(self, ask: Callable[[], Awaitable[Time]]) -> Time:
        """Return the server's time; ask for it if the last answer is too old."""
        at, since, heard = self._last_heard
        if self._here() - heard > CLOCK_SECONDS:
            self.note(await ask())
            at, since, _ = self._last_heard
        return at + int((self._here() - since) * 1_000)

    def note(self, server: Time) -> None:
        """Note what the server just said."""
        # The answer is older than this moment, so our estimate is behind the server, never ahead. Of several answers,
        # the one with the shortest round trip counts, unless the server's clock was set.
        here = self._here()
        at, since, _ = self._last_heard
        followed = at + int((here - since) * 1_000)
        near = followed - CLOCK_SET_MS < server <= followed
        self._last_heard = (at, since, here) if near else (server, here, here)


# The connection that receives notifications.


async def come_back(
    connect: Callable[[], Awaitable[object]], is_over: Callable[[], bool], say: Callable[[Exception], object]
) -> bool:
    """Try to connect until it succeeds or nobody wants it any more. Log the first error; return whether it worked."""
    tries = 0
    while not is_over():
        try:
            await connect()
        except Exception as error:
            if not tries:
                say(error)
            await asyncio.sleep(RETRY_SECONDS[min(tries, len(RETRY_SECONDS) - 1)])
            tries += 1
        else:
            return True
    return False
