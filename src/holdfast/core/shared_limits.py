"""Limits that all workers of a store share: how many calls may run at once, and how many may start in a period.

Must not read a store or a clock. A limit has one counter for each *key*: its name alone ("openai"), or its name and a
value ("tokens/gpt-4"). A **permit** lets one job or step start under a key. It belongs to a lease and ends with it. A
**bucket** holds a key's rate: what may start right now, in millionths of a unit, so that every engine counts exactly.

The bucket of "N per period" holds `burst` units and refills so slowly that no period ever sees more than N: after a
full bucket only N - burst more come in (and one more where units are whole, because a part of one starts nothing).
"""

import re
from typing import Any

from msgspec import DecodeError, Struct, json
from msgspec.structs import replace

from holdfast.core.errors import Invalid
from holdfast.core.keys import digest
from holdfast.core.model import Change, Job, State, Time, WaitKind

UNIT = 1_000_000
"""How many parts a unit has."""

MOST_UNITS = 1_000_000_000
"""The largest rate, burst or cost in units: sums of them stay exact in every store."""

MOST_AT_ONCE = 1_000_000
"""The largest `at_once`."""

LIMIT_NAME_CHARACTERS, LIMIT_VALUE_CHARACTERS = 60, 200
"""How long a limit's name may be, and the value of a key; a longer value is replaced by its hash."""

KEY_CHARACTERS = LIMIT_NAME_CHARACTERS + 1 + LIMIT_VALUE_CHARACTERS
"""How long a key may be."""

RESERVED_MS = 30_000
"""How long a permit is kept for a job that gave up its slot to wait for it, and is woken now."""

REOPEN_MS = 1_000
"""After a provider's "slow down", two permits may start in the first such period, four in the next, then eight."""

REOPEN_PERIODS = 10
"""After so many periods, a limit that was closed is fully open again."""

LIMIT = "limit/"
"""A record `limit/NAME` holds a limit's settings."""

BUCKET = "bucket/"
"""A record `bucket/KEY` holds the state of a key's rate, and until when it is closed."""

BUDGET = "~budget"
"""The limit that the budgets of all jobs belong to (`budgets`). Code can't declare it."""

BUCKET_KEPT_MS = 3_600_000
"""How long the bucket of a key that nobody uses is kept, after which it is surely full."""

_NAME = re.compile(r"[A-Za-z~][A-Za-z0-9_.-]*")
_PERIODS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_RATE = re.compile(r"([0-9]+(?:\.[0-9]+)?) */ *([smhd])")


class Settings(Struct, frozen=True, omit_defaults=True):
    """What an engine reads of a limit. `burst` and `refill` are in millionths of a unit; no `burst`: no rate."""

    at_once: int | None = None
    burst: int | None = None
    refill: int = 0
    period_ms: int = 1


class Bucket(Struct, frozen=True, omit_defaults=True):
    """The state of a key: what its rate has left at a time, and until when it is closed.

    `starts` counts the permits since it was closed. `granted` is what a budget had in all; `tokens` is what is left.
    """

    tokens: int = 0
    at: Time = 0
    closed_until: Time = 0
    starts: int = 0
    granted: int = 0

    def text(self) -> str:
        """The bucket as a record holds it."""
        return json.encode(self).decode()


NO_LIMIT = Settings()


def settings_of(text: str) -> Settings:
    """Read a limit's settings; those of no limit at all if they can't be read."""
    try:
        found = json.decode(text, type=Settings)
    except DecodeError:
        return NO_LIMIT
    return found if found.period_ms > 0 else NO_LIMIT


def bucket_of(text: str) -> Bucket | None:
    """Read a bucket; None if it can't be read, as if there were none."""
    try:
        return json.decode(text, type=Bucket)
    except DecodeError:
        return None


# Keys.


def key_of(limit: str, value: str = "") -> str:
    """The key of a limit's counter."""
    if not value:
        return limit
    short = value if len(value) <= LIMIT_VALUE_CHARACTERS else digest(limit, value)
    return f"{limit}/{short}"


def limit_of(key: str) -> str:
    """The name of the limit that a key belongs to."""
    return key.partition("/")[0]


def changed_by(record: str) -> str:
    """The limit of whose keys a changed record speaks; or the key of a budget, because each has one of its own."""
    key = record.partition("/")[2]
    return key if key.startswith(f"{BUDGET}/") else limit_of(key)


def split_need(key: str) -> tuple[str, int]:
    """The key of the bucket that counts for a key, and what must be left in it.

    They differ only for a job that waits for its budget: it waits behind the key, with what it needs in the key's name.
    """
    if key.startswith(BUDGET) and key.count("/") == 3:
        base, _, need = key.rpartition("/")
        return base, int(need) if need.isdecimal() else 1
    return key, 0


def awaited_key(job: Job) -> str | None:
    """The key behind which a job waits: outside the order of its queue, until a permit is free. None: behind none.

    A pending job waits behind the one that its wait names. One that is available, or will be, waits behind the first of
    its own; a claim may move it behind another one.
    """
    for wait in job.waits:
        if wait.kind is WaitKind.LIMIT:
            return wait.name
    return job.options.limits[0].key if job.options.limits else None


def awaits_permit(job: Job) -> bool:
    """Whether a job is waiting for a permit right now."""
    if job.state is State.PENDING:
        return any(wait.kind is WaitKind.LIMIT for wait in job.waits)
    return job.state is State.AVAILABLE and bool(job.options.limits)


