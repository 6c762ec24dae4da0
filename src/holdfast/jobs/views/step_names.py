"""Step names for people: `draw "sea"`, `chapter 3`, "draw, item 2", instead of a hash. Must not read a store.

A record keeps no arguments: without `key=`, its path holds a hash of them. Most arguments are part of the job's own
arguments or of an earlier result, so a value from there with the same hash is the argument.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice, product
from typing import Any
from urllib.parse import unquote

from holdfast.core.canonical import canonical
from holdfast.core.errors import BadValue
from holdfast.core.keys import digest
from holdfast.core.model import Job, Step, StepState
from holdfast.core.places import group_of, in_order, level_of, paths_down
from holdfast.jobs.views.shapes import plain_value
from holdfast.jobs.views.text import one_line

ARGUMENT_SHOWN = 30
"""A step with a longer argument is named by its number instead."""

CANDIDATES = 2_000
COMBINATIONS = 200
"""How many values, and combinations of values, are compared with the hashes of steps."""

NUMBERS = range(101)
"""Numbers that are often arguments without being stored anywhere: of chapters, scenes, pages."""

DEPTH = 6

_NO_PLACES: Mapping[str, int] = {}

_HASHED = re.compile(r"([0-9a-f]{16})((?:,[0-9a-f]{3})*)")


def name_steps(
    job: Job, steps: Sequence[Step], places: Mapping[str, int] = _NO_PLACES, only: Collection[str] | None = None
) -> dict[str, str]:
    """Return a short name for each step, by its path; with `only`, for these. `places` has the order of calls
    (`core.places`).
    """
    paths = [step.path for step in steps] if only is None else list(only)
    parts = {part for path in paths for part in path.split("/")}
    texts = list(dict.fromkeys(islice(_candidates(job, steps), CANDIDATES)))
    whole = {digest(f"[{text}]")[:16]: text for text in texts}
    tagged: dict[str, list[str]] = {}
    for text in texts if any("," in part for part in parts) else ():
        tagged.setdefault(digest(text)[:3], []).append(text)
    arguments = {part: _argument(part, whole, tagged) for part in parts}
    numbers = number_steps(steps, places) if None in arguments.values() else {}
    return {path: " / ".join(_named(one, arguments, numbers) for one in steps_above(path)) for path in paths}


def number_steps(steps: Sequence[Step], places: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """Return which of the calls of its name each step is, and each step around one, and how many there are."""
    groups: dict[str, dict[str, None]] = {}
    for step in steps:
        for path in steps_above(step.path):
            groups.setdefault(group_of(path), {})[path] = None
    return {
        path: (n, len(paths)) for paths in groups.values() for n, path in enumerate(in_order(list(paths), places), 1)
    }


def call_order(paths: Sequence[str], places: Mapping[str, int]) -> list[str]:
    """Return recorded paths in the order in which the code called the steps, also of different names and levels."""
    levels: dict[str, dict[str, None]] = {}
    for path in paths:
        for one in steps_above(path):
            levels.setdefault(level_of(one), {})[one] = None
    place = {path: n for level in levels.values() for n, path in enumerate(in_order(list(level), places))}
    return sorted(paths, key=lambda path: [place[one] for one in steps_above(path)])


def has_hash(path: str) -> bool:
    """Whether a path has a hash of arguments instead of a key."""
    return any(_HASHED.fullmatch(part.partition("#")[2].partition("#")[0]) for part in path.split("/"))


steps_above = paths_down
"""The paths of a step and of the steps around it, the outermost first."""


def _candidates(job: Job, steps: Sequence[Step]) -> Iterator[str]:
    for text in (job.args, *(step.result for step in steps if step.state is StepState.DONE)):
        for value in _values(plain_value(text), DEPTH):
            try:
                found = canonical(value)
            except BadValue:
                continue
            if len(found) <= ARGUMENT_SHOWN:
                yield found
    yield from map(str, NUMBERS)


def _values(value: Any, depth: int) -> Iterator[Any]:
    """Return a value and everything inside it."""
    yield value
    if depth and isinstance(value, list | dict):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _values(inner, depth - 1)


def _argument(part: str, whole: Mapping[str, str], tagged: Mapping[str, list[str]]) -> str | None:
    """Return the argument or key of one part of a path; None if only its hash is known."""
    _, _, rest = part.partition("#")
    key = rest.partition("#")[0]
    if key.startswith("*"):
        return None
    hashed = _HASHED.fullmatch(key)
    if hashed is None:
        return one_line(unquote(key), ARGUMENT_SHOWN)
    tags = hashed[2].split(",")[1:]
    if not tags:
        return whole.get(hashed[1])
    for chosen in islice(product(*(tagged.get(tag, ()) for tag in tags)), COMBINATIONS):
        if digest(f"[{','.join(chosen)}]")[:16] == hashed[1]:
            return one_line(", ".join(chosen), 2 * ARGUMENT_SHOWN)
    return None


def _named(path: str, arguments: Mapping[str, str | None], numbers: Mapping[str, tuple[int, int]]) -> str:
    part = path.rpartition("/")[2]
    name, _, rest = part.partition("#")
    name, nth, argument = one_line(unquote(name), 60), rest.partition("#")[2], arguments[part]
    if argument is None:
        number, count = numbers[path]
        return f"{name}, item {number}" if count > 1 else name
    again = f", call {nth}" if nth else ""
    return f"{name} {argument}{again}" if argument else f"{name}{again}"
