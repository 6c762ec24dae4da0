"""Planted bugs: each spoils one thing in the product for a while, and the simulation must see it.

Each has a name, the laws one of which must catch it, and what it puts in the place of what. Must not be used but to
test the simulation itself.
"""

import asyncio
from typing import Any

from msgspec.structs import replace

import holdfast.app.step
import holdfast.jobs.lost_workers
import holdfast.jobs.service
import holdfast.worker.call
import holdfast.worker.child_jobs
import holdfast.worker.outcomes
import holdfast.worker.release
import holdfast.worker.steps
from holdfast.core.model import Event, State, StepState
from holdfast.engines import tables
from holdfast.engines.memory import MemoryEngine
from holdfast.engines.tables import Tables
from holdfast.forking import OwnLoop
from holdfast.upkeep.keeper import Keeper
from holdfast.upkeep.rescue import Rescue
from holdfast.upkeep.snapshot import Snapshots
from holdfast.worker.attempt import Attempt
from holdfast.worker.bodies import body_of
from holdfast.worker.cancellation import Watch
from holdfast.worker.claiming import Claiming
from holdfast.worker.context import attempt_here
from holdfast.worker.inbox import Inbox
from holdfast.worker.journal import Journal
from holdfast.worker.leases import Leases
from holdfast.worker.maps import Tally
from holdfast.worker.settling import Settling
from holdfast.worker.timers import Timers
from holdfast.worker.worker import Worker
from tests.simulation.plan import drowsy, hasty, shared, unruly
from tests.simulation.planting import bug

# The engine.


@bug("a commit looks at no epoch", "S3 S4 S5 S7", tables, "refusal")
def _(refusal: Any) -> Any:
    return lambda head, change: refusal(head, replace(change, epoch=None))


@bug("a record is not fenced", "S7", Tables, "record")
def _(record: Any) -> Any:
    return lambda self, step: self._record(step) if step.job in self.jobs else record(self, step)


@bug("the last write of a step wins", "S9", Tables, "_record")
def _(record: Any) -> Any:
    def last_wins(self: Any, step: Any) -> Any:
        self.steps.setdefault(step.job, {}).pop(step.path, None)
        return record(self, step)

    return last_wins


@bug("a claim after a lapse keeps the epoch", "S5 S6", tables, "decide")
def _(decide: Any) -> Any:
    def same_epoch(job: Any, event: Any, now: int, **facts: Any) -> Any:
        change = decide(job, event, now, **facts)
        lapsed = event is Event.CLAIM and job.recoveries > 0
        return replace(change, job=replace(change.job, epoch=job.epoch)) if lapsed else change

    return same_epoch


@bug("a claim doesn't promote what is due", "L1", Tables, "_promote")
def _(promote: Any) -> Any:
    return lambda self, queue, now: None


@bug("a claim comes early", "S17", Tables, "claim")
def _(claim: Any) -> Any:
    return lambda self, worker, queues, limit, types, now: claim(self, worker, queues, limit, types, now + 400)


@bug("a claim takes what its worker doesn't know", "types", Tables, "_take")
def _(take: Any) -> Any:
    return lambda self, queue, types, limit, *more: take(self, queue, None, limit, *more)


@bug("foreign jobs stand in the way", "L7", Tables, "_take", shared)
def _(take: Any) -> Any:
    def filters_late(self: Any, queue: str, types: Any, limit: int, *more: Any) -> Any:
        first = take(self, queue, None, limit, *more)
        for job in first:
            self._put(job)
        return [job for job in first if job.type in types]

    return filters_late


@bug("what has expired is claimed", "S17", tables, "is_expired")
def _(expired: Any) -> Any:
    return lambda job, now: False


@bug("a paused queue goes on", "pause", Tables, "_exists")
def _(exists: Any) -> Any:
    return lambda self, name: False


@bug("a signal is dropped while the job runs", "signals", tables, "applied")
def _(applied: Any) -> Any:
    def drops(head: Any, change: Any) -> Any:
        return applied(head, replace(change, signal=None) if head.state is State.ACTIVE else change)

    return drops


@bug("a release loses the records", "S9", Tables, "_apply")
def _(apply: Any) -> Any:
    def forgets(self: Any, head: Any, change: Any) -> Any:
        if change.event == Event.RELEASE:
            change = replace(change, drops=tuple(self.steps.get(head.id, {})))
        return apply(self, head, change)

    return forgets


@bug("one job is given to two claimers", "S6", MemoryEngine, "claim")
def _(claim: Any) -> Any:
    async def twice(self: Any, worker: str, queues: Any, limit: int, types: Any = None) -> Any:
        found = await claim(self, worker, queues, limit, types)
        again, self.given = getattr(self, "given", []), found[:1]
        return found or again[:limit]

    return twice


