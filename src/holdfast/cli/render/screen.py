"""Where the verbs write: a safe console, JSON, tables, bars and the colours of the states. Must not read a store.

Text written by users (errors, log lines, progress, reasons) goes through `console`, `say_json` or `echo`, which remove
control sequences that a terminal would obey (`safe_text`).
"""

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import click
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from holdfast.core.model import State
from holdfast.safe_console import SafeConsole
from holdfast.safe_text import escaped

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

BAR_WIDTH = 20

GAP = 2
"""The space between two columns of a table."""

LEAST_WIDTH = 20
"""Text is never wrapped to fewer columns than this; a smaller screen wraps it again."""


def console() -> Console:
    """Return the console for verbs: colours on a terminal, plain text elsewhere. An old encoding never crashes it."""
    if (sys.stdout.encoding or "").lower().replace("-", "") != "utf8" and hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")
    return _Out()


class _Out(SafeConsole):
    """A console that removes trailing spaces when the output goes to a file or another program."""

    def print(self, *objects: Any, **options: Any) -> None:
        """Print, see Console.print."""
        if self.is_terminal:
            super().print(*objects, **options)
            return
        with self.capture() as caught:
            super().print(*objects, **options)
        self.file.write("".join(f"{line.rstrip()}\n" for line in caught.get().splitlines()) or "\n")


def say_json(value: Any) -> None:
    """Print one JSON document to stdout."""
    click.echo(escaped(json.dumps(value, indent=2, ensure_ascii=False)))


def bar(done: int, total: int, width: int = BAR_WIDTH) -> Text:
    """Return a bar that is full when everything is done."""
    share = min(1.0, max(0.0, done / total)) if total > 0 else 0.0
    filled = int(share * width)
    return Text() + Text("█" * filled, style="green") + Text("░" * (width - filled), style="dim")


def state_text(state: State) -> Text:
    """Return a state in its colour."""
    return Text(str(state), style=STYLES[state])


def plain_table(*headings: str, right: Iterable[str] = ()) -> Table:
    """Return a table without lines, as wide as its content. Only its last column, made by `last_cell`, shrinks."""
    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="dim")
    for heading in headings[:-1]:
        table.add_column(heading, justify="right" if heading in right else "left", no_wrap=True, overflow="ellipsis")
    table.add_column(headings[-1])
    return table


def table_width(cells: Iterable[Sequence[str]]) -> int:
    """Return how many columns of the screen these cells of a plain table need, with the gap after each."""
    return sum(max(map(cell_len, column)) + GAP for column in zip(*cells, strict=True))


class Hanging:
    """Text that wraps under itself: a lead, then the text at column `indent`, with further lines `hang` deeper."""

    def __init__(self, text: Text, indent: int, lead: Text | None = None, *, hang: int = 0) -> None:
        self._text, self._indent, self._hang = text, indent, hang
        self._lead = Text() if lead is None else lead

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Wrap to the width of the screen; see rich."""
        indent = self._indent if options.max_width >= self._indent + LEAST_WIDTH else 4
        lead = self._lead
        if lead.cell_len > indent:
            yield lead
            lead = Text()
        width = max(LEAST_WIDTH, options.max_width - indent - self._hang)
        for number, line in enumerate(self._text.wrap(console, width)):
            before = Text(" " * (indent + self._hang)) if number else lead + Text(" " * (indent - lead.cell_len))
            yield before + line


def last_cell(text: str) -> Text:
    """Return a cell for a table's last column: one line, cut if there is no room."""
    return Text(text, no_wrap=True, overflow="ellipsis")


def print_lines(out: Console, lines: Iterable[Text]) -> None:
    """Print lines; what doesn't fit continues below, two columns deeper."""
    for line in lines:
        indent = len(line.plain) - len(line.plain.lstrip())
        out.print(Hanging(line[indent:], indent, hang=2))
