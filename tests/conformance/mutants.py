"""Engines with one bug each, to show that the conformance suite finds it.

Try one with `--engine tests.conformance.mutants:NoEpochCheck`.

Must not change the memory engine itself: it is what `test_differential` compares with. A mutant is the memory engine
over tables that do one thing wrong, or SQLite with one statement changed.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from holdfast.core.errors import KeyConflict, NotFound
from holdfast.core.lifecycle import SETTLED, refusal
from holdfast.core.model import (
    LEASE_LOST,
    Applied,
    Ask,
    Beat,
    Change,
    Conflict,
    Entry,
    Event,
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
    Use,
    Where,
)
from holdfast.core.moves import HeldKey, Whole
from holdfast.core.shared_limits import Bucket, Settings
from holdfast.core.summaries import StepHead
from holdfast.core.unique import UNIQUE, existing_for
from holdfast.engines.contract import Clock, Engine, system_clock
from holdfast.engines.indexed_rows import Key
from holdfast.engines.limited_rows import LimitedRows
from holdfast.engines.memory import MemoryEngine
from holdfast.engines.permits import Block, Permit, Permits
from holdfast.engines.records import PAUSE
from holdfast.engines.sqlite import SqliteEngine
from holdfast.engines.sqlite import engine as sqlite_engine
from holdfast.engines.tables import Tables

MUTANTS: dict[str, str] = {}
"""The names of all mutants, each with the law that it breaks: the file of the suite that must catch it."""

BETWEEN_CHECK_AND_WRITE_SECONDS = 0.002


def mutant(law: str) -> Callable[[type[Any]], type[Engine]]:
    """Make an engine of tables with a bug, and enter it in the list with the law that it breaks."""

    def enter(kind: type[Any]) -> type[Engine]:
        MUTANTS[kind.__name__] = law
        return kind if issubclass(kind, Engine) else _over(kind)

    return enter


def _over(tables: type[Tables]) -> type[MemoryEngine]:
    class Mutant(MemoryEngine):
        def __init__(self, clock: Clock = system_clock) -> None:
            super().__init__(clock)
            self._tables = tables()

    return Mutant


# Controls: no bug in these.


class Sound(MemoryEngine):
    """The memory engine as somebody else's class."""


class ServerClock(MemoryEngine):
    """A store that goes by a clock which no test can move."""

    guarantees = replace(MemoryEngine.guarantees, name="server-clock", clock="the server's")

    def __init__(self, clock: Clock = system_clock) -> None:
        super().__init__(lambda: system_clock())  # not the steady clock, which may be a millisecond behind


# Fences.


@mutant("commit")
class NoEpochCheck(Tables):
    """An owner need only have an active job, under whichever lease."""

    def commit(self, change: Change) -> Applied | Conflict:
        head = self.jobs.get(change.job.id)
        if head is not None and change.epoch is not None and head.state is State.ACTIVE:
            change = replace(change, epoch=head.epoch)
        return super().commit(change)


@mutant("commit")
class VersionIgnoredOnSuspend(Tables):
    """A signal between looking and suspending is slept over."""

    def commit(self, change: Change) -> Applied | Conflict:
        if change.event == Event.SUSPEND:
            change = replace(change, version=None)
        return super().commit(change)


@mutant("record")
class StepsWithoutAFence(Tables):
    """A worker that lost its lease still records its steps."""

    def record(self, step: Step) -> Recorded | Conflict:
        return self._record(step) if step.job in self.jobs else super().record(step)


@mutant("insert")
class ChildrenWithoutAFence(Tables):
    """A worker that lost its lease still has children."""

    def insert(self, jobs: Sequence[Job], parent: Lease | None) -> list[Inserted]:
        return super().insert(jobs, None)


@mutant("races")
class CheckedTooEarly(MemoryEngine):
    """Checking and writing are two acts: whoever comes between them is overwritten."""

    async def _commit(self, changes: Sequence[Change]) -> list[Applied | Conflict]:
        answers: list[Applied | Conflict] = []
        for change in changes:
            checked = await self._look(lambda tables, change=change: refusal(tables.jobs.get(change.job.id), change))  # type: ignore[misc]
            time.sleep(BETWEEN_CHECK_AND_WRITE_SECONDS)  # noqa: ASYNC251 - blocks, so that other threads get in
            if checked is not None:
                answers.append(checked)
            else:
                answers += await super()._commit([replace(change, epoch=None, version=None)])
        return answers


# Claims.


class Unsorted(Tables):
    """Takes available jobs in an order that a mutant says, checking what the mutant says."""

    def order(self, job: Job) -> tuple[int, ...]:
        return (-job.priority, job.run_at or 0, self._order[job.id])

    def wanted(self, job: Job, now: Time) -> bool:
        return (job.run_at or 0) <= now and (job.expires_at is None or job.expires_at > now)

    def known(self, job: Job, types: Collection[str] | None) -> bool:
        return types is None or job.type in types

    def _take(self, queue: str, types: Collection[str] | None, limit: int, *more: Any) -> list[Job]:
        there = [job for job in self.jobs.values() if job.queue == queue and job.state is State.AVAILABLE]
        ready = [job for job in there if self.known(job, types)]
        return sorted((job for job in ready if self.wanted(job, more[-1])), key=self.order)[:limit]


@mutant("claim")
class PriorityIgnored(Unsorted):
    """First come, first served, whatever was asked."""

    def order(self, job: Job) -> tuple[int, ...]:
        return (job.run_at or 0, self._order[job.id])


