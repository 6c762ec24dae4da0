"""The Lua scripts: read from their files, the shared part in front, each known to the server by its hash.

Must not build a script from values: all that differs between two calls goes in as an argument.
"""

from functools import cache
from hashlib import sha1
from importlib.resources import files

from msgspec import Struct

_SHARED = "store"
_ALONE = frozenset({"greet"})
"""Scripts that don't go through the door."""


class Script(Struct, frozen=True):
    """One act's script. `sha` is what the server calls it."""

    name: str
    text: str
    sha: str


@cache
def script(name: str) -> Script:
    """The script of an act."""
    text = _read(name) if name in _ALONE else _read(_SHARED) + _read(name)
    return Script(name, text, sha1(text.encode()).hexdigest())  # noqa: S324 (the server's own name for it)


def _read(name: str) -> str:
    return (files(__package__) / "lua" / f"{name}.lua").read_text(encoding="utf-8")
