"""The keeper: one in each process that has a worker. All of them look for the dead; one, the leader, does the rest.

Must not run jobs. Leadership is a record with the name of a worker; it is taken over as soon as that worker is gone.
"""

import asyncio
import random
from collections.abc import Callable

from holdfast.core.codec import canonical, parse
from holdfast.core.errors import HoldfastError, Moved, StoreLost
from holdfast.core.model import Applied, Conflict, Event, Job, Where
from holdfast.engines.contract import Engine
from holdfast.jobs import Jobs
from holdfast.jobs.family import cancel_children, ended, tell_others
from holdfast.safe import logger
from holdfast.threads import Join, Spawn, own_thread
from holdfast.trouble import Trouble
from holdfast.upkeep.look import Look
from holdfast.upkeep.rescue import Rescue
from holdfast.upkeep.wake import Wake

log = logger("holdfast.upkeep")

LEADER = "leader"
"""The record that names the worker whose keeper leads."""

PRUNE_BATCH = 500
"""How many jobs are removed in one act: few enough that nobody waits for it for long."""

PRUNE_PART = 0.15
"""Which part of the time may go into pruning while there is more to prune: the rest is for the workers' own acts."""

PRUNE_SECONDS = 1.0
"""How soon after a batch that was not full it looks again, as long as it finds something."""

STOP_SECONDS = 5.0
"""How long to wait for the round under way when a keeper is stopped."""


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
        self._pruning: asyncio.Task[None] | None = None
        self._look_seconds = look_seconds
        self._upkeep_seconds = upkeep_seconds
        self._spawn = spawn
        self._join: Join | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._stopping = False
        self._trouble = Trouble(log, "upkeep", "upkeep goes on")
        self._tidying = Trouble(log, "upkeep", "upkeep goes on")
        """Apart from the other: a look needs less of the store than a round, and its success is no sign for one."""

    def start(self) -> None:
        """Begin to look."""
        self._join = self._spawn("holdfast-upkeep", self._keep)

    async def stop(self) -> None:
        """Stop looking, and give up the lead."""
        self._stopping = True
        loop, stop = self._loop, self._stop
        if loop is not None and stop is not None:
            try:
                loop.call_soon_threadsafe(stop.set)
            except RuntimeError:  # it has ended already
                pass
        if self._join is not None:
            await self._join(STOP_SECONDS)

    async def _keep(self) -> None:
        self._stop = stop = asyncio.Event()
        self._loop = loop = asyncio.get_running_loop()
        tidy_at = loop.time()
        while not self._stopping:
            try:
                look = await self._rescue.looks.look()
                gone = {worker for worker, presence in look.present.items() if presence.gone}
                lost = bool(gone - self._gone)
                if lost:  # who died may have owed a parent the word that its children are in
                    self._wake.soon()
                self._gone = gone
                self._tell(await self._rescue.dead(self._worker, look))
                if lost or loop.time() >= tidy_at:
                    tidy_at = loop.time() + self._upkeep_seconds
                    await self._round(look)
                self._trouble.pass_by()
            except StoreLost:  # the worker beside us says so; there is nothing left that we may tidy
                return
            except Moved:  # there is nothing to tidy any more; a worker hears of it with its beats
                pass
            except HoldfastError as error:
                self._trouble.say(error)
            except Exception:
                log.exception("upkeep: unexpected trouble; it goes on")
            try:
                async with asyncio.timeout(self._look_seconds):
                    await stop.wait()
            except TimeoutError:
                pass
        if self._pruning is not None:
            self._pruning.cancel()
        await self._resign()

    async def _round(self, look: Look) -> None:
        try:
            if await self.lead(look):
                await self.tidy(look)
            self._tidying.pass_by()
        except (StoreLost, Moved):
            raise
        except HoldfastError as error:
            self._tidying.say(error)

    async def lead(self, look: Look) -> bool:
        """Whether we lead: we do already, nobody does, or the one who did is dead."""
        records = await self._engine.records(LEADER)
        held = next((record for record in records if record.name == LEADER), None)
        if held is not None:
            leader = parse(held.value)["worker"]
            if leader == self._worker:
                return True
            if (fresh := await self._rescue.looks.fresh(look)) is None:
                return False
            presence = fresh.present.get(leader)
            if presence is not None and not self._rescue.looks.is_dead(presence, fresh):
                return False
        answer = await self._engine.put_record(
            LEADER, canonical({"worker": self._worker}), 0 if held is None else held.version
        )
        if isinstance(answer, Conflict):
            return False
        self._wake.soon()
        log.info("%s leads the upkeep now", self._worker)
        return True

    async def tidy(self, look: Look | None = None) -> None:
        """One round of the leader's work."""
        look = look or await self._rescue.looks.look()
        held = await self._rescue.held()
        self._tell(await self._rescue.orphans(self._worker, look, held))
        await self._wake.parents(self._worker)
        self._tell(await self._rescue.stale(self._worker))
        await self._rescue.overrun(self._worker, held)
        await self._expire()
        await self._tidy_away()

    async def _tidy_away(self) -> None:
        """Remove what was kept for long enough. What is more than a batch goes beside the rounds."""
        full = await self._engine.prune(PRUNE_BATCH) >= PRUNE_BATCH
        if full and (self._pruning is None or self._pruning.done()):
            self._pruning = asyncio.get_running_loop().create_task(self._prune(), name="holdfast prune")

    async def _prune(self) -> None:
        """Prune batch by batch until there is nothing. The pauses leave the store to those who work."""
        loop = asyncio.get_running_loop()
        try:
            while not self._stopping:
                began = loop.time()
                pruned = await self._engine.prune(PRUNE_BATCH)
                if not pruned:
                    return
                busy = loop.time() - began
                await asyncio.sleep(busy * (1 / PRUNE_PART - 1) if pruned >= PRUNE_BATCH else PRUNE_SECONDS)
        except HoldfastError as error:  # the next round says what is wrong with the store
            log.debug("upkeep: pruning goes on in the next round: %s", error)

    async def _expire(self) -> None:
        async for job in self._jobs.walk(Where(expires_before=await self._engine.now())):
            change = await ended(self._engine, job, Event.EXPIRE, await self._engine.now(), by=self._worker, note={})
            (answer,) = await self._engine.commit([change])
            if isinstance(answer, Applied):
                await tell_others(self._engine, change, answer, by=self._worker)
                await cancel_children(self._engine, job.id, by=self._worker)
                log.info("job %s expired before anybody could run it", job.id)

    async def _resign(self) -> None:
        try:
            for record in await self._engine.records(LEADER):
                if record.name == LEADER and parse(record.value)["worker"] == self._worker:
                    await self._engine.put_record(LEADER, None, record.version)
        except Moved:
            pass
        except Exception as error:
            log.warning("upkeep: the lead could not be given up: %s", error)

    def _tell(self, rescued: list[Job]) -> None:
        if rescued:
            self._wake.soon()