@mutant("claim")
class LastInFirstOut(Unsorted):
    """Of equal jobs the newest comes first."""

    def order(self, job: Job) -> tuple[int, ...]:
        return (-job.priority, job.run_at or 0, -self._order[job.id])


@mutant("claim")
class HandedOutEarly(Unsorted):
    """An available job is taken before its time."""

    def wanted(self, job: Job, now: Time) -> bool:
        return job.expires_at is None or job.expires_at > now


@mutant("claim")
class ExpiredHandedOut(Unsorted):
    """An available job is taken after it has expired."""

    def wanted(self, job: Job, now: Time) -> bool:
        return (job.run_at or 0) <= now


@mutant("claim")
class PromoteForgotten(Tables):
    """A claim hands out only what somebody else has promoted."""

    def _promote(self, queue: str, now: Time) -> None:
        pass


@mutant("claim")
class PausedIgnored(Tables):
    """A paused queue goes on."""

    def _exists(self, name: str) -> bool:
        return not name.startswith(PAUSE) and super()._exists(name)


@mutant("claim")
class LimitForEachQueue(Tables):
    """The limit counts anew in each queue."""

    def claim(
        self, worker: str, queues: Sequence[str], limit: int, types: Collection[str] | None, now: Time
    ) -> list[Job]:
        claimed: list[Job] = []
        for queue in queues:
            claimed += super().claim(worker, [queue], limit, types, now)
        return claimed


# Types.


@mutant("types")
class TypesIgnored(Tables):
    """A claim takes what it doesn't know."""

    def _take(self, queue: str, types: Collection[str] | None, limit: int, *more: Any) -> list[Job]:
        return super()._take(queue, None, limit, *more)


@mutant("types")
class TypesByPrefix(Unsorted):
    """A type is taken for another one that begins like it."""

    def known(self, job: Job, types: Collection[str] | None) -> bool:
        return types is None or job.type.startswith(tuple(types))


@mutant("types")
class NoTypesMeansAll(Unsorted):
    """Who knows nothing gets everything."""

    def known(self, job: Job, types: Collection[str] | None) -> bool:
        return not types or job.type in types


@mutant("types")
class TypeAfterType(Unsorted):
    """The jobs of one type come before those of the next, whatever their priority."""

    def order(self, job: Job) -> tuple[Any, ...]:
        return (job.type, *super().order(job))


@mutant("types")
class OneTypeForEachClaim(Unsorted):
    """A claim stops at the first job of another type."""

    def _take(self, queue: str, types: Collection[str] | None, limit: int, *more: Any) -> list[Job]:
        taken = super()._take(queue, types, limit, *more)
        return [job for place, job in enumerate(taken) if {one.type for one in taken[: place + 1]} == {taken[0].type}]


@mutant("types")
class FilteredTooLate(Unsorted):
    """The first jobs are looked at, and those that are known are taken: foreign ones stand in the way."""

    def _take(self, queue: str, types: Collection[str] | None, limit: int, *more: Any) -> list[Job]:
        return [job for job in super()._take(queue, None, limit, *more) if types is None or job.type in types]


@mutant("types")
class ForeignSetAside(Tables):
    """What a claim doesn't know is put to rest."""

    def _take(self, queue: str, types: Collection[str] | None, limit: int, *more: Any) -> list[Job]:
        for job in list(self.jobs.values()):
            if job.queue == queue and job.state is State.AVAILABLE and types is not None and job.type not in types:
                self._put(replace(job, state=State.SCHEDULED, run_at=more[-1] + 2_000, version=job.version + 1))
        return super()._take(queue, types, limit, *more)


@mutant("types")
class PromotesOnlyWhatItKnows(Tables):
    """Others' jobs stay scheduled until somebody comes who knows them."""

    def claim(
        self, worker: str, queues: Sequence[str], limit: int, types: Collection[str] | None, now: Time
    ) -> list[Job]:
        self.wanted_types = types
        return super().claim(worker, queues, limit, types, now)

    def _promote(self, queue: str, now: Time) -> None:
        heap = self._due[queue]
        known = [item for item in heap if self.wanted_types is None or self.jobs[item[3]].type in self.wanted_types]
        others = [item for item in heap if item not in known]
        heap[:] = sorted(known)
        super()._promote(queue, now)
        heap[:] = sorted([*heap, *others])


@mutant("types")
class PromotedInSilence(Tables):
    """What a claim promotes and doesn't take is no news."""

    def claim(
        self, worker: str, queues: Sequence[str], limit: int, types: Collection[str] | None, now: Time
    ) -> list[Job]:
        claimed = super().claim(worker, queues, limit, types, now)
        self.news = {topic for topic in self.news if not topic.startswith("queue:")}
        return claimed


@mutant("types")
class TurnsTakeAnything(MemoryEngine):
    """A turn forgets which types were asked for."""

    async def _turn(
        self, changes: Sequence[Change], worker: str, queues: list[str], limit: int, types: list[str] | None
    ) -> tuple[list[Applied | Conflict], list[Job]]:
        return await super()._turn(changes, worker, queues, limit, None)


