"""Shows the progress of something long on stderr: a moving bar on a terminal, a line now and then elsewhere."""

import sys
import time

import click

from holdfast.cli.render.screen import BAR_WIDTH

LINE_SECONDS = 5.0
"""Seconds between two lines of progress where there is no terminal."""

DRAW_SECONDS = 0.1


class ProgressLine:
    """One line of progress, redrawn in place."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._live = sys.stderr.isatty()
        self._next = 0.0
        self._drawn = False

    def tell(self, what: str, done: int, total: int) -> None:
        """Show how much is done; see `drain.Tell`."""
        now = time.monotonic()
        if self._quiet or (now < self._next and done < total):
            return
        self._next = now + (DRAW_SECONDS if self._live else LINE_SECONDS)
        if not self._live:
            click.echo(f"{what}: {done:,} of {total:,}", err=True)
            return
        filled = BAR_WIDTH * done // total if total else 0
        bar = "█" * filled + "░" * (BAR_WIDTH - filled)
        click.echo(f"\r\x1b[K{what} {bar} {done:,} of {total:,}", err=True, nl=False)
        self._drawn = True

    def end(self) -> None:
        """Finish the drawn line, so that other output starts on a new one."""
        if self._drawn:
            click.echo("", err=True)
