"""The keeper: one in each process that has a worker. All of them look for the dead; one, the leader, does the rest.

Must not run jobs. Leadership is a record with the name of a worker; it is taken over as soon as that worker is gone.
"""

import asyncio
import random
from collections.abc import Callable, Mapping

from holdfast.core.codec import canonical, parse
from holdfast.core.errors import HoldfastError, Moved, StoreLost
from holdfast.core.model import Applied, Conflict, Event, Job, Presence, Where
from holdfast.engines.contract import Engine
from holdfast.jobs import Jobs
from holdfast.jobs.family import cancel_children, ended, tell_others
from holdfast.safe import logger
from holdfast.threads import Join, Spawn, own_thread
from holdfast.trouble import Trouble
from holdfast.upkeep.rescue import Rescue
from holdfast.upkeep.wake import Wake

log = logger("holdfast.upkeep")

LEADER = "leader"
"""The record that names the worker whose keeper leads."""

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
                present = await self._rescue.presences()
                gone = {worker for worker, presence in present.items() if presence.gone}
                lost = bool(gone - self._gone)
                if lost:  # who died may have owed a parent the word that its children are in
                    self._wake.soon()
                self._gone = gone
                self._tell(await self._rescue.dead(self._worker, present))
                if lost or loop.time() >= tidy_at:
                    tidy_at = loop.time() + self._upkeep_seconds
                    await self._round(present)
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
        await self._resign()

    async def _round(self, present: Mapping[str, Presence]) -> None:
        try:
            if await self.lead(present):
                await self.tidy(present)
            self._tidying.pass_by()
        except (StoreLost, Moved):
            raise
        except HoldfastError as error:
            self._tidying.say(error)

    async def lead(self, present: Mapping[str, Presence]) -> bool:
        """Whether we lead: we do already, nobody does, or the one who did is dead."""
        records = await self._engine.records(LEADER)
        held = next((record for record in records if record.name == LEADER), None)
        if held is not None:
            leader = parse(held.value)["worker"]
            if leader == self._worker:
                return True
            presence = present.get(leader)
            if presence is not None and not self._rescue.is_dead(presence, await self._engine.now()):
                return False
        answer = await self._engine.put_record(
            LEADER, canonical({"worker": self._worker}), 0 if held is None else held.version
        )
        if isinstance(answer, Conflict):
            return False
        self._wake.soon()
        log.info("%s leads the upkeep now", self._worker)
        return True

    async def tidy(self, present: Mapping[str, Presence] | None = None) -> None:
        """One round of the leader's work."""
        held = await self._rescue.held()
        self._tell(await self._rescue.orphans(self._worker, present, held))
        await self._wake.parents(self._worker)
        self._tell(await self._rescue.stale(self._worker, present))
        await self._rescue.overrun(self._worker, held)
        await self._expire()
        await self._engine.prune()

    async def _expire(self) -> None:
        now = await self._engine.now()
        async for job in self._jobs.walk(Where(expires_before=now)):
            change = await ended(self._engine, job, Event.EXPIRE, now, by=self._worker, note={})
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