@bug("a key is forgotten", "S12", Tables, "_live_key")
def _(live_key: Any) -> Any:
    return lambda self, name, now: None


@bug("an accepted job isn't kept", "S1", Tables, "insert")
def _(insert: Any) -> Any:
    def loses(self: Any, jobs: Any, parent: Any) -> Any:
        answers = insert(self, jobs, parent)
        if len(self.jobs) % 7 == 6 and parent is None and answers[0].new:
            self._put(None, answers[0].id)
        return answers

    return loses


@bug("an arrival is forgotten", "S23", Tables, "_arrive")
def _(arrive: Any) -> Any:
    def forgets(self: Any, child: Any) -> int:
        return self.missing(child.parent, child.group or "") - 1

    return forgets


# Deciding.


@bug("a failed attempt isn't counted", "S16 storm", holdfast.worker.outcomes, "fail")
def _(fail: Any) -> Any:
    def uncounted(job: Any, now: int, **facts: Any) -> Any:
        change = fail(job, now, **facts)
        return replace(change, job=replace(change.job, attempt=job.attempt))

    return uncounted


@bug("a retry comes at once", "S17", holdfast.worker.outcomes, "retry_at")
def _(retry_at: Any) -> Any:
    return lambda job, now, chance: now


@bug("a signal is lost when its wait is cancelled", "signals", Inbox, "give_back", hasty)
def _(give_back: Any) -> Any:
    return lambda self, signal: None


@bug("a signal doesn't wake", "L1 signals", holdfast.jobs.service, "deliver")
def _(deliver: Any) -> Any:
    def asleep(job: Any, name: str, value: str, now: int, *, by: str = "") -> Any:
        change = deliver(replace(job, waits=()), name, value, now, by=by)
        return replace(change, job=job)

    return asleep


# The worker.


@bug("the fence never closes", "S10f S10z", Leases, "may_start")
def _(may_start: Any) -> Any:
    return lambda self: True


@bug("what a beat answers is ignored", "S24 L5 S10z", Worker, "_on_heartbeat")
def _(on_heartbeat: Any) -> Any:
    return lambda self, presence, beat: None


@bug("a cancel is ignored after the first beat", "S24 L5", Worker, "_on_heartbeat")
def _(on_heartbeat: Any) -> Any:
    def ignores(self: Any, presence: Any, beat: Any) -> None:
        first, self.has_beaten = not hasattr(self, "has_beaten"), True
        on_heartbeat(self, presence, beat if first else replace(beat, cancelled=()))

    return ignores


@bug("a stray lease is kept", "L1", Worker, "_follow_heartbeat")
def _(follow_heartbeat: Any) -> Any:
    return lambda self, beat: follow_heartbeat(self, replace(beat, stray=()))


@bug("a step is recorded before it runs", "S9", holdfast.app.step, "run_async")
def _(run_async: Any) -> Any:
    async def early(call: Any) -> Any:
        is_answered, value = call.answer()
        if is_answered:
            return value
        await call.record(call.make_done("e0", call.attempt.now()))
        return await body_of(call.spec)(call)

    return early


@bug("records are not read", "S10", Journal, "load")
def _(load: Any) -> Any:
    return lambda self, steps: None


@bug("a failed step runs again in its attempt", "S10", Journal, "find_record")
def _(find_record: Any) -> Any:
    def done_only(self: Any, path: str) -> Any:
        step = find_record(self, path)
        return None if step is not None and step.state is StepState.FAILED else step

    return done_only


@bug("a halted handler is not cancelled", "L5 S24 L6", Attempt, "cancel")
def _(cancel: Any) -> Any:
    return lambda self: None


@bug("a stopping worker keeps its jobs", "L6", Settling, "settle_alone")
def _(settle_alone: Any) -> Any:
    async def kept(self: Any, attempt: Any, *rest: Any) -> None:
        await (asyncio.sleep(0) if attempt.stop == "released" else settle_alone(self, attempt, *rest))

    return kept


@bug("code that is cancelled from inside vanishes", "items", Watch, "is_stop")
def _(is_stop: Any) -> Any:
    return lambda self, raised: not isinstance(raised, Exception)


@bug("a cancel by the caller is recorded as a failure", "items", Watch, "is_stopped")
def _(is_stopped: Any) -> Any:
    return lambda self: False


@bug("sys.exit in a step ends the worker", "exits", Watch, "is_stop")
def _(is_stop: Any) -> Any:
    return lambda self, raised: isinstance(raised, SystemExit) or is_stop(self, raised)


@bug("a step's timeout is not heeded", "timeouts", holdfast.worker.steps, "run_timed")
def _(run_timed: Any) -> Any:
    return lambda call, body: body(call)


