"""`holdfast limits`: the shared limits with how much of each is used; set, reset, close and open one.

Must not give anybody a permit.
"""

from collections.abc import Iterator

import click
from rich.text import Text

from holdfast.cli.errors import VerbGroup
from holdfast.cli.open_store import run_in_store
from holdfast.cli.options import json_option, reason_option, url_option
from holdfast.cli.person import whoami
from holdfast.cli.render.screen import console, print_lines, say_json
from holdfast.core.durations import milliseconds
from holdfast.core.model import Time, Usage
from holdfast.core.shared_limits import UNIT
from holdfast.jobs.limits import LimitView, list_limits
from holdfast.jobs.service import Jobs
from holdfast.jobs.views.shapes import limit_shape
from holdfast.jobs.views.text import ago, one_line, span, utc_clock

KEYS_SHOWN = 10
"""How many keys of a limit are shown; `--json` has more."""


@click.group(
    cls=VerbGroup,
    invoke_without_command=True,
    subcommand_metavar="[set|reset|close|open NAME]",
    epilog="""\b
Examples:
  holdfast limits
  holdfast limits --json
  holdfast limits set openai --at-once 5 --rate 100/m --reason "they asked us to"
  holdfast limits reset openai
  holdfast limits close openai --for 10m
  holdfast limits open openai
""",
)
@json_option
@url_option
@click.pass_context
def limits(ctx: click.Context, as_json: bool, url: str | None) -> None:
    """List the shared limits, set one, close it for a while, or open it."""
    if ctx.invoked_subcommand is not None:
        return

    async def work(jobs: Jobs) -> None:
        found, now = await list_limits(jobs.engine), await jobs.engine.now()
        if as_json:
            say_json({"limits": [limit_shape(limit) for limit in found]})
            return
        out = console()
        if not found:
            out.print("no limits yet: declare one with app.limit('name', …) and start a worker")
        for limit in found:
            print_lines(out, _lines(limit, now))

    run_in_store(url, work)


def _lines(limit: LimitView, now: Time) -> Iterator[Text]:
    yield Text() + Text(limit.name, style="bold") + Text(f"  {limit.now.words()}")
    if (person := limit.person) is not None:
        reason = f": {one_line(person.reason)}" if person.reason else ""
        code = f"; code says {limit.code.words()}" if limit.code is not None else ""
        yield Text(f"  set by {one_line(person.by)} {ago(person.at, now)}{reason}{code}", style="yellow")
    if not limit.usage:
        yield Text("  not in use", style="dim")
    for one in limit.usage[:KEYS_SHOWN]:
        yield Text(f"  {_usage_words(limit, one, now)}")
    if len(limit.usage) > KEYS_SHOWN:
        yield Text(f"  and {len(limit.usage) - KEYS_SHOWN:,} more", style="dim")


def _usage_words(limit: LimitView, one: Usage, now: Time) -> str:
    of = "" if limit.settings.at_once is None else f" of {limit.settings.at_once:,}"
    parts = [f"{one.held:,}{of} in use", f"{one.waiting:,} waiting"]
    if one.tokens is not None:
        parts.append(f"{one.tokens / UNIT:,.4g} left of the burst of {(limit.settings.burst or 0) / UNIT:,.4g}")
    if one.closed_until:
        parts.append(f"closed until {utc_clock(one.closed_until)}, {span(one.closed_until - now)} left")
    value = one.key.partition("/")[2]
    return (f"{one_line(value, 60)}: " if value else "") + ", ".join(parts)


@limits.command(
    name="set",
    epilog="""\b
Examples:
  holdfast limits set openai --at-once 5
  holdfast limits set openai --rate 100/m --burst 10 --reason "they asked us to"

\b
Your settings override those in the code, even after a deploy, until you reset them. A lowered
limit takes effect as running steps end.
""",
)
@click.argument("name")
@click.option("--at-once", type=int, metavar="N", help="How many may run at the same time.")
@click.option("--rate", metavar="N/s|m|h|d", help="How many may start in a period: 500/m.")
@click.option("--burst", type=float, metavar="N", help="How many may start at the same moment.")
@reason_option
@url_option
def set_one(
    name: str,
    at_once: int | None,
    rate: str | None,
    burst: float | None,
    reason: str,
    url: str | None,
) -> None:
    """Set a limit, and override the code."""

    async def work(jobs: Jobs) -> None:
        limit = await jobs.set_limit(name, at_once=at_once, rate=rate, burst=burst, by=whoami(), reason=reason)
        console().print(f"{name}: {limit.now.words()}")

    run_in_store(url, work, write=True)


@limits.command(
    epilog="""\b
Examples:
  holdfast limits reset openai
"""
)
@click.argument("name")
@reason_option
@url_option
def reset(name: str, reason: str, url: str | None) -> None:
    """Use the settings in the code again."""

    async def work(jobs: Jobs) -> None:
        limit = await jobs.reset_limit(name, by=whoami(), reason=reason)
        console().print(f"{name}: {limit.now.words()}, as code declares")

    run_in_store(url, work, write=True)


@limits.command(
    epilog="""\b
Examples:
  holdfast limits close openai --for 10m
  holdfast limits close tokens/gpt-4 --for 1h --reason "quota used up"

\b
While a limit is closed, no new call starts, and running calls continue. When it opens, a few calls
start first.
"""
)
@click.argument("name")
@click.option("--for", "duration", required=True, metavar="TIME", help="For how long: 90s, 10m, 2h.")
@reason_option
@url_option
def close(name: str, duration: str, reason: str, url: str | None) -> None:
    """Close a limit for a while."""
    for_ms = milliseconds(duration)

    async def work(jobs: Jobs) -> None:
        until = await jobs.close_limit(name, for_ms, by=whoami(), reason=reason)
        console().print(f"closed {name} until {utc_clock(until)}")

    run_in_store(url, work, write=True)


@limits.command(
    name="open",
    epilog="""\b
Examples:
  holdfast limits open openai
""",
)
@click.argument("name")
@reason_option
@url_option
def open_one(name: str, reason: str, url: str | None) -> None:
    """Open a limit that is closed."""

    async def work(jobs: Jobs) -> None:
        await jobs.open_limit(name, by=whoami(), reason=reason)
        console().print(f"opened {name}")

    run_in_store(url, work, write=True)
