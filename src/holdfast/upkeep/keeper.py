"""The keeper: one in each process that has a worker. All of them look for the dead; one, the leader, does the rest.

Must not run jobs. A backlog never holds up a round for longer than one batch: the rest is worked off beside the rounds.
Leadership is a record with the name of a worker; it is taken over as soon as that worker is gone.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from holdfast.background import Join, LogOnce, Spawn, own_thread
from holdfast.core.codec import canonical
from holdfast.core.errors import HoldfastError, Moved, StoreLost
from holdfast.core.model import Applied, Conflict, Event, Job, Record, Where
from holdfast.core.unreadable import told
from holdfast.engines.contract import Engine
from holdfast.jobs.consequences import cancel_children, end_change, notify_others
from holdfast.jobs.service import Jobs
from holdfast.safe_text import logger
from holdfast.upkeep.rescue import Rescue
from holdfast.upkeep.snapshot import Snapshot
from holdfast.upkeep.wake import Wake

log = logger("holdfast.upkeep")

LEADER = "leader"
"""The record that names the worker whose keeper leads."""

PRUNE_BATCH = 500
"""How many jobs are removed in one act: few enough that nobody waits for it for long."""

EXPIRE_BATCH = 200
"""How many expired jobs are ended in one batch."""

PRUNE_PART = 0.15
"""Which part of the time may go into pruning while there is more to prune: the rest is for the workers' own acts. Into
expiring goes the same part, beside it.
"""

PRUNE_SECONDS = 1.0
"""How soon after a batch that was not full it looks again, as long as it finds something."""

STOP_SECONDS = 5.0
"""How long to wait for a keeper that is stopped."""

BATCH_SECONDS = 4.0
"""How long a stopped keeper waits for the batches under way before it resigns."""


class Keeper:
    """Rescues and tidies, from its own thread, so that a busy event loop can't stop it. `worker` is who it acts for.

    A simulation passes in its own chance and its own way to `spawn` the rounds; time is that of the loop they run on.
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
    ) -> None:
        self._engine = engine
        self._jobs = Jobs(engine)
        self._worker = worker
        self._rescue = Rescue(engine, lease_seconds=lease_seconds, chance=chance)
        self._wake = Wake(engine)
        self._gone: set[str] = set()
        self._beside: dict[str, asyncio.Task[None]] = {}
        """The backlogs that are worked off beside the rounds, by name."""
        self._look_seconds = look_seconds
        self._upkeep_seconds = upkeep_seconds
        self._spawn = spawn
        self._join: Join | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop = asyncio.Event()
        self._stopping = False
        self._trouble = LogOnce(log, "upkeep", "upkeep goes on")
        self._tidying = LogOnce(log, "upkeep", "upkeep goes on")
        """Apart from the other: a look needs less of the store than a round, and its success is no sign for one."""

    def start(self) -> None:
        """Begin the rounds."""
        self._join = self._spawn("holdfast-upkeep", self._keep)

    async def stop(self) -> None:
        """Stop looking, and give up the lead."""
        self._stopping = True
        if self._loop is not None:
            try:
                self._loop.call_soon_threadsafe(self._stop.set)
            except RuntimeError:  # it has ended already
                pass
        if self._join is not None:
            await self._join(STOP_SECONDS)

    async def _keep(self) -> None:
        self._loop = loop = asyncio.get_running_loop()
        tidy_at = loop.time()
        while not self._stopping:
            try:
                snapshot = await self._rescue.snapshots.take()
                gone = {worker for worker, presence in snapshot.present.items() if presence.gone}
                lost = bool(gone - self._gone)
                if lost:  # who died may have owed a parent the word that its children are in
                    self._wake.hurry()
                self._gone = gone
                self._note_rescued(await self._rescue.rescue_dead(self._worker, snapshot))
                if lost or loop.time() >= tidy_at:
                    tidy_at = loop.time() + self._upkeep_seconds
                    await self._round(snapshot)
                self._trouble.recovered()
            except StoreLost:  # the worker beside us says so; there is nothing left that we may tidy
                return
            except Moved:  # there is nothing to tidy any more; a worker hears of it with its heartbeats
                pass
            except HoldfastError as error:
                self._trouble.say(error)
            except Exception:
                log.exception("upkeep: unexpected trouble; it goes on")
            await self._rest(self._look_seconds)
        if self._beside:
            _, late = await asyncio.wait(self._beside.values(), timeout=BATCH_SECONDS)
            for task in late:
                task.cancel()
        await self._resign()

    async def _rest(self, seconds: float) -> None:
        """Wait, and no longer than until the keeper is stopped."""
        try:
            async with asyncio.timeout(seconds):
                await self._stop.wait()
        except TimeoutError:
            pass

    def _start_beside(self, name: str, work: Callable[..., Coroutine[Any, Any, None]], *args: Any) -> bool:
        """Let this go on beside the rounds; False if it is still under way."""
        before = self._beside.get(name)
        if before is not None and not before.done():
            return False
        self._beside[name] = asyncio.get_running_loop().create_task(work(*args), name=f"holdfast {name}")
        return True

    async def _round(self, snapshot: Snapshot) -> None:
        try:
            if await self.lead(snapshot):
                await self.tidy(snapshot)
            self._tidying.recovered()
        except (StoreLost, Moved):
            raise
        except HoldfastError as error:
            self._tidying.say(error)

    async def lead(self, snapshot: Snapshot) -> bool:
        """Whether we lead: we do already, nobody does, the one who did is dead, or nobody can read who that is."""
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
            log.warning("upkeep: the record of who leads the upkeep can't be read; %s leads now", self._worker)
        log.info("%s leads the upkeep now", self._worker)
        return True

    async def tidy(self, snapshot: Snapshot | None = None) -> None:
        """One round of the leader's work."""
        snapshot = snapshot or await self._rescue.snapshots.take()
        held = await self._rescue.held_jobs()
        self._note_rescued(await self._rescue.rescue_orphans(self._worker, snapshot, held))
        await self._wake.wake_waiting(self._worker)
        self._note_rescued(await self._rescue.rescue_stale(self._worker))
        await self._rescue.fail_overrun(self._worker, held)
        await self._in_batches("expire", self._expire, EXPIRE_BATCH)
        await self._in_batches("prune", self._prune, PRUNE_BATCH)

    async def _in_batches(self, name: str, act: Callable[[], Awaitable[int]], batch: int) -> None:
        """Do one batch of this. What is more than that goes on beside the rounds."""
        if await act() >= batch:
            self._start_beside(name, self._work_off, name, act, batch)

    async def _work_off(self, name: str, act: Callable[[], Awaitable[int]], batch: int) -> None:
        """Go on batch by batch until there is nothing left. The pauses leave the store to those who work."""
        loop = asyncio.get_running_loop()
        try:
            while not self._stopping:
                began = loop.time()
                done = await act()
                if not done:
                    return
                busy = loop.time() - began
                await self._rest(busy * (1 / PRUNE_PART - 1) if done >= batch else PRUNE_SECONDS)
        except HoldfastError as error:  # the next round says what is wrong with the store
            log.debug("upkeep: %s goes on in the next round: %s", name, error)

    async def _prune(self) -> int:
        """Remove a batch of what was kept for long enough; answer how many jobs."""
        return await self._engine.prune(PRUNE_BATCH)

    async def _expire(self) -> int:
        """End a batch of what nobody ran in time; answer how many jobs."""
        now = await self._engine.now()
        late = await self._engine.find(Where(expires_before=now), limit=EXPIRE_BATCH)
        changes = [await end_change(self._engine, job, Event.EXPIRE, now, by=self._worker, note={}) for job in late]
        answers = await self._engine.commit(changes) if changes else []
        applied = [(one, answer) for one, answer in zip(changes, answers, strict=True) if isinstance(answer, Applied)]
        for change, answer in applied:
            await notify_others(self._engine, change, answer, by=self._worker)
            if change.job.epoch:  # who never ran has submitted nothing
                await cancel_children(self._engine, change.job.id, by=self._worker)
            log.info("job %s expired before anybody could run it", change.job.id)
        return len(applied)

    async def _resign(self) -> None:
        try:
            for record in await self._engine.records(LEADER):
                if record.name == LEADER and _leader_in(record) == self._worker:
                    await self._engine.put_record(LEADER, None, record.version)
        except (Moved, StoreLost):  # there is no lead any more, and the worker beside us has said so
            pass
        except Exception as error:
            log.warning("upkeep: the lead could not be given up: %s", error)

    def _note_rescued(self, rescued: list[Job]) -> None:
        if rescued:
            self._wake.hurry()


def _leader_in(record: Record) -> str | None:
    """The worker that this record names; None if it can't be read."""
    worker = told(record.value).get("worker")
    return worker if isinstance(worker, str) else None
