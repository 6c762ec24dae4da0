"""The rows of shared limits beside those of jobs: permits, the jobs that wait behind a key, and the keys to look at.

Must not decide who gets a permit (`permits`), and must not use threads, files or a clock.

A job with limits is available outside the order of its queue: it waits behind a key. `_rechecks` says which keys a
claim of a queue must look at, and from when on: wherever there is room and somebody waits, there is such a note.
"""

from collections import defaultdict
from collections.abc import Sequence
from heapq import heappush

from holdfast.core.model import PAGE_LIMIT, Job, Record, State, Time, Usage
from holdfast.core.shared_limits import (
    BUCKET,
    BUDGET,
    LIMIT,
    NO_LIMIT,
    Bucket,
    Settings,
    awaited_key,
    awaits_permit,
    bucket_of,
    limit_of,
    settings_of,
    split_need,
)
from holdfast.engines.indexed_rows import IndexedRows, Ready
from holdfast.engines.permits import Permit, PermitRows, is_forgettable, usage_of
from holdfast.engines.refusals import holds
from holdfast.engines.topics import limit_topic, queue_topic

LOOKED_AT: Time = 0
"""The time of a note that a claim has left standing: there is room, but for jobs of other types."""


class LimitedRows(IndexedRows, PermitRows):
    """All rows of a store. `_awaits` names the key behind which each job waits, whatever its state."""

    def __init__(self) -> None:
        super().__init__()
        self._permits: dict[str, dict[tuple[str, str], Permit]] = {}
        self._permits_of: dict[str, dict[tuple[str, str], Permit]] = {}
        self._awaits: dict[str, str] = {}
        self._waiting: defaultdict[tuple[str, str], dict[str, list[Ready]]] = defaultdict(dict)
        """For each queue and key a heap for each type, as `_ready` is for those without limits."""
        self._parked: defaultdict[tuple[str, str], dict[str, int]] = defaultdict(dict)
        """For each queue and key the pending jobs whose steps wait for a permit, in the order of their insertion."""
        self._queues: defaultdict[str, set[str]] = defaultdict(set)
        """The queues in which jobs ever waited behind a key."""
        self._looked_last: dict[str, str] = {}
        """For each queue the last key that a claim looked at, where there were too many for one claim."""
        self._rechecks: defaultdict[str, dict[str, Time]] = defaultdict(dict)

    # Jobs that wait.

    def _put(self, job: Job | None, id: str = "") -> None:
        old = self.jobs.get(id if job is None else job.id)
        if old is not None and awaits_permit(old):
            for key in (self._awaits.get(old.id, ""), awaited_key(old) or ""):
                self._parked[old.queue, key].pop(old.id, None)
        super()._put(job, id)
        if job is None:
            self._set(self._permits_of, id, None)
        awaited = None if job is None else awaited_key(job)
        self._set(self._awaits, id if job is None else job.id, awaited)
        if job is not None and job.state is State.PENDING and awaits_permit(job) and awaited is not None:
            self._parked[job.queue, awaited][job.id] = self._order[job.id]
            self._queues[awaited].add(job.queue)
            self._look_at(job.queue, awaited, job.created_at)

    def _make_ready(self, job: Job) -> None:
        key = awaited_key(job)
        if key is None:
            super()._make_ready(job)
        else:
            self._wait_behind(job, key)
            self._look_at(job.queue, key, job.run_at or 0)

    def _wait_behind(self, job: Job, key: str) -> None:
        self._queues[key].add(job.queue)
        heappush(self._waiting[job.queue, key].setdefault(job.type, []), self._turn(job))

    def _move_behind(self, job: Job, key: str) -> None:
        """Let a job that found no room behind one key wait behind another one."""
        before = self._awaits[job.id]
        if self.journal is not None:
            self.journal.append(lambda: self._wait_behind(job, before))
        self._set(self._awaits, job.id, key)
        self._wait_behind(job, key)

    def _waiting_job(self, item: Ready, key: str) -> Job | None:
        """The job that an entry of a heap stands for; None if it has changed since, or waits elsewhere."""
        job = self._ready_job(item)
        return job if job is not None and self._awaits.get(job.id) == key else None

    def _has_waiting(self, queue: str, key: str) -> bool:
        return bool(self._parked[queue, key]) or self._has_available(queue, key)

    def _has_available(self, queue: str, key: str) -> bool:
        heaps = self._waiting[queue, key].values()
        return any(self._waiting_job(item, key) for heap in heaps for item in heap)

    def _look_at(self, queue: str, key: str, at: Time) -> None:
        """Let claims of a queue look at a key from this time on, or sooner if they would anyway."""
        known = self._rechecks[queue].get(key)
        self._set(self._rechecks[queue], key, at if known is None else min(at, known))
        self.news.add(queue_topic(queue))

    def looked_at(self, job: Job) -> Time | None:
        """When a claim next looks at the key behind which a job waits; None if only an event lets it look."""
        key = self._awaits.get(job.id)
        return None if key is None else self._rechecks[job.queue].get(key)

    # See PermitRows.

    def recheck(self, key: str, at: Time) -> None:
        """See PermitRows."""
        for waited_for in self._keys_behind(key):
            for queue in sorted(self._queues[waited_for]):
                if self._has_waiting(queue, waited_for):
                    self._look_at(queue, waited_for, at)
        self.news.add(limit_topic(key))

    def _keys_behind(self, key: str) -> list[str]:
        """The keys behind which jobs may wait for the bucket of this one."""
        if limit_of(key) != BUDGET:
            return [key]
        return sorted(one for one in self._queues if key in (one, split_need(one)[0]))

    def recheck_limit(self, limit: str) -> None:
        """Let claims look at every key of a limit, or of a budget: its settings, or what is left, have changed."""
        if split_need(limit)[0] != limit_of(limit):
            self.recheck(limit, LOOKED_AT)
            return
        for key in sorted(self._queues):
            if limit_of(key) == limit:
                self.recheck(key, LOOKED_AT)

    def settings(self, limit: str) -> Settings:
        """See PermitRows."""
        record = self.records.get(LIMIT + limit)
        return NO_LIMIT if record is None or not record.value else settings_of(record.value)

    def bucket(self, key: str) -> Bucket | None:
        """See PermitRows."""
        record = self.records.get(BUCKET + key)
        return None if record is None or not record.value else bucket_of(record.value)

    def put_bucket(self, key: str, bucket: Bucket, now: Time) -> None:
        """See PermitRows."""
        old = self.records.get(BUCKET + key)
        version = 1 if old is None else old.version + 1
        self._set(self.records, BUCKET + key, Record(BUCKET + key, bucket.text(), version, now))

    def count_permits(self, key: str) -> int:
        """See PermitRows."""
        return len(self._permits.get(key, {}))

    def stale_permits(self, key: str, now: Time) -> Sequence[Permit]:
        """See PermitRows."""
        return [one for one in self._permits.get(key, {}).values() if not self._is_valid(one, now)]

    def next_end(self, key: str) -> Time | None:
        """See PermitRows."""
        return min((one.until for one in self._permits.get(key, {}).values() if one.until is not None), default=None)

    def count_reserved(self, key: str, now: Time) -> int:
        """See PermitRows."""
        permits = self._permits.get(key, {}).values()
        return sum(1 for one in permits if one.until is not None and one.until > now)

    def permits_of(self, job: str) -> Sequence[Permit]:
        """See PermitRows."""
        return list(self._permits_of.get(job, {}).values())

    def put_permits(self, permits: Sequence[Permit]) -> None:
        """See PermitRows."""
        for one in permits:
            self.put_permit(one)

    def put_permit(self, permit: Permit) -> None:
        """Write a permit."""
        self._set(self._permits.setdefault(permit.key, {}), (permit.job, permit.path), permit)
        self._set(self._permits_of.setdefault(permit.job, {}), (permit.key, permit.path), permit)

    def drop_permits(self, permits: Sequence[Permit]) -> None:
        """See PermitRows."""
        for one in permits:
            self._set(self._permits.get(one.key, {}), (one.job, one.path), None)
            self._set(self._permits_of.get(one.job, {}), (one.key, one.path), None)

    def _is_valid(self, permit: Permit, now: Time) -> bool:
        if permit.until is not None:
            return permit.until > now
        return holds(self.jobs.get(permit.job), permit.epoch)

    # Reading.

    def usage(self, limit: str, now: Time) -> list[Usage]:
        """How much of each key of a limit is used, in the order of the keys."""
        buckets = {name.removeprefix(BUCKET) for name, record in self.records.items() if name.startswith(BUCKET)}
        keys = sorted(key for key in {*self._permits, *self._queues, *buckets} if limit_of(key) == limit)
        found = (usage_of(key, self, self._count_waiting(key), now) for key in keys)
        return [one for one in found if one is not None][:PAGE_LIMIT]

    def _count_waiting(self, key: str) -> int:
        return sum(
            len(self._parked[queue, key])
            + len({i[4] for heap in self._waiting[queue, key].values() for i in heap if self._waiting_job(i, key)})
            for queue in list(self._queues.get(key, ()))
        )

    def _drop_full_buckets(self, before: Time, now: Time) -> None:
        """Forget the buckets that are full, open and unused since then: a key without one starts full."""
        for name, record in list(self.records.items()):
            if not name.startswith(BUCKET) or record.at >= before:
                continue
            settings = self.settings(limit_of(name.removeprefix(BUCKET)))
            if is_forgettable(bucket_of(record.value), settings, before, now):
                self._set(self.records, name, None)
