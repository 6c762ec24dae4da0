"""`holdfast schedules`: when jobs are submitted by the clock; pause, resume, run, put and remove a schedule.

Must not fire a tick: workers do.
"""

from collections.abc import Iterator
from datetime import datetime
from typing import Any

import click
from rich.text import Text

from holdfast.app.schedules import define_with, template_of
from holdfast.app.signatures import make_signature
from holdfast.cli.errors import VerbGroup, echo
from holdfast.cli.json_options import parse_arguments, parse_call, read_text
from holdfast.cli.load_app import load_app, spec_in
from holdfast.cli.open_store import run_in_store
from holdfast.cli.options import app_option, json_option, reason_option, url_option
from holdfast.cli.person import whoami
from holdfast.cli.render.screen import console, print_lines, say_json
from holdfast.core.errors import Invalid
from holdfast.core.keys import check_queue, check_type
from holdfast.core.model import Time
from holdfast.core.schedules import MISSED, OVERLAP, Template
from holdfast.jobs.schedule_views import NEXT_LISTED, ScheduleView, list_schedules, next_ticks, view_schedule
from holdfast.jobs.schedules import find_schedule, zone_of
from holdfast.jobs.service import Jobs
from holdfast.jobs.views.shapes import schedule_shape, time_text
from holdfast.jobs.views.text import ago, one_line, plural, short_id

MOST_NEXT = 100
"""How many ticks `next` lists at most."""


@click.group(
    cls=VerbGroup,
    invoke_without_command=True,
    subcommand_metavar="[pause|resume|run|next|put|remove NAME]",
    epilog="""\b
Examples:
  holdfast schedules
  holdfast schedules --json
  holdfast schedules next morning
  holdfast schedules pause morning --reason "the report is wrong"
  holdfast schedules resume morning
  holdfast schedules run morning
  holdfast schedules put nightly --cron "0 3 * * *" --tz Europe/Berlin --job report
  holdfast schedules remove nightly
""",
)
@json_option
@url_option
@click.pass_context
def schedules(ctx: click.Context, as_json: bool, url: str | None) -> None:
    """List the schedules, with their next ticks and last jobs; change or run one."""
    if ctx.invoked_subcommand is not None:
        return

    async def work(jobs: Jobs) -> None:
        found, now = await list_schedules(jobs.engine), await jobs.engine.now()
        if as_json:
            say_json({"schedules": [schedule_shape(one) for one in found]})
            return
        out = console()
        if not found:
            out.print("no schedules yet: declare one with app.schedule(…) and start a worker")
        for one in found:
            print_lines(out, _lines(one, now))

    run_in_store(url, work)


def _lines(one: ScheduleView, now: Time) -> Iterator[Text]:
    yield Text() + Text(one_line(one.name), style="bold") + Text(f"  {one.when}  {one.type}{one_line(one.args, 60)}")
    if (pause := one.paused) is not None:
        reason = f": {one_line(pause.reason)}" if pause.reason else ""
        yield Text(f"  paused by {one_line(pause.by)} {ago(pause.at, now)}{reason}", style="yellow")
    elif one.next:
        yield Text(f"  next {_clock(one, one.next[0])}, {ago(one.next[0], now)}")
    elif not one.trouble:
        yield Text("  never fires again", style="dim")
        if one.tick is None and one.changes and one.changes[-1].what.startswith("missed"):
            yield Text(f"  {one_line(one.changes[-1].what, 400)}", style="yellow")
    if one.job:
        state = "no longer kept" if one.job_state is None else str(one.job_state)
        tick = f"last {_clock(one, one.tick)}, {ago(one.tick, now)}, " if one.tick is not None else "last "
        yield Text(f"  {tick}job {short_id(one.job)}: {state}")
    if one.waiting is not None:
        yield Text(f"  the tick of {_clock(one, one.waiting)} waits for the end of that job")
    if one.skipped:
        why = "the job before had not ended, or none could be submitted"
        yield Text(f"  {plural(one.skipped, 'tick')} skipped: {why}", style="dim")
    if one.trouble:
        yield Text(f"  {one_line(one.trouble, 400)}", style="red")


def _clock(one: ScheduleView, at: Time) -> str:
    """A tick as its schedule's own zone shows it."""
    return f"{datetime.fromtimestamp(at / 1_000, _zone(one.tz)):%a %Y-%m-%d %H:%M:%S %Z}"


def _zone(name: str) -> Any:
    try:
        return zone_of(name)
    except Invalid:  # the line about what is wrong says so
        return zone_of("UTC")


@schedules.command(
    name="next",
    epilog="""\b
Examples:
  holdfast schedules next morning
  holdfast schedules next morning --count 20 --json
""",
)
@click.argument("name")
@click.option("--count", type=click.IntRange(1, MOST_NEXT), default=NEXT_LISTED, show_default=True, help="How many.")
@json_option
@url_option
def next_(name: str, count: int, as_json: bool, url: str | None) -> None:
    """Show when a schedule fires next."""

    async def work(jobs: Jobs) -> None:
        view, now = await view_schedule(jobs.engine, name), await jobs.engine.now()
        ticks, wrong = next_ticks((await find_schedule(jobs.engine, name))[1], now, count)
        if as_json:
            say_json({"name": name, "next": [time_text(tick) for tick in ticks]})
            return
        for tick in ticks:
            console().print(f"{_clock(view, tick)}  {ago(tick, now)}")
        if not ticks:
            paused = f"{name} is paused" if view.paused is not None else f"{name} never fires again"
            console().print(wrong or paused)

    run_in_store(url, work)


