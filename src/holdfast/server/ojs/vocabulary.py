"""The words of the Open Job Spec: states, media type, times and durations as it writes them. Must not know a store."""

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache

from holdfast.core.durations import LONGEST_MS, as_utc
from holdfast.core.errors import BadValue
from holdfast.core.lifecycle import TERMINAL
from holdfast.core.model import Job, State, Time

MEDIA_TYPE = "application/openjobspec+json"
VERSION = "1.0"
"""The version of the specification, in the header OJS-Version and in every job."""

STATES: dict[State, str] = {**{state: state.value for state in State}, State.REVIEW: "discarded"}
"""Their names of our states. A job in review looks discarded."""

_PROMOTED = (State.SCHEDULED, State.RETRYABLE)
_DURATION = re.compile(
    r"P(?:(\d{1,9})W)?(?:(\d{1,9})D)?(?:T(?:(\d{1,9})H)?(?:(\d{1,9})M)?(?:(\d{1,9}(?:\.\d{1,6})?)S)?)?", re.ASCII
)
_SHORT = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)(ms|s|m|h|d)", re.ASCII)
_UNITS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_FACTORS = (604_800_000, 86_400_000, 3_600_000, 60_000, 1_000)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def shown_state(job: Job, now: Time) -> str:
    """Their name of a job's state. A job whose time has come is available, although no claim has promoted it yet."""
    if job.state in _PROMOTED and job.run_at is not None and job.run_at <= now:
        return State.AVAILABLE.value
    return STATES[job.state]


def states_named(name: str) -> tuple[State, ...]:
    """Our states behind one of their names; empty for an unknown name."""
    return tuple(state for state, shown in STATES.items() if shown == name)


def is_final(job: Job) -> bool:
    """Whether a job looks terminal."""
    return job.state in TERMINAL or job.state is State.REVIEW


@lru_cache(1_000)
def written_time(at: Time | None) -> str | None:
    """A moment as RFC 3339 in UTC, with milliseconds."""
    return None if at is None else as_utc(at).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def read_time(field: str, text: object, now: Time) -> Time:
    """Read a moment: RFC 3339, or an ISO 8601 duration from now, such as "+PT2S"."""
    if not isinstance(text, str):
        raise BadValue(f"{field}: give a time as text, such as 2026-11-18T09:00:00Z")
    if text.startswith("+P"):
        return now + read_duration(field, text[1:])
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or len(text) < 19 or moment.tzinfo is None:
        raise BadValue(
            f"{field}: {text[:40]!r} is not a time; write RFC 3339 with a zone, such as 2026-11-18T09:00:00Z"
        )
    try:
        return (moment - _EPOCH) // timedelta(milliseconds=1)
    except OverflowError:
        raise BadValue(f"{field}: {text[:40]!r} is beyond the calendar; give another time") from None


def read_duration(field: str, text: object) -> int:
    """Read a duration in milliseconds: ISO 8601, such as PT1.5S or P1DT2H, or a number and a unit, such as 90s."""
    if isinstance(text, str) and (short := _SHORT.fullmatch(text)) is not None:
        return min(round(float(short[1]) * _UNITS[short[2]]), LONGEST_MS)
    found = _DURATION.fullmatch(text) if isinstance(text, str) and len(text) > 2 and text[-1] != "T" else None
    if found is None:
        raise BadValue(f"{field}: {str(text)[:40]!r} is not a duration; write ISO 8601, such as PT1S or PT5M")
    result = round(sum(float(part) * factor for part, factor in zip(found.groups("0"), _FACTORS, strict=True)))
    if result > LONGEST_MS:
        raise BadValue(f"{field}: {str(text)[:40]} is longer than 100 years; give a shorter duration")
    return result


def written_duration(milliseconds: int) -> str:
    """A duration as ISO 8601."""
    seconds = milliseconds / 1_000
    return f"PT{seconds:g}S" if seconds < 1_000_000 else f"PT{round(seconds)}S"
