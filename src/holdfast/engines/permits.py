"""Who gets a permit of a shared limit: the one algorithm of the engines that keep their rows in Python.

Must not know any store: an engine gives its rows (`PermitRows`). Postgres and Redis do the same in SQL and Lua. Whoever
uses this holds the store's write lock, so nobody else takes a permit meanwhile.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from msgspec import Struct

from holdfast.core.model import Admission, Ask, Job, Time, Usage, Use
from holdfast.core.shared_limits import (
    RESERVED_MS,
    UNIT,
    Bucket,
    Settings,
    filled,
    limit_of,
    settled,
    split_need,
    start_time,
    started,
    sufficing,
)

RESERVED = "~reserved"
"""The path of a permit that is kept for a job that was woken for it."""

RECHECK_LIMIT = 100
"""How many keys one claim looks at for each queue, and how many waiting jobs it wakes for each key."""


class Permit(Struct, frozen=True, gc=False):
    """The right of one job or step to run under a key, while its lease is current. `path` is empty for a job's own.

    With `until`, it is kept for a job that has no lease yet.
    """

    key: str
    job: str
    path: str
    epoch: int
    try_number: int = 1
    until: Time | None = None


class PermitRows(ABC):
    """The rows that an engine keeps of limits."""

    @abstractmethod
    def settings(self, limit: str) -> Settings:
        """The settings of a limit."""

    @abstractmethod
    def bucket(self, key: str) -> Bucket | None:
        """The bucket of a key."""

    @abstractmethod
    def put_bucket(self, key: str, bucket: Bucket, now: Time) -> None:
        """Write the bucket of a key."""

    @abstractmethod
    def count_permits(self, key: str) -> int:
        """How many permits a key has, whether they are valid or not."""

    @abstractmethod
    def stale_permits(self, key: str, now: Time) -> Sequence[Permit]:
        """The permits of a key that are not valid: their leases are over, or nobody came for them in time."""

    @abstractmethod
    def count_reserved(self, key: str, now: Time) -> int:
        """How many permits of a key are kept for jobs that were woken and have not come for them yet."""

    @abstractmethod
    def next_end(self, key: str) -> Time | None:
        """When the first reservation of a key ends, if it has one."""

    @abstractmethod
    def permits_of(self, job: str) -> Sequence[Permit]:
        """All permits of a job: its own, those of its steps, and those that are kept for it."""

    @abstractmethod
    def put_permits(self, permits: Sequence[Permit]) -> None:
        """Write permits. Each replaces the one of the same key, job and path."""

    @abstractmethod
    def drop_permits(self, permits: Sequence[Permit]) -> None:
        """Remove permits."""

    @abstractmethod
    def recheck(self, key: str, at: Time) -> None:
        """Let claims look at a key at this time, in every queue where jobs wait behind it, and wake those who wait.

        Jobs that wait for a budget wait behind keys that begin with the budget's (`split_need`).
        """


class Block(Struct, frozen=True):
    """Why a job or step can't start: the key that has no room, and when it may have some (None: when a permit ends)."""

    key: str
    at: Time | None


