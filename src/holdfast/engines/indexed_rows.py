"""Rows in Python with their indexes, and a journal to undo writes. `tables` has the acts on them.

Must not use threads, files or a clock.
"""

from collections import Counter, defaultdict
from collections.abc import Callable
from heapq import heappush
from typing import TypeVar

import msgspec

from holdfast.core.model import Entry, Job, Presence, Record, State, Step, Time
from holdfast.core.summaries import StepCounts
from holdfast.core.unique import UNIQUE, tombstone
from holdfast.engines.topics import job_topic, queue_topic

K = TypeVar("K")
V = TypeVar("V")

DUE = frozenset({State.SCHEDULED, State.RETRYABLE, State.PENDING})
"""The states that a job leaves when its `run_at` is reached."""


class Key(msgspec.Struct, frozen=True):
    """The job that an idempotency key, or a unique name, belongs to. For a name, `digest` is its stamp (`unique`)."""

    job: str
    digest: str
    until: Time | None


Ready = tuple[int, Time, int, int, str]
"""An available job in claim order: priority, run_at, order of insertion; then its version and id."""


class IndexedRows:
    """All rows of a store. Every write goes through `_put`, `_set` or `_log`, so that the journal sees it.

    If `journal` is a list, it collects how to undo each write, newest last (`take_back`).
    """

    def __init__(self) -> None:
        self.jobs: dict[str, Job] = {}
        self.steps: dict[str, dict[str, Step]] = {}
        self.counts: dict[str, dict[str, StepCounts]] = {}
        """How many steps of each name a job has."""
        self.entries: dict[str, list[Entry]] = {}
        self.keys: dict[tuple[str, str], Key] = {}
        self.groups: dict[tuple[str, str], tuple[int, int]] = {}
        self.children: defaultdict[str, set[str]] = defaultdict(set)
        self.records: dict[str, Record] = {}
        self.presences: dict[str, Presence] = {}
        self.tally: Counter[tuple[str, State]] = Counter()
        self.news: set[str] = set()
        self.journal: list[Callable[[], None]] | None = None
        self._order: dict[str, int] = {}
        self._next = 0
        self._held: defaultdict[str, set[str]] = defaultdict(set)
        self._ready: defaultdict[str, dict[str, list[Ready]]] = defaultdict(dict)
        """A heap for each queue and type."""
        self._due: defaultdict[str, list[tuple[Time, int, int, str]]] = defaultdict(list)

    def empty(self) -> None:
        """Remove everything but the records and the workers."""
        before, gone = dict(vars(self)), list(self.jobs)
        type(self).__init__(self)
        for name in ("records", "presences", "journal", "news", "_next"):
            setattr(self, name, before[name])
        self.news.update(job_topic(id) for id in gone)
        if self.journal is not None:
            kept = {name: value for name, value in before.items() if name not in ("journal", "news")}
            self.journal.append(lambda: vars(self).update(kept))

    def take_back(self) -> None:
        """Undo every write since the journal was started, and drop the notifications about them."""
        journal, self.journal = self.journal or [], None
        for undo in reversed(journal):
            undo()
        self.news = set()

    def _put(self, job: Job | None, id: str = "") -> None:
        """Write or remove one job, and update the indexes. Heaps keep outdated entries, which `_take` skips."""
        id = id if job is None else job.id
        old = self.jobs.pop(id, None) if job is None else self.jobs.get(id)
        if self.journal is not None:
            self.journal.append(lambda: self._put(old, id))
        if old is not None:
            self.tally[old.queue, old.state] -= 1
            if old.worker is not None:
                self._held[old.worker].discard(id)
        if job is None:
            return
        self.jobs[id] = job
        self.tally[job.queue, job.state] += 1
        self.news.add(job_topic(id))
        if id not in self._order:
            self._order[id] = self._next
            self._next += 1
        if job.worker is not None:
            self._held[job.worker].add(id)
        if job.state is State.AVAILABLE:
            self._make_ready(job)
            self.news.add(queue_topic(job.queue))
        elif job.state in DUE and job.run_at is not None:
            heappush(self._due[job.queue], (job.run_at, self._order[id], job.version, id))
            self.news.add(queue_topic(job.queue))

    def _make_ready(self, job: Job) -> None:
        heappush(self._ready[job.queue].setdefault(job.type, []), self._turn(job))

    def _turn(self, job: Job) -> Ready:
        assert job.run_at is not None
        return (-job.priority, job.run_at, self._order[job.id], job.version, job.id)

    def _remove(self, job: Job, now: Time) -> None:
        self._put(None, job.id)
        self._set(self.steps, job.id, None)
        self._set(self.counts, job.id, None)
        self._set(self.entries, job.id, None)
        for group in [group for group in self.groups if group[0] == job.id]:
            self._set(self.groups, group, None)
        order = self._order.pop(job.id)
        if self.journal is not None:
            self.journal.append(lambda: self._order.__setitem__(job.id, order))
        self.children.pop(job.id, None)
        if job.parent is not None and job.parent in self.children:
            self.children[job.parent].discard(job.id)
        if job.key is not None:
            key = self.keys.get((job.type, job.key))
            if key is not None and key.job == job.id and not (key.until is not None and key.until > now):
                self._set(self.keys, (job.type, job.key), None)
        if job.options.unique is not None:
            self._forget_name((UNIQUE, job.options.unique.key), job, now)

    def _forget_name(self, name: tuple[str, str], job: Job, now: Time) -> None:
        """Free the name of a unique job that is removed, or leave a tombstone while its window is open."""
        held = self.keys.get(name)
        if held is not None and held.job == job.id:
            is_open = held.until is not None and held.until > now
            stays = Key(held.job, tombstone(held.digest, job.state), held.until) if is_open else None
            self._set(self.keys, name, stays)

    def _log(self, entry: Entry) -> None:
        entries = self.entries.setdefault(entry.job, [])
        entries.append(entry)
        if self.journal is not None:
            self.journal.append(lambda: (entries.pop(), None)[1])

    def _set(self, table: dict[K, V], name: K, value: V | None) -> None:
        old = table.get(name)
        if self.journal is not None:
            self.journal.append(lambda: _set_or_remove(table, name, old))
        _set_or_remove(table, name, value)

    def _ready_job(self, item: Ready) -> Job | None:
        """Return the job of a heap's entry; None if the job has changed since."""
        job = self.jobs.get(item[4])
        if job is None or (job.run_at, job.version) != (item[1], item[3]) or job.state is not State.AVAILABLE:
            return None
        return job


def _set_or_remove(table: dict[K, V], name: K, value: V | None) -> None:
    if value is None:
        table.pop(name, None)
    else:
        table[name] = value