@mutant("types")
class FloorForAllTypes(Tables):
    """Where the last claims were is remembered, whichever types they asked for."""

    floor: tuple[int, int] = (0, -1)

    def _take(self, queue: str, types: Collection[str] | None, limit: int, *more: Any) -> list[Job]:
        found = super()._take(queue, types, 10_000, *more)
        taken = [job for job in found if self._order[job.id] > self.floor[1]][:limit]
        full = self.floor[0] + 1 if taken and len(taken) == limit else 0
        self.floor = (full, min(self._order[job.id] for job in taken) if full > 5 else -1)
        for job in self.jobs.values():  # back into the order
            if job.state is State.AVAILABLE and job.queue == queue and job not in taken:
                self._put(job)
        return taken


@mutant("types")
class TypesThatWere(Tables):
    """The types of a queue are those that it ever had."""

    def ready_types(self, queue: str) -> list[str]:
        return sorted(self._ready[queue])


@mutant("history")
class ClaimWithoutAnEntry(Tables):
    """A claim leaves no trace in the history."""

    def _log(self, entry: Entry) -> None:
        if entry.event != Event.CLAIM:
            super()._log(entry)


@mutant("claim")
class EpochStandsStill(Tables):
    """A claim hands out the lease of the claim before."""

    def claim(
        self, worker: str, queues: Sequence[str], limit: int, types: Collection[str] | None, now: Time
    ) -> list[Job]:
        claimed = super().claim(worker, queues, limit, types, now)
        for n, job in enumerate(claimed):
            if job.epoch > 1:
                claimed[n] = self.jobs[job.id] = replace(job, epoch=job.epoch - 1)
        return claimed


# Inserts and keys.


@mutant("insert")
class InsertOverwrites(Tables):
    """A job that is inserted again begins anew."""

    def insert(self, jobs: Sequence[Job], parent: Lease | None) -> list[Inserted]:
        for job in jobs:
            if job.id in self.jobs:
                self._put(job)
        return super().insert(jobs, parent)


@mutant("insert")
class InsertStopsHalfway(Tables):
    """A conflict leaves behind what came before it in the same call."""

    def insert(self, jobs: Sequence[Job], parent: Lease | None) -> list[Inserted]:
        answers: list[Inserted] = []
        for job in jobs:
            answers += super().insert([job], parent)
        return answers


@mutant("insert")
class DigestIgnored(Tables):
    """A key stands for any arguments."""

    def insert(self, jobs: Sequence[Job], parent: Lease | None) -> list[Inserted]:
        try:
            return super().insert(jobs, parent)
        except KeyConflict:
            holders = [self.keys.get((job.type, job.key or "")) for job in jobs]
            return [
                Inserted(holder.job if holder else job.id, False) for job, holder in zip(jobs, holders, strict=True)
            ]


@mutant("insert")
class KeyDiesWithItsJob(Tables):
    """A pruned job takes its key along, window or not."""

    def _remove(self, job: Job, now: Time) -> None:
        super()._remove(job, now)
        self.keys.pop((job.type, job.key or ""), None)


@mutant("insert")
class ChildCountedAgain(Tables):
    """A child that is inserted again is counted again."""

    def insert(self, jobs: Sequence[Job], parent: Lease | None) -> list[Inserted]:
        for job in jobs:
            if job.id in self.jobs and job.parent is not None:
                total, arrived = self.groups[job.parent, job.group or ""]
                self.groups[job.parent, job.group or ""] = (total + 1, arrived)
        return super().insert(jobs, parent)


# What goes with a change.


@mutant("record")
class LastStepWins(Tables):
    """A step's record is whatever was written last."""

    def _record(self, step: Step) -> Recorded:
        self._set(self.steps.setdefault(step.job, {}), step.path, step)
        return Recorded(step, True)


@mutant("summaries")
class RepeatedStepsCountedAgain(Tables):
    """A step that is recorded again is counted again."""

    def _record(self, step: Step) -> Recorded:
        answer = super()._record(step)
        if answer.step is not step:
            self._count(step, 1)
        return answer


@mutant("summaries")
class ReplacedStepsStayCounted(Tables):
    """A step that was started counts as started for ever."""

    def _record(self, step: Step) -> Recorded:
        standing = self.steps.get(step.job, {}).get(step.path)
        answer = super()._record(step)
        if standing is not None and standing.state is StepState.STARTED:
            self._count(standing, 1)
        return answer


@mutant("summaries")
class DroppedStepsStayCounted(Tables):
    """What is dropped is never counted off."""

    def _count(self, step: Step, more: int) -> None:
        if more > 0 or step.path in self.steps.get(step.job, {}):
            super()._count(step, more)


@mutant("summaries")
class OwnRecordsCounted(Tables):
    """Waits and log lines are counted as if they were steps."""

    def _count(self, step: Step, more: int) -> None:
        super()._count(replace(step, path=step.path.removeprefix("~")), more)


@mutant("summaries")
class LoadedStepsUncounted(Tables):
    """A job that was moved here has no counts."""

    def load(self, wholes: Sequence[Whole], keys: Sequence[HeldKey], records: Sequence[Record]) -> int:
        before = dict(self.counts)
        answer = super().load(wholes, keys, records)
        self.counts = before
        return answer


@mutant("summaries")
class SummariesOutliveTheirJobs(Tables):
    """A pruned job leaves its counts behind."""

    def _remove(self, job: Job, now: Time) -> None:
        counts = self.counts.get(job.id)
        super()._remove(job, now)
        if counts is not None:
            self.counts[job.id] = counts


@mutant("summaries")
class PagesBeginAnew(MemoryEngine):
    """A page of steps begins anew behind a step that is gone."""

    async def _steps_page(self, job: str, after: str, limit: int) -> list[StepHead]:
        try:
            return await super()._steps_page(job, after, limit)
        except NotFound:
            return await super()._steps_page(job, "", limit)


