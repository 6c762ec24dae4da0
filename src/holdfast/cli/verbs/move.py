"""`holdfast move`: move all jobs of a store to another one. Must not know how it is done (`jobs.transfer`)."""

import asyncio
import signal
import time
from collections.abc import Awaitable
from typing import TypeVar

import click

from holdfast.cli.open_store import NoStore, engine_at, refuse_server, use_store
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
"""How long workers may take to finish their jobs, by default."""


@click.command(
    epilog="""\b
Examples:
  holdfast move --from file:checkpoint.json --to sqlite:///jobs.db
  holdfast move --from sqlite:///jobs.db --to postgresql://user@host/database
  holdfast move --from sqlite:///jobs.db --to postgresql://user@host/database --drain 2h
  holdfast move --from sqlite:///jobs.db --give-up

\b
Moves every job as it is, with history, steps, keys, waits, signals, children and pauses. The
new store must be empty. The old store is closed after that and says where its jobs are. If a
move is interrupted, repeat the same command to continue it. Times don't change; on a server,
its clock decides when a job is due. Your shell may keep the password of a URL in its history;
use $PGPASSFILE and the like instead.
"""
)
@click.option("--from", "source_url", metavar="URL", required=True, help="The store where the jobs are.")
@click.option("--to", "target_url", metavar="URL", help="The store to move them to; created if it doesn't exist.")
@click.option(
    "--drain",
    metavar="[DURATION]",
    is_flag=False,
    flag_value=DRAIN,
    help=f"First let workers finish their running jobs, for at most this long (default: {DRAIN}).",
)
@click.option("--give-up", "gives_up", is_flag=True, help="Undo an interrupted move and use the old store again.")
@click.option("--yes", is_flag=True, help="With --give-up: even if all jobs were moved already.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document with stable keys.")
def move(source_url: str, target_url: str | None, drain: str | None, gives_up: bool, yes: bool, as_json: bool) -> None:
    """Move all jobs from one store to another."""
    if gives_up:
        if target_url is not None or drain is not None:
            raise click.UsageError("--give-up takes only --from")
        _give_up(source_url, yes, as_json)
        return
    if target_url is None:
        raise click.UsageError("name the new store with --to URL")
    seconds = None if drain is None else milliseconds(drain) / 1_000
    progress = ProgressLine(quiet=as_json)
    began = time.monotonic()
    for url in (source_url, target_url):
        refuse_server(url, "move")
    source, target = engine_at(source_url, write=True, configured=False), engine_at(target_url, create=True)
    if named(source_url) == named(target_url):
        raise Invalid(f"--from and --to are the same store, {named(source_url)}; name another one with --to")

    async def work(_: Jobs) -> Report:
        async def both(_: Jobs) -> Report:
            sides = Side(source, named(source_url)), Side(target, named(target_url))
            return await move_jobs(*sides, by=whoami(), drain_seconds=seconds, tell=progress.tell)

        if seconds is None and await mark_in(source) is None:  # before a store is created for nothing
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
    source = engine_at(source_url, write=True, configured=False)

    async def work(_: Jobs) -> str:
        return (await give_up(Side(source, named(source_url)), sure=yes)).store

    store = _run(use_store(source, named(source_url), work))
    if as_json:
        say_json({"from": named(source_url), "given_up": store})
        return
    rest = f"accepts jobs again; delete their copies in {store}" if store else "lets its workers claim again"
    console().print(f"given up: {named(source_url)} {rest}", soft_wrap=True)


def _run(work: Awaitable[T]) -> T:
    async def awaited() -> T:
        return await work

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the drain is ended before this process ends
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
        out.print(f"the jobs of {source} were moved to {target} earlier; there was nothing left to do")
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
