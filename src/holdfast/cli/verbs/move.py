"""`holdfast move`: all jobs of a store to another one. Must not know how it is done (`jobs.transfer`)."""

import asyncio
import signal
import time
from collections.abc import Awaitable
from typing import TypeVar

import click

from holdfast.cli.open_store import NoStore, engine_at, use_store
from holdfast.cli.person import whoami
from holdfast.cli.render.progress import ProgressLine
from holdfast.cli.render.screen import console, say_json
from holdfast.core.durations import milliseconds
from holdfast.core.errors import Invalid, Refused
from holdfast.engines.urls import named
from holdfast.jobs.service import Jobs
from holdfast.jobs.transfer.drain import drain as drain_store
from holdfast.jobs.transfer.move import Report, Side, give_up, mark_in
from holdfast.jobs.transfer.move import move as move_jobs
from holdfast.jobs.views.text import plural

T = TypeVar("T")

DRAIN = "10m"
"""How long workers may take to finish what they run, if the call doesn't say."""


@click.command(
    epilog="""\b
Examples:
  holdfast move --from file:checkpoint.json --to sqlite:///jobs.db
  holdfast move --from sqlite:///jobs.db --to postgresql://user@host/database
  holdfast move --from sqlite:///jobs.db --to postgresql://user@host/database --drain 2h
  holdfast move --from sqlite:///jobs.db --give-up

\b
Every job goes along as it is: history, steps, keys, waits, signals, children, pauses. The new
store must be empty; the old one is closed from then on and says where its jobs are. A move
that was interrupted continues when you repeat the same command. Times stay as they
are: with a server's clock, what is due comes by that one. Mind the password in a URL: your
shell may keep it; $PGPASSFILE and the like are read as usual.
"""
)
@click.option("--from", "source_url", metavar="URL", required=True, help="The store that the jobs are in.")
@click.option("--to", "target_url", metavar="URL", help="The store that they go to; made if there is none.")
@click.option(
    "--drain",
    metavar="[DURATION]",
    is_flag=False,
    flag_value=DRAIN,
    help=f"Let workers finish what they run and claim nothing more; for so long at most ({DRAIN}).",
)
@click.option("--give-up", "gives_up", is_flag=True, help="Undo an interrupted move and use the old store again.")
@click.option("--yes", is_flag=True, help="With --give-up: even if all jobs had been moved.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document with stable keys.")
def move(source_url: str, target_url: str | None, drain: str | None, gives_up: bool, yes: bool, as_json: bool) -> None:
    """Move all jobs from one store to another."""
    if gives_up:
        if target_url is not None or drain is not None:
            raise click.UsageError("--give-up takes --from alone")
        _give_up(source_url, yes, as_json)
        return
    if target_url is None:
        raise click.UsageError("name the new store with --to URL")
    seconds = None if drain is None else milliseconds(drain) / 1_000
    progress = ProgressLine(quiet=as_json)
    began = time.monotonic()
    source, target = engine_at(source_url, write=True), engine_at(target_url, create=True)
    if named(source_url) == named(target_url):
        raise Invalid(f"--from and --to are the same store, {named(source_url)}; name another one with --to")

    async def work(_: Jobs) -> Report:
        async def both(_: Jobs) -> Report:
            sides = Side(source, named(source_url)), Side(target, named(target_url))
            return await move_jobs(*sides, by=whoami(), drain_seconds=seconds, tell=progress.tell)

        if seconds is None and await mark_in(source) is None:  # before a store is made for nothing
            await drain_store(source, named(source_url), None, progress.tell)
        return await use_store(target, named(target_url), both, create=True)

    try:
        report = _run(use_store(source, named(source_url), work))
    except NoStore:
        raise NoStore(f"there is no store at {named(source_url)}; check --from") from None
    finally:
        progress.end()
    _tell(report, named(source_url), named(target_url), time.monotonic() - began, as_json)


def _give_up(source_url: str, yes: bool, as_json: bool) -> None:
    source = engine_at(source_url, write=True)

    async def work(_: Jobs) -> str:
        return (await give_up(Side(source, named(source_url)), sure=yes)).store

    store = _run(use_store(source, named(source_url), work))
    if as_json:
        say_json({"from": named(source_url), "given_up": store})
        return
    rest = f"takes jobs again; remove what there is of them in {store}" if store else "lets its workers claim again"
    console().print(f"given up: {named(source_url)} {rest}", soft_wrap=True)


def _run(work: Awaitable[T]) -> T:
    async def awaited() -> T:
        return await work

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a drain is lifted before we end
    try:
        return asyncio.run(awaited())
    except KeyboardInterrupt:
        raise Refused(
            "stopped; nothing is lost: repeat the command to continue, or undo the move with --give-up"
        ) from None


def _tell(report: Report, source: str, target: str, seconds: float, as_json: bool) -> None:
    if as_json:
        numbers = {name: getattr(report, name) for name in ("jobs", "entries", "steps", "keys", "records")}
        told = {"digest": report.digest, "resumed": report.resumed, "already": report.already}
        say_json({"from": source, "to": target, **numbers, **told, "seconds": round(seconds, 3)})
        return
    out = console()
    if report.already:
        out.print(f"the jobs of {source} had been moved to {target} already; nothing was left to do")
        return
    parts = [
        plural(report.entries, "entry", "entries"),
        plural(report.steps, "step"),
        plural(report.keys, "key"),
    ]
    out.print(f"moved {plural(report.jobs, 'job')} to {target}", soft_wrap=True)
    out.print(f"verified: {', '.join(parts)}, {plural(report.records, 'record')}; sha256 {report.digest[:16]}…")
    ended = f"{source} is closed, and its workers end"
    out.print(f"now: start your workers with $HOLDFAST_URL set to it; {ended}", soft_wrap=True)
