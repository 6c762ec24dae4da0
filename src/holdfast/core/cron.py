"""Cron expressions, and the moments that they mean in a time zone: the five classic fields, or seconds and these five.

Must not read a clock, or load a zone's rules: both are passed in. The moments are whole milliseconds since 1970.

The rule for daylight saving: a local time that doesn't exist on a day doesn't fire on that day, and one that exists
twice fires once, the first time. Days are those of classic cron: if both the day of the month and the day of the week
are restricted, either of them is enough. A field that begins with a star counts as unrestricted.
"""

import re
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta, tzinfo
from functools import lru_cache

from msgspec import Struct

from holdfast.core.errors import Invalid
from holdfast.core.suggestions import suggest

LOOK_DAYS = 366 * 9
"""How far to search for a matching day: 29 February may be eight years away."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND, _DAY = timedelta(milliseconds=1), timedelta(days=1)

_NICKNAMES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_MONTH_NAMES = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTHS = {name: number for number, name in enumerate(_MONTH_NAMES, 1)}
_WEEKDAYS = {name: number for number, name in enumerate(("sun", "mon", "tue", "wed", "thu", "fri", "sat"))}
_LONGEST = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
"""How many days each month can have."""

_ITEM = re.compile(r"(\*|[a-z0-9]+)(?:-([a-z0-9]+))?(?:/([0-9]+))?")


class Field(Struct, frozen=True):
    """One field: its name, the numbers that it takes, and words for some of them."""

    name: str
    first: int
    last: int
    words: dict[str, int] = {}


_SECOND = Field("second", 0, 59)
_FIELDS = (
    Field("minute", 0, 59),
    Field("hour", 0, 23),
    Field("day of the month", 1, 31),
    Field("month", 1, 12, _MONTHS),
    Field("day of the week", 0, 7, _WEEKDAYS),
)


class Cron(Struct, frozen=True):
    """What an expression means. Weekdays are 0 for Sunday to 6. `either` means that one of the two days is enough."""

    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    either: bool
    seconds: tuple[int, ...] = (0,)

    def is_day(self, day: date) -> bool:
        """Whether it fires on this day, if the day is in one of its months."""
        in_month, in_week = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        return in_month or in_week if self.either else in_month and in_week


# Reading.


@lru_cache(10_000)
def parse_cron(text: str) -> Cron:
    """Read an expression, or raise Invalid: "0 9 * * mon-fri", "@daily". Of six fields, the first is seconds."""
    given = text.strip().lower()
    if given.startswith("@"):
        if given not in _NICKNAMES:
            hint = suggest(given, _NICKNAMES) or f"; there are {', '.join(_NICKNAMES)}"
            raise Invalid(f"cron {text!r}: there is no {given}{hint}")
        given = _NICKNAMES[given]
    parts = given.split()
    seconds = _numbers(text, _SECOND, parts.pop(0)) if len(parts) == len(_FIELDS) + 1 else {0}
    if len(parts) != len(_FIELDS):
        raise Invalid(
            f"cron {text!r} has {len(parts)} fields; give five: minute, hour, day of the month, month and day of the "
            "week, for example '0 9 * * mon-fri'; or six, with the second first"
        )
    minutes, hours, days, months, weekdays = (
        _numbers(text, field, part) for field, part in zip(_FIELDS, parts, strict=True)
    )
    either = not parts[2].startswith("*") and not parts[4].startswith("*")
    if not either and min(days) > max(_LONGEST[month - 1] for month in months):
        raise Invalid(f"cron {text!r} never fires: no month that it names has a day {min(days)}; correct it")
    return Cron(
        minutes=tuple(sorted(minutes)),
        hours=tuple(sorted(hours)),
        days=frozenset(days),
        months=frozenset(months),
        weekdays=frozenset(number % 7 for number in weekdays),
        either=either,
        seconds=tuple(sorted(seconds)),
    )


def _numbers(text: str, field: Field, part: str) -> set[int]:
    """The numbers that one field means: a list of items."""
    return {number for item in part.split(",") for number in _item(text, field, item)}


def _item(text: str, field: Field, item: str) -> range:
    found = _ITEM.fullmatch(item)
    if found is None or (found[1] == "*" and found[2] is not None):
        raise Invalid(
            f"cron {text!r}: can't read {item!r} as its {field.name}; give a number, a range like 1-5, a step like "
            "*/15, or a list like 1,15"
        )
    step = 1 if found[3] is None else int(found[3])
    if step < 1:
        raise Invalid(f"cron {text!r}: the step in {item!r} must be at least 1")
    if found[1] == "*":
        return range(field.first, field.last + 1, step)
    first = _number(text, field, found[1])
    last = field.last if found[3] is not None else first
    if found[2] is not None:
        last = _number(text, field, found[2])
        if last == 0 and field.words is _WEEKDAYS:  # Sunday, at the end of a week
            last = 7
    if last < first:
        raise Invalid(f"cron {text!r}: the range {item!r} of its {field.name} ends before it begins; swap its ends")
    return range(first, last + 1, step)


def _number(text: str, field: Field, word: str) -> int:
    number = field.words.get(word)
    if number is not None:
        return number
    if not word.isdigit():
        hint = suggest(word, field.words) if field.words else ""
        raise Invalid(
            f"cron {text!r}: {word!r} isn't a valid {field.name}{hint or f'; give {field.first} to {field.last}'}"
        )
    if not field.first <= int(word) <= field.last:
        raise Invalid(f"cron {text!r}: {word} isn't a valid {field.name}; give {field.first} to {field.last}")
    return int(word)


# Moments.


def next_time(cron: Cron, zone: tzinfo, after: int) -> int | None:
    """The first moment after this one at which it fires; None if there is none for years."""
    start = _local(after, zone).replace(microsecond=0)
    for local in _times(cron, start, 1):
        at = _moment(local, zone)
        if at is not None and at > after:
            return at
    return None


def last_time(cron: Cron, zone: tzinfo, until: int) -> int | None:
    """The last moment at which it fires, up to and including this one; None if there is none for years."""
    here = _EPOCH + until * _MILLISECOND
    aware = here.astimezone(zone)
    first, second = aware.replace(fold=0).utcoffset(), aware.replace(fold=1).utcoffset()
    start = aware.replace(tzinfo=None, microsecond=0)
    if aware.fold and first is not None and second is not None:
        start += first - second  # times of the first pass through a repeated hour are behind us, though they look ahead
    for local in _times(cron, start, -1):
        at = _moment(local, zone)
        if at is not None and at <= until:
            return at
    return None


def _times(cron: Cron, start: datetime, step: int) -> Iterator[datetime]:
    """The local times at which it fires, from `start` on, forward or back."""
    day = start.date()
    hours = cron.hours[::step]
    moments = [(minute, second) for minute in cron.minutes[::step] for second in cron.seconds[::step]]
    try:
        for _ in range(LOOK_DAYS):
            if day.month in cron.months and cron.is_day(day):
                is_first = day == start.date()
                for hour in hours:
                    if is_first and (hour - start.hour) * step < 0:
                        continue
                    for minute, second in moments:
                        local = datetime(day.year, day.month, day.day, hour, minute, second)  # noqa: DTZ001 (local)
                        if not is_first or (local - start) * step >= timedelta():
                            yield local
            day = _next_day(cron, day, step)
    except OverflowError:  # the calendar ends
        return


def _next_day(cron: Cron, day: date, step: int) -> date:
    """The neighbouring day; from a month that doesn't count, that of the neighbouring month."""
    if day.month in cron.months:
        return day + step * _DAY
    return (day.replace(day=28) + 4 * _DAY).replace(day=1) if step > 0 else day.replace(day=1) - _DAY


def _local(at: int, zone: tzinfo) -> datetime:
    return (_EPOCH + at * _MILLISECOND).astimezone(zone).replace(tzinfo=None)


def _moment(local: datetime, zone: tzinfo) -> int | None:
    """The moment of a local time, the first one if there are two; None if there is none that day."""
    there = local.replace(tzinfo=zone).astimezone(UTC)
    if there.astimezone(zone).replace(tzinfo=None) != local:
        return None
    return (there - _EPOCH) // _MILLISECOND
