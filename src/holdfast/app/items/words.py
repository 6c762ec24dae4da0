"""What `run_items` reports to a person: the counts, a progress bar on a terminal, plain lines elsewhere.

Must not read the store.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from msgspec import Struct
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from holdfast.core.durations import in_words
from holdfast.core.lifecycle import STATES
from holdfast.core.model import Job, State
from holdfast.safe_console import SafeConsole

LABEL_CHARACTERS = 60
"""The longest item name in a report; longer names are cut."""

ERROR_CHARACTERS = 200
"""The longest error text in a report; longer texts are cut. The store keeps them whole."""

NAMED_LIMIT = 5
"""How many items that need review are listed at the end."""

NAMES = tuple(dict.fromkeys(row.checkpoint for row in STATES))
"""The four statuses of a checkpoint file: PENDING, RUNNING, NEEDS_REVIEW, DONE."""


class Counts(Struct, frozen=True, kw_only=True):
    """How many items are done, failed, pending and running.

    `counts["DONE"]` and `dict(counts)` use the four statuses of a checkpoint file.
    """

    done: int = 0
    failed: int = 0
    pending: int = 0
    running: int = 0
    recovered: int = 0
    """How many items were running when an earlier run died, and were recovered by this one."""

    @property
    def total(self) -> int:
        """All items."""
        return self.done + self.failed + self.pending + self.running

    @property
    def settled(self) -> int:
        """How many items are finished or need review."""
        return self.done + self.failed

    def keys(self) -> tuple[str, ...]:
        """The four statuses of a checkpoint file."""
        return NAMES

    def __getitem__(self, name: str) -> int:
        return {"DONE": self.done, "NEEDS_REVIEW": self.failed, "PENDING": self.pending, "RUNNING": self.running}[name]

    def __iter__(self) -> Iterator[str]:
        return iter(NAMES)


class Pace:
    """How fast this run settles items. Items that an earlier run settled don't count."""

    def __init__(self, settled: int, now: float) -> None:
        self._before = self._settled = settled
        self._began = self._last = now

    def note(self, settled: int, now: float) -> None:
        """Note how many items are settled now, including those of earlier runs."""
        if settled != self._settled:
            self._settled, self._last = settled, now

    def seconds_left(self, unsettled: int, now: float) -> float | None:
        """Return about how long the remaining items take, or None while that is unknown."""
        here = self._settled - self._before
        if here <= 0:
            return None
        each = (self._last - self._began) / here
        # The estimate counts down while an item runs, but by no more than one item should take.
        return max(0.0, each * unsettled - min(each, now - self._last))


class Reporter:
    """Reports to a person: with a progress bar on a terminal, with plain lines elsewhere, not at all when quiet."""

    def __init__(
        self, quiet: bool, console: Console | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._quiet = quiet
        self._console = console or SafeConsole(soft_wrap=True)
        self._clock = clock
        self._pace = Pace(0, clock())
        self._bar: Progress | None = None

    def begin(self, place: str, counts: Counts) -> None:
        """Print the first line and start the bar."""
        settled = counts.settled
        self._pace = Pace(settled, self._clock())
        before = f", {settled} of them settled in an earlier run" if settled else ""
        self.say(f"{number_of(counts.total, 'item')} in {place}{before}")
        if self._quiet or not self._console.is_terminal or settled == counts.total:
            return
        self._bar = Progress(
            *(BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()),
            *(TextColumn("{task.fields[left]}", markup=False), TextColumn("{task.description}", markup=False)),
            console=self._console,
        )
        self._bar.start()
        self._bar.add_task("", total=counts.total, completed=settled, left="")

    def show(self, counts: Counts, running: Iterable[str]) -> None:
        """Show the counts and the running items on the bar."""
        if self._bar is not None:
            names = ", ".join(_cut(name, LABEL_CHARACTERS) for name in list(running)[:NAMED_LIMIT])
            now = self._clock()
            self._pace.note(counts.settled, now)
            left = _left(self._pace.seconds_left(counts.total - counts.settled, now))
            self._bar.update(
                self._bar.task_ids[0], total=counts.total, completed=counts.settled, description=names, left=left
            )

    def ended(self, job: Job, attempt: int, now: int) -> None:
        """Report that one attempt at an item has ended."""
        if job.state is State.COMPLETED:
            if self._bar is None:
                self.say(f"{label_of(job)}: done")
        elif job.state is State.REVIEW:
            self.say(f"{label_of(job)}: needs review: {error_of(job)}")
        elif job.attempt > attempt:
            soon = f", again in {in_words(job.run_at - now)}" if job.run_at is not None and job.run_at > now else ""
            tries = f"try {attempt} of {job.options.retry.retries + 1}"
            self.say(f"{label_of(job)}: {tries} failed{soon}: {error_of(job)}")

    def say(self, line: str) -> None:
        """One line."""
        if not self._quiet:
            self._console.print(line)

    def close(self) -> None:
        """Restore the terminal."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


# Texts.


def number_of(number: int, noun: str) -> str:
    """Return a number with its noun: "1 item", "2 items"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def in_figures(counts: Counts) -> str:
    """Return the counts as one line."""
    words = [f"{counts.done} done"]
    if counts.failed:
        words.append(f"{counts.failed} {'needs' if counts.failed == 1 else 'need'} review")
    if left := counts.pending + counts.running:
        words.append(f"{left} to do")
    return ", ".join(words)


def _left(seconds: float | None) -> str:
    return "" if seconds is None or seconds < 1 else f"about {in_words(round(seconds) * 1_000)} left"


def label_of(job: Job) -> str:
    """Return an item's name, for a person."""
    return _cut(job.key or job.id, LABEL_CHARACTERS)


def error_of(job: Job) -> str:
    """Return why an item failed, in one line."""
    if job.error is None:
        return "no error was recorded"
    return _cut(f"{job.error.type}: {job.error.message}", ERROR_CHARACTERS)


def _cut(text: str, limit: int) -> str:
    text = " ".join(text.split())
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def name_of(function: Callable[..., Any]) -> str:
    """Return a function's name."""
    return str(getattr(function, "__name__", type(function).__name__))
