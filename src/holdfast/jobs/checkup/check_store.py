"""Where a store is kept: this machine's clock, its permissions and its disk. Must not read jobs.

What this system can't report is left out, never guessed. Must not know what only one engine knows.
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
"""Less free space than the first is a warning, less than the second a failure: a commit's log may need that much."""

LONG_AGO = 1_735_689_600
"""The start of 2025. A clock that shows an earlier time was never set."""


def check_store(engine: Engine, place: str, path: Path | None) -> list[Finding]:
    """Check what can be checked before the store is opened. `path` is its file, if it has one."""
    promised = engine.guarantees
    facts = f"{place} ({promised.name}; survives {promised.durable}; shared by {promised.processes})"
    findings = [Finding("store", Level.OK, facts), _check_clock()]
    return findings if path is None else [*findings, _check_permissions(path), _check_room(path)]


def size_words(number: int) -> str:
    """Format a size for a person: "1.5 MB"."""
    for size, unit in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if number >= size:
            return f"{number / size:.1f} {unit}"
    return f"{number} bytes"


def _check_clock() -> Finding:
    shown = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
    if time.time() < LONG_AGO:
        return Finding("clock", Level.FAIL, f"{shown}: this machine's clock isn't set; jobs will run at wrong times")
    return Finding("clock", Level.OK, shown)


def _check_permissions(path: Path) -> Finding:
    missing = [str(one) for one in (path, path.parent) if not os.access(one, os.R_OK | os.W_OK)]
    if missing:
        return Finding("permissions", Level.FAIL, f"this user can't read and write {' and '.join(missing)}")
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077 == 0o060:
        return Finding("permissions", Level.OK, "only its owner and its group can read and write it")
    if mode & 0o077:
        text = f"other users of this machine can access it (mode {mode:03o}): chmod 600 {path}"
        return Finding("permissions", Level.WARN, text)
    return Finding("permissions", Level.OK, "only its owner can read and write it")


def _check_room(path: Path) -> Finding:
    free = shutil.disk_usage(path.parent).free
    if free < NO_ROOM_BYTES:
        return Finding("disk", Level.FAIL, f"{size_words(free)} free: writes will fail; free some space")
    level = Level.WARN if free < TIGHT_BYTES else Level.OK
    level_words = "; free some space soon" if level is Level.WARN else ""
    return Finding("disk", level, f"{size_words(free)} free{level_words}")
