"""The keeper: one in each process that has a worker. All of them look for the dead; one, the leader, does the rest.

Must not run jobs. Leadership is a record with the name of a worker; it is taken over as soon as that worker is gone.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Mapping

from holdfast.core.codec import canonical, parse
from holdfast.core.errors import HoldfastError
from holdfast.core.lifecycle import decide
from holdfast.core.model import Applied, Conflict, Event, Job, Presence, Where
from holdfast.engines.contract import Engine
from holdfast.jobs import Jobs
from holdfast.upkeep.rescue import Rescue

log = logging.getLogger("holdfast.upkeep")

LEADER = "leader"
"""The record that names the worker whose keeper leads."""


class Keeper:
    """Rescues and tidies, from its own thread, so that a busy event loop can't stop it. `worker` is who it acts for."""

    def __init__(
        self, engine: Engine, worker: str, *, lease_seconds: float, look_seconds: float, upkeep_seconds: float
    ) -> None:
        self._engine = engine
        self._jobs = Jobs(engine)
        self._worker = worker
        self._rescue = Rescue(engine, lease_seconds=lease_seconds)
        self._look_seconds = look_seconds
        self._upkeep_seconds = upkeep_seconds
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to look."""
        self._thread = threading.Thread(target=lambda: asyncio.run(self._keep()), name="holdfast-upkeep", daemon=True)
        self._thread.start()

    async def stop(self) -> None:
        """Stop looking, and give up the lead."""
        self._stop.set()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, 5.0)

    async def _keep(self) -> None:
        tidy_at = 0.0
        while not self._stop.is_set():
            try:
                present = await self._rescue.presences()
                self._tell(await self._rescue.dead(self._worker, present))
                if await self.lead(present) and time.monotonic() >= tidy_at:
                    tidy_at = time.monotonic() + self._upkeep_seconds
                    await self.tidy()
            except HoldfastError as error:
                log.warning("upkeep: %s", error)
            except Exception:
                log.exception("upkeep: unexpected trouble; it goes on")
            # This thread has nothing else to do, and its loop nothing to run.
            self._stop.wait(self._look_seconds)
        await self._resign()

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
        log.info("%s leads the upkeep now", self._worker)
        return True

    async def tidy(self) -> None:
        """One round of the leader's work."""
        self._tell(await self._rescue.orphans(self._worker))
        self._tell(await self._rescue.stale(self._worker))
        await self._rescue.overrun(self._worker)
        await self._expire()
        await self._engine.prune()

    async def _expire(self) -> None:
        now = await self._engine.now()
        async for job in self._jobs.walk(Where(expires_before=now)):
            (answer,) = await self._engine.commit([decide(job, Event.EXPIRE, now, by=self._worker)])
            if isinstance(answer, Applied):
                log.info("job %s expired before anybody could run it", job.id)

    async def _resign(self) -> None:
        try:
            for record in await self._engine.records(LEADER):
                if record.name == LEADER and parse(record.value)["worker"] == self._worker:
                    await self._engine.put_record(LEADER, None, record.version)
        except Exception as error:
            log.warning("upkeep: the lead could not be given up: %s", error)

    def _tell(self, rescued: list[Job]) -> None:
        for job in rescued:
            log.warning("job %s: worker %s is lost; it goes on elsewhere", job.id, job.worker)
