"""What each writing act does to the database. Must not connect, and must not decide: `core.lifecycle` does.

Plain changes and new jobs are one statement for all callers, which compares and writes at once. Changes with cargo
(steps, signals, new jobs, an arrival) lock the rows first, compare in Python (`lifecycle.refusal`, the same words as in
every engine), and then write in bulk, all in one transaction.
"""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from types import MappingProxyType, SimpleNamespace
from typing import Any

from asyncpg import UniqueViolationError
from msgspec.structs import astuple

from holdfast.core.errors import Duplicate, KeyConflict, LeaseLost
from holdfast.core.lifecycle import applied, refusal
from holdfast.core.limits import STEP_NAMES
from holdfast.core.model import (
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
)
from holdfast.core.moves import HeldKey, Whole, check_marked
from holdfast.core.shared_limits import awaits_permit
from holdfast.core.unique import existing_for
from holdfast.engines.postgres import rows
from holdfast.engines.postgres.caller import CallersConnection
from holdfast.engines.postgres.counting import Counting, record_crowded
from holdfast.engines.postgres.grouping import (
    Order,
    is_light,
    is_plain,
    jobs_apart,
    one_of_each,
    orders_apart,
    waves,
)
from holdfast.engines.postgres.limits import admit
from holdfast.engines.refusals import (
    awaited_groups,
    children_are_in,
    key_taken,
    lease_lost,
    lease_over,
    step_refusal,
)
from holdfast.engines.rows import Row, head_of, step_of, steps_apart
from holdfast.engines.topics import job_topic, loser_of, queue_topic, worker_topic

FEW = 50
"""Up to this many new jobs, a savepoint isn't worth its two round trips."""

NO_CLAIM: tuple[Any, ...] = ("", [], 0, 0, None, None, None, None)
"""The arguments of `change_jobs` and `complete_jobs` if they must claim nothing."""

Known = dict[str, tuple[str | None, str | None]]
"""Jobs that are not new, by their ids: who has their key, and that job's digest; both empty if the id exists."""

Made = tuple[int, str | None]
"""For a changed job: its new version, and its former owner, if the owner must be notified."""

_DUE = frozenset({State.SCHEDULED, State.RETRYABLE, State.PENDING})


