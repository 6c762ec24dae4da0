"""The source files of an App: where they are, and which have changed. Must not import them."""

import os
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from holdfast.core.errors import Invalid

FILES_LIMIT = 5_000
"""How many files are watched at most; the search ends there."""

SKIPPED = frozenset({"__pycache__", "node_modules", "site-packages", "build", "dist"})

Files = dict[str, int]
"""Paths, each with the time of the file's last change."""


def folder_of(target: str) -> Path:
    """Return the folder with an App's files: that of its file or module, or the package itself. Imports nothing."""
    place = target.rpartition(":")[0] or target
    if place.endswith(".py") or "/" in place:
        if not Path(place).is_file():
            raise Invalid(f"{place}: no such file")
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
    """Return the Python files below a folder with their times of change, up to a limit. Skips hidden folders."""
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


def changed_files(old: Files, new: Files) -> list[str]:
    """Return the files that were added, removed or changed."""
    return sorted(path for path in old.keys() | new.keys() if old.get(path) != new.get(path))
