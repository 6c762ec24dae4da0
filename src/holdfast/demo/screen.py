"""How the demo looks: a picture that is redrawn in place on a terminal, plain lines elsewhere.

Must not measure or decide anything: it draws a View.
"""

import os
import re
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.table import Table
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from holdfast.core.model import Step
from holdfast.demo.figures import Figures, Killed, item_of, recorded
from holdfast.demo.provider import BROKEN, BUSY, MADE, UNDER_WAY, Call

COLOURS = ("cyan", "magenta")
"""The colours of items made by the first worker and by the second."""

WIDTH = 92
"""The width of the picture: it fits a common terminal and the README."""

NOTE_LIMIT = 6
"""How many of the last notes the picture shows."""

THEME = TerminalTheme(
    *((18, 22, 28), (221, 228, 236)),
    [
        *((18, 22, 28), (255, 122, 89), (79, 191, 120), (217, 167, 39)),
        *((90, 159, 240), (169, 148, 255), (90, 190, 240), (221, 228, 236)),
    ],
)
"""The colours of the picture: those of the dark lifecycle picture."""

_ELSEWHERE = re.compile(r"@font-face \{.*?\}\s*|<!--.*?-->\s*", re.DOTALL)


class View(Struct, frozen=True, kw_only=True):
    """Everything that the picture shows at one moment."""

    stages: Sequence[tuple[str, int, str]]
    """The stage's name, its number of items, and the word for them."""
    pids: Sequence[int]
    steps: Sequence[Step] = ()
    calls: Sequence[Call] = ()
    owners: dict[int, int] = {}
    """Which worker had which epoch."""
    owner: int | None = None
    killed: Killed | None = None
    over: bool = False


class Screen:
    """Where the demo is shown. Holds the terminal while it is open."""

    def __init__(self, svg: Path | None = None) -> None:
        self.console = Console(highlight=False)
        if svg is not None or self.console.width > WIDTH:
            self.console = Console(highlight=False, width=WIDTH, record=svg is not None)
        self._svg = svg
        self._live = Live(console=self.console, auto_refresh=False) if self.console.is_terminal else None
        self._notes: list[tuple[float, Text]] = []
        self._view: View | None = None

    def __enter__(self) -> "Screen":
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def head(self, lines: Sequence[str]) -> None:
        """Print the first lines, above the picture."""
        self.console.print(Text(lines[0], style="bold"))
        for line in lines[1:]:
            self.console.print(Text(line, style="dim"), soft_wrap=True)
        if self._live is not None:
            self.console.print()

    def note(self, seconds: float, text: str, style: str = "") -> None:
        """Print a note that a person should read, on a terminal or not."""
        self._notes.append((seconds, Text(text, style=style)))
        if self._live is None:
            self.console.print(_line(seconds, Text(text, style=style)), soft_wrap=True)

    def step(self, seconds: float, text: str) -> None:
        """Print a line only where there is no picture: the picture shows it anyway."""
        if self._live is None:
            self.console.print(_line(seconds, Text(text)), soft_wrap=True)

    def show(self, view: View) -> None:
        """Redraw the picture."""
        self._view = view
        if self._live is not None:
            self._live.update(picture(view, self._notes), refresh=True)

    def end(self, summary: RenderableType) -> None:
        """Print the summary under the picture, and write the SVG file if one was requested."""
        self.__exit__()
        self.console.print(summary)
        if self._svg is None:
            return
        with Path(os.devnull).open("w") as nowhere:
            record = Console(width=WIDTH, record=True, highlight=False, force_terminal=True, file=nowhere)
            record.print(Text(" $ holdfast demo\n", style="bold"))
            if self._view is not None:
                record.print(picture(self._view, self._notes))
            record.print(summary)
        text = record.export_svg(title="holdfast demo", theme=THEME, unique_id="demo")
        # No external fonts: the picture looks the same everywhere and loads nothing.
        self._svg.write_text(_ELSEWHERE.sub("", text).replace("Fira Code, monospace", "monospace"))


def picture(view: View, notes: Sequence[tuple[float, Text]]) -> RenderableType:
    """Return the stages, the workers, the provider and the last notes."""
    lines = [_line(seconds, text) for seconds, text in notes[-NOTE_LIMIT:]]
    return Padding(Group(_stages(view), Text(), _workers(view), Text(), *lines), (0, 0, 0, 1), expand=False)


