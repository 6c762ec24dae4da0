"""JSON with positions: the two outermost levels are parsed by hand, so that the position of each element is known.

Must not know what the elements mean. Stricter than `json.loads`: no duplicate names, no NaN.
"""

import json
import re
from collections.abc import Iterator
from typing import Any, NoReturn

from msgspec import Struct

Path = tuple[str | int, ...]
"""The names and indexes that lead from an element to a value inside it."""


class Damage(Exception):
    """What is wrong with a file, and where."""

    def __init__(self, what: str, line: int, column: int) -> None:
        super().__init__(what)
        self.line = line
        self.column = column


class Spot(Struct, frozen=True):
    """The position of an element in a text. Lines and columns are computed only for an error."""

    text: str
    at: int = 0

    @property
    def line(self) -> int:
        """Its line, counted from 1."""
        return self.text.count("\n", 0, self.at) + 1

    def damage(self, what: str, *path: str | int) -> Damage:
        """An error with the position of the value at this path, or of the container that it is missing from."""
        places = {
            way: at for way, at, _, is_name in _walk(self.text, self.at) if not is_name and way == path[: len(way)]
        }
        at = places[max(places, key=len)] if places else self.at
        return Damage(what, self.text.count("\n", 0, at) + 1, at - self.text.rfind("\n", 0, at))


Found = dict[str, tuple[Spot, Any]]
"""The members of an object, each with its position. The elements of a list are pairs of position and value."""


def scan(data: bytes) -> Found | None:
    """The object in a file, or None if it is other JSON; raises Damage."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        start = error.start
        raise Damage("not UTF-8", data.count(b"\n", 0, start) + 1, start - data.rfind(b"\n", 0, start)) from None
    return _Scanner(text).top()


def scan_value(text: str) -> Any:
    """The value that a text holds, or Damage."""
    return _Scanner(text).value()


class _Scanner:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def top(self) -> Found | None:
        if not self._takes("{"):
            self.value()
            self._end()
            return None
        found: Found = {}
        for spot in self._elements("}"):
            name = self.value()
            if not isinstance(name, str) or not self._takes(":"):
                self._fail('expected a name in quotes, then ":"')
            if name in found:
                raise spot.damage(f"{name!r} appears twice")
            if self._takes("["):
                found[name] = (spot, [(at, self.value()) for at in self._elements("]")])
            else:
                found[name] = (spot, self.value())
        self._end()
        return found

    def value(self) -> Any:
        self._skip()
        try:
            value, self._at = _DECODER.raw_decode(self._text, self._at)
        except json.JSONDecodeError as error:
            self._at = error.pos
            self._fail(f"not JSON: {error.msg[0].lower()}{error.msg[1:]}")
        except RecursionError:
            self._fail("nested too deeply")
        except ValueError as error:
            what, self._at = _fault(self._text, self._at) or (str(error), self._at)
            self._fail(what)
        return value

    def _elements(self, closing: str) -> Iterator[Spot]:
        """Yield the position of each element of an object or list."""
        if self._takes(closing):
            return
        while True:
            self._skip()
            yield Spot(self._text, self._at)
            if self._takes(closing):
                return
            if not self._takes(","):
                self._fail(f'expected "," or "{closing}"')

    def _takes(self, mark: str) -> bool:
        self._skip()
        follows = self._text.startswith(mark, self._at)
        self._at += follows
        return follows

    def _skip(self) -> None:
        space = _SPACE.match(self._text, self._at)
        assert space is not None
        self._at = space.end()

    def _end(self) -> None:
        self._skip()
        if self._at != len(self._text):
            self._fail("expected nothing more after the end")

    def _fail(self, what: str) -> NoReturn:
        at = self._at
        raise Damage(what, self._text.count("\n", 0, at) + 1, at - self._text.rfind("\n", 0, at))


def _fault(text: str, at: int) -> tuple[str, int] | None:
    """The first duplicate name or invalid value, and its position."""
    names: set[Path] = set()
    for path, start, word, is_name in _walk(text, at):
        if is_name:
            if path in names:
                return f"{path[-1]!r} appears twice", start
            names.add(path)
        elif word not in "{[":
            try:
                _DECODER.decode(word)
            except ValueError as error:
                return str(error), start
    return None


def _walk(text: str, at: int) -> Iterator[tuple[Path, int, str, bool]]:
    """Every name and value of the JSON that starts here: its path, position, first word, and whether it is a name."""
    path: list[str | int] = []
    open_marks = ""
    name_is_due = False
    while match := _TOKEN.match(text, at):
        word, start, at = match[1], match.start(1), match.end()
        if word in "}]":
            path, open_marks, name_is_due = path[:-1], open_marks[:-1], False
        elif word == ",":
            name_is_due = open_marks.endswith("{")
            if not name_is_due and path:
                path[-1] = int(path[-1]) + 1
        elif name_is_due and word != ":":
            name_is_due = False
            path[-1] = json.loads(word)
            yield tuple(path), start, word, True
        elif word != ":":
            yield tuple(path), start, word, False
            if word in "{[":
                path, open_marks, name_is_due = [*path, 0], open_marks + word, word == "{"
        if not open_marks:
            return


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose names are all different, or ValueError."""
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{twice!r} appears twice")
    return found


def no_constant(name: str) -> NoReturn:
    """Refuse NaN and Infinity, which aren't valid JSON."""
    raise ValueError(f"{name} is not a number in JSON")


_SPACE = re.compile(r"[ \t\r\n]*")
_TOKEN = re.compile(r'[ \t\r\n]*("(?:[^"\\]|\\.)*"|[][{}:,]|[^][{}:,"\s]+)')
_DECODER = json.JSONDecoder(object_pairs_hook=unique, parse_constant=no_constant)
