"""What each act does to the database, inside a transaction that holds the write lock. Must not begin or commit.

Under `begin immediate` nobody else can write, so an act reads first, compares in Python (`lifecycle.refusal`, the same
words as in every engine) and then writes in bulk. An act that finds an error has written nothing yet.
"""

import sqlite3
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from heapq import merge
from itertools import chain, islice
from types import SimpleNamespace
from typing import Any

import msgspec
from msgspec.structs import asdict

from holdfast.core.errors import KeyConflict, LeaseLost
from holdfast.core.lifecycle import applied, decide, entry_of, refusal, submit_entry
from holdfast.core.model import (
    OUTRUN,
    Applied,
    Change,
    Conflict,
    Event,
    Head,
    Inserted,
    Job,
    Lease,
    Record,
    Recorded,
    State,
    Step,
    Time,
)
from holdfast.core.moves import MOVED, HeldKey, Whole, check_marked
from holdfast.core.summaries import is_step
from holdfast.engines.contract import PROMOTE_LIMIT
from holdfast.engines.records import PAUSE
from holdfast.engines.refusals import awaited_groups, children_are_in, holds, key_taken, lease_over, step_refusal
from holdfast.engines.rows import Row, head_of, job_of, step_of, steps_apart
from holdfast.engines.sqlite import rows
from holdfast.engines.sqlite.counting import Counting
from holdfast.engines.topics import job_topic, loser_of, queue_topic, worker_topic
from holdfast.engines.wakeups import EVERYTHING

PAST_ALL_STEPS = (1 << 63) - 1
"""No step has a higher number."""

_json = msgspec.json.Encoder().encode


