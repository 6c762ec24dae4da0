"""`holdfast archive`: keep ended jobs for longer, in another store. Must not know how (`jobs.transfer`)."""

import asyncio
import signal

import click

from holdfast.cli.open_store import engine_at, refuse_server, use_store
from holdfast.cli.render.screen import console, say_json
from holdfast.core.durations import milliseconds
from holdfast.engines.urls import named
from holdfast.jobs.service import Jobs
from holdfast.jobs.transfer.archive import archive as archive_jobs
from holdfast.jobs.transfer.move import Side
from holdfast.jobs.views.text import plural


@click.command(
    epilog="""\b
Examples:
  holdfast archive --from redis://host:6379/0 --to sqlite:///history.db
  holdfast archive --from redis://host:6379/0 --to sqlite:///history.db --every 10m
  holdfast jobs --url sqlite:///history.db

\b
Copies ended jobs with their history, steps and log. Removes nothing: the first store still
prunes its jobs when their retention (`keep`) is over, so archive more often than that. No
worker runs jobs from an archive. If you repeat the command, it copies what is new.
"""
)
@click.option("--from", "source_url", metavar="URL", required=True, help="The store where the jobs run.")
@click.option("--to", "target_url", metavar="URL", required=True, help="The archive; created if it doesn't exist.")
@click.option("--every", metavar="DURATION", help="Repeat after this pause until you stop it.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document with stable keys per round.")
def archive(source_url: str, target_url: str, every: str | None, as_json: bool) -> None:
    """Keep ended jobs longer, in another store."""
    pause = None if every is None else milliseconds(every) / 1_000
    for url in (source_url, target_url):
        refuse_server(url, "archive")
    source, target = engine_at(source_url, configured=False), engine_at(target_url, create=True)
    sides = Side(source, named(source_url)), Side(target, named(target_url))

    async def rounds(_: Jobs) -> None:
        while True:
            copied = await archive_jobs(*sides)
            if as_json:
                say_json({"from": sides[0].name, "to": sides[1].name, "jobs": copied})
            elif copied or pause is None:
                console().print(f"archived: {plural(copied, 'job')}, in {sides[1].name}", soft_wrap=True)
            if pause is None:
                return
            await asyncio.sleep(pause)

    async def work(_: Jobs) -> None:
        await use_store(target, sides[1].name, rounds, create=True)

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        asyncio.run(use_store(source, sides[0].name, work))
    except KeyboardInterrupt:
        console().print("stopped", soft_wrap=True)