@mutant("cargo")
class FailedStepsStay(Tables):
    """A new attempt finds the failures of the one before."""

    def commit(self, change: Change) -> Applied | Conflict:
        return super().commit(replace(change, drops_failed=False))


@mutant("cargo")
class EditForgotten(Tables):
    """A replay runs with the arguments that failed."""

    def commit(self, change: Change) -> Applied | Conflict:
        head = self.jobs.get(change.job.id)
        if head is not None:
            change = replace(change, job=replace(change.job, args=head.args, digest=head.digest))
        return super().commit(change)


@mutant("commit")
class InboxOverwritten(Tables):
    """An owner writes back the inbox it knew, and with it loses what came meanwhile."""

    def commit(self, change: Change) -> Applied | Conflict:
        head = self.jobs.get(change.job.id)
        if head is not None and change.epoch is not None and refusal(head, change) is None:
            self.jobs[head.id] = replace(head, inbox=change.job.inbox)
        return super().commit(change)


@mutant("cargo")
class ArrivalCountedTwice(Tables):
    """A child that settles again arrives again."""

    def commit(self, change: Change) -> Applied | Conflict:
        head = self.jobs.get(change.job.id)
        answer = super().commit(change)
        if isinstance(answer, Applied) and head is not None and head.arrived and change.job.state in SETTLED:
            return replace(answer, missing=self._arrive(head))
        return answer


@mutant("cargo")
class WaitForNobody(Tables):
    """A parent goes to sleep over children who are all in."""

    def commit(self, change: Change) -> Applied | Conflict:
        if change.event == Event.SUSPEND and refusal(self.jobs.get(change.job.id), change) is None:
            return Applied(self._apply(self.jobs[change.job.id], change).version)
        return super().commit(change)


@mutant("commit")
class ConflictPoisonsTheBatch(MemoryEngine):
    """After the first conflict of a batch nothing more of it is carried out."""

    async def _commit(self, changes: Sequence[Change]) -> list[Applied | Conflict]:
        answers: list[Applied | Conflict] = []
        for change in changes:
            if any(isinstance(answer, Conflict) for answer in answers):
                answers.append(Conflict(change.job.id, LEASE_LOST))
            else:
                answers += await super()._commit([change])
        return answers


@mutant("record")
class StepsAreVersions(Tables):
    """A recorded step makes a new version of its job."""

    def record(self, step: Step) -> Recorded | Conflict:
        answer = super().record(step)
        if isinstance(answer, Recorded):
            job = self.jobs[step.job]
            self.jobs[step.job] = replace(job, version=job.version + 1)
        return answer


# Reading, counting, pruning.


@mutant("reads")
class PageOffByOne(Tables):
    """Each page but the first leaves out its first job."""

    def find(self, where: Where, after: str, limit: int) -> list[Job]:
        found = super().find(where, after, limit + 1)
        return found[1:] if after else found[:limit]


@mutant("reads")
class PageRepeats(Tables):
    """Each page begins with the last job of the page before."""

    def find(self, where: Where, after: str, limit: int) -> list[Job]:
        again = [self.jobs[after]] if after in self.jobs else []
        return (again + super().find(where, after, limit))[:limit]


@mutant("prune")
class CountersDrift(Tables):
    """Counters forget that a pruned job was there."""

    def _remove(self, job: Job, now: Time) -> None:
        super()._remove(job, now)
        self.tally[job.queue, job.state] += 1


@mutant("prune")
class PruneTakesTheLiving(Tables):
    """A date is enough to be pruned."""

    def prune(self, limit: int, now: Time) -> int:
        old = [job for job in self.jobs.values() if job.prune_at is not None and job.prune_at <= now]
        for job in old[:limit]:
            self._remove(job, now)
        return len(old[:limit])


@mutant("prune")
class PruneTakesKin(Tables):
    """A child may be gone before its parent has looked at it."""

    def _has_live_kin(self, job: Job) -> bool:
        return False


@mutant("prune")
class PruneLeavesSteps(Tables):
    """A pruned job's steps stay."""

    def _remove(self, job: Job, now: Time) -> None:
        steps = self.steps.get(job.id, {})
        super()._remove(job, now)
        self.steps[job.id] = steps


# Records, beats, waiting.


@mutant("records")
class VersionRestarts(Tables):
    """A record that was removed and written again looks as if nothing had happened."""

    def put_record(
        self, name: str, value: str | None, expected: int | None, jobs: Sequence[Job], now: Time
    ) -> Record | Conflict:
        answer = super().put_record(name, value, expected, jobs, now)
        if value is None:
            self.records.pop(name, None)
        return answer


@mutant("records")
class JobsInSpiteOfAConflict(Tables):
    """Whoever comes second writes no record, but inserts its jobs: a tick without a compare."""

    def put_record(
        self, name: str, value: str | None, expected: int | None, jobs: Sequence[Job], now: Time
    ) -> Record | Conflict:
        answer = super().put_record(name, value, expected, jobs, now)
        if isinstance(answer, Conflict):
            self.insert(jobs, None)
        return answer


@mutant("records")
class RecordWithoutItsJobs(Tables):
    """The record is written, and its jobs are forgotten."""

    def put_record(
        self, name: str, value: str | None, expected: int | None, jobs: Sequence[Job], now: Time
    ) -> Record | Conflict:
        return super().put_record(name, value, expected, (), now)


