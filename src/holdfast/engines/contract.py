"""The engine contract: what a store must do, method by method, each with its laws.

Must not know any store. One method is one atomic act: it happens completely or not at all, is durable (as `guarantees`
says) before it returns, and is safe to repeat if the answer was lost. There is no SQL here and no transaction object.
Tests check the laws: `pytest --pyargs holdfast.conformance --engine URL`. `traits` has what only some engines can do.

Engines don't decide: a `Change` comes from `core.lifecycle.decide`. An engine compares what the change expects with
what it holds (`lifecycle.refusal`) and writes the result (`lifecycle.applied`). Engines don't check arguments either:
the methods here do, once for all engines, and then call the engine's own method of the same name with an underscore in
front (`insert` calls `_insert`).
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from holdfast.core.errors import Invalid, StoreError
from holdfast.core.model import (
    PAGE_LIMIT,
    Admission,
    Applied,
    Ask,
    Beat,
    Change,
    Conflict,
    Entry,
    Inserted,
    Job,
    Lease,
    Presence,
    Record,
    Recorded,
    State,
    Step,
    StepState,
    Time,
    Usage,
    Where,
)
from holdfast.core.moves import HeldKey
from holdfast.core.searches import Page
from holdfast.core.summaries import StepHead, StepSummary, page_of, summarize
from holdfast.engines.blob_keeping import KeepsBlobs
from holdfast.engines.checks import (
    are_storable,
    at_most,
    check_asks,
    check_changes,
    check_jobs,
    check_page,
    check_record,
    check_record_jobs,
    check_steps,
    check_worker,
    storable,
)
from holdfast.engines.observers import Observed

PROMOTE_LIMIT = 1_000
"""How many due jobs of a queue one claim makes available, so that a million jobs due at once don't block the store."""

PRUNE_LIMIT = 1_000
"""How many jobs one prune removes."""


Clock = Callable[[], Time]


def system_clock() -> Time:
    """The time of this machine's clock."""
    return time.time_ns() // 1_000_000


class Guarantees(Struct, frozen=True):
    """What an engine guarantees beyond the contract. Tests check these, never an engine's name."""

    name: str
    url: str
    use: str
    durable: str
    """What acknowledged work survives: "nothing", "a killed process" or "a power cut"."""
    processes: str
    """Who can use one store at the same time: "one process", "one machine" or "many machines"."""
    wakes: str
    """How far a wake-up reaches: "one process", "one machine" or "many machines"."""
    atomic_children: bool
    """Whether a change and the jobs that it inserts are one atomic act."""
    clock: str
    """Whose clock counts: "this machine's" or "the server's"."""
    limit: str
    transactions: str = "no"
    """Which steps can write to the store in the transaction of their record: "no", "def steps" or "all steps"."""

    @property
    def shared(self) -> bool:
        """Whether several processes can use one store."""
        return self.processes != "one process"


