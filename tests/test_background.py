"""A log is told of trouble once, then once a minute, and when it is over."""

import logging

import pytest

from holdfast.background import LogOnce


def test_what_goes_on_is_told_once_a_minute_and_so_is_its_end(caplog: pytest.LogCaptureFixture):
    now = 0.0
    trouble = LogOnce(logging.getLogger("holdfast.test"), "can't claim", "claims again", clock=lambda: now)
    trouble.recovered()
    for now in (10.0, 10.5, 40.0, 69.9, 70.0, 100.0):  # noqa: B007 (the clock reads it)
        trouble.say(OSError("away"))
    now = 101.0
    trouble.say(ValueError("odd"))
    now = 103.5
    trouble.recovered()
    trouble.recovered()
    for _ in range(5):
        trouble.say(ValueError("odd"))
        trouble.recovered()
    now = 161.0
    trouble.say(ValueError("odd"))

    assert [record.getMessage() for record in caplog.records] == [
        "can't claim: OSError: away",
        "can't claim: OSError: away",
        "can't claim: ValueError: odd",
        "claims again, after 93.5 s",
        "can't claim: ValueError: odd",
    ]
