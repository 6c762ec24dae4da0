"""The leader's round for blobs: which jobs still need theirs. Must not touch a blob store (`blobs.collecting`)."""

import asyncio
import time
from collections.abc import Collection

from holdfast.blobs.collecting import Collected, collect
from holdfast.core.errors import BlobsAway
from holdfast.core.model import PAGE_LIMIT, Job, Time
from holdfast.engines.contract import Engine
from holdfast.jobs.large_values import needs_blobs
from holdfast.safe_text import logger

log = logger("holdfast.upkeep")

COLLECT_SECONDS = 3_600.0
"""How often blobs that nothing refers to are collected."""


class Collecting:
    """Collects the blobs of one store, at most once in COLLECT_SECONDS."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._due_at: float | None = None

    def is_due(self) -> bool:
        """Whether it is time for a round. The first one comes after COLLECT_SECONDS."""
        now = asyncio.get_running_loop().time()
        if self._due_at is None:
            self._due_at = now + COLLECT_SECONDS
        return now >= self._due_at

    async def run(self) -> None:
        """Do one round, and log what it did."""
        self._due_at = asyncio.get_running_loop().time() + COLLECT_SECONDS
        try:
            done = await collect_blobs(self._engine)
        except BlobsAway as away:
            log.warning("blobs can't be collected: %s; trying again in an hour", away)
            return
        if done.trashed or done.deleted or done.restored:
            log.info(
                "blobs: %d that nothing refers to moved to the trash, %d moved back, %d deleted after a day there",
                done.trashed, done.restored, done.deleted,
            )  # fmt: skip


async def collect_blobs(engine: Engine, now: Time | None = None) -> Collected:
    """Move blobs that nothing refers to into the trash, and delete what has been there for a day."""

    async def left(ids: Collection[str]) -> set[str]:
        found: set[str] = set()
        known: dict[str, Job | None] = {}
        asked, at = sorted(ids), await engine.now()
        for start in range(0, len(asked), PAGE_LIMIT):
            jobs = await engine.get(asked[start : start + PAGE_LIMIT])
            found |= {job.id for job in jobs if job is not None and await needs_blobs(engine, job, at, known)}
        return found

    return await collect(engine.blobs, left, time.time_ns() // 1_000_000 if now is None else now)
