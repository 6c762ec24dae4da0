"""Reads JSON from the command line, and shows how to write it. Must not know type hints: those belong to an App."""

import json
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from holdfast.core.codec import canonical, parse
from holdfast.core.errors import BadValue, Invalid, Refused
from holdfast.jobs.views.text import one_line

READ_LIMIT = 80 * 1024 * 1024
"""How many characters to read from a file or standard input. A job's arguments can't be larger."""

SHOWN = 60
"""How many characters of a text that isn't JSON are shown."""

_BARE = re.compile(r"[^\[\]{}\"]*[^\s\[\]{}\"][^\[\]{}\"]*")
_PYTHONS = {"None", "True", "False"}


def parse_json(option: str, text: str, *, as_list: bool = False) -> Any:
    """Return the value of a JSON option, or raise BadValue with an example of how to write it."""
    try:
        return parse(text)
    except BadValue as error:
        if text.strip() in _PYTHONS:
            raise BadValue(f"{option} {text}: not JSON; write null, true or false") from None
        if _BARE.fullmatch(text):
            shown = one_line(text, SHOWN)
            written = shlex.quote(json.dumps([shown] if as_list else shown, ensure_ascii=False))
            raise BadValue(f"{option} {shown}: not JSON; put the text in quotes: {option} {written}") from None
        reason, _, what_now = str(error).removeprefix("the JSON text: ").partition("; ")
        if reason.startswith("not JSON"):
            example = """'["value"]'""" if as_list else """'{"name": "value"}'"""
            what_now = f"put it in single quotes, for the shell: {option} {example}"
        raise BadValue(f"{option}: {reason}; {what_now}") from None


def read_text(option: str, given: str) -> str:
    """Return an option's text: as given, from a file with `@FILE`, or from standard input with `-`."""
    if given == "-":
        return sys.stdin.read(READ_LIMIT)
    if not given.startswith("@"):
        return given
    try:
        with open(given[1:], encoding="utf-8") as file:
            return file.read(READ_LIMIT)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise Invalid(f"{option} {given}: can't read the file: {reason}") from error


def parse_call(option: str, text: str) -> tuple[list[Any], dict[str, Any]]:
    """Parse a call's arguments: a JSON array of positional ones, or an object of named ones."""
    value = parse_json(option, text, as_list=True)
    if isinstance(value, list):
        return value, {}
    if isinstance(value, dict):
        return [], value
    raise Invalid(f"""{option}: give a list or an object: {option} '["first", 2]' or {option} '{{"name": "first"}}'""")


@contextmanager
def refuse_for_job(id: str) -> Iterator[None]:
    """Wrap giving a value to a waiting job: if the value doesn't fit, the job refuses it, and the call isn't wrong."""
    try:
        yield
    except BadValue as error:
        raise Refused(f"job {id}: {error}; nothing was sent, and the job still waits") from error


def parse_arguments(option: str, text: str) -> str:
    """Return arguments as they are stored: the canonical text of a list. Refuse anything else."""
    value = parse_json(option, text, as_list=True)
    if not isinstance(value, list):
        raise Invalid(
            f"{option}: give the whole list of arguments as holdfast show prints it, in the function's order: "
            f"""{option} '["first", 2]'"""
        )
    return canonical(value)
