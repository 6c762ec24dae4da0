"""`holdfast demo`: a film whose worker is killed half-way. Must not know how it is made (`demo`)."""

from pathlib import Path

import click

from holdfast.cli.options import inherited_url
from holdfast.demo.show import INTERRUPTED, run_demo


@click.command(
    epilog="""\b
Examples:
  holdfast demo
  holdfast demo --open
  holdfast demo --db demo.db
  holdfast demo --url postgresql://user@host/database
  holdfast demo --url redis://host:6379/0
  holdfast status --url sqlite:///demo.db
"""
)
@click.option("--db", type=click.Path(path_type=Path), help="Keep the store in this file, so that you can inspect it.")
@click.option("--url", metavar="URL", help="Keep the store there, on any engine.", callback=inherited_url)
@click.option("--open", "opens", is_flag=True, help="Watch it in the browser, and keep the dashboard until Ctrl-C.")
@click.option("--svg", type=click.Path(path_type=Path), hidden=True, help="Write a picture of the demo's end.")
def demo(db: Path | None, url: str | None, opens: bool, svg: Path | None) -> None:
    """Make a film in seven stages with pretend providers, kill the worker half-way, and watch another one continue.

    Takes about half a minute, asks nothing, and leaves nothing behind unless you pass --db or --url.
    """
    if db is not None and url is not None:
        raise click.UsageError("give --db or --url, not both")
    try:
        run_demo(db, url, svg, opens=opens)
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None