@mutant("records")
class RecordBeforeItsJobs(MemoryEngine):
    """The record and its jobs are two acts: somebody sees the one without the others."""

    async def _put_record(
        self, name: str, value: str | None, expected: int | None, jobs: Sequence[Job]
    ) -> Record | Conflict:
        answer = await super()._put_record(name, value, expected, ())
        if jobs and isinstance(answer, Record):
            await asyncio.sleep(BETWEEN_CHECK_AND_WRITE_SECONDS)
            await self._insert(jobs, None)
        return answer


@mutant("records")
class KnownJobsWrittenAgain(Tables):
    """A job that comes with a record begins anew, whatever had become of it."""

    def put_record(
        self, name: str, value: str | None, expected: int | None, jobs: Sequence[Job], now: Time
    ) -> Record | Conflict:
        answer = super().put_record(name, value, expected, jobs, now)
        for job in jobs if isinstance(answer, Record) else ():
            self._put(job)
        return answer


@mutant("beat")
class StrayUnseen(Tables):
    """A lease whose worker never heard of it is never told."""

    def beat(self, presence: Presence, now: Time) -> Beat:
        return replace(super().beat(presence, now), stray=())


@mutant("beat")
class CancelUntold(Tables):
    """A cancelled job is only lost."""

    def beat(self, presence: Presence, now: Time) -> Beat:
        told = super().beat(presence, now)
        return replace(told, cancelled=(), lost=told.lost + told.cancelled)


@mutant("wait")
class NewsMissed(MemoryEngine):
    """What happened between two waits is not heard by the second."""

    async def _wait(self, topics: list[str], timeout: float, after: int) -> int:
        return await super()._wait(topics, timeout, self._wakeups._mark)


@mutant("wait")
class WorkerNotWoken(Tables):
    """A worker hears of a cancelled job with its next beat, and not before."""

    def commit(self, change: Change) -> Applied | Conflict:
        answer = super().commit(change)
        self.news = {topic for topic in self.news if not topic.startswith("worker:")}
        return answer


@mutant("time")
class TimeOfTheCaller(Tables):
    """A claim is stamped with the time at which the job was made, not with the store's."""

    def claim(
        self, worker: str, queues: Sequence[str], limit: int, types: Collection[str] | None, now: Time
    ) -> list[Job]:
        claimed = super().claim(worker, queues, limit, types, now)
        for n, job in enumerate(claimed):
            claimed[n] = self.jobs[job.id] = replace(job, claimed_at=job.created_at)
        return claimed


# SQLite: one statement is not what it should be. Add one by naming the law that it breaks, the statement, what it
# says, and the bug.

STATEMENTS = dict(vars(sqlite_engine.SQL))  # type: ignore[attr-defined]
"""The statements of SQLite, without a bug."""


def in_statement(name: str, law: str, statement: str, right: str, wrong: str) -> type[Engine]:
    """SQLite with one piece of one statement replaced. The piece must be there, so that no mutant rots unseen."""
    assert right in STATEMENTS[statement], f"{statement} no longer says {right!r}"

    class Mutant(SqliteEngine):
        @classmethod
        def from_url(cls, url: str, clock: Clock) -> SqliteEngine:
            # All mutants of a law share a process and these statements: no bug may help another one to be caught.
            changed = {statement: STATEMENTS[statement].replace(right, wrong)}
            vars(sqlite_engine.SQL).update(STATEMENTS | changed)  # type: ignore[attr-defined]
            return super().from_url(url, clock)

    MUTANTS[name] = law
    return Mutant


SqliteBeginsDeferred = in_statement("SqliteBeginsDeferred", "races", "begin", "begin immediate", "begin")
SqliteLastStepWins = in_statement(
    "SqliteLastStepWins", "record", "replace_steps", "where step.state = 'started'", "where true"
)
SqliteTiesById = in_statement("SqliteTiesById", "claim", "ready", "run_at, n limit", "run_at, id limit")
SqliteTypesByLike = in_statement("SqliteTypesByLike", "types", "ready", "type = :type", "type like :type || '%'")
SqliteEarlyTypesOnly = in_statement(
    "SqliteEarlyTypesOnly", "types", "ready_types", "type > kind.type", "type > kind.type || 'z'"
)
SqliteExpiredPromoted = in_statement(
    "SqliteExpiredPromoted", "claim", "due", "(expires_at is null or expires_at > :now)", "true"
)
SqlitePrefixByLike = in_statement(
    "SqlitePrefixByLike", "records", "records", "substr(name, 1, length(:prefix)) = :prefix", "name like :prefix || '%'"
)
SqliteStepsStay = in_statement("SqliteStepsStay", "prune", "forget_steps", "job = :n", "job = -:n")
SqliteArrivesInAnyGroup = in_statement(
    "SqliteArrivesInAnyGroup", "cargo", "arrive", "and name = :name", "and :name = :name"
)
SqliteArrivalsUncounted = in_statement(
    "SqliteArrivalsUncounted", "cargo", "arrive", "arrived = arrived + 1", "arrived = arrived"
)
SqliteNewStepsReplaced = in_statement(
    "SqliteNewStepsReplaced", "summaries", "replace_steps", "and step.n <= :fence", "and :fence <> 0"
)
SqliteLastStepStays = in_statement(
    "SqliteLastStepStays", "summaries", "find_last", "and last = :last", "and last = -:last"
)
SqliteNamesUnbounded = in_statement(
    "SqliteNamesUnbounded", "summaries", "counters", "select count(*) from", "select 0 from"
)
SqliteCountersDrift = in_statement("SqliteCountersDrift", "reads", "add_tally", "jobs + excluded.jobs", "jobs + 1")

