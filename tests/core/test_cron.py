"""Cron expressions: what they mean, what is refused, and what happens when the clocks change."""

from datetime import UTC, datetime, timedelta
from itertools import islice
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.cron import last_time, next_time, parse_cron
from holdfast.core.errors import Invalid

BERLIN, NEW_YORK = ZoneInfo("Europe/Berlin"), ZoneInfo("America/New_York")
LORD_HOWE, KATHMANDU = ZoneInfo("Australia/Lord_Howe"), ZoneInfo("Asia/Kathmandu")


def ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1_000)


def utc(text: str) -> int:
    return ms(datetime.fromisoformat(text).replace(tzinfo=UTC))


def fires(cron: str, zone: ZoneInfo, first: str, number: int = 1) -> list[str]:
    """The next moments after a UTC time, as local time with its offset."""
    at: int | None = utc(first)
    found: list[str] = []
    while len(found) < number:
        assert at is not None
        at = next_time(parse_cron(cron), zone, at)
        assert at is not None
        found.append(datetime.fromtimestamp(at / 1_000, zone).isoformat(timespec="minutes"))
    return found


# What expressions mean.


@pytest.mark.parametrize(
    ("cron", "expected"),
    [
        ("* * * * *", "2026-11-18T17:13"),
        ("0 9 * * mon-fri", "2026-11-19T09:00"),
        ("30 17 * * *", "2026-11-18T17:30"),
        ("*/15 * * * *", "2026-11-18T17:15"),
        ("5/20 * * * *", "2026-11-18T17:25"),
        ("0 0 1,15 * *", "2026-12-01T00:00"),
        ("0 0 13 * fri", "2026-11-20T00:00"),  # either
        ("0 0 */2 * fri", "2026-11-27T00:00"),  # both: a star doesn't restrict
        ("0 0 29 2 *", "2028-02-29T00:00"),
        ("0 0 * jan sun", "2027-01-03T00:00"),
        ("0 0 * * fri-sun", "2026-11-20T00:00"),
        ("0 0 * * 7", "2026-11-22T00:00"),
        ("0 0 * * SUN", "2026-11-22T00:00"),
        ("10-20/5 3 * * *", "2026-11-19T03:10"),
        ("@hourly", "2026-11-18T18:00"),
        ("@daily", "2026-11-19T00:00"),
        ("@midnight", "2026-11-19T00:00"),
        ("@weekly", "2026-11-22T00:00"),
        ("@monthly", "2026-12-01T00:00"),
        ("@yearly", "2027-01-01T00:00"),
        ("@annually", "2027-01-01T00:00"),
        ("0 0 L * *", "2026-11-30T00:00"),
        ("0 0 l feb *", "2027-02-28T00:00"),
        ("0 0 20,L * *", "2026-11-20T00:00"),
        ("0 0 15W * *", "2026-12-15T00:00"),
        ("0 0 22W * *", "2026-11-23T00:00"),  # the 22nd is a Sunday
        ("0 0 28W * *", "2026-11-27T00:00"),  # the 28th is a Saturday
        ("0 0 1W aug *", "2027-08-02T00:00"),  # the 1st is a Sunday
        ("0 0 1W may *", "2027-05-03T00:00"),  # the 1st is a Saturday, and April doesn't count
        ("0 0 31W jan *", "2027-01-29T00:00"),  # the 31st is a Sunday, and February doesn't count
        ("0 0 31W * *", "2026-12-31T00:00"),
        ("0 0 * * FRI#3", "2026-11-20T00:00"),
        ("0 0 * * 5#2", "2026-12-11T00:00"),
        ("0 0 * * 7#5", "2026-11-29T00:00"),
        ("0 0 * * friL", "2026-11-27T00:00"),
        ("0 0 * * mon,5L", "2026-11-23T00:00"),
        ("0 0 L * sun#4", "2026-11-22T00:00"),  # either
    ],
)
def test_the_next_moment(cron: str, expected: str) -> None:
    assert fires(cron, ZoneInfo("UTC"), "2026-11-18T17:12:30") == [expected + "+00:00"]


