"""What a person is told of a list: the counts, a bar with the time left on a terminal, plain lines elsewhere.

Must not ask the store anything.
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
"""Longer names of items are cut where a person reads them."""

ERROR_CHARACTERS = 200
"""Longer error texts are cut there too; the store keeps them whole."""

NAMED_LIMIT = 5
"""How many items that need review are named at the end."""

NAMES = tuple(dict.fromkeys(row.checkpoint for row in STATES))
"""The four words of a checkpoint file: PENDING, RUNNING, NEEDS_REVIEW, DONE."""


class Counts(Struct, frozen=True, kw_only=True):
    """How the items stand. `counts["DONE"]` and `dict(counts)` use the four words of a checkpoint file."""

    done: int = 0
    failed: int = 0
    pending: int = 0
    running: int = 0
    recovered: int = 0
    """How many items were under way when an earlier run died, and were taken up again by this one."""

    @property
    def total(self) -> int:
        """All items."""
        return self.done + self.failed + self.pending + self.running

    @property
    def settled(self) -> int:
        """Those that nothing more is done about."""
        return self.done + self.failed

    def keys(self) -> tuple[str, ...]:
        """The four words of a checkpoint file."""
        return NAMES

    def __getitem__(self, name: str) -> int:
        return {"DONE": self.done, "NEEDS_REVIEW": self.failed, "PENDING": self.pending, "RUNNING": self.running}[name]

    def __iter__(self) -> Iterator[str]:
        return iter(NAMES)


class Pace:
    """How fast this run settles items. What an earlier one has settled took none of its time, and doesn't count."""

    def __init__(self, settled: int, now: float) -> None:
        self._before = self._settled = settled
        self._began = self._last = now

    def note(self, settled: int, now: float) -> None:
        """So many are settled now, those of earlier runs included."""
        if settled != self._settled:
            self._settled, self._last = settled, now

    def seconds_left(self, unsettled: int, now: float) -> float | None:
        """About how long the rest takes; None as long as nothing is known."""
        here = self._settled - self._before
        if here <= 0:
            return None
        each = (self._last - self._began) / here
        # It counts down while an item is under way, by no more than the item should take.
        return max(0.0, each * unsettled - min(each, now - self._last))


class Teller:
    """Tells a person: a bar on a terminal, plain lines elsewhere, nothing when quiet."""

    def __init__(
        self, quiet: bool, console: Console | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._quiet = quiet
        self._console = console or SafeConsole(soft_wrap=True)
        self._clock = clock
        self._pace = Pace(0, clock())
        self._bar: Progress | None = None

    def begin(self, place: str, counts: Counts) -> None:
        """The first line, and the bar."""
        settled = counts.settled
        self._pace = Pace(settled, self._clock())
        before = f", {settled} of them settled before" if settled else ""
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
        """Where it stands, on the bar."""
        if self._bar is not None:
            names = ", ".join(_cut(name, LABEL_CHARACTERS) for name in list(running)[:NAMED_LIMIT])
            now = self._clock()
            self._pace.note(counts.settled, now)
            left = _left(self._pace.seconds_left(counts.total - counts.settled, now))
            self._bar.update(
                self._bar.task_ids[0], total=counts.total, completed=counts.settled, description=names, left=left
            )

    def ended(self, job: Job, attempt: int, now: int) -> None:
        """One attempt at an item has ended."""
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
        """Leave the terminal as it was."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


# Words.


def number_of(number: int, noun: str) -> str:
    """So many of something: one item, two items."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def in_figures(counts: Counts) -> str:
    """The counts as one line."""
    words = [f"{counts.done} done"]
    if counts.failed:
        words.append(f"{counts.failed} {'needs' if counts.failed == 1 else 'need'} review")
    if left := counts.pending + counts.running:
        words.append(f"{left} to do")
    return ", ".join(words)


def _left(seconds: float | None) -> str:
    return "" if seconds is None or seconds < 1 else f"about {in_words(round(seconds) * 1_000)} left"


def label_of(job: Job) -> str:
    """An item as a person knows it."""
    return _cut(job.key or job.id, LABEL_CHARACTERS)


def error_of(job: Job) -> str:
    """Why an item failed, in one line."""
    if job.error is None:
        return "no error was kept"
    return _cut(f"{job.error.type}: {job.error.message}", ERROR_CHARACTERS)


def _cut(text: str, limit: int) -> str:
    text = " ".join(text.split())
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def name_of(function: Callable[..., Any]) -> str:
    """What a function is called."""
    return str(getattr(function, "__name__", type(function).__name__))
