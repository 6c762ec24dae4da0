"""Durations as people write them: seconds, a timedelta, or text such as "90s", "10m", "2h", "7d", "1h30m"."""

import re
from datetime import UTC, datetime, timedelta

from holdfast.core.errors import Invalid

Duration = int | float | timedelta | str

LONGEST_MS = 100 * 365 * 86_400_000
"""A hundred years: a longer duration is surely a mistake in the unit."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_UNITS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?(ms|s|m|h|d|w)")
_WHOLE = re.compile(rf"(?:{_PART.pattern} *)+")


def milliseconds(duration: Duration) -> int:
    """A duration in whole milliseconds, or Invalid.

    >>> milliseconds("1h30m")
    5400000
    """
    match duration:
        case bool():
            result = None
        case int() | float():
            result = duration * 1_000
        case timedelta():
            result = duration.total_seconds() * 1_000
        case str():
            text = duration.strip().lower()
            parts = _PART.findall(text) if _WHOLE.fullmatch(text) else []
            result = sum(float(number) * _UNITS[unit] for number, unit in parts) if parts else None
        case _:
            result = None
    if result is None or not 0 <= result <= LONGEST_MS:
        seconds = f"{duration}s" if isinstance(duration, str) and duration.isdecimal() else "90s"
        raise Invalid(
            f"{duration!r} is not a duration: give seconds, a timedelta, or text like {seconds!r}, '10m', '2h', '7d', "
            "from 0 to 100 years"
        )
    return round(result)


def as_utc(at: int) -> datetime:
    """A time in milliseconds since 1970 as a datetime. Beyond the calendar, it is the calendar's last moment."""
    try:
        return _EPOCH + timedelta(milliseconds=at)
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC)


def in_words(milliseconds: int) -> str:
    """A duration as a person writes it: "12 min 5 s".

    >>> in_words(725_000)
    '12 min 5 s'
    """
    if milliseconds < 1_000:
        return f"{milliseconds} ms"
    seconds = milliseconds // 1_000
    if seconds < 60:
        tenths = milliseconds // 100
        return f"{tenths // 10}.{tenths % 10} s" if seconds < 10 and tenths % 10 else f"{seconds} s"
    minutes, seconds = divmod(seconds, 60)
    if minutes < 60:
        return f"{minutes} min {seconds} s" if seconds else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    days, hours = divmod(hours, 24)
    return f"{days} d {hours} h" if hours else f"{days} d"
