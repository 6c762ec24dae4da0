"""Liveness: the answer to a heartbeat, and which workers count as dead.

Pure functions: engines collect the facts, and only this module decides what they mean. Must not know any store.
"""

from collections.abc import Collection, Iterable, Mapping

import msgspec

from holdfast.core.model import Beat, Lease, Presence, Record, Time
from holdfast.engines.records import PAUSE, QUIET, WORKER

MISSED_MS = 100
"""How late a heartbeat may be, at least, before it counts as missed."""

TIDY_SECONDS = 60.0
"""How often to look for the files or records of dead workers."""

SILENT_LEASES = 20
"""The status of a worker that has been silent for this many leases, and holds no job, is removed."""

ALWAYS = float("inf")
"""How long the store has been steady, if no interruption is known."""


def beat_records(presence: Presence) -> list[str]:
    """Return the names of the records that a worker needs to know."""
    return [*(PAUSE + queue for queue in presence.queues), QUIET + presence.worker]


def beat_answer(
    presence: Presence, now: Time, held: Mapping[str, int], cancelled: Collection[str], records: Collection[str]
) -> Beat:
    """Return what a worker must know about the jobs that it named, and about those that it didn't.

    `held` are the epochs of the jobs that are leased to it, `cancelled` the named jobs that were cancelled, `records`
    the existing ones of `beat_records`.
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
    """Whether a worker's heartbeat is late."""
    return now - presence.beat_at > presence.beat_ms + max(MISSED_MS, presence.beat_ms // 8)


def is_suspect(presence: Presence, now: Time, watched_ms: float, steady_ms: float, *, shown: bool = False) -> bool:
    """Whether a worker missed a heartbeat, and a missing proof of life would mean that it is dead.

    After a restart of the server no worker has a proof of life, and running workers need a moment to give it again. The
    same may have happened when our own connection was lost: the network was cut, or another server took over. So until
    the store has been steady for a lease (`steady_ms`, `ALWAYS` if no trouble is known), a missing proof counts only
    for a worker that gave one since: it was `shown` to us, or a heartbeat arrived while we watched (`watched_ms`). A
    newly started process of our own is no such trouble.
    """
    known = shown or presence.beat_at > now - watched_ms or steady_ms >= presence.lease_ms
    return known and has_missed(presence, now)


def is_excused(presence: Presence, now: Time, steady_ms: float) -> bool:
    """Whether the store was unreachable since a worker's last heartbeat, so that silence says little about it."""
    return presence.beat_at < now - steady_ms


def is_past(presence: Presence, now: Time) -> bool:
    """Whether the status of a worker can be removed, once the worker holds no job."""
    return presence.gone or now - presence.beat_at > SILENT_LEASES * presence.lease_ms


def worker_records(presences: Iterable[Presence], prefix: str) -> list[Record]:
    """Return the workers as `Engine.records` lists them."""
    found = (Record(WORKER + one.worker, msgspec.json.encode(one).decode(), 0, one.beat_at) for one in presences)
    return [record for record in found if record.name.startswith(prefix)]
