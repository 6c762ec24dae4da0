"""Retry, uniqueness and rate limits as the Open Job Spec writes them, turned into ours. Must not touch a store."""

import re
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any
from unicodedata import normalize

from msgspec import Struct

from holdfast.core.canonical import canonical, parse
from holdfast.core.durations import LONGEST_MS
from holdfast.core.errors import Invalid
from holdfast.core.keys import digest
from holdfast.core.model import Retry, State, UniqueName
from holdfast.core.outcome import check_retry
from holdfast.core.shared_limits import settings_from
from holdfast.core.unique import REFUSE, REPLACE, RETURN
from holdfast.jobs.requests import JobRequest
from holdfast.server.ojs.problems import bad, unprocessable
from holdfast.server.ojs.vocabulary import read_duration, written_duration

MOST_ATTEMPTS = 10_000
STRATEGIES = ("exponential", "linear", "constant", "polynomial", "none")
EXHAUSTION = ("discard", "dead_letter")

# Retry.


def read_retry(given: Mapping[str, Any] | None) -> Retry:
    """Read a retry policy. What isn't given has the specification's default."""
    return _read_retry(given) if given else _DEFAULT_RETRY


def _read_retry(policy: Mapping[str, Any]) -> Retry:
    attempts = policy.get("max_attempts", 3)
    if isinstance(attempts, bool) or not isinstance(attempts, int) or not 0 <= attempts <= MOST_ATTEMPTS:
        raise unprocessable("retry.max_attempts", f"max_attempts must be a whole number from 0 to {MOST_ATTEMPTS:,}")
    factor = policy.get("backoff_coefficient", 2.0)
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not 1.0 <= factor <= 1e6:
        raise unprocessable("retry.backoff_coefficient", "backoff_coefficient must be a number of 1.0 or more")
    strategy = policy.get("backoff_strategy", policy.get("strategy", "exponential"))
    if strategy not in STRATEGIES:
        raise unprocessable("retry.backoff_strategy", f"backoff_strategy must be one of {', '.join(STRATEGIES)}")
    jitter = policy.get("jitter", True)
    if not isinstance(jitter, bool):
        raise unprocessable("retry.jitter", "jitter must be true or false")
    rules = policy.get("non_retryable_errors", [])
    if not isinstance(rules, list) or not all(isinstance(rule, str) for rule in rules):
        raise unprocessable("retry.non_retryable_errors", "non_retryable_errors must be an array of error types")
    if policy.get("on_exhaustion", "discard") not in EXHAUSTION:
        raise unprocessable("retry.on_exhaustion", f"on_exhaustion must be one of {', '.join(EXHAUSTION)}")
    retry = Retry(
        retries=max(0, attempts - 1),
        strategy=strategy,
        initial_ms=_interval(policy, ("initial_interval", "initial_interval_ms", "initial_delay_ms"), 1_000),
        factor=float(factor),
        cap_ms=_interval(policy, ("max_interval", "max_interval_ms", "max_delay_ms"), 300_000),
        jitter=jitter,
        never=tuple(rules),
    )
    try:
        return check_retry(retry)
    except Invalid as error:
        raise unprocessable("retry", str(error)) from None


def written_retry(retry: Retry) -> dict[str, Any]:
    """A retry policy as the specification writes it."""
    return {
        "max_attempts": retry.retries + 1,
        "initial_interval": written_duration(retry.initial_ms),
        "backoff_coefficient": retry.factor,
        "backoff_strategy": retry.strategy,
        "max_interval": written_duration(retry.cap_ms),
        "jitter": retry.jitter,
        "non_retryable_errors": list(retry.never),
        "on_exhaustion": "discard",
    }


def _interval(policy: Mapping[str, Any], names: tuple[str, ...], default: int) -> int:
    """The first of these fields that is given: ISO 8601, or milliseconds where the name says so."""
    for name in names:
        value = policy.get(name)
        if value is None:
            continue
        if name.endswith("_ms"):
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= LONGEST_MS:
                raise unprocessable(f"retry.{name}", f"{name} must be a whole number of milliseconds")
            return value
        try:
            return read_duration(name, value)
        except Invalid as error:
            raise unprocessable(f"retry.{name}", str(error)) from None
    return default