class Engine(Observed, KeepsBlobs, ABC):
    """Where jobs are kept."""

    guarantees: Guarantees

    insert_at_once: int = 1_000
    """How many jobs callers should insert at once. It is small for an engine that serves nobody else meanwhile."""

    inserts_in_order: bool = True
    """Whether concurrent inserts keep their order among jobs that are due at the same moment."""

    may_block: bool = False
    """Whether `now` and `insert` can be awaited where no event loop runs. They then block the thread until they have
    an answer, and never suspend.
    """

    look_seconds: float = 0.0
    """The shortest time between two checks for dead workers. It is longer where each check is a query to a server."""

    @classmethod
    @abstractmethod
    def from_url(cls, url: str, clock: Clock) -> "Engine":
        """The engine for a store's URL, not yet opened. Engines that use a server's clock ignore `clock`."""

    @classmethod
    @abstractmethod
    def scratch(cls, url: str, folder: Path) -> str:
        """The URL of an empty store of the same kind, for a test that can write to `folder`."""

    @classmethod
    async def scrap(cls, url: str) -> None:
        """Remove a store that `scratch` named, and never another one. A store in the folder needs no removal."""
        return

    async def shift_clock(self, milliseconds: int) -> bool:
        """Move the clock of a store that `scratch` named, and never of another one; False if that isn't possible.

        For tests of engines that use a server's clock; tests give the other engines a clock.
        """
        return False

    async def is_there(self) -> bool:
        """Whether the store exists. Callers that only read ask first, because `open` would create it.

        Law: it creates and changes nothing. A store in the memory of a process always exists.
        """
        return True

    # A store is opened once, from any thread or event loop, and can then be used from all of them.

    @abstractmethod
    async def open(self) -> None:
        """Make the store ready: create it, bring its schema up to date, or refuse with one clear error.

        Law: a store of another program or a newer version, or one that is damaged or not writable, is refused and left
        unchanged.
        """

    @abstractmethod
    async def close(self) -> None:
        """Close the store and release everything. Law: it can be called twice, and acknowledged work stays."""

    @abstractmethod
    async def now(self) -> Time:
        """The store's time, which is compared with `run_at`, `expires_at` and heartbeats."""

    # Writing.

    async def insert(self, jobs: Sequence[Job], parent: Lease | None = None) -> list[Inserted]:
        """Add new jobs, each with its first history entry. All or none.

        Laws: if a job with the same id exists, it is left unchanged and reported as not new. If a job of the same type
        has the same key, the answer is that job, as long as the key is valid: until `key_until`, compared with the new
        job's `created_at`, or while that job is kept. If their digests differ, it raises KeyConflict and inserts
        nothing. If a job holds the same unique name and counts (`core.unique.counts`), the answer is that job, or it
        raises Duplicate and inserts nothing; otherwise the new job takes the name. With `parent`, it raises LeaseLost
        unless that lease is current, and counts each new child in its group. It wakes those who wait for the queue.
        """
        check_jobs(jobs)
        began = time.perf_counter()
        if self.tracer is None:
            answers = await self._insert(jobs, parent) if jobs or parent is not None else []
        else:
            with self.tracer.sending(jobs) as jobs:
                answers = await self._insert(jobs, parent) if jobs or parent is not None else []
        if self.observers:
            self.announce_act("insert", began)
            self.announce_inserts(jobs, answers)
        return answers

    async def insert_within(self, connection: Any, jobs: Sequence[Job]) -> list[Inserted]:
        """Add new jobs inside the caller's own transaction, on the caller's connection. Only some SQL engines can.

        Laws: the jobs exist once the caller commits, and never if it rolls back. On KeyConflict the caller rolls back.
        """
        check_jobs(jobs)
        if self.tracer is None:
            return await self._insert_within(connection, jobs)
        with self.tracer.sending(jobs) as jobs:
            return await self._insert_within(connection, jobs)

    async def claim(
        self, worker: str, queues: Sequence[str], limit: int, types: Collection[str] | None = None
    ) -> list[Job]:
        """Take up to `limit` jobs: queues in the given order, then priority, then `run_at`, then order of insertion.

        With `types`, only jobs of these types; without, of any type.

        Laws: the same act first promotes the due jobs of these queues (and activates pending jobs whose wait timed
        out), up to PROMOTE_LIMIT for each queue, whatever their type, and wakes those who wait for the queue. Each
        claimed job gets the next epoch, this worker, and its history entries. No job is given to two workers, before
        its `run_at`, after its `expires_at`, or from a paused queue. The order holds across types. Jobs of other types
        don't change, and a million of them in front don't make a claim slow.

        Laws of shared limits: a job with `limits` is taken only together with all its permits, and is passed over while
        one of its keys has no room (`core.shared_limits`). Thousands of such jobs in front don't make a claim slow. A
        key never has more valid permits than its `at_once`, and its rate is never exceeded by the store's clock. A
        pending job that waits for a limit is activated when its key has room, and keeps the permit for RESERVED_MS.

        Laws of fair keys (`core.fairness`): within a queue and priority, jobs whose `options.fair` differs take turns,
        in a round for each set of types; those without are one key together. A key's next job starts after at most one
        job of every other waiting key that these types can serve. Jobs are returned in the order of their turns.
        """
        check_worker(worker)
        asked = storable(dict.fromkeys(queues))
        began = time.perf_counter()
        jobs = await self._claim(worker, asked, limit, _known(types)) if asked and limit > 0 else []
        if self.observers:
            self.announce_act("claim", began)
            self.announce_claims(jobs)
        return jobs

    async def beat(self, presence: Presence) -> Beat:
        """Store a worker's heartbeat, and answer with what the worker must know. Changes no job.

        Laws: a job that it names with another epoch, or that isn't active, is reported as lost, or as cancelled if it
        was cancelled. A lease that it holds but didn't name is reported as stray. With `leaving`, the worker's status
        is removed.
        """
        check_worker(presence.worker)
        began = time.perf_counter()
        answer = await self._beat(presence)
        if self.observers:
            self.announce_act("beat", began)
        return answer

    async def commit(self, changes: Sequence[Change]) -> list[Applied | Conflict]:
        """Apply changes, each independently: a change that is refused (Conflict) has no effect on the others.

        Laws: the job, its one history entry (with the next version), step records, dropped records, its inbox, edited
        arguments, new jobs (with their unique names, whoever held these) and the arrival at its parent are one atomic
        act. A change is refused if the job isn't as
        the change expects (`lifecycle.refusal`), or if a job suspends on a group of children that have all arrived. An
        arrival counts once for each child, whatever the parent's state. It wakes those who wait for the job or its
        queue, and the worker that lost the job. The job's permits end with its lease, in the same act.
        """
        check_changes(changes)
        began = time.perf_counter()
        answers = await self._commit(changes) if changes else []
        if self.observers:
            self.announce_act("commit", began)
            self.announce_answers(changes, answers)
        return answers

    async def record(self, steps: Sequence[Step]) -> list[Recorded | Conflict]:
        """Store step records, if the job still has their epoch. Doesn't change the job's version.

        Laws: a record that is done or failed is never overwritten. The answer has the stored record, and `first` says
        whether it equals the one given (True also when the same record is written twice). A started record is
        replaced. An old epoch, or a job that isn't active, is a Conflict.
        """
        check_steps(steps)
        began = time.perf_counter()
        answers = await self._record(steps) if steps else []
        if self.observers:
            self.announce_act("record", began)
            self.announce_refusals(answers)
        return answers

    async def admit(
        self, asks: Sequence[Ask], steps: Sequence[Step] = ()
    ) -> tuple[list[Admission | Conflict], list[Recorded | Conflict]]:
        """Record some steps, then give others the permits that they ask for, each all or none. One act.

        Laws: those of `record`, and then, ask by ask in the given order: an old epoch, or a job that isn't active, is a
        Conflict. A refused ask changes nothing and names the first of its keys that has no room. A permit is valid only
        while its lease is current. The same try of a step that asks again gets the same answer at no further cost; a
        later try keeps its permits and pays the rates again. Without `uses` the step's permits end, and `settles`
        corrects what they cost. A permit that ended wakes those who wait for its key.
        """
        check_asks(asks)
        check_steps(steps)
        began = time.perf_counter()
        answers = await self._admit(asks, steps) if asks or steps else ([], [])
        if self.observers:
            self.announce_act("admit", began)
            self.announce_refusals((*answers[0], *answers[1]))
        return answers

    async def turn(
        self,
        changes: Sequence[Change],
        worker: str,
        queues: Sequence[str],
        limit: int,
        types: Collection[str] | None = None,
    ) -> tuple[list[Applied | Conflict], list[Job]]:
        """Commit the ends of some jobs, and claim new ones for the free slots: what a busy worker does all the time.

        Laws: those of `commit`, then those of `claim`. An engine may make one act of the two to save time. If only the
        claim fails, the commit's answers are returned with no jobs, and the next claim raises the error.
        """
        if not changes:
            return [], await self.claim(worker, queues, limit, types)
        check_changes(changes)
        check_worker(worker)
        began = time.perf_counter()
        ended = await self._turn(changes, worker, storable(dict.fromkeys(queues)), max(0, limit), _known(types))
        if self.observers:
            self.announce_act("turn", began)
            self.announce_answers(changes, ended[0])
            self.announce_claims(ended[1])
        return ended

    async def prune(self, limit: int = PRUNE_LIMIT) -> int:
        """Remove jobs whose `prune_at` has passed, oldest first, with everything that belongs to them; return how many.

        Laws: only terminal jobs, and none with a parent or child that has not ended. A key outlives its job until its
        `key_until`, and a unique name until its window ends, with the job's last state.
        """
        return await self._prune(at_most(limit, PAGE_LIMIT))

    # Reading. Reads see every acknowledged write.

    async def get(self, ids: Sequence[str]) -> list[Job | None]:
        """The jobs with these ids, in this order; None for an id that doesn't exist."""
        asked = storable(dict.fromkeys(ids))
        found = await self._get(asked) if asked else {}
        return [found.get(id) for id in ids]

    async def find(self, where: Where, after: str = "", limit: int = PAGE_LIMIT) -> list[Job]:
        """A page of jobs, in the order of their ids; `after` is the last id of the previous page.

        Law: reading all pages returns each job that existed the whole time exactly once.
        """
        if where.key is not None:
            return list((await self.search(where, after, limit)).jobs)
        most = at_most(limit, PAGE_LIMIT)
        return await self._find(where, after, most) if most and are_storable(*_texts(where, after)) else []

    async def search(self, where: Where, after: str = "", limit: int = PAGE_LIMIT) -> Page:
        """A page of jobs in the order of their ids, for people: it is fast, or it stops and says so.

        Laws: it finds what `find` would, in the same order, but after SCAN_LIMIT jobs that don't match it may stop and
        return fewer; `is_cut` says so, and a search that continues at `next` misses no job. A state, a key or a parent
        alone never stops early: each has an index.
        """
        most = at_most(limit, PAGE_LIMIT)
        if not most or not are_storable(*_texts(where, after)):
            return Page(jobs=())
        if where.queue is not None and all(queue != where.queue for queue, _ in await self.count()):
            return Page(jobs=())
        return await self._search(where, after, most)

    @abstractmethod
    async def count(self) -> Mapping[tuple[str, State], int]:
        """How many jobs each queue has in each state, without zeros. Law: always exact, without counting all jobs."""

    async def ready_types(self, queue: str) -> list[str]:
        """The types of the jobs that can be claimed from a queue, sorted, up to PAGE_LIMIT.

        A type whose available jobs are all not yet due, or expired, may or may not be listed. Law: it doesn't read all
        jobs.
        """
        return await self._ready_types(queue) if are_storable(queue) else []

    async def steps(self, job: str) -> list[Step]:
        """All step records of a job, in the order in which they were first written."""
        return await self._steps(job) if are_storable(job) else []

    async def steps_under(self, job: str, prefix: str) -> list[Step]:
        """The step records whose paths begin with `prefix`, in the same order."""
        return await self._steps_under([job], prefix, None) if are_storable(job, prefix) else []

    async def steps_under_each(self, jobs: Sequence[str], prefix: str, state: StepState | None = None) -> list[Step]:
        """The same for up to PAGE_LIMIT jobs in one act; with `state`, only records in that state."""
        check_page(jobs)
        asked = storable(dict.fromkeys(jobs))
        return await self._steps_under(asked, prefix, state) if asked and are_storable(prefix) else []

    async def steps_page(self, job: str, after: str = "", limit: int = PAGE_LIMIT) -> list[StepHead]:
        """A page of a job's steps without their results, in the order in which they were first written.

        `after` is the last path of the previous page; NotFound if it no longer exists. Law: records whose paths start
        with a tilde aren't steps.
        """
        most = at_most(limit, PAGE_LIMIT)
        return await self._steps_page(job, after, most) if most and are_storable(job, after) else []

    async def summaries(self, jobs: Sequence[str]) -> list[StepSummary]:
        """The steps of up to PAGE_LIMIT jobs, counted by name and state, in the order of the ids; empty for no job.

        Laws: the result equals a count of all the job's steps, whatever was repeated, replaced, dropped or loaded.
        Records whose paths start with a tilde aren't steps. A name that is counted separately is counted separately
        from its first step on.
        """
        check_page(jobs)
        asked = storable(dict.fromkeys(jobs))
        found = await self._summaries(asked) if asked else {}
        return [found.get(job) or StepSummary(job) for job in jobs]

    async def history(self, job: str, after: int = 0, limit: int = PAGE_LIMIT) -> list[Entry]:
        """The entries of a job with a version above `after`. Law: one entry for each version, without gaps."""
        most = at_most(limit, PAGE_LIMIT)
        return await self._history(job, after, most) if most and are_storable(job) else []

    async def missing(self, parent: str, group: str) -> int:
        """How many children of this group have not arrived at their parent yet."""
        return await self._missing(parent, group) if are_storable(parent, group) else 0

    async def holders(self, names: Sequence[tuple[str, str]]) -> list[HeldKey | None]:
        """Return the holders of these keys, each a type and a key, in this order; None for a key without a holder.

        A unique name is a key of the type UNIQUE, whose digest is its stamp (`core.unique`). Law: it is what `insert`
        compares with. A key whose `until` has passed may or may not be there still.
        """
        asked = [name for name in dict.fromkeys(names) if are_storable(*name)]
        found = await self._holders(asked) if asked else {}
        return [found.get(name) for name in names]

    async def usage(self, limit: str) -> list[Usage]:
        """How much of a shared limit is used, key by key in their order, up to PAGE_LIMIT; unused keys are left out."""
        return await self._usage(limit) if are_storable(limit) else []

    # Small records: leadership, pauses, schedules, limits, and the status of each worker (read only).

    async def records(self, prefix: str) -> list[Record]:
        """The records whose names start with `prefix`, sorted by name."""
        return await self._records(prefix) if are_storable(prefix) else []

    async def put_record(
        self, name: str, value: str | None, expected: int | None = None, jobs: Sequence[Job] = ()
    ) -> Record | Conflict:
        """Write a record, or remove it (None), if it is still at version `expected`. Insert these jobs with it.

        Laws: `expected=0` means that the record must not exist; `expected=None` always writes. A version number is
        never used twice, not even after a removal (but those of buckets may be). When a record `limit/NAME` or
        `bucket/KEY` changes, the next claim looks at the jobs that wait for that limit. The record and the jobs are one
        act: a Conflict inserts nothing, and neither does a job that can't be stored. Jobs are new ones, without key and
        parent; one whose id exists, or comes before, is left unchanged.
        """
        check_record(name, value)
        if jobs:
            check_record_jobs(name, jobs)
            jobs = [*{job.id: job for job in reversed(jobs)}.values()][::-1]
        answer = await self._put_record(name, value, expected, jobs)
        if jobs and self.observers and isinstance(answer, Record):
            self.announce_inserts(jobs, [Inserted(job.id, True) for job in jobs])
        return answer

    # Waking.

    async def wait(self, topics: Collection[str], timeout: float, after: int = 0) -> int:
        """Wait for a wake-up on any of these topics, at most `timeout` seconds; return a mark for the next call.

        A wake-up is a hint: this may return early, and never returns data. Laws: with the mark of the previous call as
        `after`, a wake-up between the two calls is not missed. A wait for a queue ends when one of its jobs becomes
        due.
        """
        return await self._wait(storable(topics), timeout, after)

    # What each engine implements. The arguments are checked, queues, types and ids have no duplicates, limits are in
    # range, and calls that need no store are already answered.

    @abstractmethod
    def _insert(self, jobs: Sequence[Job], parent: Lease | None) -> Awaitable[list[Inserted]]: ...

    async def _insert_within(self, connection: Any, jobs: Sequence[Job]) -> list[Inserted]:
        raise Invalid(
            f"connection=: a {self.guarantees.name} store can't take part in your transaction; submit after your "
            "commit, with key= so that you may submit again, or use a postgresql:// store"
        )

    @abstractmethod
    def _claim(self, worker: str, queues: list[str], limit: int, types: list[str] | None) -> Awaitable[list[Job]]: ...

    @abstractmethod
    def _beat(self, presence: Presence) -> Awaitable[Beat]: ...

    @abstractmethod
    def _commit(self, changes: Sequence[Change]) -> Awaitable[list[Applied | Conflict]]: ...

    @abstractmethod
    def _record(self, steps: Sequence[Step]) -> Awaitable[list[Recorded | Conflict]]: ...

    @abstractmethod
    def _admit(
        self, asks: Sequence[Ask], steps: Sequence[Step]
    ) -> Awaitable[tuple[list[Admission | Conflict], list[Recorded | Conflict]]]: ...

    async def _turn(
        self, changes: Sequence[Change], worker: str, queues: list[str], limit: int, types: list[str] | None
    ) -> tuple[list[Applied | Conflict], list[Job]]:
        """Commit, then claim. An engine that can do both in one act overrides this."""
        answers = await self._commit(changes)
        try:
            return answers, await self._claim(worker, queues, limit, types) if queues and limit else []
        except StoreError:
            return answers, []

    @abstractmethod
    def _prune(self, limit: int) -> Awaitable[int]: ...

    @abstractmethod
    def _get(self, ids: list[str]) -> Awaitable[Mapping[str, Job]]:
        """The jobs that exist, by their ids."""

    @abstractmethod
    def _find(self, where: Where, after: str, limit: int) -> Awaitable[list[Job]]: ...

    async def _search(self, where: Where, after: str, limit: int) -> Page:
        """Find a page without a bound. An engine that can have many jobs overrides this."""
        found = tuple(await self._find(where, after, limit))
        return Page(jobs=found, next=found[-1].id if len(found) == limit else None, scanned=len(found))

    @abstractmethod
    def _ready_types(self, queue: str) -> Awaitable[list[str]]: ...

    @abstractmethod
    def _steps(self, job: str) -> Awaitable[list[Step]]: ...

    async def _steps_under(self, jobs: list[str], prefix: str, state: StepState | None) -> list[Step]:
        """Read all steps and filter them. An engine that can read only these overrides this."""
        steps = [step for job in jobs for step in await self._steps(job)]
        return [step for step in steps if step.path.startswith(prefix) and state in (None, step.state)]

    async def _steps_page(self, job: str, after: str, limit: int) -> list[StepHead]:
        """Read all steps. An engine that can skip the results overrides this."""
        return page_of(await self._steps(job), after, limit)

    async def _summaries(self, jobs: list[str]) -> Mapping[str, StepSummary]:
        """Count all steps of each job. An engine that keeps counters overrides this, so the cost doesn't grow."""
        return {job: summarize(job, await self._steps(job)) for job in jobs}

    @abstractmethod
    def _history(self, job: str, after: int, limit: int) -> Awaitable[list[Entry]]: ...

    @abstractmethod
    def _missing(self, parent: str, group: str) -> Awaitable[int]: ...

    @abstractmethod
    def _holders(self, names: list[tuple[str, str]]) -> Awaitable[Mapping[tuple[str, str], HeldKey]]:
        """The keys that somebody has, by type and key."""

    @abstractmethod
    def _usage(self, limit: str) -> Awaitable[list[Usage]]: ...

    @abstractmethod
    def _records(self, prefix: str) -> Awaitable[list[Record]]: ...

    @abstractmethod
    def _put_record(
        self, name: str, value: str | None, expected: int | None, jobs: Sequence[Job]
    ) -> Awaitable[Record | Conflict]: ...

    @abstractmethod
    def _wait(self, topics: list[str], timeout: float, after: int) -> Awaitable[int]: ...


def _texts(where: Where, after: str) -> list[str]:
    texts = (after, where.queue, where.type, where.parent, where.key)
    return [text for text in texts if text is not None]


def _known(types: Collection[str] | None) -> list[str] | None:
    return None if types is None else storable(dict.fromkeys(types))
