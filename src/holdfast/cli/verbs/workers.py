"""`holdfast workers`: who is there, and what they do. Must not change anything."""

import click
from rich.text import Text

from holdfast.cli.open_store import in_store, json_option, url_option
from holdfast.cli.overview import TYPES_SHOWN, how_alive
from holdfast.cli.shapes import worker_shape
from holdfast.cli.words import ago, console, one_line, say_json, short, span
from holdfast.core.model import Presence, Running, Time
from holdfast.jobs.service import Jobs
from holdfast.safe_text import clean

STYLES = {"alive": "green", "silent": "yellow", "gone": "red"}
MEANINGS = {
    "alive": "",
    "silent": "not heard of for a while; its jobs are taken over when its lease is over",
    "gone": "it died; another worker takes over what it held",
}
RUNNING_SHOWN = 10


@click.command(
    epilog="""\b
Examples:
  holdfast workers
  holdfast workers --json
"""
)
@json_option
@url_option
def workers(as_json: bool, url: str | None) -> None:
    """List the workers: where they run, what they do, when they were last heard of."""

    async def work(jobs: Jobs) -> None:
        now, found = await jobs.engine.now(), await jobs.workers()  # in this order nobody seems more silent than it is
        if as_json:
            say_json({"workers": [worker_shape(one, how_alive(one, now)) for one in found]})
            return
        out = console()
        if not found:
            out.print("no workers; start one: holdfast worker MODULE:APP")
        for one in found:
            for line in _lines(one, now):
                out.print(line)

    in_store(url, work)


def _lines(worker: Presence, now: Time) -> list[Text]:
    how = how_alive(worker, now)
    head = Text() + Text(worker.worker, style="bold") + Text(f"  {how}", style=STYLES[how])
    head += Text(f"  {len(worker.running)} of {worker.slots} slots in use", style="")
    if worker.unreadable:
        beat = f"last beat {ago(worker.beat_at, now)}" if worker.beat_at else "last beat unknown"
        return [head, Text(f"  what the store holds of it can't be read, {beat}: holdfast doctor", style="bold red")]
    host = f"process {worker.pid} on {clean(worker.host) or 'this machine'}"
    place = f"  {host}, last beat {ago(worker.beat_at, now)}, started {ago(worker.started_at, now)}"
    lines = [head, Text(place, style="dim"), Text(f"  queues {', '.join(worker.queues) or '–'}", style="dim")]
    if worker.trouble and how == "alive":
        lines.append(Text(f"  can't write: {one_line(worker.trouble)}", style="bold red"))
    if worker.types:
        more = f" and {len(worker.types) - TYPES_SHOWN} more" if len(worker.types) > TYPES_SHOWN else ""
        lines.append(Text(f"  types {', '.join(worker.types[:TYPES_SHOWN])}{more}", style="dim"))
    if MEANINGS[how]:
        lines.append(Text(f"  {MEANINGS[how]}", style=STYLES[how]))
    lines += [_running(one, now) for one in worker.running[:RUNNING_SHOWN]]
    if len(worker.running) > RUNNING_SHOWN:
        lines.append(Text(f"    and {len(worker.running) - RUNNING_SHOWN} more", style="dim"))
    return lines


def _running(one: Running, now: Time) -> Text:
    line = Text("    ") + Text(short(one.job), style="cyan") + Text(f"  {clean(one.stage) or 'between steps'}")
    if one.done is not None and one.total:
        line += Text(f", {one.done:,} of {one.total:,}")
    return line + Text(f"  for {span(now - one.since)}" if one.since else "", style="dim")
