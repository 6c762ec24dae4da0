"""Rows in Python, and what each act of the contract does to them: shared by the memory and the file engine.

Must not decide what a change is (core does), and must not use threads, files or a clock.
"""

from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from heapq import heappop, heappush

from msgspec.structs import replace

from holdfast.core.budgets import budget_records
from holdfast.core.fairness import FAIR, TURN_KEPT_MS, last_key, round_name, turn_value
from holdfast.core.lifecycle import TERMINAL, applied, decide, entry_of, refusal, submit_entry
from holdfast.core.model import (
    OUTRUN,
    PAGE_LIMIT,
    Admission,
    Applied,
    Ask,
    Beat,
    Change,
    Conflict,
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
    Where,
)
from holdfast.core.moves import MOVED, HeldKey, Whole
from holdfast.core.searches import matches
from holdfast.core.shared_limits import BUCKET, BUCKET_KEPT_MS, LIMIT, changed_by, frees_permits
from holdfast.core.summaries import ONE, StepCounts, StepSummary, counter_for, is_step, summary_from
from holdfast.core.unique import UNIQUE, counts, existing_for, stamp, until
from holdfast.engines.contract import PROMOTE_LIMIT
from holdfast.engines.fair_rows import FairRows, FairSource, HeapWalk, is_expired
from holdfast.engines.fair_turns import PlainSource, Source, in_turn
from holdfast.engines.indexed_rows import DUE, Key, Ready
from holdfast.engines.limited_rows import LOOKED_AT
from holdfast.engines.liveness import beat_answer, beat_records, worker_records
from holdfast.engines.permits import RECHECK_LIMIT, Block, Permits
from holdfast.engines.records import PAUSE
from holdfast.engines.refusals import (
    ask_refusal,
    awaited_groups,
    children_are_in,
    holds,
    key_taken,
    lease_over,
    no_job_before,
    step_refusal,
)
from holdfast.engines.topics import DUE_WINDOW_MS, job_topic, loser_of, worker_topic
from holdfast.engines.wakeups import EVERYTHING