@pytest.mark.parametrize(
    ("cron", "following", "before"),
    [
        ("*/20 * * * * *", "2026-11-18T17:12:40", "2026-11-18T17:12:20"),
        ("30 12 17 * * *", "2026-11-19T17:12:30", "2026-11-18T17:12:30"),
        ("0 12 17 * * *", "2026-11-19T17:12:00", "2026-11-18T17:12:00"),
        ("59 59 23 31 12 *", "2026-12-31T23:59:59", "2025-12-31T23:59:59"),
    ],
)
def test_the_first_of_six_fields_is_the_second(cron: str, following: str, before: str) -> None:
    at = utc("2026-11-18T17:12:30")
    assert next_time(parse_cron(cron), UTC, at) == utc(following)
    assert last_time(parse_cron(cron), UTC, at) == utc(before)


@pytest.mark.parametrize(
    ("cron", "message"),
    [
        ("", "has 0 fields"),
        ("* * * *", "has 4 fields"),
        ("0 0 9 * * * *", "has 7 fields"),
        ("60 0 9 * * *", "60 isn't a valid second"),
        ("60 * * * *", "60 isn't a valid minute; give 0 to 59"),
        ("* 24 * * *", "24 isn't a valid hour; give 0 to 23"),
        ("* * 0 * *", "0 isn't a valid day of the month; give 1 to 31"),
        ("* * * 13 *", "13 isn't a valid month; give 1 to 12"),
        ("* * * * 8", "8 isn't a valid day of the week; give 0 to 7"),
        ("* * * * mond", "'mond' isn't a valid day of the week; did you mean mon?"),
        ("* * * * ?", "can't read '?'"),
        ("5-1 * * * *", "ends before it begins"),
        ("*/0 * * * *", "must be at least 1"),
        ("1,,2 * * * *", "can't read ''"),
        ("*-5 * * * *", "can't read '*-5'"),
        ("@dayly", "there is no @dayly; did you mean @daily?"),
        ("@reboot", "there is no @reboot"),
        ("0 0 30 2 *", "never fires: no month that it names has a day 30"),
        ("0 0 31 2,4,6,9,11 *", "never fires"),
        ("0 0 30W feb *", "never fires"),
        ("0 0 32W * *", "32 isn't a valid day of the month"),
        ("0 0 LW * *", "'lw' isn't a valid day of the month"),
        ("0 0 * * L", "'l' isn't a valid day of the week"),
        ("0 0 * * fri#6", "can't read 'fri#6'"),
        ("0 0 * * 9#1", "9 isn't a valid day of the week"),
        ("0 0 W * *", "'w' isn't a valid day of the month"),
        ("L * * * *", "'l' isn't a valid minute"),
    ],
)
def test_what_cannot_be_read_or_never_fires_is_refused(cron: str, message: str) -> None:
    with pytest.raises(Invalid) as refused:
        parse_cron(cron)

    assert message in str(refused.value)
    assert repr(cron) in str(refused.value)


def test_a_day_that_exists_only_as_a_weekday_fires() -> None:
    assert fires("0 0 30 2 mon", ZoneInfo("UTC"), "2026-01-01T00:00:00") == ["2026-02-02T00:00+00:00"]


# Daylight saving: what doesn't exist doesn't fire, what exists twice fires once.


def test_in_spring_a_time_that_does_not_exist_does_not_fire() -> None:
    assert fires("30 2 * * *", BERLIN, "2026-03-28T00:00:00", 3) == [
        "2026-03-28T02:30+01:00",
        "2026-03-30T02:30+02:00",
        "2026-03-31T02:30+02:00",
    ]
    assert fires("30 2 * * *", NEW_YORK, "2026-03-07T12:00:00") == ["2026-03-09T02:30-04:00"]
    assert fires("*/20 * * * *", BERLIN, "2026-03-29T00:30:00", 3) == [
        "2026-03-29T01:40+01:00",
        "2026-03-29T03:00+02:00",
        "2026-03-29T03:20+02:00",
    ]


