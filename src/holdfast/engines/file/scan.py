"""JSON with line numbers: the outermost two levels are read by hand, so that each element is known by where it stands.

Must not know what the elements mean. Stricter than `json.loads`: no name twice, no NaN.
"""

import json
import re
from collections.abc import Iterator
from typing import Any, NoReturn


class Damage(Exception):
    """What is wrong with a file, and where."""

    def __init__(self, what: str, line: int, column: int | None = None) -> None:
        super().__init__(what)
        self.line = line
        self.column = column


Found = dict[str, tuple[int, Any]]
"""The members of an object, each with its line. A list's elements are pairs of line and value."""


def scan(data: bytes) -> Found | None:
    """The object that a file holds, None when it is JSON of another kind, or Damage."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        start = error.start
        raise Damage("not UTF-8", data.count(b"\n", 0, start) + 1, start - data.rfind(b"\n", 0, start)) from None
    return _Scanner(text).top()


class _Scanner:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._counted = 0
        self._line = 1

    def top(self) -> Found | None:
        if not self._takes("{"):
            self._value()
            self._end()
            return None
        found: Found = {}
        for line in self._elements("}"):
            name = self._value()
            if not isinstance(name, str) or not self._takes(":"):
                self._fail('expected a name in quotes, then ":"')
            if name in found:
                raise Damage(f"{name!r} is there twice", line)
            if self._takes("["):
                found[name] = (line, [(at, self._value()) for at in self._elements("]")])
            else:
                found[name] = (line, self._value())
        self._end()
        return found

    def _elements(self, closing: str) -> Iterator[int]:
        """Stop at each element of an object or list, and tell its line."""
        if self._takes(closing):
            return
        while True:
            self._skip()
            self._line += self._text.count("\n", self._counted, self._at)
            self._counted = self._at
            yield self._line
            if self._takes(closing):
                return
            if not self._takes(","):
                self._fail(f'expected "," or "{closing}"')

    def _value(self) -> Any:
        self._skip()
        try:
            value, self._at = _DECODER.raw_decode(self._text, self._at)
        except json.JSONDecodeError as error:
            self._at = error.pos
            self._fail(f"not JSON: {error.msg[0].lower()}{error.msg[1:]}")
        except RecursionError:
            self._fail("nested too deeply")
        except ValueError as error:
            self._fail(str(error))
        return value

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
        raise Damage(what, self._text.count("\n", 0, self._at) + 1, self._at - self._text.rfind("\n", 0, self._at))


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose names are all different, or ValueError."""
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{twice!r} is there twice")
    return found


def no_constant(name: str) -> NoReturn:
    """NaN and its kin are no JSON."""
    raise ValueError(f"{name} is not a number in JSON")


_SPACE = re.compile(r"[ \t\r\n]*")
_DECODER = json.JSONDecoder(object_pairs_hook=unique, parse_constant=no_constant)
