"""The person at the terminal: their name, and questions to them.

Must not read a store or judge a whole answer: `jobs` does.
"""

import getpass
import sys
from collections.abc import Callable, Sequence
from typing import Any

import click

from holdfast.cli.errors import echo
from holdfast.core.codec import parse
from holdfast.core.errors import BadValue, Invalid
from holdfast.core.forms import check_form
from holdfast.jobs.views.form import Field
from holdfast.jobs.views.text import one_line
from holdfast.safe_text import clean

TRIES = 5
"""How often to ask for a field again if the input doesn't fit."""

DESCRIPTION_SHOWN = 100

YES_OR_NO = {**dict.fromkeys(("y", "yes", "true"), True), **dict.fromkeys(("n", "no", "false"), False)}


def whoami() -> str:
    """Return the name for the history: the user's name on this machine, or "person"."""
    try:
        return getpass.getuser() or "person"
    except (OSError, KeyError, ImportError):
        return "person"


def at_terminal() -> bool:
    """Return whether there is somebody to ask."""
    return sys.stdin.isatty()


def confirm(question: str) -> None:
    """Ask on a terminal. Without one, refuse: the call must contain --yes."""
    if not at_terminal():
        raise Invalid(f"{question} there is no terminal to ask on; pass --yes")
    click.confirm(clean(question), abort=True, err=True)


def ask_fields(fields: Sequence[Field]) -> Any:
    """Ask a person for each field. An empty line leaves out an optional field."""
    given: dict[str, Any] = {}
    for field in fields:
        if field.description:
            echo(f"  {one_line(field.description, DESCRIPTION_SHOWN)}", err=True)
        found = _ask(field)
        if found:
            given[field.name] = found[0]
    return given.get("", given)


def _ask(field: Field) -> list[Any]:
    """Return a list with the value that a person typed for a field, or an empty list."""
    label = field.words("or nothing") if field.name else f"answer ({field.takes()})"
    for _ in range(TRIES):
        text = click.prompt(label, default="", show_default=False, err=True).strip()
        if not text and not field.is_required:
            return []
        try:
            value = _read(field, text)
            check_form(value, field.schema, "it")
            return [value]
        except BadValue as error:
            echo(f"  {clean(str(error))}", err=True)
        except ValueError as error:
            echo(f"  {error}", err=True)
    raise Invalid(f"{label}: no valid input after {TRIES} tries; pass the whole answer as JSON with --answer")


def _read(field: Field, text: str) -> Any:
    """Return the value that a text means, or raise ValueError with what to type."""
    if not text:
        raise ValueError("a value is required")
    if field.choices:
        if text not in field.choices:
            raise ValueError(f"type {field.takes()}")
        return field.choices[text]
    return READERS[field.kind](text)


def _number(text: str) -> Any:
    try:
        value = parse(text)
    except BadValue:
        value = None
    if type(value) not in (int, float):
        raise ValueError("type a number")
    return value


def _whole_number(text: str) -> Any:
    try:
        return int(text)
    except ValueError:
        raise ValueError("type a whole number") from None


def _yes_or_no(text: str) -> bool:
    if text.lower() not in YES_OR_NO:
        raise ValueError("type yes or no")
    return YES_OR_NO[text.lower()]


def _json(text: str) -> Any:
    try:
        return parse(text)
    except BadValue:
        raise ValueError("type JSON; put a text in quotes") from None


READERS: dict[str, Callable[[str], Any]] = {
    "string": str,
    "boolean": _yes_or_no,
    "integer": _whole_number,
    "number": _number,
    "json": _json,
}
