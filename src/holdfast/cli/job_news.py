"""Prints the progress of a store's jobs, line by line. Must not change anything."""

import asyncio
import subprocess
import sys
import time

from holdfast.cli.errors import echo
from holdfast.cli.open_store import engine_at
from holdfast.core.errors import HoldfastError
from holdfast.core.model import State, Where
from holdfast.jobs.service import Jobs
from holdfast.jobs.views.text import one_line, short_id

JOBS_SHOWN = 20
IMPORT_SECONDS = 30.0
"""How long the import of an App may take before the next try."""


def url_of(target: str) -> str | None:
    """Return the URL of an App's store, found in a separate process. None while the App's code can't be imported."""
    code = "import sys; from holdfast.cli.load_app import load_app; print(load_app(sys.argv[1]).url)"
    done = subprocess.run([sys.executable, "-c", code, target], capture_output=True, text=True, timeout=IMPORT_SECONDS)
    return done.stdout.strip().rpartition("\n")[2] or None if done.returncode == 0 else None


class JobNews:
    """Prints what is new about the jobs. Opens the store once it exists; leaves a single-process store alone."""

    def __init__(self, target: str, url: str | None) -> None:
        self._target = target
        self._url = url
        self._jobs: Jobs | None = None
        self._shown: dict[str, object] = {}

    async def print_new(self) -> None:
        """Print each active job that made progress. The worker's log says when one starts and ends."""
        try:
            jobs = self._jobs or await self._open()
            if jobs is None:
                return
            active = await jobs.statuses(
                await jobs.engine.find(Where(states=(State.ACTIVE,), newest_first=True), limit=JOBS_SHOWN)
            )
        except HoldfastError as error:
            echo(f"holdfast: {error}", err=True)
            return
        clock = time.strftime("%H:%M:%S")
        for one in active:
            if self._shown.get(one.id) != one.progress():
                echo(f"{clock}  {one.type} {short_id(one.id)}  {one_line(str(one))}")
                self._shown[one.id] = one.progress()
        self._shown = {one.id: self._shown[one.id] for one in active}

    async def close(self) -> None:
        """Close the store."""
        if self._jobs is not None:
            await self._jobs.engine.close()

    async def _open(self) -> Jobs | None:
        self._url = self._url or await asyncio.to_thread(url_of, self._target)
        if self._url is None:
            return None
        engine = engine_at(self._url, create=True)
        if not engine.guarantees.shared or not await engine.is_there():
            return None
        await engine.open()
        self._jobs = Jobs(engine)
        return self._jobs
