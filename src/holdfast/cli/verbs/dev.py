"""`holdfast dev`: a worker that starts anew when the code changes, and what it does, line by line.

Must not do what a worker does: it is a process of its own, so that new code never meets old modules.
"""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import click

from holdfast.cli.errors import echo
from holdfast.cli.lifeline import Lifeline, say, stop_signals
from holdfast.cli.open_store import engine_at
from holdfast.core.errors import HoldfastError, Invalid
from holdfast.core.model import State, Where
from holdfast.jobs.service import Jobs
from holdfast.jobs.views.text import one_line, short_id

POLL_SECONDS = 0.5
"""How often the files are looked at, and the jobs."""

FILES_LIMIT = 5_000
"""How many files are watched at most; the walk ends there."""

STOP_SECONDS = 30.0
"""A worker that has not stopped so long after SIGTERM is killed; its jobs are recovered."""

JOBS_SHOWN = 20
SKIPPED = frozenset({"__pycache__", "node_modules", "site-packages", "build", "dist"})

Files = dict[str, int]


@click.command(
    epilog="""\b
Examples:
  holdfast dev video:app
  holdfast dev examples/video.py:app --at-once 2

\b
The .py files below the module's folder are watched. On a change the worker is asked to stop
(what runs is handed over, no attempt is lost) and a new one is started. Ctrl-C ends both,
and so does a closed terminal.
"""
)
@click.argument("target", metavar="MODULE:APP")
@click.option("--queues", help="Which queues, in this order, separated by commas. Default: those of the App's jobs.")
@click.option("--at-once", type=click.IntRange(1, 10_000), default=8, show_default=True, help="Slots.")
@click.option("--url", metavar="URL", help="The store, instead of the App's own.")
def dev(target: str, queues: str | None, at_once: int, url: str | None) -> None:
    """Run the jobs of MODULE:APP, and start anew when its code changes."""
    folder = folder_of(target)
    command = [sys.executable, "-m", "holdfast.cli", "worker", target, "--at-once", str(at_once)]
    command += ["--log-level", "warning"]
    command += ["--queues", queues] if queues else []
    command += ["--url", url] if url else []
    echo(f"watching the .py files in {folder}; Ctrl-C ends")
    for one in stop_signals():
        signal.signal(one, signal.default_int_handler)
    try:
        asyncio.run(_tend(command, folder, target, url))
    except KeyboardInterrupt:
        say("ended")


def folder_of(target: str) -> Path:
    """The folder whose files make up an App: beside a file or module, or a package's own. Imports nothing of it."""
    place = target.rpartition(":")[0] or target
    if place.endswith(".py") or "/" in place:
        if not Path(place).is_file():
            raise Invalid(f"{place}: there is no such file")
        return Path(place).resolve().parent
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        spec = find_spec(place.split(".")[0])
    except (ImportError, ValueError):
        spec = None
    if spec is None or spec.origin is None:
        raise Invalid(f"there is no module {place!r} here; give its import path, or a file such as video.py:app")
    return Path(spec.origin).resolve().parent


def files_below(folder: Path) -> Files:
    """The Python files below a folder, each with when it was last written. Bounded; hidden folders are left out."""
    return dict(_walk(folder))


def _walk(folder: Path) -> Iterator[tuple[str, int]]:
    seen = 0
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in SKIPPED)
        if "pyvenv.cfg" in names:
            folders.clear()
            continue
        for name in names:
            if not name.endswith(".py"):
                continue
            seen += 1
            if seen > FILES_LIMIT:
                return
            path = os.path.join(root, name)
            try:
                yield path, os.stat(path).st_mtime_ns
            except OSError:
                continue


def changed(old: Files, new: Files) -> list[str]:
    """The files that came, went or were written."""
    return sorted(path for path in old.keys() | new.keys() if old.get(path) != new.get(path))


async def _tend(command: list[str], folder: Path, target: str, url: str | None) -> None:
    """Keep one worker running on the code as it is now; tell what the jobs do."""
    told, files, line = Told(target, url), files_below(folder), Lifeline()
    child: subprocess.Popen[bytes] | None = line.start(command)
    try:
        while True:
            await asyncio.sleep(POLL_SECONDS)
            if child is not None and child.poll() is not None:
                echo(f"the worker ended with {child.returncode}; waiting for a change", err=True)
                child = None
            now = await asyncio.to_thread(files_below, folder)
            if names := changed(files, now):
                files = now
                more = f" and {len(names) - 1} more" if len(names) > 1 else ""
                echo(f"{Path(names[0]).relative_to(folder)}{more} changed; the worker starts anew")
                if child is not None:
                    await asyncio.to_thread(stop, child)
                child = line.start(command)
            await told.news()
    finally:
        if child is not None:
            stop(child)
        await told.close()


def stop(child: "subprocess.Popen[bytes]") -> None:
    """Ask a worker to stop; after a while, make it."""
    if child.poll() is None:
        child.send_signal(signal.SIGTERM)
    try:
        child.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def url_of(target: str) -> str | None:
    """The store of an App, asked in a process of its own; None while its code can't be imported."""
    code = "import sys; from holdfast.cli.load_app import load_app; print(load_app(sys.argv[1]).url)"
    done = subprocess.run([sys.executable, "-c", code, target], capture_output=True, text=True, timeout=STOP_SECONDS)
    return done.stdout.strip().rpartition("\n")[2] or None if done.returncode == 0 else None


class Told:
    """What has been told of the jobs. Opens the store when it is there; a store for one process is left alone."""

    def __init__(self, target: str, url: str | None) -> None:
        self._target = target
        self._url = url
        self._jobs: Jobs | None = None
        self._shown: dict[str, object] = {}

    async def news(self) -> None:
        """Tell each active job that got on, and each that left."""
        try:
            jobs = self._jobs or await self._open()
            if jobs is None:
                return
            active = await jobs.statuses(
                await jobs.engine.find(Where(states=(State.ACTIVE,), newest_first=True), limit=JOBS_SHOWN)
            )
            left = await jobs.engine.get(sorted(self._shown.keys() - {one.id for one in active}))
        except HoldfastError as error:
            echo(f"holdfast: {error}", err=True)
            return
        clock = time.strftime("%H:%M:%S")
        for one in active:
            if self._shown.get(one.id) != one.progress():
                echo(f"{clock}  {one.type} {short_id(one.id)}  {one_line(str(one))}")
                self._shown[one.id] = one.progress()
        for job in left:
            if job is not None:
                why = f": {one_line(job.error.type + ': ' + job.error.message)}" if job.error is not None else ""
                echo(f"{clock}  {job.type} {short_id(job.id)}  {job.state}{why}")
        self._shown = {one.id: self._shown[one.id] for one in active}

    async def close(self) -> None:
        """Let go of the store."""
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
