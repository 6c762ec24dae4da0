"""The Lua scripts: read from their files, each after the parts that it shares, and known to the server by their hashes.

Must not build a script from values: everything that differs between two calls is an argument.
"""

from functools import cache
from hashlib import sha1
from importlib.resources import files

from msgspec import Struct

_SHARED = "store"
_ALONE = frozenset({"greet"})
"""Scripts that run without the shared part and its check of the store."""

_PARTS = {
    "admit": ("steps", "recording", "limits", "permits"),
    "claim": ("fair", "limits", "ready", "permits", "turns"),
    "commit": ("steps", "fair", "limits", "ready", "indexes", "permits"),
    "expired": ("whole",),
    "find": ("whole",),
    "get": ("whole",),
    "in_order": ("whole",),
    "insert": ("fair", "limits", "ready", "indexes"),
    "load": ("steps", "fair", "limits", "ready", "indexes"),
    "prune": ("limits", "permits"),
    "put_record": ("limits", "putting"),
    "put_with_jobs": ("fair", "limits", "ready", "indexes", "putting"),
    "recheck": ("limits",),
    "ready_types": ("fair",),
    "record": ("steps", "recording"),
    "steps_page": ("steps",),
    "steps_under": ("steps",),
    "summaries": ("steps",),
    "usage": ("limits", "permits"),
}
"""What some scripts need besides, in this order after the shared part: every line costs each call a little."""


class Script(Struct, frozen=True):
    """One script. `sha` is its name on the server."""

    name: str
    text: str
    sha: str


@cache
def script(name: str) -> Script:
    """Load a script by name."""
    parts = () if name in _ALONE else (_SHARED, *_PARTS.get(name, ()))
    text = "".join(map(_read, (*parts, name)))
    return Script(name, text, sha1(text.encode()).hexdigest())  # noqa: S324 (the server's own name for it)


def _read(name: str) -> str:
    return (files(__package__) / "lua" / f"{name}.lua").read_text(encoding="utf-8")
