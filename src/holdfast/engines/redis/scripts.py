"""The Lua scripts: read from their files, each after the shared part, and known to the server by their hashes.

Must not build a script from values: everything that differs between two calls is an argument.
"""

from functools import cache
from hashlib import sha1
from importlib.resources import files

from msgspec import Struct

_SHARED = "store"
_ALONE = frozenset({"greet"})
"""Scripts that run without the shared part and its check of the store."""


class Script(Struct, frozen=True):
    """One script. `sha` is its name on the server."""

    name: str
    text: str
    sha: str


@cache
def script(name: str) -> Script:
    """Load a script by name."""
    text = _read(name) if name in _ALONE else _read(_SHARED) + _read(name)
    return Script(name, text, sha1(text.encode()).hexdigest())  # noqa: S324 (the server's own name for it)


def _read(name: str) -> str:
    return (files(__package__) / "lua" / f"{name}.lua").read_text(encoding="utf-8")
