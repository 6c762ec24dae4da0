"""In which order a job's code made its calls, where that isn't the order of their records: of a map, for instance.

Must not touch a store. `draw#3` is the third draw that the code called, whichever ended first or ran again.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

from holdfast.core.keys import digest
from holdfast.core.model import Step
from holdfast.core.reruns import outdated

PLACES_PATH = "~places"
"""The path of the record of the calls that weren't recorded in the order in which the code made them."""

PLACES_LIMIT = 4_000
"""How many calls that record names, at most. In a job with more, they are numbered in the order of the records."""

DIGITS = 8
"""The record names a call by so many digits of a hash of its path."""

UNUSED = "-"
"""What stands in the record before the recorded calls that the code no longer makes, in a job with reruns."""


def group_of(path: str) -> str:
    """Return what the calls that are numbered together have in common: the step around them, and their name."""
    above, _, part = path.rpartition("/")
    return f"{above}/{part.partition('#')[0]}"


def level_of(path: str) -> str:
    """Return the path of the step around a step; empty for the job's own code."""
    return path.rpartition("/")[0]


def places_text(called: Iterable[str], recorded: Iterable[str], before: str = "", unused: Iterable[str] = ()) -> str:
    """Return the content of the record, given the paths that the code has called, in order, those that have a record,
    in order, the record so far, and the recorded paths that the code no longer calls.
    """
    levels: dict[str, list[str]] = {}
    known: dict[str, dict[str, None]] = {}
    for path in recorded:
        for one in paths_down(path):
            known.setdefault(level_of(one), {})[one] = None
    for path in called:
        if path in known.get(level_of(path), ()):
            levels.setdefault(level_of(path), []).append(path)
    moved = [paths for level, paths in levels.items() if paths != list(known[level])[: len(paths)]]
    found = dict.fromkeys([_short(path) for paths in moved for path in paths][:PLACES_LIMIT])
    if before:
        called_now = {_short(path) for paths in levels.values() for path in paths}
        found |= dict.fromkeys(one for one in _split(before.partition(UNUSED)[0]) if one not in called_now)
    left = "".join([_short(path) for path in unused][:PLACES_LIMIT])
    return "".join(list(found)[:PLACES_LIMIT]) + (UNUSED + left if left else "")


def paths_down(path: str) -> list[str]:
    """Return the paths of the steps around a step, outermost first, and its own."""
    parts = path.split("/")
    return ["/".join(parts[:end]) for end in range(1, len(parts) + 1)]


def read_places(record: Step) -> str:
    """Return the content of the record."""
    return (record.result or "").strip('"')


def places_in(records: Iterable[Step]) -> dict[str, int]:
    """Return the places of calls by the hash of their paths, given all records of a job."""
    return {one: place for place, one in enumerate(_split(_text_in(records).partition(UNUSED)[0]))}


def still_used(paths: Collection[str], records: Iterable[Step]) -> list[str]:
    """Return those of these recorded paths whose results no rerun has replaced, as far as that is known: a call whose
    arguments changed has a newer record, or the code no longer made it when the job last completed.
    """
    return used_by(paths, _text_in(records))


def used_by(paths: Collection[str], text: str) -> list[str]:
    """The same, given the content of the record of places."""
    unused, replaced = set(_split(text.partition(UNUSED)[2])), outdated(paths)
    if not unused and not replaced:
        return list(paths)
    return [path for path in paths if not any(one in replaced or _short(one) in unused for one in paths_down(path))]


def unused_before(text: str, called: Collection[str], recorded: Iterable[str]) -> list[str]:
    """Return the recorded paths that were unused by then and still haven't been called."""
    unused = set(_split(text.partition(UNUSED)[2]))
    return [path for path in recorded if _short(path) in unused and path not in called] if unused else []


def _text_in(records: Iterable[Step]) -> str:
    return next((read_places(record) for record in records if record.path == PLACES_PATH), "")


def in_order(paths: Sequence[str], places: Mapping[str, int]) -> list[str]:
    """Return recorded paths of one level in the order of the calls."""
    last = len(places)
    return sorted(paths, key=lambda path: places.get(_short(path), last)) if places else list(paths)


def _short(path: str) -> str:
    return digest(path)[:DIGITS]


def _split(text: str) -> list[str]:
    return [text[start : start + DIGITS] for start in range(0, len(text), DIGITS)]