def _stages(view: View) -> Table:
    table = Table.grid(padding=(0, 2))
    for _ in range(5):
        table.add_column(no_wrap=True)
    for name, total, noun in view.stages:
        steps = recorded(view.steps, name)
        calls = [call for call in view.calls if call.stage == name]
        again = sum(call.outcome in (BUSY, BROKEN) for call in calls)
        busy = any(call.outcome == UNDER_WAY for call in calls) or 0 < len(steps) < total
        mark = Text("✓", "green") if len(steps) == total else Text("▸", "yellow") if busy else Text("·", "dim")
        figure = f"{len(steps)} of {total} {noun}" if total > 1 else noun
        table.add_row(
            mark,
            Text(name, "bold" if busy else "" if steps else "dim"),
            _cells(view, name, total, steps, calls),
            Text(figure, "" if steps or busy else "dim"),
            Text(f"{again} tried again" if again else "", "yellow"),
        )
    return table


def _cells(view: View, name: str, total: int, steps: Sequence[Step], calls: Sequence[Call]) -> Text:
    """Return one cell for each item, in the colour of the worker that made it."""
    if total == 1:
        held = view.owners.get(steps[0].epoch) if steps else None
        colour = COLOURS[held - 1] if held else "yellow" if calls else "dim"
        return Text("■" if steps else "▪" if calls else "·", colour)
    made = {item_of(step)[1]: view.owners.get(step.epoch) for step in steps}
    running = {call.item for call in calls if call.outcome == UNDER_WAY}
    text = Text()
    for number in range(1, total + 1):
        item = str(number)
        if item in made:
            text.append("■", COLOURS[(made[item] or 1) - 1])
        else:
            text.append("▪" if item in running else "·", "yellow" if item in running else "dim")
    return text


def _workers(view: View) -> Table:
    table = Table.grid(padding=(0, 2))
    for number, pid in enumerate(view.pids, 1):
        colour = COLOURS[number - 1]
        if view.killed is not None and view.killed.worker == number:
            state = Text(f"killed at image {view.killed.image}", "bold red")
        elif view.owner == number:
            state = Text("makes the film")
        else:
            state = Text("finished the film" if view.over else "stands by", "" if view.over else "dim")
        table.add_row(Text("■", colour), Text(f"worker {number}", colour), Text(f"pid {pid}", "dim"), state)
    counts = {
        outcome: sum(call.outcome == outcome for call in view.calls) for outcome in (MADE, BUSY, BROKEN, UNDER_WAY)
    }
    words = f"{counts[MADE]} made, {counts[BUSY]} told to wait (429), {counts[BROKEN]} failed (500)"
    state = Text(words + (f", {counts[UNDER_WAY]} under way" if counts[UNDER_WAY] else ""), "dim")
    table.add_row(Text("◆", "yellow"), Text("provider", "yellow"), Text(f"{len(view.calls)} calls", "dim"), state)
    return table


def summary(figures: Figures, killed: Killed, seconds: float, claims: int, attempt: int) -> RenderableType:
    """Return the figures at the end, each with its source."""
    rows = [
        ("made", f"{figures.made} of {figures.items}", "script, voice, words, 30 images, 30 clips, film, publication"),
        ("made twice", str(figures.twice), "by the provider's own count of its calls"),
        ("cut by the kill", str(figures.cut), "calls under way then; only these were asked for again"),
        ("time lost", figures.lost, "from SIGKILL to the start of the next item"),
        ("calls saved", str(figures.saved), "finished before the kill, so not paid for again"),
        (
            "provider",
            f"{figures.calls} calls",
            f"{figures.busy} told to wait (429), which uses no try; {figures.broken} failed (500), tried again",
        ),
        ("attempts", str(attempt), f"{claims} claims: losing a worker costs no attempt"),
    ]
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(justify="right", style="green", no_wrap=True)
    table.add_column(style="dim")
    for row in rows:
        table.add_row(*row)
    title = Text(f"completed in {seconds:.0f} s, with worker {killed.worker} killed on the way", "bold green")
    return Padding(Group(Text(), title, Text(), table), (0, 0, 1, 1), expand=False)


def _line(seconds: float, text: Text) -> Text:
    return Text.assemble((f"{seconds:5.1f} s  ", "dim"), text)
