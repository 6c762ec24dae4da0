"""`holdfast lifecycle`: show the states and events of a job. Must not know how they are drawn (`render`)."""

import shutil
from collections.abc import Callable

import click

from holdfast.cli.render.lifecycle_svg import as_svg
from holdfast.cli.render.lifecycle_text import WIDEST, as_json, as_mermaid, as_text


@click.command(
    epilog="""\b
Examples:
  holdfast lifecycle
  holdfast lifecycle --format svg > lifecycle.svg
  holdfast lifecycle --format json | jq -r '.states[].state'
"""
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "mermaid", "svg", "json"]),
    default="text",
    show_default=True,
    help="The output format.",
)
def lifecycle(form: str) -> None:
    """Show the states and events of a job's life.

    All formats are drawn from the table that the engines use.
    """
    forms: dict[str, Callable[[], str]] = {
        "text": lambda: as_text(shutil.get_terminal_size((WIDEST, 24)).columns),
        "mermaid": as_mermaid,
        "svg": as_svg,
        "json": as_json,
    }
    click.echo(forms[form](), nl=False)
