"""What counts as a provider's "slow down", and for how long."""

from datetime import timedelta
from email.utils import formatdate
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast import App, Invalid, Throttled
from holdfast.core.throttling import LEAST_MS, MOST_MS, Throttle, throttle_of, throttle_of_job, with_step, with_throttle

NOW = 1_700_000_000.0


class ClientError(Exception):
    """An exception of some client, with whatever attributes a test gives it."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__("429 Too Many Requests")
        self.__dict__.update(attributes)


def told(**attributes: Any) -> int | None:
    throttle = throttle_of(ClientError(**attributes), NOW)
    return None if throttle is None else throttle.ms


def response(status: int = 429, **headers: str) -> SimpleNamespace:
    return SimpleNamespace(status_code=status, headers={k.replace("_", "-"): v for k, v in headers.items()})


def test_clients_are_recognised_by_their_shape():
    assert told(response=response(retry_after="7")) == 7_000, "httpx, requests"
    assert told(response=response(Retry_After="7"), status_code=429, body=None) == 7_000, "openai, anthropic"
    assert told(status=429, headers={"Retry-After": "7"}) == 7_000, "aiohttp"
    assert told(code=429, response=SimpleNamespace(headers={"retry-after": "7"})) == 7_000, "google"
    assert told(response=response(status=503, retry_after="7")) == 7_000


@pytest.mark.parametrize("status", [400, 403, 408, 409, 429, 500, 502, 503, 504, 529, 599])
def test_any_failed_response_that_says_when_to_come_back_counts(status):
    assert told(response=response(status=status, retry_after="7")) == 7_000
    assert told(response=response(status=status, retry_after_ms="1500")) == 1_500
    assert told(response=response(status=status)) is None


def test_milliseconds_are_exact_and_come_first():
    assert told(response=response(retry_after_ms="1500", retry_after="2")) == 1_500
    assert told(response=response(retry_after="1.25")) == 1_250


def test_a_date_counts_from_now():
    assert told(response=response(retry_after=formatdate(NOW + 90, usegmt=True))) == 90_000


@pytest.mark.parametrize("text", ["0", "-5", formatdate(NOW - 3_600, usegmt=True), "0.001"])
def test_a_time_in_the_past_counts_as_the_shortest(text):
    assert told(response=response(retry_after=text)) == LEAST_MS


@pytest.mark.parametrize("text", ["604800", "99999999999999999999", formatdate(NOW + 604_800, usegmt=True)])
def test_a_time_far_away_counts_as_the_longest(text):
    assert told(response=response(retry_after=text)) == MOST_MS


@pytest.mark.parametrize("text", ["", "soon", "inf", "nan", "1e9", "7 s", "Thu, 99 Foo 2026", "\0"])
def test_garbage_says_nothing(text):
    assert told(response=response(retry_after=text)) is None


def test_other_errors_say_nothing():
    assert throttle_of(ValueError("429"), NOW) is None
    assert told(response=response(status=200, retry_after="7")) is None
    assert told(response=response(status=301, retry_after="7")) is None
    assert told(response=response()) is None
    assert told(response=None, headers={"Retry-After": "7"}) is None, "no status"
    assert told(response=SimpleNamespace(status_code=429, headers=None)) is None


def test_an_exception_that_raises_when_it_is_looked_at_says_nothing():
    class Awkward(Exception):
        @property
        def response(self) -> Any:
            raise RuntimeError("closed")

    assert throttle_of(Awkward(), NOW) is None


@pytest.mark.parametrize(
    ("after", "ms"),
    [
        (30, 30_000),
        (0.5, LEAST_MS),
        (-1, LEAST_MS),
        (604_800, MOST_MS),
        ("2m", 120_000),
        (timedelta(minutes=2), 120_000),
    ],
)
def test_a_step_says_it_by_itself(after, ms):
    assert throttle_of(Throttled(retry_after=after), NOW) == Throttle(ms, "", True)


@pytest.mark.parametrize("after", ["soon", "30", None, float("nan"), True, "-5s"])
def test_a_time_that_can_not_be_read_is_refused(after):
    with pytest.raises(
        Invalid, match=r"Throttled\(retry_after=.*\): give the seconds as a number, a timedelta, or text"
    ):
        Throttled(retry_after=after)


@pytest.mark.parametrize("limit", ["openai", 5, True])
def test_a_limit_that_is_none_is_refused(limit):
    with pytest.raises(Invalid, match=r"Throttled\(limit=.*\): give what app.limit\('name', …\) returns"):
        Throttled(retry_after=30, limit=limit)


def test_what_ends_a_job_counts_unless_a_step_has_raised_it():
    by_shape, explicit = ClientError(response=response(retry_after="7")), Throttled(retry_after=7)

    assert throttle_of_job(by_shape, NOW, is_limited=True) == Throttle(7_000)
    assert throttle_of_job(by_shape, NOW, is_limited=False) is None
    assert throttle_of_job(explicit, NOW, is_limited=False) == Throttle(7_000, "", True)
    assert throttle_of_job(None, NOW, is_limited=True) is None
    assert throttle_of_job(with_step(by_shape), NOW, is_limited=True) is None


def test_a_step_may_name_the_limit():
    limit = App("memory:").limit("openai", at_once=2)

    assert throttle_of(Throttled(retry_after=30, limit=limit), NOW) == Throttle(30_000, "openai", True)


def test_it_travels_with_an_error_of_another_process_and_ends_when_it_was_heeded_often_enough():
    error = with_throttle(ValueError("429"), Throttle(5_000))
    assert throttle_of(error, NOW) == Throttle(5_000)
    assert throttle_of(with_throttle(Throttled(retry_after=3), None), NOW) is None
