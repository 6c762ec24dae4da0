"""The engine of the guide "Write an engine": jobs in memory, and a log of acts that is replayed when it is opened."""

import os
import secrets
import threading
from collections.abc import Awaitable, Sequence
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote, unquote

from msgspec import Raw, Struct, json

from holdfast.core.errors import HoldfastError, StoreClosed
from holdfast.core.model import (
    Admission,
    Applied,
    Ask,
    Change,
    Conflict,
    Inserted,
    Job,
    Lease,
    Record,
    Recorded,
    Step,
    Time,
)
from holdfast.core.moves import HeldKey, Whole
from holdfast.engines.contract import Clock, Guarantees, system_clock
from holdfast.engines.memory import MemoryEngine

ACTS: dict[str, Any] = {
    "insert": tuple[list[Job], Lease | None],
    "claim": tuple[str, list[str], int, list[str] | None],
    "commit": tuple[list[Change]],
    "record": tuple[list[Step]],
    "admit": tuple[list[Ask], list[Step]],
    "prune": tuple[int],
    "put_record": tuple[str, str | None, int | None, list[Job]],
    "load": tuple[list[Whole], list[HeldKey], list[Record]],
}
"""The acts that write, each with what it takes."""


class Line(Struct, array_like=True):
    """One act in the log: which, when, and what it was given."""

    act: str
    at: Time
    args: Raw


class LogEngine(MemoryEngine):
    """Jobs in memory, and every act that writes in a log beside it."""

    guarantees = Guarantees(
        name="log",
        url="log:jobs.log",
        use="a guide",
        durable="a power cut",
        processes="one process",
        wakes="one process",
        atomic_children=True,
        clock="this machine's",
        limit="the process's memory; the log is never shortened",
    )

    def __init__(self, path: Path, clock: Clock = system_clock) -> None:
        super().__init__(self._time)
        self._path, self._given, self._at = path, clock, None
        self._file: BinaryIO | None = None
        self._one = threading.RLock()

    _at: Time | None

    def _time(self) -> Time:
        return self._given() if self._at is None else self._at

    @classmethod
    def from_url(cls, url: str, clock: Clock) -> "LogEngine":
        """Make the engine of a `log:` URL."""
        return cls(Path(unquote(url.removeprefix("log:"))), clock)

    @classmethod
    def scratch(cls, url: str, folder: Path) -> str:
        """Name a log that is not there yet."""
        return f"log:{quote(str(folder / f'{secrets.token_hex(4)}.log'))}"

    async def is_there(self) -> bool:
        """Whether there is a log."""
        return self._path.exists()

    async def open(self) -> None:
        """Read what is there, and do it again. An act that was cut in the middle of its line never happened."""
        if self._file is not None:
            return
        whole = 0
        for line in self._path.read_bytes().splitlines(keepends=True) if self._path.exists() else ():
            if line.endswith(b"\n"):
                await self._again(json.decode(line, type=Line))
                whole += len(line)
        self._file = self._path.open("ab")
        self._file.truncate(whole)

    async def close(self) -> None:
        """Close the log."""
        if self._file is not None:
            self._file.close()
            self._file = None

    async def _again(self, line: Line) -> None:
        self._at = line.at
        try:
            await getattr(MemoryEngine, f"_{line.act}")(self, *json.decode(line.args, type=ACTS[line.act]))
        except HoldfastError:  # it was refused then, too
            pass
        finally:
            self._at = None

    async def _do(self, act: str, *args: Any) -> Any:
        """Write an act down, then do it. Nothing here waits for anything else, so the lock is held for one act only."""
        with self._one:
            if self._file is None:
                raise StoreClosed(f"{self._path} is not open; open it first")
            self._at = self._given()
            try:
                self._file.write(json.encode(Line(act, self._at, Raw(json.encode(args)))) + b"\n")
                self._file.flush()
                os.fsync(self._file.fileno())
                return await getattr(super(), f"_{act}")(*args)
            finally:
                self._at = None

    # What arrives here was checked by the contract's own methods: nothing is written down that no store could keep.

    def _insert(self, jobs: Sequence[Job], parent: Lease | None) -> Awaitable[list[Inserted]]:
        return self._do("insert", jobs, parent)

    def _claim(self, worker: str, queues: list[str], limit: int, types: list[str] | None) -> Awaitable[list[Job]]:
        return self._do("claim", worker, queues, limit, types)

    def _commit(self, changes: Sequence[Change]) -> Awaitable[list[Applied | Conflict]]:
        return self._do("commit", changes)

    def _record(self, steps: Sequence[Step]) -> Awaitable[list[Recorded | Conflict]]:
        return self._do("record", steps)

    def _admit(
        self, asks: Sequence[Ask], steps: Sequence[Step]
    ) -> Awaitable[tuple[list[Admission | Conflict], list[Recorded | Conflict]]]:
        return self._do("admit", asks, steps)

    def _prune(self, limit: int) -> Awaitable[int]:
        return self._do("prune", limit)

    def _put_record(
        self, name: str, value: str | None, expected: int | None, jobs: Sequence[Job]
    ) -> Awaitable[Record | Conflict]:
        return self._do("put_record", name, value, expected, jobs)

    def _load(self, wholes: Sequence[Whole], keys: Sequence[HeldKey], records: Sequence[Record]) -> Awaitable[int]:
        return self._do("load", wholes, keys, records)