class Writes:
    """The acts of one transaction. `news` collects the topics to wake once it is durable."""

    def __init__(self, connection: sqlite3.Connection, sql: SimpleNamespace) -> None:
        self._db = connection
        self._sql = sql
        self._tally: Counter[tuple[str, State]] = Counter()
        self._counting = Counting(connection, sql)
        self.news: set[str] = set()

    def finish(self) -> None:
        """Write the counters, once for the whole transaction."""
        moved = [{"queue": queue, "state": state.value, "more": n} for (queue, state), n in self._tally.items() if n]
        if moved:
            self._db.executemany(self._sql.add_tally, moved)
        self._counting.write()

    def mark(self) -> str | None:
        """Return the content of the mark of a move, if this store has one."""
        row = self._db.execute(self._sql.record, {"name": MOVED}).fetchone()
        return None if row is None else row[0]

    # insert

    def insert(self, orders: Sequence[tuple[Sequence[Job], Lease | None]]) -> list[list[Inserted] | Exception]:
        """Insert for many callers at once: each order is all or none by itself."""
        if len(orders) == 1 and is_lone(*orders[0]):
            return [self._insert_lone(orders[0][0][0])]
        known = self._known(job.id for jobs, _ in orders for job in jobs)
        answers: list[list[Inserted] | Exception] = []
        fresh: list[Job] = []
        for jobs, parent in orders:
            try:
                answer, new = self._sift(jobs, parent, known)
            except (KeyConflict, LeaseLost) as error:
                answers.append(error)
                continue
            known.update(job.id for job in new)
            fresh += new
            answers.append(answer)
        self._add(fresh)
        return answers

    def _insert_lone(self, job: Job) -> list[Inserted]:
        """Insert one job without key and parent. The database itself finds out whether it is new."""
        added = self._db.execute(self._sql.add_lone_job, rows.lone_params(job))
        if not added.rowcount:
            return [Inserted(job.id, False)]
        n = added.lastrowid
        assert n is not None
        self._db.execute(self._sql.add_body, rows.body_params(job, n))
        self._db.execute(self._sql.add_entry, rows.entry_params(submit_entry(job), n))
        self._tally[job.queue, job.state] += 1
        if job.run_at is not None:
            self.news.add(queue_topic(job.queue))
        return [Inserted(job.id, True)]

    def _sift(self, jobs: Sequence[Job], parent: Lease | None, known: set[str]) -> tuple[list[Inserted], list[Job]]:
        """Return which of one caller's jobs are new. Takes their keys, after everything has been checked."""
        if parent is not None and not holds(self._head(parent.job), parent.epoch):
            raise lease_over(parent)
        answer: list[Inserted] = []
        new: dict[str, Job] = {}
        keys: dict[tuple[str, str], Job] = {}
        for job in jobs:
            if job.id in known or job.id in new:
                answer.append(Inserted(job.id, False))
                continue
            holder = None if job.key is None else self._key_holder(job, keys)
            if holder is None:
                new[job.id] = job
            answer.append(Inserted(holder or job.id, holder is None))
        for (type, key), job in keys.items():
            taken = {"type": type, "key": key, "job": job.id, "digest": job.digest, "until": job.key_until}
            self._db.execute(self._sql.set_key, taken)
        return answer, list(new.values())

    def _key_holder(self, job: Job, keys: dict[tuple[str, str], Job]) -> str | None:
        """Return the job that already has this job's key, or None if this job now has it."""
        assert job.key is not None
        name = (job.type, job.key)
        if name in keys:
            holder, digest = keys[name].id, keys[name].digest
        else:
            row = self._db.execute(self._sql.key, {"type": job.type, "key": job.key}).fetchone()
            if row is None or (row[2] is not None and row[2] <= job.created_at):
                keys[name] = job
                return None
            holder, digest = row[0], row[1]
        if digest != job.digest:
            raise key_taken(job, holder)
        return holder

    def _add(self, jobs: Sequence[Job]) -> dict[str, int]:
        """Write new jobs, each with its first entry; return their numbers."""
        if not jobs:
            return {}
        (n,) = self._db.execute(self._sql.next_job).fetchone()
        params = [rows.job_params(job, n + index) for index, job in enumerate(jobs)]
        self._db.executemany(self._sql.add_job, params)
        self._db.executemany(self._sql.add_body, params)
        self._db.executemany(
            self._sql.add_entry, [rows.entry_params(submit_entry(job), n + index) for index, job in enumerate(jobs)]
        )
        families: Counter[tuple[str, str]] = Counter()
        for job in jobs:
            self._tally[job.queue, job.state] += 1
            if job.run_at is not None:
                self.news.add(queue_topic(job.queue))
            if job.parent is not None:
                families[job.parent, job.group or ""] += 1
        for (parent, name), more in families.items():
            self._db.execute(self._sql.grow_family, {"parent": parent, "name": name, "more": more})
        return {job.id: n + index for index, job in enumerate(jobs)}

    # claim

    def claim(
        self, worker: str, queues: Sequence[str], limit: int, types: Collection[str] | None, now: Time
    ) -> list[Job]:
        """Promote due jobs, then take jobs."""
        paused = {row[0] for row in self._db.execute(self._sql.records, {"prefix": PAUSE})}
        claimed: list[Job] = []
        for queue in queues:
            if PAUSE + queue in paused:
                continue
            self._promote(queue, now)
            ready = self._ready(queue, types, limit - len(claimed), now)
            claimed += self._take(ready, now, by=worker)
            if len(claimed) == limit:
                break
        return claimed

    def _promote(self, queue: str, now: Time) -> None:
        """Make due jobs available. Reads and writes only what such a change needs, because there may be thousands."""
        due = {"queue": queue, "now": now, "limit": PROMOTE_LIMIT}
        updates: list[rows.Params] = []
        entries: list[rows.Params] = []
        for n, id, state, version, epoch, run_at in self._db.execute(self._sql.due, due).fetchall():
            head = rows.due_job(id, queue, state, version, epoch, run_at)
            change = decide(head, _DUE_EVENT[head.state], now, by="time")
            updates.append(
                {"n": n, "state": change.job.state.value, "version": version + 1, "run_at": change.job.run_at}
            )
            entries.append(rows.entry_params(entry_of(change, version + 1), n))
            self._tally[queue, head.state] -= 1
            self._tally[queue, change.job.state] += 1
            self.news.add(job_topic(id))
        if updates:
            self.news.add(queue_topic(queue))
            self._db.executemany(self._sql.promote, updates)
            self._db.executemany(self._sql.add_entry, entries)

    def _ready(self, queue: str, types: Collection[str] | None, limit: int, now: Time) -> list[Row]:
        """Yield claimable jobs, merged from all types; each type is read only as far as needed."""
        asked: rows.Params = {"queue": queue, "now": now, "limit": limit}
        if types is None:
            there = self._db.execute(self._sql.ready_types, {"queue": queue, "limit": -1}).fetchall()
        else:
            there = self._db.execute(self._sql.ready_among, {"queue": queue, "types": _ids(types)}).fetchall()
        # Each gets a different text, and so its own statement: a statement that is being read would be prepared again.
        walks: list[Iterator[Row]] = [
            self._db.execute(self._sql.ready + " " * index, {**asked, "type": type})
            for index, (type,) in enumerate(there)
        ]
        return list(islice(merge(*walks, key=_turn_of), limit) if len(walks) > 1 else chain(*walks))

    def _take(self, ready: Sequence[Row], now: Time, by: str) -> list[Job]:
        """available → active. Nobody could change these jobs since they were read, so none is refused."""
        jobs: list[Job] = []
        updates: list[rows.Params] = []
        entries: list[rows.Params] = []
        for row in ready:
            head = job_of(row)
            change = decide(head, Event.CLAIM, now, by=by)
            job = applied(head, change)
            self._note(change, job, row[0], head.state, updates, entries)
            jobs.append(job)
        self._write(updates, entries)
        return jobs

    # commit

    def commit(self, changes: Sequence[Change]) -> list[Applied | Conflict]:
        """Apply changes."""
        heads = self._heads(change.job.id for change in changes)
        updates: list[rows.Params] = []
        entries: list[rows.Params] = []
        answers: list[Applied | Conflict] = []
        for change in changes:
            head = heads.get(change.job.id)
            conflict = refusal(head, change)
            if conflict is None and head is not None and not all(self._missing(head.id, change)):
                conflict = children_are_in(head)
            if conflict is not None:
                answers.append(conflict)
                continue
            assert head is not None
            job = applied(head, change)
            self._note(change, job, head.n, head.state, updates, entries)
            if (loser := loser_of(head.worker, change)) is not None:
                self.news.add(worker_topic(loser))
            heads[job.id] = Head(job.id, job.state, job.version, job.epoch, job.inbox, job.arrived, job.worker, head.n)
            if change.steps or change.drops or change.drops_failed or change.edits or change.inserts:
                self._carry(change, head.n, heads)
            missing = self._arrive(job) if change.arrives and not head.arrived else None
            answers.append(Applied(job.version, missing))
        self._write(updates, entries)
        return answers

    def _note(
        self,
        change: Change,
        job: Job,
        n: int,
        before: State,
        updates: list[rows.Params],
        entries: list[rows.Params],
    ) -> None:
        """Prepare the two rows of a change, its counters, and whom to notify."""
        updates.append(rows.job_params(job, n))
        entries.append(rows.entry_params(entry_of(change, job.version), n))
        self._tally[job.queue, before] -= 1
        self._tally[job.queue, job.state] += 1
        self.news.add(job_topic(job.id))
        if job.state is State.AVAILABLE or (job.state in _DUE_EVENT and job.run_at is not None):
            self.news.add(queue_topic(job.queue))

    def _write(self, updates: list[rows.Params], entries: list[rows.Params]) -> None:
        self._db.executemany(self._sql.update_job, updates)
        self._db.executemany(self._sql.add_entry, entries)

    def _missing(self, parent: str, change: Change) -> Iterator[int]:
        """Return how many children are missing in each group that a change waits for."""
        for group in awaited_groups(change):
            yield self._db.execute(self._sql.missing, {"parent": parent, "name": group}).fetchone()[0]

    def _carry(self, change: Change, n: int, heads: dict[str, Head]) -> None:
        """Write the cargo of a change: dropped and new step records, edited arguments, new jobs."""
        if change.drops_failed:
            self._drop(change, n, self._sql.drop_failed)
        for path in change.drops:
            self._drop(change, n, self._sql.drop_step, path)
        for step in change.steps:
            fence = self._counting.highest() if is_step(step.path) else 0
            written = self._db.execute(self._sql.set_step, rows.step_params(step, n)).fetchall()
            self._counting.add([(change.job.id, *one) for one in written], fence)
        if change.edits:
            self._db.execute(self._sql.edit_body, rows.job_params(change.job, n))
        if change.inserts:
            known = self._known(job.id for job in change.inserts)
            new: dict[str, Job] = {}
            for job in change.inserts:
                if job.id not in known:
                    new.setdefault(job.id, job)
            for id, number in self._add(list(new.values())).items():
                heads[id] = Head(id, new[id].state, 1, new[id].epoch, n=number)

    def _drop(self, change: Change, n: int, statement: str, path: str = "") -> None:
        dropped = self._db.execute(statement, {"n": n, "path": path}).fetchall()
        self._counting.drop([(change.job.id, *one) for one in dropped], n)

    def _arrive(self, child: Job) -> int:
        row = self._db.execute(self._sql.arrive, {"parent": child.parent, "name": child.group or ""}).fetchone()
        self.news.add(job_topic(child.parent or ""))
        return 0 if row is None else int(row[0])

    # record

    def record(self, steps: Sequence[Step]) -> list[Recorded | Conflict]:
        """Record steps. One statement for all; if a step was refused, look up why."""
        answers: list[Recorded | Conflict] = []
        for group in steps_apart(steps):
            given = {"steps": rows.step_rows(group)}
            added = self._db.execute(self._sql.add_steps, given)
            written = added.rowcount
            if written == len(group):
                self._counting.add_new(group, added.lastrowid or 0)
            else:
                written += self._replace(given, (added.lastrowid or 0) - written if written else PAST_ALL_STEPS)
            whole = written == len(group)
            answers += [Recorded(step, True) if whole else self._standing(step) for step in group]
        return answers

    def _replace(self, given: dict[str, Any], fence: int) -> int:
        """Replace started steps, if not all steps were new; return how many were replaced. The fence is the highest
        step number before.
        """
        if fence != PAST_ALL_STEPS:
            self._counting.add(self._db.execute(self._sql.steps_since, {"fence": fence}).fetchall(), fence)
        replaced = self._db.execute(self._sql.replace_steps, {**given, "fence": fence}).fetchall()
        self._counting.add(replaced, fence)
        return len(replaced)

    def _standing(self, step: Step) -> Recorded | Conflict:
        answer = self.standing(step)
        assert answer is not None, "it was either refused or written"
        return answer

    def standing(self, step: Step) -> Recorded | Conflict | None:
        """Return why a step can't be recorded: a lease that isn't current, or an existing record."""
        if (refused := step_refusal(self._head(step.job), step)) is not None:
            return refused
        row = self._db.execute(self._sql.step, {"job": step.job, "path": step.path}).fetchone()
        if row is None:
            return None
        standing = step_of(row)
        return Recorded(standing, standing == step)

    # prune, put_record

    def prune(self, limit: int, now: Time) -> int:
        """Remove jobs that needn't be kept any longer."""
        old = self._db.execute(self._sql.old, {"now": now, "limit": limit}).fetchall()
        gone: list[dict[str, Any]] = []
        for n, id, queue, state, type, key in old:
            gone.append({"n": n, "id": id, "type": type, "key": key, "now": now})
            self._tally[queue, State(state)] -= 1
        for statement in (
            self._sql.forget_job,
            self._sql.forget_body,
            self._sql.forget_entries,
            self._sql.forget_steps,
            self._sql.forget_summary,
            self._sql.forget_families,
            self._sql.forget_key,
        ):
            self._db.executemany(statement, gone)
        self._db.execute(self._sql.forget_over_keys, {"now": now})
        return len(gone)

    def put_record(self, name: str, value: str | None, expected: int | None, now: Time) -> Record | Conflict:
        """Write or remove a record."""
        row = self._db.execute(self._sql.record, {"name": name}).fetchone()
        old, version = (None, 0) if row is None else row
        held = 0 if old is None else version
        if expected is not None and expected != held:
            return Conflict(name, OUTRUN, version=held)
        new = Record(name, value or "", version + 1, now)
        self._db.execute(self._sql.put_record, {"name": name, "value": value, "version": version + 1, "at": now})
        self.news.add(EVERYTHING)
        if name == MOVED:
            self._guard(value is not None)
        return new

    # load

    def load(self, wholes: Sequence[Whole], keys: Sequence[HeldKey], records: Sequence[Record], now: Time) -> int:
        """Load whole jobs, keys and records."""
        check_marked(self.mark())
        self._guard(False)
        known = self._known(whole.job.id for whole in wholes)
        fresh = list({whole.job.id: whole for whole in wholes if whole.job.id not in known}.values())
        (n,) = self._db.execute(self._sql.next_job).fetchone()
        numbered = [(index, whole) for index, whole in enumerate(fresh, n)]
        params = [rows.job_params(whole.job, index) for index, whole in numbered]
        self._db.executemany(self._sql.add_job, params)
        self._db.executemany(self._sql.add_body, params)
        self._db.executemany(
            self._sql.add_entry, (rows.entry_params(one, index) for index, whole in numbered for one in whole.entries)
        )
        self._db.executemany(
            self._sql.load_step, (rows.step_params(one, index) for index, whole in numbered for one in whole.steps)
        )
        for index, whole in numbered:
            if whole.steps:
                self._counting.recount(index)
        families: Counter[tuple[str, str]] = Counter()
        for job in (whole.job for whole in fresh):
            self._tally[job.queue, job.state] += 1
            if job.parent is not None and not job.arrived:
                families[job.parent, job.group or ""] += 1
        for (parent, name), more in families.items():
            self._db.execute(self._sql.grow_family, {"parent": parent, "name": name, "more": more})
        self._db.executemany(self._sql.load_key, [asdict(key) for key in keys])
        self._db.executemany(
            self._sql.load_record, [asdict(record) | {"value": record.value or None} for record in records]
        )
        self._guard(True)
        return len(fresh)

    def _guard(self, stands: bool) -> None:
        """Create or drop the triggers that refuse every write."""
        sql = self._sql
        for statement in (
            (sql.guard_insert, sql.guard_update, sql.guard_delete, sql.guard_step, sql.guard_record)
            if stands
            else (sql.unguard_insert, sql.unguard_update, sql.unguard_delete, sql.unguard_step, sql.unguard_record)
        ):
            self._db.execute(statement)

    # Reads.

    def _known(self, ids: Iterable[str]) -> set[str]:
        return {row[0] for row in self._db.execute(self._sql.known_ids, {"ids": _ids(ids)})}

    def _heads(self, ids: Iterable[str]) -> dict[str, Head]:
        return {row[0]: head_of(row) for row in self._db.execute(self._sql.heads, {"ids": _ids(ids)})}

    def _head(self, id: str) -> Head | None:
        return self._heads([id]).get(id)


def is_lone(jobs: Sequence[Job], parent: Lease | None) -> bool:
    """Whether this is one new job that needs no further lookup: most submits are."""
    if len(jobs) != 1 or parent is not None:
        return False
    job = jobs[0]
    return job.key is None and job.parent is None and rows.is_untouched(job)


_DUE_EVENT = {State.SCHEDULED: Event.PROMOTE, State.RETRYABLE: Event.PROMOTE, State.PENDING: Event.ACTIVATE}


def _turn_of(row: Row) -> tuple[int, int, int]:
    """The order of claims: priority, run_at, order of insertion."""
    return -row[6], row[16], row[0]


def _ids(ids: Iterable[str]) -> str:
    return _json(list(dict.fromkeys(ids))).decode()
