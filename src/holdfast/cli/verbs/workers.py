"""`holdfast workers`: list the workers and their jobs. Must not change anything."""

import click

from holdfast.cli.open_store import run_in_store
from holdfast.cli.options import json_option, url_option
from holdfast.cli.render.overview import worker_lines
from holdfast.cli.render.screen import console, say_json
from holdfast.jobs.service import Jobs
from holdfast.jobs.views.overview import worker_state
from holdfast.jobs.views.shapes import worker_shape


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
    """List the workers: where they run, what they run, and their last heartbeat."""

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
