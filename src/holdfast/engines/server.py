"""What engines on a server share: its clock, the answer to a beat, who is taken for dead, and coming back to it.

Must not know any server, nor how it is asked. Who is taken for dead is decided here, by pure functions, and nowhere
else: the engines only gather what was seen.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping

import msgspec

from holdfast.core.model import Beat, Lease, Presence, Record, Time
from holdfast.engines.contract import PAUSE, QUIET, WORKER

DEAF_POLL_SECONDS = 1.0
"""How often a waiter looks by itself while no news come in."""

CLOCK_SECONDS = 5.0
"""How long the server's clock is followed by our own before it is asked again."""

CLOCK_SET_MS = 500
"""An answer that is so far behind what we thought means that the server's clock was set back."""

RETRY_SECONDS = (0.1, 0.3, 1.0, 2.0)
"""The pauses between tries to hear again after the connection was lost."""

MISSED_MS = 100
"""How late a beat may come before it counts as missed, at least."""

TIDY_SECONDS = 60.0
"""How often traces of dead workers are looked for."""

SILENT_LEASES = 20
"""The trace of a worker that has been silent for so many leases, and holds nothing, is removed."""

CHECK = "is the server up, and are host and port right?"
"""What to look at when there is no connection."""

ALWAYS = float("inf")
"""For how long there has been no trouble, when none is known of."""


class ServerClock:
    """The server's clock. Between two answers our own goes on: never ahead of the server's. Used from every thread."""

    def __init__(self, here: Callable[[], float] = time.monotonic) -> None:
        self._here = here
        self.forget()

    def forget(self) -> None:
        """Ask the server next time: its clock was set."""
        # What the server said, when by our own clock, and when it was last heard: read and replaced as one.
        self._told: tuple[Time, float, float] = (0, 0.0, -CLOCK_SECONDS)

    async def now(self, ask: Callable[[], Awaitable[Time]]) -> Time:
        """The server's time; asks for it if the last answer is too old."""
        at, since, heard = self._told
        if self._here() - heard > CLOCK_SECONDS:
            self.heard(await ask())
            at, since, _ = self._told
        return at + int((self._here() - since) * 1_000)

    def heard(self, server: Time) -> None:
        """Note what the server just said."""
        # That is older than this moment, so what is counted from here is behind it, never ahead. Of several answers the
        # one that took the shortest way counts, unless the server's clock was set.
        here = self._here()
        at, since, _ = self._told
        followed = at + int((here - since) * 1_000)
        near = followed - CLOCK_SET_MS < server <= followed
        self._told = (at, since, here) if near else (server, here, here)


# Workers.


def beat_records(presence: Presence) -> list[str]:
    """The names of the records that a worker must know of."""
    return [*(PAUSE + queue for queue in presence.queues), QUIET + presence.worker]


def beat_answer(
    presence: Presence, now: Time, held: Mapping[str, int], cancelled: Collection[str], records: Collection[str]
) -> Beat:
    """What a worker must know of the jobs it named, and of those it didn't.

    `held` are the epochs of the jobs that are leased to it; `cancelled` those it named that were cancelled; `records`
    those of `beat_records` that are there.
    """
    named = {running.job: running.epoch for running in presence.running}
    gone = [id for id, epoch in named.items() if held.get(id) != epoch]
    return Beat(
        now=now,
        cancelled=tuple(id for id in gone if id in cancelled),
        lost=tuple(id for id in gone if id not in cancelled),
        stray=tuple(Lease(id, epoch) for id, epoch in sorted(held.items()) if named.get(id) != epoch),
        paused=tuple(queue for queue in presence.queues if PAUSE + queue in records),
        quiet=QUIET + presence.worker in records,
    )


def has_missed(presence: Presence, now: Time) -> bool:
    """Whether a beat of this worker is late."""
    return now - presence.beat_at > presence.beat_ms + max(MISSED_MS, presence.beat_ms // 8)


def is_suspect(presence: Presence, now: Time, watched_ms: float, steady_ms: float, *, shown: bool = False) -> bool:
    """Whether a worker missed a beat, and the absence of its sign of life would mean its death.

    After a restart of the server nobody's sign is there, and the living need a moment to show it again. The same may
    have happened when our own connection had to be made anew: the network was cut, or another server took over. So
    until the store has been steady for a lease (`steady_ms`, `ALWAYS` where no trouble is known of), only who showed
    its sign since can be seen without it: it was `shown` to us, or there was a beat while we watched (`watched_ms`).
    That this process is new is no such trouble.
    """
    known = shown or presence.beat_at > now - watched_ms or steady_ms >= presence.lease_ms
    return known and has_missed(presence, now)


def is_excused(presence: Presence, now: Time, steady_ms: float) -> bool:
    """Whether the store, or the way to it, was away since a worker's last beat: its silence says little about it."""
    return presence.beat_at < now - steady_ms


def is_past(presence: Presence, now: Time) -> bool:
    """Whether the trace of a worker is of no use any more, once it holds nothing."""
    return presence.gone or now - presence.beat_at > SILENT_LEASES * presence.lease_ms


def worker_records(presences: Iterable[Presence], prefix: str) -> list[Record]:
    """The workers as `Engine.records` shows them."""
    found = (Record(WORKER + one.worker, msgspec.json.encode(one).decode(), 0, one.beat_at) for one in presences)
    return [record for record in found if record.name.startswith(prefix)]


# The connection that hears the news.


async def come_back(
    connect: Callable[[], Awaitable[object]], is_over: Callable[[], bool], say: Callable[[Exception], object]
) -> bool:
    """Try to connect until it works, or nobody wants it any more; the first trouble is said. Whether it worked."""
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