class Writes:
    """Acts on one connection. `news` collects the topics to wake once they are durable.

    `numbers` are those of jobs that were claimed here, by their ids, so that their ends need no lookup.
    """

    def __init__(
        self,
        db: Any,
        sql: SimpleNamespace,
        news: set[str] | None = None,
        numbers: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        self._db = db
        self._sql = sql
        self._numbers = numbers
        self.news: set[str] = set() if news is None else news

    # insert

    async def insert(self, orders: Sequence[Order], answers: dict[int, list[Inserted] | Exception]) -> None:
        """Insert for many callers at once: each order is all or none by itself.

        The answers are filled in as they are written, by index, so that another try skips what is stored.
        """
        plain = [index for index, order in enumerate(orders) if index not in answers and is_plain(order)]
        for group in orders_apart(orders, plain):
            found = await self._add([job for index in group for job in orders[index][0]])
            answers |= {index: _answer(orders[index][0], found) for index in group}
        for index, (jobs, parent) in enumerate(orders):
            if index not in answers:
                try:
                    answers[index] = await self._insert_whole(jobs, parent)
                except (Duplicate, KeyConflict, LeaseLost) as error:
                    answers[index] = error

    async def _insert_whole(self, jobs: Sequence[Job], parent: Lease | None) -> list[Inserted]:
        """Insert one order in its own transaction, rolled back if a lease is over or a key is taken."""
        async with self._db.transaction():
            if parent is not None and await self._db.fetchval(self._sql.hold, parent.job, parent.epoch) is None:
                raise lease_over(parent)
            return await self.insert_within(jobs)

    async def insert_within(self, jobs: Sequence[Job]) -> list[Inserted]:
        """Insert jobs in a transaction that isn't ours: on a refusal, its owner must roll back."""
        answers: list[Inserted] = []
        taken: dict[tuple[str, str], Job] = {}
        for group in jobs_apart(jobs):
            answer = _answer(group, await self._found(group, taken))
            if isinstance(answer, Exception):
                raise answer
            answers += answer
        return answers

    async def add_new(self, jobs: Sequence[Job]) -> None:
        """Write new jobs without keys, in a transaction of the caller's. Those whose ids exist are left as they are."""
        for group in jobs_apart(jobs):
            await self._add(group)

    async def _found(self, jobs: Sequence[Job], taken: dict[tuple[str, str], Job]) -> Known:
        """Like `_add`, for a part of an order whose earlier parts took these keys: within an order a key is unique."""
        bound = [job for job in jobs if job.key is not None and (job.type, job.key) in taken]
        found = await self._add([job for job in jobs if job not in bound])
        if bound:
            known = {row[0] for row in await self._db.fetch(self._sql.heads, [job.id for job in bound])}
            for job in bound:
                holder = taken[job.type, job.key or ""]
                found[job.id] = (None, None) if job.id in known else (holder.id, holder.digest)
        taken.update({(job.type, job.key): job for job in jobs if job.key is not None and job.id not in found})
        return found

    async def _add(self, jobs: Sequence[Job], *, takes_names: bool = False) -> Known:
        """Write new jobs; return those that are not new. With `takes_names`, unique ones take names from anybody."""
        if not jobs or await self._add_alike(jobs):
            return {}
        columns = rows.columns([rows.add_row(job, takes_name=takes_names) for job in jobs], rows.ADD_WIDTH)
        found = {id: (holder, digest) for id, holder, digest in await self._db.fetch(self._sql.add_jobs, *columns)}
        self._note_new([job for job in jobs if job.id not in found])
        return found

    async def _add_alike(self, jobs: Sequence[Job]) -> bool:
        """Write new jobs of one order with a shorter statement; False if they differ too much, or aren't all new."""
        if isinstance(self._db, CallersConnection):  # a failed statement would end the caller's transaction
            return False
        within = self._db.is_in_transaction()
        given = None if within and len(jobs) < FEW else rows.alike(jobs)
        if given is None:
            return False
        try:
            async with self._db.transaction() if within else nullcontext():
                await self._db.execute(self._sql.add_alike, *given)
        except UniqueViolationError:
            return False
        self._note_new(jobs[:1])
        return True

    def _note_new(self, jobs: Sequence[Job]) -> None:
        self.news.update(queue_topic(queue) for queue in {job.queue for job in jobs if job.run_at is not None})

    # commit

    async def commit(self, changes: Sequence[Change], answers: list[Applied | Conflict]) -> None:
        """Apply changes. The answers are added as they are written, so that another try can continue after them."""
        for wave in waves(changes[len(answers) :]):
            if all(is_light(change) for change in wave):
                answers += await self._change(wave)
            else:
                async with self._db.transaction():
                    carried = await self._carry(wave)
                answers += carried

    async def turn(self, changes: Sequence[Change], *claim: Any) -> tuple[list[Applied | Conflict], list[Row]]:
        """Commit and claim, for changes that `is_turn` accepts: one statement for both."""
        given = rows.completions(changes, self._numbers)
        made: dict[str, Made]
        if given is not None:
            first, *claimed = await self._db.fetch(self._sql.complete_jobs, *given, *claim, rows.freeing(changes))
            self.news.update(first[-1] or ())
            if (version := first[-4]) is not None:
                self.news.update([job_topic(change.job.id) for change in changes])
                return [Applied(version)] * len(changes), claimed
            made = {id: (int(version), None) for id, version in zip(*first[-3:-1], strict=True)}
        else:
            changed = [rows.change_row(change, change.job, sets_inbox=False) for change in changes]
            columns = rows.shared_columns(changed, rows.CHANGE_WIDTH)
            first, *claimed = await self._db.fetch(self._sql.change_jobs, *columns, *claim, rows.freeing(changes))
            self.news.update(first[-1] or ())
            made = _made(first)
        return await self._answers(changes, made), claimed

    async def _answers(self, changes: Sequence[Change], made: Mapping[str, Made]) -> list[Applied | Conflict]:
        """Return the answers to changes, given the ids of the jobs that were changed."""
        refused = [change for change in changes if change.job.id not in made]
        why = await self._why(refused) if refused else {}
        answers: list[Applied | Conflict] = []
        for change in changes:
            job = made.get(change.job.id)
            if job is None:
                answers.append(why[change.job.id])
            else:
                version, owner = job
                self._note(change, owner)
                answers.append(Applied(version))
        return answers

    async def _change(self, changes: Sequence[Change]) -> list[Applied | Conflict]:
        """Apply changes without cargo: one statement, and a lookup of those that were refused."""
        answers, _ = await self.turn(changes, *NO_CLAIM)
        return answers

    async def _why(self, changes: Sequence[Change]) -> dict[str, Applied | Conflict]:
        """Return why changes were refused, from what the store has now."""
        answers: dict[str, Applied | Conflict] = {}
        heads = await self._heads(self._sql.heads, changes)
        for change in changes:
            head = heads.get(change.job.id)
            conflict = refusal(head, change)
            if conflict is None:  # it would succeed now, but it was refused: somebody was faster
                assert head is not None
                conflict = lease_lost(head)
            answers[change.job.id] = conflict
        return answers

    async def _carry(self, changes: Sequence[Change]) -> list[Applied | Conflict]:
        """Apply changes with cargo, inside a transaction. No two of them are about the same job."""
        heads = await self._heads(self._sql.lock_heads, changes)
        unlocked = [change for change in changes if change.job.id not in heads]
        if unlocked:
            heads |= await self._heads(self._sql.heads, unlocked)
        answers: list[Applied | Conflict] = []
        going: list[tuple[Change, Head, Job]] = []
        for change in changes:
            head = heads.get(change.job.id)
            conflict = refusal(head, change)
            if conflict is None and head is not None and await self._waits_for_nobody(head.id, change):
                conflict = children_are_in(head)
            if conflict is not None:
                answers.append(conflict)
                continue
            assert head is not None
            job = applied(head, change)
            going.append((change, head, job))
            answers.append(Applied(job.version))
        if not going:
            return answers
        await self._write_cargo(going)
        columns = rows.shared_columns([rows.change_row(change, job, sets_inbox=True) for change, _, job in going], 0)
        freeing = rows.freeing([change for change, _, _ in going])
        (first,) = await self._db.fetch(self._sql.change_jobs, *columns, *NO_CLAIM, freeing)
        self.news.update(first[-1] or ())
        assert len(_made(first)) == len(going), "a row that we hold was changed by somebody else"
        for change, head, _ in going:
            self._note(change, head.worker)
        missing = await self._arrive(going)
        return [
            Applied(answer.version, missing.get(change.job.id)) if isinstance(answer, Applied) else answer
            for change, answer in zip(changes, answers, strict=True)
        ]

    async def _write_cargo(self, going: Sequence[tuple[Change, Head, Job]]) -> None:
        counting = Counting(self._db, self._sql)
        failed = [head.n for change, head, _ in going if change.drops_failed]
        if failed:
            counting.drop(await self._db.fetch(self._sql.drop_failed, failed))
        drops = [(head.n, path) for change, head, _ in going for path in change.drops]
        if drops:
            counting.drop(await self._db.fetch(self._sql.drop_steps, *rows.columns(drops, 2)))
        steps = [(step, head.n) for change, head, _ in going for step in change.steps]
        for group in steps_apart([step for step, _ in steps]):
            numbers = {step.job: n for step, n in steps}
            columns = rows.columns([rows.step_row(step, numbers[step.job]) for step in group], rows.STEP_WIDTH)
            counting.add(await self._db.fetch(self._sql.set_steps, *columns))
        await counting.write()
        edits = [
            (head.n, change.job.args, change.job.digest, rows.options_text(change.job.options))
            for change, head, _ in going
            if change.edits
        ]
        if edits:
            await self._db.execute(self._sql.edit_args, *rows.columns(edits, 4))
        for new in jobs_apart(one_of_each([job for change, _, _ in going for job in change.inserts])):
            await self._add(new, takes_names=True)

    async def _arrive(self, going: Sequence[tuple[Change, Head, Job]]) -> dict[str, int]:
        """Count children as arrived at their parents; return how many are still missing after each."""
        come: dict[tuple[str, str], list[str]] = {}
        for change, head, job in going:
            if change.arrives and not head.arrived:
                come.setdefault((job.parent or "", job.group or ""), []).append(job.id)
        if not come:
            return {}
        columns = rows.columns([(parent, name, len(ids)) for (parent, name), ids in come.items()], 3)
        missing: dict[str, int] = {}
        left = {(row[0], row[1]): row[2] for row in await self._db.fetch(self._sql.arrive, *columns)}
        for family, ids in come.items():
            self.news.add(job_topic(family[0]))
            for index, id in enumerate(reversed(ids)):
                missing[id] = left.get(family, 0) + index if family in left else 0
        return missing

    async def _waits_for_nobody(self, parent: str, change: Change) -> bool:
        """Return whether all children of a group that a change waits for have arrived. Locks the groups to the end."""
        for group in awaited_groups(change):
            if not await self._db.fetchval(self._sql.lock_family, parent, group):
                return True
        return False

    async def _heads(self, statement: str, changes: Sequence[Change]) -> dict[str, Head]:
        ids = [change.job.id for change in changes]
        return {row[0]: head_of(row) for row in await self._db.fetch(statement, ids)}

    def _note(self, change: Change, owner: str | None) -> None:
        """Note who must be notified of a change."""
        job = change.job
        self.news.add(job_topic(job.id))
        if (loser := loser_of(owner, change)) is not None:
            self.news.add(worker_topic(loser))
        if job.state is State.AVAILABLE or (job.state in _DUE and (job.run_at is not None or awaits_permit(job))):
            self.news.add(queue_topic(job.queue))

    # record

    async def record(self, steps: Sequence[Step]) -> list[Recorded | Conflict]:
        """Record steps. One statement for all; if a step was refused, look up why."""
        answers: list[Recorded | Conflict] = []
        for group in steps_apart(steps):
            found = await self._db.fetch(self._sql.add_steps, *rows.steps_given(group))
            if not found:
                async with self._db.transaction():
                    found = await record_crowded(self._db, self._sql, group)
            written = {row[0] - 1 for row in found}
            if uncounted := {row[1] for row in found if row[1] is not None}:
                await Counting(self._db, self._sql).recount(uncounted)
            left = [step for index, step in enumerate(group) if index not in written]
            why = await self.standing(left) if left else {}
            for index, step in enumerate(group):
                answers.append(Recorded(step, True) if index in written else why[step.job, step.path])
        return answers

    async def standing(self, steps: Sequence[Step]) -> dict[tuple[str, str], Recorded | Conflict]:
        """Return why steps were not written: another record, or another lease."""
        heads = {row[0]: head_of(row) for row in await self._db.fetch(self._sql.heads, [s.job for s in steps])}
        asked = rows.columns([(step.job, step.path) for step in steps], 2)
        found = {(row[0], row[2]): step_of(row) for row in await self._db.fetch(self._sql.standing, *asked)}
        answers: dict[tuple[str, str], Recorded | Conflict] = {}
        for step in steps:
            head, standing = heads.get(step.job), found.get((step.job, step.path))
            if (refused := step_refusal(head, step)) is not None:
                answers[step.job, step.path] = refused
            elif standing is not None:
                answers[step.job, step.path] = Recorded(standing, standing == step)
            else:  # it would succeed now, but it was refused: somebody was faster
                assert head is not None
                answers[step.job, step.path] = lease_lost(head)
        return answers

    # admit

    async def admit(
        self, asks: Sequence[Ask], steps: Sequence[Step]
    ) -> tuple[list[Admission | Conflict], list[Recorded | Conflict]]:
        """Record steps, then give others their permits. One statement, if there is nothing to record."""
        if not steps:
            return await admit(self._db, self._sql, asks, self.news), []
        async with self._db.transaction():
            jobs = {ask.job for ask in asks} | {step.job for step in steps}
            if len(jobs) > 1:  # all of them at once and in one order, so that two of us can't wait for each other
                await self._db.fetch(self._sql.hold_jobs, list(jobs))
            recorded = await self.record(steps)
            return (await admit(self._db, self._sql, asks, self.news) if asks else []), recorded

    # load

    async def load(self, wholes: Sequence[Whole], keys: Sequence[HeldKey], records: Sequence[Record]) -> int:
        """Load whole jobs, keys and records."""
        async with self._db.transaction():
            check_marked(await self._db.fetchval(self._sql.mark))
            await self._db.fetchval(self._sql.loading)
            numbers = await self._load_jobs({whole.job.id: whole for whole in wholes})
            if keys:
                columns = rows.columns([astuple(key) for key in keys], 5)
                await self._db.execute(self._sql.load_keys, *columns)
            if records:
                values = [(record.name, record.value or None, record.version, record.at) for record in records]
                await self._db.execute(self._sql.load_records, *rows.columns(values, 4))
        return len(numbers)

    async def _load_jobs(self, wholes: dict[str, Whole]) -> dict[str, int]:
        if not wholes:
            return {}
        columns = rows.columns([rows.load_row(whole) for whole in wholes.values()], rows.LOAD_WIDTH)
        numbers = {row[0]: row[1] for row in await self._db.fetch(self._sql.load_jobs, *columns)}
        fresh = [(whole, numbers[id]) for id, whole in wholes.items() if id in numbers]
        await self._db.execute(self._sql.load_entries, *rows.entry_columns(fresh))
        for group in steps_apart([step for whole, _ in fresh for step in whole.steps]):
            values = [rows.step_row(step, numbers[step.job]) for step in group]
            await self._db.execute(self._sql.set_steps, *rows.columns(values, rows.STEP_WIDTH))
        if stepped := [n for whole, n in fresh if whole.steps]:
            await self._db.execute(self._sql.recount, stepped, STEP_NAMES)
        return numbers


def _made(first: Row) -> dict[str, Made]:
    """Return the changed jobs from the first row of a change's answer: their versions now, and their former owners."""
    ids, versions, owners = first[-5:-2]
    return {} if ids is None else dict(zip(ids, zip(map(int, versions), owners, strict=True), strict=True))


def _answer(jobs: Sequence[Job], found: Known) -> list[Inserted] | Exception:
    """Return the answer to an order."""
    answer: list[Inserted] = []
    for job in jobs:
        if job.id not in found:
            answer.append(Inserted(job.id, new=True))
            continue
        holder, digest = found[job.id]
        if holder is not None and job.options.unique is not None:
            try:
                answer.append(existing_for(job, holder))
            except Duplicate as error:
                return error
            continue
        if holder is not None and digest != job.digest:
            return key_taken(job, holder)
        answer.append(Inserted(job.id if holder is None else holder, new=False))
    return answer
