"""The budgets of jobs, for any caller: open, list and raise them. Must not let a step start: engines do that.

The record `bucket/KEY` of each currency holds what was granted and what is left of it. It is made when the first step
of the job, or of one of its children, asks to start. The record `budget/JOB` says who added something.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
from msgspec import DecodeError, Struct
from msgspec.structs import replace

from holdfast.core.budgets import (
    MOST_GRANTED,
    NOTES,
    SETTINGS,
    bucket_prefix,
    budget_key,
    parts_of,
    root_of,
    spent_of,
)
from holdfast.core.errors import Invalid, NotAllowed, NotFound, Outrun
from holdfast.core.lifecycle import TERMINAL
from holdfast.core.limits import REASON_CHARACTERS
from holdfast.core.model import PAGE_LIMIT, Conflict, Job, Record, State, Time, WaitKind
from holdfast.core.shared_limits import BUCKET, BUDGET, LIMIT, Bucket, bucket_of
from holdfast.core.spending import Amounts, amounts_of, in_words, plain
from holdfast.engines.contract import Engine

CHANGE_TRIES = 50
"""How often a bucket that steps keep changing is read and written again."""

NOTES_KEPT = 20
"""How many of the last additions to a budget are kept."""

ALL_AT_ONCE = 20
"""From so many budgets on, those of all jobs are read together."""


class BudgetNote(Struct, frozen=True, omit_defaults=True):
    """Who added what to a budget, when and why."""

    by: str
    at: Time
    added: Mapping[str, int]
    reason: str = ""


class Budget(Struct, frozen=True, kw_only=True):
    """The budget of a job and its children, in millionths of each currency."""

    root: str
    granted: Mapping[str, int]
    left: Mapping[str, int]
    notes: tuple[BudgetNote, ...] = ()

    @property
    def spent(self) -> dict[str, int]:
        """What was spent of it, and what is reserved for steps that run."""
        return {name: amount - self.left.get(name, 0) for name, amount in self.granted.items()}

    def __str__(self) -> str:
        """Say it in words: "$4.20 of $5.00 spent"."""
        return spent_of(self.granted, self.left)


def budget_shape(budget: Budget | None) -> dict[str, Any] | None:
    """Return a budget as JSON: what was granted, spent and is left of each currency."""
    if budget is None:
        return None
    granted, spent, left = plain(budget.granted), plain(budget.spent), plain(budget.left)
    return {name: {"granted": granted[name], "spent": spent[name], "left": left[name]} for name in granted}


# Reading.


async def budgets_of(engine: Engine, jobs: Sequence[Job]) -> dict[str, Budget]:
    """Return the budgets that these jobs draw on, by the job's id; a job without one is left out."""
    given = {root: job.options.budget for job in jobs if (root := root_of(job))}
    if not given:
        return {}
    prefixes = [bucket_prefix(root) for root in given] if len(given) < ALL_AT_ONCE else [bucket_prefix()]
    records = [record for prefix in prefixes for record in await engine.records(prefix)]
    buckets = _buckets(records)
    found = {root: _budget(root, amounts, buckets.get(root, {})) for root, amounts in given.items()}
    return {job.id: found[root] for job in jobs if (root := root_of(job))}


def _buckets(records: Sequence[Record]) -> dict[str, dict[str, Bucket]]:
    """The buckets of budgets, by root and currency."""
    found: dict[str, dict[str, Bucket]] = {}
    for record in records:
        root, currency, _ = parts_of(record.name.removeprefix(BUCKET))
        if (bucket := bucket_of(record.value)) is not None:
            found.setdefault(root, {})[currency] = bucket
    return found


def _budget(root: str, given: Amounts, buckets: Mapping[str, Bucket], notes: tuple[BudgetNote, ...] = ()) -> Budget:
    """A budget as its buckets have it. Without a bucket, nothing was spent yet."""
    granted = {name: buckets[name].granted if name in buckets else amount for name, amount in given.items()}
    left = {name: buckets[name].tokens if name in buckets else amount for name, amount in given.items()}
    return Budget(root=root, granted=granted, left=left, notes=notes)


async def get_budget(engine: Engine, id: str) -> tuple[Job, Budget]:
    """Return the job whose budget this job draws on, and the budget; or raise NotFound."""
    job = await _root(engine, id)
    notes = [_notes(record) for record in await engine.records(NOTES + job.id) if record.name == NOTES + job.id]
    return job, _budget(job.id, job.options.budget, await standing_of(engine, job), notes[0] if notes else ())


async def standing_of(engine: Engine, job: Job) -> dict[str, Bucket]:
    """Return what was granted, and is left, of each currency of a job's budget; nothing if none was used yet."""
    root = root_of(job)
    return _buckets(await engine.records(bucket_prefix(root))).get(root, {}) if root else {}


async def _root(engine: Engine, id: str) -> Job:
    (job,) = await engine.get([id])
    if job is not None and (root := job.options.budget_root):
        (job,) = await engine.get([root])
    if job is None:
        raise NotFound(f"there is no job {id} in this store; it may have been pruned, or it is in another store")
    if not job.options.budget:
        raise NotFound(f"job {job.id} ({job.type}) has no budget; give it one when you submit it: budget={{'usd': 5}}")
    return job


async def list_budgets(engine: Engine) -> list[tuple[Job, Budget]]:
    """List the budgets of all jobs that have begun to use them and have not ended, oldest first."""
    buckets = _buckets(await engine.records(bucket_prefix()))
    roots = sorted(buckets)
    found: list[tuple[Job, Budget]] = []
    for start in range(0, len(roots), PAGE_LIMIT):
        jobs = [job for job in await engine.get(roots[start : start + PAGE_LIMIT]) if job is not None]
        live = [job for job in jobs if job.state not in TERMINAL and job.options.budget]
        found += [(job, _budget(job.id, job.options.budget, buckets[job.id])) for job in live]
    return found


