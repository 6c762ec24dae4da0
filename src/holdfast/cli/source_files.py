"""The source files of an App: where they lie, and which of them changed. Must not import any of them."""

import os
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from holdfast.core.errors import Invalid

FILES_LIMIT = 5_000
"""How many files are watched at most; the walk ends there."""

SKIPPED = frozenset({"__pycache__", "node_modules", "site-packages", "build", "dist"})

Files = dict[str, int]
"""Paths, each with when the file was last written."""


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


def changed_files(old: Files, new: Files) -> list[str]:
    """The files that came, went or were written."""
    return sorted(path for path in old.keys() | new.keys() if old.get(path) != new.get(path))
