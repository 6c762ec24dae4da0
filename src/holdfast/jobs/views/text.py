"""Wording that views share: lines, short ids, durations, times, plurals. Must not read a store or know a terminal.

Text written by users (errors, log lines, progress, reasons) goes through `one_line`, which removes control sequences
that a terminal would obey (`safe_text`).
"""

from collections.abc import Sequence
from itertools import pairwise

from holdfast.core.durations import as_utc
from holdfast.core.errors import EffectInDoubt, HoldfastError
from holdfast.core.model import Error, Time
from holdfast.core.outcome import DOUBT_ADVICE
from holdfast.safe_text import clean

SHORT_ID = 8
"""How many characters of an id are shown in lists: the last ones, because ids created together start alike."""

MOMENT_MS = 1_000
LINE_LIMIT = 200
"""The longest error or text in a list. The view of one job has all of it."""

NAMED = 3
"""How many jobs, workers or steps a line names."""

OUR_ERRORS = f"{HoldfastError.__module__}."

_UNITS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s"))


def one_line(text: str, limit: int = LINE_LIMIT) -> str:
    """Return a user's text as one line, cut if it is too long."""
    line = clean(" ".join(text.split()))
    return line if len(line) <= limit else line[: limit - 1] + "…"


def error_line(error: Error | None, limit: int = LINE_LIMIT) -> str:
    """Return an error as one line: its type and its text. Holdfast's own errors go without their module."""
    return "" if error is None else one_line(error_text(error), limit)


def error_text(error: Error) -> str:
    """Return an error's type and text. What to do about an effect in doubt is shown elsewhere, and left out."""
    if error.type == EffectInDoubt.__name__:
        return error.message.partition(DOUBT_ADVICE)[0]
    return f"{error.type.removeprefix(OUR_ERRORS)}: {error.message}"


def short_id(id: str) -> str:
    """Return the end of an id. Every verb accepts it."""
    return id[-SHORT_ID:]


def span(milliseconds: int) -> str:
    """Return a duration as precise as a person wants it: "12 s", "12 min", "1 h 59 min", "3 d 4 h", "40 d"."""
    if milliseconds < MOMENT_MS:
        return "a moment"
    for (size, unit), (less, lesser) in pairwise(_UNITS):
        if milliseconds >= size:
            rest = milliseconds % size // less
            precise = unit != "min" and milliseconds < 10 * size and rest
            return f"{milliseconds // size} {unit}" + (f" {rest} {lesser}" if precise else "")
    return f"{milliseconds // 1_000} s"


def ago(at: Time | None, now: Time) -> str:
    """Return when something was or will be: "12 min ago", "in 3 h", "now"."""
    if at is None:
        return "–"
    if abs(now - at) < MOMENT_MS:
        return "now"
    return f"{span(now - at)} ago" if at < now else f"in {span(at - now)}"


def time_left(until: Time, now: Time) -> str:
    """Return how much of a wait is left: "1 d left", "timed out"."""
    if until <= now:
        return "timed out"
    left = until - now
    size = next((less for (most, _), (less, _) in pairwise(_UNITS) if left >= most - less // 2), 1_000)
    return f"{span(max(left, (left + size // 2) // size * size))} left"  # "2 d left", not "1 d 23 h left", at the start


def utc_clock(at: Time) -> str:
    """Return a time for a person: "2026-03-01 12:00:00 UTC"."""
    return f"{as_utc(at):%Y-%m-%d %H:%M:%S} UTC"


def plural(number: int, one: str, many: str | None = None) -> str:
    """Return a number with its noun: "1 job", "12 jobs"."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def name_some(names: Sequence[str]) -> str:
    """List names, but not too many: "a, b, c and 12 more"."""
    more = f" and {len(names) - NAMED:,} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more
