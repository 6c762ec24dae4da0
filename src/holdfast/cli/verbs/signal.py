"""`holdfast signal`: send a job a named value. Must not decide what a signal does (`lifecycle`)."""

import click

from holdfast.cli.json_options import parse_json, refuse_for_job
from holdfast.cli.open_store import run_in_store
from holdfast.cli.options import job_ids, url_option
from holdfast.cli.person import whoami
from holdfast.cli.render.screen import console
from holdfast.core.errors import BadValue
from holdfast.core.lifecycle import EVENT_ROWS, standing
from holdfast.core.model import Event, Job, State, WaitKind
from holdfast.core.suggestions import suggest
from holdfast.jobs.ids import find_id
from holdfast.jobs.questions import WAIT_PATH, schemas_of
from holdfast.jobs.service import Jobs
from holdfast.jobs.views.form import fields_of, form_words
from holdfast.jobs.views.text import one_line, short_id


@click.command(
    epilog="""\b
Examples:
  holdfast signal 4f2a91bc approved
  holdfast signal 4f2a91bc approved --json '{"by": "Ada", "ok": true}'

\b
A job that waits for this signal continues. Any other job keeps the signal until it asks for
it. A value that doesn't fit what the job waits for is refused. To answer a question, use
holdfast ask.
"""
)
@click.argument("id", shell_complete=job_ids(*EVENT_ROWS[Event.CANCEL].sources))
@click.argument("name")
@click.option("--json", "value", metavar="VALUE", default="null", help="The signal's value, as JSON. Default: null.")
@url_option
def signal(id: str, name: str, value: str, url: str | None) -> None:
    """Send a job a signal."""
    if not name.strip():
        raise click.UsageError("a signal needs a name")
    parsed = parse_json("--json", value)

    async def work(jobs: Jobs) -> Job:
        whole = await find_id(jobs, id)
        with refuse_for_job(whole):
            try:
                return await jobs.signal(whole, name, parsed, by=whoami())
            except BadValue as error:
                raise BadValue(f"{error}{await _form(jobs, whole, name)}") from None

    job = run_in_store(url, work, write=True)
    console().print(f"sent {one_line(name, 60)} to {short_id(job.id)}{_what_follows(job, name)}", soft_wrap=True)


def _what_follows(job: Job, name: str) -> str:
    """Say what the signal did: the job continues, or it keeps the signal, and why."""
    if job.state == State.AVAILABLE:
        return ": it continues"
    if not any(one.version == job.version for one in job.inbox):
        return f": it is {standing(job.state)}; taken"
    others = [one_line(wait.name, 60) for wait in job.waits if wait.kind is WaitKind.SIGNAL and wait.name != name]
    if others and job.state == State.PENDING:
        why = f"because the job waits for {', '.join(others)}{suggest(name, others)}"
    else:
        why = f"because the job is {standing(job.state)}"
    return f"; it stays in the inbox, {why}"


async def _form(jobs: Jobs, id: str, name: str) -> str:
    """Return what values the job accepts under this name, to add to an error."""
    schemas = schemas_of(await jobs.get(id), await jobs.engine.steps_under(id, WAIT_PATH)).get(name, [])
    forms = dict.fromkeys(form_words(fields_of(schema)) for schema in schemas if schema)
    return f"; it takes {', or '.join(forms)}" if forms else ""
