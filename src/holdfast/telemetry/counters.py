"""What this process has counted since its start. It observes an engine; see `engines.observers.Observer`.

Must be quick and must not raise: it is called within the work. It keeps no job and no argument.
"""

import threading
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from functools import partial

from holdfast import forking
from holdfast.core.model import Change, Event, Job, State
from holdfast.core.spending import MILLION, Amounts, SpendKind
from holdfast.engines.observers import Act, StepOutcome
from holdfast.jobs.job_events import JobEvent
from holdfast.jobs.lost_workers import loss_of, noticed_after
from holdfast.telemetry.metrics import (
    ACT_SECONDS,
    ATTEMPT_DURATION,
    ATTEMPTS,
    CLAIM_DURATION,
    CLAIMS,
    DEATH_NOTICE,
    FENCED,
    QUEUE_WAIT,
    RECOVERIES,
    SPEND,
    STARTED,
    STEP_RETRIES,
    STEPS,
    STORE_SECONDS,
    SUBMITTED,
    Histogram,
    Labels,
    histogram_lines,
    sample_lines,
)

PAIRS_LIMIT = 200
"""How many pairs of a type and a queue, or of a type and a step, have numbers of their own. All further ones are
counted together.
"""

OTHER = ("other", "other")
"""The type and queue of what is counted together, or the type and step."""

OUTCOMES: Mapping[str, str] = {
    Event.COMPLETE: "completed",
    Event.FAIL: "failed",
    Event.OVERRUN: "overrun",
    Event.EXHAUST: "review",
    Event.ABANDON: "review",
    Event.RELEASE: "released",
    Event.SUSPEND: "suspended",
    Event.REST: "suspended",
    Event.LAPSE: "lost",
    Event.CANCEL: "cancelled",
}
"""How an attempt ended, by the event that ended it."""


class Counters:
    """The counters of one process. Safe from any thread."""

    def __init__(self) -> None:
        self._pairs: set[Labels] = set()
        self._named: set[Labels] = set()
        self._claims = 0
        self._fenced = 0
        self._submitted: Counter[Labels] = Counter()
        self._started: Counter[Labels] = Counter()
        self._attempts: Counter[Labels] = Counter()
        self._steps: Counter[Labels] = Counter()
        self._retries: Counter[Labels] = Counter()
        self._recoveries: Counter[Labels] = Counter()
        self._spent: Counter[Labels] = Counter()
        """In millionths, whose sums are exact."""
        self._waits: defaultdict[Labels, Histogram] = defaultdict(Histogram)
        self._durations: defaultdict[Labels, Histogram] = defaultdict(Histogram)
        self._notices = Histogram()
        self._acts: defaultdict[Labels, Histogram] = defaultdict(partial(Histogram, ACT_SECONDS))
        self._lock = threading.Lock()
        self._in_child = forking.InChild(self._start_over)

    def heard_inserts(self, jobs: Sequence[Job]) -> None:
        """See Observer."""
        with self._lock:
            for job in jobs:
                self._submitted[self._pair(job.type, job.queue)] += 1

    def heard_claims(self, jobs: Sequence[Job]) -> None:
        """See Observer."""
        with self._lock:
            self._claims += 1
            for job in jobs:
                pair = self._pair(job.type, job.queue)
                self._started[pair] += 1
                if job.epoch == 1 and job.claimed_at is not None:
                    due = max(job.created_at, job.run_at or 0)
                    self._waits[pair].add(max(0, job.claimed_at - due) / 1_000)

    def heard_changes(self, changes: Sequence[Change]) -> None:
        """See Observer."""
        with self._lock:
            for change in changes:
                outcome = OUTCOMES.get(change.event)
                if change.before is not State.ACTIVE or outcome is None:
                    continue
                if (silent := noticed_after(change.note)) is not None:
                    self._notices.add(silent / 1_000)
                pair = self._pair(change.job.type, change.job.queue)
                self._attempts[(*pair, outcome)] += 1
                if outcome == "lost":
                    self._recoveries[(*pair, loss_of(change.note))] += 1
                elif change.held_since is not None:
                    self._durations[pair].add(max(0, change.at - change.held_since) / 1_000)

    def heard_fenced(self, number: int) -> None:
        """See Observer."""
        with self._lock:
            self._fenced += number

    def heard_step(self, job: Job, step: str, outcome: StepOutcome) -> None:
        """See Observer."""
        with self._lock:
            self._steps[(*_known(self._named, (job.type, step)), outcome)] += 1

    def heard_spending(self, job: Job, kind: SpendKind, amounts: Amounts) -> None:
        """See Observer."""
        if "usd" in amounts:
            with self._lock:
                self._spent[(*self._pair(job.type, job.queue), kind)] += amounts["usd"]

    def heard_act(self, act: Act, seconds: float) -> None:
        """See Observer."""
        with self._lock:
            self._acts[(act,)].add(seconds)

    def heard_retry(self, event: JobEvent) -> None:
        """Count the retry of a step. A job that is retried is counted with its attempt."""
        if event.step:
            with self._lock:
                self._retries[self._pair(event.type, event.queue)] += 1

    def lines(self) -> list[str]:
        """Return everything in Prometheus' text format."""
        with self._lock:
            return [
                *sample_lines(SUBMITTED, self._submitted),
                *sample_lines(CLAIMS, {(): self._claims}),
                *sample_lines(STARTED, self._started),
                *histogram_lines(QUEUE_WAIT, self._waits),
                *sample_lines(ATTEMPTS, self._attempts),
                *histogram_lines(ATTEMPT_DURATION, self._durations),
                *sample_lines(STEPS, self._steps),
                *sample_lines(STEP_RETRIES, self._retries),
                *sample_lines(RECOVERIES, self._recoveries),
                *sample_lines(SPEND, {labels: amount / MILLION for labels, amount in self._spent.items()}),
                *sample_lines(FENCED, {(): self._fenced}),
                *histogram_lines(DEATH_NOTICE, {(): self._notices}),
                *histogram_lines(CLAIM_DURATION, {(): self._acts[("claim",)]}),
                *histogram_lines(STORE_SECONDS, self._acts),
            ]

    def _pair(self, type: str, queue: str) -> Labels:
        return _known(self._pairs, (type, queue))

    def _start_over(self) -> None:
        """Run in a forked child: nobody holds the lock there."""
        self._lock = threading.Lock()


def _known(pairs: set[Labels], pair: Labels) -> Labels:
    """Return a pair that has numbers of its own, or OTHER if there are too many."""
    if pair not in pairs:
        if len(pairs) >= PAIRS_LIMIT:
            return OTHER
        pairs.add(pair)
    return pair
