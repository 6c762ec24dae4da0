"""How the verbs speak: ages, short ids, bars, colours, and text that is safe to show. Must not ask a store.

Whatever users wrote (errors, log lines, progress, reasons) is shown by `console`, `say_json` or `echo`, which leave
nothing in it that a terminal obeys (`safe`).
"""

import json
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from holdfast.core.errors import HoldfastError
from holdfast.core.model import Error, Job, State, Time, Wait, WaitKind
from holdfast.jobs.questions import ASK, Refusal
from holdfast.jobs.waiters import awaited
from holdfast.safe_console import SafeConsole
from holdfast.safe_text import clean, escaped

STYLES: dict[State, str] = {
    State.SCHEDULED: "blue",
    State.AVAILABLE: "cyan",
    State.PENDING: "blue",
    State.ACTIVE: "magenta",
    State.RETRYABLE: "yellow",
    State.REVIEW: "bold red",
    State.COMPLETED: "green",
    State.DISCARDED: "dim",
    State.CANCELLED: "dim",
}

SHORT_ID = 8
"""How many characters of an id are shown in lists: the last ones, as ids of one moment begin alike."""

BAR_WIDTH = 20
MOMENT_MS = 1_000
LINE_LIMIT = 200
"""An error or a text is shown up to here in a list; `show` has all of it."""

_UNITS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s"))


def console() -> Console:
    """Where verbs write: colours in a terminal, plain text elsewhere, and never a crash over an old encoding."""
    if (sys.stdout.encoding or "").lower().replace("-", "") != "utf8" and hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")
    return _Out()


class _Out(SafeConsole):
    """A console that leaves no blanks at the ends of lines that go to a file or another program."""

    def print(self, *objects: Any, **options: Any) -> None:
        """Print, see Console.print."""
        if self.is_terminal:
            super().print(*objects, **options)
            return
        with self.capture() as caught:
            super().print(*objects, **options)
        self.file.write("".join(f"{line.rstrip()}\n" for line in caught.get().splitlines()) or "\n")


def say_json(value: Any) -> None:
    """One JSON document on stdout."""
    click.echo(escaped(json.dumps(value, indent=2, ensure_ascii=False)))


def one_line(text: str, limit: int = LINE_LIMIT) -> str:
    """Text of a user's as one line, cut where it gets too long."""
    line = clean(" ".join(text.split()))
    return line if len(line) <= limit else line[: limit - 1] + "…"


OUR_ERRORS = f"{HoldfastError.__module__}."


def error_line(error: Error | None, limit: int = LINE_LIMIT) -> str:
    """An error as one line: its type and what it says. Errors of Holdfast's own go without their module."""
    return "" if error is None else one_line(f"{error.type.removeprefix(OUR_ERRORS)}: {error.message}", limit)


def short(id: str) -> str:
    """The end of an id, by which every verb finds the job again."""
    return id[-SHORT_ID:]


def span(milliseconds: int) -> str:
    """A duration as precise as a person wants it: "12 s", "12 min", "1 h 59 min", "3 d 4 h", "40 d"."""
    if milliseconds < MOMENT_MS:
        return "a moment"
    for (size, unit), (less, lesser) in pairwise(_UNITS):
        if milliseconds >= size:
            rest = milliseconds % size // less
            precise = unit != "min" and milliseconds < 10 * size and rest
            return f"{milliseconds // size} {unit}" + (f" {rest} {lesser}" if precise else "")
    return f"{milliseconds // 1_000} s"


def ago(at: Time | None, now: Time) -> str:
    """When something was, or will be: "12 min ago", "in 3 h", "now"."""
    if at is None:
        return "–"
    if abs(now - at) < MOMENT_MS:
        return "now"
    return f"{span(now - at)} ago" if at < now else f"in {span(at - now)}"


def counted(number: int, one: str, many: str | None = None) -> str:
    """A number with its noun: "1 job", "12 jobs"."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def bar(done: int, total: int, width: int = BAR_WIDTH) -> Text:
    """A bar that is full when all is done."""
    share = min(1.0, max(0.0, done / total)) if total > 0 else 0.0
    filled = int(share * width)
    return Text() + Text("█" * filled, style="green") + Text("░" * (width - filled), style="dim")


def state_text(state: State) -> Text:
    """A state in its colour."""
    return Text(str(state), style=STYLES[state])


def plain_table(*headings: str, right: Iterable[str] = ()) -> Table:
    """A table without lines, as wide as it must be. Only its last column, made by `rest`, gives way."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for heading in headings[:-1]:
        table.add_column(heading, justify="right" if heading in right else "left", no_wrap=True, overflow="ellipsis")
    table.add_column(headings[-1])
    return table


def rest(text: str) -> Text:
    """What stands in a table's last column: one line, cut where there is no room."""
    return Text(text, no_wrap=True, overflow="ellipsis")


def wait_in_words(wait: Wait, now: Time) -> str:
    """What a job waits for: "waits for signal approved, 1 d left", "asleep until 2026-03-01 12:00:00 UTC, 2 h left"."""
    words = {
        WaitKind.TIME: "asleep" if wait.until is None else f"asleep until {_clock(wait.until)}",
        WaitKind.SIGNAL: f"waits for signal {one_line(wait.name, 60)}",
        WaitKind.CHILDREN: "waits for children",
        WaitKind.ACTIVATION: "what it waits for can't be read"
        if wait.is_unreadable
        else "waits for somebody to activate it",
        WaitKind.STOPPED: f"waits for the owner of job {short(wait.name)} to stop",
    }[wait.kind]
    if wait.kind is WaitKind.SIGNAL and wait.name.startswith(ASK):
        words = "waits for a person's answer"
    elif (other := awaited(wait)) is not None:
        words = f"waits for job {short(other)}"
    return words if wait.until is None else f"{words}, {left(wait.until, now)}"


def refusal_line(refused: Refusal) -> Text:
    """What to say of a signal or an answer that the job itself refused."""
    what = "answer" if refused.name.startswith(ASK) else f"signal {one_line(refused.name, 60)}"
    return Text(f"an earlier {what} was refused, from {one_line(refused.by, 60)}: {one_line(refused.why)}", "yellow")


def left(until: Time, now: Time) -> str:
    """How much of a wait is left: "1 d left", "its time is over"."""
    return f"{span(until - now)} left" if until > now else "its time is over"


def _clock(at: Time) -> str:
    return f"{datetime.fromtimestamp(at // 1_000, UTC):%Y-%m-%d %H:%M:%S} UTC"


def when_in_words(job: Job, now: Time) -> str:
    """The moment that matters most in a job's state."""
    match job.state:
        case State.SCHEDULED | State.RETRYABLE:
            return f"due {ago(job.run_at, now)}"
        case State.ACTIVE:
            return f"claimed {ago(job.claimed_at, now)}"
        case State.COMPLETED | State.DISCARDED | State.CANCELLED:
            return ago(job.finished_at, now)
        case _:
            return ago(job.created_at, now)
