"""The rows of shared limits in SQLite: permits, buckets, and in which queues jobs wait behind a key.

Must not decide who gets a permit (`permits`), and must not begin or commit.
"""

import sqlite3
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice
from types import SimpleNamespace

import msgspec
from msgspec.structs import asdict

from holdfast.core.budgets import budget_records
from holdfast.core.model import PAGE_LIMIT, Job, State, Time, Usage
from holdfast.core.shared_limits import (
    BUCKET,
    BUDGET,
    LIMIT,
    NO_LIMIT,
    Bucket,
    Settings,
    awaited_key,
    bucket_of,
    limit_of,
    settings_of,
)
from holdfast.engines.permits import (
    RECHECK_LIMIT,
    Block,
    Permit,
    PermitRows,
    Permits,
    is_forgettable,
    usage_of,
)
from holdfast.engines.sql import beyond
from holdfast.engines.sqlite.rows import Params
from holdfast.engines.topics import limit_topic, queue_topic

_json = msgspec.json.Encoder().encode


class LimitRows(PermitRows):
    """The rows of limits, in one transaction. `news` collects the topics to wake."""

    def __init__(self, connection: sqlite3.Connection, sql: SimpleNamespace, news: set[str]) -> None:
        self._db = connection
        self._sql = sql
        self._news = news
        self._notes: dict[tuple[str, str], Time | None] = {}
        """What `look_at` has noted, by key and queue: thousands of new jobs may wait behind one key."""
        self._rechecks: dict[str, Time] = {}
        """What `recheck` has noted, by key: many permits of one key may end together."""
        self._settings: dict[str, Settings] = {}

    # Jobs that wait.

    def wait_behind(self, job: Job) -> None:
        """Note that a job waits for a permit from now on."""
        key = awaited_key(job)
        assert key is not None, "it awaits a permit"
        self.look_at(job.queue, key, job.run_at if job.state is State.AVAILABLE else job.created_at)

    def look_at(self, queue: str, key: str, at: Time | None) -> None:
        """Note that jobs wait behind a key, and that claims look at it from this time on, or sooner if they would."""
        known = self._notes.get((key, queue))
        self._notes[key, queue] = at if known is None or (at is not None and at < known) else known
        self._news.add(queue_topic(queue))

    def write_notes(self) -> None:
        """Write what was noted."""
        if self._notes:
            notes = [{"key": key, "queue": queue, "at": at} for (key, queue), at in self._notes.items()]
            self._notes.clear()
            self._db.executemany(self._sql.look_at, notes)
        if self._rechecks:
            for key, at in self._rechecks.items():
                if limit_of(key) == BUDGET:
                    queues = self._db.execute(self._sql.recheck_budget, {**_keys_of(key), "at": at}).fetchall()
                else:
                    queues = self._db.execute(self._sql.recheck, {"key": key, "at": at}).fetchall()
                self._news.update(queue_topic(queue) for (queue,) in queues)
            self._rechecks.clear()

    def find_waiting(self) -> None:
        """Note every key behind which jobs are available, also those that another program forgot to note."""
        self._db.execute(self._sql.find_waiting)

    # What a claim looks at.

    def keys_to_look_at(self, queue: str, now: Time) -> dict[str, bool]:
        """The keys that a claim of a queue must look at, and whether jobs are parked behind them."""
        self.write_notes()
        asked = {"queue": queue, "now": now, "limit": RECHECK_LIMIT}
        return {key: bool(is_parked) for key, is_parked in self._db.execute(self._sql.keys_to_look_at, asked)}

    def firsts(self, queue: str, keys: Collection[str], now: Time) -> list[tuple[str, str, int, Time, int]]:
        """The first job of each type behind each of these keys: key, type, priority, run_at, number."""
        asked = {"queue": queue, "keys": _texts(keys), "now": now}
        return self._db.execute(self._sql.waiting_firsts, asked).fetchall()

    def look_again(
        self, queue: str, keys: Collection[str], blocks: dict[str, Time | None], permits: Permits, now: Time
    ) -> None:
        """After a claim has looked at some keys: let the next one look at each when there may be room for somebody.

        `blocks` are those without room, with the time when they may have some. A key that has room, but for jobs that
        this claim doesn't take, goes to the end of the line, and wakes nobody.
        """
        self.write_notes()
        asked = {"queue": queue, "keys": _texts(keys)}
        waited_for = {key for (key,) in self._db.execute(self._sql.waited_for, asked)}
        notes: list[Params] = []
        for key in waited_for:
            block = Block(key, blocks[key]) if key in blocks else permits.has_room(key)
            at = now if block is None else permits.look_time(block)
            notes.append({"queue": queue, "key": key, "at": at, "stands": int(block is None)})
            if block is not None and at is not None:
                self._news.add(queue_topic(queue))
        self._db.executemany(self._sql.look_again, notes)
        gone = [{"queue": queue, "key": key} for key in keys if key not in waited_for]
        self._db.executemany(self._sql.forget_waiting, gone)

    # See PermitRows.

    def recheck(self, key: str, at: Time) -> None:
        """See PermitRows."""
        self._rechecks[key] = min(at, self._rechecks.get(key, at))
        self._news.add(limit_topic(key))

    def recheck_limit(self, limit: str) -> None:
        """Let claims look at every key of a limit: its settings have changed. Whoever writes them wakes everybody."""
        self._settings.clear()
        self.write_notes()
        self._db.execute(self._sql.recheck_limit, _keys_of(limit))

    def settings(self, limit: str) -> Settings:
        """See PermitRows."""
        if limit not in self._settings:
            text = self._record(LIMIT + limit)
            self._settings[limit] = NO_LIMIT if text is None else settings_of(text)
        return self._settings[limit]

    def bucket(self, key: str) -> Bucket | None:
        """See PermitRows."""
        text = self._record(BUCKET + key)
        return None if text is None else bucket_of(text)

    def put_bucket(self, key: str, bucket: Bucket, now: Time) -> None:
        """See PermitRows."""
        self._db.execute(self._sql.put_bucket, {"name": BUCKET + key, "value": bucket.text(), "at": now})

    def count_permits(self, key: str) -> int:
        """See PermitRows."""
        return int(self._db.execute(self._sql.count_permits, {"key": key}).fetchone()[0])

    def stale_permits(self, key: str, now: Time) -> Sequence[Permit]:
        """See PermitRows."""
        return [Permit(*row) for row in self._db.execute(self._sql.stale_permits, {"key": key, "now": now})]

    def count_reserved(self, key: str, now: Time) -> int:
        """See PermitRows."""
        (found,) = self._db.execute(self._sql.count_reserved, {"key": key, "now": now}).fetchone()
        return int(found)

    def next_end(self, key: str) -> Time | None:
        """See PermitRows."""
        (until,) = self._db.execute(self._sql.next_end, {"key": key}).fetchone()
        return None if until is None else int(until)

    def permits_of(self, job: str) -> Sequence[Permit]:
        """See PermitRows."""
        return [Permit(*row) for row in self._db.execute(self._sql.permits_of, {"job": job})]

    def put_permits(self, permits: Sequence[Permit]) -> None:
        """See PermitRows."""
        if permits:
            self._db.executemany(self._sql.put_permit, [asdict(one) for one in permits])

    def drop_permits(self, permits: Sequence[Permit]) -> None:
        """See PermitRows."""
        if permits:
            self._db.executemany(self._sql.drop_permit, [asdict(one) for one in permits])

    # Looking, and forgetting.

    def usage(self, limit: str, now: Time) -> list[Usage]:
        """How much of each key of a limit is used, in the order of the keys."""
        return list(islice(self._usages(limit, now), PAGE_LIMIT))

    def _usages(self, limit: str, now: Time) -> Iterator[Usage]:
        for (key,) in self._db.execute(self._sql.used_keys, _keys_of(limit)):
            (waiting,) = self._db.execute(self._sql.count_waiting, {"key": key}).fetchone()
            if (used := usage_of(key, self, waiting, now)) is not None:
                yield used

    def drop_full_buckets(self, before: Time, now: Time) -> None:
        """Forget the buckets that are full, open and unused since then."""
        for name, text in self._db.execute(self._sql.old_buckets, {"before": before}).fetchall():
            settings = self.settings(limit_of(name.removeprefix(BUCKET)))
            if is_forgettable(bucket_of(text), settings, before, now):
                self._db.execute(self._sql.forget_record, {"name": name})

    def forget_budgets(self, jobs: Iterable[str]) -> None:
        """Forget the budgets of jobs that are removed. Nothing is looked for where no job ever had a budget."""
        if self._record(LIMIT + BUDGET) is not None:
            names = [{"name": name} for job in jobs for name in budget_records(job)]
            self._db.executemany(self._sql.forget_record, names)

    def _record(self, name: str) -> str | None:
        row = self._db.execute(self._sql.record, {"name": name}).fetchone()
        return None if row is None else row[0]


def _texts(texts: Iterable[str]) -> str:
    return _json(list(texts)).decode()


def _keys_of(limit: str) -> Params:
    """The bounds of a limit's keys."""
    return {"limit": limit, "first": limit + "/", "beyond": beyond(limit + "/")}
