"""The rows that every change of a job writes, and what a transaction notes meanwhile: counters, and the topics to wake.

Must not begin or commit, and must not know an act.
"""

import sqlite3
from collections import Counter
from collections.abc import Iterable
from types import SimpleNamespace

import msgspec

from holdfast.core.lifecycle import entry_of
from holdfast.core.model import Change, Event, Job, State
from holdfast.core.shared_limits import awaits_permit
from holdfast.engines.sqlite import rows
from holdfast.engines.sqlite.counting import Counting
from holdfast.engines.sqlite.limit_rows import LimitRows
from holdfast.engines.sqlite.unique_names import UniqueNames
from holdfast.engines.topics import job_topic, queue_topic

DUE_EVENT = {State.SCHEDULED: Event.PROMOTE, State.RETRYABLE: Event.PROMOTE, State.PENDING: Event.ACTIVATE}
"""What happens to a job in each of these states when its time has come."""

_json = msgspec.json.Encoder().encode


class JobWrites:
    """The changes of one transaction. `news` collects the topics to wake once it is durable."""

    def __init__(self, connection: sqlite3.Connection, sql: SimpleNamespace) -> None:
        self._db = connection
        self._sql = sql
        self._tally: Counter[tuple[str, State]] = Counter()
        self._counting = Counting(connection, sql)
        self.news: set[str] = set()
        self._limits = LimitRows(connection, sql, self.news)
        self._names = UniqueNames(connection, sql)
        self._places: list[rows.Params] = []
        """Jobs that have to be behind another key than before: few, so other jobs pay nothing for it."""

    def finish(self) -> None:
        """Write what was noted, once for the whole transaction."""
        moved = [{"queue": queue, "state": state.value, "more": n} for (queue, state), n in self._tally.items() if n]
        if moved:
            self._db.executemany(self._sql.add_tally, moved)
        self._counting.write()
        self._limits.write_notes()

    def _note(
        self,
        change: Change,
        job: Job,
        n: int,
        before: State,
        updates: list[rows.Params],
        entries: list[rows.Params],
    ) -> None:
        """Prepare the two rows of a change, its counters, and the topics to wake."""
        updates.append(rows.job_params(job, n))
        entries.append(rows.entry_params(entry_of(change, job.version), n))
        self._tally[job.queue, before] -= 1
        self._tally[job.queue, job.state] += 1
        self.news.add(job_topic(job.id))
        if job.state is State.AVAILABLE or (job.state in DUE_EVENT and job.run_at is not None):
            self.news.add(queue_topic(job.queue))
        if awaits_permit(job) or change.edits:
            self._place(job, n)

    def _place(self, job: Job, n: int) -> None:
        """Put a job behind its key, or behind none; and let claims look there if it waits for a permit."""
        self._places.append(rows.place_params(job, n))
        if awaits_permit(job):
            self._limits.wait_behind(job)

    def _write(self, updates: list[rows.Params], entries: list[rows.Params]) -> None:
        self._db.executemany(self._sql.update_job, updates)
        self._db.executemany(self._sql.add_entry, entries)
        self._write_places()

    def _write_places(self) -> None:
        if self._places:
            self._db.executemany(self._sql.place_behind, self._places)
            self._places.clear()


def ids_of(ids: Iterable[str]) -> str:
    """Ids, or other names, as a statement takes them."""
    return _json(list(dict.fromkeys(ids))).decode()
