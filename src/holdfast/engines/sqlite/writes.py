"""What each act does to the database, inside a transaction that holds the write lock. Must not begin or commit.

Under `begin immediate` nobody else can write, so an act reads first, compares in Python (`lifecycle.refusal`, the same
words as in every engine) and then writes in bulk. An act that finds an error has written nothing yet.
"""

from collections import ChainMap, Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from msgspec.structs import asdict

from holdfast.core.errors import Duplicate, KeyConflict, LeaseLost
from holdfast.core.fairness import TURN_KEPT_MS
from holdfast.core.lifecycle import applied, refusal, submit_entry
from holdfast.core.model import (
    OUTRUN,
    Admission,
    Applied,
    Ask,
    Change,
    Conflict,
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
from holdfast.core.moves import MOVED, HeldKey, Whole, check_marked, check_unmarked
from holdfast.core.shared_limits import (
    BUCKET,
    BUCKET_KEPT_MS,
    LIMIT,
    awaited_key,
    changed_by,
    frees_permits,
)
from holdfast.core.summaries import is_step
from holdfast.engines.permits import Permits
from holdfast.engines.refusals import (
    ask_refusal,
    awaited_groups,
    children_are_in,
    holds,
    key_taken,
    lease_over,
    step_refusal,
)
from holdfast.engines.rows import head_of, step_of, steps_apart
from holdfast.engines.sqlite import rows
from holdfast.engines.sqlite.fair_claims import FairClaims
from holdfast.engines.sqlite.job_writes import ids_of
from holdfast.engines.topics import job_topic, loser_of, queue_topic, worker_topic
from holdfast.engines.wakeups import EVERYTHING

PAST_ALL_STEPS = (1 << 63) - 1
"""No step has a higher number."""


class Writes(FairClaims):
    """The acts of one transaction. `news` collects the topics to wake once it is durable."""

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
        self._names.read(job for jobs, _ in orders for job in jobs)
        answers: list[list[Inserted] | Exception] = []
        fresh: list[Job] = []
        names: dict[str, Job] = {}
        for jobs, parent in orders:
            try:
                answer, new = self._sift(jobs, parent, known, names)
            except (Duplicate, KeyConflict, LeaseLost) as error:
                answers.append(error)
                continue
            known.update(job.id for job in new)
            names.update({job.options.unique.key: job for job in new if job.options.unique is not None})
            fresh += new
            answers.append(answer)
        self._add(fresh)
        self._write_places()
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

    def _sift(
        self, jobs: Sequence[Job], parent: Lease | None, known: set[str], names: dict[str, Job]
    ) -> tuple[list[Inserted], list[Job]]:
        """Return which of one caller's jobs are new. Takes their keys, after everything has been checked.

        `names` are the unique names that others take in this transaction.
        """
        if parent is not None and not holds(self._head(parent.job), parent.epoch):
            raise lease_over(parent)
        answer: list[Inserted] = []
        new: dict[str, Job] = {}
        keys: dict[tuple[str, str], Job] = {}
        taken = ChainMap({}, names)
        for job in jobs:
            if job.id in known or job.id in new:
                answer.append(Inserted(job.id, False))
                continue
            if job.options.unique is not None and (existing := self._names.existing(job, taken)) is not None:
                answer.append(existing)
                continue
            holder = None if job.key is None else self._key_holder(job, keys)
            if holder is None:
                new[job.id] = job
            answer.append(Inserted(holder or job.id, holder is None))
        for (type, key), job in keys.items():
            self._db.execute(self._sql.set_key, rows.key_params(type, key, job.id, job.digest, job.key_until))
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
        """Write new jobs, each with its first entry; return their numbers. The caller writes their places."""
        if not jobs:
            return {}
        (n,) = self._db.execute(self._sql.next_job).fetchone()
        params = [rows.job_params(job, n + index) for index, job in enumerate(jobs)]
        self._db.executemany(self._sql.add_job, params)
        self._db.executemany(self._sql.add_body, params)
        self._db.executemany(
            self._sql.add_entry, [rows.entry_params(submit_entry(job), n + index) for index, job in enumerate(jobs)]
        )
        self._names.take(jobs)
        families: Counter[tuple[str, str]] = Counter()
        for index, job in enumerate(jobs):
            self._tally[job.queue, job.state] += 1
            if job.run_at is not None:
                self.news.add(queue_topic(job.queue))
            if awaited_key(job) is not None:
                self._place(job, n + index)
            if job.parent is not None:
                families[job.parent, job.group or ""] += 1
        for (parent, name), more in families.items():
            self._db.execute(self._sql.grow_family, {"parent": parent, "name": name, "more": more})
        return {job.id: n + index for index, job in enumerate(jobs)}

    # commit

    def commit(self, changes: Sequence[Change]) -> list[Applied | Conflict]:
        """Apply changes."""
        heads = self._heads(change.job.id for change in changes)
        updates: list[rows.Params] = []
        entries: list[rows.Params] = []
        answers: list[Applied | Conflict] = []
        ended: dict[str, Time] = {}
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
            if frees_permits(change):
                ended[job.id] = change.at
            missing = self._arrive(job) if change.arrives and not head.arrived else None
            answers.append(Applied(job.version, missing))
        self._write(updates, entries)
        for id, at in ended.items():
            Permits(self._limits, at).end(id)
        return answers

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

    # admit

    def admit(
        self, orders: Sequence[tuple[Sequence[Ask], Sequence[Step]]], now: Time
    ) -> list[tuple[list[Admission | Conflict], list[Recorded | Conflict]]]:
        """Record steps, and give others their permits, for many callers at once."""
        check_unmarked(self.mark() or "")
        recorded = iter(self.record([step for _, steps in orders for step in steps]))
        heads = self._heads(ask.job for asks, _ in orders for ask in asks)
        permits = Permits(self._limits, now)
        answers = [
            (
                [ask_refusal(heads.get(ask.job), ask) or permits.admit(ask) for ask in asks],
                list(islice(recorded, len(steps))),
            )
            for asks, steps in orders
        ]
        permits.finish()
        return answers

    # prune, put_record

    def prune(self, limit: int, now: Time) -> int:
        """Remove jobs that needn't be kept any longer."""
        old = self._db.execute(self._sql.old, {"now": now, "limit": limit}).fetchall()
        gone: list[dict[str, Any]] = []
        for n, id, queue, state, type, key, name in old:
            gone.append({"n": n, "id": id, "type": type, "key": key, "name": name, "state": state, "now": now})
            self._tally[queue, State(state)] -= 1
        for statement in (
            self._sql.forget_job,
            self._sql.forget_body,
            self._sql.forget_entries,
            self._sql.forget_steps,
            self._sql.forget_summary,
            self._sql.forget_families,
            self._sql.forget_permits,
            self._sql.forget_key,
        ):
            self._db.executemany(statement, gone)
        self._names.bury(gone)
        self._db.execute(self._sql.forget_over_keys, {"now": now})
        if gone:
            self._limits.forget_budgets(one["id"] for one in gone)
        self._limits.drop_full_buckets(now - BUCKET_KEPT_MS, now)
        self._limits.find_waiting()
        self._db.execute(self._sql.forget_turns, {"before": now - TURN_KEPT_MS})
        return len(gone)

    def empty(self, now: Time) -> None:
        """Remove all jobs with everything that belongs to them."""
        for statement in (
            self._sql.empty_jobs,
            self._sql.empty_bodies,
            self._sql.empty_entries,
            self._sql.empty_steps,
            self._sql.empty_summaries,
            self._sql.empty_families,
            self._sql.empty_permits,
            self._sql.empty_waiting,
            self._sql.empty_keys,
            self._sql.empty_tally,
        ):
            self._db.execute(statement)

    def put_record(
        self, name: str, value: str | None, expected: int | None, jobs: Sequence[Job], now: Time
    ) -> Record | Conflict:
        """Write or remove a record, and insert jobs."""
        row = self._db.execute(self._sql.record, {"name": name}).fetchone()
        old, version = (None, 0) if row is None else row
        held = 0 if old is None else version
        if expected is not None and expected != held:
            return Conflict(name, OUTRUN, version=held)
        new = Record(name, value or "", version + 1, now)
        self._db.execute(self._sql.put_record, {"name": name, "value": value, "version": version + 1, "at": now})
        self.news.add(EVERYTHING)
        if name.startswith((LIMIT, BUCKET)):
            self._limits.recheck_limit(changed_by(name))
        if jobs:
            known = self._known(job.id for job in jobs)
            self._add([job for job in jobs if job.id not in known])
            self._write_places()
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
            if awaited_key(whole.job) is not None:
                self._place(whole.job, index)
        self._write_places()
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
        return {row[0] for row in self._db.execute(self._sql.known_ids, {"ids": ids_of(ids)})}

    def _heads(self, ids: Iterable[str]) -> dict[str, Head]:
        return {row[0]: head_of(row) for row in self._db.execute(self._sql.heads, {"ids": ids_of(ids)})}

    def _head(self, id: str) -> Head | None:
        return self._heads([id]).get(id)


def is_lone(jobs: Sequence[Job], parent: Lease | None) -> bool:
    """Whether this is one new job that needs no further lookup: most submits are."""
    if len(jobs) != 1 or parent is not None:
        return False
    job = jobs[0]
    if job.key is not None or job.parent is not None or job.options.unique is not None:
        return False
    return awaited_key(job) is None and not job.options.fair and rows.is_untouched(job)
