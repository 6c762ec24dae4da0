"""`holdfast status`: show jobs and their progress, once or live with `--watch`. Must not change anything."""

import asyncio
import time
from collections.abc import Sequence

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live

from holdfast.cli.check_engine import recent_loss
from holdfast.cli.open_store import engine_at, place_of_store, say_moved, use_store
from holdfast.cli.options import job_ids, json_option, url_option
from holdfast.cli.render.job import status_lines
from holdfast.cli.render.overview import draw_overview
from holdfast.cli.render.screen import console, say_json
from holdfast.core.lifecycle import SETTLED
from holdfast.engines.topics import job_topic, queue_topic
from holdfast.jobs.ids import find_id
from holdfast.jobs.service import Jobs
from holdfast.jobs.status import Status
from holdfast.jobs.views.overview import Overview, view_store
from holdfast.jobs.views.shapes import status_shape

REDRAW_SECONDS = 0.5
"""Redraw at most twice a second."""

LOOK_SECONDS = 1.0
"""How long `--watch` waits for a wake-up before it reads again: progress in heartbeats causes no wake-up."""


@click.command(
    epilog="""\b
Examples:
  holdfast status
  holdfast status --watch
  holdfast status 4f2a91bc --watch
  holdfast status --json

\b
ID may be shortened to its first or last characters, six or more.
With an ID, --watch ends when the job has settled. Ctrl-C ends it earlier.
"""
)
@click.argument("id", required=False, shell_complete=job_ids())
@click.option("--watch", is_flag=True, help="Keep the output up to date until you press Ctrl-C.")
@json_option
@url_option
def status(id: str | None, watch: bool, as_json: bool, url: str | None) -> None:
    """Show what is running, or the status of one job."""
    if watch and as_json:
        raise click.UsageError("--watch and --json can't be combined: repeat it with --json instead")
    engine = engine_at(url)
    place = place_of_store(engine, url)

    async def work(jobs: Jobs) -> None:
        await say_moved(jobs)
        if loss := recent_loss(engine):
            click.echo(f"holdfast: {loss}", err=True)
        whole = None if id is None else await find_id(jobs, id)
        if watch:
            await _watch(jobs, whole, place)
        elif whole is None:
            overview = await view_store(jobs, place)
            say_json(overview.shape()) if as_json else console().print(draw_overview(overview))
        else:
            found = await jobs.status(whole)
            say_json(status_shape(found)) if as_json else console().print(await _one(jobs, found))

    try:
        asyncio.run(use_store(engine, place, work))
    except KeyboardInterrupt:
        if not watch:
            raise


async def _one(jobs: Jobs, found: Status) -> RenderableType:
    history = () if found.finished_at is None and found.epoch < 2 else await jobs.history(found.id)
    return Group(*status_lines(found, history, await jobs.engine.now()))


async def _watch(jobs: Jobs, id: str | None, place: str) -> None:
    """Draw, wait for a wake-up, and draw again, until the job has settled or the caller stops it."""
    out, mark, shown = console(), 0, None
    with _screen(out) as live:
        while True:
            drawn_at = time.monotonic()
            drawing, topics, moved, over = await _scene(jobs, id, place)
            if live is not None:
                live.update(drawing, refresh=True)
            elif moved != shown:  # not a terminal: print again only if something changed
                if shown is not None:
                    out.print()
                out.print(drawing)
            shown = moved
            if over:
                return
            mark = await jobs.engine.wait(topics, LOOK_SECONDS, mark)
            await asyncio.sleep(max(0.0, drawn_at + REDRAW_SECONDS - time.monotonic()))


async def _scene(jobs: Jobs, id: str | None, place: str) -> tuple[RenderableType, Sequence[str], object, bool]:
    """Return what to draw, the topics to wait for, a value that changes with the jobs, and whether this is the end."""
    if id is not None:
        found = await jobs.status(id)
        return await _one(jobs, found), [job_topic(id)], found.progress(), found.state in SETTLED
    overview: Overview = await view_store(jobs, place)
    topics = [queue_topic(queue.name) for queue in overview.queues]
    topics += [job_topic(one.id) for one in overview.active]
    return draw_overview(overview), topics, overview.progress(), False


class _Plain:
    """Replaces a live screen where there is no terminal."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        return None


def _screen(out: Console) -> Live | _Plain:
    return Live(console=out, auto_refresh=False, vertical_overflow="ellipsis") if out.is_terminal else _Plain()
