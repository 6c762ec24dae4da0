"""Snapshots of the workers: which exist, the last status of each, and the store's time, read together.

Must not act. A snapshot gets old while its owner reads on, waits or sleeps. So before taking a job from a worker, judge
by a young snapshot, and take a new one right before acting if it is too old.
"""

import time
from collections.abc import Mapping

from msgspec import Struct

from holdfast.core.durations import in_words
from holdfast.core.model import Presence, Time
from holdfast.engines.contract import Engine
from holdfast.engines.records import WORKER, worker_in
from holdfast.jobs.lost_workers import UNNOTICED

FRESH_PART = 0.2
"""How old a snapshot may be to act on it, as a share of a lease. A worker sends at least three heartbeats per lease."""

REFRESH_TRIES = 3
"""How many snapshots to take before acting. If the store is too slow even then, the next round asks again."""

AWAKE_PART = 0.5
"""How long to take snapshots before silence counts, as a share of a lease: live workers need time to report."""

Moment = tuple[float, float]


def moment() -> Moment:
    """The current moment by two clocks: one stops while the machine sleeps, and somebody may set the other."""
    return time.monotonic(), time.time()


def elapsed(since: Moment) -> float:
    """How many seconds have passed since a moment; rather too many than too few."""
    return max(now - then for now, then in zip(moment(), since, strict=True))


class Snapshot(Struct, frozen=True):
    """The workers at one time of the store; when we began to read; since when we have taken snapshots without a gap."""

    present: Mapping[str, Presence]
    now: Time
    begun: Moment
    awake_since: Time


class Snapshots:
    """Takes snapshots of a store's workers. A worker that is silent for `lease_seconds` counts as dead."""

    def __init__(self, engine: Engine, lease_seconds: float) -> None:
        self._engine = engine
        self._fresh_seconds = lease_seconds * FRESH_PART
        self.lease_ms = round(lease_seconds * 1_000)
        self._taken_at: Time | None = None
        self._awake_since: Time = 0

    async def take(self) -> Snapshot:
        """Take a snapshot now. The time is read first, so that no worker looks more silent than it is."""
        begun = moment()
        now = await self._engine.now()
        records = await self._engine.records(WORKER)
        if self._taken_at is None or now - self._taken_at >= self.lease_ms:
            self._awake_since = now
        self._taken_at = now
        found = [worker_in(record) for record in records]
        # A heartbeat that can't be read may have an unknown time: such a worker counts as missing, not as dead.
        present = {one.worker: one for one in found if one.beat_at or not one.unreadable}
        return Snapshot(present, now, begun, self._awake_since)

    async def refresh(self, snapshot: Snapshot) -> Snapshot | None:
        """Return this snapshot if it is young, else a new one, or None if the store is too slow to provide one.

        The caller must act before it awaits anything else.
        """
        for _ in range(REFRESH_TRIES):
            if self.is_fresh(snapshot):
                return snapshot
            snapshot = await self.take()
        return snapshot if self.is_fresh(snapshot) else None

    def is_fresh(self, snapshot: Snapshot) -> bool:
        """Whether this snapshot is young enough to act on."""
        return elapsed(snapshot.begun) <= self._fresh_seconds

    def is_silent(self, presence: Presence, snapshot: Snapshot) -> bool:
        """Whether a worker has been silent for longer than a lease."""
        return snapshot.now - presence.beat_at > self.lease_ms

    def is_dead(self, presence: Presence, snapshot: Snapshot) -> bool:
        """Whether a worker was seen to die, or has been silent for longer than a lease.

        After being asleep or cut off from the store, we can't tell silence from death until live workers have had time
        to report.
        """
        return presence.gone or (self.is_awake(snapshot) and self.is_silent(presence, snapshot))

    def is_awake(self, snapshot: Snapshot) -> bool:
        """Whether snapshots have been taken without a gap for long enough that every live worker had time to report."""
        return snapshot.now - snapshot.awake_since >= self.lease_ms * AWAKE_PART


def describe_death(presence: Presence, snapshot: Snapshot) -> str:
    """How we know that a worker is dead, for the history."""
    silent = in_words(max(0, snapshot.now - presence.beat_at))
    if presence.gone:
        where = f"process {presence.pid} on {presence.host or 'this machine'}"
        return f"{where} {UNNOTICED}; last heartbeat {silent} ago"
    return f"no heartbeat for {silent}"
