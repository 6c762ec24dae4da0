"""Liveness: what a heartbeat answers, and who is taken for dead.

Pure functions: engines gather what was seen, and only this module decides what it means. Must not know any store.
"""

from collections.abc import Collection, Iterable, Mapping

import msgspec

from holdfast.core.model import Beat, Lease, Presence, Record, Time
from holdfast.engines.records import PAUSE, QUIET, WORKER

MISSED_MS = 100
"""How late a beat may come before it counts as missed, at least."""

TIDY_SECONDS = 60.0
"""How often traces of dead workers are looked for."""

SILENT_LEASES = 20
"""The trace of a worker that has been silent for so many leases, and holds nothing, is removed."""

ALWAYS = float("inf")
"""How long the store has been steady, if no interruption is known."""


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
    """Whether the store was unreachable since a worker's last heartbeat, so that silence says little about it."""
    return presence.beat_at < now - steady_ms


def is_past(presence: Presence, now: Time) -> bool:
    """Whether the trace of a worker is of no use any more, once it holds nothing."""
    return presence.gone or now - presence.beat_at > SILENT_LEASES * presence.lease_ms


def worker_records(presences: Iterable[Presence], prefix: str) -> list[Record]:
    """The workers as `Engine.records` shows them."""
    found = (Record(WORKER + one.worker, msgspec.json.encode(one).decode(), 0, one.beat_at) for one in presences)
    return [record for record in found if record.name.startswith(prefix)]