_DEFAULT_RETRY = _read_retry({})


# Uniqueness.

_DIMENSIONS = ("type", "queue", "args", "meta")
_CONFLICTS = {"reject": REFUSE, "ignore": RETURN, "replace": REPLACE, "replace_except_schedule": REPLACE}
_STATES: dict[str, tuple[State, ...]] = {
    **{state.value: (state,) for state in State if state is not State.REVIEW},
    "discarded": (State.DISCARDED, State.REVIEW),
}
_DEFAULT_STATES = ("available", "active", "scheduled", "retryable", "pending")
_REPLACEABLE = tuple(_STATES[name][0] for name in _DEFAULT_STATES)


def read_unique(given: Mapping[str, Any] | None, request: JobRequest, meta: Mapping[str, Any]) -> UniqueName | None:
    """Read a unique policy, and return the name that the job takes."""
    if given is None:
        return None
    keys = given.get("keys", given.get("key", ["type"]))
    keys = [keys] if isinstance(keys, str) else keys
    if not isinstance(keys, list) or not keys or any(key not in _DIMENSIONS for key in keys):
        raise bad("unique.keys", f"give an array of {', '.join(_DIMENSIONS)}")
    conflict = given.get("on_conflict", "reject")
    if conflict not in _CONFLICTS:
        raise bad("unique.on_conflict", f"give one of {', '.join(_CONFLICTS)}")
    names = given.get("states", list(_DEFAULT_STATES))
    if not isinstance(names, list) or not names or any(name not in _STATES for name in names):
        raise bad("unique.states", f"give an array of {', '.join(_STATES)}")
    states = tuple(state for name in dict.fromkeys(names) for state in _STATES[name])
    if _CONFLICTS[conflict] == REPLACE:
        states = tuple(state for state in states if state in _REPLACEABLE) or _REPLACEABLE
    within = None if given.get("period") is None else read_duration("unique.period", given["period"])
    return UniqueName(
        key=_fingerprint(given, keys, request, meta), states=states, within_ms=within, then=_CONFLICTS[conflict]
    )


def _fingerprint(given: Mapping[str, Any], keys: list[str], request: JobRequest, meta: Mapping[str, Any]) -> str:
    """SHA-256 of the canonical JSON of what makes two jobs the same. The type always belongs to it."""
    parts: dict[str, Any] = {"type": request.type}
    if "queue" in keys:
        parts["queue"] = request.queue
    if "args" in keys or given.get("args_keys") is not None:
        parts["args"] = _chosen_args(given.get("args_keys"), request.args)
    if "meta" in keys:
        names = _names(given, "meta_keys")
        if not names:
            raise bad("unique.meta_keys", "is missing; name the entries of meta that count")
        parts["meta"] = {name: _whole_numbers(meta.get(name)) for name in names}
    return sha256(normalize("NFC", canonical(parts)).encode()).hexdigest()


def _chosen_args(names: Any, args: str) -> Any:
    if names is None:
        return canonical(_whole_numbers(parse(args)))
    chosen = _names({"args_keys": names}, "args_keys")
    values = parse(args)
    first = values[0] if values and isinstance(values[0], dict) else {}
    return {name: _whole_numbers(first.get(name)) for name in chosen}


def _whole_numbers(value: Any) -> Any:
    """A value in which 1.0 is written as 1, as canonical JSON (RFC 8785) has it."""
    match value:
        case float() if value.is_integer() and abs(value) < 1 << 53:
            return int(value)
        case list():
            return [_whole_numbers(one) for one in value]
        case dict():
            return {name: _whole_numbers(one) for name, one in value.items()}
    return value


def _names(given: Mapping[str, Any], field: str) -> list[str]:
    names = given.get(field) or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise bad(f"unique.{field}", "give an array of names")
    return sorted(dict.fromkeys(names))


# Rate limits.

_KEY = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._:-]{0,254}")
_LIMIT_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,59}")
_PERIODS = {"second": 1_000, "minute": 60_000, "hour": 3_600_000, "day": 86_400_000}
_UNITS = ((1_000, "s"), (60_000, "m"), (3_600_000, "h"), (86_400_000, "d"))