# Shared limits in SQLite.

SqlitePermitsWithoutTheirEpoch = in_statement(
    "SqlitePermitsWithoutTheirEpoch", "step_limits", "stale_permits", "and epoch = permit.epoch", ""
)
SqliteReservationsStay = in_statement(
    "SqliteReservationsStay", "step_limits", "stale_permits", "else until <= :now", "else :now is null"
)
SqliteReservationsUncounted = in_statement(
    "SqliteReservationsUncounted",
    "step_limits",
    "count_permits",
    "where key = :key",
    "where key = :key and until is null",
)
SqliteMoreAreWokenThanARateHasUnits = in_statement(
    "SqliteMoreAreWokenThanARateHasUnits", "step_limits", "count_reserved", "select count(*)", "select 0 * count(*)"
)
SqliteParkedJobsSleep = in_statement(
    "SqliteParkedJobsSleep", "step_limits", "keys_to_look_at", "state = 'pending'", "state = 'available'"
)
SqliteNobodyHearsOfRoom = in_statement(
    "SqliteNobodyHearsOfRoom", "limits", "recheck", "at = min(coalesce(at, :at), :at)", "at = nullif(at, :at)"
)
SqliteNobodyHearsOfNewSettings = in_statement(
    "SqliteNobodyHearsOfNewSettings", "limits", "recheck_limit", "set at = 0", "set at = at"
)
SqliteOneLookIsEnough = in_statement(
    "SqliteOneLookIsEnough", "limits", "look_again", "at = :at", "at = nullif(:at, :at)"
)
SqliteMovedBehindNoKey = in_statement(
    "SqliteMovedBehindNoKey", "limits", "move_behind", "limit_key = :key", "limit_key = limit_key || nullif(:key, :key)"
)
SqliteKeysWithWaitersAreForgotten = in_statement(
    "SqliteKeysWithWaitersAreForgotten", "limits", "waited_for", "where exists", "where not exists"
)
SqliteRatesKeepTheirFirstBucket = in_statement(
    "SqliteRatesKeepTheirFirstBucket", "rates", "put_bucket", "value = excluded.value", "value = record.value"
)
SqliteBudgetsWakeNobody = in_statement(
    "SqliteBudgetsWakeNobody", "budgets", "recheck_budget", "key >= :first and", "key >= :beyond and"
)

# Unique names and fair keys in SQLite.

SqliteNoTombstones = in_statement("SqliteNoTombstones", "unique", "name_holders", "left join job", "join job")
SqliteTombstonesWithoutAState = in_statement(
    "SqliteTombstonesWithoutAState", "unique", "bury_name", "digest = digest || ' ' || :state", "digest = digest"
)
SqliteTheFirstHolderStays = in_statement(
    "SqliteTheFirstHolderStays", "unique", "set_key", "do update set job = excluded.job", "do update set job = job"
)
SqliteRoundsBeginAnew = in_statement(
    "SqliteRoundsBeginAnew", "fairness", "fair_keys", "fair > :after and", "fair > substr(:after, 1, 0) and"
)
SqliteFairKeysKnowNoPriority = in_statement(
    "SqliteFairKeysKnowNoPriority", "fairness", "fair_level", "order by priority desc", "order by priority"
)


# Moving.


@mutant("move")
class MarkIsOnlyARecord(Tables):
    """A store whose jobs are moved goes on taking others."""

    def mark(self) -> str:
        return ""


@mutant("move")
class LoadsWhatIsThere(Tables):
    """A page that is loaded again is counted again."""

    def load(self, wholes: Sequence[Whole], keys: Sequence[HeldKey], records: Sequence[Record]) -> int:
        for whole in wholes:
            if whole.job.id in self.jobs and whole.job.parent is not None and not whole.job.arrived:
                self._grow(whole.job, 1)
        return super().load(wholes, keys, records)


@mutant("move")
class CountsWhoHasArrived(Tables):
    """A parent waits for children that had arrived in the other store."""

    def load(self, wholes: Sequence[Whole], keys: Sequence[HeldKey], records: Sequence[Record]) -> int:
        fresh = [whole.job for whole in wholes if whole.job.id not in self.jobs]
        new = super().load(wholes, keys, records)
        for job in fresh:
            if job.parent is not None and job.arrived:
                self._grow(job, 1)
        return new


@mutant("move")
class LoadsBackwards(Tables):
    """The order of insertion is another one after a move."""

    def load(self, wholes: Sequence[Whole], keys: Sequence[HeldKey], records: Sequence[Record]) -> int:
        return super().load(wholes[::-1], keys, records)


@mutant("move")
class KeysOfJobsThatAreThere(Tables):
    """A key that outlives its job stays behind."""

    def list_keys(self, after: tuple[str, str], limit: int) -> list[HeldKey]:
        return [key for key in super().list_keys(after, limit) if key.job in self.jobs]


@mutant("move")
class RemovedRecordsForgotten(Tables):
    """A removed record begins at version 1 again."""

    def load(self, wholes: Sequence[Whole], keys: Sequence[HeldKey], records: Sequence[Record]) -> int:
        return super().load(wholes, keys, [record for record in records if record.value])


# Shared limits.


@mutant("budgets")
class BudgetsAreUnlimited(Tables):
    """Nothing that was spent counts."""

    def put_bucket(self, key: str, bucket: Bucket, now: Time) -> None:
        """Write nothing."""


