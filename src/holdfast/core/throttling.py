"""A provider's "slow down": `Throttled`, or an exception whose response says when to come back. Must not wait.

The clients of httpx, aiohttp, requests, openai, anthropic and google are recognised by their shape, without importing
them: the exception, or its `response`, has a status from 400 to 599, and `headers` with `Retry-After`.
"""

import math
import re
from collections.abc import Mapping
from contextlib import suppress
from email.utils import parsedate_to_datetime
from typing import Any

from msgspec import Struct

from holdfast.core.declared_limits import Limit
from holdfast.core.durations import Duration, milliseconds
from holdfast.core.errors import HoldfastError, Invalid

LEAST_MS, MOST_MS = 1_000, 3_600_000
"""The shortest and the longest time that a "slow down" holds; a time in the past counts as the shortest."""

IN_A_ROW, IN_ALL_MS = 100, 86_400_000
"""How often in a row, and for how long, a "slow down" costs a step no try. After that it is a failure like others."""

SLOW_DOWN = range(400, 600)
"""The statuses with which a provider asks to slow down, if it says for how long: 429, 503, 529, 408, 403 and others."""

UNTOLD = object()

_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?")


class Throttled(HoldfastError):
    """Raise it in a step or a job: the provider asks to slow down, and did nothing. It costs no try and no attempt.

    `retry_after` is how long to wait: seconds, a timedelta, or text such as "2m"; from a second up to an hour. It
    closes the limit of the step or job for all workers until then. With several limits, name the one that is meant:
    `limit`.
    """

    def __init__(self, message: str = "", *, retry_after: Duration, limit: Limit | None = None) -> None:
        if _duration_ms(retry_after) is None:
            raise Invalid(
                f"Throttled(retry_after={retry_after!r}): give the seconds as a number, a timedelta, or text with a "
                "unit, such as '30s' or '2m'"
            )
        if limit is not None and not isinstance(limit, Limit):
            raise Invalid(f"Throttled(limit={limit!r}): give what app.limit('name', …) returns")
        wait = f"{retry_after:g} s" if isinstance(retry_after, int | float) else retry_after
        super().__init__(message or f"the provider asks to slow down for {wait}")
        self.retry_after = retry_after
        self.limit = limit


class Throttle(Struct, frozen=True):
    """How long a provider wants to be left alone, in milliseconds, and the name of the limit that it means, if any."""

    ms: int
    limit: str = ""
    is_explicit: bool = False
    """Whether the step's own code says so, which knows that nothing happened."""


def throttle_of(error: BaseException, now: float) -> Throttle | None:
    """What an exception says about slowing down; None if nothing that can be read. `now` is seconds since 1970."""
    try:
        told = getattr(error, "holdfast_throttle", UNTOLD)
        if told is not UNTOLD:  # it was raised in another process, or has been heeded often enough
            return told if isinstance(told, Throttle) else None
        if isinstance(error, Throttled):
            after = getattr(error, "retry_after", None)
            limit = getattr(error, "limit", None)
            ms = _duration_ms(after)
            return None if ms is None else Throttle(_bounded(ms), limit.name if limit is not None else "", True)
        response = getattr(error, "response", None)
        if _status(error, response) not in SLOW_DOWN:
            return None
        ms = _header_ms(_headers(response) or _headers(error), now)
        return None if ms is None else Throttle(_bounded(ms))
    except Exception:  # an exception of somebody else's may do anything when it is looked at
        return None


def throttle_of_job(error: BaseException | None, now: float, *, is_limited: bool) -> Throttle | None:
    """What an exception that ended a job's code says about slowing down. What a response says counts only for a job
    with limits: the code of another one isn't known to be a call that may simply be repeated.
    """
    if error is None or getattr(error, "holdfast_of_step", False):
        return None
    throttle = throttle_of(error, now)
    return throttle if throttle is not None and (throttle.is_explicit or is_limited) else None


def with_step(error: Exception) -> Exception:
    """Mark an exception that a step has raised after its last try, so that it doesn't also slow down its job."""
    with suppress(AttributeError, TypeError):
        error.holdfast_of_step = True  # type: ignore[attr-defined]
    return error


def with_throttle(error: Exception, throttle: Throttle | None) -> Exception:
    """Return an exception that says this about slowing down; with None, nothing, whatever it looks like."""
    with suppress(AttributeError, TypeError):  # some exceptions take no attributes
        error.holdfast_throttle = throttle  # type: ignore[attr-defined]
    return error


def _bounded(ms: float) -> int:
    return round(min(max(ms, LEAST_MS), MOST_MS))


def _duration_ms(after: Any) -> float | None:
    if isinstance(after, int | float) and not isinstance(after, bool):
        return None if math.isnan(after) else min(max(after, 0), MOST_MS) * 1_000
    try:
        return milliseconds(after)
    except Invalid:
        return None


def _status(error: BaseException, response: Any) -> int | None:
    for one in (response, error):
        for name in ("status_code", "status", "code"):
            status = getattr(one, name, None)
            if isinstance(status, int):
                return int(status)
    return None


def _headers(one: Any) -> Mapping[str, Any] | None:
    headers = getattr(one, "headers", None)
    return headers if headers is not None and hasattr(headers, "items") else None


def _header_ms(headers: Mapping[str, Any] | None, now: float) -> float | None:
    """How long the headers say to wait. In any case of letters: some clients keep them as they came."""
    if headers is None:
        return None
    known = {str(name).lower(): str(value).strip() for name, value in headers.items()}
    exact, text = known.get("retry-after-ms", ""), known.get("retry-after", "")
    if _NUMBER.fullmatch(exact):
        return float(exact)
    if _NUMBER.fullmatch(text):
        return float(text) * 1_000
    try:
        return (parsedate_to_datetime(text).timestamp() - now) * 1_000
    except (TypeError, ValueError, OverflowError):
        return None
