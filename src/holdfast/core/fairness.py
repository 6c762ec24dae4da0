"""Fairness: within one queue and priority, the jobs of different fair keys take turns.

Must not read a store. A job's **fair key** comes from its arguments (`fair="{customer}"`); jobs without one count as
one key together, the empty one. A claim goes around the waiting keys in the order of their characters and takes one job
of each. It begins after the key that started last, which a record keeps: one for each queue, priority and set of types
that workers claim. Workers that claim different types have different records, because the round of one worker passes
over keys that only others can serve.
"""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any

from holdfast.core.errors import Invalid
from holdfast.core.keys import digest
from holdfast.core.suggestions import suggest
from holdfast.core.templates import fields_of, filled_in

FAIR = "fair/"
"""A record `fair/QUEUE/TYPES/PRIORITY` holds the key that started last there, with a > in front."""

FAIR_KEY_CHARACTERS = 200
"""How long a fair key may be; a longer one is replaced by its hash."""

TURN_KEPT_MS = 86_400_000
"""How long the record of a round that nobody continues is kept."""

ANY_TYPES = "*"
"""What stands for the types in a record's name, if a claim takes any."""


def check_fair(what: str, given: Any, names: Sequence[str]) -> str:
    """Return the template of a job whose parameters have these names; or raise Invalid."""
    if given is None:
        return ""
    if not isinstance(given, str):
        raise Invalid(f"{what}: fair={given!r}: give a text with an argument's name in braces: fair='{{customer}}'")
    fields = fields_of(f"{what}: fair={given!r}", given)
    if not fields:
        raise Invalid(f"{what}: fair={given!r} names no argument; write its name in braces: fair='{{customer}}'")
    for field in fields:
        first = field.partition(".")[0]
        if first not in names:
            hint = suggest(first, names) or f"; there are {', '.join(names) or 'none'}"
            raise Invalid(f"{what}: fair names {{{field}}}, which isn't a parameter{hint}")
    return given


def fair_key(what: str, template: str, given: Mapping[str, Any]) -> str:
    """The fair key of a job with these arguments; or raise Invalid."""
    key = filled_in(f"{what}: fair names", template, given)
    return key if len(key) <= FAIR_KEY_CHARACTERS else digest("fair", key)


# The record of a round.


def round_name(queue: str, types: Collection[str] | None) -> str:
    """The beginning of the names of the records for claims of these types; the priority follows."""
    return f"{FAIR}{queue}/{types_name(types)}/"


def types_name(types: Collection[str] | None) -> str:
    """A short name for a set of types."""
    return ANY_TYPES if types is None else _types_name(tuple(types))


@lru_cache
def _types_name(types: tuple[str, ...]) -> str:
    together = "\n".join(sorted(set(types))).encode(errors="surrogatepass")
    return hashlib.md5(together, usedforsecurity=False).hexdigest()[:12]


def last_key(value: str | None) -> str | None:
    """The key that started last, from a record's value; None if there is none."""
    return value[1:] if value and value.startswith(">") else None


def turn_value(key: str) -> str:
    """A record's value: this key has started last."""
    return f">{key}"
