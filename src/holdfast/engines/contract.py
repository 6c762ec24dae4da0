"""The engine contract: what a store must do, method by method, each with its law.

Must not know any store. One method is one atomic act: it happens whole or not at all, is durable (to the class in
`guarantees`) before it answers, and is safe to repeat when the answer was lost. No SQL, no transaction object. The
laws are tests: `pytest --pyargs holdfast.conformance --engine URL`. What only some engines can do is in `traits`.

What engines need not do: decide. A `Change` comes from `core.lifecycle.decide`; an engine compares what the change
expects with what it holds (`lifecycle.refusal`) and writes what it says (`lifecycle.applied`). Nor check: a method that
takes arguments checks them here, once for all engines, and then calls the engine's own method of the same name with an
underscore in front (`insert` calls `_insert`).
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
    Applied,
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
    Where,
)
from holdfast.core.summaries import StepHead, StepSummary, page_of, summarize
from holdfast.engines.checks import (
    are_storable,
    at_most,
    check_changes,
    check_jobs,
    check_page,
    check_record,
    check_steps,
    check_worker,
    storable,
)

PROMOTE_LIMIT = 1_000
"""How many due jobs of a queue one claim makes available: a million due at once must not stop the store."""

PRUNE_LIMIT = 1_000
"""How many jobs one prune removes."""


Clock = Callable[[], Time]


def system_clock() -> Time:
    """The machine's time: what a store on this machine goes by."""
    return time.time_ns() // 1_000_000


class Guarantees(Struct, frozen=True):
    """What an engine promises beyond the contract. Tests ask these, never an engine's name."""

    name: str
    url: str
    use: str
    durable: str
    """What acknowledged work survives: "nothing", "a killed process" or "a power cut"."""
    processes: str
    """Who may use one store at once: "one process", "one machine" or "many machines"."""
    wakes: str
    """How far a wake-up reaches: "one process", "one machine" or "many machines"."""
    atomic_children: bool
    """Whether a change and the jobs it inserts are one act."""
    clock: str
    """Whose clock counts: "this machine's" or "the server's"."""
    limit: str
    transactions: str = "no"
    """Which steps may write to the store in the transaction of their own record: "no", "def steps" or "all steps"."""

    @property
    def shared(self) -> bool:
        """Whether several processes may use one store."""
        return self.processes != "one process"