def test_in_autumn_a_time_that_exists_twice_fires_once_the_first_time() -> None:
    assert fires("30 2 * * *", BERLIN, "2026-10-24T12:00:00", 2) == ["2026-10-25T02:30+02:00", "2026-10-26T02:30+01:00"]
    assert fires("30 1 * * *", NEW_YORK, "2026-10-31T12:00:00", 2) == [
        "2026-11-01T01:30-04:00",
        "2026-11-02T01:30-05:00",
    ]
    assert fires("30 * * * *", BERLIN, "2026-10-25T00:00:00", 2) == ["2026-10-25T02:30+02:00", "2026-10-25T03:30+01:00"]


def test_clocks_that_change_by_half_an_hour() -> None:
    # On 2026-10-04 the clocks of Lord Howe go from 02:00 to 02:30, and on 2026-04-05 back from 02:00 to 01:30.
    assert fires("15 2 * * *", LORD_HOWE, "2026-10-03T00:00:00") == ["2026-10-05T02:15+11:00"]
    assert fires("45 2 * * *", LORD_HOWE, "2026-10-03T00:00:00") == ["2026-10-04T02:45+11:00"]
    assert fires("45 1 * * *", LORD_HOWE, "2026-04-04T00:00:00", 2) == [
        "2026-04-05T01:45+11:00",
        "2026-04-06T01:45+10:30",
    ]


def test_a_zone_at_a_quarter_of_an_hour() -> None:
    assert fires("0 9 * * *", KATHMANDU, "2026-11-18T03:14:00") == ["2026-11-18T09:00+05:45"]
    assert fires("0 9 * * *", KATHMANDU, "2026-11-18T03:15:00") == ["2026-11-19T09:00+05:45"]


def test_a_day_that_a_zone_left_out_does_not_fire() -> None:
    # Samoa had no 30 December 2011.
    assert fires("0 12 * * *", ZoneInfo("Pacific/Apia"), "2011-12-29T23:00:00") == ["2011-12-31T12:00+14:00"]


# Laws.

part = st.sampled_from(("*", "*/2", "*/7", "0", "1-3"))
minutes = st.sampled_from(("0", "30", "*/15", "5/20", "10-20/5", "1,59", "*"))
hours = st.sampled_from(("*", "*/5", "0", "2", "1-3", "23", "2,14"))
days = st.sampled_from(("*", "*/2", "1", "13", "29", "31", "1-7", "15,30", "L", "13,L"))
months = st.sampled_from(("*", "2", "feb,mar", "*/3", "10-12", "4"))
weekdays = st.sampled_from(("*", "mon", "mon-fri", "0", "7", "*/3", "sat,sun", "fri#2", "0#5", "5L"))
crons = st.tuples(minutes, hours, days, months, weekdays).map(" ".join)
zones = st.sampled_from((ZoneInfo("UTC"), BERLIN, NEW_YORK, LORD_HOWE, KATHMANDU))
moments = st.integers(utc("2019-01-01"), utc("2035-01-01"))


def is_legal(cron: str) -> bool:
    try:
        parse_cron(cron)
    except Invalid:
        return False
    return True


