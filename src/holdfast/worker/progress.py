"""What a person sees of a running attempt: its stage, counts, retries and log lines, for heartbeats and records.

Must not decide or write anything.
"""

import threading
import time
from collections import defaultdict
from collections.abc import Iterable
from itertools import islice

from msgspec.structs import replace

from holdfast.core.codec import canonical
from holdfast.core.model import (
    ITEMS_LISTED,
    Limited,
    Retrying,
    Running,
    RunningItem,
    Spending,
    Step,
    StepState,
    Time,
)
from holdfast.core.spending import Amounts, added, closed
from holdfast.jobs.job_events import StepRetry
from holdfast.jobs.service import LOG_PATH
from holdfast.jobs.status import progress_records
from holdfast.safe_text import logger
from holdfast.worker.held_job import CANCELLED, CUT, ENDED, LOST, HeldJob
from holdfast.worker.job_log import log_try
from holdfast.worker.log_lines import SHOWN_PATH_CHARACTERS, Lines
from holdfast.worker.recorded_errors import error_of, line_of, storable
from holdfast.worker.registry import StepSpec
from holdfast.worker.spending import Ledger

log = logger("holdfast.worker")

LOG_SECONDS = 2.0
"""The shortest time between two writes of new log lines, which go along with a step's record."""


