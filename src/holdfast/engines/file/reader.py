"""Looking at a checkpoint file: also while another process uses it, and after a crash, without doing anything about it.

Must not write, lock, recover or remove anything. The file is replaced in one step, so that whoever reads it reads a
whole version, perhaps a moment before it is durable; each look reads it again if it has changed. A person's edits are
shown as the next open carries them out. What was running stays so, whether its process lives or not.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from holdfast.core.errors import StoreError, StoreUnwritable
from holdfast.core.model import Beat, Presence, Record, Running, State
from holdfast.engines.batch_thread import Ticket
from holdfast.engines.contract import Clock, system_clock
from holdfast.engines.file.disk import Disk, holder
from holdfast.engines.file.engine import FileEngine, Work
from holdfast.engines.file.writer import Rows
from holdfast.engines.tables import Tables

POLL_SECONDS = 0.2
"""How often a wait looks whether the file has changed: no other process rings a bell here."""

T = TypeVar("T")


class FileReader(FileEngine):
    """A checkpoint file that is looked at and never changed: every act that writes is refused."""

    def __init__(
        self, path: str | Path, clock: Clock = system_clock, *, disk: Disk | None = None, inline: bool = False
    ) -> None:
        super().__init__(path, clock, disk=disk, inline=inline)
        # Owned by the store's thread, as all that FileEngine says so of.
        self._versions = 0

    async def _beat(self, presence: Presence) -> Beat:
        raise self._refusal()

    async def _records(self, prefix: str) -> list[Record]:
        """Show the workers of the process that has the file open, too."""

        def look(tables: Tables) -> list[Record]:
            tables.presences = self._workers(tables)
            return tables.list_records(prefix)

        return await self._look(look)

    async def _wait(self, topics: list[str], timeout: float, after: int) -> int:
        """Take every new version of the file for news of everything."""
        until, seen = time.monotonic() + timeout, after or self._versions
        while True:
            versions = await self._look(lambda _: self._versions)
            left = until - time.monotonic()
            if versions > seen or left <= 0:
                return versions
            await asyncio.sleep(min(left, POLL_SECONDS))

    async def _act(self, act: Callable[[Tables], T]) -> T:
        raise self._refusal()

    async def _look(self, look: Callable[[Tables], T]) -> T:
        answer: T = await self._hand_in(Work(lambda _: look(self._current())))
        return answer

    def _refusal(self) -> StoreUnwritable:
        return StoreUnwritable(f"{self.path} was opened to be looked at only; nothing was changed; open it for writing")

    # All below runs on the store's thread.

    def _run(self, tickets: Sequence[Ticket[Work]]) -> None:
        for ticket in tickets:
            self._try(ticket)

    def _open(self) -> None:
        if self._held is not None:
            return
        self._held, self._versions = _NoLock(), 0
        try:
            self._file = self._disk.resolve(str(self.path))
            self._current()
        except BaseException:
            self._close()
            raise

    def _current(self) -> Rows:
        """What the file says now."""
        try:
            # Looked at before it is read: if it is replaced in between, the next look reads it again.
            there = self._disk.facts(self._file)
            if self._versions and (there is self._facts or (there is not None and there.same_file(self._facts))):
                return self._rows
            self._check_kind(there)
            rows = Rows() if there is None else self._reopened(recover=False).rows
        except OSError as error:
            what = f"{self.path}: it can't be read ({error.strerror or error})"
            raise StoreError(f"{what}; give this process the right to, or name another file") from error
        self._rows, self._facts = rows, there
        self._versions += 1
        return rows

    def _workers(self, tables: Tables) -> dict[str, Presence]:
        """Who works on the file. It keeps no beats: whoever has it open serves all its queues, as far as is known."""
        found = None
        with suppress(OSError):  # The lock's file may be another user's own.
            found = holder(self._disk, self._file)
        if found is None:
            return {}
        pid, since_ns = found
        now, queues = self._clock(), tuple(sorted({queue for queue, _ in tables.tally}))
        active = [job for job in tables.jobs.values() if job.state is State.ACTIVE]
        presences: dict[str, Presence] = {}
        for name in sorted({job.worker for job in active if job.worker}) or [f"process-{pid}"]:
            running = tuple(Running(job.id, job.epoch, since=job.claimed_at) for job in active if job.worker == name)
            presences[name] = Presence(
                worker=name,
                pid=pid,
                queues=queues,
                slots=max(1, len(running)),
                started_at=min(since_ns // 1_000_000, now),
                beat_at=now,
                running=running,
            )
        return presences


class _NoLock:
    """Stands where an engine has its lock: looking needs no right."""

    def renew(self) -> None:
        """Nothing to renew."""

    def release(self) -> None:
        """Nothing to release."""
