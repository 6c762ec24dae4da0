"""Suggestions for a mistyped name: "did you mean status?". Must not know what the names are of."""

from collections.abc import Iterable
from difflib import get_close_matches

SIMILARITY = 0.75
"""How similar two words must be, from 0 to 1, for one to be a typing error of the other."""

SUGGESTED = 3
"""How many names are suggested at most: the first ones."""


def suggest(word: str, known: Iterable[str]) -> str:
    """Return "; did you mean status?" if known names begin with the word or resemble it, else an empty text."""
    # Dashes are left out: they would make all options of a command similar.
    names, bare = {name.lstrip("-"): name for name in known}, word.lstrip("-")
    close = [name for name in names if bare and name.startswith(bare)]
    close = close or [name for name in names if len(bare) > 2 and sorted(name) == sorted(bare)]  # "kye"
    close = [names[name] for name in close or get_close_matches(bare, names, cutoff=SIMILARITY)]
    return f"; did you mean {listed(close[:SUGGESTED])}?" if close else ""


def listed(names: Iterable[str]) -> str:
    """Return names as an enumeration: "a, b or c"."""
    *most, last = names
    return f"{', '.join(most)} or {last}" if most else last
