"""Snapshots of the workers: who is there, what each said last, and the store's time, read together.

Must not act. What was seen gets old while one reads on, waits or sleeps, and the workers go on meanwhile. So whoever
takes a job from a worker judges by a young snapshot, and takes a new one right before it acts if it isn't.
"""

import time
from collections.abc import Mapping

from msgspec import Struct

from holdfast.core.durations import in_words
from holdfast.core.model import Presence, Time
from holdfast.engines.contract import Engine
from holdfast.engines.records import WORKER, worker_in

FRESH_PART = 0.2
"""For which part of a lease a snapshot may be acted on. Every worker sends three heartbeats in a lease, or more."""

REFRESH_TRIES = 3
"""How many snapshots are taken before one acts. A store that is too slow even then is asked again in the next round."""

AWAKE_PART = 0.5
"""For which part of a lease snapshots must have been taken before silence counts: the living need time to be heard."""

Moment = tuple[float, float]


def moment() -> Moment:
    """This moment by two clocks: one stands still while a machine sleeps, and somebody may set the other one."""
    return time.monotonic(), time.time()


def elapsed(since: Moment) -> float:
    """How many seconds have passed since a moment, rather too many than too few."""
    return max(now - then for now, then in zip(moment(), since, strict=True))


class Snapshot(Struct, frozen=True):
    """Who was there, at which time of the store; when it was begun here; since when they were taken without a break."""

    present: Mapping[str, Presence]
    now: Time
    begun: Moment
    awake_since: Time


class Snapshots:
    """Takes snapshots of a store's workers. `lease_seconds` is how long a silent worker is believed in."""

    def __init__(self, engine: Engine, lease_seconds: float) -> None:
        self._engine = engine
        self._fresh_seconds = lease_seconds * FRESH_PART
        self.lease_ms = round(lease_seconds * 1_000)
        self._taken_at: Time | None = None
        self._awake_since: Time = 0

    async def take(self) -> Snapshot:
        """Take one now. The time is read first: of what is seen later, it makes nobody more silent than it is."""
        begun = moment()
        now = await self._engine.now()
        records = await self._engine.records(WORKER)
        if self._taken_at is None or now - self._taken_at >= self.lease_ms:
            self._awake_since = now
        self._taken_at = now
        found = [worker_in(record) for record in records]
        # When a heartbeat that can't be read was sent is not always known: such a worker counts as missed, not as dead.
        present = {one.worker: one for one in found if one.beat_at or not one.unreadable}
        return Snapshot(present, now, begun, self._awake_since)

    async def refresh(self, snapshot: Snapshot) -> Snapshot | None:
        """This one while it is young, else a new one; None if the store can't give one that still is. What is done
        next, before anything is awaited, rests on it.
        """
        for _ in range(REFRESH_TRIES):
            if self.is_fresh(snapshot):
                return snapshot
            snapshot = await self.take()
        return snapshot if self.is_fresh(snapshot) else None

    def is_fresh(self, snapshot: Snapshot) -> bool:
        """Whether one may act on this snapshot now."""
        return elapsed(snapshot.begun) <= self._fresh_seconds

    def is_silent(self, presence: Presence, snapshot: Snapshot) -> bool:
        """Whether a worker has not been heard of for longer than a lease."""
        return snapshot.now - presence.beat_at > self.lease_ms

    def is_dead(self, presence: Presence, snapshot: Snapshot) -> bool:
        """Whether a worker was seen to die, or has been silent for longer than a lease.

        Who was asleep, or cut off from the store, can't tell silence from death until the living had time to be heard.
        """
        return presence.gone or (self.is_awake(snapshot) and self.is_silent(presence, snapshot))

    def is_awake(self, snapshot: Snapshot) -> bool:
        """Whether snapshots were taken for so long without a break that the living had time to be heard."""
        return snapshot.now - snapshot.awake_since >= self.lease_ms * AWAKE_PART


def describe_death(presence: Presence, snapshot: Snapshot) -> str:
    """How a dead worker was seen to be dead, for the history."""
    silent = in_words(max(0, snapshot.now - presence.beat_at))
    if presence.gone:
        where = f"process {presence.pid} on {presence.host or 'this machine'}"
        return f"{where} ended without a word; last heard of {silent} ago"
    return f"not heard of for {silent}"
