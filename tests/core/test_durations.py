"""Durations as people write them, and as people read them."""

import math
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.durations import LONGEST_MS, as_utc, in_words, milliseconds
from holdfast.core.errors import Invalid

YEAR = 365 * 86_400


@pytest.mark.parametrize(
    ("duration", "expected"),
    [
        (0, 0),
        (90, 90_000),
        (1.5, 1_500),
        (0.001, 1),
        (-0.0, 0),
        (timedelta(minutes=2, milliseconds=5), 120_005),
        (timedelta(0), 0),
        ("90s", 90_000),
        ("10m", 600_000),
        ("2h", 7_200_000),
        ("7d", 604_800_000),
        ("2w", 1_209_600_000),
        ("500ms", 500),
        ("0s", 0),
        ("1h30m", 5_400_000),
        ("1h 30m", 5_400_000),
        ("1d2h3m4s5ms", 93_784_005),
        ("1.5h", 5_400_000),
        ("10 m", 600_000),
        ("  10m ", 600_000),
        ("10M", 600_000),
        (100 * YEAR, LONGEST_MS),
        (f"{100 * 365}d", LONGEST_MS),
    ],
)
def test_a_duration_is_seconds_a_timedelta_or_text(duration, expected):
    result = milliseconds(duration)

    assert result == expected
    assert type(result) is int


@pytest.mark.parametrize(
    "duration",
    [
        True,
        False,
        None,
        math.nan,
        math.inf,
        -math.inf,
        -1,
        -0.001,
        timedelta(seconds=-1),
        "",
        " ",
        "10",
        "5x",
        "s",
        "h30m",
        "1h30",
        "-5m",
        "+5m",
        "1,5h",
        ".5s",
        "5.s",
        "1e3s",
        "five minutes",
        "10m!",
        "infs",
        "nan",
        101 * YEAR,
        10**400,
        1e308,
        timedelta(days=101 * 365),
        "36501d",
        "9" * 400 + "s",
        Decimal(5),
        [5],
        b"5s",
    ],
    ids=lambda duration: repr(duration)[:20],
)
def test_anything_else_is_refused_in_words(duration):
    with pytest.raises(Invalid) as refused:
        milliseconds(duration)

    assert str(refused.value).startswith(f"{duration!r} is not a duration: give seconds, a timedelta, or text like")
    assert str(refused.value).endswith("from 0 to 100 years")


@pytest.mark.parametrize("duration", ["1 5m", "1. 5h", "10 0 ms", "5 m s", "٣s"])
def test_text_that_a_person_would_read_otherwise_is_refused(duration):
    with pytest.raises(Invalid):
        milliseconds(duration)


@settings(deadline=None)
@given(st.integers(0, LONGEST_MS // 1_000))
def test_whole_seconds_are_exact_in_every_spelling(seconds):
    expected = seconds * 1_000

    assert milliseconds(seconds) == milliseconds(f"{seconds}s") == milliseconds(timedelta(seconds=seconds)) == expected


@settings(deadline=None)
@given(st.integers(0, LONGEST_MS))
def test_milliseconds_are_exact_as_text(ms):
    assert milliseconds(f"{ms}ms") == ms


@pytest.mark.parametrize(
    ("ms", "words"),
    [
        (0, "0 ms"),
        (999, "999 ms"),
        (1_000, "1 s"),
        (1_099, "1 s"),
        (1_500, "1.5 s"),
        (9_999, "9.9 s"),
        (10_500, "10 s"),
        (59_999, "59 s"),
        (60_000, "1 min"),
        (725_000, "12 min 5 s"),
        (3_599_999, "59 min 59 s"),
        (3_600_000, "1 h"),
        (3_659_999, "1 h"),
        (5_400_000, "1 h 30 min"),
        (86_399_999, "23 h 59 min"),
        (86_400_000, "1 d"),
        (90_000_000, "1 d 1 h"),
        (604_800_000, "7 d"),
    ],
)
def test_a_duration_reads_as_a_person_says_it(ms, words):
    assert in_words(ms) == words


@pytest.mark.parametrize(
    ("at", "moment"),
    [
        (0, datetime(1970, 1, 1, tzinfo=UTC)),
        (1_795_023_084_605, datetime(2026, 11, 18, 17, 31, 24, 605_000, tzinfo=UTC)),
        (10**15, datetime.max.replace(tzinfo=UTC)),
    ],
)
def test_a_time_is_exact_to_the_millisecond_and_ends_with_the_calendar(at, moment):
    assert as_utc(at) == moment
