"""Named statements from an engine's `-- name: …` SQL files, and bounds for their parameters.

Must not build SQL from data.
"""

import re
import sys
from importlib.resources import files
from types import SimpleNamespace

_NAME = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)


def queries(package: str, file: str = "queries.sql") -> SimpleNamespace:
    """Return the statements of a package's file, each as an attribute with its name."""
    pieces = _NAME.split(files(package).joinpath(file).read_text("utf-8"))
    names, statements = pieces[1::2], pieces[2::2]
    assert len(set(names)) == len(names), "two statements have one name"
    return SimpleNamespace(**{name: text.strip() for name, text in zip(names, statements, strict=True)})


def beyond(prefix: str) -> str:
    """Return the first text that sorts after all texts with this prefix, by code points; empty if there is none."""
    shorter = prefix.rstrip(chr(sys.maxunicode))
    if not shorter:
        return ""
    next_character = "\ue000" if shorter[-1] == "\ud7ff" else chr(ord(shorter[-1]) + 1)  # between them are surrogates
    return shorter[:-1] + next_character


def migrations(package: str) -> list[tuple[int, str]]:
    """Return the numbered migration files of a package, in order: (schema version, text)."""
    found = [
        (int(file.name[:4]), file.read_text("utf-8"))
        for file in files(package).joinpath("migrations").iterdir()
        if file.name.endswith(".sql")
    ]
    return sorted(found)
