"""Cron expressions, and the moments that they mean in a time zone: the five classic fields, or seconds and these five.

Must not read a clock, or load a zone's rules: both are passed in. The moments are whole milliseconds since 1970.

The rule for daylight saving: a local time that doesn't exist on a day doesn't fire on that day, and one that exists
twice fires once, the first time. Days are those of classic cron: if both the day of the month and the day of the week
are restricted, either of them is enough. A field that begins with a star counts as unrestricted. A day of the month may
be L, the last one, or 15W, the day from Monday to Friday nearest to the 15th in its month; a day of the week may be
fri#2, the second Friday of a month, or friL, the last one.
"""

import re
from calendar import monthrange
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

_NEAR = re.compile(r"([0-9]{1,2})w")
_NTH = re.compile(r"([a-z]+|[0-9])(?:#([1-5])|l)")
_LAST = 0
"""In place of a number: the last one of its month."""

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
    """What an expression means. Weekdays are 0 for Sunday to 6. `either` means that one of the two days is enough.

    `days` may have 0 for the last day of a month. `near` are the days to which the nearest working day counts, `nth`
    the weekdays with the number, or 0 for the last one, that counts in a month.
    """

    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    either: bool
    seconds: tuple[int, ...] = (0,)
    near: frozenset[int] = frozenset()
    nth: frozenset[tuple[int, int]] = frozenset()

    def is_day(self, day: date) -> bool:
        """Whether it fires on this day, if the day is in one of its months."""
        weekday, length = day.isoweekday() % 7, monthrange(day.year, day.month)[1]
        is_last = day.day == length
        in_month = day.day in self.days or (is_last and _LAST in self.days)
        in_month = in_month or any(day.day == _working_day(day, number, length) for number in self.near)
        in_week = weekday in self.weekdays or (weekday, (day.day + 6) // 7) in self.nth
        in_week = in_week or (day.day > length - 7 and (weekday, _LAST) in self.nth)
        return in_month or in_week if self.either else in_month and in_week


def _working_day(month: date, number: int, length: int) -> int:
    """The day from Monday to Friday nearest to this day of a month, in that month; 0 if the month has no such day."""
    if number > length:
        return 0
    weekday = month.replace(day=number).isoweekday()
    if weekday == 6:
        return number - 1 if number > 1 else number + 2
    if weekday == 7:
        return number + 1 if number < length else number - 2
    return number


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
    either = not parts[2].startswith("*") and not parts[4].startswith("*")
    parts[2], near, has_last = _near_days(text, parts[2])
    parts[4], nth = _nth_weekdays(text, parts[4])
    minutes, hours, days, months, weekdays = (
        _numbers(text, field, part) if part else set() for field, part in zip(_FIELDS, parts, strict=True)
    )
    least = min(days | near, default=_LAST)
    if not either and not has_last and least > max(_LONGEST[month - 1] for month in months):
        raise Invalid(f"cron {text!r} never fires: no month that it names has a day {least}; correct it")
    return Cron(
        minutes=tuple(sorted(minutes)),
        hours=tuple(sorted(hours)),
        days=frozenset({*days, _LAST} if has_last else days),
        months=frozenset(months),
        weekdays=frozenset(number % 7 for number in weekdays),
        either=either,
        seconds=tuple(sorted(seconds)),
        near=frozenset(near),
        nth=frozenset(nth),
    )


def _near_days(text: str, part: str) -> tuple[str, set[int], bool]:
    """Take "15w" and "l" out of the days of a month. Return the rest, the days named with w, and whether l is in."""
    items = part.split(",")
    found = {item: near for item in items if (near := _NEAR.fullmatch(item)) is not None}
    rest = ",".join(item for item in items if item not in found and item != "l")
    return rest, {_number(text, _FIELDS[2], one[1]) for one in found.values()}, "l" in items


def _nth_weekdays(text: str, part: str) -> tuple[str, set[tuple[int, int]]]:
    """Take "fri#2" and "fril" out of the days of a week. Return the rest, and each of these with its number."""
    items = part.split(",")
    found = {item: nth for item in items if (nth := _NTH.fullmatch(item)) is not None}
    rest = ",".join(item for item in items if item not in found)
    return rest, {(_number(text, _FIELDS[4], one[1]) % 7, int(one[2] or _LAST)) for one in found.values()}


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
