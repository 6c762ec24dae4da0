"""`holdfast queues`: list the queues with their jobs by state; pause and resume. Must not change a job's state."""

import click

from holdfast.cli.errors import VerbGroup, echo
from holdfast.cli.open_store import run_in_store
from holdfast.cli.options import json_option, reason_option, url_option
from holdfast.cli.person import whoami
from holdfast.cli.render.overview import queue_table, unknown_lines
from holdfast.cli.render.screen import console, say_json
from holdfast.core.errors import NotFound
from holdfast.core.keys import check_queue
from holdfast.core.model import State
from holdfast.core.queue_bounds import depth_of
from holdfast.core.suggestions import suggest
from holdfast.jobs.service import Jobs
from holdfast.jobs.views.overview import is_alive, view_queues
from holdfast.jobs.views.text import ago, one_line, plural


@click.group(
    cls=VerbGroup,
    invoke_without_command=True,
    subcommand_metavar="[pause|resume|set|reset NAME]",
    epilog="""\b
Examples:
  holdfast queues
  holdfast queues --json
  holdfast queues pause video --reason "provider is down"
  holdfast queues resume video
  holdfast queues set video --most-waiting 5000 --reason "the disk is nearly full"
  holdfast queues reset video
""",
)
@json_option
@url_option
@click.pass_context
def queues(ctx: click.Context, as_json: bool, url: str | None) -> None:
    """List the queues, pause one or resume it, or set how many jobs may wait."""
    if ctx.invoked_subcommand is not None:
        return

    async def work(jobs: Jobs) -> None:
        found, now = await view_queues(jobs), await jobs.engine.now()
        if as_json:
            say_json({"queues": [queue.shape() for queue in found]})
            return
        out = console()
        out.print(queue_table(found) if found else "no queues yet: a queue appears with its first job")
        for line in unknown_lines(found):
            out.print(line)
        for queue in found:
            if queue.pause is not None:
                reason = f": {one_line(queue.pause.reason)}" if queue.pause.reason else ""
                out.print(f"{queue.name} was paused by {one_line(queue.pause.by)} {ago(queue.pause.at, now)}{reason}")
            if (bound := queue.bound.person) is not None:
                reason = f": {one_line(bound.reason)}" if bound.reason else ""
                most = f"{bound.most_waiting:,}"
                out.print(f"{queue.name}: {most} set by {one_line(bound.by)} {ago(bound.at, now)}{reason}")

    run_in_store(url, work)


@queues.command(
    epilog="""\b
Examples:
  holdfast queues pause video
  holdfast queues pause video --reason "provider is down"

\b
Running jobs continue, and no job changes its state. No other job of the queue starts until you
resume it.
"""
)
@click.argument("name")
@click.option("--yes", is_flag=True, help="Pause it even if it has never had a job.")
@reason_option
@url_option
def pause(name: str, yes: bool, reason: str, url: str | None) -> None:
    """Pause a queue: workers claim no more of its jobs."""
    check_queue(name)

    async def work(jobs: Jobs) -> None:
        known = {queue.name: queue for queue in await view_queues(jobs)}
        queue = known.get(name)
        now = await jobs.engine.now()
        served = {one for worker in await jobs.workers() if is_alive(worker, now) for one in worker.queues}
        if queue is None and name not in served and not yes:
            others = suggest(name, [*known, *served]) or (f"; there are {', '.join(known)}" if known else "")
            raise NotFound(f"queue {name} has no jobs and no worker; to pause it anyway, add --yes{others}")
        await jobs.pause(name, by=whoami(), reason=reason)
        active = 0 if queue is None else queue.counts.get(State.ACTIVE, 0)
        out = console()
        out.print(f"paused {name}" + (f"; {plural(active, 'job')} in flight may finish" if active else ""))

    run_in_store(url, work, write=True)


@queues.command(
    epilog="""\b
Examples:
  holdfast queues resume video
"""
)
@click.argument("name")
@url_option
def resume(name: str, url: str | None) -> None:
    """Resume a paused queue."""
    check_queue(name)

    async def work(jobs: Jobs) -> None:
        pauses = await jobs.pauses()
        if name not in pauses:
            others = f"; paused: {', '.join(pauses)}" if pauses else "; none is"
            raise NotFound(f"queue {name} is not paused{others}")
        await jobs.resume(name)
        console().print(f"resumed {name}")

    run_in_store(url, work, write=True)


@queues.command(
    name="set",
    epilog="""\b
Examples:
  holdfast queues set video --most-waiting 5000
  holdfast queues set video --most-waiting 5000 --reason "the disk is nearly full"

\b
Your bound overrides the one that the code declares with app.queue, even after a deploy, until you
reset it. It applies to programs whose code declares the queue. If more jobs than that wait already,
nothing happens to them at once. The next submit is refused, or sheds the oldest jobs, as the code
says.
""",
)
@click.argument("name")
@click.option("--most-waiting", type=int, required=True, metavar="N", help="How many jobs may wait to start.")
@reason_option
@url_option
def set_one(name: str, most_waiting: int, reason: str, url: str | None) -> None:
    """Set how many jobs may wait in a queue, and override the code."""

    async def work(jobs: Jobs) -> None:
        bound = await jobs.set_bound(name, most_waiting, by=whoami(), reason=reason)
        depth = depth_of(await jobs.engine.count(), name)
        console().print(f"{name}: at most {most_waiting:,} waiting; {depth:,} wait now")
        if bound.code is None:
            echo(f"note: no worker's code declares app.queue({name!r}, …), so submits may not look at it", err=True)

    run_in_store(url, work, write=True)


@queues.command(
    epilog="""\b
Examples:
  holdfast queues reset video
"""
)
@click.argument("name")
@url_option
def reset(name: str, url: str | None) -> None:
    """Use the bound in the code again."""

    async def work(jobs: Jobs) -> None:
        bound = (await jobs.reset_bound(name)).now(name)
        console().print(f"{name}: no bound" if bound is None else f"{name}: {bound.words()}, as code declares")

    run_in_store(url, work, write=True)