class Engine(ABC):
    """Where jobs are kept."""

    guarantees: Guarantees

    insert_at_once: int = 1_000
    """How many jobs callers should insert in one act: where nobody else is served meanwhile, not too many."""

    inserts_in_order: bool = True
    """Whether jobs that are due at the same moment keep the order of inserts of which the next one did not wait for the
    one before it.
    """

    may_block: bool = False
    """Whether `now` and `insert` can be awaited where no event loop runs. Then they block the thread until they have
    their answer, and never suspend.
    """

    look_seconds: float = 0.0
    """How often upkeep may look for the dead, at most: where each look is a question to a server, not too often."""

    @classmethod
    @abstractmethod
    def from_url(cls, url: str, clock: Clock) -> "Engine":
        """The engine for a store's URL, not yet opened. Engines that go by a server's clock don't use `clock`."""

    @classmethod
    @abstractmethod
    def scratch(cls, url: str, folder: Path) -> str:
        """The URL of an empty store of the same kind, for a test that may write into `folder`."""

    @classmethod
    async def scrap(cls, url: str) -> None:
        """Remove a store that `scratch` named, and never another one; nothing to do where it is all in the folder."""
        return

    async def shift_clock(self, milliseconds: int) -> bool:
        """Move the clock of a store that `scratch` named, and never of another one, for a test; False where nobody can.

        For engines that go by a server's clock; the others are given one.
        """
        return False

    async def is_there(self) -> bool:
        """Whether there is a store to open: who only looks asks first, because `open` makes one where there is none.

        Law: makes and changes nothing. For engines that keep something; what lives in one process is always there.
        """
        return True

    # A store is opened once, from any thread or event loop, and may then be used from all of them.

    @abstractmethod
    async def open(self) -> None:
        """Make the store ready: create it, bring its schema up to date, or refuse with one clear error.

        Law: a store that is not ours, newer than we are, damaged or not writable is refused and left as it was.
        """

    @abstractmethod
    async def close(self) -> None:
        """Let go of everything. Law: may be called twice; what was acknowledged stays."""

    @abstractmethod
    async def now(self) -> Time:
        """The store's time, which all comparisons with `run_at`, `expires_at` and beats go by."""

    # Writing.

    async def insert(self, jobs: Sequence[Job], parent: Lease | None = None) -> list[Inserted]:
        """Add new jobs, each with its first history entry. All or none.

        Laws: a job whose id is there already is left as it is, and counted as not new. A job with a key gives the
        job that has the key (keys are apart for each type), for as long as the key holds (until the new job's
        `created_at` reaches `key_until`, or while that job is kept), and KeyConflict, with nothing inserted, when the
        digests differ. With `parent`, LeaseLost unless that lease is current; each
        new child is counted in its group. Wakes who waits for the queue.
        """
        check_jobs(jobs)
        return await self._insert(jobs, parent) if jobs or parent is not None else []

    async def insert_within(self, connection: Any, jobs: Sequence[Job]) -> list[Inserted]:
        """Add new jobs inside the caller's own transaction on the caller's own connection: a trait of SQL engines.

        Laws: they are there once the caller commits, and never if it rolls back. On KeyConflict the caller rolls back.
        """
        check_jobs(jobs)
        return await self._insert_within(connection, jobs)

    async def claim(
        self, worker: str, queues: Sequence[str], limit: int, types: Collection[str] | None = None
    ) -> list[Job]:
        """Take up to `limit` jobs: queues in the given order, then priority, then `run_at`, then order of insertion.

        With `types`, only jobs of these types; without, of any type.

        Laws: in the same act, what is due in these queues is promoted first (and pending jobs whose time is over
        activated), up to PROMOTE_LIMIT a queue, whatever its type; who waits for the queue is woken. Each job gets the
        next epoch, this worker, and its history entries. No job is given to two claimers. Nothing comes early, after
        `expires_at`, or out of a paused queue. The order holds across types. A job of another type stays as it is, and
        a million of them in front don't make a claim slow.
        """
        check_worker(worker)
        asked = storable(dict.fromkeys(queues))
        return await self._claim(worker, asked, limit, _known(types)) if asked and limit > 0 else []

    async def beat(self, presence: Presence) -> Beat:
        """Note that a worker lives and what it does, and tell it what it must know. Changes no job.

        Laws: a job it names under another epoch, or that isn't active, is lost (cancelled, if it was); a lease in
        its name that it didn't name is stray. With `leaving`, the presence is removed.
        """
        check_worker(presence.worker)
        return await self._beat(presence)

    async def commit(self, changes: Sequence[Change]) -> list[Applied | Conflict]:
        """Carry out changes, each on its own: a Conflict touches no neighbour and changes nothing.

        Laws: the job, its one history entry (of the next version), step records, dropped records, its inbox, edited
        arguments, new jobs and the arrival at its parent are one act. Refused when what the change expects isn't so
        (`lifecycle.refusal`), and when a job suspends on a group of children of which nobody is missing. An arrival
        counts once for each child and expects nothing of the parent. Wakes who waits for the job, its queue, and the
        worker that lost it.
        """
        check_changes(changes)
        return await self._commit(changes) if changes else []

    async def record(self, steps: Sequence[Step]) -> list[Recorded | Conflict]:
        """Keep step records, each fenced by its job's epoch. Doesn't change the job's version.

        Laws: a record that is done or failed stays as it is, whoever writes again: the answer has the one that stands,
        and `first` tells whether it is what was written just now (True also for the very same record, repeated). A
        started one is replaced. A stale epoch, or a job that isn't active, is a Conflict.
        """
        check_steps(steps)
        return await self._record(steps) if steps else []

    async def turn(
        self,
        changes: Sequence[Change],
        worker: str,
        queues: Sequence[str],
        limit: int,
        types: Collection[str] | None = None,
    ) -> tuple[list[Applied | Conflict], list[Job]]:
        """What a busy worker does again and again: commit some ends, and claim for the slots that they leave.

        Laws: as `commit`, then `claim`. An engine that gains by it makes one act of the two. When only the claim has
        trouble, the commit's answers come with no jobs: the next claim tells the trouble.
        """
        if not changes:
            return [], await self.claim(worker, queues, limit, types)
        check_changes(changes)
        check_worker(worker)
        return await self._turn(changes, worker, storable(dict.fromkeys(queues)), max(0, limit), _known(types))

    async def prune(self, limit: int = PRUNE_LIMIT) -> int:
        """Remove jobs whose `prune_at` has come, oldest first, with all that belongs to them; answer how many.

        Laws: only terminal jobs; none with a parent or child that has not ended; a key outlives its job to the end
        of its own window.
        """
        return await self._prune(at_most(limit, PAGE_LIMIT))

    # Reading. Every write that was acknowledged is seen.

    async def get(self, ids: Sequence[str]) -> list[Job | None]:
        """The jobs with these ids, in this order; None where there is none."""
        asked = storable(dict.fromkeys(ids))
        found = await self._get(asked) if asked else {}
        return [found.get(id) for id in ids]

    async def find(self, where: Where, after: str = "", limit: int = PAGE_LIMIT) -> list[Job]:
        """A page of jobs, in the order of their ids; `after` is the last id of the page before.

        Law: a walk over the pages meets each job that was there throughout exactly once.
        """
        most = at_most(limit, PAGE_LIMIT)
        texts = [text for text in (after, where.queue, where.type, where.parent) if text is not None]
        return await self._find(where, after, most) if most and are_storable(*texts) else []

    @abstractmethod
    async def count(self) -> Mapping[tuple[str, State], int]:
        """How many jobs each queue has in each state, without the zeros. Law: equals a recount, and costs none."""

    async def ready_types(self, queue: str) -> list[str]:
        """The types of the jobs that can be claimed from a queue, sorted, up to PAGE_LIMIT.

        A look: types of which all available jobs wait for their time, or have expired, may be among them or not.
        Law: it costs no walk over the jobs.
        """
        return await self._ready_types(queue) if are_storable(queue) else []

    async def steps(self, job: str) -> list[Step]:
        """All step records of a job, in the order in which they were first written."""
        return await self._steps(job) if are_storable(job) else []

    async def steps_under(self, job: str, prefix: str) -> list[Step]:
        """The step records whose paths begin with `prefix`, in the same order."""
        return await self._steps_under([job], prefix, None) if are_storable(job, prefix) else []

    async def steps_under_each(self, jobs: Sequence[str], prefix: str, state: StepState | None = None) -> list[Step]:
        """The same of up to PAGE_LIMIT jobs in one act; with `state`, only the records that are in it."""
        check_page(jobs)
        asked = storable(dict.fromkeys(jobs))
        return await self._steps_under(asked, prefix, state) if asked and are_storable(prefix) else []

    async def steps_page(self, job: str, after: str = "", limit: int = PAGE_LIMIT) -> list[StepHead]:
        """A page of a job's steps without their results, in the order in which they were first written.

        `after` is the last path of the page before; NotFound if it is gone. Law: records whose paths begin with a tilde
        are no steps.
        """
        most = at_most(limit, PAGE_LIMIT)
        return await self._steps_page(job, after, most) if most and are_storable(job, after) else []

    async def summaries(self, jobs: Sequence[str]) -> list[StepSummary]:
        """The steps of up to PAGE_LIMIT jobs, counted by name and state, in the order of the ids; empty for no job.

        Laws: it equals what counting all of a job's steps gives, whatever was recorded again, replaced, dropped or
        loaded. Records whose paths begin with a tilde are no steps. A name that is counted apart is counted so from its
        first step on.
        """
        check_page(jobs)
        asked = storable(dict.fromkeys(jobs))
        found = await self._summaries(asked) if asked else {}
        return [found.get(job) or StepSummary(job) for job in jobs]

    async def history(self, job: str, after: int = 0, limit: int = PAGE_LIMIT) -> list[Entry]:
        """The entries of a job with a version above `after`. Law: one entry for each version, without a gap."""
        most = at_most(limit, PAGE_LIMIT)
        return await self._history(job, after, most) if most and are_storable(job) else []

    async def missing(self, parent: str, group: str) -> int:
        """How many children of this group have not arrived at their parent yet."""
        return await self._missing(parent, group) if are_storable(parent, group) else 0

    # Small documents: leadership, pauses, schedules, limits, and the workers' presences (read only).

    async def records(self, prefix: str) -> list[Record]:
        """The records whose names begin with `prefix`, by name."""
        return await self._records(prefix) if are_storable(prefix) else []

    async def put_record(self, name: str, value: str | None, expected: int | None = None) -> Record | Conflict:
        """Write a record, or remove it (None), if it is still at version `expected`.

        Laws: `expected=0` means that there is none; None writes in any case. A version never comes back, not even
        after a removal.
        """
        check_record(name, value)
        return await self._put_record(name, value, expected)

    # Waking.

    async def wait(self, topics: Collection[str], timeout: float, after: int = 0) -> int:
        """Wait for news of any topic, at most `timeout` seconds; answer with a mark to hand in as `after` next time.

        A hint, not a promise: it may return early, never with data. Laws: news between two calls are not missed by
        the second one when it is given the first one's mark; a wait for a queue ends when a job of it becomes due.
        """
        return await self._wait(storable(topics), timeout, after)

    # What each engine writes for its store. The arguments are checked, queues, types and ids are named once, limits are
    # within their bounds, and nothing comes here that has an answer without asking the store.

    @abstractmethod
    def _insert(self, jobs: Sequence[Job], parent: Lease | None) -> Awaitable[list[Inserted]]: ...

    async def _insert_within(self, connection: Any, jobs: Sequence[Job]) -> list[Inserted]:
        raise Invalid(
            f"connection=: jobs kept in {self.guarantees.name} can't be part of your transaction; leave it out"
        )

    @abstractmethod
    def _claim(self, worker: str, queues: list[str], limit: int, types: list[str] | None) -> Awaitable[list[Job]]: ...

    @abstractmethod
    def _beat(self, presence: Presence) -> Awaitable[Beat]: ...

    @abstractmethod
    def _commit(self, changes: Sequence[Change]) -> Awaitable[list[Applied | Conflict]]: ...

    @abstractmethod
    def _record(self, steps: Sequence[Step]) -> Awaitable[list[Recorded | Conflict]]: ...

    async def _turn(
        self, changes: Sequence[Change], worker: str, queues: list[str], limit: int, types: list[str] | None
    ) -> tuple[list[Applied | Conflict], list[Job]]:
        """Commit, then claim. An engine that can make one act of the two does so."""
        answers = await self._commit(changes)
        try:
            return answers, await self._claim(worker, queues, limit, types) if queues and limit else []
        except StoreError:
            return answers, []

    @abstractmethod
    def _prune(self, limit: int) -> Awaitable[int]: ...

    @abstractmethod
    def _get(self, ids: list[str]) -> Awaitable[Mapping[str, Job]]:
        """The jobs that are there, by their ids."""

    @abstractmethod
    def _find(self, where: Where, after: str, limit: int) -> Awaitable[list[Job]]: ...

    @abstractmethod
    def _ready_types(self, queue: str) -> Awaitable[list[str]]: ...

    @abstractmethod
    def _steps(self, job: str) -> Awaitable[list[Step]]: ...

    async def _steps_under(self, jobs: list[str], prefix: str, state: StepState | None) -> list[Step]:
        """Read all, and leave out the others. An engine that can read these alone does so."""
        steps = [step for job in jobs for step in await self._steps(job)]
        return [step for step in steps if step.path.startswith(prefix) and state in (None, step.state)]

    async def _steps_page(self, job: str, after: str, limit: int) -> list[StepHead]:
        """Read all. An engine that can leave the results where they are does so."""
        return page_of(await self._steps(job), after, limit)

    async def _summaries(self, jobs: list[str]) -> Mapping[str, StepSummary]:
        """Count all, by the jobs' ids. An engine that keeps counters reads those: then no cost grows with the steps."""
        return {job: summarize(job, await self._steps(job)) for job in jobs}

    @abstractmethod
    def _history(self, job: str, after: int, limit: int) -> Awaitable[list[Entry]]: ...

    @abstractmethod
    def _missing(self, parent: str, group: str) -> Awaitable[int]: ...

    @abstractmethod
    def _records(self, prefix: str) -> Awaitable[list[Record]]: ...

    @abstractmethod
    def _put_record(self, name: str, value: str | None, expected: int | None) -> Awaitable[Record | Conflict]: ...

    @abstractmethod
    def _wait(self, topics: list[str], timeout: float, after: int) -> Awaitable[int]: ...


def _known(types: Collection[str] | None) -> list[str] | None:
    return None if types is None else storable(dict.fromkeys(types))
