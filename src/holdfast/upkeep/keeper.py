"""The keeper, one per process with a worker. Every keeper looks for dead workers; one, the leader, does the rest.

Must not run jobs. A backlog never delays a round by more than one batch: the rest is worked off next to the rounds.
Leadership is a record with a worker's name. Another keeper takes over as soon as that worker is gone.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from holdfast.background import Join, LogOnce, Spawn, own_thread
from holdfast.core.codec import canonical
from holdfast.core.errors import HoldfastError, Moved, StoreLost
from holdfast.core.model import Applied, Conflict, Event, Job, Presence, Record, Time, Where
from holdfast.core.unreadable import record_content
from holdfast.engines.contract import Engine
from holdfast.jobs.consequences import cancel_children, end_change, notify_others
from holdfast.jobs.pruned import note_pruned
from holdfast.jobs.service import Jobs
from holdfast.safe_text import logger
from holdfast.upkeep.alerts import Alerts
from holdfast.upkeep.collecting import Collecting
from holdfast.upkeep.rescue import Rescue
from holdfast.upkeep.scheduling import Scheduling
from holdfast.upkeep.snapshot import Snapshot
from holdfast.upkeep.wake import Wake

log = logger("holdfast.upkeep")

LEADER = "leader"
"""The record that names the leading keeper's worker."""

PRUNE_BATCH = 500
"""How many jobs one call removes: few enough that nobody waits long for it."""

EXPIRE_BATCH = 200
"""How many expired jobs one batch ends."""

PRUNE_PART = 0.15
"""The share of the time to spend on pruning while there is more to prune.

The rest is for the workers' own calls. Expiring gets the same share on top.
"""

PRUNE_SECONDS = 1.0
"""How soon to look again after a batch that wasn't full, as long as it found something."""

STOP_SECONDS = 5.0
"""How long to wait for a keeper to stop."""

NO_REMOTE_SECONDS = 15.0
"""How often a leader looks for the first worker over HTTP, where no server runs beside it."""

SOON_SECONDS = 0.2
"""How soon to look again for workers that a new leader hasn't heard of, and how soon at least where the reservation of
a worker over HTTP ends before the next look.
"""

TROUBLED_SECONDS = 1.0
"""How long schedules rest after trouble with the store."""

BATCH_SECONDS = 4.0
"""How long a stopping keeper waits for its running batches before it resigns."""


