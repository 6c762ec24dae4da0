"""Claiming: fills a worker's free slots with jobs, in its own loop and together with commits of ended jobs.

Must not run jobs (`execution`) or commit their ends (`settling`).
"""

import asyncio
import time
from collections.abc import Callable, Sequence

from holdfast.background import LogOnce
from holdfast.core.errors import StoreLost
from holdfast.core.model import Job
from holdfast.engines.contract import Engine
from holdfast.engines.topics import queue_topic
from holdfast.safe_text import logger
from holdfast.worker.held_job import STORE_RETRY_SECONDS
from holdfast.worker.leases import Leases
from holdfast.worker.release import GivingUp
from holdfast.worker.slots import Slots

log = logger("holdfast.worker")

CLAIM_LIMIT = 200
"""How many jobs one claim takes at most, however many slots are free."""

PARTS = 3
"""One claim takes at most this fraction of the slots: while the store works on it, jobs in the others run."""

ROOM_SECONDS = 1.0
"""How often a worker that may not claim checks whether it may again."""


class Claiming:
    """Claims jobs of some queues for one worker. `lose` is called if this isn't the store that we wrote to."""

    begin: Callable[[Job, float], None]
    """Called with each job, and with the time when its claim was sent."""

    def __init__(
        self,
        engine: Engine,
        worker: str,
        slots: Slots,
        leases: Leases,
        giving_up: GivingUp,
        *,
        queues: Sequence[str],
        poll_seconds: float,
        types: Callable[[], tuple[str, ...]],
        lose: Callable[[StoreLost], None],
    ) -> None:
        self._engine = engine
        self._worker = worker
        self._slots = slots
        self._leases = leases
        self._giving_up = giving_up
        self.types = types
        """Returns the job types to claim now."""
        self._lose = lose
        self._poll_seconds = poll_seconds
        self.queues = tuple(queues)
        self.is_stopping = False
        self.is_quiet = False
        """Whether a heartbeat asked this worker to claim no more jobs, as for a move."""
        self.is_claiming = False
        self.turns = 0
        """How many turns are under way. They may bring jobs, as a claim does."""
        self._has_more = False
        """Whether the last claim found as many jobs as it asked for, so there may be more."""

    async def run(self) -> None:
        """Claim until the worker stops."""
        topics = [queue_topic(queue) for queue in self.queues]
        most = min(CLAIM_LIMIT, max(1, self._slots.at_once // PARTS))
        mark, tries = 0, 0
        trouble = LogOnce(log, f"{self._worker}: can't claim jobs", f"{self._worker}: claims jobs again")
        while not self.is_stopping:
            self._slots.room.clear()
            free = min(self._slots.free(), most)
            if free <= 0 or not self._may_claim():
                await self._wait_for_room()
                continue
            try:
                if await self._claim(free) < free and not self.is_stopping:
                    mark = await self._engine.wait(topics, self._poll_seconds, mark)
                tries = 0
                trouble.recovered()
            except StoreLost as error:
                self._lose(error)
            except Exception as error:
                trouble.say(error)
                await asyncio.sleep(STORE_RETRY_SECONDS[min(tries, len(STORE_RETRY_SECONDS) - 1)])
                tries += 1

    async def _wait_for_room(self) -> None:
        try:
            # Not with `wait_for`, which swallows a cancel that comes at the same moment (Python 3.11).
            async with asyncio.timeout(ROOM_SECONDS):
                await self._slots.room.wait()
        except TimeoutError:
            pass

    async def _claim(self, free: int) -> int:
        """Claim up to this many jobs and begin them; return how many there were."""
        self.is_claiming = True
        self._slots.reserved += free
        sent = time.monotonic()
        try:
            jobs = await self._engine.claim(self._worker, self.queues, free, self.types())
        finally:
            self.is_claiming = False
            self._slots.reserved -= free
        self.receive(jobs, free, sent)
        return len(jobs)

    def refill_size(self) -> int:
        """Return how many jobs to claim with the next commit: none, unless there may be more in the queues."""
        return min(self._slots.free(), CLAIM_LIMIT) if self._has_more and self._may_claim() else 0

    def receive(self, jobs: Sequence[Job], asked: int, sent: float) -> None:
        """Begin the jobs of a claim that was sent at this time and asked for this many."""
        self._has_more = bool(asked) and len(jobs) == asked
        if self._leases.is_over(sent):  # no heartbeat has named these jobs yet, so we wouldn't learn if they are lost
            for job in jobs:
                self._slots.spawn(
                    self._giving_up.release(job.lease, "the store's answer to the claim arrived too late")
                )
        else:
            for job in jobs:
                self.begin(job, sent)

    def _may_claim(self) -> bool:
        return not self.is_stopping and not self.is_quiet and self._leases.may_start()