class Tables(FairRows):
    """All rows of a store, and the acts on them. Every act checks first and then writes, so it is all or nothing."""

    permits_kind = Permits

    # Acts.

    def insert(self, jobs: Sequence[Job], parent: Lease | None) -> list[Inserted]:
        """Insert jobs, or none of them."""
        if parent is not None and not holds(self.jobs.get(parent.job), parent.epoch):
            raise lease_over(parent)
        answers: list[Inserted] = []
        fresh: dict[str, Job] = {}
        keys: dict[tuple[str, str], Key] = {}
        for job in jobs:
            if job.id in self.jobs or job.id in fresh:
                answers.append(Inserted(job.id, False))
                continue
            if job.options.unique is not None:
                name = (UNIQUE, job.options.unique.key)
                if (holder := self._same_as(job, keys.get(name) or self.keys.get(name), fresh)) is not None:
                    answers.append(existing_for(job, holder))
                    continue
                keys[name] = _held_by(job)
            if job.key is not None:
                name = (job.type, job.key)
                key = keys.get(name) or self._live_key(name, job.created_at)
                if key is not None:
                    if key.digest != job.digest:
                        raise key_taken(job, key.job)
                    answers.append(Inserted(key.job, False))
                    continue
                keys[name] = Key(job.id, job.digest, job.key_until)
            fresh[job.id] = job
            answers.append(Inserted(job.id, True))
        for name, key in keys.items():
            self._set(self.keys, name, key)
        for job in fresh.values():
            self._add(job)
        return answers

    def claim(
        self, worker: str, queues: Sequence[str], limit: int, types: Collection[str] | None, now: Time
    ) -> list[Job]:
        """Promote due jobs, wake jobs whose steps may get a permit, then take jobs."""
        claimed: list[Job] = []
        permits = self.permits_kind(self, now)
        for queue in queues:
            if self._exists(PAUSE + queue):
                continue
            self._promote(queue, now)
            keys = self._keys_to_look_at(queue, now)
            asleep: dict[str, Time | None] = {}
            for key in keys:
                self._wake_parked(queue, key, asleep, permits, now)
            for job in self._take(queue, types, limit - len(claimed), keys, asleep, permits, now):
                self._apply(job, decide(job, Event.CLAIM, now, by=worker))
                claimed.append(self.jobs[job.id])
            if len(claimed) == limit:
                break
        permits.finish()
        return claimed

    def commit(self, change: Change) -> Applied | Conflict:
        """Apply one change."""
        head = self.jobs.get(change.job.id)
        conflict = refusal(head, change)
        if conflict is not None:
            return conflict
        assert head is not None
        if not all(self.missing(head.id, group) for group in awaited_groups(change)):
            return children_are_in(head)
        if (loser := loser_of(head.worker, change)) is not None:
            self.news.add(worker_topic(loser))
        job = self._apply(head, change)
        if frees_permits(change):
            self.permits_kind(self, change.at).end(job.id)
        return Applied(job.version, self._arrive(head) if change.arrives and not head.arrived else None)

    def record(self, step: Step) -> Recorded | Conflict:
        """Record one step."""
        return step_refusal(self.jobs.get(step.job), step) or self._record(step)

    def admit(self, asks: Sequence[Ask], now: Time) -> list[Admission | Conflict]:
        """Give steps their permits, or take them back."""
        permits = self.permits_kind(self, now)
        answers = [ask_refusal(self.jobs.get(ask.job), ask) or permits.admit(ask) for ask in asks]
        permits.finish()
        return answers

    def prune(self, limit: int, now: Time) -> int:
        """Remove jobs that needn't be kept any longer."""
        old = [job for job in self.jobs.values() if job.prune_at is not None and job.prune_at <= now]
        old.sort(key=lambda job: (job.prune_at, self._order[job.id]))
        gone = [job for job in old if job.state in TERMINAL and not self._has_live_kin(job)][:limit]
        for job in gone:
            self._remove(job, now)
            for record in budget_records(job.id):
                self._set(self.records, record, None)
        for name, key in list(self.keys.items()):
            if key.until is not None and key.until <= now:
                self._set(self.keys, name, None)
        self._drop_full_buckets(now - BUCKET_KEPT_MS, now)
        for turn in [one for one in self.records.values() if one.name.startswith(FAIR)]:
            if turn.at < now - TURN_KEPT_MS:
                self._set(self.records, turn.name, None)
        return len(gone)

    def put_record(
        self, name: str, value: str | None, expected: int | None, jobs: Sequence[Job], now: Time
    ) -> Record | Conflict:
        """Write or remove a record, and insert jobs. A removed record stays, empty, so that its version never comes
        back.
        """
        old = self.records.get(name)
        version = 0 if old is None else old.version
        held = 0 if old is None or old.value == "" else old.version
        if expected is not None and expected != held:
            return Conflict(name, OUTRUN, version=held)
        new = Record(name, value or "", version + 1, now)
        self._set(self.records, name, new)
        for job in jobs:
            if job.id not in self.jobs:
                self._add(job)
        self._tell_workers()
        if name.startswith((LIMIT, BUCKET)):
            self.recheck_limit(changed_by(name))
        if name == MOVED:  # loaded jobs can be claimed now, or the jobs are elsewhere now
            self.news.add(EVERYTHING)
        return new

    def load(self, wholes: Sequence[Whole], keys: Sequence[HeldKey], records: Sequence[Record]) -> int:
        """Load whole jobs, keys and records."""
        before = len(self.jobs)
        for whole in wholes:
            job = whole.job
            if job.id in self.jobs:
                continue
            self._put(job)
            self._set(self.entries, job.id, list(whole.entries))
            self._set(self.steps, job.id, {step.path: step for step in whole.steps})
            for step in whole.steps:
                self._count(step, 1)
            if job.parent is not None:
                self._grow(job, 0 if job.arrived else 1)
        for key in keys:
            if (key.type, key.key) not in self.keys:
                self._set(self.keys, (key.type, key.key), Key(key.job, key.digest, key.until))
        for record in records:
            held = self.records.get(record.name)
            if held is None or held.value != record.value or held.version < record.version:
                version = record.version if held is None else max(record.version, held.version + 1)
                self._set(self.records, record.name, replace(record, version=version))
        return len(self.jobs) - before

    def beat(self, presence: Presence, now: Time) -> Beat:
        """Note a heartbeat, and answer it."""
        worker = presence.worker
        if presence.leaving:
            self.presences.pop(worker, None)
        else:
            self.presences[worker] = replace(presence, beat_at=now)
        held = {id: self.jobs[id].epoch for id in self._held[worker]}
        cancelled = [
            running.job
            for running in presence.running
            if running.job in self.jobs and self.jobs[running.job].state is State.CANCELLED
        ]
        records = [name for name in beat_records(presence) if self._exists(name)]
        return beat_answer(presence, now, held, cancelled, records)

    # Reads.

    def find(self, where: Where, after: str, limit: int) -> list[Job]:
        """Find a page of jobs."""
        ids = sorted(self.jobs, reverse=where.newest_first)
        if after:
            ids = [id for id in ids if (id < after if where.newest_first else id > after)]
        found: list[Job] = []
        for id in ids:
            if len(found) == limit:
                break
            if matches(self.jobs[id], where):
                found.append(self.jobs[id])
        return found

    def page_in_order(self, after: str, limit: int) -> list[Job]:
        """List a page of jobs as they were inserted."""
        if after and after not in self.jobs:
            raise no_job_before(after)
        start = self._order[after] if after else -1
        ids = sorted((id for id in self.jobs if self._order[id] > start), key=self._order.__getitem__)
        return [self.jobs[id] for id in ids[:limit]]

    def list_keys(self, after: tuple[str, str], limit: int) -> list[HeldKey]:
        """List a page of keys."""
        names = sorted(name for name in self.keys if name > after)[:limit]
        return [HeldKey(*name, key.job, key.digest, key.until) for name in names for key in [self.keys[name]]]

    def mark(self) -> str:
        """Return the content of the mark of a move, or None."""
        return self.records[MOVED].value if MOVED in self.records else ""

    def next_due(self, queues: Sequence[str], now: Time) -> Time | None:
        """Return when the next job of these queues becomes due, or became due so recently that a claim may have missed
        it.
        """
        waiting = (
            run_at
            for queue in queues
            for run_at, _, version, id in self._due[queue]
            if run_at > now - DUE_WINDOW_MS and id in self.jobs and self.jobs[id].version == version
        )
        backing_off = (
            run_at
            for queue in queues
            for heap in (*self._ready[queue].values(), *(one.items() for one in self._fair[queue, None].values()))
            for _, run_at, _, version, id in heap
            if run_at > now - DUE_WINDOW_MS and id in self.jobs and self.jobs[id].version == version
            if self.jobs[id].recoveries > 1
        )
        rechecks = (
            at
            for queue in queues
            for at in self._rechecks[queue].values()
            if at > now - DUE_WINDOW_MS and at != LOOKED_AT
        )
        return min((*waiting, *backing_off, *rechecks), default=None)

    def ready_types(self, queue: str) -> list[str]:
        """List the types that can be claimed."""
        types = {type for type, heap in self._ready[queue].items() if any(map(self._ready_job, heap))}
        fair = self._fair[queue, None].items()
        types.update(type for type, heaps in fair if any(map(self._ready_job, heaps.items())))
        for key, queues in self._queues.items():
            heaps = self._waiting[queue, key].items() if queue in queues else ()
            types.update(type for type, heap in heaps if any(self._waiting_job(item, key) for item in heap))
        return sorted(types)[:PAGE_LIMIT]

    def summary(self, job: str) -> StepSummary:
        """See Engine.summaries, for one job."""
        paths = reversed(self.steps.get(job, {}))
        return summary_from(job, self.counts.get(job, {}), next(filter(is_step, paths), ""))

    def missing(self, parent: str, group: str) -> int:
        """Count the children that have not arrived."""
        total, arrived = self.groups.get((parent, group), (0, 0))
        return total - arrived

    def list_records(self, prefix: str) -> list[Record]:
        """List records."""
        found = [r for r in self.records.values() if r.name.startswith(prefix) and r.value != ""]
        return sorted([*found, *worker_records(self.presences.values(), prefix)], key=lambda record: record.name)

    # Writes.

    def _apply(self, head: Job, change: Change) -> Job:
        job = applied(head, change)
        self._put(job)
        self._log(entry_of(change, job.version))
        if change.drops_failed or change.drops:
            steps = self.steps.get(job.id, {})
            kept = {path: step for path, step in steps.items() if not _dropped(step, change)}
            if len(kept) < len(steps):  # A new table, so that undoing it restores the order, too.
                self._set(self.steps, job.id, kept)
                for path in steps.keys() - kept.keys():
                    self._count(steps[path], -1)
        for step in change.steps:
            self._record(step)
        for new in change.inserts:
            if new.id not in self.jobs:
                self._add(new)
                if new.options.unique is not None:
                    self._set(self.keys, (UNIQUE, new.options.unique.key), _held_by(new))
        return job

    def _add(self, job: Job) -> None:
        self._put(job)
        self._log(submit_entry(job))
        if job.parent is not None:
            self._grow(job, 1)

    def _grow(self, child: Job, more: int) -> None:
        assert child.parent is not None
        self.children[child.parent].add(child.id)
        if more:
            group = (child.parent, child.group or "")
            total, arrived = self.groups.get(group, (0, 0))
            self._set(self.groups, group, (total + more, arrived))

    def _arrive(self, child: Job) -> int:
        assert child.parent is not None
        group = (child.parent, child.group or "")
        total, arrived = self.groups.get(group, (0, 0))
        self._set(self.groups, group, (total, arrived + 1))
        self.news.add(job_topic(child.parent))
        return total - arrived - 1

    def _record(self, step: Step) -> Recorded:
        steps = self.steps.setdefault(step.job, {})
        standing = steps.get(step.path)
        if standing is not None and standing.state is not StepState.STARTED:
            return Recorded(standing, standing == step)
        if standing is not None:
            self._count(standing, -1)
        self._set(steps, step.path, step)
        self._count(step, 1)
        self.news.add(job_topic(step.job))
        return Recorded(step, True)

    def _count(self, step: Step, more: int) -> None:
        if not is_step(step.path):
            return
        counts = self.counts.setdefault(step.job, {})
        name = counter_for(step.name, counts)
        old = counts.get(name, StepCounts())
        self._set(counts, name, old + ONE[step.state] if more > 0 else old - ONE[step.state])

    def _promote(self, queue: str, now: Time) -> None:
        heap, later, promoted = self._due[queue], [], 0
        while heap and heap[0][0] <= now and promoted < PROMOTE_LIMIT:
            item = heappop(heap)
            job = self.jobs.get(item[3])
            if job is None or (job.run_at, job.version) != (item[0], item[2]) or job.state not in DUE:
                continue
            if is_expired(job, now):
                later.append(item)
                continue
            event = Event.ACTIVATE if job.state is State.PENDING else Event.PROMOTE
            self._apply(job, decide(job, event, now, by="time"))
            promoted += 1
        for item in later:
            heappush(heap, item)

    def _keys_to_look_at(self, queue: str, now: Time) -> list[str]:
        """List the keys that a claim of a queue looks at now. If there are too many, the claims take turns."""
        due = sorted(key for key, at in self._rechecks[queue].items() if at <= now)
        if len(due) <= RECHECK_LIMIT:
            return due
        start = bisect_right(due, self._looked_last.get(queue, ""))
        chosen = [*due[start:], *due[:start]][:RECHECK_LIMIT]
        self._looked_last[queue] = chosen[-1]
        return chosen

    def _wake_parked(self, queue: str, key: str, asleep: dict[str, Time | None], permits: Permits, now: Time) -> None:
        """Wake jobs whose steps wait for a permit of this key, while there is room, and keep it for them.

        Where some stay asleep, `asleep` gets the key and the time when one of them may be woken.
        """
        parked = sorted(self._parked[queue, key], key=self._order.__getitem__)
        for id in parked[:RECHECK_LIMIT]:
            if (block := permits.room_to_wake(key)) is not None:
                asleep[key] = block.at
                break
            permits.reserve(key, self.jobs[id])
            self._apply(self.jobs[id], decide(self.jobs[id], Event.ACTIVATE, now, by="limit"))

    def _take(
        self,
        queue: str,
        types: Collection[str] | None,
        limit: int,
        keys: list[str],
        asleep: dict[str, Time | None],
        permits: Permits,
        now: Time,
    ) -> list[Job]:
        """Take jobs of a queue in order: those without limits, and those behind these keys that get their permits."""
        if any(_is_among(type, types) for key in (None, *keys) for type in self._fair[queue, key]):
            taken, blocks = self._take_in_turn(queue, types, limit, keys, permits, now)
        else:
            taken, blocks = self._take_in_order(queue, types, limit, keys, permits, now)
        for key in keys:
            if key in asleep and not self._has_available(queue, key):
                blocks.setdefault(key, asleep[key])
            self._look_again(queue, key, blocks, permits)
        return list(taken.values())

    def _take_in_order(
        self, queue: str, types: Collection[str] | None, limit: int, keys: list[str], permits: Permits, now: Time
    ) -> tuple[dict[str, Job], dict[str, Time | None]]:
        """Take jobs of a queue without fair keys. Answers with the limits' keys that have no room, too."""
        walks = [Walk(heap) for type, heap in self._ready[queue].items() if heap and _is_among(type, types)]
        for key in keys:
            heaps = self._waiting[queue, key].items()
            walks += [Walk(heap, key) for type, heap in heaps if heap and _is_among(type, types)]
        blocks: dict[str, Time | None] = {}
        taken: dict[str, Job] = {}
        while walks and len(taken) < limit:
            walk = min(walks, key=Walk.first)
            item = heappop(walk.heap)
            job = self._ready_job(item) if walk.key is None else self._waiting_job(item, walk.key)
            if job is not None:
                if item[1] > now or is_expired(job, now):
                    walk.later.append(item)
                elif (block := permits.block(job.options.limits, job.id)) is None:
                    permits.start(job.options.limits, job.id, job.epoch + 1)
                    taken[job.id] = job
                elif block.key == walk.key:  # nobody behind this key can start
                    walk.later.append(item)
                    blocks[walk.key] = block.at
                    walks = [one for one in walks if one.key != walk.key or one.put_back()]
                    continue
                else:
                    self._move_behind(job, block.key)
                    self._look_at_later(queue, block, permits)
            if not walk.heap:
                walks.remove(walk)
                walk.put_back()
        for walk in walks:
            walk.put_back()
        return taken, blocks

    def _take_in_turn(
        self, queue: str, types: Collection[str] | None, limit: int, keys: list[str], permits: Permits, now: Time
    ) -> tuple[dict[str, Job], dict[str, Time | None]]:
        """The same for a queue where jobs have fair keys, which take turns."""
        sources: list[Source] = []
        read_from: list[FairSource | HeapWalk] = []
        for key in (None, *keys):
            read = self._ready_job if key is None else partial(self._waiting_job, key=key)
            plain = self._ready[queue] if key is None else self._waiting[queue, key]
            walks = [HeapWalk(heap, key, read, now) for type, heap in plain.items() if _is_among(type, types)]
            of_key = self._fair[queue, key].items()
            fair = [FairSource(heaps, key, read, now) for type, heaps in of_key if _is_among(type, types)]
            sources += [*(PlainSource(key, walk.jobs()) for walk in walks), *fair]
            read_from += [*walks, *fair]
        blocks: dict[str, Time | None] = {}
        taken: dict[str, Job] = {}
        name = round_name(queue, types)
        ended: dict[int, str] = {}
        for offer in in_turn(sources, blocks, lambda level: self._last_turn(f"{name}{level}"), limit):
            job, key = offer.candidate.job, offer.candidate.key
            block = permits.block(job.options.limits, job.id)
            if block is None:
                permits.start(job.options.limits, job.id, job.epoch + 1)
                taken[job.id] = job
                if offer.is_fair:
                    ended[offer.level] = offer.fair
                if len(taken) == limit:
                    break
                continue
            if block.key != key:
                self._move_behind(job, block.key)
                self._look_at_later(queue, block, permits)
            if block.key in keys:  # nobody behind this key can start
                blocks[block.key] = block.at
        for source in read_from:
            source.put_back(taken)
        for level, last in ended.items():
            self._put_turn(f"{name}{level}", last, now)
        for heaps in self._fair[queue, None], *(self._fair[queue, key] for key in keys):
            for type in [type for type, one in heaps.items() if not one.keys]:
                del heaps[type]
        return taken, blocks

    def _last_turn(self, name: str) -> str | None:
        return last_key(self.records[name].value) if name in self.records else None

    def _put_turn(self, name: str, fair: str, now: Time) -> None:
        version = self.records[name].version + 1 if name in self.records else 1
        self._set(self.records, name, Record(name, turn_value(fair), version, now))

    def _look_at_later(self, queue: str, block: Block, permits: Permits) -> None:
        """Let a claim look at a full key when it may have room."""
        at = permits.look_time(block)
        if at is not None:
            self._look_at(queue, block.key, at)

    def _look_again(self, queue: str, key: str, blocks: dict[str, Time | None], permits: Permits) -> None:
        """After a claim has looked at a key: let the next one look at it when there may be room for somebody."""
        if key not in blocks and (block := permits.has_room(key)) is not None:
            blocks[key] = block.at
        is_waited_for = self._has_waiting(queue, key)
        self._set(self._rechecks[queue], key, LOOKED_AT if is_waited_for and key not in blocks else None)
        if is_waited_for and key in blocks:
            self._look_at_later(queue, Block(key, blocks[key]), permits)

    def _same_as(self, job: Job, held: Key | None, fresh: Mapping[str, Job]) -> str | None:
        """The holder of this unique job's name, if it counts. `fresh` are added in the same act."""
        holder = None if held is None else fresh.get(held.job) or self.jobs.get(held.job)
        state = None if holder is None else holder.state
        return held.job if held is not None and counts(held.digest, held.until, state, job) else None

    def holders(self, names: Collection[tuple[str, str]]) -> dict[tuple[str, str], HeldKey]:
        """Who has these keys."""
        there = ((name, self.keys.get(name)) for name in names)
        return {name: HeldKey(*name, key.job, key.digest, key.until) for name, key in there if key is not None}

    def _live_key(self, name: tuple[str, str], now: Time) -> Key | None:
        key = self.keys.get(name)
        return None if key is None or (key.until is not None and key.until <= now) else key

    def _has_live_kin(self, job: Job) -> bool:
        parent = self.jobs.get(job.parent) if job.parent is not None else None
        kin = [parent] if parent is not None else []
        kin += [self.jobs[id] for id in self.children.get(job.id, ()) if id in self.jobs]
        return any(job.state not in TERMINAL for job in kin)

    def _exists(self, name: str) -> bool:
        return name in self.records and self.records[name].value != ""

    def _tell_workers(self) -> None:
        self.news.update(worker_topic(worker) for worker in self.presences)


class Walk:
    """A heap that a claim takes from, and what it has put aside. `key` is the one behind which its jobs wait."""

    def __init__(self, heap: list[Ready], key: str | None = None) -> None:
        self.heap = heap
        self.key = key
        self.later: list[Ready] = []

    def first(self) -> Ready:
        """The least entry."""
        return self.heap[0]

    def put_back(self) -> bool:
        """Return what was put aside. False, so that a filter drops the walk."""
        for item in self.later:
            heappush(self.heap, item)
        self.later = []
        return False


def _held_by(job: Job) -> Key:
    return Key(job.id, stamp(job), until(job))


def _is_among(type: str, types: Collection[str] | None) -> bool:
    return types is None or type in types


def _dropped(step: Step, change: Change) -> bool:
    return step.path in change.drops or (change.drops_failed and step.state is StepState.FAILED)