class RateLimit(Struct, frozen=True):
    """A rate limit: the name of our limit, how many jobs at once, and how many may start in a period."""

    name: str
    at_once: int | None = None
    rate: str | None = None
    burst: int | None = None
    per_period: int | None = None


def read_rate_limits(given: Mapping[str, Any], queue: str) -> tuple[RateLimit, ...]:
    """Read the rate limits of a job, all of which must have room. Without a key, they hold for the queue.

    The first has the name that the key gives; each further rate is a limit of its own.
    """
    key = given.get("key", f"queue.{queue}")
    if not isinstance(key, str) or not _KEY.fullmatch(key):
        raise bad("rate_limit.key", "give letters, digits and . _ : -, beginning with a letter or digit")
    on_limit = given.get("on_limit", "wait")
    if on_limit == "drop":
        raise unprocessable("rate_limit.on_limit", "drop isn't supported; a limited job waits", "unsupported")
    if on_limit not in ("wait", "reschedule"):
        raise bad("rate_limit.on_limit", "give wait or reschedule")
    at_once = given.get("concurrency", given.get("max_concurrent"))
    if at_once is not None and (isinstance(at_once, bool) or not isinstance(at_once, int) or at_once < 1):
        raise bad("rate_limit.concurrency", "give a whole number from 1")
    rates: Sequence[tuple[str, int | None, int]] = _rates_of(given) or [("", None, 0)]
    if at_once is None and rates[0][1] is None:
        raise bad("rate_limit", "give concurrency, rate, or both")
    found: list[RateLimit] = []
    for field, number, period in rates:
        name = limit_name(f"{key}:{field}" if found else key)
        rate, burst = (None, None) if number is None else _written_rate(field, number, period)
        limit = RateLimit(name, None if found else at_once, rate, burst, number)
        try:
            settings_from(name, limit.at_once, rate, burst)
        except Invalid as error:
            raise bad("rate_limit", str(error)) from None
        found.append(limit)
    return tuple(found)


def limit_name(key: str) -> str:
    """The name of our limit for one of their keys."""
    return key if _LIMIT_NAME.fullmatch(key) else f"ojs.{digest(key)}"


def _rates_of(given: Mapping[str, Any]) -> list[tuple[str, int, int]]:
    """How many jobs may start in how many milliseconds: every field that says so."""
    found: list[tuple[str, int, int]] = []
    for name in ("rate", "throttle"):
        rate = given.get(name)
        if isinstance(rate, dict):
            found.append((name, _count(f"{name}.limit", rate.get("limit")), _period(rate.get("period"))))
        elif rate is not None:
            found.append((name, _count(name, rate), _period(given.get("period", "second"))))
    for name, unit in (("max_per_second", "second"), ("max_per_minute", "minute"), ("max_per_hour", "hour")):
        if given.get(name) is not None:
            found.append((name, _count(name, given[name]), _PERIODS[unit]))
    return found


def _count(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 1_000_000_000:
        raise bad(f"rate_limit.{name}", "give a whole number from 1")
    return value


def _period(value: Any) -> int:
    if isinstance(value, str) and value in _PERIODS:
        return _PERIODS[value]
    milliseconds = read_duration("rate_limit.period", value)
    if milliseconds < 1:
        raise bad("rate_limit.period", "give a period above 0")
    return milliseconds


def _written_rate(field: str, number: int, period: int) -> tuple[str, int]:
    """A rate as our limits write it, and its burst, so that no period of this length sees more starts than that.

    A period that is no whole unit counts in the next longer one. After a burst of half the jobs, the other half come in
    evenly; what is throttled comes in evenly from the start.
    """
    length, unit = next((one for one in _UNITS if one[0] >= period), _UNITS[-1])
    burst = 1 if field == "throttle" else (number + 1) // 2
    refill = (number - burst + 1) * length // period
    if refill < 1 and burst > 1:
        burst, refill = 1, number * length // period
    if refill < 1:
        raise unprocessable(
            f"rate_limit.{field}", "fewer starts than one a day aren't supported; give a shorter period", "unsupported"
        )
    return f"{burst - 1 + refill}/{unit}", burst