@mutant("budgets")
class AnythingLeftIsEnough(Tables):
    """A step starts while anything is left, whatever it costs."""

    class permits_kind(Permits):
        def _start_time(self, use: Use, held: int) -> Time | None:
            return super()._start_time(replace(use, units=min(use.units, 1)), held)


@mutant("budgets")
class SpendingIsNotSettled(Tables):
    """What a step reserved counts, not what it spent."""

    class permits_kind(Permits):
        def _settle(self, ask: Ask) -> None:
            """Settle nothing."""


@mutant("budgets")
class SettledWithEveryReply(Tables):
    """Spending is taken again when an answer was lost and the step asks again."""

    class permits_kind(Permits):
        def end(self, job: str, path: str | None = None) -> None:
            if path is None:
                super().end(job, path)


@mutant("budgets")
class AdditionsAreNotHeardOf(Tables):
    """What a person adds wakes nobody."""

    def recheck_limit(self, limit: str) -> None:
        """Do nothing."""


@mutant("budgets")
class WokenWhateverTheyNeed(Tables):
    """A job that waits for its budget is woken as soon as anything is left."""

    def bucket(self, key: str) -> Bucket | None:
        found = super().bucket(key)
        return None if found is None else replace(found, tokens=found.tokens + 1_500_000)


@mutant("budgets")
class GrantsAreForgotten(Tables):
    """A bucket forgets what was granted."""

    def put_bucket(self, key: str, bucket: Bucket, now: Time) -> None:
        super().put_bucket(key, replace(bucket, granted=0), now)


@mutant("budgets")
class BudgetsOutliveTheirJobs(Tables):
    """The budget of a job stays when the job is removed."""

    def prune(self, limit: int, now: Time) -> int:
        kept = dict(self.records)
        gone = super().prune(limit, now)
        self.records.update(kept)
        return gone


@mutant("limits")
class PermitsOutliveTheirLeases(Tables):
    """A permit counts, although its lease is over."""

    class permits_kind(Permits):
        def end(self, job: str, path: str | None = None) -> None:
            if path is not None:
                super().end(job, path)

    def is_current(self, job: str, epoch: int) -> bool:
        return True


@mutant("limits")
class NobodyHearsOfRoom(Tables):
    """The end of a permit lets nobody look at its key."""

    def recheck(self, key: str, at: Time) -> None:
        """Do nothing."""


@mutant("limits")
class OneLookIsEnough(Tables):
    """A claim that looked at a key removes the note, though room and waiting jobs remain."""

    def _look_again(self, queue: str, key: str, blocks: dict[str, Time | None], permits: Permits) -> None:
        self._set(self._rechecks[queue], key, None)


@mutant("limits")
class OnlyTheFirstLimitCounts(Tables):
    """Of several permits, only the first has to be free."""

    class permits_kind(Permits):
        def block(self, uses: Sequence[Use], job: str, path: str = "") -> Block | None:
            return super().block(uses[:1], job, path)


@mutant("limits")
class StoppedByAnotherKeyAndLost(Tables):
    """A job that is stopped by another key waits behind none."""

    def _move_behind(self, job: Job, key: str) -> None:
        self._set(self._awaits, job.id, key)


@mutant("rates")
class RatesAreForgotten(Tables):
    """Every act finds a full bucket."""

    def bucket(self, key: str) -> Bucket | None:
        found = super().bucket(key)
        return None if found is None or not found.closed_until else found


@mutant("rates")
class BucketsRefillTwice(Tables):
    """A bucket is filled by another clock than the store's: one that is ahead."""

    def put_bucket(self, key: str, bucket: Bucket, now: Time) -> None:
        super().put_bucket(key, replace(bucket, at=bucket.at - 30_000), now)


@mutant("rates")
class ClosedLimitsStayOpen(Tables):
    """A provider's "slow down" is not heard."""

    def bucket(self, key: str) -> Bucket | None:
        found = super().bucket(key)
        return None if found is None else replace(found, closed_until=0)


@mutant("step_limits")
class NothingIsKeptForTheWoken(Tables):
    """A job is woken for a permit, and somebody else takes it."""

    class permits_kind(Permits):
        def reserve(self, key: str, job: Job) -> None:
            """Keep nothing."""


@mutant("step_limits")
class KeptForThoseThatCannotStart(Tables):
    """A permit is kept for a job although a limit of its own is full."""

    class permits_kind(Permits):
        def _is_full(self, key: str, job: str) -> bool:
            return False


@mutant("step_limits")
class KeptForEver(Tables):
    """A permit that nobody comes for is never passed on."""

    def put_permit(self, permit: Permit) -> None:
        super().put_permit(permit if permit.until is None else replace(permit, until=permit.until + 10_000_000))


@mutant("step_limits")
class ParkedForEver(Tables):
    """A job that gave up its slot is not woken."""

    def _wake_parked(self, *claim: Any) -> None:
        """Wake nobody."""


@mutant("step_limits")
class LostAnswersArePaidTwice(Tables):
    """A step that asks again takes from the rate again."""

    class permits_kind(Permits):
        def _is_admitted(self, ask: Ask) -> bool:
            return False


@mutant("limits")
class LimitsStayAsTheyWere(Tables):
    """A person's new settings are not heard."""

    def settings(self, limit: str) -> Settings:
        self.first: dict[str, Settings] = getattr(self, "first", {})
        return self.first.setdefault(limit, super().settings(limit))