class BudgetWait(Struct, frozen=True, kw_only=True):
    """A job that waits for its budget: what a step of it needs, and how the budget stands."""

    budget: Budget
    currency: str
    need: int = 0

    def __str__(self) -> str:
        """Say it in words: "waiting for budget: $5.00 of $5.00 spent"."""
        one = self.currency
        granted, left = {one: self.budget.granted.get(one, 0)}, {one: self.budget.left.get(one, 0)}
        need = f", the next step needs {in_words({one: self.need})}" if self.need > 1 else ""
        return f"waiting for budget: {spent_of(granted, left)}{need}"


def budget_wait(key: str, budget: Budget) -> BudgetWait:
    """Return what a job waits for that waits for this key of its budget."""
    _, currency, need = parts_of(key)
    return BudgetWait(budget=budget, currency=currency, need=need)


def is_waiting(job: Job) -> bool:
    """Whether a job is pending because its budget is spent."""
    return job.state is State.PENDING and any(
        wait.kind is WaitKind.LIMIT and wait.name.startswith(f"{BUDGET}/") for wait in job.waits
    )


# Writing.


async def open_budget(engine: Engine, job: Job, buckets: Mapping[str, Bucket] | None = None) -> None:
    """Write a job's budget into the store, unless it is there. `buckets` are those of another store."""
    root, given = root_of(job), job.options.budget
    known = {record.name for record in await engine.records(bucket_prefix(root))}
    missing = [name for name in given if BUCKET + budget_key(root, name) not in known]
    if not missing:
        return
    await engine.put_record(LIMIT + BUDGET, SETTINGS, 0)  # it is there already, except for the first budget of a store
    now = await engine.now()
    for name in missing:
        bucket = (buckets or {}).get(name) or Bucket(tokens=given[name], granted=given[name])
        await engine.put_record(BUCKET + budget_key(root, name), replace(bucket, at=now).text(), 0)


async def charge(engine: Engine, job: Job, amounts: Amounts) -> None:
    """Take from a job's budget what was spent without a permit. It may fall below zero."""
    await open_budget(engine, job)
    for name, amount in amounts.items():
        if name in job.options.budget:
            await _update(engine, root_of(job), name, partial(_charged, amount))


async def add_budget(engine: Engine, id: str, given: Mapping[str, Any], *, by: str, reason: str = "") -> Budget:
    """Add to the budget of a job. Those who wait for it, and whose steps can start now, continue."""
    amounts = amounts_of(f"budget of job {id}", given)
    if not amounts:
        raise Invalid(f"budget of job {id}: say what to add, above 0: --add usd=5 (add_budget(usd=5))")
    if len(reason) > REASON_CHARACTERS:
        raise Invalid(f"reason has {len(reason):,} characters, but the limit is {REASON_CHARACTERS:,}; shorten it")
    job = await _root(engine, id)
    if job.state in TERMINAL:
        raise NotAllowed(f"job {job.id} is {job.state}, so its budget can't be used any more")
    for name in amounts:
        if name not in job.options.budget:
            known = " and ".join(job.options.budget)
            raise Invalid(f"the budget of job {job.id} doesn't limit {name}; it limits {known}")
    await open_budget(engine, job)
    for name, amount in amounts.items():
        await _update(engine, job.id, name, partial(_raised, job.id, name, amount))
    await _note(engine, job.id, BudgetNote(by, await engine.now(), amounts, reason))
    return (await get_budget(engine, job.id))[1]


def _charged(amount: int, bucket: Bucket) -> Bucket:
    return replace(bucket, tokens=bucket.tokens - amount)


def _raised(root: str, name: str, more: int, bucket: Bucket) -> Bucket:
    if bucket.granted + more > MOST_GRANTED:
        raise Invalid(f"budget of job {root}: {name} would be above {in_words({name: MOST_GRANTED})}; add less")
    return replace(bucket, tokens=bucket.tokens + more, granted=bucket.granted + more)


async def _update(engine: Engine, root: str, currency: str, change: Callable[[Bucket], Bucket]) -> None:
    """Change a bucket, and start over if somebody else did in between."""
    name = BUCKET + budget_key(root, currency)
    for _ in range(CHANGE_TRIES):
        there = next((one for one in await engine.records(name) if one.name == name), None)
        bucket = None if there is None else bucket_of(there.value)
        if there is None or bucket is None:
            raise NotFound(f"the budget of job {root} isn't in this store any more")
        if not isinstance(await engine.put_record(name, change(bucket).text(), there.version), Conflict):
            return
    raise Outrun(f"budget of job {root}: others kept changing it, so nothing was changed; try again")


async def _note(engine: Engine, root: str, note: BudgetNote) -> None:
    name = NOTES + root
    for _ in range(CHANGE_TRIES):
        there = next((one for one in await engine.records(name) if one.name == name), None)
        notes = (*(() if there is None else _notes(there)), note)[-NOTES_KEPT:]
        text = msgspec.json.encode(notes).decode()
        if not isinstance(await engine.put_record(name, text, 0 if there is None else there.version), Conflict):
            return


def _notes(record: Record) -> tuple[BudgetNote, ...]:
    try:
        return msgspec.json.decode(record.value, type=tuple[BudgetNote, ...])
    except DecodeError:
        return ()
