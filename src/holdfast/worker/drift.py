"""Drift: code that calls a recorded step with different arguments. Pure; must not run or record anything.

A record keeps no arguments, only hashes: one of all of them, which is its identity, and a short tag for each, to tell a
person which one differs.
"""

import inspect
import re
from collections.abc import Mapping, Sequence

import msgspec

from holdfast.core.codec import canonical
from holdfast.core.keys import digest
from holdfast.core.outcome import ONCE_TAG
from holdfast.worker.registry import STEPS, StepSpec

DRIFT_LINES = 10
"""How many lines of drift an attempt adds to the history, at most."""

IDENTITY_DIGITS = 16
TAG_DIGITS = 3


VANISHED_NAMES = 10
"""How many names of recorded but unused steps are reported, at most."""

_HASHED = re.compile(rf"[0-9a-f]{{{IDENTITY_DIGITS}}}(,[0-9a-f]{{{TAG_DIGITS}}})*")

_raws = msgspec.json.Decoder(list[msgspec.Raw]).decode


def arguments_key(text: str) -> str:
    """Return the key of a call without `key=`: a hash of its arguments and, if there are several, a tag for each."""
    whole = digest(text)[:IDENTITY_DIGITS]
    raws = _raws(text)
    return whole if len(raws) < 2 else ",".join([whole, *(tag[:TAG_DIGITS] for tag in tags(text))])


def call_misfit(name: str, path: str) -> str | None:
    """Say why no step of this name can still make a recorded call without a key: it has come to need more arguments, so
    it would run again. None if one can, or if none is known here.
    """
    key = path.rpartition("/")[2].partition("#")[2].partition("#")[0]
    if _HASHED.fullmatch(key) is None:
        return None
    had = 0 if key == arguments_key("[]") else key.count(",") or 1
    troubles = [_lacking(spec, had) for spec in STEPS.get(name, {}).values()]
    return None if None in troubles else next(iter(troubles), None)


def _lacking(spec: StepSpec, had: int) -> str | None:
    """Name what a call with so many arguments lacks."""
    needed = [one for one in inspect.signature(spec.function).parameters.values() if one.default is one.empty]
    by_name = [one.name for one in needed if one.kind is one.KEYWORD_ONLY]
    by_place = [one.name for one in needed if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    lacks = [*by_place, *by_name][had:]
    if len(by_place) + bool(by_name) <= had:
        return None
    return f"it now needs {', '.join(map(repr, lacks))}, and would run again"


def tags(text: str) -> list[str]:
    """Return a hash of each argument of a call, from its canonical text."""
    return [digest(bytes(raw).decode())[:IDENTITY_DIGITS] for raw in _raws(text)]


def tags_text(text: str, *, once: bool = False) -> str:
    """Return the tags of a call, as stored beside its record. An effect's tags say that it is one."""
    return canonical([*tags(text), *([ONCE_TAG] if once else [])])


def read_tags(stored: str) -> list[str]:
    """Return the tags of a recorded call."""
    return [tag for tag in stored.strip("[]").replace('"', "").split(",") if tag not in ("", ONCE_TAG)]


def name_differing(names: Sequence[str], old: Sequence[str], new: Sequence[str]) -> str:
    """Name the arguments that differ. `names` are the function's parameters, in order."""
    places = [
        place
        for place in range(max(len(old), len(new)))
        if place >= len(old) or place >= len(new) or old[place] != new[place]
    ]
    if not places:
        return "its arguments"
    return ", ".join(repr(names[place]) if place < len(names) else "a keyword argument" for place in places)


def describe_unasked(path: str, names: Sequence[str], left: Sequence[str]) -> str | None:
    """Describe a new call at `path`, given the recorded paths of its name that no call has used."""
    parent, new = _split(path)
    siblings = [
        (old, tags_there) for old, (above, tags_there) in ((old, _split(old)) for old in left) if above == parent
    ]
    if not siblings:
        return None

    def distance(old: Sequence[str]) -> int:
        return abs(len(old) - len(new)) + sum(a != b for a, b in zip(old, new, strict=False))

    recorded, nearest = min(siblings, key=lambda sibling: distance(sibling[1]))
    # A single argument has no tag: if there is only one, it is the one that differs.
    which = name_differing(names, nearest, new) if nearest or new else repr(names[0]) if names else "its arguments"
    return f"{path} ran: it differs in {which} from the recorded {recorded}, which was not used"


def describe_other_key(path: str, left: Sequence[str]) -> str | None:
    """The same for a call with `key=`, whose arguments aren't compared."""
    parent, _ = _split(path)
    siblings = [old for old in left if old.rpartition("/")[0] == parent]
    if not siblings:
        return None
    return f"{path} ran, but the recorded {siblings[0]} was not used ({len(siblings)} such): did its key change?"


def vanished_text(counts: Mapping[str, int]) -> str:
    """Describe recorded steps that the code never called, and what to do about it."""
    names = ", ".join(f"{name} ({number})" for name, number in counts.items())
    gone = next((name for name in counts if name not in STEPS), None)
    number = sum(counts.values())
    text = f"{number} recorded {'step was' if number == 1 else 'steps were'} not used: {names}"
    if gone is None:
        return f"{text}; the code still has steps with {'this name' if len(counts) == 1 else 'these names'}"
    return f"{text}; if you renamed the step, @step(was={gone!r}) makes it use the old records"


def _split(path: str) -> tuple[str, list[str]]:
    """Return the path of the enclosing step, and the tags of a call's arguments."""
    parent, _, last = path.rpartition("/")
    return parent, last.split("#")[1].split(",")[1:]
