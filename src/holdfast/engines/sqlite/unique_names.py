"""The names of unique jobs in a SQLite file, inside a transaction that holds the write lock. Must not begin or commit.

They are kept in the table of keys. `core.unique` decides who counts.
"""

import sqlite3
from collections.abc import Iterable, Mapping, MutableMapping
from types import SimpleNamespace
from typing import Any

from msgspec import json

from holdfast.core.model import Inserted, Job, State, Time
from holdfast.core.unique import UNIQUE, counts, existing_for, stamp, until
from holdfast.engines.sqlite import rows


class UniqueNames:
    """Who has which name."""

    def __init__(self, db: sqlite3.Connection, sql: SimpleNamespace) -> None:
        self._db = db
        self._sql = sql
        self._holders: dict[str, tuple[str, str, Time | None, str | None]] = {}

    def read(self, jobs: Iterable[Job]) -> None:
        """Read who has the names of these jobs, before the first of them is looked at. Once for each insert."""
        names = [job.options.unique.key for job in jobs if job.options.unique is not None]
        self._holders = {}
        if names:
            found = self._db.execute(self._sql.name_holders, {"type": UNIQUE, "names": json.encode(names).decode()})
            self._holders = {row[0]: row[1:] for row in found.fetchall()}

    def existing(self, job: Job, taken: MutableMapping[str, Job]) -> Inserted | None:
        """Return the answer for a unique job if there is one like it; else note in `taken` that it takes its name.

        `taken` are the jobs of this transaction that aren't written yet. Raises Duplicate if the job is to be refused.
        """
        assert job.options.unique is not None
        name = job.options.unique.key
        holder = _if_counts(taken[name], job) if name in taken else self._holder(name, job)
        if holder is not None:
            return existing_for(job, holder)
        taken[name] = job
        return None

    def _holder(self, name: str, job: Job) -> str | None:
        if name not in self._holders:
            return None
        holder, text, end, state = self._holders[name]
        return holder if counts(text, end, None if state is None else State(state), job) else None

    def take(self, jobs: Iterable[Job]) -> None:
        """Give new jobs their names, whoever had them."""
        names = {job.options.unique.key: job for job in jobs if job.options.unique is not None}
        if names:
            held = [rows.key_params(UNIQUE, name, job.id, stamp(job), until(job)) for name, job in names.items()]
            self._db.executemany(self._sql.set_key, held)

    def bury(self, gone: Iterable[Mapping[str, Any]]) -> None:
        """Free the names of pruned jobs. A name whose window is open stays, as a tombstone."""
        names = [{**one, "type": UNIQUE, "key": one["name"]} for one in gone if one["name"] is not None]
        self._db.executemany(self._sql.forget_key, names)
        self._db.executemany(self._sql.bury_name, names)


def _if_counts(holder: Job, job: Job) -> str | None:
    return holder.id if counts(stamp(holder), until(holder), holder.state, job) else None