class Progress:
    """How far an attempt is. Safe from any thread of the job, and from the heartbeat's thread."""

    def __init__(self, held: HeldJob) -> None:
        self._held = held
        self._active_at = held.claimed
        self._running: dict[str, StepSpec] = {}
        self._begun: dict[str, Time] = {}
        """Since when each of them runs, also between two tries."""
        self._outer: dict[str, int] = defaultdict(int)
        """How many outermost steps run, by name."""
        self._stage = ""
        self._since: dict[str, Time] = {}
        self._counts: dict[str, tuple[int, int | None]] = {}
        self._recorded: dict[str, int] = defaultdict(int)
        self._earlier: dict[str, tuple[int, int]] = {}
        """How many outermost steps earlier leases recorded, and for how many milliseconds they worked on them."""
        self._reported: tuple[str, int | None, int | None, str] | None = None
        self._first_report: tuple[str, int] = ("", 0)
        self._retrying: dict[str, Retrying] = {}
        """The steps that have failed and are being retried, by path, the most recent last."""
        self._limited: dict[str, Limited] = {}
        """The steps that wait for a limit, by path."""
        self.ledger: Ledger | None = None
        """What the job spends, from its first `spend()` on."""
        self._told = Spending()
        """The part of it that the engine's observers know."""
        self._lines = Lines()
        self._log_due = held.claimed + LOG_SECONDS
        self._lock = threading.Lock()

    # What happens.

    def load_steps(self, steps: Iterable[Step]) -> None:
        """Take what earlier leases recorded of each stage. The time between two leases doesn't count."""
        leases: dict[tuple[str, int], list[Step]] = defaultdict(list)
        for one in steps:
            if "/" not in one.path and one.finished_at is not None:
                leases[one.name, one.epoch].append(one)
        for (name, _), ended in leases.items():
            count, worked_ms = self._earlier.get(name, (0, 0))
            took = max(one.finished_at or 0 for one in ended) - min(one.started_at for one in ended)
            self._earlier[name] = count + len(ended), worked_ms + max(0, took)

    def begin_step(self, path: str, spec: StepSpec, now: Time) -> None:
        """Note that a step starts. The stage is the outermost running step; of several, the one that started first."""
        with self._lock:
            self._running[path] = spec
            self._begun[path] = now
            if "/" not in path:
                if spec.name not in self._outer and spec.name != self._stage:
                    self._since[spec.name] = now
                self._outer[spec.name] += 1
                if self._stage not in self._outer:
                    self._stage = spec.name
        self.note_activity()
        self._recount()

    def end_step(self, path: str) -> None:
        """Note that a step has ended, successfully or not. Between two items of a map, the stage stays the same."""
        held = self._held
        with self._lock:
            spec = self._running.pop(path)
            self._begun.pop(path, None)
            if "/" not in path:
                self._outer[spec.name] -= 1
                if not self._outer[spec.name]:
                    del self._outer[spec.name]
                if self._outer and self._stage not in self._outer:
                    self._stage = next(iter(self._outer))
            if self._retrying:
                self._retrying.pop(path, None)
        held.changed()
        self._tell_activity_end()

    def _tell_activity_end(self) -> None:
        held = self._held
        if held.on_activity_end is not None:
            held.loop.call_soon_threadsafe(held.on_activity_end)
        self._recount()

    def _recount(self) -> None:
        if self._held.may_recount():
            self._held.loop.call_soon_threadsafe(self._held.recount_waiting)

    def pause_step(self, path: str) -> None:
        """Note that a step between two tries doesn't run: it waits for a limit."""
        with self._lock:
            self._running.pop(path, None)
        self._tell_activity_end()

    def resume_step(self, path: str, spec: StepSpec) -> None:
        """Note that it runs again."""
        with self._lock:
            self._running[path] = spec
        self.note_activity()
        self._recount()

    def note_limited(self, path: str, key: str, at: Time | None) -> None:
        """Note that a step waits for a limit, and when the limit may have room."""
        with self._lock:
            self._limited[path] = Limited(key, at)
        self._held.changed()

    def clear_limited(self, path: str) -> None:
        """Note that it waits no longer."""
        with self._lock:
            self._limited.pop(path, None)
        self.note_activity()

    def note_retry(self, path: str, tries: int, of: int, error: BaseException, delay: float) -> None:
        """Note that a step failed and will be retried after this many seconds. Logs it and requests a heartbeat."""
        held, line, failure = self._held, line_of(error), error_of(error)
        now = held.now()
        next_at = now + round(delay * 1_000)
        with self._lock:
            self._retrying.pop(path, None)
            self._retrying[path] = Retrying(path[:SHOWN_PATH_CHARACTERS], tries + 1, of, line, next_at)
            name = self._running[path].name
        log_try(held.job, StepRetry(name, path, tries, failure, now, next_at), of, line)
        held.changed()
        if held.on_retry is not None:
            held.on_retry(StepRetry(name, path, tries, failure, now, next_at))

    def note_throttled(self, path: str, tries: int, of: int, error: BaseException, ms: int) -> None:
        """Note that a step's provider asked to slow down. Logs it and requests a heartbeat."""
        held, line = self._held, line_of(error)
        log.warning(
            "job %s (%s): step %s: the provider asks to slow down: %s; next call in %.1f s; this uses no try",
            held.job.id, held.job.type, path, line, ms / 1_000,
        )  # fmt: skip
        with self._lock:
            self._retrying.pop(path, None)
            self._retrying[path] = Retrying(path[:SHOWN_PATH_CHARACTERS], tries, of, line, held.now() + ms)
        held.changed()

    def note_recorded(self, name: str) -> None:
        """Note that this attempt has recorded a step of this name."""
        self._recorded[name] += 1
        self.note_activity()

    def count_items(self, name: str, done: int, total: int | None) -> None:
        """Note how many items of a step are done."""
        self._counts[name] = (done, total)
        self.note_activity()

    def report(self, done: int | None, total: int | None, text: str) -> None:
        """Take the progress that the job's code reports."""
        if done is not None and self._first_report[0] != self._stage:
            self._first_report = (self._stage, done)
        self._reported = (self._stage, done, total, text)
        self.note_activity()

    def note_activity(self) -> None:
        """Note that something happened, so the job isn't stale."""
        self._active_at = time.monotonic()
        self._held.changed()

    def keep_ledger(self) -> Ledger:
        """Return the ledger of what the job spends; create it on first use."""
        if self.ledger is None:
            job = self._held.job
            with self._lock:
                self.ledger = self.ledger or Ledger(job.epoch, is_budgeted=bool(job.options.budget))
        return self.ledger

    def spend(self, path: str, amounts: Amounts) -> None:
        """Take what the job's code reports that it has spent. The next heartbeat carries it."""
        self.keep_ledger().spend(path, amounts)
        self.note_activity()

    def spending(self) -> Spending | None:
        """Return what the job has spent; None if it never spent anything."""
        return None if self.ledger is None else self.ledger.describe()

    def waste_loose(self) -> None:
        """Note that the attempt failed: what its code spent between steps is not kept."""
        if self.ledger is not None:
            self.ledger.waste_loose()

    # What the engine's observers hear of it.

    def skip_spending(self) -> None:
        """Note that they know what earlier leases spent."""
        self._told = self.spending() or Spending()

    def tell_spending(self) -> None:
        """Tell them what was spent since they last heard, if that is decided. With every heartbeat."""
        held = self._held
        if not held.engine.observers or self.spending() is None:
            return
        with self._lock:
            spending = self.spending() or Spending()
            before, self._told = self._told, spending
        held.engine.announce_spending(held.job, before, spending)

    def tell_last_spending(self) -> None:
        """Tell them the rest at the end. Whoever took the lease from this worker tells that itself."""
        held = self._held
        spending = self.spending() if held.engine.observers and held.stop != LOST else None
        if spending is None:
            return
        spending = closed(spending, lost=held.stop in (CANCELLED, CUT))
        if held.stop in (None, ENDED):  # a failed attempt has wasted it already
            spending = replace(spending, kept=added(spending.kept, spending.loose))
        before, self._told = self._told, spending
        held.engine.announce_spending(held.job, before, spending)

    # What others see of it.

    def steps_running(self) -> int:
        """Return how many steps are running."""
        return len(self._running)

    def running_paths(self) -> list[str]:
        """Return the paths of the steps that are running."""
        with self._lock:
            return list(self._running)

    def has_recorded(self) -> bool:
        """Whether this attempt has recorded any step of its own."""
        return bool(self._recorded)

    def is_untouched(self) -> bool:
        """Whether the job's code has reported nothing, so there is nothing to write at its end."""
        is_silent = self._reported is None and not self._counts and not self._recorded and self._lines.is_empty()
        return is_silent and self.ledger is None

    def describe(self) -> Running:
        """Describe what this attempt is doing, for the worker's heartbeat. From the heartbeat's thread."""
        with self._lock:
            stage, since = self._stage, self._since.get(self._stage)
            clocks = self._held.step_clocks
            limits = [
                spec.stale_after_ms
                for path, spec in self._running.items()
                if spec.stale_after_ms is not None and not clocks.is_still(path)
            ]
            retrying = None
            if self._retrying:
                retrying = next(reversed(self._retrying.values()))
                retrying = replace(retrying, others=len(self._retrying) - 1)
            spent = {} if self.ledger is None else self.ledger.in_flight()
            items = tuple(
                RunningItem(path[:SHOWN_PATH_CHARACTERS], at, tries, spent.get(path, {}))
                for path, at in islice(self._begun.items(), ITEMS_LISTED)
                for tries in [1 if path not in self._retrying else self._retrying[path].try_number]
            )
            limited = next(iter(self._limited.values()), None)
            if limited is not None:
                limited = replace(limited, steps=len(self._limited))
        done, total = self._counts.get(stage, (None, None))
        made, text = self._recorded.get(stage, 0), ""
        earlier, earlier_ms = self._earlier.get(stage, (0, 0))
        reported = self._reported
        if reported is not None and reported[0] == stage:  # a report from an earlier stage no longer applies
            text = reported[3]
            if reported[1] is not None:
                done, total = reported[1], reported[2]
                made, earlier = done - self._first_report[1], 0
        return Running(
            job=self._held.job.id,
            epoch=self._held.job.epoch,
            stage=stage,
            done=done,
            total=total,
            made=made,
            text=text,
            since=since,
            silent_ms=round((time.monotonic() - self._active_at) * 1_000),
            stale_after_ms=min(limits, default=None),  # the strictest limit of what runs now
            retrying=retrying,
            limited=limited,
            waited_ms=self._held.waited_ms(),
            spending=self.spending(),
            items=items,
            earlier=earlier,
            earlier_ms=earlier_ms,
        )

    def final_records(
        self, now: Time, *, completes: bool = False, waits: bool = False, used: tuple[int, int] | None = None
    ) -> tuple[Step, ...]:
        """Return records of how far it is and what it spent, to be stored with its end. For a job that completes, the
        steps show what a map counted, or `used` if not all of them count. `waits` if its lease ends with a wait or a
        release.
        """
        running = self.describe()
        if self._reported is None and (completes or not self._counts):
            done, total = used or (None, None)
            running = replace(running, done=done, total=total)
        if self.ledger is not None:
            running = replace(running, spending=self.ledger.describe(waits=waits))
        return progress_records(self._held.job, running, now, lost=False)

    # Log lines.

    def load_log(self, lines: Iterable[str]) -> None:
        """Start with the log lines that an earlier lease kept."""
        self._lines.load(lines)

    def add_log_line(self, line: str) -> None:
        """Keep a log line with the job. Safe from any thread."""
        self._lines.add(storable(line))

    def is_log_due(self) -> bool:
        """Whether the next record should carry new log lines."""
        return time.monotonic() > self._log_due

    def take_log_record(self) -> tuple[Step, ...]:
        """Return the log lines as a record, if there are new ones. It is written with the next record or the end."""
        self._log_due = time.monotonic() + LOG_SECONDS
        lines = self._lines.fresh()
        if lines is None:
            return ()
        job = self._held.job
        record = Step(
            job=job.id,
            epoch=job.epoch,
            path=LOG_PATH,
            name=LOG_PATH,
            state=StepState.STARTED,
            result=canonical(lines),
            started_at=self._held.now(),
        )
        return (record,)