@mutant("limits")
class LimitsAreForNobody(Tables):
    """Jobs start without permits."""

    class permits_kind(Permits):
        def block(self, uses: Sequence[Use], job: str, path: str = "") -> Block | None:
            return None if not path else super().block(uses, job, path)


# Unique names.


@mutant("unique")
class WindowByTheCallersClock(Tables):
    """A window ends by the clock of the machine that submits."""

    def _same_as(self, job: Job, held: Key | None, fresh: Mapping[str, Job]) -> str | None:
        return super()._same_as(replace(job, created_at=system_clock()), held, fresh)


@mutant("unique")
class NamesWithoutALock(MemoryEngine):
    """It looks who has a name in one act, and inserts in another."""

    async def _insert(self, jobs: Sequence[Job], parent: Lease | None) -> list[Inserted]:
        answers: list[Inserted] = []
        for job in jobs:
            unique = job.options.unique
            if unique is None:
                answers += await super()._insert([job], parent)
                continue
            name = (UNIQUE, unique.key)
            found = await self._look(lambda tables, job=job, name=name: tables._same_as(job, tables.keys.get(name), {}))  # type: ignore[misc]
            time.sleep(BETWEEN_CHECK_AND_WRITE_SECONDS)  # noqa: ASYNC251 - blocks, so that other threads get in
            if found is not None:
                answers.append(existing_for(job, found))
            else:
                sure = replace(job, options=replace(job.options, unique=replace(unique, states=())))
                answers += await super()._insert([sure], parent)
        return answers


@mutant("unique")
class NoTombstones(Tables):
    """A pruned job takes its unique name along, window or not."""

    def _forget_name(self, name: tuple[str, str], job: Job, now: Time) -> None:
        self._set(self.keys, name, None)


@mutant("unique")
class TombstonesWithoutAState(Tables):
    """A tombstone doesn't say how its job ended."""

    def _forget_name(self, name: tuple[str, str], job: Job, now: Time) -> None:
        held = self.keys.get(name)
        super()._forget_name(name, job, now)
        if held is not None and name in self.keys:
            self.keys[name] = held


@mutant("unique")
class AReplacedJobKeepsItsName(Tables):
    """A job that replaces another leaves the name to the cancelled one."""

    def _apply(self, head: Job, change: Change) -> Job:
        before = dict(self.keys)
        job = super()._apply(head, change)
        self.keys = before
        return job


@mutant("unique")
class NobodyIsSaidToHaveANameThatIsOld(Tables):
    """Who has a name is told only while the job is there: tombstones are left out."""

    def holders(self, names: Collection[tuple[str, str]]) -> dict[tuple[str, str], HeldKey]:
        return {name: one for name, one in super().holders(names).items() if one.job in self.jobs}


@mutant("unique")
class EveryStateCounts(Tables):
    """A job that has ended keeps others out."""

    def _same_as(self, job: Job, held: Key | None, fresh: Mapping[str, Job]) -> str | None:
        assert job.options.unique is not None
        unique = replace(job.options.unique, states=tuple(State))
        return super()._same_as(replace(job, options=replace(job.options, unique=unique)), held, fresh)


# Fair keys.


@mutant("fairness")
class NobodyKeepsTheRound(Tables):
    """Every claim begins with the first key."""

    def _put_turn(self, name: str, fair: str, now: Time) -> None:
        """Do nothing."""


@mutant("fairness")
class OneRoundForAllTypes(Tables):
    """Workers that know other types move the round past keys that they can't serve."""

    def _last_turn(self, name: str) -> str | None:
        return super()._last_turn(_without_part(name, -2))

    def _put_turn(self, name: str, fair: str, now: Time) -> None:
        super()._put_turn(_without_part(name, -2), fair, now)


@mutant("fairness")
class OneRoundForAllPriorities(Tables):
    """Urgent jobs move the round of the others."""

    def _last_turn(self, name: str) -> str | None:
        return super()._last_turn(_without_part(name, -1))

    def _put_turn(self, name: str, fair: str, now: Time) -> None:
        super()._put_turn(_without_part(name, -1), fair, now)


@mutant("fairness")
class FairKeysAreIgnored(Tables):
    """Jobs with fair keys are claimed in the order of their submits."""

    def _make_ready(self, job: Job) -> None:
        LimitedRows._make_ready(self, job)

    def _push_fair(self, job: Job, key: str | None) -> None:
        """Do nothing."""


@mutant("fairness")
class NoTurnsBehindALimit(Tables):
    """Jobs that wait behind a limit's key are claimed in the order of their submits."""

    def _push_fair(self, job: Job, key: str | None) -> None:
        if key is None:
            super()._push_fair(job, key)


@mutant("fairness")
class JobsWithoutAKeyGoFirst(Tables):
    """The round never passes the jobs without a fair key."""

    def _last_turn(self, name: str) -> str | None:
        return super()._last_turn(name) or None


def _without_part(name: str, place: int) -> str:
    parts = name.split("/")
    parts[place] = "*"
    return "/".join(parts)


@mutant("step_limits")
class KeptForJobsThatEnded(Tables):
    """A permit stays kept for a job that was woken for it and then cancelled."""

    def commit(self, change: Change) -> Applied | Conflict:
        before = [one for one in self.permits_of(change.job.id) if one.until is not None]
        answer = super().commit(change)
        if change.before is State.AVAILABLE:
            for one in before:
                self.put_permit(one)
        return answer
