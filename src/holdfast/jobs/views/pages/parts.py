"""What several pages share: a moment, a value, a fact, a job in one line, an act. Must not read a store."""

from typing import Annotated, Any

from msgspec import Meta, Struct

from holdfast.core.errors import EffectInDoubt
from holdfast.core.model import Error, Time
from holdfast.jobs.views.shapes import plain_value, time_text
from holdfast.jobs.views.text import error_line, error_text
from holdfast.safe_text import clean

VALUE_BYTES = 4_000
"""How large a value may be that a page shows whole."""

SHOWN_CHARACTERS = VALUE_BYTES // 4
"""How much of a larger one it shows: its beginning."""

TRACE_CHARACTERS = 6_000
"""How much of a traceback a page shows: its end."""

Moment = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]
"""A time in UTC: "2026-03-01T12:00:00.000Z"."""

Milliseconds = Annotated[int, Meta(description="a duration in milliseconds")]


class Fact(Struct, frozen=True, omit_defaults=True):
    """A named fact in words: "Spent", "$9.54", "of a $25.00 budget"."""

    name: str
    words: str
    more: str = ""


class Value(Struct, frozen=True, kw_only=True):
    """A stored JSON value. A large one is cut: `json` is then null, and `text` has its beginning."""

    json: Any = None
    text: str = ""
    bytes: int
    is_whole: bool


class ErrorShown(Struct, frozen=True, kw_only=True):
    """An error: its line for a person, and the end of its traceback."""

    line: str
    type: str
    message: str
    traceback: str = ""


class Act(Struct, frozen=True, kw_only=True):
    """Something that a person can do now, with the equal command.

    `twice` are the words of the button before the second press, for what can't be taken back; empty otherwise.
    """

    name: str
    words: str
    method: str
    path: str
    command: str
    twice: str = ""


class JobLine(Struct, frozen=True, kw_only=True):
    """A job in a list. `name` is meta.name, its first text argument, its key, or its type and short id."""

    id: str
    short: str
    name: str
    type: str
    queue: str
    state: str
    where: str
    """Where it stands, in words."""
    doing: str
    """The same of a job that runs, without the time left and the money."""
    key: str | None
    parent: str | None
    stage: str
    stage_number: int | None
    stages: tuple[str, ...]
    done: int | None
    total: int | None
    remaining_ms: int | None
    worker: str | None
    attempt: int
    recoveries: int
    spent: dict[str, float]
    spent_words: str
    """"$1.84"; "$1.84+" if that is the least that it spent."""
    created_at: Moment
    started_at: Moment | None
    """When its worker claimed it; null if it doesn't run."""
    finished_at: Moment | None
    took_ms: int | None
    """From its submission to its end; null if it hasn't ended."""
    run_at: Moment | None
    version: int


class StateCount(Struct, frozen=True):
    """How many jobs are in a state."""

    state: str
    jobs: int


def moment(at: Time) -> Moment:
    """Return a time as text."""
    text = time_text(at)
    assert text is not None
    return text


def value_of(text: str) -> Value:
    """Return a stored value: whole if it is small, otherwise its beginning as text."""
    size = len(text.encode())
    if size > VALUE_BYTES:
        return Value(text=clean(text[:SHOWN_CHARACTERS]), bytes=size, is_whole=False)
    return Value(json=plain_value(text), bytes=size, is_whole=True)


def error_shown(error: Error | None) -> ErrorShown | None:
    """Return an error for a page, without control characters."""
    if error is None:
        return None
    message = error_text(error) if error.type == EffectInDoubt.__name__ else error.message
    trace = clean(error.traceback)
    cut = "" if len(trace) <= TRACE_CHARACTERS else "…\n"
    return ErrorShown(
        line=error_line(error),
        type=error.type,
        message=clean(message),
        traceback=cut + trace[-TRACE_CHARACTERS:],
    )
