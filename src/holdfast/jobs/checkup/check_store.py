"""The place where a store is kept: this machine's clock, its permissions and its disk. Must not read jobs.

What can't be told on this system is left out, never guessed. What only one engine knows is not known here.
"""

import os
import shutil
import stat
import time
from pathlib import Path

from holdfast.engines.contract import Engine
from holdfast.jobs.checkup.finding import Finding, Level

TIGHT_BYTES = 1_000_000_000
NO_ROOM_BYTES = 50_000_000
"""Free space below the first is a warning, below the second a failure: a commit may need that much log."""

LONG_AGO = 1_735_689_600
"""2025 began. A clock that says earlier is not set."""


def check_store(engine: Engine, place: str, path: Path | None) -> list[Finding]:
    """Check what can be seen before the store is opened; `path` is its file, if it is one."""
    promised = engine.guarantees
    facts = f"{place} ({promised.name}; survives {promised.durable}; shared by {promised.processes})"
    findings = [Finding("store", Level.OK, facts), _check_clock()]
    return findings if path is None else [*findings, _check_permissions(path), _check_room(path)]


def size_words(number: int) -> str:
    """A size for a person: "1.5 MB"."""
    for size, unit in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if number >= size:
            return f"{number / size:.1f} {unit}"
    return f"{number} bytes"


def _check_clock() -> Finding:
    shown = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
    if time.time() < LONG_AGO:
        return Finding("clock", Level.FAIL, f"{shown}: this machine's clock is not set; jobs would come due wrongly")
    return Finding("clock", Level.OK, shown)


def _check_permissions(path: Path) -> Finding:
    missing = [str(one) for one in (path, path.parent) if not os.access(one, os.R_OK | os.W_OK)]
    if missing:
        return Finding("permissions", Level.FAIL, f"{' and '.join(missing)} can't be written by this user")
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077:
        text = f"other users of this machine may read it (mode {mode:03o}): chmod 600 {path}"
        return Finding("permissions", Level.WARN, text)
    return Finding("permissions", Level.OK, "only its owner can read and write it")


def _check_room(path: Path) -> Finding:
    free = shutil.disk_usage(path.parent).free
    if free < NO_ROOM_BYTES:
        return Finding("disk", Level.FAIL, f"{size_words(free)} free: writes will fail; make room")
    level = Level.WARN if free < TIGHT_BYTES else Level.OK
    return Finding("disk", level, f"{size_words(free)} free" + ("; make room soon" if level is Level.WARN else ""))
