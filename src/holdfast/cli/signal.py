"""`holdfast signal`: send a job a named value. Must not decide what a signal does (`lifecycle`)."""

import click

from holdfast.cli.given import as_the_job_takes_it, json_given
from holdfast.cli.ids import find_id, job_ids
from holdfast.cli.store import in_store, url_option, whoami
from holdfast.cli.words import console, one_line, short
from holdfast.core.lifecycle import EVENT_ROWS
from holdfast.core.model import Event, Job
from holdfast.jobs import Jobs


@click.command(
    epilog="""\b
Examples:
  holdfast signal 4f2a91bc approved
  holdfast signal 4f2a91bc approved --json '{"by": "Ada", "ok": true}'

\b
A job that waits for this signal goes on; any other keeps it until it asks. A value that can't
be what the job waits for is refused. Questions are answered with holdfast ask.
"""
)
@click.argument("id", shell_complete=job_ids(*EVENT_ROWS[Event.CANCEL].sources))
@click.argument("name")
@click.option("--json", "value", metavar="VALUE", default="null", help="What goes with it, as JSON. Default: null.")
@url_option
def signal(id: str, name: str, value: str, url: str | None) -> None:
    """Send a job a signal."""
    if not name.strip():
        raise click.UsageError("a signal needs a name")
    told = json_given("--json", value)

    async def work(jobs: Jobs) -> Job:
        whole = await find_id(jobs, id)
        with as_the_job_takes_it(whole):
            return await jobs.signal(whole, name, told, by=whoami())

    job = in_store(url, work, write=True)
    kept = "it keeps it" if any(one.version == job.version for one in job.inbox) else "taken"
    woke = "it goes on" if job.state == "available" else f"it is {job.state}; {kept}"
    console().print(f"sent {one_line(name, 60)} to {short(job.id)}: {woke}")
