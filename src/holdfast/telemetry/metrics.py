"""Every metric that Holdfast writes, and Prometheus' text format. Pure.

Must not know a store or a job. Labels are queues, types, limits and fixed words: never ids, keys or arguments.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec import Struct

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

SECONDS = (0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3_600.0, 14_400.0)
"""The upper bounds of a histogram's buckets, in seconds: from a quick call to a run of hours."""

Labels = tuple[str, ...]


ACT_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
"""The same for one act of a store."""


class Metric(Struct, frozen=True):
    """One metric: its name, its kind, what it means, and the names of its labels."""

    name: str
    kind: Literal["gauge", "counter", "histogram"]
    meaning: str
    labels: Labels = ()


JOBS = Metric("holdfast_jobs", "gauge", "Jobs in the store.", ("queue", "state"))
OLDEST_DUE = Metric(
    "holdfast_oldest_due_seconds", "gauge", "How long ago the oldest waiting job could have started.", ("queue",)
)
QUEUE_PAUSED = Metric("holdfast_queue_paused", "gauge", "1 while a queue is paused.", ("queue",))
REVIEW_DEPTH = Metric("holdfast_review_depth", "gauge", "Jobs in review, which need a person.")
WORKERS = Metric("holdfast_workers", "gauge", "Workers whose heartbeats arrive.")
SLOTS = Metric("holdfast_slots", "gauge", "Slots of these workers.", ("state",))
WAITING = Metric("holdfast_waiting", "gauge", "Jobs that wait, by what they wait for.", ("for",))
LIMIT_HELD = Metric("holdfast_limit_held", "gauge", "Permits of a shared limit in use, over all its keys.", ("limit",))
LIMIT_CLOSED = Metric("holdfast_limit_closed", "gauge", "Keys of a shared limit that are closed now.", ("limit",))
STORE_UP = Metric("holdfast_store_up", "gauge", "1 if the store answered this process.")

SUBMITTED = Metric("holdfast_jobs_submitted_total", "counter", "Jobs that this process submitted.", ("type", "queue"))
CLAIMS = Metric("holdfast_claims_total", "counter", "Claims of this process that brought jobs.")
STARTED = Metric("holdfast_jobs_started_total", "counter", "Jobs that this process claimed.", ("type", "queue"))
QUEUE_WAIT = Metric(
    "holdfast_queue_wait_seconds", "histogram", "From when a job was due to its first claim.", ("type", "queue")
)
ATTEMPTS = Metric(
    "holdfast_attempts_total", "counter", "Attempts whose end this process stored.", ("type", "queue", "outcome")
)
ATTEMPT_DURATION = Metric(
    "holdfast_attempt_duration_seconds", "histogram", "From the claim of a job to its end here.", ("type", "queue")
)
STEP_RETRIES = Metric(
    "holdfast_step_retries_total", "counter", "Tries of steps that failed and are retried.", ("type", "queue")
)
STEPS = Metric(
    "holdfast_steps_total",
    "counter",
    "Calls of steps in this process: ran, replayed from a record, or failed.",
    ("type", "step", "outcome"),
)
RECOVERIES = Metric(
    "holdfast_recoveries_total",
    "counter",
    "Jobs that this process took from a lost worker.",
    ("type", "queue", "reason"),
)
SPEND = Metric(
    "holdfast_spend_usd_total",
    "counter",
    "Dollars of jobs that ran here: kept in results, wasted, or saved by records.",
    ("type", "queue", "kind"),
)
FENCED = Metric(
    "holdfast_fenced_writes_total",
    "counter",
    "Writes of this process that were refused: it had lost the lease.",
)
DEATH_NOTICE = Metric(
    "holdfast_death_notice_seconds",
    "histogram",
    "From the last heartbeat of a lost worker to when this process took its job.",
)
CLAIM_DURATION = Metric("holdfast_claim_duration_seconds", "histogram", "How long the store takes for a claim.")
STORE_SECONDS = Metric(
    "holdfast_store_seconds", "histogram", "How long the store takes to answer this process.", ("act",)
)

METRICS = (
    *(JOBS, OLDEST_DUE, QUEUE_PAUSED, REVIEW_DEPTH, WORKERS, SLOTS, WAITING, LIMIT_HELD, LIMIT_CLOSED, STORE_UP),
    *(SUBMITTED, CLAIMS, STARTED, QUEUE_WAIT, ATTEMPTS, ATTEMPT_DURATION, STEPS, STEP_RETRIES, RECOVERIES, FENCED),
    *(SPEND, DEATH_NOTICE, CLAIM_DURATION, STORE_SECONDS),
)


class Histogram:
    """How many observed values fall below each bound, and their sum."""

    def __init__(self, bounds: tuple[float, ...] = SECONDS) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def add(self, seconds: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.sum += seconds


def sample_lines(metric: Metric, samples: Mapping[Labels, float]) -> list[str]:
    """Return a metric with its values, by the values of its labels."""
    return [
        *_head(metric),
        *(f"{metric.name}{_labels(metric.labels, labels)} {_number(value)}" for labels, value in samples.items()),
    ]


def histogram_lines(metric: Metric, samples: Mapping[Labels, Histogram]) -> list[str]:
    """Return a histogram, by the values of its labels."""
    lines, names = _head(metric), (*metric.labels, "le")
    for labels, one in samples.items():
        total = 0
        for bound, count in zip((*map(_number, one.bounds), "+Inf"), one.counts, strict=True):
            total += count
            lines.append(f"{metric.name}_bucket{_labels(names, (*labels, bound))} {total}")
        shown = _labels(metric.labels, labels)
        lines += [f"{metric.name}_sum{shown} {_number(one.sum)}", f"{metric.name}_count{shown} {total}"]
    return lines


def as_text(lines: Sequence[str]) -> str:
    """Return lines as one document."""
    return "".join(f"{line}\n" for line in lines)


def _head(metric: Metric) -> list[str]:
    return [f"# HELP {metric.name} {metric.meaning}", f"# TYPE {metric.name} {metric.kind}"]


def _labels(names: Labels, values: Labels) -> str:
    pairs = ",".join(f'{name}="{_escaped(value)}"' for name, value in zip(names, values, strict=True))
    return f"{{{pairs}}}" if pairs else ""


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(round(value, 6))
