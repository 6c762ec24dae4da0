"""In which order a job's code made its calls, where that isn't the order of their records: of a map, for instance.

Must not touch a store. `draw#3` is the third draw that the code called, whichever ended first or ran again.
"""

from collections.abc import Iterable, Mapping, Sequence

from holdfast.core.keys import digest
from holdfast.core.model import Step

PLACES_PATH = "~places"
"""The path of the record of the calls that weren't recorded in the order in which the code made them."""

PLACES_LIMIT = 4_000
"""How many calls that record names, at most. In a job with more, they are numbered in the order of the records."""

DIGITS = 8
"""The record names a call by so many digits of a hash of its path."""


def group_of(path: str) -> str:
    """Return what the calls that are numbered together have in common: the step around them, and their name."""
    above, _, part = path.rpartition("/")
    return f"{above}/{part.partition('#')[0]}"


def places_text(called: Iterable[str], recorded: Iterable[str], before: str = "") -> str:
    """Return the content of the record, given the paths that the code has called, in order, those that have a record,
    in order, and the record so far.
    """
    groups: dict[str, list[str]] = {}
    known: dict[str, list[str]] = {}
    recorded = dict.fromkeys(recorded)
    for path in recorded:
        known.setdefault(group_of(path), []).append(path)
    for path in called:
        if path in recorded:
            groups.setdefault(group_of(path), []).append(path)
    moved = [paths for group, paths in groups.items() if paths != known[group][: len(paths)]]
    found = dict.fromkeys([_short(path) for paths in moved for path in paths][:PLACES_LIMIT])
    if before:
        called_now = {_short(path) for paths in groups.values() for path in paths}
        found |= dict.fromkeys(one for one in _split(before) if one not in called_now)
    return "".join(list(found)[:PLACES_LIMIT])


def read_places(record: Step) -> str:
    """Return the content of the record."""
    return (record.result or "").strip('"')


def places_in(records: Iterable[Step]) -> dict[str, int]:
    """Return the places of calls by the hash of their paths, given all records of a job."""
    text = next((read_places(record) for record in records if record.path == PLACES_PATH), "")
    return {one: place for place, one in enumerate(_split(text))}


def in_order(paths: Sequence[str], places: Mapping[str, int]) -> list[str]:
    """Return the recorded paths of one group in the order of the calls."""
    last = len(places)
    return sorted(paths, key=lambda path: places.get(_short(path), last)) if places else list(paths)


def _short(path: str) -> str:
    return digest(path)[:DIGITS]


def _split(text: str) -> list[str]:
    return [text[start : start + DIGITS] for start in range(0, len(text), DIGITS)]
