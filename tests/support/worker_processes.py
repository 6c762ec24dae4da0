"""Workers in processes of their own: a folder with a store and a program, and what is asked and done there."""

import asyncio
import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from holdfast import App
from holdfast.app.run import Run
from holdfast.core.codec import canonical
from holdfast.core.model import Entry, Options, Presence
from holdfast.engines.records import WORKER
from holdfast.jobs.service import JobRequest, Status
from holdfast.upkeep.keeper import LEADER
from tests.support.given import wait_until

SMALL = "dict(beat_seconds=0.2, lease_seconds=1.0, look_seconds=0.1, upkeep_seconds=0.2, grace_seconds=0.3)"
"""Settings with which a worker notices within a second what happens."""

NO_OPTIONS = Options()


class Stage:
    """A folder with a store, and workers in processes of their own."""

    def __init__(self, folder: Path, program: str, url: str | None = None) -> None:
        self.folder = folder
        (folder / "program.py").write_text(program)
        self.url = url or f"sqlite:///{folder / 'jobs.db'}"
        self.app = App(self.url)
        self.workers: list[subprocess.Popen[str]] = []
        self.runner = asyncio.Runner()

    def do(self, work: Any) -> Any:
        return self.runner.run(asyncio.wait_for(work, 60))

    def worker(
        self, settings: str = "{}", *, url: str | None = None, within: Sequence[str] = ()
    ) -> subprocess.Popen[str]:
        """A worker in a process of its own, started `within` another command; with its own way to the store."""
        process = subprocess.Popen(
            [*within, sys.executable, "program.py"],
            cwd=self.folder,
            env={**os.environ, "TEST_SETTINGS": settings, "TEST_URL": url or self.url},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        assert process.stdout.readline().startswith("worker "), process.pid
        self.workers.append(process)
        return process

    def submit(self, type: str, *args: Any, options: Options = NO_OPTIONS) -> Run[Any]:
        async def submit() -> Run[Any]:
            order = JobRequest(type=type, args=canonical(args), options=options)
            (accepted,) = await (await self.app.open()).submit([order])
            return await self.app.run(accepted.id)

        return self.do(submit())

    def status(self, run: Run[Any]) -> Status:
        return self.do(run.status())

    def history(self, run: Run[Any]) -> list[Entry]:
        return self.do(run.history())

    def marks(self, kind: str) -> list[tuple[str, int, float]]:
        """What a kind of mark said, the process, and when."""
        path = self.folder / "marks"
        rows = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
        found = [(what.split(":", 1), int(pid), float(at)) for what, pid, at in rows]
        return [(what[-1], pid, at) for what, pid, at in found if what[0] == kind]

    def freeze(self, process: "subprocess.Popen[str]") -> None:
        """Stop a process, but not while it writes to SQLite: then nobody could write until it goes on."""
        while True:
            process.send_signal(signal.SIGSTOP)
            if not self.url.startswith("sqlite") or self._is_writable():
                return
            process.send_signal(signal.SIGCONT)

    def _is_writable(self) -> bool:
        with contextlib.closing(sqlite3.connect(self.folder / "jobs.db", timeout=1, isolation_level=None)) as store:
            try:
                store.execute("BEGIN IMMEDIATE")
                store.execute("ROLLBACK")
            except sqlite3.OperationalError:
                return False
        return True

    def leader(self) -> str | None:
        async def look() -> str | None:
            records = await (await self.app.open()).engine.records(LEADER)
            return records[0].value if records else None

        return self.do(look())

    def leads(self, process: "subprocess.Popen[str]") -> bool:
        return f"-{process.pid}-" in (self.leader() or "")

    def hand_the_lead_to(self, worker: str) -> None:
        """Make this worker the leader: leadership is a record, and whom it names leads."""

        async def put() -> None:
            await (await self.app.open()).engine.put_record(LEADER, canonical({"worker": worker}))

        self.do(put())

    def close(self) -> None:
        for process in self.workers:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait(30)
            assert process.stdout is not None
            process.stdout.close()
        self.do(self.app.close())
        self.runner.close()


def owner(stage: Stage, run: Run[Any]) -> "subprocess.Popen[str]":
    """The process that runs this job, once there is one."""

    def look() -> "subprocess.Popen[str] | None":
        name = stage.status(run).worker or ""
        return next((process for process in stage.workers if f"-{process.pid}-" in name), None)

    return wait_until(look)


def worker_of(stage: Stage, process: "subprocess.Popen[str]") -> str:
    """The name of the worker in a process."""

    async def look() -> list[str]:
        records = await (await stage.app.open()).engine.records(WORKER)
        return [record.name.removeprefix(WORKER) for record in records]

    return next(name for name in stage.do(look()) if f"-{process.pid}-" in name)


def presence(stage: Stage, process: "subprocess.Popen[str]") -> Presence:
    """What the worker in a process told with its last beat."""
    (record,) = stage.do(stage.app.engine.records(WORKER + worker_of(stage, process)))
    return msgspec.json.decode(record.value, type=Presence)


def is_dead(pid: int) -> bool:
    """Gone, or a zombie that nobody has reaped yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].startswith("Z")
    except OSError:
        return True