@schedules.command(
    epilog="""\b
Examples:
  holdfast schedules pause morning
  holdfast schedules pause morning --reason "the report is wrong"

\b
No tick fires until you resume it, also after a deploy. Jobs that were submitted continue.
"""
)
@click.argument("name")
@reason_option
@url_option
def pause(name: str, reason: str, url: str | None) -> None:
    """Pause a schedule."""

    async def work(jobs: Jobs) -> None:
        await jobs.pause_schedule(name, by=whoami(), reason=reason)
        console().print(f"paused {name}")

    run_in_store(url, work, write=True)


@schedules.command(
    epilog="""\b
Examples:
  holdfast schedules resume morning

\b
Ticks during the pause don't fire later.
"""
)
@click.argument("name")
@reason_option
@url_option
def resume(name: str, reason: str, url: str | None) -> None:
    """Let a paused schedule fire again, from now on."""

    async def work(jobs: Jobs) -> None:
        await jobs.resume_schedule(name, by=whoami(), reason=reason)
        view, now = await view_schedule(jobs.engine, name), await jobs.engine.now()
        fires = f"; next {_clock(view, view.next[0])}, {ago(view.next[0], now)}" if view.next else ""
        console().print(f"resumed {name}{fires}")

    run_in_store(url, work, write=True)


@schedules.command(
    epilog="""\b
Examples:
  holdfast schedules run morning

\b
The schedule's ticks don't change. You can also run a paused schedule.
"""
)
@click.argument("name")
@reason_option
@url_option
def run(name: str, reason: str, url: str | None) -> None:
    """Submit a schedule's job now."""

    async def work(jobs: Jobs) -> None:
        id = await jobs.run_schedule(name, by=whoami(), reason=reason)
        echo(f"submitted {(await jobs.get(id)).type} {id}")
        echo(f"next: holdfast status {short_id(id)} --watch")

    run_in_store(url, work, write=True)


@schedules.command(
    epilog="""\b
Examples:
  holdfast schedules remove nightly

\b
Its jobs stay. A schedule that code declares comes back with the next worker that starts: pause it
instead.
"""
)
@click.argument("name")
@url_option
def remove(name: str, url: str | None) -> None:
    """Remove a schedule."""

    async def work(jobs: Jobs) -> None:
        is_code = await jobs.remove_schedule(name)
        more = "; code declares it, so the next worker that starts makes it again" if is_code else ""
        console().print(f"removed {name}{more}")

    run_in_store(url, work, write=True)


@schedules.command(
    epilog="""\b
Examples:
  holdfast schedules put nightly --cron "0 3 * * *" --tz Europe/Berlin --job report
  holdfast schedules put quarter --every 15m --job report --args '["daily"]' --app reports:app
  holdfast schedules put launch --at 2026-12-01T09:00+01:00 --job announce

\b
With --app the arguments are checked, and the job gets the options of its @app.job: queue, retries,
timeout and so on. Without it they are stored as they are.
--missed: what to do about ticks that passed while no worker knew the job.
--overlap: what to do at a tick while the last job is still running.
"""
)
@click.argument("name")
@click.option("--cron", metavar="CRON", help="Five fields, like '0 9 * * mon-fri', or @daily.")
@click.option("--every", metavar="DURATION", help="The time between two ticks: 15m.")
@click.option("--at", metavar="TIME", help="Once, at this time, with its zone: 2026-12-01T09:00+01:00.")
@click.option("--tz", default="UTC", show_default=True, metavar="ZONE", help="The zone of --cron: Europe/Berlin.")
@click.option("--job", "type", required=True, metavar="TYPE", help="The job's type.")
@click.option(
    "--args", "text", metavar="JSON", default="[]", help="The job's arguments: a list, or with --app an object."
)
@click.option("--queue", help="The queue, instead of the job's own.")
@click.option("--missed", type=click.Choice(MISSED), default="skip", show_default=True, help="Missed ticks.")
@click.option("--overlap", type=click.Choice(OVERLAP), default="allow", show_default=True, help="Ticks that overlap.")
@click.option("--jitter", metavar="DURATION", help="Delay each job by a random time up to this.")
@app_option
@url_option
def put(name: str, target: str | None, url: str | None, **given: Any) -> None:
    """Create a schedule in the store, or change one."""
    text, queue = read_text("--args", given["text"]), given["queue"]
    if target is None:
        args = parse_arguments("--args", text)
        job = Template(type=check_type(given["type"]), args=args, queue=check_queue(queue or "default"))
    else:
        app = load_app(target)
        spec = spec_in(app, target, given["type"])
        call = spec.signature.read_call(*parse_call("--args", text))
        job = template_of(name, make_signature(app.open, spec, *call, {"queue": queue} if queue else {}))
        url = url or app.url
    definition = define_with(
        name, given["cron"], job, given["every"], _time(given["at"]), given["tz"], given["missed"], given["overlap"],
        given["jitter"],
    )  # fmt: skip

    async def work(jobs: Jobs) -> None:
        await jobs.put_schedule(name, definition, by=whoami())
        view, now = await view_schedule(jobs.engine, name), await jobs.engine.now()
        fires = f"; next {_clock(view, view.next[0])}, {ago(view.next[0], now)}" if view.next else ""
        console().print(f"{name}: {view.when}{fires}")

    run_in_store(url, work, create=True)


def _time(text: str | None) -> datetime | None:
    try:
        return None if text is None else datetime.fromisoformat(text)
    except ValueError:
        raise Invalid(f"--at {text!r}: not a time; write it like 2026-12-01T09:00+01:00") from None