@bug("a forked child goes on", "forks", OwnLoop, "leave_behind")
def _(leave_behind: Any) -> Any:
    return lambda self: None


@bug("a worker whose loop ends hands its jobs over", "S16c", Worker, "_note_cut", unruly)
def _(note_cut: Any) -> Any:
    return lambda self: None


@bug("releases in a row are not counted", "S16r", holdfast.worker.release, "releases_in_a_row")
def _(releases_in_a_row: Any) -> Any:
    return lambda past: 0


@bug("every release counts, whatever was recorded", "S16r", holdfast.jobs.lost_workers, "_newest")
def _(newest: Any) -> Any:
    return lambda past: 0


@bug("a worker claims more than its slots", "S18", Claiming, "_claim")
def _(claim: Any) -> Any:
    return lambda self, free: claim(self, self._slots.at_once)


@bug("a map runs all items at once", "S18", Tally, "at_once")
def _(at_once: Any) -> Any:
    return lambda self, limit: at_once(self, 100)


@bug("a child has another id each time", "S23 L1", holdfast.worker.child_jobs, "derived_id")
def _(derived_id: Any) -> Any:
    return lambda parent, name: derived_id(parent, f"{name} {attempt_here().job.epoch}")


@bug("claims end at the first trouble", "L1 L4", Claiming, "run")
def _(run: Any) -> Any:
    async def once(self: Any) -> None:
        claim = self._claim

        async def strict(free: int) -> int:
            try:
                taken: int = await claim(free)
            except Exception:
                self.is_quiet = self.is_stopping = True
                raise
            return taken

        self._claim = strict
        await run(self)

    return once


@bug("beats end at the first trouble", "L1 L4", Leases, "_try_heartbeat")
def _(try_heartbeat: Any) -> Any:
    async def strict(self: Any, *, leaving: bool) -> None:
        try:
            await self._send_heartbeat(leaving=leaving)
        except Exception:
            self._stopping = True

    return strict


# Upkeep.


@bug("a rescue expects no version", "S3 S4 S5", holdfast.jobs.lost_workers, "lapse")
def _(lapse: Any) -> Any:
    return lambda *args, **facts: replace(lapse(*args, **facts), version=None)


@bug("every rescue counts as progress", "S16", holdfast.jobs.lost_workers, "has_progressed")
def _(has_progressed: Any) -> Any:
    return lambda past: True


@bug("no step counts as progress", "S16", holdfast.jobs.lost_workers, "has_progressed")
def _(has_progressed: Any) -> Any:
    return lambda past: False


@bug("the silent are believed in", "L1 L3", Snapshots, "is_dead")
def _(is_dead: Any) -> Any:
    return lambda self, presence, look: presence.gone


@bug("the living are taken for dead", "L: S10z", Snapshots, "is_dead")
def _(is_dead: Any) -> Any:
    return lambda self, presence, look: presence.gone or look.now - presence.beat_at > self.lease_ms / 8


@bug("a look never gets old", "S37", Snapshots, "is_fresh", drowsy)
def _(is_fresh: Any) -> Any:
    return lambda self, look: True


@bug("the workers are those of the look before", "S37", Snapshots, "take", drowsy)
def _(take: Any) -> Any:
    async def late(self: Any) -> Any:
        there = await take(self)
        before, self.before = getattr(self, "before", there), there
        return replace(there, present=before.present)

    return late


@bug("orphans are left alone", "L1 L3", Rescue, "rescue_orphans")
def _(orphans: Any) -> Any:
    async def none(self: Any, by: str, look: Any = None, held: Any = None) -> list[Any]:
        return []

    return none


@bug("a stale stage is left alone", "L3", Rescue, "rescue_stale")
def _(stale: Any) -> Any:
    async def none(self: Any, by: str, look: Any = None) -> list[Any]:
        return []

    return none


@bug("what has expired is left alone", "L1", Keeper, "_expire")
def _(expire: Any) -> Any:
    async def none(self: Any) -> int:
        return 0

    return none


@bug("nobody takes over the lead", "L1 L3", Keeper, "lead")
def _(lead: Any) -> Any:
    async def first_only(self: Any, look: Any) -> bool:
        records = await self._engine.records("leader")
        if records and f'"{self._worker}"' not in records[0].value:
            return False
        return bool(await lead(self, look))

    return first_only


@bug("a timer around a wait is forgotten", "timers:", Timers, "holding")
def _(holding: Any) -> Any:
    return lambda self, now, rest, repeats: []


@bug("a try counts on from the one before it", "S9", holdfast.worker.call, "Try")
def _(begin: Any) -> Any:
    calls: dict[str, int] = {}

    def begun(path: str, outer: Any) -> Any:
        one = begin(path, outer)
        one.calls = calls
        return one

    return begun
