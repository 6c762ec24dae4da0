"""`holdfast demo`: a film whose worker is killed half-way. Must not know how it is made (`demo`)."""

from pathlib import Path

import click

from holdfast.demo.show import INTERRUPTED, run_demo


@click.command(
    epilog="""\b
Examples:
  holdfast demo
  holdfast demo --db demo.db
  holdfast demo --url postgresql://user@host/database
  holdfast demo --url redis://host:6379/0
  holdfast status --url sqlite:///demo.db
"""
)
@click.option("--db", type=click.Path(path_type=Path), help="Keep the store in this file, to look at it afterwards.")
@click.option("--url", metavar="URL", help="Keep the store there: another engine, the same film.")
@click.option("--svg", type=click.Path(path_type=Path), hidden=True, help="Write a picture of the demo's end.")
def demo(db: Path | None, url: str | None, svg: Path | None) -> None:
    """Make a film in seven stages with pretend providers; kill the worker half-way; watch another one go on.

    Takes about half a minute, asks nothing, and leaves nothing behind unless --db or --url names a store.
    """
    if db is not None and url is not None:
        raise click.UsageError("give --db or --url, not both")
    try:
        run_demo(db, url, svg)
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None
