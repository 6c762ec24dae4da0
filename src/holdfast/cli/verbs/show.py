"""`holdfast show`: show everything stored about one job. Must not change anything."""

import click

from holdfast.cli.open_store import run_in_store
from holdfast.cli.options import job_ids, json_option, url_option
from holdfast.cli.render.job import print_job
from holdfast.cli.render.screen import console, say_json
from holdfast.jobs.ids import find_job
from holdfast.jobs.service import Jobs
from holdfast.jobs.views.job import view_job


@click.command(
    epilog="""\b
Examples:
  holdfast show 4f2a91bc
  holdfast show 4f2a91bc --json > run.json

\b
ID may be shortened to its first or last characters, six or more.
"""
)
@click.argument("id", shell_complete=job_ids())
@json_option
@url_option
def show(id: str, as_json: bool, url: str | None) -> None:
    """Show everything stored about a job: its arguments, history, steps, log and error."""

    async def work(jobs: Jobs) -> None:
        view = await view_job(jobs, await find_job(jobs, id))
        say_json(view.shape()) if as_json else print_job(console(), view)

    run_in_store(url, work)