class Permits:
    """The permits that one act hands out. It reads those of a job once. `finish` writes what has changed."""

    def __init__(self, rows: PermitRows, now: Time) -> None:
        self._rows = rows
        self._now = now
        self._settings: dict[str, Settings] = {}
        self._buckets: dict[str, Bucket] = {}
        self._changed: set[str] = set()
        self._held: dict[str, int] = {}
        self._of: dict[str, dict[str, dict[str, Permit]]] = {}
        """The permits of each job that was looked at, by path and key."""
        self._unwritten: dict[tuple[str, str, str], tuple[Permit, bool]] = {}
        """The permits that began or ended, by key, job and path, and whether they stand."""

    # Asking.

    def block(self, uses: Sequence[Use], job: str, path: str = "") -> Block | None:
        """Why a job, or one of its steps, can't start under all these keys now; None if it can."""
        for use in uses:
            at = self._start_time(use, self._held_by_others(use.key, job, path))
            if at is None or at > self._now:
                return Block(use.key, at)
        return None

    def start(self, uses: Sequence[Use], job: str, epoch: int, path: str = "", try_number: int = 1) -> None:
        """Give a job or step its permits, after `block` has found room for it."""
        own = self._permits_at(job, path) if uses else ()
        for use in uses:
            self._drop([one for one in own if one.key == use.key])
            self._put_permit(Permit(use.key, job, path, epoch, try_number))
            self._held[use.key] = self._count(use.key) + 1
            self._put_bucket(use.key, started(self._settings_of(use.key), self._bucket(use.key), use.units))

    def has_room(self, key: str) -> Block | None:
        """What keeps one more permit of a key from starting, whoever asks for it."""
        at = self._start_time(Use(key, 0), self._count(key))
        return None if at is not None and at <= self._now else Block(key, at)

    def room_to_wake(self, key: str) -> Block | None:
        """What keeps one more job that gave up its slot from being woken for this key.

        Its rate must have a whole unit for each job that was woken before and has not come for its permit yet, too.
        """
        burst = self._settings_of(key).burst
        awaited = 0 if burst is None else self._written().count_reserved(key, self._now)
        at = self._start_time(Use(key, min(UNIT, burst or UNIT) * (awaited + 1)), self._count(key))
        return None if at is not None and at <= self._now else Block(key, at)

    def reserve(self, key: str, job: Job) -> None:
        """Keep a permit for a job that is woken for it; but not if the job can't start yet, because a limit of its own
        is full: those who hold that one may need this permit to end.
        """
        if any(use.key != key and self._is_full(use.key, job.id) for use in job.options.limits):
            return
        until = self._now + RESERVED_MS
        self._put_permit(Permit(key, job.id, RESERVED, 0, until=until))
        self._held[key] = self._count(key) + 1
        self._rows.recheck(key, until)

    def look_time(self, block: Block) -> Time | None:
        """When to look at a full key again. None: nobody has to, because the end of a permit says so by itself."""
        return block.at if block.at is not None else self._written().next_end(block.key)

    def end(self, job: str, path: str | None = None) -> None:
        """End the permits of a job, or of one of its steps, and let others have them."""
        ended = self._rows.permits_of(job) if path is None else self._step_permits(job, path)
        self._drop(ended)
        if path is None:
            self._written()
        for key in dict.fromkeys(one.key for one in ended):
            if self._settings_of(key).at_once is not None:  # a rate has room by time alone
                self._rows.recheck(key, self._now)

    def admit(self, ask: Ask) -> Admission:
        """Answer a step whose lease is current."""
        if not ask.uses:
            self._settle(ask)
            self.end(ask.job, ask.path)
            return Admission(True)
        if self._is_admitted(ask):
            return Admission(True)
        if (block := self.block(ask.uses, ask.job, ask.path)) is not None:
            return Admission(False, block.key, block.at)
        self.start(ask.uses, ask.job, ask.epoch, ask.path, ask.try_number)
        return Admission(True)

    def finish(self) -> None:
        """Write what has changed: permits, and what the rates have left."""
        self._written()
        for key in sorted(self._changed):
            self._rows.put_bucket(key, self._buckets[key], self._now)
        self._changed.clear()

    # Counting.

    def _settle(self, ask: Ask) -> None:
        """Correct what the permits of a step have cost. Once: a repeated ask finds no permits."""
        held = {one.key for one in self._step_permits(ask.job, ask.path)} if ask.settles else ()
        for use in ask.settles:
            if use.key in held and self._settings_of(use.key).burst is not None:
                self._put_bucket(use.key, settled(self._bucket(use.key), use.units))
                self._rows.recheck(use.key, self._now)

    def _is_admitted(self, ask: Ask) -> bool:
        """Whether this very try has its permits already: the answer was lost, and it asks again."""
        steps = self._step_permits(ask.job, ask.path)
        held = {(one.key, one.try_number) for one in steps if one.epoch == ask.epoch}
        return all((use.key, ask.try_number) in held for use in ask.uses)

    def _start_time(self, use: Use, held: int) -> Time | None:
        return start_time(self._settings_of(use.key), self._bucket(use.key), held, use.units, self._now)

    def _held_by_others(self, key: str, job: str, path: str) -> int:
        """How many permits others hold. What is kept for a job, or held by its step from an earlier try, is its own."""
        held = self._count(key)
        if not held:
            return 0
        return held - sum(one.key == key for one in self._permits_at(job, path))

    def _count(self, key: str) -> int:
        """How many valid permits a key has. Those that are not are removed, once it looks full."""
        if key not in self._held:
            settings = self._settings_of(key)
            self._held[key] = 0 if settings.at_once is None else self._written().count_permits(key)
            if settings.at_once is not None and self._held[key] >= settings.at_once:
                self._drop(self._rows.stale_permits(key, self._now))
        return self._held[key]

    def _is_full(self, key: str, job: str) -> bool:
        """Whether jobs other than this one have all the permits of a key."""
        at_once, rows = self._settings_of(key).at_once, self._written()
        if at_once is None or (number := rows.count_permits(key)) < at_once:
            return False
        number -= len(rows.stale_permits(key, self._now))
        own = [one for one in rows.permits_of(job) if one.key == key and (one.until or 0) > self._now]
        return number - len(own) >= at_once

    def _paths(self, job: str) -> dict[str, dict[str, Permit]]:
        if job not in self._of:
            self._of[job] = {}
            for one in self._written().permits_of(job):
                self._of[job].setdefault(one.path, {})[one.key] = one
        return self._of[job]

    def _permits_at(self, job: str, path: str) -> list[Permit]:
        """The permits of a job at this path, and those that are kept for it."""
        paths = self._paths(job)
        return [*paths.get(path, {}).values(), *paths.get(RESERVED, {}).values()]

    def _step_permits(self, job: str, path: str) -> list[Permit]:
        return list(self._paths(job).get(path, {}).values())

    def _put_permit(self, permit: Permit) -> None:
        self._unwritten[permit.key, permit.job, permit.path] = (permit, True)
        if permit.job in self._of:
            self._of[permit.job].setdefault(permit.path, {})[permit.key] = permit

    def _drop(self, permits: Sequence[Permit]) -> None:
        for one in permits:
            self._unwritten[one.key, one.job, one.path] = (one, False)
            self._of.get(one.job, {}).get(one.path, {}).pop(one.key, None)
            if one.key in self._held:
                self._held[one.key] -= 1

    def _written(self) -> PermitRows:
        """The rows, with all permits written that began or ended."""
        if self._unwritten:
            changed = list(self._unwritten.values())
            self._unwritten.clear()
            self._rows.drop_permits([one for one, stands in changed if not stands])
            self._rows.put_permits([one for one, stands in changed if stands])
        return self._rows

    def _settings_of(self, key: str) -> Settings:
        if key not in self._settings:
            self._settings[key] = self._rows.settings(limit_of(key))
        return self._settings[key]

    def _bucket(self, key: str) -> Bucket:
        if key not in self._buckets:
            settings, (base, need) = self._settings_of(key), split_need(key)
            self._buckets[key] = sufficing(settings, filled(settings, self._rows.bucket(base), self._now), need)
        return self._buckets[key]

    def _put_bucket(self, key: str, bucket: Bucket) -> None:
        if bucket != self._buckets[key]:
            self._buckets[key] = bucket
            self._changed.add(key)


# Looking, and forgetting.


def usage_of(key: str, rows: PermitRows, waiting: int, now: Time) -> Usage | None:
    """How much of a key is used, given how many jobs wait for it; None if it isn't used at all."""
    settings = rows.settings(limit_of(key))
    held = rows.count_permits(key) - len(rows.stale_permits(key, now))
    bucket = filled(settings, rows.bucket(key), now)
    closed_until = bucket.closed_until if bucket.closed_until > now else 0
    tokens = bucket.tokens if settings.burst else None
    is_used = held or waiting or closed_until or tokens != settings.burst
    return Usage(key, held, waiting, tokens, closed_until) if is_used else None


def is_forgettable(bucket: Bucket | None, settings: Settings, before: Time, now: Time) -> bool:
    """Whether a bucket that nobody has used since then is full and open: a key without one starts full."""
    if bucket is None or not settings.refill or bucket.closed_until > before:
        return False
    return filled(settings, bucket, now).tokens == settings.burst
