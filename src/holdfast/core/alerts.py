"""Alerts: thresholds on a queue's depth, on how long its jobs wait, and on the jobs in review. Pure.

An alert is raised when its value reaches the threshold, and over when it is below again. Each is reported once, over
all workers of a store: the record `alert/NAME` is there while the alert is raised.
"""

from datetime import datetime
from typing import Any, Literal

from msgspec import DecodeError, Struct, json

from holdfast.core.durations import Duration, as_utc, in_words, milliseconds
from holdfast.core.errors import Invalid
from holdfast.core.keys import check_queue
from holdfast.core.model import Record, Time

ALERT = "alert/"
"""A record `alert/NAME` holds a raised alert."""

AlertKind = Literal["depth", "age", "review"]


class Alert(Struct, frozen=True):
    """A threshold. `queue` is "" for the jobs in review of all queues; the age is in milliseconds."""

    kind: AlertKind
    threshold: int
    queue: str = ""

    @property
    def record(self) -> str:
        """The name of its record."""
        return f"{ALERT}{self.queue or '*'}/{self.kind}/{self.threshold}"


class Raised(Struct, frozen=True):
    """What the record of a raised alert holds: the alert, since when it is raised, and its value then."""

    alert: Alert
    since: Time
    value: int

    def text(self) -> str:
        """As the record holds it."""
        return json.encode(self).decode()


class AlertEvent(Struct, frozen=True, kw_only=True):
    """What a hook for alerts gets. `str(event)` is a sentence."""

    kind: AlertKind
    """What the threshold is on: "depth", "age" or "review"."""
    queue: str
    """The queue; "" for the jobs in review of all queues."""
    threshold: float
    """How many jobs; for the age, how many seconds."""
    value: float
    """How many jobs there are, or how many seconds the oldest one has waited."""
    is_over: bool
    """Whether the value is below the threshold again. Otherwise it has just reached it."""
    since: datetime
    """When the threshold was reached, in UTC, by the store's clock."""
    at: datetime
    what: Literal["alert"] = "alert"

    def __str__(self) -> str:
        return alert_words(self.kind, self.queue, self.value, self.threshold, self.is_over)


def declare_alerts(queue: Any, depth: Any, age: Duration | None, review: Any) -> list[Alert]:
    """Make alerts of what a person writes, or raise Invalid."""
    name = "" if queue is None else check_queue(queue)
    found = [
        *([] if depth is None else [Alert("depth", _number("depth", depth), name)]),
        *([] if age is None else [Alert("age", _milliseconds(age), name)]),
        *([] if review is None else [Alert("review", _number("review", review), name)]),
    ]
    if not found:
        raise Invalid("app.alert needs a threshold: depth=1_000 or age='10m' of a queue, or review=10")
    if queue is None and (depth is not None or age is not None):
        raise Invalid("app.alert: depth and age are those of a queue; name it: queue='video'")
    return found


def raised_in(record: Record) -> Raised | None:
    """The alert that a record holds; None if it can't be read."""
    try:
        return json.decode(record.value, type=Raised)
    except DecodeError:
        return None


def event_of(raised: Raised, value: int, at: Time, *, is_over: bool) -> AlertEvent:
    """What a hook is given."""
    alert = raised.alert
    scale = 1_000 if alert.kind == "age" else 1
    return AlertEvent(
        kind=alert.kind,
        queue=alert.queue,
        threshold=alert.threshold / scale if scale > 1 else alert.threshold,
        value=value / scale if scale > 1 else value,
        is_over=is_over,
        since=as_utc(raised.since),
        at=as_utc(at),
    )


def alert_words(kind: AlertKind, queue: str, value: float, threshold: float, is_over: bool) -> str:
    """Say what an alert is about; the age is in seconds."""
    who = f"queue {queue}" if queue else "the store"
    bound = f"{'below' if is_over else 'at or above'} {_bound(kind, threshold)}"
    if kind == "age":
        if not value:
            return f"{who} has no job that could start, {bound}"
        return f"{who} has a job that could have started {in_words(round(value * 1_000))} ago, {bound}"
    jobs = "1 job" if value == 1 else f"{value:,.0f} jobs"
    return f"{who} has {jobs} {'that could start' if kind == 'depth' else 'in review'}, {bound}"


def _bound(kind: AlertKind, threshold: float) -> str:
    return in_words(round(threshold * 1_000)) if kind == "age" else f"{threshold:,.0f}"


def _number(name: str, given: Any) -> int:
    if type(given) is not int or given < 1:
        raise Invalid(f"app.alert({name}={given!r}): give a number of jobs, at least 1")
    return given


def _milliseconds(age: Duration) -> int:
    if (found := milliseconds(age)) < 1:
        raise Invalid(f"app.alert(age={age!r}): give a time above 0, such as '10m'")
    return found