class Keeper:
    """Rescues and cleans up from its own thread, so that a busy event loop can't stop it. It acts for `worker`.

    A simulation passes its own randomness and its own way to `spawn` the rounds. Time is that of the loop they run on.
    """

    def __init__(
        self,
        engine: Engine,
        worker: str,
        *,
        lease_seconds: float,
        look_seconds: float,
        upkeep_seconds: float,
        chance: Callable[[], float] = random.random,
        spawn: Spawn = own_thread,
        alerts: Alerts | None = None,
        scheduling: Scheduling | None = None,
        beside_server: bool = False,
    ) -> None:
        self._engine = engine
        self._jobs = Jobs(engine)
        self._worker = worker
        self._rescue = Rescue(engine, lease_seconds=lease_seconds, chance=chance)
        self._wake = Wake(engine)
        self._collecting = Collecting(engine)
        self._alerts = alerts
        self._scheduling = scheduling
        self._beside_server = beside_server
        """Whether workers over HTTP may come to this process at any moment."""
        self._leads = False
        self._leads_since: Time = 0
        self._knows_living = False
        """Whether we know which workers lived through the time until we led."""
        self._snapshot: Snapshot | None = None
        self._gone: set[str] = set()
        self._beside: dict[str, asyncio.Task[None]] = {}
        """The backlogs that are worked off next to the rounds, by name."""
        self._look_seconds = look_seconds
        self._upkeep_seconds = upkeep_seconds
        self._spawn = spawn
        self._join: Join | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop = asyncio.Event()
        self._stopping = False
        self._trouble = LogOnce(log, "upkeep failed", "upkeep works again")
        self._tidying = LogOnce(log, "upkeep failed", "upkeep works again")
        """Separate, because looking for dead workers can succeed on a store on which a round fails."""
        self._firing = LogOnce(log, "schedules could not be read", "schedules can be read again")

    def start(self) -> None:
        """Start the rounds."""
        self._join = self._spawn("holdfast-upkeep", self._keep)

    async def stop(self) -> None:
        """Stop looking, and give up the leadership."""
        self._stopping = True
        if self._loop is not None:
            try:
                self._loop.call_soon_threadsafe(self._stop.set)
            except RuntimeError:  # it has already ended
                pass
        if self._join is not None:
            await self._join(STOP_SECONDS)

    async def _keep(self) -> None:
        self._loop = loop = asyncio.get_running_loop()
        tidy_at = remote_at = loop.time()
        while not self._stopping:
            ends_in_ms: int | None = None
            try:
                self._snapshot = snapshot = await self._rescue.snapshots.take()
                gone = {worker for worker, presence in snapshot.present.items() if presence.gone}
                lost = bool(gone - self._gone)
                if lost:  # the dead worker may not have told a parent that its children have ended
                    self._wake.hurry()
                self._gone = gone
                self._note_rescued(await self._rescue.rescue_dead(self._worker, snapshot))
                if self._leads and loop.time() >= remote_at:
                    self._note_rescued(await self._rescue.end_reservations(self._worker, snapshot))
                    ends_in_ms = self._rescue.ends_in_ms
                    is_expected = self._beside_server or self._rescue.has_remote_workers
                    remote_at = loop.time() + (0 if is_expected else NO_REMOTE_SECONDS)
                if lost or loop.time() >= tidy_at:
                    tidy_at = loop.time() + self._upkeep_seconds
                    await self._round(snapshot)
                    if self._alerts is not None:
                        await self._alerts.check(leads=self._leads)
                self._trouble.recovered()
            except StoreLost:  # our worker reports it; there is nothing left that we may clean up
                return
            except Moved:  # there is nothing left to clean up; the worker learns of it from its heartbeats
                pass
            except HoldfastError as error:
                self._trouble.say(error)
            except Exception:
                log.exception("upkeep: unexpected error; trying again")
            await self._rest(self._pause(ends_in_ms))
        if self._beside:
            _, late = await asyncio.wait(self._beside.values(), timeout=BATCH_SECONDS)
            for task in late:
                task.cancel()
        await self._resign()

    def _pause(self, ends_in_ms: int | None) -> float:
        """How long to wait for the next look, when the next reservation over HTTP may be over in this time."""
        if ends_in_ms is None:
            return self._look_seconds
        return min(self._look_seconds, max(SOON_SECONDS, (ends_in_ms + 1) / 1_000))

    async def _rest(self, seconds: float) -> None:
        """Wait, but only until the keeper is stopped."""
        try:
            async with asyncio.timeout(seconds):
                await self._stop.wait()
        except TimeoutError:
            pass

    def _start_beside(self, name: str, work: Callable[..., Coroutine[Any, Any, None]], *args: Any) -> bool:
        """Run this next to the rounds; False if it is still running."""
        before = self._beside.get(name)
        if before is not None and not before.done():
            return False
        self._beside[name] = asyncio.get_running_loop().create_task(work(*args), name=f"holdfast {name}")
        return True

    async def _round(self, snapshot: Snapshot) -> None:
        try:
            led, self._leads = self._leads, await self.lead(snapshot)
            if self._leads and not led:
                self._leads_since, self._knows_living = snapshot.now, False
            if self._leads:
                if self._scheduling is not None:
                    self._start_beside("schedules", self._fire_ticks, self._scheduling)
                await self.tidy(snapshot)
                if self._collecting.is_due():
                    self._start_beside("blobs", self._collect)
            self._tidying.recovered()
        except (StoreLost, Moved):
            raise
        except HoldfastError as error:
            self._tidying.say(error)

    async def lead(self, snapshot: Snapshot) -> bool:
        """Whether we lead: we already do, nobody does, the leader is dead, or the leader's record can't be read."""
        records = await self._engine.records(LEADER)
        held = next((record for record in records if record.name == LEADER), None)
        if held is not None and (leader := _leader_in(held)) is not None:
            if leader == self._worker:
                return True
            if (fresh := await self._rescue.snapshots.refresh(snapshot)) is None:
                return False
            presence = fresh.present.get(leader)
            if presence is not None and not self._rescue.snapshots.is_dead(presence, fresh):
                return False
        answer = await self._engine.put_record(
            LEADER, canonical({"worker": self._worker}), 0 if held is None else held.version
        )
        if isinstance(answer, Conflict):
            return False
        self._wake.hurry()
        if held is not None and _leader_in(held) is None:
            log.warning(
                "upkeep: the record that names the leader can't be read; worker %s leads the upkeep now", self._worker
            )
        log.info("worker %s leads the upkeep now", self._worker)
        return True

    async def tidy(self, snapshot: Snapshot | None = None) -> None:
        """Do one round of the leader's work."""
        snapshot = snapshot or await self._rescue.snapshots.take()
        held = await self._rescue.held_jobs()
        self._note_rescued(await self._rescue.rescue_orphans(self._worker, snapshot, held))
        await self._wake.wake_waiting(self._worker)
        self._note_rescued(await self._rescue.rescue_stale(self._worker))
        await self._rescue.fail_overrun(self._worker, held)
        await self._in_batches("expire", self._expire, EXPIRE_BATCH)
        await self._in_batches("prune", self._prune, PRUNE_BATCH)

    async def _fire_ticks(self, scheduling: Scheduling) -> None:
        """Fire the ticks of schedules while we lead."""
        scheduling.forget()
        while self._leads and not self._stopping:
            seconds = TROUBLED_SECONDS
            try:
                seconds = await self.fire_due(scheduling)
                self._firing.recovered()
            except (StoreLost, Moved):  # the rounds and our worker hear of it, too
                return
            except HoldfastError as error:
                self._firing.say(error)
            except Exception:
                log.exception("schedules: unexpected error; trying again")
            await self._rest(seconds)

    async def fire_due(self, scheduling: Scheduling) -> float:
        """Fire the ticks that are due; return after how many seconds to look again.

        A new leader first hears of every other worker, or sees it dead: one that died together with the leader before
        us would seem to have lived through the ticks since then.
        """
        living = self._living()
        if not self._knows_living:
            others = (one for one in living.values() if one.worker != self._worker)
            self._knows_living = all(one.beat_at >= self._leads_since for one in others)
        return await scheduling.look(living) if self._knows_living else SOON_SECONDS

    async def _collect(self) -> None:
        """Collect blobs, whatever the rounds do meanwhile."""
        try:
            await self._collecting.run()
        except HoldfastError as error:  # the next round reports what is wrong with the store
            log.debug("upkeep: blobs are collected later: %s", error)
        except Exception:
            log.exception("upkeep: unexpected error while collecting blobs; trying again in an hour")

    def _living(self) -> dict[str, Presence]:
        """The workers that we believe to be alive."""
        snapshots, last = self._rescue.snapshots, self._snapshot
        return {} if last is None else {w: one for w, one in last.present.items() if not snapshots.is_dead(one, last)}

    async def _in_batches(self, name: str, act: Callable[[], Awaitable[int]], batch: int) -> None:
        """Do one batch. If there is more, continue next to the rounds."""
        if await act() >= batch:
            self._start_beside(name, self._work_off, name, act, batch)

    async def _work_off(self, name: str, act: Callable[[], Awaitable[int]], batch: int) -> None:
        """Continue batch by batch until nothing is left. The pauses leave the store to the workers."""
        loop = asyncio.get_running_loop()
        try:
            while not self._stopping:
                began = loop.time()
                done = await act()
                if not done:
                    return
                busy = loop.time() - began
                await self._rest(busy * (1 / PRUNE_PART - 1) if done >= batch else PRUNE_SECONDS)
        except HoldfastError as error:  # the next round reports what is wrong with the store
            log.debug("upkeep: %s continues in the next round: %s", name, error)

    async def _prune(self) -> int:
        """Remove a batch of jobs that were kept long enough; return how many."""
        pruned = await self._engine.prune(PRUNE_BATCH)
        await note_pruned(self._engine, pruned)
        return pruned

    async def _expire(self) -> int:
        """End a batch of jobs that nobody ran in time; return how many."""
        now = await self._engine.now()
        late = await self._engine.find(Where(expires_before=now), limit=EXPIRE_BATCH)
        changes = [await end_change(self._engine, job, Event.EXPIRE, now, by=self._worker, note={}) for job in late]
        answers = await self._engine.commit(changes) if changes else []
        applied = [(one, answer) for one, answer in zip(changes, answers, strict=True) if isinstance(answer, Applied)]
        for change, answer in applied:
            await notify_others(self._engine, change, answer, by=self._worker)
            if change.job.epoch:  # a job that never ran has no children
                await cancel_children(self._engine, change.job.id, by=self._worker)
            log.info("job %s expired before a worker could run it", change.job.id)
        return len(applied)

    async def _resign(self) -> None:
        try:
            for record in await self._engine.records(LEADER):
                if record.name == LEADER and _leader_in(record) == self._worker:
                    await self._engine.put_record(LEADER, None, record.version)
        except (Moved, StoreLost):  # nobody leads any more, and our worker has reported it
            pass
        except Exception as error:
            log.warning("upkeep: can't give up the leadership: %s; another worker takes it over", error)

    def _note_rescued(self, rescued: list[Job]) -> None:
        if rescued:
            self._wake.hurry()


def _leader_in(record: Record) -> str | None:
    """The worker that this record names; None if the record can't be read."""
    worker = record_content(record.value).get("worker")
    return worker if isinstance(worker, str) else None
