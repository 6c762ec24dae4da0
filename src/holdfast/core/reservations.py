"""Jobs that a worker beyond our own processes holds: its reservation, in the worker's name, and when it is over.

Must not read a store or a clock. Such a worker has no process that we could watch. What it claims is reserved for it,
for a time that its name in the store carries: so the claim writes both in one act. Whatever it reports about a job
starts the time anew (`HELD_PATH`, `SEEN_PATH`). A worker that promises heartbeats gets three intervals.
"""

import re
from collections.abc import Collection, Iterable

from msgspec import DecodeError, Struct, json

from holdfast.core.keys import digest
from holdfast.core.model import Job, Step, Time

RESERVATION_MS = 90_000
"""How long a job is reserved for a worker that says nothing else."""

SHORTEST_MS, LONGEST_MS = 1_000, 7 * 86_400_000
"""The shortest and the longest reservation that a worker can ask for."""

MISSED_BEATS = 3
"""How many heartbeats a worker may miss before its jobs are given to others."""

REMOTE_PATH = "~remote/"
"""The prefix of the records that such workers write about a job. No step's path starts with a tilde."""

HELD_PATH = f"{REMOTE_PATH}held"
"""The record of the last heartbeat of a job's worker; its result is the reservation that it asked for."""

SEEN_PATH = f"{REMOTE_PATH}seen"
"""The record of another sign of life: a recorded step."""

REMOTE_WORKER = "remote/"
"""A record `remote/NAME` has what such a worker said about itself."""

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,80}")
_HOLDER = re.compile(r"http\.([0-9]{1,10})\.(.*)")


class Holder(Struct, frozen=True):
    """A worker over HTTP: its name, empty if it gave none, and for how long what it claims is reserved.

    0 is as long as the job itself asks for, and RESERVATION_MS if it doesn't.
    """

    name: str
    reservation_ms: int

    def __str__(self) -> str:
        """The worker as the store knows it."""
        return f"http.{self.reservation_ms}.{self.name}"


def holder_for(worker_id: str, reservation_ms: int | None) -> Holder:
    """Return the holder for what a worker calls itself, and the reservation that it asks for."""
    return Holder(stored_name(worker_id), _bounded(reservation_ms) if reservation_ms else 0)


def stored_name(worker_id: str) -> str:
    """What a worker calls itself as every store can keep it: a name with other characters becomes its hash."""
    return worker_id if not worker_id or _NAME.fullmatch(worker_id) else f"id-{digest(worker_id)}"


def holder_of(worker: str | None) -> Holder | None:
    """Read a worker's name; None if it isn't a worker over HTTP."""
    found = _HOLDER.fullmatch(worker) if worker is not None and worker.startswith("http.") else None
    return None if found is None else Holder(found[2], int(found[1]))


def is_remote(job: Job) -> bool:
    """Whether a worker over HTTP holds the job."""
    return holder_of(job.worker) is not None


def reservation_of(job: Job, holder: Holder) -> int:
    """For how long a job is reserved for its holder after each sign of life, in milliseconds."""
    if holder.reservation_ms:
        return holder.reservation_ms
    try:
        asked = json.decode(job.options.envelope, type=_Asked).options.visibility_timeout_ms
    except DecodeError:
        asked = None
    return _bounded(asked) if asked else RESERVATION_MS


def reserved_until(job: Job, reports: Iterable[Step] = ()) -> Time | None:
    """Until when a job is reserved; None if no worker over HTTP holds it. `reports` are its worker's records."""
    holder = holder_of(job.worker)
    if holder is None or job.claimed_at is None:
        return None
    mine = [report for report in reports if report.epoch == job.epoch]
    asked = next((report.result or "" for report in mine if report.path == HELD_PATH), "")
    lasts = _bounded(int(asked)) if asked.isdecimal() else reservation_of(job, holder)
    return max([job.claimed_at, *(report.started_at for report in mine)]) + lasts


def may_ask_for_less(job: Job, beating: Collection[str]) -> bool:
    """Whether a heartbeat may have shortened a job's reservation. `beating` names the workers that promise them."""
    holder = holder_of(job.worker)
    return bool(beating) and holder is not None and (not holder.name or holder.name in beating)


def promises_heartbeats(text: str) -> bool:
    """Whether the record of a worker over HTTP says that it promises heartbeats."""
    try:
        return json.decode(text, type=_Promise).beat_ms > 0
    except DecodeError:
        return False


def _bounded(milliseconds: int) -> int:
    return max(SHORTEST_MS, min(milliseconds, LONGEST_MS))


class _Promise(Struct, frozen=True):
    """The part of a worker's record that says how often it promises a heartbeat."""

    beat_ms: int = 0


class _AskedOptions(Struct, frozen=True):
    visibility_timeout_ms: int | None = None


class _Asked(Struct, frozen=True):
    """The part of an envelope that says how long a job wants to be reserved."""

    options: _AskedOptions = _AskedOptions()
