"""`holdfast workers`: list the workers and their jobs; quiet one, or let it claim again. Must not change a job."""

import click

from holdfast.cli.errors import VerbGroup
from holdfast.cli.open_store import run_in_store
from holdfast.cli.options import json_option, reason_option, url_option
from holdfast.cli.person import whoami
from holdfast.cli.render.overview import worker_lines
from holdfast.cli.render.screen import console, say_json
from holdfast.jobs.service import Jobs
from holdfast.jobs.views.overview import worker_state
from holdfast.jobs.views.shapes import worker_shape


@click.group(
    cls=VerbGroup,
    invoke_without_command=True,
    subcommand_metavar="[quiet|resume WORKER]",
    epilog="""\b
Examples:
  holdfast workers
  holdfast workers --json
  holdfast workers quiet w-studio-1-79b91d --reason "this machine goes away"
  holdfast workers resume w-studio-1-79b91d
""",
)
@json_option
@url_option
@click.pass_context
def workers(ctx: click.Context, as_json: bool, url: str | None) -> None:
    """List the workers: where they run, what they run, and their last heartbeat. Quiet one, or let it claim again."""
    if ctx.invoked_subcommand is not None:
        return

    async def work(jobs: Jobs) -> None:
        now, found = await jobs.engine.now(), await jobs.workers()  # `now` first: no heartbeat looks too old
        if as_json:
            say_json({"workers": [worker_shape(one, worker_state(one, now)) for one in found]})
            return
        out = console()
        if not found:
            out.print("no workers; start one: holdfast worker MODULE:APP")
        for one in found:
            for line in worker_lines(one, now):
                out.print(line)

    run_in_store(url, work)


@workers.command(
    epilog="""\b
Examples:
  holdfast workers quiet w-studio-1-79b91d --reason "this machine goes away"

\b
The worker finishes what it runs and claims nothing more, until you resume it or it stops.
"""
)
@click.argument("worker")
@reason_option
@url_option
def quiet(worker: str, reason: str, url: str | None) -> None:
    """Tell a worker to claim nothing more."""

    async def work(jobs: Jobs) -> None:
        await jobs.quiet_worker(worker, by=whoami(), reason=reason)
        console().print(f"{worker} claims nothing more; it finishes what it runs")

    run_in_store(url, work, write=True)


@workers.command(
    epilog="""\b
Examples:
  holdfast workers resume w-studio-1-79b91d
"""
)
@click.argument("worker")
@url_option
def resume(worker: str, url: str | None) -> None:
    """Let a quiet worker claim jobs again."""

    async def work(jobs: Jobs) -> None:
        await jobs.let_claim(worker)
        console().print(f"{worker} claims jobs again")

    run_in_store(url, work, write=True)