@given(cron=crons.filter(is_legal), start=moments)
@settings(max_examples=400, deadline=None)
def test_without_daylight_saving_it_fires_when_cronsim_does(cron: str, start: int) -> None:
    begin = datetime.fromtimestamp(start // 1_000, UTC)
    at: int | None = ms(begin)
    for expected in islice(CronSim(cron, begin), 5):
        assert at is not None
        at = next_time(parse_cron(cron), UTC, at)
        assert at == ms(expected)


@given(cron=crons.filter(is_legal), start=moments, zone=zones)
@settings(max_examples=400, deadline=None)
def test_it_differs_from_cronsim_only_where_the_clocks_change(cron: str, start: int, zone: ZoneInfo) -> None:
    begin = datetime.fromtimestamp(start // 60_000 * 60, zone)
    at: int | None = ms(begin)
    for expected in islice(CronSim(cron, begin), 5):
        assert at is not None
        at = next_time(parse_cron(cron), zone, at)
        if at != ms(expected):
            assert at is not None
            around = [
                datetime.fromtimestamp(min(at, ms(expected)) / 1_000, zone) + n * timedelta(days=1) for n in (-1, 2)
            ]
            assert around[0].utcoffset() != around[1].utcoffset(), f"{cron}: {at} and {expected}"
            return


@given(cron=crons.filter(is_legal), start=moments, zone=zones)
@settings(max_examples=400, deadline=None)
def test_looking_back_finds_what_looking_ahead_found(cron: str, start: int, zone: ZoneInfo) -> None:
    parsed = parse_cron(cron)
    first = next_time(parsed, zone, start)
    assert first is not None
    second = next_time(parsed, zone, first)
    assert second is not None
    assert start < first < second

    assert last_time(parsed, zone, second) == second
    assert last_time(parsed, zone, second - 1) == first
    before = last_time(parsed, zone, start)
    assert before is None or (before <= start and next_time(parsed, zone, before) == first)


@given(offset=st.integers(-4 * 60, 4 * 60))
@settings(max_examples=200, deadline=None)
def test_around_a_change_of_the_clocks_each_local_time_fires_at_most_once(offset: int) -> None:
    start = utc("2026-10-25T01:00:00") + offset * 60_000
    parsed = parse_cron("*/10 * * * *")
    seen: list[str] = []
    at: int | None = start
    for _ in range(40):
        assert at is not None
        at = next_time(parsed, BERLIN, at)
        assert at is not None
        seen.append(datetime.fromtimestamp(at / 1_000, BERLIN).strftime("%d %H:%M"))
        assert last_time(parsed, BERLIN, at + 59_999) == at

    assert len(set(seen)) == len(seen)


@pytest.mark.parametrize(
    ("zone", "day"),
    [
        ("Europe/Berlin", "2026-03-29"),
        ("Europe/Berlin", "2026-10-25"),
        ("America/New_York", "2026-03-08"),
        ("America/New_York", "2026-11-01"),
        ("Australia/Lord_Howe", "2026-04-05"),  # by half an hour
        ("Australia/Lord_Howe", "2026-10-04"),
        ("America/Havana", "2024-03-10"),  # at midnight
        ("America/Havana", "2024-11-03"),
        ("Antarctica/Troll", "2024-03-31"),  # by two hours
        ("Antarctica/Troll", "2024-10-27"),
        ("America/St_Johns", "2010-03-14"),  # at a minute past midnight
        ("America/St_Johns", "2010-11-07"),
        ("Africa/Casablanca", "2024-03-10"),
        ("Africa/Casablanca", "2024-04-14"),
    ],
)
def test_where_the_clocks_change_it_fires_the_first_time_a_clock_shows_that_minute(zone: str, day: str) -> None:
    rules, change = ZoneInfo(zone), utc(day)
    shown: set[str] = set()
    first_times: dict[str, int] = {}
    for at in range(change - 36 * 3_600_000, change + 36 * 3_600_000, 60_000):
        minute = datetime.fromtimestamp(at / 1_000, rules).strftime("%d %H:%M")
        if minute not in shown:
            shown.add(minute)
            first_times[minute] = at
    begin = change - 24 * 3_600_000
    offsets = {datetime.fromtimestamp(at / 1_000, rules).utcoffset() for at in (begin, change + 36 * 3_600_000)}
    assert len(offsets) == 2, "the clocks change on that day"

    for cron, minutes in (("*/15 * * * *", range(0, 60, 15)), ("5,30 0-3 * * *", (5, 30))):
        hours = range(24) if cron.startswith("*") else range(4)
        expected = [
            at
            for shown_at, at in first_times.items()
            if at > begin and int(shown_at[3:5]) in hours and int(shown_at[6:]) in minutes
        ]
        found: list[int] = []
        tick = next_time(parse_cron(cron), rules, begin)
        while tick is not None and tick < change + 36 * 3_600_000:
            found.append(tick)
            tick = next_time(parse_cron(cron), rules, tick)
        assert found == sorted(expected)
        assert [last_time(parse_cron(cron), rules, one + 59_999) for one in found] == found
