"""A read-only view of a checkpoint file, also while another process uses it, and after a crash.

Must not write, lock, recover or remove anything. The file is replaced atomically, so a reader always sees a complete
version, perhaps a moment before it is durable; it reads the file again when it has changed. A person's edits are shown
as the next open will apply them. Running jobs stay running, whether their process lives or not.
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
"""How often a wait checks whether the file has changed: there are no wake-ups from other processes."""

T = TypeVar("T")


class FileReader(FileEngine):
    """A checkpoint file that is only read: every act that writes is refused."""

    def __init__(
        self, path: str | Path, clock: Clock = system_clock, *, disk: Disk | None = None, inline: bool = False
    ) -> None:
        super().__init__(path, clock, disk=disk, inline=inline)
        # Owned by the store's thread, as in FileEngine.
        self._versions = 0

    async def _beat(self, presence: Presence) -> Beat:
        raise self._refusal()

    async def _records(self, prefix: str) -> list[Record]:
        """Also list the workers of the process that has the file open."""

        def look(tables: Tables) -> list[Record]:
            tables.presences = self._workers(tables)
            return tables.list_records(prefix)

        return await self._look(look)

    async def _wait(self, topics: list[str], timeout: float, after: int) -> int:
        """Treat every new version of the file as a wake-up for all topics."""
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
        return StoreUnwritable(f"{self.path} was opened read-only; nothing was changed; open it for writing")

    # Everything below runs on the store's thread.

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
        """The current content of the file."""
        try:
            # Get the facts before reading: if the file is replaced in between, the next call reads it again.
            there = self._disk.facts(self._file)
            if self._versions and (there is self._facts or (there is not None and there.same_file(self._facts))):
                return self._rows
            self._check_kind(there)
            rows = Rows() if there is None else self._reopened(recover=False).rows
        except OSError as error:
            what = f"{self.path}: can't be read ({error.strerror or error})"
            raise StoreError(f"{what}; give this process permission to read it, or use another file") from error
        self._rows, self._facts = rows, there
        self._versions += 1
        return rows

    def _workers(self, tables: Tables) -> dict[str, Presence]:
        """The workers of the file. It stores no heartbeats: a process that has it open may serve any of its queues."""
        found = None
        with suppress(OSError):  # The lock file may belong to another user.
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
    """A lock that does nothing: reading needs none."""

    def renew(self) -> None:
        """Nothing to renew."""

    def release(self) -> None:
        """Nothing to release."""
