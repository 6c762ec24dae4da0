"""The person at the terminal: who they are, and what they are asked. Must not ask a store, nor judge an answer as a
whole: `jobs` does.
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
"""How often a field is asked for again when what was typed doesn't fit."""

DESCRIPTION_SHOWN = 100

YES_OR_NO = {**dict.fromkeys(("y", "yes", "true"), True), **dict.fromkeys(("n", "no", "false"), False)}


def whoami() -> str:
    """Who asks, for the history: the name of the user on this machine, else "person"."""
    try:
        return getpass.getuser() or "person"
    except (OSError, KeyError, ImportError):
        return "person"


def at_terminal() -> bool:
    """Whether there is somebody to ask."""
    return sys.stdin.isatty()


def confirm(question: str) -> None:
    """Ask on a terminal; elsewhere the answer must have been given already."""
    if not at_terminal():
        raise Invalid(f"{question} say so with --yes: there is no terminal to ask on")
    click.confirm(clean(question), abort=True, err=True)


def ask_fields(fields: Sequence[Field]) -> Any:
    """Ask a person for each field. What may be left out is, with an empty line."""
    given: dict[str, Any] = {}
    for field in fields:
        if field.description:
            echo(f"  {one_line(field.description, DESCRIPTION_SHOWN)}", err=True)
        found = _ask(field)
        if found:
            given[field.name] = found[0]
    return given.get("", given)


def _ask(field: Field) -> list[Any]:
    """What a person gives for a field, or nothing."""
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
    raise Invalid(f"{label}: not understood {TRIES} times; give the whole answer as JSON, with --answer")


def _read(field: Field, text: str) -> Any:
    """The value that a text means; ValueError says what to type."""
    if not text:
        raise ValueError("it is needed")
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
        raise ValueError("type JSON; a text has quotes of its own") from None


READERS: dict[str, Callable[[str], Any]] = {
    "string": str,
    "boolean": _yes_or_no,
    "integer": _whole_number,
    "number": _number,
    "json": _json,
}