def frees_permits(change: Change) -> bool:
    """Whether permits may end with this change. An owner knows; for everybody else the store has to look.

    One may also be kept for a job that ran before, was woken for it, and ends before it is claimed.
    """
    if change.before is State.AVAILABLE:
        return change.job.epoch > 0 and change.job.state not in (State.AVAILABLE, State.ACTIVE)
    if change.before is not State.ACTIVE or change.job.state is State.ACTIVE:
        return False
    return change.frees or change.epoch is None or bool(change.job.options.limits)


# What may start.


def filled(settings: Settings, bucket: Bucket | None, now: Time) -> Bucket:
    """A bucket as it is now. A key that has none starts with a full one."""
    most = settings.burst or 0
    if bucket is None:
        return Bucket(most, now)
    elapsed = max(0, now - bucket.at)
    tokens = min(most, bucket.tokens + elapsed * settings.refill // settings.period_ms)
    return replace(bucket, tokens=tokens, at=max(now, bucket.at))


def sufficing(settings: Settings, bucket: Bucket, need: int) -> Bucket:
    """The bucket as those see it who wait until so much is left: full, or empty."""
    return replace(bucket, tokens=(settings.burst or 0) if bucket.tokens >= need else 0) if need else bucket


def start_time(settings: Settings, bucket: Bucket, held: int, units: int, now: Time) -> Time | None:
    """When a permit of so many units may start, given a bucket that is filled up to now: now, later, or None.

    None means that only the end of another permit can make room.
    """
    if bucket.closed_until > now:
        return bucket.closed_until
    if settings.at_once is not None and held >= settings.at_once:
        return None
    if (later := _reopening(bucket, now)) > now:
        return later
    if settings.burst is None:
        return now
    missing = max(units, 1) - bucket.tokens
    if missing <= 0:
        return now
    return now + -(-missing * settings.period_ms // settings.refill) if settings.refill else None


def _reopening(bucket: Bucket, now: Time) -> Time:
    """When a limit that was closed lets the next permit start: a few at first, then more."""
    periods = (now - bucket.closed_until) // REOPEN_MS
    if not bucket.closed_until or periods >= REOPEN_PERIODS or bucket.starts < 2 ** (periods + 1):
        return now
    return bucket.closed_until + (periods + 1) * REOPEN_MS


def started(settings: Settings, bucket: Bucket, units: int) -> Bucket:
    """The bucket after a permit of so many units has started."""
    tokens = bucket.tokens - units if settings.burst is not None else bucket.tokens
    return replace(bucket, tokens=tokens, starts=bucket.starts + 1 if bucket.closed_until else 0)


def settled(bucket: Bucket, more: int) -> Bucket:
    """The bucket after it turned out that a call cost so many units more than it was thought to, or less."""
    return replace(bucket, tokens=bucket.tokens - more)


def closed(bucket: Bucket, until: Time) -> Bucket:
    """The bucket of a key that is closed until then. A later end stands."""
    return replace(bucket, closed_until=max(bucket.closed_until, until), starts=0)


# What a person writes.


def too_slow(name: str, settings: Settings) -> str | None:
    """Say why calls that use a whole unit each can never start under a limit; None if they can."""
    if settings.burst is None or settings.burst >= UNIT:
        return None
    return (
        f"limit {name} has a burst of {settings.burst / UNIT:g}, but a call without a cost uses a whole unit, so it "
        "could never start; write the rate with a longer period, as in '30/m' for '0.5/s'"
    )


def check_name(name: Any) -> str:
    """A limit's name, or Invalid."""
    if not isinstance(name, str) or name == BUDGET or not _NAME.fullmatch(name) or len(name) > LIMIT_NAME_CHARACTERS:
        raise Invalid(
            f"{name!r} can't be a limit's name: use up to {LIMIT_NAME_CHARACTERS} letters, digits, '_', '-' and '.', "
            "and begin with a letter"
        )
    return name


def settings_from(name: str, at_once: Any = None, rate: Any = None, burst: Any = None) -> Settings:
    """The settings of a limit as a person writes them: `at_once=20, rate="500/m", burst=50`; or Invalid."""
    if at_once is None and rate is None:
        raise Invalid(f"limit {name}: give at_once=, rate=, or both")
    if at_once is not None and (type(at_once) is not int or not 1 <= at_once <= MOST_AT_ONCE):
        raise Invalid(f"limit {name}: at_once={at_once!r}: give a whole number from 1 to {MOST_AT_ONCE:,}")
    if rate is None:
        if burst is not None:
            raise Invalid(f"limit {name}: burst={burst!r} needs a rate=, such as rate='500/m'")
        return Settings(at_once=at_once)
    match = _RATE.fullmatch(rate) if isinstance(rate, str) else None
    if match is None or not 0 < float(match[1]) <= MOST_UNITS:
        raise Invalid(f"limit {name}: rate={rate!r}: write a number above 0 and a period, as in '500/m' (s, m, h, d)")
    number, is_whole = float(match[1]), "." not in match[1]
    held = _burst_of(name, number, burst, is_whole)
    refill = number - held + 1 if is_whole else number - held
    return Settings(at_once, round(held * UNIT), round(refill * UNIT), _PERIODS[match[2]])


def _burst_of(name: str, number: float, burst: Any, is_whole: bool) -> float:
    if burst is None:
        return max(1, number // 10) if is_whole else max(1, number / 10) if number > 1 else number / 10
    if isinstance(burst, bool) or not isinstance(burst, int | float) or not 0 < burst <= number:
        raise Invalid(f"limit {name}: burst={burst!r}: give a number above 0, and not above the rate ({number:g})")
    if is_whole and burst != int(burst):
        raise Invalid(
            f"limit {name}: burst={burst!r}: give a whole number, or write the rate with a point: '{number}/…'"
        )
    if not is_whole and burst >= number:
        raise Invalid(f"limit {name}: burst={burst!r}: must be below the rate ({number:g}) where units are fractions")
    return burst
