"""Hints that leave a type open, such as `dict` or `Any`: which values come back as another type, and what to add.

Must not write or read values (`codec`).
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from pathlib import PurePath
from typing import Any, NamedTuple

import pydantic

from holdfast.core.canonical import a_or_an, step_to

HINT_DEPTH = 3
"""How deep a suggested hint goes into a value."""

HINT_ITEMS = 4
"""A tuple up to this long is suggested item by item."""

_PLAIN = frozenset({bool, int, float, str, type(None)})


class Change(NamedTuple):
    """The first place where a value would come back as another type, and how."""

    path: str
    words: str

    def what_now(self, hint: Any, value: Any) -> str:
        """What to do: write a hint that names the types of this value."""
        said = hint_for(value)
        if hint is Any:
            return f"add a type hint, such as {said}"
        return (
            f"name its type in the hint, such as {said}" if said != getattr(hint, "__name__", "") else "name its type"
        )


def change_in(value: Any, back: Any, path: str = "") -> Change | None:
    """The first difference in type or key between a value and the value read back; None if there is none."""
    kind = type(value)
    if kind is not type(back):
        return Change(path, f"{a_or_an(kind.__name__)} would come back as {a_or_an(type(back).__name__)}")
    if kind in _PLAIN:
        return None
    if isinstance(value, Mapping):
        return _change_in_mapping(value, back, path)
    if isinstance(value, list | tuple | deque):
        for place, (one, two) in enumerate(zip(value, back, strict=False)):
            if type(one) is type(two) and type(one) in _PLAIN:
                continue
            if (found := change_in(one, two, f"{path}[{place}]")) is not None:
                return found
        return None
    if isinstance(value, set | frozenset):
        unlike = {type(one) for one in value} - {type(one) for one in back}
        what = next(iter(unlike), None)
        return (
            None if what is None else Change(path, f"{a_or_an(what.__name__)} in a set would come back as another type")
        )
    if not isinstance(value, pydantic.BaseModel) and not is_dataclass(value):
        return None  # A type that the hint names, or a value that compares equal whatever its parts are.
    extra = getattr(value, "__pydantic_extra__", None) or {}
    for name, one in {**vars(value), **extra}.items():
        if (found := change_in(one, getattr(back, name, None), path + step_to(name))) is not None:
            return found
    return None


def _change_in_mapping(value: Mapping[Any, Any], back: Mapping[Any, Any], path: str) -> Change | None:
    kept = {key: key for key in back}
    for key, item in value.items():
        there = kept.get(key, "")  # A key that is missing became text.
        if key not in kept or type(there) is not type(key):
            return Change(path, f"the key {key!r:.40} would come back as {a_or_an(type(there).__name__)}")
        two = back[key]
        if type(item) is type(two) and type(item) in _PLAIN:
            continue
        if (found := change_in(item, two, path + step_to(key))) is not None:
            return found
    return None


def with_tuples(value: Any, back: Any) -> Any:
    """The value read back, with a tuple wherever the original has one: JSON has only lists."""
    if type(value) in (list, tuple) and type(back) is list:
        return type(value)([with_tuples(one, two) for one, two in zip(value, back, strict=True)])
    if type(value) is dict and type(back) is dict:
        return {key: with_tuples(value.get(key), two) for key, two in back.items()}
    return back


def hint_for(value: Any, depth: int = HINT_DEPTH) -> str:
    """A type hint that fits a value: `dict[int, str]`, `tuple[int, ...]`, `Decimal`."""
    kind = type(value)
    if value is None:
        return "None"
    if isinstance(value, PurePath):
        return "Path"
    if not depth:
        return kind.__name__
    if isinstance(value, dict) and value:
        return f"dict[{_one_hint(list(value), depth)}, {_one_hint(list(value.values()), depth)}]"
    if kind is tuple and 0 < len(value) <= HINT_ITEMS:
        return f"tuple[{', '.join(hint_for(one, depth - 1) for one in value)}]"
    if kind is tuple:
        return f"tuple[{_one_hint(value, depth)}, ...]"
    if isinstance(value, list | set | frozenset) and value:
        return f"{kind.__name__}[{_one_hint(list(value), depth)}]"
    return kind.__name__


def _one_hint(values: Sequence[Any], depth: int) -> str:
    """One hint for several values: their common type, or a union of a few."""
    hints = list(dict.fromkeys(hint_for(one, depth - 1) for one in values[:HINT_ITEMS]))
    return " | ".join(hints) or "Any"


def leaves_open(schema: Any) -> bool:
    """Whether pydantic's schema of a hint accepts any value somewhere."""
    waiting = [schema]  # A tree: recursive parts are referred to by name, and appear once.
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            if one.get("type") == "any":
                return True
            # Without an items schema, a container accepts anything.
            if one.get("type") in _BARE and not one.keys() & _BARE[one["type"]]:
                return True
            waiting.extend(value for key, value in one.items() if key not in _NO_SCHEMA)
        elif isinstance(one, list | tuple):
            waiting.extend(one)
    return False


_NO_SCHEMA = ("metadata", "serialization", "default")
"""Keys of a schema that hold no nested schema of accepted values."""

_BARE = {
    "list": {"items_schema"},
    "set": {"items_schema"},
    "frozenset": {"items_schema"},
    "tuple": {"items_schema"},
    "dict": {"values_schema"},
}
