"""The options of `submit`, typed, and the request they make. Must not submit anything."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, TypedDict

from msgspec.structs import replace

from holdfast.core.budgets import budget_of
from holdfast.core.durations import Duration, milliseconds
from holdfast.core.errors import Invalid
from holdfast.core.model import Time
from holdfast.core.unique import Unique
from holdfast.jobs.service import JobRequest


class BatchOptions(TypedDict, total=False):
    """The options of `submit_many`."""

    key_for: Duration | None
    queue: str | None
    priority: int
    delay: Duration | None
    at: datetime | None
    tags: Sequence[str]
    meta: dict[str, str] | None
    expires: Duration | datetime | None
    unique: Unique | None
    connection: Any
    budget: Mapping[str, float] | None


class SubmitOptions(BatchOptions, total=False):
    """The options of `submit` and `with_options`."""

    key: str | None


def request_with(
    plain: JobRequest,
    now: Time,
    *,
    key: str | None = None,
    key_for: Duration | None = None,
    queue: str | None = None,
    priority: int = 0,
    delay: Duration | None = None,
    at: datetime | None = None,
    tags: Sequence[str] = (),
    meta: dict[str, str] | None = None,
    expires: Duration | datetime | None = None,
    unique: Unique | None = None,
    budget: Mapping[str, float] | None = None,
) -> JobRequest:
    """Return the job's plain request with these options added. The caller adds the arguments."""
    if delay is not None and at is not None:
        raise Invalid(f"{plain.type}.submit: give delay or at, not both")
    if isinstance(tags, str):
        raise Invalid(f"tags={tags!r}: give a list of texts")
    if unique is not None and not isinstance(unique, Unique):
        raise Invalid(f'{plain.type}.submit(unique={unique!r}): give a holdfast.Unique, such as Unique(by=("args",))')
    options = plain.options
    if tags or meta:
        options = replace(options, tags=tuple(tags), meta=meta or {})
    if budget is not None:
        options = replace(options, budget=budget_of(plain.type, budget))
    return replace(
        plain,
        queue=queue or plain.queue,
        priority=priority,
        key=key,
        key_until=None if key_for is None else now + milliseconds(key_for),
        run_at=_moment(at, now) if delay is None else now + milliseconds(delay),
        expires_at=_moment(expires, now),
        options=options,
        unique=unique,
    )


def _moment(when: Duration | datetime | None, now: Time) -> Time | None:
    """Return a time in the store's milliseconds. Refuse a datetime without a time zone: it is ambiguous."""
    if when is None:
        return None
    if isinstance(when, datetime):
        if when.tzinfo is None:
            raise Invalid(f"{when.isoformat()} has no time zone: give datetime.now(UTC) + …, or a delay")
        return round(when.timestamp() * 1_000)
    return now + milliseconds(when)
