"""Claims: promote what is due, wake jobs whose steps may get a permit, and take jobs in order, with their permits.

Must not begin or commit. Jobs with limits wait behind keys: a claim reads them only if it must look at their key.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from heapq import heappop, heappush, merge
from itertools import chain, islice

from holdfast.core.lifecycle import applied, decide, entry_of
from holdfast.core.model import Event, Job, Time
from holdfast.core.shared_limits import awaits_permit
from holdfast.engines.contract import PROMOTE_LIMIT
from holdfast.engines.permits import RECHECK_LIMIT, Block, Permits
from holdfast.engines.records import PAUSE
from holdfast.engines.rows import Row, job_of
from holdfast.engines.sqlite import rows
from holdfast.engines.sqlite.job_writes import DUE_EVENT, JobWrites, ids_of
from holdfast.engines.topics import job_topic, queue_topic

PASS_LIMIT = 100
"""How many jobs one claim moves from behind one key to another. The next claim continues there."""

LIMIT_KEY = 29
"""Where a whole job has the key behind which it waits."""

Turn = tuple[int, int, int]
"""The order of claims: priority, run_at, order of insertion."""


class Claims(JobWrites):
    """The claims of one transaction."""

    def claim(
        self, worker: str, queues: Collection[str], limit: int, types: Collection[str] | None, now: Time
    ) -> list[Job]:
        """Promote what is due, then take jobs."""
        paused = {row[0] for row in self._db.execute(self._sql.records, {"prefix": PAUSE})}
        claimed: list[Job] = []
        permits = Permits(self._limits, now)
        for queue in queues:
            if PAUSE + queue in paused:
                continue
            self._promote(queue, now)
            keys = self._limits.keys_to_look_at(queue, now)
            asleep = self._wake_parked(queue, keys, permits, now) if keys else {}
            claimed += self._take_from(queue, types, limit - len(claimed), now, keys, asleep, permits, by=worker)
            if len(claimed) == limit:
                break
        permits.finish()
        return claimed

    def _take_from(
        self,
        queue: str,
        types: Collection[str] | None,
        limit: int,
        now: Time,
        keys: dict[str, bool],
        asleep: dict[str, Time | None],
        permits: Permits,
        by: str,
    ) -> list[Job]:
        """Take jobs of one queue. `keys` are those of limits that the claim must look at, and behind those in `asleep`
        jobs are still parked.
        """
        if keys:
            return self._take_with_permits(queue, types, limit, now, keys, asleep, permits, by)
        return self._take(((row[0], job_of(row)) for row in self._ready(queue, types, limit, now)), now, by)

    def _promote(self, queue: str, now: Time) -> None:
        """Make available what is due. Only what such a change touches is read and written: it may be thousands."""
        due = {"queue": queue, "now": now, "limit": PROMOTE_LIMIT}
        updates: list[rows.Params] = []
        entries: list[rows.Params] = []
        for n, id, state, version, epoch, run_at, limit_key in self._db.execute(self._sql.due, due).fetchall():
            head = rows.due_job(id, queue, state, version, epoch, run_at)
            change = decide(head, DUE_EVENT[head.state], now, by="time")
            updates.append(
                {"n": n, "state": change.job.state.value, "version": version + 1, "run_at": change.job.run_at}
            )
            entries.append(rows.entry_params(entry_of(change, version + 1), n))
            self._tally[queue, head.state] -= 1
            self._tally[queue, change.job.state] += 1
            self.news.add(job_topic(id))
            if limit_key is not None:
                self._limits.look_at(queue, limit_key, change.job.run_at)
        if updates:
            self.news.add(queue_topic(queue))
            self._db.executemany(self._sql.promote, updates)
            self._db.executemany(self._sql.add_entry, entries)

    def _ready(self, queue: str, types: Collection[str] | None, limit: int, now: Time) -> list[Row]:
        """What can be claimed without permits: the types side by side, each read only as far as it is needed."""
        walks = self._unlimited(queue, types, limit, now)
        return list(islice(merge(*walks, key=_turn_of), limit) if len(walks) > 1 else chain(*walks))

    def _unlimited(self, queue: str, types: Collection[str] | None, limit: int, now: Time) -> list[Iterator[Row]]:
        if types is None:
            there = self._db.execute(self._sql.unlimited_types, {"queue": queue}).fetchall()
        else:
            there = self._db.execute(self._sql.ready_among, {"queue": queue, "types": ids_of(types)}).fetchall()
        asked: rows.Params = {"queue": queue, "now": now, "limit": limit}
        # Each gets a different text, and so its own statement: a statement that is being read would be prepared again.
        return [
            self._db.execute(self._sql.ready + " " * index, {**asked, "type": type})
            for index, (type,) in enumerate(there)
        ]

    def _take(self, ready: Iterable[tuple[int, Job]], now: Time, by: str) -> list[Job]:
        """available → active. Nobody could change them since they were read: none is refused."""
        jobs: list[Job] = []
        updates: list[rows.Params] = []
        entries: list[rows.Params] = []
        for n, head in ready:
            change = decide(head, Event.CLAIM, now, by=by)
            job = applied(head, change)
            self._note(change, job, n, head.state, updates, entries)
            jobs.append(job)
        self._write(updates, entries)
        return jobs

    # With permits.

    def _take_with_permits(
        self,
        queue: str,
        types: Collection[str] | None,
        limit: int,
        now: Time,
        keys: dict[str, bool],
        asleep: dict[str, Time | None],
        permits: Permits,
        by: str,
    ) -> list[Job]:
        """Take jobs in order: those without limits, and those behind these keys that get all their permits."""
        look = Look(keys, permits, limit, now)
        for walk in self._unlimited(queue, types, limit, now):
            look.add(None, walk)
        for index, (key, type, priority, run_at, n) in enumerate(self._limits.firsts(queue, keys, now)):
            asleep.pop(key, None)
            if types is None or type in types:
                look.add_later(key, (-priority, run_at, n), self._waiting(queue, key, type, now, index))
        look.take()
        return self._settle(queue, look, asleep, permits, now, by)

    def _settle(
        self, queue: str, look: "Look", asleep: dict[str, Time | None], permits: Permits, now: Time, by: str
    ) -> list[Job]:
        """Write what a look has found."""
        for key, at in asleep.items():  # only those who gave up their slots wait there
            look.blocks.setdefault(key, at)
        self._db.executemany(self._sql.move_behind, look.places)
        for key, at in look.notes:
            self._limits.look_at(queue, key, at)
        jobs = self._take(look.taken, now, by)
        self._limits.look_again(queue, look.seen(), look.blocks, permits, now)
        return jobs

    def _waiting(self, queue: str, key: str, type: str, now: Time, index: int) -> Iterator[Row]:
        """The jobs of a type behind a key in order. Nothing is read before the first one is asked for."""
        asked = {"queue": queue, "key": key, "type": type, "now": now}
        yield from self._db.execute(self._sql.ready_behind + " " * index, asked)

    def _wake_parked(self, queue: str, keys: Mapping[str, bool], permits: Permits, now: Time) -> dict[str, Time | None]:
        """Wake jobs whose steps wait for a permit of those keys that have any, while there is room; keep it for them.

        Answers with the keys behind which some stay asleep, and when one of them may be woken.
        """
        asleep: dict[str, Time | None] = {}
        updates: list[rows.Params] = []
        entries: list[rows.Params] = []
        for key in (key for key, is_parked in keys.items() if is_parked):
            asked = {"queue": queue, "key": key, "limit": RECHECK_LIMIT}
            for row in self._db.execute(self._sql.parked, asked).fetchall():
                if (block := permits.room_to_wake(key)) is not None:
                    asleep[key] = block.at
                    break
                job = job_of(row)
                if not awaits_permit(job):  # a program that doesn't know limits has changed it
                    continue
                permits.reserve(key, job)
                change = decide(job, Event.ACTIVATE, now, by="limit")
                self._note(change, applied(job, change), row[0], job.state, updates, entries)
        self._write(updates, entries)
        return asleep


class Look:
    """What one claim finds in a queue: whom it takes, who moves behind another key, and which keys have no room."""

    def __init__(self, keys: Collection[str], permits: Permits, limit: int, now: Time) -> None:
        self._keys = keys
        self._permits = permits
        self._limit = limit
        self._now = now
        self._passed: Counter[str | None] = Counter()
        self._heap: list[tuple[Turn, str | None, Row | None, Iterator[Row]]] = []
        self.taken: list[tuple[int, Job]] = []
        self.places: list[rows.Params] = []
        self.notes: list[tuple[str, Time | None]] = []
        self.blocks: dict[str, Time | None] = {}

    def add(self, key: str | None, walk: Iterator[Row]) -> None:
        """Go through the jobs of a walk, too: those behind a key, or without limits."""
        if key not in self.blocks and (row := next(walk, None)) is not None:
            heappush(self._heap, (_turn_of(row), key, row, walk))

    def add_later(self, key: str, first: Turn, walk: Iterator[Row]) -> None:
        """The same for a walk whose first job is known, and is not read before its turn."""
        heappush(self._heap, (first, key, None, walk))

    def take(self) -> None:
        """Go through the jobs of all walks in the order of claims. Nothing of a job is written meanwhile."""
        while self._heap and len(self.taken) < self._limit:
            turn, key, row, walk = heappop(self._heap)
            if key not in self.blocks:
                self._consider(turn, key, next(walk) if row is None else row)
                self.add(key, walk)

    def seen(self) -> list[str]:
        """The keys that this claim is done with. It has not come to those whose first job is still to come."""
        unseen = {key for _, key, row, _ in self._heap if row is None}
        return [key for key in self._keys if key not in unseen or key in self.blocks]

    def _consider(self, turn: Turn, key: str | None, row: Row) -> None:
        block = self._take_or_move(key, row)
        if block is not None and block.key != key and block.key in self._keys:  # it comes before those that wait there
            heappush(self._heap, (turn, block.key, row, iter(())))

    def _take_or_move(self, key: str | None, row: Row) -> Block | None:
        """Take a job with its permits; or answer with what stops it, and let it wait there."""
        job = job_of(row)
        uses = job.options.limits
        if (block := self._permits.block(uses, job.id)) is None:
            self._permits.start(uses, job.id, job.epoch + 1)
            self.taken.append((row[0], job))
            if (
                uses and row[LIMIT_KEY] != uses[0].key
            ):  # it was moved; when it is available again, it waits in its place
                self.places.append({"n": row[0], "key": uses[0].key})
        elif block.key == key:  # nobody behind this key can start
            self.blocks[key] = block.at
        else:
            self.places.append({"n": row[0], "key": block.key})
            self.notes.append((block.key, self._permits.look_time(block)))
            self._passed[key] += 1
            if key is not None and self._passed[key] == PASS_LIMIT:
                self.blocks[key] = self._now
        return block


def _turn_of(row: Row) -> Turn:
    return -row[6], row[16], row[0]
